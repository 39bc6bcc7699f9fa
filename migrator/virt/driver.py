# SPDX-License-Identifier: Apache-2.0

"""The interface of a hypervisor driver: each promise is in a docstring, and one contract test holds them all to it.

A driver talks to the hypervisor of its own host, and to nothing else: it knows no queue, no conductor, no database.
It may be called from several threads at once, for different guests or for the same one. What it starts may outlive
the process that called it, as a hypervisor's jobs do.
"""

from __future__ import annotations

import abc
import enum
import uuid as uuid_module
from collections.abc import Callable

from migrator.objects import Instance, LiveMigrateData, compute_node, protocol

#: What a compute node's uuid is made of, besides its host's name: the same host always has the same.
_NAMESPACE = uuid_module.UUID('6d1a5f0e-3f3b-4a52-9c54-3a1f6f6d0c55')


def node_uuid(host: str) -> str:
    """Return the uuid of a host's compute node and root provider."""
    return str(uuid_module.uuid5(_NAMESPACE, host))


class Verdict(enum.StrEnum):
    """What a live migration job came to, by the hypervisor's word."""

    COMPLETED = 'completed'
    FAILED = 'failed'
    ABORTED = 'aborted'


class CancelToken(abc.ABC):
    """A wish to stop that a step looks at between its parts."""

    @abc.abstractmethod
    def raise_if_cancelled(self) -> None:
        """Raise if the work is no longer wanted.

        :raises migrator.exception.Cancelled: stop here; a rollback cleans up what was made.
        """


class NeverCancelled(CancelToken):
    """The token of work that nobody can cancel."""

    def raise_if_cancelled(self) -> None:
        """Return."""


class ComputeDriver(abc.ABC):
    """One host's hypervisor.

    Every method but :meth:`live_migration` and :meth:`attach_live_migration` ends in bounded time. Every one that
    changes something is idempotent: done twice, the second time finds it done. Failures are
    :class:`migrator.exception.DriverError` or another :class:`~migrator.exception.MigratorException` whose message a
    person can act on.
    """

    # --- what there is ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def init_host(self, host: str) -> None:
        """Connect to the hypervisor; called once at start, before anything else.

        :param host: the name of this compute host.
        """

    @abc.abstractmethod
    def get_node(self) -> compute_node.ComputeNode:
        """Return the hypervisor's facts and its tree of resource providers with their inventory."""

    @abc.abstractmethod
    def list_guests(self) -> list[protocol.Guest]:
        """Return every guest that this host holds in any form, those that wait for a guest included."""

    @abc.abstractmethod
    def get_guest(self, instance_uuid: str) -> protocol.Guest:
        """Return what this host holds of one guest, by the hypervisor's word of this moment (ABSENT if nothing)."""

    def get_instance(self, instance_uuid: str) -> Instance | None:
        """Return a guest of this host as an instance, so that the books can take it in (adopt_guests): its uuid, its
        name, and a flavor of what it has. Nothing about the guest is changed.

        :returns: None: there is no such guest, or this driver cannot tell.
        """
        return None

    @abc.abstractmethod
    def settle(self, instance_uuid: str) -> protocol.Guest:
        """Wait for, or cancel, whatever a call of an earlier life of this process may still start; then answer.

        After it has returned, "here, no job" means that no job will appear by itself.
        """

    # --- checks ----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def check_can_live_migrate_destination(
        self, instance: Instance, block_migration: bool | None, disk_over_commit: bool
    ) -> LiveMigrateData:
        """Return what the source needs to know to check, or refuse. What it leaves (a temporary file, say) is removed
        by :meth:`cleanup_live_migration_destination_check`.

        :raises migrator.exception.MigrationPreCheckError: this host cannot take the guest, and why.
        """

    @abc.abstractmethod
    def check_can_live_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Return the data with the source's part filled in, or refuse. Leaves nothing behind.

        Where disks will be copied, ``source['copied_gib']`` may tell the size of each, in GiB: the time that the move
        may take grows with them. Without it the flavor's disks count.

        :raises migrator.exception.MigrationPreCheckError: the guest cannot go there, and why.
        """

    @abc.abstractmethod
    def cleanup_live_migration_destination_check(self, instance: Instance) -> None:
        """Remove what the destination's check left; nothing to remove is right too."""

    # --- the move --------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def pre_live_migration(
        self, instance: Instance, migrate_data: LiveMigrateData, token: CancelToken
    ) -> LiveMigrateData:
        """Make this host ready to receive the guest (destination). Looks at ``token`` between its parts.

        :returns: the data with the destination's part filled in; the source gets it as it is.
        :raises migrator.exception.Cancelled: the token said so; what was made stays for the rollback to clean.
        """

    @abc.abstractmethod
    def live_migration(
        self,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        started: Callable[[], None],
    ) -> Verdict:
        """Move the guest (source). Blocks until the job has ended; attaches if a job of this guest runs already.

        :param started: called once when the hypervisor has the job (or when attached to one).
        :returns: what the hypervisor says of the job's end. COMPLETED: the destination runs the guest, and the
            source's copy can never run again. FAILED, ABORTED: the source runs the guest, or holds it paused.
        :raises migrator.exception.DriverError: no job was started.
        :raises migrator.exception.LiveMigrationFailed: as FAILED, and why.
        :raises migrator.exception.MigratorException: another, such as
            :class:`~migrator.exception.MoveUnsettled`: how it ended, or whether it began, is not known.
        """

    @abc.abstractmethod
    def attach_live_migration(self, instance_uuid: str) -> Verdict | None:
        """Wait for the end of a job that an earlier life of this process has started (source); it is for a restart,
        when nothing but the hypervisor's word is there.

        :returns: what the hypervisor says of the job's end; None: there is no job, or its end was not seen, and the
            guest's state is all there is to ask.
        """

    @abc.abstractmethod
    def live_migration_abort(self, instance: Instance) -> None:
        """Ask the hypervisor to abort the job; what came of it is told by :meth:`live_migration`. No job: no error."""

    @abc.abstractmethod
    def live_migration_force_complete(self, instance: Instance) -> None:
        """Make the job end soon: post-copy where the hypervisor can and may, else a pause. No job: no error."""

    @abc.abstractmethod
    def get_progress(self, instance_uuid: str) -> dict[str, int]:
        """Return the job's figures in bytes: memory_total, memory_processed, memory_remaining, disk_total,
        disk_processed, disk_remaining; {} without a job."""

    # --- after -----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def post_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Remove what is left of a guest that has gone.

        :param migrate_data: empty where the migration was abandoned before its checks were answered.
        :raises migrator.exception.GuestStillHere: the guest is here and could run; nothing was done.
        """

    @abc.abstractmethod
    def post_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Make the guest that has arrived this host's own (persist it).

        :param migrate_data: likewise.
        :raises migrator.exception.GuestNotFound: it is not here.
        """

    @abc.abstractmethod
    def rollback_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Restore the guest as it was before the move: resume it if the hypervisor left it paused for cut-over; leave
        alone what its user had paused or shut off.

        :raises migrator.exception.GuestNotFound: it is not here.
        """

    @abc.abstractmethod
    def rollback_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """Remove everything that the checks and pre_live_migration made here; nothing to remove is right too.

        :raises migrator.exception.GuestStillHere: the guest runs here; nothing was done.
        """
