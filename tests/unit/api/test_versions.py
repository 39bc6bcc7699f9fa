# SPDX-License-Identifier: Apache-2.0

"""Version discovery, without a token."""

import pytest
import webob

CURRENT = {
    'id': 'v2.1',
    'status': 'CURRENT',
    'version': '2.104',
    'min_version': '2.1',
    'updated': '2013-07-23T11:33:21Z',
    'links': [{'rel': 'self', 'href': 'http://api.test/v2.1/'}],
}


def discover(world, path, **more):
    return webob.Request.blank(path, base_url='http://api.test', **more).get_response(world.app)


@pytest.mark.parametrize('path', ['/v2.1', '/v2.1/'])
def test_version_document_has_its_range(world, path):
    response = discover(world, path)
    assert response.status_int == 200
    version = response.json['version']
    assert {name: version[name] for name in CURRENT} == CURRENT
    assert set(version) - set(CURRENT) == {'media-types'}


def test_root_lists_current_version(world):
    response = discover(world, '/')
    assert response.json == {'versions': [CURRENT]}


def test_links_have_the_address_that_the_client_used(world):
    request = webob.Request.blank('/compute/', base_url='https://api.test')
    request.script_name, request.path_info = '/compute', '/'
    response = request.get_response(world.app)
    assert response.json['versions'][0]['links'][0]['href'] == 'https://api.test/compute/v2.1/'


@pytest.mark.parametrize('path', ['/v2', '/v3', '/v2.1x'])
def test_other_version_urls_need_a_token_and_return_404(world, path):
    assert discover(world, path).status_int == 401
    response = discover(world, path, headers={'X-Auth-Token': 'admin'})
    assert response.status_int == 404


def test_discovery_only_reads(world):
    assert discover(world, '/v2.1', method='POST').status_int == 401
    assert discover(world, '/v2.1', method='HEAD').body == b''
