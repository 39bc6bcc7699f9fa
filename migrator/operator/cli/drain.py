# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage drain``: plan, start, change and restore the drain of a host."""

from __future__ import annotations

import argparse
import datetime
import getpass
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrator.objects import MigrationType, base
from migrator.objects.drain import Drain, Locked, Member
from migrator.operator import drain_text, request_fields
from migrator.operator.cli import command
from migrator.operator.cli.command import Asked, Verb
from migrator.operator.cli.parser import PROG
from migrator.operator.watch import commands

_COLUMNS = ('UUID', 'HOST', 'RESULT', 'CREATED')
_MEMBER_COLUMNS = ('GUEST', 'INSTANCE', 'STATUS', 'ATTEMPTS', 'PLACE', 'EXPECTED END', 'DESTINATION')
_PLAN_COLUMNS = ('GUEST', 'INSTANCE', 'MIB', 'ROOM AT', 'SECONDS', 'IN THE WAY', 'REMEDY')


def show_plan(asked: Asked) -> int:
    """Show which guests of hosts can move, where they would go, and what is in the way."""
    drains = [_checked(asked, host) for host in dict.fromkeys(asked.arguments.hosts)]
    if _uses_nova(asked):
        from migrator.nova.client import client_from_conf
        from migrator.nova.plan import plan

        clock = asked.threads.clock
        return answer_plans(asked, plan(client_from_conf(asked.conf), asked.placement(), drains, clock))
    from migrator.conductor.drains.plan import plan_together

    return answer_plans(asked, plan_together(asked.database, asked.placement(), drains, asked.bounds))


def answer_plans(asked: Asked, plans: Sequence[dict[str, Any]]) -> int:
    """Print plans, and return the exit status: 1 if a guest cannot move, or an old copy of one stays."""
    text = '\n'.join(_plan_text(one) for one in plans)
    asked.answer(plans[0] if len(plans) == 1 else {'plans': plans}, text)
    return command.WRONG if any(one['cannot_move'] or one['copies'] for one in plans) else command.RIGHT


def _plan_text(found: dict[str, Any]) -> str:
    rows = []
    for guest in found['guests']:
        in_the_way = guest['obstacle'] or {'reason': None, 'remedy': None}
        shown = (guest['name'], guest['instance_uuid'], guest['size_mb'], guest['destination'])
        seconds = (guest['expected_seconds'] or {'p50': None})['p50']
        rows.append([*shown, seconds, in_the_way['reason'], in_the_way['remedy']])
    text = command.table(_PLAN_COLUMNS, rows)
    text += f'\n{base.count(found["can_move"], "guest")} of {found["host"]} can move, {found["cannot_move"]} cannot.'
    if found['locked']:
        text += f' {base.count(found["locked"], "guest is", "guests are")} locked.'
    cold = sum(guest['can_move'] and guest['migration_type'] == MigrationType.MIGRATION for guest in found['guests'])
    text = f'{text} {_takes(found["expected_seconds"], cold)}' if found['can_move'] else text
    copies = [f'\n{one["name"]} ({one["instance_uuid"]}): {one["reason"]} {one["remedy"]}' for one in found['copies']]
    return text + ''.join([*copies, *(f'\n{one}' for one in found['not_judged'])])


def _takes(seconds: Mapping[str, int] | None, cold: int) -> str:
    if cold:
        moved = base.count(cold, 'of them is moved while it is', 'of them are moved while they are')
        return f'{moved} shut off, and how long that takes is not known.'
    if seconds is None:
        return 'How long that takes is not known: too few live migrations have completed.'
    half, most = (command.span(seconds[name]) for name in ('p50', 'p80'))
    return f'That is expected to take {half}, and in four of five cases at most {most}.'


def start(asked: Asked) -> int:
    """Write the request to empty a host, and wake a conductor, which does the work."""
    drain = _checked(asked, asked.arguments.host)
    get = commands.connect(asked) if asked.arguments.watch else None  # before anything is written
    asked.database.drains.accept(drain, has_service=not _uses_nova(asked))
    _wake(asked)
    if get is not None:
        return commands.watch(asked, get, 'Drain', drain.uuid)
    text = f'Drain {drain.uuid} of {drain.host} is accepted. Watch it: {asked.command} watch drain {drain.uuid}'
    asked.answer(document(asked, asked.database.drains.get(drain.uuid)), text)
    return command.RIGHT


def _checked(asked: Asked, host: str) -> Drain:
    drain = wanted(asked, host)
    if not _uses_nova(asked):
        asked.database.drains.check(drain)
        return drain
    from migrator.db.drains import Known
    from migrator.nova.client import client_from_conf

    hosts = {service.host for service in client_from_conf(asked.conf).services()}
    asked.database.drains.check(drain, Known(hosts, [*(drain.priorities or ())]))
    return drain


def _uses_nova(asked: Asked) -> bool:
    from migrator.conf.conductor import uses_nova

    return uses_nova(asked.conf)


def wanted(asked: Asked, host: str) -> Drain:
    """Return the drain of a host that the command line requests; its hosts are not checked."""
    given = request_fields.given(asked.arguments, asked.database.drains.now)
    return Drain(**given | {'uuid': asked.threads.new_uuid(), 'host': host, 'requested_by': getpass.getuser()})


def list_(asked: Asked) -> int:
    """List drains, the newest first."""
    from migrator.views import drains

    command.check_host(asked)
    given, rows_of = asked.arguments, asked.database.drains
    found = rows_of.list(given.host, True if given.in_progress else None, given.limit)
    now, documents = rows_of.now(), [asked.shown(one) for one in drains.summaries(asked.database, found)]
    rows = [
        [shown['uuid'], shown['host'], _listed(shown), command.ago(one.created_at, now)]
        for one, shown in zip(found, documents, strict=True)
    ]
    asked.answer({'drains': documents}, command.table(_COLUMNS, rows))
    return command.RIGHT


def show(asked: Asked, how_to_retry: Callable[[Drain], str] | None = None) -> int:
    """Show a drain with its guests.

    :param how_to_retry: returns how one that has left guests is tried again, as a sentence; None: by ``retry``.
    """
    drain = find(asked)
    shown = document(asked, drain)
    lines = _head(shown)
    if drain.ended:
        lines += drain_text.guests(shown, asked.typed)
        lines += drain_text.checks(shown)
        lines += drain_text.advice(shown, asked.drain_command, how_to_retry(drain) if how_to_retry else None)
        lines.append(f'Each guest: {asked.drain_command} report {drain.uuid}')
    else:
        lines += [command.expected(shown['expected']), _table(shown), *drain_text.guests(shown, asked.typed)]
    asked.answer(shown, '\n'.join(lines))
    return command.RIGHT


def _listed(drain: Mapping[str, Any]) -> str:
    newer, pid = drain['retried_by'], drain.get('pid')
    text = drain_text.result(drain) + (f' (process {pid})' if pid is not None else '')
    return text + (f'; retried by {newer[:8]}' if newer is not None else '')


def calibration(asked: Asked) -> int:
    """Show how right the recorded expected ends of the guests were."""
    from migrator.views import drains

    whole = drains.calibration(asked.database, asked.arguments.drains)
    shares = ('median_error', 'p50_held', 'p80_held')
    rows = [
        [one['drain'], one['host'], one['samples'], *(f'{one[name]:.0%}' for name in shares)]
        for one in [*whole['drains'], {'drain': 'all', 'host': None} | whole]
        if one['samples']
    ]
    text = 'No expected end of a guest that has moved was recorded.'
    if whole['samples']:
        text = command.table(('DRAIN', 'HOST', 'SAMPLES', 'MEDIAN ERROR', 'BEFORE P50', 'BEFORE P80'), rows)
    asked.answer(whole, text)
    return command.RIGHT


def document(asked: Asked, drain: Drain) -> dict[str, Any]:
    """Return a drain as JSON, with its guests."""
    from migrator.views import drains

    return asked.shown(drains.document(asked.database, asked.bounds, drain))


def _head(drain: Mapping[str, Any]) -> list[str]:
    lines = [f'Drain {drain["uuid"]} of {drain["host"]}: {drain_text.result(drain)}.']
    lines += [f'It is the retry of drain {drain["retry_of"]}.'] if drain['retry_of'] is not None else []
    lines += ['It also moves the guests that are shut off.'] if drain['include_stopped'] else []
    lines += ['It also moves the guests that are locked.'] if drain['locked'] == Locked.MOVE else []
    said = drain_text.message(drain) if drain_text.has_ended(drain) else drain_text.waits_for(drain)
    return [*lines, command.printable(said)] if said else lines


def _table(drain: Mapping[str, Any]) -> str:
    rows = []
    for one in drain['members']:
        destination = one['destination'] or (one['migration'] or {}).get('destination')
        end = one['expected']['end']
        of_line = [one['place'], None if end is None else command.moment(end['p50'])]
        rows.append([one['name'], one['instance_uuid'], one['status'], one['attempts'], *of_line, destination])
    return command.table(_MEMBER_COLUMNS, rows)


def _act(action: str, text: str) -> Any:
    def act(asked: Asked) -> int:
        drains, found = asked.database.drains, find(asked)
        command.say_what(asked.arguments.drain, f'drain {found.uuid} of {found.host}')
        drains.request(found.uuid, action, getpass.getuser(), getattr(asked.arguments, 'abort_running', False))
        _wake(asked)
        asked.answer(document(asked, drains.get(found.uuid)), f'Drain {found.uuid} of {found.host}: {text}')
        return command.RIGHT

    return act


def report(asked: Asked) -> int:
    """Show who has drained a host and when, what became of each guest, and the checks."""
    from migrator.views import reports

    found = reports.document(asked.database, find(asked))
    asked.answer(found, (reports.markdown if asked.arguments.markdown else reports.text)(found))
    return command.RIGHT


def retry(asked: Asked) -> int:
    """Request a new drain for the guests that one has left."""
    drain, moved = again(asked)
    asked.database.drains.accept(drain, has_service=not _uses_nova(asked), moved=moved)
    _wake(asked)
    shown = f'Drain {drain.uuid} of {drain.host} is accepted, for {base.count(len(drain.only_guests or ()), "guest")}.'
    text = f'{shown} Watch it: {asked.command} watch drain {drain.uuid}'
    asked.answer(document(asked, asked.database.drains.get(drain.uuid)), text)
    return command.RIGHT


def again(asked: Asked) -> tuple[Drain, list[Member]]:
    """Return a new drain for the guests that the named one has left, and the guests that it has moved.

    :raises migrator.exception.InvalidDrainState: it has not ended, was a restore, or has left no guest.
    """
    from migrator.drain import request

    found, drains = find(asked), asked.database.drains
    command.say_what(asked.arguments.drain, f'drain {found.uuid} of {found.host}')
    members = drains.read_members(found.uuid)
    fields = request.again(found, members, drains.now())
    return Drain(uuid=asked.threads.new_uuid(), requested_by=getpass.getuser(), **fields), request.moved(members)


def purge(asked: Asked) -> int:
    """Delete drains that ended before a time, with their guests and events."""
    from migrator.db.api import purge_ended

    given, drains = asked.arguments, asked.database.drains
    before = given.before
    if isinstance(before, datetime.timedelta):
        before = drains.now() - before
    found = drains.count_ended(before)
    with command.progress(asked, 'drains purged', found) as advance:
        document = purge_ended(asked.database.drains, before, found, given.dry_run, advance=advance)
    count, would = (found, 'would be ') if given.dry_run else (document['purged'], '')
    text = f'{base.count(count, "drain")} that ended before {command.moment(before)} UTC {would}purged.'
    asked.answer(document, text)
    return command.RIGHT


def _wake(asked: Asked) -> None:
    """Wake a conductor. If that fails, print a warning: the next sweep of a conductor finds the request."""
    from migrator.conductor import rpcapi
    from migrator.conf import upgrade_levels
    from migrator.context import admin_context

    try:
        version = upgrade_levels.version(asked.conf, 'conductor', rpcapi.VERSIONS)
        with asked.talking() as client:
            rpcapi.ConductorAPI(client, version).wake_drains(admin_context())
    except Exception as error:  # noqa: BLE001 -- the request is committed, whatever the broker or its options are
        found = 'the request is committed, and the next sweep of a conductor finds it'
        print(f'{PROG}: could not wake a conductor; {found}: {error}', file=sys.stderr)


def find(asked: Asked) -> Drain:
    """Return the drain that the command line names.

    :raises migrator.exception.DrainNotFound: it names none.
    :raises migrator.views.names.AmbiguousError: it names two.
    """
    from migrator.views import names

    return names.drain(asked.database, asked.arguments.drain)


#: What names a drain.
NAMES = 'its uuid, its host, or four or more characters with which its uuid begins'


def which(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a drain."""
    parser.add_argument('drain', metavar='DRAIN', type=command.name, help=NAMES)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    which(parser)
    parser.add_argument('--markdown', action='store_true', help='print Markdown, such as for a change ticket')


def _calibration_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = 'how many of the newest drains count; default 50'
    parser.add_argument('--drains', type=command.at_least(1), default=50, metavar='N', help=help_)


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    which(parser)
    parser.add_argument('--abort-running', action='store_true', help='also abort the migrations that already run')


def _purge_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = 'only drains that ended before: ISO 8601, in UTC if it has no zone, or an age such as 30d or 12h'
    parser.add_argument('--before', required=True, type=command.past, metavar='TIME', help=help_)
    parser.add_argument('--dry-run', action='store_true', help='only show how many would be purged')


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', metavar='HOST', help='only drains of this host')
    parser.add_argument('--in-progress', action='store_true', help='only drains that have not ended')
    command.limit(parser)


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = 'a host to empty; several are emptied at the same time, and none receives a guest'
    parser.add_argument('hosts', metavar='HOST', nargs='+', type=command.name, help=help_)
    request_fields.add(parser, without=['host'])


def _start_arguments(parser: argparse.ArgumentParser) -> None:
    request_fields.add(parser)
    parser.add_argument('--watch', action='store_true', help='show the drain until it ends')


#: The verbs of a drain.
VERBS: tuple[Verb, ...] = (
    Verb('plan', 'show which guests can move, where to, and what is in the way', show_plan, _plan_arguments),
    Verb('start', 'begin to empty a host', start, _start_arguments),
    Verb('list', 'list drains, the newest first', list_, _list_arguments),
    Verb('show', 'show a drain with its guests', show, which),
    Verb('calibration', 'show how right the expected ends were', calibration, _calibration_arguments),
    Verb(
        'pause',
        'request no further migrations; those in progress go on',
        _act('pause', 'paused. Migrations in progress go on.'),
        which,
    ),
    Verb('resume', 'request migrations again after a pause', _act('resume', 'resumed.'), which),
    Verb(
        'cancel',
        'end a drain: abort its migrations that do not run yet, and enable the host',
        _act('cancel', 'being cancelled. It ends when its migrations have ended.'),
        _cancel_arguments,
    ),
    Verb(
        'restore',
        'enable the host, and bring back the guests that the drain has moved',
        _act('restore', 'being restored.'),
        which,
    ),
    Verb('report', 'show who has drained a host, and what became of each guest', report, _report_arguments),
    Verb(
        'retry', 'begin a new drain with the same request, for the guests that an ended one did not move', retry, which
    ),
    Verb('purge', 'delete drains that have ended; a purged drain cannot be restored', purge, _purge_arguments),
)
