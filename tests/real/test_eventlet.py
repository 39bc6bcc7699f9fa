# SPDX-License-Identifier: Apache-2.0

"""A service of ours whose threads are green, on real servers."""

import pathlib
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]


def test_a_statement_that_waits_on_a_database_server_holds_up_no_other_thread(server_url):
    program = str(pathlib.Path(__file__).with_name('green_database.py'))
    done = subprocess.run(
        [sys.executable, program, server_url],
        cwd=TREE,
        env={'PYTHONPATH': str(TREE)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == 'the value is 2\n', done.stderr
