# SPDX-License-Identifier: Apache-2.0

"""A drain that runs in the foreground: this process advances it and shows it until it ends.

The first Ctrl-C pauses the drain and waits for the migrations in progress. So do a terminal that is closed (SIGHUP) and
an output that cannot be written to any more, such as a pipe to ``head``. The second Ctrl-C and SIGTERM leave at once:
the state is complete at any moment, and Nova goes on with what was requested.
"""

from __future__ import annotations

import dataclasses
import getpass
import signal
import sys

from migrator.drain.attempt import attempt
from migrator.nova.foreground import fenced, output, session, state
from migrator.nova.foreground.session import Session
from migrator.objects import base
from migrator.objects.drain import Drain, MemberStatus
from migrator.operator.cli import command
from migrator.operator.watch import commands, subjects
from migrator.operator.watch.screen import Picture

#: Seconds between two looks at the cloud.
EVERY = 2.0
#: The longest time in seconds until a signal is noticed that comes between two looks.
_SLICE = 0.2
INTERRUPTED, STOPPED = 130, command.WRONG


class Left(KeyboardInterrupt):
    """A signal to leave at once.

    :ivar status: the exit status for the signal.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class Interrupts:
    """A context that notes the first Ctrl-C and SIGHUP. The second Ctrl-C and SIGTERM raise :class:`Left`.

    :ivar has_come: whether Ctrl-C was pressed, or the terminal or the output was closed.
    :ivar left: what was raised. A library may have swallowed it, or raised another error in its place.
    """

    has_come = False
    left: Left | None = None

    def __enter__(self) -> Interrupts:
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._take) for number in signals}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM or (number == signal.SIGINT and self.has_come):
            self.left = Left(128 + number)
            raise self.left
        self.has_come = True

    def note(self) -> None:
        """Pause the drain as by Ctrl-C."""
        self.has_come = True


def run(asked: Session, uuid: str, interrupts: Interrupts) -> int:
    """Run a drain until it ends, and return the exit status. If another process runs it, only print that.

    :returns: 0 if it ends completed or restored; 130 if it was interrupted; 1 if it ends otherwise, or if another
        process runs it.
    """
    drains = asked.database.drains
    drain = drains.get(uuid)
    with state.locked(asked.lock_of(drain.uuid)) as pid:
        if pid is not None:
            sys.stderr.write(f'{runs_elsewhere(drain, pid)}\nTo see it: {asked.command} watch {uuid}\n')
            return command.WRONG  # it has not ended: what is typed after && must not run
        running = _Running(asked, drain, interrupts)
        output.say(f'Drain {uuid} of {drain.host}, with its state in {asked.path}. Ctrl-C pauses it.\n')
        try:
            view = output.Forgiving(commands.make_view(asked.arguments.json), interrupts.note)
            status = commands.follow(running, view, running.sleep, EVERY)
        except (Left, Exception):
            if interrupts.left is None:
                raise
            running.print_how_to_go_on('The command has left.')
            return interrupts.left.status
        if status == INTERRUPTED:
            running.print_how_to_go_on('It is paused.')
        return status


def runs_elsewhere(drain: Drain, pid: int) -> str:
    """Return that another process runs a drain, in words."""
    return f'Drain {drain.uuid} of {drain.host} is run by process {pid}, which acts on requests within {EVERY:.0f} s.'


class _Running:
    """A drain that this process runs. Each look advances it first, and returns its picture."""

    def __init__(self, asked: Session, drain: Drain, interrupts: Interrupts) -> None:
        self._asked, self._interrupts = asked, interrupts
        self._uuid, self._owner = drain.uuid, asked.threads.new_uuid()
        self._drains = asked.database.drains
        self._has_paused = False
        # An earlier process has shown the events until now.
        shown = drain.log_seq if drain.owner is not None else 0
        self._mover = fenced.engine_of(asked, drain) or asked.mover
        self._shown = subjects.Drain(asked.get, asked.threads.clock.now, drain.uuid, shown)
        self._drains.adopt(self._owner, drain.uuid)

    def look(self) -> Picture:
        """Advance the drain, and return its picture."""
        drain = self._drains.get(self._uuid)
        is_cancelled = drain.cancel_requested_at is not None
        if self._has_paused and not drain.paused and not is_cancelled and not drain.ended:
            # Another command has resumed it. So the next Ctrl-C is a first one again.
            self._interrupts.has_come = self._has_paused = False
        elif self._interrupts.has_come and not self._has_paused and not drain.ended:
            if not is_cancelled:
                self._drains.request(self._uuid, 'pause', getpass.getuser())
                drain = self._drains.get(self._uuid)
            self._has_paused = True
        if not drain.ended:
            attempt(self._drains, self._mover, drain, session.PROG)
        picture = self._shown.look()
        stopped = getattr(self._mover, 'stopped', None)
        if stopped is not None:
            return dataclasses.replace(
                picture,
                status=STOPPED,
                notes=[*picture.notes, f'The evacuation has stopped, and requests no further guest: {stopped}'],
            )
        if not self._has_paused or picture.status is not None:
            return picture
        moving = self._moving()
        if not moving:
            return dataclasses.replace(picture, status=INTERRUPTED)
        count = base.count(moving, 'migration')
        note = f'Interrupted: waiting for {count} in progress. Ctrl-C again leaves the rest to Nova.'
        return dataclasses.replace(picture, notes=[*picture.notes, note])

    def _moving(self) -> int:
        return sum(member.status == MemberStatus.MOVING for member in self._drains.read_members(self._uuid))

    def sleep(self, seconds: float) -> None:
        """Sleep until the next look, which comes at once after the first Ctrl-C."""
        if self._interrupts.left is not None:
            raise self._interrupts.left
        threads = self._asked.threads
        until = threads.clock.monotonic() + seconds
        had_come = self._interrupts.has_come
        while threads.clock.monotonic() < until and self._interrupts.has_come == had_come:
            threads.sleep(_SLICE)

    def print_how_to_go_on(self, why: str) -> None:
        """Print how many migrations are in progress, and the commands that go on with the drain and end it."""
        moving, prefix = self._moving(), self._asked.command
        left = f'Nova goes on with {base.count(moving, "migration")}' if moving else 'No migration is in progress'
        go_on, end = f'{prefix} resume {self._uuid}', f'{prefix} cancel {self._uuid}'
        output.say(f'{why} {left}.\nTo go on:  {go_on}\nTo end it: {end}\n')
