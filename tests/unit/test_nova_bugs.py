# SPDX-License-Identifier: Apache-2.0

"""Every bug of nova in the table has a test or a reason, and every mark is in the table."""

import ast
import collections
import functools
import pathlib

from tests.nova_bugs import BUGS

TESTS = pathlib.Path(__file__).resolve().parents[1]


@functools.cache
def marked():
    """Return id -> the tests that are marked with it."""
    found = collections.defaultdict(list)
    for path in sorted(TESTS.rglob('test_*.py')):
        text = path.read_text()
        if '@pytest.mark.nova_bug' not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for mark in getattr(node, 'decorator_list', ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == 'pytest.mark.nova_bug':
                    for one in mark.args:
                        found[ast.literal_eval(one)].append(f'{path.relative_to(TESTS)}::{node.name}')
    return found


def test_each_bug_is_in_the_table_once():
    ids = collections.Counter(one for bug in BUGS for one in bug.ids)
    assert [one for one, times in ids.items() if times > 1] == []
    assert [bug for bug in BUGS if not (bug.symptom and bug.ids)] == []


def test_each_bug_has_a_test_or_the_table_says_why_not():
    without = [bug for bug in BUGS if not (bug.later or bug.never or any(one in marked() for one in bug.ids))]
    assert without == [], 'mark a test with @pytest.mark.nova_bug, or say `later` or `never` in tests/nova_bugs.py'


def test_each_mark_is_of_a_bug_in_the_table():
    known = {one for bug in BUGS for one in bug.ids}
    assert {one: tests for one, tests in marked().items() if one not in known} == {}, 'add it to tests/nova_bugs.py'


def test_bugs_covered_in_part_keep_their_tests():
    half = {1894095, 1757292, 1879787, 1889108, 1821755, '06d25926a1'}
    assert half - set(marked()) == set()
