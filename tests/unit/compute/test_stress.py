# SPDX-License-Identifier: Apache-2.0

"""Stress tests of a queue and a host: threads submit, start, abort, stop and change the limit.

The interpreter switches between the native threads as often as it can. ``tests/eventlet`` runs the same tests on green
threads that switch wherever a lock is taken or released.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from migrator import exception, executors
from migrator.compute import live_migration_queue
from migrator.objects import protocol
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from migrator.virt import driver
from tests.unit.compute import scene as scene_module
from tests.unit.compute.test_live_migration_queue import Naive

Queue = live_migration_queue.LiveMigrationQueue

#: Migrations that go through all the queues of a test.
ROUNDS = 20_000
#: Queues of a test, one after the other.
QUEUES = 20
#: The limit changes between 1 and this.
MOST = 4
#: Seconds within which all threads must end.
PATIENCE = 60.0


@contextlib.contextmanager
def changing_often() -> Iterator[None]:
    """Make the interpreter switch threads every microsecond."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class HammeredQueue:
    """A queue that many threads use until it is closed.

    :param threads: makes the locks and workers of the queue. The threads that use the queue come from ``threading``.
    """

    def __init__(self, queue_class: type[Queue], threads: executors.Threads, rounds: int, seed: int) -> None:
        self.threads = threads
        self.executor = executors.BoundedExecutor(1, threads, f'stressed-{seed}')
        self.waiting: dict[str, concurrent.futures.Future[Any]] = {}
        self.queue = queue_class('alpha', self.executor, self.waiting, threads)
        self.rounds = rounds
        self.seed = seed
        self.submitted: list[str] = []
        self.refused: list[str] = []
        self.ran: list[str] = []
        self.cancelled: list[str] = []
        self.closed: list[str] = []
        self.most = 0
        self.wrong: list[str] = []
        self._left = 3
        self._lock = threading.Lock()

    def hammer(self) -> list[str]:
        """Run all threads, and return what is wrong."""
        actors: list[Callable[[], None]] = [self._mutate, self._stop]
        actors += [lambda number=number: self._submit(number) for number in range(3)]  # type: ignore[misc]
        actors += [lambda number=number: self._abort(number) for number in range(2)]  # type: ignore[misc]
        running = [threading.Thread(target=self._act, args=(actor,), daemon=True) for actor in actors]
        for thread in running:
            thread.start()
        until = time.monotonic() + PATIENCE
        for thread in running:
            thread.join(max(0.0, until - time.monotonic()))
        wrong = self.wrong + [f'{thread.name} hangs' for thread in running if thread.is_alive()]
        if not self.executor.wait_idle(PATIENCE):
            wrong.append('something still runs')
        return wrong + self._judge()

    def _act(self, actor: Callable[[], None]) -> None:
        try:
            actor()
        except Exception as error:  # noqa: BLE001 -- hammer() returns it to the test's thread
            self.wrong.append(f'{type(error).__name__}: {error}')
            self._left = 0

    def _judge(self) -> list[str]:
        wrong = []
        if self.waiting:
            wrong.append(f'entries leaked: {len(self.waiting)}')
        if self.executor.waiting or self.executor.running:
            wrong.append(f'the pool has {self.executor.waiting} waiting and {self.executor.running} running')
        ran, never = set(self.ran), {*self.cancelled, *self.closed}
        if len(ran) != len(self.ran):
            wrong.append('something ran twice')
        if ran & never:
            wrong.append(f'aborts lost: {len(ran & never)} ran although they were reported as cancelled')
        accepted = set(self.submitted) - set(self.refused)
        if ran | never != accepted:
            wrong.append(f'{len(accepted - ran - never)} neither ran nor were cancelled')
        if self.most > MOST:
            wrong.append(f'{self.most} ran at once')
        return wrong

    def _work(self, uuid: str) -> None:
        self.queue.take(uuid)
        self.most = max(self.most, self.executor.running)
        self.ran.append(uuid)

    def _submit(self, number: int) -> None:
        for round_ in range(number, self.rounds, 3):
            if self.wrong:
                return
            uuid = f'{self.seed}-{round_}'
            # Recorded before submit(), because an abort may come first.
            self.submitted.append(uuid)
            try:
                self.queue.submit(uuid, round_, self._work, uuid)
            except exception.QueueClosed:
                self.refused.append(uuid)
            if round_ % 4:
                # Without a pause the submitting threads would run far ahead of all others.
                self.threads.sleep(0)
        with self._lock:
            self._left -= 1

    def _abort(self, number: int) -> None:
        chance = random.Random(f'{self.seed}/{number}')  # noqa: S311 -- a schedule needs no secrecy
        while self._left:
            # The newest and some older ones, so that some wait, some are just starting and some have ended.
            for uuid in [*self.submitted[-2:], *self.submitted[-chance.randint(1, 40) :][:1]]:
                if self.queue.cancel(uuid):
                    self.cancelled.append(uuid)
            self.threads.sleep(0)

    def _mutate(self) -> None:
        chance = random.Random(self.seed)  # noqa: S311 -- a schedule needs no secrecy
        while self._left:
            self.queue.resize(chance.randint(1, MOST))
            self.threads.sleep(0)

    def _stop(self) -> None:
        # Most queues are closed while entries are still submitted; every queue is closed in the end.
        while self._left and len(self.submitted) < self.rounds * (0.8 + 0.04 * (self.seed % 6)):
            self.threads.sleep(0)
        self.closed += self.queue.close()


def hammer(queue_class: type[Queue], threads: executors.Threads, rounds: int, queues: int) -> list[str]:
    """Hammer some queues one after the other, until entries or aborts are lost, and return what is wrong."""
    wrong: list[str] = []
    for seed in range(queues):
        wrong += HammeredQueue(queue_class, threads, rounds // queues, seed).hammer()
        if lost(wrong):
            break
    return wrong


def lost(wrong: list[str]) -> bool:
    """Return whether entries or aborts were lost, as in a naive queue."""
    return any(what.startswith(('entries leaked', 'aborts lost')) for what in wrong)


def futures() -> int:
    """Return the number of Futures in this process."""
    gc.collect()
    return sum(isinstance(each, concurrent.futures.Future) for each in gc.get_objects())


def workers(known: set[threading.Thread]) -> list[str]:
    """Return the names of the pool threads that are left after the others have ended.

    :param known: threads that existed before the test.
    """

    def new() -> list[threading.Thread]:
        ours = ('stressed', 'live-migration')
        return [one for one in threading.enumerate() if one not in known and one.name.startswith(ours)]

    for thread in new():
        thread.join(PATIENCE)
    return [thread.name for thread in new()]


def test_stressed_queue_loses_no_abort_and_leaks_no_entry_future_or_thread() -> None:
    known, before = set(threading.enumerate()), futures()
    with changing_often():
        assert hammer(Queue, executors.NativeThreads(), ROUNDS, QUEUES) == []
    assert workers(known) == []
    assert futures() <= before


def test_stressed_naive_queue_loses_aborts_or_entries() -> None:
    with changing_often():
        wrong = hammer(Naive, executors.NativeThreads(), ROUNDS, QUEUES)
    assert lost(wrong), wrong


# --- a whole compute host --------------------------------------------------------------------------------------------

#: Lock -> locks that may be taken while it is held; see :mod:`migrator.compute.live_migration_queue`.
ORDER = {
    'StepRunner': {'LiveMigrationQueue', 'BoundedExecutor'},
    'LiveMigrationQueue': {'BoundedExecutor'},
}
GUESTS = 60


class Watched(executors.NativeThreads):
    """Native threads that record each lock that was taken while another one was held.

    :ivar taken: pairs (held, taken) of lock names; a lock has the name of the class that made it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[tuple[str, str]] = set()
        self._held = threading.local()

    def lock(self) -> executors.Lock:
        """Return a lock that records when it is taken and released."""
        maker = sys._getframe(1).f_locals.get('self')
        return _RecordingLock(super().lock(), type(maker).__name__, self)

    def held(self) -> list[str]:
        """Return the names of the locks that this thread holds."""
        if not hasattr(self._held, 'names'):
            self._held.names = []
        names: list[str] = self._held.names
        return names


class _RecordingLock:
    def __init__(self, lock: executors.Lock, name: str, threads: Watched) -> None:
        self._lock, self._name, self._threads = lock, name, threads

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = self._lock.acquire(blocking, timeout)
        if got:
            held = self._threads.held()
            self._threads.taken |= {(one, self._name) for one in held}
            held.append(self._name)
        return got

    def release(self) -> None:
        self._threads.held().remove(self._name)
        self._lock.release()

    def __enter__(self) -> _RecordingLock:
        self.acquire()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.release()


def run_all(actors: list[Any]) -> None:
    """Run each actor in a thread of its own until all have returned."""
    running = [threading.Thread(target=actor, daemon=True) for actor in actors]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in running)


class Hammered:
    """A compute host on which many threads start, abort and poll live migrations while its limit changes."""

    def __init__(self, threads: executors.Threads, seed: int) -> None:
        self.seed = seed
        self.world = FakeWorld(executors.NativeThreads())
        # The links are so fast that the copies take almost no time.
        source, destination = (self.world.add(name, vcpus=256, link=1e6) for name in ('alpha', 'beta'))
        self.data = protocol.LiveMigrateData(destination={'host': 'beta'})
        receiver = FakeDriver(destination, self.world.threads)
        for number in range(GUESTS):
            source.spawn(scene_module.instance(number))
            receiver.pre_live_migration(scene_module.instance(number), self.data, driver.NeverCancelled())
        scene: Any = types.SimpleNamespace(
            simulation=types.SimpleNamespace(process=lambda name: threads, run_ready=lambda: None),
            world=self.world,
            data=self.data,
        )
        self.host = scene_module.Host(scene, 'alpha')
        self.threads = threads
        self.answers: dict[int, bool] = {}
        self.refused: set[int] = set()
        self._left = 3

    def hammer(self) -> None:
        while self.host.poll(0).refusal:
            self.threads.sleep(0.001)
        lock = threading.Lock()

        def start(part: int) -> None:
            for number in range(part, GUESTS, 3):
                if self.host.call('live_migration', number).refusal:
                    self.refused.add(number)
            with lock:
                self._left -= 1

        def abort() -> None:
            chance = random.Random(self.seed)  # noqa: S311 -- a schedule needs no secrecy
            while self._left:
                number = chance.randrange(GUESTS)
                result = self.host.report('live_migration_abort', number).result
                self.answers[number] = self.answers.get(number, False) or result['cancelled']

        def poll() -> None:
            while self._left:
                self.host.polls([self.host.command('poll', number) for number in range(0, GUESTS, 10)])

        def mutate() -> None:
            chance = random.Random(self.seed)  # noqa: S311 -- a schedule needs no secrecy
            while self._left:
                self.host.conf.set_override('max_concurrent_live_migrations', chance.randint(1, MOST))
                self.host.manager.reset()
                self.threads.sleep(0)

        def stop() -> None:
            while self._left == 3 and self.seed % 2:
                self.threads.sleep(0)
            if self.seed % 2:
                self.host.manager.cleanup_host()

        actors = [abort, poll, mutate, stop, *(lambda part=part: start(part) for part in range(3))]  # type: ignore[misc]
        run_all(actors)
        assert self.host.manager._live_migration_executor.wait_idle(PATIENCE)

    def check(self) -> None:
        assert self.host.waiting == []
        moved = {effect.instance_uuid for effect in self.world.effects('job started')}
        manager = self.host.manager
        for number in set(range(GUESTS)) - self.refused:
            work = manager._runner._records[scene_module.uuid(2, number)].works['live_migration']
            assert work.outcome is not None, number
            if self.answers.get(number):
                assert scene_module.uuid(1, number) not in moved, f'{number} ran although it was cancelled'
                assert work.outcome.state == protocol.WorkState.CANCELLED
            active = self.world.active_on(scene_module.uuid(1, number))
            assert active == (['beta'] if work.outcome.state == protocol.WorkState.DONE else ['alpha'])
        for number in self.refused:
            assert self.world.active_on(scene_module.uuid(1, number)) == ['alpha']
        assert self.world.violations == []


def test_stressed_host_loses_no_abort_and_keeps_the_documented_lock_order() -> None:
    known = set(threading.enumerate())
    threads = Watched()
    with changing_often():
        for seed in range(6):
            hammered = Hammered(threads, seed)
            hammered.hammer()
            hammered.check()
            hammered.host.manager.cleanup_host()
    assert ('StepRunner', 'LiveMigrationQueue') in threads.taken
    assert ('LiveMigrationQueue', 'BoundedExecutor') in threads.taken
    wrong = {(held, taken) for held, taken in threads.taken if taken not in ORDER.get(held, set())}
    assert wrong == set()
    assert workers(known) == []
