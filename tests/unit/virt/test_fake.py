# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from migrator import exception
from migrator.objects import command
from migrator.objects import instance as instance_objects
from migrator.testing import threads as sim_threads
from migrator.virt import driver, fake, fake_hypervisor
from tests.unit.virt import driver_contract

GuestState = command.GuestState
Verdict = driver.Verdict


def an_instance(number: int = 1, memory_mb: int = 1024, vcpus: int = 2) -> instance_objects.Instance:
    return instance_objects.Instance(
        uuid=f'00000000-0000-4000-8000-{number:012d}',
        name=f'guest-{number}',
        project_id='project',
        user_id='user',
        host='alpha',
        node='alpha',
        flavor=instance_objects.Flavor(name='small', vcpus=vcpus, memory_mb=memory_mb, root_gb=10),
    )


class FakeBench(driver_contract.Bench):
    def __init__(self, simulation: sim_threads.Simulation) -> None:
        self.simulation = simulation
        self.world = fake.FakeWorld(simulation.world)
        self.alpha = self.world.add('alpha', link=1024.0)
        self.beta = self.world.add('beta', link=1024.0)
        self.processes = {host: simulation.process(host) for host in ('alpha', 'beta')}
        self.source = fake.FakeDriver(self.alpha, self.processes['alpha'])
        self.destination = fake.FakeDriver(self.beta, self.processes['beta'])
        self.destination_host = 'beta'
        self.instance = an_instance()
        self.guest = self.alpha.spawn(self.instance, dirty_rate=100.0)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        self.processes['alpha'].start(function, *args, name='call')

    def run_until(self, predicate: Callable[[], Any]) -> None:
        self.simulation.run_until(predicate, timeout=3600)

    def slow(self) -> None:
        self.alpha.set_link(1.0)
        self.guest.dirty_rate = 0.5

    def finished_move(self, **guest: Any) -> driver_contract.Call:
        call = self.move(self.prepare())
        self.run_until(lambda: call.ended)
        return call

    def states(self, host: str) -> list[str]:
        return [effect.effect for effect in self.world.log if effect.host == host]


@pytest.fixture
def bench() -> Iterator[FakeBench]:
    with sim_threads.Simulation(seed=1) as simulation:
        made = FakeBench(simulation)
        yield made
        assert made.world.violations == []


class TestContract(driver_contract.DriverContract):
    def pause(self, bench: driver_contract.Bench) -> None:
        assert isinstance(bench, FakeBench)
        bench.alpha.pause(bench.instance.uuid)


class TestCopy:
    def test_the_states_are_passed_in_the_order_of_real_hypervisors(self, bench: FakeBench) -> None:
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

    def test_an_idle_guest_takes_as_long_as_its_memory_over_the_link(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 0.0
        data = bench.prepare()
        began = bench.simulation.time
        call = bench.move(data)
        bench.run_until(lambda: call.ended)
        assert bench.simulation.time - began == pytest.approx(1.0, abs=0.01)

    def test_what_was_dirtied_meanwhile_is_sent_again(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 512.0
        bench.alpha.max_downtime = 0.01
        data = bench.prepare()
        began = bench.simulation.time
        call = bench.move(data)
        bench.run_until(lambda: call.ended)
        # 1 + 1/2 + 1/4 ... seconds
        assert bench.simulation.time - began == pytest.approx(2.0, abs=0.05)

    def test_remaining_goes_up_between_two_iterations_and_the_figures_go_at_the_very_end(
        self, bench: FakeBench
    ) -> None:
        """Museum 56 (1982284)."""
        bench.guest.dirty_rate = 512.0
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        remaining: list[int] = []
        stall = bench.alpha.faults.stall('arrived')
        while not stall.reached.is_set():
            figures = bench.source.get_progress(bench.instance.uuid)
            remaining.append(figures.get('memory_remaining', -1))
            bench.simulation.advance(0.05)
        assert any(later > earlier for earlier, later in zip(remaining, remaining[1:], strict=False))
        assert bench.source.get_progress(bench.instance.uuid) == {}
        assert bench.at_source().job
        stall.release()
        bench.run_until(lambda: call.ended)

    def test_a_guest_that_dirties_faster_than_the_link_is_throttled_until_it_fits(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 2000.0
        assert bench.finished_move().result() is Verdict.COMPLETED

    def test_without_throttling_such_a_guest_never_ends_by_itself_but_can_be_forced(self, bench: FakeBench) -> None:
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

    def test_two_jobs_share_the_link_evenly_from_the_moment_the_second_begins(self, bench: FakeBench) -> None:
        bench.guest.dirty_rate = 0.0
        other = an_instance(2)
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

    def test_a_block_migration_copies_the_disk_first_and_shows_its_figures(self, bench: FakeBench) -> None:
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
    def test_a_guest_paused_by_its_user_stays_paused_at_the_destination(self, bench: FakeBench) -> None:
        bench.alpha.pause(bench.instance.uuid)
        assert bench.finished_move().result() is Verdict.COMPLETED
        assert bench.at_destination().state == GuestState.PAUSED

    def test_a_guest_shut_off_by_its_user_fails_the_job_and_stays_shut_off(self, bench: FakeBench) -> None:
        bench.slow()
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.alpha.shut_off(bench.instance.uuid)
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.FAILED
        assert bench.at_source() == command.Guest(instance_uuid=bench.instance.uuid, state='shutdown')

    @pytest.mark.parametrize('phase', ['copying', 'cutover'])
    def test_a_failure_before_the_destination_runs_resumes_the_source(self, bench: FakeBench, phase: str) -> None:
        bench.alpha.faults.fail(phase)
        assert bench.finished_move().result() is Verdict.FAILED
        assert bench.at_source() == command.Guest(instance_uuid=bench.instance.uuid, state='running')
        assert bench.at_destination() == command.Guest(instance_uuid=bench.instance.uuid, state='waiting')

    def test_a_failure_in_cut_over_may_leave_the_source_paused_and_the_rollback_resumes_it(
        self, bench: FakeBench
    ) -> None:
        bench.alpha.leave_paused = True
        bench.alpha.faults.fail('cutover')
        assert bench.finished_move().result() is Verdict.FAILED
        assert bench.at_source() == command.Guest(instance_uuid=bench.instance.uuid, state='paused for cut-over')
        bench.source.rollback_live_migration_at_source(bench.instance, None)
        assert bench.at_source().state == GuestState.RUNNING

    def test_a_destination_that_was_not_prepared_fails_the_job(self, bench: FakeBench) -> None:
        call = bench.move(driver.LiveMigrateData())
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.FAILED
        assert bench.at_source().active

    def test_an_abort_after_the_destination_runs_is_too_late(self, bench: FakeBench) -> None:
        stall = bench.alpha.faults.stall('arrived')
        call = bench.move(bench.prepare())
        bench.run_until(stall.reached.is_set)
        bench.source.live_migration_abort(bench.instance)
        stall.release()
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.COMPLETED

    def test_a_job_that_hangs_can_be_aborted(self, bench: FakeBench) -> None:
        bench.alpha.faults.stall('copying')
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.simulation.advance(100)
        bench.source.live_migration_abort(bench.instance)
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.ABORTED


class TestPostCopy:
    @pytest.fixture(autouse=True)
    def can(self, bench: FakeBench) -> None:
        bench.alpha.post_copy = bench.beta.post_copy = True
        bench.slow()

    def test_the_guest_runs_at_the_destination_while_the_source_still_has_the_job(self, bench: FakeBench) -> None:
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

    def test_it_can_be_broken_off_and_then_neither_host_runs_the_guest(self, bench: FakeBench) -> None:
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.source.live_migration_force_complete(bench.instance)
        bench.run_until(lambda: bench.at_destination().active)
        bench.alpha.break_post_copy(bench.instance.uuid)
        bench.run_until(lambda: call.ended)
        assert bench.at_source().state == bench.at_destination().state == GuestState.POSTCOPY_BROKEN
        with pytest.raises(exception.GuestStillHere):
            bench.source.post_live_migration_at_source(bench.instance, driver.LiveMigrateData())


class TestProcesses:
    def test_a_job_outlives_the_process_that_started_it(self, bench: FakeBench) -> None:
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.simulation.kill(bench.processes['alpha'])
        bench.simulation.run_until(lambda: bench.at_destination().active)
        assert not call.ended

    def test_what_a_killed_call_asked_for_is_called_off_by_settle_and_then_nothing_starts(
        self, bench: FakeBench
    ) -> None:
        stall = bench.alpha.faults.stall('starting')
        bench.move(bench.prepare())
        bench.run_until(stall.reached.is_set)
        bench.simulation.kill(bench.processes['alpha'])
        again = fake.FakeDriver(bench.alpha, bench.simulation.process('alpha'))
        assert again.settle(bench.instance.uuid).state == GuestState.RUNNING
        stall.release()
        bench.simulation.run_ready()
        assert not again.get_guest(bench.instance.uuid).job
        assert bench.world.effects('job started') == []

    def test_a_host_without_power_fails_every_call_and_its_jobs(self, bench: FakeBench) -> None:
        bench.slow()
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.beta.power_off()
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.FAILED
        assert bench.at_source().active
        with pytest.raises(exception.DriverError, match='no power'):
            bench.destination.get_guest(bench.instance.uuid)
        bench.beta.power_on()
        assert bench.at_destination() == command.Guest(instance_uuid=bench.instance.uuid, state='waiting')


class TestRefusals:
    def test_a_destination_without_room_says_what_is_missing(self, bench: FakeBench) -> None:
        big = an_instance(9, memory_mb=65000)
        bench.beta.spawn(an_instance(8, memory_mb=1024))
        with pytest.raises(exception.DestinationTooSmall, match='MEMORY_MB'):
            bench.destination.check_can_live_migrate_destination(big, None, False)
        with pytest.raises(exception.DestinationTooSmall):
            bench.destination.pre_live_migration(big, driver.LiveMigrateData(), driver.NeverCancelled())
        assert bench.beta.residue(big.uuid) == []

    def test_ratio_and_reserve_count_in_room_and_in_inventory_alike(self, bench: FakeBench) -> None:
        gamma = bench.world.add('gamma', vcpus=4, ratios={'VCPU': 2.0}, reserved={'VCPU': 2})
        made = fake.FakeDriver(gamma, bench.processes['beta'])
        made.check_can_live_migrate_destination(an_instance(3, vcpus=4), None, False)
        with pytest.raises(exception.DestinationTooSmall, match='VCPU'):
            made.check_can_live_migrate_destination(an_instance(4, vcpus=5), None, False)
        vcpu = made.get_node().providers[0].inventory['VCPU']
        assert (vcpu['total'], vcpu['reserved'], vcpu['allocation_ratio']) == (4, 2, 2.0)

    def test_block_migration_that_does_not_suit_the_storage_is_refused_with_what_would_do(
        self, bench: FakeBench
    ) -> None:
        with pytest.raises(exception.MigrationPreCheckError, match='False or auto would do'):
            bench.destination.check_can_live_migrate_destination(bench.instance, True, False)

    def test_the_last_copy_of_a_guest_that_is_destroyed_is_a_violation(self, bench: FakeBench) -> None:
        bench.alpha.leave_paused = True
        bench.alpha.faults.fail('cutover')
        bench.finished_move()
        bench.source.post_live_migration_at_source(bench.instance, driver.LiveMigrateData())
        assert 'its last copy' in bench.world.violations.pop()

    def test_a_guest_that_is_active_twice_is_a_violation(self, bench: FakeBench) -> None:
        bench.beta.spawn(bench.instance)
        assert 'active on alpha and beta' in bench.world.violations.pop()


class TestResidue:
    def test_the_check_and_the_preparation_leave_debris_and_the_rollback_leaves_none(self, bench: FakeBench) -> None:
        uuid = bench.instance.uuid
        bench.destination.check_can_live_migrate_destination(bench.instance, None, False)
        assert bench.beta.residue(uuid) == ['check file']
        bench.prepare()
        assert bench.beta.residue(uuid) == ['connections', 'directory', 'guest', 'receiving process']
        bench.destination.rollback_live_migration_at_destination(bench.instance, None)
        assert bench.beta.residue(uuid) == []

    def test_a_cancelled_preparation_leaves_half_and_looks_at_its_token_each_tenth_of_a_second(
        self, bench: FakeBench
    ) -> None:
        bench.beta.pre_seconds = 4.0
        token = driver_contract.Token()
        call = bench.in_thread(
            bench.destination.pre_live_migration, bench.instance, driver.LiveMigrateData(), token
        )
        bench.simulation.advance(2.0)
        token.cancelled = True
        bench.simulation.advance(0.1)
        assert call.ended
        with pytest.raises(exception.Cancelled):
            call.result()
        assert bench.beta.residue(bench.instance.uuid) == ['directory', 'guest']

    def test_after_a_move_and_its_post_steps_nothing_is_left_at_the_source(self, bench: FakeBench) -> None:
        bench.finished_move()
        bench.source.post_live_migration_at_source(bench.instance, driver.LiveMigrateData())
        assert bench.alpha.residue(bench.instance.uuid) == []
        assert bench.beta.residue(bench.instance.uuid) == ['connections', 'directory', 'guest']


class TestFaults:
    def test_a_fault_strikes_once_or_always_before_or_after_the_effect(self, bench: FakeBench) -> None:
        uuid = bench.instance.uuid
        bench.beta.faults.fail('check_can_live_migrate_destination', after=True)
        with pytest.raises(exception.DriverError, match='planted'):
            bench.destination.check_can_live_migrate_destination(bench.instance, None, False)
        assert bench.beta.residue(uuid) == ['check file']
        bench.destination.check_can_live_migrate_destination(bench.instance, None, False)
        bench.beta.faults.fail('get_guest', sticky=True)
        for _ in range(3):
            with pytest.raises(exception.DriverError):
                bench.at_destination()
        bench.beta.faults.clear('get_guest')
        assert not bench.at_destination().present

    def test_a_fault_may_be_meant_for_one_guest(self, bench: FakeBench) -> None:
        bench.alpha.faults.fail('get_guest', instance_uuid='another')
        assert bench.at_source().active

    def test_a_stalled_method_hangs_until_it_is_released(self, bench: FakeBench) -> None:
        stall = bench.alpha.faults.stall('get_guest')
        call = bench.in_thread(bench.source.get_guest, bench.instance.uuid)
        bench.run_until(stall.reached.is_set)
        bench.simulation.advance(1000)
        assert not call.ended
        stall.release()
        bench.run_until(lambda: call.ended)
        assert call.result().active

    def test_a_lie_is_told_instead_of_the_truth(self, bench: FakeBench) -> None:
        bench.alpha.faults.lie('get_guest', lambda truth: truth.replace(state='absent'))
        assert not bench.at_source().present
        assert bench.at_source().present

    def test_a_job_that_has_arrived_cannot_be_planned_to_fail(self, bench: FakeBench) -> None:
        with pytest.raises(ValueError, match='break_post_copy'):
            bench.alpha.faults.fail('arrived')

    def test_every_effect_is_logged_with_time_and_author(self, bench: FakeBench) -> None:
        bench.finished_move()
        started = bench.world.effects('job started', bench.instance.uuid)
        assert [(effect.host, effect.who) for effect in started] == [('alpha', 'alpha/1')]
        assert isinstance(started[0], fake_hypervisor.Effect)
        assert bench.states('beta') == ['check file made', 'check file removed', 'waiting', 'incoming', 'running']
