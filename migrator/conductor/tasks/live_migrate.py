# SPDX-License-Identifier: Apache-2.0

"""The saga of a live migration: the table of steps with their undos, and their functions in order.

:mod:`migrator.saga.executor` runs the table. :mod:`migrator.conductor.migration.hosts` sends a step that a host does:
the method of the host's :class:`~migrator.compute.manager.ComputeManager` has the step's name. The functions that write
allocations are in :mod:`migrator.conductor.migration.allocations`.

Where the guest is, and what follows from that, is decided in :mod:`migrator.conductor.migration.settle`. An operator's
decision is carried out in :mod:`migrator.conductor.migration.abandon`.

An intent returns the values that the log holds before its step may act, or a verdict if the step cannot begin yet.
``m.set`` and ``m.writes`` add to the next commit. ``m.read_boots`` also reads the boots of the hosts in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrator import exception
from migrator.conductor import cleanups
from migrator.conductor.migration import abandon, allocations, hosts, settle
from migrator.conductor.migration.context import NOW, MigrationContext, Status
from migrator.objects import base, protocol
from migrator.saga.saga import Done, Failed, Kind, Saga, Step, Verdict


def saga() -> Saga[MigrationContext]:
    """Return the saga of a live migration.

    A new step is one entry here, and its functions below.
    """
    compensatable, pivot, retriable = Kind.COMPENSATABLE, Kind.PIVOT, Kind.RETRIABLE
    # Each step gives its name and kind, then its intent and do, then its undo.
    # fmt: off
    return Saga(
        # The allocation moves first, so that it covers from the beginning what is prepared at the destination.
        Step('move_allocation', compensatable, status=Status.PREPARING,
             intent=choose_destination, do=allocations.move_allocation,
             undo=allocations.return_allocation),
        # The checks change nothing, except that the destination may keep some data, which the rollback removes.
        Step('check_can_live_migrate_destination', compensatable,
             do=check_can_live_migrate_destination,
             undo=rollback_live_migration_at_destination),
        Step('check_can_live_migrate_source', compensatable,
             do=check_can_live_migrate_source),
        Step('pre_live_migration', compensatable,
             intent=note_checked, do=pre_live_migration,
             undo=rollback_live_migration_at_destination),
        # Settling writes the status running, when the source reports the job.
        # Only both hosts together can report whether the guest has moved, so settle polls them. The destination is
        # cleaned before the source is restored, so that a guest paused for the switchover resumes on one host only.
        # This is the one place where the undo column is not read upwards: the preparation is undone before this step.
        Step('live_migration', pivot, status=Status.QUEUED,
             intent=note_queued, do=live_migration,
             undo=rollback_live_migration_at_source, undo_after='pre_live_migration', no_effect=settle.had_not_begun),
        # The outcome and the new host are one commit. From here on nothing is undone.
        Step('update_instance_host', retriable, status=status_after_pivot,
             do=update_instance_host),
        (Step('post_live_migration_at_source', retriable, status=Status.POST_MIGRATING,
              intent=wait_for_job, do=post_live_migration_at_source),
         Step('post_live_migration_at_destination', retriable, status=Status.POST_MIGRATING,
              intent=wait_for_job, do=post_live_migration_at_destination)),
        # The allocation covers the source until nothing of the guest is left there.
        Step('release_source_allocation', retriable,
             intent=allocations.empty_intent, do=allocations.release_source_allocation),
        Step('complete', retriable, status=Status.COMPLETED,
             do=complete),
        settle=settle.settle, abandon=abandon.abandon,
    )
    # fmt: on


# --- 1 move_allocation -----------------------------------------------------------------------------------------------


def choose_destination(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Choose the next candidate, once the source has run its earlier deferred cleanups of the guest.

    No guest leaves a host that is forced down. A migration that waited for that host, or for a slot, would keep the
    guest from being evacuated.
    """
    known, m.source_forced_down = m.source_forced_down, None
    if m.source in m.tools.database.services.forced_down() if known is None else known:
        reason = 'it is forced down. If the host is dead and fenced, evacuate its servers.'
        return Failed(exception.ComputeServiceUnavailable(host=m.source, reason=reason).message)
    pause = cleanups.run_at_source(m) if m.instance is not None and m.has_source_cleanup else None
    return pause or allocations.next_candidate(m)


# --- 2, 3 the checks -------------------------------------------------------------------------------------------------


def check_can_live_migrate_destination(m: MigrationContext) -> Verdict:
    """Run the check at the destination. Without a reply it fails, since the next candidate may be better."""
    wanted = {
        'block_migration': m.row.block_migration,
        'disk_over_commit': m.row.disk_over_commit,
        'definition': m.definition,
    }
    return hosts.check(m, m.destination, 'check_can_live_migrate_destination', **wanted)


def check_can_live_migrate_source(m: MigrationContext) -> Verdict:
    """Run the check at the source, with the destination's reply."""
    data = hosts.migrate_data(m, 'check_can_live_migrate_destination')
    return hosts.check(m, m.source, 'check_can_live_migrate_source', migrate_data=data)


# --- 4 pre_live_migration --------------------------------------------------------------------------------------------


def note_checked(m: MigrationContext) -> Mapping[str, Any]:
    """Record that the checks are done, so that the API can answer a client that waits for them."""
    m.set(checked_at=NOW)
    m.read_boots()
    return {}


def pre_live_migration(m: MigrationContext) -> Verdict:
    """Prepare the destination. The log keeps its reply, which the source receives."""
    found = hosts.prepare(m)
    if isinstance(found, protocol.Report) and found.state != protocol.WorkState.DONE:
        return Failed(f'Host {m.destination} could not prepare for the guest: {found.reason}')
    return hosts.done_with_data(found)


def rollback_live_migration_at_destination(m: MigrationContext) -> Verdict:
    """Remove what the checks and the preparation have left at the destination."""
    return _undo(m, m.destination, 'rollback_live_migration_at_destination')


# --- 5 live_migration ------------------------------------------------------------------------------------------------


def note_queued(m: MigrationContext) -> Mapping[str, Any]:
    """Record when the migration is queued, and in which boot of the source.

    From this commit on the guest may move at any moment, and only the hosts know whether it has moved.
    """
    m.set(queued_at=NOW)
    m.read_boots()
    # A stop cancels what its own boot has queued. For a command to a later boot it only requests an abort.
    return {'source_boot_id': m.boots.get(m.source)}


def live_migration(m: MigrationContext) -> Verdict:
    """Queue the guest at the source."""
    return hosts.queue(m)


def rollback_live_migration_at_source(m: MigrationContext) -> Verdict:
    """Restore the guest at the source."""
    return _undo(m, m.source, 'rollback_live_migration_at_source')


# --- 6 update_instance_host ------------------------------------------------------------------------------------------


def update_instance_host(m: MigrationContext) -> Verdict:
    """Set the instance's host to the destination, in the commit of the outcome."""
    m.writes.instance |= {'host': m.row.dest_compute, 'node': m.row.dest_node}
    return Done()


def status_after_pivot(m: MigrationContext) -> str:
    """Return the status after the pivot. In post-copy the guest's memory is still being copied."""
    return Status.RUNNING_POST_COPY if settle.how_it_moved(m).post_copy else Status.POST_MIGRATING


# --- 7 the post steps, side by side ----------------------------------------------------------------------------------


def wait_for_job(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Delay the post steps while the source still has a job, as in post-copy."""
    pause = settle.pause_for_job(m)
    if pause is not None:
        return pause
    m.read_boots()
    return {}


def post_live_migration_at_source(m: MigrationContext) -> Verdict:
    """Remove what is left of the guest at the source."""
    step = 'post_live_migration_at_source'
    then = _post(m, m.source, step)
    if isinstance(then, Done) and (report := m.replies.reports.get((m.source, step))) is not None:
        m.set(downtime=report.facts.downtime)
    return then


def post_live_migration_at_destination(m: MigrationContext) -> Verdict:
    """Finish the migration at the destination."""
    return _post(m, m.destination, 'post_live_migration_at_destination')


# --- 8, 9 the end ----------------------------------------------------------------------------------------------------


def complete(m: MigrationContext) -> Verdict:
    """End the migration, which frees the instance for the next task."""
    if m.row.abort_requested_at is not None:
        # A verdict has the status that the migration ends with.
        m.set(abort_status=Status.COMPLETED.value, abort_text='the guest had moved before the abort could be done')
    return Done()


# --- shared by several -----------------------------------------------------------------------------------------------


def _post(m: MigrationContext, host: str | None, step: str) -> Verdict:
    data = hosts.migrate_data(m, 'pre_live_migration')
    return hosts.retry(m, host, step, instance=m.guest, migrate_data=data)


def _undo(m: MigrationContext, host: str | None, step: str) -> Verdict:
    # Undos run one after the other, so the newest undo record belongs to this one. Two steps share an undo.
    record = next(record for record in reversed(m.step_log.of_attempt(m.attempt)) if record.direction == 'undo')
    data = base.from_primitive(hosts.newest_data(m))
    return hosts.retry(m, host, step, record, instance=m.guest, migrate_data=data)
