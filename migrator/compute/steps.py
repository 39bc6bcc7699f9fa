# SPDX-License-Identifier: Apache-2.0

"""The bodies of the steps of a live migration on this host, in the order of the saga.

Every body observes before it acts, and may run twice. A body never destroys a guest that is active here: it raises
:class:`~migrator.exception.GuestStillHere` and changes nothing. No body depends on which conductor sent the command, or
on another host.

A check refuses with a :class:`~migrator.exception.MigrationPreCheckError`, whose message says what has to change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors
from migrator.compute import rpcapi
from migrator.compute.work import Steps, Work, WorkEnd, step
from migrator.objects import GuestState, Instance, LiveMigrateData, WorkState
from migrator.objects.protocol import ACTIVE, IN_USE
from migrator.virt.driver import CancelToken, ComputeDriver, Verdict

LOG = logging.getLogger(__name__)

#: Seconds between two attempts to attach to a job, while the driver fails.
ASK_AGAIN = 1.0
_STATE_OF = {
    Verdict.COMPLETED: WorkState.DONE,
    Verdict.FAILED: WorkState.FAILED,
    Verdict.ABORTED: WorkState.CANCELLED,
}


class LiveMigrationSteps(Steps):
    """The steps of a live migration at this host, but for the live migration itself."""

    @step()
    def check_can_live_migrate_destination(
        self,
        work: Work,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
        definition: dict[str, Any],
    ) -> LiveMigrateData:
        """Return the data that the source needs for its check, or refuse the guest (destination).

        pre_live_migration or the rollback removes what the check leaves behind.

        :raises migrator.exception.MigrationPreCheckError: this host cannot take the guest; the message says why.
        """
        refuse_if_present(self.driver, self.host, instance)
        found = self.driver.check_can_live_migrate_destination(instance, block_migration, disk_over_commit, definition)
        return returned(work.step, found)

    @step()
    def check_can_live_migrate_source(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData
    ) -> LiveMigrateData:
        """Return the data with this host's part filled in, or refuse to migrate the guest (source).

        The check leaves nothing behind.

        :raises migrator.exception.MigrationPreCheckError: the guest cannot migrate there; the message says why.
        """
        guest = self.driver.get_guest(instance.uuid)
        if not guest.present:
            raise exception.MigrationPreCheckError(reason=f'{self.host} has no guest {instance.uuid}')
        found = self.driver.check_can_live_migrate_source(instance, migrate_data)
        return returned(work.step, found)

    @step(rpcapi.SHORT_WAIT)
    def pre_live_migration(self, work: Work, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Prepare this host to receive the guest (destination).

        :returns: the data that the conductor passes on to the source unchanged.
        :raises migrator.exception.Cancelled: the work was cancelled; a rollback cleans up.
        """
        # What the check has left would obstruct the preparation, and no other step removes it.
        self.driver.cleanup_live_migration_destination_check(instance)
        work.raise_if_cancelled()
        return returned(work.step, self.driver.pre_live_migration(instance, migrate_data, work))

    @step(rpcapi.SHORT_WAIT)
    def post_live_migration_at_source(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> dict[str, Any]:
        """Remove what is left of a guest that has moved away.

        :param migrate_data: None if the migration was abandoned before its checks replied.
        :returns: the downtime of the guest, which the driver reports at about the end of its job.
        :raises migrator.exception.GuestStillHere: the guest is in use here, or its job has not ended.
        """
        guest = self.driver.get_guest(instance.uuid)
        if guest.job or guest.state in IN_USE:
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=work.step)
        self.driver.post_live_migration_at_source(instance, migrate_data or LiveMigrateData())
        return {'downtime': self._runner.queue.downtimes.pop(instance.uuid, None)}

    @step(rpcapi.SHORT_WAIT)
    def post_live_migration_at_destination(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> None:
        """Make the guest that has arrived persistent on this host.

        :param migrate_data: None if the migration was abandoned before its checks replied.
        :raises migrator.exception.GuestNotFound: the guest is not here.
        """
        self.driver.post_live_migration_at_destination(instance, migrate_data or LiveMigrateData())

    @step(rpcapi.SHORT_WAIT, cancels=True)
    def rollback_live_migration_at_source(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> WorkEnd | None:
        """Restore the guest to its state before the migration.

        :returns: None if the guest is restored; failed with ``busy`` if its job still runs, after an abort of the job.
        :raises migrator.exception.GuestNotFound: the guest is not here.
        """
        guest = self.driver.get_guest(instance.uuid)
        if guest.job:
            self.driver.live_migration_abort(instance)
            reason = f'the job of guest {instance.uuid} at {self.host} has not ended'
            return WorkEnd(WorkState.FAILED, {'busy': True}, reason)
        if not guest.present:
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)
        self.driver.rollback_live_migration_at_source(instance, migrate_data)
        return None

    @step(rpcapi.SHORT_WAIT, cancels=True)
    def rollback_live_migration_at_destination(
        self, work: Work, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> None:
        """Remove everything that the migration has created on this host.

        :raises migrator.exception.GuestStillHere: the guest itself is here.
        """
        guest = self.driver.get_guest(instance.uuid)
        if guest.present and guest.state != GuestState.WAITING:
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=work.step)
        self.driver.rollback_live_migration_at_destination(instance, migrate_data)


def refuse_if_present(driver: ComputeDriver, host: str, instance: Instance) -> None:
    """Refuse a guest that this host has already.

    :raises migrator.exception.MigrationPreCheckError: the host has it.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.present and guest.state != GuestState.WAITING:
        raise exception.MigrationPreCheckError(
            reason=f'{host} already has guest {instance.uuid}, which is {guest.state}: remove it there if an earlier '
            'migration has left it behind'
        )


def returned(method: str, found: object) -> LiveMigrateData:
    """Return the result of a driver's method if it is the LiveMigrateData that the next step needs.

    :raises migrator.exception.DriverError: the result has another type. The next step runs on the other host, which
        could not name the driver at fault.
    """
    if not isinstance(found, LiveMigrateData):
        raise exception.DriverError(f'{method} returned {found!r:.100}: correct the driver to return a LiveMigrateData')
    return found


def live_migration(
    driver: ComputeDriver,
    threads: executors.Threads,
    host: str,
    instance: Instance,
    destination: str,
    migrate_data: LiveMigrateData,
    token: CancelToken,
    started: Callable[[], None],
) -> WorkEnd:
    """Migrate the guest or attach to its running job, and wait until the job has ended (source).

    :param started: called when the hypervisor has the job.
    :returns: the outcome with the driver's verdict; failed with ``gone`` and no verdict if the guest is not here.
    :raises migrator.exception.Cancelled: the work was cancelled, and the driver was not called.
    """
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        return WorkEnd(WorkState.FAILED, {'gone': True}, f'{host} has no guest {instance.uuid}')
    if not guest.job:
        token.raise_if_cancelled()
        if guest.state not in ACTIVE:
            # No verdict: if the guest is paused for cut-over, only the destination knows whether it runs there.
            reason = f'guest {instance.uuid} cannot be migrated while it is {guest.state}: start it or resume it'
            return WorkEnd(WorkState.FAILED, {'verdict': ''}, reason, returned=True)
    job_started = False

    def on_started() -> None:
        nonlocal job_started
        job_started = True
        started()

    try:
        return outcome(driver.live_migration(instance, destination, migrate_data, on_started))
    except exception.LiveMigrationFailed as error:
        return outcome(Verdict.FAILED, str(error))
    except BaseException as error:  # the connection may have failed while the job goes on
        if threads.is_final(error):
            raise
        reason = exception.message_of(error)
        if not isinstance(error, exception.MigratorException):
            reason = f'{host} failed in live_migration: {reason}'
        LOG.warning(
            'The driver failed in the live migration of instance %(instance)s: %(reason)s',
            {'instance': instance.uuid, 'reason': reason},
        )
        verdict = outlast(driver, threads, instance.uuid)
        if verdict is None and not job_started and isinstance(error, exception.DriverError):
            verdict = Verdict.FAILED  # a DriverError guarantees that no job was started
        return outcome(verdict, reason)


def outcome(verdict: Verdict | None, reason: str | None = None) -> WorkEnd:
    """Return the outcome of a job, given the driver's verdict.

    :param verdict: None if the end of the job was not observed. The outcome then has no verdict either, because the
        destination may run the guest.
    """
    if verdict is None:
        return WorkEnd(WorkState.FAILED, {'verdict': ''}, reason or 'the end of the job was not seen', returned=True)
    if verdict is Verdict.COMPLETED:
        reason = None
    elif verdict is Verdict.FAILED and reason is None:
        reason = 'the hypervisor could not move the guest'
    return WorkEnd(_STATE_OF[verdict], {'verdict': verdict.value}, reason, returned=True, verdict=verdict.value)


def outlast(
    driver: ComputeDriver,
    threads: executors.Threads,
    instance_uuid: str,
    log_context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Verdict | None:
    """Wait for the end of a running job, and retry as often as the driver fails.

    :param log_context: called for each log line; returns the context that names what the line is about.
    :returns: the verdict; None if there is no job, or if its end was not observed.
    """
    failed = False
    while True:
        try:
            if failed:  # in here, because a time-out that the driver has left behind may end the pause
                threads.sleep(ASK_AGAIN)
            return driver.attach_live_migration(instance_uuid)
        except BaseException as error:  # the job holds its slot until its end is known
            if threads.is_final(error):
                raise
            with log_context():
                LOG.warning(
                    'Could not attach to the job of guest %(guest)s, trying again: %(error)s',
                    {'guest': instance_uuid, 'error': exception.message_of(error)},
                )
            failed = True
