# SPDX-License-Identifier: Apache-2.0

"""The audit of a stock Nova's allocations, and the repair of a guest's wrong ones in one atomic write.

While a guest moves, the server holds its allocation at the destination, and the migration holds the one at the source.
Nova leaves them so if a nova-compute is killed in the middle. :func:`judge` decides what is wrong with one guest, as a
pure function. :func:`audit` reads Nova and Placement, and reports only what two readings at an interval agree on, since
guests move meanwhile. :func:`heal` sends the consumer generations that were read, so that Placement refuses the write
if a consumer has changed since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from migrator import exception, executors
from migrator.nova import guests
from migrator.nova.client import Nova
from migrator.nova.resources import NovaMigration, Server
from migrator.objects import remedies
from migrator.placement_client import allocation_state, allocations, providers
from migrator.placement_client.allocation_state import Allocations, ConsumerAllocations
from migrator.placement_client.audit import (
    DOUBLED,
    LEAKED,
    MISSING,
    UNKNOWN_CONSUMER,
    WRONG_HOST,
    held_by_provider,
)
from migrator.placement_client.client import PlacementClient

#: The verdicts that are no error: the allocations are as they should be in the middle of an operation, or Nova does not
#: show enough to judge them. :func:`heal` leaves both alone.
IN_PROGRESS = 'in progress'
NOT_JUDGED = 'not judged'

_LIVE, _EVACUATION = 'live-migration', 'evacuation'
#: The final statuses of a migration that leave the guest where Nova shows it.
_CLEAN = frozenset({'completed', 'cancelled', 'failed', 'confirmed', 'reverted'})
#: The statuses of a migration that has ended. An evacuation is ``done`` until its source starts again.
_ENDED = _CLEAN | {'error'}
#: The statuses of a guest that a live migration can leave where it was.
_RUNNING = frozenset({'ACTIVE', 'PAUSED'})
#: The status of a server while the database of its cell does not answer.
_UNKNOWN = 'UNKNOWN'
#: Placement's name for the type of a consumer without a type. Nova gives none.
_NO_TYPE = 'unknown'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """The compute hosts.

    :ivar of: provider uuid -> host, for each resource provider in the tree of a hypervisor. A shared one is in none.
    :ivar down: the hosts whose nova-compute does not report.
    :ivar unread: the hosts in cells whose database does not answer. Without a word a list lacks what is in such a cell.
    """

    of: Mapping[str, str]
    down: Collection[str] = ()
    unread: Collection[str] = ()

    def holding(self, held: Allocations) -> set[str | None]:
        """Return the hosts of an allocation; None stands for the providers outside every host's tree."""
        return {self.of.get(provider) for provider in held}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What Nova and Placement show of one guest, or of a consumer that belongs to no guest.

    :ivar consumer: the uuid of the guest, or of the consumer.
    :ivar server: None: Nova has no such guest.
    :ivar deleted: what the consumer was, if Nova remembers it: ``server``, or ``migration`` of a deleted server.
    :ivar migrations: the guest's, the newest first.
    :ivar held: consumer uuid -> what it holds: the guest or consumer itself, and the guest's migrations.
    :ivar unlisted: the consumers that an earlier list has shown as migrations of the guest, and the last one has not.
    """

    consumer: str
    server: Server | None = None
    deleted: str | None = None
    migrations: Sequence[NovaMigration] = ()
    held: Mapping[str, ConsumerAllocations]
    unlisted: Collection[str] = ()

    @property
    def own(self) -> Allocations:
        """What the guest or consumer itself holds."""
        return self.held[self.consumer].allocations

    @property
    def claims(self) -> list[tuple[NovaMigration, Allocations]]:
        """The migrations that hold something, and what."""
        return [
            (one, self.held[one.uuid].allocations)
            for one in self.migrations
            if one.uuid in self.held and self.held[one.uuid].allocations
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holding:
    """What one consumer holds on one resource provider.

    :ivar host: None: the provider is in no host's tree.
    :ivar resources: resource class -> amount.
    """

    consumer: str
    consumer_type: str
    provider: str
    host: str | None
    resources: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The wrong allocations of one guest, or of a consumer that belongs to no guest.

    :ivar consumer: the uuid of the guest, or of the consumer.
    :ivar name: the guest's name; None: it is not known.
    :ivar verdict: as in :mod:`migrator.placement_client.audit`, or :data:`IN_PROGRESS` or :data:`NOT_JUDGED`.
    :ivar holdings: everything that the guest and its migrations hold.
    :ivar right: what they have to hold; None: it is not known.
    :ivar remedy: what the operator does.
    :ivar writes: the repair, all in one request; empty: the audit has no repair.
    :ivar doubt: why the repair is made only if the operator names the consumer; None: it is made without.
    """

    consumer: str
    name: str | None
    verdict: str
    holdings: Sequence[Holding]
    reason: str
    right: str | None
    remedy: str
    writes: Sequence[allocations.Write] = ()
    doubt: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether it is an error."""
        return self.verdict not in (IN_PROGRESS, NOT_JUDGED)

    @property
    def holders(self) -> set[str]:
        """The uuids of its consumers."""
        return {self.consumer, *(one.consumer for one in self.holdings)}

    @property
    def request(self) -> dict[str, Any] | None:
        """The request of the repair: its method, URL and body."""
        body = {write.consumer.uuid: write.body() for write in self.writes}
        return {'method': 'POST', 'url': '/allocations', 'body': body} if body else None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {
            'consumer': self.consumer,
            'name': self.name,
            'verdict': self.verdict,
            'holdings': [dataclasses.asdict(one) for one in self.holdings],
            'reason': self.reason,
            'right': self.right,
            'remedy': self.remedy,
            'request': self.request,
            'doubt': self.doubt,
        }


# --- the judgement ---------------------------------------------------------------------------------------------------


def judge(case: Case, hosts: Hosts) -> Finding | None:
    """Return what is wrong with one guest or consumer, as a pure function; None: nothing.

    A guest without a task is where Nova shows it. Amounts are not compared with the flavor.
    """
    return _Judgement(case, hosts).run()


class _Judgement:
    def __init__(self, case: Case, hosts: Hosts) -> None:
        self._case = case
        self._hosts = hosts
        self._at = hosts.holding(case.own)

    def run(self) -> Finding | None:
        server = self._case.server
        if server is None:
            return self._of_no_server() if self._case.own else None
        if not self._case.claims and self._at - {None} == {server.host} - {None}:
            return None
        if (operation := self._operation(server)) is not None:
            return self._finding(IN_PROGRESS, operation, 'wait for its end, and audit again')
        if server.host is None:
            doubt = 'find out why the server has no host'
            return self._repair(LEAKED, f'it is on no host, and its status is {server.status}', {}, doubt)
        if server.host not in self._hosts.of.values():
            why = f'it is on {server.host}, of which Nova shows no hypervisor'
            return self._finding(NOT_JUDGED, why, f'start nova-compute on {server.host}, and audit again')
        return self._misplaced(server, server.host)

    def _operation(self, server: Server) -> str | None:
        """Return the operation in progress that explains these allocations, or None."""
        claiming = [one for one, _ in self._case.claims if one.status not in _ENDED]
        moving = next((f', and {self._what(one)}' for one in claiming), '')
        if server.task_state is not None:
            return f'its task is {server.task_state}{moving}'
        if server.vm_state in ('building', 'resized'):
            return f'it is {server.vm_state}{moving}'
        evacuations = [
            one
            for one in self._case.migrations
            if one.type == _EVACUATION
            and one.source_compute in self._at
            and one.status not in _ENDED
            # nova-compute removes the old copy before it reports again.
            and (one.status != 'done' or one.source_compute in self._hosts.down)
        ]
        others = [one for one in claiming if one.type != _LIVE]
        return next((self._what(one) for one in [*evacuations, *others]), None)

    def _what(self, one: NovaMigration) -> str:
        text = f'{one.type} {one.id} from {one.source_compute} to {one.dest_compute or "no host yet"} is {one.status}'
        if one.source_compute in self._hosts.down:
            text += f', and nova-compute on {one.source_compute} is down'
            if one.type == _EVACUATION:
                text += ': Nova releases the allocation there when it starts again, or when its service is deleted'
        return text

    def _misplaced(self, server: Server, home: str) -> Finding | None:
        """Return what is wrong with a guest that has no task, and is at ``home``."""
        own, claims = self._case.own, self._case.claims
        elsewhere = sorted(host for host in self._at if host not in (home, None))
        kept = next((held for _, held in claims if home in self._hosts.holding(held) <= {home, None}), None)
        wanted: Allocations | None = None
        if home in self._at:
            verdict, why = DOUBLED if elsewhere else LEAKED, f'it is on {home}, where it holds its allocation'
            if not elsewhere or None not in self._at:  # a shared provider does not show which host its part is for
                wanted = {
                    provider: held for provider, held in own.items() if self._hosts.of.get(provider) in (home, None)
                }
        elif kept is not None:
            verdict, why = WRONG_HOST if own else MISSING, f'it is on {home}, where its migration holds its allocation'
            wanted = kept
        elif own:
            verdict, why = WRONG_HOST, f'it is on {home}, where it holds nothing'
        elif any(server.flavor.resources().values()) or claims:
            verdict, why = MISSING, f'it is on {home}, and it has no allocation'
        else:
            return None
        parts = [why, *(f'it holds one on {host}' for host in elsewhere)]
        parts += [f'{self._what(one)} and holds one on {self._names(held)}' for one, held in claims]
        doubt = self._doubt(server, elsewhere if wanted is not None else ()) or self._unread()
        if wanted is None:
            look = {remedies.Reading.DOUBT: doubt is not None}
            remedy = remedies.offer(remedies.Kind.HEAL_BY_NOVA, look, guest=server.uuid)
            return self._finding(verdict, '; '.join(parts), remedy or f'{doubt}', doubt=doubt)
        return self._repair(verdict, '; '.join(parts), wanted, doubt)

    def _doubt(self, server: Server, elsewhere: Iterable[str]) -> str | None:
        """Return why the guest may not be where Nova shows it, or None."""
        newest = guests.newest_move(self._case.migrations)
        if newest is not None and guests.is_half_written(newest, server):
            what = f'{newest.type} {newest.id} to {newest.dest_compute} is {newest.status}'
            return f'find out where the guest is: {what}, and Nova shows it on {server.host}'
        for one, _ in self._case.claims:
            if one.status in _CLEAN:
                continue
            what = f'find out where the guest is: {one.type} {one.id} is {one.status}'
            if one.type != _LIVE:
                return what
            if server.status not in _RUNNING:
                return f'{what}, and the server is {server.status}'
        for one in self._case.migrations:
            if one.status not in _ENDED | {'done'}:
                what = f'find out whether it goes on: {one.type} {one.id} is {one.status}'
                return f'{what}, although the server has no task: nova-compute was restarted, or the state was reset'
        left = {one.dest_compute for one, _ in self._case.claims}
        for one in self._case.migrations:
            if one.type == _EVACUATION and one.status == 'completed':
                left.add(one.source_compute)
        for host in elsewhere:
            if host not in left:
                return (
                    f'find out where the guest is: no move explains its allocation on {host}; nova-compute on {host} '
                    'removes the copy of an evacuated guest when it starts'
                )
        return None

    def _of_no_server(self) -> Finding:
        if self._case.deleted is not None:
            if self._case.deleted == 'server':
                return self._repair(LEAKED, 'it is a server that Nova has deleted', {}, None)
            # Nova leaves a cell that does not answer out of its lists, and still finds the migration as a marker.
            doubt = 'find out whether its guest exists: that is in a cell that does not answer, or it was deleted'
            return self._repair(LEAKED, 'it is a migration that no list of Nova shows', {}, doubt)
        why = 'it is neither a server nor a migration that Nova knows'
        return self._repair(UNKNOWN_CONSUMER, why, {}, 'find out which service uses it')

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _names(self, held: Allocations) -> str:
        return ' and '.join(sorted(host or 'no compute host' for host in self._hosts.holding(held)))

    def _repair(self, verdict: str, why: str, wanted: Allocations, doubt: str | None) -> Finding:
        """Return a finding whose repair gives the guest or consumer ``wanted``, and its migrations nothing."""
        doubt = doubt or self._unread()
        remedy = remedies.first(
            remedies.offer(remedies.Kind.HEAL_NOVA, {remedies.Reading.DOUBT: doubt is not None}),
            remedies.offer(remedies.Kind.HEAL_ONE_OF_NOVA, doubt=doubt, consumer=self._case.consumer),
        )
        right = f'{_amounts(wanted)} on {self._names(wanted)}, and nothing else' if wanted else 'nothing'
        wants = {self._case.consumer: wanted}
        writes = [
            allocations.Write(
                consumer=self._owner(held), allocations=wants.get(held.uuid, {}), generation=held.generation
            )
            for held in self._case.held.values()
            if held.allocations or wants.get(held.uuid)
        ]
        return self._finding(verdict, why, remedy, right, writes, doubt)

    def _unread(self) -> str | None:
        """Return why Nova may not have shown all that concerns the guest, or None."""
        if self._case.unlisted:
            lacks = ' and '.join(sorted(self._case.unlisted))
            return f'find out why a list of Nova lacks {lacks}, which an earlier one had: a cell may not answer'
        if self._hosts.unread:
            hosts = ', '.join(sorted(self._hosts.unread))
            return f'wait until every cell answers: the database of the cell of {hosts} does not'
        return None

    def _owner(self, held: ConsumerAllocations) -> allocation_state.Consumer:
        # A guest without an allocation is no consumer: its migration has its project and user.
        known = next(one for one in [held, *self._case.held.values()] if one.allocations)
        return allocation_state.Consumer(
            uuid=held.uuid,
            consumer_type=self._type_of(held) if known.consumer_type is not None else None,
            project_id=known.project_id or '',
            user_id=known.user_id or '',
        )

    def _type_of(self, held: ConsumerAllocations) -> str:
        if held.consumer_type and held.consumer_type != _NO_TYPE:  # which cannot be written
            return held.consumer_type
        is_migration = held.uuid != self._case.consumer or self._case.deleted == 'migration'
        return allocation_state.MIGRATION if is_migration else allocation_state.INSTANCE

    def _finding(
        self,
        verdict: str,
        why: str,
        remedy: str,
        right: str | None = None,
        writes: Sequence[allocations.Write] = (),
        doubt: str | None = None,
    ) -> Finding:
        holdings = [
            Holding(
                consumer=held.uuid,
                consumer_type=self._type_of(held),
                provider=provider,
                host=self._hosts.of.get(provider),
                resources=resources,
            )
            for held in self._case.held.values()
            for provider, resources in held.allocations.items()
        ]
        return Finding(
            consumer=self._case.consumer,
            name=self._case.server.name if self._case.server is not None else None,
            verdict=verdict,
            holdings=holdings,
            reason=why,
            right=right,
            remedy=remedy,
            writes=writes,
            doubt=doubt,
        )


def _amounts(held: Allocations) -> str:
    """Return an allocation in words, without its providers."""
    parts = (f'{amount} {name}' for amounts in held.values() for name, amount in amounts.items())
    return ', '.join(parts) or 'nothing'


# --- the audit -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audited:
    """The result of an audit.

    :ivar findings: the errors.
    :ivar others: what is in progress, and what cannot be judged now.
    :ivar unreadable: the number of servers in cells whose database does not answer. They were not audited.
    """

    findings: Sequence[Finding]
    others: Sequence[Finding]
    unreadable: int = 0


def audit(nova: Nova, placement: PlacementClient, threads: executors.Threads, settle: float) -> Audited:
    """Compare every allocation with the servers and migrations of Nova; nothing is changed.

    :param threads: sleeps between the two readings of what looks wrong.
    :param settle: seconds between them. Nova clears the task of a moved guest a moment before it releases the
        allocation at the source.
    :raises migrator.nova.errors.NovaUnreachable: Nova is unreachable.
    :raises migrator.exception.PlacementUnreachable: Placement is unreachable.
    """
    return _Audit(nova, placement).run(threads, settle)


def heal(nova: Nova, placement: PlacementClient, finding: Finding, named: Collection[str] = ()) -> tuple[bool, str]:
    """Make the repair of a finding in one atomic write, unless anything has changed since the audit.

    :param named: uuids of consumers that the operator wants repaired despite a doubt.
    :returns: whether it was done; and what was done, or why not.
    :raises migrator.exception.PlacementUnreachable: the write may or may not have been done: audit again.
    """
    may, text = repairable(finding, named)
    if not may:
        return False, text
    reading = _Audit(nova, placement)
    if reading.has_guest(finding.consumer):
        return False, 'a list of Nova shows it as the migration of a guest now: audit again'
    if judge(reading.case(finding.consumer, finding.holders), reading.hosts) != finding:
        return False, 'it has changed since the audit: audit again'
    request = finding.request
    assert request is not None
    try:
        placement.post(request['url'], request['body'])
    except exception.PlacementConflict:
        return False, 'another client has written it since the audit: audit again'
    except exception.PlacementRefused as error:
        return False, f'Placement refuses it: {error}'
    return True, text


def repairable(finding: Finding, named: Collection[str]) -> tuple[bool, str]:
    """Return whether :func:`heal` would write, and what it would do or why not."""
    if not finding.writes:
        return False, f'there is no automatic repair: {finding.remedy}'
    if finding.doubt and not finding.holders & set(named):
        return False, f'{finding.doubt}; name it with --consumer {finding.consumer} to repair it'
    return True, f'it holds {finding.right}'


class _Audit:
    """The reading of Nova and Placement.

    Allocations are read first. So each server or migration that holds one was in Nova before the servers and the
    migrations are listed.
    """

    def __init__(self, nova: Nova, placement: PlacementClient) -> None:
        self._nova = nova
        self._placement = placement
        self._unreadable = 0
        #: The consumers that are no server, and that no list has shown as a migration.
        self._without_guest: set[str] = set()
        found, services = providers.list_providers(placement), nova.services()
        self._providers = [one.uuid for one in found]
        of_root = {one.uuid: one.host for one in nova.hypervisors()}
        self.hosts = Hosts(
            of={one.uuid: of_root[one.root_uuid] for one in found if one.root_uuid in of_root},
            down={one.host for one in services} - {one.host for one in services if one.state == 'up'},
            unread={one.host for one in services if one.status == _UNKNOWN},
        )

    def run(self, threads: executors.Threads, settle: float) -> Audited:
        suspects = self._suspects()
        first = self._judge(suspects)
        wrong = [one for one in first if one.wrong]
        if wrong:
            threads.sleep(settle)
            # The first list lacks the migrations of a cell whose database did not answer at that moment. They are not
            # those of deleted guests.
            self._find_guests(suspects)
        again = self._judge({one.consumer: suspects[one.consumer] for one in wrong if one.consumer in suspects})
        others = [one for one in [*first, *again] if not one.wrong]
        return Audited(findings=[one for one in again if one in wrong], others=others, unreadable=self._unreadable)

    def _judge(self, suspects: Mapping[str, Collection[str]]) -> list[Finding]:
        cases = [self.case(consumer, holders) for consumer, holders in sorted(suspects.items())]
        return [one for case in cases if (one := judge(case, self.hosts)) is not None]

    def _suspects(self) -> dict[str, set[str]]:
        """Return each guest or consumer that may be wrong, with those of its migrations that hold something."""
        at: dict[str, set[str | None]] = {}
        for provider, there in held_by_provider(self._placement, self._providers):
            for consumer in there:
                at.setdefault(consumer, set()).add(self.hosts.of.get(provider))
        suspects: dict[str, set[str]] = {}
        for server in self._nova.servers():
            hosts = at.pop(server.uuid, set()) - {None}
            if server.status == _UNKNOWN:
                self._unreadable += 1
            elif hosts != {server.host} - {None}:
                suspects[server.uuid] = set()
        # Only migrations are left, and what is deleted or unknown.
        self._without_guest = set(at)
        suspects |= {consumer: set() for consumer in at}
        self._find_guests(suspects)
        return suspects

    def _find_guests(self, suspects: dict[str, set[str]]) -> None:
        """Put the consumers that a list shows as migrations to their guests."""
        if not self._without_guest:
            return
        for migration in self._nova.each_migration():
            if migration.uuid in self._without_guest:
                del suspects[migration.uuid]
                suspects.setdefault(migration.instance_uuid, set()).add(migration.uuid)
                self._without_guest.remove(migration.uuid)
                if not self._without_guest:
                    return

    def has_guest(self, consumer: str) -> bool:
        """Return whether a list of Nova shows a consumer as the migration of a guest."""
        if self._nova.server(consumer) is not None:
            return False
        return any(one.uuid == consumer for one in self._nova.each_migration())

    def case(self, consumer: str, holders: Collection[str]) -> Case:
        """Read one guest or consumer.

        :param holders: consumers that held something in an earlier reading.
        """
        server = self._nova.server(consumer)
        migrations = self._nova.migrations(instance_uuid=consumer) if server is not None else []
        claiming = [one.uuid for one in migrations if one.uuid in holders or one.status not in _ENDED]
        unlisted = {*holders} - {consumer, *(one.uuid for one in migrations)} if server is not None else ()
        return Case(
            consumer=consumer,
            server=server,
            deleted=self._remembered(consumer) if server is None else None,
            migrations=migrations,
            held={uuid: allocations.read(self._placement, uuid) for uuid in [consumer, *claiming, *sorted(unlisted)]},
            unlisted=unlisted,
        )

    def _remembered(self, consumer: str) -> str | None:
        """Return what a consumer was that no list of Nova shows, or None if Nova does not know it."""
        if self._nova.actions(consumer, limit=1):
            return 'server'
        return 'migration' if self._nova.remembers_migration(consumer) else None
