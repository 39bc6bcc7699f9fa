# SPDX-License-Identifier: Apache-2.0

"""The version of a request."""

import microversion_parse
import pytest

from migrator.api import microversions


@pytest.mark.parametrize(
    ('headers', 'version'),
    [
        ({}, '2.1'),
        ({'OpenStack-API-Version': 'compute 2.30'}, '2.30'),
        ({'OpenStack-API-Version': 'Compute  2.30 '}, '2.30'),
        ({'X-OpenStack-Nova-API-Version': '2.24'}, '2.24'),
        ({'OpenStack-API-Version': 'compute 2.30', 'X-OpenStack-Nova-API-Version': '2.24'}, '2.30'),
        ({'OpenStack-API-Version': 'volume 3.0'}, '2.1'),
        ({'OpenStack-API-Version': 'volume 3.0, compute 2.53'}, '2.53'),
        ({'OpenStack-API-Version': 'volume 3.0', 'X-OpenStack-Nova-API-Version': '2.24'}, '2.24'),
        ({'OpenStack-API-Version': 'compute latest'}, '2.104'),
        ({'X-OpenStack-Nova-API-Version': 'latest'}, '2.104'),
        ({'OpenStack-API-Version': 'compute 2.2'}, '2.2'),
    ],
)
def test_both_headers_are_read_and_both_are_answered(world, headers, version):
    response = world.ask('GET', '/servers', version=None, **headers)
    assert response.status_int == 200
    assert response.headers['OpenStack-API-Version'] == f'compute {version}'
    assert response.headers['X-OpenStack-Nova-API-Version'] == version


@pytest.mark.parametrize('version', ['2.105', '2.999999', '3.0', '1.1', '2.0'])
def test_version_out_of_range_returns_406_with_the_range(world, version):
    before = world.rows()
    response = world.migrate(world.guest(), version)
    assert response.status_int == 406
    world.refuses(response, 406, 'computeFault', version, '2.1', '2.104')
    assert len(world.rows()) == len(before) + 1
    assert world.database.migrations.list() == []


@pytest.mark.parametrize(
    'version', ['2', '2.x', 'two', '2.1.1', '-2.1', '2.01', '02.1', '2.', '.1', '2.1;', '\u0662.\u0661']
)
def test_an_ill_formed_version_is_a_400(world, version):
    header = {'OpenStack_API_Version': f'compute {version}'}
    response = world.ask('GET', '/servers', version=None, **header)
    world.refuses(response, 400, 'badRequest', 'MAJOR.MINOR')


def test_the_history_is_in_order_and_each_entry_has_a_remark():
    versions = [microversion_parse.parse_version_string(text) for text in microversions.HISTORY]
    assert versions == sorted(set(versions))
    assert all(microversions.HISTORY.values())
    assert (str(microversions.MINIMUM), str(microversions.MAXIMUM)) == ('2.1', '2.104')
