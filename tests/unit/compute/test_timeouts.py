# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest

from migrator.compute import timeouts
from tests.unit.compute import scene as scene_module
from tests.unit.compute.test_manager import assignment

Scene = scene_module.Scene
LIVE = 'live_migration'
ABORT = 'live_migration_abort'


def hung(scene: Scene, number: int = 1, **options: Any) -> scene_module.Host:
    """Return a host whose first guest (1 GiB, which counts as 2) is being copied, with a copy that hangs."""
    scene.alpha.faults.stall('copying', instance_uuid=scene_module.uuid(1, number))
    host = scene.host(**options)
    host.call(LIVE, number)
    scene.until(lambda: scene.alpha.jobs)
    return host


def reports(host: scene_module.Host) -> list[tuple[int, str, float]]:
    assert all(report[:2] == ('alpha', host.manager.boot_id) for report in host.events.timed_out)
    return [(int(uuid[-2:]), action, seconds) for _, _, uuid, action, seconds in host.events.timed_out]


def change(host: scene_module.Host, **options: Any) -> None:
    for name, value in options.items():
        host.conf.set_override(name, value, scene_module.group_of(name))


class TestTimeouts:
    @pytest.mark.parametrize('action', ['abort', 'force_complete'])
    def test_migration_over_its_time_is_reported_once_and_goes_on(self, scene: Scene, action: str) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10, live_migration_timeout_action=action)
        scene.simulation.advance(19)
        assert reports(host) == []
        scene.simulation.advance(3)
        assert reports(host) == [(1, action, 20.0)]
        scene.simulation.advance(100)
        assert reports(host) == [(1, action, 20.0)]
        assert list(scene.alpha.jobs) == [scene_module.uuid(1, 1)]
        assert scene.world.effects('abort asked') + scene.world.effects('force complete asked') == []

    def test_default_time_is_novas_800_s_for_each_gib(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene)
        scene.simulation.advance(1599)
        assert reports(host) == []
        scene.simulation.advance(3)
        assert reports(host) == [(1, 'abort', 1600.0)]

    def test_time_of_0_is_no_limit(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=0)
        scene.simulation.advance(10_000)
        assert reports(host) == []

    def test_guest_with_more_memory_may_take_longer(self, scene: Scene) -> None:
        scene.guests(1)
        scene.alpha.faults.stall('copying')
        host = scene.host(live_migration_completion_timeout=10)
        host.manager.live_migration(
            scene_module.CONTEXT,
            command=host.command(LIVE),
            instance=scene_module.instance(memory_mb=8192),
            destination='beta',
            migrate_data=scene.data,
        )
        scene.simulation.advance(79)
        assert reports(host) == []
        scene.simulation.advance(3)
        assert reports(host) == [(1, 'abort', 80.0)]

    def test_time_in_the_queue_does_not_count(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = hung(scene, live_migration_completion_timeout=10)
        scene.alpha.faults.stall('copying', instance_uuid=scene_module.uuid(1, 2))
        host.call(LIVE, 2)
        scene.simulation.advance(100)
        assert reports(host) == [(1, 'abort', 20.0)]
        host.call(ABORT, 1)
        scene.simulation.advance(19)
        assert reports(host) == [(1, 'abort', 20.0)]
        scene.simulation.advance(3)
        assert reports(host) == [(1, 'abort', 20.0), (2, 'abort', 20.0)]

    @pytest.mark.parametrize('phase', ['get_guest', LIVE, 'starting'])
    def test_time_of_driver_hang_before_the_job_counts(self, scene: Scene, phase: str) -> None:
        scene.guests(1)
        scene.alpha.faults.stall(phase)
        host = scene.host(live_migration_completion_timeout=10)
        host.call(LIVE)
        scene.simulation.advance(22)
        assert reports(host) == [(1, 'abort', 20.0)]

    def test_failed_report_is_repeated_until_it_is_sent(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        host.events.unreachable = True
        scene.simulation.advance(60)
        assert reports(host) == []
        host.events.unreachable = False
        scene.simulation.advance(2)
        assert reports(host) == [(1, 'abort', 20.0)]

    @pytest.mark.seeds(None, 1, 2)
    def test_hung_report_is_not_repeated_and_delays_no_other(self, scene: Scene) -> None:
        scene.guests(1, 2)
        scene.alpha.faults.stall('copying', sticky=True)
        host = scene.host(live_migration_completion_timeout=10, max_concurrent_live_migrations=2)
        never, reported = host.process.event(), []

        def hang(*report: Any) -> None:
            reported.append(int(report[2][-2:]))
            if report[2] == scene_module.uuid(2, 1):
                never.wait()

        host.events.live_migration_timed_out = hang  # type: ignore[method-assign]
        for number in (1, 2):
            host.call(LIVE, number)
        scene.simulation.advance(60)
        assert sorted(reported) == [1, 2]

    def test_changed_time_applies_to_running_migration(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        change(host, live_migration_completion_timeout=100)
        scene.simulation.advance(150)
        assert reports(host) == []
        change(host, live_migration_completion_timeout=0)
        scene.simulation.advance(150)
        assert reports(host) == []
        change(host, live_migration_completion_timeout=60)
        scene.simulation.advance(2)
        assert reports(host) == [(1, 'abort', 120.0)]

    def test_changed_action_is_reported_too(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10, live_migration_timeout_action='force_complete')
        scene.simulation.advance(30)
        change(host, live_migration_timeout_action='abort')
        scene.simulation.advance(30)
        assert [action for _, action, _ in reports(host)] == ['force_complete', 'abort']

    def test_migration_that_ends_in_time_is_not_reported_and_leaves_no_thread(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host(live_migration_completion_timeout=100)
        before = sorted(thread.name for thread in host.process.threads)
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])
        scene.simulation.advance(timeouts.LOOK * 2)
        assert sorted(thread.name for thread in host.process.threads) == before
        scene.simulation.advance(1000)
        assert reports(host) == []

    def test_migration_after_an_idle_time_is_measured(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host(live_migration_completion_timeout=100)
        host.call(LIVE, 1)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])
        scene.simulation.advance(1000)
        scene.alpha.faults.stall('copying')
        host.call(LIVE, 2)
        scene.simulation.advance(202)
        assert reports(host) == [(2, 'abort', 200.0)]

    def test_attached_job_continues_with_its_time_before_the_restart(self, scene: Scene) -> None:
        scene.guests(1)
        hung(scene, live_migration_completion_timeout=100).kill()
        again = scene.host(start=False, live_migration_completion_timeout=100)
        again.events.assignments = [assignment(1, queue=False, running_for=150.0)]
        again.start()
        scene.simulation.advance(48)
        assert reports(again) == []
        scene.simulation.advance(4)
        assert reports(again) == [(1, 'abort', 200.0)]

    def test_stop_ends_the_check(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        host.manager.cleanup_host()
        scene.simulation.advance(100)
        assert reports(host) == []
        assert 'time-outs' not in {thread.name for thread in host.process.threads}

    def test_invalid_option_is_logged_and_the_old_value_stays(
        self, scene: Scene, tmp_path: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        path = tmp_path / 'migrator.conf'
        path.write_text('[libvirt]\nlive_migration_completion_timeout = soon\n')
        host.conf.clear_override('live_migration_completion_timeout', 'libvirt')
        host.conf([], default_config_files=[str(path)])
        scene.simulation.advance(22)
        assert reports(host) == [(1, 'abort', 20.0)]
        assert "live_migration_completion_timeout is 'soon'" in caplog.text
