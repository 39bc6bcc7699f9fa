# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage migration``: the migrations, their timelines, and what they wait for."""

from __future__ import annotations

import argparse
import collections
import datetime
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from migrator.objects import Migration, MigrationStatus, base
from migrator.operator.cli import command
from migrator.operator.cli.command import Asked, Verb
from migrator.operator.cli.parser import PROG

if TYPE_CHECKING:
    from migrator.db.cleanups import Cleanup
    from migrator.drain.forecast import Place
    from migrator.views import timeline

    Facts = timeline.Facts


COLUMNS = (
    *(
        'ID',
        'UUID',
        'TYPE',
        'INSTANCE',
        'GUEST',
        'STATUS',
        'PROGRESS',
        'SOURCE',
        'DESTINATION',
        'CREATED',
        'PLACE',
        'EXPECTED END',
    ),
    *('CONDUCTOR', 'REMARK'),
)


def list_(asked: Asked) -> int:
    """List migrations, the newest first."""
    command.check_host(asked)
    given, database = asked.arguments, asked.database
    filters: dict[str, Any] = {}
    if given.instance:
        filters['instance_uuid'] = command.guest(asked, given.instance)
    if given.status:
        filters['status'] = given.status
    if given.host:
        filters['host'] = given.host
    in_progress = True if given.in_progress else None
    found = database.migrations.list(filters, in_progress=in_progress, limit=given.limit + 1)
    shown, more = found[: given.limit], len(found) > given.limit
    servers = {conductor.id: conductor.server for conductor in database.conductors.list()}
    deferred: dict[str, list[Cleanup]] = collections.defaultdict(list)
    for cleanup in database.cleanups.list():
        deferred[cleanup.migration_uuid].append(cleanup)
    guests = sorted({one.instance_uuid for one in shown})
    names = {one.uuid: one.name for one in database.instances.list({'uuid': guests})} if guests else {}
    now, places = database.places(asked.bounds, shown)
    rows = []
    for one in shown:
        line = places[one.uuid]
        of_line = (line.position, command.expected_end(line.expected, now))
        rows.append(_row(one, now, names.get(one.instance_uuid), of_line, servers, deferred[one.uuid]))
    text = command.table(COLUMNS, rows)
    if more:
        text += f'\nThere are more: --limit shows {given.limit} of them.'
    documents = []
    if asked.arguments.json:
        from migrator.views import migrations

        documents = migrations.placed(migrations.documents(database, shown), places, now)
    asked.answer({'migrations': documents, 'more': more}, text)
    return command.RIGHT


def _progress(migration: Migration, now: datetime.datetime) -> str | None:
    """Return how much of the memory of a running migration has arrived, and how fast on average."""
    total, done, since = migration.memory_total, migration.memory_processed, migration.running_at
    if (
        migration.status not in (MigrationStatus.RUNNING, MigrationStatus.RUNNING_POST_COPY)
        or not total
        or done is None
        or since is None
    ):
        return None
    left = migration.memory_remaining if migration.memory_remaining is not None else total - done
    seconds = (now - since).total_seconds()
    rate = f', {done / seconds / 2**20:.0f} MiB/s' if seconds > 0 else ''
    return f'{max(0.0, 1 - left / total):.0%}{rate}'


def _row(
    migration: Migration,
    now: datetime.datetime,
    name: str | None,
    of_line: tuple[int | None, str | None],
    servers: dict[str, str],
    deferred: Sequence[Cleanup],
) -> list[object]:
    remarks = []
    if migration.stuck_reason:
        remarks.append(f'stuck: {migration.stuck_reason}')
    elif migration.waits_for:
        remarks.append(f'waits: {migration.waits_for}')
    elif migration.failure:
        remarks.append(migration.failure)
    elif migration.in_progress and migration.abort_requested_at is not None:
        remarks.append('an abort was requested')
    elif migration.is_undecided:
        remarks.append('waits for its user to confirm or to revert it')
    for cleanup in deferred:
        blocked = f', blocked: {cleanup.blocked_because}' if cleanup.blocked_because else ''
        remarks.append(f'{cleanup.host} still has to do {cleanup.step}{blocked}')
    return [
        migration.id,
        migration.uuid,
        migration.migration_type,
        migration.instance_uuid,
        name,
        migration.status,
        _progress(migration, now),
        migration.source_compute,
        migration.dest_compute,
        migration.created_at,
        *of_line,
        servers.get(migration.owner or '', migration.owner),
        '; '.join(remarks),
    ]


def show(asked: Asked) -> int:
    """Show everything that the database has on one migration."""
    from migrator.conductor.tasks import sagas
    from migrator.views import migrations, names, timeline

    migration = names.migration(asked.database, asked.arguments.migration)
    facts = timeline.gather(asked.database, migration, asked.conf.conductor.lease, sagas())
    _, places = asked.database.places(asked.bounds, [facts.migration])
    document = {}
    if asked.arguments.json:
        document = migrations.document(asked.database, asked.bounds, facts.migration)
        document |= {'timeline': migrations.timeline(facts, asked.command)}
    asked.answer(document, '\n'.join(text_of(facts, places[facts.migration.uuid], asked.command)))
    return command.RIGHT


def retry(asked: Asked) -> int:
    """Request that a stuck migration is observed again."""
    from migrator.operator.cli import unstick

    return unstick.retry(asked)


def abandon(asked: Asked) -> int:
    """Request that a stuck migration ends in error, with its guest on the host that the operator names."""
    from migrator.operator.cli import unstick

    return unstick.abandon(asked)


def purge(asked: Asked) -> int:
    """Delete migrations that ended before a time, with their logs and actions."""
    from migrator.db.api import count_to_purge, purge_migrations

    given, database = asked.arguments, asked.database
    before = given.before
    if isinstance(before, datetime.timedelta):
        before = database.services.now() - before
    counts = count_to_purge(database, before, given.max_rows)
    with command.progress(asked, 'migrations purged', counts[1]) as advance:
        document = purge_migrations(database, before, counts, given.dry_run, advance)
    asked.answer(document, _purged(asked, before, counts[1], document))
    return command.RIGHT


def _purged(asked: Asked, before: datetime.datetime, wanted: int, document: dict[str, Any]) -> str:
    kept = document['kept']
    count = wanted if document['dry_run'] else document['purged']
    text = f'{base.count(count, "migration")} that ended before {command.moment(before)} UTC '
    if document['dry_run']:
        text += f'would be purged, with {"their logs" if count != 1 else "its log"} and actions.'
    else:
        text += f'purged, with {document["saga_log"]} rows of logs and {document["instance_actions"]} actions.'
    if document['found'] > count:
        text += f' {document["found"] - count} more can be purged.'
    if kept:
        text += (
            f' {kept} more {"is" if kept == 1 else "are"} kept: the last one of each guest, and those that a pending '
            'cleanup names.'
        )
    if not document['dry_run']:
        return text
    limit = f' --max-rows {asked.arguments.max_rows}' if asked.arguments.max_rows is not None else ''
    to_run = f'{asked.command} migration purge --before {before.isoformat()}{limit}'
    return f'{text}\n\nNothing was changed. To do it:\n  {to_run}'


def text_of(facts: Facts, line: Place, program: str = PROG) -> Iterator[str]:
    """Yield the lines of a timeline: first what the migration waits for, then everything else.

    :param line: its place in the queue.
    :param program: the beginning of each command in the text.
    """
    from migrator.views import explain, timeline

    migration = facts.migration
    name = f' ({facts.instance.name})' if facts.instance is not None else ', which has been deleted'
    destination = migration.dest_compute or migration.requested_host or 'a host that is not chosen yet'
    where = f'from {migration.source_compute} to {destination}'
    if migration.stays:
        where = f'which stays at {migration.source_compute}'
    yield f'Migration {migration.uuid} (id {migration.id}): {migration.status}'
    yield command.printable(f'{migration.migration_type} of instance {migration.instance_uuid}{name}, {where}')
    yield ''
    for wait in timeline.waits(facts):
        yield command.printable(f'* {wait}')
    yield ''
    yield 'Timeline (UTC)'
    events = [[one.at, one.server, one.epoch, one.what] for one in explain.lines(facts)]
    yield command.table(('AT', 'CONDUCTOR', 'EPOCH', 'WHAT'), events)
    for title, columns, rows in _sections(facts, line):
        if rows:
            yield ''
            yield title
            yield command.table(columns, rows)
    yield ''
    yield 'What happens next'
    yield from map(command.printable, explain.next_(facts, program))


def _sections(facts: Facts, line: Place) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[object]]]]:
    migration, owner, now = facts.migration, facts.owner, facts.now
    times = [command.at(band, now) for band in (line.expected.start, line.expected.end)]
    yield 'Place in the queue', ('PLACE', 'EXPECTED START (UTC)', 'EXPECTED END (UTC)', 'WHY NOT KNOWN'), [
        [line.position, *times, line.expected.reason] for _ in range(migration.in_progress)
    ]  # fmt: skip
    yield 'Owner', ('CONDUCTOR', 'EPOCH', 'LEASE', 'ATTEMPT', 'OUTCOME', 'ALLOCATIONS'), [
        [
            facts.server_of(migration.owner),
            migration.epoch,
            _lease(owner.lease_until, now) if owner is not None else None,
            migration.attempt,
            migration.outcome,
            migration.strategy,
        ]
    ]  # fmt: skip
    ago = command.ago
    yield 'Hosts', ('ROLE', 'HOST', 'SERVICE', 'LAST SEEN'), [
        [role, host, _state(facts, host), ago(service.last_seen_up if service is not None else None, now)]
        for role, host in facts.hosts
        for service in [facts.service_of(host)]
    ]  # fmt: skip
    yield 'Deferred cleanups', ('HOST', 'STEP', 'SINCE (UTC)', 'EPOCH', 'REASON', 'BLOCKED'), [
        [one.host, one.step, one.created_at, one.epoch, one.reason, one.blocked_because] for one in facts.cleanups
    ]  # fmt: skip
    yield 'Requests', ('ACTION', 'REQUEST', 'USER', 'PROJECT', 'BEGUN (UTC)', 'ENDED (UTC)', 'RESULT', 'MESSAGE'), [
        [
            one.action, one.request_id, one.user_id, one.project_id, one.start_time, one.finish_time, one.result,
            one.message,
        ]
        for one in facts.requests
    ]  # fmt: skip


def _state(facts: Facts, host: str) -> str:
    service = facts.service_of(host)
    if service is None:
        return 'none'
    if service.forced_down:
        return 'forced down'
    return 'up' if facts.is_up(host) else 'down'


def _lease(until: datetime.datetime, now: datetime.datetime) -> str:
    left = (until - now).total_seconds()
    return f'{command.span(left)} left' if left > 0 else f'ended {command.span(left)} ago'


# --- arguments -------------------------------------------------------------------------------------------------------


def _which(text: str) -> str:
    """Return the uuid or the integer id of a migration."""
    if text.isdecimal() and text.isascii():
        return text
    try:
        return command.uuid(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f'{text!r} is neither the uuid nor the id of a migration') from None


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    statuses = [status.value for status in MigrationStatus]
    parser.add_argument('--instance', type=command.name, metavar='GUEST', help='only migrations of this guest')
    parser.add_argument(
        '--status',
        action='append',
        choices=statuses,
        metavar='STATUS',
        help=f'only migrations in this status, may be repeated: {", ".join(statuses)}',
    )
    parser.add_argument('--host', help='only migrations from or to this host')
    parser.add_argument('--in-progress', action='store_true', help='only migrations that have not ended')
    command.limit(parser)


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = "its uuid, its id, its guest's name, or four or more characters with which its uuid begins"
    parser.add_argument('migration', type=command.name, metavar='MIGRATION', help=help_)


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    _show_arguments(parser)
    parser.add_argument('--dry-run', action='store_true', help='only show what would be done')
    _wait(parser, 30)


def _abandon_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = 'the whole uuid, or the id, of the migration'
    parser.add_argument('migration', type=_which, metavar='MIGRATION', help=help_)
    parser.add_argument(
        '--guest-on', required=True, type=command.name, metavar='HOST', help='the host that has the guest'
    )
    sure = parser.add_mutually_exclusive_group()
    sure.add_argument('--dry-run', action='store_true', help='only show what would be done; the default without --yes')
    sure.add_argument('--yes', action='store_true', help='do it')
    _wait(parser, 120)


def _purge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--before',
        required=True,
        type=command.past,
        metavar='TIME',
        help='only migrations that ended before: ISO 8601, in UTC if it has no zone, or an age such as 30d or 12h',
    )
    help_ = 'purge at most N migrations, the oldest; default: all'
    parser.add_argument('--max-rows', type=command.at_least(1), metavar='N', help=help_)
    parser.add_argument('--dry-run', action='store_true', help='only show how many would be purged')


def _wait(parser: argparse.ArgumentParser, seconds: int) -> None:
    help_ = f'wait at most this long for the result; default {seconds}'
    parser.add_argument('--wait', type=command.at_least(0), default=seconds, metavar='SECONDS', help=help_)


#: The verbs of a migration.
VERBS: tuple[command.Verb, ...] = (
    Verb('list', 'list migrations, the newest first', list_, _list_arguments),
    Verb('show', 'show what a migration waits for, its timeline, and what happens next', show, _show_arguments),
    Verb('retry', 'have a stuck migration observed again, with its tries reset', retry, _retry_arguments),
    Verb(
        'abandon',
        'end a stuck migration in error, with its guest on the host that you name; without --yes only show what would'
        ' be done',
        abandon,
        _abandon_arguments,
    ),
    Verb(
        'purge',
        'delete migrations that ended before a time, with logs and actions, in batches beside running services',
        purge,
        _purge_arguments,
    ),
)
