# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

from migrator import exception, executors
from migrator.compute import live_migration_queue
from migrator.testing.simulation.threads import Simulation

Queue = live_migration_queue.LiveMigrationQueue


class Made:
    """A queue whose work takes its entry, waits for ``go``, and writes down that it ran."""

    def __init__(self, threads: executors.Threads, limit: int = 1) -> None:
        self.executor = executors.BoundedExecutor(limit, threads, 'live-migration')
        self.waiting: dict[str, concurrent.futures.Future[Any]] = {}
        self.queue = Queue('alpha', self.executor, self.waiting, threads)
        self.go = threads.event()
        self.ran: list[str] = []
        self.most = 0

    def work(self, uuid: str) -> None:
        self.queue.take(uuid)
        self.most = max(self.most, self.executor.running)
        self.ran.append(uuid)
        self.go.wait()

    def submit(self, *uuids: str) -> None:
        for uuid in uuids:
            self.queue.submit(uuid, self.work, uuid)


@pytest.fixture
def simulation() -> Any:
    with Simulation(seed=3) as made:
        yield made


def test_first_in_first_out_and_never_more_than_the_limit_at_once(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'), limit=2)
    made.submit(*'abcdef')
    simulation.run_ready()
    assert sorted(made.ran) == ['a', 'b']
    assert list(made.waiting) == ['c', 'd', 'e', 'f']
    made.go.set()
    simulation.run()
    assert sorted(made.ran[:2]) == ['a', 'b']
    assert sorted(made.ran) == list('abcdef')
    assert made.most == 2
    assert made.waiting == {}


def test_one_at_a_time_the_order_is_that_of_submission(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    made.go.set()
    made.submit(*'abcdef')
    simulation.run()
    assert made.ran == list('abcdef')


def test_what_waits_is_cancelled_at_once_and_never_runs(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    made.submit('a', 'b', 'c')
    simulation.run_ready()
    assert made.queue.cancel('b')
    assert list(made.waiting) == ['c']
    assert made.executor.waiting == 1
    assert not made.queue.cancel('b')
    made.go.set()
    simulation.run()
    assert made.ran == ['a', 'c']


def test_what_has_started_or_ended_or_was_never_here_cannot_be_cancelled(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    made.submit('a')
    simulation.run_ready()
    assert not made.queue.cancel('a')
    made.go.set()
    simulation.run()
    assert not made.queue.cancel('a')
    assert not made.queue.cancel('never')


def test_a_closed_queue_cancels_what_waits_in_order_and_takes_nothing(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    made.submit('a', 'b', 'c')
    simulation.run_ready()
    assert made.queue.close() == ['b', 'c']
    with pytest.raises(exception.QueueClosed, match='alpha is stopping'):
        made.submit('d')
    made.go.set()
    simulation.run()
    assert made.ran == ['a']
    assert made.waiting == {}


def test_a_grown_limit_starts_the_next_at_once_and_a_shrunk_one_interrupts_nothing(
    simulation: Simulation,
) -> None:
    made = Made(simulation.process('alpha'))
    made.submit(*'abcd')
    simulation.run_ready()
    made.queue.resize(3)
    simulation.run_ready()
    assert sorted(made.ran) == ['a', 'b', 'c']
    made.queue.resize(1)
    simulation.run_ready()
    assert made.queue.running == 3
    assert list(made.waiting) == ['d']


def test_a_job_found_running_takes_a_slot_above_the_limit(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    for uuid in 'xy':
        made.queue.attach(made.work, uuid)
    made.submit('a')
    simulation.run_ready()
    assert sorted(made.ran) == ['x', 'y']
    assert list(made.waiting) == ['a']


class Naive(Queue):
    """The specimen: a placeholder, submit, then store the Future, and no lock over the three."""

    def submit(self, migration_uuid: str, function: Any, /, *args: Any) -> None:
        self._waiting[migration_uuid] = concurrent.futures.Future()
        future = self._executor.submit(function, *args)
        self._waiting[migration_uuid] = future

    def take(self, migration_uuid: str) -> None:
        self._waiting.pop(migration_uuid, None)


def leaks(queue_class: type[Queue], seed: int) -> list[str]:
    """Return the entries that are left when all is done, in one order of events."""
    with Simulation(seed=seed) as simulation:
        made = Made(simulation.process('alpha'))
        made.queue = queue_class('alpha', made.executor, made.waiting, simulation.process('alpha'))
        made.go.set()
        made.submit('a')
        simulation.run()
        return list(made.waiting)


def test_the_naive_order_leaks_entries_and_ours_does_not_in_any_of_100_orders() -> None:
    assert any(leaks(Naive, seed) for seed in range(100))
    assert not any(leaks(Queue, seed) for seed in range(100))


def loses(queue_class: type[Queue], seed: int) -> list[str]:
    """Return what was said to be cancelled and ran all the same, in one order of events.

    One runs, so that the other waits; it is aborted as soon as its entry is there.
    """
    with Simulation(seed=seed) as simulation:
        process = simulation.process('alpha')
        made = Made(process)
        made.queue = queue_class('alpha', made.executor, made.waiting, process)
        made.submit('runs')
        simulation.run_ready()
        won: list[str] = []

        def abort() -> None:
            while 'waits' not in made.waiting and 'waits' not in made.ran:
                process.sleep(0)
            if made.queue.cancel('waits'):
                won.append('waits')

        process.start(abort, name='abort')
        process.start(made.submit, 'waits', name='submit')
        simulation.run_ready()
        made.go.set()
        simulation.run()
        return [uuid for uuid in won if uuid in made.ran]


def test_the_naive_order_loses_aborts_and_ours_does_not_in_any_of_100_orders() -> None:
    assert any(loses(Naive, seed) for seed in range(100))
    assert not any(loses(Queue, seed) for seed in range(100))


def test_a_queue_that_closes_still_says_of_what_it_cancelled_that_it_will_never_run(
    simulation: Simulation,
) -> None:
    made = Made(simulation.process('alpha'))
    made.submit('a', 'b')
    simulation.run_ready()
    assert made.queue.close() == ['b']
    assert made.queue.cancel('b')
    assert made.queue.cancel('b')
    assert not made.queue.cancel('a')


def test_when_it_is_closed_nothing_waits_not_even_what_has_got_its_slot_and_has_not_begun() -> None:
    for seed in range(20):
        with Simulation(seed=seed) as simulation:
            made = Made(simulation.process('alpha'), limit=2)
            made.submit(*'abc')
            closed = made.queue.close()
            assert made.waiting == {}
            made.go.set()
            simulation.run()
            assert sorted([*made.ran, *closed]) == list('abc')
