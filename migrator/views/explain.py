# SPDX-License-Identifier: Apache-2.0

"""The events of a migration line by line, from its log, and what happens next.

Nothing here calls a host. Everything comes from the database.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from migrator.db import actions
from migrator.objects import MigrationStatus, Outcome, remedies, steps, times
from migrator.objects.migration import AbortCause
from migrator.objects.reasons import Reason
from migrator.objects.remedies import Reading
from migrator.objects.steps import AFTER_EVACUATION, AT_DESTINATION, AT_SOURCE
from migrator.saga import log
from migrator.views import timeline
from migrator.views.timeline import Facts

Status = MigrationStatus

#: The beginning of each command in a text.
PROG = 'migrator-manage'

#: The descriptions of the log's records that no declared step has made.
_NO_STEPS = {
    steps.ABANDON: 'hosts refuse from now on what was sent before',
    steps.ABANDON_CLEAN: 'clean {host}',
    steps.ABANDON_ALLOCATIONS: 'write the allocations',
}


@dataclasses.dataclass(frozen=True)
class Line:
    """One event of a migration.

    :ivar at: the time by the database's clock, or by the conductor's for a status.
    :ivar server: the conductor that wrote the event; None: no conductor did.
    """

    at: datetime.datetime
    server: str | None
    epoch: int | None
    what: str


# --- line by line ----------------------------------------------------------------------------------------------------


def lines(facts: Facts) -> list[Line]:
    """Return the events of a migration in the order of its log, with the requests inserted by their times."""
    found: list[Line] = []
    requests = sorted(_of_requests(facts), key=lambda line: line.at)
    for entry in facts.entries:
        for line in _of_entry(facts, entry):
            while requests and entry.seq > 1 and requests[0].at <= line.at:
                found.append(requests.pop(0))
            found.append(line)
    return [*_with_takeovers([*found, *requests])]


def _with_takeovers(events: Iterable[Line]) -> Iterator[Line]:
    """Yield the events, and a line for each takeover, since the log has no entry of one."""
    before: str | None = None
    for line in events:
        if line.server is not None:
            if before not in (None, line.server):
                what = f'{line.server} has taken it over from {before}, and polled the hosts'
                yield Line(line.at, line.server, line.epoch, what)
            before = line.server
        yield line


#: A step that lasts this long has two lines: one for its beginning and one for its result.
_LONG = datetime.timedelta(seconds=1)


def _of_entry(facts: Facts, entry: log.Entry) -> Iterator[Line]:
    at, server = entry.at or facts.now, facts.server_of(entry.conductor)
    if entry.direction is not None:
        yield from (Line(at, server, entry.epoch, what) for what in _of_step(facts, entry))
    elif entry.kind == log.EntryKind.STATUS:
        status = entry.payload['status']
        asked = f': {_asked(facts)}' if status == Status.ACCEPTED else ''
        yield Line(at, server, entry.epoch, f'status {status}{asked}')
    elif entry.kind == log.EntryKind.RETRY:
        asked_at = datetime.datetime.fromisoformat(entry.payload['requested_at'])
        yield Line(asked_at, None, None, f'{entry.payload["by"] or "an unknown user"} requested a retry')
    elif entry.kind == log.EntryKind.STUCK:
        yield Line(at, server, entry.epoch, f'stuck: {Reason.of_entry(entry.payload).sentence}')
    else:
        yield Line(at, server, entry.epoch, 'no longer stuck')


def _of_step(facts: Facts, entry: log.Entry) -> Iterator[str]:
    step = log.StepLog(facts.steps).find(entry.attempt, entry.step or '', entry.direction or log.DO)
    assert step is not None, 'each entry of a step has a record'
    same = [one for one in facts.entries if (one.attempt, one.step, one.direction) == step.key]
    first, last = entry is same[0], entry is same[-1]
    if first and step.attempt > 1 and (step.step, step.direction) == ('move_allocation', log.DO):
        host = facts.host_of(step)
        yield f'attempt {step.attempt}: {f"the next candidate is {host}" if host else "there is no next candidate"}'
    name = name_of(step, facts.host_of(step))
    if step.step == steps.ABANDON:
        if first:
            yield name
    elif first and not last and _took_time(step, same):
        yield f'{name}: begun'
    elif last:
        yield f'{name}: {result_of(step)}'


def _took_time(step: log.StepRecord, same: Sequence[log.Entry]) -> bool:
    """Return whether other events may lie between the beginning of a step and its result."""
    if step.state == log.StepState.INTENT or (step.step in steps.PIVOTS and step.direction == log.DO):
        return True
    if same[0].epoch != same[-1].epoch:
        return True
    return step.started_at is not None and step.ended_at is not None and (step.ended_at - step.started_at) >= _LONG


def name_of(step: log.StepRecord, host: str | None = None) -> str:
    """Return a record of the log in words.

    :param host: the host that runs the step.
    """
    where = f' at {host}' if host and step.step != 'move_allocation' else ''
    if step.step in _NO_STEPS:
        return f'abandon: {_NO_STEPS[step.step].format(host=(step.input or {}).get("host"))}'
    if step.direction == log.DO:
        return f'{step.step}{where}'
    return f'{steps.UNDOS[step.step]}{where}'


def result_of(step: log.StepRecord) -> str:
    """Return the result of a step in words, with its duration if it is a second or more, and its tries."""
    if step.state == log.StepState.INTENT and step.tries > 1:
        return f'failed so far; {_details(step)}' if _details(step) else 'begun again'
    words = _state_of(step)
    if step.started_at and step.ended_at:
        seconds = (step.ended_at - step.started_at).total_seconds()
        words += f' after {times.span(seconds)}' if seconds >= 1 else ''
    if step.tries > 1:
        words += f', tried {step.tries} times'
    if _is_deferred(step):
        words += ', and deferred'
    details = _details(step)
    return f'{words}; {details}' if details else words


def _is_deferred(step: log.StepRecord) -> bool:
    return step.facts.deferred is not None


def _state_of(step: log.StepRecord) -> str:
    if step.state == log.StepState.INTENT:
        return 'begun'
    if step.state == log.StepState.FAILED:
        return {'live_migration': 'not moved', 'evacuate': 'not started', 'finish_migration': 'not started'}.get(
            step.step, 'not done'
        )
    return 'not done' if _is_deferred(step) else 'done'


def _details(step: log.StepRecord) -> str:
    result: Mapping[str, Any] = step.result or {}
    facts = step.facts
    words = facts.reason or facts.deferred or facts.skipped
    if words:
        return str(words)
    if step.state != log.StepState.DONE or step.direction != log.DO:
        return ''
    if step.step == 'move_allocation' and step.input:
        amounts = [f'{name} {n}' for held in step.input['destination'].values() for name, n in held.items()]
        there = f'the instance holds its allocation ({", ".join(amounts)}) at {step.input["host"]}'
        return f'{there}, and the migration the one at the source'
    if step.step == 'live_migration':
        return 'the destination runs the guest' + (', and its memory follows' if result.get('post_copy') else '')
    if step.step == 'evacuate':
        return 'the destination runs the guest'
    if step.step == 'finish_migration':
        return 'the destination has the guest'
    if step.step == 'resize':
        return 'the guest has its new flavor'
    if step.step == steps.ABANDON_ALLOCATIONS and result.get('host'):
        return f'the instance holds its allocation at {result["host"]}, and the migration holds nothing'
    return ''


def _asked(facts: Facts) -> str:
    migration = facts.migration
    to = f'to {migration.requested_host}' if migration.requested_host else 'to any host that can take it'
    if migration.new_flavor is not None and migration.old_flavor is not None:
        to += f', with flavor {migration.new_flavor.name} in place of {migration.old_flavor.name}'
    return f'{_user(facts, actions.ACTION_OF[migration.migration_type])} requested it, {to}'


def _user(facts: Facts, action: str) -> str:
    found = next((one.user_id for one in facts.requests if one.action == action), None)
    return found or 'an unknown user'


def _confirmed(facts: Facts) -> str:
    if facts.migration.drain is not None:
        return f'drain {facts.migration.drain} requested it with its confirmation'
    return f'{_user(facts, actions.CONFIRM_RESIZE)} confirmed it'


def _of_requests(facts: Facts) -> Iterator[Line]:
    migration = facts.migration
    user = migration.abort_requested_by or 'an unknown user'
    acts: dict[str, str] = {AbortCause.HOST_STOP: 'planned stop', AbortCause.HOST_START: 'start'}
    act = acts.get(migration.abort_cause or '')
    user = f'the {act} of {migration.source_compute}' if act is not None else user
    found = (
        (migration.abort_requested_at, f'{user} requested an abort'),
        (
            migration.force_complete_requested_at,
            f'{_user(facts, "live_migration_force_complete")} requested a forced completion',
        ),
        (migration.confirm_requested_at, _confirmed(facts)),
        (migration.revert_requested_at, f'{_user(facts, actions.REVERT_RESIZE)} reverted it'),
        (
            migration.abandon_requested_at,
            f'{migration.abandon_requested_by or "an unknown user"} requested to abandon it: the guest is on '
            f'{migration.abandon_guest_on}',
        ),
    )
    for at, what in found:
        if at is not None:
            yield Line(at, None, None, what)


# --- what happens next -----------------------------------------------------------------------------------------------


def next_(facts: Facts, program: str = PROG) -> list[str]:
    """Return sentences on what happens next, and on what an operator has to do for it.

    :param program: the beginning of the commands in them: the program with its configuration option.
    """
    migration = facts.migration
    if migration.ended:
        return [*_after_the_end(facts, program), *_cleanups(facts, program)]
    if migration.abandon_requested_at is not None:
        found = [*_owner(facts), *_abandoned(facts)]
    elif migration.stuck_kind is not None:
        found = [*_stuck(facts, program)]
    else:
        found = [*_owner(facts), *_steps(facts)]
    if timeline.is_undecidable(facts):
        found += [*_undecidable(facts, program)]
    return [*found, *_cleanups(facts, program)]


def _after_the_end(facts: Facts, program: str) -> Iterator[str]:
    migration = facts.migration
    if migration.status == Status.DONE:
        yield from _while_done(facts, program)
        return
    completed = migration.status in (Status.COMPLETED, Status.CONFIRMED)
    if migration.status != Status.ERROR and facts.is_in_doubt(
        migration.dest_compute if completed else migration.source_compute
    ):
        return  # The lines on the blocked cleanup say what to do.
    if facts.elsewhere is not None and migration.status != Status.ERROR:
        yield remedies.offer(remedies.Kind.SEE_WHERE)
    elif completed and facts.instance is not None and facts.instance.host != migration.dest_compute:
        yield f'Nothing: the guest has left {migration.dest_compute} since.'
    elif completed:
        yield f'Nothing: the guest {"is" if migration.is_cold else "runs"} at {migration.dest_compute}.'
    elif migration.status == Status.FAILED and migration.is_evacuation:
        yield (
            f'Nothing: the guest was left at {migration.source_compute}. If that host is dead, remedy the reason of '
            'the failure, and evacuate the guest again.'
        )
    elif migration.status != Status.ERROR:
        again = 'can be migrated again' if migration.is_cold else 'can be migrated again while it runs'
        yield f'Nothing: the guest is at {migration.source_compute}, and {again}.'
    elif migration.abandon_guest_on is not None:
        yield from _in_error(facts, 'look whether its guest runs there')
    else:
        yield from _in_error(facts, f'look for its guest {"there" if migration.stays else "on both hosts"}')


def _in_error(facts: Facts, look: str) -> Iterator[str]:
    """Yield what to do about an instance whose migration ended in error."""
    instance = facts.instance
    if instance is None:
        yield 'Nothing: the instance was deleted.'
    elif instance.vm_state != 'error':
        yield f'Nothing: the instance is in vm_state {instance.vm_state} at {instance.host} by now.'
    elif facts.elsewhere is not None:
        yield f'{facts.elsewhere} {remedies.offer(remedies.Kind.SEE_WHERE)}'
    else:
        host = instance.host
        read = {
            Reading.HOST_REPORTS: facts.reports(host),
            Reading.NOT_DEFINED: not facts.is_defined,
            Reading.ELSEWHERE: False,
        }
        evacuate = remedies.offer(remedies.Kind.EVACUATE_IF_LOST, read, host=host, guest=instance.uuid)
        again = remedies.joined(', or else ', evacuate, 'create the instance again')
        if not facts.is_defined:
            again = f'{again}: an evacuation needs its definition, which {host} has not reported'
        yield f'Nothing by itself. The instance is in vm_state error at {host}: {look}. If no host has it, {again}.'


def _while_done(facts: Facts, program: str) -> Iterator[str]:
    """Yield what an evacuation that is done waits for."""
    source = facts.migration.source_compute
    service, pending = facts.service_of(source), [one for one in facts.cleanups if one.host == source]
    if not pending:
        yield f'A conductor releases the allocation at {source} with the next sweep, and completes the evacuation.'
        return
    if any(one.blocked_because for one in pending):
        yield f'The evacuation is completed when the blocked cleanup at {source} is done or discarded.'
        return
    if facts.reports(source):
        yield f'{source} removes its copy of the guest with the next sweep, and the evacuation is completed.'
    else:
        yield (
            f'Nothing, until {source} is back: start its compute service, also while it is forced down. It removes its '
            'copy of the guest, and the evacuation is completed.'
        )
    if service is not None:
        look = {Reading.HOST_REPORTS: facts.reports(source)}
        yield from filter(None, [remedies.offer(remedies.Kind.DELETE_SERVICE, look, host=source, manage=program)])


def _cleanups(facts: Facts, program: str) -> Iterator[str]:
    if any(cleanup.blocked_because for cleanup in facts.cleanups):
        yield (
            'A blocked cleanup does not run until an operator has looked. Then, to run it again: '
            f'{_retry(facts, program)}'
        )
    is_done = facts.migration.status == Status.DONE
    for cleanup in facts.cleanups:
        if not cleanup.blocked_because and not (is_done and cleanup.step == AFTER_EVACUATION):
            when = 'with the next sweep' if facts.is_up(cleanup.host) else facts.when_back(cleanup.host)
            yield f'{cleanup.host} does {cleanup.step} {when}; until then it is no destination for this instance.'


def _owner(facts: Facts) -> Iterator[str]:
    if facts.owner is None or facts.owner.lease_until <= facts.now:
        living = ' or '.join(facts.living)
        polled = facts.migration.source_compute if facts.migration.stays else 'both hosts'
        yield (
            f'{living} takes it over, and polls {polled} first.' if living else 'Nothing, until a conductor is started.'
        )


def _stuck(facts: Facts, program: str) -> Iterator[str]:
    migration = facts.migration
    uuid = migration.uuid
    yield (
        'Nothing, until the cause is fixed. Then it goes on with the next sweep. To retry at once, with all earlier '
        'tries forgotten:'
    )
    yield f'  {_retry(facts, program)}'
    if migration.stays:
        look = f'look whether the guest is at {migration.source_compute}'
    else:
        look = f'look on which host the guest is ({" or ".join(host for _, host in facts.hosts)})'
    yield (
        f'If the cause cannot be fixed: {look}, and end the migration in error with the allocation at that host. The '
        'first of these commands only shows what would happen:'
    )
    # Without an outcome the command has a placeholder, so that the operator must look before pasting it.
    either = migration.source_compute if migration.stays else 'HOST'
    guest_on = {'forward': migration.dest_compute, 'back': migration.source_compute}.get(
        migration.outcome or '', either
    )
    for kind in (remedies.Kind.ABANDON, remedies.Kind.ABANDON_YES):
        yield f'  {remedies.offer(kind, migration=uuid, host=guest_on, manage=program)}'


def _retry(facts: Facts, program: str) -> str:
    return remedies.offer(remedies.Kind.RETRY, migration=facts.migration.uuid, manage=program)


def _abandoned(facts: Facts) -> Iterator[str]:
    migration = facts.migration
    step_log = log.StepLog(facts.steps)
    left = []
    for name in (steps.ABANDON_CLEAN, steps.ABANDON_ALLOCATIONS)[migration.stays :]:
        record = step_log.find(migration.attempt, name)
        if record is None or record.state != log.StepState.DONE:
            other = next((host for _, host in facts.hosts if host != migration.abandon_guest_on), 'the other host')
            left.append(_NO_STEPS[name].format(host=other))
    guest_on = migration.abandon_guest_on
    left.append(f'it ends in error, the instance being at {guest_on} in vm_state error')
    yield f'It is being abandoned: {"; ".join(left)}.'


def _steps(facts: Facts) -> Iterator[str]:
    migration = facts.migration
    step_log = log.StepLog(facts.steps)
    attempt = migration.attempt
    if migration.outcome == Outcome.FORWARD:
        names = list(_left_after(facts, step_log))
        if migration.status == Status.FINISHED and not (
            migration.confirm_requested_at or migration.revert_requested_at
        ):
            yield from _finished(facts)
            return
        moved = 'was started' if migration.is_evacuation else 'has moved'
        moved = 'goes back to its source' if migration.revert_requested_at else moved
        if migration.stays:
            moved = 'gets its old flavor' if migration.revert_requested_at else 'has its new flavor'
        yield f'The guest {moved}, and nothing is undone any more. {_list(facts, names)}'
        return
    records = step_log.of_attempt(attempt)
    undoing = any(one.direction == log.UNDO or one.state == log.StepState.FAILED for one in records)
    if migration.outcome == Outcome.BACK or undoing:
        undos = list(_left_to_undo(facts, step_log))
        end = 'cancelled' if migration.abort_status == Status.CANCELLED else 'failed'
        after = f'Then it ends {end}.' if migration.outcome else 'Then the next candidate is tried, if there is one.'
        yield f'It is being undone. {_list(facts, undos)} {after}'
        return
    sent = step_log.find(attempt, facts.saga.pivot.name) is not None
    if migration.is_evacuation:
        yield from _evacuation(facts, step_log, sent)
    elif migration.is_cold:
        yield from _cold(facts, step_log, sent)
    elif migration.abort_requested_at is not None:
        yield 'It is aborted: both hosts are polled, and unless the guest has moved, everything is undone.'
    elif sent:
        source, destination = migration.source_compute, migration.dest_compute
        yield (
            f'When the copy has ended, {source} reports it, and {destination} is polled. If it runs the guest: '
            f'{_list(facts, _after_the_pivot(facts))} If not: everything is undone.'
        )
    else:
        left = _list(facts, _left_before(facts, step_log))
        yield f'{left} When the guest has moved: {_list(facts, _after_the_pivot(facts))}'


def _evacuation(facts: Facts, step_log: log.StepLog, sent: bool) -> Iterator[str]:
    """Yield what happens next to an evacuation without an outcome that is not undone."""
    migration = facts.migration
    source, destination = migration.source_compute, migration.dest_compute
    after = _list(facts, _after_the_pivot(facts))
    if sent:
        yield (
            f'{destination} starts the guest, and is polled. If it runs the guest: {after} If it has certainly not '
            'started it: that is undone, and the next candidate is tried unless the user requested a host.'
        )
        yield f'{source} starts nothing and removes nothing meanwhile, even if it comes back.'
    elif migration.abort_requested_at is not None:
        yield f'It is undone, and ends failed. The guest stays at {source}.'
    else:
        yield f'{_list(facts, _left_before(facts, step_log))} When the guest runs there: {after}'
        yield f'If {source} comes back before evacuate begins, it ends failed, and the guest stays there.'


def _cold(facts: Facts, step_log: log.StepLog, sent: bool) -> Iterator[str]:
    """Yield what happens next to a cold migration without an outcome that is not undone."""
    migration = facts.migration
    after = 'Then it is finished, and waits for its user to confirm or to revert it.'
    if migration.confirm_requested_at is not None:
        after = f'Then it is finished, and confirmed at once: {_list(facts, _after_the_pivot(facts))}'
    if migration.abort_requested_at is not None:
        already = 'the guest has its new flavor' if migration.stays else 'the destination has the guest'
        yield f'It is aborted: unless {already} already, everything is undone.'
    elif sent and migration.stays:
        yield (
            f'{migration.source_compute} gives the guest its new flavor, and is polled. {after} If it cannot: '
            'everything is undone, and it ends failed.'
        )
    elif sent:
        yield (
            f'{migration.dest_compute} starts the guest, and is polled. {after} If it has certainly not started the '
            'guest: everything is undone, and the next candidate is tried unless the user requested a host.'
        )
    else:
        yield f'{_list(facts, _left_before(facts, step_log))} {after}'


def _finished(facts: Facts) -> Iterator[str]:
    """Yield what a finished cold migration waits for."""
    migration = facts.migration
    source = migration.source_compute
    if migration.stays:
        kept = 'the old definition of the guest, and the migration holds the allocation of the old flavor'
        decide = 'To let the guest keep the new flavor, or to give it the old one'
    else:
        kept = 'the guest shut off, and the migration holds the allocation there'
        decide = 'To let the guest stay where it is, or to move it back'
    is_down = timeline.is_undecidable(facts)
    looks = {
        remedies.Kind.CONFIRM: {Reading.HOST_DOWN: is_down or not facts.is_up(migration.dest_compute or source)},
        remedies.Kind.REVERT: {Reading.HOST_DOWN: is_down},
    }
    offers = [remedies.offer(kind, look, guest=migration.instance_uuid) for kind, look in looks.items()]
    commands = [f'  {one}' for one in offers if one]
    yield f'Nothing, until its user decides. {source} keeps {kept}.{f" {decide}:" if commands else ""}'
    yield from commands


def _undecidable(facts: Facts, program: str) -> Iterator[str]:
    """Yield what an operator can do whose users cannot decide."""
    migration = facts.migration
    where = 'and its new flavor there, fence that host, and evacuate the guest' if migration.stays else 'where it is'
    yield (
        f'It can neither be confirmed nor reverted while {migration.source_compute} is down. If that never comes back, '
        f'end the migration in error with the guest {where}:'
    )
    kind, host = remedies.Kind.ABANDON, migration.dest_compute
    yield f'  {remedies.offer(kind, migration=migration.uuid, host=host, manage=program)}'


def _left_before(facts: Facts, step_log: log.StepLog) -> list[str]:
    saga = facts.saga
    left = saga.steps[: saga.steps.index(saga.pivot) + 1]
    return [step.name for step in left if not _done(step_log, facts.migration.attempt, step.name)]


def _after_the_pivot(facts: Facts) -> list[str]:
    saga = facts.saga
    return [step.name for step in saga.steps[saga.steps.index(saga.pivot) + 1 :]]


def _done(step_log: log.StepLog, attempt: int, name: str) -> bool:
    record = step_log.find(attempt, name)
    return record is not None and record.state == log.StepState.DONE


def _left_after(facts: Facts, step_log: log.StepLog) -> Iterator[str]:
    yield from (name for name in _after_the_pivot(facts) if not _done(step_log, facts.migration.attempt, name))


def _left_to_undo(facts: Facts, step_log: log.StepLog) -> Iterator[str]:
    """Yield the undos that are left, in the order of the saga."""
    imagined, attempt = log.StepLog(step_log.all()), facts.migration.attempt
    while (step := facts.saga.next_undo(imagined, attempt)) is not None:
        assert step.undo is not None
        yield step.undo.__name__
        imagined.put([log.StepRecord(step.name, log.UNDO, log.StepState.DONE.value, attempt)])


def _list(facts: Facts, names: Sequence[str]) -> str:
    """Return the names of steps in a sentence, each with its host if it has one."""
    migration = facts.migration
    words = []
    for name in names:
        host = None
        if name in AT_DESTINATION:
            host = migration.dest_compute
        elif name in AT_SOURCE:
            host = migration.source_compute
        words.append(f'{name} at {host}' if host else name)
    return f'{", then ".join(words)}.' if words else ''
