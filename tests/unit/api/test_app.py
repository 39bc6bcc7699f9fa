# SPDX-License-Identifier: Apache-2.0

"""The pipeline: the common parts of every answer."""

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from migrator import exception
from migrator.api import app
from migrator.conductor.tasks import sagas


def test_every_answer_has_the_id_of_its_request(world):
    seen = set()
    for path, token in (('/servers', 'admin'), ('/servers', None), ('/nonsense', 'admin'), ('', None)):
        response = world.ask('GET', path, token=token)
        assert response.headers['X-OpenStack-Request-Id'] == response.headers['X-Compute-Request-Id']
        seen.add(response.headers['X-OpenStack-Request-Id'])
    assert len(seen) == 4


def test_answer_has_version_and_vary_headers(world):
    for version in ('2.1', '2.30', '2.80'):
        for path in ('/servers', '/nonsense'):
            headers = world.ask('GET', path, version=version).headers
            assert headers['OpenStack-API-Version'] == f'compute {version}'
            assert headers['X-OpenStack-Nova-API-Version'] == version
            assert headers['Vary'] == 'OpenStack-API-Version, X-OpenStack-Nova-API-Version'


def test_unexpected_error_returns_500_with_only_the_request_id(world, monkeypatch, caplog):
    def fails(*args, **kwargs):
        raise RuntimeError('secret at 10.1.2.3')

    monkeypatch.setattr(world.database.instances, 'list', fails)
    response = world.ask('GET', '/servers')
    world.refuses(response, 500, 'computeFault', response.headers['X-OpenStack-Request-Id'])
    assert 'secret' not in response.text
    assert 'RuntimeError' not in response.text
    assert 'secret at 10.1.2.3' in caplog.text


def test_read_only_database_returns_503_only_for_changes(world):
    guest = world.guest()
    engine = world.database.engine
    sa.event.listen(engine.sa_engine, 'connect', lambda connection, _: connection.execute('PRAGMA query_only = ON'))
    engine.dispose()
    response = world.ask('POST', f'/servers/{guest.uuid}/action', {'lock': None})
    world.refuses(response, 503, 'serviceUnavailable', 'The database is read-only at present', 'try again')
    assert response.headers['Retry-After'] == '5'
    assert world.ask('GET', f'/servers/{guest.uuid}').status_int == 200


@pytest.mark.parametrize(
    'error',
    [
        exception.DatabaseUnreachable(reason='postgresql://migrator:secret@10.1.2.3'),
        exception.RPCTimeout(target='conductor.10.1.2.3', method='wake', timeout=60),
    ],
)
def test_unreachable_service_returns_503_without_its_address(world, monkeypatch, error):
    def fails(*args, **kwargs):
        raise error

    monkeypatch.setattr(world.database.instances, 'list', fails)
    response = world.ask('GET', '/servers')
    world.refuses(response, 503, 'serviceUnavailable', 'try again')
    assert '10.1.2.3' not in response.text
    assert response.headers['Retry-After'] == '5'


def test_two_applications_in_one_process_are_independent(make_world):
    first = make_world()
    first.conf.set_override('max_limit', 1, group='api')
    first.guest('one')
    first.guest('two')
    assert len(first.get('/servers')['servers']) == 1
    second = make_world()
    assert second.conf.api.max_limit == 1000
    assert 'api' not in cfg.CONF


@pytest.mark.parametrize(
    ('path', 'code'),
    [('/v2.1/servers/%ff', 400), ('/v2.1/servers/%00', 404), ('/v2.1/servers/..%2f..%2fetc', 404)],
)
def test_invalid_url_does_not_return_500(world, path, code):
    request = webob.Request.blank(path, headers={'X-Auth-Token': 'admin'})
    response = request.get_response(world.app)
    assert response.status_int == code, response.text


def test_head_is_get_without_a_body(world):
    response = world.ask('HEAD', '/servers')
    assert (response.status_int, response.body) == (200, b'')


def test_a_policy_file_decides_who_is_an_administrator(world, tmp_path):
    (tmp_path / 'policy.yaml').write_text('"context_is_admin": "user_id:root"\n')
    world.conf.set_override('policy_file', str(tmp_path / 'policy.yaml'), group='oslo_policy')
    world.app = app.make_app(world.conf, world.database, world.conductor, world.threads, sagas())
    guest = world.guest(project='blue')
    assert world.ask('GET', f'/servers/{guest.uuid}', token='root:red').status_int == 200
    assert world.ask('GET', f'/servers/{guest.uuid}', token='admin').status_int == 404
