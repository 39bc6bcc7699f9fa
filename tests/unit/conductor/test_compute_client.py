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
    """The compute hosts' door, with a host behind it that answers, hangs or is away."""

    def __init__(self, threads: SimThreads) -> None:
        self.gate = threads.event()
        self.gate.set()
        self.error: Exception | None = None
        self.under_way = 0
        self.most = 0
        self.acks: list[list[dict[str, Any]]] = []
        #: Migration -> what the host says of its guest, where it is not that it has none.
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

    def pre_live_migration(self, context: Any, host: str, order: protocol.Command, **payload: Any) -> protocol.Answer:
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
        self.broker = broker.Broker('conductor', lambda number: self.broker.heard(number), self.threads, lambda: 5.0)
        executors.Periodic(self.threads, 5.0, self.broker.knock, 'knock').start()
        self.hosts = compute_client.Hosts(self.api, self.threads, lambda: 2.0, self.broker)

    def call(self, host: str, number: int, busy: list[int]) -> None:
        def call() -> None:
            try:
                self.hosts.tell(host, 'pre_live_migration', order(number))
            except compute_client.HostBusy:
                busy.append(number)

        self.threads.start(call, name=f'call-{number}')


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Simulation(seed=1) as simulation:
        yield Scene(simulation)


class TestWords:
    def test_a_guest_of_which_its_host_says_nonsense_is_left_out_and_the_others_are_not(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An unknown state was taken for the word that the guest is not there."""
        said = base.to_primitive(protocol.Guest(instance_uuid='i'))
        said['data']['state'] = 'active'
        scene.api.guests['m1'] = base.from_primitive(said)
        found: list[protocol.Observation] = []
        scene.threads.start(lambda: found.extend(scene.hosts.ask('host1', [order(1), order(2)]) or []), name='ask')
        scene.simulation.run_ready()
        assert [one.migration_uuid for one in found] == ['m2']
        assert "unknown state 'active' of guest i reported by host host1" in caplog.text


class TestPlaces:
    def test_four_calls_at_most_are_outstanding_to_one_host(self, scene: Scene) -> None:
        scene.api.gate.clear()
        busy: list[int] = []
        for number in range(7):
            scene.call('host1', number, busy)
        scene.simulation.run_ready()
        assert (scene.api.under_way, len(busy)) == (4, 3)
        scene.api.gate.set()
        scene.simulation.run_ready()
        assert (scene.api.under_way, scene.api.most) == (0, 4)

    def test_another_host_is_not_held_up(self, scene: Scene) -> None:
        scene.api.gate.clear()
        busy: list[int] = []
        for number in range(6):
            scene.call(f'host{number % 2}', number, busy)
        scene.simulation.run_ready()
        assert (scene.api.under_way, busy) == (6, [])
        scene.api.gate.set()

    def test_who_found_no_place_is_told_of_a_free_one_once(self, scene: Scene) -> None:
        told: list[str] = []
        scene.hosts.on_free = lambda uuid: told.append(uuid) or True
        scene.api.gate.clear()
        busy: list[int] = []
        for number in range(6):
            scene.call('host1', number, busy)
        scene.simulation.run_ready()
        assert told == []
        scene.api.gate.set()
        scene.simulation.run_ready()
        assert sorted(told) == sorted(f'm{number}' for number in busy)

    def test_as_many_are_told_as_there_are_places_in_the_order_in_which_they_came(self, scene: Scene) -> None:
        told: list[str] = []
        scene.hosts.on_free = lambda uuid: told.append(uuid) or True
        scene.api.gate.clear()
        for number in range(4):
            scene.call('host1', number, [])
        scene.simulation.run_ready()
        busy: list[int] = []
        for number in (9, 8, 7, 6, 9, 5, 4):
            scene.call('host1', number, busy)
            scene.simulation.run_ready()
        scene.api.gate.set()
        scene.simulation.run_ready()
        # one place, two, three, four
        assert told == ['m9', 'm8', 'm7', 'm6', 'm5', 'm4']

    def test_who_is_not_there_any_more_and_who_asks_for_many_take_nobodys_turn(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compute_client, 'CALLS_PER_HOST', 1)
        told: list[str] = []
        scene.hosts.on_free = lambda uuid: told.append(uuid) or uuid != 'm8'
        scene.api.gate.clear()
        scene.call('host1', 1, [])
        scene.simulation.run_ready()
        with pytest.raises(compute_client.HostBusy):
            scene.hosts.ask('host1', [order(7)])
        for number in (8, 9):
            scene.call('host1', number, [])
            scene.simulation.run_ready()
        scene.api.gate.set()
        scene.simulation.run_ready()
        assert told == ['m8', 'm9']

    def test_who_is_silent_is_known_to_have_been_so_until_it_answers(self, scene: Scene) -> None:
        assert not scene.hosts.was_silent('host1', 10)
        scene.api.error = exception.RPCTimeout(target='host1', method='poll', timeout=2)
        scene.hosts.ask('host1', [order()])
        scene.simulation.advance(5)
        assert scene.hosts.was_silent('host1', 6)
        assert not scene.hosts.was_silent('host1', 5)
        assert not scene.hosts.was_silent('host2', 6)
        scene.api.error = None
        scene.hosts.ask('host1', [order()])
        assert not scene.hosts.was_silent('host1', 6)

    def test_a_place_is_free_again_after_an_error(self, scene: Scene) -> None:
        scene.api.error = exception.RPCTimeout(target='host1', method='pre', timeout=60)
        for number in range(6):
            with pytest.raises(exception.ServiceUnreachable):
                scene.hosts.tell('host1', 'pre_live_migration', order(number))
        scene.api.error = None
        assert scene.hosts.tell('host1', 'pre_live_migration', order()).seen == 1

    def test_a_poll_takes_a_place_too(self, scene: Scene) -> None:
        scene.api.gate.clear()
        busy: list[int] = []
        for number in range(4):
            scene.call('host1', number, busy)
        scene.simulation.run_ready()
        with pytest.raises(compute_client.HostBusy):
            scene.hosts.ask('host1', [order()])
        scene.api.gate.set()


class TestAcknowledgements:
    def test_they_travel_with_the_next_poll_of_that_host_and_only_once(self, scene: Scene) -> None:
        scene.hosts.acknowledge(report())
        scene.hosts.acknowledge(report('live_migration'))
        scene.hosts.acknowledge(report(host='host2'))
        assert sorted(scene.hosts.unacknowledged()) == ['host1', 'host2']
        scene.hosts.ask('host1', [order()])
        assert [ack['step'] for ack in scene.api.acks[0]] == ['pre_live_migration', 'live_migration']
        assert scene.api.acks[0][0] == {'migration_uuid': 'm1', 'step': 'pre_live_migration', 'epoch': 1}
        assert scene.hosts.unacknowledged() == ['host2']
        scene.hosts.ask('host1', [])
        assert scene.api.acks[1] == []

    @pytest.mark.parametrize(
        'error',
        [
            exception.RPCTimeout(target='host1', method='poll', timeout=2),
            exception.RemoteError(target='host1', method='poll', kind='ValueError', reason='odd'),
        ],
    )
    def test_they_are_kept_when_the_poll_fails_before_those_that_came_meanwhile(
        self, scene: Scene, error: Exception
    ) -> None:
        scene.hosts.acknowledge(report('first'))
        scene.api.error = error
        assert scene.hosts.ask('host1', [order()]) is None
        scene.hosts.acknowledge(report('second'))
        scene.api.error = None
        scene.hosts.ask('host1', [])
        assert [ack['step'] for ack in scene.api.acks[-1]] == ['first', 'second']

    def test_they_are_kept_when_the_host_is_too_busy_to_be_asked(self, scene: Scene) -> None:
        scene.hosts.acknowledge(report())
        scene.api.gate.clear()
        for number in range(4):
            scene.call('host1', number, [])
        scene.simulation.run_ready()
        with pytest.raises(compute_client.HostBusy):
            scene.hosts.ask('host1', [order()])
        assert scene.hosts.unacknowledged() == ['host1']
        scene.api.gate.set()


class TestSilence:
    def test_it_is_counted_from_the_last_answer_and_at_most_from_its_own_start(self, scene: Scene) -> None:
        scene.simulation.advance(10)
        assert scene.hosts.silent_for('host1') == pytest.approx(10)
        scene.hosts.ask('host1', [])
        assert scene.hosts.silent_for('host1') == 0
        scene.simulation.advance(7)
        assert scene.hosts.silent_for('host1') == pytest.approx(7)
        assert scene.hosts.silent_for('host2') == pytest.approx(17)

    def test_a_question_without_an_answer_does_not_end_it_and_any_answer_does(self, scene: Scene) -> None:
        scene.simulation.advance(10)
        scene.api.error = exception.RPCTimeout(target='host1', method='poll', timeout=2)
        assert scene.hosts.ask('host1', [order()]) is None
        assert scene.hosts.silent_for('host1') == pytest.approx(10)
        scene.api.error = None
        scene.hosts.tell('host1', 'pre_live_migration', order())
        assert scene.hosts.silent_for('host1') == 0

    def test_a_new_life_counts_anew_for_it_could_hear_nobody_before(self, scene: Scene) -> None:
        scene.hosts.tell('host1', 'pre_live_migration', order())
        scene.simulation.advance(100)
        scene.hosts.begin_life()
        assert scene.hosts.silent_for('host1') == 0
        scene.simulation.advance(7)
        assert scene.hosts.silent_for('host1') == pytest.approx(7)

    def test_unanswered_is_counted_from_the_first_question_that_was_not_answered(self, scene: Scene) -> None:
        scene.simulation.advance(10)
        assert scene.hosts.unanswered_for('host1') == 0
        scene.api.error = exception.RPCTimeout(target='host1', method='poll', timeout=2)
        scene.hosts.ask('host1', [order()])
        scene.simulation.advance(5)
        scene.hosts.ask('host1', [order()])
        assert scene.hosts.unanswered_for('host1') == pytest.approx(5)
        scene.api.error = None
        scene.hosts.ask('host1', [order()])
        assert scene.hosts.unanswered_for('host1') == 0

    def test_a_time_out_says_nothing_once_a_later_question_was_answered(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        time_out, answers = scene.threads.event(), scene.api.poll_live_migrations

        def hang(*args: Any, **kwargs: Any) -> Any:
            time_out.wait()
            raise exception.RPCTimeout(target='host1', method='poll', timeout=2)

        monkeypatch.setattr(scene.api, 'poll_live_migrations', hang)
        scene.threads.start(lambda: scene.hosts.ask('host1', [order(1)]), name='early')
        scene.simulation.advance(1)
        monkeypatch.setattr(scene.api, 'poll_live_migrations', answers)
        scene.hosts.ask('host1', [order(2)])
        time_out.set()
        scene.simulation.advance(1)
        assert scene.hosts.unanswered_for('host1') == 0
        assert not scene.hosts.was_silent('host1', 60)
