# SPDX-License-Identifier: Apache-2.0

"""The registration of this host: compute_started until a conductor replies, then a heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.compute.inventory import HostInventory
from migrator.compute.step_runner import StepRunner
from migrator.compute.work import LIVE_MIGRATION
from migrator.objects import Answer, Assignment, EventClient, Guest, GuestState, Instance, LiveMigrateData
from migrator.rpc import RPC, Served, Target
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

#: Seconds between two calls of compute_started if no conductor replied.
CALL_AGAIN = 1.0
#: The same if a conductor has refused this machine. An operator has to act first.
REFUSED_AGAIN = 10.0
#: The number of unresponsive guests that a start waits for, each until the driver's time-out. It then skips the others.
MAX_UNRESPONSIVE_GUESTS = 3
#: The number of guests that a log line names. A driver without get_instance would have every guest listed.
SHOWN = 5


class Listener:
    """The RPC server of this host. It does not listen while a conductor refuses the machine.

    :param rpc: the RPC to listen on.
    :param endpoint: what it serves.
    :ivar is_paused: whether it does not listen because of a refusal.
    """

    def __init__(self, rpc: RPC, target: Target, endpoint: object, threads: executors.Threads) -> None:
        self.is_paused = False
        self._rpc = rpc
        self._target = target
        self._endpoint = endpoint
        self._lock = threads.lock()
        self._served: Served | None = None
        self._stopped = False

    def start(self) -> None:
        """Listen, unless the service stops."""
        served = self._rpc.serve(self._target, self._endpoint)
        with self._lock:
            unwanted = self._stopped
            if not unwanted:
                self._served, self.is_paused = served, False
        if unwanted:
            served.stop()

    def pause(self) -> None:
        """Stop listening until :meth:`start`: the machine that has the name may need the messages."""
        with self._lock:
            served, self._served, self.is_paused = self._served, None, True
        if served is not None:
            served.stop()

    def stop(self) -> None:
        """Stop listening for good."""
        with self._lock:
            served, self._served, self._stopped = self._served, None, True
        if served is not None:
            served.stop()


class Registration:
    """The caller of compute_started, which also applies the reply and sends the heartbeat.

    The host accepts no command before the reply is applied. While a conductor refuses the machine, the host neither
    listens nor sends heartbeats. It asks again, because an operator may have replaced the other machine.

    :param runner: accepts commands once the reply has been applied.
    :param live_migration: accepts a live migration, given its command, its guest, its destination and its data.
    :param interval: seconds between two heartbeats.
    :param pools: pools whose waiting work each heartbeat starts, if the process can then start a thread.
    :param adopts: whether a conductor may adopt guests that the database does not have.
    :ivar inventory: the given inventory, which the caller refreshes before :meth:`start`.
    :ivar registered: whether a reply has been applied, and the machine was not refused since.
    """

    def __init__(
        self,
        threads: executors.Threads,
        events: EventClient,
        driver: ComputeDriver,
        inventory: HostInventory,
        runner: StepRunner,
        live_migration: Callable[..., Answer],
        interval: float,
        pools: Sequence[executors.BoundedExecutor] = (),
        adopts: bool = False,
    ) -> None:
        self.inventory = inventory
        self.registered = False
        self._events = events
        self._driver = driver
        self._threads = threads
        self._runner = runner
        self._live_migration = live_migration
        self._adopts = adopts
        self._lock = threads.lock()
        self._calling = False
        self._pool = executors.BoundedExecutor(1, threads, name='compute-started')
        self._pools = (self._pool, *pools)
        self._stopped = threads.event()
        self._heartbeat = executors.Periodic(threads, interval, self._beat, 'heartbeat')
        self._listener: Listener | None = None

    def start(self, listener: Listener) -> None:
        """Register in the background, and start the heartbeat.

        :param listener: the server of this host, which listens already.
        """
        self._listener = listener
        self.register()
        self._heartbeat.start()

    def stop(self) -> None:
        """Send no further message, without waiting for the one that is being sent."""
        self._stopped.set()
        self._heartbeat.stop(wait=False)

    def register(self) -> None:
        """Register in the background, again if the host is registered.

        The database may have another boot of this host, such as after it was restored from a backup.
        """
        with self._lock:
            if self._calling or self._stopped.is_set():
                return
            self._calling = True
            self._runner.starting = True
        self._pool.submit(self._register)

    def _register(self) -> None:
        left_out: set[str] = set()
        pause = 0.0
        why = ''
        replaces: str | None = None
        while not self._stopped.is_set():
            try:
                if why:
                    self._refuse()
                # In here, because a time-out that the driver has left behind may end the pause.
                if pause and self._stopped.wait(pause):
                    return
                guests = self._driver.list_guests()
                report = self.inventory.report(guests, self._adoptable(guests, left_out), replaces)
                if self._stopped.is_set():  # the service may have stopped while it waited for unresponsive guests
                    return
                assignments = self._events.compute_started(report)
                if self._is_refused:
                    # Listen first, as at every start. This reply is not used: what it assigns may change before that.
                    LOG.warning('This host is not refused any more, and registers')
                    self._listen()
                    pause, why = 0.0, ''
                    continue
                self._apply(assignments)
            except exception.BootReplaced as error:
                # A boot names the one that it replaces, so that a report of its own that comes late changes nothing.
                known = error.kwargs.get('known')
                pause = CALL_AGAIN if known == replaces else 0.0
                replaces = known
                continue
            except exception.MachineRefused as error:
                if error.message != why:
                    why = error.message
                    LOG.error('This machine is refused, and serves no command until that is corrected: %s', why)
                pause = REFUSED_AGAIN
                continue
            except BaseException as error:  # the host has nothing else to do until a conductor replies
                if self._threads.is_final(error):
                    raise
                # After a stop any error is possible, because the broker connection may be closed during the call.
                if not self._stopped.is_set():
                    LOG.warning(
                        'This host is not registered yet, trying again. That is normal until a conductor runs: %s',
                        exception.message_of(error),
                    )
                pause = CALL_AGAIN
                continue
            with self._lock:
                self._calling = False
                self._runner.starting = False
            return

    @property
    def _is_refused(self) -> bool:
        return self._listener is not None and self._listener.is_paused

    def _listen(self) -> None:
        if self._listener is not None:
            self._listener.start()

    def _refuse(self) -> None:
        self.registered = False
        if self._listener is not None:
            self._listener.pause()

    def _apply(self, assignments: Sequence[Assignment]) -> None:
        """Apply the reply: the migrations in which this host takes part, in order."""
        # The first one may get a slot before the others are here.
        for assignment in sorted(assignments, key=lambda one: one.command.place):
            with context.about(None, assignment.command.migration_uuid, assignment.command.instance_uuid):
                self._apply_one(assignment)
        self.registered = True
        self._runner.inherited.forget_ended()

    def _apply_one(self, assignment: Assignment) -> None:
        command = assignment.command.replace(step=LIVE_MIGRATION, boot_id=self._runner.boot_id)
        if self._runner.admit(command, at_start=True).refusal is not None or assignment.role != 'source':
            return
        job = self._runner.inherited.get(command.instance_uuid)
        if job is not None:
            job.running_for = assignment.running_for
        # A job cannot belong to a migration that has no migrate_data, because it was never prepared.
        if assignment.queue or (job is not None and assignment.migrate_data is not None):
            instance, migrate_data = assignment.instance, assignment.migrate_data
            if not isinstance(instance, Instance) or not isinstance(migrate_data, LiveMigrateData):
                LOG.error(
                    'Ignoring the assignment of migration %s: its instance or its migrate_data is missing',
                    command.migration_uuid,
                )
                return
            self._live_migration(command, instance, assignment.destination or '', migrate_data, at_start=True)

    def _adoptable(self, guests: Sequence[Guest], left_out: set[str]) -> list[Instance]:
        """Return the guests of this host that a conductor may adopt; [] if adopt_guests is off.

        :param left_out: the guests that this registration does not query again; the method adds to it.
        """
        if not self._adopts:
            return []
        candidates = [guest.instance_uuid for guest in guests if guest.instance_uuid not in left_out]
        # A host that only waits for a guest does not have it yet, and no driver can describe it.
        awaited = {guest.instance_uuid for guest in guests if guest.state == GuestState.WAITING}
        found, unresponsive = [], 0
        undescribed: list[str] = []
        for number, uuid in enumerate(candidates):
            if unresponsive >= MAX_UNRESPONSIVE_GUESTS:
                LOG.warning(
                    'Not querying %(skipped)d more guests, because %(unresponsive)d guests did not reply; those that '
                    'the database does not have are not adopted until this service registers again, as it does when it '
                    'starts',
                    {'skipped': len(candidates) - number, 'unresponsive': unresponsive},
                )
                left_out.update(candidates[number:])
                break
            began = self._threads.clock.monotonic()
            try:
                instance = self._driver.get_instance(uuid)
            except BaseException as error:  # one bad guest must not keep its host from registering
                if self._threads.is_final(error):
                    raise
                if (
                    isinstance(error, exception.ServiceUnreachable)
                    and self._threads.clock.monotonic() - began < CALL_AGAIN
                ):
                    raise  # The hypervisor itself is unreachable, so the whole registration is tried again.
                LOG.warning(
                    'Could not query guest %(guest)s; if the database does not have it, it is not adopted until this '
                    'service registers again, as it does when it starts: %(error)s',
                    {'guest': uuid, 'error': exception.message_of(error)},
                )
                left_out.add(uuid)
                unresponsive += isinstance(error, exception.ServiceUnreachable)
            else:
                if instance is not None:
                    found.append(instance)
                elif uuid not in awaited:
                    undescribed.append(uuid)
        if undescribed:
            left_out.update(undescribed)
            LOG.warning(
                'The driver cannot describe %(number)d guests (its get_instance returns None); those that the database '
                'does not have are not adopted: %(guests)s%(more)s',
                {
                    'number': len(undescribed),
                    'guests': ', '.join(undescribed[:SHOWN]),
                    'more': ', ...' * (len(undescribed) > SHOWN),
                },
            )
        return found

    def _beat(self) -> None:
        for pool in self._pools:
            pool.start_waiting()
        self.inventory.refresh_later()
        if self._is_refused:
            return
        self._events.compute_heartbeat(self.inventory.report())
