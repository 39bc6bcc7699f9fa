# SPDX-License-Identifier: Apache-2.0

"""What this host does for each step of a live migration, in the order of the story.

Every body observes before it acts, may be run twice, and never destroys a guest that is active here: it raises
:class:`~migrator.exception.GuestStillHere` then, and has done nothing. None of them knows who asked, or whether
another host took part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from oslo_log import log as logging

from migrator import exception, executors
from migrator.compute import checks
from migrator.compute.work import Outcome
from migrator.objects import GuestState, Instance, LiveMigrateData, WorkState
from migrator.virt.driver import CancelToken, ComputeDriver, Verdict

LOG = logging.getLogger(__name__)


#: Seconds between two attempts to ask a hypervisor that failed to tell of its job.
ASK_AGAIN = 1.0
#: A guest in one of these states is somebody's running guest, whatever the books say.
_IN_USE = (GuestState.RUNNING, GuestState.PAUSED, GuestState.POSTCOPY_BROKEN)
_MOVABLE = (GuestState.RUNNING, GuestState.PAUSED)
_STATE_OF = {
    Verdict.COMPLETED: WorkState.DONE,
    Verdict.FAILED: WorkState.FAILED,
    Verdict.ABORTED: WorkState.CANCELLED,
}


def pre_live_migration(
    driver: ComputeDriver, instance: Instance, migrate_data: LiveMigrateData, token: CancelToken
) -> LiveMigrateData:
    """Make this host ready to receive the guest (destination).

    :returns: the data that the source is to be given, as it is.
    :raises migrator.exception.Cancelled: the token said so; a rollback cleans up.
    """
    # What the check left would be in the way, and nobody else comes by to remove it.
    driver.cleanup_live_migration_destination_check(instance)
    token.raise_if_cancelled()
    return checks.returned('pre_live_migration', driver.pre_live_migration(instance, migrate_data, token))


def live_migration(
    driver: ComputeDriver,
    threads: executors.Threads,
    host: str,
    instance: Instance,
    destination: str,
    migrate_data: LiveMigrateData,
    token: CancelToken,
    started: Callable[[], None],
) -> Outcome:
    """Move the guest (source), or attach to the job that moves it; blocks until the job has ended.

    :param started: called when the hypervisor has the job.
    :returns: with the driver's verdict; ``gone`` without one if the guest is not here.
    :raises migrator.exception.Cancelled: it was no longer wanted, and the driver was not called.
    """
    guest = driver.get_guest(instance.uuid)
    if not guest.present:
        return Outcome(WorkState.FAILED, {'gone': True}, 'gone')
    if not guest.job:
        token.raise_if_cancelled()
        if guest.state not in _MOVABLE:
            # No verdict: where a guest that is paused for cut-over runs is for the destination to say.
            reason = f'guest {instance.uuid} is {guest.state}: running or paused would do'
            return Outcome(WorkState.FAILED, {'verdict': ''}, reason, returned=True)
    begun = False

    def has_begun() -> None:
        nonlocal begun
        begun = True
        started()

    try:
        return outcome(driver.live_migration(instance, destination, migrate_data, has_begun))
    except exception.LiveMigrationFailed as error:
        return outcome(Verdict.FAILED, str(error))
    except Exception as error:  # noqa: BLE001 -- the connection may have failed while the job goes on
        told = exception.told(error)
        if not isinstance(error, exception.MigratorException):
            told = f'{host} failed in live_migration: {told}'
        LOG.warning('Live migration of instance %s: the driver failed: %s', instance.uuid, told)
        verdict = outlast(driver, threads, instance.uuid)
        if verdict is None and not begun and isinstance(error, exception.DriverError):
            verdict = Verdict.FAILED  # by its promise no job was started
        return outcome(verdict, told)


def outcome(verdict: Verdict | None, reason: str | None = None) -> Outcome:
    """Return what a job came to, by the driver's word.

    :param verdict: None: nobody saw its end. That is no verdict: the destination may run the guest.
    """
    if verdict is None:
        return Outcome(WorkState.FAILED, {'verdict': ''}, reason or 'the end of the job was not seen', returned=True)
    if verdict is Verdict.COMPLETED:
        reason = None
    elif verdict is Verdict.FAILED and reason is None:
        reason = 'the hypervisor could not move the guest'
    return Outcome(_STATE_OF[verdict], {'verdict': verdict.value}, reason, returned=True, verdict=verdict.value)


def outlast(
    driver: ComputeDriver,
    threads: executors.Threads,
    instance_uuid: str,
    about: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Verdict | None:
    """Wait for the end of a job that runs already, however often the driver fails meanwhile.

    :param about: asked, for each line that is logged, what it is about.
    :returns: None: there is no job, or nobody saw its end.
    """
    while True:
        try:
            return driver.attach_live_migration(instance_uuid)
        except Exception as error:  # noqa: BLE001 -- until its end is known it holds its slot
            with about():
                LOG.warning(
                    'The job of guest %s cannot be asked for, and will be: %s', instance_uuid, exception.told(error)
                )
            threads.sleep(ASK_AGAIN)


def post_live_migration_at_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None
) -> None:
    """Remove what is left of a guest that has gone.

    :param migrate_data: None: the migration was abandoned before its checks were answered.
    :raises migrator.exception.GuestStillHere: it is active here, or its job has not ended.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.job or guest.state in _IN_USE:
        raise exception.GuestStillHere(host=host, instance_uuid=instance.uuid, action='post_live_migration_at_source')
    driver.post_live_migration_at_source(instance, migrate_data or LiveMigrateData())


def post_live_migration_at_destination(
    driver: ComputeDriver, instance: Instance, migrate_data: LiveMigrateData | None
) -> None:
    """Make the guest that has arrived this host's own.

    :param migrate_data: None: the migration was abandoned before its checks were answered.
    :raises migrator.exception.GuestNotFound: it is not here.
    """
    driver.post_live_migration_at_destination(instance, migrate_data or LiveMigrateData())


def rollback_live_migration_at_source(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None
) -> Outcome | None:
    """Restore the guest as it was before the move.

    :returns: None when it is; failed as ``busy`` if a job of it still runs, which has been asked to end.
    :raises migrator.exception.GuestNotFound: it is not here.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.job:
        driver.live_migration_abort(instance)
        return Outcome(WorkState.FAILED, {'busy': True}, f'the job of guest {instance.uuid} at {host} has not ended')
    if not guest.present:
        raise exception.GuestNotFound(host=host, instance_uuid=instance.uuid)
    driver.rollback_live_migration_at_source(instance, migrate_data)
    return None


def rollback_live_migration_at_destination(
    driver: ComputeDriver, host: str, instance: Instance, migrate_data: LiveMigrateData | None
) -> None:
    """Remove everything that was made here for the guest.

    :raises migrator.exception.GuestStillHere: the guest itself is here.
    """
    guest = driver.get_guest(instance.uuid)
    if guest.present and guest.state != GuestState.WAITING:
        raise exception.GuestStillHere(
            host=host, instance_uuid=instance.uuid, action='rollback_live_migration_at_destination'
        )
    driver.rollback_live_migration_at_destination(instance, migrate_data)
