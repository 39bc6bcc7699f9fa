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
    """A queue whose work takes its entry, records that it ran, and waits for ``go``."""

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
            self.queue.submit(uuid, 1, self.work, uuid)


@pytest.fixture
def simulation() -> Any:
    with Simulation(seed=3) as made:
        yield made


def test_wait_of_the_first_waiting_entry_is_known(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    made.submit('a', 'b')
    simulation.advance(2)
    made.submit('c')
    simulation.advance(3)
    assert made.executor.oldest_wait() == 5
    made.queue.cancel('b')
    assert made.executor.oldest_wait() == 3
    made.go.set()
    simulation.run()
    assert made.executor.oldest_wait() == 0


def test_an_earlier_request_waits_before_a_later_one_that_came_first(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    for uuid, place in (('runs', 1), ('d', 5), ('b', 3), ('c', 4), ('e', 5), ('a', 2)):
        made.queue.submit(uuid, place, made.work, uuid)
        simulation.advance(1)
    made.go.set()
    simulation.run()
    assert made.ran == ['runs', *'abcde']


def test_cancelled_waiting_entry_never_runs(simulation: Simulation) -> None:
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


def test_cancel_of_started_ended_or_unknown_entry_returns_false(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    made.submit('a')
    simulation.run_ready()
    assert not made.queue.cancel('a')
    made.go.set()
    simulation.run()
    assert not made.queue.cancel('a')
    assert not made.queue.cancel('never')


def test_closed_queue_cancels_waiting_entries_in_order_and_refuses_new_ones(simulation: Simulation) -> None:
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


def test_attached_job_takes_a_slot_above_the_limit(simulation: Simulation) -> None:
    made = Made(simulation.process('alpha'))
    for uuid in 'xy':
        made.queue.attach(made.work, uuid)
    made.submit('a')
    simulation.run_ready()
    assert sorted(made.ran) == ['x', 'y']
    assert list(made.waiting) == ['a']


class Naive(Queue):
    """The naive queue: store a placeholder, submit, then store the Future, without a lock over the three."""

    def submit(self, migration_uuid: str, place: int, function: Any, /, *args: Any) -> None:
        self._waiting[migration_uuid] = concurrent.futures.Future()
        future = self._executor.submit_at(place, function, *args)
        self._waiting[migration_uuid] = future

    def take(self, migration_uuid: str) -> None:
        self._waiting.pop(migration_uuid, None)


def leaks(queue_class: type[Queue], seed: int) -> list[str]:
    """Return the entries that are left at the end, for the schedule of one seed."""
    with Simulation(seed=seed) as simulation:
        made = Made(simulation.process('alpha'))
        made.queue = queue_class('alpha', made.executor, made.waiting, simulation.process('alpha'))
        made.go.set()
        made.submit('a')
        simulation.run()
        return list(made.waiting)


def test_naive_queue_leaks_entries_and_queue_does_not_in_100_schedules() -> None:
    assert any(leaks(Naive, seed) for seed in range(100))
    assert not any(leaks(Queue, seed) for seed in range(100))


def loses(queue_class: type[Queue], seed: int) -> list[str]:
    """Return the entries that were cancelled and still ran, for the schedule of one seed.

    One entry runs, so that the other one waits. The other one is aborted as soon as its entry exists.
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


def test_naive_queue_loses_aborts_and_queue_does_not_in_100_schedules() -> None:
    assert any(loses(Naive, seed) for seed in range(100))
    assert not any(loses(Queue, seed) for seed in range(100))


def test_cancel_after_close_returns_true_for_entries_that_close_cancelled(
    simulation: Simulation,
) -> None:
    made = Made(simulation.process('alpha'))
    made.submit('a', 'b')
    simulation.run_ready()
    assert made.queue.close() == ['b']
    assert made.queue.cancel('b')
    assert made.queue.cancel('b')
    assert not made.queue.cancel('a')


def test_close_removes_every_entry_even_of_started_futures() -> None:
    for seed in range(20):
        with Simulation(seed=seed) as simulation:
            made = Made(simulation.process('alpha'), limit=2)
            made.submit(*'abc')
            closed = made.queue.close()
            assert made.waiting == {}
            made.go.set()
            simulation.run()
            assert sorted([*made.ran, *closed]) == list('abc')
