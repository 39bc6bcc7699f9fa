# SPDX-License-Identifier: Apache-2.0

"""A command that is piped into head prints no traceback."""

import os
import subprocess
import sys

import pytest

from tests import forked, templates
from tests.unit.cmd.processes import ROOT

#: These run in new interpreters, since the end of one takes part in this; the others in forks.
FRESH = ['manage migration list', 'manage --help', 'status upgrade check']


@pytest.mark.parametrize('buffered', [{}, {'PYTHONUNBUFFERED': '1'}], ids=['buffered', 'unbuffered'])
@pytest.mark.parametrize('command', [*FRESH, 'status upgrade check --json'])
def test_command_with_a_closed_pipe_ends_without_output(tmp_path, command, buffered):
    module, *arguments = command.split()
    database = templates.database(tmp_path)
    environment = {**os.environ, 'OS_DATABASE__CONNECTION': f'sqlite:///{database}', **buffered}
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, '-m', f'migrator.cmd.{module}', *arguments]
    with os.fdopen(writing, 'wb') as unread:
        if buffered or command not in FRESH:
            done = forked.run(argv, stdout=unread, env=environment, cwd=ROOT, timeout=60)
        else:
            done = subprocess.run(
                argv,
                stdout=unread,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=ROOT,
                timeout=60,
                check=False,
                text=True,
            )
    assert done.stderr == ''
    # argparse notices by itself, and thinks nothing of it.
    assert done.returncode in ((0, 141) if '--help' in command else (141,))
