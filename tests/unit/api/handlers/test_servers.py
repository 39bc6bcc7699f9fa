# SPDX-License-Identifier: Apache-2.0

"""The lists of servers, and one of them."""

import re

import pytest

from migrator import exception
from migrator.api.handlers import servers


def names(document):
    return [server['name'] for server in document['servers']]


def test_the_newest_is_listed_first(world):
    for number in range(3):
        world.guest(f'vm{number}')
        world.threads.seconds += 1
    assert names(world.get('/servers')) == ['vm2', 'vm1', 'vm0']


def test_a_page_is_never_longer_than_max_limit(world):
    world.conf.set_override('max_limit', 2, group='api')
    for number in range(3):
        world.guest(f'vm{number}')
    page = world.get('/servers?limit=1000')
    assert len(page['servers']) == 2
    assert page['servers_links'][0]['rel'] == 'next'
    assert len(world.get('/servers')['servers']) == 2


def test_limit_0_is_an_empty_page_without_a_next(world):
    world.guest()
    assert world.get('/servers?limit=0') == {'servers': []}


@pytest.mark.parametrize(
    ('query', 'words'),
    [
        ('limit=-1', ['limit', '-1']),
        ('limit=many', ['limit', 'many', 'a whole number']),
        ('marker=unknown', ['marker [unknown] not found']),
        ('name=unknown&marker=unknown', ['marker [unknown] not found']),
        ('name=*', ['name', 'regular expression']),
        ('name=(a%2B)%2B', ['name', 'nested']),
        ('name=a*a*a*a*a*a*b', ['name', 'repetitions']),
        ('name=a{4294967296}', ['name', 'a{4294967296}', 'a regular expression']),
        ('name=a{99999999999999999999}', ['name', 'a regular expression']),
        ('ip=a{4294967296}', ['ip', 'a regular expression']),
        ('name=a%3F' + 'a%3F' * 60 + 'b', ['name', 'optional']),
        ('name=%00', ['name', 'U+0000', 'Leave the character out']),
        ('name=%ff', ['UTF-8']),
        ('changes-since=yesterday', ['changes-since', 'ISO 8601']),
        ('changes-since=0001-01-01T00:00:00%2B23:00', ['changes-since']),
        ('changes-since=2026-01-02T00:00:00Z&changes-before=2026-01-01T00:00:00Z', ['less than or equal']),
        ('sort_key=colour', ['sort_key', 'colour']),
        ('sort_key=uuid&sort_dir=up', ['sort_dir', 'up', 'asc or desc']),
        ('sort_dir=asc&sort_dir=asc', ['sort_dir']),
        ('sort_key=uuid&sort_dir=asc&sort_dir=asc', ['sort_dir']),
        ('status=NONSENSE', ['Invalid status value', 'NONSENSE']),
        ('block_device_mapping=x', ['Invalid filter field: block_device_mapping']),
        ('hostname=(', ['hostname', 'a regular expression']),
        ('flavor=', ['flavor', 'a regular expression']),
        ('all_tenants=perhaps', ['all_tenants', 'perhaps']),
        ('locked=perhaps', ['locked', 'perhaps']),
        ('colour=red', ['colour', 'unexpected']),
    ],
)
def test_invalid_parameter_returns_400_with_its_name(world, query, words):
    world.refuses(world.ask('GET', f'/servers?{query}'), 400, 'badRequest', *words)


@pytest.mark.parametrize(
    ('version', 'query'),
    [
        ('2.74', 'colour=red'),
        ('2.74', 'sort_key=vcpus&sort_key=uuid&sort_dir=asc&sort_dir=desc'),
        ('2.72', 'sort_key=locked'),
    ],
)
def test_below_2_75_an_unknown_parameter_or_sort_key_is_ignored(world, version, query):
    guests = sorted(world.guest().uuid for _ in range(2))[::-1]
    found = [server['id'] for server in world.get(f'/servers?{query}', version=version)['servers']]
    assert sorted(found)[::-1] == guests
    assert found == guests or 'uuid' not in query


def test_below_2_38_an_unknown_status_finds_nothing(world):
    world.guest()
    assert world.get('/servers?status=NONSENSE', version='2.37') == {'servers': []}


@pytest.mark.parametrize(
    ('query', 'found'),
    [
        ('name=web', ['web2', 'web1']),
        ('name=^web1$', ['web1']),
        ('name=^b', []),
        ('host=dest', ['db']),
        ('node=dest.example.org', ['db']),
        ('node=^dest', ['db']),
        ('host=source&name=1', ['web1']),
        ('status=ACTIVE', ['web2', 'web1']),
        ('status=active', ['web2', 'web1']),
        ('status=MIGRATING', ['web2']),
        ('status=PAUSED', ['db']),
        ('status=PAUSED&status=ACTIVE', ['db', 'web2', 'web1']),
        ('status=SHUTOFF', []),
        ('status=REBUILD', []),
        ('status=NONSENSE&status=PAUSED', ['db']),
        ('status=REBOOT', []),
        ('vm_state=paused', ['db']),
        ('task_state=migrating', ['web2']),
        ('power_state=3', ['db']),
        ('power_state=on', []),
        ('locked_by=own', ['web1']),
        ('created_at=2026-01-01 00:00:0[01]', ['web2', 'web1']),
        ('launched_at=1999', []),
        ('locked=True', ['web1']),
        ('locked=False', ['db', 'web2']),
        ('flavor=m2', ['db']),
        ('user_id=bob', ['db']),
        ('availability_zone=nova', ['db', 'web2', 'web1']),
        ('availability_zone=other', []),
        ('hostname=web1', ['web1']),
        ('ip=10.0', []),
        ('ip6=fe80', []),
        ('image=cirros', []),
        ('image=', ['db', 'web2', 'web1']),
        ('key_name=mine', []),
        ('description=x', []),
        ('tags=a', []),
        ('not-tags=a', ['db', 'web2', 'web1']),
        ('deleted=False', ['db', 'web2', 'web1']),
        ('deleted=zz', ['db', 'web2', 'web1']),
        ('soft_deleted=True', ['db', 'web2', 'web1']),
        ('changes-since=2027-01-01&changes-since=2026-01-01T00:00:02Z', ['db', 'web2']),
        ('deleted=True', []),
        ('deleted=True&name=web', []),
        ('changes-since=2026-01-01T00:00:02Z', ['db', 'web2']),
        ('changes-before=2026-01-01T00:00:00Z', ['web1']),
        ('sort_key=display_name&sort_dir=asc', ['db', 'web1', 'web2']),
        ('sort_key=locked_by&sort_key=display_name&sort_dir=desc&sort_dir=asc', ['web1', 'db', 'web2']),
        ('sort_key=display_name&sort_dir=asc&limit=1', ['db']),
        ('sort_key=key_name', ['db', 'web2', 'web1']),
        ('sort_key=key_name&sort_dir=asc', ['web1', 'web2', 'db']),
        ('sort_dir=asc', ['web1', 'web2', 'db']),
        ('sort_dir=desc', ['db', 'web2', 'web1']),
        ('sort_key=locked', ['web1', 'db', 'web2']),
        ('sort_key=locked_by&sort_key=display_name&sort_dir=asc', ['db', 'web2', 'web1']),
    ],
)
def test_an_administrator_finds_by(world, query, found):
    world.guest('web1', locked_by='owner')
    world.threads.seconds += 1
    second = world.guest('web2')
    world.threads.seconds += 1
    world.guest(
        'db', vm_state='paused', power_state=3, host='dest', user_id='bob', flavor=second.flavor.replace(name='m2')
    )
    world.migration(second)
    assert names(world.get(f'/servers/detail?{query}')) == found


def test_a_sorted_list_goes_on_after_its_marker(world):
    guests = [world.guest(name) for name in ('b', 'a', 'c')]
    page = world.get(f'/servers?sort_key=display_name&sort_dir=asc&marker={guests[1].uuid}')
    assert names(page) == ['b', 'c']


@pytest.mark.parametrize('path', ['/servers?', '/servers/detail?', '/servers?name=.&', '/servers?sort_key=uuid&'])
def test_only_administrator_can_use_another_projects_server_as_marker(world, path):
    mine, theirs = world.guest(project='blue'), world.guest(project='red')
    world.threads.seconds += 1
    response = world.ask('GET', f'{path}marker={theirs.uuid}', token='ada:blue')
    world.refuses(response, 400, 'badRequest', f'marker [{theirs.uuid}] not found')
    assert names(world.get(f'{path}marker={mine.uuid}', token='ada:blue')) == []
    assert world.ask('GET', f'{path}all_tenants=1&marker={theirs.uuid}').status_int == 200


@pytest.mark.parametrize('key', ['host', 'node'])
@pytest.mark.parametrize('path', ['/servers', '/servers/detail'])
def test_a_list_is_sorted_by_host_for_administrators_alone_as_in_nova(world, path, key):
    for name, host in (('b', 'source'), ('a', 'dest')):
        world.guest(name, host=host)
    world.guest(project='blue')
    query = f'{path}?sort_key=display_name&sort_key={key}&sort_dir=asc'
    world.refuses(world.ask('GET', query, token='ada:blue'), 403, 'forbidden', 'Only administrators', key)
    assert names(world.get(f'{path}?sort_key={key}&sort_dir=asc')) == ['a', 'b']


def test_a_tenants_filter_by_host_is_ignored_as_in_nova(world):
    world.guest(project='blue', host='dest')
    assert len(world.get('/servers?host=nowhere', token='ada:blue')['servers']) == 1


@pytest.mark.parametrize(('version', 'found'), [('2.72', 1), ('2.73', 0)])
def test_a_tenants_filter_counts_from_its_version(world, version, found):
    world.guest(project='blue')
    assert len(world.get('/servers?locked=True', version=version, token='ada:blue')['servers']) == found


@pytest.mark.parametrize(
    ('query', 'first'),
    [('power_state=4', 83), ('vm_state=error', 83), ('user_id=bob', 83), ('key_name=x', 83), ('hostname=other', 90)],
)
def test_more_filters_count_for_tenants_from_2_83_and_2_90(world, query, first):
    world.guest(project='blue')
    found = [
        len(world.get(f'/servers?{query}', version=f'2.{minor}', token='ada:blue')['servers'])
        for minor in (first - 1, first)
    ]
    assert found == [1, 0]


def test_a_list_holds_the_own_project_only_even_for_an_administrator(world):
    world.guest('mine')
    world.guest('theirs', project='blue')
    assert names(world.get('/servers')) == ['mine']
    assert names(world.get('/servers', token='ada:blue')) == ['theirs']


def test_project_counts_only_with_all_tenants(world):
    world.guest('mine')
    world.guest('theirs', project='blue')
    for key in ('project_id', 'tenant_id'):
        for path in (f'/servers?{key}=blue', f'/servers/detail?{key}=blue', f'/servers?{key}=blue&all_tenants=0'):
            assert names(world.get(path)) == ['mine'], path
        assert names(world.get(f'/servers?{key}=blue&all_tenants=1')) == ['theirs']


def test_an_administrator_may_look_at_all_projects_or_at_another(world):
    world.guest('mine')
    world.guest('theirs', project='blue')
    assert names(world.get('/servers?all_tenants=1')) == ['theirs', 'mine']
    assert names(world.get('/servers?all_tenants=')) == ['theirs', 'mine']
    assert names(world.get('/servers?all_tenants=True&project_id=blue')) == ['theirs']
    assert names(world.get('/servers?all_tenants=0')) == ['mine']


def test_all_tenants_is_a_403_for_others(world):
    for path in ('/servers', '/servers/detail'):
        response = world.ask('GET', f'{path}?all_tenants=1', token='ada:blue')
        world.refuses(response, 403, 'forbidden', 'get_all_tenants')


def test_without_a_role_in_the_project_there_is_nothing_to_see(roles):
    guest = roles.guest(project='blue')
    for path, rule in (('/servers', 'index'), ('/servers/detail', 'detail'), (f'/servers/{guest.uuid}', 'show')):
        roles.refuses(roles.ask('GET', path, token='none:eve:blue'), 403, 'forbidden', f'servers:{rule}')
        assert roles.ask('GET', path, token='reader:eve:blue').status_int == 200


def test_another_projects_server_is_a_404_and_an_administrator_sees_it(world):
    guest = world.guest(project='blue')
    world.refuses(world.ask('GET', f'/servers/{guest.uuid}', token='eve:red'), 404, 'itemNotFound', guest.uuid)
    assert world.get(f'/servers/{guest.uuid}')['server']['name'] == 'vm'


def test_a_server_is_not_found_by_its_name(world):
    world.guest('vm')
    world.refuses(world.ask('GET', '/servers/vm'), 404, 'itemNotFound', 'vm')


@pytest.mark.parametrize(
    'text',
    [
        'web', '^web-[0-9]+$', 'a.b', r'web\.example\.org', '(web|db)[0-9]', '.*a.*b', 'a{2}', r'\(\*\+\{', '[*+{|]+',
        '[]*+]x', r'[\]*+(]', '(web)+', '(web-?1)?', '(?i)WEB', '(?:a)(?=b)', '(?:ab)+', '(?P<x>ab)+', '',
        '.*?a.*?b', 'web-?[0-9]?', '|'.join(['vm'] * 30), f'^({"|".join(["vm"] * 30)})$', '(?i:web)+', '[#x]+ ?x',
    ],
)  # fmt: skip
def test_common_patterns_are_accepted(text):
    assert isinstance(servers.safe_pattern('name', text), re.Pattern)


@pytest.mark.parametrize(
    'text',
    [
        '(a+)+$', '(a*)*', '((a{1,9}){1,9}){1,9}', '(a|a)*$', '(.+){20}', r'(.*)\1', '(?P<x>a)(?P=x)', 'a*a*a*b',
        '(a+b?)+$', '((a+))+', '([a-z]+[a-z]?)*', '(?:a?)+', '(a)?(?(1)b|c)', '((ab|a)b?){9}',
        'a?' * 30 + 'b', '(a|a)' * 30 + 'b', '}?' * 30 + 'b', '(?x)(a+) +b', '(?x:(a+) +)b', '(a+)(?#comment)+b',
        '(?x)#)', '(?xi)a #(',
    ],
)  # fmt: skip
def test_patterns_with_exponential_matching_are_refused(text):
    with pytest.raises(exception.ValidationError) as caught:
        servers.safe_pattern('name', text)
    assert 'name' in caught.value.message
    assert text in caught.value.message
