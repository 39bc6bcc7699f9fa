# SPDX-License-Identifier: Apache-2.0
"""The table of invariants; and where there is nothing to find, nothing is found."""

import collections

import pytest

from migrator.simulator.invariants import check
from migrator.simulator.invariants.check import When
from migrator.simulator.monitor import Monitor
from migrator.simulator.world import World
from tests.unit.simulator import planting


def test_every_invariant_is_in_the_table_and_states_itself():
    assert {one.id for one in check.INVARIANTS} == {f'I{number}' for number in range(1, 23)}
    assert max(collections.Counter((one.id, one.when) for one in check.INVARIANTS).values()) == 1
    for one in check.INVARIANTS:
        assert one.function.__doc__.startswith(f'{one.id}, ')


def test_after_a_migration_that_completed_nothing_is_wrong(cloud):
    check.assert_holds(World.of(cloud))


def test_while_a_migration_copies_nothing_is_wrong(copying):
    check.assert_holds(World.of(copying), quiet=False)


def test_what_was_planted_is_put_back(cloud, copying):
    assert planting.found(cloud) == set()
    assert planting.found(copying, quiet=False) == set()


@pytest.mark.parametrize('phase', ['check_can_live_migrate_source', 'pre_live_migration', 'copying', 'cutover'])
def test_after_a_migration_that_was_rolled_back_nothing_is_wrong(tmp_path, phase):
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


def test_reading_a_world_leaves_no_trace(cloud):
    requests, messages, sent = list(cloud.placement.requests), list(cloud.recorder.messages), list(cloud.adapter.sent)
    World.of(cloud)
    assert (cloud.placement.requests, cloud.recorder.messages, cloud.adapter.sent) == (requests, messages, sent)


def test_what_does_not_hold_is_told_with_its_time_and_what_is_allowed_is_not(cloud):
    planting.sql(cloud, 'UPDATE instances SET power_state = 4')
    with pytest.raises(check.Broken, match=r'I1 at 100\d\.\d{6}: instance .* is running at host2') as raised:
        check.assert_holds(World.of(cloud))
    assert [one.id for one in raised.value.violations] == ['I1']
    check.assert_holds(World.of(cloud), allowed={'I1'})


def test_every_request_of_a_client_is_kept_with_its_answer(cloud):
    response = cloud.request('GET', f'/servers/{cloud.instance.uuid}', token='somebody:demo', version='2.1')
    kept = cloud.history[-1]
    assert (kept.method, kept.version, kept.token, kept.status) == ('GET', '2.1', 'somebody:demo', response.status_int)
    assert kept.answer['server']['id'] == cloud.instance.uuid
    assert kept.request_id == response.headers['X-OpenStack-Request-Id']


def test_what_is_kept_for_the_end_and_what_is_always_watched_are_told_apart():
    assert {one.when for one in check.INVARIANTS} == set(When)
