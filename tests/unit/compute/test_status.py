# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator import exception
from migrator.objects import protocol
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
LIVE = 'live_migration'


def test_poll_of_idle_guest_returns_it_without_entry(scene: Scene) -> None:
    scene.guests(1)
    observation = scene.host().poll()
    assert (observation.guest.state, observation.guest.job, observation.entry) == ('running', False, '')
    assert (observation.verdict, observation.reports, observation.progress) == ('', [], {})


def test_entry_is_started_until_the_driver_call_returns(scene: Scene) -> None:
    scene.guests(1)
    before, after = scene.alpha.faults.stall(LIVE), scene.alpha.faults.stall(LIVE, after=True)
    host = scene.host()
    host.call(LIVE)
    scene.until(before.reached.is_set)
    observation = host.poll()
    assert (observation.entry, observation.guest.job) == ('started', False)
    before.release()
    scene.until(lambda: scene.alpha.jobs)
    observation = host.poll()
    assert (observation.entry, observation.guest.job) == ('started', True)
    assert observation.progress['memory_total'] == 1024 * 1024 * 1024
    scene.until(after.reached.is_set)
    observation = host.poll()
    assert (observation.entry, observation.guest.job, observation.progress) == ('started', False, {})
    after.release()
    scene.until(lambda: host.poll().entry == 'returned')


def test_poll_returns_while_a_driver_call_hangs(scene: Scene) -> None:
    scene.guests(1)
    stall = scene.alpha.faults.stall(LIVE)
    host = scene.host()
    host.call(LIVE)
    scene.until(stall.reached.is_set)
    began = scene.simulation.time
    assert host.poll().entry == 'started'
    assert scene.simulation.time == began


def test_poll_leaves_out_only_guests_that_the_driver_does_not_report(scene: Scene) -> None:
    scene.guests(1, 2, 3)
    host = scene.host()
    hung = scene.alpha.faults.stall('get_guest', sticky=True, instance_uuid=scene_module.uuid(1, 1))
    scene.alpha.faults.fail('get_guest', sticky=True, instance_uuid=scene_module.uuid(1, 2))
    commands = [host.command('poll', number) for number in (1, 2, 3)]
    for _ in range(5):
        found = host.polls(commands)
        assert [observation.migration_uuid for observation in found] == [scene_module.uuid(2, 3)]
        scene.simulation.advance(2.0)
    # Five polls leave one hung query, not five.
    assert len(host.process.threads) < 5
    hung.release()
    scene.simulation.run_ready()
    assert len(host.polls(commands)) == 2


def test_poll_leaves_out_only_guests_that_the_driver_reports_wrongly(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(1, 2, 3)
    host = scene.host()
    wrong = {
        scene_module.uuid(1, 1): {'get_guest': lambda uuid: protocol.Guest(instance_uuid=uuid, state='active')},
        scene_module.uuid(1, 2): {
            'get_guest': lambda uuid: protocol.Guest(instance_uuid=uuid, state='running', job=True),
            'get_progress': lambda uuid: {'memory_total': object()},
        },
    }
    for name in ('get_guest', 'get_progress'):
        right = getattr(host.driver, name)
        monkeypatch.setattr(host.driver, name, lambda uuid, n=name, f=right: wrong.get(uuid, {}).get(n, f)(uuid))
    found = host.polls([host.command('poll', number) for number in (1, 2, 3)])
    assert [observation.migration_uuid for observation in found] == [scene_module.uuid(2, 3)]
    assert 'Guest.state. Value: active. Use ' in caplog.text
    text = "get_progress returned ['memory_total'] of type object: correct the driver to return serializable data"
    assert text in caplog.text


def test_poll_changes_only_the_epoch(scene: Scene) -> None:
    scene.guests(1, 2)
    host = scene.host()
    for number in (1, 2):
        host.call(LIVE, number)
    scene.simulation.run_ready()
    before = len(scene.world.log)
    assert host.poll(2, epoch=3) == host.poll(2, epoch=3)
    assert len(scene.world.log) == before
    assert host.waiting[-1] == scene_module.uuid(2, 2)


def test_poll_without_commands_returns_at_once(scene: Scene) -> None:
    assert scene.host().polls([]) == []


def test_diagnostics_are_those_of_a_running_guest(scene: Scene) -> None:
    scene.guests(1)
    host = scene.host()
    instance = scene_module.instance()
    found = host.manager.get_diagnostics(scene_module.CONTEXT, instance, 1.0)
    assert (found['state'], found['diagnostics']['memory_details']['maximum']) == ('running', 1024)
    scene.alpha.pause(instance.uuid)
    assert host.manager.get_diagnostics(scene_module.CONTEXT, instance, 1.0) == {'state': 'paused', 'diagnostics': None}
    assert 'load average' in host.manager.get_host_uptime(scene_module.CONTEXT, 1.0)


def test_diagnostics_that_the_driver_does_not_report_in_time_are_an_error(scene: Scene) -> None:
    scene.guests(1)
    host = scene.host()
    scene.alpha.faults.stall('get_diagnostics', sticky=True)
    began = scene.simulation.time
    failed: list[str] = []

    def report() -> None:
        try:
            host.manager.get_diagnostics(scene_module.CONTEXT, scene_module.instance(), 1.0)
        except exception.DriverError as error:
            failed.append(error.message)

    scene.thread(host, report)
    scene.until(lambda: failed)
    assert 'did not report the diagnostics of' in failed[0]
    assert scene.simulation.time - began == 1.0
