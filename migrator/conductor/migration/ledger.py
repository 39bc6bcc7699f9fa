# SPDX-License-Identifier: Apache-2.0

"""The ledger of what a migration waits for, in the owner's memory. The next owner starts again."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from migrator import executors
from migrator.conductor.migration import spans
from migrator.objects import Migration
from migrator.saga import log
from migrator.saga.saga import Stuck

#: A step: the attempt, its name and the direction; see :attr:`migrator.saga.log.StepRecord.key`.
StepKey = tuple[int, str, str]


@dataclasses.dataclass
class Wait:
    """Something that a migration waits for.

    :ivar what: a step, request or cleanup of a host; or the reason with which a run has ended, for an operator.
    :ivar hosts: the hosts that it waits for; empty: no host.
    :ivar since: when the wait began (monotonic seconds).
    :ivar patience: seconds after which the wait counts as stuck; infinite: for a queue or call slot, or a copy.
    :ivar tries: the number of failures.
    :ivar next_try: the time of the next try (monotonic seconds).
    :ivar stuck: the verdict until the next try, if the step is stuck.
    :ivar reason: the reason of the last failure.
    """

    what: str
    hosts: tuple[str, ...]
    since: float
    patience: float = math.inf
    tries: int = 0
    next_try: float = -math.inf
    stuck: Stuck | None = None
    reason: str = ''


class StepTimes:
    """How long the steps take that this owner has tried first.

    :param on_step: called with the name, direction, state and seconds of each step whose result is committed.
    :param traced: the spans of the migration; None: it is not traced.
    :param is_ours: returns whether no earlier owner has begun a step.
    """

    def __init__(
        self,
        clock: executors.Clock,
        on_step: Callable[[str, str, str, float], None],
        traced: spans.Spans | None,
        is_ours: Callable[[StepKey], bool],
    ) -> None:
        self._clock = clock
        self._on_step = on_step
        self._spans = traced
        self._is_ours = is_ours
        self._began: dict[StepKey, float] = {}
        self._ended: dict[StepKey, float] = {}

    def trying(self, key: StepKey) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a step is tried once."""
        if key not in self._began and self._is_ours(key):
            self._began[key] = self._clock.monotonic()
        return contextlib.nullcontext() if self._spans is None else self._spans.within(key)

    def end(self, key: StepKey) -> None:
        """Take the present as the end of a step."""
        self._ended[key] = self._clock.monotonic()

    def committed(self, records: Iterable[log.StepRecord], row: Migration) -> None:
        """Report the steps that have ended, and forget them.

        :param records: what was committed.
        :param row: the migration as it is now.
        """
        now = self._clock.monotonic()
        for record in records:
            ended = self._ended.pop(record.key, None)
            if record.state == log.StepState.INTENT or ended is None:
                continue
            began = self._began.pop(record.key, None)
            if began is not None:
                self._on_step(record.step, record.direction, record.state, ended - began)
            if self._spans is not None:
                self._spans.end_step(record, ended - (ended if began is None else began), now - ended)
        if self._spans is not None and row.ended:
            self._spans.end_migration(row)


class Ledger:
    """Everything that a migration waits for.

    :ivar waits_on: the hosts whose reply or report the migration waits for.
    :ivar wake_at: when to wake the run without an event (monotonic seconds); None: the sweep wakes it.
    :ivar last: the wait with which the last run ended; None: it made progress, or that is not known.
    :ivar progress: the progress of the migration at that time.
    :ivar boots: the boot_ids of the hosts that it waited for at that time.
    :ivar begun: patience -> when a wait of this patience first began since the last progress (monotonic seconds). A
        migration may alternate between waiting for a host and waiting for its call slot. Neither restarts the other.
    :ivar restarts: the number of restarts of the awaited hosts since the last progress.
    :ivar in_status: whether the status of the migration shows what it waits for.
    :ivar candidates: the candidates that had no free slot for the migration, if it waits for one.
    :ivar written: the text that was last written to ``waits_for``.
    """

    def __init__(self, clock: executors.Clock) -> None:
        self._clock = clock
        self._waits: dict[tuple[str, ...], Wait] = {}
        self.waits_on: set[str] = set()
        self.wake_at: float | None = None
        self.last: Wait | None = None
        self.progress: Any = None
        self.boots: dict[str, str | None] = {}
        self.begun: dict[float, float] = {}
        self.restarts = 0
        self.in_status = False
        self.written: str | None = None
        self.candidates: tuple[str, ...] = ()

    def begin_run(self) -> None:
        """Forget what the run before waited for, and when it was due."""
        self.waits_on, self.wake_at, self.candidates = set(), None, ()

    def wake_by(self, moment: float) -> None:
        """Wake the run at a moment (monotonic seconds), unless it will be woken earlier."""
        self.wake_at = moment if self.wake_at is None else min(self.wake_at, moment)

    def wake_now(self) -> None:
        """Wake the run at once."""
        self.wake_at = self._clock.monotonic()

    def of(self, what: str, *hosts: str) -> Wait:
        """Return the wait for something; begin it now if it has not begun."""
        return self._waits.setdefault((what, *hosts), Wait(what, hosts, self._clock.monotonic()))

    def forget_tries(self) -> None:
        """Forget all failures, so that everything is tried again at once."""
        self._waits.clear()

    def forget_stuck(self) -> None:
        """Clear every stuck verdict, so that its step is tried again at once."""
        for wait in self._waits.values():
            if wait.stuck is not None:
                wait.stuck, wait.next_try = None, -math.inf
