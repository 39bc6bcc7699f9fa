# SPDX-License-Identifier: Apache-2.0

"""A snapshot of a whole cloud, for the checks of :mod:`migrator.simulator.invariants.check`."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from migrator.db import slots
from migrator.db.actions import Action
from migrator.db.cleanups import Cleanup
from migrator.db.conductors import ConductorBoot
from migrator.db.drains import Event
from migrator.objects import COMPUTE_BINARY, ComputeNode, Instance, Migration, Service
from migrator.objects.difference import Difference
from migrator.objects.drain import Drain, Member
from migrator.placement_client import allocation_state
from migrator.saga import log
from migrator.simulator.reader import Host, Provider, Reader
from migrator.testing.hypervisor import hypervisor
from migrator.testing.rpc import Recorded

if TYPE_CHECKING:  # a reader of a snapshot need not import the cloud
    from migrator.testing.client import Exchange
    from migrator.testing.cloud import Cloud


@dataclasses.dataclass(kw_only=True)
class World:
    """The observable state of a cloud at one moment.

    :ivar at: the time on the world's monotonic clock, in seconds.
    :ivar now: the time of the database.
    :ivar migrations: uuid -> migration, the oldest first. A :class:`~migrator.simulator.monitor.Monitor` passes only
        those that are in progress or have ended since its last look.
    :ivar entries: uuid -> the log of the migration.
    :ivar before: the migrations at the last look. It is empty in a single snapshot.
    :ivar histories: uuid -> each status that the migration has had.
    :ivar histories_before: the histories at the last look. It is empty in a single snapshot.
    :ivar differences: the guests that are not where the database has them, as stored. Only a monitor fills it.
    :ivar drains: uuid -> drain, the oldest first.
    :ivar members: uuid of a drain -> its members.
    :ivar drained: uuid -> each migration that a drain has requested, ended or not, the oldest first.
    :ivar drains_before: the drains at the last look. It is empty in a single snapshot.
    :ivar drain_logs: uuid of a drain -> its log. It is empty at a look of a monitor.
    :ivar bounds: each set of bounds that a conductor has had so far.
    :ivar limits: host -> the highest limit of its queue so far.
    :ivar reported: host -> the limit of its queue that it has reported last. Only a monitor fills it.
    :ivar lease: seconds for which a conductor renews its lease.
    :ivar marked: uuids of the migrations with a value in the unique column that allows one per instance.
    :ivar logs: the log lines, formatted.
    :ivar secrets: texts that no log and no error may contain.
    :ivar leftovers: threads of services that are not background timers.
    :ivar connections: the number of open connections to the services' database.
    """

    at: float
    now: datetime.datetime
    down_time: float
    instances: Mapping[str, Instance]
    migrations: Mapping[str, Migration]
    before: Mapping[str, Migration] = dataclasses.field(default_factory=dict)
    marked: frozenset[str]
    step_log: Mapping[str, Sequence[log.StepRecord]]
    entries: Mapping[str, Sequence[log.Entry]] = dataclasses.field(default_factory=dict)
    histories: Mapping[str, Sequence[Mapping[str, Any]]]
    histories_before: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    cleanups: Sequence[Cleanup]
    differences: Sequence[Difference] = ()
    drains: Mapping[str, Drain] = dataclasses.field(default_factory=dict)
    members: Mapping[str, Sequence[Member]] = dataclasses.field(default_factory=dict)
    drained: Mapping[str, Migration] = dataclasses.field(default_factory=dict)
    drains_before: Mapping[str, Drain] = dataclasses.field(default_factory=dict)
    drain_logs: Mapping[str, Sequence[Event]] = dataclasses.field(default_factory=dict)
    services: Sequence[Service]
    conductors: Sequence[ConductorBoot] = ()
    nodes: Mapping[str, ComputeNode]
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
    bounds: Collection[slots.Bounds] = ()
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    reported: Mapping[str, int] = dataclasses.field(default_factory=dict)
    lease: float = 0
    busy: Mapping[str, int] = dataclasses.field(default_factory=dict)
    leftovers: Sequence[str] = ()
    connections: int = 0
    #: What each consumer holds, as far as it was asked for, and at which providers.
    _held: dict[str, dict[str, dict[str, int]]] = dataclasses.field(default_factory=dict, repr=False)
    _held_at: Mapping[str, Provider] | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def of(cls, cloud: Cloud, logs: Sequence[str] = ()) -> World:
        """Return a snapshot of a cloud, which must be simulated or at rest.

        :param logs: the log lines so far.
        """
        reader = Reader(cloud)
        try:
            return cls(**reader.everything(logs))
        finally:
            reader.close()

    # --- queries of several invariants -------------------------------------------------------------------------------

    def tree(self, host: str) -> set[str]:
        """Return the uuids of a host's resource providers."""
        node = self.nodes.get(host)
        return {one.uuid for one in self.providers.values() if node is not None and one.root == node.uuid}

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return the allocation of a consumer: provider uuid -> resource class -> amount."""
        if self._held_at is not self.providers:
            self._held_at, self._held = self.providers, {}
        found = self._held.get(consumer)
        if found is None:
            held = {one.uuid: one.holders.get(consumer, {}) for one in self.providers.values()}
            found = self._held[consumer] = allocation_state.normal(held)
        return found

    def in_progress(self, instance_uuid: str) -> list[Migration]:
        """Return an instance's migrations in progress."""
        return [one for one in self.migrations.values() if one.instance_uuid == instance_uuid and one.in_progress]

    def newest(self, instance_uuid: str) -> Migration | None:
        """Return an instance's newest migration, or None.

        Migrations from before the instance was deleted and created again are ignored.
        """
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
        """Return whether a host has no power, is forced down, or has not reported for ``down_time``."""
        if host in self.hosts and not self.hosts[host].powered:
            return True
        found = [one for one in self.services if one.host == host and one.binary == COMPUTE_BINARY]
        return bool(found) and (found[0].forced_down or found[0].is_unreachable(self.now, self.down_time))

    def has_cleanup(self, host: str, instance_uuid: str) -> bool:
        """Return whether a host has a deferred cleanup for an instance."""
        return any((cleanup.host, cleanup.instance_uuid) == (host, instance_uuid) for cleanup in self.cleanups)

    def effects_of(self, migration: Migration) -> list[hypervisor.Effect]:
        """Return the effects on a migration's guest until the guest's next migration is accepted."""
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
        """Return the log's record of a step in a migration's present attempt, or None."""
        for record in self.step_log.get(migration.uuid, ()):
            if record.key == (migration.attempt, step, direction):
                return record
        return None
