# SPDX-License-Identifier: Apache-2.0

"""migrator.rpc over a real RabbitMQ, classic and quorum queues, with servers in processes."""

import gc
import os
import pathlib
import threading
import time
import tracemalloc

import kombu
import kombu.transport
import oslo_messaging
import pytest
from oslo_config import cfg

from migrator import context, exception, rpc
from tests.long_run import links
from tests.real.servers import process

CONTEXT = context.RequestContext(user_id='u', project_id='p', overwrite=False)
TOPIC = 'echo'
ANY = rpc.Target(TOPIC)
ONE = rpc.Target(TOPIC, 'one')
SERVICE = str(pathlib.Path(__file__).with_name('echo_service.py'))

QUEUES = pytest.mark.parametrize('queues', ['classic', 'quorum'])


class Wire:
    """One virtual host: services of their own process, and clients of this one."""

    def __init__(self, workspace, directory, url, queues):
        self.workspace = workspace
        self.url = url
        self.file = directory / 'migrator.conf'
        self.file.write_text(
            f'[DEFAULT]\ntransport_url = {url}\n[oslo_messaging_rabbit]\nrabbit_quorum_queue = {queues == "quorum"}\n'
        )
        self.opened = []
        self.rpc = self.client()

    def conf(self):
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(self.file)], default_config_files=[], default_config_dirs=[])
        return conf

    def client(self, url=None):
        """Return an RPC on a transport of its own."""
        transport = rpc.get_transport(self.conf(), url)
        self.opened.append(transport.cleanup)
        return rpc.OsloRPC(transport)

    def service(self, name, wait=True):
        """Start a service."""
        made = process.Script(
            self.workspace, f'echo-{name}', [SERVICE, str(self.file), name], ready=lambda each: 'serves' in each.tail()
        )
        self.opened.append(made.close)
        made.start(wait)
        return made

    def call(self, method, target=ONE, timeout=10, monitor=None, **args):
        return self.rpc.call(CONTEXT, target, method, timeout, monitor, **args)

    def cast(self, method, target=ONE, **args):
        self.rpc.cast(CONTEXT, target, method, **args)

    def works_again(self, target=ONE):
        """Wait until a call is answered; meanwhile nothing but errors of ours may come."""

        def answered():
            try:
                return self.call('who', target, timeout=2)
            except exception.ServiceUnreachable:
                return None

        process.wait_until(answered, f'{target} to answer again', 60)

    def close(self):
        for close in reversed(self.opened):
            close()


@pytest.fixture
def queues():
    return 'classic'


@pytest.fixture
def wire(workspace, tmp_path, rabbitmq, vhost, queues):
    made = Wire(workspace, tmp_path, rabbitmq.url(vhost), queues)
    yield made
    made.close()


class InBackground:
    """A call that goes on while the test does something else."""

    def __init__(self, function, *args, **kwargs):
        self.outcome = None
        self._thread = threading.Thread(target=self._run, args=(function, args, kwargs), daemon=True)
        self._thread.start()

    def _run(self, function, args, kwargs):
        try:
            self.outcome = function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 -- it is looked at by who waits
            self.outcome = error

    def wait(self, timeout=60):
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f'it still goes on after {timeout} s'
        return self.outcome


class Elapsed:
    """The seconds that a block took."""

    def __enter__(self):
        self._began = time.monotonic()
        return self

    def __exit__(self, *_exc_info):
        self.seconds = time.monotonic() - self._began


@QUEUES
def test_calls_casts_and_errors(wire, rabbitmq, vhost, queues):
    one = wire.service('one')
    assert wire.call('who') == 'one'
    wire.cast('note', text='hello')
    process.wait_until(lambda: 'noted hello' in one.tail(), 'the cast to arrive')

    with pytest.raises(exception.InstanceInvalidState) as refused:
        wire.call('refuse')
    assert type(refused.value) is exception.InstanceInvalidState
    assert str(refused.value) == "Cannot 'os-migrateLive' instance i while it is in task_state x: y"
    assert refused.value.kwargs['instance_uuid'] == 'i'
    with pytest.raises(exception.RemoteError, match=r'^echo\.one failed in break_down: ValueError: too old$'):
        wire.call('break_down')
    with pytest.raises(exception.RemoteError, match='NoSuchMethod'):
        wire.call('no_such')

    kinds = {name: queue['type'] for name, queue in rabbitmq.queues(vhost).items()}
    assert kinds['echo'] == kinds['echo.one'] == queues
    one.stop()
    assert one.status == 0
    assert 'ends' in one.tail()


@QUEUES
def test_two_servers_of_one_topic_share_and_each_can_be_meant(wire, queues):
    for name in ('one', 'two'):
        wire.service(name)
    # These first: a server takes from all of its queues at once, and may say that it serves a moment before.
    for name in ('one', 'two'):
        assert {wire.call('who', rpc.Target(TOPIC, name)) for _ in range(3)} == {name}
    assert {wire.call('who', ANY) for _ in range(10)} == {'one', 'two'}


def test_a_server_that_never_was_times_out_and_a_cast_to_it_is_lost_in_silence(wire):
    with (
        Elapsed() as elapsed,
        pytest.raises(exception.RPCTimeout, match=r'^echo\.nobody did not answer who within 1\.\d s'),
    ):
        wire.call('who', rpc.Target(TOPIC, 'nobody'), timeout=1)
    assert elapsed.seconds < 5
    wire.cast('who', rpc.Target(TOPIC, 'nobody'))


@pytest.mark.parametrize('how', ['kill', 'pause'])
def test_a_monitored_call_ends_soon_after_its_server_did(wire, how):
    one = wire.service('one')
    call = InBackground(wire.call, 'slow', timeout=100, monitor=2, seconds=60)
    process.wait_until(lambda: 'slow begins' in one.tail(), 'the call to arrive')
    getattr(one, how)()
    with Elapsed() as elapsed:
        outcome = call.wait(30)
    assert type(outcome) is exception.RPCTimeout
    assert elapsed.seconds < 10
    one.kill()


@pytest.mark.parametrize('monitor', [2, 3])
def test_a_monitored_call_to_a_healthy_server_may_take_long(wire, monitor):
    wire.service('one')
    assert wire.call('slow', timeout=60, monitor=monitor, seconds=8) == 'one'


# No ('kill', 'quorum'): after a single RabbitMQ 3.10 is killed, a quorum queue may find no leader again for any client
# ("leader call - leader not known", rabbitmq-server issue 10070). Quorum queues want three brokers.
@pytest.mark.parametrize(('how', 'queues'), [('stop', 'quorum'), ('kill', 'classic')])
def test_a_broker_that_restarts_loses_no_server_and_no_running_call(wire, rabbitmq, how, queues):
    one = wire.service('one')
    assert wire.call('who') == 'one'
    call = InBackground(wire.call, 'slow', timeout=90, seconds=3)
    process.wait_until(lambda: 'slow begins' in one.tail(), 'the call to arrive')
    getattr(rabbitmq, how)()
    rabbitmq.start()
    wire.works_again()
    # the same handler, once: its answer was kept until there was a broker to take it
    assert call.wait() == 'one'
    assert one.tail(lines=1000).count('slow begins') == 1
    assert wire.call('who', ANY) == 'one'


def test_a_broker_that_is_away_is_waited_for_by_services_and_said_soon_to_callers(wire, rabbitmq):
    one = wire.service('one')
    assert wire.call('who') == 'one'
    rabbitmq.kill()

    two = wire.service('two', wait=False)
    fresh = wire.client()
    attempts = {
        'a call': InBackground(wire.call, 'who', timeout=10),
        'a hasty call': InBackground(wire.call, 'who', timeout=0.5),
        'a cast': InBackground(wire.cast, 'who'),
        'a first call': InBackground(fresh.call, CONTEXT, ONE, 'who', 10),
        'a first cast': InBackground(wire.client().cast, CONTEXT, ONE, 'who'),
    }
    for what, attempt in attempts.items():
        outcome = attempt.wait(20)
        assert type(outcome) is exception.ServiceUnreachable, (what, outcome)
        assert str(outcome).startswith('The message broker is not reachable: '), what

    process.wait_until(lambda: 'begins' in two.tail(), 'the second service to begin')
    process.wait_until(lambda: 'Connection refused' in two.tail(), 'the second service to say so')
    assert one.running
    assert two.running
    rabbitmq.start()
    two.wait_ready()
    wire.works_again(ONE)
    wire.works_again(rpc.Target(TOPIC, 'two'))
    assert fresh.call(CONTEXT, ONE, 'who', 5) == 'one'
    for each in (one, two):
        assert each.tail(lines=1000).count(' ERROR ') == 1, each.tail()


def test_a_service_stops_in_good_order_while_the_broker_is_away(wire, rabbitmq):
    one = wire.service('one')
    rabbitmq.kill()
    with Elapsed() as elapsed:
        one.stop()
    assert one.status == 0
    assert elapsed.seconds < 10


@pytest.mark.parametrize(
    ('wrong', 'reason'), [({'password': 'wrong'}, 'ACCESS_REFUSED'), ({'vhost': 'nowhere'}, 'not found')]
)
def test_a_broker_that_refuses_us_is_said_at_once(wire, rabbitmq, vhost, wrong, reason):
    client = wire.client(rabbitmq.url(**{'vhost': vhost} | wrong))
    with Elapsed() as elapsed:
        for attempt in (
            lambda: client.call(CONTEXT, ONE, 'who', 30),
            lambda: client.cast(CONTEXT, ONE, 'who'),
            lambda: client.serve(ONE, object()),
        ):
            with pytest.raises(exception.ServiceUnreachable, match=f'The message broker is not reachable: .*{reason}'):
                attempt()
    assert elapsed.seconds < 10


@pytest.fixture
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize('retry', [0, 2])
def test_lost_connections_leave_no_socket_and_no_buffer_behind(
    workspace, wire, rabbitmq, monkeypatch, no_garbage_collection, retry
):
    # kombu looks a name up once
    monkeypatch.setattr(kombu.transport, '_transport_cache', {})
    monkeypatch.setitem(kombu.transport.TRANSPORT_ALIASES, 'amqp', 'kombu.transport.pyamqp:Transport')
    rpc.close_lost_connections()
    link = links.Links(workspace)
    url = wire.url.replace(f':{rabbitmq.port}/', f':{link.port("client>broker", rabbitmq.port)}/')
    link.start()
    transport = rpc.get_transport(wire.conf(), url)
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic='nobody')).prepare(retry=retry)

    def outage():
        client.cast({}, 'one')
        link.set('client>broker', links.REFUSED)
        link.set('client>broker', links.OPEN)
        try:
            client.cast({}, 'lost')
        except oslo_messaging.MessageDeliveryFailure:
            assert retry == 0
        client.cast({}, 'two')

    try:
        outage()
        descriptors = len(os.listdir('/proc/self/fd'))
        tracemalloc.start()
        for _ in range(3):
            outage()
        grown, _peak = tracemalloc.get_traced_memory()
        assert len(os.listdir('/proc/self/fd')) == descriptors
        assert grown / 3 < 100_000
    finally:
        tracemalloc.stop()
        transport.cleanup()
        link.kill()


def test_closed_connections_leave_no_buffer_behind(wire, monkeypatch, no_garbage_collection):
    monkeypatch.setattr(kombu.transport, '_transport_cache', {})
    monkeypatch.setitem(kombu.transport.TRANSPORT_ALIASES, 'amqp', 'kombu.transport.pyamqp:Transport')
    rpc.close_lost_connections()
    connection = kombu.Connection(wire.url.replace('rabbit:', 'amqp:'))

    def reopen():
        connection.connect()
        connection.close()

    try:
        reopen()
        descriptors = len(os.listdir('/proc/self/fd'))
        tracemalloc.start()
        for _ in range(3):
            reopen()
        grown, _peak = tracemalloc.get_traced_memory()
        assert len(os.listdir('/proc/self/fd')) == descriptors
        assert grown / 3 < 100_000
    finally:
        tracemalloc.stop()
