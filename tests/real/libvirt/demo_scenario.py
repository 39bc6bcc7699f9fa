# SPDX-License-Identifier: Apache-2.0

"""What the demo does: all guests leave one host; one move is aborted, one is made to end by post-copy."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from migrator.demo import report, screen
from migrator.objects import Migration, MigrationStatus
from tests.real.libvirt import demo_cloud
from tests.real.libvirt.lab import guests

_S = MigrationStatus

#: The order in which the moves are requested, so that the first two are under way when the operator intervenes.
ORDER = ('database', 'cache', 'web', 'worker')
BY_POST_COPY, CHANGES_ITS_MIND = 'database', 'cache'
#: After how many MiB.
AFTER = 30

_WIDTH = max(map(len, ORDER))
#: Seconds in which everything has to have happened, on the slowest of machines.
PATIENCE = 400.0
_TICK = 0.1


@dataclasses.dataclass
class Move:
    """One migration, as it was asked for and as it was seen.

    :ivar plan: the result that is wanted: ``moved``, ``aborted`` or ``post-copy``.
    :ivar at_mib: how much had been copied when the operator intervened.
    :ivar history: each status that the migration has had.
    :ivar checked: whether its guest was looked at afterwards.
    :ivar wrong: what is not as it should be.
    """

    guest: guests.Guest
    plan: str
    migration: Migration
    watch: guests.Watch | None = None
    downtime: float | None = None
    at_mib: int | None = None
    checked: bool = False
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """How long it ran, from the end of its wait to its own."""
        began = next((_at(one) for one in self.history if one['status'] == _S.RUNNING), None)
        if began is None or not self.migration.ended:
            return None
        return (_at(self.history[-1]) - began).total_seconds()

    @property
    def what(self) -> str:
        """Say what came of it."""
        mib = '' if self.at_mib is None else f' at {self.at_mib} MiB'
        status = str(self.migration.status)
        if status == _S.COMPLETED:
            return f'moved, by post-copy{mib}' if self.plan == 'post-copy' else 'moved while it ran'
        if status == _S.CANCELLED:
            return f'aborted{mib}: stayed'
        return f'{status}{mib}'

    def end_watch(self) -> None:
        """Listen to its guest no longer."""
        if self.watch is not None:
            self.watch.__exit__()
            self.downtime, self.watch = self.watch.longest_silence, None


@dataclasses.dataclass(frozen=True)
class Report:
    """How the demo went.

    :ivar counted: guest -> what it has said of itself, on both hosts together.
    :ivar wrong: what is not as it should be, and belongs to no single move.
    """

    moves: list[Move]
    seconds: float
    counted: dict[str, dict[str, int]]
    findings: list[dict[str, Any]]
    looked_at: dict[str, int]
    wrong: list[str]

    @property
    def right(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.wrong or self.findings or any(move.wrong for move in self.moves))

    def as_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {
            'right': self.right,
            'seconds': round(self.seconds, 3),
            'moves': [
                {
                    'guest': move.guest.name,
                    'instance': move.guest.uuid,
                    'migration': move.migration.uuid,
                    'plan': move.plan,
                    'what': move.what,
                    'status': str(move.migration.status),
                    'history': [{'status': one['status'], 'at': one['at']} for one in move.history],
                    'intervened_at_mib': move.at_mib,
                    'seconds': _rounded(move.seconds),
                    'downtime': _rounded(move.downtime),
                    'wrong': move.wrong,
                }
                for move in self.moves
            ],
            'guests': self.counted,
            'audit': {'findings': self.findings, 'looked_at': self.looked_at},
            'wrong': self.wrong,
        }


class Scenario:
    """Empties the source.

    :param cloud: its computes are up, and it has adopted the guests.
    :param those: the guests.
    :param say: shows the spectator what happens besides the migrations themselves.
    """

    def __init__(self, cloud: demo_cloud.LibvirtCloud, those: list[guests.Guest], say: Callable[[str], None]) -> None:
        self._cloud = cloud
        self._source = cloud.lab.hosts[demo_cloud.SOURCE]
        self._destination = cloud.lab.hosts[demo_cloud.DESTINATION]
        self._guests = {guest.name: guest for guest in those}
        self._names = {guest.uuid: f'{guest.name:{_WIDTH}}' for guest in those}
        self._say = say
        self._moves: list[Move] = []
        self._wrong: list[str] = []
        #: How many guests are being looked at, and go again then.
        self._coming = 0

    def run(self, view: screen.View) -> Report:
        """Do it, show it, and look at what came of it."""
        began = time.monotonic()
        for name in ORDER:
            self._ask(name, {BY_POST_COPY: 'post-copy', CHANGES_ITS_MIND: 'aborted'}.get(name, 'moved'))
        try:
            while not self._look(view):
                if time.monotonic() - began > PATIENCE:
                    self._wrong.append(f'not everything has ended within {PATIENCE:g} s')
                    break
                time.sleep(_TICK)
        finally:
            for move in self._moves:
                move.end_watch()
        took = time.monotonic() - began
        self._judge()
        findings, looked_at = report.audit(self._cloud)  # type: ignore[arg-type] -- it reads only the records
        counted = {name: self._counted(guest) for name, guest in self._guests.items()}
        return Report(self._moves, took, counted, findings, looked_at, self._wrong)

    # --- what an operator does ---------------------------------------------------------------------------------------

    def _ask(self, name: str, plan: str) -> None:
        guest = self._guests[name]
        answer = _undisturbed(lambda: self._cloud.live_migrate(guest.uuid))
        if answer.status_int != 202:
            self._wrong.append(f'the move of {name} was refused: {answer.status} {_text(answer)}')
            return
        instance = self._cloud.database.instances.get(guest.uuid)
        self._moves.append(Move(guest, plan, self._cloud.migrations(instance)[-1]))

    def _intervene(self, move: Move, copied: int) -> None:
        move.at_mib = copied
        path = f'/servers/{move.guest.uuid}/migrations/{move.migration.id}'
        if move.plan == 'aborted':
            self._say(f'{move.guest.name} is aborted, with {copied} of its {demo_cloud.MEMORY} MiB copied')
            answer = _undisturbed(lambda: self._cloud.request('DELETE', path))
        else:
            self._say(f'{move.guest.name} writes faster than it is copied: it is to complete by post-copy')
            answer = _undisturbed(lambda: self._cloud.request('POST', f'{path}/action', {'force_complete': None}))
        if answer.status_int != 202:
            move.wrong.append(f'that was refused: {answer.status} {_text(answer)}')

    # --- what happens ------------------------------------------------------------------------------------------------

    def _look(self, view: screen.View) -> bool:
        """Take in what is new, and act on it; return whether there is no more to come."""
        seen = self._cloud.look(self._names)
        view.show(seen)
        known = {one.uuid: one for one in seen.migrations}
        complete = not self._coming
        for move in list(self._moves):
            move.migration = known.get(move.migration.uuid, move.migration)
            move.history = self._cloud.history_of(move.migration)
            self._follow(move)
        return (
            complete
            and not self._coming
            and all(move.migration.ended or move.migration.stuck_reason for move in self._moves)
        )

    def _follow(self, move: Move) -> None:
        migration = move.migration
        if migration.status == _S.RUNNING:
            if move.watch is None:
                move.watch = move.guest.watch()
                move.watch.__enter__()
            copied = int(migration.memory_processed or 0) >> 20
            if move.plan != 'moved' and move.at_mib is None and copied >= AFTER:
                self._intervene(move, copied)
        elif migration.ended and move.watch is not None:
            move.end_watch()
            if move.plan == 'aborted' and migration.status == _S.CANCELLED:
                self._coming += 1
                self._cloud.world.threads.start(self._go_again, move, name='demo-again')

    def _go_again(self, move: Move) -> None:
        """Look at a guest that was to stay, which takes a second or two, and have it move after all."""
        try:
            move.wrong += _found(lambda: move.guest.unharmed(self._source))
            move.checked = True
            if not move.wrong:
                self._say(f'{move.guest.name} goes on at {demo_cloud.SOURCE} as it was; its move is asked for again')
            self._ask(move.guest.name, 'moved')
        except Exception as error:  # noqa: BLE001 -- it is reported in the end, and the others go on
            move.wrong.append(str(error))
        finally:
            self._coming -= 1

    # --- what came of it ---------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._say('Looking at what every guest has said, at its pages, and at the allocations')
        wanted = {'moved': _S.COMPLETED, 'post-copy': _S.COMPLETED, 'aborted': _S.CANCELLED}
        for move in self._moves:
            migration = move.migration
            if migration.status != wanted[move.plan]:
                why = migration.stuck_reason or migration.failure or 'no reason is known'
                move.wrong.append(f'it is {migration.status}, and not {wanted[move.plan]}: {why}')
            elif not move.checked:
                move.wrong += _found(lambda guest=move.guest: guest.survived(self._source, self._destination))
                move.checked = True
            if move.plan == 'post-copy' and not self._cloud.went_by_post_copy(move.guest):
                move.wrong.append('libvirt has reported no post-copy')
        if left := self._source.domains():
            self._wrong.append(f'{demo_cloud.SOURCE} is not empty: {len(left)} guests are left')
        running = demo_cloud.running_on(self._destination, list(self._guests.values()))
        if missing := sorted(set(self._guests) - set(running)):
            self._wrong.append(f'{", ".join(missing)} not running on {demo_cloud.DESTINATION}')

    def _counted(self, guest: guests.Guest) -> dict[str, int]:
        ticks = sorted(tick for host in (self._source, self._destination) for tick in guest.ticks(host))
        if not ticks:
            return {}
        return {
            'first': ticks[0].tick,
            'last': ticks[-1].tick,
            'heard': len(ticks),
            'longest_step': max((next_.tick - one.tick for one, next_ in itertools.pairwise(ticks)), default=0),
            'mib_rewritten': ticks[-1].written,
            'bad_pages': max(tick.bad for tick in ticks),
        }


def _found(check: Callable[[], None]) -> list[str]:
    try:
        check()
    except AssertionError as error:
        return [str(error)]
    return []


def _at(entry: dict[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(str(entry['at']))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _text(answer: Any) -> str:
    try:
        return str(next(iter(json.loads(answer.text).values()))['message'])
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return str(answer.text)


def _undisturbed(act: Callable[[], Any]) -> Any:
    """Call a function in a thread, where no signal interrupts it.

    A signal in the middle of a request would be reported as that request's error.
    """
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()
