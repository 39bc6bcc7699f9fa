# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""The table of invariants; and where there is nothing to find, nothing is found."""

import collections

import pytest

from migrator.testing import invariants
from migrator.testing.invariants import When, World
from migrator.testing.watcher import Watcher
from tests.unit.testing import planting


def test_every_invariant_is_in_the_table_and_states_itself():
    assert {one.id for one in invariants.INVARIANTS} == {f'I{number}' for number in range(1, 23)}
    assert max(collections.Counter((one.id, one.when) for one in invariants.INVARIANTS).values()) == 1
    for one in invariants.INVARIANTS:
        assert one.function.__doc__.startswith(f'{one.id}, ')


def test_after_a_migration_that_completed_nothing_is_wrong(cloud):
    invariants.assert_holds(World.of(cloud))


def test_while_a_migration_copies_nothing_is_wrong(copying):
    invariants.assert_holds(World.of(copying), quiet=False)


def test_what_was_planted_is_put_back(cloud, copying):
    assert planting.found(cloud) == set()
    assert planting.found(copying, quiet=False) == set()


@pytest.mark.parametrize('phase', ['check_can_live_migrate_source', 'pre_live_migration', 'copying', 'cutover'])
def test_after_a_migration_that_was_rolled_back_nothing_is_wrong(tmp_path, phase):
    with planting.simulated(tmp_path) as cloud:
        watcher = Watcher(cloud)
        instance = cloud.boot('one', 'host1')
        for hypervisor in cloud.world.hypervisors.values():
            hypervisor.faults.fail(phase, sticky=True)
        assert cloud.live_migrate(instance).status_int == 202
        cloud.wait()
        cloud.simulation.run()
        assert cloud.migrations()[0].status == 'failed'
        world = watcher.snapshot()
        watcher.close()
        invariants.assert_holds(world, seen=watcher.violations)


def test_reading_a_world_leaves_no_trace(cloud):
    requests, messages, sent = list(cloud.placement.requests), list(cloud.recorder.messages), list(cloud.adapter.sent)
    World.of(cloud)
    assert (cloud.placement.requests, cloud.recorder.messages, cloud.adapter.sent) == (requests, messages, sent)


def test_what_does_not_hold_is_told_with_its_time_and_what_is_allowed_is_not(cloud):
    planting.sql(cloud, 'UPDATE instances SET power_state = 4')
    with pytest.raises(invariants.Broken, match=r'I1 at 100\d\.\d{6}: instance .* is running at host2') as raised:
        invariants.assert_holds(World.of(cloud))
    assert [one.id for one in raised.value.violations] == ['I1']
    invariants.assert_holds(World.of(cloud), allowed={'I1'})


def test_every_request_of_a_client_is_kept_with_its_answer(cloud):
    response = cloud.request('GET', f'/servers/{cloud.instance.uuid}', token='somebody:demo', version='2.1')
    kept = cloud.history[-1]
    assert (kept.method, kept.version, kept.token, kept.status) == ('GET', '2.1', 'somebody:demo', response.status_int)
    assert kept.answer['server']['id'] == cloud.instance.uuid
    assert kept.request_id == response.headers['X-OpenStack-Request-Id']


def test_what_is_kept_for_the_end_and_what_is_always_watched_are_told_apart():
    assert {one.when for one in invariants.INVARIANTS} == set(When)
