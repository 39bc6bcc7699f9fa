# SPDX-License-Identifier: Apache-2.0

"""The table of invariants, and clouds without violations."""

import collections

import pytest

from migrator.simulator.invariants import check
from migrator.simulator.invariants.check import When
from migrator.simulator.monitor import Monitor
from migrator.simulator.world import World
from tests.unit.simulator import planting


def test_table_has_every_invariant_and_docstring_states_it():
    # A run judges I29, and the monitor I30.
    assert {one.id for one in check.INVARIANTS} == {f'I{number}' for number in (*range(1, 29), 31)}
    assert max(collections.Counter((one.id, one.when) for one in check.INVARIANTS).values()) == 1
    for one in check.INVARIANTS:
        assert one.function.__doc__.startswith(f'{one.id}, ')


def test_completed_migration_has_no_violation(cloud):
    check.assert_holds(World.of(cloud))


def test_copying_migration_has_no_violation(copying):
    check.assert_holds(World.of(copying), quiet=False)


def test_planted_violations_are_removed(cloud, copying):
    assert planting.found(cloud) == set()
    assert planting.found(copying, quiet=False) == set()


@pytest.mark.parametrize('phase', ['check_can_live_migrate_source', 'pre_live_migration', 'copying', 'cutover'])
def test_rolled_back_migration_has_no_violation(tmp_path, phase):
    with planting.simulated(tmp_path) as cloud:
        monitor = Monitor(cloud)
        instance = cloud.boot('one', 'host1')
        for hypervisor in cloud.world.hypervisors.values():
            hypervisor.faults.fail(phase, sticky=True)
        assert cloud.live_migrate(instance).status_int == 202
        cloud.wait()
        cloud.simulation.run()
        assert cloud.migrations()[0].status == 'failed'
        world = monitor.snapshot()
        monitor.close()
        check.assert_holds(world, seen=monitor.violations)


def test_snapshot_does_not_change_counts(cloud):
    requests, messages, sent = list(cloud.placement.requests), list(cloud.recorder.messages), list(cloud.adapter.sent)
    World.of(cloud)
    assert (cloud.placement.requests, cloud.recorder.messages, cloud.adapter.sent) == (requests, messages, sent)


def test_assert_holds_raises_with_time_unless_invariant_is_allowed(cloud):
    planting.sql(cloud, 'UPDATE instances SET power_state = 4')
    with pytest.raises(check.Broken, match=r'I1 at 100\d\.\d{6}: instance .* is running at host2') as raised:
        check.assert_holds(World.of(cloud))
    assert [one.id for one in raised.value.violations] == ['I1']
    check.assert_holds(World.of(cloud), allowed={'I1'})


def test_history_has_every_request_with_its_response(cloud):
    response = cloud.request('GET', f'/servers/{cloud.instance.uuid}', token='user:demo', version='2.1')
    kept = cloud.history[-1]
    assert (kept.method, kept.version, kept.token, kept.status) == ('GET', '2.1', 'user:demo', response.status_int)
    assert kept.answer['server']['id'] == cloud.instance.uuid
    assert kept.request_id == response.headers['X-OpenStack-Request-Id']


def test_table_has_invariants_of_every_time():
    assert {one.when for one in check.INVARIANTS} == set(When)
