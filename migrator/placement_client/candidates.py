# SPDX-License-Identifier: Apache-2.0

"""Allocation candidates: the providers on which Placement finds room for a guest.

A conductor asks for them once for all guests of a flavor that leave within a few seconds. Such a list may be old: the
write of the allocations decides. ``doc/source/decisions/0028-shared-candidates.rst`` says why.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib import parse

from migrator import executors
from migrator.objects import Flavor
from migrator.placement_client import allocation_state
from migrator.placement_client.client import PlacementClient

#: The trait of a provider that lends its inventory to the trees in its aggregates, such as shared storage.
SHARING_TRAIT = 'MISC_SHARES_VIA_AGGREGATE'
#: Seconds for which a list is used.
FRESH = 5.0
#: A list is used for at least this multiple of the time that Placement took for it.
_MULTIPLE = 10
#: The hosts whose states a choice reads at a time.
PAGE = 20
#: The candidates of a first request. Placement computes all of them in any case, but a reply with all may be large.
LIMIT = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One set of allocations that places a guest."""

    #: Resource provider uuid -> resource class -> amount.
    allocations: dict[str, dict[str, int]]
    #: The roots of all provider trees that the candidate uses, in the order of its allocations.
    roots: tuple[str, ...]
    #: The roots that the candidate uses only through sharing providers.
    sharing_roots: frozenset[str] = frozenset()

    @property
    def compute_roots(self) -> tuple[str, ...]:
        """The roots that are more than sharing providers; a guest on one host has exactly one."""
        return tuple(root for root in self.roots if root not in self.sharing_roots)


def get_candidates(
    client: PlacementClient,
    resource_groups: Mapping[str, Mapping[str, int]],
    *,
    limit: int | None = 1000,
    in_tree: str | None = None,
    group_policy: str = 'none',
) -> list[Candidate]:
    """Return the candidates for a guest, in Placement's order.

    :param resource_groups: the amounts by request group, as :meth:`~.Flavor.resource_groups` returns them; ``''`` is
        the unnumbered group.
    :param limit: the maximum number of candidates; None sends no limit.
    :param in_tree: uuid of a compute host's root provider; only candidates with this compute root are returned.
    :param group_policy: 'none' or 'isolate'; sent if there is more than one numbered group.
    :returns: an empty list if there is no room.
    :raises PlacementRefused: a resource class is unknown, or no resources are requested.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    found = _candidates_of(_read(client, resource_groups, limit, group_policy, in_tree))
    if in_tree is None:
        return found
    if not found:
        # Placement's in_tree also excludes the sharing providers that the tree uses. Without in_tree the reply mixes
        # the tree's candidates with all others, so this request has no limit that could cut them off.
        found = _candidates_of(_read(client, resource_groups, None, group_policy, None))
    mine = [candidate for candidate in found if candidate.compute_roots == (in_tree,)]
    return mine if limit is None else mine[:limit]


@dataclasses.dataclass(frozen=True)
class Room:
    """The room in Placement as plans of drains ask for it; see :class:`migrator.drain.plan.Placement`.

    :raises PlacementUnreachable: from each method, as :meth:`.client.PlacementClient.request`.
    """

    client: PlacementClient

    def candidates(
        self, flavor: Flavor, traits: Mapping[str, str]
    ) -> tuple[dict[str, list[dict[str, dict[str, int]]]], dict[str, dict[str, int]]]:
        """Return all candidates for a flavor, and the free amounts of their providers.

        :param traits: those that each request group requires, as Placement reads them: ``A,!B`` is A without B.
        :returns: root provider -> the allocations of each candidate, and provider -> resource class -> the free amount.
        :raises PlacementRefused: such as an unknown trait.
        """
        found = _read(self.client, flavor.resource_groups(), None, flavor.group_policy, None, traits)
        free = {
            uuid: {name: int(one['capacity'] - one['used']) for name, one in summary['resources'].items()}
            for uuid, summary in found['provider_summaries'].items()
        }
        by_root = by_compute_root(_candidates_of(found))
        return {root: [one.allocations for one in there] for root, there in by_root.items()}, free

    def largest_free(self, name: str, amount: int, without: Collection[str]) -> int:
        """Return the greatest free amount of a resource class at one provider.

        :param amount: an amount that is looked for first. If a provider has it, it is the result.
        :param without: the roots of the provider trees that do not count.
        """
        for least in (amount, 1):
            summaries = _read(self.client, {'': {name: least}}, None, 'none', None)['provider_summaries']
            free = [
                int(one['resources'][name]['capacity'] - one['resources'][name]['used'])
                for uuid, one in summaries.items()
                if name in one['resources'] and one['root_provider_uuid'] not in without
            ]
            if free:
                return max(free)
        return 0


def by_compute_root(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """Return the candidates of each compute root, both in the given order.

    A candidate without a compute root, or with several, belongs to no host and is left out.
    """
    grouped: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if len(candidate.compute_roots) == 1:
            grouped.setdefault(candidate.compute_roots[0], []).append(candidate)
    return grouped


def _candidates_of(found: Mapping[str, Any]) -> list[Candidate]:
    summaries = found['provider_summaries']
    return [_candidate_of(request, summaries) for request in found['allocation_requests']]


def _read(
    client: PlacementClient,
    resource_groups: Mapping[str, Mapping[str, int]],
    limit: int | None,
    group_policy: str,
    in_tree: str | None,
    traits: Mapping[str, str] = types.MappingProxyType({}),
) -> dict[str, Any]:
    query = [(f'required{group}', names) for group, names in traits.items()]
    for group, wanted in resource_groups.items():
        query.append((f'resources{group}', ','.join(f'{name}:{amount}' for name, amount in wanted.items())))
        if in_tree is not None:
            query.append((f'in_tree{group}', in_tree))
    if len([group for group in resource_groups if group]) > 1:
        query.append(('group_policy', group_policy))
    if limit is not None:
        query.append(('limit', str(limit)))
    return client.read('/allocation_candidates?' + parse.urlencode(query))


def _candidate_of(request: dict[str, Any], summaries: dict[str, Any]) -> Candidate:
    allocations = {uuid: dict(entry['resources']) for uuid, entry in request['allocations'].items()}
    roots: dict[str, bool] = {}
    for uuid in allocations:
        summary = summaries[uuid]
        shares = SHARING_TRAIT in summary['traits']
        root = summary['root_provider_uuid']
        roots[root] = roots.get(root, True) and shares
    return Candidate(
        allocations=allocations,
        roots=tuple(roots),
        sharing_roots=frozenset(root for root, only_shares in roots.items() if only_shares),
    )


@dataclasses.dataclass
class Candidates:
    """The hosts on which Placement has room for a flavor.

    :ivar by_root: root provider -> its candidates.
    :ivar hosts: the names of hosts with their root providers, by name. If they fit in one page, the names are empty.
    :ivar number: the number of the request, in the order in which they were sent.
    :ivar until: when the list is too old.
    :ivar is_whole: whether Placement has returned all candidates.
    """

    by_root: dict[str, list[Candidate]]
    hosts: list[tuple[str, str]]
    number: int
    until: float
    is_whole: bool

    def in_order(self, inbound: Mapping[str, tuple[int, int]]) -> Iterator[str]:
        """Yield the root providers, those of the hosts with the fewest inbound migrations first, then by name.

        :param inbound: host -> the number of migrations to it, and of those that do not copy yet; a host without any is
            left out.
        """
        for host, root in self.hosts:
            if host not in inbound:
                yield root
        for _, _, root in sorted((inbound[host], host, root) for host, root in self.hosts if host in inbound):
            yield root


class SharedCandidates:
    """The lists of one conductor.

    :param names: returns the hosts of some root providers; None: of all.
    """

    def __init__(
        self,
        client: PlacementClient,
        names: Callable[[Collection[str] | None], Mapping[str, str]],
        threads: executors.Threads,
    ) -> None:
        self._client = client
        self._names = names
        self._threads = threads
        self._guard = threads.lock()
        self._locks: dict[str, executors.Lock] = {}
        self._lists: dict[str, Candidates] = {}
        self._sent = 0

    def sent(self) -> int:
        """Return the number of requests that have been sent. Later ones have higher numbers."""
        with self._guard:
            return self._sent

    def get(
        self, flavor: Flavor, in_tree: str | None, asked_after: int | None = None, whole: bool = False
    ) -> Candidates:
        """Return the candidates for a flavor, which other threads may be given as well.

        :param in_tree: root provider of the only host; None: any.
        :param asked_after: return a list whose request was sent after the one with this number; None: a fresh list.
        :param whole: return a list with all candidates.
        :raises migrator.exception.PlacementUnreachable: Placement did not answer.
        """
        key = repr((sorted(flavor.resource_groups().items()), flavor.group_policy, in_tree))
        with self._guard:
            lock = self._locks.setdefault(key, self._threads.lock())
        # The other threads wait for the reply instead of asking as well.
        with lock:
            found, now = self._lists.get(key), self._threads.clock.monotonic()
            if found is not None and (found.is_whole or not whole):
                if now < found.until if asked_after is None else asked_after < found.number:
                    return found
            found = self._ask(flavor, in_tree, None if whole else LIMIT)
            with self._guard:
                self._lists = {name: one for name, one in self._lists.items() if now < one.until} | {key: found}
                # Two threads that have different locks of one list merely ask twice.
                self._locks = {name: one for name, one in self._locks.items() if name in self._lists}
            return found

    def _ask(self, flavor: Flavor, in_tree: str | None, limit: int | None) -> Candidates:
        with self._guard:
            self._sent += 1
            number = self._sent
        began, groups, policy = self._threads.clock.monotonic(), flavor.resource_groups(), flavor.group_policy
        found = get_candidates(self._client, groups, limit=limit, in_tree=in_tree, group_policy=policy)
        now = self._threads.clock.monotonic()
        by_root = by_compute_root(found)
        # A choice reads all hosts of a page anyway, and orders them by the names that it has read.
        names = self._names(by_root if limit else None) if len(by_root) > PAGE else dict.fromkeys(by_root, '')
        return Candidates(
            by_root=by_root,
            hosts=sorted((host, root) for root, host in names.items() if root in by_root),
            number=number,
            until=now + max(FRESH, _MULTIPLE * (now - began)),
            is_whole=limit is None or len(found) < limit,
        )

    def refused(self, allocations: allocation_state.Allocations) -> None:
        """Remove a candidate from every list, because Placement has refused its allocations."""
        with self._guard:
            for one in self._lists.values():
                left = {
                    root: [candidate for candidate in there if candidate.allocations != allocations]
                    for root, there in one.by_root.items()
                }
                one.by_root = {root: there for root, there in left.items() if there}
                one.hosts = [(host, root) for host, root in one.hosts if root in one.by_root]
