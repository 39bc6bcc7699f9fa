# SPDX-License-Identifier: Apache-2.0

"""The engine of drains that moves guests with this conductor's own migrations.

A guest that runs moves live. One that is shut off moves by a cold migration, if the drain includes those. Nothing runs
at its destination that a user would have to look at, so such a migration is accepted with its confirmation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from migrator import context, exception
from migrator.conductor.migration import destinations
from migrator.conductor.migration.context import Tools
from migrator.db import actions, slots
from migrator.db.api import Database
from migrator.db.cleanups import Cleanup
from migrator.db.machines import Machines
from migrator.drain.engine import (
    AGAIN,
    INCLUDE_STOPPED,
    STAYS,
    Check,
    Guest,
    Move,
    MoveState,
    Obstacle,
    ObstacleKind,
    Refused,
    disabled_home,
    to_decide,
)
from migrator.objects import (
    COMPUTE_BINARY,
    MIGRATABLE_VM_STATES,
    RESIZED,
    STOPPED,
    Instance,
    Migration,
    MigrationStatus,
    MigrationType,
    Service,
    Strategy,
    protocol,
    remedies,
)
from migrator.objects.difference import Difference, DifferenceKind
from migrator.objects.drain import Direction, Drain, Locked, Member
from migrator.objects.migration import AbortCause
from migrator.objects.remedies import Reading
from migrator.saga import log
from migrator.views.differences import Look

_S = MigrationStatus
#: The statuses in which an abort has no effect on the guest, and all statuses in which an abort is possible.
_PENDING = (_S.ACCEPTED, _S.PREPARING, _S.QUEUED, _S.PRE_MIGRATING)
_ABORTABLE = (*_PENDING, _S.RUNNING, _S.MIGRATING)
#: The step that chooses a destination.
_CHOICE = 'move_allocation'
#: The checks of the guest itself. Their failure may still be an accident of the host.
_CHECKS_OF_GUEST = ('check_can_live_migrate_source', 'check_can_migrate_source')
#: Seconds to wait until a host has listed its guests.
_TIMEOUT = 10.0
#: The remedy for a guest that is busy.
_WAITS = 'The drain waits until that has ended.'
#: The remedy where none is needed.
_AGAIN = 'The drain tries again by itself.'
#: The kinds of differences of a guest that is not, or not only, where the database has it.
NOT_THERE = frozenset(kind for kind in DifferenceKind if kind not in (DifferenceKind.POWER, DifferenceKind.UNFINISHED))
#: The greatest number of items that a check names.
_NAMED = 20
#: Seconds between two lists of a host for its drain, and the same while it does not report one of its guests.
_LIST_AGAIN, _LIST_SOON = 60.0, 5.0
#: Seconds between two forecasts of a drain. Each reads the newest migrations that have completed.
_FORECASTS = 10.0


class ConductorEngine:
    """The :class:`migrator.drain.engine.Engine` that uses migrations of this control plane.

    :param adopt: called with the uuid of each migration that was accepted, so that a conductor begins it.
    :param wake: called with the uuid of each migration whose abort was requested.
    """

    stays, again = STAYS, AGAIN

    def __init__(self, tools: Tools, adopt: Callable[[Sequence[str]], None], wake: Callable[[str], object]) -> None:
        self._tools = tools
        self._adopt = adopt
        self._wake = wake
        #: Drain -> when its last forecast was made.
        self._forecast_at: dict[str, float] = {}
        #: Host -> when it last listed its guests for a drain, and which of its guests it did not have then.
        self._listed: dict[str, tuple[float, frozenset[str]]] = {}

    def guests(self, drain: Drain) -> list[Guest]:
        """Return the guests of a drain's host in the database, by id."""
        instances = self._tools.database.instances.list({'host': drain.host})
        return guests_of(self._tools.database, drain, instances, self._absent(drain.host, instances))

    def _absent(self, host: str, instances: Iterable[Instance]) -> frozenset[str]:
        """Return the guests of a host that it does not report, as it has listed them lately.

        It lists them once a minute, and sooner while it does not report one of them. A host that does not answer shows
        nothing.
        """
        now = self._tools.threads.clock.monotonic()
        at, absent = self._listed.get(host, (-math.inf, frozenset()))
        if now - at >= (_LIST_AGAIN if not absent else _LIST_SOON):
            guests = self._tools.lists.of({host}).seen.get(host)
            absent = (
                frozenset() if guests is None else frozenset(one.uuid for one in instances if not _has(guests, one))
            )
            self._listed = {one: known for one, known in self._listed.items() if now - known[0] < _LIST_AGAIN}
            self._listed[host] = now, absent
        return absent

    def find(self, drain: Drain, uuids: Iterable[str]) -> list[Guest]:
        """Return guests of a drain wherever they are; a deleted one is left out."""
        wanted = [*uuids]
        if not wanted:
            return []
        return guests_of(self._tools.database, drain, self._tools.database.instances.list({'uuid': wanted}))

    def bound(self, drain: Drain) -> int:
        """Return how many migrations of a drain may be in progress at a time."""
        bounds = (self._tools.options.bounds or slots.Bounds()).of_drains()
        if drain.direction == Direction.BACK:
            bound = bounds.inbound + slots.AHEAD_OF_DRAINS
        else:
            bound = self._tools.database.slots.limit_of(drain.host) + bounds.ahead
        return bound if drain.parallel is None else min(bound, drain.parallel)

    def marks(self, members: Sequence[Member]) -> dict[str, str]:
        """Return guest -> the uuid of its next migration."""
        return {member.instance_uuid: self._tools.threads.new_uuid() for member in members}

    def expected_ends(self, drain: Drain, members: Sequence[Member]) -> dict[str, dict[str, str]]:
        """Return guest -> when its migration is expected to end; {} if unknown, or soon after another call."""
        moment = self._tools.threads.clock.monotonic()
        recent = {uuid: at for uuid, at in self._forecast_at.items() if moment - at < _FORECASTS}
        if drain.uuid in recent:
            return {}
        self._forecast_at = recent | {drain.uuid: moment}
        bounds = self._tools.options.bounds or slots.Bounds()
        now, _, places, _ = self._tools.database.places_of_drain(bounds, drain, members)
        ends = {guest: line.expected.document(now)['end'] for guest, line in places.items()}
        return {guest: {name: at.isoformat() for name, at in end.items()} for guest, end in ends.items() if end}

    def ask(self, drain: Drain, member: Member, host: str | None) -> None:
        """Accept the migration whose uuid is ``member.mark``, unless it was accepted before.

        :raises Refused: the guest cannot be moved now.
        """
        database = self._tools.database
        assert member.mark is not None
        try:
            instance = database.instances.get(member.instance_uuid)
            # It may have been locked or shut off since the members were read.
            obstacle = _obstacle(drain, instance)
            if obstacle is None and drain.direction == Direction.BACK:
                obstacle = _InTheWay.read(database, drain, [instance.host]).obstacle(instance)
            obstacle = obstacle or self._is_reported(instance)
            if obstacle is not None:
                raise Refused(obstacle)
            by, lowest = _requester(drain, drain.requested_by), database.services.lowest_version()
            migration = _migration(drain, member, instance, host, lowest, by.request_id)
            if _is_cold(drain, instance):
                migration = migration.replace(
                    migration_type=MigrationType.MIGRATION.value, confirm_requested_at=database.services.now()
                )
                database.migrations.accept(by, migration, actions.MIGRATE, 'resize_prep', [STOPPED], drain)
            else:
                database.migrations.accept(by, migration, actions.LIVE_MIGRATION, drain=drain)
        except (Refused, exception.Conflict, exception.InstanceNotFound) as error:
            if database.migrations.list({'uuid': member.mark}):
                return
            if isinstance(error, Refused):
                raise
            raise Refused(self._why_refused(drain, member, error)) from None
        with contextlib.suppress(exception.ServiceUnreachable):  # the row is committed, so a sweep finds it
            self._adopt([member.mark])

    def _why_refused(self, drain: Drain, member: Member, error: exception.MigratorException) -> Obstacle:
        guest = self._tools.database.instances.find(member.instance_uuid)
        held = None if guest is None else _InTheWay.read(self._tools.database, drain, [guest.host]).obstacle(guest)
        return held or Obstacle(ObstacleKind.BUSY, error.message, _AGAIN)

    def _is_reported(self, instance: Instance) -> Obstacle | None:
        """Have the host of a guest list its guests, and return None if the guest is among them."""
        try:
            listed = self._tools.hosts.api.list_guests(context.admin_context(), instance.host, _TIMEOUT)
        except exception.MigratorException as error:
            why = f'Its host {instance.host} did not list its guests: {error.message.rstrip(".")}.'
            return Obstacle(ObstacleKind.BUSY, why, _AGAIN)
        return None if _has({one.instance_uuid: one for one in listed}, instance) else _not_reported(instance)

    def look(self, members: Sequence[Member]) -> dict[str, Move]:
        """Return the newest migration of each member, from one query."""
        marks = [member.mark for member in members if member.mark is not None]
        found = {row.uuid: row for row in self._tools.database.migrations.list({'uuid': marks})} if marks else {}
        failed = [uuid for uuid, row in found.items() if row.status in (_S.FAILED, _S.ERROR)]
        logs = self._tools.database.migrations.read_logs(failed) if failed else {}
        return {
            member.instance_uuid: _move(found[member.mark], logs.get(member.mark, ()))
            for member in members
            if member.mark in found
        }

    def abort(self, drain: Drain, member: Member) -> None:
        """Request the abort of a member's migration, unless its status no longer permits that.

        A running migration is aborted only if the cancel says so.
        """
        assert member.mark is not None
        database = self._tools.database
        statuses = _ABORTABLE if drain.cancel_running else _PENDING
        by = _requester(drain, drain.cancel_requested_by)
        with contextlib.suppress(exception.InvalidMigrationState, exception.MigrationNotFound):
            migration = database.migrations.get(member.mark)
            if migration.abort_requested_at is None and database.requests.request_abort(by, migration, statuses):
                self._wake(member.mark)

    def disable(self, drain: Drain) -> bool:
        """Return whether the drain has disabled its host. The commit that accepted the drain has done that."""
        return drain.has_disabled_host

    def enable(self, drain: Drain) -> bool:
        """Enable the drain's host, unless it was disabled for another reason meanwhile; return whether it is."""
        return self._tools.database.drains.enable_host(drain)

    def check_empty(self, host: str) -> list[Check]:
        """Check whether hypervisor, database, Placement or cleanups have anything of a guest of the host.

        A guest on its way to the host counts. As long as its migration has not begun there, only the database has that.
        """
        database = self._tools.database
        rows = database.migrations.list({'host': host}, in_progress=True)
        coming = [row for row in rows if row.dest_compute == host]
        # Read after those, so that one that arrives in between is found.
        here = {guest.uuid: guest.name for guest in database.instances.list({'host': host})}
        names = self._names([row.instance_uuid for row in coming])
        guests = [f'{name} ({uuid})' for uuid, name in here.items()]
        guests += [
            f'{names[row.instance_uuid]} ({row.instance_uuid}), on its way by migration {row.uuid}'
            for row in coming
            if row.instance_uuid in names.keys() - here.keys()
        ]
        cleanups = [f'{one.step} of migration {one.migration_uuid}' for one in database.cleanups.list(host=host)]
        return [
            Check('guests at the hypervisor', _shown(self._at_hypervisor(host, rows))),
            Check('guests in the database', _shown(guests)),
            Check('allocations in Placement', _shown(self._allocations(host))),
            Check('pending cleanups', _shown(cleanups)),
        ]

    def _at_hypervisor(self, host: str, rows: Sequence[Migration]) -> list[str]:
        try:
            found = self._tools.hosts.api.list_guests(context.admin_context(), host, _TIMEOUT)
        except (exception.RPCTimeout, exception.RemoteError) as error:
            return [f'not known, because host {host} did not list them: {exception.message_of(error)}']
        undecided = [row for row in rows if row.source_compute == host and row.status == _S.FINISHED]
        decides = {row.instance_uuid: f'. {to_decide(row.instance_uuid, host, True)}' for row in undecided}
        left = [guest for guest in found if guest.state != protocol.GuestState.ABSENT]
        names = self._names([guest.instance_uuid for guest in left])
        shown = []
        for guest in left:
            uuid, state = guest.instance_uuid, f'{guest.state}{decides.get(guest.instance_uuid, "")}'
            shown.append(f'{names[uuid]} ({uuid}, {state})' if uuid in names else f'{uuid} ({state})')
        return shown

    def _names(self, uuids: Sequence[str]) -> dict[str, str]:
        """Return guest -> its name, of those that the database has."""
        found = self._tools.database.instances.list({'uuid': [*uuids]}) if uuids else []
        return {one.uuid: one.name for one in found}

    def _allocations(self, host: str) -> list[str]:
        left = set[str]()
        for node in self._tools.database.services.list_nodes(host=host):
            for provider in [node.uuid, *(one.uuid for one in node.providers if one.uuid != node.uuid)]:
                left |= self._tools.placement.holders(provider)
        return self._named(sorted(left))

    def _named(self, consumers: Sequence[str]) -> list[str]:
        """Return consumers by the names of their guests."""
        database = self._tools.database
        rows = database.migrations.list({'uuid': consumers}) if consumers else []
        guests = {row.uuid: row.instance_uuid for row in rows}
        names = self._names(sorted({guests.get(one, one) for one in consumers}))
        found = []
        for one in consumers:
            guest = guests.get(one, one)
            if guest not in names:
                found.append(f'of consumer {one}')
            else:
                found.append(
                    f'of {names[guest]} ({one})' if guest == one else f'of a migration of {names[guest]} ({one})'
                )
        return found


def _shown(found: list[str]) -> list[str]:
    return found if len(found) <= _NAMED else [*found[:_NAMED], f'and {len(found) - _NAMED} more']


@dataclasses.dataclass(frozen=True)
class _InTheWay:
    """What keeps guests from being migrated besides their own rows.

    A migration from or to a host that does not answer fails, and would only use up the attempts of the guest. So does
    one of a guest that is not where the database has it.

    :ivar services: the compute services of the guests' hosts and of the drain's host, by host.
    :ivar home: the host to which a restore brings the guests back; None: it is no restore.
    :ivar differences: the differences that are stored, by guest.
    :ivar cleaning: the guests of earlier migrations that the home has still to clean up after.
    :ivar machines: what is stored of the machines of hosts.
    :ivar unlisted: the hosts that may run guests and do not report them; not read while nothing differs.
    """

    services: Mapping[str, Service]
    home: str | None
    differences: Mapping[str, Difference]
    unlisted: Collection[str]
    machines: Machines
    cleaning: Mapping[str, Cleanup]

    @classmethod
    def read(cls, database: Database, drain: Drain, hosts: Iterable[str]) -> _InTheWay:
        services = database.services.list(COMPUTE_BINARY, sorted({drain.host, *hosts}))
        stored = database.differences.list()
        look = Look.at(database, stored)
        differences = {one.instance_uuid: one for one in look.present(stored) if one.kind in NOT_THERE}
        home = drain.host if drain.direction == Direction.BACK else None
        there = database.cleanups.list(host=home) if home is not None else []
        cleaning = {one.instance_uuid: one for one in there}
        of_host = {one.host: one for one in services}
        return cls(of_host, home, differences, look.unlisted, database.machines, cleaning)

    def obstacle(self, guest: Instance) -> Obstacle | None:
        """Return why a guest has to wait, or None."""
        home = self.services.get(self.home or '')
        if home is not None and home.disabled and not home.forced_down:
            return disabled_home(home.host, home.disabled_reason)
        difference = self.differences.get(guest.uuid)
        if difference is not None:
            remedy = difference.remedy(self.unlisted)
            return Obstacle(ObstacleKind.DIFFERENCE, f'{_upper(difference.text)}.', f'{_upper(remedy)}.')
        for whose, service in (('home', home), ('host', self.services.get(guest.host))):
            if service is not None and service.forced_down:
                return _forced_down(whose, guest, service, self.machines.is_on(service, guest.uuid))
            if service is not None and (service.last_seen_up is None or service.down_since is not None):
                reason = f'The compute service of its {whose} {service.host} is down.'
                return Obstacle(
                    ObstacleKind.BUSY, reason, 'Start it: the drain waits, and counts no attempt meanwhile.'
                )
        cleanup = self.cleaning.get(guest.uuid)
        if cleanup is not None:
            reason = f'Its home {self.home} has still to clean up after an earlier migration of it.'
            if cleanup.blocked_because is None:
                return Obstacle(ObstacleKind.BUSY, reason, _WAITS)
            helps = f'That is blocked: {cleanup.blocked_because} {_upper(remedies.offer(remedies.Kind.SEE_CLEANUPS))}.'
            return Obstacle(ObstacleKind.BUSY, reason, helps)
        return None


def _upper(text: str) -> str:
    return f'{text[:1].upper()}{text[1:]}'


def _forced_down(whose: str, guest: Instance, service: Service, is_on: bool) -> Obstacle:
    # A guest with a difference has been refused before.
    reports = service.reports
    look = {Reading.HOST_REPORTS: reports or is_on, Reading.HOST_DOWN: not reports, Reading.ELSEWHERE: False}
    up = remedies.offer(remedies.Kind.DECLARE_UP, look, host=service.host)
    remedy = remedies.joined(
        ' ',
        remedies.offer(remedies.Kind.EVACUATE, look, guest=guest.uuid) if whose == 'host' else '',
        remedies.offer(remedies.Kind.DECLARE_UP_WHEN_BACK, look, host=service.host),
        f'It reports. If it is right again: {up}.' if up else '',
        f'Its machine is on, and was refused as {service.refused_host}.' if is_on else '',
    )
    return Obstacle(ObstacleKind.BUSY, f'Its {whose} {service.host} is forced down.', remedy)


def _has(guests: Mapping[str, protocol.Guest], instance: Instance) -> bool:
    """Return whether a host has a guest, and not only a process that waits to receive it."""
    guest = guests.get(instance.uuid)
    return guest is not None and guest.present and guest.state != protocol.GuestState.WAITING


def _not_reported(instance: Instance) -> Obstacle:
    remedy = remedies.offer(remedies.Kind.SEE_WHERE)
    return Obstacle(ObstacleKind.DIFFERENCE, f'Its host {instance.host} does not report it.', remedy)


def guests_of(
    database: Database, drain: Drain, instances: Iterable[Instance], absent: Collection[str] = ()
) -> list[Guest]:
    """Return instances as a drain sees them, by id.

    :param absent: those that their host has not listed.
    """
    found = sorted(instances, key=lambda instance: instance.id)
    hosts = sorted({one.host for one in found if _is_cold(drain, one)})
    places = database.services.places('', host=hosts) if hosts else []
    refusals = {place.host: destinations.refusal_of_cold_migration(place) for place in places}
    resized = [one.uuid for one in found if one.vm_state == RESIZED]
    rows = database.migrations.list({'instance_uuid': resized}, in_progress=True) if resized else []
    decided = {row.instance_uuid for row in rows if row.confirm_requested_at or row.revert_requested_at}
    sources = {row.instance_uuid: row.source_compute for row in rows}
    in_the_way = _InTheWay.read(database, drain, {*(one.host for one in found), *sources.values()})

    def obstacle(one: Instance) -> Obstacle | None:
        if one.uuid in decided:
            return Obstacle(ObstacleKind.BUSY, 'Its cold migration is being confirmed or reverted.', _WAITS)
        refused = refusals.get(one.host)
        if _is_cold(drain, one) and refused is not None:
            reason = f'It is shut off, and {one.host} takes no part in cold migrations: {refused}.'
            return Obstacle(ObstacleKind.STATE, reason, 'Start the guest, so that it moves live.')
        if one.uuid in absent and one.uuid not in in_the_way.differences:
            return _not_reported(one)
        source = in_the_way.services.get(sources.get(one.uuid, ''))
        decide = (
            to_decide(one.uuid, source.host, source.reports and not source.forced_down) if source is not None else ''
        )
        own = _obstacle(drain, one, decide)
        return own if own is not None and own.kind != ObstacleKind.BUSY else in_the_way.obstacle(one) or own

    return [
        Guest(one.uuid, one.name, one.host, one.flavor.memory_mb, obstacle(one), _is_cold(drain, one), one.locked)
        for one in found
    ]


def _is_cold(drain: Drain, instance: Instance) -> bool:
    """Return whether a drain moves an instance while it is shut off."""
    return drain.include_stopped and instance.vm_state == STOPPED


def _obstacle(drain: Drain, instance: Instance, decide: str = '') -> Obstacle | None:
    """Return what is in the way of the migration of an instance, as its row shows it.

    :param decide: what ends its VERIFY_RESIZE.
    """
    if instance.locked_by is not None and drain.locked != Locked.MOVE:
        why = f' ({instance.locked_reason})' if instance.locked_reason else ''
        remedy = remedies.offer(remedies.Kind.UNLOCK, guest=instance.uuid)
        whose = 'its owner' if instance.locked_by == 'owner' else 'an administrator'
        return Obstacle(ObstacleKind.LOCKED, f'It is locked by {whose}{why}.', remedy)
    if instance.vm_state == RESIZED:
        return Obstacle(ObstacleKind.STATE, 'It is in VERIFY_RESIZE.', decide)
    if instance.vm_state not in MIGRATABLE_VM_STATES and not _is_cold(drain, instance):
        remedy = f'Start it: only a guest that is {" or ".join(MIGRATABLE_VM_STATES)} can be moved live.'
        if instance.vm_state == STOPPED and drain.direction == Direction.AWAY:
            remedy = f'{remedy} {INCLUDE_STOPPED}'
        return Obstacle(ObstacleKind.STATE, f'It is {instance.vm_state}.', remedy)
    if instance.task_state is not None:
        reason = f'It is busy: its task_state is {instance.task_state}.'
        return Obstacle(ObstacleKind.BUSY, reason, _WAITS)
    return None


def _requester(drain: Drain, by: str | None) -> context.RequestContext:
    """Return a user of a drain, with a request id of its own: an instance's actions are found by that."""
    return context.RequestContext(user_id=by, project_id=drain.project_id, overwrite=False)


def _migration(
    drain: Drain, member: Member, instance: Instance, host: str | None, lowest: int, request_id: str
) -> Migration:
    assert member.mark is not None
    return Migration(
        uuid=member.mark,
        instance_uuid=instance.uuid,
        project_id=instance.project_id,
        user_id=drain.requested_by or instance.user_id,
        # Where the drain has found it. If it has left since, the migration is refused.
        source_compute=member.source,
        source_node=instance.node,
        dest_compute=host,
        request_id=request_id,
        requested_host=host,
        drain=drain.uuid,
        priority=drain.priority,
        strategy=Strategy.of_version(lowest).value,
    )


def _move(row: Migration, entries: Sequence[log.Entry]) -> Move:
    """Return a migration as a drain sees it."""
    if row.status in (_S.COMPLETED, _S.CONFIRMED):
        return Move(MoveState.MOVED, row.dest_compute, ended_at=row.updated_at)
    if row.status == _S.CANCELLED and not _is_ended_by_host(row):
        by = f' by {row.abort_requested_by}' if row.abort_requested_by else ''
        return Move(MoveState.CANCELLED, reason=f'Its migration {row.uuid} was aborted{by}.')
    if row.status in (_S.CANCELLED, _S.FAILED, _S.ERROR):
        kinds = log.EntryKind
        # After the last candidate the choice of another one fails too.
        failed = [entry for entry in entries if entry.kind == kinds.FAILED and entry.step != _CHOICE]
        tried = {
            str(entry.payload['input'].get('host'))
            for entry in entries
            if (entry.kind, entry.step) == (kinds.INTENT, _CHOICE) and entry.payload.get('input')
        }
        unanswered = bool(failed) and log.records([failed[-1]])[0].facts.unanswered
        return Move(
            MoveState.FAILED,
            row.dest_compute,
            f'Migration {row.uuid} ended as {row.status}: {row.failure or row.abort_verdict or "no reason is known."}',
            is_of_guest=bool(failed) and failed[-1].step in _CHECKS_OF_GUEST,
            unanswered=unanswered or row.abort_cause == AbortCause.HOST_STOP,
            tried=sorted(tried) if row.status == _S.FAILED else (),
        )
    state = MoveState.PENDING if row.status in _PENDING else MoveState.RUNNING
    waits = f'it is stuck: {row.stuck_reason}' if row.stuck_kind is not None else row.waits_for
    return Move(
        state,
        row.dest_compute,
        is_stuck=row.stuck_kind is not None,
        waits_for_slot=row.waits_for_slot,
        waits_for=f'Migration {row.uuid}: {waits}' if waits else None,
    )


def _is_ended_by_host(row: Migration) -> bool:
    """Return whether a planned stop of the source, or its time-out, has aborted a migration, and no user."""
    return row.abort_cause in (AbortCause.HOST_STOP, AbortCause.TIMEOUT)
