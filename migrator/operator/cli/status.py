# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage status``: what needs an operator."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.objects import base
from migrator.operator.cli import command
from migrator.operator.cli.command import Asked


def run(asked: Asked) -> int:
    """Show what needs an operator, and exit with 1 if anything does."""
    from migrator.views import attention

    found = attention.documents(asked.database, asked.conf.conductor.lease)
    asked.answer({'attention': found, 'count': len(found)}, '\n'.join(_text(asked, found)))
    return command.WRONG if found else command.RIGHT


def _text(asked: Asked, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not found:
        yield 'Nothing needs an operator.'
        return
    yield f'{base.count(len(found), "thing")} need{"s" if len(found) == 1 else ""} an operator.'
    width = max(40, shutil.get_terminal_size().columns)
    for one in found:
        since = '' if one['since'] is None else f' (since {command.moment(one["since"])} UTC)'
        yield ''
        yield from _wrapped(f'{one["title"]}{since}', width)
        yield from _wrapped(one['text'], width, '  ')
        # A command is not wrapped, so that it can be copied.
        yield from (f'    {asked.typed(line)}' for line in one['commands'])
        if one['otherwise'] is not None:
            yield from _wrapped(one['otherwise']['text'], width, '  ')
            yield from (f'    {asked.typed(line)}' for line in one['otherwise']['commands'])


def _wrapped(text: str, width: int, indent: str = '') -> list[str]:
    return textwrap.wrap(
        base.printable(text), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
