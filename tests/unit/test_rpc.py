# SPDX-License-Identifier: Apache-2.0

"""The contract of RPC: one suite, over fake://, over DirectRPC, and over the socket of a demo."""

import contextlib
import functools
import gc
import pathlib
import re
import socket
import sys
import tempfile
import threading
import tracemalloc

import amqp
import kombu
import kombu.transport
import pytest
from oslo_config import cfg
from oslo_messaging._drivers import common as driver_common

from migrator import context, exception, executors, rpc
from migrator.demo import channel, transport
from migrator.objects import protocol
from migrator.testing.bus import DirectBus
from migrator.testing.rpc import DirectRPC

CONTEXT = context.RequestContext(user_id='u', project_id='p', roles=['admin'], is_admin=True, overwrite=False)


class LocalError(exception.InstanceNotFound):
    """A migrator error that is defined only in this file."""

    msg_fmt = 'A migrator error that is defined only in this file.'


class Endpoint:
    """The endpoint of a service. It records its arguments."""

    def __init__(self, name='one'):
        self.name = name
        self.seen = []
        self.noted = threading.Event()
        self.go_on = threading.Event()

    @rpc.expose
    def echo(self, context, value=None):
        self.seen.append((context, value))
        self.noted.set()
        return value

    @rpc.expose
    def who(self, context):
        return self.name

    @rpc.expose
    def slow(self, context):
        self.noted.set()
        self.go_on.wait(10)
        return 'late'

    @rpc.expose
    def refuse(self, context):
        raise exception.InstanceInvalidState(
            method='os-migrateLive', instance_uuid='i', attr='task_state', state='x', facts='y'
        )

    @rpc.expose
    def refuse_with_odd_kwargs(self, context):
        raise exception.GuestNotFound(host=rpc.Target('a', 'b'), instance_uuid=None)

    @rpc.expose
    def refuse_with_text(self, context):
        raise exception.NoValidHost('only this text')

    @rpc.expose
    def refuse_locally(self, context):
        raise LocalError(instance_uuid='i')

    @rpc.expose
    def break_down(self, context):
        raise KeyError('dsn')

    @rpc.expose
    def return_what_cannot_travel(self, context):
        return object()

    def hidden(self, context):
        raise AssertionError('never')


class Oslo:
    """OsloRPC over fake://, on a ConfigOpts of its own."""

    def __init__(self):
        conf = cfg.ConfigOpts()
        conf([])
        self.transport = rpc.get_transport(conf, 'fake://')
        self.rpc = rpc.OsloRPC(self.transport)

    def serve(self, target, endpoint):
        return self.rpc.serve(target, endpoint)

    def close(self):
        self.transport.cleanup()


class Direct:
    """DirectRPC on real threads."""

    def __init__(self):
        bus, threads = DirectBus(), executors.NativeThreads()
        self.rpc = DirectRPC(bus, 'api:1', threads)
        self._server_rpc = DirectRPC(bus, 'conductor:1', threads)

    def serve(self, target, endpoint):
        return self._server_rpc.serve(target, endpoint)

    def close(self):
        pass


class OverSocket:
    """OsloRPC of a command, over the socket of a demo, to services on DirectRPC."""

    def __init__(self):
        self._services = Direct()
        self._directory = tempfile.TemporaryDirectory()
        directory = pathlib.Path(self._directory.name)
        answer = functools.partial(transport.deliver, self._services.rpc)
        self._stop = channel.serve(directory, lambda asked: answer(asked['rpc']), executors.NativeThreads())
        conf = cfg.ConfigOpts()
        conf([])
        self.transport = rpc.get_transport(conf, transport.url(directory))
        self.rpc = rpc.OsloRPC(self.transport)

    def serve(self, target, endpoint):
        return self._services.serve(target, endpoint)

    def close(self):
        self.transport.cleanup()
        self._stop()
        self._directory.cleanup()


TARGET = rpc.Target('conductor', 'one')


# One for all tests of this file: the stop of an oslo.messaging server takes a second.
@pytest.fixture(params=[Oslo, Direct, OverSocket], scope='module')
def wire(request):
    wire = request.param()
    wire.endpoint = Endpoint()
    served = wire.serve(rpc.Target('conductor', 'one', version='1.3'), wire.endpoint)
    yield wire
    served.stop()
    wire.close()


@pytest.fixture
def endpoint(wire):
    wire.endpoint.__init__()
    yield wire.endpoint
    wire.endpoint.go_on.set()


def call(wire, method, target=TARGET, timeout=5, **args):
    return wire.rpc.call(CONTEXT, target, method, timeout, **args)


def test_arguments_and_results_keep_their_kind_and_are_copies(wire, endpoint):
    guest = protocol.Guest(instance_uuid='i', state='running')
    sent = {'guests': [guest], 'none': None, 'number': 1.5, 'text': 'ü'}
    assert call(wire, 'echo', value=sent) == sent
    seen = endpoint.seen[0][1]
    assert seen == sent
    assert seen is not sent


def test_the_context_arrives_without_a_token(wire, endpoint):
    secret = context.RequestContext(user_id='u', auth_token='secret', overwrite=False)
    wire.rpc.call(secret, TARGET, 'echo', 5)
    seen = endpoint.seen[0][0]
    assert (seen.user_id, seen.request_id, seen.auth_token) == ('u', secret.request_id, None)


@pytest.mark.parametrize(
    ('method', 'kind', 'message', 'kwargs'),
    [
        (
            'refuse',
            exception.InstanceInvalidState,
            "Cannot 'os-migrateLive' instance i while it is in task_state x: y",
            {'method': 'os-migrateLive', 'instance_uuid': 'i', 'attr': 'task_state', 'state': 'x', 'facts': 'y'},
        ),
        (
            'refuse_with_odd_kwargs',
            exception.GuestNotFound,
            'Host a.b has no guest None.',
            {'host': 'a.b', 'instance_uuid': None},
        ),
        ('refuse_with_text', exception.NoValidHost, 'only this text', {}),
        ('refuse_locally', exception.InstanceNotFound, 'A migrator error that is defined only in this file.', None),
    ],
)
def test_migrator_error_keeps_class_message_and_kwargs(wire, endpoint, method, kind, message, kwargs):
    with pytest.raises(exception.MigratorException) as caught:
        call(wire, method)
    assert type(caught.value) is kind
    assert (str(caught.value), caught.value.message) == (message, message)
    assert caught.value.kwargs == ({'instance_uuid': 'i'} if kwargs is None else kwargs)


@pytest.mark.parametrize(
    ('method', 'kind', 'reason', 'args'),
    [
        ('break_down', 'KeyError', "'dsn'", {}),
        ('return_what_cannot_travel', 'TypeError', 'object cannot go over the wire', {}),
        ('echo', 'TypeError', "Endpoint.echo() got an unexpected keyword argument 'other'", {'other': 1}),
        ('hidden', 'NoSuchMethod', 'Endpoint does not support RPC method hidden', {}),
        ('no_such', 'NoSuchMethod', 'Endpoint does not support RPC method no_such', {}),
        ('__init__', 'NoSuchMethod', 'Endpoint does not support RPC method __init__', {}),
        ('seen', 'NoSuchMethod', 'Endpoint does not support RPC method seen', {}),
    ],
)
def test_other_error_becomes_remote_error_with_target_method_and_reason(wire, endpoint, method, kind, reason, args):
    with pytest.raises(exception.RemoteError) as caught:
        call(wire, method, **args)
    assert type(caught.value) is exception.RemoteError
    assert caught.value.kwargs == {'target': 'conductor.one', 'method': method, 'kind': kind, 'reason': reason}
    assert str(caught.value) == f'conductor.one failed in {method}: {kind}: {reason}'


@pytest.mark.parametrize('version', ['1.4', '2.0'])
def test_a_version_that_is_not_served_is_refused(wire, endpoint, version):
    with pytest.raises(exception.RemoteError, match=f'UnsupportedVersion: .*RPC version {version}. Attempted'):
        call(wire, 'who', rpc.Target('conductor', 'one', version=version))
    assert call(wire, 'who', rpc.Target('conductor', 'one', version='1.3')) == 'one'


def test_unserializable_argument_raises_type_error_at_the_caller(wire, endpoint):
    with pytest.raises(TypeError, match='object cannot go over the wire'):
        call(wire, 'echo', value=object())
    with pytest.raises(TypeError, match='object cannot go over the wire'):
        wire.rpc.cast(CONTEXT, TARGET, 'echo', value=object())
    assert endpoint.seen == []


def test_a_call_to_a_server_that_is_not_there_times_out_and_a_cast_is_lost(wire, endpoint):
    absent = rpc.Target('conductor', 'absent')
    with pytest.raises(exception.RPCTimeout) as caught:
        call(wire, 'who', absent, timeout=0.1)
    assert type(caught.value) is exception.RPCTimeout
    # It names the time that it has waited, which is longer on a busy machine.
    assert re.fullmatch(r'conductor\.absent did not answer who within \d+\.\d s\.', str(caught.value))
    wire.rpc.cast(CONTEXT, absent, 'who')
    with pytest.raises(exception.RPCTimeout, match=r'^nothing did not answer'):
        call(wire, 'who', rpc.Target('nothing'), timeout=0.1)


def test_an_answer_that_comes_too_late_is_a_time_out_though_the_work_is_done(wire, endpoint):
    with pytest.raises(exception.RPCTimeout, match=r'did not answer slow within \d+\.\d s'):
        call(wire, 'slow', timeout=0.2)
    assert endpoint.noted.wait(10)
    endpoint.go_on.set()
    assert call(wire, 'who') == 'one'


def test_a_cast_returns_at_once_and_arrives(wire, endpoint):
    wire.rpc.cast(CONTEXT, TARGET, 'slow')
    assert endpoint.noted.wait(5)
    wire.rpc.cast(CONTEXT, TARGET, 'break_down')
    wire.rpc.cast(CONTEXT, TARGET, 'refuse')
    assert call(wire, 'who') == 'one'


def test_slow_handler_does_not_delay_another(wire, endpoint):
    wire.rpc.cast(CONTEXT, TARGET, 'slow')
    assert endpoint.noted.wait(5)
    assert [call(wire, 'who') for _ in range(3)] == ['one'] * 3


def test_topic_is_answered_by_any_running_server(wire):
    served = {name: wire.serve(rpc.Target('pair', name), Endpoint(name)) for name in ('one', 'two')}
    assert {call(wire, 'who', rpc.Target('pair')) for _ in range(5)} <= {'one', 'two'}
    assert call(wire, 'who', rpc.Target('pair', 'two')) == 'two'
    served['two'].stop()
    with pytest.raises(exception.RPCTimeout):
        call(wire, 'who', rpc.Target('pair', 'two'), timeout=0.2)
    assert [call(wire, 'who', rpc.Target('pair')) for _ in range(3)] == ['one'] * 3
    served['one'].stop()


def test_stopping_waits_for_the_handler_that_runs(wire):
    target, endpoint = rpc.Target('conductor', 'stopping'), Endpoint()
    served = wire.serve(target, endpoint)
    wire.rpc.cast(CONTEXT, target, 'slow')
    assert endpoint.noted.wait(5)
    stopped = threading.Event()
    thread = threading.Thread(target=lambda: (served.stop(), stopped.set()))
    thread.start()
    assert not stopped.wait(0.1)
    endpoint.go_on.set()
    assert stopped.wait(5)
    thread.join()


# --- behaviour of the driver of a real broker -------------------------------------------------------------------------


def through_a_broker(error):
    """Return an error as the driver of a real broker rebuilds it after transport."""
    try:
        raise error
    except Exception:  # noqa: BLE001 -- sys.exc_info() has it
        data = driver_common.serialize_remote_exception(sys.exc_info())
    return driver_common.deserialize_remote_exception(data, [exception.__name__])


@pytest.mark.parametrize(
    ('error', 'kind', 'message'),
    [
        (exception.InstanceNotFound(instance_uuid='i'), exception.InstanceNotFound, 'Instance i could not be found.'),
        (ValueError('too old'), exception.RemoteError, 'conductor.one failed in who: ValueError: too old'),
    ],
)
def test_error_rebuilt_by_oslo_messaging_becomes_a_migrator_error(monkeypatch, error, kind, message):
    wire = Oslo()
    rebuilt = through_a_broker(error)

    def send(*args, **kwargs):
        raise rebuilt

    monkeypatch.setattr(wire.transport, '_send', send)
    with pytest.raises(exception.MigratorException) as caught:
        call(wire, 'who')
    assert type(caught.value) is kind
    assert str(caught.value) == message
    wire.close()


def test_unreachable_broker_raises_service_unreachable(monkeypatch):
    wire = Oslo()

    def send(*args, **kwargs):
        raise rpc.oslo_messaging.MessageDeliveryFailure('refused')

    monkeypatch.setattr(wire.transport, '_send', send)
    for attempt in (lambda: call(wire, 'who'), lambda: wire.rpc.cast(CONTEXT, TARGET, 'who')):
        with pytest.raises(exception.ServiceUnreachable, match='The message broker is not reachable: refused'):
            attempt()
    wire.close()


def test_transport_without_url_comes_from_the_configuration(tmp_path):
    file = tmp_path / 'migrator.conf'
    file.write_text('[DEFAULT]\ntransport_url = fake://\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], default_config_files=[], default_config_dirs=[])
    transport = rpc.get_transport(conf)
    assert type(transport._driver).__name__ == 'FakeDriver'
    # A second transport in the same process must work too.
    rpc.get_transport(conf).cleanup()
    transport.cleanup()


def test_dollar_in_a_password_is_an_error_that_says_how_to_write_it(tmp_path):
    file = tmp_path / 'migrator.conf'
    for written, is_right in (('rabbit://u:hu$sh@h/', False), ('fake://u:hu$$sh@h/', True)):
        file.write_text(f'[DEFAULT]\ntransport_url = {written}\n')
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(file)], default_config_files=[], default_config_dirs=[])
        if is_right:
            rpc.get_transport(conf).cleanup()
            continue
        with pytest.raises(
            exception.ConfigurationError, match=r'\[DEFAULT\] transport_url.*write \$\$ for a \$'
        ) as raised:
            rpc.get_transport(conf)
        assert 'hu' not in str(raised.value)


@pytest.mark.parametrize(
    ('url', 'words'),
    [
        ('kaninchen://u:hush@h', ["'kaninchen://***@h'", "No 'oslo.messaging.drivers' driver found"]),
        ('nonsense', ["'nonsense'", 'No scheme specified']),
        ('', ["''", 'No scheme specified']),
        ('rabbit://u:hush@h:port/', ["'rabbit://***@h:port/'", 'its port is not a number']),
        ('rabbit://u:hush/hush@h:5672/', ["'rabbit://***@h:5672/'", 'written as %2F']),
    ],
)
def test_invalid_url_raises_configuration_error_without_password(tmp_path, url, words):
    """oslo.messaging raises three classes of errors. One of them, a ValueError, quotes from the password."""
    file = tmp_path / 'migrator.conf'
    file.write_text(f'[DEFAULT]\ntransport_url = {url}\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], default_config_files=[], default_config_dirs=[])
    for given, option in ((None, '[DEFAULT] transport_url'), (url, 'url' if url else '[DEFAULT] transport_url')):
        with pytest.raises(exception.ConfigurationError) as reported:
            rpc.get_transport(conf, given)
        for word in [f'Option {option} is ', *words, 'write it as rabbit://USER:PASSWORD@HOST:5672/VHOST.']:
            assert word in str(reported.value)
        assert 'hush' not in str(reported.value)


@pytest.fixture
def listener():
    """A server that reads the first eight bytes of each connection, AMQP's header, and closes it."""
    with socket.create_server(('127.0.0.1', 0)) as listening:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as accepted:
                        accepted.recv(8, socket.MSG_WAITALL)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listening
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def kombu_transport(monkeypatch):
    # kombu looks a name up once.
    monkeypatch.setattr(kombu.transport, '_transport_cache', {})
    monkeypatch.setitem(kombu.transport.TRANSPORT_ALIASES, 'amqp', 'kombu.transport.pyamqp:Transport')
    rpc.close_lost_connections()


@pytest.mark.usefixtures('kombu_transport')
def test_failed_handshakes_leave_no_socket_and_no_buffer_behind(listener):
    # A socket that stayed would be in the traced memory, too: the connection refers to it.
    connection = kombu.Connection(f'amqp://u:p@127.0.0.1:{listener.getsockname()[1]}/', connect_timeout=5)
    assert isinstance(connection.transport, rpc._Transport)

    def attempt():
        with pytest.raises(OSError):
            connection.transport.establish_connection()

    gc.collect()
    gc.disable()
    try:
        attempt()
        tracemalloc.start()
        for _ in range(3):
            attempt()
        grown, _peak = tracemalloc.get_traced_memory()
        assert grown / 3 < 100_000
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.usefixtures('kombu_transport')
def test_frame_on_a_collected_connection_is_an_error_and_does_not_connect_again():
    connection = rpc._Connection()
    connection.collect()
    with pytest.raises(amqp.RecoverableConnectionError, match='is closed'):
        connection.send_heartbeat()
