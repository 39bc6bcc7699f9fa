# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""The index of the bug museum says the truth: every number is there, and every test that it names."""

import ast
import functools
import pathlib
import re

import pytest

from tests.museum import EXHIBITS, OF_THE_QUEUE, SEEN

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def named_in(file):
    """Return name -> docstring of the tests of a file, those in classes included."""
    tree = ast.parse((ROOT / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {one.name: ast.get_docstring(one) or '' for one in functions if one.name.startswith('test')}


def test_the_index_has_all_sixty_two():
    assert list(EXHIBITS) == list(range(1, 63))


@pytest.mark.parametrize('number', EXHIBITS)
def test_each_has_a_test_or_says_what_will_bring_it_or_why_there_can_be_none(number):
    exhibit = EXHIBITS[number]
    assert exhibit.bugs
    assert exhibit.what
    assert exhibit.tests or exhibit.later or exhibit.never


@pytest.mark.parametrize('number', EXHIBITS)
def test_each_test_that_is_named_is_there(number):
    for where in EXHIBITS[number].tests:
        assert_there(where)


def assert_there(where):
    file, name = where.split('::')
    assert (ROOT / file).is_file(), where
    assert name in named_in(file), where


@pytest.mark.parametrize('number', sorted(OF_THE_QUEUE))
def test_what_is_about_the_queue_an_abort_a_stop_or_a_restart_has_a_test_that_names_its_number(number):
    named = [where.split('::') for where in EXHIBITS[number].tests]
    assert any(number in numbers_in(named_in(file)[name]) for file, name in named), EXHIBITS[number]


@pytest.mark.parametrize('exhibit', SEEN, ids=lambda exhibit: exhibit.what)
def test_what_was_seen_without_a_number_has_a_test_or_says_what_will_bring_it(exhibit):
    assert exhibit.tests or exhibit.later
    for where in exhibit.tests:
        assert_there(where)


def test_every_number_that_a_functional_test_names_leads_back_to_it():
    named = {where for exhibit in EXHIBITS.values() for where in exhibit.tests}
    for path in sorted((ROOT / 'tests' / 'functional').glob('test_*.py')):
        file = str(path.relative_to(ROOT))
        for name, words in named_in(file).items():
            if words.startswith('Museum'):
                assert f'{file}::{name}' in named or _is_one_of_many(words), f'{file}::{name}'


def _is_one_of_many(words):
    """Return whether the numbers in a docstring are tried elsewhere as well: the index need not list every place."""
    found = numbers_in(words)
    return bool(found) and all(EXHIBITS[number].tests for number in found)


def numbers_in(words):
    """Return the numbers that a docstring names: ``Museum 1, 13: ...``, also in a later sentence."""
    found = re.findall(r'Museum ((?:\d+(?:, | and )?)+)', words)
    return {int(number) for numbers in found for number in re.findall(r'\d+', numbers)}
