# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""A service of ours whose threads are green, on real servers."""

from __future__ import annotations

import pathlib
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]


def test_a_statement_that_waits_on_postgresql_holds_up_no_other_thread(database_url):
    program = str(pathlib.Path(__file__).with_name('green_database.py'))
    done = subprocess.run(
        [sys.executable, program, database_url],
        cwd=TREE,
        env={'PYTHONPATH': str(TREE)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == 'the value is 2\n', done.stderr
