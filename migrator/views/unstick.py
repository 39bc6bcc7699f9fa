# SPDX-License-Identifier: Apache-2.0

"""The requests of an operator for a stuck migration: whether they are allowed, and what each does.

Both are written as a request (:mod:`migrator.db.actions`), which the migration's owner carries out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from migrator import exception
from migrator.db.cleanups import Cleanup
from migrator.objects import times
from migrator.saga import log
from migrator.views import cleanups, timeline
from migrator.views.timeline import Facts

#: Returns what a consumer holds in Placement; it raises a :class:`migrator.exception.MigratorException` if it cannot.
Held = Callable[[str], Mapping[str, Any]]


def plan_retry(facts: Facts) -> list[str]:
    """Return what a retry does next, in sentences.

    :raises migrator.exception.NotStuck: the migration is not stuck, and has no blocked cleanups.
    """
    migration = facts.migration
    if migration.ended:
        blocked = blocked_cleanups(facts)
        plan = [
            f'A conductor would have {one.host} do {one.step} again, which is blocked: {one.blocked_because}'
            for one in blocked
        ]
        plan += dict.fromkeys(cleanups.effect(one) for one in blocked)
        return [*plan, 'It may remove a guest that does not run there.']
    _refuse_unless_stuck(facts)
    hosts = ' and '.join(migration.hosts_to_poll)
    return [
        f'It is stuck: {migration.stuck_reason}',
        f'Its count of tries would be reset, and a conductor would poll {hosts} for the guest.',
        'If their reports are a known case, it goes on. If not, it is stuck as before.',
    ]


def check_retry(facts: Facts) -> Sequence[Cleanup]:
    """Check a request to retry a migration, and return the blocked cleanups if it has ended.

    :raises migrator.exception.NotStuck: the migration is not stuck, and has no blocked cleanups.
    """
    if facts.migration.ended:
        return blocked_cleanups(facts)
    _refuse_unless_stuck(facts)
    return ()


def blocked_cleanups(facts: Facts) -> Sequence[Cleanup]:
    """Return the blocked cleanups of a migration that has ended.

    :raises migrator.exception.NotStuck: it has none.
    """
    found = [one for one in facts.cleanups if one.blocked_because]
    if not found:
        raise exception.NotStuck(uuid=facts.migration.uuid, what=_ended(facts))
    return found


def check_abandon(facts: Facts, guest_on: str) -> bool:
    """Check a request to abandon a migration, and return whether the same one was committed before.

    A finished cold migration may be abandoned while its source is down: its user can neither confirm nor revert it.

    :raises migrator.exception.NotStuck: the migration is not stuck, and its user can decide.
    :raises migrator.exception.Invalid: the host has no part in the migration.
    """
    migration = facts.migration
    again = migration.in_progress and migration.abandon_guest_on == guest_on
    if not again and not timeline.is_undecidable(facts):
        _refuse_unless_stuck(facts)
    names = [host for _, host in facts.hosts]
    if guest_on not in names:
        raise exception.Invalid(f'{guest_on!r} has no part in this migration: give {" or ".join(names)}')
    return again


def _ended(facts: Facts) -> str:
    return f'it ended {facts.migration.status} {times.ago(facts.migration.updated_at, facts.now)}.'


def _refuse_unless_stuck(facts: Facts) -> None:
    migration = facts.migration
    if migration.in_progress and migration.abandon_requested_at is not None:
        requested = timeline.abandoned_by(facts)
        raise exception.NotStuck(
            f'Migration {migration.uuid} is being abandoned already, {requested}. Wait for it to end.'
        )
    if migration.in_progress and migration.stuck_reason is None:
        what = f'it is {migration.status}. {timeline.waits(facts)[0]}'
        what += ' An abort undoes what can be undone.' if migration.is_live else ''
    elif migration.ended:
        what = _ended(facts)
    else:
        return
    raise exception.NotStuck(uuid=migration.uuid, what=what)


# --- the plan of an abandonment ---------------------------------------------------------------------------------------


def plan_abandon(facts: Facts, guest_on: str, held: Held) -> Iterator[str]:
    """Yield what it would mean to abandon a migration, in sentences.

    :param guest_on: the host that has the guest, as the operator states.
    """
    migration = facts.migration
    if migration.abandon_requested_at is not None:
        yield f'It is being abandoned already, {timeline.abandoned_by(facts)}.'
    elif migration.stuck_reason is not None:
        yield f'It is stuck: {migration.stuck_reason}'
    yield from _allocations(facts, guest_on, held)
    other = next((host for _, host in facts.hosts if host != guest_on), None)
    if other is not None:
        yield _cleaning(facts, guest_on, other)
    polled = 'both hosts' if not migration.is_evacuation else migration.dest_compute or 'no host'
    if not migration.stays:
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
    if migration.stays:
        flavor = 'its old flavor again' if migration.has_old_flavor(guest_on) else 'only its new flavor'
        yield f'If its resize had begun, {guest_on} gives the guest {flavor} in a deferred cleanup, and may restart it.'
    else:
        yield f'Nothing is started, resumed, stopped or removed at {guest_on}: you state that the guest is there.'
    yield 'No guest that could run is destroyed on any host.'
    yield f'It ends in error. The instance is at {guest_on} then, in vm_state error and without a task_state.'
    yield (
        f'Check before you do it that {guest_on} has the guest, and that no other host runs it or can start it. If '
        'that is wrong, the guest may be started a second time, and its disk may be lost.'
    )


def _allocations(facts: Facts, guest_on: str, held: Held) -> Iterator[str]:
    step_log = log.StepLog(facts.steps)
    moved = step_log.find(facts.migration.attempt, 'move_allocation')
    if moved is None or not moved.input:
        yield 'The allocations stay as they are, because their move never began.'
        return
    where = dict.fromkeys(moved.input['source'], facts.migration.source_compute)
    where |= {uuid: str(moved.input['host']) for uuid in moved.input['destination']}
    wanted = moved.input['source' if facts.migration.has_old_flavor(guest_on) else 'destination']
    for consumer, uuid, then in (
        ('instance', facts.migration.instance_uuid, _amounts(wanted, where)),
        ('migration', facts.migration.uuid, 'nothing'),
    ):
        yield f'Allocation of the {consumer} in Placement: {_now(held, uuid, where)}; then {then}.'


def _now(held: Held, consumer: str, where: Mapping[str, str]) -> str:
    try:
        found = held(consumer)
    except exception.MigratorException as error:
        return f'not known now ({" ".join(str(error).split())})'
    return f'now {_amounts(found, where)}'


def _amounts(held: Mapping[str, Any], where: Mapping[str, str]) -> str:
    parts = [
        f'{", ".join(f"{name} {n}" for name, n in amounts.items() if n)} at {where.get(uuid, uuid)}'
        for uuid, amounts in held.items()
        if any(amounts.values())
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
