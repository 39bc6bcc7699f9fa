# SPDX-License-Identifier: Apache-2.0

"""The conductor manager: the RPC endpoint of the conductor, its periodic tasks and its lease."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors, rpc, tracing
from migrator.compute.rpcapi import VERSIONS, ComputeAPI
from migrator.conductor import audit, broker, cleanups, metrics, periodics, registry, rpcapi, takeover
from migrator.conductor.audit import OperatorCalls
from migrator.conductor.compute_client import Hosts
from migrator.conductor.drains.periodic import DrainCalls, Drains, Mover, own_mover
from migrator.conductor.guests import differences
from migrator.conductor.maintenances.periodic import Maintenances
from migrator.conductor.migration.context import Options, Tools
from migrator.conductor.notifications.periodic import Notifications, Send
from migrator.conductor.runner import Runner
from migrator.conductor.tasks import sagas
from migrator.conf import upgrade_levels
from migrator.context import RequestContext, admin_context
from migrator.db import slots
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, CONDUCTOR_BINARY, CURRENT_VERSION, protocol
from migrator.placement_client.client import PlacementClient

LOG = logging.getLogger(__name__)

#: Runs of migrations at a time. A parked migration holds no thread.
_RUNS = 64
#: Writes of providers to Placement and adoptions of guests at a time. They may be slow, and no caller waits for them.
_ADOPTIONS = 2
#: Seconds that a starting host waits for its resource providers to be written to Placement.
_TREE_TIMEOUT = 2.0
#: Seconds that a stop waits for runs in the middle of a call.
_STOP_TIMEOUT = 5.0
#: The periodic task that sends the notifications.
_NOTIFICATIONS = 'notifications'


class ConductorManager(DrainCalls, registry.HostCalls, OperatorCalls):
    """A conductor, which owns migrations and runs them through the RPC API of the compute hosts.

    :param conf: the configuration, with the options of :mod:`migrator.conf.conductor` registered.
    :param server: the name of its RPC server and of its service record.
    :param client: its RPC client and server.
    :param mover: what moves the guests of drains; None: the migrations of this control plane.
    :param send: puts a notification on the bus; None: there are no notifications.
    :param tracer: records the spans of the migrations; None: they are not traced.
    :ivar metrics: its metrics. The embedding process serves them.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        server: str,
        database: Database,
        placement_client: PlacementClient,
        client: rpc.RPC,
        threads: executors.Threads,
        mover: Mover | None = None,
        send: Send | None = None,
        tracer: tracing.Tracer | None = None,
    ) -> None:
        self.conf = conf
        self._rpc = client
        self._threads = threads
        self._served: list[rpc.Served] = []
        self._periodics: dict[str, executors.Periodic] = {}
        pool = executors.BoundedExecutor(_RUNS, threads, f'{server}-saga')
        self._poll_pool = executors.BoundedExecutor(conf.conductor.poll_concurrency, threads, f'{server}-poll')
        self._adopt_pool = executors.BoundedExecutor(_ADOPTIONS, threads, f'{server}-adopt')
        self._pools = (pool, self._poll_pool, self._adopt_pool)
        self._stopping = threads.event()
        api = ComputeAPI(
            client,
            version_of=lambda host: database.services.get_compute(host).version,
            version=upgrade_levels.version(conf, 'compute', VERSIONS),
        )
        reached = broker.Broker(
            server,
            lambda number: self._cast(server, 'probe_returned', owner=self.tools.owner, number=number),
            threads,
            self._probe_interval,
        )
        self.tools = Tools(
            owner='',
            server=server,
            database=database,
            placement=placement_client,
            hosts=Hosts(api, threads, lambda: float(conf.conductor.poll_interval), reached),
            broker=reached,
            threads=threads,
            options=_options(conf),
            tracer=tracer,
        )
        every, reload = sagas(), functools.partial(takeover.reload, self.tools)
        self.runner = Runner(threads, pool, lambda subject: every[subject.row.task], reload)
        self.tools.hosts.on_free = self.runner.wake
        own = own_mover(self.tools, self.adopt, lambda uuid: self.wake(admin_context(), uuid))
        drains = Drains(self.tools, mover or own, self._poll_pool)
        maintenances = Maintenances(self.tools, drains.mover.engine, drains.wake_all, self._poll_pool)
        super().__init__(drains, maintenances)
        #: When the lease was last renewed (monotonic seconds).
        self._renewed_at = threads.clock.monotonic()
        # While it is cut off from the database, another conductor shows its migrations as its own.
        self.metrics = metrics.Metrics(
            lambda: self.runner.held() if self.has_lease() else (),
            reached.away_for,
            self.runner.ended,
            lambda: self.tools.options.bounds,
            lambda: self.drains.statuses() if self.has_lease() else (),
            self.drains.ended,
        )
        self.tools.on_step = lambda step, direction, state, seconds: self.metrics.steps.labels(
            step, direction, state
        ).observe(seconds)
        self.tools.on_next_attempt = self.metrics.next_attempts.inc
        #: The comparisons and the notifications: the name of each -> its interval in seconds, and what does it.
        self._watches: dict[str, tuple[float | Callable[[], float], Callable[[], None]]] = {}
        if conf.conductor.audit_interval:
            audits = metrics.Audits(self.metrics.registry)
            watch = audit.Watch(database, placement_client, threads.clock, audits)
            self._watches['audit'] = conf.conductor.audit_interval, watch.look
        if conf.conductor.guests_interval:
            comparison = differences.Watch(self.tools, metrics.Guests(self.metrics.registry))
            self._watches['guests'] = conf.conductor.guests_interval, comparison.look
        if send is not None:
            notifications = Notifications(self.tools, send, self._stopping)
            metrics.watch_notifications(self.metrics.registry, notifications.waits_for)
            self._watches[_NOTIFICATIONS] = notifications.interval, notifications.look
        self._heartbeats = periodics.Heartbeats(self.tools, self._poll_pool)
        advance = functools.partial(self.drains.wake, is_whole=False)
        self.runner.on_news = functools.partial(periodics.take_news, self.tools, self.runner, advance)
        reached.on_change = self.runner.wake_all

    # --- start, lease and stop ---------------------------------------------------------------------------------------

    def begin_boot(self) -> None:
        """Begin a new boot: take a new id and a new lease, and report to the database."""
        self.runner.drop_all()
        self.tools.owner = self._threads.new_uuid()
        self._renewed_at = self._threads.clock.monotonic()
        self.tools.broker.begin_boot()
        self.tools.hosts.begin_boot()
        self.tools.database.conductors.register(self.tools.owner, self.tools.server, self.conf.conductor.lease)
        self.tools.database.services.report(self.tools.server, CONDUCTOR_BINARY, CURRENT_VERSION)

    def has_lease(self) -> bool:
        """Return whether this conductor has a boot whose lease it has renewed in time."""
        lease = float(self.conf.conductor.lease)
        return bool(self.tools.owner) and self._threads.clock.monotonic() - self._renewed_at < lease

    def start(self) -> None:
        """Begin a boot, serve RPC, and start the periodic tasks.

        :raises migrator.exception.ServiceUnreachable: the database or the message broker is unreachable.
        """
        self.begin_boot()
        target = rpc.Target(rpcapi.TOPIC, self.tools.server, rpcapi.VERSION)
        self._served.append(self._rpc.serve(target, self))
        conf = self.conf.conductor
        self._every(conf.lease / 3, self._renew, 'lease')
        self._every(self._probe_interval, self._probe_broker, 'knock')
        self._every(lambda: conf.sweep_interval, self._sweep, 'sweep')
        self._every(
            lambda: conf.poll_interval / 2,
            lambda: periodics.poll(self.tools, self.runner, self._poll_pool, self._poll_drains),
            'poll',
        )
        for name, (interval, look) in self._watches.items():
            self._every(interval, look, name)

    def _every(self, spacing: float | Callable[[], float], function: Callable[[], None], name: str) -> None:
        def tick() -> None:
            for pool in self._pools:
                pool.start_waiting()
            now = _options(self.conf)
            if now != self.tools.options:
                self.tools.options = now
            try:
                function()
            except exception.ServiceUnreachable as error:
                LOG.warning('Could not run a periodic task: %s', error)

        self._periodics[name] = executors.Periodic(self._threads, spacing, tick, name).start()

    def _sweep(self) -> None:
        if not self.tools.owner:
            return
        due = periodics.sweep(self.tools, self.runner, self._poll_pool, self.metrics.count_cleanups, self.adopt)
        self.drains.sweep(due)
        self.maintenances.sweep(due)
        # Also in a cloud at rest, so that a process without threads is noticed.
        if not self._adopt_pool.running and not self._adopt_pool.waiting:
            self._adopt_pool.submit(registry.write_all_providers, self.tools.database, self.tools.placement)

    def _poll_drains(self) -> None:
        self.drains.poll()
        self.maintenances.poll()

    def _renew(self) -> None:
        """Renew the lease, or begin a new boot if the lease has expired.

        A conductor that cannot start threads gives its lease back until it can. Another conductor then takes its
        migrations over.
        """
        stalled = max(pool.stalled_for() for pool in self._pools)
        if stalled >= self.tools.options.service_down_time:
            self._give_up(stalled)
            return
        conductors, owner = self.tools.database.conductors, self.tools.owner
        away, now = self.tools.broker.away_for(), self._threads.clock.monotonic()
        if owner and conductors.renew(owner, self.conf.conductor.lease, self.tools.server, away):
            self._renewed_at = now
            return
        if owner:
            LOG.warning('Lease has expired: conductor %s releases its migrations', owner)
            self.metrics.lost_leases.inc()
        self.begin_boot()

    def _probe_interval(self) -> float:
        # Twelve within service_down_time, so that several may be lost before a host would count as down.
        return float(self.conf.service_down_time) / 12

    def _probe_broker(self) -> None:
        self.tools.broker.probe()
        down_time = self.tools.options.service_down_time
        if self.tools.owner and self.tools.broker.unbroken_for() >= down_time:
            self.metrics.down.set(self.tools.database.services.call_down(down_time))

    def _cast(self, server: str, method: str, **args: Any) -> None:
        """Send a message to the conductor of an RPC server name."""
        self._rpc.cast(admin_context(), rpc.Target(rpcapi.TOPIC, server, rpcapi.VERSION), method, **args)

    @rpc.expose
    def probe_returned(self, context: RequestContext, owner: str, number: int) -> None:
        """Record that a message of this conductor has come back through the message broker."""
        if owner == self.tools.owner:  # an earlier process of this name may have sent it
            self.tools.broker.received(number)

    def _give_up(self, stalled: float) -> None:
        owner, self.tools.owner = self.tools.owner, ''
        if not owner:
            return
        self.metrics.lost_leases.inc()
        LOG.error(
            'Could not start a thread for %(seconds).0f s; conductor %(server)s releases its migrations, so that '
            'another conductor takes them over. Check the limits of its process (ulimit -u, TasksMax, memory). It '
            'resumes when it can start threads.',
            {'server': self.tools.server, 'seconds': stalled},
        )
        self.runner.drop_all()
        self.tools.database.conductors.retire(owner, self.tools.server)

    def stop(self) -> None:
        """Stop serving RPC, let runs reach their next pause, and retire, so that others may take over at once.

        Runs that still wait for a host after some seconds are left behind. The guard refuses their writes once this
        conductor is retired.
        """
        self._stopping.set()
        for name, task in self._periodics.items():
            # A slow bus may hold the notifications. The next conductor sends again what this one does not record.
            task.stop(wait=name != _NOTIFICATIONS)
        self.runner.drop_all()
        for served in self._served:
            served.stop()
        with contextlib.suppress(exception.ServiceUnreachable):
            self._heartbeats.write()
        for pool in self._pools:
            pool.shutdown(wait=False)
            if not pool.wait_idle(_STOP_TIMEOUT):
                LOG.warning('Stop leaves behind calls to hosts that do not answer: conductor %s', self.tools.server)
        if not self.tools.owner:
            return  # it has no lease
        try:
            self.tools.database.conductors.retire(self.tools.owner, self.tools.server)
        except exception.ServiceUnreachable as error:
            LOG.warning('Could not give the lease back; it will expire: %s', error)

    def adopt(self, uuids: Sequence[str]) -> None:
        """Take over migrations of one source that no live conductor owns, or find another conductor for them.

        A conductor without a lease does nothing.
        """
        if not self.tools.owner:
            return
        for subject in takeover.adopt(self.tools, uuids, self._cast):
            if subject.row.epoch > 1:
                self.metrics.takeovers.inc()
            self.runner.take(subject)

    # --- from the API ------------------------------------------------------------------------------------------------

    @rpc.expose
    def live_migrate(self, context: RequestContext, migration_uuid: str) -> None:
        """Take over a migration that was just accepted, or let the conductor of its source do so."""
        self.adopt([migration_uuid])

    @rpc.expose
    def wake(self, context: RequestContext, migration_uuid: str, forwarded: bool = False) -> None:
        """Wake a migration for which a request was committed, or forward the wake-up to its owner.

        A wake-up is forwarded once. If it is lost, the sweep finds the request.

        :param forwarded: whether another conductor has sent it. That may have made this one the owner.
        """
        if self.runner.wake(migration_uuid, reread=True):
            return
        if forwarded:
            subject = takeover.reload(self.tools, migration_uuid)
            if subject is not None:
                self.runner.take(subject)
            return
        server = self.tools.database.conductors.owner_of(migration_uuid)
        if server is not None and server != self.tools.server:
            self._cast(server, 'wake', migration_uuid=migration_uuid, forwarded=True)

    # --- from the compute hosts --------------------------------------------------------------------------------------

    @rpc.expose
    def step_ended(self, context: RequestContext, report: protocol.Report) -> None:
        """Record the report of a step that has started or ended.

        A report of neither a migration nor a cleanup of this conductor is dropped. The owner's poll finds the same.
        """
        if not self.runner.wake(report.migration_uuid, report=report):
            cleanups.take_report(self.tools, report)

    @rpc.expose
    def compute_answers(self, context: RequestContext, host: str) -> bool:
        """Return whether a compute service of this name answers now, for one that is about to start."""
        if not self.tools.database.services.list(binary=COMPUTE_BINARY, host=host):
            return False
        try:
            # The poll names no migration: any reply shows that the service runs.
            self.tools.hosts.api.poll_live_migrations(context, host, [], [], timeout=rpcapi.ANSWER_WITHIN)
        except (exception.ServiceUnreachable, exception.RemoteError):
            return False
        return True

    @rpc.expose
    def compute_started(self, context: RequestContext, report: protocol.HostReport) -> list[protocol.Assignment]:
        """Record a host's new boot, and return the work that is assigned to the host.

        The host's resource providers are written to Placement afterwards.

        :raises migrator.exception.BootReplaced: another boot of the host is recorded than the one that it replaces.
            Nothing was changed, and a live boot calls again.
        :raises migrator.exception.MachineRefused: another machine has the name of the host, or this machine has another
            name. Only the refusal was recorded.
        """
        assignments, raised = takeover.compute_started(self.tools, report)
        for uuid in raised:
            self.runner.wake(uuid, reread=True)
        if report.node is not None:
            # Placement may be slow or unreachable, and only the choice of a destination needs the providers.
            placed = self._threads.event()
            self._adopt_pool.submit(self._place_node, report.host, placed)
            placed.wait(_TREE_TIMEOUT)
        if report.adoptable:
            # Many guests take long, and the host waits for the reply.
            self._adopt_pool.submit(self._adopt_guests, report)
        return assignments

    def _place_node(self, host: str, placed: executors.Event) -> None:
        try:
            registry.write_all_providers(self.tools.database, self.tools.placement, host)
        finally:
            placed.set()

    def _adopt_guests(self, report: protocol.HostReport) -> None:
        try:
            registry.adopt_instances(self.tools.database, self.tools.placement, report, self._stopping)
        except Exception:  # no caller waits for the result
            LOG.exception(
                'Could not adopt the guests of host %s; the next start of its compute service tries again', report.host
            )

    @rpc.expose
    def compute_heartbeat(self, context: RequestContext, report: protocol.HostReport) -> None:
        """Record a heartbeat, at the latest a second after its arrival."""
        # Each conductor receives some of the heartbeats. A bound alone needs the limit.
        if self.tools.options.bounds is not None and self.tools.slots.limits.get(report.host) != report.limit:
            self.tools.database.services.write_slots(report.host, report.boot_id, report.limit)
            self.tools.slots.limits[report.host] = report.limit
        self._heartbeats.take(report.host, report.boot_id)

    @rpc.expose
    def compute_stopping(self, context: RequestContext, host: str, boot_id: str, cancelled: list[str]) -> None:
        """Commit a planned stop, and request the abort of the migrations that the host cancelled in its queue.

        The owners of those migrations act on the requests.
        """
        database = self.tools.database
        for uuid in database.migrations.begin_stop(host, boot_id, cancelled, database.services):
            self.runner.wake(uuid, reread=True)

    @rpc.expose
    def live_migration_timed_out(
        self, context: RequestContext, host: str, boot_id: str, migration_uuid: str, action: str, seconds: float
    ) -> None:
        """Commit the request of a source whose migration takes longer than allowed.

        The owner acts on it as on a request of a user.
        """
        try:
            migration = self.tools.database.migrations.get(migration_uuid)
            boot = self.tools.database.services.get_compute(host).boot_id
            if (migration.source_compute, boot) != (host, boot_id):
                raise exception.MigrationNotFound(migration_id=migration_uuid)
            takeover.request_by_timeout(self.tools, migration, action, seconds)
        except (exception.NotFound, exception.InvalidMigrationState) as error:
            LOG.info(
                'Ignoring the late time-out of migration %(migration)s: %(error)s',
                {'migration': migration_uuid, 'error': error},
            )
            return
        self.wake(context, migration_uuid)


def _options(conf: cfg.ConfigOpts) -> Options:
    """Return the options that a run reads; some of them may change while the conductor runs."""
    bounds = slots.Bounds.of(conf)
    return Options(
        migrate_max_retries=conf.migrate_max_retries,
        service_down_time=conf.service_down_time,
        poll_interval=conf.conductor.poll_interval,
        post_max_attempts=conf.conductor.post_max_attempts,
        bounds=None if bounds == slots.Bounds() else bounds,
        resizes_here=conf.allow_resize_to_same_host,
        confirm_window=conf.resize_confirm_window,
        lease=conf.conductor.lease,
    )
