# SPDX-License-Identifier: Apache-2.0

"""``openstack host drain``: plan, create, list, show, watch, set, cancel and restore drains."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from cliff import columns
from osc_lib import exceptions
from osc_lib.command import command

from migrator import executors
from migrator.objects import remedies
from migrator.objects.drain import DRAIN_ENDS, Direction, DrainStatus, Tally
from migrator.operator import drain_request, drain_text
from migrator.operator.cli.command import expected, say_what
from migrator.operator.cli.drain import NAMES
from migrator.operator.watch import commands, errors, screen, subjects

#: The statuses of a drain that has done all that was requested.
_GOOD = (DrainStatus.COMPLETED, DrainStatus.RESTORED)
_COLUMNS = ('uuid', 'host', 'status', 'moved', 'guests', 'created_at')
_HEADINGS = ('UUID', 'Host', 'Status', 'Moved', 'Guests', 'Created At')
_PLAN = ('name', 'instance_uuid', 'size_mb', 'destination', 'seconds', 'reason', 'remedy')
_PLAN_HEADINGS = ('Name', 'Server', 'MiB', 'Room At', 'Seconds', 'In The Way', 'Remedy')
#: The beginning of each command about drains.
_COMMAND = 'openstack host drain'
_PAUSE_HELP = 'request no further migrations; those in progress go on'
_RESUME_HELP = 'request migrations again after a pause'


def _client(app: Any) -> Any:
    return app.client_manager.migrator


def _row(drain: dict[str, Any]) -> tuple[Any, ...]:
    tally = Tally.of(drain['direction'], drain['guests'])
    created = drain['created_at']
    shown = drain | {'moved': tally.done, 'guests': tally.total}
    words = {name: _words(shown[name]) for name in _COLUMNS}
    # The fraction of a second makes a narrow table longer.
    return (*[*words.values()][:-1], _Value(created, created[:19].replace('T', ' ')))


def _listed(
    given: argparse.Namespace, documents: Sequence[dict[str, Any]], headings: Sequence[str], rows: Sequence[Any]
) -> tuple[Sequence[str], Sequence[Any]]:
    """Return a list for a reader, or for a program: the documents themselves."""
    if given.formatter not in ('json', 'yaml') or not documents:
        return headings, rows
    names = tuple(dict.fromkeys(name for one in documents for name in one))
    return names, [tuple(one.get(name) for name in names) for one in documents]


def _shown(given: argparse.Namespace, drain: dict[str, Any]) -> tuple[Sequence[str], Sequence[Any]]:
    """Return the columns and the values of a drain: its document, which a reader is shown in words."""
    message = drain_text.message(drain)
    ending = drain_text.advice(drain, _COMMAND) if drain_text.has_ended(drain) else ()
    words = {
        'guests': ', '.join(f'{number} {status}' for status, number in drain['guests'].items() if number),
        'members': '\n'.join(drain_text.guests(drain)) or _all(drain),
        'checks': '\n'.join(drain_text.checks(drain)),
        'expected': _expected(drain),
        'message': '\n'.join([*([message] if message else []), *ending]),
    }
    shown = {name: _words(value) for name, value in drain.items()} | words
    as_read = given.formatter in ('json', 'yaml')
    return tuple(drain), tuple(
        _Value(value if as_read else _plain(value), shown[name]) for name, value in drain.items()
    )


def _all(drain: dict[str, Any]) -> str:
    """Return what is said of the guests of a drain, of which none is left for a reason."""
    if not drain['members']:
        return 'none'
    if drain['retried_by'] is not None:
        return f'see drain {drain["retried_by"]}'
    tally = Tally.of(drain['direction'], drain['guests'])
    if tally.left:
        return f'{tally.left} of them {"wait" if tally.left > 1 else "waits"} or move'
    return 'all of them have moved' if drain['direction'] == Direction.AWAY else 'all of them are back'


def _plain(value: Any) -> str:
    """Return a value for a script: null as an empty text, and lists and objects as JSON."""
    return json.dumps(value) if isinstance(value, (list, dict)) else '' if value is None else str(value)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ', '.join(map(str, value))
    return '' if value is None else str(value)


class _Value(columns.FormattableColumn[Any]):
    """A value of a document: in words for a reader, unchanged for a program."""

    def __init__(self, value: Any, words: str) -> None:
        super().__init__(value)
        self._words = words

    def human_readable(self) -> str:
        """Return it in words."""
        return self._words


def _expected(drain: dict[str, Any]) -> str:
    value = drain['expected']
    if drain['status'] in DRAIN_ENDS:
        return str(value['reason'])
    end = value['end']
    times = end and {name: datetime.datetime.fromisoformat(f'{text}+00:00') for name, text in end.items()}
    return expected(value | {'end': times})


def _wait(client: Any, uuid: str) -> dict[str, Any]:
    """Return a drain once it has ended. Its events are printed on stderr meanwhile."""
    subject = _subject(client, uuid)
    _follow(subject, uuid, screen.Lines(sys.stderr, sys.stderr), has_answered=True)
    return subject.drain


def _subject(client: Any, uuid: str) -> subjects.Drain:
    clock = executors.SystemClock()
    command = remedies.offer(remedies.Kind.SHOW_DRAIN, drain=uuid)
    return subjects.Drain(client.get, clock.now, uuid, command=command)


def _follow(subject: subjects.Drain, uuid: str, view: screen.View, has_answered: bool = False) -> int:
    try:
        return commands.follow(subject, view, time.sleep, has_answered=has_answered)
    except KeyboardInterrupt:
        sys.stderr.write(f'The drain goes on. {remedies.offer(remedies.Kind.CANCEL_DRAIN, drain=uuid)}\n')
        raise


def _check(drain: dict[str, Any]) -> None:
    if drain['status'] not in _GOOD:
        raise exceptions.CommandError(f'Drain {drain["uuid"]} is {drain["status"]}: {drain["message"]}')


class _Usage(command.Command):
    """A command that exits with 2, as the other commands do, if a value or a name is wrong."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return int(super().run(parsed_args))
        except errors.ApiInvalid as error:
            self.app.LOG.error(error)
            return 2


class CreateDrain(_Usage, command.ShowOne):
    """Empty a host: disable it, and live-migrate its servers away."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        drain_request.add(parser, 'server')
        parser.add_argument('--wait', action='store_true', help='wait until the drain has ended')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the drain, and return its columns and values."""
        client = _client(self.app)
        drain = client.request('POST', '/drains', _body(parsed_args))['drain']
        if parsed_args.wait:
            drain = _wait(client, drain['uuid'])
            _check(drain)
        return _shown(parsed_args, drain)


class PlanDrain(_Usage, command.Lister):
    """Show which servers of a host can move, where to, and what is in the way. Nothing is changed."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        drain_request.add(parser, 'server')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the plan, and return the columns and the rows."""
        body = _body(parsed_args) | {'dry_run': True}
        plan = _client(self.app).request('POST', '/drains', body)['plan']
        rows = []
        for guest in plan['guests']:
            seconds = (guest['expected_seconds'] or {'p50': None})['p50']
            flat = guest | {'seconds': seconds} | (guest['obstacle'] or {})
            rows.append(tuple(flat.get(name) for name in _PLAN))
        rows += [tuple(one.get(name) for name in _PLAN) for one in plan['copies']]
        shown = [tuple(map(_words, row)) for row in rows]
        return _listed(parsed_args, [*plan['guests'], *plan['copies']], _PLAN_HEADINGS, shown)


class ListDrain(_Usage, command.Lister):
    """List drains, the newest first."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('--host', metavar='<host>', help='only drains of this host')
        parser.add_argument('--in-progress', action='store_true', help='only drains that have not ended')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the list, and return the columns and the rows."""
        query: dict[str, str] = {}
        if parsed_args.host:
            query['host'] = parsed_args.host
        if parsed_args.in_progress:
            query['in_progress'] = 'true'
        found = [*_pages(_client(self.app), query)]
        return _listed(parsed_args, found, _HEADINGS, [_row(drain) for drain in found])


def _pages(client: Any, query: dict[str, str]) -> Iterable[dict[str, Any]]:
    while True:
        page = client.request('GET', '/drains', **query)
        yield from page['drains']
        if 'drains_links' not in page:
            return
        query = query | {'marker': page['drains'][-1]['uuid']}


class ShowDrain(_Usage, command.ShowOne):
    """Show a drain, and each server that has not moved."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        return _with_drain(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the drain, and return its columns and values."""
        return _shown(parsed_args, _find(_client(self.app), parsed_args.drain))


class WatchDrain(_Usage, command.Command):
    """Show a drain until it ends; exit with 1 unless it ends completed or restored."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        return _with_drain(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Show the drain, and return the exit status."""
        uuid = str(_find(_client(self.app), parsed_args.drain)['uuid'])
        return _follow(_subject(_client(self.app), uuid), uuid, commands.make_view(as_json=False))


class SetDrain(_Usage, command.ShowOne):
    """Pause or resume a drain."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser = _with_drain(super().get_parser(prog_name))
        either = parser.add_mutually_exclusive_group(required=True)
        either.add_argument('--pause', dest='action', action='store_const', const='pause', help=_PAUSE_HELP)
        either.add_argument('--resume', dest='action', action='store_const', const='resume', help=_RESUME_HELP)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the change, and return the columns and values of the drain."""
        return _shown(parsed_args, _act(self.app, parsed_args, {parsed_args.action: None}))


class CancelDrain(_Usage, command.ShowOne):
    """End a drain: abort its migrations that do not run yet, and enable the host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser = _with_drain(super().get_parser(prog_name))
        parser.add_argument('--abort-running', action='store_true', help='also abort the migrations that already run')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the cancel, and return the columns and values of the drain."""
        return _shown(
            parsed_args, _act(self.app, parsed_args, {'cancel': {'abort_running': parsed_args.abort_running}})
        )


class RestoreDrain(_Usage, command.ShowOne):
    """Enable the host, and bring back the servers that the drain has moved."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser = _with_drain(super().get_parser(prog_name))
        parser.add_argument('--wait', action='store_true', help='wait until the restore has ended')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the restore, and return the columns and values of the drain."""
        drain = _act(self.app, parsed_args, {'restore': None})
        if parsed_args.wait:
            drain = _wait(_client(self.app), drain['uuid'])
            _check(drain)
        return _shown(parsed_args, drain)


class RetryDrain(_Usage, command.ShowOne):
    """Begin a new drain with the same request, for the servers that an ended one did not move."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        return _with_drain(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the new drain, and return its columns and values."""
        return _shown(parsed_args, _act(self.app, parsed_args, {'retry': None}))


def _find(client: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.request('GET', f'/drains/{commands.quoted(name)}')['drain']
    return found


def _act(app: Any, parsed_args: argparse.Namespace, body: dict[str, Any]) -> dict[str, Any]:
    client, name = _client(app), parsed_args.drain
    found = _find(client, name)
    say_what(name, f'drain {found["uuid"]} of {found["host"]}')
    acted: dict[str, Any] = client.request('POST', f'/drains/{found["uuid"]}/action', body)['drain']
    return acted


def _with_drain(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument('drain', metavar='<drain>', type=commands.part, help=NAMES)
    return parser


def _body(parsed_args: argparse.Namespace) -> dict[str, Any]:
    given = drain_request.given(parsed_args, executors.SystemClock().now)
    if 'deadline' in given:
        given['deadline'] = given['deadline'].isoformat()
    return given
