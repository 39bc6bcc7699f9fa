# SPDX-License-Identifier: Apache-2.0

"""Abandoning: the end of a migration that is stuck, with its guest where a person says that it is.

The books are made to say that host, and it ends in error. Nothing is started, resumed or stopped at that host. The
other one is cleaned if it has no guest that could run; else it owes that, and where somebody has to look first the
debt has an alarm. Three rows of the journal tell of it; whoever takes over in the middle goes on behind the last one
that is done.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from oslo_log import log as logging

from migrator import exception
from migrator.conductor.migration import allocations, hosts, settle
from migrator.conductor.migration.context import MigrationContext, Status
from migrator.conductor.migration.settle import Observed
from migrator.objects import base
from migrator.saga import log
from migrator.saga.step import Done, Parked, Stuck, Verdict

LOG = logging.getLogger(__name__)

#: The rows of the journal, in order: the wish, which is done at the end; the other host; the allocations.
ABANDON = 'abandon'
CLEAN = 'abandon_clean'
ALLOCATIONS = 'abandon_allocations'


#: What removes what there is of the guest, by where it is.
_LEAVES_SOURCE, _LEAVES_DESTINATION = 'post_live_migration_at_source', 'rollback_live_migration_at_destination'

#: Something at the source could still move the guest.
_UNDER_WAY = frozenset({Observed.WAITS, Observed.STARTED, Observed.JOB, Observed.CUTOVER_JOB})
#: The guest could run there at any moment, or has a part of its memory there.
_ALIVE = frozenset({Observed.HERE, Observed.RETURNED, Observed.RUNS, Observed.BROKEN})
#: There is a copy of the guest which does not run, and may be the last one.
_COPY = frozenset({Observed.CUTOVER, Observed.SHUT_OFF})


def abandon(m: MigrationContext) -> Parked | Stuck | None:
    """Carry out the wish to abandon, and end; None at once where nobody has that wish.

    :raises migrator.exception.NotOwner: it is another's by now.
    """
    guest_on = m.row.abandon_guest_on
    if m.row.abandon_requested_at is None or guest_on is None or m.ended:
        return None
    if m.record(ABANDON) is None:
        # Whatever was sent and is still on its way is refused from now on, cleanups of earlier migrations included.
        m.raise_epoch(seen_tenure=m.row.tenure)
        LOG.warning(
            'Migration %s is abandoned, as %s wants it, who says that the guest is on %s',
            m.row.uuid,
            m.row.abandon_requested_by,
            guest_on,
        )
        m.hold_cleanups(
            f'The migration was abandoned, the guest being on {guest_on}: look whether this is still to be done.'
        )
        m.commit([_begun(m, ABANDON, {'guest_on': guest_on, 'by': m.row.abandon_requested_by})])
    _outbid_cleanups(m)
    other = next((host for host in reversed(m.hosts) if host != guest_on), None)
    pause = _clean(m, guest_on, other) if other is not None else None
    if isinstance(pause, Parked):
        m.note_waiting(f'for {pause.why}')
    pause = pause or _write_books(m, guest_on)
    if pause is None:
        _end(m, guest_on)
    return pause


def _outbid_cleanups(m: MigrationContext) -> None:
    """Have what was sent to have a debt paid, and is still on its way, refused as well."""
    held = m.tools.database.cleanups.list(migration_uuid=m.row.uuid)
    highest = max((cleanup.epoch for cleanup in held if cleanup.host in m.hosts), default=0)
    if m.row.epoch <= highest:
        m.raise_epoch(highest)


# --- the other host --------------------------------------------------------------------------------------------------


def _clean(m: MigrationContext, guest_on: str, other: str) -> Parked | Stuck | None:
    """Have it cleaned as the protocol does it; the row that says so also holds what is owed instead."""
    if _is_done(m, CLEAN):
        return None
    source = hosts.look_at(m, m.source)
    destination = hosts.look_at(m, m.destination) if m.destination else settle.Host(Observed.ABSENT)
    for host, word in ((m.source, source), (m.destination, destination)):
        if word.observed is Observed.MISSING:
            return Parked(f'{host} to say what it has of the guest')
    if source.observed in _UNDER_WAY:
        return _stop(m, source, destination)
    if m.record(CLEAN) is None:
        m.will_call()
        m.commit([_begun(m, CLEAN, {'host': other})])
    verdict = _clean_or_defer(m, other, *((source, destination) if other == m.source else (destination, source)))
    if isinstance(verdict, Done):
        m.commit([_finished(m, CLEAN, verdict)])
        return None
    assert isinstance(verdict, (Parked, Stuck)), 'what a host cannot do it owes'
    return verdict


def _stop(m: MigrationContext, source: settle.Host, destination: settle.Host) -> Parked | Stuck:
    """Have nothing left at the source that could move the guest; its job is aborted, unless it is in post-copy."""
    m.waits_on = {m.source}
    now = m.tools.threads.clock.monotonic()
    m.wake_by(now + hosts.TELL_AGAIN)
    if source.observed not in (Observed.WAITS, Observed.STARTED) and (
        destination.post_copy or destination.observed is Observed.RUNS
    ):
        return Parked(f'the last pages to leave {m.source}')
    request, patience = 'live_migration_abort', m.tools.options.service_down_time
    wait, why = m.ledger.of(f'{ABANDON} {request}', m.source), f'{m.source} to abort the job'
    # A call may last.
    m.note_waiting(f'for {why}')
    try:
        hosts.tell(m, wait, request, instance=m.guest, migration=m.row)
    except exception.ServiceTooOld as error:
        why = f'it to run, to be aborted then: {error}'
    if now - wait.since >= patience:
        return Stuck(f'{m.source} has not given up the move within {patience:.0f} s: look at its hypervisor.')
    return Parked(why)


def _clean_or_defer(m: MigrationContext, other: str, word: settle.Host, guests: settle.Host) -> Verdict:
    """Have a host cleaned, or owe it.

    :param word: what that host says. :param guests: what the one says that has the guest, by the word of a person.
    """
    step = _LEAVES_SOURCE if other == m.source else _LEAVES_DESTINATION
    if word.observed in _ALIVE:
        return _alarm(m, other, step, f'{other} has the guest too: look which host runs it, and end the other copy.')
    if other == m.source and guests.observed is not Observed.RUNS and word.observed in _COPY | {Observed.DOWN}:
        # Cleaned, it would be gone; and nobody but that person has said that there is another. (At a destination
        # nothing is cleaned away but what was prepared.)
        what = (
            'is down and may have a copy of the guest' if word.observed is Observed.DOWN else 'has a copy of the guest'
        )
        return _alarm(m, other, step, f'{other} {what}, and no host says that it runs it: look where the guest is.')
    if (
        other != m.source
        and guests.observed is Observed.ABSENT
        and word.observed not in (Observed.ABSENT, Observed.DOWN)
    ):
        what = f'{other} {word.observed}, and {m.source} {guests.observed}: look where the guest is.'
        return _alarm(m, other, step, what)
    if word.observed is Observed.DOWN:
        return _defer(m, other, step, f'{other} is down')
    return _tell(m, other, step)


def _tell(m: MigrationContext, other: str, step: str) -> Verdict:
    """Have it done now; what a host does not get done while a person waits, it owes."""
    record = m.record(CLEAN)
    assert record is not None
    now = m.tools.threads.clock.monotonic()
    since = m.ledger.of(CLEAN, other).since
    frozen = _migrate_data(m)
    data = base.from_primitive(frozen) if frozen else None
    verdict = hosts.retry(m, other, step, record, instance=m.guest, migrate_data=data)
    patience = m.tools.options.service_down_time
    if isinstance(verdict, Stuck):
        return _alarm(m, other, step, verdict.reason)
    if isinstance(verdict, Parked) and now - since >= patience:
        return _defer(m, other, step, f'{other} has not done it within {patience:.0f} s')
    if isinstance(verdict, Parked):
        m.wake_by(since + patience)
    elif 'owed' not in (verdict.result or {}):
        m.paid(other)
    return verdict


def _alarm(m: MigrationContext, host: str, step: str, why: str) -> Done:
    LOG.error('Migration %s is abandoned, and %s is not told to do %s: %s', m.row.uuid, host, step, why)
    m.defer(host, step, 'the migration was abandoned', {'migrate_data': _migrate_data(m)}, alarm=why)
    return Done({'owed': why})


def _defer(m: MigrationContext, host: str, step: str, why: str) -> Done:
    m.defer(host, step, why, {'migrate_data': _migrate_data(m)})
    return Done({'owed': why})


def _migrate_data(m: MigrationContext) -> Any:
    """Return the newest of what the hosts know of each other, in JSON-safe form; None: they never got so far."""
    for step in ('pre_live_migration', 'check_can_live_migrate_source', 'check_can_live_migrate_destination'):
        found = m.result(step).get('migrate_data')
        if found:
            return found
    return None


# --- the books, and the end ------------------------------------------------------------------------------------------


def _write_books(m: MigrationContext, guest_on: str) -> Parked | Stuck | None:
    if _is_done(m, ALLOCATIONS):
        return None
    if m.record(ALLOCATIONS) is None:
        m.commit([_begun(m, ALLOCATIONS, {'host': guest_on})])
    verdict = allocations.say(m, guest_on, ALLOCATIONS)
    if isinstance(verdict, Done):
        m.commit([_finished(m, ALLOCATIONS, verdict)])
        return None
    assert isinstance(verdict, (Parked, Stuck)), 'what a person has decided does not fail'
    return verdict


def _end(m: MigrationContext, guest_on: str) -> None:
    """End it, in the one transaction that also says where the guest is."""
    who = m.row.abandon_requested_by or 'somebody'
    m.will(status=Status.ERROR.value, failure=f'Abandoned by {who}, who says that the guest is on {guest_on}.')
    if m.row.abort_requested_at is not None:
        m.will(abort_verdict=f'{Status.ERROR}: the migration was abandoned')
    at_source = guest_on == m.source
    # What would take away what that person has seen there is not to be done at all.
    m.paid(guest_on, _LEAVES_SOURCE if at_source else _LEAVES_DESTINATION)
    node = m.row.source_node if at_source else m.row.dest_node
    m.change_instance(host=guest_on, node=node, vm_state='error')
    m.commit([_finished(m, ABANDON, Done({'guest_on': guest_on}))])


# --- the journal -----------------------------------------------------------------------------------------------------


def _is_done(m: MigrationContext, name: str) -> bool:
    record = m.record(name)
    return record is not None and record.state == log.StepState.DONE


def _begun(m: MigrationContext, name: str, input_: dict[str, Any]) -> log.StepRecord:
    return log.StepRecord(name, log.DO, log.StepState.INTENT.value, m.attempt, input=input_)


def _finished(m: MigrationContext, name: str, verdict: Done) -> log.StepRecord:
    record = m.record(name)
    assert record is not None
    return dataclasses.replace(record, state=log.StepState.DONE.value, result=verdict.result)
