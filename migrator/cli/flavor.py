# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage flavor``: flavors for resizes, beside those that guests have."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

from migrator.cli import command, instance
from migrator.cli.command import Asked, Verb

COLUMNS = ('NAME', 'VCPUS', 'MEMORY (MiB)', 'DISK (GiB)', 'EPHEMERAL (GiB)', 'SWAP (MiB)', 'PROPERTIES')


def create(asked: Asked) -> int:
    """Add a flavor."""
    flavor = instance.flavor(asked.arguments, asked.arguments.name)
    asked.database.flavors.create(flavor)
    text = f'Flavor {flavor.name} is created. Guests of every project can be resized to it.'
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
    asked.answer({'deleted': name}, command.printable(f'Flavor {name} is deleted. Guests that have it keep it.'))
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
    Verb('delete', 'delete a flavor; guests that have it keep it', delete, _name),
)
