# SPDX-License-Identifier: Apache-2.0

"""The monitor finds violations that are over at the end of a run, and does not affect counts."""

import pytest

from migrator.db import slots
from migrator.simulator.monitor import Monitor
from migrator.simulator.monitoring import silence
from tests.unit.simulator import planting

pytestmark = pytest.mark.slow


@pytest.fixture
def watched(tmp_path):
    with planting.simulated(tmp_path) as cloud:
        cloud.instance = cloud.boot('one', 'host1')
        cloud.monitor = Monitor(cloud)
        try:
            yield cloud
        finally:
            cloud.monitor.close()


def seen(cloud):
    return [violation.id for violation in cloud.monitor.violations]


def test_monitor_looks_after_every_event_and_is_not_counted(watched):
    boot_requests = len(watched.placement.requests)
    assert watched.live_migrate(watched.instance).status_int == 202
    watched.wait()
    events = len(watched.recorder.messages) + len(watched.world.log)
    assert watched.monitor.looks > events
    assert watched.monitor.violations == []
    # These are the requests of one migration. The monitor has added none.
    assert [one.method for one in watched.placement.requests[boot_requests:]] == ['GET', 'GET', 'POST', 'PUT']
    assert any('completed' in line for line in watched.monitor.logs)


def test_violation_that_is_over_at_end_is_found_with_its_time(watched):
    watched.simulation.advance(2.5)
    other = watched.world.hypervisors['host3']
    other.spawn(watched.instance)
    watched.simulation.advance(1)
    other.delete(watched.instance.uuid)
    watched.world.violations.clear()
    assert planting.found(watched) == set()
    assert [(one.id, one.at) for one in watched.monitor.violations if one.id == 'I1'] == [('I1', 1002.5)]
    assert {'I1', 'I5'} == set(seen(watched))


def test_changed_outcome_is_found(watched):
    watched.world.hypervisors['host1'].faults.stall('post_live_migration_at_source')
    assert watched.live_migrate(watched.instance).status_int == 202
    watched.simulation.advance(5)
    assert watched.migrations()[0].outcome == 'forward'
    planting.sql(watched, "UPDATE migrations SET outcome = 'back'")
    watched.monitor.look()
    assert seen(watched) == [], 'no service has committed anything'
    # The monitor reads only tables to which a service has written.
    watched.database.instances.update(watched.instance.uuid, locked_by=None)
    assert seen(watched) == []
    watched.database.migrations.note_progress(watched.migrations()[0], {'memory_total': 1})
    assert {'I14', 'I2'} == set(seen(watched))


def test_wait_for_a_slot_that_is_free_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(silence, 'SILENCE', 20.0)
    monkeypatch.setattr(slots.Slots, 'due', lambda *_args: iter(()))
    options = {'max_concurrent_inbound_live_migrations': 1, 'conductor.guests_interval': 0}
    with planting.simulated(tmp_path, options=options) as cloud:
        guests = [cloud.boot(name, 'host1') for name in ('one', 'other')]
        cloud.monitor = Monitor(cloud)
        hypervisor = cloud.world.hypervisors['host1']
        hypervisor.set_link(1.0)
        for guest in guests:
            assert cloud.live_migrate(guest, 'host2').status_int == 202
        cloud.simulation.advance(30)
        assert cloud.migrations(guests[1])[0].waits_for == 'for an inbound slot at host2: 1 of 1'
        assert seen(cloud) == [], 'the slot is taken'
        hypervisor.set_link(1000.0)
        cloud.simulation.run_until(lambda: cloud.migrations(guests[0])[0].ended)
        cloud.simulation.advance(10)
        assert seen(cloud) == []
        cloud.simulation.advance(20)
        assert seen(cloud) == ['I7']
        cloud.monitor.close()


def test_start_of_job_out_of_order_is_found(watched):
    watched.world.hypervisors['host1'].faults.stall('copying')
    others = [watched.boot(name, 'host1') for name in ('two', 'three')]
    for instance in (watched.instance, *others):
        assert watched.live_migrate(instance, host='host2').status_int == 202
        watched.simulation.advance(1)
    hypervisor = watched.world.hypervisors['host1']
    assert seen(watched) == []
    with watched.world.lock:
        # The third one gets the slot of the first, although the second was requested earlier.
        hypervisor.jobs[others[1].uuid] = hypervisor.jobs.pop(watched.instance.uuid)
        watched.world.record('host1', 'job started', others[1].uuid, 'host1/1')
    assert seen(watched) == ['I10']
    assert 'which was requested earlier' in watched.monitor.violations[0].what


def test_slot_is_kept_after_limit_is_lowered_and_further_job_is_found(watched):
    compute, hypervisor = watched.computes['host1'], watched.world.hypervisors['host1']
    watched.set_option('host1', 'max_concurrent_live_migrations', 2)
    for _each in range(3):
        hypervisor.faults.stall('copying')
    others = [watched.boot(name, 'host1') for name in ('two', 'three')]
    assert watched.live_migrate(watched.instance, host='host2').status_int == 202
    watched.simulation.advance(1)
    live_migration = compute.driver.live_migration

    def lowered(*args, **kwargs):
        # At this point the migration has a slot and no job yet.
        watched.set_option('host1', 'max_concurrent_live_migrations', 1)
        return live_migration(*args, **kwargs)

    compute.driver.live_migration = lowered
    for instance in others:
        assert watched.live_migrate(instance, host='host2').status_int == 202
        watched.simulation.advance(1)
    assert set(hypervisor.jobs) == {watched.instance.uuid, others[0].uuid}
    assert seen(watched) == []
    compute._live_migration_executor._running -= 2
    watched.set_option('host1', 'max_concurrent_live_migrations', 1)
    watched.simulation.advance(1)
    assert len(hypervisor.jobs) == 3
    assert seen(watched) == ['I10']


def test_stop_that_takes_too_long_is_found(watched):
    compute = watched.computes['host1']
    compute.cleanup_host()
    assert seen(watched) == []
    watched.processes['host1'] = watched.simulation.process('host1')
    compute = watched.start_compute('host1')
    compute._served.stop = lambda: None
    compute.registration.stop = lambda: watched.world.threads.sleep(2.5)
    compute.cleanup_host()
    assert seen(watched) == ['I13']


def obstruct(cloud, what):
    if what == 'broker':
        cloud.bus.away = 'lose'
    elif what == 'hypervisor':
        cloud.world.hypervisors['host1'].faults.stall('live_migration_abort', sticky=True)
    elif what is not None:
        cloud.kill(what)


@pytest.mark.parametrize(
    ('obstacle', 'expected'),
    [(None, ['I9']), ('broker', []), ('hypervisor', []), ('host1', []), ('conductor1', [])],
)
def test_guest_with_abort_request_that_its_driver_never_gets_is_found(watched, obstacle, expected):
    watched.world.hypervisors['host1'].faults.stall('copying', sticky=True)
    assert watched.live_migrate(watched.instance, host='host2').status_int == 202
    watched.simulation.advance(5)
    watched.bus.faults = lambda message: 'lose' if message.method == 'live_migration_abort' else None
    row = watched.migrations()[0]
    path = f'/servers/{watched.instance.uuid}/migrations/{row.id}'
    assert watched.request('DELETE', path).status_int == 202
    obstruct(watched, obstacle)
    watched.simulation.advance(140)
    assert seen(watched) == []
    watched.simulation.advance(20)
    watched.monitor.look()
    assert seen(watched) == expected


def test_monitor_of_cloud_without_simulation_raises(cloud):
    simulation, cloud.simulation = cloud.simulation, None
    try:
        with pytest.raises(ValueError, match='is not simulated'):
            Monitor(cloud)
    finally:
        cloud.simulation = simulation
