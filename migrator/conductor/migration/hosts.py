# SPDX-License-Identifier: Apache-2.0

"""Commands to a host, and the verdicts that follow from its replies."""

from __future__ import annotations

import dataclasses
import enum
from types import MappingProxyType
from typing import Any

from migrator import exception
from migrator.conductor.compute_client import HostBusy
from migrator.conductor.migration import context, settle_table, waiting
from migrator.conductor.migration.waiting import Wait
from migrator.objects import Migration, base, protocol, steps
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga import log
from migrator.saga.saga import Done, Failed, Parked, Stuck

#: The first and the longest pause (seconds) before a failed step is tried again; each is twice as long as the last.
_BACKOFF = (1.0, 60.0)
#: The end of what a migration shows while the broker is away.
_GOES_ON = 'The migration goes on by itself once it answers.'
#: Seconds after which a request about a job is sent again while the job exists. The host may have restarted, or its
#: driver may have failed.
SEND_AGAIN = 5.0
#: Seconds after which a host that contradicts the log is asked again.
POLL_AGAIN = 5.0
#: The end of a step at a host, or the verdict until then.
Found = protocol.Report | Failed | Parked


def header(row: Migration, step: str, owner: str, reply_to: str, boot_id: str) -> protocol.Command:
    """Return the command that identifies a step of a migration to a host.

    :param owner: the id of the conductor that owns the migration.
    :param reply_to: the server name of that conductor.
    :param boot_id: the boot of the host.
    """
    return protocol.Command(
        migration_uuid=row.uuid,
        instance_uuid=row.instance_uuid,
        step=step,
        epoch=row.epoch,
        owner=owner,
        reply_to=reply_to,
        boot_id=boot_id,
        tenure=row.tenure,
        place=row.id,
    )


def command(m: context.MigrationContext, host: str, step: str) -> protocol.Command:
    """Return the command that identifies a step of the present owner to a host."""
    return header(m.row, step, m.row.owner or m.tools.owner, m.tools.server, m.boots.get(host) or '')


def reread_boots(m: context.MigrationContext) -> None:
    """Read the boot_ids of the hosts again.

    :raises migrator.exception.NotOwner: another conductor owns the migration, or it is in another epoch.
    """
    row, boots = m.tools.database.migrations.reread(m.row)
    if (row.owner, row.epoch) != (m.row.owner, m.row.epoch):
        raise exception.NotOwner(migration_uuid=row.uuid, owner=m.row.owner, epoch=m.row.epoch)
    m.boots |= boots


def check(m: context.MigrationContext, host: str | None, step: str, **payload: Any) -> Done | Failed | Parked:
    """Run a check at a host, and return its verdict. The log keeps what the host returns.

    Without a reply it is sent again, for as long as the host may still do it.

    :param step: the name of the check, in the log and over RPC.
    """
    assert host is not None
    answer = _send(m, host, step, {'instance': m.instance, **payload})
    if isinstance(answer, exception.RPCTimeout):
        return _unanswered(m, host, step, answer)
    if isinstance(answer, exception.ServiceUnreachable):
        m.ledger.wake_by(m.tools.threads.clock.monotonic() + POLL_AGAIN)
        return Parked(Reason.of(WaitKind.BROKER, reason=f'{str(answer).rstrip(".")}. {_GOES_ON}'), outage=True)
    if isinstance(answer, exception.MigratorException):
        return Failed(str(answer))
    if isinstance(answer, (Parked, Failed)):
        return answer
    if answer.report is None:
        return Failed(f'Host {host} replied without a report of {step}.')
    if answer.report.state == protocol.WorkState.RUNNING:
        return _still_checking(m, host, step)
    if answer.report.state != protocol.WorkState.DONE:
        return Failed(answer.report.reason or f'Host {host} failed in {step} without a reason.')
    return done_with_data(answer.report)


def _unanswered(m: context.MigrationContext, host: str, step: str, error: exception.RPCTimeout) -> Failed | Parked:
    """Return Failed for a check that a host has left unanswered for too long, or Parked: it is sent again.

    A host that answers polls may have lost one request while the broker was away, and fails with the second. One that
    answers nothing fails after ``service_down_time``.
    """
    wait = m.ledger.of(step, host)
    wait.tries += 1
    try:
        answers = m.tools.hosts.poll(host, [command(m, host, 'poll')]) is not None
    except HostBusy:
        return _wait_for_call_slot(host)
    too_long = m.tools.hosts.unanswered_for(host) >= m.tools.options.service_down_time
    if (answers and wait.tries > 1) or (not answers and too_long):
        role = 'source' if host == m.source else 'destination'
        waited = error.kwargs.get('timeout')
        reason = f'The {role} {host} did not answer {step} within {waited} s: look at its compute service.'
        # A host that answers nothing says nothing of the guest.
        return Failed(reason, unanswered=host == m.source or not answers)
    return _still_checking(m, host, step)


def _still_checking(m: context.MigrationContext, host: str, step: str) -> Failed | Parked:
    """Return that the check is still running, and ask for it again soon, until the patience ends.

    No thread waits for a check meanwhile, and an abort need not wait for it.
    """
    now = m.tools.threads.clock.monotonic()
    lasted = now - m.ledger.of(step, host).since
    patience = m.tools.hosts.api.long_timeout
    if lasted >= patience:
        return Failed(f'Host {host} did not end {step} within {patience:g} s: look at its compute service.')
    m.ledger.waits_on.add(host)
    m.ledger.wake_by(now)
    return Parked(Reason.of(WaitKind.STEP, host, step=step))


def carry_out(
    m: context.MigrationContext, host: str, step: str, record: log.StepRecord | None = None, **payload: Any
) -> Found:
    """Send a step to a host, unless it is sent already, and return the report of its end.

    :param step: the name over RPC; reports carry it too.
    :param record: the log's record of the intent; None: the record of the step itself.
    :returns: the report of work that has ended, or the verdict until then.
    """
    record = record or m.record(step)
    assert record is not None
    report = _known_report(m, host, step, record)
    if report is None and (host, step) not in m.replies.unsure:
        answer = _send(m, host, step, payload)
        if isinstance(answer, exception.MigratorException):
            m.replies.unsure.add((host, step))
        elif isinstance(answer, (Parked, Failed)):
            return answer
        elif answer.report is not None:
            m.replies.take_report(answer.report, m.row.epoch)
            report = answer.report
    if report is None or report.state == protocol.WorkState.RUNNING:
        m.ledger.waits_on.add(host)
        return Parked(Reason.of(WaitKind.STEP, host, step=step), patient=_is_copying_disks(m, host))
    m.tools.hosts.acknowledge(report)
    return report


def _is_copying_disks(m: context.MigrationContext, host: str) -> bool:
    """Return whether a host reports that it copies disks, which may last any time.

    Every later step there waits for that.
    """
    report = m.replies.reports.get((host, 'migrate_disk_and_power_off'))
    return report is not None and report.state == protocol.WorkState.RUNNING and not m.tools.is_down(host)


# --- steps that are tried until they succeed -------------------------------------------------------------------------


class Tried(enum.StrEnum):
    """The outcome of one try, which is a row of the table."""

    DONE = 'done'
    #: The host refused, since the guest is there and could run.
    HERE = 'the guest is there'
    #: The host refused, since the guest is not there.
    GONE = 'the guest is not there'
    DELETED = 'the guest is not there, and its instance was deleted'
    FAILED = 'failed'
    #: The host failed to restore the guest, or to end it. An ended migration must leave no guest paused, and must not
    #: start one before the other copy has ended.
    UNRESTORED = 'the host failed to restore or to end the guest'
    PENDING = 'not ended'
    #: Only a fenced host runs no guest that another host may start.
    MAY_RUN = 'not ended, and the guest may run at the host, which is down'


class Then(enum.StrEnum):
    """What follows from a try, which is a cell of the table."""

    DONE = 'done'
    AGAIN = 'wait, and try again'
    DEFER = 'defer the step as a cleanup, and go on'
    STUCK = 'stuck, and ask the host again'


#: Outcome of the try -> what follows: while the step is tried again, and once it is given up.
RETRY = MappingProxyType(
    {
        Tried.DONE: (Then.DONE, Then.DONE),
        Tried.HERE: (Then.STUCK, Then.STUCK),
        Tried.GONE: (Then.STUCK, Then.STUCK),
        Tried.DELETED: (Then.DONE, Then.DONE),
        Tried.FAILED: (Then.AGAIN, Then.DEFER),
        Tried.UNRESTORED: (Then.AGAIN, Then.STUCK),
        Tried.PENDING: (Then.AGAIN, Then.DEFER),
        Tried.MAY_RUN: (Then.STUCK, Then.STUCK),
    }
)
#: Outcome of a try that makes the migration stuck -> the kind.
_STUCK = {
    Tried.HERE: StuckKind.GUEST_THERE,
    Tried.GONE: StuckKind.GUEST_NOT_THERE,
    Tried.UNRESTORED: StuckKind.NOT_RESTORED,
    Tried.MAY_RUN: StuckKind.DESTINATION_MAY_RUN,
}


def retry(
    m: context.MigrationContext, host: str | None, step: str, record: log.StepRecord | None = None, **payload: Any
) -> Done | Parked | Stuck:
    """Run a step at a host until it succeeds, as :data:`RETRY` says.

    It is tried again with growing pauses, and then deferred as a cleanup.

    :param record: where the tries are noted; None: the record of the step itself.
    """
    record = record or m.record(step)
    assert host is not None
    assert record is not None
    wait = m.ledger.of(step, host)
    if wait.next_try > m.tools.threads.clock.monotonic():
        # Another event has woken the run, such as the other post step.
        m.ledger.wake_by(wait.next_try)
        return wait.stuck or next_try(host, wait)
    outcome = carry_out(m, host, step, record, **payload)
    tried, reason = _tried(m, host, step, outcome)
    if tried is not Tried.PENDING:
        wait.stuck = None
    if tried in (Tried.FAILED, Tried.UNRESTORED):
        wait.tries += 1
    then = RETRY[tried][_is_given_up(m, host, wait, tried)]
    if then is Then.DONE:
        return Done() if tried is Tried.DONE else Done({'skipped': reason})
    if then is Then.DEFER:
        reason = reason or f'{host} is down'
        m.defer(host, step, reason, _for_cleanup(m, step))
        return Done({'deferred': reason})
    if then is Then.STUCK:
        kind = _STUCK[tried]
        if tried is Tried.UNRESTORED and step == steps.AFTER_REVERT:
            kind = StuckKind.NOT_ENDED
        stuck = Stuck(Reason.of(kind, host, step=step, reason=reason))
        return stuck if tried is Tried.MAY_RUN else _stuck(m, wait, stuck)
    if isinstance(outcome, Parked):
        # A stuck step stays stuck until the host answers the next try.
        return wait.stuck or outcome
    note_try(m, record, reason)
    wait.reason = reason
    back_off(m, wait)
    return next_try(host, wait)


def _tried(m: context.MigrationContext, host: str, step: str, outcome: Found) -> tuple[Tried, str]:
    """Return the row of the table for a try, and its reason for an operator."""
    if isinstance(outcome, Parked):
        if step == steps.AFTER_REVERT and m.tools.is_down(host):
            if not m.tools.database.services.get_compute(host).forced_down:
                return Tried.MAY_RUN, ''
        return Tried.PENDING, ''
    if isinstance(outcome, protocol.Report):
        if outcome.state == protocol.WorkState.DONE:
            return Tried.DONE, ''
        m.replies.reports.pop((host, step), None)
        facts = outcome.facts
        if facts.here:
            return Tried.HERE, ''
        if facts.gone and m.is_deleted():
            return Tried.DELETED, 'the instance and its guest were deleted'
        if facts.gone:
            return Tried.GONE, ''
    reason = outcome.reason or 'no reason given'
    return (Tried.UNRESTORED if step in (*steps.RESTORING, steps.AFTER_REVERT) else Tried.FAILED), reason


def _is_given_up(m: context.MigrationContext, host: str, wait: Wait, tried: Tried) -> bool:
    """Return whether the host is down, or is up and has failed the step too often."""
    return m.tools.is_down(host) if tried is Tried.PENDING else wait.tries >= m.tools.options.post_max_attempts


def next_try(host: str, wait: Wait) -> Parked:
    """Return that a migration waits for the next try of a step that has failed."""
    return Parked(Reason.of(WaitKind.RETRY, host, step=wait.what, reason=wait.reason))


def _wait_for_call_slot(*hosts: str) -> Parked:
    return Parked(Reason.of(WaitKind.CALL_SLOT, *hosts), patient=True, hosts=())


def note_try(m: context.MigrationContext, record: log.StepRecord, reason: str) -> None:
    """Write that a step which is always retried has failed, if the reason is new.

    The writes that steps have collected stay pending. They belong to the commit of a finished step.
    """
    tried = dataclasses.replace(record, tries=record.tries + 1, result={'reason': reason})
    known = (m.record(record.step, record.direction) or record).result
    if known is None or known.get('reason') != reason:
        if not m.tools.database.migrations.note_try(m.row, tried):
            return
        m.row = m.row.replace(log_seq=m.row.log_seq + 1)
    m.step_log.put([tried])


def back_off(m: context.MigrationContext, wait: Wait) -> None:
    """Delay the next try of a failed step, twice as long each time, up to a minute, with jitter."""
    first, last = _BACKOFF
    # The exponent is limited because a step that is always retried could overflow a float.
    doubled = min(wait.tries - 1, 10)
    pause = float(min(last, first * 2**doubled) * (0.5 + m.tools.threads.random() / 2))
    _delay(m, wait, pause)


def _delay(m: context.MigrationContext, wait: Wait, seconds: float) -> None:
    wait.next_try = m.tools.threads.clock.monotonic() + seconds
    m.ledger.wake_by(wait.next_try)


def _stuck(m: context.MigrationContext, wait: Wait, stuck: Stuck) -> Stuck:
    """Return Stuck, and try the step again after a pause instead of as fast as its host answers."""
    _delay(m, wait, POLL_AGAIN)
    wait.stuck = stuck
    return stuck


def _for_cleanup(m: context.MigrationContext, step: str) -> dict[str, Any]:
    """Return what a deferred cleanup of this migration needs."""
    # An abandonment ends no copy that runs.
    fenced = {'fenced': True} if step == steps.AFTER_REVERT and not m.is_abandoned else {}
    return {'migrate_data': newest_data(m), **fenced}


def send_request(m: context.MigrationContext, wait: Wait, request: str, **payload: Any) -> None:
    """Send a request to the source, unless it has accepted it lately, and wake the run for the next time."""
    now = m.tools.threads.clock.monotonic()
    if wait.next_try <= now and send_request_once(m, m.source, request, **payload):
        wait.next_try = now + SEND_AGAIN
    m.ledger.wake_by(wait.next_try if wait.next_try > now else now + SEND_AGAIN)


def send_request_once(m: context.MigrationContext, host: str, step: str, **payload: Any) -> bool:
    """Send a request to a host that replies at once, and return whether the host has accepted it."""
    answer = _send(m, host, step, payload)
    return isinstance(answer, protocol.Answer)


def poll(m: context.MigrationContext, host: str) -> settle_table.Host:
    """Poll a host in the present epoch, and return what it reports of the guest, for the table."""
    found = m.replies.polls.answer_before(host)
    if found is None:
        found = _send_poll(m, host)
    unreported = m.replies.unreported
    (unreported.add if found.observed is settle_table.Observed.MISSING else unreported.discard)(host)
    return found


def _send_poll(m: context.MigrationContext, host: str) -> settle_table.Host:
    # The earlier observation no longer counts. A later poll with the same content is news then, and wakes the run.
    m.replies.seen.pop(host, None)
    if m.tools.hosts.was_unreachable(host, m.tools.options.poll_interval):
        # Another migration has just polled the host in vain. Waiting for a second time-out would add nothing.
        m.ledger.waits_on.add(host)
        return _unreachable(m, host)
    try:
        found = m.tools.hosts.poll(host, [command(m, host, 'poll')], may_queue=True)
    except HostBusy:
        m.replies.polls.are_cut_short = True
        # The host was not polled, so a missing answer says nothing about it.
        m.replies.unpolled.add(host)
        return settle_table.Host(settle_table.Observed.MISSING)
    observation = next((one for one in found or [] if one.migration_uuid == m.row.uuid), None)
    if observation is None:
        if found is not None:
            m.replies.note_unresponsive(host)
        m.ledger.waits_on.add(host)
        return _unreachable(m, host)
    m.replies.take_observation(observation, m.row.epoch)
    if observation.refusal == protocol.Refusal.EPOCH:
        m.raise_epoch(observation.epoch)
    if observation.refusal == protocol.Refusal.TENURE:
        # No other migration of the instance is in progress: a cleanup was there, or the database was restored.
        m.raise_epoch(observation.epoch, observation.tenure)
    if observation.refusal == protocol.Refusal.BOOT:
        reread_boots(m)
    if observation.refusal is not None or observation.epoch > m.row.epoch:
        m.ledger.waits_on.add(host)
        return settle_table.Host(settle_table.Observed.MISSING)
    waiting.end_silence(m, host)
    answer = observed_in(m, observation)
    m.replies.polls.note(host, answer)
    return answer


def poll_first(m: context.MigrationContext) -> Parked | Stuck | None:
    """Poll every host that must answer in the present epoch before anything else is done.

    An abort does not wait for the destination: only the source can stop the guest's move, and settling decides nothing
    else before the destination has answered.

    :returns: what the migration waits for, if a host that is not down does not answer.
    """
    while m.replies.must_poll:
        epoch = m.row.epoch
        answers = {host: poll(m, host) for host in sorted(m.replies.must_poll)}
        if m.row.epoch != epoch:
            m.replies.must_poll = set(m.row.hosts_to_poll)
            continue
        m.replies.must_poll = {
            host for host, answer in answers.items() if answer.observed is settle_table.Observed.MISSING
        }
        if m.replies.must_poll:
            if m.source not in m.replies.must_poll and _is_being_aborted(m):
                return None
            known = m.ledger.waits_on
            pause = wait_for_observation(m, *sorted(m.replies.must_poll))
            m.ledger.waits_on |= known
            return pause
    return None


def _is_being_aborted(m: context.MigrationContext) -> bool:
    sent = m.record('live_migration') is not None and m.outcome is None
    return sent and m.abort_reason is not None and not m.is_abandoned


def wait_for_observation(m: context.MigrationContext, *hosts: str) -> Parked | Stuck:
    """Return that the migration waits for hosts to report where the guest is.

    It is stuck if a host has answered for a long time without reporting this guest.
    """
    m.ledger.waits_on = set(hosts)
    for host in hosts:
        if m.replies.unresponsive_for(host) >= m.tools.options.service_down_time:
            return Stuck(Reason.of(StuckKind.NOT_REPORTED, host))
    if m.replies.unpolled.issuperset(hosts):
        return _wait_for_call_slot(*hosts)
    return Parked(Reason.of(WaitKind.REPORT, *sorted(hosts)), hosts=hosts)


def observed_in(m: context.MigrationContext, observation: protocol.Observation) -> settle_table.Host:
    """Return the row of the table for an observation."""
    guest = observation.guest
    if observation.host == m.source:
        entry = protocol.Entry.RETURNED if _has_ended(m, observation) else observation.entry
        observed = settle_table.source_observed(guest.state, guest.job, entry)
        return settle_table.Host(observed, verdict=observation.verdict, post_copy=guest.post_copy)
    preparing = any(
        report.step == 'pre_live_migration' and report.state == protocol.WorkState.RUNNING
        for report in observation.reports
    )
    return settle_table.Host(settle_table.destination_observed(guest.state, preparing), post_copy=guest.post_copy)


def _has_ended(m: context.MigrationContext, observation: protocol.Observation) -> bool:
    """Return whether this boot of the source no longer moves the guest.

    Its queue has cancelled the migration, or the driver call has returned.

    A boot makes the driver call of a migration at most once, so it will not make it later either.
    """
    if observation.entry in (protocol.Entry.QUEUED, protocol.Entry.STARTED):
        return False
    report = m.replies.reports.get((observation.host, 'live_migration'))
    return report is not None and report.boot_id == observation.boot_id and report.state != protocol.WorkState.RUNNING


def _unreachable(m: context.MigrationContext, host: str) -> settle_table.Host:
    if not m.tools.is_down(host):
        return settle_table.Host(settle_table.Observed.MISSING)
    forced = m.tools.database.services.get_compute(host).forced_down
    return settle_table.Host(settle_table.Observed.DOWN, forced_down=forced)


def _known_report(m: context.MigrationContext, host: str, step: str, record: log.StepRecord) -> protocol.Report | None:
    found = m.replies.reports.get((host, step))
    return found if found is not None and found.epoch >= record.epoch else None


def _send(
    m: context.MigrationContext, host: str, step: str, payload: dict[str, Any]
) -> protocol.Answer | Failed | Parked | exception.MigratorException:
    """Send a command, and send it again if the host has restarted and its new boot_id is known."""
    message, answer = command(m, host, step), protocol.Answer()
    if step in steps.FORWARD:
        # Without a reply the command may still be on its way.
        m.replies.settling = False
    for _ in range(2):
        try:
            answer = m.tools.hosts.send(host, message, **payload)
        except HostBusy:
            m.replies.note_unsent(m.attempt, m.row.epoch, step)
            return _wait_for_call_slot(host)
        except (exception.ServiceUnreachable, exception.RemoteError) as error:
            m.replies.note_sent(m.attempt, m.row.epoch, step)
            m.ledger.waits_on.add(host)
            return error
        m.replies.note_sent(m.attempt, m.row.epoch, step)
        if answer.refusal != protocol.Refusal.BOOT:
            break
        reread_boots(m)
        if command(m, host, step).boot_id == message.boot_id:
            break
        message = command(m, host, step)
    if answer.refusal is None:
        return answer
    if answer.refusal in (protocol.Refusal.EPOCH, protocol.Refusal.TENURE):
        m.raise_epoch(answer.seen, answer.seen_tenure if answer.refusal == protocol.Refusal.TENURE else None)
        m.ledger.wake_now()
        return Parked(Reason.of(WaitKind.POLL, *m.row.hosts))
    if answer.refusal == protocol.Refusal.STOPPING:
        return Failed(f'Host {host} is stopping and accepts no new work.')
    if answer.refusal == protocol.Refusal.GUEST:
        reason = f'Host {host} refuses {step}: it knows the uuid of this migration as that of another guest.'
        return Failed(f'{reason} Request the migration again, which gets a new uuid.')
    m.ledger.waits_on.add(host)
    return Parked(Reason.of(WaitKind.READY, host))


def begin(m: context.MigrationContext, host: str | None, step: str, **payload: Any) -> Failed | Parked:
    """Have a host do the pivot. Settling finds out whether it has."""
    assert host is not None
    found = carry_out(m, host, step, **payload)
    if isinstance(found, protocol.Report):
        # It has ended before the first poll.
        m.ledger.wake_now()
        return Parked(Reason.of(WaitKind.POLL, host))
    return found


def done_with_data(found: Found) -> Done | Failed | Parked:
    """Return the verdict of a step whose data the log keeps for the other host, or for a later step."""
    return Done({'migrate_data': base.to_primitive(found.result)}) if isinstance(found, protocol.Report) else found


# --- the commands up to the move, which settling may send again ------------------------------------------------------


def prepare(m: context.MigrationContext) -> Found:
    """Prepare the destination. It fails if the destination is down."""
    assert m.destination is not None
    data = migrate_data(m, 'check_can_live_migrate_source')
    found = carry_out(m, m.destination, 'pre_live_migration', instance=m.instance, migrate_data=data)
    if isinstance(found, Parked) and m.tools.is_down(m.destination):
        return Failed(f'Host {m.destination} is down.')
    return found


def queue(m: context.MigrationContext) -> Failed | Parked:
    """Queue the guest at the source. Settling finds out how its job ends."""
    data = migrate_data(m, 'pre_live_migration')
    payload = {'instance': m.instance, 'destination': m.destination, 'migrate_data': data}
    return begin(m, m.source, 'live_migration', **payload)


def migrate_data(m: context.MigrationContext, step: str) -> Any:
    """Return the data of the hosts for each other, as a step of the present attempt has returned it."""
    return base.from_primitive(m.facts(step).migrate_data)


def newest_data(m: context.MigrationContext) -> Any:
    """Return the newest data that the hosts have exchanged, in JSON-safe form, or None.

    A step that has failed has a result, too: its reason.
    """
    return next(filter(None, (m.facts(step).migrate_data for step in steps.EXCHANGING)), None)
