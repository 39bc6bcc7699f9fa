# SPDX-License-Identifier: Apache-2.0

"""Settling: where the guest is, and what comes next.

It is decided by polling both hosts and reading the table in :mod:`migrator.conductor.migration.settle_table`; never by
a time-out, and never from the log alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

from migrator import exception
from migrator.conductor.guests import lists
from migrator.conductor.migration import destinations, elsewhere, hosts, settle_table, waiting
from migrator.conductor.migration.context import NOW, MigrationContext, Status
from migrator.conductor.migration.settle_table import Act, Column, Decision, Host, Observed
from migrator.objects import base, protocol, remedies
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga.saga import Back, Failed, Forward, GoOn, Lost, Parked, Settlement, Stuck

#: The default of live_migration_completion_timeout.
SECONDS_PER_GIB = 800
#: The observations of the source under which its events report every further change.
_ON_ITS_WAY = frozenset({Observed.WAITS, Observed.STARTED, Observed.JOB})
#: The observations of the source under which a wait may last any time: in the queue, and during the copy.
_MAY_LAST = frozenset({Observed.WAITS, Observed.JOB})


@dataclasses.dataclass(frozen=True)
class Moved:
    """How the guest has moved, as the result of ``live_migration`` stores it.

    :ivar verdict: the driver's verdict.
    :ivar post_copy: whether it has moved by post-copy, so that memory may still be on its way.
    :ivar job: whether the source still had the job when the outcome was decided.
    """

    verdict: str
    post_copy: bool = False
    job: bool = False


def how_it_moved(m: MigrationContext) -> Moved:
    """Return how the guest has moved; only after the outcome forward."""
    record = m.record('live_migration')
    return base.of_stored(Moved, dict(record.result or {}) if record is not None else {})


def settle(m: MigrationContext) -> Settlement:
    """Poll both hosts for the guest, and decide."""
    known = _settle_without_poll(m)
    if known is not None:
        return known
    asked_again = False
    while True:
        source = observe_source(m)
        if source.observed is Observed.MISSING:
            return hosts.wait_for_observation(m, m.source)
        # The destination is polled after the source has answered, since the guest may move between the two polls.
        destination = hosts.poll(m, m.destination) if m.destination else Host(Observed.ABSENT)
        moved = destination.observed in (Observed.RUNS, Observed.BROKEN)
        if source.observed is Observed.ABSENT and not moved and m.is_deleted():
            # The guest is not lost, but was deleted with its instance. There is nothing to move or to restore.
            source = Host(Observed.RETURNED)
        names = (m.source, m.destination or '')
        abort, late = m.abort_reason is not None, _would_have_ended(m)
        decision = settle_table.decide(source, destination, _column(m), abort, asked_again, names, late)
        if decision.act is Act.OTHER_DECIDES:
            asked_again = True
            continue
        if decision.act in (Act.BACK, Act.ABORT, Act.ERROR) and not m.replies.settling:
            # A sent step is undone only once every host refuses it: raise the epoch, and poll again.
            m.raise_epoch()
            asked_again = False
            continue
        return _ACTS.get(decision.act, _wait)(m, decision, source, destination)


def _settle_without_poll(m: MigrationContext) -> Settlement | None:
    """Return the settlement if it needs no poll, or None.

    It needs none if no step was sent before an abort, or if the source's events report that the migration is in its
    queue or has a job.
    """
    if m.record('live_migration') is None:
        # The row may name a destination that was only requested. The intent shows whether it was chosen.
        chosen = destinations.chosen(m.step_log, m.attempt)
        return Back(m.abort_reason) if m.abort_reason is not None and chosen is None else None
    report = m.replies.reports.get((m.source, 'live_migration'))
    if m.abort_reason is not None or report is None or report.epoch < m.row.epoch or m.replies.settling:
        return None
    if report.state != protocol.WorkState.RUNNING or any(m.tools.is_down(host) for host in m.row.hosts):
        return None
    if m.replies.unresponsive_for(m.source) >= m.tools.options.service_down_time:
        return None
    prepared = m.replies.reports.get((m.destination or '', 'pre_live_migration'))
    if prepared is not None and prepared.epoch == m.row.epoch and prepared.state != protocol.WorkState.DONE:
        # The destination has lost its preparation, and repeats it.
        return None
    seen = m.replies.seen.get(m.source)
    if seen is not None and hosts.observed_in(m, seen).observed not in _ON_ITS_WAY:
        # Events report the begin and the end of a job, but not post-copy.
        return None
    m.ledger.waits_on = {m.source}
    if report.facts.started:
        _note_running(m)
        _force_complete(m)
        return Parked(Reason.of(WaitKind.COPY, m.source), patient=True, in_status=True)
    if seen is not None and seen.entry == protocol.Entry.STARTED:
        # The migration has its slot, and the driver may hang.
        return Parked(Reason.of(WaitKind.BEGIN, m.source))
    return Parked(Reason.of(WaitKind.QUEUE, m.source), patient=True, in_status=True)


# --- the observations ------------------------------------------------------------------------------------------------


def observe_source(m: MigrationContext) -> Host:
    """Return the observation of the source.

    It comes from the source's planned stop, or from its final event if that reports ``completed``, or else from a poll.
    """
    if was_cancelled_by_stop(m):
        # The source closed its queue before it reported the stop, so its boot accepts no late command. A later boot is
        # sent no migration with an abort request. The source may be unreachable for ever.
        return Host(Observed.RETURNED)
    report = m.replies.reports.get((m.source, 'live_migration'))
    if report is not None and report.epoch >= m.row.epoch and report.state == protocol.WorkState.DONE:
        if report.facts.verdict == 'completed':
            # The driver guarantees that the source's copy can never run again.
            return Host(Observed.CUTOVER, verdict='completed')
    return hosts.poll(m, m.source)


def was_cancelled_by_stop(m: MigrationContext) -> bool:
    """Return whether the source has cancelled the migration in its queue because its service was stopped."""
    return m.row.cancelled_by_stop


def had_not_begun(m: MigrationContext) -> str | None:
    """Return why ``live_migration`` has left nothing to restore at the source, or None if it may have."""
    if m.lost:
        return 'there is no guest to restore'
    return f'{m.source} had not begun' if was_cancelled_by_stop(m) or _was_cancelled_in_queue(m) else None


def _was_cancelled_in_queue(m: MigrationContext) -> bool:
    """Return whether the source reports that it cancelled the migration before it called its driver.

    The command was sent to that boot, so no earlier boot has called the driver either.
    """
    report, record = m.replies.reports.get((m.source, 'live_migration')), m.record('live_migration')
    if report is None or record is None or report.state != protocol.WorkState.CANCELLED:
        return False
    sent_to = (record.input or {}).get('source_boot_id')
    return report.facts.cancelled and report.boot_id == sent_to


def _column(m: MigrationContext) -> Column:
    if m.record('live_migration') is None:
        return Column.NOT_SENT
    return Column.QUEUED if m.row.status == Status.QUEUED else Column.RUNNING


def _would_have_ended(m: MigrationContext) -> bool:
    """Return whether the copy has lasted longer than the default time-out of a running source allows."""
    began = m.row.running_at
    if began is None:
        return False
    data = hosts.migrate_data(m, 'pre_live_migration')
    longest = SECONDS_PER_GIB * m.guest.flavor.gib_to_copy(data.block_migration, data.source)
    return bool((m.tools.threads.clock.now() - began).total_seconds() >= longest)


def pause_for_job(m: MigrationContext) -> Parked | Stuck | None:
    """Return what the migration waits for while the source has a job after the outcome."""
    moved = how_it_moved(m)
    if not moved.post_copy and not moved.job:
        return None
    source = hosts.poll(m, m.source)
    if source.observed is Observed.MISSING:
        return hosts.wait_for_observation(m, m.source)
    if source.observed in settle_table.JOB:
        m.ledger.waits_on = {m.source}
        return Parked(Reason.of(WaitKind.LAST_PAGES, m.source))
    broken = source.observed is Observed.BROKEN
    if source.observed is Observed.DOWN and m.destination:
        # The destination lacks the pages that the source still has to send.
        destination = hosts.poll(m, m.destination)
        if destination.observed is Observed.MISSING:
            return hosts.wait_for_observation(m, m.destination)
        broken = destination.observed is Observed.BROKEN
        if destination.post_copy and not broken:
            m.ledger.waits_on = set(m.row.hosts)
            return Parked(Reason.of(WaitKind.LAST_PAGES_DOWN, m.source), hosts=(m.source,))
    if broken:
        names = {'source': m.source, 'destination': m.destination}
        return Stuck(Reason.of(StuckKind.POST_COPY_BROKE, m.source, m.destination, **names))
    return None


# --- the start of a guest at its destination -------------------------------------------------------------------------


def settle_start(
    m: MigrationContext,
    step: str,
    send: Callable[[MigrationContext], Failed | Parked],
    when_down: Callable[[MigrationContext, Host], Settlement | None],
) -> Settlement:
    """Poll the destination for the guest, and decide whether a step has started it there.

    It was not started if the destination does not run it and refuses every command that was sent before.

    :param send: sends the step.
    :param when_down: decides while the destination is down; None: poll it again in a new epoch.
    """
    host = m.destination
    assert host is not None
    while True:
        found = hosts.poll(m, host)
        if found.observed is Observed.MISSING:
            return hosts.wait_for_observation(m, host)
        m.ledger.waits_on = {host}
        is_there = found.observed is Observed.RUNS
        down = found.observed is Observed.DOWN
        settled = when_down(m, found) if down else _settle_start(m, host, step, is_there, send)
        if settled is not None:
            return settled
        # The host refuses what is still on its way from now on.
        m.raise_epoch()


def _settle_start(
    m: MigrationContext, host: str, step: str, is_there: bool, send: Callable[[MigrationContext], Failed | Parked]
) -> Settlement | None:
    report = m.replies.reports.get((host, step))
    state = report.state if report is not None else None
    if state == protocol.WorkState.RUNNING:
        return Parked(Reason.of(WaitKind.START, host))
    is_done = state == protocol.WorkState.DONE
    if is_there and is_done:
        return Forward()
    seen = m.replies.seen.get(host)
    if is_there and report is not None and seen is not None and seen.guest.state in protocol.ACTIVE:
        return _start_again(m, report, send)
    if not is_there and (state is None or is_done):
        # The guest may have been started there, and moved since.
        copies = elsewhere.refuse_start(m, host, has_left=is_done)
        if not isinstance(copies, lists.Copies):
            return copies
    if (is_there and state is None) or (m.abort_reason is None and (state is None or is_done)):
        # The host has lost the command, and may not have finished it; or it has lost what it had started.
        m.replies.reports.pop((host, step), None)
        sent = send(m)
        return _again(sent) if is_there and isinstance(sent, Failed) else sent
    if not m.replies.settling:
        return None
    why = report.reason if report is not None else 'it was not asked to'
    return Back(m.abort_reason or f'Host {host} could not start the guest: {why}', another=True)


def _start_again(
    m: MigrationContext, failed: protocol.Report, send: Callable[[MigrationContext], Failed | Parked]
) -> Parked:
    """Have a destination that has the guest, and has failed to finish its start, try that again.

    The outcome is open until it succeeds. Nothing is undone while the guest may run there.

    :param failed: the destination's report of the step.
    :param send: sends the step.
    """
    wait = m.ledger.of(failed.step, failed.host)
    wait.reason = failed.reason or 'no reason given'
    if wait.next_try > m.tools.threads.clock.monotonic():
        m.ledger.wake_by(wait.next_try)
        return hosts.next_try(failed.host, wait)
    wait.tries += 1
    hosts.back_off(m, wait)
    # In the same epoch the host would only repeat its report.
    m.raise_epoch()
    del m.replies.reports[failed.host, failed.step]
    sent = send(m)
    return sent if isinstance(sent, Parked) else _again(sent)


def _again(failed: Failed) -> Parked:
    return Parked(Reason.of(WaitKind.FAILURE, reason=failed.reason))


# --- the acts of the table -------------------------------------------------------------------------------------------


def _go_on(m: MigrationContext, decision: Decision, source: Host, destination: Host) -> Settlement:
    """Let the next step run, or queue the guest again if the source has lost the command."""
    return GoOn() if m.record('live_migration') is None else _queue(m, decision, source, destination)


def _queue(m: MigrationContext, _decision: Decision, _source: Host, _destination: Host) -> Settlement:
    m.replies.reports.pop((m.source, 'live_migration'), None)
    verdict = hosts.queue(m)
    report = m.replies.reports.get((m.source, 'live_migration'))
    if report is not None and report.facts.gone:
        return Stuck(Reason.of(StuckKind.GUEST_GONE, m.source, destination=m.destination))
    return verdict


def _prepare(m: MigrationContext, _decision: Decision, _source: Host, _destination: Host) -> Settlement:
    assert m.destination is not None
    m.replies.reports.pop((m.destination, 'pre_live_migration'), None)
    found = hosts.prepare(m)
    if not isinstance(found, protocol.Report):
        return found
    if found.state != protocol.WorkState.DONE:
        return Failed(f'Host {m.destination} could not prepare for the guest again: {found.reason}')
    m.ledger.wake_now()
    return Parked(Reason.of(WaitKind.POLL, *m.row.hosts))


def _forward(_m: MigrationContext, _decision: Decision, source: Host, destination: Host) -> Settlement:
    moved = Moved(source.verdict or 'completed', destination.post_copy, job=source.observed in settle_table.JOB)
    return Forward(dataclasses.asdict(moved))


def _back(m: MigrationContext, decision: Decision, source: Host, _destination: Host) -> Settlement:
    failure = _verdict_of(m) or decision.reason
    if m.row.abort_requested_at is not None and source.verdict == 'failed':
        # The driver's verdict decides the result of an abort.
        m.set(failure=failure, abort_status=Status.FAILED.value, abort_text=failure)
    # Only a host that is down before anything was sent: later the guest may have moved.
    unanswered = source.observed is Observed.DOWN and m.abort_reason is None
    return Back(m.abort_reason or failure, unanswered=unanswered)


def _lost(m: MigrationContext, decision: Decision, _source: Host, _destination: Host) -> Settlement:
    """Give the guest up, once every host has listed its guests without it: it may have been moved by hand."""
    if m.record('live_migration') is None:
        # The guest may never have been there.
        where = f'Host {m.source} has no guest {m.row.instance_uuid}, and its migration had not begun'
        return Lost(f'{where}. {remedies.offer(remedies.Kind.SEE_WHERE)}', is_certain=False)
    known = m.tools.database.differences.known(m.row.instance_uuid)
    whole = m.tools.lists.of_all(after=m.tools.database.services.now())
    found = lists.copies(whole, known, m.row.instance_uuid, m.row.hosts)
    if found.has:
        there = ' and '.join(f'{host} ({state})' for host, state in found.has.items())
        return Lost(f'The guest is on {there}. {decision.reason}', is_certain=False)
    if found.unasked:
        unasked = ', '.join(sorted(found.unasked))
        return Lost(f'The guest is lost, or on a host that does not answer ({unasked}). {decision.reason}', False)
    return Lost(f'The guest is lost. {decision.reason}')


def _stuck(m: MigrationContext, decision: Decision, _source: Host, _destination: Host) -> Settlement:
    return Stuck(Reason.of(StuckKind.UNKNOWN_GUEST, *m.row.hosts, reason=decision.reason))


def _abort(m: MigrationContext, _decision: Decision, source: Host, _destination: Host) -> Settlement:
    """Cancel the migration in the queue, or abort its job. The source acts once if it is repeated."""
    request = 'live_migration_abort'
    if source.observed in settle_table.JOB:
        # An old host cannot cancel a queued migration, but can abort a running one.
        _note_running(m)
    pause = Parked(Reason.of(WaitKind.ABORT, m.source))
    # The wait includes the status, so that a request sent while queued is sent again for the job.
    wait = m.ledger.of(f'{request} {m.row.status}', m.source)
    try:
        hosts.send_request(m, wait, request, instance=m.guest, migration=m.row)
    except exception.ServiceTooOld as error:
        pause = Parked(Reason.of(WaitKind.BEGIN_TO_ABORT, m.source, reason=error), patient=True)
    m.ledger.waits_on = {m.source}
    return pause


def _see_running(m: MigrationContext, decision: Decision, source: Host, destination: Host) -> Settlement:
    _note_running(m)
    _force_complete(m)
    return _wait(m, decision, source, destination)


def _wait(m: MigrationContext, decision: Decision, source: Host, destination: Host) -> Settlement:
    """Wait for an event of the source, or poll a host without a valid answer again."""
    missing = m.destination if destination.observed is Observed.MISSING else None
    found = hosts.wait_for_observation(m, missing) if missing else None
    m.ledger.waits_on = set(m.row.hosts) if missing else {m.source}
    if isinstance(found, Stuck):
        return found
    # The migration waits with the source down only while its hypervisor may still copy.
    alone = source.observed is Observed.DOWN and destination.observed is Observed.WAITING
    if alone:
        waiting.note_silence(m, m.source, m.tools.hosts.unreachable_for(m.source), WaitKind.COPYING_HOST)
    # Force completion pauses a guest long before it moves.
    forced = source.observed is Observed.CUTOVER_JOB and m.row.force_complete_requested_at is not None
    goes_on = (source.observed in _MAY_LAST or forced or alone) and m.outcome is None and m.abort_reason is None
    why = Reason.of(WaitKind.PROGRESS, *m.row.hosts, reason=decision.reason)
    return Parked(why, patient=goes_on, in_status=goes_on, hosts=(missing,) if missing else None)


_ACTS: Mapping[Act, Callable[[MigrationContext, Decision, Host, Host], Settlement]] = MappingProxyType(
    {
        Act.GO_ON: _go_on,
        Act.QUEUE: _queue,
        Act.PREPARE: _prepare,
        Act.FORWARD: _forward,
        Act.BACK: _back,
        Act.ERROR: _lost,
        Act.STUCK: _stuck,
        Act.ABORT: _abort,
        Act.SEE_RUNNING: _see_running,
    }
)


def _note_running(m: MigrationContext) -> None:
    if m.row.status == Status.QUEUED:
        m.set(status=Status.RUNNING.value, running_at=NOW)
        m.commit()


def _force_complete(m: MigrationContext) -> None:
    """Send a force-complete request to the source, which carries out a repeated one once."""
    request = 'live_migration_force_complete'
    if m.row.force_complete_requested_at is not None:
        hosts.send_request(m, m.ledger.of(request, m.source), request, instance=m.instance)


def _verdict_of(m: MigrationContext) -> str | None:
    report = m.replies.reports.get((m.source, 'live_migration'))
    if report is None or report.state == protocol.WorkState.RUNNING:
        return None
    return report.reason or f'The hypervisor of {m.source} ended the job: {report.facts.verdict}.'
