# SPDX-License-Identifier: Apache-2.0

"""The log of a saga: each intent and each result, in the order in which they were written."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from migrator.objects import base

DO = 'do'
UNDO = 'undo'


class StepState(enum.StrEnum):
    """The state of a step in one direction."""

    INTENT = 'intent'
    DONE = 'done'
    FAILED = 'failed'


class EntryKind(enum.StrEnum):
    """The kinds of entries of the log. Rows are only added and never changed."""

    #: The subject has a new status.
    STATUS = 'status'
    #: A step is about to be done or undone.
    INTENT = 'intent'
    UNDO_INTENT = 'undo_intent'
    #: A step has failed for a new reason, and is tried again.
    TRIED = 'tried'
    UNDO_TRIED = 'undo_tried'
    #: A step is done or undone, or has failed for good.
    DONE = 'done'
    FAILED = 'failed'
    UNDO_DONE = 'undo_done'
    #: The subject is stuck, for the reason in the payload.
    STUCK = 'stuck'
    #: The subject is no longer stuck.
    UNSTUCK = 'unstuck'
    #: An operator has requested a retry.
    RETRY = 'retry'


_K, _S = EntryKind, StepState
#: Kind -> the direction and the state of the step that it records.
_STEPS: Mapping[str, tuple[str, StepState]] = {
    _K.INTENT: (DO, _S.INTENT),
    _K.TRIED: (DO, _S.INTENT),
    _K.DONE: (DO, _S.DONE),
    _K.FAILED: (DO, _S.FAILED),
    _K.UNDO_INTENT: (UNDO, _S.INTENT),
    _K.UNDO_TRIED: (UNDO, _S.INTENT),
    _K.UNDO_DONE: (UNDO, _S.DONE),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the log.

    :ivar seq: the position in the log of its saga; the first is 1. The database refuses a position that is taken.
    :ivar at: when the entry was written, by the database's clock; None: it is not written yet.
    :ivar conductor: the boot of the conductor that wrote it; None: no conductor wrote it.
    :ivar step: the name of the step; None: the entry does not concern a step.
    :ivar payload: the values of this kind: ``status``, ``input``, ``result``, ``tries``, ``reason``, ``by``, ...
    """

    kind: str
    attempt: int = 1
    step: str | None = None
    payload: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    epoch: int = 0
    conductor: str | None = None
    seq: int = 0
    at: datetime.datetime | None = None

    @property
    def direction(self) -> str | None:
        """``do`` or ``undo``; None: the entry does not concern a step."""
        return _STEPS[self.kind][0] if self.kind in _STEPS else None


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a saga acts on in the result of a step.

    :ivar reason: why it has failed.
    :ivar skipped: why it did nothing.
    :ivar deferred: why it became a cleanup.
    :ivar lost: whether there is nothing left to move.
    :ivar elsewhere: whether what is not left may be elsewhere.
    :ivar unanswered: whether it has failed since a host did not answer.
    :ivar migrate_data: the data of the hosts for each other, in JSON-safe form.
    """

    reason: str | None = None
    skipped: str | None = None
    deferred: str | None = None
    lost: bool = False
    elsewhere: bool = False
    unanswered: bool = False
    migrate_data: Any = None


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """The state of a step in one direction and attempt: the sum of its log entries.

    :ivar epoch: the epoch in which it was last written.
    :ivar input: the values that the intent fixed.
    :ivar result: the result; for a failure, ``{'reason': ...}``.
    :ivar stored: whether the log already has an entry of it.
    """

    step: str
    direction: str
    state: str
    attempt: int
    epoch: int = 0
    owner: str | None = None
    tries: int = 1
    input: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    stored: bool = False

    @property
    def key(self) -> tuple[int, str, str]:
        """The attempt, step and direction, which identify one record."""
        return (self.attempt, self.step, self.direction)

    @property
    def facts(self) -> Facts:
        """What the result says, as far as a saga acts on it."""
        return base.of_stored(Facts, self.result or {})

    def entry(self) -> Entry:
        """Return the log entry that stores this record."""
        tried = self.stored and self.state == StepState.INTENT and self.result is not None
        kind = next(
            kind
            for kind, found in _STEPS.items()
            if found == (self.direction, self.state) and kind.endswith('tried') == tried
        )
        payload: dict[str, Any] = {}
        if self.input is not None and not tried and (self.state == StepState.INTENT or not self.stored):
            payload['input'] = dict(self.input)
        if self.result is not None:
            payload['result'] = dict(self.result)
        if self.tries != 1:
            payload['tries'] = self.tries
        return Entry(kind, self.attempt, self.step, payload)


def records(entries: Iterable[Entry]) -> list[StepRecord]:
    """Return the records that result from the entries of one log, in the order in which they began.

    :param entries: in the order of ``seq``.
    """
    found: dict[tuple[int, str, str], StepRecord] = {}
    for entry in entries:
        if entry.kind not in _STEPS or entry.step is None:
            continue
        direction, state = _STEPS[entry.kind]
        known = StepRecord(entry.step, direction, state, entry.attempt, started_at=entry.at, stored=True)
        known = found.get(known.key, known)
        found[known.key] = dataclasses.replace(
            known,
            state=state.value,
            epoch=entry.epoch,
            owner=entry.conductor,
            tries=entry.payload.get('tries', known.tries),
            input=entry.payload.get('input', known.input),
            result=entry.payload.get('result'),
            ended_at=entry.at if state != StepState.INTENT else None,
        )
    return list(found.values())


class StepLog:
    """The records of one saga in the memory of its owner. The log in the database gives the same records."""

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        self._records: dict[tuple[int, str, str], StepRecord] = {record.key: record for record in records}
        #: The keys of the intents that were committed here -> whether their steps were not tried yet.
        self._begun: dict[tuple[int, str, str], bool] = {}

    def find(self, attempt: int, step: str, direction: str = DO) -> StepRecord | None:
        """Return the record of a step in one attempt and direction, or None."""
        return self._records.get((attempt, step, direction))

    def of_attempt(self, attempt: int) -> list[StepRecord]:
        """Return an attempt's records, oldest first."""
        return [record for record in self._records.values() if record.attempt == attempt]

    def all(self) -> list[StepRecord]:
        """Return every record, oldest first."""
        return list(self._records.values())

    def put(self, records: Iterable[StepRecord]) -> None:
        """Add records that are not in the log yet, or replace their older versions."""
        for record in records:
            self._records[record.key] = record

    def commit(self, records: Iterable[StepRecord], epoch: int) -> None:
        """Add records that are in the log now.

        :param epoch: the epoch in which they were written.
        """
        for record in records:
            if not record.stored and record.state == StepState.INTENT:
                self._begun[record.key] = True
            self._records[record.key] = dataclasses.replace(record, stored=True, epoch=epoch)

    def first_try(self, attempt: int, step: str, direction: str = DO) -> bool:
        """Return whether this is the first act on a step whose intent was just committed by this owner."""
        key = (attempt, step, direction)
        first = self._begun.get(key, False)
        if first:
            self._begun[key] = False
        return first

    def has_begun(self, record: StepRecord) -> bool:
        """Return whether the intent of a record was committed here.

        Then no earlier owner has begun the step.
        """
        return record.key in self._begun

    def is_ours(self, attempt: int, step: str, direction: str) -> bool:
        """Return whether no earlier owner has written that it begins a step."""
        record = self.find(attempt, step, direction)
        return record is None or self.has_begun(record)
