# SPDX-License-Identifier: Apache-2.0

"""Abandoning: the end of a stuck migration whose guest is where an operator says.

The allocation is written for that host, and the migration ends in error. Nothing is started, resumed or stopped at that
host. The other host is cleaned if it has no guest that could run. Otherwise the cleanup is deferred, and it is blocked
if an operator has to look first. The source of an evacuation is not polled, and its cleanup is always deferred. The
log has three records of it. A conductor that takes over goes on after the last record that is done.

The guest of a resize that stays has no other host. Its host gives it the old definition or keeps the new one, as the
database has its flavor from then on, in a deferred cleanup.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from oslo_log import log as logging

from migrator import exception
from migrator.conductor.migration import allocations, destinations, hosts, settle_table, waiting
from migrator.conductor.migration.context import MigrationContext, Status
from migrator.conductor.migration.settle_table import Observed
from migrator.objects import MigrationType, base, steps
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.objects.steps import ABANDON, ABANDON_ALLOCATIONS, ABANDON_CLEAN
from migrator.saga import log
from migrator.saga.saga import Done, Parked, Stuck, Verdict

LOG = logging.getLogger(__name__)

_SAGAS = {
    MigrationType.LIVE_MIGRATION.value: steps.Saga.LIVE_MIGRATION,
    MigrationType.EVACUATION.value: steps.Saga.EVACUATION,
    MigrationType.MIGRATION.value: steps.Saga.COLD_MIGRATION,
    MigrationType.RESIZE.value: steps.Saga.COLD_MIGRATION,
}
#: (type of a migration, host) -> the step that removes the guest from that host.
_CLEANS = {
    (kind, step.at): step.name
    for kind, saga in _SAGAS.items()
    for step in steps.STEPS
    if step.saga == saga and step.removes
}

#: Something at the source could still move the guest.
_UNDER_WAY = frozenset({Observed.WAITS, Observed.STARTED, Observed.JOB, Observed.CUTOVER_JOB})
#: The guest could run there at any moment, or has part of its memory there.
_ALIVE = frozenset({Observed.HERE, Observed.RETURNED, Observed.RUNS, Observed.BROKEN})
#: There is a copy of the guest that does not run, and may be the last one.
_COPY = frozenset({Observed.CUTOVER, Observed.SHUT_OFF})


def abandon(m: MigrationContext) -> Parked | Stuck | None:
    """Carry out a request to abandon the migration, and end it.

    :returns: what the migration waits for, or None if the migration has ended.
    :raises migrator.exception.NotOwner: another conductor owns the migration.
    """
    guest_on = m.row.abandon_guest_on
    if guest_on is None:
        return None
    if m.record(ABANDON) is None:
        # From now on hosts refuse everything that was sent before, including the cleanups of earlier migrations.
        m.raise_epoch(seen_tenure=m.row.tenure)
        LOG.warning(
            'Abandoning migration %(migration)s by request of %(user)s; the guest is on %(host)s',
            {'migration': m.row.uuid, 'user': m.row.abandon_requested_by, 'host': guest_on},
        )
        m.writes.cleanups_held = (
            f'The migration was abandoned with the guest on {guest_on}: look whether this cleanup is still needed.'
        )
        m.commit([_begun(m, ABANDON, {'guest_on': guest_on, 'by': m.row.abandon_requested_by})])
    _outbid_cleanups(m)
    other = next((host for host in reversed(m.row.hosts) if host != guest_on), None)
    pause = _clean(m, other) if other is not None else None
    if isinstance(pause, Parked):
        waiting.note_waiting(m, pause.why)
    pause = pause or _write_allocations(m, guest_on)
    if pause is None:
        _end(m, guest_on)
    return pause


def _outbid_cleanups(m: MigrationContext) -> None:
    """Raise the epoch above that of the deferred cleanups, so that hosts refuse their late commands."""
    held = m.tools.database.cleanups.list(migration_uuid=m.row.uuid)
    highest = max((cleanup.epoch for cleanup in held if cleanup.host in m.row.hosts), default=0)
    if m.row.epoch <= highest:
        m.raise_epoch(highest)


# --- the other host --------------------------------------------------------------------------------------------------


def _clean(m: MigrationContext, other: str) -> Parked | Stuck | None:
    """Clean the other host, or defer that. The result of the record says which."""
    if _is_done(m, ABANDON_CLEAN):
        return None
    # The source of an evacuation is dead, or only the operator knows that it is not.
    asked = m.row.hosts_to_poll
    source = hosts.poll(m, m.source) if m.source in asked else settle_table.Host(Observed.DOWN)
    destination = hosts.poll(m, m.destination) if m.destination else settle_table.Host(Observed.ABSENT)
    for host, found in ((m.source, source), (m.destination, destination)):
        if found.observed is Observed.MISSING:
            return Parked(Reason.of(WaitKind.REPORT, host))
    if source.observed in _UNDER_WAY:
        return _stop(m, source, destination)
    if m.record(ABANDON_CLEAN) is None:
        m.read_boots()
        m.commit([_begun(m, ABANDON_CLEAN, {'host': other})])
    verdict = _clean_or_defer(m, other, *((source, destination) if other == m.source else (destination, source)))
    if isinstance(verdict, Done):
        m.commit([_finished(m, ABANDON_CLEAN, verdict)])
        return None
    assert isinstance(verdict, (Parked, Stuck)), 'a cleanup that fails is deferred'
    return verdict


def _stop(m: MigrationContext, source: settle_table.Host, destination: settle_table.Host) -> Parked | Stuck:
    """Abort the job at the source, unless it is in post-copy, so that nothing there can move the guest."""
    m.ledger.waits_on = {m.source}
    now = m.tools.threads.clock.monotonic()
    m.ledger.wake_by(now + hosts.SEND_AGAIN)
    if source.observed not in (Observed.WAITS, Observed.STARTED) and (
        destination.post_copy or destination.observed is Observed.RUNS
    ):
        return Parked(Reason.of(WaitKind.LAST_PAGES, m.source))
    request, patience = 'live_migration_abort', m.tools.options.service_down_time
    wait, why = m.ledger.of(f'{ABANDON} {request}', m.source), Reason.of(WaitKind.ABORT, m.source)
    # The reason is written before the call, which may take long.
    waiting.note_waiting(m, why)
    try:
        hosts.send_request(m, wait, request, instance=m.guest, migration=m.row)
    except exception.ServiceTooOld as error:
        why = Reason.of(WaitKind.BEGIN_TO_ABORT, m.source, reason=error)
    if now - wait.since >= patience:
        return Stuck(Reason.of(StuckKind.NOT_ABORTED, m.source, seconds=f'{patience:.0f}'))
    return Parked(why)


def _clean_or_defer(m: MigrationContext, other: str, there: settle_table.Host, guests: settle_table.Host) -> Verdict:
    """Clean a host, or defer that.

    :param there: the observation of that host.
    :param guests: the observation of the host that has the guest, according to the operator.
    """
    step = _cleans(m, other)
    if there.observed in _ALIVE:
        return _block(m, other, step, f'{other} has the guest too: look which host runs it, and end the other copy.')
    if other == m.source and guests.observed is not Observed.RUNS and there.observed in _COPY | {Observed.DOWN}:
        # The cleanup would remove this copy, and only the operator has said that there is another. (At a destination
        # the cleanup removes only what was prepared.)
        what = (
            'is down and may have a copy of the guest' if there.observed is Observed.DOWN else 'has a copy of the guest'
        )
        return _block(m, other, step, f'{other} {what}, and no host reports that it runs it: look where the guest is.')
    if (
        other != m.source
        and guests.observed is Observed.ABSENT
        and there.observed not in (Observed.ABSENT, Observed.DOWN)
    ):
        what = f'{other} {there.observed}, and {m.source} {guests.observed}: look where the guest is.'
        return _block(m, other, step, what)
    may_run = other != m.source and m.record('finish_migration') is not None and not there.forced_down
    if there.observed is Observed.DOWN and may_run:
        # The guest may have stopped there by then. Its copy is the newest even so.
        what = (
            f'{other} is down and may run the guest: look there when it is back. If the guest stays at {m.source}, '
            f'destroy the copy at {other}, then retry the cleanup.'
        )
        return _block(m, other, step, what)
    if there.observed is Observed.DOWN:
        return _defer(m, other, step, f'{other} is down')
    return _run_cleanup(m, other, step)


def _cleans(m: MigrationContext, host: str) -> str:
    """Return the step that removes the guest from a host."""
    return _CLEANS[m.row.migration_type, steps.At.SOURCE if host == m.source else steps.At.DESTINATION]


def _run_cleanup(m: MigrationContext, other: str, step: str) -> Verdict:
    """Run the cleanup now. Defer it if the host has not finished while the operator waits."""
    now = m.tools.threads.clock.monotonic()
    since = m.ledger.of(ABANDON_CLEAN, other).since
    data = base.from_primitive(hosts.newest_data(m))
    verdict = hosts.retry(m, other, step, m.record(ABANDON_CLEAN), instance=m.guest, migrate_data=data)
    patience = m.tools.options.service_down_time
    if isinstance(verdict, Stuck):
        return _block(m, other, step, str(verdict.reason))
    if isinstance(verdict, Parked) and now - since >= patience:
        return _defer(m, other, step, f'{other} did not finish within {patience:.0f} s')
    if isinstance(verdict, Parked):
        m.ledger.wake_by(since + patience)
    elif not _is_deferred(verdict):
        m.writes.cleanups_run.append((m.row.uuid, other, None))
    return verdict


def _is_deferred(done: Done) -> bool:
    return base.of_stored(log.Facts, done.result or {}).deferred is not None


def _block(m: MigrationContext, host: str, step: str, why: str) -> Done:
    LOG.error(
        'Cleanup of an abandoned migration is blocked: %(migration)s: host %(host)s is not sent %(step)s: %(reason)s',
        {'migration': m.row.uuid, 'host': host, 'step': step, 'reason': why},
    )
    m.defer(host, step, 'the migration was abandoned', {'migrate_data': hosts.newest_data(m)}, blocked_because=why)
    return Done({'deferred': why})


def _defer(m: MigrationContext, host: str, step: str, why: str) -> Done:
    m.defer(host, step, why, {'migrate_data': hosts.newest_data(m)})
    return Done({'deferred': why})


# --- the allocations, and the end ------------------------------------------------------------------------------------


def _write_allocations(m: MigrationContext, guest_on: str) -> Parked | Stuck | None:
    if _is_done(m, ABANDON_ALLOCATIONS):
        return None
    if m.record(ABANDON_ALLOCATIONS) is None:
        m.commit([_begun(m, ABANDON_ALLOCATIONS, {'host': guest_on})])
    verdict = allocations.write_for_host(m, guest_on, ABANDON_ALLOCATIONS)
    if isinstance(verdict, Done):
        m.commit([_finished(m, ABANDON_ALLOCATIONS, verdict)])
        return None
    assert isinstance(verdict, (Parked, Stuck)), 'an operator decision does not fail'
    return verdict


def _end(m: MigrationContext, guest_on: str) -> None:
    """End the migration, and write the guest's host, in one transaction."""
    user = m.row.abandon_requested_by or 'an unknown user'
    m.set(status=Status.ERROR.value, failure=f'Abandoned by {user} with the guest on {guest_on}.')
    if m.row.abort_requested_at is not None:
        m.set(abort_status=Status.ERROR.value, abort_text='the migration was abandoned')
    # A cleanup that would remove the guest that the operator has seen there must never run.
    result = {'guest_on': guest_on}
    if not m.row.stays:
        m.writes.cleanups_run.append((m.row.uuid, guest_on, _cleans(m, guest_on)))
    elif m.record('resize') is not None:
        # The only host gives the guest the flavor that the instance has from now on, and may restart it for that.
        step = 'revert_resize' if m.row.has_old_flavor(guest_on) else 'confirm_resize'
        result |= _defer(m, guest_on, step, 'the migration was abandoned').result or {}
    node = m.row.source_node if guest_on == m.source else m.row.dest_node
    m.writes.instance |= {'host': guest_on, 'node': node, 'vm_state': 'error'}
    flavor = destinations.flavor_at(m.row, guest_on)
    # The stored definition of a guest that keeps its flavor still counts.
    m.writes.instance |= flavor if flavor.get('flavor') != m.guest.flavor else {}
    m.writes.keeps_definition = m.row.is_evacuation and guest_on != m.source
    m.commit([_finished(m, ABANDON, Done(result))])


# --- the log ---------------------------------------------------------------------------------------------------------


def _is_done(m: MigrationContext, name: str) -> bool:
    record = m.record(name)
    return record is not None and record.state == log.StepState.DONE


def _begun(m: MigrationContext, name: str, input_: dict[str, Any]) -> log.StepRecord:
    return log.StepRecord(name, log.DO, log.StepState.INTENT.value, m.attempt, input=input_)


def _finished(m: MigrationContext, name: str, verdict: Done) -> log.StepRecord:
    record = m.record(name)
    assert record is not None
    return dataclasses.replace(record, state=log.StepState.DONE.value, result=verdict.result)
