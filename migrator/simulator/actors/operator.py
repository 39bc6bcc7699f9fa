# SPDX-License-Identifier: Apache-2.0

"""The operator of a simulated cloud, in which anything may fail at any time.

The operator forces hosts down that do not come back, handles stuck migrations and blocked cleanups, and judges the run.
"""

from __future__ import annotations

import contextlib
import http
import logging
from collections.abc import Callable

from migrator import exception
from migrator.conductor import registry
from migrator.drain.maintenance.turns import Maintenance
from migrator.objects import Instance, Migration, MigrationStatus, protocol
from migrator.objects.drain import Direction, Drain, MemberStatus
from migrator.simulator.actors.supervisor import Supervisor
from migrator.simulator.actors.user import User
from migrator.simulator.invariants import check, drains
from migrator.simulator.monitor import Monitor
from migrator.simulator.world import World
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.hypervisor.hypervisor import OWNING
from migrator.testing.simulation.threads import TimedOut

LOG = logging.getLogger(__name__)

#: Seconds for which migrations may take to end without help, before an operator looks and after each look.
PATIENCE = 300.0
#: Seconds within which a sweep observes stuck migrations again.
_SWEEPS = 15.0
#: Seconds for which a process that comes back is away.
_LONGEST_ABSENCE = 900.0
#: Seconds after which the time-out has ended any copy: 800 s per GiB of memory and disks, with a margin.
_LONGEST_COPY = 6 * 800.0 + 600.0
#: Table -> the fields that change when something goes on.
_STATE = {
    'migrations': ('uuid', 'status', 'stuck_reason', 'attempt'),
    'instances': ('uuid', 'host', 'task_state'),
    'cleanups': ('host', 'instance_uuid', 'blocked_because'),
    'drains': ('uuid', 'status'),
    'drain_members': ('instance_uuid', 'status', 'attempts'),
    'maintenances': ('uuid', 'log_seq'),
}
#: How often an operator looks for stuck migrations.
_LOOKS = 3
#: Seconds between two looks of an operator that waits for something.
_WATCH = 5.0
#: Seconds after which an operator repeats a request, and how often.
_AGAIN, _TRIES = 2.0, 60
#: Seconds until a host is back that may not be lost for ever.
_BACK = 40.0


class Operator:
    """The operator of one cloud.

    :param cloud: a cloud whose conductors and compute services are started.
    :ivar vanished: uuid of a guest that was deleted everywhere -> its migrations that may have moved it before. Only an
        operator could decide what to do about such a guest.
    :ivar by_hand: uuids of the guests that were moved or started without the control plane. Only I1 is judged for them.
    """

    def __init__(self, cloud: SimulatedCloud) -> None:
        self.cloud = cloud
        self.supervisor = Supervisor(cloud)
        self.user = User(self.supervisor)
        self.simulation = self.supervisor.simulation
        self.vanished: dict[str, set[str]] = {}
        self.by_hand: set[str] = set()
        self._is_over = cloud.after_writes(
            self._has_ended, 'migrations', 'drains', 'drain_members', 'maintenances', 'maintenance_turns'
        )
        self._over = False
        #: What the last look has left.
        self._looked_at: object = None

    def once_stuck(self, instance: Instance, act: Callable[[Migration], None]) -> None:
        """Let an operator wait until a migration of an instance is stuck, and act on it once.

        The operator stops waiting at the end of the run.
        """
        world = self.cloud.world.threads

        def wait() -> None:
            while not self._over:
                world.sleep(_WATCH)
                row = self.user.newest(instance)
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

    def repeat(self, act: Callable[[], float], name: str) -> None:
        """Let a user do something again and again until the end of the run.

        :param act: does it, and returns the seconds until the next time.
        """
        world = self.cloud.world.threads

        def go_on() -> None:
            pause = 0.0
            while not self._over:
                world.sleep(pause or _AGAIN)
                pause = 0.0
                with contextlib.suppress(exception.MigratorException):  # it is tried again
                    pause = act()

        world.start(go_on, name=name)

    def retry(self, row: Migration) -> None:
        """Request that a stuck migration is retried."""
        self.cloud.database.requests.request_retry(row, 'an operator')

    def abandon(self, row: Migration) -> None:
        """Abandon a migration if only one host has a guest that owns its processors."""
        have = [
            (host, hypervisor.guests[row.instance_uuid])
            for host, hypervisor in self.cloud.world.hypervisors.items()
            if row.instance_uuid in hypervisor.guests
        ]
        owning = [host for host, guest in have if guest.state in OWNING and not guest.post_copy]
        if owning in ([row.source_compute], [row.dest_compute]):
            self.cloud.database.requests.request_abandon(row, owning[0], 'an operator')

    def lose(self, instance: Instance, loss: str, back_after: float | None) -> None:
        """Lose the host of an instance.

        :param loss: ``power``, ``service`` (its guests run on) or ``heartbeats`` (its service runs on, too).
        :param back_after: seconds until it is back; None: never.
        """
        host = self.host_of(instance.uuid)
        if host is None:
            return
        may_stay_away = self.supervisor.may('killed for ever', host) and host not in self.supervisor.down
        if back_after is None and not may_stay_away:
            back_after = _BACK
        if loss == 'power':
            self.supervisor.lose_power(host, back_after)
        elif loss == 'service':
            self.supervisor.kill(host, back_after)
        else:
            self.supervisor.pause(host, back_after or _BACK)

    def evacuate_soon(
        self, instance: Instance, named: str | None, force: bool, declares: bool | str, clears: bool
    ) -> None:
        """Let an operator request the evacuation of an instance until it is accepted, or give up.

        :param declares: whether the operator declares the host forced down first, rightly or not; ``'rightly'``: only
            if it has lost its power.
        :param clears: whether the operator clears that as soon as the host is back and the API allows it.
        """
        world = self.cloud.world.threads
        lost, before = self.host_of(instance.uuid), self.user.newest(instance)
        if declares == 'rightly' and lost is not None:
            declares = not self.cloud.world.hypervisors[lost].powered

        def act() -> None:
            if lost is not None and declares:
                self.force_down(lost, True)
            for _ in range(_TRIES):
                accepted = self.user.newest(instance) != before and not self.user.ended(instance)
                if self._over or lost is None or accepted or self.host_of(instance.uuid) != lost:
                    break
                response = self.user.request_evacuation(instance, named, force)
                if response is not None and response.status_int == http.HTTPStatus.OK:
                    break
                world.sleep(_AGAIN)
            if lost is not None and declares and clears:
                self._clear(lost)

        world.start(act, name='an operator')

    def delete(self, instance: Instance) -> None:
        """Delete an instance with its guest, as an embedding service does, unless a migration is in progress."""
        host = self.host_of(instance.uuid)
        with contextlib.suppress(exception.MigratorException):
            registry.delete_instance(self.cloud.database, self.cloud.placement_client, instance.uuid)
            if host is not None:
                self.cloud.world.hypervisors[host].delete(instance.uuid)

    def host_of(self, instance_uuid: str) -> str | None:
        """Return the host of an instance in the database, or None if there is no such instance."""
        with contextlib.suppress(exception.InstanceNotFound):
            return self.cloud.database.instances.get(instance_uuid).host
        return None

    def force_down(self, host: str, forced_down: bool) -> bool:
        """Declare a host down, or clear that; return whether the API did so."""
        if forced_down:
            self.supervisor.declared.add(host)
        uuid = self.cloud.database.services.get_compute(host).uuid
        response = self.user.request('PUT', f'/os-services/{uuid}', {'forced_down': forced_down})
        return response is not None and response.status_int == http.HTTPStatus.OK

    def fence(self, host: str, clears: bool) -> None:
        """Let an operator declare a host down that has lost its power, for a while or for ever.

        :param clears: whether the operator clears that as soon as the host is back and the API allows it.
        """

        def act() -> None:
            if not self.cloud.world.hypervisors[host].powered and self.force_down(host, True) and clears:
                self._clear(host)

        self.cloud.world.threads.start(act, name='an operator')

    def _clear(self, host: str) -> None:
        """Wait until a host is back and the API clears that it is forced down."""
        while not self._over:
            self.cloud.world.threads.sleep(_WATCH)
            if host in self.cloud.computes and self.force_down(host, False):
                break

    # --- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End all stalls, and let all migrations end; the operator fences lost hosts and handles cleanups."""
        for hypervisor in self.cloud.world.hypervisors.values():
            hypervisor.faults.clear()
        for _ in range(_LOOKS):
            if self.user.until(self._is_over, PATIENCE) and not self._open():
                break
            self._fence()
            self._tidy()
            self._decide()
            self._enable()
            # The next sweep observes the changes.
            self.user.wait(_SWEEPS)
            # Where nothing has changed since the last look, a further one changes nothing either.
            before, self._looked_at = self._looked_at, _state_of(self.cloud, self.supervisor)
            if before == self._looked_at:
                break
        else:
            # The copy of a guest that writes faster than the link transfers lasts until its time-out.
            if any(hypervisor.jobs for hypervisor in self.cloud.world.hypervisors.values()):
                self.user.until(self._is_over, _LONGEST_COPY)

    def finish(self) -> None:
        """Deliver late requests and let the cloud come to rest, after all faults have stopped."""
        # A migration that is stuck until a host is back goes on in settle.
        self.user.until(lambda: not self.supervisor.down - self.supervisor.gone, _LONGEST_ABSENCE)
        self.settle()
        self._over = True
        self.user.give_up()
        self.cloud.adapter.deliver()
        self.user.until(lambda: self.supervisor.is_at_rest, PATIENCE)
        for _ in range(2):  # a compute service that starts meanwhile takes a cleanup up
            self.user.until(lambda: not self.cloud.can_clean_up(), PATIENCE)
            completed = self.cloud.after_writes(lambda: not self._can_complete(), 'migrations', 'cleanups')
            self.user.until(completed, PATIENCE)
            with contextlib.suppress(TimedOut):
                self.simulation.run(PATIENCE)

    def _open(self) -> list[Migration]:
        return [row for row in self.cloud.migrations() if row.in_progress]

    def _can_complete(self) -> bool:
        """Return whether an evacuation is done, and its source has cleaned up."""
        pending = {cleanup.migration_uuid for cleanup in self.cloud.database.cleanups.list()}
        rows = self.cloud.migrations()
        return any(row.status == MigrationStatus.DONE and row.uuid not in pending for row in rows)

    def _has_ended(self) -> bool:
        waits = (row.stuck_reason or _has_to_decide(row) for row in self._open())
        return all(waits) and not self.open_drains() and not _open_maintenances(self.cloud)

    def open_drains(self) -> list[Drain]:
        """Return the drains that have to go on: those in progress, except for paused ones that move no guest."""
        tables = self.cloud.backend.tables
        moving = {row.drain for row in tables.read('drain_members') if row.object.status == MemberStatus.MOVING}
        drains: list[Drain] = [row.object for row in tables.read('drains')]
        return [
            one for one in drains if not one.ended and (not one.paused or one.cancel_requested_at or one.uuid in moving)
        ]

    def _fence(self) -> None:
        """Power off the hosts whose service never comes back, and force their services down."""
        for host in sorted(self.supervisor.gone & self.cloud.world.hypervisors.keys()):
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
            if cleanup.blocked_because is None:
                continue
            hypervisor = self.cloud.world.hypervisors[cleanup.host]
            guest = hypervisor.describe(cleanup.instance_uuid)
            present = guest.present and guest.state != protocol.GuestState.WAITING
            is_own_host = self.host_of(cleanup.instance_uuid) == cleanup.host
            if present and is_own_host:
                cleanups.discard(cleanup)
            elif not present:
                cleanups.try_again([cleanup])

    def _enable(self) -> None:
        """Enable the hosts for which restores wait, since they were disabled by hand meanwhile."""
        for drain in self.open_drains():
            service = self.cloud.database.services.get_compute(drain.host)
            if drain.direction == Direction.BACK and service.disabled:
                self.cloud.request('PUT', f'/os-services/{service.uuid}', {'status': 'enabled'})

    def _decide(self) -> None:
        """Revert each cold migration that waits for its user, or else confirm or abandon it."""
        for row in self._open():
            if not _has_to_decide(row):
                continue
            for action in ('revertResize', 'confirmResize'):
                self.user.request('POST', f'/servers/{row.instance_uuid}/action', {action: None})
            guest = self.cloud.world.hypervisors[row.dest_compute or ''].describe(row.instance_uuid)
            if guest.present:
                with contextlib.suppress(exception.NotStuck):
                    self.cloud.database.requests.request_abandon(row, row.dest_compute or '', 'an operator')

    def judge(self, monitor: Monitor, all_move: bool = False) -> list[check.Violation]:
        """Return all violations after the cloud has come to rest.

        A stuck migration is a violation, unless a host is gone for ever: then only an operator can know where the guest
        is.

        :param all_move: whether a migration moves each guest now, so that no drain may have given one up (I29).
        """
        world = monitor.snapshot()
        seen = [one for one in check.check(world) if not self._is_vanished_guest(world, one)]
        found = dict.fromkeys([*monitor.violations, *self.supervisor.violations, *seen])
        for row in world.migrations.values():
            if row.instance_uuid in self.vanished or row.instance_uuid in self.by_hand:
                continue
            if row.in_progress and row.stuck_reason and self.supervisor.gone.isdisjoint(world.hosts):
                found[check.Violation('I7', f'migration {row.uuid} is stuck: {row.stuck_reason}', world.at)] = None
        if self.supervisor.gone.isdisjoint(world.hosts) and not self._open():
            for drain in self.open_drains():
                found[
                    check.Violation('I25', f'drain {drain.uuid} is {drain.shown_status}: it has not ended', world.at)
                ] = None
            for one in _open_maintenances(self.cloud):
                what = f'maintenance {one.uuid} is {one.shown_status}: it has not ended'
                found[check.Violation('I32', what, world.at)] = None
        if all_move:
            for what in drains.given_up(world):
                found[check.Violation('I29', what, world.at)] = None
        always = {*monitor.violations, *check.check(world, quiet=False)}
        return [
            one
            for one in found
            if (one.id in ('I1', 'I30') and one in always) or not self._is_of_change_by_hand(world, one)
        ]

    def _is_of_change_by_hand(self, world: World, violation: check.Violation) -> bool:
        """Return whether a violation concerns a guest that was moved or started by hand, or a migration of it."""
        rows = world.migrations.values()
        ours = self.by_hand | {row.uuid for row in rows if row.instance_uuid in self.by_hand}
        return any(uuid in violation.what for uuid in ours)

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


def _has_to_decide(row: Migration) -> bool:
    """Return whether a cold migration waits for its user."""
    return row.status == MigrationStatus.FINISHED and not (row.confirm_requested_at or row.revert_requested_at)


def _open_maintenances(cloud: SimulatedCloud) -> list[Maintenance]:
    rows: list[Maintenance] = [row.object for row in cloud.backend.tables.read('maintenances')]
    return [row for row in rows if not row.ended]


def _state_of(cloud: SimulatedCloud, supervisor: Supervisor) -> object:
    """Return what goes on, without times. Nothing equals it while a guest is copied or a process is away."""
    copies = any(hypervisor.jobs for hypervisor in cloud.world.hypervisors.values())
    if copies or supervisor.down - supervisor.gone:
        return object()
    tables = cloud.backend.tables
    return [[getattr(row.object, one) for one in _STATE[name]] for name in _STATE for row in tables.read(name)]
