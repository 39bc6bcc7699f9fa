# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging

import pytest

from migrator import context, exception
from migrator.compute import manager, registration
from migrator.objects import protocol
from migrator.testing import driver_contract
from migrator.virt import driver
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene

#: Seconds that the driver waits for an unresponsive guest.
DEADLINE = 20.0


def make_unresponsive(host: scene_module.Host, *numbers: int) -> None:
    """Make get_instance of some guests time out, as it does for a guest whose QEMU hangs."""

    def hang(_truth: object) -> driver.Instance:
        host.process.sleep(DEADLINE)
        raise exception.ServiceUnreachable(service='libvirt of alpha', reason='get_guest was not answered')

    for number in numbers:
        host.scene.alpha.faults.lie('get_instance', hang, sticky=True, instance_uuid=scene_module.uuid(1, number))


def adoptable(host: scene_module.Host) -> list[int]:
    """Return the numbers of the adoptable guests in the report of a host that has registered."""
    (report,) = host.events.started
    known = {scene_module.uuid(1, number): number for number in range(100)}
    return [known[guest.uuid] for guest in report.adoptable if isinstance(guest, driver.Instance)]


def test_compute_started_is_repeated_until_a_conductor_replies(scene: Scene) -> None:
    host = scene.host(start=False)
    host.events.unreachable = True
    host.start()
    scene.simulation.advance(5)
    assert host.poll().refusal == 'starting'
    host.events.unreachable = False
    scene.simulation.advance(1)
    assert len(host.events.started) == 1
    assert host.poll().refusal is None


def test_start_report_names_the_boot_that_it_replaces_once_a_conductor_has_named_it(scene: Scene) -> None:
    host = scene.host(start=False)
    named: list[str | None] = ['first', 'second', 'second', None]
    times: list[float] = []

    def refuse() -> None:
        times.append(scene.simulation.time)
        if len(times) > len(named):
            return
        known = named[len(times) - 1]
        raise exception.BootReplaced(host='alpha', boot_id=host.manager.boot_id, known=known)

    host.events.hang = refuse
    host.start()
    scene.simulation.run_ready()
    assert len(times) == 3, 'a reply that names nothing new is not acted on at once'
    scene.simulation.advance(registration.CALL_AGAIN)
    assert [report.replaces for report in host.events.started] == [None]
    assert len(times) == 5


def test_refused_machine_does_not_listen_until_it_is_accepted(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    host = scene.host(start=False)
    stopped: list[int] = []
    host.wire.stop = lambda: stopped.append(len(host.wire.serving))

    def refuse() -> None:
        raise exception.MachineRefused(host='alpha', reason='planted', identity='x', shown_at='alpha')

    host.events.hang = refuse
    host.start()
    scene.simulation.advance(60)
    assert stopped == [1]
    assert host.events.beats == []
    assert host.poll().refusal == 'starting'
    assert not host.manager.registration.registered
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert logged == [
        'This machine is refused, and serves no command until that is corrected: Host alpha is not registered: planted.'
    ]
    host.events.hang = None
    scene.simulation.advance(registration.REFUSED_AGAIN)
    assert len(host.wire.serving) == 2
    assert len(host.events.started) == 2, 'it registers once it listens'
    assert host.manager.registration.registered
    assert host.poll().refusal is None
    scene.simulation.advance(60)
    assert host.events.beats


def test_machine_that_is_refused_while_it_runs_does_not_listen_any_more(scene: Scene) -> None:
    host = scene.host()
    stopped: list[int] = []
    host.wire.stop = lambda: stopped.append(1)

    def refuse() -> None:
        raise exception.MachineRefused(host='alpha', reason='planted', identity='x', shown_at='alpha')

    host.events.hang = refuse
    host.call('pre_live_migration', boot_id='another')
    scene.simulation.run_ready()
    assert stopped == [1]
    assert not host.manager.registration.registered
    host.manager.cleanup_host()
    assert host.events.stopping == []


def test_report_has_the_identity_of_the_driver_or_the_one_that_is_given(scene: Scene) -> None:
    host = scene.host()
    assert host.events.started[0].identity == scene.alpha.identity
    given = manager.ComputeManager(
        host.conf, 'alpha', host.driver, host.process, host.events, host.wire, identity='a half of alpha'
    )
    given.init_host()
    assert given.registration.inventory.report().identity == 'a half of alpha'


def test_report_has_the_start_of_the_kernel_which_another_start_of_the_host_changes(scene: Scene) -> None:
    host = scene.host()
    before = host.events.started[0].kernel
    assert before == scene.alpha.kernel is not None
    scene.alpha.power_off()
    scene.alpha.power_on()
    again = manager.ComputeManager(host.conf, 'alpha', host.driver, host.process, host.events, host.wire)
    again.init_host()
    assert again.registration.inventory.report().kernel not in (before, None)


@pytest.mark.parametrize('query', ['list_guests', 'get_definitions', 'get_diagnostics', 'get_host_uptime'])
def test_host_reports_nothing_of_its_guests_before_it_is_registered(scene: Scene, query: str) -> None:
    """They may not be those of the host of its name."""
    host = scene.host(start=False)
    host.events.unreachable = True
    host.start()
    asked = {'get_definitions': {'instance_uuids': []}, 'get_diagnostics': {'instance': driver_contract.an_instance()}}
    with pytest.raises(exception.ServiceUnreachable, match='no conductor has registered it yet'):
        getattr(host.manager, query)(context.admin_context(), wait=1.0, **asked.get(query, {}))


@pytest.mark.seeds(None, 1, 2)
def test_many_commands_for_another_boot_make_one_call_at_a_time(scene: Scene) -> None:
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
def test_stopped_host_sends_no_call_and_no_heartbeat(scene: Scene) -> None:
    host = scene.host(start=False)
    host.events.unreachable = True
    host.start()
    host.manager.cleanup_host()
    host.events.unreachable = False
    scene.simulation.advance(100)
    assert host.events.started == []
    assert host.events.beats == []


def test_stop_before_registration_logs_and_reports_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
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


def test_guest_that_fails_to_be_described_does_not_block_host_or_other_guests(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(1, 2, 3, 4)
    host = scene.host(start=False, adopt_guests=True)
    scene.alpha.faults.fail('get_instance', 'no such disk', sticky=True, instance_uuid=scene_module.uuid(1, 1))
    make_unresponsive(host, 3)
    with caplog.at_level(logging.WARNING):
        host.start()
        scene.simulation.advance(DEADLINE + 1)
    assert adoptable(host) == [2, 4]
    assert len(host.events.started[0].guests) == 4
    assert host.poll().refusal is None
    logged = [record.getMessage() for record in caplog.records]
    assert [scene_module.uuid(1, number) in line for number, line in zip((1, 3), logged, strict=True)] == [True, True]
    assert 'no such disk' in logged[0]
    assert 'get_guest was not answered' in logged[1]
    assert all('registers again' in line for line in logged)


def test_many_unresponsive_guests_delay_the_start_by_a_minute_at_most(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(*range(1, 17))
    host = scene.host(start=False, adopt_guests=True)
    make_unresponsive(host, *range(2, 17))
    with caplog.at_level(logging.WARNING):
        host.start()
        scene.simulation.advance(3 * DEADLINE + 1)
    assert adoptable(host) == [1]
    assert host.poll().refusal is None
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 4
    assert '12 more' in logged[-1]
    assert 'registers again' in logged[-1]


def test_start_waits_for_unreachable_hypervisor_and_adopts_every_guest(scene: Scene) -> None:
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


def test_unresponsive_guest_is_queried_once_while_no_conductor_replies(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(1, 2)
    host = scene.host(start=False, adopt_guests=True)
    make_unresponsive(host, 1)
    host.events.unreachable = True
    with caplog.at_level(logging.WARNING):
        host.start()
        scene.simulation.advance(DEADLINE + 10)
        host.events.unreachable = False
        scene.simulation.advance(2)
    assert adoptable(host) == [2]
    assert len([record for record in caplog.records if scene_module.uuid(1, 1) in record.getMessage()]) == 1


def test_host_stopped_while_it_waits_for_a_guest_does_not_register(scene: Scene) -> None:
    scene.guests(1, 2)
    host = scene.host(start=False, adopt_guests=True)
    make_unresponsive(host, 1, 2)
    host.start()
    host.manager.cleanup_host()
    scene.simulation.advance(100)
    assert host.events.started == []


def test_driver_without_get_instance_logs_one_warning_if_guests_are_adopted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the warning the host logged nothing, and its conductor recommended the present option."""
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
    logged = [record.getMessage() for record in caplog.records if 'get_instance' in record.getMessage()]
    shown = ', '.join(scene_module.uuid(1, number) for number in range(1, 6))
    assert logged == [
        'The driver cannot describe 6 guests (its get_instance returns None); those that the database does not have '
        f'are not adopted: {shown}, ...'
    ]
