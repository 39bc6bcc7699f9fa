# SPDX-License-Identifier: Apache-2.0

"""A test that never ends, for test_servers.py to interrupt; pytest does not collect it by its name."""

import os
import pathlib
import signal
import time


def test_never_ends(workspace, postgresql, rabbitmq, placement_http):
    # a shell that starts a command in the background has it ignore Ctrl-C, and its children with it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    note = pathlib.Path(os.environ['MIGRATOR_TEST_NOTE'])
    # renamed into place, so that who waits for it reads all of it
    note.with_suffix('.new').write_text(str(workspace.root))
    note.with_suffix('.new').rename(note)
    while True:
        time.sleep(1)
