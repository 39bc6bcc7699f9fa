# SPDX-License-Identifier: Apache-2.0

"""The check that a request to abort reaches its driver in time (I9)."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from migrator.objects import Migration
from migrator.simulator.world import World
from migrator.testing.cloud import Cloud
from migrator.testing.hypervisor import hypervisor

#: Seconds within which a request reaches the driver, whatever messages are lost. Two calls time out in less.
PATIENCE = 150.0
#: The driver calls that an abort needs: the poll of the source, and the abort itself.
_NEEDED = frozenset({'get_guest', 'live_migration_abort'})


class Aborts:
    """How long each migration goes on after a request to abort it.

    Only the time counts in which the request could have reached the driver: a conductor and the compute service of the
    source run, the broker is reachable, and the hypervisor of the source neither hangs nor fails.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        #: Migration -> the seconds for which it has gone on.
        self._lasted: dict[str, float] = collections.defaultdict(float)
        #: The time of the last look, and the migrations that went on then.
        self._looked: tuple[float, frozenset[str]] = 0.0, frozenset()

    def look(self, world: World) -> Iterator[str]:
        """Add the time since the last look, and yield the migrations that have gone on for too long."""
        at, before = self._looked
        open_ = world.busy and not self._cloud.bus.away
        now = frozenset(uuid for uuid, row in world.migrations.items() if open_ and self._goes_on(world, row))
        self._looked = world.at, now
        for uuid in before & now:
            self._lasted[uuid] += world.at - at
            if self._lasted[uuid] > PATIENCE:
                yield f'migration {uuid}: its abort was requested, but {PATIENCE:g} s later the guest may still move'

    def _goes_on(self, world: World, row: Migration) -> bool:
        """Return whether the guest may still move, although its source can be reached."""
        if row.abort_requested_at is None or row.ended or row.outcome is not None or not row.is_live:
            return False
        source = world.hosts[row.source_compute]
        if row.instance_uuid not in source.jobs and row.uuid not in source.waiting:
            return False
        there = world.hosts[row.dest_compute].guests.get(row.instance_uuid) if row.dest_compute else None
        if there is not None and there.state in hypervisor.OWNING:
            return False
        planted = {fault.phase for fault in self._cloud.world.hypervisors[source.name].faults.planted}
        return source.alive and not source.paused and planted.isdisjoint(_NEEDED)
