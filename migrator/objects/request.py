# SPDX-License-Identifier: Apache-2.0

"""The request for a guest: what Placement is asked for before it moves.

It is what nova's ``ResourceRequest`` and its request filters ask for the same flavor and image. The page
``placement-requests`` lists their translations, those that are left out, and why. ``tests/real/nova/test_requests.py``
compares the two.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import os_resource_classes
import os_traits
from oslo_utils import strutils

Pairs = tuple[tuple[str, str], ...]
#: What an extra spec requests, of which group, and of what.
_KEY = re.compile(r'^(?P<kind>resources|trait)(?P<group>[a-zA-Z0-9_-]{1,64})?:(?P<name>.*)$')
_FIRST = ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB')
#: The values of the extra spec group_policy.
_POLICIES = ('none', 'isolate')
#: The microversions of Placement from which on a request may name its groups, and the traits of a root provider.
_NAMED, _ROOT_REQUIRED = (1, 33), (1, 35)
_RANGE = re.compile(r'\^?\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?')
#: More than a host has.
_PROCESSORS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Group:
    """What one provider has to have, or, without a suffix, a tree of them.

    :ivar resources: resource class and amount.
    """

    resources: tuple[tuple[str, int], ...] = ()
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Request:
    """What Placement is asked for. Equal requests have equal answers.

    :ivar groups: suffix and group; ``''`` is the group without a suffix.
    :ivar policy: whether the groups with suffixes need providers of their own: 'isolate', or 'none'.
    :ivar root_required: traits of the root provider.
    :ivar fallback: what nova asks for as well, because a host without dedicated processors may take the guest.
    """

    groups: tuple[tuple[str, Group], ...]
    policy: str | None = None
    root_required: frozenset[str] = frozenset()
    fallback: Request | None = None

    @property
    def total(self) -> dict[str, int]:
        """The amounts by resource class, summed over the groups."""
        found: dict[str, int] = {}
        for _, group in self.groups:
            for name, amount in group.resources:
                found[name] = found.get(name, 0) + amount
        return found

    @property
    def totals(self) -> list[dict[str, int]]:
        """The amounts that an allocation of the guest may have: as requested, or as the fallback does."""
        return [one.total for one in self.forms()]

    def without_traits(self) -> Request:
        """Return the request for the same amounts: what a guest needs of the host that it is on already."""
        return Request(
            tuple((suffix, Group(group.resources)) for suffix, group in self.groups if group.resources),
            self.policy,
            fallback=self.fallback and self.fallback.without_traits(),
        )

    def forms(self) -> Iterator[Request]:
        """Yield the request and its fallback, each of which places the guest."""
        yield self
        if self.fallback is not None:
            yield self.fallback

    def known_to(self, microversion: tuple[int, int]) -> Request:
        """Return the part of the request that a microversion of Placement knows.

        A Nova that works with such a Placement asks for no more.
        """
        if microversion >= _ROOT_REQUIRED:
            return self
        groups = tuple(
            (suffix, group) for suffix, group in self.groups if microversion >= _NAMED or re.fullmatch('[0-9]*', suffix)
        )
        fallback = self.fallback and self.fallback.known_to(microversion)
        return dataclasses.replace(self, groups=groups, root_required=frozenset(), fallback=fallback)

    def query(self, in_tree: str | None = None, limit: int | None = None) -> list[tuple[str, str]]:
        """Return the names and values of the query of ``GET /allocation_candidates``.

        :param in_tree: the only tree that may provide something, named by any of its providers.
        :param limit: the greatest number of candidates; None: all of them.
        """
        found = []
        for suffix, group in self.groups:
            found.append((f'resources{suffix}', ','.join(f'{name}:{amount}' for name, amount in group.resources)))
            traits = [*sorted(group.required), *(f'!{name}' for name in sorted(group.forbidden))]
            if any(group.required) or group.forbidden:
                found.append((f'required{suffix}', ','.join(traits)))
            if in_tree is not None:
                found.append((f'in_tree{suffix}', in_tree))
        if self.root_required:
            found.append(('root_required', ','.join(sorted(self.root_required))))
        policy = self.policy
        if policy is None and len([suffix for suffix, _ in self.groups if suffix]) > 1:
            policy = 'none'  # Placement refuses a request without any, and so does nova a guest of such a flavor
        if policy is not None:
            found.append(('group_policy', policy))
        if limit is not None:
            found.append(('limit', str(limit)))
        return found


def for_amounts(amounts: Mapping[str, int]) -> Request:
    """Return the request for some amounts by resource class, on one host, and for nothing else."""
    return Request((('', Group(tuple(amounts.items()))),))


@functools.lru_cache(maxsize=1024)
def request_of(
    vcpus: int,
    memory_mb: int,
    disk_gb: int,
    specs: Pairs,
    properties: Pairs = (),
    asks_for_secrets: bool = False,
) -> Request:
    """Return the request for a guest; see :meth:`migrator.objects.Flavor.request_for`.

    :param specs: the extra specs of its flavor.
    :param properties: those of its image.
    """
    guest = _Guest(vcpus, memory_mb, disk_gb, dict(specs), dict(properties), asks_for_secrets)
    request = _Building(guest).made(is_pinned=True)
    if guest.get('cpu_policy') != 'dedicated':
        return request
    fallback = _Building(guest).made(is_pinned=False)
    return dataclasses.replace(request, fallback=fallback) if fallback != request else request


@dataclasses.dataclass(frozen=True)
class _Guest:
    """A flavor and the properties of an image, which say the same things under different names."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    specs: Mapping[str, str]
    properties: Mapping[str, str]
    asks_for_secrets: bool

    def get(self, name: str, prefix: str = 'hw') -> str | None:
        """Return ``hw:NAME`` of the flavor, or else ``hw_NAME`` of the image."""
        return self.specs.get(f'{prefix}:{name}') or self.properties.get(f'{prefix}_{name}')

    def is_on(self, name: str) -> bool:
        """Return whether the flavor or the image switches something on."""
        both = self.specs.get(f'hw:{name}'), self.properties.get(f'hw_{name}')
        return any(strutils.bool_from_string(value) for value in both)


class _Building:
    """A request while it is put together."""

    def __init__(self, guest: _Guest) -> None:
        self._guest = guest
        self._resources: dict[str, dict[str, int]] = collections.defaultdict(dict)
        self._traits: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
        self._root: set[str] = set()

    def made(self, is_pinned: bool) -> Request:
        """Return the request.

        :param is_pinned: whether dedicated processors are asked for as such.
        """
        self._specs()
        if is_pinned:
            self._processors()
        self._amounts()
        self._features()
        suffixes = sorted({*self._resources, *self._traits})
        groups = [
            (
                suffix,
                Group(
                    tuple((name, n) for name, n in sorted(self._resources[suffix].items(), key=_order) if n),
                    frozenset(self._traits[suffix]['required']),
                    frozenset(self._traits[suffix]['forbidden']),
                ),
            )
            for suffix in suffixes
        ]
        policy = self._guest.specs.get('group_policy')
        return Request(
            tuple((suffix, group) for suffix, group in groups if group != Group()),
            policy if policy in _POLICIES else None,
            frozenset(self._root),
        )

    def _add(self, name: str, amount: int) -> None:
        self._resources[''][name] = amount

    def _add_named(self, name: str, value: str, suffix: str) -> None:
        if not name.startswith(os_resource_classes.CUSTOM_NAMESPACE) and name not in os_resource_classes.STANDARDS:
            return
        try:
            amount = int(value)
        except ValueError:
            return
        if amount >= 0:
            self._resources[suffix][name] = amount

    def _require(self, trait: str, value: str = 'required', suffix: str = '') -> None:
        if value in ('required', 'forbidden'):
            self._traits[suffix][value].add(trait)

    def _specs(self) -> None:
        """Add what is requested by name. Nova passes over what it does not know."""
        for key, value in self._guest.specs.items():
            found = _KEY.match(key)
            if found is None:
                continue
            add: Callable[[str, str, str], None] = self._add_named if found['kind'] == 'resources' else self._require
            add(found['name'], value, found['group'] or '')
        for key, value in self._guest.properties.items():
            if key.startswith('trait:') and value == 'required':
                self._require(key.removeprefix('trait:'))

    def _processors(self) -> None:
        """Add what the policies for processors mean."""
        guest = self._guest
        policy, vcpus = guest.get('cpu_policy'), guest.vcpus
        dedicated = vcpus if policy == 'dedicated' else 0
        if policy == 'mixed':
            dedicated = len(_processors_of(guest))
            self._add('VCPU', vcpus - dedicated)
        if policy in ('dedicated', 'mixed'):
            self._add('PCPU', dedicated + (guest.specs.get('hw:emulator_threads_policy') == 'isolate'))
        threads = {'isolate': 'forbidden', 'require': 'required'}.get(guest.get('cpu_thread_policy') or '')
        if threads is not None:
            self._require(os_traits.HW_CPU_HYPERTHREADING, threads)

    def _amounts(self) -> None:
        """Add the amounts of the flavor itself, unless a class is requested by name, if only as 0."""
        guest = self._guest
        named = {name for amounts in self._resources.values() for name in amounts}
        if not named & {'VCPU', 'PCPU'}:
            self._add('VCPU', guest.vcpus)
        if 'MEMORY_MB' not in named:
            self._add('MEMORY_MB', guest.memory_mb)
        if 'DISK_GB' not in named:
            self._add('DISK_GB', guest.disk_gb)

    def _features(self) -> None:
        """Add what the features of the guest mean, which only some hosts have."""
        guest, specs = self._guest, self._guest.specs
        if guest.is_on('mem_encryption'):
            self._add('MEM_ENCRYPTION_CONTEXT', 1)
            model = guest.get('mem_encryption_model') or 'amd-sev'
            self._require(f'HW_CPU_X86_{model.replace("-", "_").upper()}')
        labels = filter(None, (label.strip() for label in specs.get('hw:pmem', '').split(',')))
        spaces = collections.Counter(os_resource_classes.normalize_name(f'PMEM_NAMESPACE_{label}') for label in labels)
        for name, number in spaces.items():
            self._add(name, number)
        version = guest.get('tpm_version')
        if version is not None:
            self._require(f'COMPUTE_SECURITY_TPM_{"CRB" if guest.get("tpm_model") == "tpm-crb" else "TIS"}')
            self._require(f'COMPUTE_SECURITY_TPM_{"2_0" if version == "2.0" else "1_2"}')
            if guest.asks_for_secrets:
                security = specs.get('hw:tpm_secret_security') or 'user'
                self._root.add(f'COMPUTE_SECURITY_TPM_SECRET_SECURITY_{security.upper()}')
        if guest.get('pci_numa_affinity_policy') == 'socket':
            self._require(os_traits.COMPUTE_SOCKET_PCI_NUMA_AFFINITY)
        if guest.get('secure_boot', prefix='os') == 'required':
            self._require(os_traits.COMPUTE_SECURITY_UEFI_SECURE_BOOT)
        space = {
            'passthrough': os_traits.COMPUTE_ADDRESS_SPACE_PASSTHROUGH,
            'emulate': os_traits.COMPUTE_ADDRESS_SPACE_EMULATED,
        }.get(guest.get('maxphysaddr_mode') or '')
        if space is not None:
            self._require(space)
        if guest.properties.get('hw_firmware_type') == 'uefi' and strutils.bool_from_string(
            guest.properties.get('hw_firmware_stateless')
        ):
            self._require(os_traits.COMPUTE_SECURITY_STATELESS_FIRMWARE)
        self._root.update(_root_traits(guest))


def _order(amount: tuple[str, int]) -> tuple[int, str]:
    """Return the place of an amount: those that each guest has come first."""
    name = amount[0]
    return _FIRST.index(name) if name in _FIRST else len(_FIRST), name


def _root_traits(guest: _Guest) -> Iterable[str]:
    """Yield the traits of the root provider that nova's request filters require."""
    if guest.specs.get('accel:device_profile'):
        yield os_traits.COMPUTE_ACCELERATORS
    if guest.is_on('virtio_packed_ring'):
        yield os_traits.COMPUTE_NET_VIRTIO_PACKED
    if guest.is_on('ephemeral_encryption'):
        yield os_traits.COMPUTE_EPHEMERAL_ENCRYPTION
        kind = guest.get('ephemeral_encryption_format')
        if kind:
            yield f'COMPUTE_EPHEMERAL_ENCRYPTION_{kind.upper()}'
    if guest.get('sound_model') == 'virtio':
        yield os_traits.COMPUTE_SOUND_MODEL_VIRTIO


def _processors_of(guest: _Guest) -> set[int]:
    """Return the dedicated processors of a guest whose policy is mixed."""
    vcpus = guest.vcpus
    mask = guest.specs.get('hw:cpu_dedicated_mask')
    if not mask:
        if not strutils.bool_from_string(guest.specs.get('hw:cpu_realtime')):
            return set()
        mask = guest.properties.get('hw_cpu_realtime_mask') or guest.specs.get('hw:cpu_realtime_mask')
    if not mask:
        return set(range(vcpus))
    try:
        return processors(f'0-{vcpus - 1},{mask}' if mask.strip().startswith('^') else mask)
    except ValueError:
        return set()


def processors(mask: str) -> set[int]:
    """Return the numbers of a mask such as ``0-3,^2``.

    :raises ValueError: it cannot be read.
    """
    kept: set[int] = set()
    without: set[int] = set()
    for part in filter(None, (one.strip() for one in mask.split(','))):
        found = _RANGE.fullmatch(part)
        least, greatest = (int(found[1]), int(found[2] or found[1])) if found is not None else (1, 0)
        if not least <= greatest < _PROCESSORS:
            raise ValueError(f'{part!r} is neither a number nor a range such as 0-3')
        (without if part.startswith('^') else kept).update(range(least, greatest + 1))
    return kept - without
