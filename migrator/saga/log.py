# SPDX-License-Identifier: Apache-2.0

"""The journal: what was intended, and what came of it."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterable, Mapping
from typing import Any

DO = 'do'
UNDO = 'undo'


class StepState(enum.StrEnum):
    """Where one step stands in one direction."""

    INTENT = 'intent'
    DONE = 'done'
    FAILED = 'failed'


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """One row of the journal: a step, in one direction, in one attempt.

    :ivar epoch: the epoch in which it was last written.
    :ivar input: what the intent fixed.
    :ivar result: what came of it; for a failure, ``{'reason': ...}``.
    :ivar first_owner: who has written it first; for readers only.
    :ivar first_epoch: in which epoch that was.
    :ivar stored: whether the database has the row already.
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
    first_owner: str | None = None
    first_epoch: int | None = None
    stored: bool = False

    @property
    def key(self) -> tuple[int, str, str]:
        """What makes it one row."""
        return (self.attempt, self.step, self.direction)


class Journal:
    """What has been committed of one saga, as its owner holds it in memory; the database has the same rows."""

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        self._records: dict[tuple[int, str, str], StepRecord] = {record.key: record for record in records}

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
        """Take in what was just committed."""
        for record in records:
            self._records[record.key] = record
