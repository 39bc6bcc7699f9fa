# SPDX-License-Identifier: Apache-2.0

"""No product module decides by a text that is shown, but by the kind that the text is made from."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: Attributes whose values are sentences.
SHOWN = {'waits_for', 'stuck_reason', 'abort_verdict', 'abort_text', 'abort_requested_by', 'failure', 'sentence'}
#: Methods of a text, or of a column, that look into it.
LOOKS = {'startswith', 'endswith', 'partition', 'rpartition', 'split', 'find', 'index', 'removeprefix', 'removesuffix'}
LOOKS |= {'like', 'contains', 'ilike'}
#: Functions of re that look into a text.
MATCHES = {'match', 'search', 'fullmatch', 'findall', 'finditer'}


def is_shown(node: ast.AST) -> bool:
    """Return whether an expression is such an attribute, also with a default: ``(row.waits_for or '')``."""
    match node:
        case ast.Attribute(attr=name):
            return name in SHOWN
        case ast.BoolOp(values=values):
            return any(map(is_shown, values))
        case ast.Call(func=ast.Name(id='str'), args=[value]):
            return is_shown(value)
    return False


def is_text(node: ast.AST) -> bool:
    """Return whether an expression may be a text, and is not None or a number."""
    return not isinstance(node, ast.Constant) or isinstance(node.value, str)


def decisions(source: str) -> Iterator[int]:
    """Yield the lines that compare such a text with another one, or look into it."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=[right]) if is_shown(left) or is_shown(right):
                if is_text(left) and is_text(right):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
                looks = name in LOOKS and is_shown(value)
                if looks or (name in MATCHES and any(map(is_shown, arguments))):
                    yield node.lineno


def test_no_product_module_decides_by_a_text_that_is_shown() -> None:
    found = []
    for path in sorted((ROOT / 'migrator').rglob('*.py')):
        where = path.relative_to(ROOT).as_posix()
        if not where.startswith(('migrator/testing/', 'migrator/simulator/', 'migrator/demo/')):
            found += [f'{where}:{line}' for line in decisions(path.read_text(encoding='utf-8'))]
    assert found == []


@pytest.mark.parametrize(
    'source',
    [
        "row.stuck_reason == 'odd'",
        'row.waits_for != why',
        "(row.waits_for or '').startswith('for a slot')",
        "'slot' in row.waits_for",
        '_T.c.waits_for.startswith(text)',
        "(self.row.abort_verdict or '').partition(': ')",
        "re.search('slot', str(row.failure))",
    ],
)
def test_a_decision_is_found(source: str) -> None:
    assert list(decisions(source)) == [1]


@pytest.mark.parametrize(
    'source',
    ['row.stuck_reason is None', 'row.waits_for is not None', "f'It waits {row.waits_for}'", 'row.failure or x'],
)
def test_what_shows_a_text_is_left(source: str) -> None:
    assert list(decisions(source)) == []
