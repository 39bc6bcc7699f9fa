# SPDX-License-Identifier: Apache-2.0

"""The one rule by which a migration shows what it waits for, and by which a long wait makes it stuck.

See ``doc/source/decisions/0018-every-wait-has-a-reason.rst``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from migrator import exception
from migrator.conductor.migration.context import MigrationContext
from migrator.conductor.migration.ledger import Wait
from migrator.objects import MigrationStatus, Outcome, base, protocol
from migrator.saga import log
from migrator.saga.saga import Parked, Stuck

#: A migration may wait this many times service_down_time without progress.
PATIENCE = 5
#: The statuses that already show a wait of any length.
_LASTING = (MigrationStatus.QUEUED, MigrationStatus.RUNNING, MigrationStatus.FINISHED)
#: The number of restarts of a host that begin its wait again. The migration itself may be what crashes the host.
_RESTARTS = 3
#: The end of what a migration shows while a service is away.
_GOES_ON = 'The migration goes on by itself once it answers.'
#: Any conductor may write that a service is away; see :class:`migrator.exception.BrokerAway`.
_AWAY = (' cannot reach the message broker since ', _GOES_ON)
#: The beginning of the reason of a migration that is stuck without progress.
_LONG = 'No progress: the migration has waited too long for '
#: Whether a host answers -> how ``waits_for`` begins while that host does not report the guest.
_SILENCES = {False: '{} has not answered ', True: '{} answers, but its hypervisor has not reported the guest '}


def wait_for(m: MigrationContext, pause: Parked) -> Parked | Stuck:
    """Record what a migration waits for, and since when it has made no progress.

    A wait of ``service_down_time`` is written to the row. One that is longer than its patience makes the migration
    stuck. An outage of a service is written at once, and its time does not count for any wait.

    :returns: the pause, or Stuck if the wait has lasted too long.
    """
    if pause.outage:
        m.ledger.last = None
        note_waiting(m, f'{pause.outage} {_GOES_ON}')
        return pause
    # An abort request limits even a wait that may otherwise last any time.
    endless = pause.patient and m.row.abort_requested_at is None
    patience = math.inf if endless else PATIENCE * m.tools.options.service_down_time
    hosts = tuple(sorted(m.ledger.waits_on if pause.hosts is None else pause.hosts))
    since = _begin(m, pause, hosts, patience)
    lasted = m.tools.threads.clock.monotonic() - since
    if lasted >= patience:
        there = f'the hypervisor of {" and ".join(hosts)}, and at the log of the compute service there'
        look = there if hosts else f'the log of conductor {m.tools.server}'
        return Stuck(f'{_LONG}{pause.why}: look at {look}. The migration goes on once that has happened.')
    _show(m, pause, lasted)
    return pause


def _begin(m: MigrationContext, pause: Parked, hosts: tuple[str, ...], patience: float) -> float:
    """Enter a wait in the ledger.

    :returns: when it began (monotonic seconds): with the first run without progress that had the same patience.
    """
    now, ledger, progress = m.tools.threads.clock.monotonic(), m.ledger, _progress(m)
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
    ledger.last, ledger.progress, ledger.boots = Wait(pause.why, hosts, since, patience), progress, boots
    ledger.in_status = pause.in_status and patience == math.inf and m.row.status in _LASTING
    ledger.in_status = ledger.in_status and (m.row.outcome is None or m.row.is_cold)
    # The time in a queue or of a copy does not count for a wait for a host that follows it.
    if patience == math.inf and hosts:
        begun = {}
    ledger.begun = {} if lasts(m) else {**begun, patience: since}
    return since


def _show(m: MigrationContext, pause: Parked, lasted: float) -> None:
    """Write a wait to the row once it has lasted, and remove the text of another one that is over."""
    shown, ledger = m.row.waits_for or '', m.ledger
    written = shown == ledger.written or any(one in shown for one in _AWAY)
    if written and not shown.startswith(f'for {pause.why}, '):
        # Any other text stays.
        note_waiting(m, None)
    if lasted >= m.tools.options.service_down_time and not lasts(m) and m.row.waits_for is None:
        note_waiting(m, f'for {pause.why}, {_since(m, lasted)}')
        ledger.written = m.row.waits_for


def lasts(m: MigrationContext) -> bool:
    """Return whether the status alone shows the wait: a queue, the copy, or a user."""
    return m.ledger.last is not None and m.ledger.in_status


def _have_restarted(m: MigrationContext, boots: Mapping[str, str | None], hosts: Sequence[str]) -> bool:
    """Return whether one of the hosts has another boot_id than in ``boots``."""
    return any(host in boots and boots[host] != m.boots.get(host) for host in hosts)


def _progress(m: MigrationContext) -> Any:
    """Return a value that changes whenever the migration makes progress."""
    done = [one for one in m.journal.all() if one.state != log.StepState.INTENT]
    row, seen = m.row, m.replies.seen.get(m.source)
    # The figures of a copy count only after the outcome forward. The progress of a copy under abort means nothing.
    figures = (seen.progress or None) if seen is not None and row.outcome == Outcome.FORWARD else None
    requests = row.abort_requested_at, row.abandon_requested_at
    return row.status, row.outcome, row.attempt, requests, len(done), figures


def _is_kept_stuck(m: MigrationContext, pause: Parked) -> bool:
    """Return whether an earlier owner wrote this reason, and no awaited host has restarted since."""
    reason, known = m.row.stuck_reason, m.stuck
    if reason is None or known is None or not reason.startswith(f'{_LONG}{pause.why}'):
        return False
    boots = known.payload.get('boots', {})
    asked = m.row.retry_requested_at is not None or m.row.abandon_requested_at is not None
    return not asked and not _have_restarted(m, boots, sorted(m.ledger.waits_on))


# --- what the row shows ----------------------------------------------------------------------------------------------


def note_waiting(m: MigrationContext, why: str | None) -> None:
    """Write what the migration waits for. The next commit removes it.

    :param why: a sentence; None: nothing worth reporting.
    """
    why = None if why is None else base.text(why, protocol.LONGEST_REASON)
    if m.row.waits_for != why and m.tools.database.migrations.note_progress(m.row, {'waits_for': why}):
        m.row = m.row.replace(waits_for=why)


def for_placement(m: MigrationContext, error: exception.PlacementUnreachable) -> Parked:
    """Return the wait for Placement, which is away."""
    since = _since(m, m.tools.placement_outage.lasts_for())
    checks = f'Conductor {m.tools.server} waits for it {since}. Check it with "migrator-status upgrade check".'
    return Parked(f'Placement: {error}', outage=f'{error.message.rstrip(".")}. {checks}')


def note_unreachable(m: MigrationContext, host: str, seconds: float, answers: bool, helps: str = '') -> str | None:
    """Write which unresponsive host the migration waits for.

    :param seconds: how long the host has not answered.
    :param answers: whether the host answers, but does not report this guest.
    :param helps: what the operator can do about it.
    :returns: the message, or None if one is already written.
    """
    known = m.row.waits_for or ''
    silence, other = _SILENCES[answers].format(host), _SILENCES[not answers].format(host)
    if known and known.endswith(helps) and not known.startswith(other):
        return None
    known = known if known.startswith(silence) else f'{silence}{_since(m, seconds)}'
    note_waiting(m, f'{known}{helps}')
    return m.row.waits_for


def is_reported_unreachable(m: MigrationContext, host: str) -> bool:
    """Return whether the row says that a host has not answered."""
    return (m.row.waits_for or '').startswith(_SILENCES[False].format(host))


def end_silence(m: MigrationContext, host: str) -> None:
    """Remove the message that a host does not answer, since it has reported where the guest is."""
    # Another conductor may have written the message, so it is recognised by its text.
    if (m.row.waits_for or '').startswith(tuple(words.format(host) for words in _SILENCES.values())):
        note_waiting(m, None)


def note_stuck(m: MigrationContext, reason: str | None) -> None:
    """Commit why an operator is needed, or that none is needed any more.

    The migration keeps its status and both allocations, and is observed again.

    :param reason: None: the state fits a known case again.
    """
    reason = None if reason is None else base.text(reason, protocol.LONGEST_REASON)
    m.set(stuck_reason=reason)
    if reason is None:
        m.set(waits_for=m.row.waits_for)
    m.log_stuck(reason)
    m.commit()


def _since(m: MigrationContext, seconds: float) -> str:
    began = m.tools.threads.clock.now() - datetime.timedelta(seconds=seconds)
    return f'since {began:%Y-%m-%d %H:%M:%S} UTC'
