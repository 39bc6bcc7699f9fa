# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage cleanup``: what a host could not do for a migration that went on without it.

A conductor runs a cleanup by itself when its host is up. One that is blocked waits for an operator, who retries it or
discards it.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from migrator import exception
from migrator.cli import command as manage_command
from migrator.cli.command import Asked, Verb

if TYPE_CHECKING:
    from migrator.db.cleanups import Cleanup


COLUMNS = ('ID', 'HOST', 'STEP', 'INSTANCE', 'MIGRATION', 'DEFERRED', 'STATE', 'REASON')


def list_(asked: Asked) -> int:
    """List deferred cleanups, the oldest first."""
    given, database = asked.arguments, asked.database
    now = database.services.now()
    found = database.cleanups.list(host=given.host, instance_uuid=given.instance)
    shown = [one for one in found if one.alarm is not None or not given.blocked]
    rows = [
        [
            one.id,
            one.host,
            one.step,
            one.instance_uuid,
            one.migration_uuid,
            manage_command.ago(one.created_at, now),
            _state(one),
            one.alarm or one.reason,
        ]
        for one in shown
    ]
    asked.answer({'cleanups': [_document(one) for one in shown]}, manage_command.table(COLUMNS, rows))
    return manage_command.RIGHT


def retry(asked: Asked) -> int:
    """Have a blocked cleanup run again.

    :raises migrator.exception.CleanupNotFound: there is none with this id, or it is not blocked.
    """
    cleanup = _blocked(asked)
    command = f'{asked.command} cleanup retry {cleanup.id}'
    if asked.arguments.dry_run:
        plan = (
            f'{cleanup.host} would be told again to do {cleanup.step}. It observes first, and ends no guest that could '
            'run. It is blocked again if it would remove the guest from where the database has the instance.'
        )
        return _tell(asked, cleanup, plan, command)
    _refuse_unless_done(cleanup, asked.database.cleanups.try_again([cleanup]) > 0)
    said = f'Cleanup {cleanup.id} is run again with the next sweep: {cleanup.host} is told to do {cleanup.step}.'
    asked.answer(_document(cleanup) | {'dry_run': False}, said)
    return manage_command.RIGHT


def discard(asked: Asked) -> int:
    """Forget a blocked cleanup, because nothing is left to be done.

    :raises migrator.exception.CleanupNotFound: there is none with this id, or it is not blocked.
    """
    cleanup = _blocked(asked)
    command = f'{asked.command} cleanup discard {cleanup.id} --yes'
    if not asked.arguments.yes:
        plan = (
            f'{cleanup.host} would never be told to do {cleanup.step}. What is left there of guest '
            f'{cleanup.instance_uuid} would stay: look at {cleanup.host} first.'
        )
        return _tell(asked, cleanup, plan, command)
    _refuse_unless_done(cleanup, asked.database.cleanups.discard(cleanup))
    said = f'Cleanup {cleanup.id} is discarded: {cleanup.host} is not told to do {cleanup.step}.'
    asked.answer(_document(cleanup) | {'dry_run': False}, said)
    return manage_command.RIGHT


def _state(cleanup: Cleanup) -> str:
    return 'blocked' if cleanup.alarm is not None else 'pending'


def _document(cleanup: Cleanup) -> dict[str, Any]:
    document = dataclasses.asdict(cleanup)
    del document['input'], document['alarm']
    return document | {'state': _state(cleanup), 'blocked_because': cleanup.alarm}


def _blocked(asked: Asked) -> Cleanup:
    wanted = asked.arguments.cleanup
    cleanup = next((one for one in asked.database.cleanups.list() if one.id == wanted), None)
    if cleanup is None:
        raise exception.CleanupNotFound(id=wanted, what='there is none with this id: it may have been done meanwhile.')
    if cleanup.alarm is None:
        what = f'it is not blocked: a conductor runs it when {cleanup.host} is up.'
        raise exception.CleanupNotFound(id=wanted, what=what)
    return cleanup


def _refuse_unless_done(cleanup: Cleanup, done: bool) -> None:
    if not done:
        what = 'it was changed meanwhile: list the cleanups again, and look.'
        raise exception.CleanupNotFound(id=cleanup.id, what=what)


def _tell(asked: Asked, cleanup: Cleanup, plan: str, command: str) -> int:
    head = f'Cleanup {cleanup.id} of migration {cleanup.migration_uuid} at {cleanup.host}: {_state(cleanup)}'
    said = [f'* It is blocked: {cleanup.alarm}', f'* {plan}', '', 'Nothing was changed. To do it:', f'  {command}']
    text = '\n'.join(map(manage_command.printable, [head, '', *said]))
    asked.answer(_document(cleanup) | {'dry_run': True, 'plan': plan}, text)
    return manage_command.RIGHT


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', type=manage_command.name, help='only those of this host')
    parser.add_argument('--instance', type=manage_command.uuid, metavar='UUID', help='only those of this instance')
    parser.add_argument('--blocked', action='store_true', help='only those that wait for an operator')


def _which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('cleanup', type=manage_command.at_least(1), metavar='ID', help='its id, as "list" shows it')


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    _which(parser)
    parser.add_argument('--dry-run', action='store_true', help='only tell what would be done')


def _discard_arguments(parser: argparse.ArgumentParser) -> None:
    _which(parser)
    parser.add_argument('--yes', action='store_true', help='do it; without it, only tell what would be done')


VERBS: tuple[Verb, ...] = (
    Verb('list', 'list deferred cleanups, the oldest first', list_, _list_arguments),
    Verb('retry', 'have a blocked cleanup run again', retry, _retry_arguments),
    Verb(
        'discard',
        'forget a blocked cleanup of which nothing is left to be done; without --yes only tell what would be done',
        discard,
        _discard_arguments,
    ),
)
