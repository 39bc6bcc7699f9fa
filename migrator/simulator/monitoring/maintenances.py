# SPDX-License-Identifier: Apache-2.0

"""The check of what is out of service for a maintenance, and of what is worked on (I32)."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from migrator.drain.maintenance.turns import ReturnedBy, Turn, TurnStatus
from migrator.objects import Service
from migrator.simulator.world import World
from migrator.testing.cloud import Cloud

#: The turns of empty hosts, to which no guest goes.
_EMPTY = (TurnStatus.READY, TurnStatus.WORKING)


class Maintenances:
    """The turns as they were at the last look.

    :param cloud: the cloud, whose tables of maintenances are read only when they have changed.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        #: (maintenance, host) -> its turn.
        self._turns: dict[tuple[str, str], Turn] = {}
        self._written = 0

    def look(self, world: World) -> Iterator[str]:
        """Yield how a maintenance breaks what must hold at each moment.

        - No more of its hosts than ``parallel`` are disabled by its drains.
        - While a host is worked on, it has no guest that runs.
        - No guest is sent to a host that is ready or worked on, even if a user names the host.
        - A host that is done has shown what it could not have shown before its work.
        - A claim ends before there is another one.
        """
        writes = self._cloud.backend.writes
        written = writes['maintenance_turns'] + writes['maintenances']
        if not written:
            return
        if written != self._written:
            self._written = written
            known, self._turns = self._turns, self._read()
            yield from self._moved(world, known)
        yield from self._out(world)
        for (_, host), turn in self._turns.items():
            if turn.status == TurnStatus.WORKING and host in world.hosts:
                for uuid, guest in world.hosts[host].guests.items():
                    if guest.active:
                        yield f'{host} is worked on, and guest {uuid} is {guest.state} there'
        empty = self._empty(world)
        for uuid, row in world.migrations.items():
            before = world.before.get(uuid)
            is_new = before is not None and before.dest_compute is None and row.dest_compute is not None
            if is_new and row.dest_compute in empty:
                yield f'migration {uuid} goes to {row.dest_compute}, which is out of service'

    def _empty(self, world: World) -> set[str]:
        """Return the hosts to which no guest may go: they are ready or worked on, or cannot be back."""
        services = {one.host: one for one in world.services}
        return {
            host
            for (maintenance, host), turn in self._turns.items()
            if turn.status in _EMPTY
            or (
                (turn.status == TurnStatus.RETURNING and turn.was_worked_on)
                and host in services
                and _is_as_before(self._returned_by(maintenance), turn, services[host])
            )
        }

    def _returned_by(self, maintenance: str) -> str:
        rows = self._cloud.backend.tables.read('maintenances')
        return next(str(row.returned_by) for row in rows if row.uuid == maintenance)

    def _read(self) -> dict[tuple[str, str], Turn]:
        rows = self._cloud.backend.tables.read('maintenance_turns')
        return {(row.maintenance, row.host): row.object for row in rows}

    def _moved(self, world: World, before: dict[tuple[str, str], Turn]) -> Iterator[str]:
        services = {one.host: one for one in world.services}
        for key, turn in self._turns.items():
            was, service = before.get(key), services.get(turn.host)
            if was is not None and was.status == turn.status == TurnStatus.WORKING and was.claim != turn.claim:
                yield f'{turn.host} has the claim of {turn.claimed_by}, and that of {was.claimed_by} has not ended'
            if turn.status != TurnStatus.DONE or was is None or was.status == TurnStatus.DONE or service is None:
                continue
            by = self._returned_by(key[0])
            if _is_as_before(by, turn, service):
                yield f'{turn.host} is done, and its {by} was not seen'

    def _out(self, world: World) -> Iterator[str]:
        reasons = {one.host: one.disabled_reason or '' for one in world.services if one.disabled}
        # The drain may be of an earlier try. What an operator has disabled besides counts when a host is begun.
        out = collections.Counter(
            maintenance
            for (maintenance, host), turn in self._turns.items()
            if turn.is_out and turn.status != TurnStatus.SKIPPED and reasons.get(host, '').startswith('drain ')
        )
        for row in self._cloud.backend.tables.read('maintenances') if out else ():
            if out[row.uuid] > row.parallel:
                yield f'maintenance {row.uuid} has {out[row.uuid]} hosts out of service, and {row.parallel} may be'


def _is_as_before(by: str, turn: Turn, service: Service) -> bool:
    """Return whether a host cannot be back, since what shows it is as it was before the work.

    Whether it has reported without a gap is not seen here.
    """
    marks = {ReturnedBy.REBOOT: (service.kernel, turn.kernel), ReturnedBy.RESTART: (service.boot_id, turn.boot)}
    now, before = marks.get(ReturnedBy(by), (True, False))
    return now == before
