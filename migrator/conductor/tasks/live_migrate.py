# SPDX-License-Identifier: Apache-2.0

"""The saga of a live migration: the table of steps, each with its undo, and their functions in the same order.

The table by which :func:`settle` decides is in :mod:`migrator.conductor.migration.settle`. An operator's decision is
carried out in :mod:`migrator.conductor.migration.abandon`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrator import exception
from migrator.conductor import cleanups
from migrator.conductor.migration import abandon, allocations, destinations, hosts
from migrator.conductor.migration import settle as settling
from migrator.conductor.migration.context import MigrationContext, Status
from migrator.db import types
from migrator.objects import CANCELLED_BY_STOP, base, protocol
from migrator.saga.saga import Saga
from migrator.saga.step import Back, Done, Failed, Forward, GoOn, Kind, Lost, Parked, Settlement, Step, Stuck, Verdict


def story() -> Saga[MigrationContext]:
    """Return the saga of a live migration.

    A new step is one entry here, and its functions below.
    """
    compensatable, pivot, retriable = Kind.COMPENSATABLE, Kind.PIVOT, Kind.RETRIABLE
    # Each step gives its name and kind, then its intent and do, then its undo.
    # fmt: off
    return Saga(
        # The allocation moves first, so that it covers from the beginning what is prepared at the destination.
        Step('move_allocation', compensatable, status=Status.PREPARING,
             intent=choose_destination, do=move_allocation,
             undo=return_allocation),
        # The checks change nothing, except that the destination may keep some data, which the rollback removes.
        Step('check_can_live_migrate_destination', compensatable,
             do=check_can_live_migrate_destination,
             undo=rollback_live_migration_at_destination),
        Step('check_can_live_migrate_source', compensatable,
             do=check_can_live_migrate_source),
        Step('pre_live_migration', compensatable,
             intent=may_prepare, do=pre_live_migration,
             undo=rollback_live_migration_at_destination),
        # Only both hosts together can report whether the guest has moved, so settle polls them. The destination is
        # cleaned before the source is restored, so that a guest paused for the switchover resumes on one host only.
        Step('live_migration', pivot, status=Status.QUEUED,
             intent=may_move, do=live_migration,
             undo=rollback_live_migration_at_source, undo_after='pre_live_migration'),
        # The outcome and the new host are one commit. From here on nothing is undone.
        Step('update_instance_host', retriable, status=has_moved,
             do=update_instance_host),
        (Step('post_live_migration_at_source', retriable, status=Status.POST_MIGRATING,
              intent=job_has_ended, do=post_live_migration_at_source),
         Step('post_live_migration_at_destination', retriable, status=Status.POST_MIGRATING,
              intent=job_has_ended, do=post_live_migration_at_destination)),
        # The allocation covers the source until nothing of the guest is left there.
        Step('release_source_allocation', retriable,
             intent=may_release, do=release_source_allocation),
        Step('complete', retriable, status=Status.COMPLETED,
             do=complete),
        settle=settle, abandon=abandon.abandon,
    )
    # fmt: on


# --- 1 move_allocation -----------------------------------------------------------------------------------------------


def choose_destination(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Choose the next candidate.

    The intent fixes both allocations, and the generation of the instance's allocation.
    """
    if m.instance is None:
        return Failed(f'Instance {m.row.instance_uuid} was deleted.')
    pause = cleanups.run_at_source(m)
    if pause is not None:
        return pause
    tools = m.tools
    reachable = tools.broker.unbroken_for() >= tools.options.service_down_time
    try:
        chosen = destinations.choose(tools.database, tools.placement, m.row, m.instance, m.tried(), reachable)
    except (exception.PlacementUnreachable, exception.PlacementConflict) as error:
        m.note_waiting(str(error))
        return Parked(f'Placement: {error}')
    except (exception.Invalid, exception.NotFound, exception.PlacementRefused) as error:
        return Failed(str(error))
    m.will(dest_compute=chosen.host, dest_node=chosen.node, dest_host=chosen.host)
    return {
        'host': chosen.host,
        'node': chosen.node,
        'source': chosen.source_allocation,
        'destination': chosen.allocation,
        'instance_generation': chosen.instance_generation,
    }


def move_allocation(m: MigrationContext) -> Verdict:
    """Give the source's allocation to the migration and the destination's to the instance, in one write."""
    verdict = allocations.move(m)
    m.will_call()
    return verdict


def return_allocation(m: MigrationContext) -> Verdict:
    """Return the source's allocation to the instance, or rewrite it so that a late move cannot succeed."""
    return allocations.give_back(m)


# --- 2, 3 the checks -------------------------------------------------------------------------------------------------


def check_can_live_migrate_destination(m: MigrationContext) -> Verdict:
    """Run the check at the destination. Without a reply it fails, since the next candidate may be better."""
    assert m.destination is not None
    found = hosts.check(
        m,
        m.destination,
        'check_can_live_migrate_destination',
        instance=m.instance,
        block_migration=m.row.block_migration,
        disk_over_commit=m.row.disk_over_commit,
    )
    return _migrate_data_of(found) if isinstance(found, protocol.Report) else found


def check_can_live_migrate_source(m: MigrationContext) -> Verdict:
    """Run the check at the source, with the destination's reply."""
    data = _migrate_data(m, 'check_can_live_migrate_destination')
    found = hosts.check(m, m.source, 'check_can_live_migrate_source', instance=m.instance, migrate_data=data)
    return _migrate_data_of(found) if isinstance(found, protocol.Report) else found


# --- 4 pre_live_migration --------------------------------------------------------------------------------------------


def may_prepare(m: MigrationContext) -> Mapping[str, Any]:
    """Record that the checks are done, so that the API can answer a client that waits for them."""
    m.will(checked_at=types.now())
    m.will_call()
    return {}


def pre_live_migration(m: MigrationContext) -> Verdict:
    """Prepare the destination. The journal keeps its reply, which the source receives."""
    found = _prepare(m)
    if not isinstance(found, protocol.Report):
        return found
    if found.state != protocol.WorkState.DONE:
        return Failed(f'Host {m.destination} could not prepare for the guest: {found.reason}')
    return _migrate_data_of(found)


def _prepare(m: MigrationContext) -> protocol.Report | Failed | Parked:
    assert m.destination is not None
    record = m.record('pre_live_migration')
    assert record is not None
    data = _migrate_data(m, 'check_can_live_migrate_source')
    found = hosts.carry_out(m, m.destination, 'pre_live_migration', record, instance=m.instance, migrate_data=data)
    if isinstance(found, Parked) and m.is_down(m.destination):
        return Failed(f'Host {m.destination} is down.')
    return found


def rollback_live_migration_at_destination(m: MigrationContext) -> Verdict:
    """Remove what the checks and the preparation have left at the destination."""
    return _undo(m, m.destination, 'rollback_live_migration_at_destination', 'pre_live_migration')


# --- 5 live_migration ------------------------------------------------------------------------------------------------


def may_move(m: MigrationContext) -> Mapping[str, Any]:
    """Record when the migration is queued, and in which boot of the source.

    From this commit on the guest may move at any moment, and only the hosts know whether it has moved.
    """
    m.will(queued_at=types.now())
    m.will_call()
    # A planned stop is authoritative for commands received by the same boot. For a later boot it only requests an
    # abort.
    return {'source_boot_id': m.boots.get(m.source)}


def live_migration(m: MigrationContext) -> Verdict:
    """Queue the guest at the source."""
    record = m.record('live_migration')
    assert record is not None
    found = hosts.carry_out(
        m,
        m.source,
        'live_migration',
        record,
        instance=m.instance,
        destination=m.destination,
        migrate_data=_migrate_data(m, 'pre_live_migration'),
    )
    if isinstance(found, protocol.Report):
        # The job has ended before the first poll. Settling finds out how.
        m.wake_at = m.tools.threads.clock.monotonic()
        return Parked(f'a poll of {m.source} for how the job ended')
    return found


def rollback_live_migration_at_source(m: MigrationContext) -> Verdict:
    """Restore the guest at the source."""
    if m.lost:
        return Done({'skipped': 'there is no guest to restore'})
    if _cancelled_by_stop(m):
        return Done({'skipped': f'{m.source} had not begun'})
    return _undo(m, m.source, 'rollback_live_migration_at_source', 'live_migration')


def settle(m: MigrationContext) -> Settlement:
    """Poll both hosts for the guest, and decide; never by a time-out, and never from the journal alone."""
    known = _settle_without_poll(m)
    if known is not None:
        return known
    asked_again = False
    while True:
        source = _observe_source(m)
        if source.observed is settling.Observed.MISSING:
            m.waits_on = {m.source}
            return hosts.wait_for_observation(m, m.source)
        # The destination is polled after the source has answered, since the guest may move between the two polls.
        destination = hosts.look_at(m, m.destination) if m.destination else settling.Host(settling.Observed.ABSENT)
        moved = destination.observed in (settling.Observed.RUNS, settling.Observed.BROKEN)
        if source.observed is settling.Observed.ABSENT and not moved and m.is_deleted():
            # The guest is not lost, but was deleted with its instance. There is nothing to move or to restore.
            source = settling.Host(settling.Observed.RETURNED)
        names = (m.source, m.destination or '')
        abort, late = m.abort_reason is not None, _would_have_ended(m)
        decision = settling.decide(source, destination, _column(m), abort, asked_again, names, late)
        if decision.act is settling.Act.ASK:
            asked_again = True
            continue
        undoes = decision.act in (settling.Act.BACK, settling.Act.ABORT, settling.Act.ERROR)
        if undoes and not m.settling:
            # A sent step is undone only once every host refuses it: raise the epoch, and poll again.
            m.raise_epoch()
            asked_again = False
            continue
        return _settled(m, decision, source, destination)


def _settle_without_poll(m: MigrationContext) -> Settlement | None:
    """Return the settlement if it needs no poll, or None.

    It needs none if no step was ever sent, or if the source's events report a job in progress.
    """
    sent = m.record('live_migration') is not None
    if not sent:
        # The row may name a destination that was only requested. The intent shows whether it was chosen.
        chosen = m.record('move_allocation')
        asked = chosen is not None and chosen.input
        return Back(m.abort_reason) if m.abort_reason is not None and not asked else None
    report = m.reports.get((m.source, 'live_migration'))
    if m.abort_reason is not None or report is None or report.epoch < m.row.epoch or m.settling:
        return None
    if report.state != protocol.WorkState.RUNNING or any(m.is_down(host) for host in m.hosts):
        return None
    if m.unresponsive_for(m.source) >= m.tools.options.service_down_time:
        return None
    seen = m.seen.get(m.source)
    if seen is not None and hosts.observed_in(m, seen).observed not in _ON_ITS_WAY:
        # Events report the begin and the end of a job, but not post-copy.
        return None
    started = bool((report.result or {}).get('started'))
    if started and m.row.status == Status.QUEUED:
        _note_running(m)
    if started:
        _force_complete(m)
    m.waits_on = {m.source}
    if started:
        return Parked(f'{m.source} to copy the guest', patient=True, in_status=True)
    if seen is not None and seen.entry == protocol.Entry.STARTED:
        # The migration has its slot, and the driver may hang.
        return Parked(f'{m.source} to begin the copy')
    return Parked(f'a slot in the queue of {m.source}', patient=True, in_status=True)


#: The observations of the source under which its events report every further change.
_ON_ITS_WAY = frozenset({settling.Observed.WAITS, settling.Observed.STARTED, settling.Observed.JOB})


def _observe_source(m: MigrationContext) -> settling.Host:
    """Return the observation of the source.

    It comes from the source's planned stop, or from its final event if that reports ``completed``, or else from a poll.
    """
    if _cancelled_by_stop(m):
        # The source closed its queue before it reported the stop. That boot accepts no late command, and no later boot
        # is sent a migration with an abort request. The source may be unreachable for ever.
        return settling.Host(settling.Observed.RETURNED)
    report = m.reports.get((m.source, 'live_migration'))
    if report is not None and report.epoch >= m.row.epoch and report.state == protocol.WorkState.DONE:
        if (report.result or {}).get('verdict') == 'completed':
            # The driver guarantees that the source's copy can never run again.
            return settling.Host(settling.Observed.CUTOVER, verdict='completed')
    return hosts.look_at(m, m.source)


def _cancelled_by_stop(m: MigrationContext) -> bool:
    return m.row.abort_verdict == CANCELLED_BY_STOP


def _note_running(m: MigrationContext) -> None:
    m.will(status=Status.RUNNING.value, running_at=types.now())
    m.commit()


def _column(m: MigrationContext) -> settling.Column:
    if m.record('live_migration') is None:
        return settling.Column.NOT_SENT
    return settling.Column.QUEUED if m.row.status == Status.QUEUED else settling.Column.RUNNING


def _would_have_ended(m: MigrationContext) -> bool:
    """Return whether the copy has lasted longer than the default time-out of a running source allows."""
    began, flavor = m.row.running_at, m.guest.flavor
    if began is None:
        return False
    disks = flavor.root_gb + flavor.ephemeral_gb if _migrate_data(m, 'pre_live_migration').block_migration else 0
    longest = SECONDS_PER_GIB * (max(2.0, flavor.memory_mb / 1024) + disks)
    return bool((m.now() - began).total_seconds() >= longest)


def _settled(
    m: MigrationContext, decision: settling.Decision, source: settling.Host, destination: settling.Host
) -> Settlement:
    act = decision.act
    reason = m.abort_reason or _verdict_of(m) or decision.reason
    if act is settling.Act.GO_ON:
        return GoOn() if m.record('live_migration') is None else _queue_again(m)
    if act is settling.Act.FORWARD:
        job = source.observed in (settling.Observed.JOB, settling.Observed.CUTOVER_JOB)
        return Forward({'verdict': source.verdict or 'completed', 'post_copy': destination.post_copy, 'job': job})
    if act is settling.Act.BACK:
        if m.row.abort_requested_at is not None and source.verdict == 'failed':
            # The driver's verdict decides the result of an abort.
            failure = _verdict_of(m) or decision.reason
            m.will(failure=failure, abort_verdict=f'{Status.FAILED}: {failure}')
        return Back(reason)
    if act is settling.Act.ERROR:
        if m.record('live_migration') is None:
            # The guest may never have been there.
            where = f'Host {m.source} has no guest {m.row.instance_uuid}, and its migration had not begun'
            return Lost(f'{where}: look whether another host has it, and whether the allocations name that host.')
        return Lost(f'The guest is lost. {decision.reason}')
    if act is settling.Act.STUCK:
        return Stuck(decision.reason)
    if act is settling.Act.PREPARE:
        return _prepare_again(m)
    if act is settling.Act.QUEUE:
        return _queue_again(m)
    if act is settling.Act.ABORT:
        return _abort(m, runs=source.observed in (settling.Observed.JOB, settling.Observed.CUTOVER_JOB))
    if act is settling.Act.SEE_RUNNING:
        if m.row.status == Status.QUEUED:
            _note_running(m)
        _force_complete(m)
    # A host without a valid answer is polled again. Otherwise the migration waits for an event of the source.
    m.waits_on = {m.source}
    if m.destination and destination.observed is settling.Observed.MISSING:
        m.waits_on = set(m.hosts)
        found = hosts.wait_for_observation(m, m.destination)
        if isinstance(found, Stuck):
            return found
    # The migration waits with the source down only while its hypervisor may still copy.
    alone = source.observed is settling.Observed.DOWN and destination.observed is settling.Observed.WAITING
    if alone:
        m.note_silence(m.source, m.tools.hosts.silent_for(m.source), answers=False, helps=_COPIES)
    # Force completion pauses a guest long before it moves.
    forced = source.observed is settling.Observed.CUTOVER_JOB and m.row.force_complete_requested_at is not None
    goes_on = (source.observed in _MAY_LAST or forced or alone) and m.outcome is None and m.abort_reason is None
    why = f'progress of the migration ({decision.reason})'
    waited = (m.destination,) if m.destination and destination.observed is settling.Observed.MISSING else None
    return Parked(why, patient=goes_on, in_status=goes_on, hosts=waited)


#: The default of live_migration_completion_timeout.
SECONDS_PER_GIB = 800
#: The observations of the source under which a wait may last any time: in the queue, and during the copy.
_MAY_LAST = frozenset({settling.Observed.WAITS, settling.Observed.JOB})
#: What an operator can do about a copy whose compute service was killed.
_COPIES = (
    ', and its hypervisor may go on copying: start its compute service; or, once the host is fenced, declare it forced '
    'down'
)


def _verdict_of(m: MigrationContext) -> str | None:
    report = m.reports.get((m.source, 'live_migration'))
    if report is None or report.state == protocol.WorkState.RUNNING:
        return None
    return report.reason or f'The hypervisor of {m.source} ended the job: {(report.result or {}).get("verdict")}.'


def _prepare_again(m: MigrationContext) -> Settlement:
    assert m.destination is not None
    m.reports.pop((m.destination, 'pre_live_migration'), None)
    found = _prepare(m)
    if isinstance(found, protocol.Report):
        if found.state != protocol.WorkState.DONE:
            return Failed(f'Host {m.destination} could not prepare for the guest again: {found.reason}')
        m.wake_at = m.tools.threads.clock.monotonic()
        return Parked('another poll of both hosts')
    return found


def _queue_again(m: MigrationContext) -> Settlement:
    m.reports.pop((m.source, 'live_migration'), None)
    verdict = live_migration(m)
    report = m.reports.get((m.source, 'live_migration'))
    if report is not None and (report.result or {}).get('gone'):
        return Stuck(
            f'Source {m.source} no longer has the guest, and destination {m.destination} only waits for it: look which '
            'host has it.'
        )
    slot = Parked(f'a slot in the queue of {m.source}', patient=True, in_status=True)
    return verdict if not isinstance(verdict, Done) else slot


def _force_complete(m: MigrationContext) -> None:
    """Send a force-complete request to the source, which carries it out once, however often it receives it."""
    request = 'live_migration_force_complete'
    if m.row.force_complete_requested_at is not None:
        hosts.send_request(m, m.ledger.of(request, m.source), request, instance=m.instance)


def _abort(m: MigrationContext, runs: bool) -> Settlement:
    """Cancel the migration in the source's queue, or abort its job. The source carries out a repeated request once."""
    request = 'live_migration_abort'
    if runs and m.row.status == Status.QUEUED:
        # An old host cannot cancel a queued migration, but can abort a running one.
        _note_running(m)
    pause = Parked(f'{m.source} to abort the job')
    # The wait includes the status, so that a request sent while queued is sent again for the job.
    wait = m.ledger.of(f'{request} {m.row.status}', m.source)
    try:
        hosts.send_request(m, wait, request, instance=m.guest, migration=m.row)
    except exception.ServiceTooOld as error:
        pause = Parked(f'the copy to begin, since only then it can be aborted: {error}', patient=True)
    m.waits_on = {m.source}
    return pause


# --- 6 update_instance_host ------------------------------------------------------------------------------------------


def update_instance_host(m: MigrationContext) -> Verdict:
    """Set the instance's host to the destination, in the commit of the outcome."""
    m.change_instance(host=m.row.dest_compute, node=m.row.dest_node)
    return Done()


def has_moved(m: MigrationContext) -> str:
    """Return the status after the pivot. In post-copy the guest's memory is still being copied."""
    return Status.RUNNING_POST_COPY if m.result('live_migration').get('post_copy') else Status.POST_MIGRATING


# --- 7 the post steps, side by side ----------------------------------------------------------------------------------


def job_has_ended(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Delay the post steps while the source still has a job, as in post-copy."""
    settled = m.result('live_migration')
    if settled.get('post_copy') or settled.get('job'):
        source = hosts.look_at(m, m.source)
        if source.observed is settling.Observed.MISSING:
            m.waits_on = {m.source}
            return hosts.wait_for_observation(m, m.source)
        if source.observed in (settling.Observed.JOB, settling.Observed.CUTOVER_JOB):
            m.waits_on = {m.source}
            return Parked(f'the last pages to leave {m.source}')
        broken = source.observed is settling.Observed.BROKEN
        if source.observed is settling.Observed.DOWN and m.destination:
            # The destination lacks the pages that the source still has to send.
            destination = hosts.look_at(m, m.destination)
            if destination.observed is settling.Observed.MISSING:
                m.waits_on = {m.destination}
                return hosts.wait_for_observation(m, m.destination)
            broken = destination.observed is settling.Observed.BROKEN
            if destination.post_copy and not broken:
                m.waits_on = set(m.hosts)
                return Parked(f'the last pages to leave {m.source}, which is down', hosts=(m.source,))
        if broken:
            return Stuck(f'Post-copy broke off: neither {m.source} nor {m.destination} has all of the memory.')
    m.will_call()
    return {}


def post_live_migration_at_source(m: MigrationContext) -> Verdict:
    """Remove what is left of the guest at the source."""
    return _post(m, m.source, 'post_live_migration_at_source')


def post_live_migration_at_destination(m: MigrationContext) -> Verdict:
    """Finish the migration at the destination."""
    return _post(m, m.destination, 'post_live_migration_at_destination')


# --- 8, 9 the end ----------------------------------------------------------------------------------------------------


def may_release(_m: MigrationContext) -> Mapping[str, Any]:
    """Return an empty intent.

    Both post steps are done before, so nothing is left at the source except for a deferred cleanup.
    """
    return {}


def release_source_allocation(m: MigrationContext) -> Verdict:
    """Remove the migration's allocation at the source, guarded by its generation."""
    return allocations.release(m)


def complete(m: MigrationContext) -> Verdict:
    """End the migration, which frees the instance for the next task."""
    verdict = 'completed: the guest had moved before the abort could be done' if m.row.abort_requested_at else None
    if verdict is not None:
        m.will(abort_verdict=verdict)
    return Done()


# --- shared by several -----------------------------------------------------------------------------------------------


def _post(m: MigrationContext, host: str | None, step: str) -> Verdict:
    record = m.record(step)
    assert host is not None
    assert record is not None
    data = _migrate_data(m, 'pre_live_migration')
    return hosts.retry(m, host, step, record, instance=m.guest, migrate_data=data)


def _undo(m: MigrationContext, host: str | None, step: str, undone: str) -> Verdict:
    # Undos run one after the other, so the newest undo record belongs to this one. Two steps share an undo.
    record = next(record for record in reversed(m.journal.of_attempt(m.attempt)) if record.direction == 'undo')
    assert host is not None
    result = m.result(undone) or m.result('check_can_live_migrate_source')
    data = base.from_primitive(result['migrate_data']) if result.get('migrate_data') else None
    return hosts.retry(m, host, step, record, instance=m.guest, migrate_data=data)


def _migrate_data_of(report: protocol.Report) -> Done:
    return Done({'migrate_data': base.to_primitive(report.result)})


def _migrate_data(m: MigrationContext, step: str) -> Any:
    return base.from_primitive(m.result(step)['migrate_data'])
