# SPDX-License-Identifier: Apache-2.0

"""The check of what drivers are about to do to guests: start one, end one, or remove one."""

from __future__ import annotations

from collections.abc import Iterator

from migrator.objects import Instance, Migration, MigrationStatus, protocol, steps
from migrator.simulator.invariants import evacuations
from migrator.simulator.monitoring.rows import Rows
from migrator.simulator.world import World
from migrator.testing.cloud import Cloud
from migrator.testing.hypervisor import hypervisor

_S = MigrationStatus

#: Seconds for which a report that a host has the guest may be on its way, with the command that follows from it.
_ON_ITS_WAY = 150.0


class ActCheck:
    """The check of each act of a driver at its begin.

    The world of the hypervisors keeps what is wrong: I1 and I22 read it there.

    :param rows: the database as the monitor has read it last.
    """

    def __init__(self, cloud: Cloud, rows: Rows) -> None:
        self._cloud = cloud
        self._rows = rows
        #: (host, instance) -> when the host was last able to report that it has the guest.
        self._reportable: dict[tuple[str, str], float] = {}
        cloud.world.acts.on_begin = self._before_act

    def look(self, world: World) -> Iterator[str]:
        """Note which hosts can report their guests now."""
        for uuid, instance in world.instances.items():
            if instance.host in world.hosts and world.hosts[instance.host].alive and self._is_there(instance):
                self._reportable[instance.host, uuid] = world.at
        yield from ()

    def _before_act(self, host: str, method: str, instance_uuid: str, migration_uuid: str) -> None:
        """Check one act; see :attr:`migrator.testing.hypervisor.acts.Acts.on_begin`."""
        migration, world = self._rows.migration(migration_uuid), self._cloud.world
        if migration is None:
            return
        if method in steps.REMOVING:
            world.acts.removals.extend(self._check_removal(host, method, migration))
        if method == evacuations.CLEANUP:
            world.acts.removals.extend(self._check_cleanup(host, migration))
        if method == 'confirm_migration_at_source':
            world.acts.removals.extend(self._check_copy(host, method, migration))
        if method == 'evacuate':
            world.violations.extend(self._check_start(host, migration))

    def _check_removal(self, host: str, method: str, migration: Migration) -> Iterator[str]:
        """Yield that a cleanup is about to remove a guest from its host in the database.

        A live migration in progress is not checked, since it may be just about to write the host.
        """
        instance = self._rows.values['instances'].get(migration.instance_uuid)
        if instance is None or instance.host != host or (migration.in_progress and not migration.is_evacuation):
            return
        guest = self._cloud.world.hypervisors[host].describe(instance.uuid)
        if guest.present and guest.state != protocol.GuestState.WAITING:
            yield (
                f'{host}: {method} for the ended migration {migration.uuid} removes guest {instance.uuid}, which is '
                f'{guest.state} there, from its host in the database'
            )

    def _check_cleanup(self, host: str, migration: Migration) -> Iterator[str]:
        """Yield what is wrong with the end of a copy, which only an evacuation that is done may cause."""
        uuid = migration.instance_uuid
        what = f'{host}: {evacuations.CLEANUP} of evacuation {migration.uuid}'
        if migration.status not in (_S.DONE, _S.COMPLETED) and migration.abandon_requested_at is None:
            yield f'{what}, which is {migration.status}'
        copy = self._cloud.world.hypervisors[host].guests.get(uuid)
        if copy is not None and copy.state in hypervisor.OWNING:
            yield from self._check_copy(host, evacuations.CLEANUP, migration)

    def _check_copy(self, host: str, method: str, migration: Migration) -> Iterator[str]:
        """Yield that a copy of a guest is about to be removed that its host could not report lately."""
        uuid = migration.instance_uuid
        instance = self._rows.values['instances'].get(uuid)
        if instance is None or uuid not in self._cloud.world.hypervisors[host].guests:
            return
        seen = self._reportable.get((instance.host, uuid))
        at = self._cloud.world.threads.clock.monotonic()
        if not self._is_there(instance) and (seen is None or at - seen > _ON_ITS_WAY):
            what = f'{host}: {method} of migration {migration.uuid} ends a copy'
            yield f'{what}, but {instance.host} cannot report the guest'

    def _check_start(self, host: str, migration: Migration) -> Iterator[str]:
        """Yield what is wrong with the start of a guest: it is elsewhere, or nothing intends the start."""
        uuid, values = migration.instance_uuid, self._rows.values
        what = f'{host} starts guest {uuid} for evacuation {migration.uuid}'
        intended = any(record.step == 'evacuate' for record in values['step_log'].get(migration.uuid, ()))
        if not intended or migration.outcome is not None:
            yield f'{what}, which is {migration.status} with outcome {migration.outcome}'
        excepted = {one.host for one in values['cleanups'] if one.instance_uuid == uuid}
        # A host that was asked in vain is excepted, unless a comparison had found before that the guest was elsewhere.
        here = {migration.source_compute}
        if not any(one.instance_uuid == uuid and {*one.seen} != here for one in values['differences']):
            for record in values['step_log'].get(migration.uuid, ()):
                excepted |= {*(record.input or {}).get('not_asked', ())}
        for other in self._cloud.world.hypervisors.values():
            guest = other.describe(uuid)
            is_here = guest.present and guest.state != protocol.GuestState.WAITING
            if is_here and other.host not in (host, migration.source_compute, *excepted):
                yield f'{what}, but {other.host} has it, and is not its source'

    def _is_there(self, instance: Instance) -> bool:
        """Return whether a guest is on its host in the database, which has its power."""
        found = self._cloud.world.hypervisors[instance.host]
        guest = found.guests.get(instance.uuid)
        return found.powered and guest is not None and guest.state != protocol.GuestState.WAITING
