# SPDX-License-Identifier: Apache-2.0

"""The availability zones: nova for compute hosts, internal for other services."""

import pytest

from migrator.objects import CONDUCTOR_BINARY, CURRENT_VERSION


@pytest.fixture
def conductor(world):
    world.database.services.report('conductor1', CONDUCTOR_BINARY, CURRENT_VERSION)


def disable(world, *hosts):
    for host in hosts:
        world.database.services.update(world.database.services.get_compute(host).id, disabled=True)


def test_list_has_the_zone_of_compute_hosts_alone(world, conductor):
    nova = {'zoneName': 'nova', 'zoneState': {'available': True}, 'hosts': None}
    assert world.get('/os-availability-zone', token='ada:blue') == {'availabilityZoneInfo': [nova]}


def test_zone_whose_services_are_all_disabled_is_not_available(world, conductor):
    disable(world, 'source', 'dest')
    assert world.get('/os-availability-zone')['availabilityZoneInfo'][0]['zoneState'] == {'available': True}
    disable(world, 'spare')
    nova = {'zoneName': 'nova', 'zoneState': {'available': False}, 'hosts': None}
    assert world.get('/os-availability-zone')['availabilityZoneInfo'] == [nova]
    internal, last = world.get('/os-availability-zone/detail')['availabilityZoneInfo']
    assert (internal['zoneName'], internal['zoneState']) == ('internal', {'available': True})
    assert last == nova


def test_details_have_the_enabled_services_of_each_host(world, conductor):
    disable(world, 'spare')
    world.force_down('dest')
    internal, nova = world.get('/os-availability-zone/detail')['availabilityZoneInfo']
    assert list(internal['hosts']) == ['conductor1']
    assert list(internal['hosts']['conductor1']) == ['nova-conductor']
    seen = {host: found['nova-compute']['available'] for host, found in nova['hosts'].items()}
    assert seen == {'source': True, 'dest': False}
    assert nova['hosts']['source']['nova-compute']['active'] is True
    assert nova['hosts']['source']['nova-compute']['updated_at']


def test_who_may_list_zones(roles):
    for role, status in (('none', 403), ('manager', 403), ('admin', 200)):
        assert roles.ask('GET', '/os-availability-zone', token=f'{role}:ada:blue').status_int == 200
        assert roles.ask('GET', '/os-availability-zone/detail', token=f'{role}:ada:blue').status_int == status
