# SPDX-License-Identifier: Apache-2.0

"""The providers of the fake Placement, and the allocation candidates in Placement's own order.

Placement collects candidates in sets and returns them in the order of the sets. This module uses the same sets, so
that a limit cuts off the same candidates.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from oslo_utils import uuidutils

from migrator.testing.fake_placement.bodies import RefusedError

SHARING_TRAIT = 'MISC_SHARES_VIA_AGGREGATE'

_PARAMETER = re.compile(r'(resources|in_tree|required)([a-zA-Z0-9_-]{1,64})?')
#: Parameters that Placement supports and that the client of this project does not send.
_UNSUPPORTED = re.compile(r'member_of([a-zA-Z0-9_-]{1,64})?|same_subtree')
_LIMIT = re.compile(r'[1-9][0-9]*')

#: (internal id of a provider, internal id of the root of its tree), as in the rows of Placement's queries.
_Row = tuple[int, int]


@dataclasses.dataclass(eq=False, slots=True)
class Provider:
    """A resource provider.

    :ivar id: the id that Placement's database would use.
    :ivar inventory: resource class -> total, reserved, min_unit, max_unit, step_size, allocation_ratio.
    :ivar used: resource class -> the allocated amount. Classes without any allocation are left out.
    :ivar holders: consumer uuid -> resource class -> amount, in the order of the writes.
    """

    id: int
    uuid: str
    name: str
    parent: Provider | None = None
    generation: int = 0
    inventory: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    traits: list[str] = dataclasses.field(default_factory=list)
    aggregates: list[str] = dataclasses.field(default_factory=list)
    used: dict[str, int] = dataclasses.field(default_factory=dict)
    holders: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def root(self) -> Provider:
        """The root of the provider's tree."""
        found = self
        while found.parent is not None:
            found = found.parent
        return found

    def capacity(self, resource_class: str) -> float:
        """Return how much of a class can be allocated, not rounded."""
        inventory = self.inventory[resource_class]
        total: float = (inventory['total'] - inventory['reserved']) * inventory['allocation_ratio']
        return total

    def takes(self, resource_class: str, amount: int) -> bool:
        """Return whether the units of the inventory allow an allocation of this amount, whatever is in use."""
        inventory = self.inventory[resource_class]
        is_between: bool = inventory['min_unit'] <= amount <= inventory['max_unit']
        return is_between and amount % inventory['step_size'] == 0

    def has_room(self, resource_class: str, amount: int) -> bool:
        """Return whether an allocation of this amount is possible now."""
        return (
            resource_class in self.inventory
            and self.takes(resource_class, amount)
            and self.used.get(resource_class, 0) + amount <= self.capacity(resource_class)
        )


class _Part:
    """An amount of one class from one provider; parts with the same values are equal."""

    __slots__ = ('_hashed_as', 'amount', 'provider', 'resource_class')

    def __init__(self, provider: Provider, resource_class: str, amount: int, hashed_as: Hashable) -> None:
        self.provider = provider
        self.resource_class = resource_class
        self.amount = amount
        self._hashed_as = hashed_as

    def _key(self) -> tuple[int, str, int]:
        return self.provider.id, self.resource_class, self.amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Part) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.provider.id, self._hashed_as, self.amount))


class _Claim:
    """One way to satisfy one request group or all groups; claims with the same content are equal."""

    __slots__ = ('anchor', 'mappings', 'parts')

    def __init__(self, anchor: Provider, parts: list[_Part], mappings: dict[str, set[str]]) -> None:
        self.anchor = anchor
        self.parts = parts
        self.mappings = mappings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Claim) and set(self.parts) == set(other.parts) and self.mappings == other.mappings

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.parts, key=hash)))


@dataclasses.dataclass(frozen=True)
class _Traits:
    """The traits of a parameter ``required``, each in the order of the query."""

    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    def fit(self, traits: Iterable[str]) -> bool:
        """Return whether traits have all of the required ones, and none of the forbidden ones."""
        found = {*traits}
        return found.issuperset(self.required) and found.isdisjoint(self.forbidden)


@dataclasses.dataclass
class _Group:
    suffix: str
    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    traits: _Traits = dataclasses.field(default_factory=lambda: _Traits())
    in_tree: str | None = None


class Search:
    """One search for allocation candidates.

    :param providers: uuid -> provider, for all providers.
    :param class_ids: resource class -> the id that Placement's database would use.
    :param is_trait: returns whether there is a trait of a name.
    :param hashed_as: returns the value to hash instead of a text that Placement hashes.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        class_ids: Mapping[str, int],
        is_trait: Callable[[str], bool],
        hashed_as: Callable[[str], Hashable],
    ) -> None:
        self._providers = providers
        self._is_trait = is_trait
        #: The roots that have the required traits of a root; None: all.
        self._roots: set[int] | None = None
        self._by_id = {one.id: one for one in providers.values()}
        self._root_of = {one.id: one.root.id for one in providers.values()}
        self._class_ids = class_ids
        self._hashed_as = hashed_as
        self._sharing = {one.id for one in providers.values() if SHARING_TRAIT in one.traits}
        self._has_trees = any(one.parent is not None for one in providers.values())

    def run(self, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return the document of the response to ``GET /allocation_candidates``.

        :param query: names and values of the query string.
        :raises RefusedError: the query is malformed, or names an unknown resource class.
        :raises NotImplementedError: the query has a parameter that only the real Placement supports.
        """
        groups, policy, limit, of_root = _parsed(query)
        if of_root != _Traits():
            self._check_traits(of_root)
            self._roots = {one.id for one in self._by_id.values() if one.parent is None and of_root.fit(one.traits)}
            if not self._roots:
                return {'allocation_requests': [], 'provider_summaries': {}}
        found: dict[str, Iterable[_Claim]] = {}
        several: set[str] = set()
        seen: set[str] = set()
        for group in groups:
            rows = self._rows(group)
            several |= seen & group.resources.keys()
            seen |= group.resources.keys()
            claims = self._of_group(group, rows) if rows else ()
            if not claims:
                return {'allocation_requests': [], 'provider_summaries': {}}
            found[group.suffix] = claims
        merged = self._merge(found, policy, several)
        if limit is not None:
            merged = merged[:limit]
        return {'allocation_requests': [_request_of(one) for one in merged], 'provider_summaries': self._trees(merged)}

    # --- one group ---------------------------------------------------------------------------------------------------

    def _rows(self, group: _Group) -> dict[str, set[_Row]] | None:
        """Return resource class -> the providers with room for it.

        The result is None if one class has no such provider, or the tree does not exist.
        """
        for name in group.resources:
            if name not in self._class_ids:
                raise RefusedError(
                    400, f'Invalid resource class in resources parameter: No such resource class {name}.'
                )
        self._check_traits(group.traits)
        root = None
        if group.in_tree is not None:
            if group.in_tree not in self._providers:
                return None
            root = self._providers[group.in_tree].root.id
        rows = {}
        for name, amount in group.resources.items():
            rows[name] = {
                (one.id, self._root_of[one.id])
                for one in self._by_id.values()
                if root in (None, self._root_of[one.id]) and one.has_room(name, amount)
            }
            if not rows[name]:
                return None
        return rows

    def _check_traits(self, traits: _Traits) -> None:
        for name in (*traits.required, *traits.forbidden):
            if not self._is_trait(name):
                raise RefusedError(400, f'No such trait(s): {name}.')

    def _is_anchor(self, root: int) -> bool:
        return self._roots is None or root in self._roots

    def _of_group(self, group: _Group, rows: Mapping[str, set[_Row]]) -> list[_Claim] | set[_Claim]:
        if not group.suffix and (self._sharing or self._has_trees):
            return self._from_trees(group, rows)
        return self._from_one_provider(group, rows)

    def _from_one_provider(self, group: _Group, rows: Mapping[str, set[_Row]]) -> list[_Claim]:
        """Return the claims that one provider satisfies alone."""
        able = set.intersection(*({row[0] for row in one} for one in rows.values()))
        able = {number for number in able if group.traits.fit(self._by_id[number].traits)}
        last = rows[next(reversed(group.resources))]
        claims = []
        for number, root in [row for row in last if row[0] in able]:
            provider = self._by_id[number]
            parts = [self._part(provider, name, amount) for name, amount in group.resources.items()]
            mappings = {group.suffix: {provider.uuid}}
            if self._is_anchor(root):
                claims.append(_Claim(self._by_id[root], parts, mappings))
            if number in self._sharing:
                # One claim for each tree that may borrow. As in Placement, they share the parts and do not copy them.
                claims += [
                    _Claim(self._by_id[anchor], parts, mappings)
                    for _lender, anchor in self._anchors({number})
                    if anchor != root and self._is_anchor(anchor)
                ]
        return claims

    def _from_trees(self, group: _Group, rows: Mapping[str, set[_Row]]) -> set[_Claim]:
        """Return the claims that a tree satisfies together with the providers from which it borrows."""
        chosen: set[tuple[int, int, int]] = set()
        for name in group.resources:
            number = self._class_ids[name]
            able: set[tuple[int, int, int]] = set()
            able |= {(provider, root, number) for provider, root in rows[name]}
            lenders = self._sharing & {row[0] for row in rows[name]}
            if lenders and group.in_tree is None:
                able |= {(provider, root, number) for provider, root in self._anchors(lenders)}
            if self._roots is not None:
                able = {row for row in able if row[1] in self._roots}
                if not able:
                    return set()
            if not chosen:
                chosen = able
            else:
                common = {row[1] for row in chosen} & {row[1] for row in able}
                chosen |= able
                chosen = {row for row in chosen if row[1] in common}
            if not chosen:
                return set()
        if not self._sharing and group.traits != _Traits():
            chosen = self._with_traits(chosen, group.traits)
        names = {self._class_ids[name]: name for name in group.resources}
        trees: dict[int, dict[int, list[_Part]]] = {}
        for provider, root, number in chosen:
            name = names[number]
            part = self._part(self._by_id[provider], name, group.resources[name])
            trees.setdefault(root, {}).setdefault(number, []).append(part)
        claims: set[_Claim] = set()
        for root, by_class in trees.items():
            claims |= {
                _Claim(self._by_id[root], list(parts), {group.suffix: {one.provider.uuid for one in parts}})
                for parts in itertools.product(*(by_class[number] for number in sorted(by_class)))
                if self._have_traits(parts, group.traits)
            }
        return claims

    def _with_traits(self, rows: set[tuple[int, int, int]], traits: _Traits) -> set[tuple[int, int, int]]:
        """Return the rows of the trees that may have the traits, as far as Placement looks before it combines."""
        forbidden = {*traits.forbidden}
        good = [(provider, root) for provider, root, _ in rows if not forbidden & {*self._by_id[provider].traits}]
        found: dict[int, set[str]] = {}
        for provider, root in good:
            found.setdefault(root, set()).update(self._by_id[provider].traits)
        roots = {root for root, names in found.items() if {*traits.required} <= names}
        return {row for row in rows if row[1] in roots}

    def _have_traits(self, parts: Iterable[_Part], traits: _Traits) -> bool:
        """Return whether the providers of some parts fit the traits together."""
        return traits.fit(trait for one in parts for trait in one.provider.traits)

    def _anchors(self, lenders: Iterable[int]) -> list[_Row]:
        """Return each (lender, root of a tree that may borrow from it), the lender's own tree included."""
        found = set()
        for number in sorted(lenders):
            lender = self._by_id[number]
            for one in self._by_id.values():
                if not set(one.aggregates).isdisjoint(lender.aggregates):
                    anchor = one.root
                    found.add((number, self._hashed_as(lender.uuid), anchor.id, self._hashed_as(anchor.uuid)))
        return [(one[0], one[2]) for one in found]

    def _part(self, provider: Provider, name: str, amount: int) -> _Part:
        return _Part(provider, name, amount, self._hashed_as(name))

    # --- all groups --------------------------------------------------------------------------------------------------

    def _merge(self, found: Mapping[str, Iterable[_Claim]], policy: str | None, several: set[str]) -> list[_Claim]:
        """Return the claims that satisfy all groups in one tree.

        :param several: the classes that more than one group requests.
        """
        by_anchor: dict[str, dict[str, list[_Claim]]] = {}
        for suffix, claims in found.items():
            for claim in claims:
                by_anchor.setdefault(claim.anchor.uuid, {}).setdefault(suffix, []).append(claim)
        numbered = [suffix for suffix in found if suffix]
        merged: set[_Claim] = set()
        for by_suffix in by_anchor.values():
            if by_suffix.keys() != found.keys():
                continue
            for claims in itertools.product(*by_suffix.values()):
                if policy == 'isolate':
                    apart = [
                        claim.mappings[suffix] for claim in claims for suffix in numbered if suffix in claim.mappings
                    ]
                    if len(set().union(*apart)) != len(numbered):
                        continue
                claim = _folded(claims, several if policy == 'none' else set())
                if all(_fits(part) for part in claim.parts):
                    merged.add(claim)
        return list(merged)

    def _trees(self, claims: Iterable[_Claim]) -> dict[str, Any]:
        """Return the summary of each provider in the trees of the claims."""
        roots = {self._root_of[part.provider.id] for claim in claims for part in claim.parts}
        return {one.uuid: _summary_of(one) for one in self._by_id.values() if self._root_of[one.id] in roots}


def _folded(claims: Sequence[_Claim], copied: set[str]) -> _Claim:
    """Merge claims into one, and add up the amounts of the same class from the same provider.

    :param copied: the classes whose parts are copied first. Parts of other classes are changed in place. If two groups
        request the same class without group_policy=none, a sum in one candidate therefore appears in the next one too.
        Placement does the same.
    """
    parts: dict[tuple[int, str], _Part] = {}
    mappings: dict[str, set[str]] = {}
    for claim in claims:
        for part in claim.parts:
            key = (part.provider.id, part.resource_class)
            if key in parts:
                parts[key].amount += part.amount
            else:
                parts[key] = copy.copy(part) if part.resource_class in copied else part
        for suffix, uuids in claim.mappings.items():
            mappings.setdefault(suffix, set()).update(uuids)
    return _Claim(claims[0].anchor, list(parts.values()), mappings)


def _fits(part: _Part) -> bool:
    """Return whether the provider has room for a part, whose amount may be the sum of several groups."""
    provider, name = part.provider, part.resource_class
    is_room = provider.used.get(name, 0) + part.amount <= int(provider.capacity(name))
    return is_room and part.amount <= provider.inventory[name]['max_unit']


def _request_of(claim: _Claim) -> dict[str, Any]:
    allocations: dict[str, dict[str, dict[str, int]]] = {}
    for part in claim.parts:
        held = allocations.setdefault(part.provider.uuid, {'resources': {}})
        held['resources'][part.resource_class] = part.amount
    return {
        'allocations': allocations,
        'mappings': {suffix: sorted(uuids) for suffix, uuids in claim.mappings.items()},
    }


def _summary_of(provider: Provider) -> dict[str, Any]:
    return {
        'resources': {
            name: {'capacity': int(provider.capacity(name)), 'used': provider.used.get(name, 0)}
            for name in provider.inventory
        },
        'traits': list(provider.traits),
        'parent_provider_uuid': provider.parent and provider.parent.uuid,
        'root_provider_uuid': provider.root.uuid,
    }


def _parsed(query: Sequence[tuple[str, str]]) -> tuple[list[_Group], str | None, int | None, _Traits]:
    """Return the groups in the order of the query, the group policy, the limit and the traits of a root."""
    groups: dict[str, _Group] = {}
    of_root = _Traits()
    policy: str | None = None
    limit: int | None = None
    for name, value in query:
        match = _PARAMETER.fullmatch(name)
        if name == 'root_required':
            of_root = _traits(value)
        elif match is not None:
            group = groups.setdefault(match[2] or '', _Group(match[2] or ''))
            if match[1] == 'in_tree':
                group.in_tree = _uuid(value)
            elif match[1] == 'required':
                group.traits = _traits(value)
            else:
                group.resources = _resources(value)
        elif name == 'limit' and _LIMIT.search(value):
            limit = int(value)
        elif name == 'group_policy' and value in ('none', 'isolate'):
            policy = value
        elif _UNSUPPORTED.fullmatch(name):
            raise NotImplementedError(
                f'FakePlacement does not implement {name} in /allocation_candidates; use InProcessPlacement'
            )
        else:
            raise RefusedError(400, f'Invalid query string parameters: {name}={value}')
    without = [group.suffix for group in groups.values() if not group.resources]
    if len(without) == len(groups):
        raise RefusedError(400, 'There must be at least one resources parameter.', 'placement.query.missing_value')
    if without:
        raise RefusedError(400, f'Request groups without resources: {without}', 'placement.query.bad_value')
    if policy is None and len([suffix for suffix in groups if suffix]) > 1:
        raise RefusedError(400, 'The "group_policy" parameter is required with more than one numbered group.')
    for group in groups.values():
        _check_conflicts(f'required{group.suffix}', group.traits)
    _check_conflicts('root_required', of_root)
    return list(groups.values()), policy, limit, of_root


def _traits(value: str) -> _Traits:
    names = [name.strip() for name in value.split(',')]
    if not all(name.removeprefix('!') for name in names):
        raise RefusedError(400, f"Invalid query string parameters: Expected 'required' without an empty name: {value}")
    return _Traits(
        tuple(name for name in names if not name.startswith('!')),
        tuple(name.removeprefix('!') for name in names if name.startswith('!')),
    )


def _check_conflicts(parameter: str, traits: _Traits) -> None:
    both = {*traits.required} & {*traits.forbidden}
    if both:
        raise RefusedError(400, f'Conflicting required and forbidden traits found in {parameter}: {sorted(both)}')


def _uuid(value: str) -> str:
    if not uuidutils.is_uuid_like(value.strip()):
        raise RefusedError(400, f"Invalid query string parameters: 'in_tree' is no uuid: {value}")
    return value.strip()


def _resources(value: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in value.split(','):
        name, colon, amount = entry.partition(':')
        if not colon or not amount.strip().isdecimal() or int(amount) < 1:
            raise RefusedError(400, f'Badly formed resources parameter, expected CLASS:AMOUNT. Got: {entry}')
        found[name] = int(amount)
    return found
