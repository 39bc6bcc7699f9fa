# SPDX-License-Identifier: Apache-2.0

"""The timeline of one migration, read from the database at once, and what the migration waits for.

Nothing here calls a host, so the commands also work while every service is down. They show only what the database has.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.db import actions
from migrator.db.api import Database
from migrator.db.cleanups import Cleanup
from migrator.db.conductors import ConductorBoot
from migrator.db.slots import Bounds
from migrator.objects import COMPUTE_BINARY, Instance, Migration, MigrationStatus, Outcome, Service, remedies, times
from migrator.objects.steps import ABANDON, ABANDONMENT, AT_DESTINATION, AT_SOURCE, ENDS_COPIES, PIVOTS
from migrator.saga import log
from migrator.saga.saga import Saga
from migrator.views import services

Status = MigrationStatus

#: The task of a migration -> its saga, as conductors run it (:func:`migrator.conductor.tasks.sagas`).
Sagas = Mapping[str, Saga[Any]]

_RUNNING = (Status.RUNNING.value, Status.RUNNING_POST_COPY.value)


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything that the database has of one migration.

    :ivar now: the database's time of the reading.
    :ivar instance: None: the instance was deleted.
    :ivar entries: the log, oldest first.
    :ivar steps: the records that result from the log, oldest first.
    :ivar boots: every boot of every conductor.
    :ivar before: the number of migrations before this one in the queue of the source.
    :ivar running: the number of running migrations at the source.
    :ivar is_defined: whether the host of the instance has reported what another one needs to start the guest.
    :ivar waiters: the uuids of the migrations that wait for a slot as this one does, in their order.
    """

    now: datetime.datetime
    migration: Migration
    instance: Instance | None
    entries: Sequence[log.Entry]
    steps: Sequence[log.StepRecord]
    cleanups: Sequence[Cleanup]
    requests: Sequence[actions.Action]
    services: Sequence[Service]
    boots: Sequence[ConductorBoot]
    lease: float
    saga: Saga[Any]
    before: int = 0
    running: int = 0
    waiters: Sequence[str] = ()
    is_defined: bool = True
    seen: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def server_of(self, owner: str | None) -> str | None:
        """Return the name of the conductor of which an owner's id is a boot."""
        return next((one.server for one in self.boots if one.id == owner), owner)

    @property
    def owner(self) -> ConductorBoot | None:
        """The conductor's boot that owns the migration, or owned it last; None: it had no owner."""
        return next((one for one in self.boots if one.id == self.migration.owner), None)

    @property
    def living(self) -> list[str]:
        """The names of the conductors whose lease has not expired, in order."""
        return sorted({one.server for one in self.boots if one.lease_until > self.now})

    @property
    def no_reports(self) -> list[str]:
        """Why no host can report, in one sentence; empty: a conductor receives reports."""
        why = services.why_no_reports(self.boots, self.now)
        if why is None:
            return []
        helps = 'Look at the broker' if self.living else 'Start a conductor'
        shown = 'each host is shown in its state at that time'
        sentence = f'{why[0].upper() if not self.living else why[0]}{why[1:]}: {shown}.'
        return [f'{sentence} {helps}. Do not fence a host for this.']

    @property
    def elsewhere(self) -> str | None:
        """Which other hosts have the guest than its own in the database, as a sentence; None: no other."""
        instance = self.instance
        fenced = {one.host for one in self.services if one.binary == COMPUTE_BINARY and one.is_fenced}
        others = sorted(self.seen.keys() - fenced - {instance.host}) if instance is not None else []
        if instance is None or not others:
            return None
        have = ' and '.join(f'{host} ({self.seen[host]})' for host in others)
        return f'The guest was last seen on {have}, and the database has it on {instance.host}.'

    def host_of(self, step: log.StepRecord) -> str | None:
        """Return the host that runs a step, or None if no host does."""
        if step.step in AT_SOURCE:
            return self.migration.source_compute
        if step.step in AT_DESTINATION or step.step == 'move_allocation':
            return self._destination_of(step.attempt)
        return None

    def _destination_of(self, attempt: int) -> str | None:
        for record in self.steps:
            if (record.attempt, record.step) == (attempt, 'move_allocation') and record.input:
                return str(record.input['host'])
        return self.migration.dest_compute if attempt == self.migration.attempt else None

    def service_of(self, host: str) -> Service | None:
        """Return a host's compute service, or None if it has none."""
        binary = COMPUTE_BINARY
        return next((one for one in self.services if (one.host, one.binary) == (host, binary)), None)

    def is_up(self, host: str) -> bool:
        """Return whether a host's compute service is up."""
        service = self.service_of(host)
        return service is not None and service.is_up(self.now, self.lease)

    def reports(self, host: str) -> bool:
        """Return whether a host's compute service reports, whether it is forced down or not."""
        service = self.service_of(host)
        return service is not None and service.replace(forced_down=False).is_up(self.now, self.lease)

    def when_back(self, host: str) -> str:
        """Return when a host that is not up runs its deferred cleanups."""
        if self.reports(host):
            up = remedies.offer(remedies.Kind.DECLARE_UP, {remedies.Reading.HOST_DOWN: False}, host=host)
            return f'once it is not forced down any more ({up})'
        return 'when its compute service is back'

    def is_in_doubt(self, host: str | None) -> bool:
        """Return whether a host has a blocked cleanup, so that the location of the guest is uncertain."""
        return any(cleanup.blocked_because is not None and cleanup.host == host for cleanup in self.cleanups)

    @property
    def hosts(self) -> list[tuple[str, str]]:
        """The (role, host) pairs of the migration. The destination is missing until it is chosen."""
        migration = self.migration
        both = (('source', migration.source_compute), ('destination', migration.dest_compute))
        return [(role, host) for role, host in both if host][: len(migration.hosts)]


def gather(database: Database, migration: Migration, lease: float, sagas: Sagas) -> Facts:
    """Read everything that the database has of a migration."""
    instance = database.instances.find(migration.instance_uuid)
    entries = database.migrations.read_log(migration.uuid)
    leaving = database.migrations.list({'source_compute': migration.source_compute}, in_progress=True)
    waiting = [one for one in leaving if one.status == Status.QUEUED]
    return Facts(
        now=database.services.now(),
        migration=migration,
        instance=instance,
        entries=entries,
        steps=log.records(entries),
        cleanups=[
            cleanup
            for cleanup in database.cleanups.list(instance_uuid=migration.instance_uuid)
            if cleanup.migration_uuid == migration.uuid
        ],
        requests=[
            one
            for one in reversed(database.actions.list(migration.instance_uuid))
            if one.migration_uuid == migration.uuid
        ],
        services=database.services.list(),
        boots=database.conductors.list(),
        lease=lease,
        saga=sagas[migration.task],
        before=sum(one.id < migration.id for one in waiting),
        running=sum(1 for one in leaving if one.status in _RUNNING),
        seen={} if instance is None else database.differences.seen(instance.uuid),
        is_defined=instance is not None and bool(database.definitions.get(instance.uuid, instance.host)),
        waiters=[one.uuid for one in database.slots.read(Bounds()).waiters] if migration.waits_for_slot else [],
    )


# --- in words --------------------------------------------------------------------------------------------------------


def waits(facts: Facts) -> list[str]:
    """Return sentences on what a migration waits for, its end, and its cleanups; the gravest first."""
    migration = facts.migration
    if migration.ended:
        lines = [*_end(facts)]
    else:
        lines = [*_owner(facts), *facts.no_reports, *_stuck(facts), *_hosts(facts), *_requests(facts)]
        # After a request to abandon, no step that was begun is continued.
        lines += [] if migration.abandon_requested_at is not None else _open(facts)
    lines += _cleanups(facts)
    return lines or ['No problem is known: the migration goes on.']


def _end(facts: Facts) -> Iterator[str]:
    migration = facts.migration
    since = _since(facts, next((one.at for one in reversed(facts.entries) if one.kind == log.EntryKind.STATUS), None))
    source, destination = migration.source_compute, migration.dest_compute
    reason = f': {migration.failure}' if migration.failure else ''
    if migration.status == Status.DONE:
        yield f'It is done{since}: the guest was started at {destination}. {source} has not cleaned up yet.'
        yield f'Until then the migration holds its allocation at {source}.'
    elif migration.status in (Status.COMPLETED, Status.CONFIRMED):
        where = f'{"is" if migration.is_cold else "runs"} at {destination}'
        if facts.is_in_doubt(destination):
            where = f'had moved to {destination}'
        yield f'It ended {migration.status}{since}: the guest {where}.'
    elif migration.status == Status.ERROR:
        yield f'It ended in error{since}{reason}'
        if migration.abandon_guest_on is None:
            yield 'Neither of its hosts has the guest: look for it.'
    elif migration.is_evacuation:
        yield f'It ended {migration.status}{since}, undone{reason}'
        yield f'The guest was left at {source}.'
    else:
        how = '.' if migration.status == Status.REVERTED else f', undone{reason}'
        yield f'It ended {migration.status}{since}{how}'
        if facts.elsewhere is not None:
            yield facts.elsewhere
        elif facts.is_in_doubt(source):
            yield f'The guest was at {source} then.'
        else:
            yield f'The guest is at {source}{"" if facts.cleanups else ", and nothing of the migration is left"}.'
    if migration.abort_requested_at is not None:
        done = migration.status == Status.CANCELLED
        result = 'was done' if done else f'was not done: {migration.abort_verdict or "it was too late"}'
        yield f'{_abort(facts)}, and {result}.'


def _stuck(facts: Facts) -> Iterator[str]:
    migration = facts.migration
    if migration.abandon_requested_at is not None:
        yield f'It is being abandoned, {abandoned_by(facts)}.'
        if migration.stuck_reason and _is_abandonment_stuck(facts):
            yield f'The abandonment is stuck and needs an operator: {migration.stuck_reason}'
            yield 'It is tried again with each sweep, and ends once that is fixed.'
        elif migration.stuck_reason and not _is_begun(facts):
            yield f'That has not begun yet. It is stuck: {migration.stuck_reason}'
        elif migration.stuck_reason:
            yield f'It was stuck: {migration.stuck_reason}'
    elif migration.stuck_reason:
        yield f'It is stuck and needs an operator: {migration.stuck_reason}'
        yield 'It is observed again with each sweep, and goes on once that is fixed.'
    if migration.waits_for:
        yield f'It waits: {migration.waits_for.rstrip(".")}.'
    if migration.uuid in facts.waiters:
        place = facts.waiters.index(migration.uuid) + 1
        yield f'It is number {place} of the {len(facts.waiters)} migrations that wait for a slot.'


def abandoned_by(facts: Facts) -> str:
    """Return in words when and by which user an abandon was requested, and the guest's host."""
    migration = facts.migration
    when = times.ago(migration.abandon_requested_at, facts.now)
    user = migration.abandon_requested_by or 'an unknown user'
    return f'as requested {when} by {user}: the guest is on {migration.abandon_guest_on}'


def _is_begun(facts: Facts) -> bool:
    """Return whether a conductor has begun to abandon the migration."""
    return log.StepLog(facts.steps).find(facts.migration.attempt, ABANDON) is not None


def _is_abandonment_stuck(facts: Facts) -> bool:
    """Return whether the migration became stuck after the abandonment had begun, and not only before."""
    stuck = [one.seq for one in facts.entries if one.kind == log.EntryKind.STUCK]
    abandoned = [one.seq for one in facts.entries if one.step == ABANDON and one.attempt == facts.migration.attempt]
    return bool(stuck and abandoned) and stuck[-1] > abandoned[0]


def _hosts(facts: Facts) -> Iterator[str]:
    for role, host in facts.hosts:
        service = facts.service_of(host)
        if host not in facts.migration.hosts_to_poll:
            if facts.reports(host):
                yield f'The source {host} reports again: it keeps the guest unless that was started elsewhere.'
        elif service is None:
            yield f'The {role} {host} has no compute service: no service of that name has ever reported.'
        elif service.forced_down:
            yield f'The {role} {host} is forced down: an operator has declared that nothing runs there.'
        elif not facts.no_reports and not facts.is_up(host):
            seen = times.ago(service.last_seen_up, facts.now)
            why = 'was stopped' if seen is None else f'is down: it last reported {seen}'
            look = {remedies.Reading.HOST_REPORTS: facts.reports(host)}
            # A guest that waits for its user there has no other copy, so a declaration would change nothing.
            waits = facts.migration.stays and facts.migration.status == Status.FINISHED
            declare = '' if waits else remedies.offer(remedies.Kind.DECLARE_DOWN, look, host=host)
            yield f'The compute service of the {role} {host} {why}. Start it.{f" Or, {declare}" if declare else ""}'


def _owner(facts: Facts) -> Iterator[str]:
    owner, living = facts.owner, facts.living
    if owner is not None and owner.lease_until > facts.now:
        return
    if owner is not None:
        since = times.ago(owner.lease_until, facts.now)
        what = f'Its conductor {owner.server} is gone: its lease ended {since}.'
    elif facts.migration.owner is not None:
        what = f'Its conductor {facts.migration.owner} is gone.'
    else:
        what = 'No conductor owns it yet.'
    yield f'{what} The next sweep of {" or ".join(living)} takes it over.' if living else what


def _abort(facts: Facts) -> str:
    when = times.ago(facts.migration.abort_requested_at, facts.now)
    return f'An abort was requested {when} by {facts.migration.abort_requested_by or "an unknown user"}'


def _requests(facts: Facts) -> Iterator[str]:
    migration = facts.migration
    if migration.abort_requested_at is not None:
        yield f'{_abort(facts)}.'
    if migration.force_complete_requested_at is not None:
        when = times.ago(migration.force_complete_requested_at, facts.now)
        yield f'A forced completion was requested {when}.'
    if migration.outcome == Outcome.BACK:
        yield f'It is being undone: {migration.failure or "an abort was requested"}'
    if migration.is_undecided:
        yield 'It waits for its user to confirm or to revert it.'


def is_undecidable(facts: Facts) -> bool:
    """Return whether a cold migration waits for its user, who can do nothing while its source is down."""
    one = facts.migration
    requests = (one.confirm_requested_at, one.revert_requested_at, one.abandon_requested_at)
    return one.status == Status.FINISHED and not any(requests) and not facts.is_up(one.source_compute)


def _open(facts: Facts) -> Iterator[str]:
    """Yield sentences on the steps that were begun and are not done yet."""
    migration = facts.migration
    # The job of a stuck or abandoned migration may have ended, so its step and its figures are out of date.
    given_up = migration.stuck_reason is not None or migration.abandon_requested_at is not None
    for step in facts.steps:
        moves = step.step in PIVOTS and step.direction == log.DO
        if step.attempt != migration.attempt or step.state != log.StepState.INTENT or step.step in ABANDONMENT:
            continue
        if moves and given_up:
            continue
        if moves and migration.status == Status.QUEUED:
            run = {0: 'no migration runs', 1: '1 runs'}.get(facts.running, f'{facts.running} run')
            yield f'It is number {facts.before + 1} in the queue of {migration.source_compute}, where {run} now.'
            continue
        actor = facts.host_of(step) or 'The conductor'
        verb = 'does' if step.direction == log.DO else 'undoes'
        failed = step.facts.reason
        last = f'; the last time it failed: {failed}' if failed else '.'
        yield f'{actor} {verb} {step.step}: begun{_since(facts, step.started_at)}{last}'
    if given_up or migration.status not in _RUNNING:
        return
    if migration.memory_total and migration.memory_remaining is not None:
        left, total = _gib(migration.memory_remaining), _gib(migration.memory_total)
        yield f'{left} of {total} GiB of memory are still to be copied.'


def _cleanups(facts: Facts) -> Iterator[str]:
    for cleanup in facts.cleanups:
        since = _since(facts, cleanup.created_at)
        yield f'{cleanup.host} has the deferred cleanup {cleanup.step}, since{since}: {cleanup.reason}'
        if cleanup.blocked_because:
            yield f'The cleanup is blocked and needs an operator: {cleanup.blocked_because}'
        elif not (facts.reports if cleanup.step in ENDS_COPIES else facts.is_up)(cleanup.host):
            yield f'{cleanup.host} runs it {facts.when_back(cleanup.host)}.'


def _since(facts: Facts, at: datetime.datetime | None) -> str:
    found = times.ago(at, facts.now)
    return f' {found}' if found else ''


def _gib(amount: int) -> str:
    return f'{amount / 2**30:.1f}'
