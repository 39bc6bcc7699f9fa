# SPDX-License-Identifier: Apache-2.0

"""A user, an operator and a supervisor of processes for a simulated cloud in which anything may fail at any moment.

They do what such people do: ask again what was not answered, start again what was killed, and declare a host fenced
that will not come back.
"""

from __future__ import annotations

import contextlib
import http
import logging
from collections.abc import Callable, Sequence

import webob

from migrator import exception
from migrator.conductor import instances
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

#: Seconds after which who was not answered asks again, and a start that failed is tried again.
_AGAIN = 2.0
#: Seconds that what is in progress gets to end by itself, before a person looks; and then once more.
PATIENCE = 300.0
#: Seconds within which what is stuck is looked at anew.
_SWEEPS = 15.0
#: Seconds after which the time-out has ended any move: at 800 s for a GiB, of memory and of disks, and time to spare.
_LONGEST_MOVE = 6 * 800.0 + 600.0
#: How often a user asks again.
_TRIES = 60
#: How often a person looks what is stuck.
_LOOKS = 3
#: Seconds between two looks of who waits for something to be stuck.
_WATCH = 5.0


class Operator:
    """Acts on one cloud.

    :param cloud: its conductors and computes are started.
    :ivar gone: processes that never come back.
    """

    def __init__(self, cloud: SimulatedCloud) -> None:
        assert cloud.simulation is not None
        self.cloud = cloud
        self.simulation = cloud.simulation
        self.gone: set[str] = set()
        #: Guests that are nowhere, each with those of its migrations that may have moved it before it vanished: only an
        #: operator knows what is to become of them.
        self.vanished: dict[str, set[str]] = {}
        self._down: set[str] = set()
        self._starved = 0
        #: What outages were taken for that they are not.
        self._blamed: list[check.Violation] = []
        self._over = False
        self._rows: list[Migration] = []
        self._rows_at = -1

    # --- processes ---------------------------------------------------------------------------------------------------

    def kill(self, name: str, back_after: float | None) -> None:
        """Kill -9 a process, and start it again so many seconds later.

        :param back_after: seconds; None: never.
        """
        if name not in self.cloud.processes or name in self._down:
            return
        self._down.add(name)
        if back_after is None:
            self.gone.add(name)
        else:
            self.later(back_after, lambda: self._start(name))
        # Last, for it may be the end of who calls.
        self.cloud.kill(name)

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process (SIGSTOP) for so long."""
        process = self.cloud.processes.get(name)
        if process is None or process.paused or name in self._down:
            return
        self.simulation.pause(process)
        self.later(seconds, lambda: self.simulation.resume(process))

    def starve(self, name: str, seconds: float) -> None:
        """Let a process start no thread for so long; one that is started meanwhile can."""
        process = self.cloud.processes.get(name)
        if process is None or process.threadless:
            return
        self._starved += 1
        process.threadless = True

        def feed() -> None:
            process.threadless = False
            # What it could not start it starts with its next tick.
            self.cloud.world_threads.sleep(_SWEEPS)
            self._starved -= 1

        self.later(seconds, feed)

    def take_broker_away(self, fault: str, seconds: float) -> None:
        """Have no message arrive for so long; no host that lives may be down for that."""
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
                    what = f'{service.host} is down, since the broker was away'
                    self._blamed.append(check.Violation('I7', what, self.simulation.time))

        self.later(seconds, back)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something done at a later time; nothing that happens to a process keeps it from being done."""
        world = self.cloud.world_threads

        def wait() -> None:
            world.sleep(seconds)
            act()

        world.start(wait, name='later')

    def stop_and_start(self, host: str, back_after: float) -> None:
        """Stop a host's service as planned, and start it again."""
        compute, process = self.cloud.computes.get(host), self.cloud.processes.get(host)
        if compute is None or process is None or host in self._down:
            return
        with contextlib.suppress(ProcessKilled), process.acting():
            compute.cleanup_host()
        if host in self._down:  # killed while it stopped
            return
        self._down.add(host)
        self.cloud.kill(host)
        self.later(back_after, lambda: self._start(host))

    def _start(self, name: str) -> None:
        """Start a process again; what fails in it fails as it would in a process, and the supervisor tries again."""
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
            return  # whoever killed it starts it again
        except Exception as error:  # noqa: BLE001 -- whatever it is, a process that fails at its start ends
            # Its kind only: a text may quote what no log may hold.
            LOG.warning('%s could not start: %s', name, type(error).__name__)
            self.kill(name, _AGAIN)

    def hang(self, host: str, phases: Sequence[str]) -> None:
        """Have a host's hypervisor not return from anything of this, until its faults are cleared."""
        for phase in phases:
            self.cloud.world.hypervisors[host].faults.stall(phase, sticky=True)

    # --- an operator -------------------------------------------------------------------------------------------------

    def once_stuck(self, instance: Instance, act: Callable[[Migration], None]) -> None:
        """Have somebody wait until a migration of an instance is stuck, and act then, once; nobody waits for ever."""
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
                    except Exception as error:  # noqa: BLE001 -- a command that fails is given again
                        LOG.warning('The command of an operator failed: %s', type(error).__name__)
                        continue
                    return

        world.start(wait, name='an operator')

    def _retry(self, row: Migration) -> None:
        self.cloud.database.requests.request_retry(row, 'an operator')

    def _abandon(self, row: Migration) -> None:
        """Abandon it where nobody can be wrong about it: one host has the guest, which owns its processors there."""
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
        """Send a request; None: the connection was lost before an answer came."""
        if 'api' in self._down:
            return None
        try:
            return self.cloud.request(method, path, body, version=version)
        except ProcessKilled:
            return None

    def ask(self, send: Callable[[], webob.Response | None], done: Callable[[], bool]) -> webob.Response | None:
        """Send a request until it is answered by more than a 5xx, or what it is for is done.

        :returns: the last answer.
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
        """Ask for a live migration until it is accepted, refused, or there."""
        before = self.newest(instance)
        body = {'os-migrateLive': {'host': host, 'block_migration': 'auto'}}
        return self.ask(
            lambda: self.request('POST', f'/servers/{instance.uuid}/action', body),
            lambda: self.newest(instance) != before and not self.ended(instance),
        )

    def migrate_soon(self, instance: Instance, host: str | None = None) -> None:
        """Have a user ask for a live migration again and again until it is accepted, or he has lost his patience."""
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
        """Have an embedding service move a guest by itself: delete it, and create it at another host.

        Not while it is migrated, nor where a host has no power or more than one has the guest. What the other host has
        of it, such as a copy that a pending cleanup is to remove, is replaced.

        :param shut_off: whether it is shut off there.
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
            instances.delete(cloud.database, cloud.placement_client, row.uuid)
            source.delete(row.uuid)
            target.delete(row.uuid)
            again = row.replace(host=host, node=host)
            for _ in range(_TRIES):
                try:
                    instances.create(cloud.database, cloud.placement_client, again)
                except exception.ServiceUnreachable:
                    self.wait(_AGAIN)
                else:
                    target.spawn(row)
                    if shut_off:
                        target.shut_off(row.uuid)
                    return

    def abort(self, instance: Instance) -> webob.Response | None:
        """Ask for the abort of an instance's newest migration until that is accepted, refused, or there."""
        migration = self.newest(instance)
        if migration is None:
            return None
        path = f'/servers/{instance.uuid}/migrations/{migration.id}'

        def done() -> bool:
            row = self.newest(instance)
            return row is None or row.ended or row.abort_requested_at is not None

        return self.ask(lambda: self.request('DELETE', path), done)

    def force_complete(self, instance: Instance) -> webob.Response | None:
        """Ask for the end of an instance's newest migration until that is accepted, refused, or there."""
        migration = self.newest(instance)
        if migration is None:
            return None
        path = f'/servers/{instance.uuid}/migrations/{migration.id}/action'

        def done() -> bool:
            row = self.newest(instance)
            return row is None or row.ended or row.force_complete_requested_at is not None

        return self.ask(lambda: self.request('POST', path, {'force_complete': None}), done)

    def newest(self, instance: Instance) -> Migration | None:
        """Return an instance's newest migration."""
        found = [row for row in self.migrations() if row.instance_uuid == instance.uuid]
        return found[-1] if found else None

    def migrations(self) -> list[Migration]:
        """Return every migration, the oldest first; read again only if there may be something new."""
        writes = self.cloud.backend.writes['migrations']
        if self._rows_at != writes:
            self._rows_at, self._rows = writes, self.cloud.migrations()
        return self._rows

    def do(self, deed: workloads.Deed, guests: Sequence[Instance]) -> None:
        """Do what a plan says."""
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
            rows = [row for row in self.migrations() if row.instance_uuid == instance.uuid]
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
                with contextlib.suppress(ValueError):  # it is not in a state for that
                    act(instance.uuid)

    def may(self, fault: str, whom: str) -> bool:
        """Return whether a fault leaves enough: of conductors and of hosts, one at most dies for ever."""
        if fault != 'killed for ever':
            return True
        hosts = self.cloud.world.hypervisors.keys()
        return not self.gone & hosts if whom in hosts else not self.gone - hosts

    # --- time --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.simulation.advance(seconds)

    def until_time(self, moment: float) -> None:
        """Let time pass until a moment of the simulation's clock."""
        if moment > self.simulation.time:
            self.simulation.advance(moment - self.simulation.time)

    def until(self, predicate: Callable[[], object], within: float = 60.0) -> bool:
        """Let time pass until something is true; return whether it became so."""
        try:
            self.simulation.run_until(predicate, timeout=within)
        except TimedOut:
            return False
        return True

    def until_status(self, instance: Instance, *statuses: str, within: float = 60.0) -> bool:
        """Let time pass until an instance's newest migration has one of some statuses, or has ended."""

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
        """Let what hangs go on, and everything end, fencing hosts that are gone where that is what it waits for."""
        for hypervisor in self.cloud.world.hypervisors.values():
            hypervisor.faults.clear()
        for _ in range(_LOOKS):
            if self.until(self._all_stuck, PATIENCE) and not self._open():
                break
            self._fence()
            self._tidy()
            # Until somebody has looked again.
            self.wait(_SWEEPS)
        else:
            # A guest that writes faster than its link carries moves until its time-out ends it.
            if any(hypervisor.jobs for hypervisor in self.cloud.world.hypervisors.values()):
                self.until(self._all_stuck, _LONGEST_MOVE)

    def finish(self) -> None:
        """Let what is still on its way arrive, and everything come to rest: faults have stopped."""
        self.settle()
        self._over = True
        self._deliver()
        self.until(lambda: not self._down - self.gone and not self._starved and not self.cloud.bus.away, PATIENCE)
        self.until(lambda: not self.cloud.can_clean_up(), PATIENCE)
        with contextlib.suppress(TimedOut):
            self.simulation.run(PATIENCE)

    def _open(self) -> list[Migration]:
        return [row for row in self.migrations() if row.in_progress]

    def _all_stuck(self) -> bool:
        return all(row.stuck_reason for row in self._open())

    def _fence(self) -> None:
        """Cut the power of hosts whose service never comes back, and say so."""
        for host in sorted(self.gone & self.cloud.world.hypervisors.keys()):
            self.cloud.world.hypervisors[host].power_off()
            service = self.cloud.database.services.get_compute(host)
            if not service.forced_down:
                self.cloud.request('PUT', f'/os-services/{service.uuid}', {'forced_down': True})

    def _tidy(self) -> None:
        """Have an operator look at each blocked cleanup: discard it where the guest rightly is, else retry it.

        Which of two copies is to be ended is for no rule to say.
        """
        cleanups = self.cloud.database.cleanups
        for cleanup in cleanups.list():
            if cleanup.alarm is None:
                continue
            hypervisor = self.cloud.world.hypervisors[cleanup.host]
            guest = hypervisor.describe(cleanup.instance_uuid)
            present = guest.present and guest.state != protocol.GuestState.WAITING
            rightly = self._host_of(cleanup.instance_uuid) == cleanup.host
            if present and rightly:
                cleanups.discard(cleanup)
            elif not present:
                cleanups.try_again([cleanup])

    def _host_of(self, instance_uuid: str) -> str | None:
        with contextlib.suppress(exception.InstanceNotFound):
            return self.cloud.database.instances.get(instance_uuid).host
        return None

    def _deliver(self) -> None:
        """Let requests arrive that are still on their way to Placement."""
        self.cloud.adapter.deliver()

    def judge(self, monitor: Monitor) -> list[check.Violation]:
        """Return what is wrong, when everything has come to rest.

        Also what is stuck, unless a host is gone for ever: only then nobody but a person can know where a guest is.
        """
        world = monitor.snapshot()
        seen = [one for one in check.check(world) if not self._has_merely_vanished(world, one)]
        found = dict.fromkeys([*monitor.violations, *self._blamed, *seen])
        for row in world.migrations.values():
            if row.instance_uuid in self.vanished:
                continue
            if row.in_progress and row.stuck_reason and self.gone.isdisjoint(world.hosts):
                found[check.Violation('I7', f'migration {row.uuid} is stuck: {row.stuck_reason}', world.at)] = None
        return list(found)

    def _has_merely_vanished(self, world: World, violation: check.Violation) -> bool:
        """Whether it is that a guest is nowhere which has vanished, and of which no migration has said since that it
        was moved."""
        for uuid, before in self.vanished.items():
            moved = [row for row in world.migrations.values() if row.instance_uuid == uuid and row.uuid not in before]
            completed = any(row.status == MigrationStatus.COMPLETED for row in moved)
            if violation.id == 'I2' and uuid in violation.what and not completed:
                return True
        return False
