# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage cleanup``: the deferred cleanups of hosts.

A deferred cleanup is a step that a host could not do, and without which its migration went on. A conductor runs it when
the host is up. A blocked cleanup waits for an operator, who retries or discards it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from migrator.operator.cli import command
from migrator.operator.cli.command import Asked, Verb

if TYPE_CHECKING:
    from migrator.db.cleanups import Cleanup


COLUMNS = ('ID', 'HOST', 'STEP', 'INSTANCE', 'MIGRATION', 'DEFERRED', 'STATE', 'REASON')


def list_(asked: Asked) -> int:
    """List deferred cleanups, the oldest first."""
    from migrator.views import cleanups

    command.check_host(asked)
    given, database = asked.arguments, asked.database
    now = database.services.now()
    guest = command.guest(asked, given.instance) if given.instance else None
    found = database.cleanups.list(host=given.host, instance_uuid=guest)
    shown = [one for one in found if one.blocked_because is not None or not given.blocked]
    rows = [
        [
            one.id,
            one.host,
            one.step,
            one.instance_uuid,
            one.migration_uuid,
            command.ago(one.created_at, now),
            cleanups.state(one),
            one.blocked_because or one.reason,
        ]
        for one in shown
    ]
    asked.answer({'cleanups': [cleanups.document(one) for one in shown]}, command.table(COLUMNS, rows))
    return command.RIGHT


def retry(asked: Asked) -> int:
    """Unblock a cleanup, so that a conductor runs it again.

    :raises migrator.exception.CleanupNotFound: no cleanup has this id, or it is not blocked.
    """
    from migrator.views import cleanups

    cleanup = asked.database.cleanups.blocked(asked.arguments.cleanup)
    if asked.arguments.dry_run:
        to_run = f'{asked.command} cleanup retry {cleanup.id}'
        return _show_plan(asked, cleanup, cleanups.plan_retry(cleanup), to_run)
    asked.database.cleanups.retry_or_refuse(cleanup)
    return _done(asked, cleanup, cleanups.retried(cleanup))


def discard(asked: Asked) -> int:
    """Delete a blocked cleanup that has nothing left to do.

    :raises migrator.exception.CleanupNotFound: no cleanup has this id, or it is not blocked.
    """
    from migrator.views import cleanups

    cleanup = asked.database.cleanups.blocked(asked.arguments.cleanup)
    if not asked.arguments.yes:
        to_run = f'{asked.command} cleanup discard {cleanup.id} --yes'
        return _show_plan(asked, cleanup, cleanups.plan_discard(cleanup), to_run)
    asked.database.cleanups.discard_or_refuse(cleanup)
    return _done(asked, cleanup, cleanups.discarded(cleanup))


def _done(asked: Asked, cleanup: Cleanup, text: str) -> int:
    from migrator.views import cleanups

    asked.answer(cleanups.document(cleanup) | {'dry_run': False}, text)
    return command.RIGHT


def _show_plan(asked: Asked, cleanup: Cleanup, plan: str, to_run: str) -> int:
    from migrator.views import cleanups

    head = f'Cleanup {cleanup.id} of migration {cleanup.migration_uuid} at {cleanup.host}: {cleanups.state(cleanup)}'
    lines = [
        f'* It is blocked: {cleanup.blocked_because}',
        f'* {plan}',
        '',
        'Nothing was changed. To do it:',
        f'  {to_run}',
    ]
    text = '\n'.join(map(command.printable, [head, '', *lines]))
    asked.answer(cleanups.document(cleanup) | {'dry_run': True, 'plan': plan}, text)
    return command.RIGHT


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', type=command.name, help='only cleanups of this host')
    parser.add_argument('--instance', type=command.name, metavar='GUEST', help='only cleanups of this guest')
    parser.add_argument('--blocked', action='store_true', help='only blocked cleanups, which wait for an operator')


def _which(parser: argparse.ArgumentParser) -> None:
    help_ = 'the id of the cleanup, as "list" shows it'
    parser.add_argument('cleanup', type=command.at_least(1), metavar='ID', help=help_)


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    _which(parser)
    parser.add_argument('--dry-run', action='store_true', help='only show what would be done')


def _discard_arguments(parser: argparse.ArgumentParser) -> None:
    _which(parser)
    parser.add_argument('--yes', action='store_true', help='do it; without --yes, only show what would be done')


VERBS: tuple[Verb, ...] = (
    Verb('list', 'list deferred cleanups, the oldest first', list_, _list_arguments),
    Verb('retry', 'unblock a cleanup, so that it runs again', retry, _retry_arguments),
    Verb(
        'discard',
        'delete a blocked cleanup that has nothing left to do; without --yes only show what would be done',
        discard,
        _discard_arguments,
    ),
)
