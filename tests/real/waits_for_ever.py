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

"""A test that never ends, for test_servers.py to interrupt; by its name pytest does not find it by itself."""

import os
import pathlib
import signal
import time


def test_waits_for_ever(ground, postgresql, rabbitmq, placement_http):
    # a shell that starts a command in the background has it ignore Ctrl-C, and its children with it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    note = pathlib.Path(os.environ['MIGRATOR_TEST_NOTE'])
    # renamed into place, so that who waits for it reads all of it
    note.with_suffix('.new').write_text(str(ground.root))
    note.with_suffix('.new').rename(note)
    while True:
        time.sleep(1)
