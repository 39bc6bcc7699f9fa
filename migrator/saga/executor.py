# SPDX-License-Identifier: Apache-2.0

"""The executor of a saga.

It commits an intent before it acts and observes before it decides. It undoes what has started before the pivot. After
the pivot it only goes forward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from migrator.objects.reasons import Reason, WaitKind
from migrator.saga.log import DO, UNDO, StepLog, StepRecord, StepState
from migrator.saga.saga import Back, Done, Failed, Forward, GoOn, Kind, Lost, Parked, Saga, Step, Stuck, Verdict

FORWARD = 'forward'
BACK = 'back'


class Times(Protocol):
    """The times of the steps of one saga. A step begins with its first try.

    A key has the attempt, the name of the step and the direction; see :attr:`migrator.saga.log.StepRecord.key`.
    """

    def trying(self, key: tuple[int, str, str]) -> AbstractContextManager[None]:
        """Return the context in which a step is tried once."""

    def end(self, key: tuple[int, str, str]) -> None:
        """Take the present as the end of a step. A later commit writes its result."""


class Subject(Protocol):
    """The object that a saga runs for: it holds the row, the guard and the log.

    Every write goes through :meth:`commit`, which is one transaction behind the owner's guard. The subject itself
    collects what else a body wants to write in the same transaction.
    """

    step_log: StepLog
    #: Why a step has failed: the abort reason, unless there is a request.
    failure: Failed | None

    @property
    def times(self) -> Times:
        """The times of its steps."""

    @property
    def attempt(self) -> int:
        """The number of the attempt; each attempt has its own records."""

    @property
    def outcome(self) -> str | None:
        """None until the pivot is settled; then 'forward' or 'back'."""

    @property
    def ended(self) -> bool:
        """Whether the end of the saga is committed."""

    @property
    def is_abandoned(self) -> bool:
        """Whether an operator has requested to abandon the saga."""

    @property
    def abort_reason(self) -> str | None:
        """Why the saga should be undone: a request or a failure; None: no reason. It is never an outcome."""

    def need_not_settle(self, step: str) -> bool:
        """Return whether the pivot certainly was not sent, despite its intent, and can be sent now."""

    def enter(self, status: str) -> None:
        """Write a status with the next commit."""

    def commit(self, records: Sequence[StepRecord], outcome: str | None = None) -> None:
        """Write records and outcome in one guarded transaction, and take them into the log.

        :raises Exception: the guard refused; nothing was written.
        """

    def has_next_attempt(self) -> bool:
        """Return whether another attempt may be made once this one is undone."""

    def begin_next_attempt(self, records: Sequence[StepRecord]) -> None:
        """Commit the start of the next attempt, together with the last records of this one."""

    def undone(self, records: Sequence[StepRecord]) -> None:
        """Commit the end of a saga whose steps are undone, together with the last records."""


T = TypeVar('T', bound=Subject)


@dataclasses.dataclass
class _Buffer:
    """Records and an outcome that the next commit writes, together with the next intent or the end."""

    records: list[StepRecord] = dataclasses.field(default_factory=list)
    outcome: str | None = None


class SagaExecutor(Generic[T]):
    """The executor of one saga for one subject. A run ends when the saga parks, is stuck, or has ended.

    The only state between two runs is the log. Any executor can continue where another one stopped.

    :param saga_of: returns the saga of a subject before each step, since a step may decide which saga it follows.
    """

    def __init__(self, saga_of: Callable[[T], Saga[T]], subject: T) -> None:
        self._saga_of = saga_of
        self.subject = subject
        self._buffer = _Buffer()

    def run(self) -> Parked | Stuck | None:
        """Run the saga as far as possible.

        :returns: what the saga waits for, why it is stuck, or None when it has ended.
        """
        while not self.subject.ended:
            self.saga = self._saga_of(self.subject)
            outcome = self._buffer.outcome or self.subject.outcome
            if self.subject.is_abandoned:
                pause = self.saga.abandon(self.subject)
                if pause is not None or self.subject.ended:
                    return pause
            if outcome == FORWARD:
                pause = self._forward()
            elif outcome == BACK or self._unwinding():
                pause = self._backward()
            else:
                pause = self._toward_pivot()
            if pause is not None:
                self._flush()
                return pause
        return None

    # --- up to the pivot ---------------------------------------------------------------------------------------------

    def _toward_pivot(self) -> Parked | Stuck | None:
        subject = self.subject
        step = self.saga.next_before(subject.step_log, subject.attempt)
        assert step is not None, 'the pivot is done, but its outcome is not written'
        sent = (
            step.kind is Kind.PIVOT
            and subject.step_log.find(subject.attempt, step.name) is not None
            and not subject.need_not_settle(step.name)
        )
        if subject.abort_reason is None and not sent:
            return self._do(step)
        return self._settle(step)

    def _do(self, step: Step[T]) -> Parked | Stuck | None:
        with self._trying(step):
            verdict = self._intend(step) or step.do(self.subject)
        return self._take(step, verdict)

    def _intend(self, step: Step[T]) -> Verdict | None:
        if step.intent is None or self._find(step) is not None:
            return None
        intent = step.intent(self.subject)
        if isinstance(intent, (Mapping, Failed)):
            self._enter(step)
        if not isinstance(intent, Mapping):
            return intent
        self._flush([self._record(step, DO, StepState.INTENT, input_=intent)])
        return None

    def _take(self, step: Step[T], verdict: Verdict) -> Parked | Stuck | None:
        match verdict:
            case Done(result):
                if self._find(step) is None:
                    self._enter(step)
                self._keep(self._record(step, DO, StepState.DONE, result))
            case Failed():
                self._flush()
                self.subject.failure = verdict
            case _:
                return verdict
        return None

    # --- settling ----------------------------------------------------------------------------------------------------

    def _settle(self, step: Step[T]) -> Parked | Stuck | None:
        subject = self.subject
        self._flush()
        settled = self.saga.settle(subject)
        failing = self.saga.last_begun(subject.step_log, subject.attempt, step)
        match settled:
            # The outcome is committed together with the first step after the pivot, or with the first undo.
            case Forward(result):
                self._keep(self._record(self.saga.pivot, DO, StepState.DONE, result), outcome=FORWARD)
            case Back(reason, another, unanswered):
                before_pivot = subject.step_log.find(subject.attempt, self.saga.pivot.name) is None
                unanswered |= subject.failure is not None and subject.failure.unanswered
                facts = {'unanswered': True} if unanswered else {}
                failed = self._record(failing, DO, StepState.FAILED, {'reason': reason, **facts})
                again = (before_pivot or another) and subject.has_next_attempt()
                self._keep(failed, outcome=None if again else BACK)
            case Lost(reason, is_certain):
                result = {'reason': reason, 'lost': True, 'elsewhere': not is_certain}
                self._keep(self._record(failing, DO, StepState.FAILED, result), outcome=BACK)
            case GoOn():
                return self._do(step)
            case Failed():
                subject.failure = settled
            case _:
                return settled
        return None

    def _unwinding(self) -> bool:
        records = self.subject.step_log.of_attempt(self.subject.attempt)
        return any(record.direction == UNDO or record.state == StepState.FAILED for record in records)

    # --- after the pivot ---------------------------------------------------------------------------------------------

    def _forward(self) -> Parked | Stuck | None:
        group = self.saga.next_after(self.subject.step_log, self.subject.attempt)
        if not group:
            self._flush()
            return None
        intents: list[StepRecord] = []
        for step in group:
            if step.intent is not None and self._find(step) is None:
                with self._trying(step):
                    intent = step.intent(self.subject)
                if not isinstance(intent, Mapping):
                    return self._wait(intent)
                self._enter(step)
                intents.append(self._record(step, DO, StepState.INTENT, input_=intent))
        if intents:
            self._flush(intents)
        pauses = [pause for pause in [self._retry(step) for step in group] if pause is not None]
        if not pauses:
            return None
        stuck = [pause for pause in pauses if isinstance(pause, Stuck)]
        return (stuck or pauses)[0]

    def _retry(self, step: Step[T]) -> Parked | Stuck | None:
        with self._trying(step):
            verdict = step.do(self.subject)
        return self._take(step, verdict) if isinstance(verdict, Done) else self._wait(verdict)

    @staticmethod
    def _wait(verdict: Verdict | Mapping[str, Any]) -> Parked | Stuck:
        # A step after the pivot is never undone. Whatever its verdict, it waits and is tried again.
        if isinstance(verdict, Failed):
            return Parked(Reason.of(WaitKind.FAILURE, reason=verdict.reason))
        assert isinstance(verdict, (Parked, Stuck))
        return verdict

    # --- back --------------------------------------------------------------------------------------------------------

    def _backward(self) -> Parked | Stuck | None:
        subject = self.subject
        step = self.saga.next_undo(subject.step_log, subject.attempt)
        if step is None:
            if subject.outcome == BACK:
                subject.undone(self._take_buffer().records)
            elif self._buffer.outcome is None and subject.has_next_attempt():
                subject.begin_next_attempt(self._take_buffer().records)
            else:
                # The end needs the reason that is committed with the outcome.
                self._buffer.outcome = BACK
                self._flush()
            return None
        why = step.no_effect(subject) if step.no_effect is not None else None
        if why is not None:
            self._keep(self._record(step, UNDO, StepState.DONE, {'skipped': why}))
            return None
        assert step.undo is not None
        begun = subject.step_log.find(subject.attempt, step.name, UNDO) is not None
        self._flush(() if begun else [self._record(step, UNDO, StepState.INTENT)])
        with self._trying(step, UNDO):
            undone = step.undo(subject)
        match undone:
            case Done(result):
                self._keep(self._record(step, UNDO, StepState.DONE, result))
            case Failed(reason):
                return Parked(Reason.of(WaitKind.FAILURE, reason=reason))
            case verdict:
                return verdict
        return None

    def _enter(self, step: Step[T]) -> None:
        status = step.status_for(self.subject)
        if status is not None:
            self.subject.enter(status)

    def _trying(self, step: Step[T], direction: str = DO) -> AbstractContextManager[None]:
        return self.subject.times.trying((self.subject.attempt, step.name, direction))

    # --- the log -----------------------------------------------------------------------------------------------------

    def _find(self, step: Step[T]) -> StepRecord | None:
        return self.subject.step_log.find(self.subject.attempt, step.name)

    def _record(
        self,
        step: Step[T],
        direction: str,
        state: StepState,
        result: Mapping[str, Any] | None = None,
        input_: Mapping[str, Any] | None = None,
    ) -> StepRecord:
        known = self.subject.step_log.find(self.subject.attempt, step.name, direction)
        if known is not None:
            return dataclasses.replace(known, state=state.value, result=result, input=input_ or known.input)
        return StepRecord(
            step=step.name,
            direction=direction,
            state=state.value,
            attempt=self.subject.attempt,
            input=input_,
            result=result,
        )

    def _keep(self, record: StepRecord, outcome: str | None = None) -> None:
        """Have the next commit write a record, which counts from now on, and an outcome."""
        self.subject.times.end(record.key)
        self._buffer.records.append(record)
        self._buffer.outcome = outcome or self._buffer.outcome
        self.subject.step_log.put([record])

    def _take_buffer(self) -> _Buffer:
        buffer, self._buffer = self._buffer, _Buffer()
        return buffer

    def _flush(self, records: Sequence[StepRecord] = ()) -> None:
        """Commit the buffer together with the given records, such as the intent of the next step."""
        buffer = self._take_buffer()
        if buffer.records or buffer.outcome or records:
            self.subject.commit([*buffer.records, *records], outcome=buffer.outcome)
