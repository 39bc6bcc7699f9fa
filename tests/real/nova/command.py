# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain`` as a process of its own that can be killed before any of its writes.

Run as a program it is the command itself, with shorter waits. ``MIGRATOR_TEST_KILL_AT=3`` ends it by SIGKILL before its
third write: a commit that changes rows, or a request that changes something in the cloud. A later process has to find
out what it has done and not recorded.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.real.nova import lab as labs

TREE = pathlib.Path(__file__).resolve().parents[3]
KILLED = -signal.SIGKILL


class Command:
    """The command ``migrator-drain`` on the cloud of a lab.

    :param lab: whose cloud it is.
    :param state: the path of its state.
    """

    def __init__(self, lab: labs.Lab, state: pathlib.Path) -> None:
        self._lab, self._state = lab, state

    def begin(self, *arguments: str, kill_at: int = 0) -> subprocess.Popen[str]:
        """Start it, and return the process."""
        program = [sys.executable, '-m', 'tests.real.nova.command', '--os-cloud', labs.CLOUD]
        environment = os.environ | self._lab.environment | {'PYTHONPATH': str(TREE), 'PYTHONWARNINGS': 'ignore'}
        return subprocess.Popen(
            [*program, '--state', str(self._state), *arguments],
            env=environment | {'MIGRATOR_TEST_KILL_AT': str(kill_at)},
            cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, status: int | None = 0, kill_at: int = 0, errors: bool = False) -> str:
        """Run it to its end, and return what it prints.

        :param status: with which it has to end; None: any.
        :param errors: whether to return what it prints to stderr instead.
        """
        with self.begin(*arguments, kill_at=kill_at) as running:
            return self.end(running, status, errors)

    def end(self, running: subprocess.Popen[str], status: int | None = 0, only_errors: bool = False) -> str:
        """Wait for a process to end, and return what it has printed."""
        output, errors = running.communicate(timeout=400)
        assert status is None or running.returncode == status, (
            f'{running.args}: {running.returncode}\n{output}\n{errors}'
        )
        return errors if only_errors else output

    def read(self, *arguments: str, status: int | None = 0) -> Any:
        """Run it to its end, and return its JSON."""
        return json.loads(self.run('--json', *arguments, status=status))


def main() -> int:
    """Run the command."""
    from keystoneauth1 import session
    from sqlalchemy import Engine, event

    from migrator.cmd import drain
    from migrator.drain import run
    from migrator.nova import moves
    from migrator.nova.foreground import allocations, evacuation, loop

    # the lab's nova updates a migration twice a second
    moves.SETTLED, loop.EVERY, run.FIRST_PAUSE, run.REMAINS = 5.0, 0.5, 3.0, 10.0
    allocations._SETTLE, evacuation.LEAST_QUIET = 1.0, 1
    writes, at = itertools.count(1), int(os.environ.get('MIGRATOR_TEST_KILL_AT', '0'))

    def before_write() -> None:
        if next(writes) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    changed: set[int] = set()

    @event.listens_for(Engine, 'before_cursor_execute')
    def note(connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.split()[0].upper() in ('INSERT', 'UPDATE', 'DELETE'):
            changed.add(id(connection))

    @event.listens_for(Engine, 'commit')
    def commit(connection: Any) -> None:
        if id(connection) in changed:
            changed.discard(id(connection))
            before_write()

    send: Callable[..., Any] = session.Session.request

    def request(self: Any, url: str, method: str, **more: Any) -> Any:
        if method != 'GET' and not url.endswith('/auth/tokens'):
            before_write()
        return send(self, url, method, **more)

    session.Session.request = request
    return drain.main()


if __name__ == '__main__':
    sys.exit(main())
