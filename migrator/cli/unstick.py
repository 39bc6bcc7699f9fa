# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage migration retry`` and ``abandon``: the commands for a stuck migration.

Both write a request, which the migration's owner carries out, and nothing else. They wake the owner. If the message is
lost, the owner's sweep finds the request.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from migrator import context, exception
from migrator.cli import cleanup, command, explain, timeline
from migrator.cli.command import Asked
from migrator.cli.timeline import Facts
from migrator.conductor.migration.abandon import ALLOCATIONS, CLEAN
from migrator.objects import Migration
from migrator.placement_client import allocation_state, allocations
from migrator.saga import log

#: Seconds between two polls for the result of a request.
_POLL = 0.5


def retry(asked: Asked) -> int:
    """Request that a stuck migration is observed again, or unblock the cleanups of an ended one.

    :raises migrator.exception.NotStuck: the migration is not stuck, and has no blocked cleanups.
    """
    facts = _facts(asked)
    migration = facts.migration
    if migration.ended:
        return _retry_cleanups(asked, facts)
    _refuse_unless_stuck(facts)
    hosts = ' and '.join(migration.hosts_to_poll)
    plan = [
        f'It is stuck: {migration.stuck_reason}',
        f'Its count of tries would be reset, and a conductor would poll {hosts} for the guest.',
        'If their reports are a known case, it goes on. If not, it is stuck as before.',
    ]
    if asked.arguments.dry_run:
        return _show_plan(asked, facts, plan, f'{asked.command} migration retry {migration.uuid}')
    asked.database.requests.request_retry(migration, _user())
    _wake(asked, migration)
    now = _wait(asked, migration.uuid, lambda row: row.ended or row.retry_requested_at is None)
    observed = now.ended or now.retry_requested_at is None
    if not observed:
        what = f' ({now.waits_for.rstrip(".")})' if now.waits_for else ''
        text = f'The retry is requested, and no conductor has done it yet{what}.'
    elif now.stuck_reason is not None:
        text = f'It was observed again, and is still stuck: {now.stuck_reason}'
    else:
        text = f'It is no longer stuck: it {"has ended" if now.ended else "is"} {now.status}.'
    asked.answer(
        {'migration': now.uuid, 'status': now.status, 'stuck': now.stuck_reason, 'looked': observed}, _line(text)
    )
    # Until a conductor has observed it again, stuck_reason is the old one.
    wrong = now.stuck_reason is not None if observed else asked.arguments.wait > 0
    return command.WRONG if wrong else command.RIGHT


def _retry_cleanups(asked: Asked, facts: Facts) -> int:
    migration = facts.migration
    blocked = [one for one in facts.cleanups if one.alarm]
    if not blocked:
        raise exception.NotStuck(uuid=migration.uuid, what=_ended(facts))
    plan = [f'A conductor would have {one.host} do {one.step} again, which is blocked: {one.alarm}' for one in blocked]
    plan += [cleanup.effect(host, step) for host, step in dict.fromkeys((one.host, one.step) for one in blocked)]
    plan.append('It may remove a guest that does not run there.')
    if asked.arguments.dry_run:
        return _show_plan(asked, facts, plan, f'{asked.command} migration retry {migration.uuid}')
    asked.database.cleanups.try_again(blocked)
    lines = [f'With its next sweep a conductor has {one.host} do {one.step}.' for one in blocked]
    asked.answer({'migration': migration.uuid, 'status': migration.status, 'debts': len(blocked)}, '\n'.join(lines))
    return command.RIGHT


def abandon(asked: Asked) -> int:
    """Request that a stuck migration ends in error, with its guest on the host that the operator names.

    :raises migrator.exception.NotStuck: the migration is not stuck.
    """
    facts = _facts(asked)
    migration, guest_on = facts.migration, asked.arguments.guest_on
    again = migration.in_progress and migration.abandon_guest_on == guest_on
    if not again:
        _refuse_unless_stuck(facts)
    names = [host for _, host in facts.hosts]
    if guest_on not in names:
        what = f'{guest_on!r} has no part in this migration: give {" or ".join(names)}'
        print(f'{command.PROG}: argument --guest-on: {what}', file=sys.stderr)
        return command.USAGE
    if not asked.arguments.yes:
        to_run = f'{asked.command} migration abandon {migration.uuid} --guest-on {guest_on} --yes'
        return _show_plan(asked, facts, [*_plan(asked, facts, guest_on)], to_run, again)
    asked.database.requests.request_abandon(migration, guest_on, _user())
    _wake(asked, migration)
    printed: list[str] = []

    def print_steps(row: Migration) -> bool:
        for step in asked.database.migrations.steps(row.uuid):
            if step.step in (CLEAN, ALLOCATIONS) and step.attempt == row.attempt:
                line = f'{explain.name_of(step)}: {explain.result_of(step)}'
                if line not in printed and not asked.arguments.json:
                    printed.append(line)
                    print(_line(line), flush=True)
        return row.ended

    now = _wait(asked, migration.uuid, print_steps)
    if now.ended:
        text = f'It has ended {now.status}: {now.failure}'
    else:
        show = f'{asked.command} migration show {now.uuid}'
        text = f'It is being abandoned, and has not ended yet: {show} shows what it waits for.'
    document = {'migration': now.uuid, 'status': now.status, 'guest_on': guest_on, 'dry_run': False}
    asked.answer(document, _line(text))
    late = not now.ended and asked.arguments.wait > 0
    return command.WRONG if late else command.RIGHT


# --- shared by both --------------------------------------------------------------------------------------------------


def _facts(asked: Asked) -> Facts:
    return timeline.gather(asked.database, asked.arguments.migration, asked.conf.conductor.lease)


def _ended(facts: Facts) -> str:
    return f'it ended {facts.migration.status} {command.ago(facts.migration.updated_at, facts.now)}.'


def _refuse_unless_stuck(facts: Facts) -> None:
    migration = facts.migration
    if migration.in_progress and migration.abandon_requested_at is not None:
        what = f'it is being abandoned, {timeline.abandoned_by(facts)}.'
    elif migration.in_progress and migration.stuck_reason is None:
        what = f'it is {migration.status}. {timeline.waits(facts)[0]} An abort undoes what can be undone.'
    elif migration.ended:
        what = _ended(facts)
    else:
        return
    raise exception.NotStuck(uuid=migration.uuid, what=what)


def _show_plan(asked: Asked, facts: Facts, plan: list[str], to_run: str, again: bool = False) -> int:
    """Print what a command would do.

    :param again: the same request was committed before, so no further command is needed.
    """
    migration = facts.migration
    head = f'Migration {migration.uuid} (id {migration.id}): {migration.status}'
    how = 'Nothing was changed, and no further request is needed. To wait for it:'
    how = how if again else 'Nothing was changed. To do it:'
    lines = [head, '', *(f'* {line}' for line in plan), '', how, f'  {to_run}']
    document = {'migration': migration.uuid, 'status': migration.status, 'dry_run': True, 'plan': plan}
    asked.answer(document, '\n'.join(map(_line, lines)))
    return command.RIGHT


def _line(text: str) -> str:
    return command.printable(text) if text else ''


def _user() -> str:
    """Return the name of the user who runs the command, for the timeline."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return 'an operator'


def _wake(asked: Asked, migration: Migration) -> None:
    """Wake the owner of a migration; an error is only printed, because the request is committed."""
    server = asked.database.conductors.server_of(migration.owner) if migration.owner else None
    try:
        asked.wake(context.admin_context(), migration.uuid, server)
    except Exception as error:  # noqa: BLE001 -- a wake-up only saves seconds
        why = ' '.join(str(error).split()) or type(error).__name__
        print(f'{command.PROG}: no conductor was woken, its sweep finds the request ({why})', file=sys.stderr)


def _wait(asked: Asked, uuid: str, enough: Callable[[Migration], bool]) -> Migration:
    """Return the migration as soon as ``enough`` accepts it, or after ``--wait`` seconds."""
    until = asked.threads.clock.monotonic() + asked.arguments.wait
    while True:
        row = asked.database.migrations.get(uuid)
        if enough(row) or asked.threads.clock.monotonic() >= until:
            return row
        asked.threads.sleep(_POLL)


# --- the plan of an abandonment ---------------------------------------------------------------------------------------


def _plan(asked: Asked, facts: Facts, guest_on: str) -> Iterator[str]:
    migration = facts.migration
    if migration.abandon_requested_at is not None:
        yield f'It is being abandoned already, {timeline.abandoned_by(facts)}.'
    elif migration.stuck_reason is not None:
        yield f'It is stuck: {migration.stuck_reason}'
    yield from _allocations(asked, facts, guest_on)
    other = next((host for _, host in facts.hosts if host != guest_on), None)
    if other is not None:
        yield _cleaning(facts, guest_on, other)
    polled = 'both hosts' if not migration.is_evacuation else migration.dest_compute or 'no host'
    yield (
        f'A conductor first polls {polled} for the guest. It waits for a host that is up and does not report: stop '
        'its compute service then. It counts as down after a while, or as soon as it is declared forced down.'
    )
    source = migration.source_compute
    if not facts.is_up(source) and not migration.is_evacuation:
        yield (
            f'{source} is down now. If its compute service runs and is only unreachable, it may still have the '
            'migration in its queue: restart it before you do this, or declare it forced down.'
        )
    yield f'Nothing is started, resumed, stopped or removed at {guest_on}: you state that the guest is there.'
    yield 'No guest that could run is destroyed on any host.'
    yield f'It ends in error. The instance is at {guest_on} then, in vm_state error and without a task_state.'
    yield (
        f'Check before you do it that {guest_on} has the guest, and that no other host runs it or can start it. If '
        'that is wrong, the guest may be started a second time, and its disk may be lost.'
    )


def _allocations(asked: Asked, facts: Facts, guest_on: str) -> Iterator[str]:
    journal = log.Journal(facts.steps)
    moved = journal.find(facts.migration.attempt, 'move_allocation')
    if moved is None or not moved.input:
        yield 'The allocations stay as they are, because their move never began.'
        return
    where = dict.fromkeys(moved.input['source'], facts.migration.source_compute)
    where |= {uuid: str(moved.input['host']) for uuid in moved.input['destination']}
    wanted = moved.input['source' if guest_on == facts.migration.source_compute else 'destination']
    for consumer, uuid, then in (
        ('instance', facts.migration.instance_uuid, _amounts(wanted, where)),
        ('migration', facts.migration.uuid, 'nothing'),
    ):
        yield f'Allocation of the {consumer} in Placement: {_now(asked, uuid, where)}; then {then}.'


def _now(asked: Asked, consumer: str, where: Mapping[str, str]) -> str:
    try:
        held = allocations.read(asked.placement(), consumer).allocations
    except exception.MigratorException as error:
        return f'not known now ({" ".join(str(error).split())})'
    return f'now {_amounts(held, where)}'


def _amounts(held: Mapping[str, Any], where: Mapping[str, str]) -> str:
    parts = [
        f'{", ".join(f"{name} {n}" for name, n in amounts.items())} at {where.get(uuid, uuid)}'
        for uuid, amounts in allocation_state.normal(held).items()
    ]
    return ' and '.join(parts) or 'nothing'


def _cleaning(facts: Facts, guest_on: str, other: str) -> str:
    if other == facts.migration.source_compute and facts.migration.is_evacuation:
        return (
            f'{other} removes its copy of the guest when it is back, once {guest_on} reports that it has the guest. '
            f'This is a deferred cleanup. It is blocked if {guest_on} does not report that now.'
        )
    if other == facts.migration.source_compute:
        what = (
            f'{other} removes what is left of the guest there, if {guest_on} reports that it runs the guest, or if '
            'no copy of the guest is left there. Otherwise'
        )
    else:
        what = f'{other} removes what was prepared for the guest there, if the guest itself is not there. Otherwise'
    down = '' if facts.is_up(other) else f' {other} is down now.'
    return (
        f'{what}, or while {other} is down, that becomes a deferred cleanup, which is blocked if an operator has to '
        f'look first.{down}'
    )
