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

"""migrator-manage service: who reports, in which state, and which conductor holds a lease."""

from __future__ import annotations


def test_each_service_has_its_host_binary_version_status_state_and_when_it_was_seen(operator):
    operator.cloud.simulation.advance(3)
    rows = operator.rows('service', 'list')
    assert [(row['HOST'], row['BINARY']) for row in rows] == [
        ('host1', 'nova-compute'),
        ('host2', 'nova-compute'),
        ('host3', 'nova-compute'),
        ('conductor1', 'nova-conductor'),
    ]
    for row in rows:
        assert (row['VERSION'], row['STATUS'], row['STATE']) == ('4', 'enabled', 'up')
        assert row['LAST SEEN'].endswith(' s ago')
        assert row['REMARK'] == '-'
    assert [row['LEASE'] == '-' for row in rows] == [True, True, True, False]
    assert rows[-1]['LEASE'].endswith(' s left')


def test_one_that_is_silent_is_down_and_one_that_was_declared_so_says_it(operator):
    cloud = operator.cloud
    cloud.kill('host1')
    (two,) = cloud.database.services.list(host='host2')
    cloud.database.services.update(two.id, forced_down=True, disabled=True, disabled_reason='the fan')
    cloud.simulation.advance(70)
    one, two, three, _conductor = operator.rows('service', 'list')
    assert (one['STATE'], one['STATUS'], one['LAST SEEN']) == ('down', 'enabled', '70 s ago')
    assert (two['STATE'], two['STATUS'], two['REMARK']) == ('down', 'disabled', 'forced down; the fan')
    assert three['STATE'] == 'up'


def test_a_conductor_that_is_dead_has_no_lease_any_more(operator):
    operator.cloud.kill('conductor1')
    operator.cloud.simulation.advance(100)
    (row,) = operator.rows('service', 'list', '--binary', 'nova-conductor')
    assert row['STATE'] == 'down'
    assert row['LEASE'].startswith('ended ')
    (service,) = operator.json('service', 'list', '--host', 'conductor1')['services']
    assert service['lease']['lives'] == 0


def test_two_leases_of_one_name_are_remarked(operator):
    operator.cloud.kill('conductor1')
    operator.cloud.start_conductor('conductor1')
    (row,) = operator.rows('service', 'list', '--host', 'conductor1')
    assert row['REMARK'] == '2 leases: it was killed and is back, or two conductors have this name'
    operator.cloud.simulation.advance(16)
    (row,) = operator.rows('service', 'list', '--host', 'conductor1')
    assert row['REMARK'] == '-'


def test_in_json_it_is_all_there(operator):
    found = operator.json('service', 'list', '--host', 'host2')
    (service,) = found['services']
    boot_id = operator.cloud.computes['host2'].boot_id
    assert {name: service[name] for name in ('host', 'binary', 'status', 'state', 'forced_down', 'boot_id')} == {
        'host': 'host2', 'binary': 'nova-compute', 'status': 'enabled', 'state': 'up', 'forced_down': False,
        'boot_id': boot_id,
    }  # fmt: skip
    assert service['last_seen_up'].startswith('2026-01-01T00:00:')
    assert service['lease'] is None
