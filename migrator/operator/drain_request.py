# SPDX-License-Identifier: Apache-2.0

"""The arguments of a command that requests a drain, made from the list of its fields."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Sequence
from typing import Any

from migrator.drain.request import FIELDS, NAMES, Field, Kind
from migrator.objects.drain import MOST
from migrator.operator.cli import command


def add(parser: argparse.ArgumentParser, guest: str = 'guest', without: Sequence[str] = ()) -> None:
    """Add the arguments that describe a drain.

    :param guest: what the command calls a guest.
    :param without: the fields that it does not have.
    """
    for field in FIELDS:
        if field.name not in without:
            _add(parser, field, guest)


def _add(parser: argparse.ArgumentParser, field: Field, guest: str) -> None:
    help_ = field.help.format(guest=guest)
    if field.kind is Kind.HOST:
        parser.add_argument(
            field.name, metavar='<host>' if guest == 'server' else 'HOST', type=command.name, help=help_
        )
        return
    option, more = f'--{field.option_for(guest)}', _MORE[field.kind](field)
    if guest == 'server' and 'metavar' in more:  # as the openstack client writes it
        more['metavar'] = f'<{more["metavar"].lower()}>'
    parser.add_argument(option, dest=field.name, default=None, help=help_, **more)


def _whole(field: Field) -> dict[str, Any]:
    return {'metavar': 'N', 'type': _within(field.least)}


def _numbers(field: Field) -> dict[str, Any]:
    number = _within(field.least)

    def pair(text: str) -> tuple[str, int]:
        uuid, equals, value = text.partition('=')
        if not equals:
            raise argparse.ArgumentTypeError(f'{text!r} is no uuid of an instance with =N, such as =10')
        return command.uuid(uuid), number(value)

    return {'metavar': 'UUID=N', 'type': pair, 'action': 'append'}


_MORE: dict[Kind, Callable[[Field], dict[str, Any]]] = {
    Kind.TEXT: lambda _: {'metavar': 'TEXT', 'type': command.name},
    Kind.CHOICE: lambda field: {'choices': field.choices},
    Kind.NUMBER: _whole,
    Kind.NUMBERS: _numbers,
    Kind.HOSTS: lambda _: {'metavar': 'HOST', 'type': command.name, 'action': 'append'},
    Kind.MOMENT: lambda _: {'metavar': 'TIME', 'type': command.future},
    Kind.FLAG: lambda _: {'action': 'store_true'},
}


def _within(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = MOST + 1
        if not least <= number <= MOST:
            raise argparse.ArgumentTypeError(f'{text!r} is no whole number from {least} to {MOST}')
        return number

    return whole


def given(arguments: argparse.Namespace, now: Callable[[], datetime.datetime]) -> dict[str, Any]:
    """Return the fields that a command line has, as :class:`~migrator.objects.drain.Drain` has them.

    :param now: returns the time from which a span counts.
    """
    found = {name: value for name in NAMES if (value := getattr(arguments, name, None)) is not None}
    if 'priorities' in found:
        found['priorities'] = dict(found['priorities'])
    if isinstance(found.get('deadline'), datetime.timedelta):
        found['deadline'] = now() + found['deadline']
    return found
