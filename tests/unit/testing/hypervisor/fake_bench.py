# SPDX-License-Identifier: Apache-2.0

"""The bench of the driver contract, with two fake hypervisors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrator.testing import driver_contract
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from migrator.testing.simulation.threads import Simulation


class FakeBench(driver_contract.Bench):
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = FakeWorld(simulation.world)
        self.alpha = self.world.add('alpha', link=1024.0)
        self.beta = self.world.add('beta', link=1024.0)
        self.processes = {host: simulation.process(host) for host in ('alpha', 'beta')}
        self.source = FakeDriver(self.alpha, self.processes['alpha'])
        self.destination = FakeDriver(self.beta, self.processes['beta'])
        self.instance = driver_contract.an_instance()
        self.guest = self.alpha.spawn(self.instance, dirty_rate=100.0)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        self.processes['alpha'].start(function, *args, name='call')

    def run_until(self, predicate: Callable[[], Any]) -> None:
        self.simulation.run_until(predicate, timeout=3600)

    def slow(self) -> None:
        self.alpha.set_link(1.0)
        self.guest.dirty_rate = 0.5

    def lose_source(self) -> None:
        self.alpha.power_off()

    def return_source(self) -> None:
        self.alpha.power_on()

    def listeners(self) -> int:
        return self.alpha.jobs[self.instance.uuid].listeners

    def finished_move(self, **guest: Any) -> driver_contract.Call:
        call = self.move(self.prepare())
        self.run_until(lambda: call.ended)
        return call

    def states(self, host: str) -> list[str]:
        return [effect.effect for effect in self.world.log if effect.host == host]
