# SPDX-License-Identifier: Apache-2.0

"""The driver of a fake hypervisor.

It meets the contract of :mod:`migrator.virt.driver`, including the refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.testing.hypervisor.base import phase
from migrator.testing.hypervisor.evacuation import EvacuatingDriver
from migrator.testing.hypervisor.hypervisor import CHECK_FILE, OWNING, PARTS
from migrator.testing.hypervisor.job import Job
from migrator.testing.hypervisor.resize import ResizingDriver
from migrator.virt import driver
from migrator.virt.driver import Verdict

#: Seconds between two checks of the cancel token in a long step.
TOKEN_INTERVAL = 0.1


class FakeDriver(EvacuatingDriver, ResizingDriver):
    """A driver of one :class:`~migrator.testing.hypervisor.hypervisor.FakeHypervisor`."""

    # --- checks ------------------------------------------------------------------------------------------------------

    @phase
    def check_can_live_migrate_destination(
        self,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
        definition: dict[str, Any] | None = None,
    ) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_destination`."""
        hypervisor, shared = self.hypervisor, self._world.shared_storage
        if block_migration is not None and block_migration == shared:
            seen = 'shared' if shared else 'not shared'
            raise exception.MigrationPreCheckError(
                reason=f'storage is {seen}: request block_migration {not shared} or auto'
            )
        with self._world.lock:
            self._refuse_if_present(instance)
            hypervisor.check_room(instance)
            residue = hypervisor.residues.setdefault(instance.uuid, set())
            if CHECK_FILE not in residue:
                residue.add(CHECK_FILE)
                self._world.record(hypervisor.host, 'check file made', instance.uuid, self.boot)
        return LiveMigrateData(
            block_migration=not shared,
            disk_over_commit=disk_over_commit,
            is_shared_storage=shared,
            destination={'host': hypervisor.host, 'address': f'fake://{hypervisor.host}'},
        )

    @phase
    def check_can_live_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_source`."""
        with self._world.lock:
            guest = self.hypervisor.describe(instance.uuid)
            immovable = getattr(self.hypervisor.guests.get(instance.uuid), 'immovable', '')
        if immovable:
            raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} cannot be moved live: {immovable}')
        if guest.state not in OWNING or guest.job:
            held = 'already being migrated' if guest.job else guest.state
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} is {held} at {self.hypervisor.host}: it must be running or paused'
            )
        if migrate_data.destination.get('host') not in self._world.hypervisors:
            raise exception.MigrationPreCheckError(
                reason=f'host {self.hypervisor.host} cannot reach {migrate_data.destination.get("host")}'
            )
        return migrate_data.replace(source={'host': self.hypervisor.host, 'state': guest.state})

    @phase
    def cleanup_live_migration_destination_check(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.cleanup_live_migration_destination_check`."""
        with self._world.lock:
            residue = self.hypervisor.residues.get(instance.uuid, set())
            if CHECK_FILE in residue:
                residue.discard(CHECK_FILE)
                self._world.record(self.hypervisor.host, 'check file removed', instance.uuid, self.boot)
            if not residue:
                self.hypervisor.residues.pop(instance.uuid, None)

    # --- migration ---------------------------------------------------------------------------------------------------

    @phase
    def pre_live_migration(
        self, instance: Instance, migrate_data: LiveMigrateData, token: driver.CancelToken
    ) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.pre_live_migration`.

        The preparation takes ``pre_seconds``, with its parts spread evenly over them.
        """
        hypervisor = self.hypervisor
        clock = self._threads.clock
        began = clock.monotonic()
        for number, part in enumerate(PARTS, start=1):
            until = began + hypervisor.pre_seconds * number / len(PARTS)
            token.raise_if_cancelled()
            while (left := until - clock.monotonic()) > 0:
                self._threads.sleep(min(left, TOKEN_INTERVAL))
                token.raise_if_cancelled()
            with self._world.lock:
                self._refuse_if_present(instance)
                hypervisor.check_room(instance)
                guest = hypervisor.guests.get(instance.uuid)
                if guest is None:
                    guest = hypervisor.add_guest(instance, GuestState.WAITING, self.boot)
                    guest.persistent = False
                hypervisor.residues.setdefault(instance.uuid, set()).add(part)
                if part == PARTS[-1] and not guest.incoming:
                    guest.incoming = True
                    self._world.record(hypervisor.host, 'incoming', instance.uuid, self.boot)
        return migrate_data.replace(
            destination={**migrate_data.destination, 'post_copy': hypervisor.post_copy, 'ready': True}
        )

    @phase
    def live_migration(
        self,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        started: Callable[[], None],
    ) -> Verdict:
        """See :meth:`driver.ComputeDriver.live_migration`."""
        hypervisor = self.hypervisor
        new: Job | None = None
        with self._world.lock:
            job = hypervisor.jobs.get(instance.uuid) or hypervisor.pending.get(instance.uuid)
            if job is None:
                guest = hypervisor.guests.get(instance.uuid)
                if guest is None or guest.state not in OWNING:
                    held = guest.state if guest else GuestState.ABSENT
                    raise self._error('live_migration', f'guest {instance.uuid} is {held}')
                other = self._world.hypervisors.get(destination)
                if other is None or not other.powered:
                    raise self._error('live_migration', f'host {destination} cannot be reached')
                disk = guest.disk_gb * 1024.0 if migrate_data.block_migration else 0.0
                job = new = Job(hypervisor, guest, other, disk, self.boot)
                hypervisor.pending[instance.uuid] = job
        if new is not None:
            # The job runs in a thread of the world, so that it begins and continues even if this process is killed.
            self._world.threads.start(new.run, name=f'job-{instance.uuid}')
        job.begun.wait()
        if job.error is not None:
            raise job.error
        started()
        began = self._threads.clock.monotonic()
        job.ended.wait()
        seconds = self._threads.clock.monotonic() - began
        if job.verdict is Verdict.COMPLETED and seconds > 0:
            downtime, sent = job.copied()
            self.on_copied(instance.uuid, downtime, sent / seconds)
        return job.verdict or Verdict.FAILED

    @phase
    def attach_live_migration(self, instance_uuid: str) -> Verdict | None:
        """See :meth:`driver.ComputeDriver.attach_live_migration`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance_uuid)
            if job is None:
                return None
            job.listeners += 1
        job.ended.wait()
        return job.verdict

    @phase
    def live_migration_abort(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_abort`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance.uuid)
            if job is not None:
                self._world.record(self.hypervisor.host, 'abort asked', instance.uuid, self.boot)
                job.abort()

    @phase
    def live_migration_force_complete(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_force_complete`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance.uuid)
            if job is not None:
                self._world.record(self.hypervisor.host, 'force complete asked', instance.uuid, self.boot)
                job.force_complete()

    @phase
    def get_progress(self, instance_uuid: str) -> dict[str, int]:
        """See :meth:`driver.ComputeDriver.get_progress`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance_uuid)
            return job.progress() if job is not None else {}

    # --- after the job -----------------------------------------------------------------------------------------------

    @phase
    def post_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_source`."""
        with self._world.lock:
            self._refuse_if_owned(instance, 'post_live_migration_at_source')
            self.hypervisor.remove(instance.uuid, self.boot)

    @phase
    def post_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_destination`."""
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance.uuid)
            if guest is None or guest.state == GuestState.WAITING:
                raise exception.GuestNotFound(host=self.hypervisor.host, instance_uuid=instance.uuid)
            if not guest.persistent:
                guest.persistent = True
                self._world.record(self.hypervisor.host, 'persisted', instance.uuid, self.boot)

    @phase
    def rollback_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_source`."""
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance.uuid)
            if guest is None:
                raise exception.GuestNotFound(host=self.hypervisor.host, instance_uuid=instance.uuid)
            if instance.uuid in self.hypervisor.jobs:
                reason = f'the job of guest {instance.uuid} has not ended'
                raise self._error('rollback_live_migration_at_source', reason)
            if guest.state == GuestState.CUTOVER:
                self.hypervisor.set_state(guest, guest.resume_to, self.boot)

    @phase
    def rollback_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_destination`."""
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance.uuid)
            if guest is not None and guest.state != GuestState.WAITING:
                raise exception.GuestStillHere(
                    host=self.hypervisor.host,
                    instance_uuid=instance.uuid,
                    action='rollback_live_migration_at_destination',
                )
            self.hypervisor.remove(instance.uuid, self.boot)
