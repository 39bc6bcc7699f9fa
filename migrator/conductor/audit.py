# SPDX-License-Identifier: Apache-2.0

"""The audit of Placement's allocations, and the repair of a wrong one in one atomic write.

Migrations go on during an audit. So each consumer that looks wrong is read again by itself: its rows, its allocations
twice, its rows again. It is reported only if nothing has changed meanwhile. A repair sends the generation that was
read, so that Placement refuses it if another client has written since.

The API does not reach Placement, so it requests an audit of a conductor (:class:`OperatorCalls`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor import registry
from migrator.conductor.guests import lists
from migrator.conductor.metrics import Audits
from migrator.conductor.migration import destinations
from migrator.conductor.migration.context import Tools
from migrator.context import RequestContext
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, DELETING, RECONCILING, Instance, Migration, MigrationStatus, remedies
from migrator.placement_client import allocation_state, allocations, providers
from migrator.placement_client.audit import LEAKED, UNKNOWN_CONSUMER, Finding, Snapshot, compare, held_by_provider
from migrator.placement_client.client import PlacementClient
from migrator.rpc import expose
from migrator.saga import log

LOG = logging.getLogger(__name__)


#: Seconds that a guest has to get its allocation after its row was made.
_BIRTH = 60.0
#: Reads of a consumer that changes meanwhile. After them it counts as in use.
_READS = 5
#: Placement's name for the type of a consumer without a type.
_NO_TYPE = 'unknown'
#: Instances, or consumers, of one page.
_BATCH = 500
#: What some consumers hold, and their rows.
_Page = tuple[Mapping[str, allocation_state.Allocations], Sequence[Instance], Sequence[Migration]]


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a consumer in the database.

    :ivar instance: the consumer itself, or the instance of the migration that is the consumer.
    :ivar migrations: the consumer itself, and the instance's migrations in progress.
    :ivar done: the consumer, if it is an evacuation that is done.
    :ivar has_cleanup: whether the source of ``done`` still has to clean up.
    :ivar elsewhere: the hosts that have the guest, as a comparison has seen, and are not its host in the database.
    """

    instance: Instance | None
    migrations: tuple[Migration, ...]
    done: Migration | None = None
    has_cleanup: bool = False
    elsewhere: tuple[str, ...] = ()

    @property
    def moving(self) -> Migration | None:
        """The migration in progress."""
        return next((one for one in self.migrations if one.in_progress), None)

    def moved(self, other: Rows) -> bool:
        """Return whether the rows differ in what decides where the guest's allocations belong."""
        return self._place() != other._place()

    def _place(self) -> object:
        of_instance = (self.instance.host, self.instance.task_state) if self.instance is not None else None
        of_migrations = [(one.uuid, one.status, one.attempt, one.dest_compute, one.outcome) for one in self.migrations]
        return of_instance, of_migrations, self.has_cleanup, self.elsewhere


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A consumer whose allocations are wrong, as read while nothing changed.

    :ivar findings: one for each resource provider, in their order.
    :ivar generation: the consumer's generation, or None if Placement does not know it.
    """

    consumer: str
    findings: tuple[Finding, ...]
    generation: int | None
    rows: Rows


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A repair of a consumer.

    :ivar write: the write, or None if there is no automatic repair.
    :ivar observed: what is written, or why nothing is.
    """

    write: allocations.Write | None
    observed: str


def audit(database: Database, client: PlacementClient) -> list[Wrong]:
    """Compare every allocation with the instances and the migrations; nothing is changed.

    :returns: the wrong consumers, by consumer type and uuid, without those that change meanwhile.
    :raises migrator.exception.PlacementUnreachable: Placement is unreachable.
    :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
    """
    return _Audit(database, client).run()


def remedy(
    database: Database,
    client: PlacementClient,
    wrong: Wrong,
    named: Collection[str] = (),
    ask: Callable[[], lists.Round] | None = None,
) -> Remedy:
    """Return the repair of a consumer; nothing is written.

    :param named: uuids of unknown consumers that the operator wants removed nevertheless.
    :param ask: has all hosts list their guests, among which no unknown consumer may be; None: none is removed.
    """
    verdicts = {finding.verdict for finding in wrong.findings}
    if UNKNOWN_CONSUMER in verdicts:
        return _of_unknown(client, wrong, named, ask)
    if wrong.rows.elsewhere:
        here = f', and the database has it on {wrong.rows.instance.host}' if wrong.rows.instance is not None else ''
        return Remedy(None, f'its guest is on {" and ".join(wrong.rows.elsewhere)}{here}: {_see()}')
    if LEAKED in verdicts:
        return _nothing(wrong, registry.consumer_of_migration(wrong.rows.migrations[0]))
    if wrong.rows.done is not None:
        return _of_done(database, wrong, wrong.rows.done)
    moving = wrong.rows.moving
    if moving is not None:
        return Remedy(None, f'migration {moving.uuid} is in progress: let it end, or abort it, and audit again')
    instance = wrong.rows.instance
    assert instance is not None, 'a consumer that is neither unknown nor a migration is an instance'
    wanted = home_of(database, client, instance)
    if wanted is None:
        why = f'cannot choose the providers of {instance.host} for it'
        return Remedy(None, f'{why}: there is no room, or several have room, or its compute service has not reported')
    write = allocations.Write(consumer=registry.consumer_of(instance), allocations=wanted, generation=wrong.generation)
    return Remedy(write, f'its allocation becomes {describe(wanted)}, on {instance.host}, and nothing else')


def heal(
    database: Database,
    client: PlacementClient,
    wrong: Wrong,
    named: Collection[str] = (),
    ask: Callable[[], lists.Round] | None = None,
) -> tuple[bool, str]:
    """Repair a consumer in one atomic write, which is refused if the consumer has changed since the audit.

    :param named: as for :func:`remedy`.
    :param ask: as for :func:`remedy`.
    :returns: whether it was done; and what was done, or why not.
    :raises migrator.exception.PlacementUnreachable: the write may or may not have been done: audit again.
    """
    found = remedy(database, client, wrong, named, ask)
    if found.write is None:
        return False, found.observed
    if _rows(database, wrong.consumer).moved(wrong.rows):
        return False, 'it has changed since the audit: audit again'
    try:
        send(client, found.write)
    except exception.PlacementConflict:
        return False, 'another client has written it since the audit: audit again'
    except exception.PlacementRefused as error:
        return False, f'Placement refuses it: {error}'
    if found.write.generation is None and not _lives(database, wrong):
        # A consumer without a generation is created by the write, although it has no right to it any more.
        with contextlib.suppress(exception.PlacementConflict):  # another client has removed it
            allocations.remove(client, found.write.consumer, generation=allocations.FIRST_GENERATION)
        return False, 'it was deleted or has ended meanwhile, and holds nothing'
    return True, found.observed


def send(client: PlacementClient, write: allocations.Write) -> None:
    """Write the allocations of one consumer, also if Placement has left it as an orphan.

    :raises migrator.exception.MigratorException: as :func:`migrator.placement_client.allocations.write_all`.
    """
    try:
        allocations.write_all(client, [write])
    except exception.PlacementConflict:
        if write.generation is not None:
            raise
        # Placement may have been killed during an earlier write. If it was not, it refuses this one as well.
        allocations.write_all(client, [dataclasses.replace(write, generation=allocations.ORPHAN_GENERATION)])


def _lives(database: Database, wrong: Wrong) -> bool:
    known, now = wrong.rows, _rows(database, wrong.consumer)
    if known.instance is None or now.instance is None or now.instance.task_state == DELETING:
        return False
    if known.done is not None:
        return now.done is not None and now.has_cleanup
    return now.instance.host == known.instance.host


class Watch:
    """A periodic audit, which logs each finding once and sets the metrics.

    :param clock: the clock for the end and the duration of an audit.
    """

    def __init__(self, database: Database, client: PlacementClient, clock: executors.Clock, metrics: Audits) -> None:
        self._database = database
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._reported: frozenset[tuple[str, str, str]] = frozenset()

    def look(self) -> None:
        """Audit once.

        :raises migrator.exception.ServiceUnreachable: the database or Placement is unreachable.
        """
        began = self._clock.monotonic()
        try:
            wrong = audit(self._database, self._client)
        except Exception:  # any error counts as a failed audit
            self._metrics.failed()
            raise
        found = {(one.consumer, one.provider, one.verdict): one for each in wrong for one in each.findings}
        self._metrics.done(found.values(), self._clock.now(), self._clock.monotonic() - began)
        for key, finding in found.items():
            if key not in self._reported:
                kind = finding.consumer_type.lower()
                LOG.warning(
                    'Wrong allocation of %(kind)s %(consumer)s in Placement (%(verdict)s): %(reason)s. '
                    'Remedy: %(remedy)s',
                    {
                        'kind': kind,
                        'consumer': finding.consumer,
                        'verdict': finding.verdict,
                        'reason': finding.reason,
                        'remedy': finding.remedy,
                    },
                )
        if self._reported and not found:
            LOG.info('No wrong allocations are left in Placement')
        self._reported = frozenset(found)


# --- the audit -------------------------------------------------------------------------------------------------------


class _Held:
    """The allocations of every consumer, in a temporary file."""

    def __init__(self) -> None:
        # SQLite removes the file of a database without a name, even if this process is killed.
        self._file = sqlite3.connect('', isolation_level=None)
        self._file.execute('PRAGMA journal_mode = OFF')
        self._file.execute('CREATE TABLE held (consumer, provider, amounts, PRIMARY KEY (consumer, provider))')

    def close(self) -> None:
        self._file.close()

    def add(self, provider: str, there: Mapping[str, Mapping[str, int]]) -> None:
        """Add the allocations on a provider: consumer uuid -> resource class -> amount."""
        rows = [(consumer, provider, json.dumps(amounts)) for consumer, amounts in there.items()]
        self._file.executemany('INSERT INTO held VALUES (?, ?, ?)', rows)

    def first(self, limit: int) -> list[str]:
        """Return some consumers."""
        query = 'SELECT DISTINCT consumer FROM held ORDER BY consumer LIMIT ?'
        return [consumer for (consumer,) in self._file.execute(query, (limit,))]

    def take(self, consumers: Iterable[str]) -> dict[str, allocation_state.Allocations]:
        """Return what some consumers hold, and remove it from here."""
        query = 'SELECT provider, amounts FROM held WHERE consumer = ?'
        found = {one: {uuid: json.loads(text) for uuid, text in self._file.execute(query, (one,))} for one in consumers}
        self._file.executemany('DELETE FROM held WHERE consumer = ?', [(one,) for one in found])
        return {consumer: held for consumer, held in found.items() if held}


class _Audit:
    """One audit.

    In memory are the list of providers, the allocations on one provider, the rows of one page, and what was found.
    Instances and consumers are read in pages, since there are many more of them. A consumer may hold something on
    several trees and on shared providers, so that all it holds is collected in a file before it is compared. That
    comparison only finds suspects, which :meth:`_recheck` judges.
    """

    def __init__(self, database: Database, client: PlacementClient) -> None:
        self._database = database
        self._client = client

    def run(self) -> list[Wrong]:
        found = [wrong for consumer in self._suspects() if (wrong := self._recheck(consumer)) is not None]
        return sorted(found, key=lambda wrong: (wrong.findings[0].consumer_type, wrong.consumer))

    def _suspects(self) -> Iterator[str]:
        known = {one.uuid: one for one in providers.list_providers(self._client)}
        with contextlib.closing(_Held()) as held:
            for provider, there in held_by_provider(self._client, known):
                held.add(provider, there)
            roots = _roots(self._database)
            for of_these, instances, migrations in self._pages(held):
                found = compare(Snapshot(providers=known, held=of_these), roots, instances, migrations)
                yield from dict.fromkeys(finding.consumer for finding in found)

    def _pages(self, held: _Held) -> Iterator[_Page]:
        """Yield the pages: all instances with their migrations, then all other consumers."""
        after, done = '', MigrationStatus.DONE.value
        while instances := self._database.instances.page(after, _BATCH):
            uuids = [one.uuid for one in instances]
            after = uuids[-1]
            migrations = self._database.migrations.list({'instance_uuid': uuids}, in_progress=True)
            migrations += self._database.migrations.list({'instance_uuid': uuids, 'status': done})
            yield held.take([*uuids, *(one.uuid for one in migrations)]), instances, migrations
        while consumers := held.first(_BATCH):
            yield held.take(consumers), [], self._database.migrations.list({'uuid': consumers})

    def _recheck(self, consumer: str) -> Wrong | None:
        """Return what is wrong with one consumer while nothing changes, or None if it is right or in use."""
        for _ in range(_READS):
            rows = _rows(self._database, consumer)
            related = [consumer, *_related(consumer, rows)]
            held = [allocations.read(self._client, uuid) for uuid in related]
            again = [allocations.read(self._client, uuid) for uuid in related]
            if held == again and not _rows(self._database, consumer).moved(rows):
                return self._judge(consumer, rows, held)
        return None

    def _judge(self, consumer: str, rows: Rows, held: Sequence[allocation_state.ConsumerAllocations]) -> Wrong | None:
        if rows.instance is not None and rows.instance.uuid == consumer and self._comes_or_goes(rows.instance):
            return None
        if rows.done is not None and not rows.has_cleanup:
            return None  # The next sweep releases its allocation and completes it.
        # Hosts and providers may have been added since the first read.
        now = Snapshot(
            providers={one.uuid: one for one in providers.list_providers(self._client)},
            held={one.uuid: allocation_state.normal(one.allocations) for one in held if one.allocations},
            types={one.uuid: one.consumer_type or '' for one in held},
        )
        instances = [rows.instance] if rows.instance is not None else []
        elsewhere = [consumer, *(one.uuid for one in instances)] if rows.elsewhere else []
        found = compare(now, _roots(self._database), instances, rows.migrations, elsewhere)
        findings = tuple(one for one in found if one.consumer == consumer)
        return Wrong(consumer, findings, held[0].generation, rows) if findings else None

    def _comes_or_goes(self, instance: Instance) -> bool:
        if instance.task_state in (DELETING, RECONCILING):
            return True
        if instance.created_at is None:
            return False
        return (self._database.services.now() - instance.created_at).total_seconds() < _BIRTH


def _roots(database: Database) -> dict[str, str]:
    return {node.host: node.uuid for node in database.services.list_nodes()}


def _rows(database: Database, consumer: str) -> Rows:
    itself = database.migrations.list({'uuid': consumer})
    uuid = itself[0].instance_uuid if itself else consumer
    found = database.instances.list({'uuid': uuid})
    moving = database.migrations.list({'instance_uuid': uuid}, in_progress=True)
    migrations = {one.uuid: one for one in [*itself, *moving]}
    done = next((one for one in itself if one.status == MigrationStatus.DONE), None)
    cleanups = done is not None and database.cleanups.list(host=done.source_compute, migration_uuid=done.uuid)
    instance = found[0] if found else None
    seen = database.differences.seen(uuid).keys() - {instance and instance.host}
    if seen:  # a host that is fenced has nothing
        seen -= {one.host for one in database.services.list(COMPUTE_BINARY, sorted(seen)) if one.is_fenced}
    return Rows(instance, tuple(migrations.values()), done, bool(cleanups), tuple(sorted(seen)))


def _related(consumer: str, rows: Rows) -> Iterator[str]:
    """Return the other consumers that the judgement of this one needs."""
    if rows.instance is not None:
        yield from {rows.instance.uuid} - {consumer}
    yield from (one.uuid for one in rows.migrations if one.uuid != consumer)


# --- the repair ------------------------------------------------------------------------------------------------------


def _of_unknown(
    client: PlacementClient, wrong: Wrong, named: Collection[str], ask: Callable[[], lists.Round] | None
) -> Remedy:
    if wrong.consumer not in named:
        return Remedy(
            None, 'it is unknown here: find out which service it belongs to; name it to remove it if it is not needed'
        )
    if wrong.rows.elsewhere:
        return Remedy(None, f'it is a guest on {" and ".join(wrong.rows.elsewhere)}: {_see()}')
    found = ask() if ask is not None else None
    if found is None:
        return Remedy(None, 'the hosts were not asked whether it is a guest of theirs')
    there = sorted(host for host, guests in found.seen.items() if wrong.consumer in guests)
    if there:
        return Remedy(None, f'it is a guest on {" and ".join(there)}: {_see()}')
    if found.unanswered:
        hosts = ', '.join(sorted(found.unanswered))
        helps = remedies.offer(remedies.Kind.HAVE_LISTED, hosts=hosts)
        return Remedy(None, f'it may be a guest of a host that did not answer: {helps}')
    held = allocations.read(client, wrong.consumer)
    owner = allocation_state.Consumer(
        uuid=wrong.consumer,
        # Clients that write below microversion 1.38 give no type. It reads as a type that cannot be written.
        consumer_type=held.consumer_type if held.consumer_type not in (None, _NO_TYPE) else allocation_state.INSTANCE,
        project_id=held.project_id or '',
        user_id=held.user_id or '',
    )
    return _nothing(wrong, owner)


def _see() -> str:
    return remedies.offer(remedies.Kind.SEE_OTHERS)


def _of_done(database: Database, wrong: Wrong, migration: Migration) -> Remedy:
    intent = destinations.chosen(log.StepLog(database.migrations.steps(migration.uuid)), migration.attempt)
    if intent is None:
        return Remedy(None, 'its log does not say what the instance held at the source')
    consumer = registry.consumer_of_migration(migration, wrong.rows.instance)
    write = allocations.Write(consumer=consumer, allocations=intent.source, generation=wrong.generation)
    at = migration.source_compute
    return Remedy(write, f'its allocation becomes {describe(intent.source)}, on {at}, until {at} has cleaned up')


def home_of(database: Database, client: PlacementClient, instance: Instance) -> allocation_state.Allocations | None:
    """Return the allocation that an instance should have on its host; None: unknown, or no room.

    An allocation that is right is kept, because the guest uses that very device.
    """
    roots = _roots(database)
    root = roots.get(instance.host)
    if root is None:
        return None
    root_of = {one.uuid: one.root_uuid for one in providers.list_providers(client)}
    # A provider outside the trees of hosts is shared between hosts.
    kept = {
        uuid: amounts
        for uuid, amounts in allocations.read(client, instance.uuid).allocations.items()
        if root_of.get(uuid) == root or root_of.get(uuid) not in roots.values()
    }
    inventories = {
        uuid: providers.read_inventory(client, uuid) for uuid, its_root in root_of.items() if its_root == root
    }
    home: dict[str, dict[str, int]] = {}
    held = {name for amounts in kept.values() for name in amounts}
    for name, amount in max(instance.flavor.request.totals, key=lambda one: len(one.keys() & held)).items():
        holders = {uuid: amounts[name] for uuid, amounts in kept.items() if amounts.get(name)}
        if sum(holders.values()) != amount:
            places = list(holders) or [uuid for uuid, inventory in inventories.items() if name in inventory]
            if len(places) != 1:
                return _anywhere(client, instance, root) if not kept else None
            holders = {places[0]: amount}
        for uuid, part in holders.items():
            home.setdefault(uuid, {})[name] = part
    return home


def _anywhere(client: PlacementClient, instance: Instance, root: str) -> allocation_state.Allocations | None:
    found = registry.placed(client, instance.flavor, root)
    return found.allocations if found is not None else None


def _nothing(wrong: Wrong, owner: allocation_state.Consumer) -> Remedy:
    if wrong.generation is None:
        return Remedy(None, 'Placement does not have it any more')
    write = allocations.Write(consumer=owner, allocations={}, generation=wrong.generation)
    return Remedy(write, 'its allocations are removed')


def describe(held: allocation_state.Allocations) -> str:
    """Return an allocation in words, without its providers."""
    parts: Iterable[str] = (f'{amount} {name}' for amounts in held.values() for name, amount in amounts.items())
    return ', '.join(parts) or 'nothing'


class OperatorCalls:
    """The calls of the API for an operator that need Placement, which the API does not reach.

    :ivar tools: those of the conductor.
    """

    tools: Tools

    @expose
    def audit(self, context: RequestContext) -> list[dict[str, Any]]:
        """Return the wrong allocations in Placement as JSON; see :func:`audit`.

        :raises migrator.exception.AuditInProgress: this conductor runs such an audit already. Each one reads every
            allocation, also after its caller has given up.
        """
        if not self.tools.auditing.acquire(blocking=False):
            raise exception.AuditInProgress(server=self.tools.server)
        try:
            found = audit(self.tools.database, self.tools.placement)
        finally:
            self.tools.auditing.release()
        return [finding.as_dict() for wrong in found for finding in wrong.findings]

    @expose
    def read_allocations(self, context: RequestContext, consumer: str) -> dict[str, Any]:
        """Return what a consumer holds in Placement: provider -> class -> amount."""
        return dict(allocations.read(self.tools.placement, consumer).allocations)
