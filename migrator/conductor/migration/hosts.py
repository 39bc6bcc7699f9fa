# SPDX-License-Identifier: Apache-2.0

"""Gives a host an order, and makes of its answer what the body of a step can return."""

from __future__ import annotations

from typing import Any

from migrator import exception
from migrator.conductor.compute_client import HostBusy
from migrator.conductor.migration import context, settle, waiting
from migrator.objects import protocol
from migrator.saga import log
from migrator.saga.step import Done, Failed, Parked, Stuck

#: Seconds; a failed step after the move waits twice as long each time, up to the last.
_BACKOFF = (1.0, 60.0)
#: Seconds after which a wish that concerns a job is told to its host once more, as long as there is the job: the
#: host may have been restarted meanwhile, or its driver have failed.
TELL_AGAIN = 5.0
#: Seconds after which a host that has said what nobody can make sense of is asked again.
LOOK_AGAIN = 5.0
#: What is sent to get on. A decision against it needs a new epoch, in which it is refused if it is still on its way.
_ADVANCING = (
    'check_can_live_migrate_destination',
    'check_can_live_migrate_source',
    'pre_live_migration',
    'live_migration',
)


def check(m: context.MigrationContext, host: str, step: str, **payload: Any) -> protocol.Report | Failed | Parked:
    """Have a host check: a call that is answered when it is done, in which no answer counts as failing.

    :param step: the check's name, in the journal and over RPC.
    """
    answer = _send(m, host, step, payload)
    if isinstance(answer, exception.RPCTimeout):
        return _unanswered(m, host, step, answer)
    if isinstance(answer, exception.ServiceUnreachable):
        m.wake_by(m.tools.threads.clock.monotonic() + LOOK_AGAIN)
        return Parked(f'the message broker, to ask {host} for {step}', whom=())
    if isinstance(answer, exception.MigratorException):
        return Failed(str(answer))
    if isinstance(answer, (Parked, Failed)):
        return answer
    if answer.report is None:
        return Failed(f'{host} said nothing of {step}')
    if answer.report.state == protocol.WorkState.RUNNING:
        return _still_checking(m, host, step)
    if answer.report.state != protocol.WorkState.DONE:
        return Failed(answer.report.reason or f'{host} failed in {step}')
    return answer.report


def _unanswered(m: context.MigrationContext, host: str, step: str, error: exception.RPCTimeout) -> Failed | Parked:
    """Give up a host that does not answer; one that does may have lost the question, with a broker that was away."""
    wait = m.ledger.of(step, host)
    wait.tries += 1
    try:
        answers = m.tools.hosts.ask(host, [m.order(host, 'poll')]) is not None
    except HostBusy:
        return _in_line(host)
    if wait.tries > 1 if answers else m.tools.hosts.unanswered_for(host) >= m.tools.options.service_down_time:
        role = 'source' if host == m.source else 'destination'
        waited = error.kwargs.get('timeout')
        return Failed(f'The {role} {host} did not answer {step} within {waited} s: look at its compute service.')
    return _still_checking(m, host, step)


def _still_checking(m: context.MigrationContext, host: str, step: str) -> Failed | Parked:
    """Have it asked for again soon; who waits for a check holds no thread, and an abort need not wait for it."""
    now = m.tools.threads.clock.monotonic()
    lasted = now - m.ledger.of(step, host).since
    patience = m.tools.hosts.api.long_timeout
    if lasted >= patience:
        return Failed(f'{host} has not ended {step} within {patience:g} s')
    m.waits_on.add(host)
    m.wake_by(now)
    return Parked(f'{host} to end {step}')


def carry_out(
    m: context.MigrationContext, host: str, step: str, record: log.StepRecord, **payload: Any
) -> protocol.Report | Failed | Parked:
    """Have a host do one step by a lightweight call: heard of already, or sent now.

    :param step: the name over RPC; reports carry it too.
    :param record: the journal's record of the intent.
    :returns: the report of work that has ended, or what the body is to return meanwhile.
    """
    report = _heard(m, host, step, record)
    if report is None and (host, step) not in m.unsure:
        answer = _send(m, host, step, payload)
        if isinstance(answer, exception.MigratorException):
            m.unsure.add((host, step))
        elif isinstance(answer, (Parked, Failed)):
            return answer
        elif answer.report is not None:
            m.take_report(answer.report)
            report = answer.report
    if report is None or report.state == protocol.WorkState.RUNNING:
        m.waits_on.add(host)
        return Parked(f'{host} to end {step}')
    m.tools.hosts.acknowledge(report)
    return report


def retry(
    m: context.MigrationContext, host: str, step: str, record: log.StepRecord, **payload: Any
) -> Done | Parked | Stuck:
    """Have a host do a step that is never given up: tried again with growing pauses, then owed.

    A host that is down owes it at once, and the migration goes on. A host that answers that the guest is here and
    could run, or is not here at all, is not argued with: that is stuck, and the host is asked again at the next sweep.
    So is a source that is up and cannot be restored: an ended migration leaves no guest paused.
    """
    wait = m.ledger.of(step, host)
    if wait.next_try > m.tools.threads.clock.monotonic():
        # Woken by something else, such as the other post step.
        m.wake_by(wait.next_try)
        return wait.stuck or _next_try(host, wait)
    outcome = carry_out(m, host, step, record, **payload)
    if not isinstance(outcome, Parked):
        wait.stuck = None
    if isinstance(outcome, protocol.Report):
        if outcome.state == protocol.WorkState.DONE:
            return Done()
        m.reports.pop((host, step), None)
        facts = outcome.result or {}
        if facts.get('here'):
            return _stuck(
                m, wait, f'{host} was to do {step}, but the guest is there and could run: look which host runs it.'
            )
        if facts.get('gone') and m.is_deleted():
            return Done({'skipped': 'the instance has been deleted, and its guest with it'})
        if facts.get('gone'):
            return _stuck(m, wait, f'{host} was to do {step}, but the guest is not there: look which host has it.')
        reason = outcome.reason or 'no reason given'
    elif isinstance(outcome, Failed):
        reason = outcome.reason
    elif m.is_down(host):
        m.defer(host, step, f'{host} is down', _for_cleanup(m))
        return Done({'owed': f'{host} is down'})
    else:
        # Asked once more it is as stuck as it was, until there is an answer.
        return wait.stuck or outcome
    wait.tries += 1
    if wait.tries >= m.tools.options.post_max_attempts:
        if step == 'rollback_live_migration_at_source':
            return Stuck(f'{host} is up and cannot restore the guest ({reason}): look at its hypervisor.')
        m.defer(host, step, reason, _for_cleanup(m))
        return Done({'owed': reason})
    m.note_try(record, reason)
    wait.reason = reason
    back_off(m, wait)
    return _next_try(host, wait)


def _next_try(host: str, wait: waiting.Wait) -> Parked:
    return Parked(f'the next try of {wait.what} at {host}, which has failed ({wait.reason})')


def _in_line(host: str) -> Parked:
    return Parked(f'a free place among the calls to {host}', patient=True, whom=())


def back_off(m: context.MigrationContext, wait: waiting.Wait) -> None:
    """Let be what has failed: twice as long each time, up to a minute, jittered."""
    first, last = _BACKOFF
    # What is never given up may fail more often than a float has room for.
    doubled = min(wait.tries - 1, 10)
    pause = float(min(last, first * 2**doubled) * (0.5 + m.tools.threads.random() / 2))
    _let_be(m, wait, pause)


def _let_be(m: context.MigrationContext, wait: waiting.Wait, seconds: float) -> None:
    wait.next_try = m.tools.threads.clock.monotonic() + seconds
    m.wake_by(wait.next_try)


def _stuck(m: context.MigrationContext, wait: waiting.Wait, reason: str) -> Stuck:
    """Have a step asked for again after a while, and not as fast as its host can answer."""
    _let_be(m, wait, LOOK_AGAIN)
    wait.stuck = Stuck(reason)
    return wait.stuck


def _for_cleanup(m: context.MigrationContext) -> dict[str, Any]:
    """Return what paying a debt of this migration will need: the frozen data of the preparation."""
    return {'migrate_data': m.result('pre_live_migration').get('migrate_data')}


def tell(m: context.MigrationContext, wait: waiting.Wait, request: str, **payload: Any) -> None:
    """Tell the source of a wish now, unless it has taken it lately; and have this migration woken for the next time."""
    now = m.tools.threads.clock.monotonic()
    if wait.next_try <= now and ask_once(m, m.source, request, **payload):
        wait.next_try = now + TELL_AGAIN
    m.wake_by(wait.next_try if wait.next_try > now else now + TELL_AGAIN)


def ask_once(m: context.MigrationContext, host: str, step: str, **payload: Any) -> bool:
    """Pass a wish on to a host that answers at once; return whether it has taken it."""
    answer = _send(m, host, step, payload)
    return isinstance(answer, protocol.Answer)


def look_at(m: context.MigrationContext, host: str) -> settle.Host:
    """Ask a host, now and in the present epoch, and return its word for the table."""
    word = _asked(m, host)
    (m.unheard.add if word.observed is settle.Observed.MISSING else m.unheard.discard)(host)
    return word


def _asked(m: context.MigrationContext, host: str) -> settle.Host:
    # What it said before no longer counts. Should it say the same again, that is news to whoever waits for an answer.
    m.seen.pop(host, None)
    if m.tools.hosts.was_silent(host, m.tools.options.poll_interval):
        # Another migration has just asked, and may have waited long for no answer: it need not be waited for again.
        m.waits_on.add(host)
        return _silent(m, host)
    try:
        found = m.tools.hosts.ask(host, [m.order(host, 'poll')], in_line=True)
    except HostBusy:
        # It was not asked, and so has not been silent either, for however long it was not heard.
        m.unasked.add(host)
        return settle.Host(settle.Observed.MISSING)
    observation = next((one for one in found or [] if one.migration_uuid == m.row.uuid), None)
    if observation is None:
        if found is not None:
            m.note_unresponsive(host)
        m.waits_on.add(host)
        return _silent(m, host)
    m.take_observation(observation)
    if observation.refusal == protocol.Refusal.EPOCH:
        m.raise_epoch(observation.epoch)
    if observation.refusal == protocol.Refusal.TENURE:
        # It is the only migration of the instance in progress: a cleanup was there, or the database has forgotten.
        m.raise_epoch(observation.epoch, observation.tenure)
    if observation.refusal == protocol.Refusal.BOOT:
        m.reread_boots()
    if observation.refusal is not None or observation.epoch > m.row.epoch:
        m.waits_on.add(host)
        return settle.Host(settle.Observed.MISSING)
    m.end_silence(host)
    return observed_in(m, observation)


def ask_first(m: context.MigrationContext) -> Parked | Stuck | None:
    """Ask every host that has to answer in the present epoch before anything else is done.

    :returns: what it waits for, if one is silent without being down.
    """
    while m.must_ask:
        epoch = m.row.epoch
        answers = {host: look_at(m, host) for host in sorted(m.must_ask)}
        if m.row.epoch != epoch:
            m.must_ask = set(m.hosts)
            continue
        m.must_ask = {host for host, word in answers.items() if word.observed is settle.Observed.MISSING}
        if m.must_ask:
            m.waits_on |= m.must_ask
            return not_told(m, *sorted(m.must_ask))
    return None


def not_told(m: context.MigrationContext, *hosts: str) -> Parked | Stuck:
    """Return how it waits for hosts that have not said where the guest is: for a person, where one answers and for long
    has not told of this guest.
    """
    for host in hosts:
        if m.unresponsive_for(host) >= m.tools.options.service_down_time:
            return Stuck(
                f'{host} answers, but its hypervisor has long not told of the guest: look at it, and at the log of its '
                'compute service. It goes on by itself when that tells; or stop that service, and declare the host '
                'forced down once it is fenced.'
            )
    if m.unasked.issuperset(hosts):
        return _in_line(' and '.join(hosts))
    return Parked(f'{", ".join(sorted(hosts))} to say where the guest is', whom=hosts)


def observed_in(m: context.MigrationContext, observation: protocol.Observation) -> settle.Host:
    """Return the row of the table for what a host said."""
    guest = observation.guest
    if observation.host == m.source:
        entry = protocol.Entry.RETURNED if _has_ended(m, observation) else observation.entry
        observed = settle.source_observed(guest.state, guest.job, entry)
        return settle.Host(observed, verdict=observation.verdict, post_copy=guest.post_copy)
    preparing = any(
        report.step == 'pre_live_migration' and report.state == protocol.WorkState.RUNNING
        for report in observation.reports
    )
    return settle.Host(settle.destination_observed(guest.state, preparing), post_copy=guest.post_copy)


def _has_ended(m: context.MigrationContext, observation: protocol.Observation) -> bool:
    """Whether this boot of the source has ended its part: it was cancelled in the queue, or the call has returned.

    A host makes a live migration at most once in its life, so it will not be made any more either.
    """
    if observation.entry in (protocol.Entry.QUEUED, protocol.Entry.STARTED):
        return False
    report = m.reports.get((observation.host, 'live_migration'))
    return report is not None and report.boot_id == observation.boot_id and report.state != protocol.WorkState.RUNNING


def _silent(m: context.MigrationContext, host: str) -> settle.Host:
    if not m.is_down(host):
        return settle.Host(settle.Observed.MISSING)
    forced = m.tools.database.services.get_compute(host).forced_down
    return settle.Host(settle.Observed.DOWN, forced_down=forced)


def _heard(m: context.MigrationContext, host: str, step: str, record: log.StepRecord) -> protocol.Report | None:
    found = m.reports.get((host, step))
    return found if found is not None and found.epoch >= record.epoch else None


def _send(
    m: context.MigrationContext, host: str, step: str, payload: dict[str, Any]
) -> protocol.Answer | Failed | Parked | exception.MigratorException:
    """Send an order, a second time if the host has been restarted and its new boot is known by now."""
    order = m.order(host, step)
    answer = protocol.Answer()
    if step in _ADVANCING:
        # Also where no answer comes: it may be on its way yet.
        m.settling = False
    for _ in range(2):
        try:
            answer = m.tools.hosts.tell(host, step, order, **payload)
        except HostBusy:
            m.note_unsent(step)
            return _in_line(host)
        except (exception.ServiceUnreachable, exception.RemoteError) as error:
            m.note_sent(step)
            m.waits_on.add(host)
            return error
        m.note_sent(step)
        if answer.refusal != protocol.Refusal.BOOT:
            break
        m.reread_boots()
        if m.order(host, step).boot_id == order.boot_id:
            break
        order = m.order(host, step)
    if answer.refusal is None:
        return answer
    if answer.refusal in (protocol.Refusal.EPOCH, protocol.Refusal.TENURE):
        m.raise_epoch(answer.seen, answer.seen_tenure if answer.refusal == protocol.Refusal.TENURE else None)
        m.wake_at = m.tools.threads.clock.monotonic()
        return Parked('to look at the hosts anew, in a new epoch')
    if answer.refusal == protocol.Refusal.STOPPING:
        return Failed(f'{host} is stopping and takes nothing new')
    m.waits_on.add(host)
    return Parked(f'{host} to be ready after its start')
