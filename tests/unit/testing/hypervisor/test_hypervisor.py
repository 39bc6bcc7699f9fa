# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator import exception
from migrator.objects import GuestState, protocol
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.virt.driver import Verdict
from tests.unit.testing.hypervisor.fake_bench import FakeBench


class TestProcesses:
    def test_job_outlives_the_process_that_started_it(self, bench: FakeBench) -> None:
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.simulation.kill(bench.processes['alpha'])
        bench.simulation.run_until(lambda: bench.at_destination().active)
        assert not call.ended

    def test_settle_cancels_the_pending_job_of_a_killed_process(self, bench: FakeBench) -> None:
        stall = bench.alpha.faults.stall('starting')
        bench.move(bench.prepare())
        bench.run_until(stall.reached.is_set)
        bench.simulation.kill(bench.processes['alpha'])
        again = FakeDriver(bench.alpha, bench.simulation.process('alpha'))
        assert again.settle(bench.instance.uuid).state == GuestState.RUNNING
        stall.release()
        bench.simulation.run_ready()
        assert not again.get_guest(bench.instance.uuid).job
        assert bench.world.effects('job started') == []

    def test_host_without_power_fails_every_call_and_its_jobs(self, bench: FakeBench) -> None:
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
        assert bench.at_destination() == protocol.Guest(instance_uuid=bench.instance.uuid, state='waiting')
