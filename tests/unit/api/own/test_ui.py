# SPDX-License-Identifier: Apache-2.0

"""The files of the page for a browser: what is served, and with which headers."""

import importlib.resources
import pathlib
import re
import tomllib

import pytest
import webob

from migrator.api.own import ui

ROOT = pathlib.Path(__file__).resolve().parents[4]
PAGE = '/migrator/v1/ui'
FILES = {path: name for path, (name, _) in ui._FILES.items()}


def get(world, path, method='GET', **headers):
    """Return the response to a request without a token."""
    return world.ask(method, path, token=None, version=None, **headers)


def policy_of(response):
    return dict(part.split(' ', 1) for part in response.headers['Content-Security-Policy'].split('; '))


def in_folder():
    """Return the names of the files that are beside the module."""
    found = {one.name for one in importlib.resources.files(ui).iterdir() if one.is_file()}
    return {name for name in found if not name.endswith(('.py', '.pyc'))}


@pytest.mark.parametrize('path', FILES)
def test_files_are_served_without_a_token(world, path):
    response = get(world, path)
    assert response.status_int == 200
    assert response.body == importlib.resources.files(ui).joinpath(FILES[path]).read_bytes()
    kinds = {'html': 'text/html', 'css': 'text/css', 'js': 'text/javascript'}
    assert response.headers['Content-Type'] == f'{kinds[FILES[path].rpartition(".")[2]]}; charset=UTF-8'


@pytest.mark.parametrize('path', [*FILES, f'{PAGE}/'])
def test_policy_of_the_page_allows_nothing_from_elsewhere(world, path):
    response = get(world, path)
    policy = policy_of(response)
    assert policy['default-src'] == "'none'"
    assert policy['script-src'] == policy['style-src'] == policy['connect-src'] == "'self'"
    assert policy['base-uri'] == policy['form-action'] == policy['frame-ancestors'] == "'none'"
    assert 'unsafe' not in response.headers['Content-Security-Policy']
    assert response.headers['X-Content-Type-Options'] == 'nosniff'
    assert response.headers['Referrer-Policy'] == 'no-referrer'


def test_policy_of_the_page_is_this_one_byte_for_byte(world):
    assert get(world, PAGE).headers['Content-Security-Policy'] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


@pytest.mark.parametrize('is_on', [True, False])
def test_whether_the_page_acts_is_an_option(world, is_on):
    world.conf.set_override('page_acts', is_on, group='api')
    response = get(world, f'{PAGE}/settings.json')
    assert (response.status_int, response.json) == (
        200,
        {'acts': is_on, 'of_nova': False, 'of_services': True, 'drain_command': 'migrator-manage drain'},
    )
    assert policy_of(response)['default-src'] == "'none'"


@pytest.mark.parametrize('path', FILES)
def test_copy_of_a_browser_is_confirmed_and_a_changed_file_is_sent(world, path):
    first = get(world, path)
    assert first.headers['Cache-Control'] == 'no-cache'
    again = get(world, path, If_None_Match=first.headers['ETag'])
    assert (again.status_int, again.body) == (304, b'')
    assert policy_of(again) == policy_of(first)
    changed = get(world, path, If_None_Match='"another"')
    assert (changed.status_int, changed.body) == (200, first.body)


@pytest.mark.parametrize('path', FILES)
def test_head_has_the_headers_of_get(world, path):
    whole, head = get(world, path), get(world, path, method='HEAD')
    assert (head.status_int, head.body) == (200, b'')
    for name in ('Content-Length', 'Content-Type', 'ETag', 'Content-Security-Policy'):
        assert head.headers[name] == whole.headers[name]


def test_slash_at_the_end_leads_to_the_page(world):
    response = get(world, f'{PAGE}/')
    assert response.status_int == 308
    assert response.headers['Location'] == f'http://api.test{PAGE}'
    behind_a_prefix = webob.Request.blank(f'{PAGE}/', base_url='http://api.test/compute').get_response(world.app)
    assert behind_a_prefix.headers['Location'] == f'http://api.test/compute{PAGE}'


@pytest.mark.parametrize(
    'path',
    [
        f'{PAGE}/__init__.py',
        f'{PAGE}/../drains.py',
        f'{PAGE}/..%2f__init__.py',
        f'{PAGE}/%2e%2e/%2e%2e/routes.py',
        f'{PAGE}/ui.css/',
        f'{PAGE}//ui.css',
        f'{PAGE}/ui.css%00',
        f'{PAGE}/index.html',
        f'{PAGE}/unknown.js',
        '/migrator/v1/uix',
    ],
)
def test_any_other_path_is_an_unknown_url(world, path):
    world.refuses(world.ask('GET', path), 404, 'itemNotFound')
    assert get(world, path).status_int == 401


@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE', 'PATCH'])
def test_page_cannot_be_written(world, method):
    world.refuses(world.ask(method, PAGE, token=None), 405, 'badMethod')


def test_every_file_is_served_and_packaged():
    assert in_folder() == set(FILES.values())
    patterns = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['setuptools']['package-data']['*']
    for name in in_folder():
        assert f'*.{name.rpartition(".")[2]}' in patterns


def test_files_name_only_each_other_and_have_nothing_inline():
    """The policy would only make the page fail. These find it without a browser."""
    texts = {name: importlib.resources.files(ui).joinpath(name).read_text() for name in in_folder()}
    page = texts['index.html']
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', page)) == {'ui/ui.css', 'ui/ui.js'}
    assert not re.search(r'\sstyle=|\son[a-z]+=|<style|<script>', page)
    for name, text in texts.items():
        elsewhere = [one for one in re.findall(r'https?://[^\s\'"]+', text) if one != 'http://www.w3.org/2000/svg']
        assert not elsewhere, name
        assert not re.search(r'@import|url\(', text), name
        assert not re.search(r'innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function', text), (
            name
        )
        assert not re.search(r'localStorage|sessionStorage|indexedDB|document\.cookie', text), name
        assert set(re.findall(r"from '\./(\S+)'", text)) <= set(texts), name
