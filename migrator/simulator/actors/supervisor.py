# SPDX-License-Identifier: Apache-2.0

"""A process supervisor for a simulated cloud: processes die, pause and starve, and are started again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from migrator import exception
from migrator.compute.manager import ComputeManager
from migrator.conductor.rpcapi import ConductorEvents
from migrator.simulator.invariants import check
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.simulation.sim_thread import ProcessKilled
from migrator.testing.simulation.threads import SimThreads

LOG = logging.getLogger(__name__)

#: Seconds after which a failed start is repeated.
_AGAIN = 2.0
#: Seconds within which a process starts the threads that it could not start before.
_SWEEP = 15.0


class Supervisor:
    """The supervisor of the processes of one cloud.

    :param cloud: a cloud whose conductors and compute services are started.
    :ivar gone: the processes that never come back.
    :ivar down: the processes that do not run now, for ever or not.
    :ivar declared: the hosts that an operator has declared down so far.
    :ivar strangers: the processes of machines that have the name of another one, and are on now.
    :ivar violations: violations that were found at the end of an outage of the broker.
    """

    def __init__(self, cloud: SimulatedCloud) -> None:
        assert cloud.simulation is not None
        self.cloud = cloud
        self.simulation = cloud.simulation
        self.gone: set[str] = set()
        self.down: set[str] = set()
        self.declared: set[str] = set()
        self.strangers: set[str] = set()
        self.violations: list[check.Violation] = []
        self._starved = 0

    @property
    def is_at_rest(self) -> bool:
        """Whether all processes run that come back, and no outage lasts."""
        is_busy = self.down - self.gone or self._starved or self.strangers
        return not is_busy and not self._is_any_away()

    def _is_any_away(self) -> bool:
        return bool(self.cloud.bus.away or self.cloud.adapter.away)

    def kill(self, name: str, back_after: float | None) -> None:
        """Kill a process (``kill -9``) and start it again later.

        :param back_after: seconds until the restart; None: never.
        """
        if name not in self.cloud.processes or name in self.down:
            return
        self.down.add(name)
        if back_after is None:
            self.gone.add(name)
        else:
            self.later(back_after, lambda: self._start(name))
        # This is last, since it may end the calling thread.
        self.cloud.kill(name)

    def lose_power(self, host: str, back_after: float | None) -> None:
        """Cut the power of a host: its guests are shut off, and its compute service ends.

        :param back_after: seconds until the power is back and the service starts; None: never. The guests stay shut
            off.
        """
        hypervisor = self.cloud.world.hypervisors[host]
        hypervisor.power_off()
        if back_after is not None:
            self.later(back_after, hypervisor.power_on)
        self.kill(host, back_after)

    def bring_back(self, host: str) -> None:
        """Restore the power of a host that was lost for ever, and start its compute service."""
        self.cloud.world.hypervisors[host].power_on()
        self.gone.discard(host)
        if host in self.down:
            self._start(host)

    def pause(self, name: str, seconds: float) -> None:
        """Pause a process (SIGSTOP) for some seconds."""
        process = self.cloud.processes.get(name)
        if process is None or process.paused or name in self.down:
            return
        self.simulation.pause(process)
        self.later(seconds, lambda: self.simulation.resume(process))

    def starve(self, name: str, seconds: float) -> None:
        """Prevent a process from starting threads for some seconds; a new boot is not affected."""
        process = self.cloud.processes.get(name)
        if process is None or process.threadless:
            return
        self._starved += 1
        process.threadless = True

        def feed() -> None:
            process.threadless = False
            # The process starts the missing threads at its next periodic run.
            self.cloud.world.threads.sleep(_SWEEP)
            self._starved -= 1

        self.later(seconds, feed)

    def take_broker_away(self, fault: str, seconds: float) -> None:
        """Lose or refuse all messages for some seconds, and note running hosts that are then declared down.

        :param fault: 'lose' or 'refuse'; see :class:`migrator.testing.bus.DirectBus`.
        """
        bus, services = self.cloud.bus, self.cloud.database.services
        if bus.away:
            return
        bus.away = fault
        alive = {host for host in self.cloud.computes if host not in self.down}
        known = {service.host for service in services.list() if service.down_since is not None}

        def back() -> None:
            bus.away = None
            for service in services.list():
                if service.down_since is not None and service.host in alive - known - self.down - self.declared:
                    what = f'running host {service.host} was declared down because the broker was unreachable'
                    self.violations.append(check.Violation('I7', what, self.simulation.time))

        self.later(seconds, back)

    def take_placement_away(self, seconds: float) -> None:
        """Let no request reach Placement for some seconds."""
        adapter = self.cloud.adapter
        adapter.away = True

        def back() -> None:
            adapter.away = False

        self.later(seconds, back)

    def switch_on_another(self, host: str, seconds: float) -> None:
        """Switch another machine on that has the name of a host and none of its guests, and off again later.

        :param seconds: how long it is on.
        """
        world, name = self.cloud.world, f'another {host}'
        if name in self.strangers:
            return
        own = world.hypervisors[host]
        other = world.add(host)
        world.hypervisors[host] = own
        threads = self.cloud.threads_for(name)
        assert isinstance(threads, SimThreads)
        self.strangers.add(name)

        def switch_off() -> None:
            self.strangers.discard(name)
            if name in self.cloud.processes:
                self.cloud.kill(name)

        self.later(seconds, switch_off)
        client = self.cloud.rpc_for(name)
        with contextlib.suppress(ProcessKilled, exception.MigratorException), threads.acting():
            driver, events = FakeDriver(other, threads), ConductorEvents(client)
            ComputeManager(self.cloud.conf(host=host), host, driver, threads, events, client).start()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call a function after some seconds, whatever happens to the processes until then."""
        world = self.cloud.world.threads

        def wait() -> None:
            world.sleep(seconds)
            act()

        world.start(wait, name='later')

    def stop_and_start(self, host: str, back_after: float) -> None:
        """Stop a host's compute service as planned and start it again after some seconds."""
        compute, process = self.cloud.computes.get(host), self.cloud.processes.get(host)
        if compute is None or process is None or host in self.down:
            return
        with contextlib.suppress(ProcessKilled), process.acting():
            compute.cleanup_host()
        if host in self.down:  # a fault killed the process during the stop
            return
        self.down.add(host)
        self.cloud.kill(host)
        self.later(back_after, lambda: self._start(host))

    def _start(self, name: str) -> None:
        """Start a process again; if the start fails, the process ends and is started again later."""
        self.down.discard(name)
        if name.startswith('another '):
            return  # it stays off
        threads = self.cloud.threads_for(name)
        assert isinstance(threads, SimThreads)
        try:
            with threads.acting():
                if name == 'api':
                    self.cloud.start_api()
                elif name in self.cloud.world.hypervisors:
                    self.cloud.start_compute(name)
                else:
                    self.cloud.start_conductor(name)
        except ProcessKilled:
            return  # the kill itself has scheduled the next start
        except BaseException as error:  # noqa: BLE001 -- any error at the start ends the process, as a service does
            # Only the type of the error: its text may contain a secret.
            LOG.warning(
                'Could not start process %(process)s, which is tried again: %(error)s',
                {'process': name, 'error': type(error).__name__},
            )
            self.kill(name, _AGAIN)

    def may(self, fault: str, whom: str) -> bool:
        """Return whether a fault is allowed: at most one conductor and one host die for ever."""
        if fault != 'killed for ever':
            return True
        hosts = self.cloud.world.hypervisors.keys()
        return not self.gone & hosts if whom in hosts else not self.gone - hosts
