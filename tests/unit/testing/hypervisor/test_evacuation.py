# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator import exception
from migrator.objects import Instance, LiveMigrateData
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import PARTS
from tests.unit.testing.hypervisor.fake_bench import FakeBench


def checked(bench: FakeBench, instance: Instance | None = None) -> LiveMigrateData:
    """Return what the destination's check returns, given the definition that the source has reported."""
    data = LiveMigrateData(source=bench.source.get_definition(bench.instance.uuid) or {})
    return bench.destination.check_can_evacuate(instance or bench.instance, data)


def test_killed_guest_is_started_elsewhere_once_with_its_load(bench: FakeBench) -> None:
    data = checked(bench)
    bench.alpha.power_off()
    for _ in range(2):
        bench.destination.evacuate(bench.instance, data)
        assert bench.at_destination().state == 'running'
    assert [effect.host for effect in bench.world.effects('evacuated')] == ['beta']
    assert bench.beta.guests[bench.instance.uuid].dirty_rate == 100.0
    bench.alpha.power_on()
    bench.source.post_evacuation_at_source(bench.instance, data)
    assert bench.alpha.residue(bench.instance.uuid) == []
    assert bench.world.effects('ended') == []


@pytest.mark.parametrize(
    ('state', 'vm_state', 'power_state'),
    [('running', 'active', 1), ('running', 'error', 4), ('paused', 'active', 3), ('shutdown', 'stopped', 4)],
)
def test_guest_comes_back_in_its_state(bench: FakeBench, state: str, vm_state: str, power_state: int) -> None:
    instance = bench.instance.replace(vm_state=vm_state, power_state=power_state)
    bench.destination.evacuate(instance, checked(bench, instance))
    assert bench.at_destination().state == state


def test_host_that_prepared_for_the_guest_starts_it(bench: FakeBench) -> None:
    bench.prepare()
    bench.alpha.power_off()
    bench.alpha.power_on()
    bench.destination.evacuate(bench.instance, checked(bench))
    assert (bench.at_destination().state, bench.at_destination().incoming) == ('running', False)
    assert bench.beta.residue(bench.instance.uuid) == sorted([*PARTS[:2], 'guest'])


@pytest.mark.parametrize('missing', ['definition', 'disks', 'storage', 'room'])
def test_guest_without_what_it_needs_is_not_started(bench: FakeBench, missing: str) -> None:
    data, instance = checked(bench), bench.instance
    if missing == 'definition':
        data = LiveMigrateData()
    elif missing == 'disks':
        bench.world.shared_storage = False
        data = LiveMigrateData(source=bench.source.get_definition(instance.uuid) or {})
    elif missing == 'storage':
        bench.beta.capacity.shared_disks = False
    else:
        bench.beta.capacity.totals['VCPU'] = 1
    for method in (bench.destination.check_can_evacuate, bench.destination.evacuate):
        with pytest.raises(exception.MigrationPreCheckError):
            method(instance, data)
    assert bench.beta.residue(instance.uuid) == []


def test_host_that_has_the_guest_refuses_the_check(bench: FakeBench) -> None:
    with pytest.raises(exception.MigrationPreCheckError, match='alpha already has guest'):
        bench.source.check_can_evacuate(bench.instance, checked(bench))


@pytest.mark.parametrize('method', ['check_can_evacuate', 'evacuate'])
@pytest.mark.parametrize('after', [False, True])
def test_planted_fault_is_injected_before_or_after_the_start(bench: FakeBench, method: str, after: bool) -> None:
    data = checked(bench)
    bench.beta.faults.fail(method, 'disk full', after=after)
    with pytest.raises(exception.DriverError, match='disk full'):
        getattr(bench.destination, method)(bench.instance, data)
    assert bench.at_destination().active == (after and method == 'evacuate')


@pytest.mark.parametrize('next_call', ['none', 'evacuate', 'rollback', 'settle'])
def test_start_outlives_its_process_until_a_later_one_cancels_it(bench: FakeBench, next_call: str) -> None:
    data = checked(bench)
    bench.alpha.power_off()
    stall = bench.beta.faults.stall('booting')
    bench.processes['beta'].start(lambda: bench.destination.evacuate(bench.instance, data), name='evacuate')
    bench.run_until(stall.reached.is_set)
    bench.simulation.kill(bench.processes['beta'])
    again = FakeDriver(bench.beta, bench.simulation.process('beta'))
    assert not again.get_guest(bench.instance.uuid).present
    if next_call == 'evacuate':
        bench.start(again.evacuate, bench.instance, data)
        bench.simulation.run_ready()
    elif next_call == 'rollback':
        again.rollback_evacuation_at_destination(bench.instance, data)
    elif next_call == 'settle':
        again.settle(bench.instance.uuid)
    stall.release()
    bench.simulation.run_ready()
    assert again.get_guest(bench.instance.uuid).active == (next_call in ('none', 'evacuate'))
    assert len(bench.world.effects('evacuated')) == (next_call in ('none', 'evacuate'))
    assert bench.world.starts == {}


@pytest.mark.parametrize('fault', ['fails', 'loses power'])
def test_start_that_fails_leaves_nothing_and_a_later_one_succeeds(bench: FakeBench, fault: str) -> None:
    data = checked(bench)
    bench.alpha.power_off()
    stall = bench.beta.faults.stall('booting') if fault == 'loses power' else None
    if stall is None:
        bench.beta.faults.fail('booting', 'no memory')
    call = bench.in_thread(bench.destination.evacuate, bench.instance, data)
    if stall is not None:
        bench.run_until(stall.reached.is_set)
        bench.beta.power_off()
        stall.release()
    bench.run_until(lambda: call.ended)
    with pytest.raises(exception.DriverError, match=r'no memory|no power'):
        call.result()
    bench.beta.power_on()
    assert bench.beta.residue(bench.instance.uuid) == []
    bench.destination.evacuate(bench.instance, data)
    assert bench.at_destination().active


def test_rollback_keeps_an_active_guest_and_removes_one_that_is_shut_off(bench: FakeBench) -> None:
    data = checked(bench)
    bench.destination.evacuate(bench.instance, data)
    with pytest.raises(exception.GuestStillHere):
        bench.destination.rollback_evacuation_at_destination(bench.instance, data)
    bench.beta.shut_off(bench.instance.uuid)
    for _ in range(2):
        bench.destination.rollback_evacuation_at_destination(bench.instance, data)
        assert bench.beta.residue(bench.instance.uuid) == []


def test_active_copy_is_superseded_by_the_evacuation_and_ended_by_its_cleanup(bench: FakeBench) -> None:
    data = checked(bench)
    bench.destination.evacuate(bench.instance, data)
    assert bench.alpha.guests[bench.instance.uuid].superseded
    bench.source.post_evacuation_at_source(bench.instance, data)
    assert [effect.host for effect in bench.world.effects('ended')] == ['alpha']
    assert bench.world.active_on(bench.instance.uuid) == ['beta']


def test_copy_with_a_job_is_ended_with_the_job(bench: FakeBench) -> None:
    bench.slow()
    data = checked(bench)
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.started)
    gamma = bench.world.add('gamma')
    gamma.add_guest(bench.instance, 'shutdown', 'evacuation')
    bench.source.post_evacuation_at_source(bench.instance, data)
    bench.run_until(lambda: call.ended)
    assert not bench.at_source().present
    assert not bench.at_destination().active


def test_second_start_of_a_guest_is_a_violation(bench: FakeBench) -> None:
    data = checked(bench)
    bench.destination.evacuate(bench.instance, data)
    bench.world.add('gamma').spawn(bench.instance)
    assert 'is active on beta and gamma' in bench.world.violations.pop()
