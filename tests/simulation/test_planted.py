# SPDX-License-Identifier: Apache-2.0

"""Each bug that is planted is caught by the matrix; what is not caught is a hole in the harness.

Where a recorded cell is gone or does not catch its plant any more, ``python -m tests.simulation.planted NAME`` finds
another one.
"""

import dataclasses
import re

import pytest

from migrator.simulator import failpoints, matrix, scenarios
from migrator.simulator.invariants import check
from tests.nova_bugs import BUGS
from tests.simulation import plant
from tests.simulation.planted import PLANTS

#: What may stand where a plant is from, besides a bug of nova: see :mod:`tests.simulation.plant`.
_MODEL = frozenset(['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'lateget', 'xf', 'xb', 'order', 'fixfail'])

# What a plant keeps from ever ending takes long.
pytestmark = pytest.mark.timeout(900)

_RECORDED = sorted({name for one in PLANTS for name in one.cells})


def _is_known(origin):
    known = {str(one) for bug in BUGS for one in bug.ids}
    ids = {one.id for one in check.INVARIANTS} | {'I30', 'I32'}  # the monitor's own
    where, _, letter = origin.partition(' ')
    return origin in known | ids | {'nova 34'} or (where == 'model' and letter in _MODEL)


def _is_a_cell(name):
    return name not in scenarios.BY_NAME and not plant.SEED.fullmatch(name)


def test_there_are_enough_and_each_says_where_it_is_from():
    assert len(PLANTS) >= 45
    assert len({one.name for one in PLANTS}) == len(PLANTS)
    assert [one.name for one in PLANTS if not (one.observed and one.cells)] == []
    wrong = {one.name: one.origin for one in PLANTS if not all(_is_known(number) for number in one.origin.split(', '))}
    assert wrong == {}
    of_nova = [one for one in PLANTS if not re.match(r'model|I\d', one.origin)]
    # What was found in Nova once stays among them, however many are added for what Nova does not have.
    assert len(of_nova) >= 59


def test_the_recorded_cells_are_cells_of_the_matrix(backend, cells):
    """Each recorded cell is in the matrix, except for repeated looks.

    The matrix has only the first of repeated looks, and a plant may need a look that it has added itself.
    """
    recorded = {name: plant.parse(name) for name in _RECORDED if _is_a_cell(name)}
    named = sorted({cell.path for cell in recorded.values()})
    there = {str(cell) for cell in cells(*named)}
    alone = {name: dataclasses.replace(cell, then=None) for name, cell in recorded.items()}
    others = {name: recorded[name] for name, cell in alone.items() if str(cell) not in there}
    assert [name for name, cell in others.items() if not failpoints.LOOKS.search(cell.boundary.label)] == []
    doubtful = others | {name: cell for name, cell in recorded.items() if cell.then is not None}
    assert [name for name, cell in doubtful.items() if not matrix.run(backend, cell).injected] == []


@pytest.mark.parametrize('name', _RECORDED)
def test_without_a_plant_nothing_is_wrong(backend, name):
    assert plant.caught(backend, name) is None


@pytest.mark.parametrize('one', PLANTS, ids=lambda one: one.name)
def test_planted_bug_is_caught(backend, record_property, one):
    record_property('planted', 1)
    for name in one.cells:
        with one.patch():
            wrong = plant.caught(backend, name)
        if wrong is not None:
            record_property('caught', 1)
            print(f'{one.name}: caught by {name}: {wrong}')
            return
    pytest.fail(f'{one.name} ({one.origin}) is not caught: {one.observed}')
