# SPDX-License-Identifier: Apache-2.0

"""The lists of all migrations and of all hosts."""

import uuid

import pytest

from migrator.db import models
from migrator.objects.difference import Difference
from migrator.objects.drain import Drain, Member
from tests.reasons import stuck_for, waiting_for

MIGRATIONS, HOSTS = '/migrator/v1/migrations', '/migrator/v1/hosts'
DIFFERENCES = '/migrator/v1/differences'


def by_name(world, query=''):
    return {one['name']: one for one in world.get(f'{HOSTS}{query}')['hosts']}


def uuids(world, query=''):
    return [one['uuid'] for one in world.get(f'{MIGRATIONS}{query}')['migrations']]


def test_migration_has_its_guest_its_hosts_and_the_times_of_its_statuses(world):
    guest = world.guest(name='web')
    one = world.migration(guest, status='running', memory_total=4096, **waiting_for('for the broker'))
    (shown,) = world.get(MIGRATIONS)['migrations']
    assert (shown['uuid'], shown['instance_name'], shown['status']) == (one.uuid, 'web', 'running')
    assert (shown['source'], shown['destination'], shown['waits_for']) == ('source', 'dest', 'for the broker')
    assert shown['progress']['memory_total_bytes'] == 4096
    (accepted,) = shown['statuses']
    assert accepted['status'] == 'accepted'
    assert accepted['at'][10] == 'T'
    assert '+' not in accepted['at']


def test_migrations_are_filtered_and_paged(world):
    stuck = world.migration(world.guest(), **stuck_for('both hosts have the guest'))
    runs = world.migration(world.guest())
    ended = world.migration(world.guest(), status='completed')
    assert uuids(world) == [ended.uuid, runs.uuid, stuck.uuid]
    assert uuids(world, '?in_progress=true') == [runs.uuid, stuck.uuid]
    assert uuids(world, '?in_progress=false') == [ended.uuid]
    assert uuids(world, '?stuck=true') == [stuck.uuid]
    assert uuids(world, '?stuck=false') == [ended.uuid, runs.uuid]
    assert uuids(world, f'?instance_uuid={runs.instance_uuid}') == [runs.uuid]
    assert uuids(world, '?host=elsewhere') == []
    page = world.get(f'{MIGRATIONS}?in_progress=true&limit=1')
    (link,) = page['migrations_links']
    assert f'marker={runs.uuid}' in link['href']
    assert 'migrations_links' not in world.get(MIGRATIONS)


def test_hosts_have_their_slots_in_and_out(world):
    for fields in (
        {'status': 'running', 'dest_node': 'dest.example.org'},
        {'status': 'queued', 'dest_node': 'dest.example.org'},
        {'status': 'accepted', 'dest_compute': None},
        {'status': 'accepted', 'dest_compute': 'spare'},  # it has requested this host, and holds no slot of it
        {'status': 'post-migrating', 'dest_node': 'dest.example.org', 'outcome': 'forward'},
        {'status': 'completed', 'dest_node': 'dest.example.org'},
    ):
        world.migration(world.guest(), **fields)
    hosts = by_name(world)
    assert list(hosts) == ['dest', 'source', 'spare']
    assert hosts['source']['out'] == {'running': 1, 'limit': 1, 'prepared': 1, 'waiting': 2}
    assert hosts['dest']['in'] == {'taken': 3, 'bound': None, 'bound_of_drains': 2}
    assert hosts['spare']['in']['taken'] == 0
    assert list(by_name(world, '?busy=true')) == ['dest', 'source']
    assert list(by_name(world, '?busy=false')) == ['spare']


def test_host_shows_its_state_its_bounds_and_its_cleanups(world):
    world.conf.set_override('max_concurrent_inbound_live_migrations', 5)
    world.database.services.update(
        world.database.services.get_compute('source').id, disabled=True, disabled_reason='drain 1'
    )
    world.force_down('dest')
    migration = world.migration(world.guest(), status='failed')
    with world.database.engine.writer() as session:
        for step, why in (('post_live_migration_at_source', None), ('clean', 'the guest may run there')):
            row = {'host': 'spare', 'migration_uuid': migration.uuid, 'instance_uuid': migration.instance_uuid}
            row |= {'step': step, 'reason': 'it was down', 'epoch': 1, 'blocked_because': why}
            session.execute(models.CLEANUPS.insert().values(**row))
    hosts = by_name(world, '?busy=true')
    assert list(hosts) == ['dest', 'source', 'spare']
    assert (hosts['dest']['up'], hosts['dest']['forced_down'], hosts['dest']['in']['bound']) == (False, True, 5)
    assert hosts['spare']['cleanups'] == {'pending': 2, 'blocked': 1}
    disabled = hosts['source']
    assert (disabled['disabled'], disabled['disabled_reason'], disabled['drain']) == (True, 'drain 1', None)


def test_hosts_are_paged_by_name_even_if_the_last_one_was_deleted(world):
    page = world.get(f'{HOSTS}?limit=2')
    assert [one['name'] for one in page['hosts']] == ['dest', 'source']
    assert 'marker=source' in page['hosts_links'][0]['href']
    assert list(by_name(world, '?marker=source')) == ['spare']
    assert list(by_name(world, '?marker=dest2')) == ['source', 'spare']


def test_differences_are_paged_by_name(world):
    found = [
        Difference(instance_uuid=str(uuid.uuid4()), name=name, host='source', kind='moved', seen={'dest': 'running'})
        for name in ('web', 'db')
    ]
    world.database.differences.replace(found)
    page = world.get(f'{DIFFERENCES}?limit=1')
    (shown,) = page['differences']
    assert (shown['name'], shown['kind'], shown['seen']) == ('db', 'moved', {'dest': 'running'})
    assert shown['since'][10] == 'T'
    marker = found[1].instance_uuid
    assert f'marker={marker}' in page['differences_links'][0]['href']
    assert [one['name'] for one in world.get(f'{DIFFERENCES}?marker={marker}')['differences']] == ['web']
    world.refuses(world.ask('GET', f'{DIFFERENCES}?marker=gone'), 400, 'badRequest', 'gone')


@pytest.mark.parametrize('path', [MIGRATIONS, HOSTS, DIFFERENCES])
def test_only_an_administrator_sees_a_list(world, path):
    world.refuses(world.ask('GET', path, token='eve:blue'), 403, 'forbidden', 'migrator:')
    world.refuses(world.ask('GET', f'{path}?colour=blue'), 400, 'badRequest', 'colour')
    world.refuses(world.ask('GET', f'{path}?limit=some'), 400, 'badRequest', 'limit')


@pytest.fixture
def drained(world):
    """A drain of the host source, with five guests of which two have migrations."""
    guests = [world.guest(name=f'guest{number}') for number in range(5)]
    uuid = '11111111-2222-3333-4444-555555555555'
    statuses = ('moved', 'moving', 'blocked', 'waiting', 'waiting')
    members = [
        Member(instance_uuid=guest.uuid, name=guest.name, position=position, status=status)
        for position, (guest, status) in enumerate(zip(guests, statuses, strict=True))
    ]
    drains = world.database.drains
    drains.accept(Drain(uuid=uuid, host='source'))
    drains.adopt('conductor')
    drains.write(drains.get(uuid), {'status': 'running'}, members, [])
    for status in ('failed', 'completed'):
        world.migration(guests[0], status=status, drain=uuid)
    world.migration(guests[1], status='running', drain=uuid)
    world.migration(guests[2], status='failed')
    world.members = f'/migrator/v1/drains/{uuid}/members'
    return world


def test_members_of_a_drain_are_paged_with_the_migrations_of_the_drain(drained):
    page = drained.get(f'{drained.members}?limit=3')
    names = [member['name'] for member in page['members']]
    assert names == ['guest0', 'guest1', 'guest2']
    of_each = [[one['status'] for one in member['migrations']] for member in page['members']]
    assert of_each == [['failed', 'completed'], ['running'], []]
    last = page['members'][-1]['instance_uuid']
    assert f'marker={last}' in page['members_links'][0]['href']
    rest = drained.get(f'{drained.members}?limit=3&marker={last}')
    assert [member['name'] for member in rest['members']] == ['guest3', 'guest4']
    assert 'members_links' not in rest


def test_members_of_a_drain_are_filtered_by_status(drained):
    def names(query):
        return [member['name'] for member in drained.get(f'{drained.members}?{query}')['members']]

    assert names('status=waiting') == ['guest3', 'guest4']
    assert names('ended=true') == ['guest0']
    assert names('ended=false') == ['guest1', 'guest2', 'guest3', 'guest4']
    assert names('ended=false&status=moved') == []


def test_members_of_an_unknown_drain_or_after_an_unknown_marker(drained):
    unknown = drained.members.replace('1111', '9999')
    drained.refuses(drained.ask('GET', unknown), 404, 'itemNotFound', '9999')
    drained.refuses(drained.ask('GET', f'{drained.members}?marker=unregistered'), 400, 'badRequest', 'unregistered')
    drained.refuses(drained.ask('GET', f'{drained.members}?status=lost'), 400, 'badRequest', 'lost', 'waiting')
    drained.refuses(drained.ask('GET', drained.members, token='eve:blue'), 403, 'forbidden')
