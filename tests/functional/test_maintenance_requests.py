# SPDX-License-Identifier: Apache-2.0

"""Requests of maintenances that are refused, and plans."""

import pytest

from tests.functional.migration_requests import refused
from tests.functional.test_maintenance import MAINTENANCES, requested

MISSING = '00000000-0000-4000-8000-00000000dead'


def ask(cloud, *hosts, **more):
    return cloud.request('POST', MAINTENANCES, {'hosts': [*hosts], 'returned_by': 'restart', **more})


def test_plan_shows_each_host_with_its_moves_and_changes_nothing(cloud):
    for number in range(3):
        cloud.boot(f'guest{number}', 'host1')
    plan = requested(ask(cloud, 'host1', 'host2', dry_run=True))['plan']
    assert (plan['fits'], plan['guests'], plan['moves'], plan['most_parallel']) == (True, 3, 3, 2)
    assert {one['host']: one['moves'] for one in plan['hosts']} == {'host1': 3, 'host2': 0}
    assert cloud.request('GET', MAINTENANCES).json == {'maintenances': []}


def test_plan_names_the_guests_that_cannot_move(cloud):
    locked = cloud.boot('locked', 'host1')
    cloud.request('POST', f'/servers/{locked.uuid}/action', {'lock': None})
    (host,) = requested(ask(cloud, 'host1', dry_run=True))['plan']['hosts']
    assert [(one['instance_uuid'], host['cannot_move_count']) for one in host['cannot_move']] == [(locked.uuid, 1)]
    assert host['moves'] == 0
    assert 'locked' in host['cannot_move'][0]['reason']


def test_plan_says_why_no_host_would_be_begun(cloud):
    (service,) = cloud.database.services.list('nova-compute', 'host3')
    requested(cloud.request('PUT', f'/os-services/{service.uuid}', {'status': 'disabled'}))
    rack = {'groups': {'rack': ['host1', 'host3']}, 'per_group': 1}
    plan = requested(ask(cloud, 'host1', dry_run=True, **rack))['plan']
    assert plan['waits_for'] == 'At most 1 of rack may be out of service: host3 (it is disabled).'
    assert requested(ask(cloud, 'host1', dry_run=True))['plan']['waits_for'] is None


@pytest.mark.parametrize(
    ('hosts', 'more', 'words'),
    [
        ([], {}, 'hosts'),
        (['host1', 'host1'], {}, 'different'),
        (['host9'], {}, 'host9'),
        (['host1'], {'parallel': 0}, 'parallel'),
        (['host1'], {'window': 'tonight'}, 'window'),
        (['host1'], {'groups': {'rack': ['host1']}}, 'per_group is missing'),
        (['host1'], {'groups': {'a': ['host1'], 'b': ['host1']}, 'per_group': 1}, 'is in a and in b'),
        (['host1'], {'reserve': {'GOLD': 1}}, 'no host has GOLD'),
        (['host1'], {'deadline': '2001-01-01T00:00:00Z'}, 'has passed'),
        (['host1'], {'drain': {'destinations': ['host9']}}, 'host9'),
        (['host1'], {'drain': {'reason': 'another'}}, 'reason'),
        (['host1'], {'settle': 'long'}, 'settle'),
        (['host1'], {'drain': {'order': 'priority'}}, 'priorities'),
        (['host1'], {'drain': {'order': 'priority', 'priorities': {MISSING: 1}}}, MISSING),
        (['host1'], {'drain': {'destinations': ['host1']}}, 'is the only one'),
        (['host1'], {'window': '22:00-06:00 localtime'}, 'window'),
    ],
)
def test_request_that_is_wrong_names_its_field(cloud, hosts, more, words):
    refused(ask(cloud, *hosts, **more), 400, words)
    assert cloud.request('GET', MAINTENANCES).json == {'maintenances': []}


@pytest.mark.simulated(reason='it sets the state of a guest in the database')
def test_guests_that_are_shut_off_have_to_be_decided_about(cloud):
    off = cloud.boot('off', 'host1')
    cloud.database.instances.update(off.uuid, vm_state='stopped')
    refused(ask(cloud, 'host1'), 400, f'off ({off.uuid}) on host1', 'Give move, or stay')
    requested(ask(cloud, 'host1', stopped='stay'), 202)


def test_a_maintenance_is_found_by_its_host_and_by_the_beginning_of_its_uuid(cloud):
    made = requested(ask(cloud, 'host1', reason='kernel', reserve={'VCPU': 1}, drain={'parallel': 2}), 202)
    uuid = made['maintenance']['uuid']
    assert made['maintenance']['drain'] == {'parallel': 2}
    for name in ('host1', uuid[:8], uuid.upper()):
        assert requested(cloud.request('GET', f'{MAINTENANCES}/{name}'))['maintenance']['uuid'] == uuid
    refused(cloud.request('GET', f'{MAINTENANCES}/host2'), 404, 'Host host2 has no maintenance')
    refused(cloud.request('GET', f'{MAINTENANCES}/{MISSING}'), 404, MISSING)
    assert [one['uuid'] for one in cloud.request('GET', f'{MAINTENANCES}?host=host1').json['maintenances']] == [uuid]
    assert cloud.request('GET', f'{MAINTENANCES}?host=host2').json['maintenances'] == []
    for dry_run in (True, False):
        refused(ask(cloud, 'host2', 'host1', dry_run=dry_run), 409, f'Host host1 is in maintenance {uuid}')


def test_actions_that_do_not_fit_are_refused_with_what_to_do(cloud):
    uuid = requested(ask(cloud, 'host1'), 202)['maintenance']['uuid']

    def act(**action):
        return cloud.request('POST', f'{MAINTENANCES}/{uuid}/action', action)

    refused(act(done={'host': 'host1', 'claim': MISSING}), 409, 'no work is in progress')
    refused(act(done={'host': 'host1'}), 400, 'claim')
    refused(act(retry={'host': 'host1'}), 409, 'only a host that has failed can be retried')
    refused(act(begin={'host': 'host2'}), 409, 'name one of its 1 hosts')
    refused(act(finish=None), 400, 'finish')
    assert requested(act(pause=None), 202)['maintenance']['status'] == 'paused'
    assert requested(act(cancel=None), 202)['maintenance']['status'] in ('cancelling', 'cancelled')
    kinds = [one['kind'] for one in cloud.request('GET', f'{MAINTENANCES}/{uuid}/events').json['events']]
    assert kinds.count('request') == 2


def test_rules_of_each_action_are_its_own(cloud):
    uuid = requested(ask(cloud, 'host1'), 202)['maintenance']['uuid']
    for method, path, body in (
        ('GET', MAINTENANCES, None),
        ('GET', f'{MAINTENANCES}/{uuid}', None),
        ('POST', MAINTENANCES, {'hosts': ['host1']}),
        ('POST', f'{MAINTENANCES}/{uuid}/action', {'begin': {'host': 'host1'}}),
        ('POST', f'{MAINTENANCES}/action', {'purge': {'before': '2001-01-01T00:00:00Z'}}),
    ):
        refused(cloud.request(method, path, body, token='ada:shop'), 403, 'migrator:maintenances:')
