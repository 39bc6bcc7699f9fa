# SPDX-License-Identifier: Apache-2.0

"""The crash matrix: whichever fault is injected where on a path, everything ends in order.

``make test`` leaves out the paths that are neither of the seven nor of evacuations and cold migrations.
MIGRATOR_CELLS=N takes every Nth cell only of the seven paths, and every N*N-th of OTHER_SAGAS;
MIGRATOR_OTHER_CELLS=N of the others.
One by its name::

    python -m migrator.simulator.matrix 'success | conductor1: commit done #5 | killed for ever'
"""

import dataclasses
import os

import pytest

from migrator.conductor.tasks import sagas
from migrator.simulator import faults, matrix, scenarios

#: On a slow and busy machine, too; what hangs is found by the clouds' own clocks.
pytestmark = pytest.mark.timeout(1200)

#: The paths of the invariants, with every cell: what a migration may come to.
SEVEN = (
    'success',
    'pre fails',
    'driver fails',
    'abort queued',
    'abort running',
    'abort loses to cut-over',
    'stop with a queue',
)
#: The paths of the second saga, with every cell: they have each step of it, and each undo.
EVACUATIONS = ('evacuation', 'evacuated while running', 'evacuation fails')
#: The paths of the sagas of a cold migration, with every cell.
COLD = ('cold', 'cold fails')
REVERTS = ('cold reverted',)
#: The paths of the sagas of a resize that leaves the guest at its host.
HERE = ('resize here', 'resize here fails')
HERE_REVERTED = ('resize here reverted',)
OTHER_SAGAS = (*EVACUATIONS, *COLD, *REVERTS, *HERE, *HERE_REVERTED)
#: How many cells they have. A change of a saga changes it: check that the new step has its cells, and write it here.
CELLS = {SEVEN: 2547, EVACUATIONS: 1387, COLD: 612, REVERTS: 339, HERE: 477, HERE_REVERTED: 221}
SPACING = int(os.environ.get('MIGRATOR_CELLS', '1'))
#: So that several processes share the work. Each slice has to find the cells first, which for a few cells costs more.
SLICES = 4 if SPACING < 20 else 1
#: Every Nth cell of the other paths, of those that MIGRATOR_CELLS leaves.
OTHERS = int(os.environ.get('MIGRATOR_OTHER_CELLS', '12'))


#: Faults that delay a migration and change nothing else, wherever they are injected.
DELAYS = frozenset(
    fault.name
    for fault in faults.FAULTS
    if fault.name.startswith(('Placement ', 'commit')) and fault.name != 'Placement refuses'
) | {'unforeseen error', 'message doubled', 'paused past the lease'}


def only_delays(cell):
    """Return whether a cell has to end as its path does without any fault."""
    label = cell.boundary.label
    if cell.path not in SEVEN or cell.path == 'stop with a queue':
        # What is delayed is not in the queue yet when the host stops.
        return False
    if cell.fault.startswith('killed'):
        return cell.boundary.process.startswith('conductor') and not label.startswith('message')
    if cell.fault.startswith(('message', 'answer')) and cell.fault != 'message doubled':
        # A check that is not answered has failed. A fault of the driver that is planned for one call is not planned
        # for the next.
        return 'rollback' in label or (cell.path == 'success' and 'check_can_live_migrate' not in label)
    return cell.fault in DELAYS


@pytest.mark.parametrize('part', range(SLICES))
@pytest.mark.parametrize(
    'path',
    [
        pytest.param(path.name, marks=() if path.name in (*SEVEN, *OTHER_SAGAS) else pytest.mark.slow)
        for path in scenarios.PATHS
    ],
)
def test_every_cell_ends_in_order(path, part, backend, cells, record_property):
    spacing = SPACING * (1 if path in SEVEN else SPACING if path in OTHER_SAGAS else OTHERS)
    chosen = cells(path)[::spacing][part::SLICES]
    wrong = []
    for cell in chosen:
        result = matrix.run(backend, cell)
        if not result.injected:
            wrong.append(f'{cell}: never came there')
        wrong += [f'{cell}: {violation}' for violation in result.violations]
        ends = scenarios.BY_NAME[path].ends
        if only_delays(cell) and result.statuses[-len(ends) :] != ends:
            wrong.append(f'{cell}: ended {result.statuses}, and without the fault {ends}')
    record_property('cells', len(chosen))
    assert not wrong, '\n'.join(wrong[:20])


@pytest.mark.parametrize(
    ('paths', 'saga'),
    list(zip(CELLS, sagas().values(), strict=True)),
    ids=['live migration', 'evacuation', 'cold migration', 'revert', 'resize here', 'revert here'],
)
def test_no_step_is_without_its_cells(paths, saga, cells):
    there = cells(*paths)
    assert len(there) == CELLS[paths]
    written = {record for cell in there for record in cell.steps}
    for step in saga.steps:
        wanted = {f'{step.name} do done'}
        if step.intent is not None:
            wanted.add(f'{step.name} do intent')
        assert wanted <= written, f'{step.name}: no cell at {wanted - written}'
    # Steps that share an undo are undone by the last of them.
    undone = {name for name in (step.name for step in saga.steps) if f'{name} undo done' in written}
    assert {step.undo for step in saga.steps if step.undo} == {step.undo for step in saga.steps if step.name in undone}


def test_the_same_cell_gives_the_same_run(backend, cells):
    cell = cells('abort running')[100]
    assert matrix.run(backend, cell) == matrix.run(backend, cell)


def test_a_cell_has_a_name_that_is_read_again(cells):
    for cell in cells('success'):
        assert matrix.Cell.parse(str(cell)) == cell


def test_a_cell_may_have_a_second_fault_after_the_first(backend, cells):
    one, *_, other = [cell for cell in cells('success') if cell.fault == 'message doubled']
    both = dataclasses.replace(one, then=(other.boundary, other.fault))
    assert matrix.Cell.parse(str(both)) == both
    assert matrix.run(backend, both).injected
    assert not matrix.run(backend, dataclasses.replace(other, then=(one.boundary, one.fault))).injected


@pytest.mark.parametrize(
    'name', ['success', 'success | x', 'success | a: b #1 | no such fault', 'no such path | a: b #1 | message lost']
)
def test_unknown_cell_is_refused(name):
    with pytest.raises(ValueError, match='is no cell'):
        matrix.Cell.parse(name)
