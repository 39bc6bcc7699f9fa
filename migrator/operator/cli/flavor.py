# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage flavor``: flavors for resizes, beside those that guests have."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

from migrator.operator.cli import command, instance
from migrator.operator.cli.command import Asked, Verb

COLUMNS = ('NAME', 'VCPUS', 'MEMORY (MiB)', 'DISK (GiB)', 'EPHEMERAL (GiB)', 'SWAP (MiB)', 'PROPERTIES')

_KEPT = 'Guests that have it keep it, and while a guest has it, the users of its project can still request it'


def create(asked: Asked) -> int:
    """Add a flavor."""
    flavor = instance.flavor(asked.arguments, asked.arguments.name)
    asked.database.flavors.create(flavor)
    text = f'Flavor {flavor.name} is created. Guests of every project can be resized to it.'
    text += instance.foreign(flavor)
    newest = [one for one in asked.database.instances.flavors() if one.name == flavor.name]
    if newest and newest != [flavor]:
        text += ' There are guests that have another flavor of this name. They keep it.'
    asked.answer({'flavor': dataclasses.asdict(flavor)}, command.printable(text))
    return command.RIGHT


def list_(asked: Asked) -> int:
    """List the flavors that were created here, by name."""
    found = asked.database.flavors.list()
    rows = [
        [
            one.name, one.vcpus, one.memory_mb, one.root_gb, one.ephemeral_gb, one.swap,
            ', '.join(f'{key}={value}' for key, value in sorted(one.extra_specs.items())),
        ]
        for one in found
    ]  # fmt: skip
    asked.answer({'flavors': [dataclasses.asdict(one) for one in found]}, command.table(COLUMNS, rows))
    return command.RIGHT


def delete(asked: Asked) -> int:
    """Delete a flavor; guests that have it keep it."""
    name = asked.arguments.name
    asked.database.flavors.delete(name)
    asked.answer({'deleted': name}, command.printable(f'Flavor {name} is deleted. {_KEPT}.'))
    return command.RIGHT


def _name(parser: argparse.ArgumentParser, type_: Callable[[str], str] = command.name) -> None:
    parser.add_argument('name', type=type_, metavar='NAME', help='the name of the flavor, which is its id')


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    _name(parser, command.flavor_name)
    instance.flavor_arguments(parser)


#: The verbs of a flavor.
VERBS: tuple[command.Verb, ...] = (
    Verb('create', 'add a flavor that guests can be resized to', create, _create_arguments),
    Verb('list', 'list the flavors that were created here, by name, and not those that only guests have', list_),
    Verb('delete', f'delete a flavor. {_KEPT}', delete, _name),
)
