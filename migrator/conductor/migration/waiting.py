# SPDX-License-Identifier: Apache-2.0

"""What a migration waits for, and for how long: the one rule by which it says so, and by which it is stuck.

``doc/source/decisions/0018-every-wait-has-a-reason.rst``.
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

#: How many times as long as a host may be silent a migration may wait without getting any further.
PATIENCE = 5
#: The statuses that say enough of a wait that may last.
_LASTING = (MigrationStatus.QUEUED, MigrationStatus.RUNNING)
#: So often a host that is started again has all its time again; a migration may be what its host dies of.
_RESTARTS = 3
#: What waits for the broker is told so by any conductor: see :class:`migrator.exception.BrokerAway`.
_NO_BROKER = ' cannot reach the message broker since '
#: How the reason begins why a migration is stuck that gets no further.
_LONG = 'It gets no further, and has long waited for '


@dataclasses.dataclass
class Wait:
    """Something that a migration waits for.

    :ivar what: a step, a wish or a cleanup that a host is to do; or, for a person, what a run has ended with.
    :ivar whom: the hosts whose word that is; empty: nobody's.
    :ivar since: when it was first waited for (monotonic seconds).
    :ivar patience: seconds after which it counts as stuck; infinite: a turn in a queue or in a line, or a copy.
    :ivar tries: how often it has failed.
    :ivar next_try: it is let be until then (monotonic seconds).
    :ivar stuck: what is said meanwhile, where it is stuck.
    :ivar reason: why it has failed last.
    """

    what: str
    whom: tuple[str, ...]
    since: float
    patience: float = math.inf
    tries: int = 0
    next_try: float = -math.inf
    stuck: Stuck | None = None
    reason: str = ''


class Ledger:
    """All that a migration waits for, in the memory of its conductor: what the next owner does not know it tries anew.

    :ivar last: what the last run has ended with; None: it got further, or that is not known.
    :ivar got: how far the migration had got then.
    :ivar boots: of the hosts that it waited for, then.
    :ivar begun: patience -> when it first waited so since it last got any further (monotonic seconds). What waits for a
        host may stand in line for it in between, and again: the one does not begin the other anew.
    :ivar restarts: how often a host that it waited for has been started again since it last got any further.
    :ivar is_told: whether the status of the migration tells what it waits for.
    :ivar wrote: what was last written of it.
    """

    def __init__(self, clock: executors.Clock) -> None:
        self._clock = clock
        self._waits: dict[tuple[str, ...], Wait] = {}
        self.last: Wait | None = None
        self.got: Any = None
        self.boots: Mapping[str, str | None] = {}
        self.begun: Mapping[float, float] = {}
        self.restarts = 0
        self.is_told = False
        self.wrote: str | None = None

    def of(self, what: str, *whom: str) -> Wait:
        """Return the wait for something, which begins now if there is none."""
        return self._waits.setdefault((what, *whom), Wait(what, whom, self._clock.monotonic()))

    def forget_tries(self) -> None:
        """Have everything that has failed be tried again at once, as often as if it never had."""
        self._waits.clear()

    def forget_stuck(self) -> None:
        """Have everything that is stuck be tried again at once."""
        for wait in self._waits.values():
            if wait.stuck is not None:
                wait.stuck, wait.next_try = None, -math.inf


def wait_for(m: Any, pause: Parked) -> Parked | Stuck:
    """Note what a run has ended with, and since when it has got no further; write that where it lasts.

    :param m: the :class:`migrator.conductor.migration.context.OwnedMigration`.
    :returns: that it is stuck, where it has lasted for too long.
    """
    now, down_time, ledger = m.tools.threads.clock.monotonic(), m.tools.options.service_down_time, m.ledger
    # An abort ends what may last otherwise.
    patience = math.inf if pause.patient and m.row.abort_requested_at is None else PATIENCE * down_time
    whom, got, begun = tuple(sorted(m.waits_on if pause.whom is None else pause.whom)), _got(m), {}
    boots = dict(m.boots)
    if ledger.last is None and _is_kept_stuck(m, pause):
        begun = {patience: now - patience}
    elif ledger.last is not None and ledger.got == got:
        anew = _have_begun_anew(m, ledger.boots, whom)
        if anew and ledger.restarts < _RESTARTS:
            ledger.restarts += 1
        else:
            begun, boots = ledger.begun, boots | ledger.boots
    else:
        ledger.restarts = 0
    since = begun.get(patience, now)
    ledger.last, ledger.got, ledger.boots = Wait(pause.why, whom, since, patience), got, boots
    ledger.is_told = pause.told and patience == math.inf and m.row.status in _LASTING and m.row.outcome is None
    # A host that is waited for after what may last has its time from then on.
    ledger.begun = {} if lasts(m) else {**begun, patience: since}
    lasted = now - since
    if lasted >= patience:
        hosts = f'the hypervisor of {" and ".join(whom)}, and at the log of the compute service there'
        look = hosts if whom else f'the log of conductor {m.tools.server}'
        return Stuck(f'{_LONG}{pause.why}: look at {look}. It goes on by itself when that has come.')
    wrote = m.row.waits_for is not None and (m.row.waits_for == ledger.wrote or _NO_BROKER in m.row.waits_for)
    if wrote and not m.row.waits_for.startswith(f'for {pause.why}, '):
        # That has come.
        m.note_waiting(None)
    if lasted >= down_time and not lasts(m) and m.row.waits_for is None:
        m.note_waiting(f'for {pause.why}, {m.since(lasted)}')
        ledger.wrote = m.row.waits_for
    return pause


def lasts(m: Any) -> bool:
    """Whether what it waits for needs no reason beside its status: its turn in the queue, or its copy."""
    return m.ledger.last is not None and m.ledger.is_told


def _have_begun_anew(m: Any, boots: Mapping[str, str | None], whom: Sequence[str]) -> bool:
    """Whether one of some hosts has been started since their boots were these."""
    return any(host in boots and boots[host] != m.boots.get(host) for host in whom)


def _got(m: Any) -> Any:
    """Return what changes when a migration gets any further."""
    done = [one for one in m.journal.all() if one.state != log.StepState.INTENT]
    row, seen = m.row, m.seen.get(m.source)
    # Of a copy that is to be aborted its progress is none.
    figures = seen.progress if seen is not None and row.outcome == Outcome.FORWARD else None
    requests = row.abort_requested_at, row.abandon_requested_at
    return row.status, row.outcome, row.attempt, requests, len(done), figures


def _is_kept_stuck(m: Any, pause: Parked) -> bool:
    """Whether another conductor has written that it is stuck in this, and no host of those has begun anew since."""
    reason, known = m.row.stuck_reason, m.stuck
    if reason is None or known is None or not reason.startswith(f'{_LONG}{pause.why}'):
        return False
    boots = known.payload.get('boots', {})
    asked = m.row.retry_requested_at is not None or m.row.abandon_requested_at is not None
    return not asked and not _have_begun_anew(m, boots, sorted(m.waits_on))
