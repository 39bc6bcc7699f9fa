# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage migration retry`` and ``abandon``: what a person does about a migration that is stuck.

Both write a wish, which the migration's owner carries out; nothing else is written here. Its conductor is woken, and
where no message comes through, its sweep finds the wish.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from migrator import context, exception
from migrator.cli import command as manage_command
from migrator.cli import explain, timeline
from migrator.cli.command import Asked
from migrator.cli.timeline import Story
from migrator.conductor.migration.abandon import ALLOCATIONS, CLEAN
from migrator.objects import Migration
from migrator.placement_client import allocation_state, allocations
from migrator.saga import log

#: Seconds between two looks at what has come of a wish.
_LOOK = 0.5


def retry(asked: Asked) -> int:
    """Have a migration that is stuck looked at anew; or one that has ended, whose debts have alarms.

    :raises migrator.exception.NotStuck: it is not stuck.
    """
    story = _story(asked)
    migration = story.migration
    if migration.ended:
        return _retry_cleanups(asked, story)
    _refuse_unless_stuck(story)
    hosts = ' and '.join(host for _, host in story.hosts)
    plan = [
        f'It is stuck: {migration.stuck_reason}',
        f'All tries counted against it would be forgotten, and {hosts} be asked what there is of the guest.',
        'If that is a known case it goes on; if not, it is stuck as before.',
    ]
    if asked.arguments.dry_run:
        return _tell(asked, story, plan, f'{asked.command} migration retry {migration.uuid}')
    asked.database.requests.request_retry(migration, _who())
    _wake(asked, migration)
    now = _wait(asked, migration.uuid, lambda row: row.ended or row.retry_requested_at is None)
    looked = now.ended or now.retry_requested_at is None
    if not looked:
        what = f' ({now.waits_for.rstrip(".")})' if now.waits_for else ''
        said = f'It is to be looked at anew, and no conductor has done so yet{what}.'
    elif now.stuck_reason is not None:
        said = f'It was looked at, and is stuck still: {now.stuck_reason}'
    else:
        said = f'It is stuck no longer: it {"has ended" if now.ended else "is"} {now.status}.'
    asked.answer(
        {'migration': now.uuid, 'status': now.status, 'stuck': now.stuck_reason, 'looked': looked}, _line(said)
    )
    # What it was stuck for says nothing of a look that has not been.
    wrong = now.stuck_reason is not None if looked else asked.arguments.wait > 0
    return manage_command.WRONG if wrong else manage_command.RIGHT


def _retry_cleanups(asked: Asked, story: Story) -> int:
    migration = story.migration
    alarmed = [cleanup for cleanup in story.cleanups if cleanup.alarm]
    if not alarmed:
        raise exception.NotStuck(uuid=migration.uuid, what=_ended(story))
    plan = [
        f'{cleanup.host} would be told again to do {cleanup.step}, for which it has an alarm: {cleanup.alarm}'
        for cleanup in alarmed
    ]
    plan.append('It looks first, and destroys no guest that could run. What does not run there, it may remove.')
    if asked.arguments.dry_run:
        return _tell(asked, story, plan, f'{asked.command} migration retry {migration.uuid}')
    asked.database.cleanups.try_again(alarmed)
    said = [f'{cleanup.host} is told with the next sweep to do {cleanup.step}.' for cleanup in alarmed]
    asked.answer({'migration': migration.uuid, 'status': migration.status, 'debts': len(alarmed)}, '\n'.join(said))
    return manage_command.RIGHT


def abandon(asked: Asked) -> int:
    """End a migration that is stuck in error, with its guest where somebody says that it is.

    :raises migrator.exception.NotStuck: it is not stuck.
    """
    story = _story(asked)
    migration, guest_on = story.migration, asked.arguments.guest_on
    again = migration.in_progress and migration.abandon_guest_on == guest_on
    if not again:
        _refuse_unless_stuck(story)
    names = [host for _, host in story.hosts]
    if guest_on not in names:
        would_do = ' or '.join(names)
        what = f'{guest_on!r} has no part in this migration; {would_do} would do'
        print(f'{manage_command.PROG}: argument --guest-on: {what}', file=sys.stderr)
        return manage_command.USAGE
    if not asked.arguments.yes:
        command = f'{asked.command} migration abandon {migration.uuid} --guest-on {guest_on} --yes'
        return _tell(asked, story, [*_plan(asked, story, guest_on)], command, again)
    asked.database.requests.request_abandon(migration, guest_on, _who())
    _wake(asked, migration)
    told: list[str] = []

    def look(row: Migration) -> bool:
        for step in asked.database.migrations.steps(row.uuid):
            if step.step in (CLEAN, ALLOCATIONS) and step.attempt == row.attempt:
                line = f'{explain.name_of(step)}: {explain.result_of(step)}'
                if line not in told and not asked.arguments.json:
                    told.append(line)
                    print(_line(line), flush=True)
        return row.ended

    now = _wait(asked, migration.uuid, look)
    if now.ended:
        said = f'It has ended {now.status}: {now.failure}'
    else:
        show = f'{asked.command} migration show {now.uuid}'
        said = f'It is being abandoned, and has not ended yet: {show} tells what it waits for.'
    document = {'migration': now.uuid, 'status': now.status, 'guest_on': guest_on, 'dry_run': False}
    asked.answer(document, _line(said))
    late = not now.ended and asked.arguments.wait > 0
    return manage_command.WRONG if late else manage_command.RIGHT


# --- what both do ----------------------------------------------------------------------------------------------------


def _story(asked: Asked) -> Story:
    return timeline.gather(asked.database, asked.arguments.migration, asked.conf.conductor.lease)


def _ended(story: Story) -> str:
    return f'it ended {story.migration.status} {manage_command.ago(story.migration.updated_at, story.now)}.'


def _refuse_unless_stuck(story: Story) -> None:
    migration = story.migration
    if migration.in_progress and migration.abandon_requested_at is not None:
        what = f'it is being abandoned, {timeline.abandoned_by(story)}.'
    elif migration.in_progress and migration.stuck_reason is None:
        what = f'it is {migration.status}. {timeline.waits(story)[0]} An abort turns back what can be turned back.'
    elif migration.ended:
        what = _ended(story)
    else:
        return
    raise exception.NotStuck(uuid=migration.uuid, what=what)


def _tell(asked: Asked, story: Story, plan: list[str], command: str, again: bool = False) -> int:
    """Answer what would be done.

    :param again: it has been asked for before, and is done without another word.
    """
    migration = story.migration
    head = f'Migration {migration.uuid} (id {migration.id}): {migration.status}'
    how = 'Nothing was changed, and nothing more need be asked for. To wait for it:'
    how = how if again else 'Nothing was changed. To do it:'
    lines = [head, '', *(f'* {line}' for line in plan), '', how, f'  {command}']
    document = {'migration': migration.uuid, 'status': migration.status, 'dry_run': True, 'plan': plan}
    asked.answer(document, '\n'.join(map(_line, lines)))
    return manage_command.RIGHT


def _line(text: str) -> str:
    return manage_command.printable(text) if text else ''


def _who() -> str:
    """Return who runs the command, for the story."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user of no name, as in a container
        return 'an operator'


def _wake(asked: Asked, migration: Migration) -> None:
    """Tell its conductor; whatever is wrong with that, the wish is committed."""
    server = asked.database.conductors.server_of(migration.owner) if migration.owner else None
    try:
        asked.wake(context.admin_context(), migration.uuid, server)
    except Exception as error:  # noqa: BLE001 -- a wake-up saves seconds, and is no more
        why = ' '.join(str(error).split()) or type(error).__name__
        print(f'{manage_command.PROG}: no conductor was woken, its sweep finds it ({why})', file=sys.stderr)


def _wait(asked: Asked, uuid: str, enough: Callable[[Migration], bool]) -> Migration:
    """Return the migration when that is enough, or when ``--wait`` has passed."""
    until = asked.threads.clock.monotonic() + asked.arguments.wait
    while True:
        row = asked.database.migrations.get(uuid)
        if enough(row) or asked.threads.clock.monotonic() >= until:
            return row
        asked.threads.sleep(_LOOK)


# --- what abandoning would do ----------------------------------------------------------------------------------------


def _plan(asked: Asked, story: Story, guest_on: str) -> Iterator[str]:
    migration = story.migration
    if migration.abandon_requested_at is not None:
        yield f'It is being abandoned already, {timeline.abandoned_by(story)}.'
    elif migration.stuck_reason is not None:
        yield f'It is stuck: {migration.stuck_reason}'
    yield from _books(asked, story, guest_on)
    other = next((host for _, host in story.hosts if host != guest_on), None)
    if other is not None:
        yield _cleaning(story, guest_on, other)
    yield (
        'Each host is asked first what it has of the guest. One that is up and does not tell is waited for: stop its '
        'compute service then, and it counts as down after a while, or as soon as it is declared forced down.'
    )
    source = migration.source_compute
    if not story.is_up(source):
        yield (
            f'{source} is down now. Should its compute service only be cut off, it may still have the move in its '
            'queue: restart it before you do this, or declare it forced down.'
        )
    yield f'Nothing is started, resumed, stopped or removed at {guest_on}: you say that the guest is there.'
    yield 'No guest that could run is destroyed on any host.'
    yield f'It ends in error. The instance is at {guest_on} then, in vm_state error and without a task_state.'
    yield (
        f'Look before you do it: {guest_on} has the guest, and no other host runs it or can start it. If that is '
        'wrong, the guest may be started a second time, and its disk be lost.'
    )


def _books(asked: Asked, story: Story, guest_on: str) -> Iterator[str]:
    journal = log.Journal(story.steps)
    moved = journal.find(story.migration.attempt, 'move_allocation')
    if moved is None or not moved.input:
        yield 'The allocations stay as they are: none was ever to be moved.'
        return
    where = dict.fromkeys(moved.input['source'], story.migration.source_compute)
    where |= {uuid: str(moved.input['host']) for uuid in moved.input['destination']}
    wanted = moved.input['source' if guest_on == story.migration.source_compute else 'destination']
    for consumer, uuid, then in (
        ('instance', story.migration.instance_uuid, _amounts(wanted, where)),
        ('migration', story.migration.uuid, 'nothing'),
    ):
        yield f'Allocation of the {consumer} in Placement: {_now(asked, uuid, where)}; then {then}.'


def _now(asked: Asked, consumer: str, where: Mapping[str, str]) -> str:
    try:
        held = allocations.read(asked.placement(), consumer).allocations
    except exception.MigratorException as error:
        return f'not known now ({" ".join(str(error).split())})'
    return f'now {_amounts(held, where)}'


def _amounts(held: Mapping[str, Any], where: Mapping[str, str]) -> str:
    told = [
        f'{", ".join(f"{name} {n}" for name, n in amounts.items())} at {where.get(uuid, uuid)}'
        for uuid, amounts in allocation_state.normal(held).items()
    ]
    return ' and '.join(told) or 'nothing'


def _cleaning(story: Story, guest_on: str, other: str) -> str:
    if other == story.migration.source_compute:
        what = (
            f'{other} removes what is left of the guest there, if {guest_on} says that it runs the guest, or if there '
            'is no copy of it left. Otherwise'
        )
    else:
        what = f'{other} removes what was prepared for the guest there, if the guest itself is not there. Otherwise'
    down = '' if story.is_up(other) else f' {other} is down now.'
    return f'{what}, or while {other} is down, it owes that, with an alarm where somebody has to look first.{down}'
