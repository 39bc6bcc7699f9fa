# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
from typing import Any

import pytest

from migrator import exception
from migrator.objects import GuestState, protocol
from migrator.testing import driver_contract
from migrator.virt import driver
from migrator.virt.driver import Verdict
from tests.unit.testing.hypervisor.fake_bench import FakeBench


class TestCopy:
    def test_states_occur_in_the_order_of_real_hypervisors(self, bench: FakeBench) -> None:
        seen: list[tuple[Any, ...]] = []
        stalls = [bench.alpha.faults.stall(phase) for phase in ('copying', 'cutover', 'arrived')]
        call = bench.move(bench.prepare())
        for stall in stalls:
            bench.run_until(stall.reached.is_set)
            seen.append((bench.at_source().state, bench.at_source().job, bench.at_destination().state))
            stall.release()
        bench.run_until(lambda: call.ended)
        seen.append((bench.at_source().state, bench.at_source().job, bench.at_destination().state))
        assert seen == [
            ('running', True, 'waiting'),
            ('paused for cut-over', True, 'waiting'),
            ('paused for cut-over', True, 'running'),
            ('paused for cut-over', False, 'running'),
        ]

    def test_idle_guest_takes_the_time_of_its_memory_over_the_link(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 0.0
        data = bench.prepare()
        began = bench.simulation.time
        call = bench.move(data)
        bench.run_until(lambda: call.ended)
        assert bench.simulation.time - began == pytest.approx(1.0, abs=0.01)

    def test_memory_dirtied_during_an_iteration_is_sent_again(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 512.0
        bench.alpha.max_downtime = 0.01
        data = bench.prepare()
        began = bench.simulation.time
        call = bench.move(data)
        bench.run_until(lambda: call.ended)
        # 1 + 1/2 + 1/4 ... seconds
        assert bench.simulation.time - began == pytest.approx(2.0, abs=0.05)

    @pytest.mark.nova_bug(1982284)
    def test_remaining_memory_rises_between_iterations_and_figures_vanish_at_the_end(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 512.0
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        remaining: list[int] = []
        stall = bench.alpha.faults.stall('arrived')
        while not stall.reached.is_set():
            figures = bench.source.get_progress(bench.instance.uuid)
            remaining.append(figures.get('memory_remaining', -1))
            bench.simulation.advance(0.05)
        assert any(later > earlier for earlier, later in itertools.pairwise(remaining))
        assert bench.source.get_progress(bench.instance.uuid) == {}
        assert bench.at_source().job
        stall.release()
        bench.run_until(lambda: call.ended)

    def test_guest_dirtying_faster_than_the_link_is_throttled_until_it_fits(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 2000.0
        assert bench.finished_move().result() is Verdict.COMPLETED

    def test_unthrottled_fast_guest_ends_only_when_forced(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 2000.0
        bench.alpha.auto_converge_after = 0
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.simulation.advance(500)
        assert not call.ended
        bench.source.live_migration_force_complete(bench.instance)
        assert bench.at_source().state == GuestState.CUTOVER
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.COMPLETED
        assert bench.at_destination().state == GuestState.RUNNING

    def test_two_jobs_share_the_link_evenly_once_the_second_begins(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 0.0
        other = driver_contract.an_instance(2)
        bench.alpha.spawn(other)
        data = bench.prepare()
        bench.destination.check_can_live_migrate_destination(other, None, False)
        bench.destination.pre_live_migration(other, data, driver.NeverCancelled())
        began = bench.simulation.time
        first = bench.move(data)
        bench.run_until(lambda: first.started)
        bench.simulation.advance(0.5)
        second = bench.in_thread(bench.source.live_migration, other, 'beta', data, lambda: None)
        bench.run_until(lambda: first.ended)
        assert bench.simulation.time - began == pytest.approx(1.5, abs=0.01)
        bench.run_until(lambda: second.ended)
        assert bench.simulation.time - began == pytest.approx(2.0, abs=0.01)

    def test_block_migration_copies_the_disk_first_and_reports_its_figures(self, bench: FakeBench) -> None:
        bench.world.shared_storage = False
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.simulation.advance(5)
        figures = bench.source.get_progress(bench.instance.uuid)
        assert figures['disk_total'] == 10 * 1024**3
        assert 0 < figures['disk_remaining'] < figures['disk_total']
        assert figures['memory_remaining'] == figures['memory_total']
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.COMPLETED


class TestEnds:
    def test_guest_paused_by_its_user_stays_paused_at_the_destination(self, bench: FakeBench) -> None:
        bench.alpha.pause(bench.instance.uuid)
        assert bench.finished_move().result() is Verdict.COMPLETED
        assert bench.at_destination().state == GuestState.PAUSED

    def test_guest_shut_off_by_its_user_fails_the_job_and_stays_shut_off(self, bench: FakeBench) -> None:
        bench.slow()
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.alpha.shut_off(bench.instance.uuid)
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.FAILED
        assert bench.at_source() == protocol.Guest(instance_uuid=bench.instance.uuid, state='shutdown')

    @pytest.mark.parametrize('phase', ['copying', 'cutover'])
    def test_failure_before_the_destination_runs_resumes_the_source(self, bench: FakeBench, phase: str) -> None:
        bench.alpha.faults.fail(phase)
        assert bench.finished_move().result() is Verdict.FAILED
        assert bench.at_source() == protocol.Guest(instance_uuid=bench.instance.uuid, state='running')
        assert bench.at_destination() == protocol.Guest(instance_uuid=bench.instance.uuid, state='waiting')

    def test_rollback_resumes_a_source_left_paused_by_a_failed_switchover(self, bench: FakeBench) -> None:
        bench.alpha.leave_paused = True
        bench.alpha.faults.fail('cutover')
        assert bench.finished_move().result() is Verdict.FAILED
        assert bench.at_source() == protocol.Guest(instance_uuid=bench.instance.uuid, state='paused for cut-over')
        bench.source.rollback_live_migration_at_source(bench.instance, None)
        assert bench.at_source().state == GuestState.RUNNING

    def test_job_to_an_unprepared_destination_fails(self, bench: FakeBench) -> None:
        call = bench.move(driver.LiveMigrateData())
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.FAILED
        assert bench.at_source().active

    def test_abort_after_the_destination_runs_is_too_late(self, bench: FakeBench) -> None:
        stall = bench.alpha.faults.stall('arrived')
        call = bench.move(bench.prepare())
        bench.run_until(stall.reached.is_set)
        bench.source.live_migration_abort(bench.instance)
        stall.release()
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.COMPLETED

    def test_job_that_hangs_can_be_aborted(self, bench: FakeBench) -> None:
        bench.alpha.faults.stall('copying')
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.simulation.advance(100)
        bench.source.live_migration_abort(bench.instance)
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.ABORTED


class TestPostCopy:
    @pytest.fixture(autouse=True)
    def post_copy_on_both_hosts(self, bench: FakeBench) -> None:
        bench.alpha.post_copy = bench.beta.post_copy = True
        bench.slow()

    def test_guest_runs_at_the_destination_while_the_source_still_has_the_job(self, bench: FakeBench) -> None:
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.source.live_migration_force_complete(bench.instance)
        bench.run_until(lambda: bench.at_destination().active)
        assert bench.at_destination().post_copy
        assert (bench.at_source().state, bench.at_source().job) == ('paused for cut-over', True)
        assert bench.source.get_progress(bench.instance.uuid)['memory_remaining'] > 0
        bench.source.live_migration_abort(bench.instance)
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.COMPLETED
        assert not bench.at_destination().post_copy

    def test_after_a_broken_post_copy_neither_host_runs_the_guest(self, bench: FakeBench) -> None:
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.source.live_migration_force_complete(bench.instance)
        bench.run_until(lambda: bench.at_destination().active)
        bench.alpha.break_post_copy(bench.instance.uuid)
        bench.run_until(lambda: call.ended)
        assert bench.at_source().state == bench.at_destination().state == GuestState.POSTCOPY_BROKEN
        with pytest.raises(exception.GuestStillHere):
            bench.source.post_live_migration_at_source(bench.instance, driver.LiveMigrateData())
