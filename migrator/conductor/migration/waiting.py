# SPDX-License-Identifier: Apache-2.0

"""What a migration waits for: the ledger in its owner's memory, and the one rule of waits.

The rule says when a wait is shown, and when a long one makes the migration stuck.

See ``doc/source/decisions/0018-every-wait-has-a-reason.rst``.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from migrator import exception, executors
from migrator.conductor.migration.replies import Replies
from migrator.objects import Migration, MigrationStatus, Outcome, reasons
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga import log
from migrator.saga.saga import Parked, Stuck

#: A migration may wait this many times service_down_time without progress.
PATIENCE = 5
#: The statuses that already show a wait of any length.
_LASTING = (MigrationStatus.QUEUED, MigrationStatus.RUNNING, MigrationStatus.FINISHED)
#: The number of restarts of a host that begin its wait again. The migration itself may be what crashes the host.
_RESTARTS = 3
#: The services whose absence is shown at once. Any conductor may write it, so each removes what another has written.
_AWAY = (WaitKind.PLACEMENT, WaitKind.BROKER)
#: A host that does not report the guest.
_NO_REPORT = (WaitKind.HOST, WaitKind.COPYING_HOST, WaitKind.GUEST)


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
    :ivar written: the long wait that was last written.
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
        self.written: Reason | None = None
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


class Waiter(Protocol):
    """What the rule reads and writes of a migration, which is a MigrationContext."""

    tools: Any
    row: Migration
    step_log: log.StepLog
    replies: Replies
    ledger: Ledger
    boots: dict[str, str | None]
    stuck: log.Entry | None

    @property
    def source(self) -> str:
        """The source host."""

    def set(self, **fields: Any) -> None:
        """Write columns of the migration with the next commit."""

    def log_stuck(self, reason: Reason | None) -> None:
        """Add to the next commit that it is stuck, or no longer stuck."""

    def commit(self) -> None:
        """Write what was collected."""


# --- the rule --------------------------------------------------------------------------------------------------------


def wait_for(m: Waiter, pause: Parked) -> Parked | Stuck:
    """Record what a migration waits for, and since when it has made no progress.

    A wait of ``service_down_time`` is written to the row. One that is longer than its patience makes the migration
    stuck. An outage of a service is written at once, and its time does not count for any wait.

    :returns: the pause, or Stuck if the wait has lasted too long.
    """
    if pause.outage:
        m.ledger.last = None
        note_waiting(m, pause.why)
        return pause
    # An abort request limits even a wait that may otherwise last any time.
    endless = pause.patient and m.row.abort_requested_at is None
    patience = math.inf if endless else PATIENCE * m.tools.options.service_down_time
    hosts = tuple(sorted(m.ledger.waits_on if pause.hosts is None else pause.hosts))
    since = _begin(m, pause, hosts, patience)
    lasted = m.tools.threads.clock.monotonic() - since
    if lasted >= patience:
        words = {'conductor': m.tools.server}
        return Stuck(Reason(StuckKind.NO_PROGRESS, hosts, words, waits=pause.why))
    _show(m, pause, lasted)
    return pause


def _begin(m: Waiter, pause: Parked, hosts: tuple[str, ...], patience: float) -> float:
    """Enter a wait in the ledger.

    :returns: when it began (monotonic seconds): with the first run without progress that had the same patience.
    """
    now, ledger, progress = float(m.tools.threads.clock.monotonic()), m.ledger, _progress(m)
    begun: dict[float, float] = {}
    boots = dict(m.boots)
    goes_on = ledger.last is not None and ledger.progress == progress
    # A new owner may have to wait for a call slot first.
    if (ledger.last is None or (goes_on and patience not in ledger.begun)) and _is_kept_stuck(m, pause):
        begun = {patience: now - patience}
    elif goes_on:
        restarted = _have_restarted(m, ledger.boots, hosts)
        if restarted and ledger.restarts < _RESTARTS:
            ledger.restarts += 1
        else:
            begun, boots = ledger.begun, boots | ledger.boots
    else:
        ledger.restarts = 0
    since = begun.get(patience, now)
    ledger.last, ledger.progress, ledger.boots = Wait(str(pause.why), hosts, since, patience), progress, boots
    ledger.in_status = pause.in_status and patience == math.inf and m.row.status in _LASTING
    ledger.in_status = ledger.in_status and (m.row.outcome is None or m.row.is_cold)
    # The time in a queue or of a copy does not count for a wait for a host that follows it.
    if patience == math.inf and hosts:
        begun = {}
    ledger.begun = {} if lasts(m) else {**begun, patience: since}
    return since


def _show(m: Waiter, pause: Parked, lasted: float) -> None:
    """Write a wait to the row once it has lasted, and remove the text of another one that is over."""
    shown, ledger = m.row.wait, m.ledger
    is_ours = shown is not None and ledger.written is not None and shown.equals(ledger.written)
    if shown is not None and not shown.equals(pause.why) and (shown.kind in _AWAY or is_ours):
        # Any other one stays.
        note_waiting(m, None)
    if lasted >= m.tools.options.service_down_time and not lasts(m) and m.row.wait is None:
        note_waiting(m, pause.why.plus(since=_ago(m, lasted)))
        ledger.written = pause.why


def lasts(m: Waiter) -> bool:
    """Return whether the status alone shows the wait: a queue, the copy, or a user."""
    return m.ledger.last is not None and m.ledger.in_status


def _have_restarted(m: Waiter, boots: Mapping[str, str | None], hosts: Sequence[str]) -> bool:
    """Return whether one of the hosts has another boot_id than in ``boots``."""
    return any(host in boots and boots[host] != m.boots.get(host) for host in hosts)


def _progress(m: Waiter) -> Any:
    """Return a value that changes whenever the migration makes progress."""
    done = [one for one in m.step_log.all() if one.state != log.StepState.INTENT]
    row, seen = m.row, m.replies.seen.get(m.source)
    # The figures of a copy count only after the outcome forward. The progress of a copy under abort means nothing.
    figures = (seen.progress or None) if seen is not None and row.outcome == Outcome.FORWARD else None
    requests = row.abort_requested_at, row.abandon_requested_at
    return row.status, row.outcome, row.attempt, requests, len(done), figures


def _is_kept_stuck(m: Waiter, pause: Parked) -> bool:
    """Return whether an earlier owner wrote this reason, and no awaited host has restarted since."""
    reason, known = m.row.stuck, m.stuck
    if reason is None or known is None or reason.waits != pause.why:
        return False
    boots = known.payload.get('boots', {})
    asked = m.row.retry_requested_at is not None or m.row.abandon_requested_at is not None
    return not asked and not _have_restarted(m, boots, sorted(m.ledger.waits_on))


# --- what the row shows ----------------------------------------------------------------------------------------------


def note_waiting(m: Waiter, why: Reason | None) -> None:
    """Write what the migration waits for. The next commit removes it.

    :param why: None: nothing worth reporting.
    """
    columns = reasons.columns('wait', why)
    if m.row.wait != why and m.tools.database.migrations.note_progress(m.row, columns):
        m.row = m.row.replace(**columns)


def for_placement(m: Waiter, error: exception.PlacementUnreachable) -> Parked:
    """Return the wait for Placement, which is away."""
    since = _ago(m, m.tools.placement_outage.lasts_for())
    words = {'reason': f'{error.message.rstrip(".")}.', 'conductor': m.tools.server, 'since': since}
    return Parked(Reason.of(WaitKind.PLACEMENT, **words), outage=True)


def note_silence(m: Waiter, host: str, seconds: float, kind: WaitKind) -> str | None:
    """Write which host or guest is unreachable or unresponsive.

    :param seconds: for how long.
    :param kind: whether the host does not answer, or its hypervisor does not report the guest.
    :returns: the sentence, or None if the row keeps what it has.
    """
    known = m.row.wait
    is_host = known is not None and known.kind in _NO_REPORT and known.hosts == (host,)
    since = _ago(m, seconds)
    if known is not None:
        turned = (known.kind == WaitKind.GUEST) != (kind == WaitKind.GUEST)
        if not (is_host and turned) and (kind != WaitKind.COPYING_HOST or known.kind == kind):
            return None
        if is_host and not turned:
            since = known.words.get('since', since)
    note_waiting(m, Reason.of(kind, host, since=since))
    return m.row.waits_for


def is_reported_away(m: Waiter, host: str) -> bool:
    """Return whether the row says that a host has not answered."""
    known = m.row.wait
    return known is not None and known.kind in (WaitKind.HOST, WaitKind.COPYING_HOST) and known.hosts == (host,)


def end_silence(m: Waiter, host: str) -> None:
    """Remove that a host or its guest does not answer, since it has reported where the guest is."""
    known = m.row.wait
    if known is not None and known.kind in _NO_REPORT and known.hosts == (host,):
        note_waiting(m, None)


def is_news(m: Waiter, reason: Reason) -> bool:
    """Return whether a migration is stuck for another reason than its row has. Other words are no news."""
    return m.row.stuck is None or m.row.stuck.key != reason.key


def note_words(m: Waiter, reason: Reason) -> None:
    """Write the present words of the reason for which a migration is stuck, which is no news."""
    columns = reasons.columns('stuck', reason)
    if m.row.stuck != reason and m.tools.database.migrations.note_progress(m.row, columns):
        m.row = m.row.replace(**columns)


def note_stuck(m: Waiter, reason: Reason | None) -> None:
    """Commit why an operator is needed, or that none is needed any more.

    The migration keeps its status and both allocations, and is observed again.

    :param reason: None: the state fits a known case again.
    """
    m.set(**reasons.columns('stuck', reason))
    if reason is None:
        m.set(**reasons.columns('wait', m.row.wait))
    m.log_stuck(reason)
    m.commit()


def _ago(m: Waiter, seconds: float) -> str:
    began = m.tools.threads.clock.now() - datetime.timedelta(seconds=seconds)
    return f'{began:%Y-%m-%d %H:%M:%S} UTC'
