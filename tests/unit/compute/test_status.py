# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator.objects import protocol
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
LIVE = 'live_migration'


def test_a_guest_that_nothing_was_asked_about_is_here_without_an_entry(scene: Scene) -> None:
    scene.guests(1)
    observation = scene.host().poll()
    assert (observation.guest.state, observation.guest.job, observation.entry) == ('running', False, '')
    assert (observation.verdict, observation.reports, observation.progress) == ('', [], {})


def test_the_entry_says_started_as_long_as_the_driver_call_has_not_returned(scene: Scene) -> None:
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


def test_a_poll_during_a_driver_call_that_hangs_returns(scene: Scene) -> None:
    scene.guests(1)
    stall = scene.alpha.faults.stall(LIVE)
    host = scene.host()
    host.call(LIVE)
    scene.until(stall.reached.is_set)
    began = scene.simulation.time
    assert host.poll().entry == 'started'
    assert scene.simulation.time == began


def test_a_guest_of_which_the_driver_does_not_tell_is_left_out_and_the_others_are_not(scene: Scene) -> None:
    scene.guests(1, 2, 3)
    host = scene.host()
    hung = scene.alpha.faults.stall('get_guest', sticky=True, instance_uuid=scene_module.uuid(1, 1))
    scene.alpha.faults.fail('get_guest', sticky=True, instance_uuid=scene_module.uuid(1, 2))
    commands = [host.command('poll', number) for number in (1, 2, 3)]
    for _ in range(5):
        found = host.polls(commands)
        assert [observation.migration_uuid for observation in found] == [scene_module.uuid(2, 3)]
        scene.simulation.advance(2.0)
    # one question that hangs, not five
    assert len(host.process.threads) < 5
    hung.release()
    scene.simulation.run_ready()
    assert len(host.polls(commands)) == 2


def test_a_guest_of_which_the_driver_says_nonsense_is_left_out_and_the_others_are_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.guests(1, 2, 3)
    host = scene.host()
    odd = {
        scene_module.uuid(1, 1): {'get_guest': lambda uuid: protocol.Guest(instance_uuid=uuid, state='active')},
        scene_module.uuid(1, 2): {
            'get_guest': lambda uuid: protocol.Guest(instance_uuid=uuid, state='running', job=True),
            'get_progress': lambda uuid: {'memory_total': object()},
        },
    }
    for name in ('get_guest', 'get_progress'):
        right = getattr(host.driver, name)
        monkeypatch.setattr(host.driver, name, lambda uuid, n=name, f=right: odd.get(uuid, {}).get(n, f)(uuid))
    found = host.polls([host.command('poll', number) for number in (1, 2, 3)])
    assert [observation.migration_uuid for observation in found] == [scene_module.uuid(2, 3)]
    assert 'Guest.state. Value: active. running' in caplog.text
    text = "get_progress returned ['memory_total'] of type object: correct the driver to return serializable data"
    assert text in caplog.text


def test_a_poll_changes_nothing_but_the_epoch(scene: Scene) -> None:
    scene.guests(1, 2)
    host = scene.host()
    for number in (1, 2):
        host.call(LIVE, number)
    scene.simulation.run_ready()
    before = len(scene.world.log)
    assert host.poll(2, epoch=3) == host.poll(2, epoch=3)
    assert len(scene.world.log) == before
    assert host.waiting[-1] == scene_module.uuid(2, 2)


def test_a_poll_of_nothing_is_answered_at_once(scene: Scene) -> None:
    assert scene.host().polls([]) == []
