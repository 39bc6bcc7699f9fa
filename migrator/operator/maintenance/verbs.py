# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage maintenance``: maintenances over REST, and the work at their hosts."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any

from migrator import exception, executors
from migrator.drain.maintenance.turns import MaintenanceStatus
from migrator.objects import base
from migrator.operator.cli import command
from migrator.operator.cli.command import Asked, Verb
from migrator.operator.maintenance import arguments, text, work
from migrator.operator.watch import commands

#: What names a maintenance.
NAMES = 'its uuid, one of its hosts, or four or more characters with which its uuid begins'
_PATH = '/maintenances'


def connect(asked: Asked) -> commands.Requests:
    """Return what sends requests.

    :raises migrator.exception.ConfigurationError: neither the configuration nor the environment names a cloud.
    """
    from migrator.operator.watch.client import client_from_conf

    return client_from_conf(asked.conf)


def find(client: commands.Requests, name: str) -> dict[str, Any]:
    """Return a maintenance by any of its names."""
    found: dict[str, Any] = client.request('GET', f'{_PATH}/{commands.quoted(name)}')['maintenance']
    return found


def body(given: argparse.Namespace, client: commands.Requests, now: Callable[[], Any]) -> dict[str, Any]:
    """Return the body of the request that a command line describes; see :func:`.arguments.body`."""
    return arguments.body(given, now, lambda: [one['name'] for one in commands.pages(client, '/hosts')])


def request_plan(client: commands.Requests, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a maintenance."""
    found: dict[str, Any] = client.request('POST', _PATH, {**wanted, 'dry_run': True})['plan']
    return found


def request_start(client: commands.Requests, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Request a maintenance, and return it."""
    found: dict[str, Any] = client.request('POST', _PATH, wanted)['maintenance']
    return found


def request_action(
    client: commands.Requests, uuid: str, action: str, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Send an action, and return the maintenance, or the host that it concerns."""
    reply = client.request('POST', f'{_PATH}/{uuid}/action', {action: None if given is None else dict(given)})
    found: dict[str, Any] = reply['maintenance'] if given is None else reply['host']
    return found


# --- the verbs -------------------------------------------------------------------------------------------------------


def _typed(asked: Asked) -> str:
    return f'{asked.command} maintenance'


def plan(asked: Asked) -> int:
    """Show in which order hosts would leave service, and what is in the way."""
    client = connect(asked)
    found = request_plan(client, body(asked.arguments, client, asked.threads.clock.now))
    asked.answer(found, '\n'.join(text.plan(found)))
    return command.RIGHT if found['fits'] else command.WRONG


def start(asked: Asked) -> int:
    """Request a maintenance."""
    client = connect(asked)
    found = request_start(client, body(asked.arguments, client, asked.threads.clock.now))
    hosts = base.count(len(found['hosts']), 'host')
    said = f'Maintenance {found["uuid"]} of {hosts} is accepted. See it: {_typed(asked)} show {found["uuid"]}'
    asked.answer(found, said)
    return command.RIGHT


def list_(asked: Asked) -> int:
    """List maintenances, the newest first."""
    found = [*commands.pages(connect(asked), _PATH, **query(asked.arguments))]
    asked.answer({'maintenances': found}, command.table(text.LIST_COLUMNS, text.listed(found)))
    return command.RIGHT


def query(given: argparse.Namespace) -> dict[str, str]:
    """Return the query of a list that a command line describes."""
    found = {'host': given.host} if given.host else {}
    return found | ({'in_progress': 'true'} if given.in_progress else {})


def show(asked: Asked) -> int:
    """Show a maintenance with its hosts."""
    found = find(connect(asked), asked.arguments.maintenance)
    asked.answer(found, '\n'.join(text.whole(found, _typed(asked))))
    return command.RIGHT


def _change(action: str) -> Callable[[Asked], int]:
    def change(asked: Asked) -> int:
        client = connect(asked)
        uuid = named(client, asked.arguments)
        found = request_action(client, uuid, action, None)
        asked.answer(found, '\n'.join(text.whole(found, _typed(asked))))
        return command.RIGHT

    return change


def _of_host(action: str) -> Callable[[Asked], int]:
    def act(asked: Asked) -> int:
        client, given = connect(asked), asked.arguments
        uuid = named(client, given)
        found = request_action(client, uuid, action, of_host(given))
        said = f'{found["host"]} is {found["status"]}.'
        if action == 'begin':
            said = f'{said} Report the end of the work: {_typed(asked)} done {uuid} {found["host"]} '
            said += f'--claim {found["claim"]}'
        asked.answer(found, base.printable(said))
        return command.RIGHT

    return act


def retry(asked: Asked) -> int:
    """Put a host that has failed back, unless work at it still runs on this machine."""
    client, given = connect(asked), asked.arguments
    uuid = named(client, given)
    check_living(given.directory or work.default_directory(os.environ), uuid, given.host)
    found = request_action(client, uuid, 'retry', of_host(given))
    asked.answer(found, base.printable(f'{found["host"]} is {found["status"]}.'))
    return command.RIGHT


def check_living(directory: pathlib.Path, uuid: str, host: str) -> None:
    """Raise if work at a host still runs on this machine.

    :raises migrator.exception.Conflict: it does.
    """
    left = work.living(directory, uuid, host)
    if left:
        raise exception.Conflict(f'Cannot retry {host}: its work still runs: {work.pids(left)}. Wait, or end it.')


def do_work(asked: Asked) -> int:
    """Work at each host that is ready, until the maintenance has ended."""
    found = work_at(connect(asked), asked.arguments, asked.threads)
    return command.RIGHT if found['status'] == MaintenanceStatus.COMPLETED else command.WRONG


def work_at(client: commands.Requests, given: argparse.Namespace, threads: executors.Threads) -> dict[str, Any]:
    """Work as a command line describes, until the maintenance has ended, and return it."""
    uuid = named(client, given)
    worker = work.Worker(
        uuid,
        commands_of(given),
        lambda action, wanted: request_action(client, uuid, action, wanted),
        given.directory or work.default_directory(os.environ),
        threads,
        lambda line: print(base.printable(line), flush=True),
    )
    try:
        return work.follow(worker, lambda: find(client, uuid), threads.sleep)
    except KeyboardInterrupt:
        print('Work in progress goes on. To go on with it, type the same command again.', file=sys.stderr)
        raise


def commands_of(given: argparse.Namespace) -> work.Commands:
    """Return the commands that a command line gives."""
    named = {field.name: getattr(given, f'work_{field.name}', None) for field in dataclasses.fields(work.Commands)}
    return work.Commands(**{name: value for name, value in named.items() if value is not None})


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``work``."""
    which(parser)
    what = 'there is no shell; {host} and the variable MIGRATOR_HOST have the host'
    parser.add_argument(
        '--run', dest='work_run', metavar='COMMAND', type=_words, required=True, help=f'the work at a host; {what}'
    )
    help_ = f'runs before it: exit status 0 goes on, {work.NOTHING_TO_DO} skips the host, any other is a failure'
    parser.add_argument('--check', dest='work_check', metavar='COMMAND', type=_words, help=help_)
    help_ = 'runs after it, again and again until its exit status is 0; only then the work has ended'
    parser.add_argument('--verify', dest='work_verify', metavar='COMMAND', type=_words, help=help_)
    help_ = 'how long check and run may take, each; default 1 h. An attempt of verify has a minute'
    parser.add_argument('--limit', dest='work_limit', metavar='SPAN', type=command.seconds, help=help_)
    help_ = 'for how long verify is repeated; default 1 h'
    parser.add_argument('--verify-for', dest='work_verify_for', metavar='SPAN', type=command.seconds, help=help_)
    _add_directory(parser)


def _words(text_: str) -> str:
    try:
        words = shlex.split(text_)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'{text_[:40]!r} is not a command: {error}') from None
    if not words:
        raise argparse.ArgumentTypeError('it is empty: give a command')
    return text_


def of_host(given: argparse.Namespace) -> dict[str, Any]:
    """Return the body of an action on a host that a command line describes."""
    named = {name: getattr(given, name, None) for name in ('host', 'claim', 'reason', 'stays_disabled')}
    return {name: value for name, value in named.items() if value is not None}


def named(client: commands.Requests, given: argparse.Namespace) -> str:
    """Return the uuid of the maintenance that a command line names."""
    found = find(client, given.maintenance)
    command.say_what(given.maintenance, f'maintenance {found["uuid"]}')
    return str(found['uuid'])


def which(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a maintenance."""
    parser.add_argument('maintenance', metavar='MAINTENANCE', type=commands.part, help=NAMES)


def list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a list."""
    parser.add_argument('--host', metavar='HOST', type=command.name, help='only maintenances of this host')
    parser.add_argument('--in-progress', action='store_true', help='only maintenances that have not ended')


def _add_host(parser: argparse.ArgumentParser) -> None:
    which(parser)
    parser.add_argument('host', metavar='HOST', type=command.name, help='a host of the maintenance')


def _add_claim(parser: argparse.ArgumentParser, help_: str, required: bool = True) -> None:
    parser.add_argument('--claim', metavar='UUID', type=command.uuid, required=required, help=help_)


def add_begin(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``begin``."""
    _add_host(parser)
    _add_claim(
        parser,
        'the claim that it gets; default: a new one. With a new uuid of your own the command may be repeated',
        False,
    )


def add_done(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``done``."""
    _add_host(parser)
    _add_claim(parser, 'the claim that begin has printed; show has it too')


def add_fail(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``fail``."""
    add_done(parser)
    parser.add_argument('--reason', metavar='TEXT', type=command.name, help='why; the maintenance shows it')


def add_skip(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``skip``."""
    _add_host(parser)
    _add_claim(parser, 'the claim of a host that is worked on', False)
    help_ = 'keep a host that has failed disabled, so that it receives no guests'
    parser.add_argument('--stays-disabled', action='store_const', const=True, default=None, help=help_)


def add_retry(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``retry``."""
    _add_host(parser)
    _add_directory(parser)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    help_ = (
        'the directory with the logs and results of work; default: migrator/work in $XDG_STATE_HOME or ~/.local/state'
    )
    parser.add_argument('--directory', metavar='PATH', type=pathlib.Path, help=help_)


#: Each action on a maintenance: its help.
CHANGES = {
    'pause': 'begin no further host; work in progress goes on',
    'resume': 'go on after a pause, and accept the failures so far',
    'cancel': 'begin no further host, and end once those in work are back',
}
#: Each action on a host: its help, and what adds its arguments.
ACTIONS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    'begin': ('claim a host that is ready, before the work at it', add_begin),
    'done': ('report that the work at a host has ended', add_done),
    'fail': ('report that the work at a host has failed', add_fail),
    'retry': ('put a host that has failed back among those that wait', add_retry),
    'skip': ('leave out a host that waits, is ready, is worked on or has failed', add_skip),
}

VERBS: tuple[Verb, ...] = (
    Verb('plan', 'show in which order hosts leave service, and what is in the way', plan, arguments.add),
    Verb('start', 'take hosts out of service for work, some at a time', start, arguments.add),
    Verb('list', 'list maintenances, the newest first', list_, list_arguments),
    Verb('show', 'show a maintenance with its hosts', show, which),
    *(Verb(name, help_, _change(name), which) for name, help_ in CHANGES.items()),
    *(Verb(name, help_, retry if name == 'retry' else _of_host(name), add) for name, (help_, add) in ACTIONS.items()),
    Verb('work', 'work at each host that is ready by commands, until the maintenance has ended', do_work, add_work),
)
