# SPDX-License-Identifier: Apache-2.0

"""What the demo does: a drain empties a host, with one move that fails first, and one by post-copy."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from migrator.demo import report, run
from migrator.objects import Migration, MigrationStatus
from migrator.objects.drain import DrainStatus
from migrator.operator.watch import screen, subjects
from tests.real.libvirt import demo_cloud
from tests.real.libvirt.lab import guests

_S = MigrationStatus

#: The guest whose move is made to end by post-copy, and the one whose first move fails.
BY_POST_COPY, FAILS_ONCE = 'database', 'cache'
#: After how many MiB.
AFTER = 30
#: The longest silence of a guest, in seconds, that counts as right. A client of a guest notices a longer one.
SILENCE = 2.0

#: Seconds in which everything has to have happened, on the slowest of machines.
PATIENCE = 400.0
_TICK = 0.1


@dataclasses.dataclass
class Move:
    """One migration, as it was asked for and as it was seen.

    :ivar plan: the result that is wanted: ``moved``, ``failed`` or ``post-copy``.
    :ivar at_mib: how much had been copied when something intervened.
    :ivar history: each status that the migration has had.
    :ivar wrong: what is not as it should be.
    """

    guest: guests.Guest
    plan: str
    migration: Migration
    watch: guests.Watch | None = None
    downtime: float | None = None
    at_mib: int | None = None
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
        return f'{status}{mib}'

    def end_watch(self) -> None:
        """Listen to its guest no longer."""
        if self.watch is not None:
            self.watch.__exit__()
            self.downtime, self.watch = self.watch.longest_silence, None


@dataclasses.dataclass(frozen=True)
class Report:
    """How the demo went.

    :ivar drain: the drain at its end, as the API shows it.
    :ivar counted: guest -> what it has said of itself, on both hosts together.
    :ivar wrong: what is not as it should be, and belongs to no single move.
    """

    drain: dict[str, Any]
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
            'drain': self.drain,
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
    """The scenario that empties the source.

    :param cloud: its computes are up, and it has adopted the guests.
    :param those: the guests.
    :param report: shows the spectator what happens besides the migrations themselves.
    """

    def __init__(
        self, cloud: demo_cloud.LibvirtCloud, those: list[guests.Guest], report: Callable[[str], None]
    ) -> None:
        self._cloud = cloud
        self._source = cloud.lab.hosts[demo_cloud.SOURCE]
        self._destination = cloud.lab.hosts[demo_cloud.DESTINATION]
        self._guests = {guest.uuid: guest for guest in those}
        self._report = report
        self._moves: dict[str, Move] = {}
        self._wrong: list[str] = []

    def plan(self) -> dict[str, Any]:
        """Return the plan of the drain."""
        wanted = {'host': demo_cloud.SOURCE, 'dry_run': True}
        plan: dict[str, Any] = _undisturbed(lambda: run.ask(self._cloud, 'POST', '/drains', wanted))['plan']
        return plan

    def run(self, view: screen.View) -> Report:
        """Do it, show it, and look at what came of it."""
        began = time.monotonic()
        wanted = {'host': demo_cloud.SOURCE, 'reason': 'a demo'}
        uuid = _undisturbed(lambda: run.ask(self._cloud, 'POST', '/drains', wanted))['drain']['uuid']
        shown = run.Shown(self._cloud, subjects.Drain, uuid, self._cloud.population)
        ended = False
        try:
            while not ended:
                picture = shown.look()
                view.show(picture)
                self._follow()
                ended = picture.status is not None
                if time.monotonic() - began > PATIENCE:
                    self._wrong.append(f'the drain has not ended within {PATIENCE:g} s')
                    break
                time.sleep(_TICK)
        finally:
            for move in self._moves.values():
                move.end_watch()
        took = time.monotonic() - began
        drain = shown.get(f'/drains/{uuid}')['drain']
        self._judge(drain)
        findings, looked_at = report.audit(self._cloud)  # type: ignore[arg-type] -- it reads only the records
        counted = {guest.name: self._counted(guest) for guest in self._guests.values()}
        return Report(drain, [*self._moves.values()], took, counted, findings, looked_at, self._wrong)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Take in the migrations of the drain, listen to the guests that move, and intervene."""
        for migration in self._cloud.migrations():
            guest = self._guests[migration.instance_uuid]
            move = self._moves.setdefault(migration.uuid, Move(guest, self._plan_of(guest), migration))
            move.migration, move.history = migration, self._cloud.history_of(migration)
            if migration.status == _S.RUNNING:
                if move.watch is None:
                    move.watch = guest.watch()
                    move.watch.__enter__()
                copied = int(migration.memory_processed or 0) >> 20
                if move.plan != 'moved' and move.at_mib is None and copied >= AFTER:
                    self._intervene(move, copied)
            elif migration.ended:
                move.end_watch()

    def _plan_of(self, guest: guests.Guest) -> str:
        if guest.name == FAILS_ONCE and all(move.guest is not guest for move in self._moves.values()):
            return 'failed'
        return 'post-copy' if guest.name == BY_POST_COPY else 'moved'

    def _intervene(self, move: Move, copied: int) -> None:
        """Stop a move behind the back of migrator, or have it end by post-copy, as an operator does."""
        move.at_mib = copied
        if move.plan == 'failed':
            self._report(f'the move of {move.guest.name} is stopped by virsh, with {copied} MiB copied')
            _undisturbed(lambda: self._source.virsh('domjobabort', move.guest.name))
            return
        self._report(f'{move.guest.name} writes faster than it is copied: it is to complete by post-copy')
        path = f'/servers/{move.guest.uuid}/migrations/{move.migration.id}/action'
        answer = _undisturbed(lambda: self._cloud.request('POST', path, {'force_complete': None}))
        if answer.status_int != 202:
            move.wrong.append(f'that was refused: {answer.status} {_text(answer)}')

    # --- what came of it ---------------------------------------------------------------------------------------------

    def _judge(self, drain: dict[str, Any]) -> None:
        self._report('Looking at what every guest has said, at its pages, and at the allocations')
        if drain['status'] != DrainStatus.COMPLETED:
            self._wrong.append(f'the drain is {drain["status"]}: {drain["message"] or drain["waits_for"]}')
        wanted = {'moved': _S.COMPLETED, 'post-copy': _S.COMPLETED, 'failed': _S.FAILED}
        for move in self._moves.values():
            migration = move.migration
            if migration.status != wanted[move.plan]:
                why = migration.stuck_reason or migration.failure or 'no reason is known'
                move.wrong.append(f'it is {migration.status}, and not {wanted[move.plan]}: {why}')
            elif move.plan != 'failed':
                move.wrong += _found(lambda guest=move.guest: guest.survived(self._source, self._destination))
            if move.plan == 'post-copy' and not self._cloud.went_by_post_copy(move.guest):
                move.wrong.append('libvirt has reported no post-copy')
            if (move.downtime or 0) > SILENCE:
                move.wrong.append(f'its longest silence was {move.downtime:.1f} s, and at most {SILENCE:g} s are right')
        if left := self._source.domains():
            self._wrong.append(f'{demo_cloud.SOURCE} is not empty: {len(left)} guests are left')
        running = demo_cloud.running_on(self._destination, list(self._guests.values()))
        if missing := sorted({guest.name for guest in self._guests.values()} - set(running)):
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
