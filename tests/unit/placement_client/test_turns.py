# SPDX-License-Identifier: Apache-2.0


"""Writers of the same resource providers run in sequence."""

from __future__ import annotations

import itertools

import pytest

from migrator.placement_client.allocations import PATIENCE, Turns
from migrator.testing.simulation.threads import Simulation

A, B, C = ({name: {'VCPU': 1}} for name in 'abc')


class Writers:
    """Simulated threads that each hold the locks for some seconds."""

    def __init__(self, seed):
        self.simulation = Simulation(seed)
        self.threads = self.simulation.process('conductor')
        self.turns = Turns(self.threads)
        self.log = []

    def start(self, name, *allocations, seconds=1.0):
        def write():
            with self.turns.of(*allocations):
                began = self.simulation.time
                self.threads.sleep(seconds)
                self.log.append((name, began, self.simulation.time))

        self.threads.start(write, name=name)

    def run(self):
        self.simulation.run()
        return {name: (began, ended) for name, began, ended in self.log}


@pytest.fixture(params=range(5))
def writers(request):
    made = Writers(request.param)
    yield made
    made.simulation.close()


def test_writers_that_share_a_provider_write_one_at_a_time(writers):
    for name, allocations in {'1': (A, B), '2': (B, A), '3': (C, B), '4': (A, None)}.items():
        writers.start(name, *allocations)
    spans = writers.run()
    for one, other in itertools.combinations(('1', '2', '3'), 2):
        assert spans[one][1] <= spans[other][0] or spans[other][1] <= spans[one][0], spans
    assert spans['4'][1] <= spans['1'][0] or spans['1'][1] <= spans['4'][0], spans


def test_writers_that_share_no_provider_do_not_wait(writers):
    writers.start('1', A)
    writers.start('2', B, None)
    writers.start('3', None)
    assert {began for began, _ended in writers.run().values()} == {0.0}


def test_a_hanging_writer_delays_others_for_a_bounded_time_and_keeps_its_lock(writers):
    writers.start('hangs', A, B, seconds=60)
    writers.simulation.advance(1)
    writers.start('next', A, B)
    writers.simulation.advance(10)
    assert [name for name, _began, _ended in writers.log] == ['next']
    writers.start('last', B)
    spans = writers.run()
    assert spans['next'][0] == 1 + PATIENCE
    assert spans['last'][0] == 11 + PATIENCE


def test_an_error_releases_the_lock(writers):
    def fails():
        with writers.turns.of(A):
            raise ValueError

    with pytest.raises(ValueError), writers.threads.acting():
        fails()
    writers.start('next', A)
    assert writers.run()['next'][0] == 0.0
