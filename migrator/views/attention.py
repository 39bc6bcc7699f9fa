# SPDX-License-Identifier: Apache-2.0

"""What needs an operator: the one list behind the page, ``status``, the REST API and a metric.

A line stays until its cause is mended. Only the failure of a migration, and of a restore, is left out after a day.
Allocations are not looked at here: Placement is asked by the audits.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from migrator.db.api import Database
from migrator.db.sql import attention
from migrator.drain.maintenance.turns import Maintenance, Turn, TurnStatus, has_lapsed
from migrator.objects import COMPUTE_BINARY, Migration, MigrationStatus, MigrationType, Service, base, remedies
from migrator.objects.difference import Difference, DifferenceKind
from migrator.objects.drain import Direction, Drain, DrainStatus, Member, MemberStatus, disabled_reason
from migrator.objects.remedies import Kind, Reading
from migrator.objects.steps import ENDS_COPIES
from migrator.views import differences
from migrator.views.services import why_no_reports


class Attention(enum.StrEnum):
    """The kind of a line, the most urgent first."""

    NO_CONDUCTOR = 'no-conductor'
    STUCK = 'stuck'
    DIFFERENCE = 'difference'
    HOST_DOWN = 'host-down'
    HOST_REFUSED = 'host-refused'
    FORCED_DOWN = 'forced-down'
    DRAIN_WAITS = 'drain-waits'
    MAINTENANCE_WAITS = 'maintenance-waits'
    MAINTENANCE_HOST = 'maintenance-host'
    GUEST_FAILED = 'guest-failed'
    MIGRATION_FAILED = 'migration-failed'
    DRAIN_INCOMPLETE = 'drain-incomplete'
    GUEST_BLOCKED = 'guest-blocked'
    DRAIN_PAUSED = 'drain-paused'
    MAINTENANCE_PAUSED = 'maintenance-paused'
    CLEANUP_BLOCKED = 'cleanup-blocked'
    HOST_DISABLED = 'host-disabled'


_A = Attention
#: The kinds that are no failure: something waits for an operator, and nothing is wrong meanwhile.
WAITS = frozenset(
    {
        _A.HOST_REFUSED,
        _A.GUEST_BLOCKED,
        _A.DRAIN_PAUSED,
        _A.MAINTENANCE_PAUSED,
        _A.CLEANUP_BLOCKED,
        _A.HOST_DISABLED,
    }
)
#: For how long a maintenance may find no room before that is a line.
_PATIENCE = datetime.timedelta(minutes=5)
_ORDER = {kind: place for place, kind in enumerate(Attention)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seen:
    """One look at everything on which a line depends.

    :ivar is_blind: whether no conductor receives reports, so that a host may be up that was down then.
    :ivar unlisted: the hosts that may run guests and do not report them.
    :ivar replaced: the identities of the machines that were replaced.
    :ivar guests: host -> the number of its guests, for the hosts that are down or disabled.
    :ivar needed: host -> the statuses of the migrations that need it, for the same hosts.
    :ivar keeps_copies: the hosts that still have to end the copy of a guest that was evacuated or reverted.
    :ivar in_maintenance: the hosts that a maintenance has out of service.
    :ivar elsewhere: the guest and the host in the database of each difference that shows it on another host.
    :ivar names: the uuid of a guest -> its name.
    """

    now: datetime.datetime
    lease: float
    is_blind: bool
    services: Mapping[str, Service]
    drains: Mapping[str, Drain]
    differences: Sequence[Difference]
    unlisted: Set[str]
    replaced: Set[str | None]
    guests: Mapping[str, int]
    needed: Mapping[str, Sequence[str]]
    keeps_copies: Set[str]
    in_maintenance: Set[str]
    elsewhere: Set[tuple[str, str | None]]
    names: Mapping[str, str]

    def look(self, host: str, guest: str | None = None) -> dict[Reading, bool]:
        """Return what is known of a host, and of a guest of it."""
        service = self.services.get(host)
        reports = service is not None and service.reports
        if guest is None:
            elsewhere = any(home == host for _guest, home in self.elsewhere)
        else:
            elsewhere = (guest, host) in self.elsewhere
        look = {Reading.HOST_DOWN: not reports, Reading.ELSEWHERE: elsewhere}
        if not self.is_blind:
            look[Reading.HOST_REPORTS] = reports
        # A reading that is left out forbids what depends on it.
        return look


def documents(database: Database, lease: float) -> list[dict[str, Any]]:
    """Return what needs an operator, the most urgent kind first, as JSON with aware times.

    :param lease: ``[conductor] lease``, in seconds.
    """
    with database.one_session() as held:
        return sorted(_all(held, lease), key=urgency)


def urgency(line: Mapping[str, Any]) -> int:
    """Return the place of a line in the list."""
    return _ORDER[line['kind']]


def interrupted(drain: Drain) -> dict[str, Any]:
    """Return the line of a drain that a process of ``migrator-drain`` has to run, and none does."""
    resume = remedies.offer(Kind.RESUME_DRAIN, drain=drain.host)
    text = (
        f'It was {drain.shown_status}, and no process runs it. Nova goes on with the migrations that it has accepted. '
    )
    return _line(
        _A.DRAIN_PAUSED, drain.uuid, f'Interrupted: the drain of {drain.host}', f'{text}{resume}',
        [remedies.command(Kind.RESUME_DRAIN, drain=drain.host)], waits=False, host=drain.host, drain_uuid=drain.uuid,
    )  # fmt: skip


def counts(database: Database, lease: float) -> dict[str, int]:
    """Return kind -> the number of its lines, for every kind."""
    found = dict.fromkeys((kind.value for kind in Attention), 0)
    for line in documents(database, lease):
        found[line['kind']] += 1
    return found


def _all(database: Database, lease: float) -> Iterator[dict[str, Any]]:
    now = database.services.now()
    services = {one.host: one for one in database.services.list(COMPUTE_BINARY)}
    in_progress = {one.host: one for one in database.drains.list(in_progress=True)}
    of_nova = {one.uuid for one in in_progress.values() if one.host not in services}
    members = attention.members_left(database.engine, [one.uuid for one in in_progress.values()], of_nova)
    stuck = database.migrations.list({'stuck': True}, in_progress=True)
    failed = attention.failures(database.engine, now)
    noted = [host for host, one in services.items() if one.disabled or not one.is_up(now, lease)]
    uuids = sorted({one.instance_uuid for one in (*stuck, *failed)})
    listed = database.differences.list()
    listing = differences.Look.at(database, listed)
    differing = listing.present(listed)
    refused = any(one.refused_at is not None for one in services.values())
    replaced = database.machines.replacements().values() if refused else ()
    deferred = database.cleanups.list()
    held = database.maintenances.concerning()
    unreported = why_no_reports(database.conductors.list(), now)
    seen = _Seen(
        now=now,
        lease=lease,
        is_blind=unreported is not None,
        services=services,
        drains=in_progress,
        differences=differing,
        unlisted=listing.unlisted,
        replaced={off.identity for each in replaced for off in each},
        guests=attention.guests_at(database.engine, noted),
        needed=attention.migrations_at(database.engine, noted),
        keeps_copies={one.host for one in deferred if one.step in ENDS_COPIES},
        in_maintenance={
            turn.host
            for one, turn in held
            if turn.is_out and (not one.ended or _has_disabled(one, turn, services.get(turn.host)))
        },
        elsewhere={(one.instance_uuid, one.host) for one in differing if one.seen.keys() - {one.host}},
        names={one.uuid: one.name for one in database.instances.list({'uuid': uuids})} if uuids else {},
    )
    if unreported is not None:
        yield _without_conductor(unreported)
    yield from (_of_stuck(one, seen) for one in stuck)
    yield from (_of_difference(one, seen) for one in seen.differences)
    for service in services.values():
        yield from _of_host(service, seen)
    by_uuid = {one.uuid: one for one in in_progress.values()}
    shown = {*by_uuid}
    for one in attention.newest_drains(database.engine):
        if one.ended and (line := _of_ended(one, seen)) is not None:
            shown.add(one.uuid)
            yield line
    for one in in_progress.values():
        if one.wait_error is not None:
            text = _sentence(one.waits_for or one.wait_error)
            text += '' if seen.is_blind else ' The drain tries again by itself.'
            yield _line(
                _A.DRAIN_WAITS, one.uuid, f'Waits: the drain of {one.host}', text,
                [remedies.command(Kind.SEE_DRAIN, drain=one.host)], host=one.host, drain_uuid=one.uuid,
            )  # fmt: skip
        if one.paused and one.cancel_requested_at is None:
            resume = remedies.offer(Kind.RESUME_DRAIN, drain=one.host)
            text = f'It requests no migrations until it is resumed. {resume}'
            yield _line(
                _A.DRAIN_PAUSED, one.uuid, f'Paused: the drain of {one.host}', text,
                [remedies.command(Kind.RESUME_DRAIN, drain=one.host)], host=one.host, drain_uuid=one.uuid,
            )  # fmt: skip
    yield from _of_maintenances(held, seen)
    yield from (_of_member(by_uuid[drain], member, seen) for drain, member in members)
    yield from (_of_failed(one, seen) for one in failed if one.drain not in shown)
    for cleanup in deferred:
        if cleanup.blocked_because is not None:
            yield _line(
                _A.CLEANUP_BLOCKED,
                f'{cleanup.id}',
                f'Blocked: a cleanup of {cleanup.host}',
                f'{cleanup.blocked_because} The cleanup does not run until it is retried.',
                [remedies.command(Kind.RETRY_CLEANUP, cleanup=cleanup.id)],
                since=cleanup.created_at,
                host=cleanup.host,
                instance_uuid=cleanup.instance_uuid,
                migration_uuid=cleanup.migration_uuid,
            )


# --- one function for each source of lines ---------------------------------------------------------------------------


def _without_conductor(why: str) -> dict[str, Any]:
    text = (
        'Requests are kept. A copy in progress goes on, and nothing else does. Each host is shown as at its last '
        'report: fence none, and declare none down. Start a conductor, or repair the message broker.'
    )
    return _line(_A.NO_CONDUCTOR, '', f'Conductors: {why}', text, [remedies.command(Kind.SEE_SERVICES)])


def _of_stuck(one: Migration, seen: _Seen) -> dict[str, Any]:
    guest, to = (
        seen.names.get(one.instance_uuid, one.instance_uuid),
        one.dest_compute or 'a host that is not chosen yet',
    )
    show, retry = (remedies.command(kind, migration=one.uuid) for kind in (Kind.SHOW_MIGRATION, Kind.RETRY))
    otherwise = {
        'text': 'It goes on by itself once the cause is mended. If that is not possible, find out at the hypervisors '
        'which one has the guest. The command with that host shows what comes next, and changes nothing.',
        'commands': [remedies.command(Kind.ABANDON, migration=one.uuid, host=host) for host in one.hosts],
    }
    return _line(
        _A.STUCK,
        one.uuid,
        f'Stuck: {guest}, {one.status}, {one.source_compute} to {to}',
        _sentence(one.stuck_reason or 'no reason was recorded'),
        [show, retry],
        otherwise=otherwise,
        **_of_guest(one, seen),
    )


def _of_difference(one: Difference, seen: _Seen) -> dict[str, Any]:
    remedy = one.remedy(seen.unlisted)
    # The other commands of a remedy need a decision first, such as which copy is right.
    follow = [line for line in remedies.commands_in(remedy) if line == remedies.command(Kind.RECONCILE_IF_RIGHT)]
    return _line(
        _A.DIFFERENCE,
        one.instance_uuid,
        f'Not as in the database: {one.name} {one.short}',
        f'{_sentence(one.text)} Remedy: {remedy.rstrip(".")}.',
        [remedies.command(Kind.SEE_WHERE), *follow],
        since=one.since,
        waits=one.kind not in (DifferenceKind.TWICE, DifferenceKind.MISSING, DifferenceKind.REPLACED),
        host=one.host,
        instance_uuid=one.instance_uuid,
        instance_name=one.name,
    )


def _of_host(service: Service, seen: _Seen) -> Iterator[dict[str, Any]]:
    """Yield what a host that is down, forced down, or taken for another machine needs."""
    host, look = service.host, seen.look(service.host)
    guests, needed = seen.guests.get(host, 0), seen.needed.get(host, ())
    there = base.count(guests, 'guest') if guests else 'no guest'
    holds = f'The database has {there} there.'
    if needed:
        holds = f'The database has {there} there, and {base.count(len(needed), "migration")} that need the host.'
    see = [remedies.command(Kind.LIST_GUESTS, host=host)] if guests else []
    if service.forced_down and service.reports:
        cleanups = remedies.command(Kind.LIST_CLEANUPS, host=host)
        declare = remedies.command(Kind.DECLARE_UP, look, host=host)
        text = f'It reports again. {holds} '
        if host in seen.keeps_copies or MigrationStatus.DONE in needed:
            text += f'It still has to end copies of guests that are elsewhere. Once {cleanups} shows none: {declare}.'
        else:
            text += f'This lets it be used: {declare}.'
        title = f'Forced down: {host}, which is back'
        yield _line(_A.FORCED_DOWN, host, title, text, [cleanups, declare], host=host, waits=True)
    elif service.forced_down:
        evacuate = remedies.offer(Kind.EVACUATE_EACH, look) if guests else ''
        if guests and look[Reading.ELSEWHERE]:
            evacuate = f'Some of them are on another host: {remedies.offer(Kind.SEE_OTHERS)}.'
        back = remedies.offer(Kind.DECLARE_UP_WHEN_BACK, look, host=host)
        commands = [*see, *remedies.commands_in(evacuate), remedies.command(Kind.DECLARE_UP_WHEN_BACK, look, host=host)]
        yield _line(
            _A.FORCED_DOWN, host, f'Forced down: {host}', f'{holds} {evacuate} {back}'.replace('  ', ' '), commands,
            since=service.down_since, host=host, waits=not guests,
        )  # fmt: skip
    elif not service.is_up(seen.now, seen.lease) and (guests or needed or host in seen.drains):
        was = 'does not run' if service.last_seen_up is None else 'does not report'
        may = f' {"It" if guests == 1 else "They"} may still run.' if guests else ''
        text = f'Its compute service {was}. {holds}{may} Start its compute service.'
        declare = remedies.offer(Kind.DECLARE_DOWN, look, host=host)
        if declare:
            text += f' Only {declare}.'
        commands = [*see, *remedies.commands_in(declare)]
        yield _line(_A.HOST_DOWN, host, f'Down: {host}', text, commands, since=service.down_since, host=host)
    if service.refused_at is not None:
        text = (
            f'A machine that came as {service.refused_host} was refused, since the identity or the name is that of '
            f'{host}. Give each machine a name and an identity of its own, or declare the old one off.'
        )
        commands = [remedies.command(Kind.SEE_REFUSED, host=host)]
        takes_place = service.refused_host == host and service.refused_identity not in (
            service.identity,
            *seen.replaced,
        )
        replace = remedies.offer(Kind.REPLACE_MACHINE, look, host=host) if takes_place else ''
        otherwise = {'text': replace, 'commands': remedies.commands_in(replace)} if replace else None
        yield _line(
            _A.HOST_REFUSED, host, f'Refused: another machine than {host}', text, commands, since=service.refused_at,
            host=host, otherwise=otherwise,
        )  # fmt: skip


def _of_ended(drain: Drain, seen: _Seen) -> dict[str, Any] | None:
    """Return what the newest drain of a host has left to an operator, or None.

    A host that was enabled since is an operator's decision. That of a drain of a stock Nova is not known here.
    """
    if drain.host in seen.in_maintenance:
        # What comes next is the maintenance's, which has requested the drain.
        return None
    host, service, is_away = drain.host, seen.services.get(drain.host), drain.direction == Direction.AWAY
    see, retry, restore = (
        remedies.command(kind, drain=host) for kind in (Kind.SEE_DRAIN, Kind.RETRY_DRAIN, Kind.RESTORE_DRAIN)
    )
    of_drain: dict[str, Any] = {'since': drain.ended_at, 'host': host, 'drain_uuid': drain.uuid}
    to_restore = remedies.offer(Kind.RESTORE_DRAIN, drain=host)
    is_recent = drain.ended_at is not None and seen.now - drain.ended_at < attention.WITHIN
    if drain.status == DrainStatus.INCOMPLETE and not is_away and is_recent:
        title = f'Incomplete: the restore of {host}'
        text = f'{drain.message or "It has not brought all guests back."} To try again: {restore}.'
        return _line(_A.DRAIN_INCOMPLETE, drain.uuid, title, text, [see, restore], **of_drain)
    if drain.status == DrainStatus.INCOMPLETE and is_away and (service is None or service.disabled):
        guests = seen.guests.get(host, 0)
        title = f'Incomplete: the drain of {host}' + (
            f', which has {base.count(guests, "guest")} left' if guests else ''
        )
        left = [check['what'] for check in drain.checks if check['left']]
        found = f'Left at its end: {", ".join(left)}. ' if left else ''
        text = f'{found}The host takes no guests. {remedies.offer(Kind.RETRY_DRAIN, drain=host)} {to_restore}'
        return _line(_A.DRAIN_INCOMPLETE, drain.uuid, title, text, [see, retry, restore], **of_drain)
    if service is None or not (service.disabled and drain.has_disabled_host):
        return None
    if service.disabled_reason != disabled_reason(drain):
        return None
    enable = remedies.command(Kind.ENABLE, host=host)
    text = f'The drain ended {drain.status}. The host takes no guests until it is enabled. {to_restore} '
    title = f'Disabled: {host}, since its drain'
    return _line(_A.HOST_DISABLED, host, title, f'{text}To enable it only: {enable}.', [restore, enable], **of_drain)


def _of_maintenances(held: Sequence[tuple[Maintenance, Turn]], seen: _Seen) -> Iterator[dict[str, Any]]:
    """Yield what the maintenances in progress need, and their hosts."""
    for one in {one.uuid: one for one, _turn in held if not one.ended}.values():
        hosts = base.count(sum(other.uuid == one.uuid for other, _turn in held), 'host')
        has_no_room = one.no_room_since is not None and seen.now - one.no_room_since > _PATIENCE
        if one.wait_error is not None or has_no_room:
            text = _sentence(one.waits_for or one.wait_error or '')
            text += '' if seen.is_blind else ' The maintenance tries again by itself.'
            title = f'Waits: the maintenance of {hosts}'
            yield _line(_A.MAINTENANCE_WAITS, one.uuid, title, text, [], maintenance_uuid=one.uuid)
        if one.paused and one.cancel_requested_at is None:
            text = f'{one.message or ""} It begins no further host until it is resumed.'.strip()
            title = f'Paused: the maintenance of {hosts}'
            yield _line(_A.MAINTENANCE_PAUSED, one.uuid, title, text, [], maintenance_uuid=one.uuid)
    going_on = {turn.host for one, turn in held if not one.ended}
    for one, turn in held:
        service = seen.services.get(turn.host)
        title, since = f'Failed: {turn.host}, in a maintenance', turn.ended_at
        if turn.status == TurnStatus.WORKING and has_lapsed(one, turn, seen.now):
            title, since = f'Lapsed: the work at {turn.host}, in a maintenance', turn.claimed_at
        elif turn.status != TurnStatus.FAILED or (one.ended and not _has_disabled(one, turn, service)):
            continue
        elif one.ended and turn.host in going_on:
            continue  # another one has it now
        text = turn.reason or 'The end of its work was not reported.'
        yield _line(
            _A.MAINTENANCE_HOST, f'{one.uuid} {turn.host}', title, text, [], since=since,
            host=turn.host, drain_uuid=turn.drain, maintenance_uuid=one.uuid,
        )  # fmt: skip


def _has_disabled(one: Maintenance, turn: Turn, service: Service | None) -> bool:
    """Return whether a host is still disabled by a drain of its turn, as :func:`_of_ended` for a drain."""
    if service is None or not service.disabled:
        return False
    drains = [Drain(uuid=uuid, host=turn.host, reason=one.reason) for uuid in (turn.drain, turn.last_drain) if uuid]
    return service.disabled_reason in [disabled_reason(drain) for drain in drains]


def _of_member(drain: Drain, member: Member, seen: _Seen) -> dict[str, Any]:
    has_failed = member.status == MemberStatus.FAILED
    kind, word = _A.GUEST_BLOCKED, 'Blocked'
    if has_failed:
        kind, word = _A.GUEST_FAILED, 'Failed'
    elif member.status == MemberStatus.MOVING:
        kind, word = _A.STUCK, 'Stuck'
    see = [remedies.command(Kind.SEE_DRAIN, drain=drain.host)]
    # The mark of a guest of a stock Nova names none of our migrations.
    if has_failed and member.mark is not None and drain.host in seen.services:
        see = [remedies.command(Kind.SHOW_MIGRATION, migration=member.mark)]
    advice = ''
    if has_failed and drain.direction == Direction.AWAY:
        advice = remedies.offer(
            Kind.MOVE_AGAIN, seen.look(drain.host, member.instance_uuid), guest=member.instance_uuid
        )
    return _line(
        kind,
        f'{drain.uuid} {member.instance_uuid}',
        f'{word}: {member.name or member.instance_uuid}, in the drain of {drain.host}',
        f'{member.reason or ""} {advice}'.strip(),
        # The reason may have words of a user, and so any command.
        remedies.commands_in(member.remedy or '') or [*see, *remedies.commands_in(advice)],
        since=member.ended_at,
        host=drain.host,
        instance_uuid=member.instance_uuid,
        instance_name=member.name,
        migration_uuid=member.mark if drain.host in seen.services else None,
        drain_uuid=drain.uuid,
    )


def _of_failed(one: Migration, seen: _Seen) -> dict[str, Any]:
    guest, host = seen.names.get(one.instance_uuid, one.instance_uuid), one.source_compute
    look = seen.look(host, one.instance_uuid)
    again = {
        MigrationType.LIVE_MIGRATION.value: Kind.MOVE_AGAIN,
        MigrationType.EVACUATION.value: Kind.EVACUATE,
        MigrationType.MIGRATION.value: Kind.MOVE_COLD,
    }.get(one.migration_type)
    advice = '' if again is None else remedies.offer(again, look, guest=one.instance_uuid)
    what = one.migration_type.replace('-', ' ')
    return _line(
        _A.MIGRATION_FAILED,
        one.uuid,
        f'Failed: the {what} of {guest}, which the database has on {host}',
        f'{_sentence(one.failure or "no reason was recorded")} {advice}'.strip(),
        [remedies.command(Kind.SHOW_MIGRATION, migration=one.uuid), *remedies.commands_in(advice)],
        since=one.updated_at,
        **_of_guest(one, seen),
    )


# --- the form of a line ----------------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    """Return a text of a driver or a table as a sentence."""
    return f'{text[:1].upper()}{text[1:].rstrip(".")}.'


def _of_guest(one: Migration, seen: _Seen) -> dict[str, Any]:
    return {
        'host': one.source_compute,
        'instance_uuid': one.instance_uuid,
        'instance_name': seen.names.get(one.instance_uuid),
        'migration_uuid': one.uuid,
        'drain_uuid': one.drain,
    }


def _line(
    kind: Attention,
    of: str,
    title: str,
    text: str,
    commands: Sequence[str],
    *,
    since: datetime.datetime | None = None,
    waits: bool | None = None,
    otherwise: Mapping[str, Any] | None = None,
    **names: Any,
) -> dict[str, Any]:
    """Return a line as JSON.

    :param of: what distinguishes it from the other lines of its kind.
    :param waits: whether nothing is wrong meanwhile; None: as for its kind.
    """
    known = dict.fromkeys(
        ('host', 'instance_uuid', 'instance_name', 'migration_uuid', 'drain_uuid', 'maintenance_uuid')
    )
    return {
        'id': f'{kind.value} {of}'.strip(),
        'kind': kind.value,
        'failed': kind not in WAITS if waits is None else not waits,
        'since': since,
        'title': title,
        'text': text,
        'commands': [one for one in commands if one],
        'otherwise': otherwise,
        **known,
        **names,
    }
