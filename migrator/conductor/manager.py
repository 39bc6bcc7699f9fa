# SPDX-License-Identifier: Apache-2.0

"""ConductorManager: the RPC endpoint of the storyteller, thin."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from migrator import context as migrator_context
from migrator import exception, executors, rpc
from migrator.compute.rpcapi import VERSIONS, ComputeAPI
from migrator.conductor import audit, broker, cleanups, instances, metrics, periodics, rpcapi, takeover, trees
from migrator.conductor.compute_client import HostBusy, Hosts
from migrator.conductor.migration.context import MigrationContext, Options, Tools
from migrator.conductor.runner import Runner
from migrator.conductor.tasks import live_migrate
from migrator.conf import upgrade_levels
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, CONDUCTOR_BINARY, CURRENT_VERSION, MigrationType, protocol
from migrator.placement_client.client import PlacementClient
from migrator.saga.saga import Saga

LOG = logging.getLogger(__name__)

#: How many stories run at a time; a parked one holds no thread.
_RUNS = 64
#: How many hosts' trees are written to Placement, or guests adopted, at a time. It takes as long as Placement does, and
#: nobody waits for it.
_ADOPTIONS = 2
#: Seconds for which a host that starts waits for Placement to have its tree.
_TREE_TIMEOUT = 2.0
#: Seconds that a stop waits for stories which are in the middle of a call.
_STOP_TIMEOUT = 5.0
#: Of no migration, no instance and no boot.
_NO_UUID = '00000000-0000-0000-0000-000000000000'


class ConductorManager:
    """A conductor: it owns sagas, and drives them through the compute hosts' door.

    :param conf: where the options of :mod:`migrator.conf.conductor` are registered.
    :param server: its name among the conductors' RPC servers, and among the services.
    :param client: how it talks.
    :ivar metrics: what it tells of itself. To serve them is left to whom it belongs.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        server: str,
        database: Database,
        placement_client: PlacementClient,
        client: rpc.RPC,
        threads: executors.Threads,
    ) -> None:
        self.conf = conf
        self._rpc = client
        self._threads = threads
        self._served: list[rpc.Served] = []
        self._periodics: list[executors.Periodic] = []
        self._stories = {MigrationType.LIVE_MIGRATION.value: live_migrate.story()}
        self._pool = executors.BoundedExecutor(_RUNS, threads, f'{server}-story')
        self._poll_pool = executors.BoundedExecutor(conf.conductor.poll_concurrency, threads, f'{server}-poll')
        self._adopt_pool = executors.BoundedExecutor(_ADOPTIONS, threads, f'{server}-adopt')
        self._pools = (self._pool, self._poll_pool, self._adopt_pool)
        self._stopping = threads.event()
        api = ComputeAPI(
            client,
            version_of=lambda host: database.services.get_compute(host).version,
            pin=upgrade_levels.pin(conf, 'compute', [*VERSIONS]),
        )
        # Half a dozen in the time after which a host counts as down, and another half dozen for those that are lost.
        self._knocks = lambda: float(conf.service_down_time) / 12
        reached = broker.Broker(server, self._send_to_itself, threads, self._knocks)
        self.tools = Tools(
            owner='',
            server=server,
            database=database,
            placement=placement_client,
            hosts=Hosts(api, threads, lambda: float(conf.conductor.poll_interval), reached),
            broker=reached,
            threads=threads,
            options=self._options(),
        )
        self.runner = Runner(threads, self._pool, self._story_of, self._reload)
        self.metrics = metrics.Metrics(self.runner.held, reached.away_for)
        self._watch: audit.Watch | None = None
        if conf.conductor.audit_interval:
            told = metrics.Audits(self.metrics.registry)
            self._watch = audit.Watch(database, placement_client, threads.clock, told)
        self.tools.hosts.on_free = self.runner.wake
        reached.on_change = self.runner.wake_all

    def _options(self) -> Options:
        return Options(
            migrate_max_retries=self.conf.migrate_max_retries,
            service_down_time=self.conf.service_down_time,
            poll_interval=self.conf.conductor.poll_interval,
            post_max_attempts=self.conf.conductor.post_max_attempts,
        )

    def _story_of(self, migration_type: str) -> Saga[MigrationContext]:
        return self._stories[migration_type]

    def _reload(self, uuid: str) -> MigrationContext | None:
        return takeover.reload(self.tools, uuid)

    # --- its life ----------------------------------------------------------------------------------------------------

    def begin_life(self) -> None:
        """Take a new id with a new lease; it owns nothing yet."""
        self.runner.drop_all()
        self.tools.owner = self._threads.new_uuid()
        self.tools.broker.begin_life()
        self.tools.hosts.begin_life()
        self.tools.database.conductors.register(self.tools.owner, self.tools.server, self.conf.conductor.lease)

    def report_alive(self) -> None:
        """Report itself among the services."""
        self.tools.database.services.report(self.tools.server, CONDUCTOR_BINARY, CURRENT_VERSION)

    def start(self) -> None:
        """Begin a life, listen, and start the periodics.

        :raises migrator.exception.ServiceUnreachable: the database or the broker is away.
        """
        self.begin_life()
        self.report_alive()
        target = rpc.Target(rpcapi.TOPIC, self.tools.server, rpcapi.VERSION)
        self._served.append(self._rpc.serve(target, self))
        conf = self.conf.conductor
        self._every(conf.lease / 3, self._renew, 'lease')
        self._every(self._knocks, self._knock, 'knock')
        self._every(lambda: conf.sweep_interval, self._sweep, 'sweep')
        self._every(
            lambda: conf.poll_interval / 2,
            lambda: periodics.poll(self.tools, self.runner, self._poll_pool),
            'poll',
        )
        if self._watch is not None:
            self._every(conf.audit_interval, self._watch.look, 'audit')

    def _every(self, spacing: float | Callable[[], float], function: Callable[[], None], name: str) -> None:
        def tick() -> None:
            for pool in self._pools:
                pool.start_waiting()
            self.tools.options = self._options()
            try:
                function()
            except exception.ServiceUnreachable as error:
                LOG.warning('%s', error)

        self._periodics.append(executors.Periodic(self._threads, spacing, tick, name).start())

    def _sweep(self) -> None:
        if not self.tools.owner:
            return
        periodics.sweep(self.tools, self.runner, self._poll_pool, self.metrics.count_cleanups)
        if not self._adopt_pool.running and not self._adopt_pool.waiting:
            self._adopt_pool.submit(trees.place_all, self.tools.database, self.tools.placement)

    def _renew(self) -> None:
        """Renew the lease; a life whose lease has run out is over, and a new one begins that owns nothing.

        Who can start no thread gives its lease back until it can: another conductor does what it has left.
        """
        stalled = max(pool.stalled_for() for pool in self._pools)
        if stalled >= self.tools.options.service_down_time:
            self._give_up(stalled)
            return
        lives, owner = self.tools.database.conductors, self.tools.owner
        away = self.tools.broker.away_for()
        if owner and lives.renew(owner, self.conf.conductor.lease, self.tools.server, away):
            return
        if owner:
            LOG.warning('The lease of conductor %s has run out: it lets everything go', owner)
        self.begin_life()
        self.report_alive()

    def _knock(self) -> None:
        self.tools.broker.knock()
        down_time = self.tools.options.service_down_time
        if self.tools.owner and self.tools.broker.unbroken_for() >= down_time:
            self.metrics.count_down(self.tools.database.services.call_down(down_time))

    def _send_to_itself(self, number: int) -> None:
        target = rpc.Target(rpcapi.TOPIC, self.tools.server, rpcapi.VERSION)
        context = migrator_context.admin_context()
        self._rpc.cast(context, target, 'heard_itself', owner=self.tools.owner, number=number)

    @rpc.expose
    def heard_itself(self, context: migrator_context.RequestContext, owner: str, number: int) -> None:
        """Take in that a message of its own has come through the broker."""
        if owner == self.tools.owner:  # and not one of an earlier process of this name
            self.tools.broker.heard(number)

    def _give_up(self, stalled: float) -> None:
        owner, self.tools.owner = self.tools.owner, ''
        if not owner:
            return
        LOG.error(
            '%s has not been able to start a thread for %.0f s, and lets everything go, so that another conductor goes'
            ' on with it: look at the limits of its process (ulimit -u, TasksMax, memory). It begins anew when it can.',
            self.tools.server,
            stalled,
        )
        self.runner.drop_all()
        self.tools.database.conductors.retire(owner, self.tools.server)

    def stop(self) -> None:
        """Stop listening, let what runs come to its next pause, and end this life, so that others may adopt at once.

        What still waits for a host after some seconds is left behind: its writes are refused once this life is over.
        """
        self._stopping.set()
        for task in self._periodics:
            task.stop()
        self.runner.drop_all()
        for served in self._served:
            served.stop()
        for pool in self._pools:
            pool.shutdown(wait=False)
            if not pool.wait_idle(_STOP_TIMEOUT):
                LOG.warning('Calls to hosts that do not answer are left behind at the stop of %s', self.tools.server)
        if not self.tools.owner:
            return  # its life never began
        try:
            self.tools.database.conductors.retire(self.tools.owner, self.tools.server)
        except exception.ServiceUnreachable as error:
            LOG.warning('The lease could not be given back, and will run out: %s', error)

    def adopt(self, uuid: str, epoch: int) -> None:
        """Adopt a migration that nobody living owns, and run it, unless this conductor has let everything go."""
        if not self.tools.owner:
            return
        subject = takeover.adopt(self.tools, uuid, epoch)
        if subject is not None:
            self.runner.take(subject)

    # --- from the API ------------------------------------------------------------------------------------------------

    @rpc.expose
    def live_migrate(self, context: migrator_context.RequestContext, migration_uuid: str) -> None:
        """Take up a migration that was just accepted."""
        self.adopt(migration_uuid, 0)

    @rpc.expose
    def live_migrate_and_wait(
        self, context: migrator_context.RequestContext, migration_uuid: str, seconds: float
    ) -> None:
        """Take up a migration that was just accepted, for an API of an earlier release, which looks at the row then.

        :param seconds: how long the asker would wait; to wait here would hold a thread that heartbeats and events need.
        """
        self.adopt(migration_uuid, 0)

    @rpc.expose
    def wake(self, context: migrator_context.RequestContext, migration_uuid: str, forwarded: bool = False) -> None:
        """Look again: a wish has been committed. Another's wake-up is forwarded once; the sweep stands behind it."""
        if self.runner.wake(migration_uuid, reread=True) or forwarded:
            return
        owner = self.tools.database.migrations.get(migration_uuid).owner
        server = self.tools.database.conductors.server_of(owner) if owner else None
        if server not in (None, self.tools.server):
            target = rpc.Target(rpcapi.TOPIC, server, rpcapi.VERSION)
            self._rpc.cast(context, target, 'wake', migration_uuid=migration_uuid, forwarded=True)

    # --- from the compute hosts --------------------------------------------------------------------------------------

    @rpc.expose
    def step_ended(self, context: migrator_context.RequestContext, report: protocol.Report) -> None:
        """Take in an event. One that is not for this conductor is dropped: the owner's poll stands behind it."""
        if not self.runner.wake(report.migration_uuid, report=report):
            cleanups.take_report(self.tools, report)

    @rpc.expose
    def compute_answers(self, context: migrator_context.RequestContext, host: str) -> bool:
        """Tell one that is about to start whether a compute service of its name answers; nothing is changed."""
        if not self.tools.database.services.list(binary=COMPUTE_BINARY, host=host):
            return False
        try:
            # About nothing: that there is an answer is the answer.
            self.tools.hosts.api.poll_live_migrations(context, host, [], [], timeout=rpcapi.ANSWER_WITHIN)
        except (exception.ServiceUnreachable, exception.RemoteError):
            return False
        return True

    @rpc.expose
    def compute_started(
        self, context: migrator_context.RequestContext, report: protocol.HostReport
    ) -> list[protocol.Assignment]:
        """Take in a host's new boot, and answer what it is to do; its tree in Placement follows.

        :raises migrator.exception.BootReplaced: another boot of the host was taken in while this lasted; of ours
            nothing is changed, and the one that lives calls again.
        """
        replaces = takeover.known_boot(self.tools, report.host)
        assignments, raised = takeover.compute_started(self.tools, report, replaces)
        for uuid in raised:
            self.runner.wake(uuid, reread=True)
        if report.node is not None:
            # Placement may take long or be away, and only who looks for a destination needs it.
            placed = self._threads.event()
            self._adopt_pool.submit(self._place_node, report.host, placed)
            placed.wait(_TREE_TIMEOUT)
        if report.adoptable:
            # Many guests take long, and the host waits for its answer.
            self._adopt_pool.submit(self._adopt_guests, report)
        return assignments

    def _place_node(self, host: str, placed: executors.Event) -> None:
        try:
            trees.place_all(self.tools.database, self.tools.placement, host)
        finally:
            placed.set()

    def _adopt_guests(self, report: protocol.HostReport) -> None:
        try:
            instances.adopt(self.tools.database, self.tools.placement, report, self._stopping)
        except Exception:  # nobody asks what came of it
            LOG.exception(
                'The guests of %s are not adopted: its compute service tries when it starts next', report.host
            )

    @rpc.expose
    def compute_heartbeat(self, context: migrator_context.RequestContext, report: protocol.HostReport) -> None:
        """Take in that a host is alive; where the books have another boot, and that one is silent, have it register.

        Its service may have been deleted, or the call of a boot before it have been committed after its own.
        """
        services = self.tools.database.services
        if services.heartbeat(report.host, report.boot_id):
            return
        found = services.list(binary=COMPUTE_BINARY, host=report.host)
        if found:
            known = found[0]
            if known.boot_id == report.boot_id:
                return  # It has stopped, and this beat was on its way then.
            # Of two that live under one name the one that is known beats on, and so neither drives the other out. A
            # host whose dead boot is known is called back before it counts as down.
            patience = self.tools.options.service_down_time / 2
            if known.last_seen_up is not None and not known.is_silent(services.now(), patience):
                return
        # Told of a boot that is not its own, it registers again.
        self._poll_pool.submit(self._call_back, report.host)

    def _call_back(self, host: str) -> None:
        nobody = protocol.Command(
            migration_uuid=_NO_UUID,
            instance_uuid=_NO_UUID,
            step='poll',
            epoch=0,
            owner=self.tools.owner,
            reply_to=self.tools.server,
            boot_id=_NO_UUID,
        )
        try:
            self.tools.hosts.ask(host, [nobody])
        except HostBusy:
            LOG.debug('%s is busy, and will beat again', host)

    @rpc.expose
    def compute_stopping(
        self, context: migrator_context.RequestContext, host: str, boot_id: str, cancelled: list[str]
    ) -> None:
        """Commit a planned stop, and abort wishes for what it has cancelled in its queue; their owners act on them."""
        database = self.tools.database
        for uuid in database.migrations.begin_stop(host, boot_id, cancelled, database.services):
            self.runner.wake(uuid, reread=True)

    @rpc.expose
    def live_migration_timed_out(
        self,
        context: migrator_context.RequestContext,
        host: str,
        boot_id: str,
        migration_uuid: str,
        action: str,
        seconds: float,
    ) -> None:
        """Commit the wish of a source whose move takes longer than it may; its owner acts on it as on anybody's."""
        try:
            migration = self.tools.database.migrations.get(migration_uuid)
            boot = self.tools.database.services.get_compute(host).boot_id
            if (migration.source_compute, boot) != (host, boot_id):
                raise exception.MigrationNotFound(migration_id=migration_uuid)
            takeover.request_by_timeout(self.tools, migration, action, seconds)
        except (exception.NotFound, exception.InvalidMigrationState) as error:
            LOG.info('The time-out of migration %s comes too late: %s', migration_uuid, error)
            return
        self.wake(context, migration_uuid)
