# SPDX-License-Identifier: Apache-2.0

"""The tap on a real RabbitMQ receives every message with its sender and target."""

import threading

import pytest
from oslo_config import cfg

from migrator import context, rpc
from migrator.simulator import world
from migrator.simulator.invariants import hosts
from migrator.testing.rpc import Recorded
from tests.real.servers import process
from tests.real.servers.tap import Tap

CONTEXT = context.RequestContext(user_id='u', project_id='p', overwrite=False)
MIGRATION = 'c0ffee00-0000-4000-8000-000000000001'


class Endpoint:
    """Answers, in its own time."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.may_answer.set()

    @rpc.expose
    def look(self, _context, migration_uuid, words):
        self.may_answer.wait(60)
        return words[::-1]


@pytest.fixture
def endpoint():
    return Endpoint()


@pytest.fixture
def peers(rabbitmq, vhost, endpoint):
    """A conductor and two computes, each with a user of its own at the broker; the second compute listens."""
    opened = []
    made = {}
    for name in ('conductor:one', 'compute:host1', 'compute:host2'):
        user = f'{vhost}-{name.replace(":", "-")}'
        rabbitmq.create_user(user, vhost)
        opened.append(lambda user=user: rabbitmq.delete_user(user))
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        transport = rpc.get_transport(conf, rabbitmq.url(vhost, user, user))
        opened.append(transport.cleanup)
        made[name] = rpc.OsloRPC(transport)
    served = made['compute:host2'].serve(rpc.Target('compute', 'host2'), endpoint)
    opened.append(served.stop)
    yield made
    for close in reversed(opened):
        close()


@pytest.fixture
def tap(rabbitmq, vhost):
    made = Tap(rabbitmq, vhost, lambda user: user.removeprefix(f'{vhost}-').replace('-', ':'))
    yield made
    made.close()


HOST2 = rpc.Target('compute', 'host2')


def test_call_reply_and_cast_are_received_in_order_with_their_senders(tap, peers):
    args = {'migration_uuid': MIGRATION, 'words': 'left'}
    assert peers['conductor:one'].call(CONTEXT, HOST2, 'look', timeout=30, **args) == 'tfel'
    peers['conductor:one'].cast(CONTEXT, rpc.Target('compute'), 'look', **args)
    tap.catch_up()

    size = len('{"migration_uuid": "", "words": "left"}') + len(MIGRATION)
    said = [one for one in tap.messages if one.target != 'nobody.nowhere']
    assert [Recorded(one.sender, one.target, one.method, one.kind, one.size, one.migration_uuid) for one in said] == [
        Recorded('conductor:one', 'compute.host2', 'look', 'call', size, MIGRATION),
        Recorded('compute:host2', 'conductor:one', 'look', 'reply', len('"tfel"'), MIGRATION),
        Recorded('conductor:one', 'compute', 'look', 'cast', size, MIGRATION),
    ]
    assert all(one.wire > one.size for one in said)
    assert tap.recorder.compute_to_compute() == []
    assert tap.recorder.per_migration() == {MIGRATION: {'call': 1, 'reply': 1, 'cast': 1}}


def test_a_compute_that_calls_another_is_caught(tap, peers):
    peers['compute:host1'].call(CONTEXT, HOST2, 'look', timeout=30, migration_uuid=MIGRATION, words='')
    tap.catch_up()
    assert [(one.sender, one.target, one.kind) for one in tap.recorder.compute_to_compute()] == [
        ('compute:host1', 'compute.host2', 'call'),
        ('compute:host2', 'compute:host1', 'reply'),
    ]
    nothing = dict.fromkeys(world.World.__dataclass_fields__, ())
    judged = list(hosts.topology(world.World(**{**nothing, 'messages': tap.messages})))
    assert judged[0] == 'compute:host1 sent the call look to compute.host2'


def test_heartbeats_of_a_call_are_distinguished_from_its_reply(tap, peers, endpoint):
    endpoint.may_answer.clear()
    args = {'migration_uuid': MIGRATION, 'words': 'x'}
    caller = threading.Thread(
        target=lambda: peers['conductor:one'].call(CONTEXT, HOST2, 'look', timeout=60, monitor=2, **args)
    )
    caller.start()
    process.wait_until(lambda: [one for one in tap.messages if one.kind == 'beat'], 'a heartbeat')
    assert not [one for one in tap.messages if one.kind == 'reply']
    endpoint.may_answer.set()
    caller.join()
    tap.catch_up()
    beat, reply = (next(one for one in tap.messages if one.kind == kind) for kind in ('beat', 'reply'))
    assert (beat.sender, beat.target) == (reply.sender, reply.target) == ('compute:host2', 'conductor:one')


def test_all_earlier_messages_are_received_after_catch_up(tap, peers):
    for number in range(200):
        peers['conductor:one'].cast(CONTEXT, rpc.Target('nobody'), 'count', words=str(number))
    tap.catch_up()
    assert [one.method for one in tap.messages].count('count') == 200
