# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging

import pytest

from migrator import exception
from migrator.objects import protocol
from migrator.virt import driver
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene

#: Seconds for which a driver waits for a guest.
DEADLINE = 20.0


def silence(host: scene_module.Host, *numbers: int) -> None:
    """Have guests not tell what they are, as those do whose QEMU hangs."""

    def hang(_truth: object) -> driver.Instance:
        host.process.sleep(DEADLINE)
        raise exception.ServiceUnreachable(service='libvirt of alpha', reason='get_guest was not answered')

    for number in numbers:
        host.scene.alpha.faults.lie('get_instance', hang, sticky=True, instance_uuid=scene_module.uuid(1, number))


def adoptable(host: scene_module.Host) -> list[int]:
    """Return which guests a host that has registered would have adopted."""
    (report,) = host.events.started
    known = {scene_module.uuid(1, number): number for number in range(100)}
    return [known[guest.uuid] for guest in report.adoptable if isinstance(guest, driver.Instance)]


def test_the_call_is_repeated_until_a_conductor_answers(scene: Scene) -> None:
    host = scene.host(start=False)
    host.events.unreachable = True
    host.start()
    scene.simulation.advance(5)
    assert host.poll().refusal == 'starting'
    host.events.unreachable = False
    scene.simulation.advance(1)
    assert len(host.events.started) == 1
    assert host.poll().refusal is None


@pytest.mark.seeds(None, 1, 2)
def test_many_messages_for_another_boot_make_one_call_at_a_time(scene: Scene) -> None:
    host = scene.host()
    gate = host.process.event()
    host.events.hang = gate.wait
    for number in range(5):
        host.call('pre_live_migration', number, boot_id='another')
    scene.simulation.run_ready()
    gate.set()
    scene.simulation.run_ready()
    assert len(host.events.started) == 2
    assert host.poll().refusal is None


@pytest.mark.seeds(None, 1, 2)
def test_a_stopped_host_calls_no_more_and_beats_no_more(scene: Scene) -> None:
    host = scene.host(start=False)
    host.events.unreachable = True
    host.start()
    host.manager.cleanup_host()
    host.events.unreachable = False
    scene.simulation.advance(100)
    assert host.events.started == []
    assert host.events.beats == []


def test_one_that_stops_before_it_is_known_says_nothing_of_a_call_that_is_lost_and_tells_nobody(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    host = scene.host(start=False)
    gate = host.process.event()
    host.events.hang = gate.wait
    host.events.unreachable = True
    host.start()
    scene.simulation.run_ready()
    with caplog.at_level(logging.WARNING):
        host.manager.cleanup_host()
        gate.set()
        scene.simulation.run_ready()
    assert caplog.records == []
    assert host.events.stopping == []


def test_a_guest_that_cannot_be_described_keeps_neither_its_host_nor_its_neighbours(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(1, 2, 3, 4)
    host = scene.host(start=False, adopt_guests=True)
    scene.alpha.faults.fail('get_instance', 'no such disk', sticky=True, instance_uuid=scene_module.uuid(1, 1))
    silence(host, 3)
    with caplog.at_level(logging.WARNING):
        host.start()
        scene.simulation.advance(DEADLINE + 1)
    assert adoptable(host) == [2, 4]
    assert len(host.events.started[0].guests) == 4
    assert host.poll().refusal is None
    told = [record.getMessage() for record in caplog.records]
    assert [scene_module.uuid(1, number) in line for number, line in zip((1, 3), told, strict=True)] == [True, True]
    assert 'no such disk' in told[0]
    assert 'get_guest was not answered' in told[1]
    assert all('registers again' in line for line in told)


def test_many_guests_that_do_not_answer_hold_the_start_up_for_a_minute_at_most(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(*range(1, 17))
    host = scene.host(start=False, adopt_guests=True)
    silence(host, *range(2, 17))
    with caplog.at_level(logging.WARNING):
        host.start()
        scene.simulation.advance(3 * DEADLINE + 1)
    assert adoptable(host) == [1]
    assert host.poll().refusal is None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert '12 more' in told[-1]
    assert 'registers again' in told[-1]


def test_a_hypervisor_that_is_away_at_the_start_is_waited_for_and_loses_no_guest(scene: Scene) -> None:
    scene.guests(*range(1, 9))
    host = scene.host(start=False, adopt_guests=True)
    away = [True] * 5

    def refuse(truth: driver.Instance) -> driver.Instance:
        if away:
            away.pop()
            raise exception.ServiceUnreachable(service='libvirt of alpha', reason='connection refused')
        return truth

    scene.alpha.faults.lie('get_instance', refuse, sticky=True)
    host.start()
    scene.simulation.advance(10)
    assert adoptable(host) == list(range(1, 9))


def test_what_a_guest_has_not_answered_is_not_asked_again_while_no_conductor_answers(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(1, 2)
    host = scene.host(start=False, adopt_guests=True)
    silence(host, 1)
    host.events.unreachable = True
    with caplog.at_level(logging.WARNING):
        host.start()
        scene.simulation.advance(DEADLINE + 10)
        host.events.unreachable = False
        scene.simulation.advance(2)
    assert adoptable(host) == [2]
    assert len([record for record in caplog.records if scene_module.uuid(1, 1) in record.getMessage()]) == 1


def test_one_that_is_stopped_while_it_waits_for_a_guest_does_not_register(scene: Scene) -> None:
    scene.guests(1, 2)
    host = scene.host(start=False, adopt_guests=True)
    silence(host, 1, 2)
    host.start()
    host.manager.cleanup_host()
    scene.simulation.advance(100)
    assert host.events.started == []


def test_a_driver_that_cannot_tell_what_guests_are_is_named_once_where_they_are_to_be_adopted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was said at the host, and its conductor recommended the option that the host had."""
    scene.guests(*range(1, 8))
    scene.alpha.guests[scene_module.uuid(1, 7)].state = protocol.GuestState.WAITING
    host = scene.host(start=False, adopt_guests=True)
    monkeypatch.setattr(host.driver, 'get_instance', lambda uuid: None)
    host.events.unreachable = True
    with caplog.at_level(logging.WARNING):
        host.start()
        scene.simulation.advance(5)
        host.events.unreachable = False
        scene.simulation.advance(2)
    assert adoptable(host) == []
    told = [record.getMessage() for record in caplog.records if 'get_instance' in record.getMessage()]
    shown = ', '.join(scene_module.uuid(1, number) for number in range(1, 6))
    assert told == [
        'The driver cannot describe 6 guests (its get_instance returns None); those that the database does not have '
        f'are not adopted: {shown}, ...'
    ]
