# SPDX-License-Identifier: Apache-2.0

"""Many migrations of one host, and many hosts that are off, cost no more than as many times what one does."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

from migrator.conductor.compute_client import CALLS_PER_HOST
from tests.unit.conductor import stage as stages

Stage = stages.Stage
ROOM = {'vcpus': 2000, 'memory_mb': 10_000_000, 'disk_gb': 20_000}


def asked(stage: Stage, since: int = 0) -> collections.Counter[str]:
    """Return how often each host was asked where guests are."""
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


def test_a_host_that_is_emptied_is_told_of_each_guest_and_is_asked_hardly_anything(
    build: Callable[..., Stage],
) -> None:
    stage = build(**ROOM)
    migrations = begin(stage, 24)
    stage.until(lambda: queued(stage, migrations), 60)
    # The rows say so before the source has been told of all.
    compute = stage.cloud.computes['host1']
    stage.until(lambda: len(compute._waiting_live_migrations) == len(migrations) - 1, 60)
    assert sum(asked(stage).values()) <= len(migrations)


def test_of_a_source_that_dies_all_are_soon_told_to_be_stuck_and_nobody_else_is_asked_for_each(
    build: Callable[..., Stage],
) -> None:
    stage = build(**ROOM)
    stage.host('host1').set_link(0.001)
    migrations = begin(stage, 24)
    stage.until(lambda: queued(stage, migrations), 60)
    stage.kill('host1')

    def told() -> bool:
        """Whether each says that its source is down: the one that has begun to move may go on."""
        rows = [stage.row(migration) for migration in migrations]
        assert sum(row.status == 'running' for row in rows) == 1
        return all(row.waits_for if row.status == 'running' else row.stuck_reason for row in rows)

    stage.until(told, 60 + 30)
    since = len(stage.cloud.recorder.messages)
    stage.simulation.advance(60)
    polls = asked(stage, since)
    assert polls['host1'] <= 60
    assert polls['host2'] <= 60
    assert told()


def source_dies_untold(build: Callable[..., Stage]) -> tuple[Stage, list[Any]]:
    """Return migrations that are all to be queued at a source which has died while their destination prepared."""
    stage = build(pre_seconds=2.0, **ROOM)
    migrations = begin(stage, 16)
    stage.until(lambda: all(stage.row(migration).dest_compute for migration in migrations), 60)
    stage.kill('host1')
    stage.until(lambda: queued(stage, migrations), 60)
    return stage, migrations


def test_of_a_source_that_dies_before_it_is_told_all_are_soon_told_to_be_stuck(build: Callable[..., Stage]) -> None:
    """Four calls hang as long as a call may; those behind them in the line need not find that out one by one."""
    stage, migrations = source_dies_untold(build)
    stage.until(lambda: all(stage.row(migration).stuck_reason for migration in migrations), 60 + 30)
    assert all('host1 is down' in (stage.row(migration).stuck_reason or '') for migration in migrations)


def test_that_a_source_is_declared_down_all_know_once_it_has_left_calls_unanswered(
    build: Callable[..., Stage],
) -> None:
    stage, migrations = source_dies_untold(build)
    stage.host('host1').power_off()
    service = stage.database.services.get_compute('host1')
    stage.cloud.request('PUT', f'/os-services/{service.uuid}', {'forced_down': True})
    # Four have been sent, and wait as long as a call may.
    stage.until(lambda: all(stage.row(migration).status == 'error' for migration in migrations), 60 + 30)


def test_who_cannot_ask_a_host_for_want_of_a_place_does_not_take_it_to_be_down(build: Callable[..., Stage]) -> None:
    """It was declared down, and lives; and whoever adopts its migrations has never spoken with it."""
    stage = build(conductors=2, **ROOM)
    stage.host('host1').set_link(0.001)
    migrations = begin(stage, 6)
    stage.until(lambda: queued(stage, migrations), 60)
    # Whoever holds fewer of them is left, and is made not to have a place.
    lives = stage.cloud.conductors
    stage.until(lambda: all(any(one.runner.holds(row.uuid) for one in lives.values()) for row in migrations))
    left = min(lives, key=lambda name: sum(lives[name].runner.holds(row.uuid) for row in migrations))
    stage.simulation.advance(10)
    service = stage.database.services.get_compute('host1')
    stage.cloud.request('PUT', f'/os-services/{service.uuid}', {'forced_down': True})
    with contextlib.ExitStack() as slots:
        for _ in range(CALLS_PER_HOST):
            slots.enter_context(lives[left].tools.hosts._slot('host1', None))
        stage.kill(next(name for name in lives if name != left))
        stage.until(lambda: all(lives[left].runner.holds(row.uuid) for row in migrations), 60)
        stage.simulation.advance(20)
    stage.host('host1').set_link(4096.0)
    assert [stage.end(migration).status for migration in migrations] == ['completed'] * len(migrations)


def test_hosts_that_are_off_do_not_keep_others_from_being_asked(build: Callable[..., Stage]) -> None:
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
