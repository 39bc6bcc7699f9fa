# SPDX-License-Identifier: Apache-2.0

"""The properties of the live migration queue and of a compute host, on green threads."""

from types import SimpleNamespace

import eventlet

from migrator.objects import LiveMigrateData, protocol
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from migrator.virt import driver
from tests.eventlet import changing
from tests.unit.compute import scene
from tests.unit.compute.test_live_migration_queue import Made, Naive, Queue

ORDERS = 100
UUIDS = 'abcd'


def race(queue_class, seed):
    """Submit four and cancel each at once. Return what waits, what ran, and which cancels succeeded."""
    threads = changing.Changing(seed)
    made = Made(threads)
    made.queue = queue_class('alpha', made.executor, made.waiting, threads)
    made.go.set()
    won = []

    def cancel(uuid):
        threads.change()
        if made.queue.cancel(uuid):
            won.append(uuid)

    cancelling = []
    for uuid in UUIDS:
        made.submit(uuid)
        cancelling.append(eventlet.spawn(cancel, uuid))
    for one in cancelling:
        one.wait()
    made.queue.drain()
    return list(made.waiting), made.ran, won, made.most


def test_cancelled_entries_never_run_and_the_others_run_in_order():
    seen = set()
    for seed in range(ORDERS):
        waiting, ran, won, most = race(Queue, seed)
        assert waiting == [], seed
        assert sorted([*ran, *won]) == list(UUIDS), seed
        assert ran == sorted(ran), seed
        assert most <= 1, seed
        seen.add(tuple(ran))
    # worth its name only if both sides win
    assert len(seen) > 5


def test_the_search_would_find_the_naive_order():
    assert any(race(Naive, seed)[0] for seed in range(ORDERS))


class Stage:
    """A source whose moves never end by themselves, and a destination that is ready, on green threads."""

    def __init__(self, seed):
        self.threads = changing.Changing(seed)
        self.simulation = SimpleNamespace(process=lambda name: self.threads, run_ready=lambda: None)
        self.world = FakeWorld(self.threads)
        self.data = LiveMigrateData(destination={'host': 'beta'})
        alpha, beta = (self.world.add(name, link=0.001) for name in ('alpha', 'beta'))
        receiver = FakeDriver(beta, self.threads)
        for number in (1, 2, 3):
            alpha.spawn(scene.instance(number))
            receiver.pre_live_migration(scene.instance(number), self.data, driver.NeverCancelled())
        self.host = scene.Host(self, 'alpha')

    def end(self):
        """Wait until nothing waits and nothing runs."""
        with eventlet.Timeout(30):
            while self.host.waiting or self.host.running or len(self.ended()) < 3:
                self.threads.sleep(0.001)

    def ended(self):
        found = [report for _, report in self.host.events.ended if report.step == 'live_migration']
        return {report.migration_uuid: report for report in found if report.state != protocol.WorkState.RUNNING}


def test_no_abort_is_lost_wherever_it_meets_the_move():
    seen = set()
    for seed in range(ORDERS // 2):
        stage = Stage(seed)
        answers = {}

        def abort(number, stage=stage, answers=answers):
            stage.threads.change()
            answers[number] = stage.host.report('live_migration_abort', number).result['cancelled']

        aborting = []
        with eventlet.Timeout(30):
            while stage.host.call('live_migration', 1).refusal:
                stage.threads.sleep(0)  # it has not registered yet
        for number in (1, 2, 3):
            assert stage.host.call('live_migration', number).refusal is None
            aborting.append(eventlet.spawn(abort, number))
        for one in aborting:
            one.wait()
        stage.end()
        moved = {effect.instance_uuid for effect in stage.world.log if effect.effect == 'job started'}
        for number in (1, 2, 3):
            uuid = scene.uuid(1, number)
            assert stage.host.driver.get_guest(uuid) == protocol.Guest(instance_uuid=uuid, state='running'), seed
            assert stage.ended()[scene.uuid(2, number)].state == protocol.WorkState.CANCELLED, seed
            if answers[number]:
                assert uuid not in moved, f'{seed}: its driver was called after it was said that it never would be'
        seen.add((tuple(answers.items()), len(moved)))
    assert len(seen) > 3
