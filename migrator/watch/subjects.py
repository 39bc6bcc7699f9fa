# SPDX-License-Identifier: Apache-2.0

"""What can be watched. Each subject returns its present picture from ``/migrator/v1``.

Each is created with two functions. ``get(path, **query)`` returns the document at a path below ``/migrator/v1``, as
:meth:`migrator.watch.client.Client.get`. ``now()`` returns the present time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from migrator.objects import FINAL
from migrator.objects.drain import DRAIN_ENDS, DrainStatus, MemberStatus
from migrator.watch.screen import Event, Picture, Row

Get = Callable[..., dict[str, Any]]
Now = Callable[[], datetime.datetime]

RIGHT, WRONG = 0, 1


class Subject(Protocol):
    """Something that can be watched."""

    def look(self) -> Picture:
        """Return the present picture, with what has happened since the last call."""


class Drain:
    """A drain with its guests. Its exit status is 0 if it ends completed or restored."""

    def __init__(self, get: Get, now: Now, uuid: str) -> None:
        self._get = get
        self._now = now
        self._path = f'/drains/{uuid}'
        self._seen = 0
        self._rates = _Rates()

    def look(self) -> Picture:
        """Return the present picture, with the events since the last call."""
        now = self._now()
        drain = self._get(self._path)['drain']  # before its events, so that the last one is shown
        status = None
        if drain['status'] in DRAIN_ENDS:
            status = RIGHT if drain['status'] in (DrainStatus.COMPLETED, DrainStatus.RESTORED) else WRONG
        return Picture(
            title=f'Drain of {drain["host"]}: {drain["status"]}',
            rows=[self._row(member, now) for member in drain['members']],
            now=now,
            notes=[text for text in (drain['waits_for'], drain['message']) if text],
            foot=_foot(drain['guests'], drain),
            events=[*self._events()],
            status=status,
        )

    def _row(self, member: Mapping[str, Any], now: datetime.datetime) -> Row:
        migration = member.get('migration') or {}
        if migration.get('status') in FINAL:  # the drain has not seen its end yet
            migration = {}
        return Row(
            key=member['instance_uuid'],
            name=member['name'],
            source=member['source'],
            destination=migration.get('destination') or member['destination'],
            status=migration.get('status') or member['status'],
            is_stuck=bool(migration.get('stuck_reason')),
            place=member.get('place'),
            began_at=_time(member['began_at']),
            ended_at=_time(member['ended_at']),
            expected=_expected_end(member),
            **self._rates.memory(migration, now),
        )

    def _events(self) -> Iterator[Event]:
        while found := self._get(f'{self._path}/events', after=self._seen)['events']:
            self._seen = found[-1]['seq']
            for one in found:
                yield Event(datetime.datetime.fromisoformat(one['at']), _text_of(one), one)


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
    total, moved = sum(guests.values()), guests[MemberStatus.MOVED]
    others = ''.join(
        f', {number} {status}'
        for status, number in guests.items()
        if number and status not in (MemberStatus.MOVED, MemberStatus.WAITING)
    )
    return f'{moved} of {total} guests moved{others}{_ends(drain)}'


def _ends(shown: Mapping[str, Any]) -> str:
    """Return when something is expected to end, in words; empty if nothing is known."""
    end = (shown.get('expected') or {}).get('end')
    if not end:
        return ''
    p50, p80 = (datetime.datetime.fromisoformat(end[name]).strftime('%H:%M:%S') for name in ('p50', 'p80'))
    return f'   ends at about {p50}, and with 80 % certainty by {p80} UTC'


def _expected_end(shown: Mapping[str, Any]) -> datetime.datetime | None:
    end = (shown.get('expected') or {}).get('end')
    return _time(end['p50']) if end else None


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)
