# SPDX-License-Identifier: Apache-2.0

"""The client of Nova's REST API: its errors, its pages and the microversions."""

import json
import types

import pytest
from keystoneauth1 import exceptions, token_endpoint
from keystoneauth1 import session as ks_session
from keystoneauth1.adapter import Adapter
from oslo_config import cfg

from migrator import exception
from migrator.conf import keystone
from migrator.nova import client, errors
from migrator.runtime import http_server
from tests.unit.nova import cloud_server
from tests.unit.nova.fake import FakeNova


@pytest.fixture
def fake():
    return FakeNova()


def answering(fake, status, body=b'{}'):
    """Let every request of a fake be answered so."""
    fake.request = lambda *_args, **_more: types.SimpleNamespace(
        status_code=status, reason='no reason', text=body.decode(), json=lambda: json.loads(body)
    )
    return fake.client()


@pytest.mark.parametrize(
    ('status', 'kind'),
    [
        (500, errors.NovaUnreachable),
        (503, errors.NovaUnreachable),
        (429, errors.NovaUnreachable),
        (401, errors.NovaUnauthorized),
        (403, errors.NovaUnauthorized),
        (400, errors.NovaRefused),
        (404, errors.NovaRefused),
        (409, errors.NovaRefused),
    ],
)
def test_status_decides_the_error(fake, status, kind):
    nova = answering(fake, status, b'{"name": {"code": 1, "message": "the reason"}}')
    with pytest.raises(kind, match='the reason') as found:
        nova.migrate_live('one')
    assert type(found.value) is kind
    assert isinstance(found.value, exception.ServiceUnreachable) is (kind is not errors.NovaRefused)


def test_answer_of_a_proxy_is_shown(fake):
    with pytest.raises(errors.NovaUnreachable, match='<b>no backend</b>'):
        answering(fake, 502, b'<b>no backend</b>').services()


def test_answer_that_is_not_json_is_not_nova(fake):
    with pytest.raises(errors.NovaUnreachable, match='is not Nova'):
        answering(fake, 200, b'<html>').services()


@pytest.mark.parametrize(
    ('raised', 'kind'),
    [
        (exceptions.ConnectTimeout('late'), errors.NovaUnreachable),
        (exceptions.SSLError('certificate verify failed'), errors.NovaUntrusted),
        (exceptions.EndpointNotFound('none'), errors.NovaUnreachable),
        (exceptions.Unauthorized('no'), errors.NovaUnauthorized),
        (OSError('broken'), errors.NovaUnreachable),
    ],
)
def test_errors_of_the_transport_are_converted_without_secrets(fake, raised, kind):
    raised.args = (f'{raised} at http://ada:secret@nova/',)
    if hasattr(raised, 'message'):
        raised.message = raised.args[0]

    def fail(method, path):
        raise raised

    fake.before = fail
    with pytest.raises(kind) as found:
        fake.client().services()
    assert 'secret' not in str(found.value)


@pytest.mark.parametrize(('newest', 'wanted'), [((2, 65), (2, 65)), ((2, 90), (2, 90)), ((2, 104), client.NEWEST)])
def test_newest_common_microversion_is_used(newest, wanted):
    nova = FakeNova(newest=newest).client()
    assert nova.microversion == wanted
    assert nova.services()[0].state == 'up'


def test_too_old_nova_is_refused_with_its_versions():
    with pytest.raises(errors.NovaTooOld, match=r'2\.1 to 2\.60, and 2\.65 is needed'):
        FakeNova(newest=(2, 60)).client().services()


def test_lists_are_read_page_by_page(fake):
    fake.page = 2
    guests = [fake.add_guest(f'guest{number}') for number in range(5)]
    fake.add_guest('other', 'host2')
    nova = fake.client()
    assert [one.uuid for one in nova.servers('host1')] == guests
    assert len(nova.servers()) == 6
    assert [one.host for one in nova.hypervisors()] == ['host1', 'host2', 'host3']
    for guest in guests:
        nova.migrate_live(guest)
    fake.tick()
    assert [row.id for row in nova.migrations()] == [5, 4, 3, 2, 1]
    assert [row.id for row in nova.migrations(limit=3)] == [5, 4, 3]
    assert [row.id for row in nova.migrations(instance_uuid=guests[1])] == [2]
    assert [row.id for row in nova.migrations(source='host2')] == []


@pytest.mark.parametrize('gone', [[2], [1, 2], [0, 1, 2], [2, 3], [0, 1, 2, 3, 4]])
def test_item_at_a_page_border_may_be_deleted_while_a_list_is_read(fake, gone):
    guests = [fake.add_guest(f'guest{number}') for number in range(5)]
    fake.page, left = 3, [guest for number, guest in enumerate(guests) if number not in gone]

    def delete(_method, _path):
        fake.before = lambda _method, _path: None
        for number in gone:
            fake.delete(guests[number])

    fake.after = lambda _method, _path: setattr(fake, 'before', delete) or setattr(fake, 'after', lambda *_: None)
    found = [one.uuid for one in fake.client().servers()]
    assert len(found) == len(set(found))
    assert set(left) <= set(found)


def test_guest_has_its_flavor_and_its_lock(fake):
    guest = fake.add_guest('one', ram=2048, vcpus=2, locked=True, locked_reason='mine')
    server = fake.client().server(guest)
    assert (server.flavor.memory_mb, server.flavor.vcpus, server.host) == (2048, 2, 'host1')
    assert (server.locked, server.locked_reason, server.status) == (True, 'mine', 'ACTIVE')
    assert fake.client().server('none') is None


def test_guest_of_an_unreachable_cell_is_not_known(fake):
    nova = answering(fake, 200, b'{"server": {"id": "one", "status": "UNKNOWN", "tenant_id": "x", "links": []}}')
    with pytest.raises(errors.NovaUnreachable, match='cell of server one'):
        nova.server('one')


def test_migration_and_its_events(fake):
    guest = fake.add_guest('one')
    fake.fails[guest] = 'check'
    nova = fake.client()
    nova.migrate_live(guest, 'host2')
    assert nova.migrations(instance_uuid=guest) == []
    fake.tick()
    (row,) = nova.migrations(instance_uuid=guest)
    assert (row.status, row.dest_compute, row.source_compute) == ('accepted', None, 'host1')
    with pytest.raises(errors.NovaRefused) as found:
        nova.abort(guest, row.id)
    assert found.value.status == 400
    fake.tick()
    assert nova.migrations(instance_uuid=guest)[0].status == 'error'
    (action,) = nova.actions(guest)
    assert (action.action, action.message) == ('live-migration', 'Error')
    assert [event.details for event in nova.events(guest, action.request_id)] == [
        'No valid host was found. There are not enough hosts available.',
        'the lab says so',
    ]


def test_service_is_disabled_and_enabled(fake):
    nova = fake.client()
    (service,) = nova.services(host='host2')
    nova.disable(service.id, 'drain 1')
    (service,) = nova.services(host='host2')
    assert (service.status, service.disabled_reason) == ('disabled', 'drain 1')
    nova.disable(service.id, None)
    assert nova.services(host='host2')[0].status == 'enabled'


class Server:
    """A WSGI application that shows microversions at its root, and records the header of each request."""

    def __init__(self):
        self.asked = []
        self._server = http_server.listen(self, '127.0.0.1', 0)
        self.url, self.stop = self._server.url, self._server.stop

    def __call__(self, environ, start_response):
        path = environ['PATH_INFO']
        self.asked.append((environ['REQUEST_METHOD'], path, environ.get('HTTP_OPENSTACK_API_VERSION')))
        document = {'services': []}
        if path in ('/v2.1', '/v2.1/'):
            links = [{'rel': 'self', 'href': f'{self.url}/v2.1/'}]
            version = {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.90', 'min_version': '2.1', 'links': links}
            document = {'version': version}
        start_response('200 OK', [('Content-Type', 'application/json')])
        return [json.dumps(document).encode()]


def test_keystoneauth_finds_the_microversions_and_sends_the_header():
    server = Server()
    try:
        auth = token_endpoint.Token(f'{server.url}/v2.1', 'admin')
        nova = client.Nova(Adapter(ks_session.Session(auth=auth), service_type='compute'))
        assert nova.microversion == (2, 90)
        assert nova.services() == []
        assert server.asked[-1] == ('GET', '/v2.1/os-services', 'compute 2.90')
    finally:
        server.stop()


def test_unreachable_endpoint_is_reported_by_the_discovery_too():
    server = Server()
    server.stop()
    auth = token_endpoint.Token(f'{server.url}/v2.1', 'admin')
    nova = client.Nova(Adapter(ks_session.Session(auth=auth), service_type='compute'))
    with pytest.raises(errors.NovaUnreachable):
        nova.services()


@pytest.mark.parametrize(
    ('raised', 'kind'),
    [
        (exceptions.ConnectFailure('closed'), errors.IdentityUnreachable),
        (exceptions.ServiceUnavailable('later'), errors.IdentityUnreachable),
        (exceptions.Unauthorized('expired'), errors.IdentityRefused),
    ],
)
def test_identity_service_that_fails_during_a_drain_is_not_taken_for_nova(fake, raised, kind):
    nova = fake.client()
    nova.services()
    sent = len(fake.requests)

    def fail():
        raise raised

    fake.get_token = fail
    with pytest.raises(kind, match='The identity service'):
        nova.services()
    assert len(fake.requests) == sent


@pytest.mark.parametrize('path', ['/nova', '/nova/', '/nova/v2.1', '/root-only'])
def test_endpoint_of_the_configuration_may_have_no_version(path):
    server = cloud_server.CloudServer()
    try:
        conf = cfg.ConfigOpts()
        keystone.NOVA.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('auth_type', 'none', group='nova')
        conf.set_override('endpoint_override', f'{server.url}{path}', group='nova')
        assert client.client_from_conf(conf).services() == []
        assert server.asked == [f'/{path.strip("/").partition("/")[0]}/v2.1/os-services']
    finally:
        server.stop()
