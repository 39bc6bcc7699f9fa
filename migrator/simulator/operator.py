# SPDX-License-Identifier: Apache-2.0

"""A user, an operator and a process supervisor for a simulated cloud.

In this cloud anything may fail at any time. The user repeats requests without a response. The supervisor restarts
killed processes. The operator forces hosts down that do not come back, and handles stuck migrations and blocked
cleanups.
"""

from __future__ import annotations

import contextlib
import http
import logging
from collections.abc import Callable, Sequence

import webob

from migrator import exception
from migrator.conductor import registry
from migrator.objects import Instance, Migration, MigrationStatus, protocol
from migrator.simulator import workloads
from migrator.simulator.invariants import check
from migrator.simulator.monitor import Monitor
from migrator.simulator.world import World
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.simulation.sim_thread import ProcessKilled
from migrator.testing.simulation.threads import SimThreads, TimedOut
from migrator.virt.fake.hypervisor import OWNING

LOG = logging.getLogger(__name__)

#: Seconds after which a request without a response and a failed start are repeated.
_AGAIN = 2.0
#: Seconds for which migrations may take to end without help, before an operator looks and after each look.
PATIENCE = 300.0
#: Seconds within which a sweep observes stuck migrations again.
_SWEEPS = 15.0
#: Seconds after which the time-out has ended any copy: 800 s per GiB of memory and disks, with a margin.
_LONGEST_COPY = 6 * 800.0 + 600.0
#: How often a user repeats a request.
_TRIES = 60
#: How often an operator looks for stuck migrations.
_LOOKS = 3
#: Seconds between two looks of an operator that waits for a migration to be stuck.
_WATCH = 5.0


class Operator:
    """The user, the operator and the process supervisor of one cloud.

    :param cloud: a cloud whose conductors and compute services are started.
    :ivar gone: the processes that never come back.
    """

    def __init__(self, cloud: SimulatedCloud) -> None:
        assert cloud.simulation is not None
        self.cloud = cloud
        self.simulation = cloud.simulation
        self.gone: set[str] = set()
        #: Uuid of a guest that was deleted everywhere -> its migrations that may have moved it before. Only an operator
        #: could decide what to do about such a guest.
        self.vanished: dict[str, set[str]] = {}
        self._down: set[str] = set()
        self._starved = 0
        #: Violations that were found at the end of an outage of the broker.
        self._outage_violations: list[check.Violation] = []
        self._over = False

    # --- processes ---------------------------------------------------------------------------------------------------

    def kill(self, name: str, back_after: float | None) -> None:
        """Kill a process (``kill -9``) and start it again later.

        :param back_after: seconds until the restart; None: never.
        """
        if name not in self.cloud.processes or name in self._down:
            return
        self._down.add(name)
        if back_after is None:
            self.gone.add(name)
        else:
            self.later(back_after, lambda: self._start(name))
        # This is last, since it may end the calling thread.
        self.cloud.kill(name)

    def pause(self, name: str, seconds: float) -> None:
        """Pause a process (SIGSTOP) for some seconds."""
        process = self.cloud.processes.get(name)
        if process is None or process.paused or name in self._down:
            return
        self.simulation.pause(process)
        self.later(seconds, lambda: self.simulation.resume(process))

    def starve(self, name: str, seconds: float) -> None:
        """Prevent a process from starting threads for some seconds; a new incarnation is not affected."""
        process = self.cloud.processes.get(name)
        if process is None or process.threadless:
            return
        self._starved += 1
        process.threadless = True

        def feed() -> None:
            process.threadless = False
            # The process starts the missing threads at its next periodic run.
            self.cloud.world_threads.sleep(_SWEEPS)
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
        alive = {host for host in self.cloud.computes if host not in self._down}
        known = {service.host for service in services.list() if service.down_since is not None}

        def back() -> None:
            bus.away = None
            for service in services.list():
                if service.down_since is not None and service.host in alive - known - self._down:
                    what = f'running host {service.host} was declared down because the broker was unreachable'
                    self._outage_violations.append(check.Violation('I7', what, self.simulation.time))

        self.later(seconds, back)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call a function after some seconds, whatever happens to the processes until then."""
        world = self.cloud.world_threads

        def wait() -> None:
            world.sleep(seconds)
            act()

        world.start(wait, name='later')

    def stop_and_start(self, host: str, back_after: float) -> None:
        """Stop a host's compute service as planned and start it again after some seconds."""
        compute, process = self.cloud.computes.get(host), self.cloud.processes.get(host)
        if compute is None or process is None or host in self._down:
            return
        with contextlib.suppress(ProcessKilled), process.acting():
            compute.cleanup_host()
        if host in self._down:  # a fault killed the process during the stop
            return
        self._down.add(host)
        self.cloud.kill(host)
        self.later(back_after, lambda: self._start(host))

    def _start(self, name: str) -> None:
        """Start a process again; if the start fails, the process ends and is started again later."""
        self._down.discard(name)
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
        except Exception as error:  # noqa: BLE001 -- any error at the start ends the process
            # Only the type of the error: its text may contain a secret.
            LOG.warning(
                'Could not start process %(process)s, which is tried again: %(error)s',
                {'process': name, 'error': type(error).__name__},
            )
            self.kill(name, _AGAIN)

    def hang(self, host: str, phases: Sequence[str]) -> None:
        """Make these calls and phases of a host's hypervisor hang until its faults are cleared."""
        for phase in phases:
            self.cloud.world.hypervisors[host].faults.stall(phase, sticky=True)

    # --- an operator -------------------------------------------------------------------------------------------------

    def once_stuck(self, instance: Instance, act: Callable[[Migration], None]) -> None:
        """Let an operator wait until a migration of an instance is stuck, and act on it once.

        The operator stops waiting at the end of the run.
        """
        world = self.cloud.world_threads

        def wait() -> None:
            while not self._over:
                world.sleep(_WATCH)
                row = self.newest(instance)
                if row is not None and row.in_progress and row.stuck_reason:
                    try:
                        act(row)
                    except exception.NotStuck:
                        return
                    except Exception as error:  # noqa: BLE001 -- a failed command is repeated
                        LOG.warning('The command of an operator failed and is repeated: %s', type(error).__name__)
                        continue
                    return

        world.start(wait, name='an operator')

    def _retry(self, row: Migration) -> None:
        self.cloud.database.requests.request_retry(row, 'an operator')

    def _abandon(self, row: Migration) -> None:
        """Abandon a migration if only one host has a guest that owns its processors."""
        have = [
            (host, hypervisor.guests[row.instance_uuid])
            for host, hypervisor in self.cloud.world.hypervisors.items()
            if row.instance_uuid in hypervisor.guests
        ]
        owning = [host for host, guest in have if guest.state in OWNING and not guest.post_copy]
        if owning in ([row.source_compute], [row.dest_compute]):
            self.cloud.database.requests.request_abandon(row, owning[0], 'an operator')

    # --- a user ------------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: object = None, version: str = '2.80') -> webob.Response | None:
        """Send a request and return its response, or None if the connection was lost before it."""
        if 'api' in self._down:
            return None
        try:
            return self.cloud.request(method, path, body, version=version)
        except ProcessKilled:
            return None

    def ask(self, send: Callable[[], webob.Response | None], done: Callable[[], bool]) -> webob.Response | None:
        """Send a request until its status is below 500 or its purpose is reached.

        :param done: returns whether the purpose is reached.
        :returns: the last response.
        """
        answer: webob.Response | None = None
        for _ in range(40):
            if done():
                break
            answer = send()
            if answer is not None and answer.status_int < 500:
                break
            self.wait(_AGAIN)
        return answer

    def migrate(self, instance: Instance, host: str | None = None) -> webob.Response | None:
        """Request a live migration until it is accepted, refused or in progress."""
        before = self.newest(instance)
        body = {'os-migrateLive': {'host': host, 'block_migration': 'auto'}}
        return self.ask(
            lambda: self.request('POST', f'/servers/{instance.uuid}/action', body),
            lambda: self.newest(instance) != before and not self.ended(instance),
        )

    def migrate_soon(self, instance: Instance, host: str | None = None) -> None:
        """Let a user request a live migration again and again until it is accepted, or give up."""
        world = self.cloud.world_threads
        before = self.newest(instance)
        body = {'os-migrateLive': {'host': host, 'block_migration': 'auto'}}

        def ask() -> None:
            for _ in range(_TRIES):
                if self._over or (self.newest(instance) != before and not self.ended(instance)):
                    return
                answer = self.request('POST', f'/servers/{instance.uuid}/action', body)
                if answer is not None and answer.status_int == http.HTTPStatus.ACCEPTED:
                    return
                world.sleep(_AGAIN)

        world.start(ask, name='a user')

    # --- an embedding service ----------------------------------------------------------------------------------------

    def bring_back(self, instance: Instance, host: str, shut_off: bool) -> None:
        """Move a guest as an embedding service does: delete it and create it on another host.

        Nothing is done while the guest is migrated, if one of the hosts has no power, or if the guest is not active on
        exactly its own host. Existing parts of the guest on the other host, such as a copy that a pending cleanup would
        remove, are replaced.

        :param shut_off: whether to shut the guest off there.
        """
        cloud = self.cloud
        target = cloud.world.hypervisors[host]
        with contextlib.suppress(exception.MigratorException):
            row = cloud.database.instances.get(instance.uuid)
            source = cloud.world.hypervisors[row.host]
            if row.task_state or row.host == host or not target.powered or not source.powered:
                return
            if cloud.world.active_on(row.uuid) != [row.host]:
                return
            registry.delete_instance(cloud.database, cloud.placement_client, row.uuid)
            source.delete(row.uuid)
            target.delete(row.uuid)
            again = row.replace(host=host, node=host)
            for _ in range(_TRIES):
                try:
                    registry.create_instance(cloud.database, cloud.placement_client, again)
                except exception.ServiceUnreachable:
                    self.wait(_AGAIN)
                else:
                    target.spawn(row)
                    if shut_off:
                        target.shut_off(row.uuid)
                    return

    def abort(self, instance: Instance) -> webob.Response | None:
        """Request the abort of an instance's newest migration until it is accepted, refused or recorded."""
        migration = self.newest(instance)
        if migration is None:
            return None
        path = f'/servers/{instance.uuid}/migrations/{migration.id}'

        def done() -> bool:
            row = self.newest(instance)
            return row is None or row.ended or row.abort_requested_at is not None

        return self.ask(lambda: self.request('DELETE', path), done)

    def force_complete(self, instance: Instance) -> webob.Response | None:
        """Request to force-complete an instance's newest migration until it is accepted, refused or recorded."""
        migration = self.newest(instance)
        if migration is None:
            return None
        path = f'/servers/{instance.uuid}/migrations/{migration.id}/action'

        def done() -> bool:
            row = self.newest(instance)
            return row is None or row.ended or row.force_complete_requested_at is not None

        return self.ask(lambda: self.request('POST', path, {'force_complete': None}), done)

    def newest(self, instance: Instance) -> Migration | None:
        """Return an instance's newest migration, or None."""
        found = self.cloud.migrations(instance)
        return found[-1] if found else None

    def do(self, deed: workloads.Deed, guests: Sequence[Instance]) -> None:
        """Do an action of a plan."""
        if isinstance(deed.whom, str):
            self._do_to_a_process(deed, deed.whom)
        else:
            self._do_to_a_guest(deed, guests[deed.whom])

    def _do_to_a_process(self, deed: workloads.Deed, name: str) -> None:
        if deed.name == 'stop and start':
            self.stop_and_start(name, deed.more)
        elif deed.name == 'upgrade':
            self.cloud.versions.pop(name, None)
            self.stop_and_start(name, deed.more)
        elif deed.name == 'kill':
            self.kill(name, deed.more)
        elif deed.name == 'no thread to be had':
            self.starve(name, deed.more)
        elif deed.name == 'broker away':
            self.take_broker_away(*deed.more)
        elif deed.name == 'slow link':
            self.cloud.world.hypervisors[name].set_link(64.0 * deed.more)
        elif deed.name == 'hypervisor hangs':
            self.hang(name, deed.more)
        elif deed.name == 'hypervisor fails':
            for phase in deed.more:
                self.cloud.world.hypervisors[name].faults.fail(phase, 'planned: it fails', sticky=True)
        elif deed.name == 'hypervisor works':
            for phase in deed.more:
                self.cloud.world.hypervisors[name].faults.clear(phase)
        elif deed.name == 'hypervisor answers':
            self.cloud.world.hypervisors[name].faults.clear()
        elif deed.name == 'limit' and name in self.cloud.computes and name not in self._down:
            with contextlib.suppress(ProcessKilled):
                self.cloud.set_option(name, 'max_concurrent_live_migrations', deed.more)

    def _do_to_a_guest(self, deed: workloads.Deed, instance: Instance) -> None:
        if deed.name in ('migrate', 'migrate to'):
            self.migrate(instance, deed.more)
        elif deed.name == 'abort':
            self.abort(instance)
        elif deed.name == 'force complete':
            self.force_complete(instance)
        elif deed.name == 'look':
            self.request('GET', '/os-migrations')
            self.request('GET', f'/servers/{instance.uuid}/migrations')
        elif deed.name == 'migrate soon':
            self.migrate_soon(instance, deed.more)
        elif deed.name == 'guest vanishes':
            for hypervisor in self.cloud.world.hypervisors.values():
                hypervisor.delete(instance.uuid)
            rows = self.cloud.migrations(instance)
            moved = {row.uuid for row in rows if row.ended or row.running_at is not None}
            self.vanished.setdefault(instance.uuid, moved)
        elif deed.name == 'bring back':
            self.bring_back(instance, *deed.more)
        elif deed.name == 'retry once stuck':
            self.once_stuck(instance, self._retry)
        elif deed.name == 'abandon once stuck':
            self.once_stuck(instance, self._abandon)
        else:
            self._do_as_its_user(deed.name, instance)

    def _do_as_its_user(self, name: str, instance: Instance) -> None:
        for hypervisor in self.cloud.world.hypervisors.values():
            act = {
                'pause the guest': hypervisor.pause,
                'resume the guest': hypervisor.resume,
                'shut the guest off': hypervisor.shut_off,
            }[name]
            if instance.uuid in hypervisor.guests:
                with contextlib.suppress(ValueError):  # the guest's state does not allow the action
                    act(instance.uuid)

    def may(self, fault: str, whom: str) -> bool:
        """Return whether a fault is allowed: at most one conductor and one host die for ever."""
        if fault != 'killed for ever':
            return True
        hosts = self.cloud.world.hypervisors.keys()
        return not self.gone & hosts if whom in hosts else not self.gone - hosts

    # --- time --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.simulation.advance(seconds)

    def until_time(self, moment: float) -> None:
        """Let time pass until a time on the simulation's clock."""
        if moment > self.simulation.time:
            self.simulation.advance(moment - self.simulation.time)

    def until(self, predicate: Callable[[], object], within: float = 60.0) -> bool:
        """Let time pass until a predicate is true; return whether it became true in time."""
        try:
            self.simulation.run_until(predicate, timeout=within)
        except TimedOut:
            return False
        return True

    def until_status(self, instance: Instance, *statuses: str, within: float = 60.0) -> bool:
        """Let time pass until an instance's newest migration has ended or has one of some statuses.

        :returns: whether it has one of the statuses and has not ended.
        """

        def there() -> bool:
            row = self.newest(instance)
            return row is None or row.status in statuses or row.ended

        return self.until(there, within) and not self.ended(instance)

    def ended(self, instance: Instance) -> bool:
        """Return whether an instance has no migration in progress."""
        row = self.newest(instance)
        return row is None or row.ended

    # --- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End all stalls, and let all migrations end; the operator fences lost hosts and handles cleanups."""
        for hypervisor in self.cloud.world.hypervisors.values():
            hypervisor.faults.clear()
        for _ in range(_LOOKS):
            if self.until(self._all_stuck, PATIENCE) and not self._open():
                break
            self._fence()
            self._tidy()
            # The next sweep observes the changes.
            self.wait(_SWEEPS)
        else:
            # The copy of a guest that writes faster than the link transfers lasts until its time-out.
            if any(hypervisor.jobs for hypervisor in self.cloud.world.hypervisors.values()):
                self.until(self._all_stuck, _LONGEST_COPY)

    def finish(self) -> None:
        """Deliver late requests and let the cloud come to rest, after all faults have stopped."""
        self.settle()
        self._over = True
        self._deliver()
        self.until(lambda: not self._down - self.gone and not self._starved and not self.cloud.bus.away, PATIENCE)
        self.until(lambda: not self.cloud.can_clean_up(), PATIENCE)
        with contextlib.suppress(TimedOut):
            self.simulation.run(PATIENCE)

    def _open(self) -> list[Migration]:
        return [row for row in self.cloud.migrations() if row.in_progress]

    def _all_stuck(self) -> bool:
        return all(row.stuck_reason for row in self._open())

    def _fence(self) -> None:
        """Power off the hosts whose service never comes back, and force their services down."""
        for host in sorted(self.gone & self.cloud.world.hypervisors.keys()):
            self.cloud.world.hypervisors[host].power_off()
            service = self.cloud.database.services.get_compute(host)
            if not service.forced_down:
                self.cloud.request('PUT', f'/os-services/{service.uuid}', {'forced_down': True})

    def _tidy(self) -> None:
        """Handle each blocked cleanup as an operator: discard or retry it.

        It is discarded if the guest is on its own host, and retried if the guest is not there. If the host has a second
        copy of the guest, the cleanup stays, since no rule decides which copy to end.
        """
        cleanups = self.cloud.database.cleanups
        for cleanup in cleanups.list():
            if cleanup.alarm is None:
                continue
            hypervisor = self.cloud.world.hypervisors[cleanup.host]
            guest = hypervisor.describe(cleanup.instance_uuid)
            present = guest.present and guest.state != protocol.GuestState.WAITING
            is_own_host = self._host_of(cleanup.instance_uuid) == cleanup.host
            if present and is_own_host:
                cleanups.discard(cleanup)
            elif not present:
                cleanups.try_again([cleanup])

    def _host_of(self, instance_uuid: str) -> str | None:
        with contextlib.suppress(exception.InstanceNotFound):
            return self.cloud.database.instances.get(instance_uuid).host
        return None

    def _deliver(self) -> None:
        """Deliver the late requests to Placement."""
        self.cloud.adapter.deliver()

    def judge(self, monitor: Monitor) -> list[check.Violation]:
        """Return all violations after the cloud has come to rest.

        A stuck migration is a violation, unless a host is gone for ever: then only an operator can know where the guest
        is.
        """
        world = monitor.snapshot()
        seen = [one for one in check.check(world) if not self._is_vanished_guest(world, one)]
        found = dict.fromkeys([*monitor.violations, *self._outage_violations, *seen])
        for row in world.migrations.values():
            if row.instance_uuid in self.vanished:
                continue
            if row.in_progress and row.stuck_reason and self.gone.isdisjoint(world.hosts):
                found[check.Violation('I7', f'migration {row.uuid} is stuck: {row.stuck_reason}', world.at)] = None
        return list(found)

    def _is_vanished_guest(self, world: World, violation: check.Violation) -> bool:
        """Return whether a violation is only that a vanished guest is on no host.

        If a later migration of the guest has completed, the violation is a real one.
        """
        for uuid, before in self.vanished.items():
            moved = [row for row in world.migrations.values() if row.instance_uuid == uuid and row.uuid not in before]
            completed = any(row.status == MigrationStatus.COMPLETED for row in moved)
            if violation.id == 'I2' and uuid in violation.what and not completed:
                return True
        return False
