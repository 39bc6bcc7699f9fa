# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage cleanup``: the deferred cleanups of hosts.

A deferred cleanup is a step that a host could not do, and without which its migration went on. A conductor runs it when
the host is up. A blocked cleanup waits for an operator, who retries or discards it.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from migrator import exception
from migrator.cli import command
from migrator.cli.command import Asked, Verb
from migrator.objects.protocol import AFTER_EVACUATION

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
            command.ago(one.created_at, now),
            _state(one),
            one.alarm or one.reason,
        ]
        for one in shown
    ]
    asked.answer({'cleanups': [_document(one) for one in shown]}, command.table(COLUMNS, rows))
    return command.RIGHT


def retry(asked: Asked) -> int:
    """Unblock a cleanup, so that a conductor runs it again.

    :raises migrator.exception.CleanupNotFound: no cleanup has this id, or it is not blocked.
    """
    cleanup = _blocked(asked)
    to_run = f'{asked.command} cleanup retry {cleanup.id}'
    if asked.arguments.dry_run:
        plan = (
            f'A conductor would have {cleanup.host} do {cleanup.step} again. {effect(cleanup.host, cleanup.step)} The '
            'cleanup is blocked again if it would remove the guest from the host where the database has the instance.'
        )
        return _show_plan(asked, cleanup, plan, to_run)
    _refuse_unless_done(cleanup, asked.database.cleanups.try_again([cleanup]) > 0)
    text = f'Cleanup {cleanup.id} is unblocked: with its next sweep a conductor has {cleanup.host} do {cleanup.step}.'
    asked.answer(_document(cleanup) | {'dry_run': False}, text)
    return command.RIGHT


def discard(asked: Asked) -> int:
    """Delete a blocked cleanup that has nothing left to do.

    :raises migrator.exception.CleanupNotFound: no cleanup has this id, or it is not blocked.
    """
    cleanup = _blocked(asked)
    to_run = f'{asked.command} cleanup discard {cleanup.id} --yes'
    if not asked.arguments.yes:
        plan = (
            f'No conductor would ever have {cleanup.host} do {cleanup.step}. Whatever is left there of guest '
            f'{cleanup.instance_uuid} would stay: look at {cleanup.host} first.'
        )
        if cleanup.step == AFTER_EVACUATION:
            plan += f' Then the evacuation is completed, and releases its allocation at {cleanup.host}.'
        return _show_plan(asked, cleanup, plan, to_run)
    _refuse_unless_done(cleanup, asked.database.cleanups.discard(cleanup))
    text = f'Cleanup {cleanup.id} is discarded: no conductor has {cleanup.host} do {cleanup.step}.'
    asked.answer(_document(cleanup) | {'dry_run': False}, text)
    return command.RIGHT


def effect(host: str, step: str) -> str:
    """Return what a cleanup may do to the guest at its host, in a sentence."""
    if step == AFTER_EVACUATION:
        return (
            "A conductor first polls the guest's host. Only if that reports that it has the guest, the copy at "
            f'{host} is ended, even if it runs. Disks that are or may be shared are kept.'
        )
    return 'The host observes first, and stops no guest that could run.'


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
        raise exception.CleanupNotFound(id=wanted, what='no cleanup has this id, or it has been done meanwhile.')
    if cleanup.alarm is None:
        what = f'it is not blocked: a conductor runs it when {cleanup.host} is up.'
        raise exception.CleanupNotFound(id=wanted, what=what)
    return cleanup


def _refuse_unless_done(cleanup: Cleanup, done: bool) -> None:
    if not done:
        what = 'it was changed meanwhile: list the cleanups again.'
        raise exception.CleanupNotFound(id=cleanup.id, what=what)


def _show_plan(asked: Asked, cleanup: Cleanup, plan: str, to_run: str) -> int:
    head = f'Cleanup {cleanup.id} of migration {cleanup.migration_uuid} at {cleanup.host}: {_state(cleanup)}'
    lines = [f'* It is blocked: {cleanup.alarm}', f'* {plan}', '', 'Nothing was changed. To do it:', f'  {to_run}']
    text = '\n'.join(map(command.printable, [head, '', *lines]))
    asked.answer(_document(cleanup) | {'dry_run': True, 'plan': plan}, text)
    return command.RIGHT


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', type=command.name, help='only cleanups of this host')
    parser.add_argument('--instance', type=command.uuid, metavar='UUID', help='only cleanups of this instance')
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
