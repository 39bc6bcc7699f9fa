# SPDX-License-Identifier: Apache-2.0

"""Allocation candidates: the providers on which Placement finds room for a guest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any
from urllib import parse

from migrator.placement_client.client import PlacementClient

#: The trait of a provider that lends its inventory to the trees in its aggregates, such as shared storage.
SHARING_TRAIT = 'MISC_SHARES_VIA_AGGREGATE'


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
    found = _request(client, resource_groups, limit, group_policy, in_tree)
    if in_tree is None:
        return found
    if not found:
        # Placement's in_tree also excludes the sharing providers that the tree uses. Without in_tree the reply mixes
        # the tree's candidates with all others, so this request has no limit that could cut them off.
        found = _request(client, resource_groups, None, group_policy, None)
    mine = [candidate for candidate in found if candidate.compute_roots == (in_tree,)]
    return mine if limit is None else mine[:limit]


def by_compute_root(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """Return the candidates of each compute root, both in the given order.

    A candidate without a compute root, or with several, belongs to no host and is left out.
    """
    grouped: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if len(candidate.compute_roots) == 1:
            grouped.setdefault(candidate.compute_roots[0], []).append(candidate)
    return grouped


def _request(
    client: PlacementClient,
    resource_groups: Mapping[str, Mapping[str, int]],
    limit: int | None,
    group_policy: str,
    in_tree: str | None,
) -> list[Candidate]:
    query: list[tuple[str, str]] = []
    for group, wanted in resource_groups.items():
        query.append((f'resources{group}', ','.join(f'{name}:{amount}' for name, amount in wanted.items())))
        if in_tree is not None:
            query.append((f'in_tree{group}', in_tree))
    if len([group for group in resource_groups if group]) > 1:
        query.append(('group_policy', group_policy))
    if limit is not None:
        query.append(('limit', str(limit)))
    found = client.read('/allocation_candidates?' + parse.urlencode(query))
    summaries = found['provider_summaries']
    return [_candidate_of(request, summaries) for request in found['allocation_requests']]


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
