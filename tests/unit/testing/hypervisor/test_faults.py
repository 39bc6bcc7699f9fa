# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator import exception
from migrator.testing.hypervisor import hypervisor
from tests.unit.testing.hypervisor.fake_bench import FakeBench


class TestFaults:
    def test_fault_is_injected_once_or_each_time_before_or_after_the_effect(self, bench: FakeBench) -> None:
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

    def test_fault_for_one_guest_spares_the_others(self, bench: FakeBench) -> None:
        bench.alpha.faults.fail('get_guest', instance_uuid='another')
        assert bench.at_source().active

    def test_stalled_method_hangs_until_released(self, bench: FakeBench) -> None:
        stall = bench.alpha.faults.stall('get_guest')
        call = bench.in_thread(bench.source.get_guest, bench.instance.uuid)
        bench.run_until(stall.reached.is_set)
        bench.simulation.advance(1000)
        assert not call.ended
        stall.release()
        bench.run_until(lambda: call.ended)
        assert call.result().active

    def test_lie_replaces_the_true_result_once(self, bench: FakeBench) -> None:
        bench.alpha.faults.lie('get_guest', lambda truth: truth.replace(state='absent'))
        assert not bench.at_source().present
        assert bench.at_source().present

    def test_planting_a_failure_in_phase_arrived_is_refused(self, bench: FakeBench) -> None:
        with pytest.raises(ValueError, match='break_post_copy'):
            bench.alpha.faults.fail('arrived')

    def test_effects_are_logged_with_host_and_actor(self, bench: FakeBench) -> None:
        bench.finished_move()
        started = bench.world.effects('job started', bench.instance.uuid)
        assert [(effect.host, effect.who) for effect in started] == [('alpha', 'alpha/1')]
        assert isinstance(started[0], hypervisor.Effect)
        assert bench.states('beta') == ['check file made', 'check file removed', 'waiting', 'incoming', 'running']
