# SPDX-License-Identifier: Apache-2.0

"""The recorder of messages: sender, target, method and migration.

The replies of DirectRPC are in tests/unit/test_rpc.py.
"""

import collections

import pytest

from migrator import context, exception, executors, rpc
from migrator.objects import migration
from migrator.objects import protocol as command
from migrator.testing.bus import DirectBus
from migrator.testing.rpc import DirectRPC, RpcRecorder

CONTEXT = context.admin_context('req-1')
HOST = rpc.Target('compute', 'host1')


class Anything:
    """An endpoint with the methods that the tests call."""

    @rpc.expose
    def pre_live_migration(self, context, command):
        return command

    @rpc.expose
    def live_migrate(self, context, migration_uuid):
        raise exception.NotOwner(migration_uuid=migration_uuid, owner='me', epoch=1)

    @rpc.expose
    def poll_live_migrations(self, context, commands):
        return []

    @rpc.expose
    def compute_heartbeat(self, context, report):
        pass


@pytest.fixture
def recorder():
    return RpcRecorder()


@pytest.fixture
def bus():
    bus = DirectBus()
    for target in (HOST, rpc.Target('conductor', 'one')):
        DirectRPC(bus, str(target), executors.NativeThreads()).serve(target, Anything())
    return bus


@pytest.fixture
def rpc_of(bus, recorder):
    return lambda sender: recorder.wrap(DirectRPC(bus, sender, executors.NativeThreads()), sender)


def head(uuid='m1'):
    return command.Command(
        migration_uuid=uuid, instance_uuid='i', step='pre', epoch=1, owner='o', reply_to='r', boot_id='b'
    )


def test_call_reply_and_cast_count_for_their_migration(recorder, rpc_of):
    recorder.measures = True
    conductor = rpc_of('conductor:1')
    assert conductor.call(CONTEXT, HOST, 'pre_live_migration', 5, command=head()) == head()
    conductor.cast(CONTEXT, HOST, 'pre_live_migration', command=head('m2'))
    assert recorder.per_migration() == {
        'm1': collections.Counter(call=1, reply=1),
        'm2': collections.Counter(cast=1),
    }
    call, reply, cast = recorder.messages
    assert (call.sender, call.target, call.method, call.kind) == (
        'conductor:1',
        'compute.host1',
        'pre_live_migration',
        'call',
    )
    assert (reply.sender, reply.target, reply.kind) == ('compute.host1', 'conductor:1', 'reply')
    assert cast.kind == 'cast'
    assert call.size > reply.size > 100


def test_refusal_is_recorded_as_reply_and_timeout_is_not(recorder, rpc_of, bus):
    api = rpc_of('api:1')
    with pytest.raises(exception.NotOwner):
        api.call(CONTEXT, rpc.Target('conductor'), 'live_migrate', 5, migration_uuid='m1')
    assert recorder.per_migration() == {'m1': collections.Counter(call=1, reply=1)}
    bus.faults = lambda message: 'lose'
    with pytest.raises(exception.RPCTimeout):
        api.call(CONTEXT, rpc.Target('conductor'), 'live_migrate', 0.01, migration_uuid='m1')
    assert recorder.per_migration() == {'m1': collections.Counter(call=2, reply=1)}


def test_polls_and_heartbeats_count_for_no_migration(recorder, rpc_of):
    rpc_of('conductor:1').call(CONTEXT, HOST, 'poll_live_migrations', 5, commands=[head()])
    report = command.HostReport(host='host1', boot_id='b', version=4)
    rpc_of('compute:host1').cast(CONTEXT, rpc.Target('conductor'), 'compute_heartbeat', report=report)
    assert recorder.per_migration() == {}
    assert [(one.kind, one.poll, one.heartbeat) for one in recorder.messages] == [
        ('call', True, False),
        ('reply', True, False),
        ('cast', False, True),
    ]


@pytest.mark.parametrize(
    ('args', 'uuid'),
    [
        ({'migration_uuid': 'm1'}, 'm1'),
        ({'command': head()}, 'm1'),
        ({'report': command.Report(migration_uuid='m1', host='h', boot_id='b', step='s', epoch=1, state='done')}, 'm1'),
        ({'command': head('m1'), 'other': head('m2')}, None),
        ({'commands': [head()]}, None),
        ({'host': 'h'}, None),
    ],
)
def test_migration_uuid_is_read_from_arguments(recorder, rpc_of, args, uuid):
    rpc_of('conductor:1').cast(CONTEXT, HOST, 'unknown', **args)
    assert recorder.messages[0].migration_uuid == uuid


def test_migration_uuid_is_read_from_migration_argument(recorder, rpc_of):
    one = migration.Migration(
        uuid='m1', instance_uuid='i', project_id='p', user_id='u', source_compute='a', source_node='a'
    )
    rpc_of('conductor:1').cast(CONTEXT, HOST, 'unknown', migration=one)
    assert recorder.messages[0].migration_uuid == 'm1'


def test_message_from_compute_to_compute_is_found(recorder, rpc_of):
    rpc_of('conductor:1').call(CONTEXT, HOST, 'pre_live_migration', 5, command=head())
    rpc_of('compute:host1').cast(CONTEXT, rpc.Target('conductor', 'one'), 'compute_heartbeat', report=None)
    assert recorder.compute_to_compute() == []
    rpc_of('compute:host2').call(CONTEXT, HOST, 'pre_live_migration', 5, command=head())
    assert [(one.sender, one.target, one.kind) for one in recorder.compute_to_compute()] == [
        ('compute:host2', 'compute.host1', 'call'),
        ('compute.host1', 'compute:host2', 'reply'),
    ]


def test_wrapped_rpc_can_serve(recorder, rpc_of):
    served = rpc_of('conductor:2').serve(rpc.Target('other', 'two'), Anything())
    assert rpc_of('api:1').call(CONTEXT, rpc.Target('other'), 'poll_live_migrations', 5, commands=[]) == []
    served.stop()
