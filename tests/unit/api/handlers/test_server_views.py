# SPDX-License-Identifier: Apache-2.0

"""The fields of a server, version by version."""

import datetime
import hashlib

import pytest

from migrator.objects import instance


def show(world, guest, version='2.80', token='admin'):
    return world.get(f'/servers/{guest.uuid}', version, token)['server']


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'status'),
    [
        ('active', None, 'ACTIVE'),
        ('active', 'migrating', 'MIGRATING'),
        ('paused', None, 'PAUSED'),
        ('paused', 'migrating', 'MIGRATING'),
        ('error', None, 'ERROR'),
        ('error', 'rebuilding', 'REBUILD'),
        ('active', 'rebuilding', 'REBUILD'),
        ('stopped', None, 'SHUTOFF'),
        ('stopped', 'migrating', 'SHUTOFF'),
        ('nonsense', None, 'UNKNOWN'),
    ],
)
def test_the_status_follows_vm_state_and_task_state(world, vm_state, task_state, status):
    guest = world.guest(vm_state=vm_state, task_state=task_state)
    server = show(world, guest)
    assert server['status'] == status
    assert (server['OS-EXT-STS:vm_state'], server['OS-EXT-STS:task_state']) == (vm_state, task_state)
    assert server['OS-EXT-STS:power_state'] == 1


@pytest.mark.parametrize(
    ('first', 'field', 'value'),
    [
        (3, 'OS-EXT-SRV-ATTR:hostname', 'vm'),
        (3, 'OS-EXT-SRV-ATTR:launch_index', 0),
        (9, 'locked', True),
        (16, 'host_status', 'UP'),
        (19, 'description', None),
        (26, 'tags', []),
        (63, 'trusted_image_certificates', None),
        (71, 'server_groups', []),
        (73, 'locked_reason', 'mine'),
    ],
)
def test_a_field_is_there_from_its_version_on_and_not_before(world, first, field, value):
    guest = world.guest(locked_by='owner', locked_reason='mine')
    assert field not in show(world, guest, f'2.{first - 1}')
    assert show(world, guest, f'2.{first}')[field] == value
    assert show(world, guest)[field] == value


def test_progress_is_the_part_of_the_memory_that_is_copied(world):
    still, moving, moved = world.guest('still'), world.guest('moving'), world.guest('moved')
    one, _ = world.migration(moving), world.migration(moved, 'completed', memory_total=100, memory_remaining=0)
    assert show(world, moving)['progress'] == 0
    world.move(one.uuid, memory_total=3000, memory_remaining=1000)
    assert show(world, moving)['progress'] == 67
    found = {one['id']: one['progress'] for one in world.get('/servers/detail')['servers']}
    assert found == {still.uuid: 0, moving.uuid: 67, moved.uuid: 0}


def test_server_groups_are_of_one_server_only(world):
    world.guest()
    assert 'server_groups' not in world.get('/servers/detail')['servers'][0]


def test_the_flavor_is_a_link_below_2_47_and_embedded_from_there(world):
    flavor = instance.Flavor(
        name='m1', vcpus=2, memory_mb=1024, root_gb=10, ephemeral_gb=1, swap=512, extra_specs={'hw:cpu': 'x'}
    )
    guest = world.guest(flavor=flavor)
    below = show(world, guest, '2.46')['flavor']
    assert below['id'] == 'm1'
    assert below['links'] == [{'rel': 'bookmark', 'href': 'http://api.test/flavors/m1'}]
    assert show(world, guest, '2.47')['flavor'] == {
        'original_name': 'm1', 'vcpus': 2, 'ram': 1024, 'disk': 10, 'ephemeral': 1, 'swap': 512,
        'extra_specs': {'hw:cpu': 'x'},
    }  # fmt: skip


def test_an_administrator_sees_where_it_is_and_others_do_not(world):
    guest = world.guest(project='blue')
    server = show(world, guest)
    assert server['OS-EXT-SRV-ATTR:host'] == 'source'
    assert server['OS-EXT-SRV-ATTR:hypervisor_hostname'] == 'source.example.org'
    assert server['OS-EXT-SRV-ATTR:instance_name'] == f'instance-{guest.id:08x}'
    seen = world.ask('GET', f'/servers/{guest.uuid}', token='ada:blue')
    assert 'source' not in seen.text
    assert 'host_status' not in seen.json['server']
    assert not [field for field in seen.json['server'] if field.startswith('OS-EXT-SRV-ATTR')]


def test_the_host_id_is_novas_hash_of_project_and_host(world):
    guest = world.guest(project='blue')
    expected = hashlib.sha224(b'bluesource').hexdigest()
    assert show(world, guest, token='ada:blue')['hostId'] == expected


@pytest.mark.parametrize(
    ('changes', 'seconds', 'status'),
    [
        ({}, 0, 'UP'),
        ({}, 61, 'UP'),
        ({'down_since': datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}, 61, 'UNKNOWN'),
        ({'disabled': True}, 0, 'MAINTENANCE'),
        ({'forced_down': True}, 0, 'DOWN'),
    ],
)
def test_host_status_is_that_of_the_service(world, changes, seconds, status):
    guest = world.guest()
    if changes:
        world.database.services.update(world.database.services.get_compute('source').id, **changes)
    world.threads.seconds += seconds
    assert show(world, guest)['host_status'] == status


def test_a_guest_on_a_host_without_a_service_has_status_unknown(world):
    assert show(world, world.guest(host='gone'))['host_status'] == 'UNKNOWN'


def test_times_are_written_as_nova_writes_them(world):
    moment = datetime.datetime(2026, 1, 31, 13, 0, 0, 250, tzinfo=datetime.UTC)
    server = show(world, world.guest(launched_at=moment))
    assert server['created'] == '2026-01-01T00:00:00Z'
    assert server['updated'] == '2026-01-01T00:00:00Z'
    assert server['OS-SRV-USG:launched_at'] == '2026-01-31T13:00:00.000250'


def test_unsupported_field_has_novas_empty_value(world):
    server = show(world, world.guest())
    empty = {
        'addresses': {}, 'image': '', 'metadata': {}, 'key_name': None, 'accessIPv4': '', 'accessIPv6': '',
        'config_drive': '', 'os-extended-volumes:volumes_attached': [], 'OS-SRV-USG:terminated_at': None,
        'OS-DCF:diskConfig': 'MANUAL', 'progress': 0,
    }  # fmt: skip
    assert {name: server[name] for name in empty} == empty


def test_links_lead_back_to_the_server(world):
    guest = world.guest()
    for document in (show(world, guest), world.get('/servers')['servers'][0]):
        assert document['links'] == [
            {'rel': 'self', 'href': f'http://api.test/v2.1/servers/{guest.uuid}'},
            {'rel': 'bookmark', 'href': f'http://api.test/servers/{guest.uuid}'},
        ]


@pytest.mark.parametrize(('name', 'hostname'), [('Web 1', 'web-1'), ('übung', 'bung'), ('--a--', 'a')])
def test_a_hostname_has_only_what_hostnames_have(world, name, hostname):
    assert world.guest(name).hostname == hostname


def test_a_name_without_any_letter_becomes_the_uuid(world):
    guest = world.guest('???')
    assert guest.hostname == f'server-{guest.uuid}'


def test_hostname_is_for_all_users_from_2_90(world):
    guest = world.guest('Web 1', project='blue')
    shown = [world.get(f'/servers/{guest.uuid}', version, 'ada:blue')['server'] for version in ('2.89', '2.90')]
    assert [server.get('OS-EXT-SRV-ATTR:hostname') for server in shown] == [None, 'web-1']
    assert 'OS-EXT-SRV-ATTR:host' not in shown[1]


def test_one_server_refuses_unknown_parameters_from_2_102(world):
    path = f'/servers/{world.guest().uuid}?colour=red'
    assert world.get(path, '2.101')['server']['scheduler_hints'] == {}
    world.refuses(world.ask('GET', path, version='2.102'), 400, 'badRequest', 'colour', 'these are: none')
