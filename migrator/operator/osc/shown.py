# SPDX-License-Identifier: Apache-2.0

"""Documents as columns of the openstack client, for a reader or for a program."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from cliff import columns
from osc_lib.command import command

from migrator import exception
from migrator.operator.watch import errors


def client_of(app: Any) -> Any:
    """Return the client of a command."""
    return app.client_manager.migrator


def listed(
    given: argparse.Namespace, documents: Sequence[dict[str, Any]], headings: Sequence[str], rows: Sequence[Any]
) -> tuple[Sequence[str], Sequence[Any]]:
    """Return a list for a reader, or for a program: the documents themselves."""
    if given.formatter not in ('json', 'yaml') or not documents:
        return headings, rows
    names = tuple(dict.fromkeys(name for one in documents for name in one))
    return names, [tuple(one.get(name) for name in names) for one in documents]


def plain(value: Any) -> str:
    """Return a value for a script: null as an empty text, and lists and objects as JSON."""
    return json.dumps(value) if isinstance(value, (list, dict)) else '' if value is None else str(value)


def words(value: Any) -> str:
    """Return a value for a reader: null as an empty text, and a list with commas."""
    if isinstance(value, list):
        return ', '.join(map(str, value))
    return '' if value is None else str(value)


class Value(columns.FormattableColumn[Any]):
    """A value of a document: in words for a reader, unchanged for a program."""

    def __init__(self, value: Any, words: str) -> None:
        super().__init__(value)
        self._words = words

    def human_readable(self) -> str:
        """Return it in words."""
        return self._words


class Usage(command.Command):
    """A command that exits with 2, as the other commands do, if a value or a name is wrong."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command, and return its exit status."""
        try:
            return int(super().run(parsed_args))
        except (errors.ApiInvalid, exception.ConfigurationError) as error:
            self.app.LOG.error(error)
            return 2
