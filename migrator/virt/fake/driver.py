# SPDX-License-Identifier: Apache-2.0

"""The driver of a fake hypervisor.

It meets the contract of :mod:`migrator.virt.driver`, including the refusals.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from migrator import context, exception, executors
from migrator.objects import Flavor, GuestState, Instance, LiveMigrateData, compute_node, protocol
from migrator.virt import driver
from migrator.virt.driver import Verdict, node_uuid
from migrator.virt.fake import acts
from migrator.virt.fake.hypervisor import CHECK_FILE, OWNING, PARTS, FakeHypervisor
from migrator.virt.fake.job import Job

P = ParamSpec('P')
T = TypeVar('T')

#: Seconds between two checks of the cancel token in a long step.
TOKEN_INTERVAL = 0.1


def _phase(method: Callable[Concatenate[FakeDriver, P], T]) -> Callable[Concatenate[FakeDriver, P], T]:
    """Decorate a driver method so that the faults planted for its name strike, and its acts are recorded."""

    @functools.wraps(method)
    def wrapper(self: FakeDriver, /, *args: P.args, **kwargs: P.kwargs) -> T:
        first: Any = next(iter([*args, *kwargs.values()]), None)
        instance_uuid = first.uuid if isinstance(first, Instance) else first
        with self._acting(method.__name__, instance_uuid):
            return self.hypervisor.faults.around(
                method.__name__, instance_uuid, lambda: self._powered(method, *args, **kwargs)
            )

    return wrapper


class FakeDriver(driver.ComputeDriver):
    """A driver of one :class:`~migrator.virt.fake.hypervisor.FakeHypervisor`.

    One hypervisor may have several drivers, one after the other: a new one for each incarnation of the compute service.

    :param hypervisor: the host's hypervisor, which belongs to the world and not to this process.
    :param threads: the threads of the compute process.
    """

    def __init__(self, hypervisor: FakeHypervisor, threads: executors.Threads) -> None:
        self.hypervisor = hypervisor
        self._world = hypervisor.world
        self._threads = threads
        self._world.connects[hypervisor.host] += 1
        #: The name of this incarnation of the driver in the world's log.
        self.life = f'{hypervisor.host}/{self._world.connects[hypervisor.host]}'

    def _acting(self, name: str, instance_uuid: Any) -> contextlib.AbstractContextManager[None]:
        migration_uuid = context.subject().migration_uuid
        if name not in acts.ACTING or migration_uuid is None:
            return contextlib.nullcontext()
        return self._world.acts.act(self.life, self.hypervisor.host, name, instance_uuid, migration_uuid)

    def _powered(self, method: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if not self.hypervisor.powered:
            raise self._error(method.__name__, 'the host has no power')
        return method(self, *args, **kwargs)

    def _error(self, phase: str, reason: str) -> exception.DriverError:
        return exception.DriverError(host=self.hypervisor.host, phase=phase, reason=reason)

    # --- host and guests ---------------------------------------------------------------------------------------------

    @_phase
    def init_host(self, host: str) -> None:
        """Connect; see :meth:`driver.ComputeDriver.init_host`."""
        if host != self.hypervisor.host:
            raise self._error('init_host', f'the driver is for host {self.hypervisor.host}, not for {host}')

    @_phase
    def get_node(self) -> compute_node.ComputeNode:
        """Return the facts about the hypervisor; see :meth:`driver.ComputeDriver.get_node`."""
        hypervisor = self.hypervisor
        uuid = node_uuid(hypervisor.host)
        root = compute_node.ProviderInventory(
            uuid=uuid, name=hypervisor.host, inventory=hypervisor.capacity.inventory()
        )
        return compute_node.ComputeNode(
            uuid=uuid, host=hypervisor.host, node=hypervisor.host, providers=[root, *hypervisor.capacity.children]
        )

    @_phase
    def list_guests(self) -> list[protocol.Guest]:
        """Return every guest; see :meth:`driver.ComputeDriver.list_guests`."""
        with self._world.lock:
            return [self.hypervisor.describe(uuid) for uuid in self.hypervisor.guests]

    @_phase
    def get_guest(self, instance_uuid: str) -> protocol.Guest:
        """Return one guest; see :meth:`driver.ComputeDriver.get_guest`."""
        with self._world.lock:
            return self.hypervisor.describe(instance_uuid)

    @_phase
    def get_instance(self, instance_uuid: str) -> Instance | None:
        """Return a guest as an instance; see :meth:`driver.ComputeDriver.get_instance`."""
        host = self.hypervisor.host
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance_uuid)
            if guest is None or guest.state == GuestState.WAITING:
                return None
            flavor = Flavor(name='adopted', vcpus=guest.vcpus, memory_mb=guest.memory_mb, root_gb=guest.disk_gb)
        return Instance(
            uuid=instance_uuid,
            name=instance_uuid,
            project_id='migrator',
            user_id='migrator',
            host=host,
            node=host,
            flavor=flavor,
        )

    @_phase
    def settle(self, instance_uuid: str) -> protocol.Guest:
        """Cancel a pending job of an earlier incarnation; see :meth:`driver.ComputeDriver.settle`."""
        with self._world.lock:
            job = self.hypervisor.pending.get(instance_uuid)
            if job is not None and job.who != self.life:
                del self.hypervisor.pending[instance_uuid]
                job.call_off()
            return self.hypervisor.describe(instance_uuid)

    # --- checks ------------------------------------------------------------------------------------------------------

    @_phase
    def check_can_live_migrate_destination(
        self, instance: Instance, block_migration: bool | None, disk_over_commit: bool
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
                self._world.record(hypervisor.host, 'check file made', instance.uuid, self.life)
        return LiveMigrateData(
            block_migration=not shared,
            disk_over_commit=disk_over_commit,
            is_shared_storage=shared,
            destination={'host': hypervisor.host, 'address': f'fake://{hypervisor.host}'},
        )

    @_phase
    def check_can_live_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_source`."""
        with self._world.lock:
            guest = self.hypervisor.describe(instance.uuid)
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

    @_phase
    def cleanup_live_migration_destination_check(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.cleanup_live_migration_destination_check`."""
        with self._world.lock:
            residue = self.hypervisor.residues.get(instance.uuid, set())
            if CHECK_FILE in residue:
                residue.discard(CHECK_FILE)
                self._world.record(self.hypervisor.host, 'check file removed', instance.uuid, self.life)
            if not residue:
                self.hypervisor.residues.pop(instance.uuid, None)

    # --- migration ---------------------------------------------------------------------------------------------------

    @_phase
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
                    guest = hypervisor.add_guest(instance, GuestState.WAITING, self.life)
                    guest.persistent = False
                hypervisor.residues.setdefault(instance.uuid, set()).add(part)
                if part == PARTS[-1] and not guest.incoming:
                    guest.incoming = True
                    self._world.record(hypervisor.host, 'incoming', instance.uuid, self.life)
        return migrate_data.replace(
            destination={**migrate_data.destination, 'post_copy': hypervisor.post_copy, 'ready': True}
        )

    @_phase
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
                job = new = Job(hypervisor, guest, other, disk, self.life)
                hypervisor.pending[instance.uuid] = job
        if new is not None:
            # The job runs in a thread of the world, so that it begins and continues even if this process is killed.
            self._world.threads.start(new.run, name=f'job-{instance.uuid}')
        job.begun.wait()
        if job.error is not None:
            raise job.error
        started()
        job.ended.wait()
        return job.verdict or Verdict.FAILED

    @_phase
    def attach_live_migration(self, instance_uuid: str) -> Verdict | None:
        """See :meth:`driver.ComputeDriver.attach_live_migration`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance_uuid)
            if job is None:
                return None
            job.listeners += 1
        job.ended.wait()
        return job.verdict

    @_phase
    def live_migration_abort(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_abort`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance.uuid)
            if job is not None:
                self._world.record(self.hypervisor.host, 'abort asked', instance.uuid, self.life)
                job.abort()

    @_phase
    def live_migration_force_complete(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_force_complete`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance.uuid)
            if job is not None:
                self._world.record(self.hypervisor.host, 'force complete asked', instance.uuid, self.life)
                job.force_complete()

    @_phase
    def get_progress(self, instance_uuid: str) -> dict[str, int]:
        """See :meth:`driver.ComputeDriver.get_progress`."""
        with self._world.lock:
            job = self.hypervisor.jobs.get(instance_uuid)
            return job.progress() if job is not None else {}

    # --- after the job -----------------------------------------------------------------------------------------------

    @_phase
    def post_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_source`."""
        with self._world.lock:
            self._refuse_if_owned(instance, 'post_live_migration_at_source')
            self.hypervisor.remove(instance.uuid, self.life)

    @_phase
    def post_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_destination`."""
        with self._world.lock:
            guest = self.hypervisor.guests.get(instance.uuid)
            if guest is None or guest.state == GuestState.WAITING:
                raise exception.GuestNotFound(host=self.hypervisor.host, instance_uuid=instance.uuid)
            if not guest.persistent:
                guest.persistent = True
                self._world.record(self.hypervisor.host, 'persisted', instance.uuid, self.life)

    @_phase
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
                self.hypervisor.set_state(guest, guest.resume_to, self.life)

    @_phase
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
            self.hypervisor.remove(instance.uuid, self.life)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _refuse_if_present(self, instance: Instance) -> None:
        guest = self.hypervisor.guests.get(instance.uuid)
        if guest is not None and guest.state != GuestState.WAITING:
            raise exception.MigrationPreCheckError(
                reason=f'host {self.hypervisor.host} already has guest {instance.uuid}, which is {guest.state}'
            )

    def _refuse_if_owned(self, instance: Instance, action: str) -> None:
        hypervisor = self.hypervisor
        guest = hypervisor.guests.get(instance.uuid)
        owned = guest is not None and guest.state in (*OWNING, GuestState.POSTCOPY_BROKEN)
        if owned or instance.uuid in hypervisor.jobs:
            raise exception.GuestStillHere(host=hypervisor.host, instance_uuid=instance.uuid, action=action)
