# SPDX-License-Identifier: Apache-2.0

"""A site with TLS everywhere: broker, database, and haproxy before each server that can run the API."""

import contextlib
import http.client

import pytest
import requests
import sqlalchemy as sa

from tests.functional import commands
from tests.real.cloud import ProcessCloud
from tests.real.plugin import need
from tests.real.servers import certificates, haproxy, postgresql, process
from tests.real.site import Shape, Site
from tests.real.test_evacuation import BIN

pytestmark = pytest.mark.timeout(300)

#: How each server runs ``migrator.wsgi.api``.
SERVERS = {
    'gunicorn': [
        'gunicorn', '--bind', '{address}', '--threads', '4', '--no-control-socket',
        'migrator.wsgi.api:application',
    ],
    'uwsgi': [
        'uwsgi', '--http-socket', '{address}', '--module', 'migrator.wsgi.api:application', '--master',
        '--enable-threads', '--threads', '4', '--lazy-apps', '--die-on-term', '--need-app',
        '--add-header', 'Connection: close',
    ],
}  # fmt: skip


class WSGIServer(process.Process):
    """A server that runs the API."""

    def __init__(self, workspace, name, configuration):
        super().__init__(workspace, name)
        self.port = process.free_port()
        (self.directory / 'migrator.conf').write_text(configuration)

    def command(self):
        program, *words = SERVERS[self.name]
        return [str(BIN / program), *(word.format(address=f'{process.HOST}:{self.port}') for word in words)]

    def environment(self):
        return {'OS_MIGRATOR_CONFIG_DIR': str(self.directory)}

    def ready(self):
        with contextlib.suppress(requests.RequestException):
            return requests.get(f'http://{process.HOST}:{self.port}/healthcheck', timeout=10).status_code == 200


class SafeSite(Site):
    """A site whose services reach the broker by TLS."""

    def configure(self, name, **more):
        url = self.broker.url(self.vhost, self.user(name), self.user(name), tls=True)
        return super().configure(name, **{'transport_url': url, **more})


class SafePostgreSQL(postgresql.PostgreSQL):
    """A server that takes connections by TLS, and whose URLs let the client check its certificate."""

    def __init__(self, workspace):
        directory = workspace.directory('certificate')
        self._authority, certificate = certificates.issue(directory, process.unprivileged())
        files = {'ssl_cert_file': str(certificate), 'ssl_key_file': str(certificate)}
        super().__init__(workspace, {'ssl': 'on', **files})

    def url(self, database):
        return f'{super().url(database)}?sslmode=verify-full&sslrootcert={self._authority}'

    def unsafe(self):
        """Return the databases with a connection by which nothing is encrypted."""
        engine = sa.create_engine(self.url('postgres'), poolclass=sa.NullPool)
        query = 'SELECT datname FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE datname LIKE :site AND NOT ssl'
        with engine.connect() as connection:
            return connection.execute(sa.text(query), {'site': 'site%'}).scalars().all()


@pytest.fixture(scope='module')
def cloud(workspace, rabbitmq, placement_http):
    """Two hosts, and services that the proxy's headers reach."""
    need('postgresql')
    options = {
        'oslo_messaging_rabbit.ssl': True,
        'oslo_messaging_rabbit.ssl_ca_file': rabbitmq.authority,
        'oslo_messaging_rabbit.rabbit_quorum_queue': True,
        'oslo_middleware.enable_proxy_headers_parsing': True,
        # a WSGI application cannot know its server's address
        'api.noauth2_beyond_loopback': True,
    }
    database = SafePostgreSQL(workspace)
    database.start()
    site = SafeSite(workspace, Shape(hosts=2, options=tuple(options.items())), rabbitmq, database, placement_http)
    site.start()
    made = ProcessCloud(site)
    made.simulation.run_until(made.up)
    yield made
    made.close()
    site.end()
    database.close()


@pytest.mark.parametrize('name', ['migrator-api', 'gunicorn', 'uwsgi'])
def test_host_is_drained_by_https_under_each_server(cloud, workspace, tmp_path, name):
    need('haproxy')
    site = cloud.site
    port, server = site.ports['api1'], None
    if name in SERVERS:
        server = WSGIServer(workspace, name, site.configure('api1').read_text())
        server.start()
        port = server.port
    authority, certificate = certificates.issue(workspace.directory('proxy'))
    proxy = haproxy.HAProxy(workspace, certificate, port)
    proxy.start()
    try:
        refuse_to_trust(proxy.url)
        links = [
            one['links'][0]['href'] for one in requests.get(proxy.url, verify=authority, timeout=30).json()['versions']
        ]
        assert links == [f'{proxy.url}/v2.1/']
        announce_the_end_of_a_connection(port)
        guest = cloud.boot(f'by-{name}', 'host1', memory_mb=64)
        url = f'{proxy.url}/v2.1'
        environment = commands.environment(
            tmp_path, OS_AUTH_TYPE='admin_token', OS_TOKEN='admin', OS_ENDPOINT=url, OS_CACERT=str(authority),
            OS_COMPUTE_ENDPOINT_OVERRIDE=url, NO_PROXY='*',
        )  # fmt: skip
        words = ['host', 'drain', 'create', '--wait', 'host1']
        done = commands.client([str(BIN / 'openstack'), *words], environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert cloud.database.instances.get(guest.uuid).host == 'host2'
    finally:
        cloud.judge(set())
        cloud.forget()
        for each in (proxy, server):
            if each is not None:
                each.close()
                workspace.processes.remove(each)


def announce_the_end_of_a_connection(port):
    """Check that the server never closes a connection unannounced.

    A proxy would send the next request into it.
    """
    connection = http.client.HTTPConnection(process.HOST, port, timeout=30)
    with contextlib.closing(connection):
        connection.request('GET', '/')
        answer = connection.getresponse()
        answer.read()
        if not answer.will_close:
            connection.sock.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.sock.recv(1)


def refuse_to_trust(url):
    """Check that a client without the authority refuses the certificate."""
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(url, timeout=30)


def test_every_connection_to_broker_and_database_is_encrypted_and_queues_are_quorum_queues(cloud):
    site = cloud.site
    ports = site.broker.ports_in_use(site.vhost)
    assert len(ports) >= len(site.services)
    assert set(ports) == {site.broker.tls_port}
    assert site._database_server.unsafe() == []
    kinds = {name: queue['type'] for name, queue in site.broker.queues(site.vhost).items()}
    named = ('conductor', 'compute.host1', 'compute.host2')
    assert {name: kinds.get(name) for name in named} == dict.fromkeys(named, 'quorum'), kinds


def test_connection_to_mariadb_is_encrypted_and_its_certificate_checked(mariadb, new_database, workspace):
    url = mariadb.create_database('tls')
    trusted = f'{url}?ssl_ca={mariadb.authority}&ssl_check_hostname=true'
    with new_database(trusted).engine.reader() as connection:
        assert connection.execute(sa.text("SHOW STATUS LIKE 'Ssl_cipher'")).one()[1]
    foreign, _certificate = certificates.issue(workspace.directory('foreign'))
    with pytest.raises(sa.exc.OperationalError, match='certificate verify failed'):
        sa.create_engine(f'{url}?ssl_ca={foreign}&ssl_check_hostname=true', poolclass=sa.NullPool).connect()
