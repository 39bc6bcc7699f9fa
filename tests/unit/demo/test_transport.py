# SPDX-License-Identifier: Apache-2.0

"""The errors of a command whose demo is away, does not answer, or answers too much."""

import socket

import pytest
from oslo_config import cfg

from migrator import context, exception, executors, rpc
from migrator.demo import channel, transport

TARGET = rpc.Target('conductor', 'one')


@pytest.fixture
def ask(tmp_path):
    """Call a method of a service of the demo that is in ``tmp_path``."""
    conf = cfg.ConfigOpts()
    conf([])
    made = rpc.get_transport(conf, transport.url(tmp_path))
    yield lambda timeout=5.0, **args: rpc.OsloRPC(made).call(context.admin_context(), TARGET, 'who', timeout, **args)
    made.cleanup()


def answering(tmp_path, answer):
    return channel.serve(tmp_path, answer, executors.NativeThreads())


def test_demo_that_has_ended_or_was_killed_is_an_unreachable_broker(tmp_path, ask):
    with pytest.raises(exception.ServiceUnreachable, match=f'message broker is not reachable: the demo of {tmp_path}'):
        ask()
    answering(tmp_path, lambda request: {})()
    assert (tmp_path / channel.SOCKET).exists()
    with pytest.raises(exception.ServiceUnreachable, match=r'does not answer: .*refused'):
        ask()


def test_demo_that_accepts_and_does_not_answer_is_a_time_out(tmp_path, ask, monkeypatch):
    monkeypatch.setattr(transport, '_MARGIN', 0.1)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(channel.SOCKET)
        bound.listen()
        with pytest.raises(exception.RPCTimeout, match=r'did not answer none within 0\.1 s'):
            ask(0.1)


def test_answer_that_is_none_of_a_demo_is_an_unreachable_broker(tmp_path, ask):
    stop = answering(tmp_path, lambda request: [])
    with pytest.raises(exception.ServiceUnreachable, match='the message is not that of a demo'):
        ask()
    stop()


def test_too_long_messages_are_refused_by_both_ends(tmp_path, ask, monkeypatch):
    stop = answering(tmp_path, lambda request: {'result': 'x' * (request['rpc']['method'] == 'who') * 2000})
    monkeypatch.setattr(channel, '_LONGEST', 1000)
    with pytest.raises(exception.ServiceUnreachable, match='has refused a message: a message of 2015 bytes'):
        ask()
    with pytest.raises(exception.ServiceUnreachable, match='does not answer: a message of'):
        ask(value='x' * 2000)
    stop()


def test_url_of_a_directory_with_any_name_finds_its_socket(tmp_path):
    directory = tmp_path / 'a b%41$HOME' / ('x' * 150)
    directory.mkdir(parents=True)
    stop = answering(directory, lambda request: {'result': 'here'})
    conf = cfg.ConfigOpts()
    (tmp_path / 'file.conf').write_text(f'[DEFAULT]\ntransport_url = {transport.url(directory)}\n')
    conf(['--config-file', str(tmp_path / 'file.conf')])
    made = rpc.get_transport(conf)
    assert rpc.OsloRPC(made).call(context.admin_context(), TARGET, 'who', 5) == 'here'
    made.cleanup()
    stop()
