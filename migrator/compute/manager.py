# SPDX-License-Identifier: Apache-2.0

"""The RPC endpoint of a compute host.

Only conductors call it. A call returns at once, except for the checks. A pool does the work, one step of a guest after
the other. An event reports the end of a step, and so does every poll until a conductor acknowledges it
(:mod:`migrator.compute.work`). Live migrations wait in a bounded queue (:mod:`migrator.compute.live_migration_queue`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.compute import checks, inventory, live_migration_queue, packing, registration, rpcapi, steps, timeouts
from migrator.compute.status import Observer
from migrator.compute.work import LIVE_MIGRATION, Orders, Outcome, Work
from migrator.conf import compute
from migrator.context import RequestContext, about, subject
from migrator.objects import (
    COMPARES_TENURE,
    CURRENT_VERSION,
    LIGHTWEIGHT,
    Answer,
    Command,
    EventClient,
    Instance,
    LiveMigrateData,
    Observation,
    Report,
    WorkState,
    protocol,
)
from migrator.rpc import RPC, Served, Target, expose
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

Context = RequestContext

#: The number of concurrent driver calls and messages, without live migrations. The pool is large enough that hung calls
#: do not delay the others. It is small enough that a hypervisor that hangs in every call does not exhaust the process.
POOL_SIZE = 1000
#: Seconds that a stop waits for its message to a conductor, and for the RPC server to stop.
STOPPING_TIMEOUT = 1.0
STOP_LISTENING_TIMEOUT = 0.5


class _Inherited:
    """A job that the service found running when it started."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self.outcome: Outcome | None = None
        #: Seconds for which the job had run, as the conductor reported.
        self.running_for = 0.0


class _QueuedMigration:
    """The data of a live migration that waits for a slot; packed, because thousands may wait."""

    __slots__ = ('manager', 'packed')

    def __init__(
        self, manager: ComputeManager, instance: Instance, destination: str, migrate_data: LiveMigrateData
    ) -> None:
        self.manager = manager
        self.packed = packing.pack([instance, destination, migrate_data])

    def unpack(self) -> tuple[Instance, str, LiveMigrateData]:
        """Return the guest, the destination and the data of the hosts for each other."""
        instance, destination, migrate_data = packing.unpack(self.packed)
        return instance, destination, migrate_data

    def submit(self, work: Work) -> None:
        """Queue the live migration, or attach it to the job that was found running at start."""
        manager = self.manager
        inherited = manager._inherited.pop(work.instance_uuid, None)
        if inherited is None:
            manager._queue.submit(work.uuid, manager._do_live_migration, work)
        else:
            # The job already holds a slot. In the queue the live migration would wait for its own job.
            manager._orders.attach(work)
            manager._pool.submit(manager._take_over, work, self, inherited)

    def __call__(self, work: Work) -> Outcome:
        """Run the live migration, as the body of the work."""
        manager = self.manager
        instance, destination, migrate_data = self.unpack()
        manager._timeouts.begin(work, timeouts.data_gib(instance, migrate_data))
        return steps.live_migration(
            manager.driver,
            manager.threads,
            manager.host,
            instance,
            destination,
            migrate_data,
            work,
            started=lambda: manager._started(work, instance),
        )


class ComputeManager:
    """A compute host, which starts no thread and sends no message before :meth:`start`.

    :param conf: has the options of :mod:`migrator.conf.compute` registered.
    :param host: the name of this host.
    :param driver: the driver of the host's hypervisor.
    :param threads: makes clocks, locks and threads.
    :param events: the client that reports to conductors.
    :param rpc: the RPC to listen on; may be given to :meth:`start` instead.
    :param version: the service version to report; by default the version of this release, or its cap in ``conf``.
    :param executor: runs the live migrations; by default each has its own thread of ``threads``.
    :ivar boot_id: identifies this start of the service; each start of the same host has its own.
    :raises migrator.exception.ConfigurationError: an option has an invalid value.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        host: str,
        driver: ComputeDriver,
        threads: executors.Threads,
        events: EventClient,
        rpc: RPC | None = None,
        version: int | None = None,
        executor: concurrent.futures.Executor | None = None,
    ) -> None:
        limit = compute.max_concurrent_live_migrations(conf)
        cap = compute.service_version(conf, CURRENT_VERSION)
        # Also checks the options that are read later, because a stop that met an invalid one would fail.
        compute.check(conf)
        self.conf = conf
        self.host = host
        self.driver = driver
        self.threads = threads
        self.events = events
        self.boot_id = threads.new_uuid()
        self.version = version or cap
        self._rpc = rpc
        self._served: Served | None = None
        self._lock = threads.lock()
        self._inherited: dict[str, _Inherited] = {}
        self._registered = False
        self._pool = executors.BoundedExecutor(POOL_SIZE, threads, name='compute')
        self._live_migration_executor = executors.BoundedExecutor(limit, threads, 'live-migration', executor)
        self._waiting_live_migrations: dict[str, concurrent.futures.Future[Any]] = {}
        self._queue = live_migration_queue.LiveMigrationQueue(
            host, self._live_migration_executor, self._waiting_live_migrations, threads
        )
        compares_tenure = self.version >= COMPARES_TENURE
        self._orders = Orders(host, self.boot_id, threads, events, self._pool, self._foreign_boot, compares_tenure)
        self._observer = Observer(driver, host, self.boot_id, threads, self._orders, self._pool)
        self._timeouts = timeouts.Timeouts(
            host, self.boot_id, lambda: compute.live_migration_timeout(conf), threads, events, self._pool
        )
        self._inventory = inventory.HostInventory(
            driver, host, self.boot_id, self.version, lambda: self._queue.limit, threads, self._pool
        )
        self._registration = registration.Registration(
            threads,
            events,
            driver,
            self._inventory,
            self._orders,
            self._apply,
            conf.report_interval,
            pools=(self._pool, self._live_migration_executor),
            adopts=conf.compute.adopt_guests,
        )

    # --- start and stop --------------------------------------------------------------------------------------------

    def init_host(self) -> None:
        """Give every running job a slot before any other live migration can get one."""
        self.driver.init_host(self.host)
        for listed in self.driver.list_guests():
            # After settle() no driver call of an earlier boot can start a job any more.
            try:
                guest = self.driver.settle(listed.instance_uuid)
            except exception.MigratorException as error:
                LOG.warning(
                    'Could not determine whether guest %(guest)s has a job, assuming that it has one: %(error)s',
                    {'guest': listed.instance_uuid, 'error': error},
                )
                guest = listed.replace(job=True)
            # A caller may repeat an init_host() that failed; a job still takes one slot only.
            if guest.job and guest.instance_uuid not in self._inherited:
                inherited = self._inherited[guest.instance_uuid] = _Inherited()
                self._queue.attach(self._outlast, guest.instance_uuid, inherited)
        self._inventory.refresh()

    def start(self, rpc: RPC | None = None) -> None:
        """Attach to running jobs, listen, register in the background, and start the heartbeat."""
        rpc = rpc or self._rpc
        if rpc is None:
            raise ValueError('a compute host needs an RPC to listen on: pass rpc to ComputeManager or to start()')
        self.init_host()
        self.conf.register_mutate_hook(self._conf_mutated)
        target = Target(rpcapi.TOPIC, self.host, rpcapi.served_by(self.version))
        self._served = rpc.serve(target, self)
        self._registration.start()

    def reset(self) -> None:
        """Apply the options that may change while the service runs, without interrupting any work.

        :raises migrator.exception.ConfigurationError: an option has an invalid value; the old value stays.
        """
        self._queue.resize(compute.max_concurrent_live_migrations(self.conf))

    def cleanup_host(self) -> None:
        """Stop as planned: refuse new live migrations, treat the others as configured, and report the stop.

        The stop takes at most 2 s, plus ``stop_timeout`` if ``stop_running`` is wait, even if driver or broker hangs.
        """
        cancel = self.conf.compute.stop_queued == 'cancel'
        waiting = self._queue.close()
        self._registration.stop()
        self._timeouts.stop()
        # A host that is not registered has no work, so it has nothing to report.
        reported = not self._registered or self._run_within(
            STOPPING_TIMEOUT,
            lambda: self.events.compute_stopping(self.host, self.boot_id, waiting if cancel else []),
            'compute-stopping',
        )
        if not reported:
            LOG.warning('Could not report the stop of host %s; the next start queues its migrations again', self.host)
        elif cancel:
            # Only after the report, so that a poll shows no work as cancelled before its abort request is committed.
            for migration_uuid in waiting:
                self._orders.cancelled_in_queue(migration_uuid, send_event=False)
        if self.conf.compute.stop_running == 'wait':
            self._run_within(self.conf.compute.stop_timeout, self._queue.drain, 'drain')
        if self._served is not None:
            self._run_within(STOP_LISTENING_TIMEOUT, self._served.stop, 'stop-listening')

    def _run_within(self, seconds: float, function: Callable[[], Any], name: str) -> bool:
        """Run a function in its own thread, and return whether it has succeeded within ``seconds``."""
        ended = self.threads.event()
        failures: list[Exception] = []

        def run() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 -- a stop continues even if a part of it fails
                failures.append(error)
                LOG.warning(
                    'A part of the stop failed: %(part)s on host %(host)s: %(error)s',
                    {'part': name, 'host': self.host, 'error': exception.told(error)},
                )
            ended.set()

        try:
            self.threads.start(run, name=name)
        except RuntimeError as error:  # the process cannot start a thread
            LOG.warning(
                'A part of the stop failed: %(part)s on host %(host)s: %(error)s',
                {'part': name, 'host': self.host, 'error': error},
            )
            return False
        return ended.wait(seconds) and not failures

    def _conf_mutated(self, conf: cfg.ConfigOpts, fresh: dict[Any, Any]) -> None:
        try:
            self.reset()
        except exception.ConfigurationError as error:
            LOG.error(
                'Keeping max_concurrent_live_migrations at %(limit)d: %(error)s',
                {'limit': self._queue.limit, 'error': error},
            )

    def _foreign_boot(self) -> None:
        """Register again, because the database may have an earlier boot, whose call was committed late."""
        self._registration.register()

    def _apply(self, assignments: Sequence[protocol.Assignment]) -> None:
        """Apply the reply to compute_started: the migrations in which this host takes part, in order."""
        for assignment in assignments:
            command = assignment.command
            with about(None, command.migration_uuid, command.instance_uuid):
                self._apply_one(assignment)
        self._forget_inherited()

    def _apply_one(self, assignment: protocol.Assignment) -> None:
        command = assignment.command.replace(step=LIVE_MIGRATION, boot_id=self.boot_id)
        if not self._orders.adopt(command) or assignment.role != 'source':
            return
        inherited = self._inherited.get(command.instance_uuid)
        if inherited is not None:
            inherited.running_for = assignment.running_for
        # A job cannot belong to a migration that has no migrate_data, because it was never prepared.
        if assignment.queue or (inherited is not None and assignment.migrate_data is not None):
            instance, migrate_data = assignment.instance, assignment.migrate_data
            if not isinstance(instance, Instance) or not isinstance(migrate_data, LiveMigrateData):
                LOG.error(
                    'Ignoring the assignment of migration %s: its instance or its migrate_data is missing',
                    command.migration_uuid,
                )
                return
            self._accept_live(command, instance, assignment.destination or '', migrate_data, at_start=True)

    # --- jobs of an earlier boot -----------------------------------------------------------------------------------

    def _outlast(self, instance_uuid: str, inherited: _Inherited) -> None:
        """Hold the slot of a job that was found running, until the job has ended."""

        def log_context() -> contextlib.AbstractContextManager[None]:
            # The migration of the job becomes known only when a conductor assigns it.
            if inherited.work is not None:
                return inherited.work.log_context()
            return about(instance_uuid=instance_uuid)

        verdict = steps.outlast(self.driver, self.threads, instance_uuid, log_context)
        outcome = steps.outcome(verdict)
        with self._lock:
            inherited.outcome = outcome
            work, registered = inherited.work, self._registered
        if work is not None:
            self._orders.end(work, outcome)
        elif registered:
            self._forget_inherited()

    def _take_over(self, work: Work, queued: _QueuedMigration, inherited: _Inherited) -> None:
        """Make a job that was found running the job of a migration."""
        instance, _destination, migrate_data = queued.unpack()
        with work.log_context():
            self._timeouts.begin(work, timeouts.data_gib(instance, migrate_data), inherited.running_for)
            self._started(work, instance)
            with self._lock:
                inherited.work = work
                outcome = inherited.outcome
            if outcome is not None:
                self._orders.end(work, outcome)

    def _forget_inherited(self) -> None:
        """Forget jobs that have ended without a migration, so that none is taken for a later job of its guest."""
        with self._lock:
            self._registered = True
            for instance_uuid, inherited in list(self._inherited.items()):
                if inherited.outcome is not None:
                    del self._inherited[instance_uuid]

    # --- steps, in the order of the saga ---------------------------------------------------------------------------

    @expose
    def check_can_live_migrate_destination(
        self,
        context: Context,
        command: Command,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
        wait: float,
    ) -> Answer:
        """Check whether this host can take the guest.

        The reply comes when the check has ended, or after ``wait`` seconds as running. ``report.result`` is the
        LiveMigrateData for the source's check.
        """
        return self._check(
            command,
            wait,
            lambda work: checks.check_can_live_migrate_destination(
                self.driver, self.host, instance, block_migration, disk_over_commit
            ),
        )

    @expose
    def check_can_live_migrate_source(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData, wait: float
    ) -> Answer:
        """Check whether the guest can migrate to the destination.

        The reply comes when the check has ended, or after ``wait`` seconds as running. ``report.result`` is the
        LiveMigrateData with this host's part filled in.
        """
        return self._check(
            command,
            wait,
            lambda work: checks.check_can_live_migrate_source(self.driver, self.host, instance, migrate_data),
        )

    @expose
    def pre_live_migration(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Prepare this host for the guest; ``result`` of the report is the LiveMigrateData for the source."""
        return self._orders.accept(
            command, lambda work: steps.pre_live_migration(self.driver, instance, migrate_data, work)
        )

    @expose
    def live_migration(
        self,
        context: Context,
        command: Command,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
    ) -> Answer:
        """Queue the live migration.

        When the hypervisor has the job, the report is running with ``{'started': True}``. At the end its result is
        ``{'verdict': 'completed' | 'failed' | 'aborted' | ''}``, ``{'cancelled': True}`` or ``{'gone': True}``.
        """
        return self._accept_live(command, instance, destination, migrate_data)

    @expose
    def live_migration_abort(self, context: Context, command: Command, instance: Instance) -> Answer:
        """Abort the live migration: in the queue if it still waits there, otherwise with the driver.

        ``report.result`` is ``{'cancelled': bool, 'verdict': str}``. ``cancelled`` is true if the driver was not called
        and never will be. ``verdict`` is what the driver returned, or '' if its call has not returned.
        """
        answer = self._orders.admit(command)
        if answer.refusal is not None:
            return answer
        work = self._orders.cancel_live(command)
        if work is None or work.outcome is None:
            self._end_live_migration(work, command.migration_uuid, instance)
        outcome = work.outcome if work is not None else None
        result = {
            'cancelled': outcome is not None and outcome.state == WorkState.CANCELLED and not outcome.returned,
            'verdict': outcome.verdict if outcome is not None else '',
        }
        return answer.replace(report=self._done(command, result))

    @expose
    def live_migration_force_complete(self, context: Context, command: Command, instance: Instance) -> Answer:
        """Force the running live migration to complete; do nothing if none is running."""
        answer = self._orders.admit(command)
        if answer.refusal is not None:
            return answer
        if self._orders.may_run(command):
            uuid = command.migration_uuid
            self._call_driver('force-complete', self.driver.live_migration_force_complete, uuid, instance)
        return answer.replace(report=self._done(command, None))

    @expose
    def post_live_migration_at_source(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Remove the rest of a guest that has moved away; fail with ``{'here': True}`` if it is in use here."""
        return self._accept_end(
            command,
            lambda work: steps.post_live_migration_at_source(self.driver, self.host, instance, migrate_data),
        )

    @expose
    def post_live_migration_at_destination(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Make the guest that has arrived persistent; fail with ``{'gone': True}`` if it is not here."""
        return self._accept_end(
            command, lambda work: steps.post_live_migration_at_destination(self.driver, instance, migrate_data)
        )

    @expose
    def rollback_live_migration_at_source(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """End this host's work for the migration, then restore the guest.

        The report is failed with ``{'gone': True}`` if the guest is not here, and with ``{'busy': True}`` if a job of
        the guest still runs.
        """
        return self._accept_end(
            command,
            lambda work: steps.rollback_live_migration_at_source(self.driver, self.host, instance, migrate_data),
            stop=lambda work: self._stop_work(work, instance),
        )

    @expose
    def rollback_live_migration_at_destination(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """End this host's work for the migration, then remove what the migration has created here.

        The report is failed with ``{'here': True}`` if the guest itself is here.
        """
        return self._accept_end(
            command,
            lambda work: steps.rollback_live_migration_at_destination(self.driver, self.host, instance, migrate_data),
            stop=lambda work: self._stop_work(work, instance),
        )

    @expose
    def poll_live_migrations(
        self, context: Context, commands: list[Command], acks: list[dict[str, Any]], wait: float
    ) -> list[Observation]:
        """Return the observations of some migrations; see :class:`migrator.compute.status.Observer`."""
        return self._observer.poll(commands, acks, wait)

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _check(self, command: Command, wait: float, body: Callable[[Work], Any]) -> Answer:
        answer = self._orders.accept(command, body)
        if answer.report is None or answer.report.state != WorkState.RUNNING:
            return answer
        return self._orders.wait(command, wait)

    def _accept_end(
        self,
        command: Command,
        body: Callable[[Work], Any],
        stop: Callable[[Work], None] | None = None,
    ) -> Answer:
        """Accept post or rollback.

        A service older than lightweight calls replies when the step has ended, or after some seconds as running.
        """
        answer = self._orders.accept(command, body, stop=stop)
        lightweight = self.version >= LIGHTWEIGHT
        if lightweight or answer.report is None or answer.report.state != WorkState.RUNNING:
            return answer
        return self._orders.wait(command, rpcapi.PLAIN_WAIT)

    def _accept_live(
        self,
        command: Command,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        at_start: bool = False,
    ) -> Answer:
        queued = _QueuedMigration(self, instance, destination, migrate_data)
        return self._orders.accept(command, queued, submit=queued.submit, at_start=at_start)

    def _do_live_migration(self, work: Work) -> None:
        """Run a live migration that has got its slot, until the driver's call has returned."""
        self._queue.take(work.uuid)
        self._orders.run(work)

    def _started(self, work: Work, instance: Instance) -> None:
        if self._orders.started(work):
            # The abort came after the entry was removed and before the job existed.
            self._call_driver('abort', self.driver.live_migration_abort, work.uuid, instance)

    def _stop_work(self, work: Work, instance: Instance) -> None:
        """Make a cancelled live migration end soon. Other work checks its token itself."""
        if work.step == LIVE_MIGRATION:
            self._end_live_migration(work, work.uuid, instance)

    def _end_live_migration(self, work: Work | None, migration_uuid: str, instance: Instance) -> None:
        """Cancel a live migration in the queue or, if it has started, have the driver abort it."""
        if self._queue.cancel(migration_uuid):
            self._orders.cancelled_in_queue(migration_uuid)
        elif work is None or work.started:
            self._call_driver('abort', self.driver.live_migration_abort, migration_uuid, instance)

    def _call_driver(
        self, what: str, method: Callable[[Instance], None], migration_uuid: str, instance: Instance
    ) -> None:
        """Have the pool call the driver for a running live migration, if the call may run beside other work."""
        if not self._orders.begin_call(what, migration_uuid):
            return
        request = subject().request
        log_context = about(request, migration_uuid, instance.uuid)
        self._pool.submit(self._call, what, method, migration_uuid, instance, log_context)

    def _call(
        self,
        what: str,
        method: Callable[[Instance], None],
        migration_uuid: str,
        instance: Instance,
        log_context: contextlib.AbstractContextManager[None],
    ) -> None:
        try:
            with log_context:
                try:
                    method(instance)
                except Exception as error:  # noqa: BLE001 -- the verdict of the live migration shows the result
                    LOG.warning(
                        'Driver call failed: %(call)s of instance %(instance)s on host %(host)s: %(error)s',
                        {'call': what, 'instance': instance.uuid, 'host': self.host, 'error': exception.told(error)},
                    )
        finally:
            self._orders.end_call(what, migration_uuid)

    def _done(self, command: Command, result: Any) -> Report:
        return Report(
            migration_uuid=command.migration_uuid,
            host=self.host,
            boot_id=self.boot_id,
            step=command.step,
            epoch=command.epoch,
            state=WorkState.DONE.value,
            result=result,
        )
