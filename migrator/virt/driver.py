# SPDX-License-Identifier: Apache-2.0

"""The interface of a hypervisor driver.

The docstring of each method states what a driver must do. One contract test (``migrator/testing/driver_contract.py``)
checks every driver against these docstrings.

A driver talks only to the hypervisor of its own host. It does not know the queue, the conductor or the database.
Several threads may call it at once, for different guests or for the same guest. A job that it starts may outlive the
calling process.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

from migrator import exception
from migrator.objects import ComputeNode, GuestState, Instance, LiveMigrateData, protocol
from migrator.virt.cold_migration import ColdMigration

#: The namespace of compute node uuids. With the host's name it always gives the same uuid for the same host.
_NAMESPACE = UUID('6d1a5f0e-3f3b-4a52-9c54-3a1f6f6d0c55')

#: The power state of a guest that its user has paused, by nova's number.
PAUSED = 3


def node_uuid(host: str) -> str:
    """Return the uuid of a host's compute node and root provider."""
    return str(uuid5(_NAMESPACE, host))


def state_after_evacuation(instance: Instance) -> GuestState:
    """Return the state in which :meth:`ComputeDriver.evacuate` leaves a guest."""
    if instance.vm_state == 'stopped':
        return GuestState.SHUTDOWN
    return GuestState.PAUSED if instance.power_state == PAUSED else GuestState.RUNNING


class Verdict(enum.StrEnum):
    """The result of a live migration job, as the hypervisor reports it."""

    COMPLETED = 'completed'
    FAILED = 'failed'
    ABORTED = 'aborted'


class CancelToken(abc.ABC):
    """A request to stop, which a step checks between its parts."""

    @abc.abstractmethod
    def raise_if_cancelled(self) -> None:
        """Raise if the work was cancelled.

        :raises migrator.exception.Cancelled: the step stops here. A rollback removes what it has made.
        """


class NeverCancelled(CancelToken):
    """The token of work that cannot be cancelled."""

    def raise_if_cancelled(self) -> None:
        """Return without raising."""


Copied = Callable[[str, float | None, float | None], None]


class Reporting:
    """What a driver may report about its host, its guests and its jobs. All of it is optional.

    :ivar on_copied: the driver calls it when a live migration from this host has completed: with the uuid of the guest,
        the seconds for which it stood still, and the bytes per second that were copied, each of the two None if the
        hypervisor does not know it. It returns at once, and raises nothing.
    """

    on_copied: Copied = staticmethod(lambda instance_uuid, downtime, rate: None)

    def get_identity(self) -> str | None:
        """Return what distinguishes this hypervisor from every other one, such as a uuid of the machine.

        It stays the same as long as the machine does, whatever the host is called. The compute service asks once, at
        its start. A conductor then refuses another machine under the name of this host.

        :returns: None if this driver knows none. Then nothing is compared.
        """
        return None

    def get_kernel(self) -> str | None:
        """Return what distinguishes this start of the host's kernel from every other one.

        On Linux that is its boot_id. The compute service asks until it gets one. A maintenance sees a reboot by it.

        :returns: None if this driver does not know it.
        """
        return None

    def get_diagnostics(self, instance: Instance) -> dict[str, Any] | None:
        """Return what the hypervisor has counted for a guest that runs here.

        The names are nova's of microversion 2.48, and what is left out is null in the reply of the API:

        - ``driver`` (nova allows only libvirt, ironic, vmwareapi and xenapi), ``hypervisor``, ``hypervisor_os``;
        - ``memory_details``: ``maximum`` and ``used``, in MiB;
        - ``cpu_details``, for each processor: ``id``, ``time`` in nanoseconds, ``utilisation`` in per cent;
        - ``disk_details``, for each disk: ``read_bytes``, ``read_requests``, ``write_bytes``, ``write_requests``,
          ``errors_count``, and ``device``, its name in the reply below 2.48;
        - ``nic_details``, for each interface: ``mac_address``, ``rx_octets``, ``rx_packets``, ``rx_errors``,
          ``rx_drop``, ``rx_rate``, the same with ``tx``, and ``device`` likewise.

        :returns: JSON-safe values; None if this driver has no diagnostics. The API replies with 501 then.
        """
        return None

    def get_host_uptime(self) -> str | None:
        """Return the uptime of this host, as the command ``uptime`` prints it.

        :returns: None if this driver does not know it. The API replies with 501 then.
        """
        return None


class ComputeDriver(ColdMigration, Reporting, abc.ABC):
    """The hypervisor of one host.

    Every method except :meth:`live_migration` and :meth:`attach_live_migration` ends in bounded time. Every method
    that changes something is idempotent: a second call finds the work done. A failure is a
    :class:`migrator.exception.DriverError` or another :class:`~migrator.exception.MigratorException`. Its message says
    what an operator can do.
    """

    # --- host and guests -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def init_host(self, host: str) -> None:
        """Connect to the hypervisor.

        The compute service calls this once at its start, before any other method.

        :param host: the name of this compute host.
        """

    @abc.abstractmethod
    def get_node(self) -> ComputeNode:
        """Return the facts about the hypervisor, and its tree of resource providers with their inventories."""

    @abc.abstractmethod
    def list_guests(self) -> list[protocol.Guest]:
        """Return every guest that this host holds in any form.

        A guest that the host is prepared to receive (WAITING) is included.
        """

    @abc.abstractmethod
    def get_guest(self, instance_uuid: str) -> protocol.Guest:
        """Return the current state of one guest, as the hypervisor reports it now.

        The state is ABSENT if the host holds nothing of the guest.
        """

    def get_instance(self, instance_uuid: str) -> Instance | None:
        """Return a guest of this host as an instance, so that it can be adopted (option adopt_guests).

        The instance has the guest's uuid, its name, and a flavor with its resources. The guest is not changed.

        :returns: None if there is no such guest, or if this driver cannot describe guests as instances.
        """
        return None

    @abc.abstractmethod
    def settle(self, instance_uuid: str) -> protocol.Guest:
        """Settle the calls of earlier boots of this process for a guest, and return its state.

        A driver call of an earlier boot may still start a job. This method waits for it or cancels it. If the
        returned guest is here without a job, no job will appear by itself.
        """

    # --- checks ----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def check_can_live_migrate_destination(
        self,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
        definition: dict[str, Any] | None = None,
    ) -> LiveMigrateData:
        """Check whether this host can take the guest, and return what the source needs for its own check.

        The check may leave something behind, such as a temporary file.
        :meth:`cleanup_live_migration_destination_check` removes it.

        :param definition: what the source has reported in :meth:`get_definition`, perhaps long ago. The guest may have
            changed since. So this host refuses nothing because of it: the source knows whether it is still true.
        :raises migrator.exception.MigrationPreCheckError: this host cannot take the guest. The message says why.
        """

    @abc.abstractmethod
    def check_can_live_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether the guest can leave this host, and return the data with the source's part filled in.

        The check leaves nothing behind. If disks will be copied, ``source['copied_gib']`` may hold the size of each
        in GiB. The time limit of the migration grows with these sizes. Without them it grows with the flavor's disks.

        :raises migrator.exception.MigrationPreCheckError: the guest cannot go there. The message says why.
        """

    @abc.abstractmethod
    def cleanup_live_migration_destination_check(self, instance: Instance) -> None:
        """Remove what the destination's check left.

        If nothing is left, this is no error.
        """

    # --- evacuation: optional --------------------------------------------------------------------------------------

    def get_definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """Return what another host needs to start a guest of this host without this host.

        The conductor stores it while this host lives.

        :returns: JSON-safe values; None if there is no such guest, or if this driver cannot start guests elsewhere. For
            the plan of a drain, ``immovable`` may say in words what of the guest cannot be moved live, and what to do,
            and ``unstartable`` why no other host would start it: no evacuation or cold migration moves it.
        """
        return None

    def check_can_evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether this host can start the guest without its source.

        The check leaves nothing behind. By default a driver refuses.

        :param migrate_data: ``source`` is the stored definition; {}: none was stored.
        :returns: the data with ``destination`` filled in, such as how the disks are seen here.
        :raises migrator.exception.MigrationPreCheckError: this host cannot start the guest, such as without its disks.
            The message says why.
        """
        raise exception.MigrationPreCheckError(
            reason=f'the driver {type(self).__name__} cannot start a guest without its source'
        )

    def evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Start the guest here, without its source.

        A guest whose ``vm_state`` is stopped is left shut off, and one that was paused is left paused. A second call
        finds the guest there.

        :raises migrator.exception.DriverError: the guest was not started. A guest is never started on an empty disk.
        """
        raise exception.DriverError(f'the driver {type(self).__name__} cannot start a guest without its source')

    def rollback_evacuation_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Remove what :meth:`evacuate` has made here, but no disk.

        If there is nothing to remove, this is no error.

        :raises migrator.exception.GuestStillHere: the guest runs here. Nothing was done.
        """
        return None  # noqa: RET501 -- a driver that starts no guest has nothing to remove

    def post_evacuation_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """End the copy of a guest that was evacuated from this host, and remove what is left of it.

        The compute service has checked that an active copy may be ended. A disk is removed only if the facts of both
        hosts show that they do not share it. Otherwise it is kept, and the log names it.

        :raises migrator.exception.DriverError: by default, since nothing was removed.
        """
        raise exception.DriverError(f'the driver {type(self).__name__} cannot remove a guest that was evacuated')

    # --- migration -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def pre_live_migration(
        self, instance: Instance, migrate_data: LiveMigrateData, token: CancelToken
    ) -> LiveMigrateData:
        """Prepare this host to receive the guest (destination).

        :param token: checked between the parts of the preparation.
        :returns: the data with the destination's part filled in. The source receives it unchanged.
        :raises migrator.exception.Cancelled: the token was cancelled. The rollback removes what was made.
        """

    @abc.abstractmethod
    def live_migration(
        self,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        started: Callable[[], None],
    ) -> Verdict:
        """Migrate the guest, and block until the job has ended (source).

        If a job of this guest runs already, the call attaches to it.

        :param started: called once, when the hypervisor has the job or when the call has attached to one.
        :returns: the result of the job, as the hypervisor reports it. COMPLETED: the destination runs the guest, and
            the source's copy can never run again. FAILED, ABORTED: the source runs the guest, or holds it paused.
        :raises migrator.exception.DriverError: no job was started.
        :raises migrator.exception.LiveMigrationFailed: the job failed, as for FAILED. The message says why.
        :raises migrator.exception.MigratorException: any other error, such as
            :class:`~migrator.exception.MoveUnsettled`, means that the result is unknown. The job may not have begun.
        """

    @abc.abstractmethod
    def attach_live_migration(self, instance_uuid: str) -> Verdict | None:
        """Wait for the end of a job that an earlier boot of this process started (source).

        The compute service calls this after a restart, when only the hypervisor knows about the job.

        :returns: the result of the job, as the hypervisor reports it. None if there is no job or if its end was
            missed. Then only the state of the guest shows what happened.
        """

    @abc.abstractmethod
    def live_migration_abort(self, instance: Instance) -> None:
        """Ask the hypervisor to abort the job.

        :meth:`live_migration` returns the result. If there is no job, this is no error.
        """

    @abc.abstractmethod
    def live_migration_force_complete(self, instance: Instance) -> None:
        """Make the job end soon.

        The hypervisor switches to post-copy if it can and is allowed to. Otherwise it pauses the guest. If there is
        no job, this is no error.
        """

    @abc.abstractmethod
    def get_progress(self, instance_uuid: str) -> dict[str, int]:
        """Return the figures of the job in bytes, or {} without a job.

        The keys are memory_total, memory_processed, memory_remaining, disk_total, disk_processed and disk_remaining.
        """

    # --- after the job ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def post_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Remove what is left of a guest that has left this host.

        :param migrate_data: empty if the migration was abandoned before its checks were answered.
        :raises migrator.exception.GuestStillHere: the guest is here and could run. Nothing was done.
        """

    @abc.abstractmethod
    def post_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Persist the guest that has arrived on this host.

        :param migrate_data: empty if the migration was abandoned before its checks were answered.
        :raises migrator.exception.GuestNotFound: the guest is not here.
        """

    @abc.abstractmethod
    def rollback_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Restore the guest to its state before the migration.

        A guest that the hypervisor left paused for switchover is resumed. A guest that its user paused or shut off
        stays so.

        :raises migrator.exception.GuestNotFound: the guest is not here.
        """

    @abc.abstractmethod
    def rollback_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Remove everything that the checks and pre_live_migration made here.

        If there is nothing to remove, this is no error.

        :raises migrator.exception.GuestStillHere: the guest runs here. Nothing was done.
        """
