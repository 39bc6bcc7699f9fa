# SPDX-License-Identifier: Apache-2.0

"""The RPC endpoint of a compute host.

It is told what to do by conductors, and only by them. A call is answered at once, except for the checks; the work is
done by a pool, one step of a migration after the other, and its end is told by an event and by every poll until it is
acknowledged (:mod:`migrator.compute.work`). Moves wait in a bounded queue
(:mod:`migrator.compute.live_migration_queue`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import context as migrator_context
from migrator import exception, executors
from migrator import rpc as migrator_rpc
from migrator.compute import checks, inventory, live_migration_queue, packing, registration, rpcapi, status, timeouts
from migrator.compute import steps as live_migration
from migrator.compute.work import LIVE_MIGRATION, Orders, Outcome, Work
from migrator.conf import compute
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
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

Context = migrator_context.RequestContext

#: How many driver calls and messages may be under way at once, moves aside: enough that calls which hang do not
#: hold up the others, and few enough that a hypervisor which hangs altogether does not exhaust the process.
POOL_SIZE = 1000
#: Seconds that a stop gives to the message that tells of it, and to the end of listening.
STOPPING_TIMEOUT = 1.0
STOP_LISTENING_TIMEOUT = 0.5


class _Inherited:
    """A job that was found running when the service started."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self.outcome: Outcome | None = None
        #: Seconds for which it had run, by the conductor's word.
        self.running_for = 0.0


class _Move:
    """What a live migration will need when it has got its slot. Thousands may wait, so it is kept small: packed."""

    __slots__ = ('manager', 'packed')

    def __init__(
        self, manager: ComputeManager, instance: Instance, destination: str, migrate_data: LiveMigrateData
    ) -> None:
        self.manager = manager
        self.packed = packing.pack([instance, destination, migrate_data])

    def unpack(self) -> tuple[Instance, str, LiveMigrateData]:
        """Return the guest, where it is to go, and what the hosts know of each other."""
        instance, destination, migrate_data = packing.unpack(self.packed)
        return instance, destination, migrate_data

    def submit(self, work: Work) -> None:
        """Queue it, or let it be the job that was found running at start."""
        manager = self.manager
        inherited = manager._inherited.pop(work.instance_uuid, None)
        if inherited is None:
            manager._queue.submit(work.uuid, manager._do_live_migration, work)
        else:
            # It has its slot already; in the queue it would wait for itself.
            manager._orders.attach(work)
            manager._pool.submit(manager._take_over, work, self, inherited)

    def __call__(self, work: Work) -> Outcome:
        """Do it: the body of the work."""
        manager = self.manager
        instance, destination, migrate_data = self.unpack()
        manager._timeouts.begin(work, timeouts.data_gib(instance, migrate_data))
        return live_migration.live_migration(
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
    """One compute host. Nothing is started and no message sent before :meth:`start`.

    :param conf: with the options of :mod:`migrator.conf.compute` registered.
    :param host: the name of this host.
    :param driver: its hypervisor's.
    :param threads: clock, locks, threads.
    :param events: what tells conductors.
    :param rpc: where to listen; may as well be given to :meth:`start`.
    :param version: the service version to report; this release's own, or its cap in ``conf``, unless given.
    :ivar boot_id: of this life; another life of the same host has another.
    :raises migrator.exception.ConfigurationError: an option is not right.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        host: str,
        driver: ComputeDriver,
        threads: executors.Threads,
        events: EventClient,
        rpc: migrator_rpc.RPC | None = None,
        version: int | None = None,
    ) -> None:
        limit = compute.max_concurrent_live_migrations(conf)
        cap = compute.service_version(conf, CURRENT_VERSION)
        # Those, too, that are read much later: a stop that finds one wrong would stop nothing.
        compute.check(conf)
        self.conf = conf
        self.host = host
        self.driver = driver
        self.threads = threads
        self.events = events
        self.boot_id = threads.new_uuid()
        self.version = version or cap
        self._rpc = rpc
        self._served: migrator_rpc.Served | None = None
        self._lock = threads.lock()
        self._inherited: dict[str, _Inherited] = {}
        self._registered = False
        self._pool = executors.BoundedExecutor(POOL_SIZE, threads, name='compute')
        self._live_migration_executor = executors.BoundedExecutor(limit, threads, name='live-migration')
        self._waiting_live_migrations: dict[str, concurrent.futures.Future[Any]] = {}
        self._queue = live_migration_queue.LiveMigrationQueue(
            host, self._live_migration_executor, self._waiting_live_migrations, threads
        )
        compares_tenure = self.version >= COMPARES_TENURE
        self._orders = Orders(host, self.boot_id, threads, events, self._pool, self._foreign_boot, compares_tenure)
        self._observer = status.Observer(driver, host, self.boot_id, threads, self._orders, self._pool)
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

    # --- life ------------------------------------------------------------------------------------------------------

    def init_host(self) -> None:
        """Ask the driver for every guest and job; jobs that run take their slot, before anything else can."""
        self.driver.init_host(self.host)
        for listed in self.driver.list_guests():
            # What a call of an earlier life may still start has to be a job now, or never.
            try:
                guest = self.driver.settle(listed.instance_uuid)
            except exception.MigratorException as error:
                LOG.warning('What guest %s does is not known, and it is asked on: %s', listed.instance_uuid, error)
                guest = listed.replace(job=True)
            # It is done again where it has failed: a job has one slot.
            if guest.job and guest.instance_uuid not in self._inherited:
                inherited = self._inherited[guest.instance_uuid] = _Inherited()
                self._queue.attach(self._outlast, guest.instance_uuid, inherited)
        self._inventory.refresh()

    def start(self, rpc: migrator_rpc.RPC | None = None) -> None:
        """Take over what runs, listen, register with a conductor (in the background), and start the heartbeat."""
        rpc = rpc or self._rpc
        if rpc is None:
            raise ValueError('a compute host needs an RPC to listen on: give one to ComputeManager, or to start')
        self.init_host()
        self.conf.register_mutate_hook(self._conf_mutated)
        target = migrator_rpc.Target(rpcapi.TOPIC, self.host, rpcapi.served_by(self.version))
        self._served = rpc.serve(target, self)
        self._registration.start()

    def reset(self) -> None:
        """Apply the options that may change while the service runs; nothing that runs or waits is disturbed.

        :raises migrator.exception.ConfigurationError: an option is not right; the old value goes on.
        """
        self._queue.resize(compute.max_concurrent_live_migrations(self.conf))

    def cleanup_host(self) -> None:
        """Stop as planned: take no new moves, treat those that wait and those that run as configured, and say so.

        Within 2 s, plus ``stop_timeout`` where ``stop_running`` is wait, whatever the driver and the broker do.
        """
        cancel = self.conf.compute.stop_queued == 'cancel'
        waiting = self._queue.close()
        self._registration.stop()
        self._timeouts.stop()
        # No conductor that has not answered yet has given this host anything to do.
        told = not self._registered or self._within(
            STOPPING_TIMEOUT,
            lambda: self.events.compute_stopping(self.host, self.boot_id, waiting if cancel else []),
            'compute-stopping',
        )
        if not told:
            LOG.warning('No conductor heard that %s stops: what waited is queued again at the next start', self.host)
        elif cancel:
            # Only now: an owner who polls must not find cancelled what nobody has wished aborted yet.
            for migration_uuid in waiting:
                self._orders.cancelled_in_queue(migration_uuid, tell=False)
        if self.conf.compute.stop_running == 'wait':
            self._within(self.conf.compute.stop_timeout, self._queue.drain, 'drain')
        if self._served is not None:
            self._within(STOP_LISTENING_TIMEOUT, self._served.stop, 'stop-listening')

    def _within(self, seconds: float, function: Callable[[], Any], name: str) -> bool:
        """Run a function in a thread of its own; return whether it has ended well within ``seconds``."""
        ended = self.threads.event()
        failures: list[Exception] = []

        def run() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 -- a stop goes on, whatever fails
                failures.append(error)
                LOG.warning('%s: %s: %s', self.host, name, exception.told(error))
            ended.set()

        try:
            self.threads.start(run, name=name)
        except RuntimeError as error:  # no thread is to be had
            LOG.warning('%s: %s: %s', self.host, name, error)
            return False
        return ended.wait(seconds) and not failures

    def _conf_mutated(self, conf: cfg.ConfigOpts, fresh: dict[Any, Any]) -> None:
        try:
            self.reset()
        except exception.ConfigurationError as error:
            LOG.error('%s The limit stays %d.', error, self._queue.limit)

    def _foreign_boot(self) -> None:
        """Register again: the database may have the boot of an earlier life, whose call was committed late."""
        self._registration.register()

    def _apply(self, assignments: Sequence[protocol.Assignment]) -> None:
        """Take over the migrations that this host has a part in, in their order."""
        for assignment in assignments:
            command = assignment.command
            with migrator_context.about(None, command.migration_uuid, command.instance_uuid):
                self._apply_one(assignment)
        self._forget_inherited()

    def _apply_one(self, assignment: protocol.Assignment) -> None:
        command = assignment.command.replace(step=LIVE_MIGRATION, boot_id=self.boot_id)
        if not self._orders.adopt(command) or assignment.role != 'source':
            return
        inherited = self._inherited.get(command.instance_uuid)
        if inherited is not None:
            inherited.running_for = assignment.running_for
        # A job that is found before its move was prepared is not its.
        if assignment.queue or (inherited is not None and assignment.migrate_data is not None):
            instance, migrate_data = assignment.instance, assignment.migrate_data
            if not isinstance(instance, Instance) or not isinstance(migrate_data, LiveMigrateData):
                LOG.error('Migration %s cannot be taken up: its data is missing', command.migration_uuid)
                return
            self._accept_live(command, instance, assignment.destination or '', migrate_data, at_start=True)

    # --- jobs that outlived an earlier life ------------------------------------------------------------------------

    def _outlast(self, instance_uuid: str, inherited: _Inherited) -> None:
        """Hold the slot of a job that was found running, until it has ended."""

        def about() -> contextlib.AbstractContextManager[None]:
            # Which migration's it is may be told later.
            if inherited.work is not None:
                return inherited.work.about()
            return migrator_context.about(instance_uuid=instance_uuid)

        outcome = live_migration.outcome(live_migration.outlast(self.driver, self.threads, instance_uuid, about))
        with self._lock:
            inherited.outcome = outcome
            work, registered = inherited.work, self._registered
        if work is not None:
            self._orders.end(work, outcome)
        elif registered:
            self._forget_inherited()

    def _take_over(self, work: Work, move: _Move, inherited: _Inherited) -> None:
        """Let a job that was found running be that of a migration."""
        instance, _destination, migrate_data = move.unpack()
        with work.about():
            self._timeouts.begin(work, timeouts.data_gib(instance, migrate_data), inherited.running_for)
            self._started(work, instance)
            with self._lock:
                inherited.work = work
                outcome = inherited.outcome
            if outcome is not None:
                self._orders.end(work, outcome)

    def _forget_inherited(self) -> None:
        """Forget jobs that have ended and that no migration in progress has claimed: the guest's next is another."""
        with self._lock:
            self._registered = True
            for instance_uuid, inherited in list(self._inherited.items()):
                if inherited.outcome is not None:
                    del self._inherited[instance_uuid]

    # --- steps, in the order of the story --------------------------------------------------------------------------

    @migrator_rpc.expose
    def check_can_live_migrate_destination(
        self,
        context: Context,
        command: Command,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
        wait: float,
    ) -> Answer:
        """Check whether this host can take the guest; answered when it is done, or after ``wait`` seconds as running.

        ``report.result`` is the LiveMigrateData for the source's check.
        """
        return self._check(
            command,
            wait,
            lambda work: checks.check_can_live_migrate_destination(
                self.driver, self.host, instance, block_migration, disk_over_commit
            ),
        )

    @migrator_rpc.expose
    def check_can_live_migrate_source(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData, wait: float
    ) -> Answer:
        """Check whether the guest can go there; answered when it is done, or after ``wait`` seconds as running.

        ``report.result`` is the LiveMigrateData with this host's part filled in.
        """
        return self._check(
            command,
            wait,
            lambda work: checks.check_can_live_migrate_source(self.driver, self.host, instance, migrate_data),
        )

    @migrator_rpc.expose
    def pre_live_migration(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Make this host ready to receive the guest; the report's ``result`` is the LiveMigrateData for the source."""
        return self._orders.accept(
            command, lambda work: live_migration.pre_live_migration(self.driver, instance, migrate_data, work)
        )

    @migrator_rpc.expose
    def live_migration(
        self,
        context: Context,
        command: Command,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
    ) -> Answer:
        """Queue the move. Reports: running with ``{'started': True}`` when the hypervisor has the job; at the end
        ``{'verdict': 'completed' | 'failed' | 'aborted' | ''}``, ``{'cancelled': True}`` or ``{'gone': True}``.
        """
        return self._accept_live(command, instance, destination, migrate_data)

    @migrator_rpc.expose
    def live_migration_abort(self, context: Context, command: Command, instance: Instance) -> Answer:
        """Abort the move: in the queue if it still waits there, else at the driver.

        ``report.result`` is ``{'cancelled': bool, 'verdict': str}``: whether the driver was not called and never will
        be, and what it has said if its call has returned.
        """
        answer = self._orders.admit(command)
        if answer.refusal is not None:
            return answer
        work = self._orders.cancel_live(command)
        if work is None or work.outcome is None:
            self._end_move(work, command.migration_uuid, instance)
        outcome = work.outcome if work is not None else None
        result = {
            'cancelled': outcome is not None and outcome.state == WorkState.CANCELLED and not outcome.returned,
            'verdict': outcome.verdict if outcome is not None else '',
        }
        return answer.replace(report=self._done(command, result))

    @migrator_rpc.expose
    def live_migration_force_complete(self, context: Context, command: Command, instance: Instance) -> Answer:
        """Make the running move end soon; too late, or too early, is no error."""
        answer = self._orders.admit(command)
        if answer.refusal is not None:
            return answer
        if self._orders.may_run(command):
            uuid = command.migration_uuid
            self._ask_driver('force-complete', self.driver.live_migration_force_complete, uuid, instance)
        return answer.replace(report=self._done(command, None))

    @migrator_rpc.expose
    def post_live_migration_at_source(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Remove what is left of a guest that has gone; failed with ``{'here': True}`` if it is active here."""
        return self._accept_end(
            command,
            lambda work: live_migration.post_live_migration_at_source(self.driver, self.host, instance, migrate_data),
        )

    @migrator_rpc.expose
    def post_live_migration_at_destination(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Make the arrived guest this host's own; failed with ``{'gone': True}`` if it is not here."""
        return self._accept_end(
            command, lambda work: live_migration.post_live_migration_at_destination(self.driver, instance, migrate_data)
        )

    @migrator_rpc.expose
    def rollback_live_migration_at_source(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """End what this host does for the migration, then restore the guest; failed with ``{'gone': True}`` if it is
        not here, with ``{'busy': True}`` if a job of it still runs.
        """
        return self._accept_end(
            command,
            lambda work: live_migration.rollback_live_migration_at_source(
                self.driver, self.host, instance, migrate_data
            ),
            stop=lambda work: self._stop_work(work, instance),
        )

    @migrator_rpc.expose
    def rollback_live_migration_at_destination(
        self, context: Context, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """End what this host does for the migration, then remove what was made for it; failed with ``{'here': True}``
        if the guest itself is here.
        """
        return self._accept_end(
            command,
            lambda work: live_migration.rollback_live_migration_at_destination(
                self.driver, self.host, instance, migrate_data
            ),
            stop=lambda work: self._stop_work(work, instance),
        )

    @migrator_rpc.expose
    def poll_live_migrations(
        self, context: Context, commands: list[Command], acks: list[dict[str, Any]], wait: float
    ) -> list[Observation]:
        """Tell what is known of some migrations; see :class:`migrator.compute.status.Observer`."""
        return self._observer.poll(commands, acks, wait)

    # --- below -----------------------------------------------------------------------------------------------------

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
        """Take post or rollback; a service of a version from before lightweight calls answers when it is done,
        or after some seconds as still running.
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
        move = _Move(self, instance, destination, migrate_data)
        return self._orders.accept(command, move, submit=move.submit, at_start=at_start)

    def _do_live_migration(self, work: Work) -> None:
        """Be a move that has got its slot, until the driver's call has returned."""
        self._queue.take(work.uuid)
        self._orders.run(work)

    def _started(self, work: Work, instance: Instance) -> None:
        if self._orders.started(work):
            # The abort came when there was no entry any more and no job yet.
            self._ask_driver('abort', self.driver.live_migration_abort, work.uuid, instance)

    def _stop_work(self, work: Work, instance: Instance) -> None:
        """Make a cancelled work end soon; one that has a token alone looks at it by itself."""
        if work.step == LIVE_MIGRATION:
            self._end_move(work, work.uuid, instance)

    def _end_move(self, work: Work | None, migration_uuid: str, instance: Instance) -> None:
        """Cancel a move in the queue or, if it has started, have the driver abort it."""
        if self._queue.cancel(migration_uuid):
            self._orders.cancelled_in_queue(migration_uuid)
        elif work is None or work.started:
            self._ask_driver('abort', self.driver.live_migration_abort, migration_uuid, instance)

    def _ask_driver(
        self, what: str, method: Callable[[Instance], None], migration_uuid: str, instance: Instance
    ) -> None:
        """Have the pool make a driver call about a running move, unless the last such call has not returned yet."""
        if not self._orders.begin_call(what, migration_uuid):
            return
        request = migrator_context.subject().request
        about = migrator_context.about(request, migration_uuid, instance.uuid)
        self._pool.submit(self._ask, what, method, migration_uuid, instance, about)

    def _ask(
        self,
        what: str,
        method: Callable[[Instance], None],
        migration_uuid: str,
        instance: Instance,
        about: contextlib.AbstractContextManager[None],
    ) -> None:
        try:
            with about:
                try:
                    method(instance)
                except Exception as error:  # noqa: BLE001 -- the move's verdict tells what came of it
                    LOG.warning('%s %s failed at %s: %s', what, instance.uuid, self.host, exception.told(error))
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
