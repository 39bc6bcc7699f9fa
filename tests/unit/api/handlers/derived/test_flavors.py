# SPDX-License-Identifier: Apache-2.0

"""The flavors that guests have."""

import pytest

from migrator.objects import instance

TINY = instance.Flavor(name='tiny', vcpus=1, memory_mb=512, root_gb=1)
LARGE = instance.Flavor(
    name='m1 large', vcpus=8, memory_mb=8192, root_gb=80, ephemeral_gb=20, swap=512, extra_specs={'hw:mem': 'large'}
)


@pytest.fixture
def guests(world):
    world.guest('one', flavor=TINY)
    world.guest('two', flavor=TINY, project='blue')
    world.guest('three', flavor=LARGE)
    return world


def names(world, query='', token='admin', version='2.80'):
    return [one['id'] for one in world.get(f'/flavors{query}', token=token, version=version)['flavors']]


def test_fields_of_a_flavor(guests):
    assert guests.get('/flavors/m1 large')['flavor'] == {
        'id': 'm1 large', 'name': 'm1 large', 'description': None, 'ram': 8192, 'vcpus': 8, 'disk': 80, 'swap': 512,
        'OS-FLV-EXT-DATA:ephemeral': 20, 'OS-FLV-DISABLED:disabled': False, 'os-flavor-access:is_public': True,
        'rxtx_factor': 1.0, 'extra_specs': {'hw:mem': 'large'},
        'links': [
            {'rel': 'self', 'href': 'http://api.test/v2.1/flavors/m1%20large'},
            {'rel': 'bookmark', 'href': 'http://api.test/flavors/m1%20large'},
        ],
    }  # fmt: skip
    assert guests.get('/flavors/tiny', '2.74')['flavor']['swap'] == ''
    assert guests.get('/flavors/tiny', '2.75')['flavor']['swap'] == 0
    assert 'description' not in guests.get('/flavors', '2.54')['flavors'][0]
    assert 'extra_specs' not in guests.get('/flavors/detail', '2.60')['flavors'][0]


def test_server_links_to_its_flavor(guests):
    server = guests.get('/servers/detail', '2.46')['servers'][0]
    assert guests.get(f'/flavors/{server["flavor"]["id"]}')['flavor']['ram'] == 8192
    assert server['flavor']['links'][0]['href'] == 'http://api.test/flavors/m1%20large'


def test_users_see_the_flavors_of_their_own_guests(guests):
    assert names(guests) == ['m1 large', 'tiny']
    assert names(guests, token='ada:blue') == ['tiny']
    answer = guests.ask('GET', '/flavors/m1 large', token='ada:blue')
    guests.refuses(answer, 404, 'itemNotFound', 'Flavor m1 large could not be found')
    assert names(guests, token='ada:red') == []


def test_flavor_of_one_name_is_that_of_the_newest_guest(world):
    for memory in (512, 2048, 1024):
        world.guest(flavor=instance.Flavor(name='adopted', memory_mb=memory))
    (flavor,) = world.get('/flavors/detail')['flavors']
    assert flavor['ram'] == 1024


def test_list_is_filtered_sorted_and_paged(guests):
    assert names(guests, '?minRam=513') == ['m1 large']
    assert names(guests, '?minDisk=81') == []
    assert names(guests, '?is_public=None') == names(guests, '?is_public=true') == ['m1 large', 'tiny']
    assert names(guests, '?is_public=false') == []
    assert names(guests, '?is_public=false', token='ada:blue') == ['tiny']
    assert names(guests, '?sort_key=memory_mb') == names(guests, '?sort_dir=desc') == ['tiny', 'm1 large']
    assert names(guests, '?sort_key=created_at&sort_dir=desc') == ['m1 large', 'tiny']
    page = guests.get('/flavors?limit=1')
    assert [one['id'] for one in page['flavors']] == ['m1 large']
    assert page['flavors_links'] == [{'rel': 'next', 'href': 'http://api.test/v2.1/flavors?limit=1&marker=m1+large'}]
    assert names(guests, '?limit=1&marker=m1+large') == ['tiny']


@pytest.mark.parametrize(
    ('query', 'word'),
    [('minRam=a', 'minRam'), ('minDisk=', 'minDisk'), ('is_public=maybe', 'is_public'), ('marker=gone', 'gone'),
     ('sort_key=x', 'flavorid'), ('sort_dir=up', 'asc or desc'), ('limit=-1', 'limit'), ('name=tiny', 'minRam')],
)  # fmt: skip
def test_wrong_parameter_is_a_400(guests, query, word):
    guests.refuses(guests.ask('GET', f'/flavors/detail?{query}'), 400, 'badRequest', word)


def test_unknown_parameter_is_ignored_below_2_75(guests):
    assert names(guests, '?name=tiny', version='2.74') == ['m1 large', 'tiny']


def test_extra_specs(guests):
    assert guests.get('/flavors/m1 large/os-extra_specs', '2.1') == {'extra_specs': {'hw:mem': 'large'}}
    assert guests.get('/flavors/m1 large/os-extra_specs/hw:mem') == {'hw:mem': 'large'}
    answer = guests.ask('GET', '/flavors/tiny/os-extra_specs/hw:mem')
    guests.refuses(answer, 404, 'itemNotFound', 'Flavor tiny has no extra specs with key hw:mem')


def test_extra_specs_need_a_role(roles):
    roles.guest(project='blue', flavor=LARGE)
    for role, status in (('none', 403), ('reader', 200)):
        token = f'{role}:ada:blue'
        shown = roles.ask('GET', '/flavors/m1 large', token=token)
        assert shown.status_int == 200
        assert ('extra_specs' in shown.json['flavor']) == (status == 200)
        for key in ('', '/hw:mem'):
            assert roles.ask('GET', f'/flavors/m1 large/os-extra_specs{key}', token=token).status_int == status


def test_from_2_102_flavors_are_found_by_name_and_have_no_factor(guests):
    assert names(guests, '?name=^ti', version='2.102') == ['tiny']
    guests.refuses(guests.ask('GET', '/flavors?name=t', version='2.101'), 400, 'badRequest', 'name', 'unexpected')
    guests.refuses(guests.ask('GET', '/flavors?name=(a%2B)%2B', version='2.102'), 400, 'badRequest', 'name', 'nested')
    shown = [guests.get('/flavors/tiny', version)['flavor'] for version in ('2.101', '2.102')]
    assert shown[0].keys() - shown[1].keys() == {'rxtx_factor', 'OS-FLV-DISABLED:disabled'}
