# SPDX-License-Identifier: Apache-2.0

"""The interfaces that a maintenance needs: the control plane with its drains, and its store."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

from migrator.drain.engine import Check
from migrator.drain.maintenance.plan import Guest, Host
from migrator.drain.maintenance.returned import Report
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects.drain import Drain


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The hosts of a control plane.

    :ivar hosts: those that are up, and not disabled by others. Those that this maintenance has disabled are included.
    :ivar down: those that do not report, or were declared down.
    :ivar out: host -> why it is out of service, of those that this maintenance has not disabled.
    :ivar groups: host -> its group, of those in :attr:`out` that have one.
    :ivar trouble: why no host should be begun: another one has died, or an evacuation runs.
    """

    hosts: Sequence[Host]
    down: Set[str] = frozenset()
    out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trouble: Sequence[str] = ()


class Engine(Protocol):
    """The control plane that drains the hosts.

    Each method may raise :class:`migrator.exception.ServiceUnreachable`. The maintenance then repeats its step later.

    :ivar again: the end of the message of a drain that has left something.
    """

    again: str

    @property
    def down_time(self) -> float:
        """The seconds after which a compute service that does not report is down."""

    def reports(self, hosts: Sequence[str]) -> Mapping[str, Report]:
        """Return host -> what its compute service has reported last; a host without one is left out.

        A host is left out only if the control plane is known to have no service there. An answer that may lack some
        hosts, such as those of a cell that does not answer, raises.
        """

    def drains(self, uuids: Sequence[str]) -> Mapping[str, Drain]:
        """Return the drains with these uuids, without those that the control plane does not have."""

    def fleet(self, maintenance: Maintenance) -> Fleet:
        """Return the hosts as they are now."""

    def guests(self, maintenance: Maintenance) -> Sequence[Guest]:
        """Return the guests of all hosts. There may be very many."""

    def immovable(self, maintenance: Maintenance, turn: Turn) -> Sequence[str]:
        """Return what is known now of the guests that the drain of a host would leave, each as a sentence.

        Guests of which it is not certain are left out, since the drain asks their host again.
        """

    def start(self, maintenance: Maintenance, turn: Turn) -> None:
        """Request the drain that ``turn.drain`` identifies. A repeated call requests it once.

        It is requested only while the turn is ``draining`` by it, in the transaction that reads that: the call may
        come late, from a conductor that does not own the maintenance any more.

        :raises migrator.drain.engine.Refused: the host cannot be drained now, and nothing was requested.
        """

    def cancel(self, turn: Turn) -> None:
        """Request the cancel of a turn's drain. One that has ended stays as it is."""

    def enable(self, turn: Turn) -> bool:
        """Enable a host that a drain of this turn has disabled, and return whether it is enabled.

        If it is disabled for another reason by now, it stays so.
        """

    def restore(self, maintenance: Maintenance, turn: Turn) -> str | None:
        """Request that the guests come back that the newest drain of a turn has moved.

        It is requested only while the turn is ``returning``, as a drain only while it is ``draining``.

        :returns: why it cannot be requested, as a sentence, or '' if the drain has moved none; None: it was, or the
            turn has another status by now.
        """

    def left(self, maintenance: Maintenance, turn: Turn) -> Sequence[Check]:
        """Check whether a host is empty.

        If guests that are shut off stay, only what runs or migrates counts.
        """

    def when_dead(self, host: str) -> str:
        """Return what an operator does with the guests of a host that was declared down, as a sentence."""

    def new_uuid(self) -> str:
        """Return a new uuid, of a drain or a claim."""


class Store(Protocol):
    """The rows of maintenances, their turns and their logs."""

    def get(self, uuid: str) -> Maintenance:
        """Return one maintenance.

        :raises .errors.MaintenanceNotFound: no maintenance has this uuid.
        """

    def read_turns(self, uuid: str) -> list[Turn]:
        """Return the turns of a maintenance, by position."""

    def write(
        self,
        maintenance: Maintenance,
        fields: Mapping[str, Any],
        turns: Sequence[Turn],
        events: Sequence[tuple[str, Mapping[str, Any]]],
    ) -> Maintenance:
        """Write in one transaction, if nothing was written since the rows were read.

        :raises .errors.NotOwnerOfMaintenance: the maintenance has another epoch or a newer event than the one that was
            read. Nothing was written.
        """

    def now(self) -> datetime.datetime:
        """Return the time of the store."""
