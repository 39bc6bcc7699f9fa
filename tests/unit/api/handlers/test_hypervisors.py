# SPDX-License-Identifier: Apache-2.0

"""The hypervisors, version by version."""

import json

import pytest
import sqlalchemy as sa

from migrator.db import models

UNKNOWN = '5f3b1c5e-9a53-4c5e-8f5b-0c6f1d0e7a11'


def listed(world, query='', version='2.80', detail=True):
    return world.get(f'/os-hypervisors{"/detail" if detail else ""}{query}', version)['hypervisors']


def test_used_and_free_amounts_come_from_the_guests_on_the_host(world):
    world.guest('one')
    world.migration(world.guest('two'))
    world.guest('elsewhere', host='dest')
    source, _dest, spare = listed(world)
    assert source['hypervisor_hostname'] == 'source.example.org'
    amounts = {
        'vcpus': 8, 'vcpus_used': 4, 'memory_mb': 16384, 'memory_mb_used': 2048, 'free_ram_mb': 14336,
        'local_gb': 100, 'local_gb_used': 20, 'free_disk_gb': 80, 'disk_available_least': 80, 'running_vms': 2,
        'current_workload': 1,
    }  # fmt: skip
    assert {name: source[name] for name in amounts} == amounts
    assert spare['vcpus_used'] == spare['running_vms'] == 0


def test_statistics_are_the_sum(world):
    world.guest()
    found = world.get('/os-hypervisors/statistics')['hypervisor_statistics']
    assert (found['count'], found['vcpus'], found['vcpus_used'], found['running_vms']) == (3, 24, 2, 1)


@pytest.mark.parametrize(('version', 'kind'), [('2.27', str), ('2.28', dict)])
def test_cpu_info_is_text_and_from_2_28_an_object(world, version, kind):
    found = listed(world, version=version)[0]['cpu_info']
    assert isinstance(found, kind)
    assert (json.loads(found) if kind is str else found) == {'model': 'fake'}


def test_ids_are_numbers_and_from_2_53_uuids(world):
    node = world.database.services.list_nodes()[0]
    service = world.database.services.get_compute('source')
    assert [one['id'] for one in listed(world, version='2.52')] == [1, 2, 3]
    assert listed(world, version='2.52')[0]['service']['id'] == service.id
    assert listed(world, version='2.53')[0]['id'] == node.uuid
    assert listed(world, version='2.53')[0]['service']['id'] == service.uuid
    assert world.get(f'/os-hypervisors/{node.id}', '2.52')['hypervisor']['id'] == node.id
    assert world.get(f'/os-hypervisors/{node.uuid}', '2.53')['hypervisor']['id'] == node.uuid
    for asked, version in ((node.uuid, '2.52'), (UNKNOWN, '2.53'), ('99', '2.52'), ('x', '2.1')):
        response = world.ask('GET', f'/os-hypervisors/{asked}', version=version)
        world.refuses(response, 404, 'itemNotFound', str(asked))
    response = world.ask('GET', f'/os-hypervisors/{node.id}', version='2.53')
    world.refuses(response, 400, 'badRequest', f'Invalid uuid {node.id}')


def test_state_and_status_are_the_services(world):
    world.database.services.update(world.database.services.get_compute('dest').id, disabled=True, forced_down=True)
    assert [(one['state'], one['status']) for one in listed(world)] == [
        ('up', 'enabled'), ('down', 'disabled'), ('up', 'enabled'),
    ]  # fmt: skip


@pytest.mark.parametrize('version', ['2.33', '2.53', '2.80'])
def test_pages_follow_their_links_to_the_end(world, version):
    seen, path = [], '/os-hypervisors/detail?limit=2'
    while path:
        page = world.get(path, version)
        seen += [one['hypervisor_hostname'] for one in page['hypervisors']]
        links = page.get('hypervisors_links', [])
        path = links[0]['href'].split('/v2.1')[1] if links else None
    assert seen == ['source.example.org', 'dest.example.org', 'spare.example.org']


@pytest.mark.parametrize(
    ('version', 'query', 'words'),
    [
        ('2.33', 'limit=x', ['limit']),
        ('2.33', 'marker=99', ['marker [99] not found']),
        ('2.53', 'marker=1', ['marker [1] not found']),
        ('2.53', 'with_servers=perhaps', ['with_servers', 'true or false']),
        ('2.53', 'hypervisor_hostname_pattern=s&limit=1', ['Paging']),
        ('2.53', 'colour=red', ['colour']),
        ('2.53', 'limit=1&limit=2', ['limit', 'one value']),
        ('2.53', 'marker=x&marker=y', ['marker', 'one value']),
        ('2.53', 'hypervisor_hostname_pattern=a%2Fb', ['hypervisor_hostname_pattern', 'a part of a name']),
    ],
)
def test_invalid_parameter_returns_400(world, version, query, words):
    for path in ('', '/detail'):
        response = world.ask('GET', f'/os-hypervisors{path}?{query}', version=version)
        world.refuses(response, 400, 'badRequest', *words)


def test_one_hypervisor_refuses_unknown_parameters_from_2_53(world):
    node = world.database.services.list_nodes()[0]
    response = world.ask('GET', f'/os-hypervisors/{node.uuid}?colour=red', version='2.53')
    world.refuses(response, 400, 'badRequest', 'colour')
    assert world.get(f'/os-hypervisors/{node.id}?colour=red', '2.52')


def test_list_from_2_53_filters_by_part_of_name_and_shows_servers(world):
    guest = world.guest()
    found = listed(world, '?hypervisor_hostname_pattern=s&with_servers=true', detail=False)
    assert [one['hypervisor_hostname'] for one in found][:2] == ['source.example.org', 'dest.example.org']
    assert found[0]['servers'] == [{'name': 'vm', 'uuid': guest.uuid}]
    assert found[1]['servers'] == []
    assert 'servers' not in listed(world, '?with_servers=true', '2.74', detail=False)[1]
    shown = world.get(f'/os-hypervisors/{found[0]["id"]}?with_servers=true')['hypervisor']
    assert shown['servers'] == found[0]['servers']
    response = world.ask('GET', '/os-hypervisors?hypervisor_hostname_pattern=nowhere')
    world.refuses(response, 404, 'itemNotFound', 'nowhere')


def test_below_2_53_separate_urls_search_and_list_servers(world):
    guest = world.guest()
    (found,) = world.get('/os-hypervisors/sour/search', '2.52')['hypervisors']
    assert found['hypervisor_hostname'] == 'source.example.org'
    (found,) = world.get('/os-hypervisors/sour/servers', '2.52')['hypervisors']
    assert found['servers'] == [{'name': 'vm', 'uuid': guest.uuid}]
    world.refuses(world.ask('GET', '/os-hypervisors/nowhere/search', version='2.52'), 404, 'itemNotFound', 'nowhere')
    world.refuses(world.ask('GET', '/os-hypervisors/sour/search', version='2.53'), 404, 'itemNotFound', '2.52')


@pytest.mark.parametrize('version', ['2.1', '2.52', '2.53', '2.80'])
def test_uptime_is_what_the_host_reports(world, version):
    node = world.database.services.list_nodes()[0]
    id_ = node.uuid if version in ('2.53', '2.80') else node.id
    answer = world.ask('GET', f'/os-hypervisors/{id_}/uptime', version=version)
    assert answer.json['hypervisor'] == {
        'id': id_, 'hypervisor_hostname': 'source.example.org', 'state': 'up', 'status': 'enabled',
        'uptime': world.conductor.uptime,
    }  # fmt: skip
    assert world.conductor.calls == [('get_host_uptime', 'source')]


def test_uptime_of_a_host_that_is_down_returns_400_as_in_nova(world):
    world.force_down('source')
    node = world.database.services.list_nodes()[0]
    path = f'/os-hypervisors/{node.uuid}/uptime'
    world.refuses(world.ask('GET', path), 400, 'badRequest', 'Compute service of source is unavailable at this time')
    assert world.conductor.calls == []


def test_uptime_that_the_driver_does_not_know_returns_501(world):
    world.conductor.uptime = None
    node = world.database.services.list_nodes()[0]
    world.refuses(world.ask('GET', f'/os-hypervisors/{node.uuid}/uptime'), 501, 'notImplemented', 'uptime')


def test_from_2_88_hypervisors_have_an_uptime_and_no_figures_of_use(world):
    node = world.database.services.list_nodes()[0]
    (shown, *_) = listed(world, version='2.88')
    alone = world.get(f'/os-hypervisors/{node.uuid}', '2.88')['hypervisor']
    assert (shown.pop('uptime'), alone.pop('uptime')) == (None, world.conductor.uptime)
    assert shown == alone
    assert shown.keys() == {
        'id', 'hypervisor_hostname', 'state', 'status', 'hypervisor_type', 'hypervisor_version', 'host_ip', 'service',
    }  # fmt: skip
    for path in ('/statistics', f'/{node.uuid}/uptime'):
        response = world.ask('GET', f'/os-hypervisors{path}', version='2.88')
        assert (response.status_int, world.ask('GET', f'/os-hypervisors{path}', version='2.87').status_int != 404) == (
            404,
            True,
        )


def test_hypervisor_without_service_is_down(world):
    with world.database.engine.writer() as session:
        session.execute(sa.delete(models.SERVICES).where(models.SERVICES.c.host == 'source'))
    assert listed(world)[0]['state'] == 'down'
    assert listed(world)[0]['service']['host'] == 'source'


def test_caller_other_than_administrator_gets_403(world):
    node = world.database.services.list_nodes()[0]
    for path, version in (
        ('', '2.80'), ('/detail', '2.80'), ('/statistics', '2.80'), (f'/{node.uuid}', '2.80'),
        (f'/{node.uuid}/uptime', '2.80'), ('/s/search', '2.52'), ('/s/servers', '2.52'),
    ):  # fmt: skip
        response = world.ask('GET', f'/os-hypervisors{path}', version=version, token='ada:blue')
        world.refuses(response, 403, 'forbidden', 'os-hypervisors')
