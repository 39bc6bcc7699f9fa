# SPDX-License-Identifier: Apache-2.0

"""A base class for the driver of a hypervisor whose guests have their disks on shared storage.

A subclass implements six methods, and three more if its guests can be evacuated. The base class derives the rest of
:class:`migrator.virt.driver.ComputeDriver` from them, and decides by the state that the hypervisor reports, not by what
it has asked for.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from migrator import exception, executors
from migrator.objects import ComputeNode, Guest, GuestState, Instance, LiveMigrateData, ProviderInventory, protocol
from migrator.virt import driver
from migrator.virt.driver import Verdict, node_uuid, state_after_evacuation

#: Seconds between two looks at a job that an earlier start of the service has left.
POLL_INTERVAL = 0.5
_NOT_HERE = (GuestState.ABSENT, GuestState.WAITING)

#: Reports the progress of a migration: the bytes of memory in total, and those that remain.
Report = Callable[[int, int], None]


class SixMethods(driver.ComputeDriver):
    """The methods that a subclass of :class:`SimpleDriver` implements.

    :ivar host: the name of this host.
    """

    host = ''

    @abc.abstractmethod
    def guests(self) -> Iterable[Guest]:
        """Return every guest that this host holds in any form, as the hypervisor reports it now.

        - ``WAITING`` is all that :meth:`receive` has made, as long as the guest itself is not here.
        - ``job`` is true while the hypervisor migrates the guest away, also for another process than this one.
        - After a migration the source reports the guest as ``SHUTDOWN`` or ``CUTOVER``, or not at all.
        """

    @abc.abstractmethod
    def receive(self, instance: Instance) -> dict[str, Any]:
        """Prepare this host to receive a guest, which must stay on this host when it has arrived.

        A second call finds the work done, and returns the same.

        :returns: what :meth:`migrate` at the source needs to know, such as an address; JSON-safe.
        """

    @abc.abstractmethod
    def migrate(self, instance: Instance, destination: str, facts: dict[str, Any], report: Report) -> None:
        """Migrate a guest, and block until the destination runs it and it can never run here again.

        :param destination: the name of the destination host; raise DriverError if it cannot be reached.
        :param facts: what :meth:`receive` returned at the destination.
        :param report: called with the bytes in total and those that remain: at once when the hypervisor has begun, and
            then as often as the figures change. Before its first call the migration cannot be aborted.
        :raises migrator.exception.DriverError: before the first report: the hypervisor has not begun, and will not.
        :raises Exception: the guest may or may not have left. Its state shows that.
        """

    @abc.abstractmethod
    def abort(self, instance_uuid: str) -> None:
        """Ask the hypervisor to abort a migration; without one, do nothing."""

    @abc.abstractmethod
    def force_complete(self, instance_uuid: str) -> None:
        """Make a migration end soon, by post-copy or by a pause of the guest; without one, do nothing."""

    @abc.abstractmethod
    def remove(self, instance_uuid: str) -> None:
        """Remove what this host holds of a guest that does not run here, but not its disks.

        The guest has left, or has not arrived. If the host holds nothing of it, this is no error.
        """

    def resume(self, instance_uuid: str) -> None:
        """Resume a guest that :meth:`guests` reports as ``CUTOVER`` although it has stayed here."""
        reason = f'guest {instance_uuid} is paused for a switchover that did not happen: resume it in the hypervisor'
        raise exception.DriverError(host=self.host, phase='resume', reason=reason)

    # --- evacuation: all three, or none ------------------------------------------------------------------------------

    def definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """Return what :meth:`start_guest` at another host needs, JSON-safe."""
        return None

    def start_guest(self, instance: Instance, definition: dict[str, Any], state: GuestState) -> None:
        """Start a guest here, without the host that had it.

        A guest that :meth:`guests` reports here counts as started. So it must not appear before it is in ``state``.

        :param definition: what :meth:`definition` returned at that host.
        :param state: ``RUNNING``, or ``PAUSED``; ``SHUTDOWN``: define the guest, but do not start it.
        :raises Exception: the guest was not started, such as because its disks cannot be reached here.
        """
        reason = f'the driver {type(self).__name__} cannot start a guest without its source'
        raise exception.DriverError(host=self.host, phase='start_guest', reason=reason)

    def stop_guest(self, instance_uuid: str) -> None:
        """Stop a guest at once that was evacuated from here and still runs; without such a guest, do nothing."""
        reason = f'guest {instance_uuid} was evacuated and still runs here: stop it in the hypervisor'
        raise exception.DriverError(host=self.host, phase='stop_guest', reason=reason)


class EvacuatingDriver(SixMethods):
    """The part of :class:`SimpleDriver` that evacuates guests, if a subclass can start them."""

    settle_seconds = 5.0

    def __init__(self, threads: executors.Threads | None = None) -> None:
        self.threads = threads or executors.NativeThreads()
        self._connected_at = self.threads.clock.monotonic()

    def init_host(self, host: str) -> None:
        """See :meth:`driver.ComputeDriver.init_host`."""
        self.host = host
        self._connected_at = self.threads.clock.monotonic()

    def get_definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """See :meth:`driver.ComputeDriver.get_definition`."""
        if self.get_guest(instance_uuid).state in _NOT_HERE:
            return None
        with self.errors('get_definition'):
            return self.definition(instance_uuid)

    def check_can_evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_evacuate`."""
        if type(self).start_guest is SixMethods.start_guest:
            return super().check_can_evacuate(instance, migrate_data)
        if not migrate_data.source:
            raise exception.MigrationPreCheckError(
                reason=f'host {instance.host} has not reported the definition of guest {instance.uuid}: repair '
                f'{instance.host}'
            )
        self._refuse_if_present(instance)
        return migrate_data.replace(block_migration=False, is_shared_storage=True)

    def evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.evacuate`."""
        if self.get_guest(instance.uuid).state in _NOT_HERE:
            with self.errors('evacuate'):
                self.start_guest(instance, migrate_data.source, state_after_evacuation(instance))

    def rollback_evacuation_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_evacuation_at_destination`."""
        # An earlier process may have asked for a start.
        guest = self._look_again(instance.uuid, (*_NOT_HERE, GuestState.SHUTDOWN))
        self._remove(guest, _is_used(guest), 'rollback_evacuation_at_destination')

    def post_evacuation_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_evacuation_at_source`."""
        phase, guest = 'post_evacuation_at_source', self.get_guest(instance.uuid)
        if _is_used(guest):
            with self.errors(phase):
                self.stop_guest(instance.uuid)
            guest = self.get_guest(instance.uuid)
        self._remove(guest, _is_used(guest), phase)

    # --- helpers -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def errors(self, phase: str) -> Iterator[None]:
        """Raise an exception of the subclass as a DriverError."""
        try:
            yield
        except exception.MigratorException:
            raise
        except BaseException as error:  # such as a time-out of eventlet
            if self.threads.is_final(error):
                raise
            raise exception.DriverError(host=self.host, phase=phase, reason=exception.message_of(error)) from error

    def _look_again(self, instance_uuid: str, states: Sequence[GuestState]) -> Guest:
        """Return a guest, after a wait if a request of an earlier process may still change it.

        :param states: those in which such a request may begin.
        """
        guest = self.get_guest(instance_uuid)
        remaining = self._connected_at + self.settle_seconds - self.threads.clock.monotonic()
        if guest.state not in states or guest.job or remaining <= 0:
            return guest
        self.threads.sleep(remaining)
        return self.get_guest(instance_uuid)

    def _refuse_if_present(self, instance: Instance) -> None:
        guest = self.get_guest(instance.uuid)
        if guest.present and guest.state != GuestState.WAITING:
            raise exception.MigrationPreCheckError(
                reason=f'host {self.host} already has guest {instance.uuid}, which is {guest.state}'
            )

    def _remove(self, guest: Guest, in_use: bool, action: str) -> None:
        if in_use:
            raise exception.GuestStillHere(host=self.host, instance_uuid=guest.instance_uuid, action=action)
        # Also without a guest, because an interrupted preparation may have left something that is not yet one.
        with self.errors(action):
            self.remove(guest.instance_uuid)


def _is_used(guest: Guest) -> bool:
    return guest.job or guest.state in protocol.IN_USE


class SimpleDriver(EvacuatingDriver):
    """A driver for guests on shared storage.

    The methods to implement are those of :class:`SixMethods`: ``guests``, ``receive``, ``migrate``, ``abort``,
    ``force_complete`` and ``remove``. Several threads may call them at once. They may raise any exception; its text is
    for an operator. A hypervisor that leaves a guest paused after a failed migration also needs ``resume``. With
    ``definition``, ``start_guest`` and ``stop_guest``, guests can be evacuated.

    :param totals: resource class -> the amount that this host has, such as ``{'VCPU': 16, 'MEMORY_MB': 65536}``.
    :param threads: the threads of the process. The default is right for a real process.
    :cvar settle_seconds: how long after the death of a process the hypervisor may still begin a migration or a start
        that the process has requested. A start of the service waits this long if a guest is here without a job, and so
        does the rollback of an evacuation if the guest is not here.
    :cvar hypervisor_type: the kind of hypervisor, as the API lists it.
    """

    hypervisor_type = 'simple'

    def __init__(self, totals: Mapping[str, int], threads: executors.Threads | None = None) -> None:
        super().__init__(threads)
        self._totals = dict(totals)
        self._lock = self.threads.lock()
        self._jobs: dict[str, _Job] = {}

    # --- host and guests ---------------------------------------------------------------------------------------------

    def get_node(self) -> ComputeNode:
        """See :meth:`driver.ComputeDriver.get_node`."""
        inventory: dict[str, dict[str, Any]] = {
            name: {
                'total': total,
                'reserved': 0,
                'min_unit': 1,
                'max_unit': total,
                'step_size': 1,
                'allocation_ratio': 1.0,
            }
            for name, total in self._totals.items()
        }
        uuid = node_uuid(self.host)
        root = ProviderInventory(uuid=uuid, name=self.host, inventory=inventory)
        return ComputeNode(
            uuid=uuid, host=self.host, node=self.host, hypervisor_type=self.hypervisor_type, providers=[root]
        )

    def list_guests(self) -> list[Guest]:
        """See :meth:`driver.ComputeDriver.list_guests`."""
        # Read our own calls first. Afterwards a call may have ended, and the state of its guest would be older.
        with self._lock:
            calls = set(self._jobs)
        with self.errors('list_guests'):
            return [guest.replace(job=guest.job or guest.instance_uuid in calls) for guest in self.guests()]

    def get_guest(self, instance_uuid: str) -> Guest:
        """See :meth:`driver.ComputeDriver.get_guest`."""
        return _find(self.list_guests(), instance_uuid)

    def settle(self, instance_uuid: str) -> Guest:
        """Wait until no request of an earlier process can begin; see :meth:`driver.ComputeDriver.settle`."""
        return self._look_again(instance_uuid, protocol.ACTIVE)

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_can_live_migrate_destination(
        self,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
        definition: dict[str, Any] | None = None,
    ) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_destination`."""
        if block_migration:
            raise exception.MigrationPreCheckError(
                reason='the disks are on shared storage: request block_migration False or auto'
            )
        self._refuse_if_present(instance)
        return LiveMigrateData(block_migration=False, disk_over_commit=disk_over_commit)

    def check_can_live_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_source`."""
        guest = self.get_guest(instance.uuid)
        if guest.job or guest.state not in protocol.ACTIVE:
            held = 'already being migrated' if guest.job else guest.state
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} is {held} at {self.host}: it must be running or paused'
            )
        return migrate_data

    def cleanup_live_migration_destination_check(self, instance: Instance) -> None:
        """Do nothing, because the check leaves nothing."""

    # --- migration ---------------------------------------------------------------------------------------------------

    def pre_live_migration(
        self, instance: Instance, migrate_data: LiveMigrateData, token: driver.CancelToken
    ) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.pre_live_migration`."""
        token.raise_if_cancelled()
        self._refuse_if_present(instance)
        with self.errors('pre_live_migration'):
            return migrate_data.replace(destination=self.receive(instance))

    def live_migration(
        self,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        started: Callable[[], None],
    ) -> Verdict:
        """See :meth:`driver.ComputeDriver.live_migration`."""
        with self._lock:
            job = self._jobs.get(instance.uuid)
            running = job is not None
            if job is None:
                job = self._jobs[instance.uuid] = _Job(self, instance, started)
        if running:
            job.begun.wait()
            if job.figures is not None:
                started()
            job.ended.wait()
        else:
            try:
                job.run(destination, migrate_data.destination)
            finally:
                with self._lock:
                    del self._jobs[instance.uuid]
                job.begun.set()
                job.ended.set()
        if job.verdict is None:
            raise job.error or exception.MoveUnsettled(host=self.host, reason='the call was interrupted')
        return job.verdict

    def attach_live_migration(self, instance_uuid: str) -> Verdict | None:
        """See :meth:`driver.ComputeDriver.attach_live_migration`."""
        with self._lock:
            job = self._jobs.get(instance_uuid)
            if job is not None:
                job.attached += 1
        if job is not None:
            job.ended.wait()
            return Verdict.FAILED if isinstance(job.error, exception.LiveMigrationFailed) else job.verdict
        with self.errors('attach_live_migration'):
            self.outlast(instance_uuid)
        return None

    def attached(self, instance_uuid: str) -> int:
        """Return how many callers have attached to the job of this process, for the bench of a contract test."""
        with self._lock:
            return self._jobs[instance_uuid].attached

    def live_migration_abort(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_abort`."""
        with self._lock:
            job = self._jobs.get(instance.uuid)
            if job is not None:
                job.aborted = True
        with self.errors('live_migration_abort'):
            self.abort(instance.uuid)

    def live_migration_force_complete(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_force_complete`."""
        with self.errors('live_migration_force_complete'):
            self.force_complete(instance.uuid)

    def get_progress(self, instance_uuid: str) -> dict[str, int]:
        """Return the reported figures; see :meth:`driver.ComputeDriver.get_progress`.

        The job of an earlier start of the service has none.
        """
        with self._lock:
            job = self._jobs.get(instance_uuid)
        if job is None or job.figures is None:
            return {}
        total, remaining = job.figures
        return {
            'memory_total': total,
            'memory_processed': total - remaining,
            'memory_remaining': remaining,
            'disk_total': 0,
            'disk_processed': 0,
            'disk_remaining': 0,
        }

    # --- after the job -----------------------------------------------------------------------------------------------

    def post_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_source`."""
        guest = self.get_guest(instance.uuid)
        self._remove(guest, _is_used(guest), 'post_live_migration_at_source')

    def post_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_destination`."""
        self._find_here(instance)

    def rollback_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_source`."""
        guest = self._find_here(instance)
        phase = 'rollback_live_migration_at_source'
        if guest.job:
            reason = f'the job of guest {instance.uuid} has not ended'
            raise exception.DriverError(host=self.host, phase=phase, reason=reason)
        if guest.state == GuestState.CUTOVER:
            with self.errors(phase):
                self.resume(instance.uuid)

    def rollback_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_destination`."""
        guest = self.get_guest(instance.uuid)
        here = guest.present and guest.state != GuestState.WAITING
        self._remove(guest, here, 'rollback_live_migration_at_destination')

    # --- helpers -----------------------------------------------------------------------------------------------------

    def outlast(self, instance_uuid: str) -> Guest:
        """Wait until the hypervisor has no job of a guest, and return the guest."""
        while (guest := _find(self.guests(), instance_uuid)).job:
            self.threads.sleep(POLL_INTERVAL)
        return guest

    def _find_here(self, instance: Instance) -> Guest:
        guest = self.get_guest(instance.uuid)
        if not guest.present or guest.state == GuestState.WAITING:
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)
        return guest


def _find(guests: Iterable[Guest], instance_uuid: str) -> Guest:
    """Return a guest of a list; one that is not in it is absent."""
    for guest in guests:
        if guest.instance_uuid == instance_uuid:
            return guest
    return Guest(instance_uuid=instance_uuid)


class _Job:
    """A migration that this process has requested.

    :ivar begun: set when the hypervisor has begun, or the call has ended.
    :ivar ended: set when the call has ended.
    :ivar figures: the bytes of memory in total and those that remain; None until the first report.
    :ivar attached: how many callers have attached to it.
    :ivar verdict: its result; None if ``error`` is its result.
    """

    def __init__(self, driver: SimpleDriver, instance: Instance, started: Callable[[], None]) -> None:
        self._driver = driver
        self._instance = instance
        self._started = started
        self.begun = driver.threads.event()
        self.ended = driver.threads.event()
        self.figures: tuple[int, int] | None = None
        self.aborted = False
        self.attached = 0
        self.verdict: Verdict | None = None
        self.error: Exception | None = None

    def run(self, destination: str, facts: dict[str, Any]) -> None:
        """Migrate the guest, and set the verdict or the error."""
        try:
            self.verdict = self._migrate(destination, facts)
        except exception.MigratorException as error:
            self.error = error

    def _report(self, total: int, remaining: int) -> None:
        first = self.figures is None
        self.figures = (total, remaining)
        if first:
            self.begun.set()
            self._started()

    def _migrate(self, destination: str, facts: dict[str, Any]) -> Verdict:
        host, uuid = self._driver.host, self._instance.uuid
        with self._driver.errors('live_migration'):
            guest = _find(self._driver.guests(), uuid)
        if guest.job:
            self._report(0, 0)
            self._driver.outlast(uuid)
            reason = 'its job was started by an earlier start of the service, and has ended'
            raise exception.MoveUnsettled(host=host, reason=reason)
        if guest.state not in protocol.ACTIVE:
            reason = f'guest {uuid} is {guest.state}: it must be running or paused'
            raise exception.DriverError(host=host, phase='live_migration', reason=reason)
        failure: BaseException | None = None
        try:
            self._driver.migrate(self._instance, destination, facts, self._report)
        except BaseException as error:  # the state of the guest shows what has happened
            if self._driver.threads.is_final(error):
                raise
            failure = error
        return self._result(failure)

    def _result(self, failure: BaseException | None) -> Verdict:
        """Return the verdict, or raise the error, by the state of the guest after the call.

        :param failure: the error of the call.
        """
        host, uuid = self._driver.host, self._instance.uuid
        refused = isinstance(failure, exception.DriverError) and self.figures is None
        if self.figures is None and failure is None:
            self._report(0, 0)
        elif self.figures is None and not refused:
            # The request may have reached the hypervisor, which may still act on it.
            self._driver.threads.sleep(self._driver.settle_seconds)
        try:
            state = self._driver.outlast(uuid).state
        except BaseException as error:
            if self._driver.threads.is_final(error):
                raise
            raise exception.MoveUnsettled(host=host, reason=exception.message_of(error)) from error
        if failure is None and state not in protocol.IN_USE:
            return Verdict.COMPLETED
        reason = 'the hypervisor reports no error' if failure is None else exception.message_of(failure)
        if state not in protocol.ACTIVE:
            raise exception.MoveUnsettled(host=host, reason=f'{reason}; the guest is {state} here') from failure
        if self.aborted:
            return Verdict.ABORTED
        if refused and failure is not None:
            raise failure
        raise exception.LiveMigrationFailed(instance_uuid=uuid, host=host, reason=reason) from failure
