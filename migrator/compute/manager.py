# SPDX-License-Identifier: Apache-2.0

"""The RPC endpoint of a compute host.

Only conductors call it. A call returns at once, or when its step has ended or a short time is over. A pool does the
work, one step of a guest after the other. An event reports the end of a step if no call waits for it, and so does every
poll until a conductor acknowledges it
(:mod:`migrator.compute.step_runner`). Live migrations wait in a bounded queue
(:mod:`migrator.compute.live_migration_queue`).
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors, tracing
from migrator.compute import (
    evacuation,
    inherited_jobs,
    inventory,
    live_migration_queue,
    registration,
    rpcapi,
    step_runner,
    steps,
    timeouts,
)
from migrator.compute.cold_migration import endpoint, here
from migrator.compute.status import HostQueries, Observer
from migrator.compute.work import Work, WorkEnd, pack, unpack
from migrator.conf import compute
from migrator.context import RequestContext
from migrator.objects import (
    CURRENT_VERSION,
    Answer,
    Command,
    EventClient,
    Instance,
    LiveMigrateData,
    Observation,
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


class ComputeManager(
    steps.LiveMigrationSteps,
    evacuation.EvacuationSteps,
    endpoint.ColdMigrationSteps,
    here.ResizeSteps,
    HostQueries,
):
    """A compute host, which starts no thread and sends no message before :meth:`start`.

    :param conf: has the options of :mod:`migrator.conf.compute` registered.
    :param host: the name of this host.
    :param driver: the driver of the host's hypervisor.
    :param threads: makes clocks, locks and threads.
    :param events: the client that reports to conductors.
    :param rpc: the RPC to listen on; may be given to :meth:`start` instead.
    :param version: the service version to report; by default the version of this release, or its cap in ``conf``.
    :param executor: runs the live migrations; by default :func:`migrator.executors.long_calls`.
    :param tracer: records the work as spans of its migrations; None: they are not traced.
    :param identity: what distinguishes the hypervisor from every other one; by default what the driver reports.
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
        tracer: tracing.Tracer | None = None,
        identity: str | None = None,
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
        pool = executors.BoundedExecutor(POOL_SIZE, threads, name='compute')
        own = executors.long_calls(threads, 'live-migration') if executor is None else None
        self._live_migration_executor = executors.BoundedExecutor(limit, threads, 'live-migration', executor or own)
        self._waiting_live_migrations: dict[str, concurrent.futures.Future[Any]] = {}
        queue = live_migration_queue.LiveMigrationQueue(
            host, self._live_migration_executor, self._waiting_live_migrations, threads, own
        )
        driver.on_copied = queue.note_copied
        self._runner: step_runner.StepRunner = step_runner.StepRunner(
            host,
            self.boot_id,
            driver,
            threads,
            events,
            pool,
            queue,
            # The database may have another boot, such as after it was restored from a backup.
            foreign_boot=self._register_again,
            around=None if tracer is None else step_runner.traced(tracer, host),
        )
        self._observer = Observer(driver, host, threads, self._runner)
        self._timeouts = timeouts.Timeouts(
            host, self.boot_id, lambda: compute.live_migration_timeout(conf), threads, events, pool
        )
        self.registration = registration.Registration(
            threads,
            events,
            driver,
            inventory.HostInventory(
                driver, host, self.boot_id, self.version, lambda: queue.limit, threads, pool, identity
            ),
            self._runner,
            self._accept_live_migration,
            conf.report_interval,
            pools=(pool, self._live_migration_executor, self._runner.reports),
            adopts=conf.compute.adopt_guests,
        )

    def _register_again(self) -> None:
        self.registration.register()

    @property
    def live_migrations(self) -> executors.BoundedExecutor:
        """The live migrations that leave this host, and those that wait for a slot."""
        return self._live_migration_executor

    # --- start and stop --------------------------------------------------------------------------------------------

    def init_host(self) -> None:
        """Give every running job a slot before any other live migration can get one."""
        self.driver.init_host(self.host)
        self._runner.inherited.find()
        self.registration.inventory.refresh()

    def start(self, rpc: RPC | None = None) -> None:
        """Attach to running jobs, listen, register in the background, and start the heartbeat."""
        rpc = rpc or self._rpc
        if rpc is None:
            raise ValueError('a compute host needs an RPC to listen on: pass rpc to ComputeManager or to start()')
        self.init_host()
        self.conf.register_mutate_hook(self._conf_mutated)
        listener = registration.Listener(rpc, Target(rpcapi.TOPIC, self.host, rpcapi.VERSION), self, self.threads)
        listener.start()
        self._served = listener
        self.registration.start(listener)

    def reset(self) -> None:
        """Apply the options that may change while the service runs, without interrupting any work.

        :raises migrator.exception.ConfigurationError: an option has an invalid value; the old value stays.
        """
        self._runner.queue.resize(compute.max_concurrent_live_migrations(self.conf))

    def cleanup_host(self) -> None:
        """Stop as planned: refuse new live migrations, treat the others as configured, and report the stop.

        The stop takes at most 2 s, plus ``stop_timeout`` if ``stop_running`` is wait, even if driver or broker hangs.
        """
        cancel = self.conf.compute.stop_queued == 'cancel'
        waiting = self._runner.queue.close()
        self.registration.stop()
        self._timeouts.stop()
        # A host that is not registered has no work, so it has nothing to report.
        reported = not self.registration.registered or self._run_within(
            STOPPING_TIMEOUT,
            lambda: self.events.compute_stopping(self.host, self.boot_id, waiting if cancel else []),
            'compute-stopping',
        )
        if not reported:
            LOG.warning('Could not report the stop of host %s; the next start queues its migrations again', self.host)
        elif cancel:
            # Only after the report, so that a poll shows no work as cancelled before its abort request is committed.
            for migration_uuid in waiting:
                self._runner.cancelled_in_queue(migration_uuid, send_event=False)
        if self.conf.compute.stop_running == 'wait':
            self._run_within(self.conf.compute.stop_timeout, self._runner.queue.drain, 'drain')
        if self._served is not None:
            self._run_within(STOP_LISTENING_TIMEOUT, self._served.stop, 'stop-listening')

    def _run_within(self, seconds: float, function: Callable[[], Any], name: str) -> bool:
        """Run a function in its own thread, and return whether it has succeeded within ``seconds``."""
        ended = self.threads.event()
        failures: list[BaseException] = []

        def fail(error: BaseException) -> None:
            failures.append(error)
            LOG.warning(
                'A part of the stop failed: %(part)s on host %(host)s: %(error)s',
                {'part': name, 'host': self.host, 'error': exception.message_of(error)},
            )

        def run() -> None:
            try:
                function()
            except BaseException as error:  # a stop continues even if a part of it fails
                if self.threads.is_final(error):
                    raise
                fail(error)
            ended.set()

        try:
            self.threads.start(run, name=name)
        except RuntimeError as error:  # the process cannot start a thread
            fail(error)
            ended.set()
        return ended.wait(seconds) and not failures

    def _conf_mutated(self, conf: cfg.ConfigOpts, fresh: dict[Any, Any]) -> None:
        try:
            self.reset()
        except exception.ConfigurationError as error:
            LOG.error(
                'Keeping max_concurrent_live_migrations at %(limit)d: %(error)s',
                {'limit': self._runner.queue.limit, 'error': error},
            )

    # --- the live migration ----------------------------------------------------------------------------------------

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
        return self._accept_live_migration(command, instance, destination, migrate_data)

    def _accept_live_migration(
        self,
        command: Command,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        at_start: bool = False,
    ) -> Answer:
        # Thousands may wait for a slot.
        packed = pack([instance, destination, migrate_data])
        return self._runner.accept(command, self._do_live_migration, packed=packed, at_start=at_start)

    def _do_live_migration(self, work: Work, inherited: inherited_jobs.InheritedJob | None = None) -> WorkEnd | None:
        """Run a live migration that has a slot, until the driver's call has returned.

        :param inherited: the job of the migration, if an earlier boot has started it.
        """
        instance, destination, migrate_data = unpack(work.packed)
        self._runner.queue.downtimes.pop(instance.uuid, None)  # of an earlier migration, if it came late
        already = inherited.running_for if inherited is not None else 0.0
        gib = instance.flavor.gib_to_copy(migrate_data.block_migration, migrate_data.source)
        self._timeouts.begin(work, gib, already)
        if inherited is not None:
            self._runner.started(work, instance)
            return inherited.wait()
        return steps.live_migration(
            self.driver,
            self.threads,
            self.host,
            instance,
            destination,
            migrate_data,
            work,
            started=lambda: self._runner.started(work, instance),
        )

    @expose
    def live_migration_abort(self, context: Context, command: Command, instance: Instance) -> Answer:
        """Abort the live migration: in the queue if it still waits there, otherwise with the driver.

        ``report.result`` is ``{'cancelled': bool, 'verdict': str}``. ``cancelled`` is true if the driver was not called
        and never will be. ``verdict`` is what the driver returned, or '' if its call has not returned.
        """
        return self._runner.abort(command, instance)

    @expose
    def live_migration_force_complete(self, context: Context, command: Command, instance: Instance) -> Answer:
        """Force the running live migration to complete; do nothing if none is running."""
        return self._runner.force_complete(command, instance)

    @expose
    def poll_live_migrations(
        self, context: Context, commands: list[Command], acks: list[dict[str, Any]], wait: float
    ) -> list[Observation]:
        """Return the observations of some migrations; see :class:`migrator.compute.status.Observer`."""
        return self._observer.poll(commands, acks, wait)
