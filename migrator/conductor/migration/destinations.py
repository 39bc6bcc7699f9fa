# SPDX-License-Identifier: Apache-2.0

"""The choice of a destination: Placement's candidates, without hosts that cannot take the guest."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from migrator import exception
from migrator.db.api import Database
from migrator.db.services import Place
from migrator.db.slots import Allowance
from migrator.objects import (
    Instance,
    Migration,
    MigrationType,
    Strategy,
    base,
    steps,
)
from migrator.objects.drain import Hints
from migrator.placement_client import allocation_state
from migrator.placement_client.allocations import SharedReadings
from migrator.placement_client.candidates import PAGE, Candidates, Lacks, SharedCandidates
from migrator.saga import log

#: Why the host of a guest is no destination, besides what a resize says.
_SOURCE = 'it is the source'
#: The greatest number of hosts whose reasons a failure names.
_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Destination:
    """A host that was chosen, as the intent of ``move_allocation`` stores it.

    :ivar source: the allocation that the instance holds now.
    :ivar destination: the allocation that it gets at the host.
    :ivar instance_generation: the consumer generation of the first.
    """

    host: str
    node: str
    source: allocation_state.Allocations
    destination: allocation_state.Allocations
    instance_generation: int


def chosen(step_log: log.StepLog, attempt: int) -> Destination | None:
    """Return the destination that an attempt has chosen; None: it has chosen none yet."""
    record = step_log.find(attempt, 'move_allocation')
    return base.of_stored(Destination, record.input) if record is not None and record.input else None


def flavor_at(migration: Migration, host: str | None) -> dict[str, Any]:
    """Return the column of an instance with the flavor of its guest at a host; {} without a resize."""
    if migration.new_flavor is None:
        return {}
    return {'flavor': migration.old_flavor if migration.has_old_flavor(host) else migration.new_flavor}


def tried(step_log: log.StepLog, attempt: int) -> dict[str, str]:
    """Return the hosts of the attempts before ``attempt``, each with the reason of its failure."""
    found: dict[str, str] = {}
    for earlier in range(1, attempt):
        destination = chosen(step_log, earlier)
        if destination is not None:
            reasons = [
                # The source checks the guest against each destination, so its refusal is no fault of that one.
                ('refused by the source: ' if record.step in steps.AT_SOURCE else '') + str(record.facts.reason)
                for record in step_log.of_attempt(earlier)
                if record.state == log.StepState.FAILED and record.result
            ]
            found[destination.host] = '; '.join(reasons)
    return found


@dataclasses.dataclass(frozen=True)
class RequestSpec:
    """What a migration requests of its destination, as nova's object of this name.

    :ivar tried: the hosts that the migration has tried, each with the reason of its failure.
    :ivar allowance: the slots that the migration may take; None: no bound is set.
    :ivar hints: what the drain of the migration states; None: no drain has requested it.
    :ivar resizes_here: whether a resize may leave the guest at its host.
    """

    migration: Migration
    instance: Instance
    tried: Mapping[str, str] = dataclasses.field(default_factory=dict)
    allowance: Allowance | None = None
    hints: Hints | None = None
    resizes_here: bool = False


def choose(
    database: Database,
    readings: SharedReadings,
    shared: SharedCandidates,
    spec: RequestSpec,
    reachable: bool = True,
    asked_after: int | None = None,
) -> Destination:
    """Return the next destination to try.

    The host with the fewest inbound migrations comes first, among equals the one where most of them copy already, so
    that they end sooner, then the order is by name. A host gets the first of its
    candidates from Placement. The source of a resize comes last.

    :param readings: reads what the instance holds.
    :param shared: the candidates of this conductor.
    :param reachable: whether this conductor was reachable long enough to know which hosts are down.
    :param asked_after: use no candidates that Placement was asked for earlier.
    :raises migrator.exception.NoSlot: no host that is left has a free slot.
    :raises migrator.exception.NoValidHost: no host is left; the text gives the reasons.
    :raises migrator.exception.Invalid: the instance holds no allocation.
    :raises migrator.exception.ComputeServiceUnavailable: the named host is down, or is disabled and may not be.
    :raises migrator.exception.InvalidHypervisorType: the named host has a hypervisor of another type.
    :raises migrator.exception.DestinationHypervisorTooOld: the named host has an older hypervisor.
    :raises migrator.exception.PlacementUnreachable: Placement did not answer; try again later.
    """
    leaves = _why_it_leaves(spec.migration, spec.resizes_here)
    try:
        return _Choice(database, spec, leaves, True).made(readings, shared, asked_after)
    except (exception.NoValidHost, exception.ComputeServiceUnavailable):
        if reachable:
            raise
    # No host could report while the conductors or the database were away. That does not make any host down.
    return _Choice(database, spec, leaves, False).made(readings, shared, asked_after)


def _why_it_leaves(migration: Migration, resizes_here: bool) -> str | None:
    """Return why the guest may not stay at its host, or None if it may, as far as its row shows.

    Two consumers hold its flavors there.
    """
    old, new = migration.old_flavor, migration.new_flavor
    if old is None or new is None:
        return _SOURCE
    if not resizes_here:
        return 'it is the source, and allow_resize_to_same_host is false'
    # Placement may give both flavors the same form.
    if any(one in new.request.totals for one in old.request.totals):
        return 'it is the source, and both flavors have the same amounts'
    if migration.strategy != Strategy.MIGRATION_OWNED:
        return 'it is the source, and a compute service is too old to resize a guest there: upgrade it'
    return None


@dataclasses.dataclass(frozen=True)
class _Choice:
    """One choice of a destination.

    :ivar leaves: why the source may not be the destination too; None: it may.
    :ivar by_state: whether a host whose service was stopped or is down is excluded.
    """

    database: Database
    spec: RequestSpec
    leaves: str | None
    by_state: bool

    def made(self, readings: SharedReadings, shared: SharedCandidates, asked_after: int | None) -> Destination:
        migration, instance = self.spec.migration, self.spec.instance
        named = self._named()
        root = named.uuid if named is not None else None
        sent = shared.sent()
        request = migration.flavors(instance.flavor)[1].request
        found = None if migration.force and named is not None else shared.get(request, root, asked_after)
        held = readings.read(instance, migration.source_compute, others_follow=migration.drain is not None)
        if held.generation is None or not held.allocations:
            raise exception.Invalid(
                f'Instance {instance.uuid} has no allocation in Placement: heal its allocation first.'
            )
        if found is None:
            assert named is not None
            forced = allocation_state.forced_claim(held.allocations, named.uuid)
            return Destination(named.host, named.node, held.allocations, forced, held.generation)
        chosen = self._best(found, named)
        if chosen is None or chosen[0].host == migration.source_compute:
            # The list may be old, or cut off by its limit.
            found = shared.get(request, root, sent, whole=True)
            chosen = self._best(found, named)
        if chosen is None:
            raise exception.NoValidHost(reason=self._explain(found, shared.lacks(request, found, root), named))
        best, claim = chosen
        return Destination(best.host, best.node, held.allocations, claim, held.generation)

    def _named(self) -> Place | None:
        """Return the host that the user requested, or None if it is any."""
        migration, named = self.spec.migration, self.spec.migration.requested_host
        if named is None:
            return None
        if named in self.spec.tried:
            raise exception.NoValidHost(reason=f'Host {named} was requested, but it cannot take the instance.')
        places = self.database.services.places(migration.instance_uuid, host=named)
        if not places:
            raise exception.ComputeHostNotFound(host=named)
        refused = refusal_of_hypervisor(places[0], migration.source_compute)
        if refused is not None:
            raise refused
        reason = _why_not(migration, places[0], self.by_state)
        if reason:
            raise exception.ComputeServiceUnavailable(host=named, reason=reason)
        return places[0]

    def _best(self, found: Candidates, named: Place | None) -> tuple[Place, allocation_state.Allocations] | None:
        """Return the first usable host, and the allocations there; None: no host is usable.

        :param named: the host that the user requested, which was just read; None: any.
        :raises migrator.exception.NoSlot: the migration may take a slot at none of the usable hosts.
        """
        services, spec, allowance, hints = self.database.services, self.spec, self.spec.allowance, self.spec.hints
        inbound = services.inbound() if len(found.hosts) > 1 else {}
        planned = hints.first if hints is not None else None
        order, full = self._in_order(found, inbound, planned), list[str]()
        later: list[tuple[Place, allocation_state.Allocations]] = []
        # The first page nearly always has a usable host, so a choice reads as much among many hosts as among few.
        while page := list(itertools.islice(order, PAGE)):
            places = [named] if named else services.places(spec.migration.instance_uuid, uuids=page)
            for place in sorted(places, key=lambda one: (one.host != planned, inbound.get(one.host, (0, 0)), one.host)):
                there = found.by_root.get(place.uuid)
                if not there or place.host in spec.tried or self._why_not(place) is not None:
                    continue
                if allowance is not None and not allowance.has_slot(place.host):
                    if place.host == planned:
                        # Elsewhere it might take the room that another one was planned to have.
                        allowance.check(place.host)
                    full.append(place.host)
                elif place.host == spec.migration.source_compute or (hints is not None and place.host in hints.later):
                    later.append((place, there[0].allocations))
                else:
                    return place, there[0].allocations
        if later and all(hints is not None and host in hints.later for host in full):
            return min(later, key=lambda one: self._how_late(one[0].host))
        if allowance is not None and len(full) == 1:
            allowance.check(full[0])
        if full:
            raise exception.NoSlot(
                what=f'an inbound slot at one of {len(full)} hosts', candidates=tuple(full), hosts=()
            )
        return None

    def _how_late(self, host: str) -> int:
        """Return the place of a host among those that come last, in the order of the hints."""
        hints = self.spec.hints
        return hints.later.index(host) if hints is not None and host in hints.later else -1

    @staticmethod
    def _in_order(found: Candidates, inbound: Mapping[str, tuple[int, int]], planned: str | None) -> Iterator[str]:
        """Return the root providers of a list in their order, that of the planned host first."""
        roots = [root for host, root in found.hosts if planned is not None and host == planned]
        yield from roots
        yield from (root for root in found.in_order(inbound) if root not in roots)

    def _why_not(self, place: Place) -> str | None:
        """Return why a host is no destination of this migration, or None if it is one."""
        source, hints = self.spec.migration.source_compute, self.spec.hints
        if place.host == source and self.leaves is not None:
            return self.leaves
        if hints is not None and hints.only is not None and place.host not in hints.only:
            return 'it is not among the destinations of the drain'
        refused = refusal_of_hypervisor(place, source)
        return refused.message if refused is not None else _why_not(self.spec.migration, place, self.by_state)

    def _explain(self, found: Candidates, lacks: Lacks, named: Place | None) -> str:
        """Return in words why no host is left."""
        migration, tried, services = self.spec.migration, self.spec.tried, self.database.services
        source = migration.source_compute
        if tried:
            whys = '; '.join(f'{host}: {why.removesuffix(".")}' for host, why in sorted(tried.items()))
            return f'Every candidate was tried, and the instance could move to none. {whys}.'
        if named is not None and not found.by_root:
            return f'Host {named.host} cannot take the instance: it {lacks.of(named.uuid)}.'
        roots = {host: root for root, host in services.roots().items()}
        # Those with room come first: they are the nearest to taking it.
        order = sorted(roots, key=lambda host: (roots[host] not in found.by_root, host))
        if self.leaves == _SOURCE:
            order = [host for host in order if host != source]
        there = {root for root in (roots[host] for host in order[:_NAMED]) if root in found.by_root}
        reasons = {one.host: self._why_not(one) for one in services.places(migration.instance_uuid, uuids=[*there])}
        shown = []
        for host in order[:_NAMED]:
            if host == source:
                shown.append(f'{host}: {self.leaves or "Placement has no room for both flavors there"}')
            elif roots[host] not in found.by_root:
                shown.append(f'{host}: it {lacks.of(roots[host])}')
            else:
                shown.append(f'{host}: {reasons.get(host) or "its room was taken meanwhile"}')
        more = f'; and {len(order) - _NAMED} more' if len(order) > _NAMED else ''
        return f'No host can take the instance: {"; ".join(shown)}{more}.' if shown else 'There is no other host.'


def refusal_of_hypervisor(place: Place, source: str) -> exception.Invalid | None:
    """Return why the guest cannot run on a host's hypervisor, or None. Nova compares type and version too."""
    if place.source_hypervisor is None:
        return None
    (there, newest), (here, version) = place.hypervisor, place.source_hypervisor
    if there != here:
        return exception.InvalidHypervisorType(host=place.host, there=there, source=source, here=here)
    if newest < version:
        return exception.DestinationHypervisorTooOld(host=place.host, there=newest, source=source, here=version)
    return None


def refusal_of_cold_migration(place: Place, kind: str = MigrationType.MIGRATION) -> str | None:
    """Return why a host takes no part in cold migrations, or None if it does.

    :param kind: the type of the migration: a cold migration, or a resize.
    """
    if place.cold_migrations is None or kind in place.cold_migrations:
        return None
    what = 'resizes' if kind == MigrationType.RESIZE else 'cold migrations'
    return f'the driver of its hypervisor supports no {what}'


def _why_not(migration: Migration, place: Place, by_state: bool) -> str | None:
    """Return why a host is no destination now, or None if it is one.

    :param by_state: whether a host whose service was stopped or is down is excluded.
    """
    if place.service.forced_down:
        return 'it is forced down'
    # A stopped service may also have been started again while no conductor was reachable.
    if by_state and place.service.last_seen_up is None:
        return 'its compute service was stopped'
    if by_state and place.service.down_since is not None:
        return f'it is down, and last reported at {place.service.last_seen_up:%Y-%m-%d %H:%M:%S} UTC'
    if place.maintenance is not None:
        # Even if a request names it: the work there would stop the guest.
        return f'maintenance {place.maintenance} has it out of service'
    if place.service.disabled and not migration.allows_disabled:
        return 'it is disabled'
    refused = refusal_of_cold_migration(place, migration.migration_type) if migration.is_cold else None
    if refused is not None:
        return refused
    if place.has_cleanup:
        return 'it still has a deferred cleanup of an earlier migration of this instance'
    return None
