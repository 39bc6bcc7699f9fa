# SPDX-License-Identifier: Apache-2.0

"""Expected times and places in the queue, through REST."""

import datetime
import json

import pytest

from tests.functional import migration_requests
from tests.functional.faults import faults
from tests.functional.migration_requests import refused, until
from tests.functional.test_drain import DRAINS, drain, ends, show

pytestmark = [
    pytest.mark.simulated(reason='it lets single seconds pass'),
    # A guest of 640 MiB takes ten seconds.
    pytest.mark.cloud(hosts=4, link=64.0),
]


def at(text):
    return datetime.datetime.fromisoformat(text.removesuffix('+00:00')).replace(tzinfo=datetime.UTC)


def seconds(cloud, band):
    """Return in how many seconds something is expected, in half of the cases."""
    return round((at(band['p50']) - cloud.database.drains.now()).total_seconds())


def host(cloud, name='host1'):
    response = cloud.request('GET', f'/migrator/v1/hosts/{name}')
    assert response.status_int == 200, response.text
    return response.json['host']


def migration(cloud, uuid):
    response = cloud.request('GET', f'/migrator/v1/migrations/{uuid}')
    assert response.status_int == 200, response.text
    return response.json['migration']


def test_drain_shows_when_each_guest_leaves_once_enough_is_recorded(cloud):
    for number in range(6):
        cloud.boot(f'guest{number}', 'host1', memory_mb=640)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: show(cloud, uuid)['guests']['moving'] == 2)
    early = show(cloud, uuid)
    assert early['expected']['end'] is None
    assert 'Fewer than 3 live migrations' in early['expected']['reason']
    assert [one['place'] for one in early['members']] == [None, 1, 2, 3, 4, 5]
    assert early['members'][3]['waits_for'] == '3rd in the queue of host1'
    until(cloud, lambda: show(cloud, uuid)['guests']['moved'] == 3)
    shown = show(cloud, uuid)
    assert [one['place'] for one in shown['members']][4:] == [1, 2]
    assert [seconds(cloud, one['expected']['start']) for one in shown['members'][4:]] == [10, 20]
    assert [seconds(cloud, one['expected']['end']) for one in shown['members'][4:]] == [20, 30]
    assert shown['expected']['start'] is None
    assert seconds(cloud, shown['expected']['end']) == 30
    ended = ends(cloud, uuid)
    assert abs(at(ended['ended_at']) - at(shown['expected']['end']['p50'])) < datetime.timedelta(seconds=10)
    assert ended['expected'] == {'start': None, 'end': None, 'reason': 'It has ended: completed.'}


def test_host_and_migration_show_the_same_line(cloud):
    instances = [cloud.boot(f'guest{number}', 'host1', memory_mb=640) for number in range(3)]
    faults(cloud, 'host1').stall('copying', instance_uuid=instances[0].uuid, sticky=True)
    for instance in instances:
        assert cloud.live_migrate(instance).status_int == 202
    until(cloud, lambda: [one['position'] for one in host(cloud)['migrations']] == [None, 1, 2])
    shown = host(cloud)
    assert (shown['up'], shown['limit'], shown['inbound'], shown['cleanups']) == (True, 1, [], [])
    assert [one['instance_name'] for one in shown['migrations']] == ['guest0', 'guest1', 'guest2']
    third = migration(cloud, cloud.migrations(instances[2])[0].uuid)
    assert (third['position'], third['waits_for']) == (2, '2nd in the queue of host1')
    assert 'Fewer than 3' in third['expected']['reason']
    assert {step['step'] for step in third['steps']} > {'move_allocation', 'pre_live_migration'}
    destination = third['destination']
    assert third['uuid'] in host(cloud, destination)['inbound']
    migration_requests.go_on(cloud)
    cloud.wait()
    assert migration(cloud, third['uuid'])['expected']['reason'] == 'It has ended: completed.'
    assert host(cloud)['migrations'] == []


def test_unknown_migration_or_host_returns_404_and_a_member_of_a_project_403(cloud):
    refused(cloud.request('GET', f'/migrator/v1/migrations/{cloud.new_uuid()}'), 404)
    refused(cloud.request('GET', '/migrator/v1/hosts/nowhere'), 404, 'nowhere')
    for path in ('hosts/host1', f'migrations/{cloud.new_uuid()}'):
        refused(cloud.request('GET', f'/migrator/v1/{path}', token='ada:blue'), 403)


def test_commands_show_places_and_expected_times(cloud, operator):
    for number in range(6):
        cloud.boot(f'guest{number}', 'host1', memory_mb=640)
    cloud.boot('other', 'host2', memory_mb=1280)
    uuid = drain(cloud)['uuid']
    until(cloud, lambda: show(cloud, uuid)['guests']['moved'] == 4)
    status, text = operator('--json', 'drain', 'show', uuid)
    shown = json.loads(text)
    assert (status, [one['place'] for one in shown['members']]) == (0, [None] * 5 + [1])
    assert seconds(cloud, shown['expected']['end']) == 20
    text = operator('drain', 'show', uuid)[1]
    assert 'It is expected to end at 2026-01-01 00:01:00, and in four of five cases before ' in text
    (row,) = cloud.migrations(cloud.database.instances.get(shown['members'][5]['instance_uuid']))
    listed = json.loads(operator('--json', 'migration', 'list', '--in-progress')[1])['migrations']
    assert [(one['instance_name'], one['position']) for one in listed] == [('guest5', 1), ('guest4', None)]
    assert seconds(cloud, listed[0]['expected']['end']) == 20
    text = operator('migration', 'show', row.uuid)[1]
    assert '2026-01-01 00:00:50, and in four of five cases before ' in text
    ends(cloud, uuid)
    plan = cloud.request('POST', DRAINS, {'host': 'host2', 'dry_run': True}).json['plan']
    seconds_of = {guest['name']: guest['expected_seconds'] for guest in plan['guests']}
    assert seconds_of['other'] == {'p50': 20, 'p80': 20}
    assert plan['expected_seconds']['p50'] == 10 * (len(seconds_of) + 1)


def test_calibration_compares_the_recorded_ends_with_the_real_ones(cloud, operator):
    for number in range(6):
        cloud.boot(f'guest{number}', 'host1', memory_mb=640)
    uuid = drain(cloud)['uuid']
    assert operator('drain', 'calibration')[1] == 'No expected end of a guest that has moved was recorded.\n'
    ends(cloud, uuid)
    ended = {one.instance_uuid: one.updated_at for one in cloud.migrations()}
    assert {one.instance_uuid: one.ended_at for one in cloud.database.drains.read_members(uuid)} == ended
    found = json.loads(operator('--json', 'drain', 'calibration')[1])
    # The first ones were requested before enough was recorded.
    assert [one['drain'] for one in found['drains']] == [uuid]
    assert 1 <= found['samples'] <= 4
    assert found['median_error'] < 0.2
    assert f'{found["samples"]}' in operator('drain', 'calibration')[1].splitlines()[-1]
    faults(cloud, 'host2').fail('cutover', sticky=True)
    cloud.boot('bad', 'host2', memory_mb=640)
    ends(cloud, drain(cloud, 'host2', max_attempts=1)['uuid'])
    after = json.loads(operator('--json', 'drain', 'calibration', '--drains', '1')[1])
    assert after['samples'] == 0
