# SPDX-License-Identifier: Apache-2.0

"""Services that cannot start: one clear line and the exit status, or a wait that is logged once.

What needs no server is in tests/unit/cmd.
"""

from __future__ import annotations

import collections
import contextlib
import http.server
import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import threading
import time

import pytest
import sqlalchemy as sa

from tests import backends
from tests.real import starts
from tests.real.cloud import ProcessCloud
from tests.real.servers import process
from tests.real.site import Shape, Site
from tests.unit.cmd import processes


@pytest.fixture
def start(tmp_path: pathlib.Path) -> starts.Start:
    return starts.Start(tmp_path)


# --- the broker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['compute', 'conductor'])
@pytest.mark.parametrize(
    ('user', 'password', 'where', 'words'),
    [
        ('guest', starts.HUSH, '{vhost}', 'ACCESS_REFUSED'),
        ('nobody', 'guest', '{vhost}', 'ACCESS_REFUSED'),
        ('guest', 'guest', 'nowhere', 'vhost nowhere not found'),
    ],
)
def test_a_broker_that_refuses_is_a_configuration_to_be_mended(
    start, rabbitmq, vhost, kind, user, password, where, words
):
    start.sync()
    url = rabbitmq.url(where.format(vhost=vhost), user, password)
    line = start.refused(kind, transport_url=url)
    assert '[DEFAULT] transport_url' in line
    assert f'rabbit://***@127.0.0.1:{rabbitmq.port}/' in line
    assert words in line
    assert line.endswith('look at the user, the password and the virtual host.')


@pytest.mark.parametrize('kind', ['compute', 'conductor', 'api'])
@pytest.mark.parametrize(
    ('url', 'words'),
    [
        ('rabbit', "is 'rabbit': No scheme"),
        ('127.0.0.1:5672', "is '127.0.0.1:5672'"),
        ('', "is '': No scheme"),
        (f'rabbit://u:{starts.HUSH}@h:port/', "is 'rabbit://***@h:port/'"),
        (f'rabbit://u:{starts.HUSH}@[::1/', "is 'rabbit://***@[::1/'"),
        (f'carrier-pigeon://u:{starts.HUSH}@h/', "is 'carrier-pigeon://***@h/'"),
    ],
)
def test_a_transport_url_that_is_none_is_named_with_how_one_looks(start, kind, url, words):
    start.sync()
    line = start.refused(kind, transport_url=url)
    assert f'Option [DEFAULT] transport_url {words}' in line
    assert line.endswith('write it as rabbit://USER:PASSWORD@HOST:5672/VHOST.')


def test_a_port_that_only_the_driver_finds_wrong_is_not_waited_for(start):
    line = start.refused('compute', transport_url=f'rabbit://u:{starts.HUSH}@127.0.0.1:5672:1/')
    assert "is 'rabbit://***@127.0.0.1:5672:1/'" in line
    assert 'write it as rabbit://' in line


def test_a_broker_that_is_away_is_named_once_and_waited_for(start):
    url = f'rabbit://u:{starts.HUSH}@127.0.0.1:{process.free_port()}/'
    with start.running('compute', transport_url=url) as service:
        line = service.wait_for('The message broker is not reachable: rabbit://***@127.0.0.1:')
        assert 'Service waits: migrator-compute: ' in line
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert len(starts.said(service)) == 1


@pytest.mark.slow
@pytest.mark.parametrize('when', ['Starting service migrator-compute', 'Started service migrator-compute'])
def test_a_compute_that_no_conductor_has_answered_yet_stops_as_it_should(start, rabbitmq, vhost, when):
    with start.running('compute', transport_url=rabbitmq.url(vhost)) as service:
        service.wait_for(when)
        time.sleep(1.2)  # it has asked a conductor something by now, and waits for the answer
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert 'conductor failed in' not in service.text()
        assert [line for line in starts.said(service) if '[fake] world is not set' not in line] == []


@pytest.mark.slow
def test_an_api_that_the_broker_refuses_says_so_once_and_its_requests_are_taken_up_by_the_sweep(
    workspace, postgresql, rabbitmq, placement_http
):
    with one_site(workspace, postgresql, rabbitmq, placement_http, hosts=2) as cloud:
        site = cloud.site
        api = site.services['api1']
        api.stop()
        site.configure('api1', transport_url=rabbitmq.url(site.vhost, site.user('api1'), starts.HUSH))
        api.start()
        instances = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(2)]
        for instance in instances:
            assert cloud.live_migrate(instance, 'host2').status_int == 202
        cloud.wait(60)
        assert {cloud.migrations(instance)[0].status for instance in instances} == {'completed'}
        lines = api.tail(api._since, lines=1000).splitlines()
        assert len([line for line in lines if 'the broker refuses it' in line]) == 1
        assert not [line for line in lines if starts.HUSH in line or 'Traceback' in line]
        assert len([line for line in lines if ' ERROR ' in line or ' WARNING ' in line]) == 2, lines
        api.stop()
        assert api.status == 0


# --- the database ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['api', 'conductor'])
def test_database_that_refuses_the_login_ends_the_service(start, database_url, kind):
    wrong = sa.engine.make_url(database_url).set(password=starts.HUSH).render_as_string(hide_password=False)
    line = start.refused(kind, database__connection=wrong)
    assert 'Option [database] connection is ' in line
    assert 'password authentication failed' in line
    line = start.refused(kind, database__connection=f'{database_url}_no')
    assert re.search(r'database "test_\w+_no" does not exist', line)


@pytest.mark.parametrize('kind', ['api', 'conductor'])
def test_a_schema_of_another_release_says_what_to_do(start, database_url, kind):
    start.options['database.connection'] = database_url
    assert "run 'migrator-manage db sync'" in start.refused(kind)
    start.sync()
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    line = start.refused(kind)
    assert 'another commit of migrator has written it (its schema is 9999' in line
    assert 'let that commit finish what is in progress there' in line


def test_a_database_server_that_is_away_is_named_once_and_waited_for(start):
    port = process.free_port()
    url = f'postgresql+psycopg2://migrator:{starts.HUSH}@127.0.0.1:{port}/migrator'
    with start.running('conductor', database__connection=url) as service:
        line = service.wait_for('The database is not reachable')
        assert f'port {port} failed' in line
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert len(starts.said(service)) == 1
        assert starts.HUSH not in service.text()
    done = start.manage('service', 'list', database__connection=url)
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (3, '', 1)
    assert starts.HUSH not in done.stderr


@pytest.mark.parametrize('server', ['postgresql', 'mariadb'], indirect=True)
def test_a_database_that_becomes_read_only_is_said_once(start, server, server_url, rabbitmq, vhost):
    common = {'database__connection': server_url, 'transport_url': rabbitmq.url(vhost)}
    name = sa.engine.make_url(server_url).database
    with start.running('conductor', **common) as service, start.running('compute', **common):
        service.wait_for('Waiting for Placement')  # the host has registered
        server.make_read_only(name)
        service.wait_for('The database is read-only')
        service.signal(signal.SIGTERM)  # the end of the lease cannot be written either
        assert service.status() == 0
        assert 'Traceback' not in service.text()
        assert len([line for line in starts.said(service) if 'read-only' in line]) == 1
    server.make_read_only(name, False)


# --- Placement -------------------------------------------------------------------------------------------------------


class Answerer(http.server.ThreadingHTTPServer):
    """A server that answers everything alike, and counts."""

    def __init__(self, status: int, body: bytes) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get('Content-Length') or 0))
                self.server.asked[self.path] += 1  # type: ignore[attr-defined]
                self.send_response(status)
                self.send_header('Content-Type', 'application/json')
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 -- the library's name for it

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        super().__init__(('127.0.0.1', 0), Handler)
        self.asked: collections.Counter[str] = collections.Counter()

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_address[1]}'


@contextlib.contextmanager
def answering(status, body=b'{}'):
    with Answerer(status, body) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ('status', 'body', 'words'),
    [
        (403, b'{}', 'Placement does not let migrator in (it answered 403'),
        (404, b'<html>', 'is not Placement: look at endpoint_override in [placement]'),
        (404, b'{"errors": [{"status": 404}]}', 'look at endpoint_override in [placement]'),
        (500, b'', 'Placement is not reachable: it answered 500'),
    ],
)
def test_unusable_placement_is_logged_once_and_the_conductor_goes_on(start, status, body, words):
    start.sync()
    with answering(status, body) as server, start.running('conductor', placement__endpoint_override=server.url) as one:
        one.wait_for('Started service migrator-conductor')
        # It has asked again, and again: what it says, it says once.
        process.wait_until(lambda: server.asked['/resource_classes'] >= 3, 'Placement to be asked again')
        one.signal(signal.SIGTERM)
        assert one.status() == 0
        (line,) = starts.said(one)
        assert words in line
        assert 'Service waits: migrator-conductor: ' in line


def test_an_identity_service_that_refuses_the_credentials_is_said_once(start):
    start.sync()
    with answering(401) as server:
        options = {
            'auth_type': 'v3password', 'auth_url': f'{server.url}/v3', 'username': 'migrator', 'password': starts.HUSH,
            'user_domain_id': 'default', 'project_name': 'service', 'project_domain_id': 'default',
        }  # fmt: skip
        with start.running('conductor', **{f'placement__{name}': value for name, value in options.items()}) as one:
            process.wait_until(lambda: server.asked['/v3/auth/tokens'] >= 3, 'Keystone to be asked again')
            one.signal(signal.SIGTERM)
            assert one.status() == 0
            (line,) = starts.said(one)
            assert 'look at auth_type and the credentials in [placement]' in line
            assert starts.HUSH not in one.text()


def test_a_real_placement_that_does_not_know_the_user_is_said_and_one_that_does_is_not(start, placement_http):
    start.sync()
    start.options |= {'placement.auth_type': 'admin_token', 'placement.endpoint': placement_http.url}
    del start.options['placement.endpoint_override']
    with start.running('conductor', placement__token='nobody:nothing') as one:
        line = one.wait_for('Placement does not let migrator in')
        assert 'Policy does not allow placement' in line
    with start.running('conductor', placement__token='admin') as one:
        one.wait_for('Started service migrator-conductor')
        one.signal(signal.SIGTERM)
        assert one.status() == 0
        assert starts.said(one) == []


def test_an_address_of_placement_that_is_none_is_a_configuration_to_be_mended(start):
    start.sync()
    line = start.refused('conductor', placement__endpoint_override='placement:8778')
    assert "Option [placement] endpoint_override is 'placement:8778': it is not the URL of a service" in line


# --- what another service has ----------------------------------------------------------------------------------------


#: 256 MiB/s: the copy of 1 GiB takes some seconds, so that a test finds it running.
SLOW_LINK = ('--link', '256')


@contextlib.contextmanager
def one_site(workspace, postgresql, rabbitmq, placement_http, **shape):
    """A running site, and its cloud."""
    site = Site(workspace, Shape(**shape), rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site)
    try:
        cloud.simulation.run_until(cloud.up)
        yield cloud
    finally:
        cloud.close()
        site.end()


def wrongs(service, since):
    """Return what a site's service has said since then that was not as it should be."""
    lines = service.tail(since, lines=100_000).splitlines()
    return [line for line in lines if re.search(' (WARNING|ERROR|CRITICAL) ', line)]


@pytest.mark.slow
def test_a_second_compute_of_one_name_says_so_and_ends_and_the_first_goes_on_undisturbed(
    workspace, postgresql, rabbitmq, placement_http, tmp_path
):
    with one_site(workspace, postgresql, rabbitmq, placement_http, hosts=2, world=SLOW_LINK) as cloud:
        site = cloud.site
        sizes = {name: service.log.stat().st_size for name, service in site.services.items()}
        boot = cloud.database.services.get_compute('host1').boot_id
        instance = cloud.boot('guest', 'host1', memory_mb=1024)
        assert cloud.live_migrate(instance, 'host2').status_int == 202
        cloud.simulation.run_until(lambda: cloud.migrations(instance)[0].status == 'running')

        status, line = processes.refused(tmp_path, 'compute', '--config-file', str(site.services['host1'].file))
        assert status == 2
        assert line == (
            "migrator-compute: Option [DEFAULT] host is 'host1': another compute service has that name, and answers: "
            'stop it, or give this one a name of its own.'
        )

        cloud.wait(60)
        assert cloud.migrations(instance)[0].status == 'completed'
        assert cloud.database.services.get_compute('host1').boot_id == boot
        assert cloud.world.hypervisors['host1'].look()['starts'] == 1
        for name, service in site.services.items():
            assert wrongs(service, sizes[name]) == [], name


@pytest.mark.slow
def test_a_compute_that_was_killed_has_its_name_again_at_once(workspace, postgresql, rabbitmq, placement_http):
    with one_site(workspace, postgresql, rabbitmq, placement_http, hosts=1) as cloud:
        first = cloud.database.services.get_compute('host1').boot_id
        cloud.site.services['host1'].kill()
        cloud.site.services['host1'].start()
        cloud.simulation.run_until(lambda: cloud.database.services.get_compute('host1').boot_id != first, 60)


def test_without_a_conductor_a_compute_starts_and_registers_when_there_is_one(start, rabbitmq, vhost):
    with start.running('compute', transport_url=rabbitmq.url(vhost)) as service:
        service.wait_for('Started service migrator-compute')
        assert 'No conductor answers yet whether another compute service has the name h1' in service.text()
        service.signal(signal.SIGTERM)
        assert service.status() == 0


def test_a_port_in_use_is_one_line_and_who_has_it_goes_on(start):
    start.sync()
    with start.running('api') as first:
        url = next(word for word in first.wait_for('The API is at').split() if word.startswith('http://'))
        port = int(url.split(':')[2].partition('/')[0])
        second = starts.Start(
            start.directory / 'second', **{'database.connection': start.options['database.connection']}
        )
        second.directory.mkdir()
        line = second.refused('api', api__listen_port=port)
        assert f'Option [api] listen_port is {port}: something else listens there' in line
        assert first.child.poll() is None
        assert starts.said(first) == []


@pytest.mark.skipif(importlib.util.find_spec('libvirt') is not None, reason='libvirt can be imported here')
def test_the_driver_that_is_the_default_says_what_it_lacks(start):
    del start.options['compute.driver']
    line = start.refused('compute')
    assert "Option [compute] driver is 'libvirt': the module libvirt cannot be imported" in line
    assert 'set driver to fake' in line


# --- a clock that jumps ----------------------------------------------------------------------------------------------

#: A service whose wall clock is that of a file's number of seconds off.
JUMPY = """
import datetime, pathlib, runpy, sys, time

from migrator import executors

offset, module = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1)
right = time.time

def wrong():
    return right() + float(offset.read_text() or 0)

time.time = wrong
executors.SystemClock.now = lambda self: datetime.datetime.fromtimestamp(wrong(), datetime.UTC)
runpy.run_module(module, run_name='__main__', alter_sys=True)
"""


@pytest.mark.slow
def test_a_clock_that_jumps_in_the_middle_of_everything_disturbs_nothing(
    workspace, postgresql, rabbitmq, placement_http, tmp_path
):
    script, offset = tmp_path / 'jumpy.py', tmp_path / 'offset'
    script.write_text(JUMPY)
    offset.write_text('0')
    options = (('conductor.lease', 6), ('report_interval', 2), ('service_down_time', 20))
    shape = Shape(hosts=2, options=options, world=SLOW_LINK)
    site = Site(workspace, shape, rabbitmq, postgresql, placement_http)
    for service in site.services.values():
        # ['-m', MODULE, '--config-file', FILE]
        service._arguments = [str(script), str(offset), *service._arguments[1:]]
    site.start()
    cloud = ProcessCloud(site)
    try:
        cloud.simulation.run_until(cloud.up)
        (boot,) = cloud.database.conductors.list()
        sizes = {name: service.log.stat().st_size for name, service in site.services.items()}
        for jump in ('86400', '-172800', '0'):
            instance = cloud.boot('guest', 'host1', memory_mb=1024)
            assert cloud.live_migrate(instance, 'host2').status_int == 202
            cloud.simulation.run_until(lambda instance=instance: cloud.migrations(instance)[0].status == 'running')
            offset.write_text(jump)
            cloud.wait(60)
            assert cloud.migrations(instance)[0].status == 'completed', jump
            now = cloud.database.services.now()
            for service in cloud.database.services.list():
                assert service.is_up(now, 20), (jump, service)
        # A lease that had run out would have begun another boot.
        assert [one.id for one in cloud.database.conductors.list()] == [boot.id]
        for name, service in site.services.items():
            assert wrongs(service, sizes[name]) == [], name
    finally:
        cloud.close()
        site.end()


# --- a disk that is full ---------------------------------------------------------------------------------------------


def fill_up(file):
    with contextlib.suppress(OSError), file.open('wb', buffering=0) as full:
        while True:
            full.write(b'\0' * 512)


@pytest.fixture
def small(tmp_path):
    """A disk of 1 MiB, which only root can have."""
    folder = tmp_path / 'small'
    folder.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        backends.left_out(f'a small disk cannot be mounted here: {done.stderr.strip()}')
    yield folder
    subprocess.run(['umount', str(folder)], check=True)


def test_a_schema_that_does_not_fit_on_the_disk_is_one_line_and_status_3(start, small):
    start.options['database.connection'] = f'sqlite:///{small}/migrator.sqlite'
    fill_up(small / 'filler')
    done = start.manage('db', 'sync')
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (3, '', 1)
    assert 'database or disk is full' in done.stderr
    (small / 'filler').unlink()
    start.sync()


@pytest.mark.parametrize('kind', ['api', 'conductor'])
def test_a_service_that_starts_on_a_full_disk_says_so_once_and_goes_on_when_there_is_room(start, small, kind):
    start.options['database.connection'] = f'sqlite:///{small}/migrator.sqlite'
    start.sync()
    fill_up(small / 'filler')
    with start.running(kind) as service:
        line = service.wait_for('The database is not reachable')
        assert 'check whether its disk is full' in line
        assert f'Service waits: migrator-{kind}: ' in line
        (small / 'filler').unlink()
        service.wait_for(f'Started service migrator-{kind}')
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert len([one for one in starts.said(service) if 'database' in one.lower()]) == 1


@pytest.mark.slow
def test_a_disk_that_becomes_full_under_a_conductor_is_said_once_and_it_goes_on_when_there_is_room(start, small):
    start.options |= {'database.connection': f'sqlite:///{small}/migrator.sqlite', 'conductor.lease': 15}
    start.sync()
    with start.running('conductor') as service:
        service.wait_for('Started service migrator-conductor')
        fill_up(small / 'filler')
        service.wait_for('The database is not reachable')
        (small / 'filler').unlink()
        since = listed(start)['now']
        process.wait_until(lambda: listed(start)['services'][0]['last_seen_up'] > since, 'it to report again')
        assert listed(start)['services'][0]['lease']['boots'] == 1
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert service.text().count('The database is not reachable') == 1
        assert 'Traceback' not in service.text()


def listed(start):
    """Return what the services say of themselves in the database."""
    done = start.manage('service', 'list', '--json')
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_log_that_is_full_is_said_once_on_stderr_and_the_service_goes_on(start):
    start.sync()
    with start.running('api', log_file='/dev/full') as service:
        line = service.wait_for('The log cannot be written')
        assert '/dev/full' in line
        assert 'No space left on device' in line
        # It serves: its port is open.
        process.wait_until(lambda: any(listening(service.child.pid)), 'the API to listen')
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert service.lines() == [line]


def listening(pid):
    """Return the inodes of the sockets of a process that listen."""
    table = pathlib.Path(f'/proc/{pid}/net/tcp').read_text().splitlines()[1:]
    open_ = {line.split()[9] for line in table if line.split()[3] == '0A'}
    mine = set()
    for link in pathlib.Path(f'/proc/{pid}/fd').iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            mine.add(link.readlink().name)
    return [inode for inode in open_ if f'socket:[{inode}]' in mine]
