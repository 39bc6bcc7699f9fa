# SPDX-License-Identifier: Apache-2.0

"""The bus between simulated processes: lost, duplicated and late messages, kills and pauses."""

import pytest

from migrator import context, exception, rpc
from migrator.testing.bus import DirectBus
from migrator.testing.rpc import DirectRPC
from migrator.testing.simulation.threads import Simulation

CONTEXT = context.admin_context('req-1')
HOST = rpc.Target('compute', 'host1')


class Cloud:
    """A conductor that calls, and one compute service that replies after a second."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.bus = DirectBus(simulation.world)
        self.conductor = simulation.process('conductor')
        self.rpc = DirectRPC(self.bus, 'conductor:1', self.conductor)
        self.ran = []
        self.compute = self.boot()

    def boot(self, name='host1', topic='compute'):
        compute = self.simulation.process(name)
        self.served = DirectRPC(self.bus, f'{topic}:{name}', compute).serve(
            rpc.Target(topic, name), Manager(self.ran, compute)
        )
        return compute

    def call(self, method='step', timeout=10, target=HOST, **options):
        return self.rpc.call(CONTEXT, target, method, timeout, **options)


class Manager:
    """An endpoint whose step takes a second of virtual time."""

    def __init__(self, ran, threads):
        self.ran = ran
        self.threads = threads

    @rpc.expose
    def step(self, context, seconds=1):
        self.threads.sleep(seconds)
        self.ran.append((self.threads.name, self.threads.simulation.time))
        return len(self.ran)


@pytest.fixture
def cloud():
    with Simulation(None) as simulation:
        yield Cloud(simulation)


def faults(bus, *these):
    """Apply these faults to the next messages in this order, to calls, casts and replies alike."""
    left = list(these)
    bus.faults = lambda message: left.pop(0) if left else None


def test_call_takes_only_time_of_its_handler(cloud):
    assert cloud.call() == 1
    assert cloud.simulation.time == 1


def test_every_step_of_message_is_checkpoint_of_its_process(cloud):
    cloud.call()
    cloud.rpc.cast(CONTEXT, HOST, 'step')
    cloud.simulation.run()
    assert [(process, label) for _, process, label in cloud.simulation.trace] == [
        ('conductor', 'rpc step call'),
        ('host1', 'rpc step received'),
        ('host1', 'rpc step handled'),
        ('conductor', 'rpc step answered'),
        ('conductor', 'rpc step cast'),
        ('host1', 'rpc step received'),
        ('host1', 'rpc step handled'),
    ]


@pytest.mark.parametrize(
    ('these', 'answered', 'ran'),
    [
        (['lose'], False, 0),
        (['lose_answer'], False, 1),
        ([None, 'lose'], False, 1),
        (['duplicate'], True, 2),
        ([5.0], True, 1),
        ([11.0], False, 1),
        ([None, 11.0], False, 1),
        ([None, 3], True, 1),
    ],
)
def test_faults_lose_duplicate_and_delay_calls_and_replies(cloud, these, answered, ran):
    faults(cloud.bus, *these)
    if answered:
        assert cloud.call() in (1, 2)
    else:
        with pytest.raises(exception.RPCTimeout):
            cloud.call()
        assert cloud.simulation.time == 10
    cloud.simulation.run()
    assert len(cloud.ran) == ran


@pytest.mark.parametrize(('fault', 'ran'), [('lose', []), ('duplicate', [1, 1]), (4.0, [5]), ('lose_answer', [1])])
def test_faults_lose_duplicate_and_delay_casts(cloud, fault, ran):
    faults(cloud.bus, fault)
    cloud.rpc.cast(CONTEXT, HOST, 'step')
    assert cloud.simulation.time == 0
    cloud.simulation.run()
    assert [time for _, time in cloud.ran] == ran


def test_refused_message_raises_service_unreachable(cloud):
    faults(cloud.bus, 'refuse', 'refuse')
    with pytest.raises(exception.ServiceUnreachable, match='The message broker is not reachable'):
        cloud.call()
    with pytest.raises(exception.ServiceUnreachable, match='The message broker is not reachable'):
        cloud.rpc.cast(CONTEXT, HOST, 'step')


def test_faults_are_called_with_each_message(cloud):
    seen = []
    cloud.bus.faults = seen.append
    cloud.call(seconds=2)
    assert [(one.number, one.sender, str(one.target), one.method, one.kind) for one in seen] == [
        (1, 'conductor:1', 'compute.host1', 'step', 'call'),
        (2, 'compute:host1', 'compute.host1', 'step', 'reply'),
    ]
    assert '"seconds": 2' in seen[0].body
    assert seen[0].size == len(seen[0].body)


def test_message_after_late_one_arrives_first(cloud):
    faults(cloud.bus, 3.0)
    cloud.rpc.cast(CONTEXT, HOST, 'step', seconds=1)
    cloud.rpc.cast(CONTEXT, HOST, 'step', seconds=2)
    cloud.simulation.run()
    assert [time for _, time in cloud.ran] == [2, 4]


def test_late_message_arrives_after_death_of_sender(cloud):
    faults(cloud.bus, 3.0)
    cloud.rpc.cast(CONTEXT, HOST, 'step')
    cloud.simulation.kill(cloud.conductor)
    cloud.simulation.run()
    assert len(cloud.ran) == 1


def test_killed_server_never_replies_and_next_boot_does_not_have_the_call(cloud):
    cloud.simulation.world.start(
        lambda: (cloud.simulation.world.sleep(0.5), cloud.simulation.kill(cloud.compute)), name='killer'
    )
    with pytest.raises(exception.RPCTimeout):
        cloud.call()
    assert cloud.bus.servers('compute') == []
    with pytest.raises(exception.RPCTimeout):
        cloud.call()
    cloud.boot()
    assert cloud.bus.servers('compute') == ['host1']
    assert cloud.call() == 1


def test_server_killed_after_the_work_does_not_reply(cloud):
    def kill(process, label):
        if label == 'rpc step handled':
            cloud.simulation.kill(process)

    cloud.simulation.on_checkpoint = kill
    with pytest.raises(exception.RPCTimeout):
        cloud.call()
    assert len(cloud.ran) == 1


def test_reply_to_killed_caller_is_dropped(cloud):
    cloud.conductor.start(cloud.call, name='call')
    cloud.simulation.advance(0.5)
    cloud.simulation.kill(cloud.conductor)
    cloud.simulation.run()
    assert len(cloud.ran) == 1


def test_paused_server_handles_call_after_resume(cloud):
    cloud.simulation.pause(cloud.compute)
    with pytest.raises(exception.RPCTimeout):
        cloud.call(timeout=3)
    cloud.simulation.resume(cloud.compute)
    cloud.simulation.run()
    assert [time for _, time in cloud.ran] == [4]


def test_stopped_server_finishes_taken_messages_and_takes_no_more(cloud):
    cloud.rpc.cast(CONTEXT, HOST, 'step')
    cloud.simulation.run_ready()
    cloud.served.stop()
    assert len(cloud.ran) == 1
    cloud.rpc.cast(CONTEXT, HOST, 'step')
    cloud.simulation.run()
    assert len(cloud.ran) == 1


def test_calls_without_server_name_go_round_robin(cloud):
    for name in ('one', 'two', 'three'):
        cloud.boot(name, 'conductor')
    for _ in range(6):
        cloud.call(target=rpc.Target('conductor'))
    assert [name for name, _ in cloud.ran] == ['one', 'two', 'three'] * 2


def test_at_most_64_handlers_run_at_once_and_others_follow_in_order(cloud):
    for _ in range(100):
        cloud.rpc.cast(CONTEXT, HOST, 'step')
    cloud.simulation.run()
    assert [time for _, time in cloud.ran] == [1] * 64 + [2] * 36
    assert not cloud.compute.threads


def test_long_call_with_monitor_continues_while_server_is_alive(cloud):
    assert cloud.call(timeout=100, monitor=4, seconds=30) == 1
    cloud.simulation.world.start(
        lambda: (cloud.simulation.world.sleep(10), cloud.simulation.kill(cloud.compute)), name='killer'
    )
    with pytest.raises(exception.RPCTimeout):
        cloud.call(timeout=100, monitor=4, seconds=30)
    assert cloud.simulation.time == 42


def test_call_with_monitor_to_missing_server_times_out_early(cloud):
    with pytest.raises(exception.RPCTimeout):
        cloud.call(target=rpc.Target('compute', 'missing'), timeout=100, monitor=4)
    assert cloud.simulation.time == 4


def test_pause_or_kill_at_any_checkpoint_does_not_delay_another_sender():
    for seed in range(120):
        with Simulation(seed) as simulation:
            cloud = Cloud(simulation)
            other = simulation.process('other')
            fault = simulation.kill if seed % 2 else simulation.pause
            index = seed // 2 % 20
            timeouts = []

            def inject(process, label, cloud=cloud, fault=fault, index=index, simulation=simulation):
                if len(simulation.trace) == index:
                    fault(cloud.compute)

            def send(cloud=cloud, other=other, timeouts=timeouts):
                client = DirectRPC(cloud.bus, 'conductor:2', other)
                for _ in range(4):
                    try:
                        client.call(CONTEXT, HOST, 'step', 2)
                    except exception.RPCTimeout:
                        timeouts.append(other.clock.monotonic())

            simulation.on_checkpoint = inject
            other.start(send, name='send')
            cloud.conductor.start(
                lambda cloud=cloud: [cloud.rpc.cast(CONTEXT, HOST, 'step') for _ in range(3)], name='cast'
            )
            simulation.run()
            assert not other.threads, simulation.dump()
            assert simulation.time <= 8.1
