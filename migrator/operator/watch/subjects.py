# SPDX-License-Identifier: Apache-2.0

"""What can be watched: a drain, a host or a migration. Each returns its present picture.

Each is created with two functions. ``get(path, **query)`` returns the document at a path below ``/migrator/v1``, as
:meth:`migrator.operator.watch.client.Client.get`. ``now()`` returns the present time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol
from urllib import parse

from migrator.objects import ENDS, FINAL, MigrationStatus, base, remedies
from migrator.objects.drain import DRAIN_ENDS, Direction, DrainStatus, MemberStatus, Tally
from migrator.operator import drain_text
from migrator.operator.watch.screen import Event, Picture, Row

Get = Callable[..., dict[str, Any]]
Now = Callable[[], datetime.datetime]

RIGHT, WRONG = 0, 1


class Subject(Protocol):
    """Something that can be watched."""

    def look(self) -> Picture:
        """Return the present picture, with what has happened since the last call."""


class Drain:
    """A drain with its guests. Its exit status is 0 if it ends completed or restored.

    :param after: the ``seq`` of the last event that is not shown.
    :param command: shows all of what is said of the drain.
    :ivar drain: the API's last answer about it; empty before the first.
    """

    def __init__(self, get: Get, now: Now, uuid: str, after: int = 0, command: str = '') -> None:
        self._get = get
        self._now = now
        self._command = command
        self._path = f'/drains/{uuid}'
        self.drain: dict[str, Any] = {}
        self._seen = after
        self._rates = _Rates()

    def look(self) -> Picture:
        """Return the present picture, with the events since the last call."""
        now = self._now()
        drain = self.drain = self._get(self._path)['drain']  # before its events, so that the last one is shown
        status = None
        if drain['status'] in DRAIN_ENDS:
            status = RIGHT if drain['status'] in (DrainStatus.COMPLETED, DrainStatus.RESTORED) else WRONG
        also = ', with the guests that are shut off' if drain['include_stopped'] else ''
        return Picture(
            title=f'Drain of {drain["host"]}{also}: {drain["status"]}',
            rows=[self._row(member, now) for member in drain['members']],
            now=now,
            notes=[text for text in (drain['waits_for'], drain['message']) if text],
            foot=_foot(drain['guests'], drain),
            on_screen=self._on_screen(drain, status) if self._command else None,
            command=self._command,
            events=[*self._events()],
            status=status,
        )

    def _on_screen(self, drain: Mapping[str, Any], status: int | None) -> list[str]:
        """Return what a screen shows: the reasons of guests too, which lines have in their events."""
        said = drain_text.waits_for(drain) if status is None else drain_text.message(drain)
        lines = [*([said] if said else []), *drain_text.guests(drain)]
        if status is not None and said is None:
            lines += drain_text.checks(drain)
        return lines + ([f'What to do: {self._command}'] if status == WRONG else [])

    def _row(self, member: Mapping[str, Any], now: datetime.datetime) -> Row:
        migration = member['migration'] or {}
        if migration.get('status') in FINAL:  # the drain has not seen its end yet
            migration = {}
        return Row(
            key=member['instance_uuid'],
            name=member['name'],
            source=member['source'],
            destination=migration.get('destination') or member['destination'],
            status=migration.get('status') or member['status'],
            is_stuck=bool(migration.get('stuck_reason')),
            place=member['place'],
            began_at=_time(member['began_at']),
            ended_at=_time(member['ended_at']),
            expected=_expected_end(member),
            **self._rates.memory(migration, now),
        )

    def _events(self) -> Iterator[Event]:
        while found := self._get(f'{self._path}/events', after=self._seen)['events']:
            self._seen = found[-1]['seq']
            for one in found:
                brief = _text_of({**one, 'reason': None, 'message': None}) if self._command else ''
                yield Event(_moment(one['at']), _text_of(one), one, brief)


class _Migrations:
    """Migrations in progress, and those that have ended since the watch began. A new status is an event."""

    def __init__(self, get: Get, now: Now) -> None:
        self._get = get
        self._now = now
        #: Rows by the uuid of the migration, and how many of its statuses were events.
        self._rows: dict[str, Row] = {}
        self._seen: dict[str, int] = {}
        self._rates = _Rates()

    def _take(self, migrations: Iterable[Mapping[str, Any]], now: datetime.datetime) -> list[Event]:
        """Take in the present state of migrations, and return what is new, in the order of time."""
        events = []
        for migration in migrations:
            uuid = migration['uuid']
            self._rows[uuid] = _row_of(migration, self._rates.memory({'uuid': uuid, **migration['progress']}, now))
            statuses = migration['statuses']
            events += [_event(migration, one) for one in statuses[self._seen.get(uuid, 0) :]]
            self._seen[uuid] = len(statuses)
        return sorted(events, key=lambda event: event.at)


class Migration(_Migrations):
    """One migration. Its exit status is 0 if it ends completed or confirmed."""

    def __init__(self, get: Get, now: Now, uuid: str) -> None:
        super().__init__(get, now)
        self._uuid = uuid

    def look(self) -> Picture:
        """Return the present picture, with its new statuses."""
        now = self._now()
        migration = self._get(f'/migrations/{self._uuid}')['migration']
        events = self._take([migration], now)
        status = None
        if migration['status'] in FINAL:
            status = RIGHT if migration['status'] in (MigrationStatus.COMPLETED, MigrationStatus.CONFIRMED) else WRONG
        return Picture(
            title=f'Migration {self._uuid}: {migration["status"]}',
            rows=[*self._rows.values()],
            now=now,
            notes=[migration[name] for name in ('waits_for', 'stuck_reason', 'failure') if migration[name]],
            foot=_ends(migration),
            events=events,
            status=status,
        )


class Host(_Migrations):
    """The migrations that leave a host or come to it. Its exit status is 0 once none is in progress."""

    def __init__(self, get: Get, now: Now, name: str) -> None:
        super().__init__(get, now)
        self._name = name

    def look(self) -> Picture:
        """Return the present picture, with the new statuses."""
        now = self._now()
        host = self._get(f'/hosts/{parse.quote(self._name, safe="")}')['host']
        found = self._get('/migrations', host=self._name, in_progress='true')['migrations']
        # Those that leave come first, in their order, and have a place.
        shown = {one['uuid']: one for one in host['migrations']}
        shown |= {one['uuid']: one for one in found if one['uuid'] not in shown}
        ended = [uuid for uuid, row in self._rows.items() if row.status not in FINAL and uuid not in shown]
        events = self._take([*shown.values(), *(self._get(f'/migrations/{uuid}')['migration'] for uuid in ended)], now)
        disabled = f', disabled ({host["disabled_reason"] or "no reason"})' if host['disabled'] else ''
        cleanups = len(host['cleanups'])
        return Picture(
            title=f'Host {self._name}: {"up" if host["up"] else "down"}{disabled}',
            rows=[*self._rows.values()],
            now=now,
            notes=[
                f'{base.count(cleanups, "deferred cleanup")}: '
                f'{remedies.offer(remedies.Kind.LIST_CLEANUPS, host=self._name)}'
            ]
            if cleanups
            else [],
            foot=f'{base.count(len(shown), "migration")} in progress, {len(host["migrations"])} of them from here',
            events=events,
            status=None if shown else RIGHT,
        )


def _row_of(migration: Mapping[str, Any], memory: Mapping[str, Any]) -> Row:
    return Row(
        key=migration['uuid'],
        name=migration['instance_name'] or migration['instance_uuid'],
        source=migration['source'],
        destination=migration['destination'],
        status=migration['status'],
        is_stuck=bool(migration['stuck_reason']),
        place=migration.get('position'),
        began_at=_time(migration['created_at']),
        ended_at=_time(migration['statuses'][-1]['at']) if migration['status'] in ENDS else None,
        expected=_expected_end(migration),
        **memory,
    )


def _event(migration: Mapping[str, Any], one: Mapping[str, Any]) -> Event:
    """Return a status that a migration has had as an event."""
    shown = ('uuid', 'instance_uuid', 'instance_name', 'source', 'destination')
    document = {'at': one['at'], 'kind': 'migration', 'status': one['status']}
    document |= {name: migration[name] for name in shown}
    source, destination = migration['source'], migration['destination']
    where = f'stays at {source}' if source == destination else f'{source} to {destination or "?"}'
    text = f'{migration["instance_name"]}: {one["status"]}, {where}'
    if one['status'] in FINAL and migration['failure']:
        document['failure'] = migration['failure']
        text += f' ({migration["failure"]})'
    return Event(_moment(one['at']), text, document)


class _Rates:
    """How fast the memory of each guest is sent, from its last two reports."""

    def __init__(self) -> None:
        #: migration -> when it had sent how many bytes, and how many bytes per second since the report before.
        self._reports: dict[str, tuple[datetime.datetime, int, float | None]] = {}

    def memory(self, progress: Mapping[str, Any], now: datetime.datetime) -> dict[str, Any]:
        """Return the fields of a row that concern memory.

        :param progress: the uuid of a migration and its ``memory_*_bytes``; empty: none is in progress.
        """
        sizes = {name: progress.get(f'memory_{name}_bytes') for name in ('total', 'processed', 'remaining')}
        uuid, sent = progress.get('uuid'), sizes['processed']
        if uuid is None or sent is None:
            return sizes
        at, before, rate = self._reports.get(uuid, (now, sent, None))
        if sent > before and now > at:
            rate = (sent - before) / (now - at).total_seconds()
        if sent != before or uuid not in self._reports:
            self._reports[uuid] = (now, sent, rate)
        return {**sizes, 'rate': rate}


def _text_of(event: Mapping[str, Any]) -> str:
    """Return an event of a drain in words."""
    reason = event.get('reason') or event.get('message')
    why = f' ({reason})' if reason else ''
    by = f' by {event["by"]}' if event.get('by') else ''
    if event['kind'] == 'member':
        to = f' to {event["destination"]}' if event.get('destination') else ''
        return f'{event["name"]}: {event["status"]}{to}{why}'
    return f'drain: {event.get("status") or event.get("action") or event["kind"]}{by}{why}'


def _foot(guests: Mapping[str, int], drain: Mapping[str, Any]) -> str:
    tally, back = Tally.of(drain['direction'], guests), drain['direction'] == Direction.BACK
    no_others = (MemberStatus.MOVED, MemberStatus.WAITING, *([MemberStatus.GONE] if back else ()))
    others = ''.join(f', {number} {status}' for status, number in guests.items() if number and status not in no_others)
    return f'{tally.done} of {base.count(tally.total, "guest")} {"back" if back else "moved"}{others}{_ends(drain)}'


def _ends(shown: Mapping[str, Any]) -> str:
    """Return when something is expected to end, in words; empty if nothing is known."""
    end = (shown.get('expected') or {}).get('end')
    if not end:
        return ''
    p50, p80 = (f'{_moment(end[name]):%H:%M:%S}' for name in ('p50', 'p80'))
    return f'   ends at about {p50}, or by {p80} (80 %)'


def _expected_end(shown: Mapping[str, Any]) -> datetime.datetime | None:
    end = (shown.get('expected') or {}).get('end')
    return _time(end['p50']) if end else None


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else _moment(text)


def _moment(text: str) -> datetime.datetime:
    """Return a time of the API. Times without a zone are in UTC."""
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
