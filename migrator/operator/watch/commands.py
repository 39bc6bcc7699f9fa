# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage watch``: show a drain, a host or a migration over REST until it ends."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from urllib import parse

from migrator.operator.cli import command
from migrator.operator.cli.command import Asked, Verb
from migrator.operator.watch import errors

if TYPE_CHECKING:  # so that the help is fast
    from migrator.operator.watch import screen, subjects

#: Seconds between two looks.
EVERY = 1.0


def drain(asked: Asked) -> int:
    """Show a drain until it ends; exit with 0 if it ends completed or restored."""
    get = connect(asked)
    found = get(f'/drains/{quoted(asked.arguments.drain)}')['drain']
    return watch(asked, get, 'Drain', str(found['uuid']))


def host(asked: Asked) -> int:
    """Show the migrations of a host until none is in progress; exit with 0."""
    return watch(asked, connect(asked), 'Host', asked.arguments.host)


def migration(asked: Asked) -> int:
    """Show a migration until it ends; exit with 0 if it ends completed."""
    get = connect(asked)
    found = get(f'/migrations/{quoted(asked.arguments.migration)}')
    return watch(asked, get, 'Migration', str(found['migration']['uuid']))


def watch(asked: Asked, get: subjects.Get, kind: str, name: str) -> int:
    """Show something until it ends, and return the exit status.

    :param get: from :func:`connect`.
    :param kind: the class in :mod:`migrator.operator.watch.subjects`.
    :param name: the uuid, or the name of the host.
    """
    from migrator.operator.watch import subjects

    more = {'command': f'{asked.drain_command} show {name}'} if kind == 'Drain' else {}
    subject: subjects.Subject = getattr(subjects, kind)(get, asked.threads.clock.now, name, **more)
    try:
        return follow(subject, make_view(asked.arguments.json), asked.threads.sleep)
    except KeyboardInterrupt:
        if kind == 'Drain':
            sys.stderr.write(f'The drain goes on. To cancel it: {asked.drain_command} cancel {name}\n')
        raise


def connect(asked: Asked) -> subjects.Get:
    """Return the function that gets documents from the API.

    :raises migrator.exception.ConfigurationError: neither the configuration nor the environment names a cloud.
    """
    from migrator.operator.watch.client import client_from_conf

    return client_from_conf(asked.conf).get


def follow(
    subject: subjects.Subject,
    view: screen.View,
    sleep: Callable[[float], None],
    every: float = EVERY,
    *,
    has_answered: bool = False,
) -> int:
    """Show something until it ends, and return its exit status.

    If the API is away for a while, the view says so, and the watch goes on. At the first look that is an error, unless
    the API has answered a request before.

    :param every: the seconds between two looks.
    :param has_answered: whether the API has answered a request before.
    :raises migrator.operator.watch.errors.ApiRefused: the API refuses a request.
    :raises migrator.operator.watch.errors.ApiUnreachable: the API does not answer the first request.
    """
    picture = None if has_answered else subject.look()
    with view:
        while True:
            try:
                picture = picture or subject.look()
            except errors.ApiUnreachable as error:
                view.note(f'{error.message} Trying again every {every:g} s.')
            else:
                view.show(picture)
                if picture.status is not None:
                    return picture.status
                picture = None
            sleep(every)


def make_view(as_json: bool) -> screen.View:
    """Return the display for stdout: a screen if it is a terminal, else lines.

    :param as_json: print each event as a line of JSON.
    """
    import rich.console

    from migrator.operator.watch import screen

    if as_json or not sys.stdout.isatty():
        return screen.Lines(sys.stdout, sys.stderr, as_json)
    return screen.Screen(rich.console.Console(highlight=False))


class Requests(Protocol):
    """What sends requests to ``/migrator/v1``; see :class:`migrator.operator.watch.client.Client`."""

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """Send a request, and return the reply."""


def pages(client: Requests, path: str, **query: Any) -> Iterator[dict[str, Any]]:
    """Yield all elements of a list, each of which has a uuid or a name.

    :param path: below ``/migrator/v1``; its last part names the list.
    """
    name = path.strip('/')
    while True:
        page = client.request('GET', path, **query)
        yield from page[name]
        if f'{name}_links' not in page:
            return
        last = page[name][-1]
        query = query | {'marker': last.get('uuid') or last['name']}


def part(text: str) -> str:
    """Return a name of the command line that is one part of a URL.

    :raises argparse.ArgumentTypeError: the name is empty, too long or not printable, or has a slash.
    """
    if '/' in text:  # servers decode it before they look for the route
        raise argparse.ArgumentTypeError(f'{text[:40]!r} has a slash: give the uuid')
    return command.name(text)


def quoted(name: str) -> str:
    """Return a name as a part of a URL."""
    return parse.quote(name, safe='')


def _drain(parser: argparse.ArgumentParser) -> None:
    help_ = 'its uuid, its host, or four or more characters with which its uuid begins'
    parser.add_argument('drain', metavar='DRAIN', type=part, help=help_)


def _migration(parser: argparse.ArgumentParser) -> None:
    help_ = "its uuid, its id, its guest's name, or four or more characters with which its uuid begins"
    parser.add_argument('migration', metavar='MIGRATION', type=part, help=help_)


def _host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('host', metavar='HOST', type=command.name, help='the compute host')


VERBS: tuple[Verb, ...] = (
    Verb('drain', 'show a drain until it ends; exit 1 unless it ends completed or restored', drain, _drain),
    Verb('host', 'show the migrations of a host until none is in progress', host, _host),
    Verb(
        'migration',
        'show a migration until it ends; exit 1 unless it ends completed or confirmed',
        migration,
        _migration,
    ),
)
