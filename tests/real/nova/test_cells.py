# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain heal`` on a nova with two cells, one of which is away for a while."""

import pytest

from tests.real.nova.cells import HOSTS, Cell
from tests.real.nova.command import Command
from tests.real.servers import process

pytestmark = [pytest.mark.timeout(1200)]


@pytest.fixture
def drain(lab, tmp_path):
    """Return the command, with a state of its own."""
    return Command(lab, tmp_path / 'state.sqlite')


def held(lab, consumer):
    """Return what a consumer holds in Placement."""
    return lab.ask_placement('GET', f'/allocations/{consumer}')['allocations']


def resources(allocations):
    """Return provider -> resources."""
    return {node: one['resources'] for node, one in allocations.items()}


@pytest.mark.slow
def test_heal_takes_nothing_of_a_cell_that_is_away_and_nova_finds_nothing_wrong_afterwards(lab, drain):
    cell = Cell(lab)
    try:
        wrong, healthy = lab.guests(2, 'host1')
        stays, moves = lab.guests(2, HOSTS[0], move_seconds='30')
        lab.move(moves, HOSTS[1])
        process.wait_until(lambda: lab.migration(moves)['status'] == 'running', 'the move to run', 60)
        migration = lab.migration(moves)['uuid']
        before = {consumer: held(lab, consumer) for consumer in (healthy, stays, moves, migration)}
        assert all(before.values())
        right = held(lab, wrong)
        lab.ask_placement('DELETE', f'/allocations/{wrong}')
        cell.cut()
        # Nova leaves the cell out of some answers, and answers 500 to some requests.
        for verb in (('audit',), ('heal', '--yes')):
            drain.run(*verb, status=None)
        found = drain.run('doctor', status=None)
        assert f'The database of the cell of {", ".join(sorted(HOSTS))} does not answer' in found
        assert {consumer: held(lab, consumer) for consumer in before} == before
        cell.mend()
        drain.run('heal', '--yes', status=1)  # what is missing is repaired by nova-manage, as it says
        lab.manage('placement', 'heal_allocations', '--instance', wrong, '--force')
        assert resources(held(lab, wrong)) == resources(right)
        assert resources(held(lab, migration)) == resources(before[migration])
        process.wait_until(lambda: lab.migration(moves)['status'] == 'completed', 'the move to end', 120)
        drain.run('audit')
        assert lab.manage('placement', 'audit', '--verbose').strip() in ('', 'Processed 0 allocations.')
    finally:
        cell.mend()
        lab.disable(*HOSTS)
