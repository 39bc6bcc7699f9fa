# SPDX-License-Identifier: Apache-2.0

"""The threads of a compute host by default: those of futurist, native or green."""

from __future__ import annotations

import threading
import types
from typing import Any

import futurist
import pytest
from futurist import _thread

from migrator import executors
from migrator.objects import protocol
from migrator.testing.hypervisor.hypervisor import FakeWorld
from tests.unit.compute import scene as scene_module
from tests.unit.test_executors import Native


@pytest.fixture
def host() -> Any:
    """A host on the threads of this process, and two guests; its driver takes a migration and hangs."""
    threads = executors.NativeThreads()
    world = FakeWorld(threads)
    scene: Any = types.SimpleNamespace(
        simulation=types.SimpleNamespace(process=lambda name: threads, run_ready=lambda: None),
        world=world,
        data=protocol.LiveMigrateData(destination={'host': 'beta'}),
    )
    alpha = world.add('alpha')
    for number in (1, 2):
        alpha.spawn(scene_module.instance(number))
    host: Any = scene_module.Host(scene, 'alpha', start=False)
    host.running_in, host.gate = [], threads.event()

    def hang(*_args: Any) -> None:
        host.running_in.append(threading.current_thread())
        host.gate.wait(60)

    host.driver.live_migration = hang
    host.start()
    while host.poll(1).refusal:
        threads.sleep(0.001)
    yield host
    host.gate.set()
    host.manager.cleanup_host()


def test_live_migration_a_queued_abort_and_a_stop_run_on_threads_of_futurist(host: Any) -> None:
    settle = Native().settle
    for number in (1, 2):
        host.call('live_migration', number)
    settle(lambda: host.running_in)
    (thread,) = host.running_in
    assert type(thread) is _thread.ThreadWorker
    assert isinstance(thread.executor_ref(), futurist.DynamicThreadPoolExecutor)
    assert host.report('live_migration_abort', 2).result == {'cancelled': True, 'verdict': ''}
    assert host.report('live_migration', 2).state == 'cancelled'
    host.manager.cleanup_host()
    assert thread.is_alive(), 'a stop interrupts no migration'
    host.gate.set()
    settle(lambda: not thread.is_alive())
    assert host.running_in == [thread]
