# SPDX-License-Identifier: Apache-2.0

"""``openstack host drain``: plan, create, list, show, watch, set, cancel and restore drains."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from typing import Any

from osc_lib import exceptions
from osc_lib.command import command

from migrator import executors
from migrator.objects import remedies
from migrator.objects.drain import DRAIN_ENDS, Direction, DrainStatus, Tally
from migrator.operator import drain_text, request_fields
from migrator.operator.cli.command import expected, say_what
from migrator.operator.cli.drain import NAMES
from migrator.operator.osc.shown import Usage, Value, client_of, listed, plain, words
from migrator.operator.watch import commands, screen, subjects

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


def _row(drain: dict[str, Any]) -> tuple[Any, ...]:
    tally = Tally.of(drain['direction'], drain['guests'])
    created = drain['created_at']
    shown = drain | {'moved': tally.done, 'guests': tally.total}
    texts = {name: words(shown[name]) for name in _COLUMNS}
    # The fraction of a second makes a narrow table longer.
    return (*[*texts.values()][:-1], Value(created, created[:19].replace('T', ' ')))


def _shown(given: argparse.Namespace, drain: dict[str, Any]) -> tuple[Sequence[str], Sequence[Any]]:
    """Return the columns and the values of a drain: its document, which a reader is shown in words."""
    message = drain_text.message(drain)
    ending = drain_text.advice(drain, _COMMAND) if drain_text.has_ended(drain) else ()
    texts = {
        'guests': ', '.join(f'{number} {status}' for status, number in drain['guests'].items() if number),
        'members': '\n'.join(drain_text.guests(drain)) or _all(drain),
        'checks': '\n'.join(drain_text.checks(drain)),
        'expected': _expected(drain),
        'message': '\n'.join([*([message] if message else []), *ending]),
    }
    shown = {name: words(value) for name, value in drain.items()} | texts
    as_read = given.formatter in ('json', 'yaml')
    return tuple(drain), tuple(Value(value if as_read else plain(value), shown[name]) for name, value in drain.items())


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


class CreateDrain(Usage, command.ShowOne):
    """Empty a host: disable it, and live-migrate its servers away."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        request_fields.add(parser, 'server')
        parser.add_argument('--wait', action='store_true', help='wait until the drain has ended')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the drain, and return its columns and values."""
        client = client_of(self.app)
        drain = client.request('POST', '/drains', _body(parsed_args))['drain']
        if parsed_args.wait:
            drain = _wait(client, drain['uuid'])
            _check(drain)
        return _shown(parsed_args, drain)


class PlanDrain(Usage, command.Lister):
    """Show which servers of a host can move, where to, and what is in the way. Nothing is changed."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        request_fields.add(parser, 'server')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the plan, and return the columns and the rows."""
        body = _body(parsed_args) | {'dry_run': True}
        plan = client_of(self.app).request('POST', '/drains', body)['plan']
        rows = []
        for guest in plan['guests']:
            seconds = (guest['expected_seconds'] or {'p50': None})['p50']
            flat = guest | {'seconds': seconds} | (guest['obstacle'] or {})
            rows.append(tuple(flat.get(name) for name in _PLAN))
        rows += [tuple(one.get(name) for name in _PLAN) for one in plan['copies']]
        shown = [tuple(map(words, row)) for row in rows]
        return listed(parsed_args, [*plan['guests'], *plan['copies']], _PLAN_HEADINGS, shown)


class ListDrain(Usage, command.Lister):
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
        found = [*commands.pages(client_of(self.app), '/drains', **query)]
        return listed(parsed_args, found, _HEADINGS, [_row(drain) for drain in found])


class ShowDrain(Usage, command.ShowOne):
    """Show a drain, and each server that has not moved."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        return _with_drain(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the drain, and return its columns and values."""
        return _shown(parsed_args, _find(client_of(self.app), parsed_args.drain))


class WatchDrain(Usage, command.Command):
    """Show a drain until it ends; exit with 1 unless it ends completed or restored."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        return _with_drain(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Show the drain, and return the exit status."""
        uuid = str(_find(client_of(self.app), parsed_args.drain)['uuid'])
        return _follow(_subject(client_of(self.app), uuid), uuid, commands.make_view(as_json=False))


class SetDrain(Usage, command.ShowOne):
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


class CancelDrain(Usage, command.ShowOne):
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


class RestoreDrain(Usage, command.ShowOne):
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
            drain = _wait(client_of(self.app), drain['uuid'])
            _check(drain)
        return _shown(parsed_args, drain)


class RetryDrain(Usage, command.ShowOne):
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
    client, name = client_of(app), parsed_args.drain
    found = _find(client, name)
    say_what(name, f'drain {found["uuid"]} of {found["host"]}')
    acted: dict[str, Any] = client.request('POST', f'/drains/{found["uuid"]}/action', body)['drain']
    return acted


def _with_drain(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument('drain', metavar='<drain>', type=commands.part, help=NAMES)
    return parser


def _body(parsed_args: argparse.Namespace) -> dict[str, Any]:
    given = request_fields.given(parsed_args, executors.SystemClock().now)
    if 'deadline' in given:
        given['deadline'] = given['deadline'].isoformat()
    return given
