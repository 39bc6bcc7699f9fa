# SPDX-License-Identifier: Apache-2.0

"""A saga and its steps, of which two may run side by side, and the verdicts of a step's functions."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from migrator.objects.reasons import FailureKind, Reason
from migrator.saga import log

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

    :ivar result: the JSON-safe result that the log keeps.
    """

    result: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Parked:
    """Verdict: the saga waits for an event. It holds no thread meanwhile.

    :ivar why: what it waits for.
    :ivar patient: whether the wait may last any time, such as the wait for a slot in a queue.
    :ivar in_status: whether the subject's status already shows the wait.
    :ivar hosts: the hosts that it waits for; None: those that were called and have not replied.
    :ivar outage: whether that is a service which is away. The wait may last as long as the outage.
    """

    why: Reason
    patient: bool = False
    in_status: bool = False
    hosts: tuple[str, ...] | None = None
    outage: bool = False


@dataclasses.dataclass(frozen=True)
class Failed:
    """Verdict: the step cannot be done, or not in time. It is a reason to undo the saga.

    :ivar unanswered: whether a host did not answer, which says nothing about the subject.
    :ivar kind: its kind, if it is one that the subject's owner may know.
    """

    reason: str
    unanswered: bool = False
    kind: FailureKind | None = None


@dataclasses.dataclass(frozen=True)
class Stuck:
    """Verdict: the state fits no known case. It is observed again, and an operator sees the reason."""

    reason: Reason


@dataclasses.dataclass(frozen=True)
class GoOn:
    """Settled: the next step may run."""


@dataclasses.dataclass(frozen=True)
class Forward:
    """Settled: the pivot has happened. From here on nothing is undone."""

    result: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Back:
    """Settled: the pivot has not happened and can no longer happen. Every step is undone.

    :ivar another: whether another attempt may follow, although the pivot was sent.
    :ivar unanswered: as in :class:`Failed`.
    """

    reason: str
    another: bool = False
    unanswered: bool = False


@dataclasses.dataclass(frozen=True)
class Lost:
    """Settled: there is nothing left to move. The saga undoes what it can.

    :ivar is_certain: whether the subject is lost, so that the saga ends in error; if not, it may be elsewhere.
    """

    reason: str
    is_certain: bool = True


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
    :ivar intent: returns the JSON-safe values that the log must hold before ``do`` may act, or a verdict if they
        are not available now. None: the predecessor's record is enough to find everything that the step changes, and
        the done of the predecessor shares its commit with that of this step.
    :ivar status: the status of the subject from the step's first record on, which is its intent if it has one; or a
        function that returns the status. None: the step does not change the status.
    :ivar undo_after: the name of an earlier step that must be undone before this one. By default the undo column is
        read strictly upwards.
    :ivar no_effect: returns why the step certainly had no effect, although it was begun; None: it may have had one. A
        step without an effect needs no undo, and so no intent of it.
    """

    name: str
    kind: Kind
    do: Callable[[S], Verdict]
    undo: Callable[[S], Verdict] | None = None
    intent: Callable[[S], Mapping[str, Any] | Verdict] | None = None
    undo_after: str | None = None
    status: str | Callable[[S], str] | None = None
    no_effect: Callable[[S], str | None] | None = None

    def status_for(self, subject: S) -> str | None:
        """Return the status of a subject from the step's first record on."""
        return self.status(subject) if callable(self.status) else self.status


# --- the saga --------------------------------------------------------------------------------------------------------


class Saga(Generic[S]):
    """The list of steps: compensatable steps, one pivot, retriable steps.

    :param settle: observes where the saga stands. It is called before the saga is undone, and once the pivot is sent.
    :param abandon: carries out an operator's request to abandon, in place of the saga, and ends it. It returns what it
        waits for, or None if the saga has ended.
    :param items: the steps in order; a tuple of two steps runs side by side.
    :raises ValueError: the list does not have this form.
    """

    def __init__(
        self,
        *items: Step[S] | tuple[Step[S], Step[S]],
        settle: Callable[[S], Settlement],
        abandon: Callable[[S], Parked | Stuck | None] = lambda subject: None,
    ) -> None:
        self.settle = settle
        self.abandon = abandon
        self.groups: list[tuple[Step[S], ...]] = [item if isinstance(item, tuple) else (item,) for item in items]
        self.steps: list[Step[S]] = [step for group in self.groups for step in group]
        kinds = [step.kind for step in self.steps]
        if kinds.count(Kind.PIVOT) != 1:
            raise ValueError('a saga has one pivot')
        if kinds != sorted(kinds, key=[Kind.COMPENSATABLE, Kind.PIVOT, Kind.RETRIABLE].index):
            raise ValueError('compensatable steps come before the pivot, retriable ones after it')
        if sum(len(group) > 1 for group in self.groups) > 1 or any(len(group) > 2 for group in self.groups):
            raise ValueError('a saga has at most one pair')
        if any(step.kind is Kind.RETRIABLE and step.undo for step in self.steps):
            raise ValueError('nothing is undone after the pivot')
        if len({step.name for step in self.steps}) != len(self.steps):
            raise ValueError('two steps have one name')
        self.pivot = next(step for step in self.steps if step.kind is Kind.PIVOT)

    def next_before(self, step_log: log.StepLog, attempt: int) -> Step[S] | None:
        """Return the first step up to the pivot that is not done, or None if the pivot is done."""
        for step in self.steps:
            if step.kind is Kind.RETRIABLE:
                return None
            if not _is(step_log, attempt, step, log.DO, log.StepState.DONE):
                return step
        return None

    def last_begun(self, step_log: log.StepLog, attempt: int, step: Step[S]) -> Step[S]:
        """Return the last step with an undo that may have begun.

        The done of a step and those of the steps without an intent after it share one commit. If an earlier owner has
        begun the step, it may have begun those as well.

        :param step: the first step up to the pivot that is not done.
        """
        record = step_log.find(attempt, step.name)
        last = step
        if record is not None and not step_log.has_begun(record):
            for later in self.steps[self.steps.index(step) + 1 :]:
                if later.intent is not None or later.kind is not Kind.COMPENSATABLE:
                    break
                last = later if later.undo is not None else last
        return last

    def next_after(self, step_log: log.StepLog, attempt: int) -> tuple[Step[S], ...]:
        """Return the next steps after the pivot: one step, the rest of the pair, or an empty tuple."""
        for group in self.groups:
            if group[0].kind is not Kind.RETRIABLE:
                continue
            left = tuple(step for step in group if not _is(step_log, attempt, step, log.DO, log.StepState.DONE))
            if left:
                return left
        return ()

    def started(self, step_log: log.StepLog, attempt: int) -> list[Step[S]]:
        """Return the steps up to the pivot that may have had an effect in this attempt, in order.

        A step that writes no intent counts as started once its predecessor is done, or once it has failed.
        """
        found: list[Step[S]] = []
        started = 0
        before_done = False
        for step in self.steps:
            if step.kind is Kind.RETRIABLE:
                break
            record = step_log.find(attempt, step.name)
            if record is None and step.intent is not None:
                break
            found.append(step)
            if record is not None or before_done:
                started = len(found)
            before_done = record is not None and record.state == log.StepState.DONE
        return found[:started]

    def next_undo(self, step_log: log.StepLog, attempt: int) -> Step[S] | None:
        """Return the step whose undo comes next, or None when everything that started is undone.

        The undo column is read upwards, except that ``undo_after`` makes a step wait for an earlier one. Steps that
        share an undo are undone by the last of them.
        """
        waiting: list[Step[S]] = []
        seen: list[Callable[[S], Verdict]] = []
        order: list[Step[S]] = []
        for step in reversed(self.started(step_log, attempt)):
            if step.undo is not None and step.undo not in seen:
                seen.append(step.undo)
                (waiting if step.undo_after else order).append(step)
            for late in [late for late in waiting if late.undo_after == step.name]:
                order.append(late)
                waiting.remove(late)
        for step in order + waiting:
            if not _is(step_log, attempt, step, log.UNDO, log.StepState.DONE):
                return step
        return None


def _is(step_log: log.StepLog, attempt: int, step: Step[S], direction: str, state: log.StepState) -> bool:
    record = step_log.find(attempt, step.name, direction)
    return record is not None and record.state == state
