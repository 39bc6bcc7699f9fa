# SPDX-License-Identifier: Apache-2.0

"""A migration reports what it waits for, needs an operator in the end, and then goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from migrator.conductor.compute_client import CALLS_PER_HOST
from migrator.objects import protocol
from tests.unit.conductor import stage as stages

pytestmark = pytest.mark.slow

Stage = stages.Stage
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}
#: Seconds after which a migration that gets no further says why, and is stuck: with those of a sweep.
OBSERVED, STUCK = 60 + 45, 300 + 60


def waits_and_is_stuck(stage: Stage, migration: Any, whom: str) -> str:
    """Assert that a migration reports its wait in a minute, and is stuck within five; return why."""
    stage.until(lambda: stage.row(migration).waits_for or stage.row(migration).stuck_reason, OBSERVED)
    why = stage.until_stuck(migration, STUCK)
    assert whom in why
    return why


def test_a_driver_call_that_hangs_in_its_start(build: Callable[..., Stage]) -> None:
    stage = build()
    stall = stage.host('host1').faults.stall('live_migration')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    why = waits_and_is_stuck(stage, migration, 'host1')
    assert 'look at the hypervisor of host1' in why
    stall.release()
    assert stage.end(migration).status == 'completed'
    stage.check(migration, 'host2')


@pytest.mark.parametrize('hangs', [False, True])
def test_an_abort_that_hangs_or_always_fails(build: Callable[..., Stage], hangs: bool) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    faults = stage.host('host1').faults
    if hangs:
        stall = faults.stall('live_migration_abort', sticky=True)
    else:
        faults.fail('live_migration_abort', sticky=True)
    stage.abort(migration)
    assert 'host1 to abort' in waits_and_is_stuck(stage, migration, 'host1')
    faults.clear('live_migration_abort')
    if hangs:
        stall.release()
    assert stage.end(migration).status == 'cancelled'
    stage.check(migration, 'host1')


def test_a_copy_may_take_as_long_as_it_likes(build: Callable[..., Stage]) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    stage.simulation.advance(1000)
    row = stage.row(migration)
    assert (row.status, row.stuck_reason, row.waits_for) == ('running', None, None)


def test_a_copy_goes_on_under_a_compute_service_that_was_killed(build: Callable[..., Stage]) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    stage.kill('host1')
    stage.until(lambda: 'declare it forced down' in (stage.row(migration).waits_for or ''), OBSERVED + 60)
    why = stage.row(migration).waits_for
    assert why.startswith('host1 has not answered since ')
    assert 'start its compute service' in why
    stage.simulation.advance(1000)
    assert (stage.row(migration).waits_for, stage.row(migration).stuck_reason) == (why, None)
    # No user is there to abort it.
    stage.abort(migration)
    assert 'host1 is down' in stage.until_stuck(migration, OBSERVED)
    stage.cloud.start_compute('host1')
    assert stage.end(migration).status == 'cancelled'
    stage.check(migration, 'host1')


@pytest.mark.parametrize('link', [10.0, 13.0, 17.0])
def test_ended_migration_has_no_waits_for(build: Callable[..., Stage], link: float) -> None:
    """Its source is killed, and the copy ends without it, with an unanswered poll on its way."""
    stage = build(link=link)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    stage.kill('host1')
    stage.end(migration, 600)
    stage.simulation.advance(60)
    assert (stage.row(migration).status, stage.row(migration).waits_for) == ('completed', None)


def test_copy_that_lasts_too_long_is_stuck_until_a_host_reports(build: Callable[..., Stage]) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    stage.kill('host1')
    # 800 s for each GiB, and 2 GiB at least.
    stage.simulation.advance(1500)
    assert stage.row(migration).stuck_reason is None
    assert 'host1 is down' in stage.until_stuck(migration, OBSERVED + 100)
    stage.cloud.start_compute('host1')
    # The service that is back has it aborted by its own time-out.
    assert stage.end(migration).status == 'cancelled'


def test_restart_of_compute_service_ends_the_wait_of_a_copy(build: Callable[..., Stage]) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    stage.kill('host1')
    stage.until(lambda: 'declare it forced down' in (stage.row(migration).waits_for or ''), OBSERVED + 60)
    stage.cloud.start_compute('host1')
    stage.until(lambda: stage.row(migration).waits_for is None, OBSERVED)
    assert (stage.row(migration).status, stage.row(migration).stuck_reason) == ('running', None)


def test_host_that_answers_without_the_guest_is_not_shown_as_unreachable(
    build: Callable[..., Stage],
) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')

    def lose(message: Any) -> Any:
        return 'lose' if message.target.server == 'host1' and message.method != 'compute_heartbeat' else None

    stage.cloud.bus.faults = lose
    stage.until(lambda: 'host1 has not answered since' in (stage.row(migration).waits_for or ''), OBSERVED)
    stall = stage.host('host1').faults.stall('get_guest', sticky=True)
    stage.cloud.bus.faults = lambda message: None
    stage.until(lambda: 'host1 answers, but' in (stage.row(migration).waits_for or ''), 15)
    stage.host('host1').faults.clear('get_guest')
    stall.release()
    stage.until(lambda: stage.row(migration).waits_for is None, OBSERVED)


def test_wait_in_queue_has_no_time_limit(build: Callable[..., Stage]) -> None:
    stage = build(**ENDLESS)
    other = stage.cloud.boot('other', 'host1')
    first = stage.begin('host2')
    stage.until_status(first, 'running')
    second = stage.begin('host2', other)
    stage.until_status(second, 'queued')
    stage.simulation.advance(1000)
    row = stage.row(second)
    assert (row.status, row.stuck_reason, row.waits_for) == ('queued', None, None)


def test_a_place_among_the_calls_to_a_host_may_be_waited_for_and_is_named(build: Callable[..., Stage]) -> None:
    stage = build()
    with contextlib.ExitStack() as slots:
        for _ in range(CALLS_PER_HOST):
            slots.enter_context(stage.tools.hosts._slot('host2', None))
        migration = stage.begin('host2')
        stage.until(lambda: stage.row(migration).waits_for, OBSERVED)
        assert 'for a free call slot of host2, since ' in str(stage.row(migration).waits_for)
        stage.simulation.advance(400)
        assert stage.row(migration).stuck_reason is None
    assert stage.end(migration).status == 'completed'


def test_post_copy_without_last_pages_is_stuck(build: Callable[..., Stage]) -> None:
    stage = build(post_copy=True, dirty_rate=10000.0, auto_converge_after=0)
    stall = stage.host('host1').faults.stall('postcopy', sticky=True)
    migration = stage.begin('host2')
    stage.until_status(migration, 'running')
    stage.database.requests.request_force_complete(stages.context.admin_context(), stage.row(migration), ['running'])
    stage.until(stall.reached.is_set, 120)
    assert 'the last pages to leave host1' in waits_and_is_stuck(stage, migration, 'host1')
    stage.host('host1').faults.clear('postcopy')
    stall.release()
    assert stage.end(migration).status == 'completed'


@pytest.mark.parametrize('name', ['host1', 'host2', 'conductor1'])
@pytest.mark.parametrize('moment', ['preparing', 'queued', 'running'])
def test_a_process_that_can_start_no_thread_for_a_while(build: Callable[..., Stage], name: str, moment: str) -> None:
    stage = build()
    host, phase = {
        'preparing': ('host2', 'pre_live_migration'),
        'queued': ('host1', 'live_migration'),
        'running': ('host1', 'copying'),
    }[moment]
    stall = stage.host(host).faults.stall(phase)
    migration = stage.begin('host2')
    stage.until_status(migration, moment)
    stage.cloud.processes[name].threadless = True
    stall.release()
    stage.simulation.advance(20)
    stage.cloud.processes[name].threadless = False
    assert stage.end(migration, 60).status == 'completed'
    stage.check(migration, 'host2')


def test_conductor_that_can_start_no_thread_for_a_new_migration(build: Callable[..., Stage]) -> None:
    stage = build()
    stage.cloud.processes['conductor1'].threadless = True
    migration = stage.begin('host2')
    stage.simulation.advance(20)
    assert stage.row(migration).in_progress
    stage.cloud.processes['conductor1'].threadless = False
    assert stage.end(migration, 60).status == 'completed'


@pytest.mark.parametrize('moment', ['accepted', 'queued', 'running'])
def test_a_conductor_without_threads_lets_another_go_on(build: Callable[..., Stage], moment: str) -> None:
    stage = build(conductors=2)
    migration = None
    if moment != 'accepted':
        phase = {'queued': 'live_migration', 'running': 'copying'}[moment]
        stall = stage.host('host1').faults.stall(phase)
        migration = stage.begin('host2')
        stage.until_status(migration, moment)
    servers = {one.id: one.server for one in stage.cloud.database.conductors.list()}
    holder = 'conductor1' if migration is None else servers[stage.row(migration).owner]
    stage.cloud.processes[holder].threadless = True
    if migration is None:
        migration = stage.begin('host2')
    else:
        stall.release()
    stage.simulation.advance(180)
    assert stage.row(migration).status == 'completed'
    stage.check(migration, 'host2')
    service = stage.cloud.database.services.list('nova-conductor', holder)[0]
    assert not service.is_up(stage.cloud.database.services.now(), 60), 'a list of services shows who does nothing'
    stage.cloud.processes[holder].threadless = False
    stage.simulation.advance(60)
    service = stage.cloud.database.services.list('nova-conductor', holder)[0]
    assert service.is_up(stage.cloud.database.services.now(), 60)


def test_the_only_conductor_without_threads(build: Callable[..., Stage]) -> None:
    stage = build()
    stage.cloud.processes['conductor1'].threadless = True
    migration = stage.begin('host2')
    stage.simulation.advance(600)
    assert stage.row(migration).in_progress
    stage.cloud.processes['conductor1'].threadless = False
    assert stage.end(migration, 90).status == 'completed'
    stage.check(migration, 'host2')


def test_conductor_without_threads_keeps_its_queues_short(build: Callable[..., Stage]) -> None:
    stage = build()
    stage.simulation.advance(10)
    conductor = stage.cloud.conductors['conductor1']
    stage.cloud.processes['conductor1'].threadless = True
    stage.simulation.advance(200)
    assert sum(pool.waiting for pool in conductor._pools) <= 3
    stage.cloud.processes['conductor1'].threadless = False
    stage.simulation.advance(20)
    assert [pool.waiting for pool in conductor._pools] == [0, 0, 0]


def test_an_unexpected_error_that_does_not_pass(build: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    stage = build()
    migration = stage.accept('host2')
    client = stage.cloud.conductors['conductor1'].tools.placement
    with monkeypatch.context() as patched:
        patched.setattr(type(client), 'get', lambda *args, **rest: {'allocations': 7, 'provider_summaries': []})
        stage.conductor_api.live_migrate(stages.context.admin_context(), migration.uuid)
        why = stage.until_stuck(migration, 60)
    assert 'Conductor conductor1 meets the same unexpected error each time' in why
    assert stage.end(migration).status == 'completed'
    stage.check(migration, 'host2')


@pytest.mark.parametrize('step', ['check_can_live_migrate_source', 'pre_live_migration', 'copying'])
@pytest.mark.parametrize('text', ['a byte \udce4 of no encoding', 'zero \0', 'much ' * 100_000])
def test_any_text_of_a_driver_is_stored(build: Callable[..., Stage], step: str, text: str) -> None:
    stage = build()
    for host in ('host1', 'host2'):
        stage.host(host).faults.fail(step, text, sticky=True)
    migration = stage.begin('host2')
    row = stage.end(migration, 120)
    assert row.status == 'failed'
    assert len(row.failure or '') < 10_000
    (row.failure or '').encode()
    stage.check(migration, 'host1')


def test_host_that_reports_an_impossible_epoch(build: Callable[..., Stage]) -> None:
    stage = build()
    migration = stage.accept('host2')
    runner = stage.cloud.computes['host2']._runner
    admit, high = runner._admit, protocol.Answer(refusal='epoch', seen=2**40, boot_id=runner.boot_id)
    runner._admit = lambda *args: (None, high)
    stage.conductor_api.live_migrate(stages.context.admin_context(), migration.uuid)
    why = stage.until_stuck(migration, 60)
    assert str(2**40) in why
    assert 'restart the compute service there' in why
    runner._admit = admit
    assert stage.end(migration).status == 'completed'
