# SPDX-License-Identifier: Apache-2.0

"""The difference between what the hypervisors report about a guest and what the database has."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Collection, Mapping

from migrator.objects import remedies
from migrator.objects.instance import MIGRATABLE_VM_STATES
from migrator.objects.protocol import GuestState
from migrator.objects.remedies import Reading

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

    def without(self, hosts: Collection[str]) -> Difference | None:
        """Return the difference without what some hosts have shown; None: nothing differs then."""
        seen = {host: state for host, state in self.seen.items() if host not in hosts}
        if len(seen) == len(self.seen):
            return self
        if not seen and self.host is not None:
            return dataclasses.replace(self, kind=DifferenceKind.MISSING.value, seen=seen)
        return dataclasses.replace(self, seen=seen) if seen.keys() - {self.host} else None

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

    def remedy(self, unlisted: Collection[str]) -> str:
        """Return what an operator can do about it, as this look permits.

        :param unlisted: the hosts that may run guests and have not listed them in this look.
        """
        others = self.seen.keys() - {self.host}
        look = {
            Reading.NOT_ALL_LISTED: bool(unlisted),
            Reading.ELSEWHERE: bool(others),
            Reading.ON_A_HOST: bool(self.seen),
            Reading.RUNS: bool(self.runs_on),
            Reading.NONE_RUNS: not self.runs_on,
            Reading.REPLACED: self.kind == DifferenceKind.REPLACED,
        }

        def offer(kind: remedies.Kind, **names: str) -> str:
            return remedies.offer(kind, look, guest=self.instance_uuid, host=self.host or '', **names)

        stopped = ', '.join(sorted(self.seen.keys() - set(self.runs_on)))
        match self.kind:
            case _ if len(self.runs_on) > 1:
                found = offer(remedies.Kind.STOP_COPIES)
            case DifferenceKind.MOVED:
                found = offer(remedies.Kind.RECONCILE if self.runs_on else remedies.Kind.KEEP_ONE)
            case DifferenceKind.MISSING:
                found = remedies.joined(
                    '; or, ', offer(remedies.Kind.START_AGAIN), offer(remedies.Kind.DELETE_INSTANCE)
                )
            case DifferenceKind.REPLACED:
                found = offer(remedies.Kind.RESTORE_REPLACED)
            case DifferenceKind.TWICE:
                found = offer(remedies.Kind.UNDEFINE_COPIES, hosts=stopped) or offer(remedies.Kind.KEEP_ONE)
            case DifferenceKind.UNKNOWN:
                found = remedies.joined(', or ', offer(remedies.Kind.REGISTER), offer(remedies.Kind.REMOVE_STRANGER))
            case DifferenceKind.POWER:
                again = 'shut it off again' if self.runs_on else 'start it again'
                found = remedies.joined('; or ', offer(remedies.Kind.RECONCILE_POWER), again)
            case _:
                found = offer(remedies.Kind.FINISH_RECONCILE)
        return found or offer(remedies.Kind.HAVE_LISTED, hosts=' and '.join(sorted(unlisted)))

    def as_dict(self, unlisted: Collection[str]) -> dict[str, object]:
        """Return it as the REST API and ``--json`` show it.

        :param unlisted: as for :meth:`remedy`.
        """
        return {
            'instance_uuid': self.instance_uuid,
            'name': self.name,
            'host': self.host,
            'kind': self.kind,
            'seen': dict(self.seen),
            'short': self.short,
            'difference': self.text,
            'since': self.since,
            'remedy': self.remedy(unlisted),
        }
