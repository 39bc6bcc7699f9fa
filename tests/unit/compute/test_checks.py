# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
DESTINATION = 'check_can_live_migrate_destination'
SOURCE = 'check_can_live_migrate_source'


def test_check_replies_when_it_has_ended(scene: Scene) -> None:
    scene.alpha.spawn(scene_module.instance())
    source, destination = scene.host('alpha'), scene.host('beta')
    checked = scene.thread(destination, lambda: destination.report(DESTINATION))
    scene.until(lambda: checked)
    assert (checked[0].state, checked[0].result.destination['host']) == ('done', 'beta')
    checked = scene.thread(source, lambda: source.report(SOURCE))
    scene.until(lambda: checked)
    assert (checked[0].state, checked[0].result.source['host']) == ('done', 'alpha')


def test_refused_check_reports_reason(scene: Scene) -> None:
    scene.alpha.spawn(scene_module.instance())
    host = scene.host('alpha')
    checked = scene.thread(host, lambda: host.report(DESTINATION))
    scene.until(lambda: checked)
    assert (checked[0].state, checked[0].result) == ('failed', {'error': 'MigrationPreCheckError'})
    assert 'already' in checked[0].reason


def test_check_without_guest_at_source_fails(scene: Scene) -> None:
    host = scene.host('alpha')
    checked = scene.thread(host, lambda: host.report(SOURCE))
    scene.until(lambda: checked)
    assert checked[0].state == 'failed'
    assert 'has no guest' in checked[0].reason


def test_hung_check_replies_running_and_frees_its_handler(scene: Scene) -> None:
    host = scene.host('beta')
    stall = scene.beta.faults.stall(DESTINATION)
    checked = scene.thread(host, lambda: host.report(DESTINATION))
    scene.until(lambda: checked)
    assert checked[0].state == 'running'
    stall.release()


@pytest.mark.seeds(None, 1, 2)
def test_rollback_waits_for_hung_check_and_then_removes_its_residue(scene: Scene) -> None:
    host = scene.host('beta')
    stall = scene.beta.faults.stall(DESTINATION)
    scene.thread(host, lambda: host.report(DESTINATION))
    scene.until(stall.reached.is_set)
    host.call('rollback_live_migration_at_destination', epoch=2)
    scene.simulation.run_ready()
    assert host.events.states('rollback_live_migration_at_destination') == []
    stall.release()
    scene.until(lambda: host.events.states('rollback_live_migration_at_destination') == ['done'])
    assert scene.beta.residue(scene_module.uuid(1, 1)) == []


@pytest.mark.seeds(None, 1, 2)
def test_repeated_check_attaches_and_both_calls_get_the_report(scene: Scene) -> None:
    host = scene.host('beta')
    stall = scene.beta.faults.stall(DESTINATION)
    first = scene.thread(host, lambda: host.report(DESTINATION))
    scene.until(stall.reached.is_set)
    second = scene.thread(host, lambda: host.report(DESTINATION))
    scene.simulation.run_ready()
    stall.release()
    scene.until(lambda: first and second)
    assert first == second
    assert len(scene.world.effects('check file made')) == 1


@pytest.mark.parametrize(
    ('step', 'name'), [(DESTINATION, 'beta'), (SOURCE, 'alpha'), ('pre_live_migration', 'beta')], ids=str
)
def test_driver_that_returns_none_fails_its_step_with_reason(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step: str, name: str
) -> None:
    """Without the check the next step failed on the other host, with a Python error about None."""
    scene.alpha.spawn(scene_module.instance())
    host = scene.host(name)
    monkeypatch.setattr(host.driver, step, lambda *arguments: None)
    scene.thread(host, lambda: host.call(step))
    scene.until(lambda: (report := host.kept(step)) is not None and report.state != 'running')
    report = host.kept(step)
    assert report is not None
    assert (report.state, report.reason) == (
        'failed',
        f'{step} returned None: correct the driver to return a LiveMigrateData',
    )
