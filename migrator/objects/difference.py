# SPDX-License-Identifier: Apache-2.0

"""The difference between what the hypervisors report about a guest and what the database has."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping

from migrator.objects.instance import MIGRATABLE_VM_STATES
from migrator.objects.protocol import GuestState

#: The states in which a host runs a guest.
RUNS = frozenset({GuestState.RUNNING.value, GuestState.PAUSED.value})
#: The state of a guest -> the vm_state and the power_state of its instance, as in nova.
POWER = {
    GuestState.RUNNING.value: ('active', 1),
    GuestState.PAUSED.value: ('paused', 3),
    GuestState.SHUTDOWN.value: ('stopped', 4),
}


def is_power_wrong(vm_state: str, state: str) -> bool:
    """Return whether a guest is shut off although its instance runs, or the other way round.

    :param state: a :class:`~migrator.objects.protocol.GuestState`.
    """
    if state == GuestState.SHUTDOWN:
        return vm_state in MIGRATABLE_VM_STATES
    return state in RUNS and vm_state == 'stopped'


class DifferenceKind(enum.StrEnum):
    """The kind of a difference."""

    #: Another host has the guest, and the host in the database does not have it, or has it shut off.
    MOVED = 'moved'
    #: No host that answered has the guest.
    MISSING = 'missing'
    #: The same, and the machine of the host in the database was replaced since it had the guest.
    REPLACED = 'replaced'
    #: The host in the database has the guest, and another host has it too.
    TWICE = 'twice'
    #: A host has a guest that the database does not have.
    UNKNOWN = 'unknown'
    #: The guest is where the database has it, but a reconcile of it was interrupted.
    UNFINISHED = 'unfinished'
    #: The guest is where the database has it. It is shut off, but the database has it running, or the other way round.
    POWER = 'power'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One guest that is not where the database has it.

    :ivar name: the name of the instance; the uuid if the database does not have it.
    :ivar host: the host in the database; None: the database does not have the guest.
    :ivar kind: a :class:`DifferenceKind`.
    :ivar seen: the hosts that have the guest -> its state there, a :class:`~migrator.objects.protocol.GuestState`.
    :ivar since: when it was found; None: it is not stored.
    """

    instance_uuid: str
    name: str
    host: str | None
    kind: str
    seen: Mapping[str, str]
    since: datetime.datetime | None = None

    @property
    def hosts(self) -> set[str]:
        """The hosts that the difference concerns."""
        return {*self.seen, *([self.host] if self.host is not None else [])}

    @property
    def runs_on(self) -> list[str]:
        """The hosts that run the guest, by name."""
        return sorted(host for host, state in self.seen.items() if state in RUNS)

    def is_like(self, other: Difference | None) -> bool:
        """Return whether another difference reports the same, apart from the state of the guest."""
        mine = (self.kind, self.host, self.seen.keys())
        return other is not None and mine == (other.kind, other.host, other.seen.keys())

    @property
    def short(self) -> str:
        """What differs, in a few words."""
        if not self.seen:
            return 'is on no host'
        if self.kind == DifferenceKind.POWER:
            return f'{"runs" if self.runs_on else "is shut off"} on {self.host}'
        interrupted = ', after an interrupted reconcile' if self.kind == DifferenceKind.UNFINISHED else ''
        return f'is on {" and ".join(sorted(self.seen))}{interrupted}'

    @property
    def text(self) -> str:
        """What differs, in one sentence."""
        seen = ', '.join(f'{host} ({state})' for host, state in sorted(self.seen.items()))
        match self.kind:
            case DifferenceKind.MOVED:
                return f'it is on {seen}, but the database has it on {self.host}'
            case DifferenceKind.MISSING:
                return f'no host that answered has it, but the database has it on {self.host}'
            case DifferenceKind.REPLACED:
                return f'no host that answered has it; it was on the machine of {self.host} that was replaced'
            case DifferenceKind.TWICE:
                return f'more than one host has it: {seen}; the database has it on {self.host}'
            case DifferenceKind.UNKNOWN:
                return f'it is on {seen}, but the database does not have it'
            case DifferenceKind.POWER if self.runs_on:
                return f'it runs on {self.host}, but the database has it shut off'
            case DifferenceKind.POWER:
                return f'it is shut off on {self.host}, but the database has it running'
            case _:
                return f'a reconcile of it was interrupted; it is on {seen}, where the database has it'

    @property
    def remedy(self) -> str:
        """What an operator can do about it."""
        reconcile = 'migrator-manage instance reconcile'
        match self.kind:
            case _ if len(self.runs_on) > 1:
                return 'stop it at once on all hosts but the right one: two that run write to the same disks'
            case DifferenceKind.MOVED if self.runs_on:
                return f'{reconcile} lets the database and Placement follow'
            case DifferenceKind.MOVED:
                return f'start it on one host, and undefine it on the others; then {reconcile}'
            case DifferenceKind.MISSING:
                delete = f'migrator-manage instance delete {self.instance_uuid}'
                first = 'have each host list its guests that did not'
                return f'{first}; then start it on {self.host} again; or, if it is gone for good: {delete}'
            case DifferenceKind.REPLACED:
                return f'restore it on {self.host}, or see "The machine was replaced" in the documentation'
            case DifferenceKind.TWICE:
                return 'undefine the copies that do not run, after a look at which one is right'
            case DifferenceKind.UNKNOWN:
                return 'register it with migrator-manage instance create, or remove it from the host'
            case DifferenceKind.POWER:
                return f'{reconcile} lets the database follow; or {"shut it off" if self.runs_on else "start it"} again'
            case _:
                return f'{reconcile} finishes it'

    def as_dict(self) -> dict[str, object]:
        """Return it as the REST API and ``--json`` show it."""
        return {
            'instance_uuid': self.instance_uuid,
            'name': self.name,
            'host': self.host,
            'kind': self.kind,
            'seen': dict(self.seen),
            'short': self.short,
            'difference': self.text,
            'since': self.since,
            'remedy': self.remedy,
        }
