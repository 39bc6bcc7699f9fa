# SPDX-License-Identifier: Apache-2.0

"""The story of a live migration: the steps, each with its undo beside it, and below their bodies in the same order.

The table by which :func:`settle` decides is in :mod:`migrator.conductor.migration.settle`. What an operator may decide
is in :mod:`migrator.conductor.migration.abandon`.
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
    """Return the story. A new step is one line here, and its bodies below."""
    compensatable, pivot, retriable = Kind.COMPENSATABLE, Kind.PIVOT, Kind.RETRIABLE
    # A step reads: name and kind; what it intends and does; how that is undone.
    # fmt: off
    return Saga(
        # The books first: what is prepared at the destination is covered by an allocation there from the beginning.
        Step('move_allocation', compensatable, status=Status.PREPARING,
             intent=choose_destination, do=move_allocation,
             undo=return_allocation),
        # The checks only look; what the destination's leaves behind, the rollback there removes.
        Step('check_can_live_migrate_destination', compensatable,
             do=check_can_live_migrate_destination,
             undo=rollback_live_migration_at_destination),
        Step('check_can_live_migrate_source', compensatable,
             do=check_can_live_migrate_source),
        Step('pre_live_migration', compensatable,
             intent=may_prepare, do=pre_live_migration,
             undo=rollback_live_migration_at_destination),
        # The guest moves, and only both hosts together can say whether it has: settle asks them. The destination is
        # cleaned before the source is restored: a guest paused for cut-over resumes when nothing else can run it.
        Step('live_migration', pivot, status=Status.QUEUED,
             intent=may_move, do=live_migration,
             undo=rollback_live_migration_at_source, undo_after='pre_live_migration'),
        # From here on only forward; the outcome and the new host are one commit.
        Step('update_instance_host', retriable, status=has_moved,
             do=update_instance_host),
        (Step('post_live_migration_at_source', retriable, status=Status.POST_MIGRATING,
              intent=job_has_ended, do=post_live_migration_at_source),
         Step('post_live_migration_at_destination', retriable, status=Status.POST_MIGRATING,
              intent=job_has_ended, do=post_live_migration_at_destination)),
        # The source stays covered until nothing of the guest is left there.
        Step('release_source_allocation', retriable,
             intent=may_release, do=release_source_allocation),
        Step('complete', retriable, status=Status.COMPLETED,
             do=complete),
        settle=settle, abandon=abandon.abandon,
    )
    # fmt: on


# --- 1 move_allocation -----------------------------------------------------------------------------------------------


def choose_destination(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Find the next candidate; the intent fixes both allocations, and the generation that the move is bound to."""
    if m.instance is None:
        return Failed(f'Instance {m.row.instance_uuid} has been deleted.')
    pause = cleanups.run_at_source(m)
    if pause is not None:
        return pause
    tools = m.tools
    listened = tools.broker.unbroken_for() >= tools.options.service_down_time
    try:
        chosen = destinations.choose(tools.database, tools.placement, m.row, m.instance, m.tried(), listened)
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
    """One atomic POST: the migration takes the source's allocation, the instance the destination's."""
    verdict = allocations.move(m)
    m.will_call()
    return verdict


def return_allocation(m: MigrationContext) -> Verdict:
    """One atomic POST back; or one rewrite of the source, so that no move still on its way can succeed."""
    return allocations.give_back(m)


# --- 2, 3 the checks -------------------------------------------------------------------------------------------------


def check_can_live_migrate_destination(m: MigrationContext) -> Verdict:
    """Ask the destination; no answer counts as failing, since the next candidate may be better."""
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
    """Ask the source, with the destination's answer."""
    data = _migrate_data(m, 'check_can_live_migrate_destination')
    found = hosts.check(m, m.source, 'check_can_live_migrate_source', instance=m.instance, migrate_data=data)
    return _migrate_data_of(found) if isinstance(found, protocol.Report) else found


# --- 4 pre_live_migration --------------------------------------------------------------------------------------------


def may_prepare(m: MigrationContext) -> Mapping[str, Any]:
    """The checks are done: whoever waits for them may be answered."""
    m.will(checked_at=types.now())
    m.will_call()
    return {}


def pre_live_migration(m: MigrationContext) -> Verdict:
    """Prepare the destination; what it answers is frozen in the journal and sent to the source."""
    found = _prepare(m)
    if not isinstance(found, protocol.Report):
        return found
    if found.state != protocol.WorkState.DONE:
        return Failed(f'{m.destination} could not prepare for the guest: {found.reason}')
    return _migrate_data_of(found)


def _prepare(m: MigrationContext) -> protocol.Report | Failed | Parked:
    assert m.destination is not None
    record = m.record('pre_live_migration')
    assert record is not None
    data = _migrate_data(m, 'check_can_live_migrate_source')
    found = hosts.carry_out(m, m.destination, 'pre_live_migration', record, instance=m.instance, migrate_data=data)
    if isinstance(found, Parked) and m.is_down(m.destination):
        return Failed(f'{m.destination} is down.')
    return found


def rollback_live_migration_at_destination(m: MigrationContext) -> Verdict:
    """Remove what the checks and the preparation have left."""
    return _undo(m, m.destination, 'rollback_live_migration_at_destination', 'pre_live_migration')


# --- 5 live_migration ------------------------------------------------------------------------------------------------


def may_move(m: MigrationContext) -> Mapping[str, Any]:
    """From this commit on the guest may move at any moment, and only the hosts know whether it has."""
    m.will(queued_at=types.now())
    m.will_call()
    # A planned stop has the last word on what its own life was told; of a later one's it is but a wish.
    return {'source_boot_id': m.boots.get(m.source)}


def live_migration(m: MigrationContext) -> Verdict:
    """Have the source queue it."""
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
        # It has ended before it was first looked at: settle says how.
        m.wake_at = m.tools.threads.clock.monotonic()
        return Parked(f'{m.source} to be asked how it ended')
    return found


def rollback_live_migration_at_source(m: MigrationContext) -> Verdict:
    """Restore the guest at the source."""
    if m.lost:
        return Done({'skipped': 'there is no guest to restore'})
    if _cancelled_by_stop(m):
        return Done({'skipped': f'{m.source} had not begun'})
    return _undo(m, m.source, 'rollback_live_migration_at_source', 'live_migration')


def settle(m: MigrationContext) -> Settlement:
    """Ask both hosts where the guest is, and decide; never by a time-out, and never from the journal alone."""
    known = _without_asking(m)
    if known is not None:
        return known
    asked_again = False
    while True:
        source = _observe_source(m)
        if source.observed is settling.Observed.MISSING:
            m.waits_on = {m.source}
            return hosts.not_told(m, m.source)
        # The destination is asked after the source has answered: the guest may have moved between the two.
        destination = hosts.look_at(m, m.destination) if m.destination else settling.Host(settling.Observed.ABSENT)
        moved = destination.observed in (settling.Observed.RUNS, settling.Observed.BROKEN)
        if source.observed is settling.Observed.ABSENT and not moved and m.is_deleted():
            # Not lost, but deleted with its instance: there is nothing to move any more, and nothing to restore.
            source = settling.Host(settling.Observed.RETURNED)
        names = (m.source, m.destination or '')
        against, late = m.against is not None, _would_have_ended(m)
        decision = settling.decide(source, destination, _column(m), against, asked_again, names, late)
        if decision.act is settling.Act.ASK:
            asked_again = True
            continue
        turns = decision.act in (settling.Act.BACK, settling.Act.ABORT, settling.Act.ERROR)
        if turns and not m.settling:
            # Nothing is decided against what was sent before it is refused everywhere: raise the epoch, ask anew.
            m.raise_epoch()
            asked_again = False
            continue
        return _settled(m, decision, source, destination)


def _without_asking(m: MigrationContext) -> Settlement | None:
    """Return what needs no question: nothing was ever sent, or the source's events tell of a job on its way."""
    sent = m.record('live_migration') is not None
    if not sent:
        # The row may name a destination that was only wished for; the intent says whether it was chosen.
        chosen = m.record('move_allocation')
        asked = chosen is not None and chosen.input
        return Back(m.against) if m.against is not None and not asked else None
    report = m.reports.get((m.source, 'live_migration'))
    if m.against is not None or report is None or report.epoch < m.row.epoch or m.settling:
        return None
    if report.state != protocol.WorkState.RUNNING or any(m.is_down(host) for host in m.hosts):
        return None
    if m.unresponsive_for(m.source) >= m.tools.options.service_down_time:
        return None
    seen = m.seen.get(m.source)
    if seen is not None and hosts.observed_in(m, seen).observed not in _ON_ITS_WAY:
        # Events tell of a job's begin and end, and not of post-copy.
        return None
    started = bool((report.result or {}).get('started'))
    if started and m.row.status == Status.QUEUED:
        _note_running(m)
    if started:
        _force_complete(m)
    m.waits_on = {m.source}
    if started:
        return Parked(f'{m.source} to copy the guest', patient=True, told=True)
    if seen is not None and seen.entry == protocol.Entry.STARTED:
        # Its turn has come, and the driver may hang.
        return Parked(f'{m.source} to begin the move')
    return Parked(f'its turn in the queue of {m.source}', patient=True, told=True)


#: What the source says as long as nothing has happened that its events do not tell.
_ON_ITS_WAY = frozenset({settling.Observed.WAITS, settling.Observed.STARTED, settling.Observed.JOB})


def _observe_source(m: MigrationContext) -> settling.Host:
    """Return the source's word: what its planned stop has left, its final event if it says completed, else its answer
    to a question."""
    if _cancelled_by_stop(m):
        # Its queue was closed before it said so: nothing that is still on its way to that boot is taken, and to none
        # after it is sent what was wished aborted. There may be nobody to ask.
        return settling.Host(settling.Observed.RETURNED)
    report = m.reports.get((m.source, 'live_migration'))
    if report is not None and report.epoch >= m.row.epoch and report.state == protocol.WorkState.DONE:
        if (report.result or {}).get('verdict') == 'completed':
            # The driver's promise: the source's copy can never run again.
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
    """Whether a copy takes longer than a source that lives would let it take, by default."""
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
    reason = m.against or _verdict_of(m) or decision.reason
    if act is settling.Act.GO_ON:
        return GoOn() if m.record('live_migration') is None else _queue_again(m)
    if act is settling.Act.FORWARD:
        job = source.observed in (settling.Observed.JOB, settling.Observed.CUTOVER_JOB)
        return Forward({'verdict': source.verdict or 'completed', 'post_copy': destination.post_copy, 'job': job})
    if act is settling.Act.BACK:
        if m.row.abort_requested_at is not None and source.verdict == 'failed':
            # The driver's word decides what an abort has come to.
            failure = _verdict_of(m) or decision.reason
            m.will(failure=failure, abort_verdict=f'{Status.FAILED}: {failure}')
        return Back(reason)
    if act is settling.Act.ERROR:
        if m.record('live_migration') is None:
            # It may never have been there.
            where = f'{m.source} has no guest {m.row.instance_uuid}, and it was not to be moved yet'
            return Lost(f'{where}: look whether another host has it, and whether the books name the right one.')
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
    # Whoever has not given an answer that counts is asked again; otherwise the source is listened to.
    m.waits_on = {m.source}
    if m.destination and destination.observed is settling.Observed.MISSING:
        m.waits_on = set(m.hosts)
        found = hosts.not_told(m, m.destination)
        if isinstance(found, Stuck):
            return found
    # Of both that is only waited for where a copy may go on.
    alone = source.observed is settling.Observed.DOWN and destination.observed is settling.Observed.WAITING
    if alone:
        m.note_silence(m.source, m.tools.hosts.silent_for(m.source), answers=False, helps=_COPIES)
    # To complete by force pauses a guest long before it moves.
    forced = source.observed is settling.Observed.CUTOVER_JOB and m.row.force_complete_requested_at is not None
    goes_on = (source.observed in _MAY_LAST or forced or alone) and m.outcome is None and m.against is None
    why = f'the move to get on ({decision.reason})'
    whom = (m.destination,) if m.destination and destination.observed is settling.Observed.MISSING else None
    return Parked(why, patient=goes_on, told=goes_on, whom=whom)


#: How long a copy may take by the default of live_migration_completion_timeout.
SECONDS_PER_GIB = 800
#: What the source says in its queue and in its copy, which may last.
_MAY_LAST = frozenset({settling.Observed.WAITS, settling.Observed.JOB})
#: What helps a copy under a compute service that has been killed.
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
            return Failed(f'{m.destination} could not prepare for the guest again: {found.reason}')
        m.wake_at = m.tools.threads.clock.monotonic()
        return Parked('to look at both hosts again')
    return found


def _queue_again(m: MigrationContext) -> Settlement:
    m.reports.pop((m.source, 'live_migration'), None)
    verdict = live_migration(m)
    report = m.reports.get((m.source, 'live_migration'))
    if report is not None and (report.result or {}).get('gone'):
        return Stuck(f'{m.source} no longer has the guest, and {m.destination} only waits for it: look who has it.')
    turn = Parked(f'its turn in the queue of {m.source}', patient=True, told=True)
    return verdict if not isinstance(verdict, Done) else turn


def _force_complete(m: MigrationContext) -> None:
    """Pass the wish on that the guest is to move now; told twice, it is done once."""
    request = 'live_migration_force_complete'
    if m.row.force_complete_requested_at is not None:
        hosts.tell(m, m.ledger.of(request, m.source), request, instance=m.instance)


def _abort(m: MigrationContext, runs: bool) -> Settlement:
    """Have it cancelled in the queue, or aborted by the driver; told twice, it is done once."""
    request = 'live_migration_abort'
    if runs and m.row.status == Status.QUEUED:
        # What may be asked of a host depends on it: one that cannot let go of what waits can abort what runs.
        _note_running(m)
    pause = Parked(f'{m.source} to abort the job')
    try:
        # What was told while there was no job yet is no longer known for certain to count for the job.
        hosts.tell(m, m.ledger.of(f'{request} {m.row.status}', m.source), request, instance=m.guest, migration=m.row)
    except exception.ServiceTooOld as error:
        pause = Parked(f'it to run, to be aborted then: {error}', patient=True)
    m.waits_on = {m.source}
    return pause


# --- 6 update_instance_host ------------------------------------------------------------------------------------------


def update_instance_host(m: MigrationContext) -> Verdict:
    """The guest is the destination's from now on, whatever the clean-up takes; committed with the outcome."""
    m.change_instance(host=m.row.dest_compute, node=m.row.dest_node)
    return Done()


def has_moved(m: MigrationContext) -> str:
    """Return the status of a guest that the destination runs: in post-copy its memory still follows."""
    return Status.RUNNING_POST_COPY if m.result('live_migration').get('post_copy') else Status.POST_MIGRATING


# --- 7 the post steps, side by side ----------------------------------------------------------------------------------


def job_has_ended(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Hold the post steps back while the source still has a job, as in post-copy."""
    settled = m.result('live_migration')
    if settled.get('post_copy') or settled.get('job'):
        word = hosts.look_at(m, m.source)
        if word.observed is settling.Observed.MISSING:
            m.waits_on = {m.source}
            return hosts.not_told(m, m.source)
        if word.observed in (settling.Observed.JOB, settling.Observed.CUTOVER_JOB):
            m.waits_on = {m.source}
            return Parked(f'the last pages to leave {m.source}')
        broken = word.observed is settling.Observed.BROKEN
        if word.observed is settling.Observed.DOWN and m.destination:
            # What the source still has to send the destination lacks.
            there = hosts.look_at(m, m.destination)
            if there.observed is settling.Observed.MISSING:
                m.waits_on = {m.destination}
                return hosts.not_told(m, m.destination)
            broken = there.observed is settling.Observed.BROKEN
            if there.post_copy and not broken:
                m.waits_on = set(m.hosts)
                return Parked(f'the last pages to leave {m.source}, which is down', whom=(m.source,))
        if broken:
            return Stuck(f'Post-copy broke off: neither {m.source} nor {m.destination} has all of the memory.')
    m.will_call()
    return {}


def post_live_migration_at_source(m: MigrationContext) -> Verdict:
    """Remove what is left of the guest at the source."""
    return _post(m, m.source, 'post_live_migration_at_source')


def post_live_migration_at_destination(m: MigrationContext) -> Verdict:
    """Make the guest the destination's own."""
    return _post(m, m.destination, 'post_live_migration_at_destination')


# --- 8, 9 the end ----------------------------------------------------------------------------------------------------


def may_release(_m: MigrationContext) -> Mapping[str, Any]:
    """Fix nothing: the step stands behind both post steps, so nothing is left at the source, or a debt says so."""
    return {}


def release_source_allocation(m: MigrationContext) -> Verdict:
    """The source's allocation goes, by generation."""
    return allocations.release(m)


def complete(m: MigrationContext) -> Verdict:
    """The end, with the instance free for the next task."""
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
    # What is undone is undone one after the other, so the newest record of an undo is this one's; two steps share one.
    record = next(record for record in reversed(m.journal.of_attempt(m.attempt)) if record.direction == 'undo')
    assert host is not None
    result = m.result(undone) or m.result('check_can_live_migrate_source')
    data = base.from_primitive(result['migrate_data']) if result.get('migrate_data') else None
    return hosts.retry(m, host, step, record, instance=m.guest, migrate_data=data)


def _migrate_data_of(report: protocol.Report) -> Done:
    return Done({'migrate_data': base.to_primitive(report.result)})


def _migrate_data(m: MigrationContext, step: str) -> Any:
    return base.from_primitive(m.result(step)['migrate_data'])
