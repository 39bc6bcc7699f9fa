# SPDX-License-Identifier: Apache-2.0

"""Allocation candidates: the providers on which Placement finds room for a guest.

A conductor asks for them once for all guests of a flavor that leave within a few seconds. What it asks for stands in
:mod:`migrator.objects.request`. Such a list may be old: the
write of the allocations decides. ``doc/source/decisions/0028-shared-candidates.rst`` says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib import parse

from migrator import executors
from migrator.objects.request import Request, for_amounts
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


#: What a list is of: the request, and the root provider of the only host.
_Key = tuple[Request, str | None]


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
    request: Request,
    *,
    limit: int | None = 1000,
    in_tree: str | None = None,
    is_there: bool = False,
) -> list[Candidate]:
    """Return the candidates for a guest, in Placement's order; those of the request's fallback come last.

    :param limit: the maximum number of candidates of each form of the request; None sends no limit.
    :param in_tree: uuid of a compute host's root provider; only candidates with this compute root are returned.
    :param is_there: whether the guest is there already, so that each form of the request counts.
    :returns: an empty list if there is no room.
    :raises PlacementRefused: a resource class or a trait is unknown, or no resources are requested.
    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    found = _of_each_form(client, request, limit, in_tree, is_there)
    if in_tree is not None:
        if not found:
            # Placement's in_tree also excludes the sharing providers that the tree uses. Without in_tree the reply
            # mixes the tree's candidates with all others, so this request has no limit that could cut them off.
            found = _of_each_form(client, request, None, None, is_there)
        found = [candidate for candidate in found if candidate.compute_roots == (in_tree,)]
    return found


def _of_each_form(
    client: PlacementClient, request: Request, limit: int | None, in_tree: str | None, is_there: bool = False
) -> list[Candidate]:
    found: list[Candidate] = []
    for form in request.forms():
        reply = _read(client, form, limit, in_tree)
        more = _candidates_of(reply)
        if form is not request and not is_there:
            # Nova drops a host that has dedicated processors, and too few of them, in a filter.
            pinning = _roots_with(reply['provider_summaries'], 'PCPU')
            more = [one for one in more if pinning.isdisjoint(one.roots)]
        found += more
    return found


def _roots_with(summaries: Mapping[str, Any], name: str) -> set[str]:
    return {one['root_provider_uuid'] for one in summaries.values() if name in one['resources']}


@dataclasses.dataclass(frozen=True)
class Room:
    """The room in Placement as plans of drains ask for it; see :class:`migrator.drain.plan.Placement`.

    :raises PlacementUnreachable: from each method, as :meth:`.client.PlacementClient.request`.
    """

    client: PlacementClient

    def candidates(
        self, request: Request
    ) -> tuple[dict[str, list[dict[str, dict[str, int]]]], dict[str, dict[str, int]]]:
        """Return all candidates for a guest, and the free amounts of their providers.

        :returns: root provider -> the allocations of each candidate, and provider -> resource class -> the free amount.
        :raises PlacementRefused: such as an unknown trait.
        """
        free: dict[str, dict[str, int]] = {}
        by_root: dict[str, list[dict[str, dict[str, int]]]] = {}
        for form in request.known_to(self.client.microversion).forms():
            found = _read(self.client, form, None, None)
            free.update({uuid: _free(one) for uuid, one in found['provider_summaries'].items()})
            pinning = _roots_with(found['provider_summaries'], 'PCPU') if form is not request else set()
            for root, there in by_compute_root(_candidates_of(found)).items():
                if root not in pinning:
                    by_root.setdefault(root, []).extend(one.allocations for one in there)
        return by_root, free

    def lacks(self, request: Request) -> Lacks:
        """Return what the hosts lack that Placement does not offer for a guest."""
        return read_lacks(self.client, request.known_to(self.client.microversion))


@dataclasses.dataclass(frozen=True)
class Lacks:
    """What hosts lack for a guest, in words that follow the name of a host.

    :ivar by_root: root provider -> what its tree lacks.
    :ivar otherwise: what all other trees lack.
    :ivar unexplained: the trees that lack nothing that can be named: they had room, or something breaks a rule that
        Placement does not show.
    """

    by_root: Mapping[str, str]
    otherwise: str
    unexplained: frozenset[str]

    def of(self, root: str) -> str:
        """Return what the tree of a root provider lacks."""
        return self.by_root.get(root, self.otherwise)


def read_lacks(client: PlacementClient, request: Request) -> Lacks:
    """Return what the hosts without a candidate lack, by a request of Placement for each form.

    The result says what is known for certain: Placement does not show which host borrows from which sharing provider,
    and not the units of an inventory.

    :raises PlacementUnreachable: as :meth:`.client.PlacementClient.request`.
    """
    nearest: dict[str, list[str]] = {}
    first = ''
    for form in request.forms():
        total = form.total
        name = next((one for one in ('VCPU', 'PCPU', *total) if one in total), 'VCPU')
        first = first or name
        # The answer describes each provider of a tree in which one of this class is free.
        summaries = _read(client, for_amounts({name: 1}), None, None)['provider_summaries']
        pinning = _roots_with(summaries, 'PCPU') if form is not request else set()
        trees: dict[str, list[dict[str, Any]]] = {}
        for uuid, one in summaries.items():
            trees.setdefault(one['root_provider_uuid'], []).append({**one, 'uuid': uuid})
        for root, tree in trees.items():
            found = _lacks_of(form, tree, root)
            if root not in pinning and (root not in nearest or len(found) < len(nearest[root])):
                nearest[root] = found
    unknown = 'has each amount and each trait by itself, but not together at the providers that the flavor asks for'
    by_root = {root: ' and '.join(found) or unknown for root, found in nearest.items()}
    unexplained = frozenset(root for root, found in nearest.items() if not found)
    return Lacks(by_root, f'has no {first} free in Placement', unexplained)


def _lacks_of(request: Request, tree: Sequence[Mapping[str, Any]], root: str) -> list[str]:
    missing: set[str] = set()
    surplus: set[str] = set()
    short: list[str] = []
    borrowed: list[str] = []
    for one in tree:
        if one['uuid'] == root:
            missing |= request.root_required - {*one['traits']}
    for _suffix, group in request.groups:
        missing |= {trait for trait in group.required if not any(trait in one['traits'] for one in tree)}
        surplus |= {trait for trait in group.forbidden if all(trait in one['traits'] for one in tree)}
        for name, amount in group.resources:
            free = [_free(one)[name] for one in tree if name in one['resources']]
            are = 'is' if amount == 1 else 'are'
            if not free:
                borrowed.append(f'has no {name} of its own, and {amount} {are} needed')
            elif max(free) < amount:
                short.append(f'has {max(0, *free)} of {name} free, and {amount} {are} needed')
    parts = [f'lacks {", ".join(sorted(missing))}'] if missing else []
    parts += [f'has {", ".join(sorted(surplus))}'] if surplus else []
    # A class that the tree does not have may be lent to it, so that this is named if nothing else is known.
    return [*parts, *short] or borrowed


def _free(summary: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(one['capacity'] - one['used']) for name, one in summary['resources'].items()}


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


def _read(client: PlacementClient, request: Request, limit: int | None, in_tree: str | None) -> dict[str, Any]:
    return client.read('/allocation_candidates?' + parse.urlencode(request.query(in_tree, limit)))


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
        self._locks: dict[_Key, executors.Lock] = {}
        self._lists: dict[_Key, Candidates] = {}
        #: The request -> until when it counts, the number of the last list before it, and what the hosts lack for it.
        self._lacks: dict[Request, tuple[float, int, Lacks | None]] = {}
        self._sent = 0

    def sent(self) -> int:
        """Return the number of requests that have been sent. Later ones have higher numbers."""
        with self._guard:
            return self._sent

    def get(
        self, request: Request, in_tree: str | None, asked_after: int | None = None, whole: bool = False
    ) -> Candidates:
        """Return the candidates for a guest, which other threads may be given as well.

        :param in_tree: root provider of the only host; None: any.
        :param asked_after: return a list whose request was sent after the one with this number; None: a fresh list.
        :param whole: return a list with all candidates.
        :raises migrator.exception.PlacementUnreachable: Placement did not answer.
        """
        key = request, in_tree
        with self._guard:
            lock = self._locks.setdefault(key, self._threads.lock())
        # The other threads wait for the reply instead of asking as well.
        with lock:
            found, now = self._lists.get(key), self._threads.clock.monotonic()
            if found is not None and (found.is_whole or not whole):
                if now < found.until if asked_after is None else asked_after < found.number:
                    return found
            found = self._ask(request, in_tree, None if whole else LIMIT)
            with self._guard:
                self._lists = {name: one for name, one in self._lists.items() if now < one.until} | {key: found}
                # Two threads that have different locks of one list merely ask twice.
                self._locks = {name: one for name, one in self._locks.items() if name in self._lists}
            return found

    def _ask(self, request: Request, in_tree: str | None, limit: int | None) -> Candidates:
        with self._guard:
            self._sent += 1
            number = self._sent
        began = self._threads.clock.monotonic()
        found = get_candidates(self._client, request, limit=limit, in_tree=in_tree)
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

    def lacks(self, request: Request, found: Candidates, in_tree: str | None = None) -> Lacks:
        """Return what the hosts lack that have no candidate in a list, as of some seconds ago at most.

        :param in_tree: root provider of the only host that matters; None: all matter.
        :raises migrator.exception.PlacementUnreachable: Placement did not answer.
        """
        now = self._threads.clock.monotonic()
        with self._guard:
            self._lacks = {one: known for one, known in self._lacks.items() if now < known[0]}
            (_, asked, known), sent = self._lacks.get(request, (0.0, 0, None)), self._sent
        # A host that had room at an earlier request may be full now. Ask again, so that its reason has a name.
        nameless = frozenset[str]() if known is None else known.unexplained - found.by_root.keys()
        if known is None or (asked < found.number and (nameless if in_tree is None else in_tree in nameless)):
            known = read_lacks(self._client, request)
            with self._guard:
                self._lacks[request] = now + FRESH, sent, known
        return known

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
