# SPDX-License-Identifier: Apache-2.0

"""The engine of maintenances that drains hosts by this control plane."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from migrator import context, exception
from migrator.conductor.drains import plan
from migrator.conductor.migration.context import Tools
from migrator.drain import engine
from migrator.drain.engine import AGAIN, Check, Engine, Obstacle, ObstacleKind, Refused
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.engine import Fleet
from migrator.drain.maintenance.plan import Guest, Host
from migrator.drain.maintenance.returned import Report
from migrator.drain.maintenance.turns import Guests, Maintenance, Stopped, Turn
from migrator.drain.request import moved
from migrator.objects import COMPUTE_BINARY, STOPPED, ComputeNode, MigrationType, Service, base, protocol
from migrator.objects.drain import Drain, Member
from migrator.objects.request import Request

#: Seconds to wait until a host has listed its guests.
_TIMEOUT = 10.0


class MaintenanceEngine:
    """The :class:`migrator.drain.maintenance.engine.Engine` of a conductor.

    :param drains: what moves the guests of its drains.
    :param wake: advances the drains of this conductor.
    """

    again = AGAIN

    def __init__(self, tools: Tools, drains: Engine, wake: Callable[[], None]) -> None:
        self._tools = tools
        self._drains = drains
        self._wake = wake

    @property
    def down_time(self) -> float:
        """The seconds after which a compute service that does not report is down."""
        return self._tools.options.service_down_time

    def new_uuid(self) -> str:
        """Return a new uuid, of a drain or a claim."""
        return self._tools.threads.new_uuid()

    # --- readings ----------------------------------------------------------------------------------------------------

    def reports(self, hosts: Sequence[str]) -> dict[str, Report]:
        """Return host -> what its compute service has reported last; a host without one is left out."""
        found = self._tools.database.services.list(COMPUTE_BINARY, [*hosts])
        return {one.host: _report(one) for one in found}

    def drains(self, uuids: Sequence[str]) -> dict[str, Drain]:
        """Return the drains with these uuids, without those that the database does not have."""
        found = {}
        for uuid in uuids:
            with contextlib.suppress(exception.DrainNotFound):
                found[uuid] = self._tools.database.drains.get(uuid)
        return found

    def fleet(self, maintenance: Maintenance) -> Fleet:
        """Return the hosts as they are now."""
        database = self._tools.database
        ours = {turn.host for turn in database.maintenances.read_turns(maintenance.uuid) if turn.is_out}
        services = {one.host: one for one in database.services.list(COMPUTE_BINARY)}
        out = {host: why for host, one in services.items() if host not in ours and (why := _why_out(one))}
        hosts = [
            Host(node.host, _capacity(node))
            for node in database.services.list_nodes()
            if node.host in services and node.host not in out
        ]
        down = {host for host, one in services.items() if one.forced_down or not one.reports}
        groups = {host: maintenance.groups[host] for host in out if host in maintenance.groups}
        return Fleet(hosts, down, out, groups, self._trouble(maintenance, services.values()))

    def guests(self, maintenance: Maintenance) -> list[Guest]:
        """Return the guests of all hosts."""
        database = self._tools.database
        allowed = maintenance.of_drains.get('destinations')
        only = None if allowed is None else frozenset(allowed)
        classes = {node.host: _capacity(node).keys() for node in database.services.list_nodes()}
        stays = maintenance.stopped == Stopped.STAY
        return [
            Guest(
                one.uuid,
                one.host,
                _needs(one.flavor.request, classes.get(one.host, ())),
                frozenset() if stays and one.vm_state == STOPPED else only,
            )
            for one in database.instances.list()
        ]

    def _trouble(self, maintenance: Maintenance, services: Iterable[Service]) -> list[str]:
        database = self._tools.database
        known = {turn.host for turn in database.maintenances.read_turns(maintenance.uuid)} | database.maintenances.out()
        since = maintenance.created_at
        # One that was down before counts in the limits, and one that is disabled is away for its own reasons.
        dead = [
            one.host
            for one in services
            if one.host not in known and not one.disabled and since and one.down_since and one.down_since > since
        ]
        found = [f'Host {host} is down, and is no host of a maintenance.' for host in sorted(dead)]
        evacuations = database.migrations.list({'migration_type': MigrationType.EVACUATION.value}, in_progress=True)
        hosts = sorted({row.source_compute for row in evacuations})
        return found + [f'Host {host} is being evacuated.' for host in hosts]

    def left(self, maintenance: Maintenance, turn: Turn) -> list[Check]:
        """Check whether a host is empty.

        If guests that are shut off stay, only what runs or migrates counts.
        """
        if maintenance.stopped != Stopped.STAY:
            return [*self._drains.check_empty(turn.host)]
        moving = self._tools.database.migrations.list({'host': turn.host}, in_progress=True)
        return [
            Check('guests that are not shut off', self._running(turn.host)),
            Check('migrations', [f'{row.uuid} of {row.instance_uuid}' for row in moving]),
        ]

    def _running(self, host: str) -> list[str]:
        try:
            found = self._tools.hosts.api.list_guests(context.admin_context(), host, _TIMEOUT)
        except (exception.RPCTimeout, exception.RemoteError) as error:
            return [f'not known, because host {host} did not list them: {exception.message_of(error)}']
        off = (protocol.GuestState.ABSENT, protocol.GuestState.SHUTDOWN)
        return [f'{one.instance_uuid} ({one.state})' for one in found if one.state not in off]

    def obstacles(self, maintenance: Maintenance, turn: Turn) -> list[tuple[engine.Guest, Obstacle]]:
        """Return the guests of a host that have something in the way, but for those that may stay shut off."""
        found = plan.immovable(self._tools.database, self.drain_of(maintenance, turn))
        if maintenance.stopped != Stopped.STAY:
            return found
        off = {one.uuid for one in self._tools.database.instances.list({'host': turn.host, 'vm_state': STOPPED})}
        return [(guest, obstacle) for guest, obstacle in found if guest.uuid not in off]

    def immovable(self, maintenance: Maintenance, turn: Turn) -> list[str]:
        """Return what is known now of the guests that the drain of a host would leave, each as a sentence."""
        found = self.obstacles(maintenance, turn)
        reported = [guest.uuid for guest, obstacle in found if obstacle.kind == ObstacleKind.IMMOVABLE]
        still = self._still_immovable(turn.host, reported) if reported else {}
        stay = []
        for guest, obstacle in found:
            why, remedy = obstacle.reason, f' {obstacle.remedy}' if obstacle.remedy else ''
            if obstacle.kind == ObstacleKind.IMMOVABLE:
                now = still.get(guest.uuid, {}).get('unstartable' if guest.is_cold else 'immovable')
                if not now:
                    continue
                why, remedy = f'It cannot be moved {"cold" if guest.is_cold else "live"}: {now}.', ''
            elif obstacle.kind not in (ObstacleKind.STATE, ObstacleKind.LOCKED):
                continue
            stay.append(f'{base.printable(guest.name)} ({guest.uuid}): {why}{remedy}')
        return stay

    def _still_immovable(self, host: str, guests: list[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return what a host reports now of some guests. What the database has may be an hour old."""
        try:
            return self._tools.hosts.api.get_definitions(context.admin_context(), host, guests, _TIMEOUT)
        except (exception.ServiceUnreachable, exception.RemoteError):
            return {}

    # --- what is done ------------------------------------------------------------------------------------------------

    def start(self, maintenance: Maintenance, turn: Turn) -> None:
        """Accept the drain of a turn, unless it was accepted before or is not needed any more.

        :raises migrator.drain.engine.Refused: the host cannot be drained now, and nothing was changed.
        """
        assert turn.drain is not None
        drain = self.drain_of(maintenance, turn)
        try:
            # If the turn has another status by now, its drain is not needed any more.
            with contextlib.suppress(errors.HostInMaintenance, errors.TurnNotDue):
                rows, of = self._tools.database.drains, (maintenance.uuid, turn.host)
                rows.accept(drain, turn=of, moved=self._moved_before(maintenance, turn))
                self._wake()
        except (exception.DrainInProgress, exception.ComputeHostNotFound) as error:
            if not self.drains([turn.drain]):
                raise Refused(Obstacle(ObstacleKind.BUSY, error.message, '')) from None

    def _moved_before(self, maintenance: Maintenance, turn: Turn) -> list[Member]:
        """Return the guests that an earlier try has moved, if they are to come back with those of this one."""
        if maintenance.guests != Guests.BACK or turn.last_drain is None:
            return []
        return moved(self._tools.database.drains.read_members(turn.last_drain))

    def drain_of(self, maintenance: Maintenance, turn: Turn) -> Drain:
        """Return the drain that empties a host."""
        return Drain(
            uuid=turn.drain or '',
            host=turn.host,
            reason=maintenance.reason,
            planned=dict(turn.moves),
            requested_by=maintenance.requested_by,
            project_id=maintenance.project_id,
            **{'include_stopped': maintenance.stopped == Stopped.MOVE, **maintenance.of_drains},
        )

    def cancel(self, turn: Turn) -> None:
        """Request the cancel of a turn's drain. One that has ended stays as it is."""
        assert turn.drain is not None
        with contextlib.suppress(exception.InvalidDrainState, exception.DrainNotFound):
            self._tools.database.drains.request(turn.drain, 'cancel', None)
            self._wake()

    def restore(self, maintenance: Maintenance, turn: Turn) -> str | None:
        """Request that the guests come back that the newest drain of a turn has moved.

        :returns: why it cannot be requested, '' if it has moved none; None: it was, or the turn has another status.
        """
        uuid = turn.drain or turn.last_drain
        assert uuid is not None
        if not moved(self._tools.database.drains.read_members(uuid)):
            return ''
        with contextlib.suppress(errors.HostInMaintenance, errors.TurnNotDue):
            try:
                self._tools.database.drains.request(uuid, 'restore', None, turn=(maintenance.uuid, turn.host))
                self._wake()
            except (exception.InvalidDrainState, exception.DrainInProgress, exception.IllegalMove) as error:
                return error.message
        return None

    def enable(self, turn: Turn) -> bool:
        """Enable a host that a drain of this turn has disabled, and return whether it is enabled."""
        for drain in self.drains([uuid for uuid in (turn.drain, turn.last_drain) if uuid]).values():
            self._tools.database.drains.enable_host(drain)
        report = self.reports([turn.host]).get(turn.host)
        return report is not None and not report.disabled

    def when_dead(self, host: str) -> str:
        """Return what an operator does with the guests of a host that was declared down, as a sentence."""
        return f'Its drain is cancelled, and its guests stay. Evacuate them, or start {host} again.'


def _report(service: Service) -> Report:
    return Report(
        service.last_seen_up,
        service.reports,
        service.boot_id,
        service.kernel,
        service.forced_down,
        service.disabled,
    )


def _why_out(service: Service) -> str:
    if service.forced_down:
        return 'it is forced down'
    if not service.reports:
        return 'it is down'
    return 'it is disabled' if service.disabled else ''


def _needs(request: Request, classes: Collection[str]) -> Mapping[str, int]:
    """Return what a guest uses of its host, by the form of its request that the host can have met.

    Classes that the host does not report are left out. A sharing provider lends them, or an operator has added them.

    :param classes: the resource classes of the host.
    """
    forms = request.totals
    form = next((one for one in forms if one.keys() <= set(classes)), forms[0])
    return {name: amount for name, amount in form.items() if name in classes}


def _capacity(node: ComputeNode) -> Mapping[str, int]:
    """Return what the guests of a host may use together, of all providers of its tree."""
    found: collections.Counter[str] = collections.Counter()
    for provider in node.providers:
        for name, one in provider.inventory.items():
            usable = (one.get('total', 0) - one.get('reserved', 0)) * one.get('allocation_ratio', 1.0)
            found[name] += int(usable)
    return found
