# SPDX-License-Identifier: Apache-2.0

"""The table of URLs."""

import pathlib
import re

import pytest

from migrator.api import microversions, routes
from migrator.api.own.routes import OWN

REFERENCE = pathlib.Path(__file__).resolve().parents[3] / 'doc' / 'source' / 'rest.rst'


def test_every_url_is_on_the_table_once():
    seen = [(route.method, route.path) for route in routes.ROUTES]
    assert len(seen) == len(set(seen))


def test_version_that_adds_or_removes_a_url_is_in_the_history():
    for route in routes.ROUTES:
        assert f'2.{route.since}' in microversions.HISTORY
        assert route.until == 1000 or f'2.{route.until + 1}' in microversions.HISTORY


def test_the_reference_has_every_url_and_no_other():
    """The reference once lacked some URLs of hypervisors, and the changes of services below 2.53."""
    reported = set(
        re.findall(r'``(GET|POST|PUT|DELETE) (/(?:servers|flavors|os-)[^\s`]*)', REFERENCE.read_text(encoding='utf-8'))
    )
    without_names = {(method, re.sub(r'\{\w+\}', '{}', path)) for method, path in reported}
    # Below 2.53 the last part names the change.
    actions = {(method, path) for method, path in without_names if re.fullmatch('/os-services/[a-z-]+', path)}
    assert actions == {
        ('PUT', f'/os-services/{name}') for name in ('enable', 'disable', 'disable-log-reason', 'force-down')
    }
    served = {(route.method, re.sub(r'\{\w+\}', '{}', route.path)) for route in routes.ROUTES}
    assert without_names - actions == served


def test_the_reference_has_every_url_of_the_own_api_and_no_other():
    text = REFERENCE.read_text(encoding='utf-8')
    named = set(re.findall(r'``(GET|POST) (/migrator/v1/[^\s`?]*)``', text)) - {
        ('GET', f'/migrator/v1/{name}') for name in ('ui', 'openapi.json')
    }
    assert named == {(route.method, f'/migrator/v1{route.path}') for route in OWN}


def test_a_fixed_path_comes_before_one_that_would_take_it_for_an_id(world):
    assert 'servers' in world.get('/servers/detail')
    assert 'hypervisor_statistics' in world.get('/os-hypervisors/statistics')


def test_slash_at_the_end_is_ignored(world):
    assert world.get('/servers/')['servers'] == []


def test_project_id_of_old_catalogs_in_the_url_is_accepted(world):
    project = '0123456789abcdef' * 2
    world.guest(project=project)
    token = f'ada:{project}'
    assert len(world.get(f'/{project}/servers', token=token)['servers']) == 1
    assert len(world.get(f'/{project}/servers/detail', token=token)['servers']) == 1


def test_the_project_of_another_token_is_a_400(world):
    other = '0123456789abcdef' * 2
    world.refuses(world.ask('GET', f'/{other}/servers', token='ada:blue'), 400, 'badRequest', other, "token's")


def test_project_named_like_a_collection_has_all_urls(world):
    guest = world.guest(project='servers')
    assert world.get(f'/servers/{guest.uuid}', token='ada:servers')['server']['name'] == 'vm'


@pytest.mark.parametrize('path', ['/servers', '/os-migrations', '/os-services', '/os-hypervisors'])
def test_unknown_method_of_a_url_returns_404(world, path):
    world.refuses(world.ask('DELETE', path), 404, 'itemNotFound', f'DELETE /v2.1{path}')


def test_served_url_is_not_in_the_table_of_refusals():
    served, left = (
        [(route.method, re.sub(r'\{\w+\}', '{}', route.path)) for route in table]
        for table in (routes.ROUTES, routes.LEFT_TO_NOVA)
    )
    assert not set(served) & set(left)
    assert len(set(left)) == len(left)
