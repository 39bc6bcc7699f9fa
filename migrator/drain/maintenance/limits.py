# SPDX-License-Identifier: Apache-2.0

"""Which hosts may leave service now, and why none may."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
import re
import zoneinfo
from collections.abc import Mapping, Sequence

from migrator import exception
from migrator.drain.maintenance.turns import Maintenance, Turn, TurnStatus, with_status
from migrator.objects import times

_WINDOW = re.compile(r'([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d) (\S+)')
#: Zones that each machine has its own of.
_OF_THE_MACHINE = ('localtime', 'posixrules')
#: Why a host is out of service that has failed.
_FAILED = 'it has failed: retry it, or skip it'
#: The greatest number of hosts that a reason names.
_NAMED = 10


@dataclasses.dataclass(frozen=True)
class Window:
    """A time of each day.

    :ivar begins: minutes from midnight, on the clocks of its zone.
    :ivar ends: the same. If it is not later, the window ends on the next day.
    """

    begins: int
    ends: int
    zone: zoneinfo.ZoneInfo

    @classmethod
    def parse(cls, text: str) -> Window:
        """Return the window that a text such as ``22:00-06:00 Europe/Prague`` names.

        :raises migrator.exception.Invalid: the text has another form, or its zone is unknown.
        """
        found = _WINDOW.fullmatch(text)
        try:
            zone = zoneinfo.ZoneInfo(found[5]) if found else None
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            zone = None
        if found is None or zone is None or found[5] in _OF_THE_MACHINE:
            raise exception.Invalid(
                f'Invalid input for window: {text!r} is no time of the day. Give one such as 22:00-06:00 '
                'Europe/Prague, with the name of a time zone.'
            )
        hours = [int(part) for part in found.groups()[:4]]
        return cls(hours[0] * 60 + hours[1], hours[2] * 60 + hours[3], zone)

    def left(self, now: datetime.datetime) -> float:
        """Return for how many seconds the window is still open; 0: it is not.

        :param now: a time with a zone.
        """
        today, nights = now.astimezone(self.zone).date(), 0 if self.ends > self.begins else 1
        for days in (-1, 0):
            ends = self._on(today, days + nights, self.ends)
            if self._on(today, days, self.begins) <= now < ends:
                return (ends - now).total_seconds()
        return 0.0

    def _on(self, day: datetime.date, days: int, minutes: int) -> datetime.datetime:
        time = datetime.time(minutes // 60, minutes % 60)
        at = datetime.datetime.combine(day + datetime.timedelta(days=days), time, self.zone)
        # Times of one zone are compared as its clocks show them, which may have been put back in between.
        return at.astimezone(datetime.UTC)

    @property
    def length(self) -> float:
        """Its length in seconds, on a day on which no clock is changed."""
        return float((self.ends - self.begins) % (24 * 60) or 24 * 60) * 60


def expected(turns: Sequence[Turn]) -> float:
    """Return how many seconds a turn takes in 80 of 100 cases, by those that are done.

    The time in which a host is ready and waits for its user is left out.

    :returns: 0: none is done.
    """
    return _usual(
        [
            (one.ready_at - one.began_at).total_seconds() + _work(one)
            for one in with_status(turns, TurnStatus.DONE)
            if one.ready_at is not None and one.began_at is not None
        ]
    )


def expected_work(turns: Sequence[Turn]) -> float:
    """Return the same of the work at a host alone, with its return."""
    return _usual([_work(one) for one in with_status(turns, TurnStatus.DONE)])


def _work(turn: Turn) -> float:
    if turn.claimed_at is None or turn.ended_at is None:
        return 0.0
    return (turn.ended_at - turn.claimed_at).total_seconds()


def _usual(spans: Sequence[float]) -> float:
    return sorted(spans)[math.ceil(0.8 * len(spans)) - 1] if spans else 0.0


def is_too_late(maintenance: Maintenance, span: float, now: datetime.datetime) -> bool:
    """Return whether what begins now ends only after the deadline.

    :param span: how many seconds it takes.
    """
    return maintenance.deadline is not None and now + datetime.timedelta(seconds=span) >= maintenance.deadline


def why_not_now(maintenance: Maintenance, span: float, now: datetime.datetime) -> str:
    """Return why nothing may begin at this time, or '' if it may.

    :param span: how many seconds it takes.
    """
    window_text = maintenance.window
    takes = f'a host takes {times.span(span)}'
    if maintenance.deadline is not None and is_too_late(maintenance, span, now):
        at = f'{times.moment(maintenance.deadline)} UTC'
        if now >= maintenance.deadline:
            return f'The deadline {at} has passed.'
        return f'A host would be back only after the deadline {at}: {takes}.'
    if window_text is None:
        return ''
    window = Window.parse(window_text)
    left = window.left(now)
    if span > window.length:
        return f'The window {window_text} is too short: {takes}. Cancel it, and request it with a longer window.'
    if left <= 0:
        return f'The window {window_text} is closed. The next host begins when it opens.'
    if left < span:
        return (
            f'{times.span(left)} of the window {window_text} are left, and {takes}. The next host begins in the next.'
        )
    return ''


def why_too_many(
    maintenance: Maintenance, turns: Sequence[Turn], out: Mapping[str, str], groups: Mapping[str, str], turn: Turn
) -> str:
    """Return which limit is exceeded while a host is out of service, or '' if none is.

    Hosts whose turn has ended with no failure are not of this maintenance any more: a user has skipped them, or their
    work is done.

    :param out: host -> why it is out of service, of those that this maintenance has not disabled.
    :param groups: host -> its group, of those.
    :param turn: the turn of the host.
    """
    ended = {one.host for one in with_status(turns, TurnStatus.DONE, TurnStatus.SKIPPED)}
    turns = [one for one in turns if one.host not in ended]
    mine = {one.host: one.group for one in turns}
    others = {host: group for host, group in mine.items() if host in out}
    others |= {host: group for host, group in groups.items() if host not in ended}
    leaving = {one.host: one.group for one in turns if one.counts} | {turn.host: turn.group}
    of_all = leaving | {host: group for host, group in others.items() if host in mine}
    if len(of_all) > maintenance.parallel:
        return f'At most {maintenance.parallel} may be out of service: {_names(of_all, turns, turn, out)}.'
    in_group = collections.Counter((leaving | others).values())
    if maintenance.per_group is not None and turn.group and in_group[turn.group] > maintenance.per_group:
        same = [host for host, group in (leaving | others).items() if group == turn.group]
        return (
            f'At most {maintenance.per_group} of {turn.group} may be out of service: {_names(same, turns, turn, out)}.'
        )
    return ''


def _names(hosts: Sequence[str] | Mapping[str, str], turns: Sequence[Turn], turn: Turn, out: Mapping[str, str]) -> str:
    """Return the other hosts, each with why it is out of service."""
    whys = {one.host: _FAILED if one.status == TurnStatus.FAILED else f'it is {one.status}' for one in turns} | {**out}
    others = sorted({*hosts} - {turn.host})
    named = ', '.join(f'{host} ({whys[host]})' for host in others[:_NAMED])
    return named + (f' and {len(others) - _NAMED} more' if len(others) > _NAMED else '')
