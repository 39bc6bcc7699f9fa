# SPDX-License-Identifier: Apache-2.0

"""The runbook has a row for each text of ``waits_for`` and of ``stuck_reason``."""

from __future__ import annotations

import pathlib
import re

import pytest

from migrator.objects import reasons
from migrator.objects.reasons import StuckKind, WaitKind

ROOT = pathlib.Path(__file__).resolve().parents[3]

#: The kinds whose words are those of what has failed, or of both hosts.
WITHOUT_ROW = (WaitKind.FAILURE, StuckKind.UNKNOWN_GUEST)


def texts() -> dict[str, str]:
    """Return the sentence of each kind, with ``{}`` for each word."""
    found = {**reasons.WAITS, **reasons.STUCK, **reasons.SENTENCES}
    return {kind: re.sub(r'{\w+}', '{}', text) for kind, text in found.items() if kind not in WITHOUT_ROW}


def rows() -> list[str]:
    """Return the literals of the runbook."""
    page = (ROOT / 'doc/source/runbook.rst').read_text(encoding='utf-8')
    return [' '.join(one.split()).removeprefix('for ') for one in re.findall(r'``([^`]+)``', page)]


def has_row(text: str, literals: list[str]) -> bool:
    """Return whether a literal is the text, or its beginning up to a punctuation mark."""
    ends = [found.start() for found in re.finditer(r' \(| since \{|(?<= for) \{\}:|[,;:.]', text)]
    beginnings = [re.escape(text[:end]).replace(r'\{\}', '.+') for end in (*ends, len(text))]
    return any(re.fullmatch(beginning, literal) for beginning in beginnings for literal in literals)


@pytest.mark.parametrize('kind', sorted(texts()))
def test_each_kind_of_a_wait_or_of_a_stuck_migration_has_its_row(kind: str) -> None:
    text = texts()[kind]
    # The words of an error or of a bound are the whole text then, and no row can have them.
    assert has_row(text, rows()) or re.fullmatch(r'{}( Conductor {}.*)?', text)


def test_text_without_a_row_is_found() -> None:
    assert not has_row('{} to dance', rows())
    assert has_row('{} to end {}', rows())
