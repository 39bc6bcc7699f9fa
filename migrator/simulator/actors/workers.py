# SPDX-License-Identifier: Apache-2.0

"""The users who request a maintenance and work at its hosts."""

from __future__ import annotations

import contextlib
import datetime
import random
from collections.abc import Mapping
from typing import Any

from migrator import exception
from migrator.drain.maintenance import actions
from migrator.drain.maintenance.turns import Maintenance, ReturnedBy, Turn, TurnStatus, with_status
from migrator.simulator.actors.operator import Operator
from migrator.testing.simulation.sim_thread import ProcessKilled

#: Seconds that a user waits for a claim.
_PATIENCE = 60
#: Seconds after which the host is started once more that does not come back.
_AGAIN = 60.0
#: How many times a user works until nothing goes wrong any more.
_TROUBLE = 4


def maintain(operator: Operator, _host: str, wanted: Mapping[str, Any]) -> None:
    """Request a maintenance, and have two users work at its hosts until the run is over.

    :param wanted: its fields, its ``hosts``, the seconds until it is to ``cancel``, and whether it is ``calm``: no work
        fails. The deadline is in seconds too.
    """
    cloud = operator.cloud
    settings = {name: value for name, value in wanted.items() if name not in ('hosts', 'cancel', 'calm')}
    now = cloud.database.maintenances.now()
    if settings['deadline'] is not None:
        settings['deadline'] = now + datetime.timedelta(seconds=settings['deadline'])
    maintenance = Maintenance(uuid=cloud.new_uuid(), **settings)
    turns = [Turn(host=host, position=place) for place, host in enumerate(wanted['hosts'], 1)]
    # It is requested like an embedding service would, without a fault in between.
    cloud.database.maintenances.accept(maintenance, turns)
    for by in ('ada', 'bob'):
        worker = _Worker(operator, maintenance, by, _TROUBLE if wanted.get('calm') else 0)
        operator.repeat(worker.look, f'{by}, who works')
    if wanted['cancel'] is not None:

        def cancel() -> None:
            with contextlib.suppress(Exception):  # it has ended, or a fault: then it is not cancelled
                actions.change(cloud.database.maintenances, maintenance.uuid, 'cancel', 'ada')

        operator.supervisor.later(wanted['cancel'], cancel)


class _Worker:
    """One of the users."""

    def __init__(self, operator: Operator, maintenance: Maintenance, by: str, works: int) -> None:
        self._operator = operator
        self._store = operator.cloud.database.maintenances
        self._maintenance = maintenance
        self._by = by
        self._works = works
        self._dice = random.Random(f'{maintenance.uuid} {by}')  # noqa: S311 -- a run must be repeatable, and not secret

    def look(self) -> float:
        """Claim what is ready, end the work, and return the seconds until the next look."""
        try:
            # A host may have changed meanwhile, or the database is away. The next look reads all of it again.
            with contextlib.suppress(exception.MigratorException):
                self._act()
        except RuntimeError as error:
            if not str(error).startswith('planned'):
                raise
        return self._dice.uniform(1, 9)

    def _act(self) -> None:
        uuid = self._maintenance.uuid
        row, turns = self._store.get(uuid), self._store.read_turns(uuid)
        if row.paused and self._dice.random() < 0.5:
            actions.change(self._store, uuid, 'resume', self._by)
        for turn in with_status(turns, TurnStatus.READY):
            self._claim(turn.host)
        for turn in with_status(turns, TurnStatus.WORKING):
            if turn.claimed_by == self._by:
                self._work(turn)
        for turn in with_status(turns, TurnStatus.RETURNING):
            waits = turn.work_ended_at is not None and (self._store.now() - turn.work_ended_at).total_seconds()
            # One that gets its guests back is there.
            is_mine = turn.claimed_by == self._by and turn.is_out and self._maintenance.returned_by != ReturnedBy.REPORT
            if is_mine and waits and waits > _AGAIN:
                self._start_anew(turn.host)
        for turn in with_status(turns, TurnStatus.FAILED):
            # A host that has failed stays out of service until a user decides.
            if turn.is_out and not row.ended and self._dice.random() < 0.2:
                if self._dice.random() < 0.5:
                    actions.retry(self._store, uuid, turn.host, self._by)
                else:
                    actions.skip(self._store, uuid, turn.host, self._by)

    def _claim(self, host: str) -> None:
        """Claim a host at any conductor that lives, and wait for the reply for a while."""
        cloud, found = self._operator.cloud, list[bool]()
        names = [name for name in sorted(cloud.conductors) if name not in self._operator.supervisor.down]
        if not names:
            return
        name = self._dice.choice(names)
        own = cloud.conductors[name].maintenances

        def act() -> None:
            with contextlib.suppress(Exception):  # such as a fault: it is tried again
                actions.begin(own.store, own.engine, self._maintenance.uuid, host, self._by)
            found.append(True)

        with contextlib.suppress(ProcessKilled):
            cloud.processes[name].start(act, name='a claim')
        for _ in range(_PATIENCE):
            if found:
                return
            cloud.world.threads.sleep(1.0)

    def _work(self, turn: Turn) -> None:
        uuid, host, claim = self._maintenance.uuid, turn.host, turn.claim or ''
        self._operator.cloud.world.threads.sleep(self._dice.uniform(0, 20))
        self._works += 1
        # In the end all goes well.
        end = self._dice.choice(('done', 'done', 'done', 'fail', 'skip')) if self._works < _TROUBLE else 'done'
        if end != 'skip' and self._dice.random() < 0.5:
            self._start_anew(host)
        if end == 'done':
            actions.done(self._store, uuid, host, claim, self._by)
            self._operator.cloud.world.threads.sleep(self._dice.uniform(0, 30))
            self._start_anew(host)
        elif end == 'fail':
            actions.fail(self._store, uuid, host, claim, self._by, 'planned')
        else:
            actions.skip(self._store, uuid, host, self._by, claim)

    def _start_anew(self, host: str) -> None:
        supervisor = self._operator.supervisor
        if host not in supervisor.down:
            start = supervisor.lose_power if self._maintenance.returned_by == ReturnedBy.REBOOT else supervisor.kill
            start(host, self._dice.choice((1.0, 5.0, 100.0)) if self._works < _TROUBLE else 1.0)
