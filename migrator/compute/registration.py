# SPDX-License-Identifier: Apache-2.0

"""How this host makes itself known: compute_started until it is answered, then a heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oslo_log import log as logging

from migrator import exception, executors
from migrator.compute.inventory import HostInventory
from migrator.compute.work import Orders
from migrator.objects import Assignment, EventClient, Guest, GuestState, Instance
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

#: Seconds between two calls that no conductor answered.
CALL_AGAIN = 1.0
#: For so many guests that do not answer a start waits as long as the driver does, before it leaves out the others.
SILENT_GUESTS = 3
#: So many guests are named in a line; where a driver cannot tell of any guest, they are all there are.
SHOWN = 5


class Registration:
    """Says that the host has started, and applies the answer; nothing is taken from a conductor before that.

    :param orders: what is opened to commands when the answer has been applied.
    :param apply: applies the answer.
    :param interval: seconds between two heartbeats.
    :param pools: what waits in them for a thread is started with each heartbeat, if there is one then.
    :param adopts: whether the books are to take in guests that they do not know.
    """

    def __init__(
        self,
        threads: executors.Threads,
        events: EventClient,
        driver: ComputeDriver,
        inventory: HostInventory,
        orders: Orders,
        apply: Callable[[Sequence[Assignment]], None],
        interval: float,
        pools: Sequence[executors.BoundedExecutor] = (),
        adopts: bool = False,
    ) -> None:
        self._threads = threads
        self._events = events
        self._driver = driver
        self._inventory = inventory
        self._orders = orders
        self._apply = apply
        self._adopts = adopts
        self._lock = threads.lock()
        self._calling = False
        self._pool = executors.BoundedExecutor(1, threads, name='compute-started')
        self._pools = (self._pool, *pools)
        self._stopped = threads.event()
        self._heartbeat = executors.Periodic(threads, interval, self._beat, 'heartbeat')

    def start(self) -> None:
        """Register, in a thread of its own, and start the heartbeat."""
        self.register()
        self._heartbeat.start()

    def stop(self) -> None:
        """Let no further message begin; waits for none."""
        self._stopped.set()
        self._heartbeat.stop(wait=False)

    def register(self) -> None:
        """Register, again if need be: a call of a boot before this one may have been committed late."""
        with self._lock:
            if self._calling or self._stopped.is_set():
                return
            self._calling = True
            self._orders.starting = True
        self._pool.submit(self._register)

    def _register(self) -> None:
        left_out: set[str] = set()
        while not self._stopped.is_set():
            try:
                guests = self._driver.list_guests()
                report = self._inventory.report(guests, self._adoptable(guests, left_out))
                if self._stopped.is_set():  # guests that do not answer have taken their time
                    return
                self._apply(self._events.compute_started(report))
            except Exception as error:  # noqa: BLE001 -- until a conductor has answered there is nothing else to do
                # A call that is under way at the stop may lose its broker, and says anything then.
                if not self._stopped.is_set():
                    LOG.warning('This host is not registered yet: %s', exception.told(error))
                    self._stopped.wait(CALL_AGAIN)
                continue
            with self._lock:
                self._calling = False
                self._orders.starting = False
            return

    def _adoptable(self, guests: Sequence[Guest], left_out: set[str]) -> list[Instance]:
        """Return those of this host's guests that can be adopted, if they are to be.

        :param left_out: the guests that are not asked any more in this registration; more are added.
        """
        if not self._adopts:
            return []
        asked = [guest.instance_uuid for guest in guests if guest.instance_uuid not in left_out]
        # What only waits for a guest is none yet, and no driver can describe it.
        waits = {guest.instance_uuid for guest in guests if guest.state == GuestState.WAITING}
        found, silent = [], 0
        untold: list[str] = []
        clock = self._threads.clock
        for number, uuid in enumerate(asked):
            if silent >= SILENT_GUESTS:
                LOG.warning(
                    '%d more guests are not looked at, for %d have not answered: those that the books do not know are '
                    'not adopted before this service registers again, as it does when it starts',
                    len(asked) - number,
                    silent,
                )
                left_out.update(asked[number:])
                break
            asked_at = clock.monotonic()
            try:
                instance = self._driver.get_instance(uuid)
            except Exception as error:  # one odd guest must not keep its host from registering
                if isinstance(error, exception.ServiceUnreachable) and clock.monotonic() - asked_at < CALL_AGAIN:
                    raise  # It is the hypervisor that is away, and will soon be back.
                LOG.warning(
                    'What guest %s is cannot be seen: if the books do not know it, it is not adopted before this '
                    'service registers again, as it does when it starts: %s',
                    uuid,
                    error,
                )
                left_out.add(uuid)
                silent += isinstance(error, exception.ServiceUnreachable)
            else:
                if instance is not None:
                    found.append(instance)
                elif uuid not in waits:
                    untold.append(uuid)
        if untold:
            left_out.update(untold)
            LOG.warning(
                'The driver does not tell what %d guests are (its get_instance returns None): those that the books do '
                'not know are not adopted: %s%s',
                len(untold),
                ', '.join(untold[:SHOWN]),
                ', ...' * (len(untold) > SHOWN),
            )
        return found

    def _beat(self) -> None:
        for pool in self._pools:
            pool.start_waiting()
        self._inventory.refresh_later()
        self._events.compute_heartbeat(self._inventory.report())
