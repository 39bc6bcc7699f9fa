# SPDX-License-Identifier: Apache-2.0

"""A plain snapshot of a whole cloud, to be judged by :mod:`migrator.simulator.invariants.check`."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from migrator.db.actions import Action
from migrator.db.cleanups import Cleanup
from migrator.objects import COMPUTE_BINARY, Instance, Migration, Service, compute_node
from migrator.placement_client import allocation_state
from migrator.saga import log
from migrator.simulator.reader import Host, Provider, Reader
from migrator.testing.rpc import Recorded
from migrator.virt.fake import hypervisor

if TYPE_CHECKING:  # the cloud needs none of this to run
    from migrator.testing.client import Exchange
    from migrator.testing.cloud import Cloud


@dataclasses.dataclass(kw_only=True)
class World:
    """All that can be known of a cloud at one moment.

    :ivar at: seconds of the world's monotonic clock.
    :ivar now: the database's time.
    :ivar migrations: by uuid, the oldest first. For a :class:`~migrator.simulator.monitor.Watcher` only those in
        progress, and those that have ended since its last look.
    :ivar before: the migrations as they were at the last look; empty in a single snapshot.
    :ivar marked: uuids of the migrations that hold the unique column by which the database allows one per instance.
    :ivar logs: what was logged, formatted.
    :ivar secrets: what no log and no error may hold.
    :ivar leftovers: threads of services that are no background timer.
    :ivar connections: open connections to the services' database.
    """

    at: float
    now: datetime.datetime
    down_time: float
    instances: Mapping[str, Instance]
    migrations: Mapping[str, Migration]
    before: Mapping[str, Migration] = dataclasses.field(default_factory=dict)
    marked: frozenset[str]
    journal: Mapping[str, Sequence[log.StepRecord]]
    cleanups: Sequence[Cleanup]
    services: Sequence[Service]
    nodes: Mapping[str, compute_node.ComputeNode]
    actions: Sequence[Action] = ()
    providers: Mapping[str, Provider]
    hosts: Mapping[str, Host]
    effects: Sequence[hypervisor.Effect]
    misdeeds: Sequence[str]
    intrusions: Sequence[str] = ()
    removals: Sequence[str] = ()
    messages: Sequence[Recorded]
    history: Sequence[Exchange] = ()
    logs: Sequence[str] = ()
    secrets: Sequence[str] = ()
    busy: Mapping[str, int] = dataclasses.field(default_factory=dict)
    leftovers: Sequence[str] = ()
    connections: int = 0

    @classmethod
    def of(cls, cloud: Cloud, logs: Sequence[str] = ()) -> World:
        """Return what a cloud is like now; it should be at rest, or simulated.

        :param logs: what was logged so far, if somebody has kept it.
        """
        reader = Reader(cloud)
        try:
            return cls(**reader.everything(logs))
        finally:
            reader.close()

    # --- looked up by several invariants -----------------------------------------------------------------------------

    def tree(self, host: str) -> set[str]:
        """Return the uuids of a host's resource providers."""
        node = self.nodes.get(host)
        return {one.uuid for one in self.providers.values() if node is not None and one.root == node.uuid}

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return what a consumer holds: provider uuid -> resource class -> amount."""
        return allocation_state.normal({one.uuid: one.holders.get(consumer, {}) for one in self.providers.values()})

    def in_progress(self, instance_uuid: str) -> list[Migration]:
        """Return an instance's migrations in progress."""
        return [one for one in self.migrations.values() if one.instance_uuid == instance_uuid and one.in_progress]

    def newest(self, instance_uuid: str) -> Migration | None:
        """Return an instance's newest migration; one from before the instance was deleted and created says nothing."""
        instance = self.instances.get(instance_uuid)
        since = instance.created_at if instance is not None else None
        found = [
            one
            for one in self.migrations.values()
            if one.instance_uuid == instance_uuid
            and (since is None or one.created_at is None or one.created_at >= since)
        ]
        return found[-1] if found else None

    def is_down(self, host: str) -> bool:
        """Whether a host has no power, was declared down, or has not been heard of for long."""
        if host in self.hosts and not self.hosts[host].powered:
            return True
        found = [one for one in self.services if one.host == host and one.binary == COMPUTE_BINARY]
        return bool(found) and (found[0].forced_down or found[0].is_silent(self.now, self.down_time))

    def owes(self, host: str, instance_uuid: str) -> bool:
        """Whether a host owes anything for an instance."""
        return any((cleanup.host, cleanup.instance_uuid) == (host, instance_uuid) for cleanup in self.cleanups)

    def effects_of(self, migration: Migration) -> list[hypervisor.Effect]:
        """Return the effects on a migration's guest from its acceptance to that of the guest's next one."""
        began = [
            self.at - (self.now - one.created_at).total_seconds()
            for one in self.migrations.values()
            if one.instance_uuid == migration.instance_uuid and one.id >= migration.id and one.created_at is not None
        ]
        begin, end = min(began, default=0.0), sorted([*began, math.inf, math.inf])[1]
        return [
            effect
            for effect in self.effects
            if effect.instance_uuid == migration.instance_uuid and begin <= effect.time < end
        ]

    def record(self, migration: Migration, step: str, direction: str = log.DO) -> log.StepRecord | None:
        """Return the journal's record of a step in a migration's present attempt."""
        for record in self.journal.get(migration.uuid, ()):
            if record.key == (migration.attempt, step, direction):
                return record
        return None
