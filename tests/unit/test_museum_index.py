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

import pytest

from tests.museum import EXHIBITS

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
        file, name = where.split('::')
        assert (ROOT / file).is_file(), where
        assert name in named_in(file), where


def test_every_number_that_a_functional_test_names_leads_back_to_it():
    named = {where for exhibit in EXHIBITS.values() for where in exhibit.tests}
    for path in sorted((ROOT / 'tests' / 'functional').glob('test_*.py')):
        file = str(path.relative_to(ROOT))
        for name, words in named_in(file).items():
            if words.startswith('Museum'):
                assert f'{file}::{name}' in named or _is_one_of_many(words), f'{file}::{name}'


def _is_one_of_many(words):
    """Return whether the numbers in a docstring are tried elsewhere as well: the index need not list every place."""
    numbers = words.partition(':')[0].removeprefix('Museum')
    found = [int(word) for word in numbers.replace(',', ' ').split() if word.isdigit()]
    return bool(found) and all(EXHIBITS[number].tests for number in found)
