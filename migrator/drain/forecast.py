# SPDX-License-Identifier: Apache-2.0

"""Expected times: when migrations start and end, from how long recent ones took.

The forecast plays the queue of a source many times. In each run, every migration takes as many seconds for each MiB as
a recorded one did, and starts when a slot of its source and one of a destination are free. Where the recorded times
show that migrations share the links of their source and of their destination, those of a run share them too. As many
migrations as other sources send to a destination now are assumed to go there all the time. The 50th and 80th
percentiles of the runs are the answer. A migration that runs takes longer than it has run already and than the
hypervisor's rate leaves for the rest, but not twice as long as these. The runs draw their random numbers from a fixed
seed, so equal facts give equal answers.

Nothing here reads the database; :meth:`migrator.db.slots.SlotReader.recorded` does.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import heapq
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from migrator.objects import Migration, MigrationStatus
from migrator.objects.drain import Direction, Drain, DrainStatus, Member, MemberStatus, place
from migrator.objects.reasons import WaitKind

_S, _M = MigrationStatus, MemberStatus
#: The number of ended migrations that a forecast looks at, the newest ones.
RECORDED = 200
#: The fewest recorded migrations from which a forecast is made.
LEAST = 3
#: The number of runs, and the greatest number of migrations that all runs together play.
_RUNS, _PLAYED = 200, 10_000
#: The number of ended migrations of the same drain or source that count as much as all others.
_OTHERS = 5
#: Seconds that are taken to be none, since the last bits of a float are not exact.
_LITTLE = 1e-6
#: The statuses in which a migration copies, or has copied.
MOVING = (_S.RUNNING, _S.RUNNING_POST_COPY, _S.POST_MIGRATING)


@dataclasses.dataclass(frozen=True)
class Past:
    """A migration that has completed, or one that runs.

    :ivar group: the drain that has requested it, or else its source. Migrations of one group take similar times.
    :ivar seconds: from the start of the copy to the end, or to the present.
    :ivar source: the host that it leaves.
    :ivar began: when the copy started, in seconds since the epoch.
    :ivar destination: the host to which it goes.
    """

    group: str
    size_mb: int
    seconds: float
    source: str = ''
    began: float = 0.0
    destination: str = ''

    @property
    def rate(self) -> float:
        """The seconds that it took for each MiB of the guest's memory."""
        return self.seconds / max(self.size_mb, 1)


def _links(source: str, destination: str | None) -> tuple[str, ...]:
    """Return the names of the links that a migration uses; that of a destination only if it is known."""
    return (f'from {source}', f'into {destination}') if destination else (f'from {source}',)


def alone(past: Sequence[Past]) -> list[Past]:
    """Return migrations with the seconds that each takes if the migrations on a link share it equally.

    While two of them leave a host or enter one at the same time, each gets on by half a second in a second.
    """
    found = [0.0] * len(past)
    links = [_links(one.source, one.destination) for one in past]
    using: dict[str, set[int]] = collections.defaultdict(set)
    since: dict[int, float] = {}
    lasting = [(number, one) for number, one in enumerate(past) if one.seconds > 0]
    moments = [(one.began, True, number) for number, one in lasting]
    moments += [(one.began + one.seconds, False, number) for number, one in lasting]
    for at, begins, number in sorted(moments):
        if begins:
            since[number] = at
        # Only the shares of these change.
        for each in {each for link in links[number] for each in using[link]}:
            found[each] += (at - since[each]) / max(len(using[link]) for link in links[each])
            since[each] = at
        for link in links[number]:
            (using[link].add if begins else using[link].discard)(number)
    return [dataclasses.replace(one, seconds=found[number]) for number, one in enumerate(past)]


def spread(past: Iterable[Past]) -> float:
    """Return how much recorded rates differ, by their logarithms."""
    return statistics.pstdev(math.log(max(one.rate, 1e-9)) for one in past)


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What a forecast knows besides the migrations themselves.

    :ivar now: the time of the database.
    :ivar slots: the number of migrations that run at once.
    :ivar past: the newest migrations that have completed.
    :ivar running: all migrations that run.
    :ivar inbound: how many migrations a host may receive at once; 0: no bound.
    :ivar destinations: the hosts to which migrations may go; empty: those to which recorded ones went.
    :ivar share: the number of forecasts of one answer, which play fewer runs each.
    """

    now: datetime.datetime
    slots: int
    past: Sequence[Past] = ()
    running: Sequence[Past] = ()
    inbound: int = 0
    destinations: Sequence[str] = ()
    share: int = 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A migration that runs or waits.

    :ivar elapsed: the seconds since its copy has started; None: it waits.
    :ivar left: the seconds that the hypervisor's remaining bytes take at the rate so far; None: not known.
    :ivar not_before: the seconds for which it does not start.
    :ivar source: the host that it leaves.
    :ivar destination: the host to which it goes; None: it is not chosen yet.
    """

    uuid: str
    size_mb: int
    elapsed: float | None = None
    left: float | None = None
    not_before: float = 0.0
    source: str = ''
    destination: str | None = None


@dataclasses.dataclass(frozen=True)
class Band:
    """The seconds within which something happens in half of the runs, and in four fifths of them."""

    p50: float
    p80: float

    @classmethod
    def of(cls, runs: Sequence[float], recorded: int) -> Band:
        """Return the percentiles of the results of the runs.

        :param recorded: from how many migrations they were drawn. The fewer, the less they show of the slowest, so p80
            is a higher percentile: the next one is as likely between any two of them as beyond the last.
        """
        found, last = sorted(runs), len(runs) - 1
        share = min(1.0, 0.8 * (recorded + 1) / recorded)
        return cls(found[int(0.5 * last)], found[int(share * last + 0.5)])

    def seconds(self) -> dict[str, int]:
        """Return the band as JSON, in whole seconds."""
        return {'p50': round(self.p50), 'p80': round(self.p80)}


@dataclasses.dataclass(frozen=True)
class Expected:
    """When a migration or a drain is expected to start and to end, in seconds from now.

    :ivar start: None: it has started, or nothing is known.
    :ivar end: None: it has ended, or nothing is known.
    :ivar reason: why nothing is known; None: ``end`` is known.
    """

    start: Band | None = None
    end: Band | None = None
    reason: str | None = None

    def document(self, now: datetime.datetime) -> dict[str, Any]:
        """Return it as a document, with aware times."""

        def at(band: Band | None) -> dict[str, Any] | None:
            if band is None:
                return None
            return {name: now + datetime.timedelta(seconds=getattr(band, name)) for name in ('p50', 'p80')}

        return {'start': at(self.start), 'end': at(self.end), 'reason': self.reason}


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a migration in its queue, and its expected times.

    :ivar position: 1 for the one that starts next; None: it does not wait in a queue.
    :ivar waits_for: what it waits for; None: nothing.
    """

    position: int | None
    waits_for: str | None
    expected: Expected


# --- a host and its migrations ---------------------------------------------------------------------------------------


def of_host(outlook: Outlook, leaving: Iterable[Migration], sizes: Mapping[str, int]) -> dict[str, Place]:
    """Return the place of each migration in progress of one source, in their order.

    :param sizes: instance -> its memory in MiB.
    """
    ordered = sorted(leaving, key=_order)
    held = {one.uuid: why for one in ordered if (why := _why_unknown(one)) is not None}
    jobs = [
        _job(one, sizes.get(one.instance_uuid, 0), outlook.now)
        for one in ordered
        if one.uuid not in held and one.instance_uuid in sizes
    ]
    # Most of a queue belong to one drain.
    groups = collections.Counter(one.drain or one.source_compute for one in ordered)
    found, _ = play(outlook, jobs, groups.most_common(1)[0][0] if groups else '')
    positions = _positions(one.uuid for one in ordered if one.status not in MOVING and one.uuid not in held)
    return {
        one.uuid: Place(
            positions.get(one.uuid),
            one.waits_for or _queue(positions.get(one.uuid), one.source_compute),
            found.get(one.uuid, Expected(reason=held.get(one.uuid, 'Its guest was deleted.'))),
        )
        for one in ordered
    }


_LATEST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


def _order(one: Migration) -> tuple[int, int, datetime.datetime, int]:
    """Return the sort key of a migration at its source: first what runs, then its queue, then by priority."""
    if one.status in MOVING:
        return 0, 0, one.running_at or one.created_at or _LATEST, one.id
    if one.status == _S.QUEUED:
        return 1, 0, _LATEST, one.id
    return 2 + (one.status == _S.ACCEPTED), -one.priority, one.created_at or _LATEST, one.id


def _why_not_soon(one: Migration) -> str | None:
    """Return why a migration does not end by itself in the time that others took; None: it may."""
    if one.in_progress and one.stuck_reason is not None:
        return 'It is stuck. It goes on once the cause of that is fixed.'
    if one.in_progress and one.wait_kind in _OF_A_HOST:
        return f'It waits: {(one.waits_for or "").rstrip(".")}.'
    return None


def _why_unknown(one: Migration) -> str | None:
    """Return why the end of a migration is not known, whatever others took; None: it may be known."""
    if one.ended:
        return f'It has ended: {one.status}.'
    if (why := _why_not_soon(one)) is not None:
        return why
    if not one.is_live:
        kind = 'an evacuation' if one.is_evacuation else 'a cold migration'
        return f'It is {kind}, which copies no memory. How long one takes is not recorded.'
    if one.abort_requested_at is not None:
        return 'An abort of it was requested.'
    return None


def _job(one: Migration, size_mb: int, now: datetime.datetime) -> Job:
    """Return a migration in progress as a job."""
    job = Job(one.uuid, size_mb, source=one.source_compute, destination=one.dest_compute)
    if one.status not in MOVING:
        return job
    began = one.running_at or now
    elapsed = max(0.0, (now - began).total_seconds())
    copied, remains = one.memory_processed or 0, one.memory_remaining
    reported = (one.updated_at - began).total_seconds() if one.updated_at is not None else 0.0
    if one.status != _S.RUNNING or remains is None or copied <= 0 or reported <= 0:
        return dataclasses.replace(job, elapsed=elapsed)
    whole = remains * reported / copied  # from the report on
    left = max(0.0, whole - (elapsed - reported))
    return dataclasses.replace(job, elapsed=elapsed, left=left)


def _job_of_member(drain: Drain, member: Member, now: datetime.datetime) -> Job:
    """Return a member without a migration here as a job."""
    is_back = drain.direction == Direction.BACK
    source, destination = (member.source, drain.host) if is_back else (drain.host, None)
    job = Job(member.instance_uuid, member.size_mb, source=source, destination=destination)
    if member.status == _M.MOVING and member.began_at is not None:
        return dataclasses.replace(job, elapsed=max(0.0, (now - member.began_at).total_seconds()))
    return dataclasses.replace(job, not_before=_seconds_until(member.not_before, now))


def _positions(uuids: Iterable[str]) -> dict[str, int]:
    return {uuid: number for number, uuid in enumerate(uuids, 1)}


def _queue(position: int | None, host: str) -> str | None:
    return None if position is None else f'{ordinal(position)} in the queue of {host}'


def ordinal(number: int) -> str:
    """Return a number as in ``1st``, ``2nd``, ``3rd`` and ``11th``."""
    ending = 'th' if number % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')
    return f'{number}{ending}'


# --- a drain and its members -----------------------------------------------------------------------------------------


def of_drain(
    outlook: Outlook, drain: Drain, members: Sequence[Member], rows: Iterable[Migration]
) -> tuple[Expected, dict[str, Place]]:
    """Return the expected times of a drain, and guest -> the place of each of its members.

    :param rows: the newest migrations of the members that move.
    """
    by_uuid = {row.uuid: row for row in rows}
    ordered = sorted(members, key=lambda one: place(drain, one))
    moving = {
        one.instance_uuid: by_uuid[one.mark] for one in ordered if one.status == _M.MOVING and one.mark in by_uuid
    }
    held = {one.instance_uuid: why for one in ordered if (why := _why_held(drain, one, moving)) is not None}
    on_its_way = sorted((uuid for uuid in moving if uuid not in held), key=lambda uuid: _order(moving[uuid]))
    sizes = {one.instance_uuid: one.size_mb for one in ordered}
    jobs = [dataclasses.replace(_job(moving[uuid], sizes[uuid], outlook.now), uuid=uuid) for uuid in on_its_way]
    others = [one for one in ordered if one.instance_uuid not in held and one.instance_uuid not in moving]
    # Those that move come first. Another control plane has their migrations.
    others.sort(key=lambda one: one.status != _M.MOVING)
    jobs += [_job_of_member(drain, one, outlook.now) for one in others]
    found, whole = play(_of_drain(outlook, drain), jobs, drain.uuid)
    positions = _positions(job.uuid for job in jobs if job.elapsed is None)
    places = {
        one.instance_uuid: Place(
            positions.get(one.instance_uuid),
            one.reason or _queue(positions.get(one.instance_uuid), one.source or drain.host),
            found.get(one.instance_uuid, Expected(reason=held.get(one.instance_uuid))),
        )
        for one in ordered
    }
    reasons = ((one.name, _why_not_soon(moving[one.instance_uuid])) for one in ordered if one.instance_uuid in moving)
    held_up = [f'The migration of {name} cannot end now. {why}' for name, why in reasons if why is not None]
    return _whole(drain, whole, jobs, held_up), places


def of_plan(
    outlook: Outlook, drain: Drain, sizes: Mapping[str, int]
) -> tuple[dict[str, int] | None, dict[str, dict[str, int]]]:
    """Return the seconds of a drain, and guest -> the seconds of its copy; empty if nothing is known.

    :param sizes: guest -> its memory in MiB, in the order of the drain.
    """
    if not sizes or len(outlook.past) < LEAST:
        return None, {}
    jobs = [Job(uuid, size_mb, source=drain.host) for uuid, size_mb in sizes.items()]
    _, whole = play(_of_drain(outlook, drain), jobs, drain.uuid)
    of_a_mib = Band.of([one.rate for one in outlook.past], len(outlook.past))
    each = {uuid: Band(of_a_mib.p50 * size_mb, of_a_mib.p80 * size_mb).seconds() for uuid, size_mb in sizes.items()}
    return (whole.seconds() if whole is not None else None), each


def _of_drain(outlook: Outlook, drain: Drain) -> Outlook:
    """Return an outlook within the bounds of a drain."""
    slots = min(outlook.slots, drain.parallel or outlook.slots)
    return dataclasses.replace(outlook, slots=slots, destinations=drain.destinations or ())


def _why_held(drain: Drain, member: Member, moving: Mapping[str, Migration]) -> str | None:
    """Return why the end of a member is not known, whatever others took; None: it may be known."""
    if member.ended or drain.ended:
        return f'Its part in the drain has ended: {member.status}.'
    if member.instance_uuid in moving:
        # A migration whose end the drain has not seen yet ends at once.
        return _why_unknown(moving[member.instance_uuid])
    if member.status == _M.BLOCKED:
        return f'It is blocked. {member.reason or ""}'.strip()
    if member.status == _M.MOVING:
        return None
    if drain.cancel_requested_at is not None:
        return 'The drain is being cancelled.'
    if drain.paused:
        return 'The drain is paused.'
    is_away = any(one.wait_kind in _OF_A_HOST and member.source in (one.wait_hosts or ()) for one in moving.values())
    return _WAITS if is_away or (drain.waits_for and not moving) else None


def _whole(drain: Drain, end: Band | None, jobs: Sequence[Job], held_up: Sequence[str]) -> Expected:
    """Return when a drain is expected to end.

    :param held_up: why some of its migrations do not end by themselves, each as a sentence.
    """
    if drain.ended:
        return Expected(reason=f'It has ended: {drain.status}.')
    if drain.paused and drain.cancel_requested_at is None:
        return Expected(reason='It is paused.')
    if held_up:
        more = f' The same holds for {len(held_up) - 1} more.' if len(held_up) > 1 else ''
        return Expected(reason=held_up[0] + more)
    if drain.waits_for and drain.cancel_requested_at is None:
        return Expected(reason=_WAITS)
    if end is not None:
        return Expected(end=end)
    nothing = 'No guest is left that moves or waits. The drain ends after its checks.'
    nothing = 'Its guests are not listed yet.' if drain.status == DrainStatus.ACCEPTED else nothing
    return Expected(reason=UNKNOWN if jobs else nothing)


def _seconds_until(moment: datetime.datetime | None, now: datetime.datetime) -> float:
    return 0.0 if moment is None else max(0.0, (moment - now).total_seconds())


# --- the runs --------------------------------------------------------------------------------------------------------

#: What a migration waits for, if a host or its hypervisor has to report first.
_OF_A_HOST = frozenset(
    {WaitKind.HOST, WaitKind.COPYING_HOST, WaitKind.GUEST, WaitKind.ELSEWHERE, WaitKind.LAST_PAGES_DOWN}
)
#: The reason if nothing gets on. What the drain waits for is a field of its own.
_WAITS = 'The drain cannot go on: what it waits for, or the reasons of its guests, say why.'
#: The reason if too little was recorded.
UNKNOWN = f'Fewer than {LEAST} live migrations have completed, so it is not known how long one takes.'


def play(outlook: Outlook, jobs: Sequence[Job], group: str) -> tuple[dict[str, Expected], Band | None]:
    """Return when each of some jobs starts and ends, and when the last one ends.

    :param jobs: those that run, then those that wait, in their order.
    :param group: the drain, or the source, of most of the jobs.
    """
    if not jobs or len(outlook.past) < LEAST:
        return {job.uuid: Expected(reason=UNKNOWN) for job in jobs}, None
    queue, past = _prepare(outlook, jobs)
    rates = _Rates(past, group)
    # The answer to equal facts must not change from one request to the next.
    dice = random.Random(0)  # noqa: S311 -- nothing secret depends on it
    runs = max(20, min(_RUNS, _PLAYED // (len(jobs) * outlook.share)))
    starts: list[list[float]] = [[] for _ in jobs]
    ends: list[list[float]] = [[] for _ in jobs]
    for _ in range(runs):
        queue.run(rates.draw_group(dice), dice, starts, ends)
    found = {
        job.uuid: Expected(
            None if job.elapsed is not None else Band.of(starts[number], rates.known),
            Band.of(ends[number], rates.known),
        )
        for number, job in enumerate(jobs)
    }
    return found, Band.of([max(each) for each in zip(*ends, strict=True)], rates.known)


def _prepare(outlook: Outlook, jobs: Sequence[Job]) -> tuple[_Queue, Sequence[Past]]:
    """Return what each run plays, and the recorded migrations with the times that it draws from."""
    sources = {job.source for job in jobs}
    others = [one for one in outlook.running if one.source not in sources]
    went = {one.destination for one in [*outlook.past, *others]} - {'', *sources}
    queue = _Queue(
        jobs,
        [_links(job.source, job.destination) for job in jobs],
        max(1, outlook.slots),
        outlook.inbound or math.inf,
        False,
        collections.Counter(link for one in others for link in _links(one.source, one.destination)),
        [f'into {host}' for host in outlook.destinations or sorted(went)],
    )
    now = outlook.now.timestamp()
    copies = {
        job.uuid: Past('', job.size_mb, job.elapsed, job.source, now - job.elapsed, job.destination or '')
        for job in jobs
        if job.elapsed is not None
    }
    past = alone([*outlook.past, *copies.values(), *others])
    recorded = past[: len(outlook.past)]
    # What explains the recorded times better is right. Without any that ran at the same time, both do.
    if spread(recorded) >= spread(outlook.past):
        return queue, outlook.past
    work = {uuid: one.seconds for uuid, one in zip(copies, past[len(recorded) :], strict=False)}
    return dataclasses.replace(queue, shares=True, jobs=[_alone(job, work.get(job.uuid)) for job in jobs]), recorded


def _alone(job: Job, seconds: float | None) -> Job:
    """Return a job with what it has taken and has left in seconds in which it has its links to itself.

    :param seconds: what it has taken; None: it waits.
    """
    if not job.elapsed or seconds is None:
        return job
    left = None if job.left is None else job.left * seconds / job.elapsed
    return dataclasses.replace(job, elapsed=seconds, left=left)


@dataclasses.dataclass(frozen=True)
class _Queue:
    """The jobs of one source, and the links that they use.

    :ivar inbound: the number of migrations that go to one host at once.
    :ivar shares: whether migrations share a link. ``elapsed`` and ``left`` of a job are without others on its links.
    :ivar others: link -> the number of other migrations that use it, now and until the end.
    :ivar links: those of each job.
    :ivar destinations: the links to the hosts to which jobs may go that have no destination yet.
    """

    jobs: Sequence[Job]
    links: Sequence[tuple[str, ...]]
    slots: int
    inbound: float
    shares: bool
    others: Mapping[str, int]
    destinations: Sequence[str]

    def run(
        self, rates: Sequence[float], dice: random.Random, starts: list[list[float]], ends: list[list[float]]
    ) -> None:
        """Play the queue once.

        :param rates: recorded seconds for each MiB.
        """
        now, used = 0.0, collections.defaultdict(int, self.others)
        running: list[tuple[float, int, tuple[str, ...]]] = []  # the seconds that are left, the job, its links
        later = sorted((job.not_before, number) for number, job in enumerate(self.jobs) if job.elapsed is None)
        ready: list[int] = []
        # The first of the hosts to which as few go is another one in each run.
        first = int(dice.random() * len(self.destinations))
        destinations = [*self.destinations[first:], *self.destinations[:first]]

        def start(seconds: float, number: int, links: tuple[str, ...]) -> None:
            for link in links:
                used[link] += 1
            running.append((seconds, number, links))
            starts[number].append(now)

        for number, job in enumerate(self.jobs):
            if job.elapsed is not None:
                start(_left(job, job.elapsed, rates, dice), number, self.links[number])
        while running or ready or later:
            while later and later[0][0] <= now:
                heapq.heappush(ready, heapq.heappop(later)[1])
            while ready and len(running) < self.slots:
                job = self.jobs[ready[0]]
                links = self.links[ready[0]]
                if job.destination is None and destinations:
                    free = (link for link in destinations if not used[link])
                    links = (*links, next(free, None) or min(destinations, key=used.__getitem__))
                    if running and used[links[-1]] >= self.inbound:
                        break
                start(dice.choice(rates) * job.size_mb, heapq.heappop(ready), links)
            # One of several on a link takes as many seconds for each of its own.
            slower = [max([used[link] for link in links]) if self.shares else 1 for _, _, links in running]
            step = min([one[0] * each for one, each in zip(running, slower, strict=True)], default=math.inf)
            if later and len(running) < self.slots:
                step = min(step, later[0][0] - now)
            now += step
            before, running[:] = running[:], []
            for (left, number, links), each in zip(before, slower, strict=True):
                if left - step / each > _LITTLE:
                    running.append((left - step / each, number, links))
                    continue
                ends[number].append(now)
                for link in links:
                    used[link] -= 1


def _left(job: Job, elapsed: float, rates: Sequence[float], dice: random.Random) -> float:
    """Return in how many seconds a running migration ends."""
    least = elapsed + (job.left or 0.0)
    longer = [rate * job.size_mb - elapsed for rate in rates if rate * job.size_mb > least]
    # One that takes longer than all recorded ones is expected to take a quarter more.
    drawn = dice.choice(longer) if longer else (job.left or 0.0) + least / 4
    # What a guest dirties meanwhile is sent again. A copy that comes to an end sends no more than as much again.
    return drawn if job.left is None else min(drawn, job.left + least)


class _Rates:
    """The recorded seconds for each MiB, by group.

    :ivar known: their number.
    """

    def __init__(self, past: Iterable[Past], group: str) -> None:
        groups: dict[str, list[float]] = collections.defaultdict(list)
        for one in past:
            groups[one.group].append(one.rate)
        self.known = sum(map(len, groups.values()))
        self._own = groups.pop(group, [])
        self._others = [*groups.values()]
        self._weights = [len(one) for one in self._others]

    def draw_group(self, dice: random.Random) -> Sequence[float]:
        """Return the rates of one group: the own one the more often, the more it has."""
        own = len(self._own) / (len(self._own) + _OTHERS) if self._others else 1.0
        if dice.random() < own:
            return self._own
        return dice.choices(self._others, self._weights)[0]
