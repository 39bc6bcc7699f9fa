# SPDX-License-Identifier: Apache-2.0

"""Tests that many migrations or unreachable hosts cost no more than the sum of single ones."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from migrator.conductor.compute_client import CALLS_PER_HOST
from migrator.testing import bus
from tests.unit.conductor import stage as stages

pytestmark = pytest.mark.slow

Stage = stages.Stage
ROOM = {'vcpus': 2000, 'memory_mb': 10_000_000, 'disk_gb': 20_000}


def asked(stage: Stage, since: int = 0) -> collections.Counter[str]:
    """Return the number of polls of each host."""
    return collections.Counter(
        message.target.removeprefix('compute.')
        for message in stage.cloud.recorder.messages[since:]
        if message.method == 'poll_live_migrations' and message.kind == 'call'
    )


def begin(stage: Stage, count: int, source: str = 'host1', destination: str = 'host2') -> list[Any]:
    guests = [stage.cloud.boot(f'guest{number}', source, memory_mb=4096) for number in range(count)]
    return [stage.begin(destination, instance=guest) for guest in guests]


def queued(stage: Stage, migrations: list[Any]) -> bool:
    return all(stage.row(migration).status in ('queued', 'running') for migration in migrations)


def test_emptied_host_gets_a_command_for_each_guest_and_few_polls(
    build: Callable[..., Stage],
) -> None:
    stage = build(**ROOM)
    migrations = begin(stage, 24)
    stage.until(lambda: queued(stage, migrations), 60)
    # The rows have the status before the source has got every command.
    compute = stage.cloud.computes['host1']
    stage.until(lambda: len(compute._waiting_live_migrations) == len(migrations) - 1, 60)
    assert sum(asked(stage).values()) <= len(migrations)


def test_poll_names_few_of_those_that_wait_in_the_queue(build: Callable[..., Stage]) -> None:
    stage = build(**ROOM)
    stage.host('host1').set_link(0.001)
    migrations = begin(stage, 40)
    stage.until(lambda: queued(stage, migrations), 60)
    stage.simulation.advance(10)
    polls: list[set[str]] = []

    def note_poll(message: bus.Message) -> None:
        if message.method == 'poll_live_migrations' and message.kind == 'call':
            polls.append({row.uuid for row in migrations if row.uuid in message.body})

    stage.cloud.bus.faults = note_poll
    stage.simulation.advance(30)
    assert 0 < max(len(named) for named in polls) <= 1 + 16
    assert set.union(*polls) == {row.uuid for row in migrations}


def test_dead_source_makes_all_stuck_soon_with_few_polls(
    build: Callable[..., Stage],
) -> None:
    stage = build(**ROOM)
    stage.host('host1').set_link(0.001)
    migrations = begin(stage, 24)
    stage.until(lambda: queued(stage, migrations), 60)
    stage.kill('host1')

    def all_blame_the_source() -> bool:
        """Return whether each reports that its source is down, except one that may have begun its copy."""
        rows = [stage.row(migration) for migration in migrations]
        assert sum(row.status == 'running' for row in rows) == 1
        return all(row.waits_for if row.status == 'running' else row.stuck_reason for row in rows)

    stage.until(all_blame_the_source, 60 + 30)
    since = len(stage.cloud.recorder.messages)
    stage.simulation.advance(60)
    polls = asked(stage, since)
    assert polls['host1'] <= 60
    assert polls['host2'] <= 60
    assert all_blame_the_source()


def source_dies_before_commands(build: Callable[..., Stage]) -> tuple[Stage, list[Any]]:
    """Return migrations whose source died while their destination prepared, before they were queued."""
    stage = build(pre_seconds=2.0, **ROOM)
    migrations = begin(stage, 16)
    # The checks at the source are over.
    stage.until(lambda: all(stage.row(migration).checked_at for migration in migrations), 60)
    stage.kill('host1')
    stage.until(lambda: queued(stage, migrations), 60)
    return stage, migrations


def test_source_dead_before_the_commands_makes_all_stuck_soon(build: Callable[..., Stage]) -> None:
    """Four calls hang until their time-out. The waiters behind them need not find out one by one."""
    stage, migrations = source_dies_before_commands(build)
    stage.until(lambda: all(stage.row(migration).stuck_reason for migration in migrations), 60 + 30)
    assert all('host1 is down' in (stage.row(migration).stuck_reason or '') for migration in migrations)


def test_forced_down_source_is_known_to_all_after_unanswered_calls(
    build: Callable[..., Stage],
) -> None:
    stage, migrations = source_dies_before_commands(build)
    stage.host('host1').power_off()
    service = stage.database.services.get_compute('host1')
    stage.cloud.request('PUT', f'/os-services/{service.uuid}', {'forced_down': True})
    # Four have been sent, and wait until their time-out.
    stage.until(lambda: all(stage.row(migration).status == 'error' for migration in migrations), 60 + 30)


def test_host_without_a_free_slot_does_not_count_as_down(build: Callable[..., Stage]) -> None:
    """The host counted as down although it ran, for a conductor that took over and had never called it."""
    stage = build(conductors=2, **ROOM)
    stage.host('host1').set_link(0.001)
    migrations = begin(stage, 6)
    stage.until(lambda: queued(stage, migrations), 60)
    # The conductor with fewer of them is left, without a free slot.
    conductors = stage.cloud.conductors
    stage.until(lambda: all(any(one.runner.holds(row.uuid) for one in conductors.values()) for row in migrations))
    left = min(conductors, key=lambda name: sum(conductors[name].runner.holds(row.uuid) for row in migrations))
    stage.simulation.advance(10)
    service = stage.database.services.get_compute('host1')
    stage.cloud.request('PUT', f'/os-services/{service.uuid}', {'forced_down': True})
    with contextlib.ExitStack() as slots:
        for _ in range(CALLS_PER_HOST):
            slots.enter_context(conductors[left].tools.hosts._slot('host1', None))
        stage.kill(next(name for name in conductors if name != left))
        stage.until(lambda: all(conductors[left].runner.holds(row.uuid) for row in migrations), 60)
        stage.simulation.advance(20)
    stage.host('host1').set_link(4096.0)
    assert [stage.end(migration).status for migration in migrations] == ['completed'] * len(migrations)


def test_unreachable_hosts_do_not_prevent_polls_of_others(build: Callable[..., Stage]) -> None:
    stage = build(hosts=20, options={'conductor.poll_concurrency': 4}, **ROOM)
    hosts = [f'host{number}' for number in range(3, 21)]
    migrations = [begin(stage, 1, host, 'host2')[0] for host in hosts]
    living = begin(stage, 2)
    everybody = [*migrations, *living]
    for host in [*hosts, 'host1']:
        stage.host(host).set_link(0.001)
    stage.until(lambda: queued(stage, everybody), 60)
    for host in hosts:
        stage.kill(host)
    stage.simulation.advance(120)
    pool = stage.cloud.conductors['conductor1']._poll_pool
    since = len(stage.cloud.recorder.messages)
    for _second in range(60):
        stage.simulation.advance(1)
        assert pool.waiting <= len(hosts)
    assert asked(stage, since)['host1'] >= 10


@pytest.mark.parametrize('step', ['pre_live_migration', 'post_live_migration_at_destination'])
def test_stuck_migrations_stay_stuck_when_another_conductor_takes_them_over(
    build: Callable[..., Stage], step: str
) -> None:
    """Those that had to wait for a call slot first counted their wait anew."""
    stage = build(conductors=2, **ROOM)
    stall = stage.host('host2').faults.stall(step, sticky=True)
    migrations = begin(stage, 16)
    stage.until(lambda: all(stage.row(migration).stuck_reason for migration in migrations), 600)
    dead = stage.cloud.conductors['conductor1'].tools.owner
    stage.kill('conductor1')
    for _second in range(120):
        stage.simulation.advance(1)
        assert all(stage.row(migration).stuck_reason for migration in migrations)
    assert all(stage.row(migration).owner != dead for migration in migrations)
    stage.host('host2').faults.clear(step)
    stall.release()
    assert {stage.end(migration).status for migration in migrations} == {'completed'}


def test_migrations_retried_at_once_do_not_wake_each_other_without_a_pause(build: Callable[..., Stage]) -> None:
    """Each run polled both hosts, and each reply woke a run that found the other host busy."""
    stage = build(**ROOM)
    stall = stage.host('host2').faults.stall('pre_live_migration', sticky=True)
    migrations = begin(stage, 24)
    stage.until(lambda: all(stage.row(migration).stuck_reason for migration in migrations), 600)
    since = len(stage.cloud.recorder.messages)
    for migration in migrations:
        stage.database.requests.request_retry(stage.row(migration), 'an operator')
    stage.simulation.scheduler.most_passes = 50_000
    stage.until(lambda: not any(stage.row(migration).retry_requested_at for migration in migrations), 60)
    polls = asked(stage, since)
    assert max(polls.values()) <= 100, polls
    stall.release()


def waits_for_slot(stage: Stage, migration: Any, host: str) -> bool:
    """Return whether conductor1 has a migration wait for a call slot of a host."""
    subject = next(one for one in stage.cloud.conductors['conductor1'].runner.held() if one.row.uuid == migration.uuid)
    return subject.ledger.last is not None and subject.ledger.last.what == f'a free call slot of {host}'


def test_call_slot_that_a_woken_migration_does_not_use_goes_to_the_next(build: Callable[..., Stage]) -> None:
    """Nothing woke the next waiter, which waited for its next look."""
    stage = build(options={'conductor.sweep_interval': 1e6}, **ROOM)
    with contextlib.ExitStack() as others, contextlib.ExitStack() as slot:
        for stack in (others, others, others, slot):
            stack.enter_context(stage.tools.hosts._slot('host2', None))
        first, second = begin(stage, 1) + begin(stage, 1, 'host3')
        for migration in (first, second):
            stage.until(lambda row=migration: waits_for_slot(stage, row, 'host2'))
        # The first one has to poll its source before it needs host2 again, and its source does not answer.
        stage.kill('host1')
        stage.abort(first)
        stage.until(lambda: not waits_for_slot(stage, first, 'host2'), 10)
        stage.do(slot.close)
        stage.until(lambda: not waits_for_slot(stage, second, 'host2'), 1)
    assert stage.end(second).status == 'completed'
