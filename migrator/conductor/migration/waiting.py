# SPDX-License-Identifier: Apache-2.0

"""The one rule by which a migration shows what it waits for, and by which a long wait makes it stuck.

See ``doc/source/decisions/0018-every-wait-has-a-reason.rst``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from migrator import executors
from migrator.objects import MigrationStatus, Outcome
from migrator.saga import log
from migrator.saga.step import Parked, Stuck

#: A migration may wait this many times service_down_time without progress.
PATIENCE = 5
#: The statuses that already show a wait of any length.
_LASTING = (MigrationStatus.QUEUED, MigrationStatus.RUNNING)
#: The number of restarts of a host that begin its wait again. The migration itself may be what crashes the host.
_RESTARTS = 3
#: Any conductor may write that the broker is away; see :class:`migrator.exception.BrokerAway`.
_NO_BROKER = ' cannot reach the message broker since '
#: The beginning of the reason of a migration that is stuck without progress.
_LONG = 'No progress: the migration has waited too long for '


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
    """Everything that a migration waits for. It is in the memory of the owner; the next owner starts again.

    :ivar last: the wait with which the last run ended; None: it made progress, or that is not known.
    :ivar progress: the progress of the migration at that time.
    :ivar boots: the boot_ids of the hosts that it waited for at that time.
    :ivar begun: patience -> when a wait of this patience first began since the last progress (monotonic seconds). A
        migration may alternate between waiting for a host and waiting for its call slot. Neither restarts the other.
    :ivar restarts: the number of restarts of the awaited hosts since the last progress.
    :ivar in_status: whether the status of the migration shows what it waits for.
    :ivar written: the text that was last written to ``waits_for``.
    """

    def __init__(self, clock: executors.Clock) -> None:
        self._clock = clock
        self._waits: dict[tuple[str, ...], Wait] = {}
        self.last: Wait | None = None
        self.progress: Any = None
        self.boots: Mapping[str, str | None] = {}
        self.begun: Mapping[float, float] = {}
        self.restarts = 0
        self.in_status = False
        self.written: str | None = None

    def of(self, what: str, *hosts: str) -> Wait:
        """Return the wait for something; begin it now if there is none."""
        return self._waits.setdefault((what, *hosts), Wait(what, hosts, self._clock.monotonic()))

    def forget_tries(self) -> None:
        """Forget all failures, so that everything is tried again at once."""
        self._waits.clear()

    def forget_stuck(self) -> None:
        """Clear every stuck verdict, so that its step is tried again at once."""
        for wait in self._waits.values():
            if wait.stuck is not None:
                wait.stuck, wait.next_try = None, -math.inf


def wait_for(m: Any, pause: Parked) -> Parked | Stuck:
    """Record what a migration waits for, and since when it has made no progress. Write it once it lasts.

    :param m: the :class:`migrator.conductor.migration.context.MigrationContext`.
    :returns: the pause, or Stuck if the wait has lasted too long.
    """
    now, down_time, ledger = m.tools.threads.clock.monotonic(), m.tools.options.service_down_time, m.ledger
    # An abort request limits even a wait that may otherwise last any time.
    patience = math.inf if pause.patient and m.row.abort_requested_at is None else PATIENCE * down_time
    hosts, progress, begun = tuple(sorted(m.waits_on if pause.hosts is None else pause.hosts)), _progress(m), {}
    boots = dict(m.boots)
    if ledger.last is None and _is_kept_stuck(m, pause):
        begun = {patience: now - patience}
    elif ledger.last is not None and ledger.progress == progress:
        restarted = _have_restarted(m, ledger.boots, hosts)
        if restarted and ledger.restarts < _RESTARTS:
            ledger.restarts += 1
        else:
            begun, boots = ledger.begun, boots | ledger.boots
    else:
        ledger.restarts = 0
    since = begun.get(patience, now)
    ledger.last, ledger.progress, ledger.boots = Wait(pause.why, hosts, since, patience), progress, boots
    ledger.in_status = pause.in_status and patience == math.inf and m.row.status in _LASTING and m.row.outcome is None
    # A wait for a host that follows a lasting wait begins at its own start.
    ledger.begun = {} if lasts(m) else {**begun, patience: since}
    lasted = now - since
    if lasted >= patience:
        there = f'the hypervisor of {" and ".join(hosts)}, and at the log of the compute service there'
        look = there if hosts else f'the log of conductor {m.tools.server}'
        return Stuck(f'{_LONG}{pause.why}: look at {look}. The migration goes on once that has happened.')
    written = m.row.waits_for is not None and (m.row.waits_for == ledger.written or _NO_BROKER in m.row.waits_for)
    if written and not m.row.waits_for.startswith(f'for {pause.why}, '):
        # The wait that the text names is over.
        m.note_waiting(None)
    if lasted >= down_time and not lasts(m) and m.row.waits_for is None:
        m.note_waiting(f'for {pause.why}, {m.since(lasted)}')
        ledger.written = m.row.waits_for
    return pause


def lasts(m: Any) -> bool:
    """Return whether the status alone shows the wait: for a slot in the queue, or for the copy."""
    return m.ledger.last is not None and m.ledger.in_status


def _have_restarted(m: Any, boots: Mapping[str, str | None], hosts: Sequence[str]) -> bool:
    """Return whether one of the hosts has another boot_id than in ``boots``."""
    return any(host in boots and boots[host] != m.boots.get(host) for host in hosts)


def _progress(m: Any) -> Any:
    """Return a value that changes whenever the migration makes progress."""
    done = [one for one in m.journal.all() if one.state != log.StepState.INTENT]
    row, seen = m.row, m.seen.get(m.source)
    # The figures of a copy count only after the outcome forward. The progress of a copy under abort means nothing.
    figures = seen.progress if seen is not None and row.outcome == Outcome.FORWARD else None
    requests = row.abort_requested_at, row.abandon_requested_at
    return row.status, row.outcome, row.attempt, requests, len(done), figures


def _is_kept_stuck(m: Any, pause: Parked) -> bool:
    """Return whether an earlier owner has written this reason, and none of the awaited hosts has restarted since."""
    reason, known = m.row.stuck_reason, m.stuck
    if reason is None or known is None or not reason.startswith(f'{_LONG}{pause.why}'):
        return False
    boots = known.payload.get('boots', {})
    asked = m.row.retry_requested_at is not None or m.row.abandon_requested_at is not None
    return not asked and not _have_restarted(m, boots, sorted(m.waits_on))
