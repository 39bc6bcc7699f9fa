# SPDX-License-Identifier: Apache-2.0

"""The audit of Placement: a comparison of every consumer with the instances and migrations.

:func:`read_all` reads Placement, the caller reads the database, and :func:`audit` compares the two and changes nothing.
While migrations run, the two readings are not of the same moment, so an allocation that moved in between may look
wrong. Trust only a finding that two audits agree on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from migrator import exception
from migrator.objects import Instance, Migration, MigrationStatus, Strategy, remedies
from migrator.objects.remedies import Reading
from migrator.placement_client import allocation_state, allocations, providers
from migrator.placement_client.client import MICROVERSION, PlacementClient

#: The verdicts of a finding.
LEAKED = 'leaked'
UNKNOWN_CONSUMER = 'unknown consumer'
MISSING = 'missing'
WRONG_HOST = 'wrong host'
WRONG_AMOUNT = 'wrong amount'
DOUBLED = 'doubled'
#: All verdicts.
VERDICTS = (LEAKED, UNKNOWN_CONSUMER, MISSING, WRONG_HOST, WRONG_AMOUNT, DOUBLED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The providers and allocations that Placement has.

    :ivar providers: every resource provider, by uuid.
    :ivar held: consumer uuid -> resource provider uuid -> resource class -> amount.
    :ivar types: consumer uuid -> consumer type, for each consumer that the database does not know.
    """

    providers: Mapping[str, providers.Provider]
    held: Mapping[str, allocation_state.Allocations]
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One allocation that is wrong or missing.

    :ivar provider: uuid of the resource provider that has the allocation, or should have it.
    :ivar resources: resource class -> amount: the wrong allocation, or the missing one.
    :ivar since: when the allocation became wrong, ISO 8601. None if the database does not show it.
    :ivar remedy: what the operator does to correct it.
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
        """Return the finding as a JSON object."""
        return dataclasses.asdict(self)


def read_all(client: PlacementClient, known: Collection[str]) -> Snapshot:
    """Read every allocation and the types of the unknown consumers.

    The function sends one request for the providers, one for each provider, and one for each unknown consumer.

    :param known: uuids of the instances and migrations of the database.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    found = {one.uuid: one for one in providers.list_providers(client)}
    held: dict[str, dict[str, Mapping[str, int]]] = {}
    for provider, there in held_by_provider(client, list(found)):
        for consumer, resources in there.items():
            held.setdefault(consumer, {})[provider] = resources
    types = {one: allocations.read(client, one).consumer_type or '' for one in held if one not in known}
    return Snapshot(providers=found, held=held, types=types)


def held_by_provider(
    client: PlacementClient, found: Iterable[str]
) -> Iterator[tuple[str, Mapping[str, Mapping[str, int]]]]:
    """Yield each provider with its allocations: consumer uuid -> resource class -> amount.

    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    for provider in found:
        try:
            yield provider, providers.allocations_on(client, provider)
        except exception.PlacementRefused as error:
            # A provider that was deleted after it was listed has no allocations, or Placement had not deleted it.
            if error.kwargs.get('status') != 404:
                raise


def compare(
    observed: Snapshot,
    roots: Mapping[str, str],
    instances: Iterable[Instance],
    migrations: Iterable[Migration],
    elsewhere: Collection[str] = (),
) -> list[Finding]:
    """Compare the allocations with the database, as a pure function.

    :param roots: compute host -> uuid of the root of its tree.
    :param instances: all instances.
    :param migrations: all migrations in progress, all evacuations that are done, and those ended migrations whose
        leaked allocations the audit must attribute.
    :param elsewhere: the uuids of guests that hosts have, which are not their hosts in the database.
    :returns: the findings, in a fixed order.
    """
    return _Audit(observed, roots, instances, migrations, elsewhere).run()


#: The remedy for an evacuation that is done. Its log has the allocation that it must hold.
_HEAL = remedies.offer(remedies.Kind.HEAL)
#: The amounts of a consumer by host. None stands for the providers outside every host's tree, such as shared ones.
_ByHost = Mapping[str | None, Mapping[str, int]]


class _Audit:
    def __init__(
        self,
        observed: Snapshot,
        roots: Mapping[str, str],
        instances: Iterable[Instance],
        migrations: Iterable[Migration],
        elsewhere: Collection[str],
    ) -> None:
        self._observed = observed
        self._not_there = elsewhere
        self._roots = roots
        self._instances = {one.uuid: one for one in instances}
        self._migrations = {one.uuid: one for one in migrations}
        self._moving = {one.instance_uuid: one for one in self._migrations.values() if one.in_progress}
        host_of_root = {root: host for host, root in roots.items()}
        self._host_of = {uuid: host_of_root.get(one.root_uuid) for uuid, one in observed.providers.items()}
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        for instance in self._instances.values():
            self._judge_instance(instance)
        for consumer in self._observed.held:
            if consumer in self._instances:
                continue
            migration = self._migrations.get(consumer)
            if migration is None:
                self._unknown_consumer(consumer)
            elif migration.in_progress or self._holds_source(migration):
                self._judge_claim(migration)
            else:
                self._leaked(migration)
        for migration in self._migrations.values():
            if self._holds_source(migration) and migration.uuid not in self._observed.held:
                self._missing_claim(migration)
        return sorted(self._findings, key=lambda one: (one.consumer_type, one.consumer, one.provider, one.verdict))

    # --- an instance -------------------------------------------------------------------------------------------------

    def _judge_instance(self, instance: Instance) -> None:
        held = self._by_host(instance.uuid)
        legal = self._legal(instance)
        if _matches_any(held, legal):
            return
        # Compare with the nearest legal state: during a migration, the side on which the instance holds something.
        wanted = max(legal, key=lambda one: len(set(one) & set(held)))
        if not held:
            host, resources = next(iter(wanted.items()))
            why = f'instance {instance.name} is on {host} and has no allocation'
            self._find(instance.uuid, self._roots.get(host, ''), MISSING, why, self._set(instance, host), resources)
        elif not set(wanted) & set(held):
            self._elsewhere(instance, held, [*wanted], WRONG_HOST)
        elif set(held) - {*wanted, None}:
            self._elsewhere(instance, held, [*wanted], DOUBLED)
        else:
            self._amount(instance, wanted)

    def _legal(self, instance: Instance) -> list[Mapping[str, Mapping[str, int]]]:
        """Return the legal states of an instance, each as the amounts that it holds on each host."""
        migration = self._moving.get(instance.uuid)
        if migration is None:
            return [{instance.host: amounts} for amounts in instance.flavor.request.totals]
        olds, news = (flavor.request.totals for flavor in migration.flavors(instance.flavor))
        source, destination = migration.source_compute, migration.dest_compute
        if destination is None:
            return [{source: old} for old in olds]
        legal: list[Mapping[str, Mapping[str, int]]] = [
            *({source: old} for old in olds),
            *({destination: new} for new in news),
        ]
        if migration.strategy == Strategy.DOUBLED:
            legal += [{source: old, destination: new} for old in olds for new in news]
        return legal

    def _elsewhere(self, instance: Instance, held: _ByHost, wanted: Sequence[str], verdict: str) -> None:
        besides = f'where it holds {_amounts(held[wanted[0]])} too' if wanted[0] in held else 'where it holds nothing'
        for provider in self._observed.held[instance.uuid]:
            host = self._host_of.get(provider)
            # A sharing provider belongs to no host. Its part is wrong only if no legal host has the rest.
            if host in wanted or (host is None and verdict == DOUBLED):
                continue
            why = f'instance {instance.name} holds this on {_name(host)}, and is on {" and ".join(wanted)}, {besides}'
            self._find(instance.uuid, provider, verdict, why, self._set(instance, wanted[0]))

    def _amount(self, instance: Instance, wanted: Mapping[str, Mapping[str, int]]) -> None:
        host, amounts = next(iter(wanted.items()))
        where = ' and '.join(wanted)
        why = f'instance {instance.name} must hold {_amounts(amounts)}, the amounts of its flavor, on {where}'
        for provider in self._observed.held[instance.uuid]:
            self._find(instance.uuid, provider, WRONG_AMOUNT, why, self._set(instance, host))

    def _set(self, instance: Instance, host: str) -> str:
        """Return the remedy that gives an instance the allocation of its flavor on its host, and nothing else."""
        if instance.uuid in self._moving:
            return f'wait until the migration of instance {instance.uuid} ends, or abort it, then audit again'
        root = self._roots.get(host)
        tree = [one for one in self._observed.providers.values() if one.root_uuid == root]
        if root is None or not tree:
            return f'start the compute service of {host}, so that it reports its providers, then audit again'
        held = {name for amounts in self._by_host(instance.uuid).values() for name in amounts}
        forms = instance.flavor.request.totals
        wanted = max(forms, key=lambda one: len(one.keys() & held))
        if len(forms) > 1 and not wanted.keys() & held & {'VCPU', 'PCPU'}:
            return f'set the allocation of {instance.uuid} to its flavor, with those of VCPU and PCPU that {host} has'
        if len(tree) > 1:
            return f'set the allocation of {instance.uuid} to its flavor on the tree of {root}, and to nothing else'
        amounts = [f'--allocation rp={root},{name}={n}' for name, n in wanted.items()]
        kind = allocation_state.INSTANCE
        owner = f'--project-id {instance.project_id} --user-id {instance.user_id} --consumer-type {kind}'
        return self._offer(remedies.Kind.SET_ALLOCATION, instance.uuid, amounts=' '.join([*amounts, owner]))

    # --- a migration, or an unknown consumer -------------------------------------------------------------------------

    def _holds_source(self, migration: Migration) -> bool:
        """Return whether an evacuation is done, so that it has to hold the allocation at its source.

        It holds nothing any more if its instance was deleted, even if one with that uuid was created again.
        """
        instance = self._instances.get(migration.instance_uuid)
        if instance is None or migration.status != MigrationStatus.DONE:
            return False
        born, accepted = instance.created_at, migration.created_at
        return born is None or accepted is None or born <= accepted

    def _missing_claim(self, migration: Migration) -> None:
        source, instance = migration.source_compute, self._instances[migration.instance_uuid]
        flavor = migration.flavors(instance.flavor)[0].resources()
        if flavor:
            why = f'migration {migration.id} is done, and {source} has not cleaned up: it must hold this there'
            self._find(migration.uuid, self._roots.get(source, ''), MISSING, why, _HEAL, flavor)

    def _judge_claim(self, migration: Migration) -> None:
        instance = self._instances.get(migration.instance_uuid)
        if instance is None:
            return
        source, flavor = migration.source_compute, migration.flavors(instance.flavor)[0]
        legal, held = [{source: amounts} for amounts in flavor.request.totals], self._by_host(instance.uuid)
        both = migration.in_progress and (_matches_any(held, legal) if migration.stays else source in held)
        # An evacuation of the strategy doubled takes the source's part over once its guest runs at the destination.
        is_owner = migration.strategy == Strategy.MIGRATION_OWNED or migration.is_evacuation
        if is_owner and not both and _matches_any(self._by_host(migration.uuid), legal):
            return
        for provider in self._observed.held[migration.uuid]:
            host = self._host_of.get(provider)
            if host != source:
                verdict, why = WRONG_HOST, f'this on {_name(host)}, and the source of its guest is {source}'
            elif both:
                verdict, why = DOUBLED, f'this on {source}, where instance {instance.name} holds its own'
            else:
                verdict, why = WRONG_AMOUNT, f'other amounts than those of its guest, {_amounts(flavor.resources())}'
            why = f'migration {migration.id} ({migration.status}) holds {why}'
            remedy = f'wait until migration {migration.uuid} ends, or abort it, then audit again'
            remedy = remedy if migration.in_progress else _HEAL
            self._find(migration.uuid, provider, verdict, why, remedy)

    def _leaked(self, migration: Migration) -> None:
        state = f'has ended ({migration.status})'
        if migration.status == MigrationStatus.DONE:
            state = 'is done, its instance was deleted,'
        remedy = self._offer(remedies.Kind.DELETE_ALLOCATION, migration.uuid)
        # Nothing changes a migration after its end.
        since = migration.updated_at.isoformat() if migration.updated_at else None
        for provider in self._observed.held[migration.uuid]:
            why = f'migration {migration.id} {state} and holds this on {_name(self._host_of.get(provider))}'
            self._find(migration.uuid, provider, LEAKED, why, remedy, since=since)

    def _unknown_consumer(self, consumer: str) -> None:
        why = 'it is neither an instance nor a migration that migrator knows'
        for provider in self._observed.held[consumer]:
            remedy = self._offer(remedies.Kind.HEAL_UNKNOWN, consumer)
            self._find(consumer, provider, UNKNOWN_CONSUMER, why, remedy)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _offer(self, kind: remedies.Kind, consumer: str, **names: str) -> str:
        found = remedies.offer(kind, self._look(consumer), consumer=consumer, placement=MICROVERSION, **names)
        return found or f'its guest is not where the database has it: {remedies.offer(remedies.Kind.SEE_OTHERS)}'

    def _look(self, uuid: str) -> remedies.Look:
        elsewhere = uuid in self._not_there
        return {Reading.ELSEWHERE: elsewhere, Reading.ON_A_HOST: elsewhere, Reading.MOVING: uuid in self._moving}

    def _by_host(self, consumer: str) -> _ByHost:
        parts: dict[str | None, list[allocation_state.Allocations]] = {}
        for provider, resources in self._observed.held.get(consumer, {}).items():
            parts.setdefault(self._host_of.get(provider), []).append({'': resources})
        return {host: allocation_state.total(found).get('', {}) for host, found in parts.items()}

    def _type_of(self, consumer: str) -> str:
        if consumer in self._instances:
            return allocation_state.INSTANCE
        return (
            allocation_state.MIGRATION
            if consumer in self._migrations
            else self._observed.types.get(consumer) or 'unknown'
        )

    def _find(
        self,
        consumer: str,
        provider: str,
        verdict: str,
        reason: str,
        remedy: str,
        missing: Mapping[str, int] | None = None,
        since: str | None = None,
    ) -> None:
        self._findings.append(
            Finding(
                consumer=consumer,
                consumer_type=self._type_of(consumer),
                provider=provider,
                resources=dict(self._observed.held[consumer][provider] if missing is None else missing),
                verdict=verdict,
                reason=reason,
                since=since,
                remedy=remedy,
            )
        )


def _matches_any(held: _ByHost, legal: Sequence[Mapping[str, Mapping[str, int]]]) -> bool:
    return any(_matches(held, wanted) for wanted in legal)


def _matches(held: _ByHost, wanted: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether a consumer holds exactly these amounts on these hosts.

    Sharing providers may hold a part of them.
    """
    if not any(wanted.values()):
        return not held
    total = allocation_state.total([{'': amounts} for amounts in wanted.values()])
    return (
        set(wanted) <= set(held) <= {*wanted, None}
        and allocation_state.total([{'': one} for one in held.values()]) == total
        and all(held[host].get(name, 0) <= amount for host, each in wanted.items() for name, amount in each.items())
    )


def _amounts(resources: Mapping[str, int]) -> str:
    return ', '.join(f'{amount} {name}' for name, amount in resources.items()) or 'nothing'


def _name(host: str | None) -> str:
    return host or 'no compute host'
