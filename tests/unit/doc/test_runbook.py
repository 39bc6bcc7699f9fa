# SPDX-License-Identifier: Apache-2.0

"""The runbook has a row for each text of ``waits_for`` and of ``stuck_reason``."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]

#: Texts whose beginning another function has written.
ELSEWHERE = ('{}{}: look at {}.',)


def texts() -> Iterator[str]:
    """Yield the text of each Parked and Stuck of the conductor, with ``{}`` for each value."""
    for path in sorted((ROOT / 'migrator/conductor').rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            match node:
                case ast.Call(func=ast.Name(id='Parked' | 'Stuck'), args=[ast.Constant(value=str() as text), *_]):
                    yield text
                case ast.Call(func=ast.Name(id='Parked' | 'Stuck'), args=[ast.JoinedStr(values=parts), *_]):
                    yield ''.join(str(part.value) if isinstance(part, ast.Constant) else '{}' for part in parts)


def rows() -> list[str]:
    """Return the literals of the runbook."""
    page = (ROOT / 'doc/source/runbook.rst').read_text(encoding='utf-8')
    return [' '.join(one.split()).removeprefix('for ') for one in re.findall(r'``([^`]+)``', page)]


def has_row(text: str, literals: list[str]) -> bool:
    """Return whether a literal is the text, or its beginning up to a punctuation mark."""
    ends = [found.start() for found in re.finditer(r' \(|[,;:.]', text)]
    beginnings = [re.escape(text[:end]).replace(r'\{\}', '.+') for end in (*ends, len(text))]
    return any(re.fullmatch(beginning, literal) for beginning in beginnings for literal in literals)


@pytest.mark.parametrize('text', sorted({text for text in texts() if not text.startswith(ELSEWHERE)}))
def test_each_text_of_a_wait_or_of_a_stuck_migration_has_its_row(text: str) -> None:
    assert has_row(text, rows())


def test_text_without_a_row_is_found() -> None:
    assert not has_row('{} to dance', rows())
    assert has_row('{} to end {}', rows())
