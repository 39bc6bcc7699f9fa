# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator import exception
from migrator.objects.protocol import GuestState
from migrator.testing import driver_contract
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.virt import driver
from tests.unit.testing.hypervisor.fake_bench import FakeBench


class TestContract(driver_contract.ColdMigrationContract, driver_contract.EvacuationContract):
    def pause(self, bench: driver_contract.Bench) -> None:
        assert isinstance(bench, FakeBench)
        bench.alpha.pause(bench.instance.uuid)


class TestRefusals:
    def test_check_on_destination_without_room_names_the_resource(self, bench: FakeBench) -> None:
        big = driver_contract.an_instance(9, memory_mb=65000)
        bench.beta.spawn(driver_contract.an_instance(8, memory_mb=1024))
        with pytest.raises(exception.DestinationTooSmall, match='MEMORY_MB'):
            bench.destination.check_can_live_migrate_destination(big, None, False)
        with pytest.raises(exception.DestinationTooSmall):
            bench.destination.pre_live_migration(big, driver.LiveMigrateData(), driver.NeverCancelled())
        assert bench.beta.residue(big.uuid) == []

    def test_ratio_and_reserve_count_both_in_the_check_and_in_the_inventory(self, bench: FakeBench) -> None:
        gamma = bench.world.add('gamma', vcpus=4, ratios={'VCPU': 2.0}, reserved={'VCPU': 2})
        made = FakeDriver(gamma, bench.processes['beta'])
        made.check_can_live_migrate_destination(driver_contract.an_instance(3, vcpus=4), None, False)
        with pytest.raises(exception.DestinationTooSmall, match='VCPU'):
            made.check_can_live_migrate_destination(driver_contract.an_instance(4, vcpus=5), None, False)
        vcpu = made.get_node().providers[0].inventory['VCPU']
        assert (vcpu['total'], vcpu['reserved'], vcpu['allocation_ratio']) == (4, 2, 2.0)

    def test_user_cannot_start_a_guest_on_a_host_without_power(self, bench: FakeBench) -> None:
        bench.alpha.power_off()
        with pytest.raises(ValueError, match='alpha has no power'):
            bench.alpha.resume(bench.instance.uuid)
        assert bench.world.active_on(bench.instance.uuid) == []

    def test_block_migration_on_shared_storage_is_refused_with_the_right_value(self, bench: FakeBench) -> None:
        with pytest.raises(exception.MigrationPreCheckError, match='request block_migration False or auto'):
            bench.destination.check_can_live_migrate_destination(bench.instance, True, False)

    def test_destroying_the_last_copy_of_a_guest_is_a_violation(self, bench: FakeBench) -> None:
        bench.alpha.leave_paused = True
        bench.alpha.faults.fail('cutover')
        bench.finished_move()
        bench.source.post_live_migration_at_source(bench.instance, driver.LiveMigrateData())
        assert 'its last copy' in bench.world.violations.pop()

    def test_old_copy_removed_while_a_job_has_paused_the_guest_is_no_violation(self, bench: FakeBench) -> None:
        bench.slow()
        call = bench.move(bench.prepare())
        bench.run_until(lambda: bench.instance.uuid in bench.alpha.jobs)
        bench.source.live_migration_force_complete(bench.instance)
        gamma = bench.world.add('gamma')
        gamma.add_guest(bench.instance, GuestState.CUTOVER, 'the source of an earlier migration')
        gamma.remove(bench.instance.uuid, 'its cleanup')
        bench.run_until(lambda: call.ended)
        assert bench.world.active_on(bench.instance.uuid) == ['beta']
        assert bench.world.violations == []

    def test_moved_guest_removed_before_its_job_ends_is_a_violation(self, bench: FakeBench) -> None:
        bench.alpha.faults.stall('arrived')
        bench.move(bench.prepare())
        bench.run_until(lambda: bench.world.active_on(bench.instance.uuid) == ['beta'])
        bench.beta.remove(bench.instance.uuid, 'a mistake')
        assert 'its last copy' in bench.world.violations.pop()

    def test_guest_active_on_two_hosts_is_a_violation(self, bench: FakeBench) -> None:
        bench.beta.spawn(bench.instance)
        assert 'active on alpha and beta' in bench.world.violations.pop()


class TestResidue:
    def test_rollback_removes_what_check_and_preparation_left(self, bench: FakeBench) -> None:
        uuid = bench.instance.uuid
        bench.destination.check_can_live_migrate_destination(bench.instance, None, False)
        assert bench.beta.residue(uuid) == ['check file']
        bench.prepare()
        assert bench.beta.residue(uuid) == ['connections', 'directory', 'guest', 'receiving process']
        bench.destination.rollback_live_migration_at_destination(bench.instance, None)
        assert bench.beta.residue(uuid) == []

    def test_cancelled_preparation_stops_within_a_tenth_of_a_second_and_leaves_its_parts(
        self, bench: FakeBench
    ) -> None:
        bench.beta.pre_seconds = 4.0
        token = driver_contract.Token()
        call = bench.in_thread(bench.destination.pre_live_migration, bench.instance, driver.LiveMigrateData(), token)
        bench.simulation.advance(2.0)
        token.cancelled = True
        bench.simulation.advance(0.1)
        assert call.ended
        with pytest.raises(exception.Cancelled):
            call.result()
        assert bench.beta.residue(bench.instance.uuid) == ['directory', 'guest']

    def test_post_step_after_migration_leaves_nothing_at_the_source(self, bench: FakeBench) -> None:
        bench.finished_move()
        bench.source.post_live_migration_at_source(bench.instance, driver.LiveMigrateData())
        assert bench.alpha.residue(bench.instance.uuid) == []
        assert bench.beta.residue(bench.instance.uuid) == ['connections', 'directory', 'guest']
