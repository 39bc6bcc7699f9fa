# SPDX-License-Identifier: Apache-2.0

"""Tests of three outages: of the broker, of the conductors, of a host. Only the last blames a host."""

from __future__ import annotations

import logging

import pytest

from migrator import exception
from migrator.conductor import broker
from migrator.objects import COMPUTE_BINARY
from migrator.testing.simulation.threads import Simulation

pytestmark = pytest.mark.slow

#: The step of the source when the broker becomes unreachable, or None before the first one.
MOMENTS = {
    'check_can_live_migrate_destination': 'host2',
    'check_can_live_migrate_source': 'host1',
    'pre_live_migration': 'host2',
    'live_migration': 'host1',
    'copying': 'host1',
    'post_live_migration_at_source': 'host1',
}
#: The failure of the broker: it refuses connections, or accepts messages and drops them.
HOW = ['refuse', 'lose']


def away(stage, how):
    stage.cloud.bus.faults = lambda message: how


def back(stage):
    stage.cloud.bus.faults = lambda message: None


def up(stage):
    """Return whether each compute service is up, by the database's clock."""
    services = stage.database.services
    found = services.list(binary=COMPUTE_BINARY)
    return {service.host: service.is_up(services.now(), 30) for service in found}


def waits_for(stage, migration):
    row = stage.row(migration)
    return f'{row.waits_for} {row.stuck_reason} {row.failure}'


@pytest.mark.parametrize('how', HOW)
@pytest.mark.parametrize('moment', [*MOMENTS, None])
def test_broker_away_fails_nothing_and_blames_no_host(build, moment, how):
    stage = build()
    first = None
    if moment is not None:
        stall = stage.host(MOMENTS[moment]).faults.stall(moment)
        first = stage.begin('host2')
        stage.until(stall.reached.is_set)
    away(stage, how)
    if moment is not None:
        stall.release()
    else:
        first = stage.accept('host2')
    reasons = set()
    for _ in range(12):
        stage.simulation.advance(30)
        reasons.add(waits_for(stage, first))
        assert all(up(stage).values()), up(stage)
        assert stage.row(first).in_progress
        assert stage.row(first).stuck_reason is None
    for text in reasons:
        assert '--down' not in text
        assert 'has not answered' not in text
    assert 'conductor1 cannot reach the message broker since ' in waits_for(stage, first)
    back(stage)
    row = stage.end(first, 300)
    assert (row.status, row.waits_for) == ('completed', None)
    stage.check(first, 'host2')
    assert all(up(stage).values())


def test_outage_during_a_copy_is_no_longer_shown_once_it_is_over(build):
    stage = build(dirty_rate=10000.0, auto_converge_after=0)
    first = stage.begin('host2')
    stage.until_status(first, 'running')
    away(stage, 'refuse')
    stage.until(lambda: 'cannot reach the message broker' in waits_for(stage, first), 120)
    back(stage)
    stage.until(lambda: stage.row(first).waits_for is None, 60)
    assert stage.row(first).status == 'running'


def test_request_while_broker_is_away_is_done_when_it_is_back(build):
    stage = build()
    away(stage, 'refuse')
    stage.simulation.advance(60)
    migration = stage.accept('host2')
    stage.simulation.advance(120)
    assert 'cannot reach the message broker' in waits_for(stage, migration)
    back(stage)
    assert stage.end(migration, 120).status == 'completed'


def test_no_live_conductor_leaves_every_host_as_it_was(build):
    stage = build()
    stall = stage.host('host1').faults.stall('copying')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    stage.kill('host3')
    stage.simulation.advance(90)
    assert up(stage) == {'host1': True, 'host2': True, 'host3': False}
    stage.kill('conductor1')
    stage.simulation.advance(600)
    assert up(stage) == {'host1': True, 'host2': True, 'host3': False}
    conductor = stage.database.services.list('nova-conductor', 'conductor1')[0]
    assert not conductor.is_up(stage.database.services.now(), 30)
    stall.release()
    stage.cloud.start_conductor('conductor1')
    for _ in range(20):
        stage.simulation.advance(5)
        assert up(stage) == {'host1': True, 'host2': True, 'host3': False}
    assert stage.end(migration, 120).status == 'completed'


def test_down_host_stays_down_while_broker_is_away(build):
    stage = build()
    stage.simulation.advance(30)
    stage.kill('host3')
    stage.simulation.advance(50)
    assert up(stage)['host3']
    stage.simulation.advance(30)
    assert not up(stage)['host3']
    away(stage, 'lose')
    stage.simulation.advance(300)
    back(stage)
    for _ in range(20):
        stage.simulation.advance(5)
        assert up(stage) == {'host1': True, 'host2': True, 'host3': False}


def test_time_without_broker_does_not_count_against_a_host(build):
    stage = build()
    stage.simulation.advance(100)
    away(stage, 'lose')
    stage.simulation.advance(40)
    stage.kill('host3')
    stage.simulation.advance(40)
    back(stage)
    stage.simulation.advance(50)
    assert up(stage)['host3'], 'the broker has been reachable for 50 s only'
    stage.simulation.advance(40)
    assert not up(stage)['host3']


def test_metrics_distinguish_the_states(build):
    stage = build()
    registry = stage.cloud.conductors['conductor1'].metrics.registry

    def values():
        return tuple(registry.get_sample_value(f'migrator_{name}') for name in ('broker_away_seconds', 'computes_down'))

    stage.simulation.advance(70)
    assert values() == (0, 0)
    stage.kill('host3')
    stage.simulation.advance(80)
    assert values() == (0, 1)
    away(stage, 'lose')
    stage.simulation.advance(100)
    seconds, down = values()
    assert 80 <= seconds <= 105
    assert down == 1
    (conductor,) = stage.database.conductors.list()
    assert conductor.broker_away_since is not None
    back(stage)
    stage.simulation.advance(20)
    assert values() == (0, 1)
    (conductor,) = stage.database.conductors.list()
    assert conductor.broker_away_since is None


def test_paused_conductor_does_not_report_the_broker_away(build):
    stage = build()
    stall = stage.host('host1').faults.stall('copying')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    process = stage.cloud.processes['conductor1']
    stage.simulation.pause(process)
    stage.simulation.advance(25)
    stage.simulation.resume(process)
    for _ in range(20):
        stage.simulation.advance(1)
        assert 'broker' not in waits_for(stage, migration)
        assert all(up(stage).values())


def test_outage_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger='migrator')
    with Simulation() as simulation:
        placement = broker.Outage('Placement', simulation.process('conductor'))
        placement.on_result(None)
        for _ in range(3):
            placement.on_result(exception.PlacementUnreachable(reason='no route'))
        simulation.advance(42)
        placement.on_result(None)
        placement.on_result(None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ('WARNING', 'Waiting for Placement: Placement is not reachable: no route'),
        ('INFO', 'No longer waiting for Placement, which answers again after 42 s'),
    ]
