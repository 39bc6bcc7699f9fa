# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""``migrator-manage migration``: what becomes of a migration, and what it waits for."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from typing import Any

from migrator.cmd import manage_command, manage_story
from migrator.objects import migration as migration_objects

Asked = manage_command.Asked
Migration = migration_objects.Migration
Story = manage_story.Story
Verb = manage_command.Verb

COLUMNS = ('ID', 'UUID', 'INSTANCE', 'STATUS', 'SOURCE', 'DESTINATION', 'CREATED', 'CONDUCTOR', 'REMARK')


def list_(asked: Asked) -> int:
    """List migrations, the newest first."""
    given, database = asked.arguments, asked.database
    filters: dict[str, Any] = {}
    if given.instance:
        filters['instance_uuid'] = given.instance
    if given.status:
        filters['status'] = given.status
    if given.host:
        filters['host'] = given.host
    in_progress = True if given.in_progress else None
    found = database.migrations.list(filters, in_progress=in_progress, limit=given.limit + 1)
    shown, more = found[: given.limit], len(found) > given.limit
    servers = {life.id: life.server for life in database.conductors.list()}
    text = manage_command.table(COLUMNS, [_row(one, servers) for one in shown])
    if more:
        text += f'\nand more: --limit shows {given.limit} of them'
    documents = [dataclasses.asdict(one) | {'server': servers.get(one.owner or '')} for one in shown]
    asked.answer({'migrations': documents, 'more': more}, text)
    return manage_command.RIGHT


def _row(migration: Migration, servers: dict[str, str]) -> list[object]:
    remark: str | None = None
    if migration.stuck_reason:
        remark = f'stuck: {migration.stuck_reason}'
    elif migration.waits_for:
        remark = f'waits: {migration.waits_for}'
    elif migration.failure:
        remark = migration.failure
    elif migration.in_progress and migration.abort_requested_at is not None:
        remark = 'an abort was asked for'
    return [
        migration.id,
        migration.uuid,
        migration.instance_uuid,
        migration.status,
        migration.source_compute,
        migration.dest_compute,
        migration.created_at,
        servers.get(migration.owner or '', migration.owner),
        remark,
    ]


def show(asked: Asked) -> int:
    """Show all there is to know of one migration."""
    story = manage_story.gather(asked.database, asked.arguments.migration, asked.conf.service_down_time)
    asked.answer(manage_story.document(story), '\n'.join(text_of(story)))
    return manage_command.RIGHT


def text_of(story: Story) -> Iterator[str]:
    """Yield a story, as an operator reads it: what it waits for first, and everything else below."""
    migration = story.migration
    name = f' ({story.instance.name})' if story.instance is not None else ', which has been deleted'
    destination = migration.dest_compute or migration.requested_host or 'a host that is yet to be chosen'
    yield f'Migration {migration.uuid} (id {migration.id}): {migration.status}'
    yield manage_command.printable(
        f'{migration.migration_type} of instance {migration.instance_uuid}{name}, '
        f'from {migration.source_compute} to {destination}'
    )
    yield ''
    for line in manage_story.waits(story):
        yield manage_command.printable(f'* {line}')
    for title, columns, rows in _sections(story):
        if rows:
            yield ''
            yield title
            yield manage_command.table(columns, rows)


def _sections(story: Story) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[object]]]]:
    ago, moment, span = manage_command.ago, manage_command.moment, manage_command.span
    migration, owner, now = story.migration, story.owner, story.now
    yield 'Whose it is', ('CONDUCTOR', 'LIFE', 'EPOCH', 'LEASE', 'ATTEMPT', 'OUTCOME', 'ALLOCATIONS'), [
        [
            story.server_of(migration.owner),
            migration.owner,
            migration.epoch,
            _lease(owner.lease_until, now) if owner is not None else None,
            migration.attempt,
            migration.outcome,
            migration.strategy,
        ]
    ]  # fmt: skip
    yield 'Hosts', ('ROLE', 'HOST', 'SERVICE', 'LAST SEEN'), [
        [role, host, _state(story, host), ago(service.last_seen_up if service is not None else None, now)]
        for role, host in story.hosts
        for service in [story.service_of(host)]
    ]  # fmt: skip
    yield 'Statuses', ('STATUS', 'SINCE (UTC)', 'FOR', 'CONDUCTOR', 'EPOCH'), [
        [
            entry['status'],
            moment(entry['at']),
            span(entry['seconds']) if entry['seconds'] is not None else None,
            entry['server'],
            entry['epoch'],
        ]
        for entry in manage_story.statuses(story)
    ]  # fmt: skip
    yield (
        'Steps',
        ('ATTEMPT', 'STEP', 'WAY', 'AT', 'STATE', 'BEGUN (UTC)', 'TOOK', 'TRIES', 'CONDUCTOR', 'EPOCH', 'RESULT'),
        [
            [
                step.attempt,
                step.step,
                step.direction,
                story.host_of(step),
                step.state,
                step.started_at,
                _took(step.started_at, step.ended_at),
                step.tries,
                story.server_of(step.owner),
                step.epoch,
                manage_story.words_of(step),
            ]
            for step in story.steps
        ],
    )
    yield 'Debts', ('HOST', 'STEP', 'SINCE (UTC)', 'EPOCH', 'REASON', 'ALARM'), [
        [debt.host, debt.step, debt.created_at, debt.epoch, debt.reason, debt.alarm] for debt in story.debts
    ]  # fmt: skip
    yield 'Requests', ('ACTION', 'REQUEST', 'USER', 'PROJECT', 'BEGUN (UTC)', 'ENDED (UTC)', 'RESULT', 'MESSAGE'), [
        [
            one.action, one.request_id, one.user_id, one.project_id, one.start_time, one.finish_time, one.result,
            one.message,
        ]
        for one in story.requests
    ]  # fmt: skip


def _state(story: Story, host: str) -> str:
    service = story.service_of(host)
    if service is None:
        return 'none'
    if service.forced_down:
        return 'forced down'
    return 'up' if story.is_up(host) else 'down'


def _lease(until: datetime.datetime, now: datetime.datetime) -> str:
    left = (until - now).total_seconds()
    return f'{manage_command.span(left)} left' if left > 0 else f'ended {manage_command.span(left)} ago'


def _took(begun: datetime.datetime | None, ended: datetime.datetime | None) -> str | None:
    if begun is None or ended is None:
        return None
    seconds = (ended - begun).total_seconds()
    return f'{seconds:.1f} s' if seconds < 10 else manage_command.span(seconds)


# --- arguments -------------------------------------------------------------------------------------------------------


def _which(text: str) -> str:
    """Return the uuid or the integer id of a migration."""
    if text.isdecimal() and text.isascii():
        return text
    try:
        return manage_command.uuid(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f'{text!r} is neither the uuid nor the id of a migration') from None


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    statuses = [status.value for status in migration_objects.MigrationStatus]
    parser.add_argument('--instance', type=manage_command.uuid, metavar='UUID', help='only those of this instance')
    parser.add_argument(
        '--status',
        action='append',
        choices=statuses,
        metavar='STATUS',
        help=f'only those in this status, may be given again: {", ".join(statuses)}',
    )
    parser.add_argument('--host', help='only those from or to this host')
    parser.add_argument('--in-progress', action='store_true', help='only those that have not ended')
    manage_command.limit(parser)


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('migration', type=_which, metavar='MIGRATION', help='its uuid, or its id')


NOUN: manage_command.Noun = (
    'the migrations',
    (
        Verb('list', 'list migrations, the newest first', list_, _list_arguments),
        Verb('show', 'show what one waits for, whose it is, its statuses and its journal', show, _show_arguments),
    ),
)
