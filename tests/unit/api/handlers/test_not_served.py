# SPDX-License-Identifier: Apache-2.0

"""URLs of Nova that migrator does not serve return 501. Other URLs return 404."""

import json
import pathlib
import re

import pytest

from migrator.api import routes
from migrator.api.handlers import not_served, server_actions

ROOT = pathlib.Path(__file__).resolve().parents[4]
#: Each URL, or URL and action, that nova has -> its methods.
NOVA = json.loads((ROOT / 'tests/nova_schemas/nova.json').read_text(encoding='utf-8'))['urls']


@pytest.mark.parametrize(
    ('method', 'path'),
    [
        ('DELETE', '/servers/{server}'),
        ('POST', '/servers/{server}/os-volume_attachments'),
        ('PUT', '/flavors/m1/os-extra_specs/hw:cpu_policy'),
        ('HEAD', '/images'),
        ('GET', '/images/detail?status=active'),
    ],
)
@pytest.mark.parametrize('version', ['2.1', '2.80'])
def test_url_of_nova_that_is_not_served_returns_501(world, method, path, version):
    guest = world.guest()
    before = world.rows()
    path = path.format(server=guest.uuid)
    response = world.ask(method, path, {} if method in ('POST', 'PUT') else None, version=version)
    assert response.status_int == 501
    assert world.rows() == before
    if method != 'HEAD':
        asked = f'{method} /v2.1{path.partition("?")[0]}'
        world.refuses(response, 501, 'notImplemented', f'migrator does not serve {asked}:', 'use nova')


def test_each_url_of_nova_is_served_or_returns_501(world):
    served = {f'{route.method} {re.sub("{[^}]*}", "{}", route.path)}' for route in routes.ROUTES}
    wrong = []
    for url, methods in NOVA.items():
        if url == '/' or ' ' in url:  # the root has the versions
            continue
        for method in methods.split():
            path = url.replace('{}', '1')
            response = world.ask(method, path, {} if method in ('POST', 'PUT') else None)
            known = 'does not have this URL' not in response.text
            left = f'does not serve {method} /v2.1{path}:' in response.text
            if not known or left != (response.status_int == 501) or left == (f'{method} {url}' in served):
                wrong.append(f'{method} {url}: {response.status_int} {response.text}')
    assert wrong == []


def test_each_action_of_nova_is_served_or_returns_501(world):
    path = f'/servers/{world.guest().uuid}/action'
    actions = {url.split()[1] for url in NOVA if url.startswith('/servers/{}/action ')}
    refused = {one for one in actions if world.ask('POST', path, {one: {}}).status_int == 501}
    assert refused == actions - server_actions.ACTIONS.keys() == not_served.ACTIONS


def test_the_project_in_the_url_does_not_hide_what_nova_serves(world):
    project = '0123456789abcdef' * 2
    response = world.ask('GET', f'/{project}/images/detail', token=f'ada:{project}')
    world.refuses(response, 501, 'notImplemented', 'does not serve')


def test_project_named_like_a_collection_of_nova_has_all_urls(world):
    response = world.ask('GET', '/images/detail', token='ada:images')
    world.refuses(response, 501, 'notImplemented', 'GET /v2.1/images/detail')


@pytest.mark.parametrize(
    ('method', 'path'),
    [
        ('GET', '//'),
        ('GET', '/nonsense'),
        ('GET', '/servers/1/nonsense'),
        ('POST', '/os-services'),
        ('DELETE', '/servers'),
        ('PATCH', '/servers/1'),
        ('GET', '/servers/1/action'),
    ],
)
@pytest.mark.parametrize('version', ['2.1', '2.80'])
def test_url_unknown_to_nova_returns_404(world, method, path, version):
    before = world.rows()
    response = world.ask(method, path, {} if method in ('POST', 'PUT') else None, version=version)
    world.refuses(response, 404, 'itemNotFound', method, 'does not have this URL', since=before)


@pytest.mark.parametrize('path', ['/flavors', '/nonsense', '/servers'])
def test_without_a_token_it_is_a_401(world, path):
    world.refuses(world.ask('POST', path, {}, token=None), 401, 'unauthorized')
