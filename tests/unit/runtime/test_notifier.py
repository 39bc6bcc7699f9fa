# SPDX-License-Identifier: Apache-2.0

"""Notifications on oslo.messaging's bus in memory: the ids, the topics, and when they are off."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from migrator import context, exception, executors, rpc
from migrator.cmd import conductor
from migrator.conductor.notifications.payload import Notification
from migrator.conf import opts
from migrator.runtime import notifier, process

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)


def conf_of(**options: Any) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], project='migrator', default_config_files=[], default_config_dirs=[])
    notifier.is_on(conf)  # it registers the options of oslo.messaging
    for name, value in {'transport_url': 'fake://', 'driver': ['messagingv2'], **options}.items():
        group = 'notifications' if name in conf.notifications else 'oslo_messaging_notifications'
        conf.set_override(name, value, group)
    return conf


def notification(number: int = 1, priority: str = 'INFO') -> Notification:
    who = context.RequestContext(user_id='ada', project_id='blue', request_id='req-1', overwrite=False)
    return Notification(
        f'id-{number}', AT, 'nova-compute:host1', 'instance.resize.start', priority, {'number': number}, who
    )


class Listener:
    """What listens to one topic, for both priorities."""

    def __init__(self, conf: cfg.ConfigOpts, topic: str) -> None:
        self.received: list[tuple[Any, ...]] = []
        self._any = threading.Event()
        self._transport = rpc.get_notification_transport(conf)
        target = oslo_messaging.Target(topic=topic)
        self._server = oslo_messaging.get_notification_listener(self._transport, [target], [self], 'threading')
        self._server.start()

    def info(self, ctxt: Any, publisher: str, event_type: str, payload: Any, metadata: Any) -> None:
        self.received.append(('INFO', ctxt, publisher, event_type, payload, metadata))
        self._any.set()

    def error(self, ctxt: Any, publisher: str, event_type: str, payload: Any, metadata: Any) -> None:
        self.received.append(('ERROR', ctxt, publisher, event_type, payload, metadata))
        self._any.set()

    def next(self) -> tuple[Any, ...]:
        assert self._any.wait(10)
        self._any.clear()
        return self.received[-1]

    def close(self) -> None:
        self._server.stop()
        self._server.wait()
        self._transport.cleanup()


@pytest.fixture
def bus() -> Iterator[notifier.Notifier]:
    made = notifier.Notifier(conf_of(), executors.NativeThreads())
    yield made
    made.close()


@pytest.mark.parametrize(
    ('options', 'on'),
    [
        ({'driver': []}, False),
        ({'driver': ['noop']}, False),
        ({'driver': ['noop', 'messagingv2']}, True),
        ({'driver': ['log']}, True),
        ({'notification_format': 'both'}, True),
        ({'notification_format': 'unversioned'}, False),
    ],
)
def test_a_driver_other_than_noop_and_a_format_that_migrator_has_are_on(options: Any, on: bool) -> None:
    assert notifier.is_on(conf_of(**options)) is on


@pytest.mark.parametrize(
    ('options', 'lines'),
    [
        ({'driver': []}, []),
        ({'driver': ['noop'], 'notification_format': 'unversioned'}, []),
        ({}, ['Sending notifications by messagingv2 to versioned_notifications']),
        (
            {'driver': ['messagingv2', 'log'], 'versioned_notifications_topics': ['a', 'b']},
            ['Sending notifications by log, messagingv2 to a, b'],
        ),
        (
            {'notification_format': 'unversioned'},
            ['Sending no notifications by messagingv2: notification_format is unversioned'],
        ),
    ],
)
def test_a_conductor_logs_where_it_sends_notifications_if_it_has_a_driver(
    options: Any, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    starting = process.Process('migrator-conductor', conf_of(**options), executors.NativeThreads())
    with caplog.at_level('INFO', 'migrator.cmd.conductor'):
        conductor.make_sender(starting)
    starting.stop()
    assert [record.getMessage() for record in caplog.records] == lines


@pytest.mark.parametrize('priority', ['INFO', 'ERROR'])
def test_a_listener_gets_the_id_the_time_and_the_requester(bus: notifier.Notifier, priority: str) -> None:
    listener = Listener(conf_of(), 'versioned_notifications')
    try:
        for _ in range(2):
            bus.send(notification(7, priority))
            sent, ctxt, publisher, event_type, payload, metadata = listener.next()
            assert (sent, publisher, event_type) == (priority, 'nova-compute:host1', 'instance.resize.start')
            assert payload == {'number': 7}
            assert metadata == {'message_id': 'id-7', 'timestamp': '2026-01-02 03:04:05.000006'}
            assert (ctxt['user_id'], ctxt['project_id'], ctxt['request_id']) == ('ada', 'blue', 'req-1')
    finally:
        listener.close()


def test_a_bus_that_refuses_a_message_is_reported(bus: notifier.Notifier, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise oslo_messaging.MessageDeliveryFailure('Unable to connect to AMQP server')

    with monkeypatch.context() as patch:
        patch.setattr(oslo_messaging.transport.Transport, '_send_notification', refuse)
        with pytest.raises(exception.ServiceUnreachable, match=r'bus of notifications.*Unable to connect'):
            bus.send(notification())
    bus.send(notification())


def test_a_bus_that_hangs_holds_one_thread_and_is_not_called_again(
    bus: notifier.Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, calls = threading.Event(), []
    monkeypatch.setattr(notifier, '_ACCEPTED_WITHIN', 0.05)

    def hang(*_: Any, **__: Any) -> None:
        calls.append(1)
        go_on.wait(10)

    monkeypatch.setattr(oslo_messaging.transport.Transport, '_send_notification', hang)
    try:
        for why in ('within', 'not yet accepted'):
            with pytest.raises(exception.ServiceUnreachable, match=why):
                bus.send(notification())
        assert len(calls) == 1
    finally:
        go_on.set()


def test_a_wrong_url_is_named_with_its_option() -> None:
    conf = conf_of(transport_url='rabbit://me:secret@host:port/')
    with pytest.raises(exception.ConfigurationError, match=r'\[oslo_messaging_notifications\] transport_url') as raised:
        notifier.Notifier(conf, executors.NativeThreads())
    assert 'secret' not in str(raised.value)


@pytest.mark.parametrize('name', ['messagingV2', 'routing', 'test'])
def test_a_driver_that_would_lose_messages_is_named_with_those_that_exist(name: str) -> None:
    conf = conf_of(driver=['messagingv2', name])
    with pytest.raises(exception.ConfigurationError) as raised:
        notifier.Notifier(conf, executors.NativeThreads())
    for part in ('[oslo_messaging_notifications] driver', repr(name), 'use one of log, messaging, messagingv2, noop'):
        assert part in str(raised.value)
