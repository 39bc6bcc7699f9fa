# SPDX-License-Identifier: Apache-2.0

"""The checks of a request's body before its schema."""

import io
import json

import pytest
import webob

from migrator.api.request import MAX_BODY, MAX_DEPTH
from migrator.conductor.tasks import sagas


@pytest.mark.parametrize(
    'body', [b'', b'{', b'{"lock": nul}', b'\xff\xfe', b'{"a": NaN}', b'[' * 100000, b'{"lock": Infinity}']
)
def test_body_that_is_not_json_returns_400(world, body):
    guest = world.guest()
    before = world.rows()
    response = world.ask('POST', f'/servers/{guest.uuid}/action', body)
    world.refuses(response, 400, 'badRequest', 'Malformed request body', since=before)
    assert ('it is empty: send a JSON object' in response.text) is (body == b'')


@pytest.mark.parametrize('depth', [MAX_DEPTH + 1, 970])
@pytest.mark.parametrize(('opens', 'closes'), [(b'[', b']'), (b'{"a":', b'}')])
def test_a_body_that_is_nested_too_deep_is_a_400(world, opens, closes, depth):
    guest = world.guest()
    before = world.rows()
    inner = b'{"lock":' + opens * (depth - 1) + b'1' + closes * (depth - 1) + b'}'
    response = world.ask('POST', f'/servers/{guest.uuid}/action', inner)
    world.refuses(response, 400, 'badRequest', f'nested more than {MAX_DEPTH} deep', since=before)


@pytest.mark.parametrize(('character', 'name'), [('\ud800', 'U+D800'), ('\udfff', 'U+DFFF'), ('\0', 'U+0000')])
@pytest.mark.parametrize(
    ('body', 'field'),
    [
        ({'lock': {'locked_reason': 'a%'}}, 'lock.locked_reason'),
        ({'lock': {'a%': 1}}, 'lock'),
        ({'lock': {'locked_reason': ['a', 'a%']}}, 'lock.locked_reason'),
        ({'os-migrateLive': {'host': '%', 'block_migration': 'auto'}}, 'os-migrateLive.host'),
        ({'%': None}, 'the body'),
    ],
)
def test_a_character_that_no_database_can_hold_is_a_400_that_names_the_field(world, body, field, character, name):
    guest = world.guest()
    before = world.rows()
    raw = json.dumps(body).replace('%', json.dumps(character).strip('"')).encode()
    response = world.ask('POST', f'/servers/{guest.uuid}/action', raw)
    words = (f'Invalid input for field/attribute {field}.', name, 'Leave the character out')
    world.refuses(response, 400, 'badRequest', *words, since=before)


@pytest.mark.parametrize('version', ['2.52', '2.80'])
@pytest.mark.parametrize('character', ['\ud800', '\0'])
def test_unstorable_character_in_disabled_reason_returns_400(world, version, character):
    service = world.database.services.get_compute('source')
    path, wanted = f'/os-services/{service.uuid}', {'status': 'disabled', 'disabled_reason': character}
    if version == '2.52':
        path = '/os-services/disable-log-reason'
        wanted = {'host': 'source', 'binary': 'nova-compute', 'disabled_reason': character}
    response = world.ask('PUT', path, wanted, version=version)
    world.refuses(response, 400, 'badRequest', 'field/attribute disabled_reason')
    assert world.database.services.get_compute('source') == service


def test_body_that_ends_before_its_length_returns_400_without_an_error_in_the_log(world, caplog):
    guest = world.guest()
    before = world.rows()
    # Build the environment of a real server, which differs from WebOb's.
    sent = {'wsgi.input': io.BytesIO(b'{"lock": null}'), 'CONTENT_LENGTH': '1000', 'HTTP_X_AUTH_TOKEN': 'admin'}
    request = webob.Request.blank(f'/v2.1/servers/{guest.uuid}/action', method='POST', environ=sent)
    response = request.get_response(world.app)
    world.refuses(response, 400, 'badRequest', 'ended before', 'Content-Length', since=before)
    assert not [record for record in caplog.records if record.levelname == 'ERROR']


def test_a_body_that_is_too_long_is_a_413(world):
    guest = world.guest()
    response = world.ask('POST', f'/servers/{guest.uuid}/action', b' ' * (MAX_BODY + 1))
    world.refuses(response, 413, 'overLimit', str(MAX_BODY))


def test_body_of_another_content_type_returns_415(world):
    guest = world.guest()
    response = world.ask('POST', f'/servers/{guest.uuid}/action', b'<lock/>', Content_Type='application/xml')
    world.refuses(response, 415, 'badMediaType', 'application/json')


def test_a_body_with_a_charset_is_read(world):
    guest = world.guest()
    headers = {'Content_Type': 'application/json; charset=UTF-8'}
    response = world.ask('POST', f'/servers/{guest.uuid}/action', b'{"lock": null}', **headers)
    assert response.status_int == 202


def test_since_compares_the_minor_version(make_request):
    assert make_request(version=30).since(30)
    assert not make_request(version=29).since(30)


def test_policy_of_another_scope_is_refused(roles):
    def domain_scoped(handle):
        def authenticated(request):
            from migrator import context

            request.environ['migrator.context'] = context.RequestContext(
                user_id='eve', domain_id='default', roles=['admin', 'reader'], overwrite=False
            )
            return handle(request)

        return authenticated

    from migrator.api import app

    roles.app = app.make_app(roles.conf, roles.database, roles.conductor, roles.threads, sagas(), auth=domain_scoped)
    roles.refuses(roles.ask('GET', '/os-services'), 403, 'forbidden', 'os-services:list')
