# SPDX-License-Identifier: Apache-2.0

"""The arguments of a command that requests a maintenance, and its body."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from migrator import exception
from migrator.drain.maintenance.request import FIELDS, OF_DRAINS
from migrator.drain.request import Kind
from migrator.objects import base
from migrator.operator import request_fields
from migrator.operator.cli import command

#: The options of a maintenance. Its hosts and their groups are named in other ways.
_OPTIONS = [field for field in FIELDS if field.kind not in (Kind.HOSTS, Kind.GROUPS, Kind.OF_DRAIN)]
_DRAIN = 'drain-'
#: The greatest length of a file of hosts, in bytes.
_LONGEST = 1 << 20


def add(parser: argparse.ArgumentParser, guest: str = 'guest') -> None:
    """Add the arguments that describe a maintenance.

    :param guest: what the command calls a guest.
    """
    metavar = '<host>' if guest == 'server' else 'HOST'
    parser.add_argument('hosts', metavar=metavar, nargs='*', type=command.name, help='a host to work on')
    parser.add_argument('--all', action='store_true', help='all compute hosts')
    parser.add_argument(
        '--except', dest='except_', metavar=metavar, action='append', type=command.name, default=[],
        help='no work on this host, although --all or the file names it; may be repeated',
    )  # fmt: skip
    parser.add_argument(
        '--file', metavar='<file>' if guest == 'server' else 'FILE', type=pathlib.Path,
        help='a file with a host in each line, and a line [NAME] before the hosts of a group; # begins a comment',
    )  # fmt: skip
    request_fields.add_fields(parser, _OPTIONS, guest)
    request_fields.add_fields(parser, OF_DRAINS, guest, _DRAIN)


def body(
    arguments: argparse.Namespace, now: Callable[[], datetime.datetime], all_hosts: Callable[[], Sequence[str]]
) -> dict[str, Any]:
    """Return the body of a request for the maintenance that a command line describes.

    :param now: returns the time from which a span counts.
    :param all_hosts: returns the names of all compute hosts.
    :raises migrator.exception.ConfigurationError: no host is left, the file cannot be read, or a name is wrong.
    """
    read = HostsFile.read(arguments.file) if arguments.file is not None else HostsFile()
    named = [*arguments.hosts, *read.hosts, *(all_hosts() if arguments.all else ())]
    hosts = [host for host in dict.fromkeys(named) if host not in arguments.except_]
    for host in arguments.except_:
        if host not in named:
            detail = f'no host of the maintenance has this name{base.nearest(host, named)}'
            raise exception.ConfigurationError(option='--except', value=host, detail=detail)
    if not hosts:
        detail = 'name hosts, or give --all or --file.' if not named else 'leave out fewer.'
        raise exception.ConfigurationError(option='HOST', value='missing', detail=detail)
    given = request_fields.given(arguments, now, _OPTIONS)
    if 'deadline' in given:
        given['deadline'] = given['deadline'].isoformat()
    of_drains = request_fields.given(arguments, now, OF_DRAINS, _DRAIN)
    more = {'groups': read.groups, 'drain': of_drains}
    return {'hosts': hosts, **given, **{name: value for name, value in more.items() if value}}


@dataclasses.dataclass(frozen=True)
class HostsFile:
    """The hosts of a file, and their groups."""

    hosts: Sequence[str] = ()
    groups: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: pathlib.Path) -> HostsFile:
        """Read a file with a host in each line.

        :raises migrator.exception.ConfigurationError: it cannot be read, or a line is no host and no group.
        """
        try:
            with path.open(encoding='utf-8') as file:
                text = file.read(_LONGEST + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong(path, exception.message_of(error)) from None
        if len(text) > _LONGEST:
            raise _wrong(path, f'it is longer than {_LONGEST} characters.')
        hosts: list[str] = []
        groups: dict[str, list[str]] = {}
        group: list[str] = []
        for number, line in enumerate(text.splitlines(), 1):
            word = line.partition('#')[0].strip()
            name = word[1:-1].strip() if word.startswith('[') and word.endswith(']') else word
            if not word:
                continue
            try:
                command.name(name)
            except argparse.ArgumentTypeError as error:
                raise _wrong(path, f'line {number}: {error}.') from None
            if name is word:
                if len(word.split()) > 1:
                    raise _wrong(path, f'line {number} has more than a host: give one in each line.')
                hosts.append(word)
                group.append(word)
            else:
                group = groups.setdefault(name, [])
        return cls(hosts, {name: members for name, members in groups.items() if members})


def _wrong(path: pathlib.Path, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option='--file', value=str(path), detail=detail)
