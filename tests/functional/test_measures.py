# SPDX-License-Identifier: Apache-2.0

"""Metrics show what moves, what waits, and how long it takes. A conductor reads nothing for them."""

import pytest
import webob

from migrator.cmd import api
from migrator.db import slots
from migrator.db.sql import watching
from migrator.runtime import monitor
from tests.functional import migration_requests
from tests.functional.faults import faults
from tests.functional.migration_requests import until
from tests.functional.test_drain import act, drain, ends
from tests.functional.test_slots import INBOUND, all_complete, begin, boot

pytestmark = pytest.mark.simulated(reason='it reads the metrics of a conductor in this process')

LIVE = ['move_allocation', 'check_can_live_migrate_destination', 'check_can_live_migrate_source', 'pre_live_migration']
LIVE += ['live_migration', 'update_instance_host', 'post_live_migration_at_source']
LIVE += ['post_live_migration_at_destination', 'release_source_allocation', 'complete']


def samples(cloud, name, conductor='conductor1'):
    """Return the samples of a conductor's metric that are not 0, by their labels."""
    families = cloud.conductors[conductor].metrics.registry.collect()
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in found if sample.value}


@pytest.mark.cloud(options={INBOUND: 1})
def test_migrations_their_waits_and_their_slots_are_counted_without_a_statement(cloud):
    instances = boot(cloud, 'host1', 'host3')
    begin(cloud, instances, 'host2')
    statements = []
    watching.watch(cloud.database.engine, lambda statement, _values: statements.append(statement))
    statuses = samples(cloud, 'migrator_migrations_in_progress')
    assert statuses == {('live-migration', 'running'): 1, ('live-migration', 'accepted'): 1}
    assert samples(cloud, 'migrator_migrations_waiting') == {('slot',): 1}
    used = samples(cloud, 'migrator_slots_used')
    assert used == {('cluster', ''): 1, ('source', 'host1'): 1, ('inbound', 'host2'): 1}
    assert samples(cloud, 'migrator_slots_limit') == {('inbound',): 1}
    assert statements == []
    assert used == dict(cloud.database.slots.read(slots.Bounds())._taken)
    all_complete(cloud, instances)
    assert samples(cloud, 'migrator_migrations_in_progress') == samples(cloud, 'migrator_slots_used') == {}


def test_each_step_is_measured_from_its_first_try_to_its_end(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    assert samples(cloud, 'migrator_step_seconds_count') == {(step, 'do', 'done'): 1 for step in LIVE}
    started, ended = (cloud.world.effects(effect)[-1].time for effect in ('job started', 'job completed'))
    sums = samples(cloud, 'migrator_step_seconds_sum')
    assert sums['live_migration', 'do', 'done'] == pytest.approx(ended - started, abs=0.5)
    assert sum(sums.values()) < ended - started + 1


def test_downtime_and_throughput_are_those_of_the_hypervisor(cloud):
    threads = cloud.threads_for('host1')
    host = monitor.Monitor('migrator-compute', threads, threads.event())
    driver = cloud.computes['host1'].driver
    driver.on_copied = host.measure_copies(driver.on_copied)
    instance = cloud.boot('one', 'host1', memory_mb=4096, dirty_rate=100)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    states = {(one.host, one.effect): one.time for one in cloud.world.log if one.instance_uuid == instance.uuid}
    stood_still = states['host2', 'running'] - states['host1', 'paused for cut-over']
    value = host.registry.get_sample_value
    assert value('migrator_live_migration_downtime_seconds_sum') == pytest.approx(stood_still)
    assert 0 < stood_still <= cloud.world.hypervisors['host1'].max_downtime
    assert value('migrator_live_migration_bytes_per_second_count') == 1
    (row,) = cloud.database.migrations.list({'instance_uuid': instance.uuid})
    assert row.downtime == pytest.approx(stood_still)
    assert value('migrator_live_migration_bytes_per_second_sum') == pytest.approx(1024 * 2**20, rel=0.01)


def test_step_that_fails_its_undo_and_the_next_attempt_are_counted(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('pre_live_migration')
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    counted = samples(cloud, 'migrator_step_seconds_count')
    assert counted['pre_live_migration', 'do', 'failed'] == counted['pre_live_migration', 'undo', 'done'] == 1
    assert counted['pre_live_migration', 'do', 'done'] == 1
    assert samples(cloud, 'migrator_next_attempts_total') == {(): 1}


@pytest.mark.parametrize(
    ('step', 'next_step'),
    [('pre_live_migration', 'live_migration'), ('live_migration', 'update_instance_host')],
)
def test_step_that_a_killed_conductor_began_is_not_measured(cloud, step, next_step):
    instance = cloud.boot('one', 'host1')
    host, point = {
        'pre_live_migration': ('host2', 'pre_live_migration'),
        'live_migration': ('host1', 'copying'),
    }[step]
    stall = faults(cloud, host).stall(point)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.simulation.advance(1)
    cloud.kill('conductor1')
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(60)
    stall.release()
    cloud.wait()
    counted = samples(cloud, 'migrator_step_seconds_count', 'conductor2')
    assert counted == {(one, 'do', 'done'): 1 for one in LIVE[LIVE.index(next_step) :]}


def test_drains_are_counted_by_status_and_then_by_their_end(cloud):
    boot(cloud, 'host1', 'host1')
    faults(cloud, 'host1').stall('copying', sticky=True)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: samples(cloud, 'migrator_drains') == {('running',): 1})
    assert act(cloud, uuid, 'pause').status_int == 202
    until(cloud, lambda: samples(cloud, 'migrator_drains') == {('paused',): 1})
    assert act(cloud, uuid, 'cancel').status_int == 202
    until(cloud, lambda: samples(cloud, 'migrator_drains') == {('cancelling',): 1})
    migration_requests.go_on(cloud)
    assert ends(cloud, uuid)['status'] == 'cancelled'
    assert samples(cloud, 'migrator_drains') == {}
    assert samples(cloud, 'migrator_drains_ended_total') == {('cancelled',): 1}


def test_requests_with_made_up_values_add_no_series(cloud):
    threads = cloud.threads_for('api')
    service = monitor.Monitor('migrator-api', threads, threads.event())
    app = api.logged(cloud.app, service.time_requests())

    def request_all(value):
        for method, path in (('GET', f'servers/{value}/migrations'), (f'M{value}', 'servers'), ('GET', str(value))):
            request = webob.Request.blank(f'/v2.1/{path}?{value}={value}', method=method)
            request.headers['X-Auth-Token'] = f'admin:{value}'
            with threads.acting():
                request.get_response(app)
        return [sample.labels for family in service.registry.collect() for sample in family.samples]

    first = request_all('first')
    assert {'method': 'other', 'route': 'none', 'code': '404'} in first
    assert [request_all(f'value{number}') for number in range(5)] == [first] * 5
