# SPDX-License-Identifier: Apache-2.0

"""A step of a saga, and the verdicts that its functions return."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

S = TypeVar('S')


class Kind(enum.StrEnum):
    """The three kinds of step, by their names in the literature."""

    #: It has an undo, or changes nothing.
    COMPENSATABLE = 'compensatable'
    #: The point of no return. A saga has one.
    PIVOT = 'pivot'
    #: A step after the pivot: repeated until it is done, and never undone.
    RETRIABLE = 'retriable'


# --- verdicts --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Done:
    """Verdict: the step's effect is there.

    :ivar result: the JSON-safe result that the journal keeps.
    """

    result: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Parked:
    """Verdict: the saga waits for an event. It holds no thread meanwhile.

    :ivar why: what it waits for, in words for an operator.
    :ivar patient: whether the wait may last any time, such as the wait for a slot in a queue.
    :ivar in_status: whether the subject's status already shows the wait.
    :ivar hosts: the hosts that it waits for; None: those that were called and have not replied.
    """

    why: str
    patient: bool = False
    in_status: bool = False
    hosts: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Failed:
    """Verdict: the step cannot be done, or not in time. It is a reason to undo the saga."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Stuck:
    """Verdict: the state fits no known case. It is observed again, and an operator sees the reason."""

    reason: str


@dataclasses.dataclass(frozen=True)
class GoOn:
    """Settled: the next step may run."""


@dataclasses.dataclass(frozen=True)
class Forward:
    """Settled: the pivot has happened. From here on nothing is undone."""

    result: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Back:
    """Settled: the pivot has not happened and can no longer happen. Every step is undone."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Lost:
    """Settled: there is nothing left to move. The saga undoes what it can, and ends in error."""

    reason: str


Verdict = Done | Parked | Failed | Stuck
Settlement = GoOn | Forward | Back | Lost | Parked | Failed | Stuck


# --- the step --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step(Generic[S]):
    """One declared step, with ``undo`` beside ``do``.

    Its functions are idempotent, and observe before they act.

    :ivar do: makes the effect, or finds that it is made.
    :ivar undo: takes the effect back, or finds that it is gone; None: there is nothing to take back. Two steps may
        share one undo, which then runs once for both.
    :ivar intent: returns the JSON-safe values that the journal must hold before ``do`` may act, or a verdict if they
        are not available now. None: the predecessor's record is enough to find everything that the step changes.
    :ivar status: the status of the subject from the step's first record on, which is its intent if it has one; or a
        function that returns the status. None: the step does not change the status.
    :ivar undo_after: the name of an earlier step that must be undone before this one. By default the undo column is
        read strictly upwards.
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
        """Whether the step's intent is in the log before ``do`` acts."""
        return self.intent is not None

    def status_for(self, subject: S) -> str | None:
        """Return the status of a subject from the step's first record on."""
        return self.status(subject) if callable(self.status) else self.status
