# SPDX-License-Identifier: Apache-2.0

"""Which allocation has no living reason: every consumer in Placement, held against instances and migrations.

:func:`read` looks at Placement; the caller looks at the database; :func:`audit` compares the two and touches nothing.
On a cloud that is at work the two looks are not one, and what moved in between may look wrong: believe what two
audits agree on.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from migrator import exception
from migrator.objects import Instance, Migration, Strategy
from migrator.placement_client import allocation_state, allocations, providers
from migrator.placement_client.client import MICROVERSION, PlacementClient

#: The verdicts.
LEAKED = 'leaked'
UNKNOWN_CONSUMER = 'unknown consumer'
MISSING = 'missing'
WRONG_HOST = 'wrong host'
WRONG_AMOUNT = 'wrong amount'
DOUBLED = 'doubled'
#: All of them.
VERDICTS = (LEAKED, UNKNOWN_CONSUMER, MISSING, WRONG_HOST, WRONG_AMOUNT, DOUBLED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Books:
    """What Placement holds.

    :ivar providers: every resource provider, by uuid.
    :ivar held: consumer uuid -> resource provider uuid -> resource class -> amount.
    :ivar types: consumer uuid -> consumer type, of the consumers that the database did not know.
    """

    providers: Mapping[str, providers.Provider]
    held: Mapping[str, allocation_state.Allocations]
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One allocation that is there and should not be, or is not and should.

    :ivar provider: uuid of the resource provider on which it is, or should be.
    :ivar resources: resource class -> amount: what is held there; of one that is missing, what should be.
    :ivar since: when it became wrong, ISO 8601, where the database can tell.
    :ivar remedy: what puts it right.
    """

    consumer: str
    consumer_type: str
    provider: str
    resources: dict[str, int]
    verdict: str
    reason: str
    since: str | None
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return dataclasses.asdict(self)


def read(client: PlacementClient, known: Collection[str]) -> Books:
    """Read every allocation: one request for the providers, one for each of them, one for each unknown consumer.

    :param known: uuids of the instances and migrations of the database.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    return with_types(client, read_held(client), known)


def read_held(client: PlacementClient) -> Books:
    """Read every allocation, and of no consumer what it is; see :func:`with_types`."""
    found = {one.uuid: one for one in providers.list_providers(client)}
    held: dict[str, dict[str, Mapping[str, int]]] = {}
    for provider in list(found):
        try:
            there = providers.allocations_on(client, provider)
        except exception.PlacementRefused as error:
            if error.kwargs.get('status') != 404:
                raise
            # Deleted since it was listed, for which it had to be empty.
            del found[provider]
            continue
        for consumer, resources in there.items():
            held.setdefault(consumer, {})[provider] = resources
    return Books(providers=found, held=held)


def with_types(client: PlacementClient, books: Books, known: Collection[str]) -> Books:
    """Return the books with the types of the consumers that are not known: one request for each of them."""
    types = {one: allocations.read(client, one).consumer_type or '' for one in books.held if one not in known}
    return dataclasses.replace(books, types=types)


def audit(
    books: Books,
    roots: Mapping[str, str],
    instances: Iterable[Instance],
    migrations: Iterable[Migration],
) -> list[Finding]:
    """Compare Placement with the database: pure.

    :param roots: compute host -> uuid of the root of its tree.
    :param instances: all of them.
    :param migrations: those in progress, all of them, and those that have ended, as far as anybody wants to be told
        of a leaked allocation whose it was.
    :returns: what is wrong, in a fixed order.
    """
    return _Audit(books, roots, instances, migrations).run()


#: What a consumer holds by host; None is a provider in no host's tree, such as one that hosts share.
_ByHost = Mapping[str | None, Mapping[str, int]]


class _Audit:
    def __init__(
        self,
        books: Books,
        roots: Mapping[str, str],
        instances: Iterable[Instance],
        migrations: Iterable[Migration],
    ) -> None:
        self._books = books
        self._roots = roots
        self._instances = {one.uuid: one for one in instances}
        self._migrations = {one.uuid: one for one in migrations}
        self._moving = {one.instance_uuid: one for one in self._migrations.values() if one.in_progress}
        host_of_root = {root: host for host, root in roots.items()}
        self._host_of = {uuid: host_of_root.get(one.root_uuid) for uuid, one in books.providers.items()}
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        for instance in self._instances.values():
            self._judge_instance(instance)
        for consumer in self._books.held:
            if consumer in self._instances:
                continue
            migration = self._migrations.get(consumer)
            if migration is None:
                self._strange(consumer)
            elif migration.ended:
                self._leaked(migration)
            else:
                self._judge_claim(migration)
        return sorted(self._findings, key=lambda one: (one.consumer_type, one.consumer, one.provider, one.verdict))

    # --- an instance -------------------------------------------------------------------------------------------------

    def _judge_instance(self, instance: Instance) -> None:
        flavor = instance.flavor.resources()
        held = self._by_host(instance.uuid)
        legal = self._legal(instance)
        if any(_matches(held, hosts, flavor) for hosts in legal):
            return
        # Held against what it comes nearest to: of a guest under way, the side on which it has something.
        wanted = max(legal, key=lambda hosts: len(set(hosts) & set(held)))
        if not held:
            self._missing(instance, wanted[0])
        elif not set(wanted) & set(held):
            self._elsewhere(instance, held, wanted, WRONG_HOST)
        elif set(held) - {*wanted, None}:
            self._elsewhere(instance, held, wanted, DOUBLED)
        else:
            self._amount(instance, wanted)

    def _legal(self, instance: Instance) -> list[tuple[str, ...]]:
        """Return what the instance may hold, each as the hosts on which it holds its flavor."""
        migration = self._moving.get(instance.uuid)
        if migration is None:
            return [(instance.host,)]
        source, destination = migration.source_compute, migration.dest_compute
        if destination is None:
            return [(source,)]
        if migration.strategy == Strategy.DOUBLED:
            return [(source,), (destination,), (source, destination)]
        return [(source,), (destination,)]

    def _missing(self, instance: Instance, host: str) -> None:
        self._findings.append(
            Finding(
                consumer=instance.uuid,
                consumer_type=allocation_state.INSTANCE,
                provider=self._roots.get(host, ''),
                resources=instance.flavor.resources(),
                verdict=MISSING,
                reason=f'instance {instance.name} is on {host} and holds nothing at all',
                since=None,
                remedy=self._set(instance, host),
            )
        )

    def _elsewhere(self, instance: Instance, held: _ByHost, wanted: Sequence[str], verdict: str) -> None:
        besides = f'where it holds {_say(held[wanted[0]])} too' if wanted[0] in held else 'where it holds nothing'
        for provider in self._books.held[instance.uuid]:
            host = self._host_of.get(provider)
            # A sharing provider is nobody's: it is wrong only where there is nothing that it belongs to.
            if host in wanted or (host is None and verdict == DOUBLED):
                continue
            why = f'instance {instance.name} holds this on {_name(host)}, and is on {" and ".join(wanted)}, {besides}'
            self._find(instance.uuid, provider, verdict, why, self._set(instance, wanted[0]))

    def _amount(self, instance: Instance, wanted: Sequence[str]) -> None:
        flavor = _say(instance.flavor.resources())
        why = f'instance {instance.name} is to hold {flavor}, the amounts of its flavor, on {" and ".join(wanted)}'
        for provider in self._books.held[instance.uuid]:
            self._find(instance.uuid, provider, WRONG_AMOUNT, why, self._set(instance, wanted[0]))

    def _set(self, instance: Instance, host: str) -> str:
        """Return what gives an instance its flavor on its host and nothing else."""
        if instance.uuid in self._moving:
            return f'let the migration of instance {instance.uuid} end, or abort it, and audit again'
        root = self._roots.get(host)
        tree = [one for one in self._books.providers.values() if one.root_uuid == root]
        if root is None or not tree:
            return f'have the compute service of {host} report, and audit again'
        if len(tree) > 1:
            return f'set the allocation of {instance.uuid} to its flavor on the tree of {root}, and to nothing else'
        amounts = [f'--allocation rp={root},{name}={n}' for name, n in instance.flavor.resources().items()]
        kind = allocation_state.INSTANCE
        owner = f'--project-id {instance.project_id} --user-id {instance.user_id} --consumer-type {kind}'
        return _command('set', *amounts, owner, instance.uuid)

    # --- a migration, or nobody --------------------------------------------------------------------------------------

    def _judge_claim(self, migration: Migration) -> None:
        instance = self._instances.get(migration.instance_uuid)
        if instance is None:
            return
        source, flavor = migration.source_compute, instance.flavor.resources()
        both = source in self._by_host(instance.uuid)
        is_owner = migration.strategy == Strategy.MIGRATION_OWNED
        if is_owner and not both and _matches(self._by_host(migration.uuid), (source,), flavor):
            return
        for provider in self._books.held[migration.uuid]:
            host = self._host_of.get(provider)
            if host != source:
                verdict, why = WRONG_HOST, f'this on {_name(host)}, and its guest comes from {source}'
            elif both:
                verdict, why = DOUBLED, f'this on {source}, where instance {instance.name} holds its own'
            else:
                verdict, why = WRONG_AMOUNT, f'other amounts than those of its guest, {_say(flavor)}'
            why = f'migration {migration.id} ({migration.status}) holds {why}'
            self._find(
                migration.uuid, provider, verdict, why, f'let migration {migration.uuid} end, or abort it; audit again'
            )

    def _leaked(self, migration: Migration) -> None:
        for provider in self._books.held[migration.uuid]:
            where = _name(self._host_of.get(provider))
            why = f'migration {migration.id} has ended ({migration.status}) and holds this on {where}'
            self._find(migration.uuid, provider, LEAKED, why, _command('delete', migration.uuid), _ended_at(migration))

    def _strange(self, consumer: str) -> None:
        why = 'it is neither an instance nor a migration that migrator knows'
        for provider in self._books.held[consumer]:
            remedy = f'find out whose it is; if nobody wants it: {_command("delete", consumer)}'
            self._find(consumer, provider, UNKNOWN_CONSUMER, why, remedy)

    # --- below -------------------------------------------------------------------------------------------------------

    def _by_host(self, consumer: str) -> _ByHost:
        parts: dict[str | None, list[allocation_state.Allocations]] = {}
        for provider, resources in self._books.held.get(consumer, {}).items():
            parts.setdefault(self._host_of.get(provider), []).append({'': resources})
        return {host: allocation_state.total(found).get('', {}) for host, found in parts.items()}

    def _type_of(self, consumer: str) -> str:
        if consumer in self._instances:
            return allocation_state.INSTANCE
        return (
            allocation_state.MIGRATION if consumer in self._migrations else self._books.types.get(consumer) or 'unknown'
        )

    def _find(
        self, consumer: str, provider: str, verdict: str, reason: str, remedy: str, since: str | None = None
    ) -> None:
        self._findings.append(
            Finding(
                consumer=consumer,
                consumer_type=self._type_of(consumer),
                provider=provider,
                resources=dict(self._books.held[consumer][provider]),
                verdict=verdict,
                reason=reason,
                since=since,
                remedy=remedy,
            )
        )


def _matches(held: _ByHost, hosts: Sequence[str], flavor: Mapping[str, int]) -> bool:
    """Whether it is the flavor on each of these hosts and nothing else; sharing providers may carry a part of it."""
    if not flavor:
        return not held
    wanted = allocation_state.total([{'': flavor}] * len(hosts))
    return (
        set(hosts) <= set(held) <= {*hosts, None}
        and allocation_state.total([{'': one} for one in held.values()]) == wanted
        and all(held[host].get(name, 0) <= amount for host in hosts for name, amount in flavor.items())
    )


def _say(resources: Mapping[str, int]) -> str:
    return ', '.join(f'{amount} {name}' for name, amount in resources.items()) or 'nothing'


def _name(host: str | None) -> str:
    return host or 'no compute host'


def _ended_at(migration: Migration) -> str | None:
    # Nothing changes it any more after the end.
    changed: datetime.datetime | None = migration.updated_at
    return changed.isoformat() if changed else None


def _command(verb: str, *words: str) -> str:
    return ' '.join(
        ['openstack', f'--os-placement-api-version {MICROVERSION} resource provider allocation', verb, *words]
    )
