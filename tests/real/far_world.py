# SPDX-License-Identifier: Apache-2.0

"""The hypervisors of a world in another process, with the interface of those in this process.

Each property asks anew; what it returns is a copy of that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator import executors
from migrator.objects import Instance, protocol
from migrator.testing.fake_world import server
from migrator.testing.fake_world.client import FakeWorldClient
from migrator.testing.hypervisor import hypervisor

KNOBS = frozenset(server.KNOBS)


class FarStall:
    """A stall at a distance; see :class:`migrator.testing.hypervisor.faults.Stall`."""

    def __init__(self, client: FakeWorldClient, host: str, name: str) -> None:
        self._client = client
        self._host = host
        self._name = name
        # called as the event that it is in the world of this process
        self.reached = self

    def is_set(self) -> bool:
        """Whether something hangs in it."""
        return bool(self._client.ask('reached', self._host, self._name))

    def release(self) -> None:
        """Let everything that hangs in it go on."""
        self._client.ask('release', self._host, self._name)


class FarFaults:
    """The faults of one host; see :class:`migrator.testing.hypervisor.faults.Faults`."""

    def __init__(self, client: FakeWorldClient, host: str) -> None:
        self._client = client
        self._host = host

    def fail(self, phase: str, reason: str = 'planted', **options: Any) -> None:
        """Make a phase fail."""
        self._client.fail(self._host, phase, reason=reason, **options)

    def stall(self, phase: str, **options: Any) -> FarStall:
        """Make a phase hang until the returned stall is released."""
        return FarStall(self._client, self._host, self._client.stall(self._host, phase, **options))

    def clear(self, phase: str | None = None) -> None:
        """Remove the faults that were not injected yet."""
        self._client.clear(self._host, phase)


class FarHypervisor:
    """One host, with the knobs of :class:`migrator.testing.hypervisor.hypervisor.FakeHypervisor`."""

    def __init__(self, client: FakeWorldClient, host: str) -> None:
        self.__dict__.update(_client=client, host=host, faults=FarFaults(client, host))

    def look(self) -> dict[str, Any]:
        """Return what there is, as it is at this moment."""
        found: dict[str, Any] = self._client.look()['hosts'][self.host]
        return found

    def __getattr__(self, name: str) -> Any:
        if name in KNOBS:
            return self.look()['knobs'][name]
        if name in server.DEEDS:
            return lambda *args: self._client.ask(name, self.host, *args)
        raise AttributeError(f'a hypervisor at a distance has no {name}')

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in KNOBS:
            raise AttributeError(f'a hypervisor at a distance has no knob {name}')
        self._client.knob(self.host, name, value)

    def spawn(self, instance: Instance, dirty_rate: float = 0.0) -> None:
        """Start an instance's guest here."""
        self._client.spawn(self.host, instance, dirty_rate)

    @property
    def powered(self) -> bool:
        """Whether it has power."""
        return bool(self.look()['powered'])

    @property
    def guests(self) -> dict[str, hypervisor.FakeGuest]:
        """The guests here."""
        return guests_of(self.look())

    @property
    def jobs(self) -> dict[str, Any]:
        """The jobs from here."""
        found: dict[str, Any] = self.look()['jobs']
        return found

    def residue(self, instance_uuid: str) -> list[str]:
        """Return what there is of a guest here, in any form."""
        return parts_of(self.look(), instance_uuid)

    def describe(self, instance_uuid: str) -> protocol.Guest:
        """Return what this host holds of a guest."""
        return guest_of(self.look(), instance_uuid)


def guests_of(look: Mapping[str, Any]) -> dict[str, hypervisor.FakeGuest]:
    """Return the guests of a host that was looked at."""
    return {uuid: hypervisor.FakeGuest(**fields) for uuid, fields in look['guests'].items()}


def parts_of(look: Mapping[str, Any], instance_uuid: str) -> list[str]:
    """Return what there is of a guest on a host that was looked at."""
    found = {*look['residues'].get(instance_uuid, ()), *(('guest',) if instance_uuid in look['guests'] else ())}
    return sorted(found)


def guest_of(look: Mapping[str, Any], instance_uuid: str) -> protocol.Guest:
    """Return a guest as its driver would describe it, of a host that was looked at."""
    fields = look['guests'].get(instance_uuid)
    if fields is None:
        return protocol.Guest(instance_uuid=instance_uuid)
    return protocol.Guest(
        instance_uuid=instance_uuid,
        state=fields['state'],
        job=instance_uuid in look['jobs'],
        incoming=fields['incoming'],
        post_copy=fields['post_copy'],
    )


def size_of(guest: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the processors, memory and disk of a guest that was looked at."""
    return guest['vcpus'], guest['memory_mb'], guest['disk_gb']


def resize_of(guest: Mapping[str, Any]) -> tuple[str, tuple[int, int, int] | None] | None:
    """Return the migration that resizes a guest at its host, and the old size of a resized guest."""
    resize = guest['resize']
    if resize is None:
        return None
    return resize['migration_uuid'], tuple(resize['old']) if resize['old'] else None


class FarWorld:
    """All hypervisors there are; see :class:`migrator.testing.hypervisor.hypervisor.FakeWorld`.

    :param path: of the socket at which the world is.
    """

    def __init__(self, path: str, hosts: Sequence[str]) -> None:
        self.client = FakeWorldClient(path)
        self.threads = executors.NativeThreads()
        self.hypervisors = {host: FarHypervisor(self.client, host) for host in hosts}

    def add(self, host: str) -> FarHypervisor:
        """Add a host, unless it is there."""
        self.client.add(host)
        return self.hypervisors.setdefault(host, FarHypervisor(self.client, host))

    @property
    def log(self) -> list[hypervisor.Effect]:
        """Every effect, in order."""
        return [hypervisor.Effect(**effect) for effect in self.client.look()['log']]

    @property
    def violations(self) -> list[str]:
        """What must never be and was, in words."""
        found: list[str] = self.client.look()['violations']
        return found

    def effects(self, effect: str, instance_uuid: str | None = None) -> list[hypervisor.Effect]:
        """Return the logged effects of one kind, of one guest or of all."""
        return [e for e in self.log if e.effect == effect and instance_uuid in (None, e.instance_uuid)]

    def active_on(self, instance_uuid: str) -> list[str]:
        """Return the hosts that own a guest."""
        return list(self._active_on(instance_uuid))

    def _active_on(self, instance_uuid: str) -> Iterator[str]:
        for host, look in self.client.look()['hosts'].items():
            if look['guests'].get(instance_uuid, {}).get('state') in hypervisor.OWNING:
                yield host
