# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from migrator import exception, executors
from migrator.conductor import broker, compute_client
from migrator.objects import base, protocol
from migrator.testing.simulation.threads import SimThreads, Simulation


class API:
    """The RPC API of compute hosts that answer, hang or are unreachable."""

    def __init__(self, threads: SimThreads) -> None:
        self.gate = threads.event()
        self.gate.set()
        self.error: Exception | None = None
        self.under_way = 0
        self.most = 0
        self.acks: list[list[dict[str, Any]]] = []
        #: Migration -> the guest that the host reports. Others are absent.
        self.guests: dict[str, protocol.Guest] = {}

    def _be_called(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            self.gate.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.under_way -= 1

    def send(self, context: Any, host: str, order: protocol.Command, **payload: Any) -> protocol.Answer:
        self._be_called()
        return protocol.Answer(seen=order.epoch)

    def poll_live_migrations(
        self, context: Any, host: str, commands: list[protocol.Command], acks: list[Any], timeout: float
    ) -> list[protocol.Observation]:
        self.acks.append(acks)
        self._be_called()
        return [
            protocol.Observation(
                migration_uuid=one.migration_uuid, host=host, boot_id='b', epoch=one.epoch,
                guest=self.guests.get(one.migration_uuid, protocol.Guest(instance_uuid=one.instance_uuid)),
            )
            for one in commands
        ]  # fmt: skip


def order(number: int = 1) -> protocol.Command:
    return protocol.Command(
        migration_uuid=f'm{number}', instance_uuid='i', step='pre_live_migration', epoch=1, owner='o', reply_to='r',
        boot_id='b',
    )  # fmt: skip


def report(step: str = 'pre_live_migration', host: str = 'host1') -> protocol.Report:
    return protocol.Report(migration_uuid='m1', host=host, boot_id='b', step=step, epoch=1, state='done')


class Scene:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.threads = simulation.process('conductor')
        self.api = API(self.threads)
        self.broker = broker.Broker('conductor', lambda number: self.broker.received(number), self.threads, lambda: 5.0)
        executors.Periodic(self.threads, 5.0, self.broker.probe, 'probe').start()
        self.hosts = compute_client.Hosts(self.api, self.threads, lambda: 2.0, self.broker)

    def call(self, *numbers: int, hosts: int = 1) -> list[int]:
        """Call hosts by turns with these commands, all at once; return those whose host was busy."""
        busy: list[int] = []

        def call(number: int) -> None:
            try:
                self.hosts.send(f'host{1 + number % hosts}', order(number))
            except compute_client.HostBusy:
                busy.append(number)

        for number in numbers:
            self.threads.start(call, number, name=f'call-{number}')
        self.simulation.run_ready()
        return busy


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Simulation(seed=1) as simulation:
        yield Scene(simulation)


class TestObservations:
    def test_unknown_state_of_one_guest_drops_only_that_guest(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An unknown state counted as the report that the guest is absent."""
        reported = base.to_primitive(protocol.Guest(instance_uuid='i'))
        reported['data']['state'] = 'active'
        scene.api.guests['m1'] = base.from_primitive(reported)
        found: list[protocol.Observation] = []
        scene.threads.start(lambda: found.extend(scene.hosts.poll('host1', [order(1), order(2)]) or []), name='ask')
        scene.simulation.run_ready()
        assert [one.migration_uuid for one in found] == ['m2']
        assert "unknown state 'active' of guest i reported by host host1" in caplog.text


class TestSlots:
    def test_one_host_has_four_outstanding_calls_at_most(self, scene: Scene) -> None:
        scene.api.gate.clear()
        busy = scene.call(*range(7))
        assert (scene.api.under_way, len(busy)) == (4, 3)
        scene.api.gate.set()
        scene.simulation.run_ready()
        assert (scene.api.under_way, scene.api.most) == (0, 4)

    def test_busy_host_does_not_delay_another(self, scene: Scene) -> None:
        scene.api.gate.clear()
        busy = scene.call(*range(6), hosts=2)
        assert (scene.api.under_way, busy) == (6, [])
        scene.api.gate.set()

    def test_waiter_is_woken_once_when_a_slot_is_free(self, scene: Scene) -> None:
        woken: list[str] = []
        scene.hosts.on_free = lambda uuid: woken.append(uuid) or True
        scene.api.gate.clear()
        busy = scene.call(*range(6))
        assert woken == []
        scene.api.gate.set()
        scene.simulation.run_ready()
        assert sorted(woken) == sorted(f'm{number}' for number in busy)

    def test_free_slots_wake_one_waiter_each_in_order(self, scene: Scene) -> None:
        woken: list[str] = []
        scene.hosts.on_free = lambda uuid: woken.append(uuid) or True
        scene.api.gate.clear()
        scene.call(*range(4))
        for number in (9, 8, 7, 6, 9, 5, 4):
            scene.call(number)
        scene.api.gate.set()
        scene.simulation.run_ready()
        # one free slot, then two, three and four
        assert woken == ['m9', 'm8', 'm7', 'm6', 'm5', 'm4']

    def test_ended_migration_and_poll_of_many_take_no_waiters_slot(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compute_client, 'CALLS_PER_HOST', 1)
        woken: list[str] = []
        scene.hosts.on_free = lambda uuid: woken.append(uuid) or uuid != 'm8'
        scene.api.gate.clear()
        scene.call(1)
        with pytest.raises(compute_client.HostBusy):
            scene.hosts.poll('host1', [order(7)])
        for number in (8, 9):
            scene.call(number)
        scene.api.gate.set()
        scene.simulation.run_ready()
        assert woken == ['m8', 'm9']

    def test_slot_that_a_woken_migration_has_not_tried_to_use_wakes_one_other(self, scene: Scene) -> None:
        woken: list[str] = []
        scene.hosts.on_free = lambda uuid: woken.append(uuid) or True
        with scene.hosts._slot('host1', None):
            scene.api.gate.clear()
            scene.call(*range(3))
            for number in (4, 5, 6):
                scene.call(number)
        assert woken == ['m4']
        scene.hosts.pass_on_slots('m4')
        scene.hosts.pass_on_slots('m4')
        assert woken == ['m4', 'm5']
        scene.call(5)
        scene.hosts.pass_on_slots('m5')
        assert woken == ['m4', 'm5']
        scene.api.gate.set()

    def test_unanswered_call_is_remembered_until_the_host_replies(self, scene: Scene) -> None:
        assert not scene.hosts.was_unreachable('host1', 10)
        scene.api.error = exception.RPCTimeout(target='host1', method='poll', timeout=2)
        scene.hosts.poll('host1', [order()])
        scene.simulation.advance(5)
        assert scene.hosts.was_unreachable('host1', 6)
        assert not scene.hosts.was_unreachable('host1', 5)
        assert not scene.hosts.was_unreachable('host2', 6)
        scene.api.error = None
        scene.hosts.poll('host1', [order()])
        assert not scene.hosts.was_unreachable('host1', 6)

    def test_slot_is_free_again_after_an_error(self, scene: Scene) -> None:
        scene.api.error = exception.RPCTimeout(target='host1', method='pre', timeout=60)
        for number in range(6):
            with pytest.raises(exception.ServiceUnreachable):
                scene.hosts.send('host1', order(number))
        scene.api.error = None
        assert scene.hosts.send('host1', order()).seen == 1

    def test_poll_takes_a_slot(self, scene: Scene) -> None:
        scene.api.gate.clear()
        scene.call(*range(4))
        with pytest.raises(compute_client.HostBusy):
            scene.hosts.poll('host1', [order()])
        scene.api.gate.set()


class TestAcknowledgements:
    def test_acknowledgements_are_sent_once_with_the_next_poll_of_the_host(self, scene: Scene) -> None:
        scene.hosts.acknowledge(report())
        scene.hosts.acknowledge(report('live_migration'))
        scene.hosts.acknowledge(report(host='host2'))
        assert sorted(scene.hosts.unacknowledged()) == ['host1', 'host2']
        scene.hosts.poll('host1', [order()])
        assert [ack['step'] for ack in scene.api.acks[0]] == ['pre_live_migration', 'live_migration']
        assert scene.api.acks[0][0] == {'migration_uuid': 'm1', 'step': 'pre_live_migration', 'epoch': 1}
        assert scene.hosts.unacknowledged() == ['host2']
        scene.hosts.poll('host1', [])
        assert scene.api.acks[1] == []

    @pytest.mark.parametrize(
        'error',
        [
            exception.RPCTimeout(target='host1', method='poll', timeout=2),
            exception.RemoteError(target='host1', method='poll', kind='ValueError', reason='odd'),
        ],
    )
    def test_acknowledgements_of_a_failed_poll_stay_before_newer_ones(self, scene: Scene, error: Exception) -> None:
        scene.hosts.acknowledge(report('first'))
        scene.api.error = error
        assert scene.hosts.poll('host1', [order()]) is None
        scene.hosts.acknowledge(report('second'))
        scene.api.error = None
        scene.hosts.poll('host1', [])
        assert [ack['step'] for ack in scene.api.acks[-1]] == ['first', 'second']

    def test_acknowledgements_stay_when_no_slot_is_free(self, scene: Scene) -> None:
        scene.hosts.acknowledge(report())
        scene.api.gate.clear()
        scene.call(*range(4))
        with pytest.raises(compute_client.HostBusy):
            scene.hosts.poll('host1', [order()])
        assert scene.hosts.unacknowledged() == ['host1']
        scene.api.gate.set()


class TestUnanswered:
    def test_time_counts_from_the_last_reply_or_the_conductors_start(self, scene: Scene) -> None:
        scene.simulation.advance(10)
        assert scene.hosts.unreachable_for('host1') == pytest.approx(10)
        scene.hosts.poll('host1', [])
        assert scene.hosts.unreachable_for('host1') == 0
        scene.simulation.advance(7)
        assert scene.hosts.unreachable_for('host1') == pytest.approx(7)
        assert scene.hosts.unreachable_for('host2') == pytest.approx(17)

    def test_only_a_reply_ends_the_time_without_replies(self, scene: Scene) -> None:
        scene.simulation.advance(10)
        scene.api.error = exception.RPCTimeout(target='host1', method='poll', timeout=2)
        assert scene.hosts.poll('host1', [order()]) is None
        assert scene.hosts.unreachable_for('host1') == pytest.approx(10)
        scene.api.error = None
        scene.hosts.send('host1', order())
        assert scene.hosts.unreachable_for('host1') == 0

    def test_new_boot_counts_from_its_begin(self, scene: Scene) -> None:
        scene.hosts.send('host1', order())
        scene.simulation.advance(100)
        scene.hosts.begin_boot()
        assert scene.hosts.unreachable_for('host1') == 0
        scene.simulation.advance(7)
        assert scene.hosts.unreachable_for('host1') == pytest.approx(7)

    def test_unanswered_counts_from_the_first_call_without_a_reply(self, scene: Scene) -> None:
        scene.simulation.advance(10)
        assert scene.hosts.unanswered_for('host1') == 0
        scene.api.error = exception.RPCTimeout(target='host1', method='poll', timeout=2)
        scene.hosts.poll('host1', [order()])
        scene.simulation.advance(5)
        scene.hosts.poll('host1', [order()])
        assert scene.hosts.unanswered_for('host1') == pytest.approx(5)
        scene.api.error = None
        scene.hosts.poll('host1', [order()])
        assert scene.hosts.unanswered_for('host1') == 0

    def test_time_out_is_ignored_after_a_reply_to_a_later_call(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        time_out, answers = scene.threads.event(), scene.api.poll_live_migrations

        def hang(*args: Any, **kwargs: Any) -> Any:
            time_out.wait()
            raise exception.RPCTimeout(target='host1', method='poll', timeout=2)

        monkeypatch.setattr(scene.api, 'poll_live_migrations', hang)
        scene.threads.start(lambda: scene.hosts.poll('host1', [order(1)]), name='early')
        scene.simulation.advance(1)
        monkeypatch.setattr(scene.api, 'poll_live_migrations', answers)
        scene.hosts.poll('host1', [order(2)])
        time_out.set()
        scene.simulation.advance(1)
        assert scene.hosts.unanswered_for('host1') == 0
        assert not scene.hosts.was_unreachable('host1', 60)
