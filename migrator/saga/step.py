# SPDX-License-Identifier: Apache-2.0

"""What a step is, and what a body may answer."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

S = TypeVar('S')


class Kind(enum.StrEnum):
    """The three kinds of step, by the usual names."""

    #: Has an undo, or changes nothing.
    COMPENSATABLE = 'compensatable'
    #: The point of no return; there is one.
    PIVOT = 'pivot'
    #: After the pivot: only forward, until done.
    RETRIABLE = 'retriable'


# --- what a body answers ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Done:
    """The step's effect is there.

    :ivar result: what the journal keeps of it, JSON-safe.
    """

    result: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Parked:
    """Nothing to do until something is heard; no thread is held meanwhile.

    :ivar why: what it waits for, for a person.
    :ivar patient: whether that may take as long as it likes, such as a turn in a queue.
    :ivar told: whether the subject tells it already, by its status.
    :ivar whom: the hosts whose word that is; None: those that are asked.
    """

    why: str
    patient: bool = False
    told: bool = False
    whom: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Failed:
    """The step cannot be done, or could not be done in time: a reason to turn back, not yet the decision."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Stuck:
    """Fits no known case: quarantined, observed again, and shown to a person with this reason."""

    reason: str


@dataclasses.dataclass(frozen=True)
class GoOn:
    """Settled: nothing speaks against the next step."""


@dataclasses.dataclass(frozen=True)
class Forward:
    """Settled: the pivot has happened. From here on nothing is undone."""

    result: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Back:
    """Settled: the pivot has not happened, and cannot happen any more. Everything is undone."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Lost:
    """Settled: there is nothing left to move. What can be undone is undone, and it ends in error."""

    reason: str


Verdict = Done | Parked | Failed | Stuck
Settlement = GoOn | Forward | Back | Lost | Parked | Failed | Stuck


# --- the step --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step(Generic[S]):
    """One declared step; ``undo`` stands beside ``do``.

    Bodies are idempotent, and observe before they act.

    :ivar do: makes the effect, or finds it made.
    :ivar undo: takes the effect back, or finds it gone; None where there is nothing to take back. Two steps may share
        one undo, which then runs once for both.
    :ivar intent: returns what the journal must hold before ``do`` may act (JSON-safe), or a verdict if that cannot be
        had now. None: the step changes nothing that its predecessor's record does not lead back to.
    :ivar status: the status that the subject has from the step's first record on: its intent, where it has one. Or a
        function that returns it; None: the step leaves the status as it is.
    :ivar undo_after: the name of an earlier step whose undo must be finished before this one's begins; by default the
        undo column is read strictly upwards.
    """

    name: str
    kind: Kind
    do: Callable[[S], Verdict]
    undo: Callable[[S], Verdict] | None = None
    intent: Callable[[S], Mapping[str, Any] | Verdict] | None = None
    undo_after: str | None = None
    status: str | Callable[[S], str] | None = None

    @property
    def writes_ahead(self) -> bool:
        """Whether the log has the step's intent before ``do`` may act."""
        return self.intent is not None

    def status_for(self, subject: S) -> str | None:
        """Return the status that a subject has from the step's first record on."""
        return self.status(subject) if callable(self.status) else self.status
