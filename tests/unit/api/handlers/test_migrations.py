# SPDX-License-Identifier: Apache-2.0

"""GET /os-migrations, version by version."""

import uuid

import pytest

from migrator.objects import instance


def listed(world, query='', version='2.80', token='admin'):
    return world.get(f'/os-migrations{query}', version, token)['migrations']


def ids(found):
    return [one['id'] for one in found]


@pytest.fixture
def three(world):
    """Ended, then running to another host, then an evacuation: one second after another."""
    made = []
    for name, status, more in (
        ('one', 'completed', {}),
        ('two', 'running', {'dest_compute': 'spare', 'project_id': 'blue', 'user_id': 'bob'}),
        ('three', 'accepted', {'migration_type': 'evacuation'}),
    ):
        made.append(world.migration(world.guest(name), status, **more))
        world.threads.seconds += 1
    return made


def test_live_migration_has_the_number_of_its_guests_flavor(world):
    one, two = (world.migration(world.guest(flavor=instance.Flavor(name=name))) for name in ('m1', 'm1'))
    other = world.migration(world.guest(flavor=instance.Flavor(name='m2')), 'completed')
    evacuated = world.migration(world.guest(), 'done', migration_type='evacuation')
    world.database.instances.delete(gone := world.migration(world.guest(), 'completed').instance_uuid)
    found = {found['instance_uuid']: found for found in listed(world)}
    numbers = {uuid: each['old_instance_type_id'] for uuid, each in found.items()}
    assert numbers == {uuid: each['new_instance_type_id'] for uuid, each in found.items()}
    assert numbers[one.instance_uuid] == numbers[two.instance_uuid] == instance.Flavor(name='m1').number
    assert numbers[other.instance_uuid] == instance.Flavor(name='m2').number != instance.Flavor(name='m1').number
    assert numbers[evacuated.instance_uuid] is None  # as in nova
    assert numbers[gone] == instance.Flavor(name='m1').number


def test_only_a_live_migration_in_progress_has_links(world, three):
    found = listed(world, version='2.23')
    where = f'servers/{three[1].instance_uuid}/migrations/{three[1].id}'
    assert ['links' in one for one in found] == [False, True, False]
    assert found[1]['links'] == [
        {'rel': 'self', 'href': f'http://api.test/v2.1/{where}'},
        {'rel': 'bookmark', 'href': f'http://api.test/{where}'},
    ]


def test_the_newest_comes_first(world, three):
    assert ids(listed(world)) == [3, 2, 1]


@pytest.mark.parametrize(
    ('query', 'found'),
    [
        ('?status=running', [2]),
        ('?status=&migration_type=&instance_uuid=', [3, 2, 1]),
        ('?migration_type=evacuation', [3]),
        ('?host=spare', [2]),
        ('?host=source', [3, 2, 1]),
        ('?source_compute=spare', []),
        ('?hidden=true', []),
        ('?hidden=0', [3, 2, 1]),
        ('?project_id=blue', [2]),
        ('?user_id=bob', [2]),
        ('?changes-since=2026-01-01T00:00:01Z', [3, 2]),
        ('?changes-before=2026-01-01T00:00:01Z', [2, 1]),
        ('?changes-since=2026-01-01T00:00:01Z&changes-before=2026-01-01T00:00:01Z', [2]),
    ],
)
def test_a_list_is_filtered_by(world, three, query, found):
    assert ids(listed(world, query)) == found


def test_a_list_is_filtered_by_server(world, three):
    assert ids(listed(world, f'?instance_uuid={three[0].instance_uuid}')) == [1]


def test_hidden_rows_are_left_out(world, three):
    world.move(three[0].uuid, hidden=True)
    assert ids(listed(world)) == [3, 2]
    assert ids(listed(world, '?hidden=True')) == [1]


def test_limit_0_is_an_empty_page(world, three):
    assert world.get('/os-migrations?limit=0') == {'migrations': []}


def test_page_is_limited_by_max_limit_from_2_59_on(world, three):
    world.conf.set_override('max_limit', 2, group='api')
    assert ids(listed(world, '?limit=1000')) == [3, 2]
    assert ids(listed(world)) == [3, 2]
    assert ids(listed(world, version='2.58')) == [3, 2, 1]


@pytest.mark.parametrize(
    ('version', 'query', 'words'),
    [
        ('2.59', 'limit=-1', ['limit']),
        ('2.59', 'limit=x', ['limit', 'a whole number']),
        ('2.59', 'marker=1', ['marker [1] not found']),
        ('2.59', f'marker={uuid.UUID(int=7)}', [f'marker [{uuid.UUID(int=7)}] not found']),
        ('2.59', 'changes-since=x', ['changes-since']),
        ('2.59', 'changes-since=2026-01-01&changes-since=2026-01-01', ['changes-since', 'one value']),
        ('2.59', 'changes-before=2026-01-01', ['changes-before', 'unexpected']),
        ('2.59', 'colour=red', ['colour', 'unexpected']),
        ('2.66', 'changes-since=2026-01-02&changes-before=2026-01-01', ['less than or equal']),
        ('2.79', 'project_id=blue', ['project_id', 'unexpected']),
        ('2.79', 'user_id=bob', ['user_id', 'unexpected']),
        ('2.59', 'limit=1&limit=2', ['limit', 'one value']),
        ('2.59', 'marker=x&marker=y', ['marker', 'one value']),
        ('2.80', 'user_id=ada&user_id=bob', ['user_id', 'one value']),
        ('2.80', 'project_id=red&project_id=blue', ['project_id', 'one value']),
    ],
)
def test_a_parameter_that_the_version_does_not_have_is_a_400(world, version, query, words):
    world.refuses(world.ask('GET', f'/os-migrations?{query}', version=version), 400, 'badRequest', *words)


@pytest.mark.parametrize('query', ['?hidden=maybe', '?hidden=', '?hidden=false'])
def test_hidden_that_is_not_true_means_false_as_in_nova(world, three, query):
    assert ids(listed(world, query)) == [3, 2, 1]
    assert listed(world, '?hidden=yes') == []


def test_below_2_59_unknown_parameter_is_ignored(world, three):
    query = '?limit=1&marker=x&changes-since=2030-01-01&colour=red&project_id=blue'
    assert ids(listed(world, query, '2.58')) == [3, 2, 1]


def test_a_manager_sees_the_own_project_without_hosts(roles):
    roles.migration(roles.guest(project='blue'))
    roles.migration(roles.guest(project='red'))
    (found,) = listed(roles, token='manager:eve:blue')
    assert found['project_id'] == 'blue'
    assert [found[name] for name in ('source_compute', 'source_node', 'dest_compute', 'dest_node', 'dest_host')] == [
        None
    ] * 5
    assert len(listed(roles, token='admin:root:x')) == 2


def test_manager_cannot_use_another_projects_migration_as_marker(roles):
    mine, theirs = (roles.migration(roles.guest(project=project)) for project in ('blue', 'red'))
    response = roles.ask('GET', f'/os-migrations?marker={theirs.uuid}', token='manager:eve:blue')
    roles.refuses(response, 400, 'badRequest', f'marker [{theirs.uuid}] not found')
    assert listed(roles, f'?marker={mine.uuid}', token='manager:eve:blue') == []
    assert len(listed(roles, f'?marker={theirs.uuid}', token='admin:root:x')) == 1


def test_a_manager_may_name_neither_another_project_nor_a_host(roles):
    for query, rule in (('project_id=red', 'all_projects'), ('host=source', ':host'), ('source_compute=x', ':host')):
        response = roles.ask('GET', f'/os-migrations?{query}', token='manager:eve:blue')
        roles.refuses(response, 403, 'forbidden', rule)


def test_a_member_may_not_list_them(roles):
    roles.refuses(roles.ask('GET', '/os-migrations', token='member:eve:blue'), 403, 'forbidden', 'os-migrations:index')


def test_query_with_too_many_parameters_or_values_returns_400(world):
    for query in ('&'.join(['a'] * 101), '&'.join(f'name={number}' for number in range(11))):
        response = world.ask('GET', f'/servers?{query}', version='2.80')
        assert response.status_int == 400
        assert 'send at most' in response.json['badRequest']['message']
