# SPDX-License-Identifier: Apache-2.0

"""Allocation candidates: where Placement sees room for a guest."""

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
    """One way to place a guest."""

    #: Resource provider uuid -> resource class -> amount.
    allocations: dict[str, dict[str, int]]
    #: The roots of all trees that it touches, in the order of its allocations.
    roots: tuple[str, ...]
    #: Those of the roots that it touches through sharing providers only.
    sharing_roots: frozenset[str] = frozenset()

    @property
    def compute_roots(self) -> tuple[str, ...]:
        """The roots that are not mere lenders; one for every guest on one host."""
        return tuple(root for root in self.roots if root not in self.sharing_roots)


def get_candidates(
    client: PlacementClient,
    resource_groups: Mapping[str, Mapping[str, int]],
    *,
    limit: int | None = 1000,
    in_tree: str | None = None,
    group_policy: str = 'none',
) -> list[Candidate]:
    """Return where there is room, in Placement's order.

    :param resource_groups: what to claim by request group, as :meth:`~.Flavor.resource_groups` gives it; ``''`` is the
        unnumbered group.
    :param limit: how many candidates at most; None leaves it to Placement.
    :param in_tree: uuid of a compute's root provider: only candidates whose compute root it is.
    :param group_policy: 'none' or 'isolate'; sent where there is more than one numbered group.
    :returns: an empty list where there is no room.
    :raises PlacementRefused: a resource class is unknown, or nothing is asked for.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    found = _ask(client, resource_groups, limit, group_policy, in_tree)
    if in_tree is None:
        return found
    if not found:
        # Placement's in_tree also shuts out the sharing providers that the tree borrows from. Without it the tree's
        # own candidates are among all the others, so no limit here: it could cut them off.
        found = _ask(client, resource_groups, None, group_policy, None)
    mine = [candidate for candidate in found if candidate.compute_roots == (in_tree,)]
    return mine if limit is None else mine[:limit]


def by_compute_root(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """Return the candidates of each compute root, both in the order given.

    A candidate with no compute root, or with several, is nobody's and is left out.
    """
    grouped: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if len(candidate.compute_roots) == 1:
            grouped.setdefault(candidate.compute_roots[0], []).append(candidate)
    return grouped


def _ask(
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
