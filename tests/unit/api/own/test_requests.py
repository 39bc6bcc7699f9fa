# SPDX-License-Identifier: Apache-2.0

"""What all URLs below ``/migrator/v1`` do alike with a request."""

import uuid

import pytest

from migrator.objects.drain import Drain, Member

ROOT = '/migrator/v1'


@pytest.fixture
def drain(world):
    one = Drain(uuid=str(uuid.uuid4()), host='source')
    world.database.drains.accept(one)
    return one


def spellings(text):
    return (text.upper(), text.replace('-', ''), f'{{{text}}}')


def test_uuid_in_a_path_has_any_of_its_spellings(world, drain):
    migration = world.migration(world.guest())
    for path, key, one in (('drains', 'drain', drain), ('migrations', 'migration', migration)):
        for text in spellings(one.uuid):
            assert world.get(f'{ROOT}/{path}/{text}')[key]['uuid'] == one.uuid
    world.conductor.wake_drains = lambda context: None
    response = world.ask('POST', f'{ROOT}/drains/{drain.uuid.upper()}/action', {'pause': None})
    assert response.json['drain']['status'] == 'paused'


def test_uuid_in_a_query_has_any_of_its_spellings(world, drain):
    guest = world.guest()
    migration = world.migration(guest, drain=drain.uuid)
    for name, value in (('drain', drain.uuid), ('instance_uuid', guest.uuid)):
        for text in spellings(value):
            (shown,) = world.get(f'{ROOT}/migrations?{name}={text}')['migrations']
            assert shown['uuid'] == migration.uuid
    members = [Member(instance_uuid=guest.uuid, name='vm', position=1)]
    world.database.drains.adopt('conductor')
    world.database.drains.write(world.database.drains.get(drain.uuid), {}, members, [])
    page = f'{ROOT}/drains/{drain.uuid}/members?marker={guest.uuid.upper()}'
    assert world.get(page)['members'] == []


def test_uuids_in_priorities_have_any_of_their_spellings(world):
    world.conductor.wake_drains = lambda context: None
    guest = world.guest()
    body = {'host': 'source', 'order': 'priority', 'priorities': {guest.uuid.upper(): 3}}
    response = world.ask('POST', f'{ROOT}/drains', body)
    assert response.json['drain']['priorities'] == {guest.uuid: 3}


def test_wrong_method_returns_405_with_the_right_ones(world, drain):
    for method, path, allowed in (
        ('DELETE', '/drains', 'GET, HEAD, POST'),
        ('PUT', f'/drains/{drain.uuid}', 'GET, HEAD'),
        ('GET', f'/drains/{drain.uuid}/action', 'POST'),
        ('POST', '/hosts/source', 'GET, HEAD'),
        ('POST', '/ui', 'GET, HEAD'),
    ):
        response = world.ask(method, f'{ROOT}{path}')
        world.refuses(response, 405, 'badMethod', f'{method} {ROOT}{path}', allowed)
        assert response.headers['Allow'] == allowed


def test_unknown_url_is_not_said_to_be_of_the_compute_api(world):
    response = world.ask('GET', f'{ROOT}/nonsense')
    words = [f'GET {ROOT}/nonsense', f'GET {ROOT}/openapi.json lists']
    world.refuses(response, 404, 'itemNotFound', *words)
    assert 'compute API' not in response.text


def test_version_of_the_compute_api_means_nothing(world):
    """An error once named version 2.1, and a version that is too high was a 406."""
    for version in (None, '2.1', '2.99'):
        response = world.ask('GET', f'{ROOT}/drains?colour=blue', version=version)
        world.refuses(response, 400, 'badRequest', 'colour', 'Allowed: host, in_progress, limit, marker.')
        assert 'ersion' not in response.text
        assert not [name for name in response.headers if 'Version' in name]


@pytest.mark.parametrize('path', ['/drains', '/drains/{}/action'])
def test_unknown_parameter_of_a_post_returns_400(world, drain, path):
    before = world.rows()
    response = world.ask('POST', f'{ROOT}{path.format(drain.uuid)}?dry_run=true', {'host': 'dest'})
    world.refuses(response, 400, 'badRequest', 'dry_run', since=before)


@pytest.mark.parametrize('query', ['after=' + '9' * 20, 'after=-1'])
def test_number_that_no_database_can_hold_returns_400(world, drain, query):
    response = world.ask('GET', f'{ROOT}/drains/{drain.uuid}/events?{query}')
    world.refuses(response, 400, 'badRequest', 'after', 'a whole number')


def test_limit_may_be_beyond_what_a_page_holds(world, drain):
    assert len(world.get(f'{ROOT}/drains?limit={"9" * 20}')['drains']) == 1
