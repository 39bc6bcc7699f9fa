# SPDX-License-Identifier: Apache-2.0

"""Notifications on a real RabbitMQ, as a consumer reads them with oslo.messaging."""

import contextlib
import datetime
import threading

import oslo_messaging
import pytest
from oslo_config import cfg

from migrator import context, exception, executors, rpc
from migrator.conductor.notifications.payload import Notification
from migrator.conf import opts
from migrator.runtime import notifier
from tests.functional import state
from tests.real.cloud import ProcessCloud
from tests.real.servers import process
from tests.real.site import Shape, Site

TOPIC = 'versioned_notifications'
#: The notifications of a live migration from host1 to host2. The two hosts clean up side by side.
MOVED = [
    'live_migration_pre.start host2', 'live_migration_pre.end host2', 'live_migration_post.start host1',
    'live_migration_post_dest.start host2',
]  # fmt: skip
ENDS = {'live_migration_post.end host1', 'live_migration_post_dest.end host2'}
AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
WHO = context.RequestContext(user_id='ada', project_id='blue', overwrite=False)


def conf_of(url):
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], project='migrator', default_config_files=[], default_config_dirs=[])
    rpc.register_notification_opts(conf)
    conf.set_override('driver', ['messagingv2'], 'oslo_messaging_notifications')
    conf.set_override('transport_url', url, 'oslo_messaging_notifications')
    return conf


class Listener:
    """A consumer of the versioned notifications."""

    def __init__(self, url):
        self.received = []
        self._lock = threading.Lock()
        self._transport = rpc.get_notification_transport(conf_of(url))
        target = oslo_messaging.Target(topic=TOPIC)
        self._server = oslo_messaging.get_notification_listener(self._transport, [target], [self], 'threading')
        self._server.start()

    def info(self, ctxt, publisher_id, event_type, payload, metadata):
        with self._lock:
            self.received.append((publisher_id, event_type, payload, metadata))

    def close(self):
        self._server.stop()
        self._server.wait()
        self._transport.cleanup()


@contextlib.contextmanager
def listening(url):
    made = Listener(url)
    try:
        yield made
    finally:
        made.close()


def notification(number):
    return Notification(f'id-{number}', AT, 'nova-compute:host1', f'event.{number}', 'INFO', {'number': number}, WHO)


def test_a_broker_that_is_away_is_reported_and_gets_the_same_message_later(workspace, rabbitmq, vhost):
    url = rabbitmq.url(vhost)
    bus = notifier.Notifier(conf_of(url), executors.NativeThreads())
    try:
        bus.send(notification(1))
        rabbitmq.kill()
        try:
            with pytest.raises(exception.ServiceUnreachable, match='The bus of notifications'):
                bus.send(notification(2))
        finally:
            rabbitmq.start()

        def accepted():
            with contextlib.suppress(exception.ServiceUnreachable):
                bus.send(notification(2))
                return True
            return False

        process.wait_until(accepted, 'the bus to accept a message again', 60)
        with listening(url) as listener:
            process.wait_until(lambda: any(one[1] == 'event.2' for one in listener.received), 'the second message', 30)
    finally:
        bus.close()
    ids = {event: metadata['message_id'] for _, event, _, metadata in listener.received}
    assert ids['event.2'] == 'id-2'


def test_a_live_migration_of_processes_is_received(workspace, rabbitmq, postgresql, placement_http):
    shape = Shape(hosts=2, options=(('oslo_messaging_notifications.driver', 'messagingv2'),))
    site = Site(workspace, shape, rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site)
    try:
        cloud.simulation.run_until(cloud.up)
        with listening(rabbitmq.url(site.vhost)) as listener:
            instance = cloud.boot('one', 'host1', memory_mb=64)
            assert cloud.live_migrate(instance, 'host2').status_int == 202
            process.wait_until(lambda: len(listener.received) == 6, 'six notifications', 60)
        state.completed(cloud, instance, 'host2')
        found = [f'{event.removeprefix("instance.")} {who.partition(":")[2]}' for who, event, *_ in listener.received]
        assert (found[:4], {*found[4:]}) == (MOVED, ENDS)
        assert len({metadata['message_id'] for *_, metadata in listener.received}) == 6
        assert {payload['nova_object.data']['uuid'] for _, _, payload, _ in listener.received} == {instance.uuid}
    finally:
        site.end()
        cloud.clear_allocations()
        cloud.close()
