# SPDX-License-Identifier: Apache-2.0

"""The mutants of ``python -m tests.mutants`` fit the code that they change."""

import collections
import functools
import pathlib
import re

import pytest

from tests.mutants import results, stages
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS, PACKAGES
from tests.mutants.results import Result

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def source(file):
    return (ROOT / file).read_text(encoding='utf-8')


def test_the_old_text_of_each_mutant_occurs_once():
    assert [one.name for one in MUTANTS if source(one.file).count(one.old) != 1] == []


def test_each_mutant_changes_one_line_of_its_file():
    changed = {}
    for one in MUTANTS:
        before, after = source(one.file).splitlines(), one.apply(source(one.file)).splitlines()
        assert len(before) == len(after), one.name
        changed[one.name] = sum(old != new for old, new in zip(before, after, strict=True))
    assert {name: lines for name, lines in changed.items() if lines != 1} == {}


def test_each_mutated_file_compiles():
    for one in MUTANTS:
        compile(one.apply(source(one.file)), one.file, 'exec')


def test_names_are_unique_and_in_kebab_case():
    names = [one.name for one in MUTANTS]
    assert [name for name, times in collections.Counter(names).items() if times > 1] == []
    assert [name for name in names if not re.fullmatch(r'[a-z]+(-[a-z]+)+', name)] == []


def test_each_mutant_says_in_one_sentence_what_breaks():
    assert [one.name for one in MUTANTS if not re.fullmatch(r'[A-Z][^.]+\.', one.breaks)] == []


def test_there_are_at_least_sixty_mutants_and_some_of_each_package():
    assert len(MUTANTS) >= 60
    assert {one.package for one in MUTANTS} == set(PACKAGES)


def test_a_mutant_whose_old_text_is_ambiguous_is_refused():
    with pytest.raises(ValueError, match='occurs 2 times'):
        Mutant('a-b', 'migrator/db/models.py', 'x', 'y', 'Breaks.').apply('x x')


def test_chosen_stages_are_those_of_the_group_in_order_of_cost():
    assert [stage.name for stage in stages.chosen(['functional', 'test', 'near'])] == list(stages.GROUPS['test'])
    with pytest.raises(KeyError):
        stages.chosen(['no-such-stage'])


def test_the_mirrored_tests_of_a_file_come_before_those_of_its_package():
    stage = stages.BY_NAME['near']
    assert stage.runs(ROOT, 'migrator/saga/log.py', []) == [['tests/unit/saga/test_log.py'], ['tests/unit/saga']]
    assert stage.runs(ROOT, 'migrator/saga/unknown.py', []) == [['tests/unit/saga']]


def test_the_unit_stage_leaves_out_what_has_passed_already():
    runs = stages.BY_NAME['unit'].runs
    assert runs(ROOT, 'migrator/saga/log.py', []) == [['tests/unit']]
    assert runs(ROOT, 'migrator/saga/log.py', ['near']) == [['tests/unit', '--ignore=tests/unit/saga']]


def test_results_are_read_as_they_were_written(tmp_path):
    found = {'a': Result('1', ['near'], 'unit', 'test_a.py::test_a', True, {'near': 1.5}), 'b': Result('2', ['near'])}
    results.write(tmp_path / 'found.json', found)
    assert results.read(tmp_path / 'found.json') == found
    assert results.read(tmp_path / 'missing.json') == {}


def test_a_comparison_names_what_is_no_longer_caught():
    one, other = MUTANTS[:2]
    before = {one.name: Result(one.digest, [], 'near'), other.name: Result('of another change', [], 'near')}
    after = {one.name: Result(one.digest, ['near', 'unit']), other.name: Result(other.digest, ['near'])}
    text, lost = results.compare(before, after)
    assert lost == [one.name]
    assert re.search(rf'{one.name} +near +not caught +LOST', text)
    assert results.compare(after, before)[1] == []
