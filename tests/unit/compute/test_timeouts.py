# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest

from migrator.compute import timeouts
from migrator.objects import Flavor, LiveMigrateData
from tests.unit.compute import scene as scene_module
from tests.unit.compute.test_manager import assignment

Scene = scene_module.Scene
LIVE = 'live_migration'
ABORT = 'live_migration_abort'


def flavor(**fields: Any) -> Flavor:
    return Flavor(name='any', **fields)


class TestDataGib:
    """What a move has to transfer, by nova's reckoning: ``_live_migration_data_gb`` of its libvirt driver."""

    @pytest.mark.parametrize(
        ('memory_mb', 'gib'), [(1, 2.0), (2048, 2.0), (2049, 2049 / 1024), (4096, 4.0), (6144, 6.0), (1024**2, 1024.0)]
    )
    @pytest.mark.parametrize('block_migration', [False, None])
    def test_is_the_memory_where_disks_are_shared_and_2_at_least(
        self, memory_mb: int, gib: float, block_migration: bool | None
    ) -> None:
        instance = scene_module.instance().replace(flavor=flavor(memory_mb=memory_mb, root_gb=100))
        data = LiveMigrateData(block_migration=block_migration)
        assert timeouts.data_gib(instance, data) == gib

    @pytest.mark.parametrize(
        ('disks', 'gib'),
        [
            ({'root_gb': 10}, 14.0),
            ({'root_gb': 1}, 6.0),
            ({'root_gb': 0}, 4.0),
            ({'root_gb': 10, 'ephemeral_gb': 20, 'swap': 4096}, 38.0),
            ({'root_gb': 10, 'ephemeral_gb': 1, 'swap': 1}, 18.0),
        ],
    )
    def test_is_each_disk_too_where_disks_are_copied_and_each_2_at_least(
        self, disks: dict[str, int], gib: float
    ) -> None:
        instance = scene_module.instance().replace(flavor=flavor(memory_mb=4096, **disks))
        data = LiveMigrateData(block_migration=True)
        assert timeouts.data_gib(instance, data) == gib

    @pytest.mark.parametrize(
        ('copied_gib', 'gib'), [([500.0], 504.0), ([], 4.0), ([1.0, 30.0], 36.0)], ids=['one', 'none', 'two']
    )
    def test_is_what_the_driver_has_told_of_the_disks_where_it_has(self, copied_gib: list[float], gib: float) -> None:
        instance = scene_module.instance().replace(flavor=flavor(memory_mb=4096, root_gb=0, ephemeral_gb=7))
        data = LiveMigrateData(block_migration=True, source={'copied_gib': copied_gib})
        assert timeouts.data_gib(instance, data) == gib


def hung(scene: Scene, number: int = 1, **options: Any) -> scene_module.Host:
    """Return a host whose first guest (1 GiB, which counts as 2) is being copied and does not get on."""
    scene.alpha.faults.stall('copying', instance_uuid=scene_module.uuid(1, number))
    host = scene.host(**options)
    host.call(LIVE, number)
    scene.until(lambda: scene.alpha.jobs)
    return host


def told(host: scene_module.Host) -> list[tuple[int, str, float]]:
    assert all(said[:2] == ('alpha', host.manager.boot_id) for said in host.events.timed_out)
    return [(int(uuid[-2:]), action, seconds) for _, _, uuid, action, seconds in host.events.timed_out]


def change(host: scene_module.Host, **options: Any) -> None:
    for name, value in options.items():
        host.conf.set_override(name, value, scene_module.group_of(name))


class TestTimeouts:
    @pytest.mark.parametrize('action', ['abort', 'force_complete'])
    def test_a_move_that_takes_longer_is_told_once_and_the_hypervisor_left_alone(
        self, scene: Scene, action: str
    ) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10, live_migration_timeout_action=action)
        scene.simulation.advance(19)
        assert told(host) == []
        scene.simulation.advance(3)
        assert told(host) == [(1, action, 20.0)]
        scene.simulation.advance(100)
        assert told(host) == [(1, action, 20.0)]
        assert list(scene.alpha.jobs) == [scene_module.uuid(1, 1)]
        assert scene.world.effects('abort asked') + scene.world.effects('force complete asked') == []

    def test_without_a_word_in_the_file_it_is_novas_800_s_for_each_gib(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene)
        scene.simulation.advance(1599)
        assert told(host) == []
        scene.simulation.advance(3)
        assert told(host) == [(1, 'abort', 1600.0)]

    def test_0_is_for_ever(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=0)
        scene.simulation.advance(10_000)
        assert told(host) == []

    def test_a_guest_with_more_memory_may_take_longer(self, scene: Scene) -> None:
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
        assert told(host) == []
        scene.simulation.advance(3)
        assert told(host) == [(1, 'abort', 80.0)]

    def test_waiting_in_the_queue_does_not_count(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = hung(scene, live_migration_completion_timeout=10)
        scene.alpha.faults.stall('copying', instance_uuid=scene_module.uuid(1, 2))
        host.call(LIVE, 2)
        scene.simulation.advance(100)
        assert told(host) == [(1, 'abort', 20.0)]
        host.call(ABORT, 1)
        scene.simulation.advance(19)
        assert told(host) == [(1, 'abort', 20.0)]
        scene.simulation.advance(3)
        assert told(host) == [(1, 'abort', 20.0), (2, 'abort', 20.0)]

    @pytest.mark.parametrize('phase', ['get_guest', LIVE, 'starting'])
    def test_a_driver_that_hangs_before_there_is_a_job_counts(self, scene: Scene, phase: str) -> None:
        scene.guests(1)
        scene.alpha.faults.stall(phase)
        host = scene.host(live_migration_completion_timeout=10)
        host.call(LIVE)
        scene.simulation.advance(22)
        assert told(host) == [(1, 'abort', 20.0)]

    def test_one_that_nobody_heard_is_told_again_until_it_is_heard(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        host.events.unreachable = True
        scene.simulation.advance(60)
        assert told(host) == []
        host.events.unreachable = False
        scene.simulation.advance(2)
        assert told(host) == [(1, 'abort', 20.0)]

    @pytest.mark.seeds(None, 1, 2)
    def test_a_message_that_hangs_is_not_sent_twice_at_once_and_holds_up_no_other(self, scene: Scene) -> None:
        scene.guests(1, 2)
        scene.alpha.faults.stall('copying', sticky=True)
        host = scene.host(live_migration_completion_timeout=10, max_concurrent_live_migrations=2)
        never, asked = host.process.event(), []

        def tell(*said: Any) -> None:
            asked.append(int(said[2][-2:]))
            if said[2] == scene_module.uuid(2, 1):
                never.wait()

        host.events.live_migration_timed_out = tell  # type: ignore[method-assign]
        for number in (1, 2):
            host.call(LIVE, number)
        scene.simulation.advance(60)
        assert sorted(asked) == [1, 2]

    def test_what_is_changed_while_it_runs_holds_at_once(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        change(host, live_migration_completion_timeout=100)
        scene.simulation.advance(150)
        assert told(host) == []
        change(host, live_migration_completion_timeout=0)
        scene.simulation.advance(150)
        assert told(host) == []
        change(host, live_migration_completion_timeout=60)
        scene.simulation.advance(2)
        assert told(host) == [(1, 'abort', 120.0)]

    def test_another_action_that_is_wished_later_is_told_too(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10, live_migration_timeout_action='force_complete')
        scene.simulation.advance(30)
        change(host, live_migration_timeout_action='abort')
        scene.simulation.advance(30)
        assert [action for _, action, _ in told(host)] == ['force_complete', 'abort']

    def test_one_that_ends_in_time_is_never_told_and_leaves_no_thread(self, scene: Scene) -> None:
        scene.guests(1)
        host = scene.host(live_migration_completion_timeout=100)
        before = sorted(thread.name for thread in host.process.threads)
        host.call(LIVE)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])
        scene.simulation.advance(timeouts.LOOK * 2)
        assert sorted(thread.name for thread in host.process.threads) == before
        scene.simulation.advance(1000)
        assert told(host) == []

    def test_the_next_move_after_an_idle_time_is_counted_too(self, scene: Scene) -> None:
        scene.guests(1, 2)
        host = scene.host(live_migration_completion_timeout=100)
        host.call(LIVE, 1)
        scene.until(lambda: host.events.states(LIVE)[-1:] == ['done'])
        scene.simulation.advance(1000)
        scene.alpha.faults.stall('copying')
        host.call(LIVE, 2)
        scene.simulation.advance(202)
        assert told(host) == [(2, 'abort', 200.0)]

    def test_a_job_that_outlived_its_service_goes_on_with_the_time_that_it_has_run(self, scene: Scene) -> None:
        scene.guests(1)
        hung(scene, live_migration_completion_timeout=100).kill()
        again = scene.host(start=False, live_migration_completion_timeout=100)
        again.events.assignments = [assignment(1, queue=False, running_for=150.0)]
        again.start()
        scene.simulation.advance(48)
        assert told(again) == []
        scene.simulation.advance(4)
        assert told(again) == [(1, 'abort', 200.0)]

    def test_a_stop_ends_the_looking(self, scene: Scene) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        host.manager.cleanup_host()
        scene.simulation.advance(100)
        assert told(host) == []
        assert 'time-outs' not in {thread.name for thread in host.process.threads}

    def test_an_option_that_is_not_right_is_logged_and_what_was_said_before_stays(
        self, scene: Scene, tmp_path: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.guests(1)
        host = hung(scene, live_migration_completion_timeout=10)
        path = tmp_path / 'migrator.conf'
        path.write_text('[libvirt]\nlive_migration_completion_timeout = soon\n')
        host.conf.clear_override('live_migration_completion_timeout', 'libvirt')
        host.conf([], default_config_files=[str(path)])
        scene.simulation.advance(22)
        assert told(host) == [(1, 'abort', 20.0)]
        assert "live_migration_completion_timeout is 'soon'" in caplog.text
