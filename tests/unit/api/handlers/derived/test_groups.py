# SPDX-License-Identifier: Apache-2.0

"""Host aggregates and server groups: the lists are always empty."""

import pytest


def test_administrator_gets_no_aggregates_and_other_users_get_403(world):
    assert world.get('/os-aggregates') == {'aggregates': []}
    world.refuses(world.ask('GET', '/os-aggregates', token='ada:blue'), 403, 'forbidden', 'os-aggregates:index')


@pytest.mark.parametrize('version', ['2.1', '2.80'])
def test_there_are_no_server_groups(world, version):
    for query in ('', '?all_projects=True&limit=5&offset=0'):
        answer = world.ask('GET', f'/os-server-groups{query}', version=version)
        assert answer.json == {'server_groups': []}
    shown = world.ask('GET', '/os-server-groups/11111111-2222-4333-8444-555555555555', version=version)
    world.refuses(shown, 404, 'itemNotFound', 'Instance group 11111111-2222-4333-8444-555555555555 could not be found')


def test_who_may_list_server_groups(roles):
    for role, status in (('none', 403), ('reader', 200), ('admin', 200)):
        assert roles.ask('GET', '/os-server-groups?all_projects=1', token=f'{role}:ada:blue').status_int == status


def test_parameters_of_server_groups_are_those_of_nova(world):
    def ask(query, version='2.80'):
        return world.ask('GET', f'/os-server-groups?{query}', version=version)

    world.refuses(ask('name=a'), 400, 'badRequest', 'all_projects, limit, offset')
    assert ask('name=a', '2.74').status_int == 200
    world.refuses(ask('limit=-1', '2.1'), 400, 'badRequest', 'limit')
    assert ask('limit=1&limit=2').status_int == 200
