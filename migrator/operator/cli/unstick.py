# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage migration retry`` and ``abandon``: the commands for a stuck migration.

Both write a request, which the migration's owner carries out, and nothing else. They wake the owner. If the message is
lost, the owner's sweep finds the request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from migrator import context, exception
from migrator.conductor.tasks import sagas
from migrator.objects import Migration
from migrator.objects.steps import ABANDON_ALLOCATIONS, ABANDON_CLEAN
from migrator.operator.cli import command
from migrator.operator.cli.command import Asked
from migrator.operator.cli.parser import PROG
from migrator.placement_client import allocations
from migrator.views import explain, names, timeline, unstick
from migrator.views.timeline import Facts

#: Seconds between two polls for the result of a request.
_POLL = 0.5


def retry(asked: Asked) -> int:
    """Request that a stuck migration is observed again, or unblock the cleanups of an ended one.

    :raises migrator.exception.NotStuck: the migration is not stuck, and has no blocked cleanups.
    """
    facts = _facts(asked, whole=False)
    migration = facts.migration
    if asked.arguments.dry_run:
        to_run = f'{asked.command} migration retry {migration.uuid}'
        return _show_plan(asked, facts, unstick.plan_retry(facts), to_run)
    blocked = unstick.check_retry(facts)
    asked.database.retry(migration, blocked, command.user())
    if migration.ended:
        lines = [f'With its next sweep a conductor has {one.host} do {one.step}.' for one in blocked]
        document = {'migration': migration.uuid, 'status': migration.status, 'cleanups': len(blocked)}
        asked.answer(document, '\n'.join(lines))
        return command.RIGHT
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


def abandon(asked: Asked) -> int:
    """Request that a stuck migration ends in error, with its guest on the host that the operator names.

    :raises migrator.exception.NotStuck: the migration is not stuck.
    """
    facts = _facts(asked, whole=True)
    migration, guest_on = facts.migration, asked.arguments.guest_on
    try:
        again = unstick.check_abandon(facts, guest_on)
    except exception.Invalid as error:
        print(f'{PROG}: argument --guest-on: {error}', file=sys.stderr)
        return command.USAGE
    if not asked.arguments.yes:
        to_run = f'{asked.command} migration abandon {migration.uuid} --guest-on {guest_on} --yes'
        plan = unstick.plan_abandon(
            facts, guest_on, lambda consumer: allocations.read(asked.placement(), consumer).allocations
        )
        return _show_plan(asked, facts, [*plan], to_run, again)
    asked.database.requests.request_abandon(migration, guest_on, command.user())
    _wake(asked, migration)
    printed: list[str] = []

    def print_steps(row: Migration) -> bool:
        for step in asked.database.migrations.steps(row.uuid):
            if step.step in (ABANDON_CLEAN, ABANDON_ALLOCATIONS) and step.attempt == row.attempt:
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


def _facts(asked: Asked, whole: bool) -> Facts:
    given = asked.arguments.migration
    # An id that was purged is no guest of that name.
    migration = names.migration(asked.database, given, whole or given.isdecimal(), hint=True)
    guest = names.named(asked.database, migration.instance_uuid)
    command.say_what(asked.arguments.migration, f'migration {migration.uuid} of guest {guest}', always=True)
    return timeline.gather(asked.database, migration, asked.conf.conductor.lease, sagas())


def _show_plan(asked: Asked, facts: Facts, plan: Sequence[str], to_run: str, again: bool = False) -> int:
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


def _wake(asked: Asked, migration: Migration) -> None:
    """Wake the owner of a migration; an error is only printed, because the request is committed."""
    server = asked.database.conductors.server_of(migration.owner) if migration.owner else None
    try:
        asked.wake(context.admin_context(), migration.uuid, server)
    except Exception as error:  # noqa: BLE001 -- a wake-up only saves seconds
        why = ' '.join(str(error).split()) or type(error).__name__
        print(f'{PROG}: no conductor was woken, its sweep finds the request ({why})', file=sys.stderr)


def _wait(asked: Asked, uuid: str, enough: Callable[[Migration], bool]) -> Migration:
    """Return the migration as soon as ``enough`` accepts it, or after ``--wait`` seconds."""
    until = asked.threads.clock.monotonic() + asked.arguments.wait
    while True:
        row = asked.database.migrations.get(uuid)
        if enough(row) or asked.threads.clock.monotonic() >= until:
            return row
        asked.threads.sleep(_POLL)
