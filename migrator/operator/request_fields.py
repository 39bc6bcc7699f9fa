# SPDX-License-Identifier: Apache-2.0

"""The arguments of commands that request drains and maintenances, made from the lists of fields."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from migrator.drain.request import FIELDS, Field, Kind
from migrator.objects.drain import MOST
from migrator.operator.cli import command


def add(parser: argparse.ArgumentParser, guest: str = 'guest', without: Sequence[str] = ()) -> None:
    """Add the arguments that describe a drain.

    :param guest: what the command calls a guest.
    :param without: the fields that it does not have.
    """
    add_fields(parser, [field for field in FIELDS if field.name not in without], guest)


def add_fields(parser: argparse.ArgumentParser, fields: Iterable[Field], guest: str, before: str = '') -> None:
    """Add the arguments for some fields.

    :param guest: what the command calls a guest.
    :param before: stands before the name of each option, and of each value in the namespace; such as ``drain-``.
    """
    for field in fields:
        help_ = field.help.format(guest=guest, before=before)
        if field.kind is Kind.HOST:
            metavar = '<host>' if guest == 'server' else 'HOST'
            parser.add_argument(field.name, metavar=metavar, type=command.name, help=help_)
            continue
        option, more = f'--{before}{field.option_for(guest)}', _MORE[field.kind](field)
        if guest == 'server' and 'metavar' in more:  # as the openstack client writes it
            more['metavar'] = f'<{more["metavar"].lower()}>'
        parser.add_argument(option, dest=_dest(field, before), default=None, help=help_, **more)


def _dest(field: Field, before: str) -> str:
    return before.replace('-', '_') + field.name


def _whole(field: Field) -> dict[str, Any]:
    return {'metavar': 'N', 'type': _within(field.least)}


def _pairs(metavar: str, key: Callable[[str], str], number: Callable[[str], int], what: str) -> dict[str, Any]:
    def pair(text: str) -> tuple[str, int]:
        name, equals, value = text.partition('=')
        if not equals:
            raise argparse.ArgumentTypeError(f'{text[:40]!r} is no {what}')
        return key(name), number(value)

    return {'metavar': metavar, 'type': pair, 'action': 'append'}


def _numbers(field: Field) -> dict[str, Any]:
    return _pairs('UUID=N', command.uuid, _within(field.least), 'uuid of an instance with =N, such as =10')


def _amounts(field: Field) -> dict[str, Any]:
    number = command.at_least(field.least)
    return _pairs('CLASS=N', command.name, number, 'resource class with =N, such as VCPU=64')


_MORE: dict[Kind, Callable[[Field], dict[str, Any]]] = {
    Kind.TEXT: lambda _: {'metavar': 'TEXT', 'type': command.name},
    Kind.CHOICE: lambda field: {'choices': field.choices},
    Kind.NUMBER: _whole,
    Kind.NUMBERS: _numbers,
    Kind.HOSTS: lambda _: {'metavar': 'HOST', 'type': command.name, 'action': 'append'},
    Kind.MOMENT: lambda _: {'metavar': 'TIME', 'type': command.future},
    Kind.FLAG: lambda _: {'action': 'store_true'},
    Kind.SPAN: lambda _: {'metavar': 'SPAN', 'type': command.seconds},
    Kind.WINDOW: lambda _: {'metavar': 'WINDOW', 'type': command.name},
    Kind.AMOUNTS: _amounts,
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


def given(
    arguments: argparse.Namespace,
    now: Callable[[], datetime.datetime],
    fields: Iterable[Field] = FIELDS,
    before: str = '',
) -> dict[str, Any]:
    """Return the fields that a command line has, as the class of each has them.

    :param now: returns the time from which a span counts.
    :param fields: those that the command may have.
    :param before: as in :func:`add_fields`.
    """
    found: dict[str, Any] = {}
    for field in fields:
        value = getattr(arguments, _dest(field, before), None)
        if value is None:
            continue
        if field.kind in (Kind.NUMBERS, Kind.AMOUNTS):
            value = dict(value)
        if isinstance(value, datetime.timedelta):
            value = now() + value
        found[field.name] = value
    return found
