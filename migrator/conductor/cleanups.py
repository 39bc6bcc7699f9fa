# SPDX-License-Identifier: Apache-2.0

"""Deferred cleanups: steps that a host could not do for a migration, and does when it is back.

A cleanup runs like a step after the pivot. The host observes before it acts, and each sweep sends the command again
until the host reports that it is done. Unless :attr:`migrator.db.cleanups.Cleanup.may_end_copy` is true, a cleanup
never destroys an active guest: if the host reports one, the cleanup is blocked and needs an operator. The same holds if
the host has lost the guest that it should have.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.conductor import registry
from migrator.conductor.compute_client import HostBusy
from migrator.conductor.guests import lists
from migrator.conductor.migration import hosts, waiting
from migrator.conductor.migration.context import MigrationContext, Tools
from migrator.db.cleanups import Cleanup
from migrator.objects import (
    COMPUTE_BINARY,
    GuestState,
    Migration,
    Service,
    base,
    protocol,
    remedies,
)
from migrator.objects.difference import RUNS
from migrator.objects.instance import stand_in
from migrator.objects.protocol import ACTIVE
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.objects.steps import ENDS_COPIES, REMOVING, RESTORING
from migrator.saga import log
from migrator.saga.saga import Failed, Parked, Stuck

LOG = logging.getLogger(__name__)

#: The states in which a host has the whole guest.
_WHOLE = (*ACTIVE, GuestState.SHUTDOWN)


def run_all(tools: Tools, pool: executors.BoundedExecutor, listed: Sequence[Cleanup]) -> None:
    """Run the deferred cleanups of every host that is up, except the blocked ones.

    :param pool: limits the cleanups that run at a time.
    :param listed: all deferred cleanups.
    """
    cleanups = [cleanup for cleanup in listed if cleanup.blocked_because is None]
    if not cleanups:
        return
    now = tools.database.services.now()
    hosts = sorted({cleanup.host for cleanup in cleanups})
    services = {service.host: service for service in tools.database.services.list(COMPUTE_BINARY, hosts)}
    for cleanup in cleanups:
        service = services.get(cleanup.host)
        if service is not None and _can_run(tools, cleanup, service, now):
            tools.submit_once(pool, ('cleanup', cleanup.id), _run_and_report, cleanup, service.boot_id or '')


def _can_run(tools: Tools, cleanup: Cleanup, service: Service, now: datetime.datetime) -> bool:
    """Return whether a host can run a cleanup now."""
    if cleanup.step in ENDS_COPIES:
        # It runs before the operator takes back that the host is forced down.
        service = service.replace(forced_down=False)
        # The last report of a host that has just died is recent too.
        if service.last_seen_up is None or service.last_seen_up <= (cleanup.created_at or now):
            return False
    return service.boot_id is not None and service.is_up(now, tools.options.service_down_time)


def complete_all(tools: Tools, pool: executors.BoundedExecutor, listed: Sequence[Migration]) -> None:
    """Complete the evacuations whose source has nothing left to clean up.

    Whatever has removed the cleanup: the source, an operator, or the deletion of the source's service.

    :param pool: limits the evacuations that are completed at a time.
    :param listed: those evacuations.
    """
    for done in listed:
        tools.submit_once(pool, ('completion', done.uuid), _complete_and_report, done)


def _complete_and_report(tools: Tools, done: Migration) -> None:
    with context.about(migration_uuid=done.uuid, instance_uuid=done.instance_uuid):
        try:
            if registry.complete_evacuation(tools.database, tools.placement, done):
                LOG.info('Completed evacuation %s', done.uuid)
        except (exception.ServiceUnreachable, exception.PlacementConflict, exception.PlacementRefused) as error:
            LOG.warning(
                'Could not complete evacuation %(migration)s; the next sweep tries again: %(error)s',
                {'migration': done.uuid, 'error': error},
            )
        except Exception:  # the pool would drop the error; the next sweep tries again
            LOG.exception('Could not complete evacuation %s', done.uuid)


def _run_and_report(tools: Tools, cleanup: Cleanup, boot_id: str) -> None:
    with context.about(migration_uuid=cleanup.migration_uuid, instance_uuid=cleanup.instance_uuid):
        try:
            run_one(tools, cleanup, boot_id)
        except exception.ServiceUnreachable as error:
            LOG.warning(
                'Deferred cleanup was not done: %(cleanup)s: %(error)s', {'cleanup': _name(cleanup), 'error': error}
            )
        except Exception:  # the pool would drop the error; the next sweep tries again
            LOG.exception('Deferred cleanup failed unexpectedly: %s', _name(cleanup))


def run_one(tools: Tools, cleanup: Cleanup, boot_id: str) -> bool:
    """Run one deferred cleanup at its host; a second run finds it done.

    :param boot_id: the host's present boot.
    :returns: whether it is done.
    :raises migrator.exception.ServiceUnreachable: the host did not answer.
    """
    held = tools.database.cleanups.adopt(cleanup, tools.owner)
    if held is None:
        return False  # another conductor runs it, it is done, or a migration of the guest is in progress there
    if _is_where_the_guest_is(tools, held) or (held.step in ENDS_COPIES and _waits_for_the_guest(tools, held)):
        return False
    if held.step in RESTORING and (_has_no_place(tools, held) or _runs_elsewhere(tools, held)):
        tools.database.cleanups.let_go(held)
        return False
    answer = _send(tools, held, boot_id)
    if answer is not None and answer.refusal in (protocol.Refusal.EPOCH, protocol.Refusal.TENURE):
        # The host has seen a later epoch or tenure: of the migration's last owner, or of another cleanup.
        if max(answer.seen, answer.seen_tenure) >= protocol.HIGHEST:
            raise exception.OddAnswer(hosts=held.host, seen=max(answer.seen, answer.seen_tenure))
        held = tools.database.cleanups.raise_epoch(held, answer.seen, answer.seen_tenure)
        answer = _send(tools, held, boot_id) if held is not None else None
    return answer is not None and held is not None and answer.report is not None and _take(tools, held, answer.report)


def _is_where_the_guest_is(tools: Tools, held: Cleanup) -> bool:
    """Block a cleanup that would remove the guest from the host where the database has it.

    :returns: whether it was blocked.
    """
    if held.step not in REMOVING:
        return False
    instance = tools.database.instances.find(held.instance_uuid)
    if instance is None or instance.host != held.host:
        return False
    what = f'{held.step} would remove the guest from {held.host}, where the database has the instance'
    _block(tools, held, f'{what}: look which host has the guest.')
    return True


def _waits_for_the_guest(tools: Tools, held: Cleanup) -> bool:
    """Return whether a cleanup that may end a copy waits for a host to report the guest.

    A cleanup is blocked if the guest's host answers that it has no guest: the copy may be the last one.
    """
    instance = tools.database.instances.find(held.instance_uuid)
    if instance is None:
        return False
    host = instance.host
    found = _look_at_guest(tools, held, host)
    if found is not None and found.state in _WHOLE:
        return False
    if found is not None and not found.present and tools.database.instances.get(held.instance_uuid).task_state is None:
        why = f'{host} does not have the guest whose copy at {held.host} would be ended: look which host has it.'
        _block(tools, held, why)
    else:
        tools.database.cleanups.note_failure(held, f'it waits for {host} to report that it has the guest')
        tools.database.cleanups.let_go(held)
    return True


def _has_no_place(tools: Tools, held: Cleanup) -> bool:
    """Return whether a cleanup would restore a guest that the database does not have at its host.

    Such a cleanup is not sent. It is dropped once the host reports that it has nothing of the guest, and blocked if the
    host has something of it.
    """
    instance = tools.database.instances.find(held.instance_uuid)
    host = instance.host if instance is not None else None
    if host == held.host:
        return False
    found = _look_at_guest(tools, held, held.host)
    if found is None:
        tools.database.cleanups.note_failure(held, f'it waits for {held.host} to report whether it has the guest')
    elif found.present:
        what = 'the instance was deleted' if host is None else f'the database has the instance on {host}'
        look = '' if host is None else f' look which host has the guest. If it stays on {host},'
        why = f'{held.step} would restore the guest at {held.host}, but {what}:{look} destroy the guest at {held.host}'
        _block(tools, held, f'{why}, then retry the cleanup.')
    else:
        _is_gone(tools, held)
    return True


def _runs_elsewhere(tools: Tools, held: Cleanup) -> bool:
    """Return whether another host runs a guest that a cleanup would restore, and block the cleanup then.

    The destination of its migration is asked, and each host that was last known to have the guest. One that does not
    answer decides nothing: the migration has found out before that its destination does not run the guest.
    """
    uuid, known = held.instance_uuid, tools.database.differences.known(held.instance_uuid)
    with contextlib.suppress(exception.MigrationNotFound):
        destination = tools.database.migrations.get(held.migration_uuid).dest_compute
        named = {*known.may_run, *filter(None, [destination])} - {held.host}
        found = lists.copies(tools.lists.of(named), known, uuid, [held.host])
        runs_on = sorted(host for host, state in found.has.items() if state in RUNS)
        if runs_on:
            there = ' and '.join(runs_on)
            why = f'{held.step} would restore the guest at {held.host}, but it is active on {there}'
            remedy = (
                f'Look which copy is right. If it is that on {there}: '
                f'{remedies.offer(remedies.Kind.RECONCILE_IF_RIGHT)}, then remove what is left at {held.host}. If not, '
                'shut it off there. Then retry the cleanup.'
            )
            _block(tools, held, f'{why}. {remedy}')
            return True
    return False


def _look_at_guest(tools: Tools, held: Cleanup, host: str) -> protocol.Guest | None:
    """Poll a host for the guest of a cleanup, and return it; None if the host does not report it."""
    boot = next((service.boot_id for service in tools.database.services.list(COMPUTE_BINARY, host)), None)
    # Without a tenure the poll does not disturb a migration of the guest that is in progress there.
    command = _command(tools, held, 'poll', boot or '').replace(tenure=0)
    try:
        found = tools.hosts.poll(host, [command])
    except HostBusy:
        return None
    one = next((one for one in found or [] if one.migration_uuid == held.migration_uuid), None)
    return one.guest if one is not None and one.refusal is None else None


def _send(tools: Tools, held: Cleanup, boot_id: str) -> protocol.Answer | None:
    """Send a cleanup to its host; return the reply, or None if the host has no free call slot."""
    instance = tools.database.instances.find(held.instance_uuid) or stand_in(held.instance_uuid, held.host)
    payload: dict[str, Any] = {'instance': instance, 'migrate_data': _migrate_data(held)}
    if held.may_end_copy:
        payload['runs_at'] = instance.host if instance.host != held.host else None
    try:
        return tools.hosts.send(held.host, _command(tools, held, held.step, boot_id), **payload)
    except HostBusy:
        return None


def _command(tools: Tools, held: Cleanup, step: str, boot_id: str) -> protocol.Command:
    return protocol.Command(
        migration_uuid=held.migration_uuid,
        instance_uuid=held.instance_uuid,
        step=step,
        epoch=held.epoch,
        owner=tools.owner,
        reply_to=tools.server,
        boot_id=boot_id,
        tenure=held.tenure,
    )


def run_at_source(m: MigrationContext) -> Failed | Parked | Stuck | None:
    """Run the instance's earlier deferred cleanups at the source, before any other step.

    The migration sends them in its own name, because it owns the guest. So no cleanup is sent twice, and no command of
    an earlier migration can reach the guest later.

    :returns: what the migration waits for, or that the source is down; None if no cleanup is left.
    :raises migrator.exception.NotOwner: another conductor owns the migration now.
    """
    for cleanup in m.tools.database.cleanups.list(host=m.source, instance_uuid=m.row.instance_uuid):
        words = {'step': cleanup.step, 'migration': cleanup.migration_uuid}
        if cleanup.blocked_because is not None or _is_where_the_guest_is(m.tools, cleanup):
            return Stuck(Reason.of(StuckKind.BLOCKED_CLEANUP, m.source, **words))
        why = _carry_out(m, cleanup)
        if why is not None and m.tools.is_down(m.source):
            what = f'{cleanup.step}, the deferred cleanup of migration {cleanup.migration_uuid}'
            return Failed(f'{m.source} is down, and has not done {what}.', unanswered=True)
        if why is not None:
            pause = Reason.of(WaitKind.CLEANUP, m.source, detail=f' ({why})' if why else '', **words)
            waiting.note_waiting(m, pause)
            return Parked(pause)
    m.has_source_cleanup = False
    return None


def _carry_out(m: MigrationContext, cleanup: Cleanup) -> str | None:
    """Run a deferred cleanup in the name of a migration.

    :returns: why it is not done yet, or None if it is done.
    """
    if m.source not in m.boots:
        hosts.reread_boots(m)
    wait = m.ledger.of(f'{cleanup.step} of {cleanup.migration_uuid}', m.source)
    if wait.next_try > m.tools.threads.clock.monotonic():
        m.ledger.wake_by(wait.next_try)
        return cleanup.reason
    if cleanup.step in RESTORING and _runs_elsewhere(m.tools, cleanup):
        m.ledger.wake_now()  # it is blocked, which the next run reports
        return ''
    intent = log.StepRecord(cleanup.step, log.UNDO, log.StepState.INTENT.value, m.attempt, epoch=m.row.epoch)
    data = _migrate_data(cleanup)
    outcome = hosts.carry_out(m, m.source, cleanup.step, intent, instance=m.guest, migrate_data=data)
    if not isinstance(outcome, protocol.Report):
        return ''
    m.replies.reports.pop((m.source, cleanup.step), None)
    if outcome.state == protocol.WorkState.DONE:
        LOG.info(
            'Ran deferred cleanup %(cleanup)s in the name of migration %(migration)s',
            {'cleanup': _name(cleanup), 'migration': m.row.uuid},
        )
        m.writes.cleanups_run.append((cleanup.migration_uuid, cleanup.host, cleanup.step))
        m.commit()
        # This migration may have a step of the same name.
        m.raise_epoch()
        return None
    facts = outcome.facts
    if facts.here or facts.gone:
        seen = 'there and could run' if facts.here else 'not there, where the database has it; it may be lost'
        why = f'{cleanup.host} was to do {cleanup.step}, but the guest is {seen}: look which host has it.'
        _block(m.tools, cleanup, why)
        return why
    reason = outcome.reason or 'no reason given'
    m.tools.database.cleanups.note_failure(cleanup, reason)
    wait.tries += 1
    hosts.back_off(m, wait)
    return reason


def take_report(tools: Tools, report: protocol.Report) -> None:
    """Record a report about a migration that has ended: a deferred cleanup is done, or failed.

    If a report is lost, the next sweep sends the command again. The host then replies that it is done, or tries again.
    """
    for cleanup in tools.database.cleanups.list(host=report.host):
        same_step = (cleanup.migration_uuid, cleanup.step) == (report.migration_uuid, report.step)
        if same_step and cleanup.epoch == report.epoch and cleanup.owner == tools.owner:
            with context.about(migration_uuid=cleanup.migration_uuid, instance_uuid=cleanup.instance_uuid):
                _take(tools, cleanup, report)


def _take(tools: Tools, cleanup: Cleanup, report: protocol.Report) -> bool:
    if report.state == protocol.WorkState.DONE:
        LOG.info('Deferred cleanup is done: %s', _name(cleanup))
        _forget(tools, cleanup)
        return True
    if report.state == protocol.WorkState.RUNNING:
        return False
    facts = report.facts
    if report.reason:
        tools.database.cleanups.note_failure(cleanup, report.reason)
    if facts.here:
        _block(tools, cleanup, _why_here(tools, cleanup))
    elif facts.gone and _is_gone(tools, cleanup):
        return True
    tools.database.cleanups.let_go(cleanup)
    return False


def _forget(tools: Tools, cleanup: Cleanup) -> None:
    """Delete a cleanup, and first unblock what would restore the guest, if it had a copy to end.

    If that copy was not the reason, it is blocked again.
    """
    if cleanup.may_end_copy:
        mine = tools.database.cleanups.list(instance_uuid=cleanup.instance_uuid)
        blocked = [one for one in mine if one.step in RESTORING and one.blocked_because is not None]
        if blocked:
            tools.database.cleanups.try_again(blocked)
    tools.database.cleanups.forget(cleanup)


def _why_here(tools: Tools, cleanup: Cleanup) -> str:
    """Return what an operator has to do about a guest that a cleanup has found at its host."""
    found = f'{cleanup.host} was to do {cleanup.step}, but the guest is there and could run'
    if tools.database.instances.find(cleanup.instance_uuid) is None:
        return f'{found}. The instance was deleted: destroy the guest at {cleanup.host}, then retry the cleanup.'
    return f'{found}: look which host runs it.'


def _is_gone(tools: Tools, cleanup: Cleanup) -> bool:
    """Handle the report that a host does not have the guest.

    The instance is read after the report, and decides whether the guest should be there.

    :returns: whether the cleanup is dropped, because nothing is left to do.
    """
    instance = tools.database.instances.find(cleanup.instance_uuid)
    if instance is not None and instance.task_state is not None:
        return False  # A task may be moving the guest. Its end shows where the guest is.
    if instance is not None and instance.host == cleanup.host:
        what = f'{cleanup.host} was to do {cleanup.step}, but the guest is not there, where the database has it'
        _block(tools, cleanup, f'{what}: look which host has it; it may be lost.')
        return False
    why = 'the instance has been deleted' if instance is None else f'the instance is on {instance.host} now'
    LOG.info('Deferred cleanup is not needed: %(cleanup)s: %(reason)s', {'cleanup': _name(cleanup), 'reason': why})
    _forget(tools, cleanup)
    return True


def _block(tools: Tools, cleanup: Cleanup, why: str) -> None:
    LOG.error('Blocking deferred cleanup %(cleanup)s: %(reason)s', {'cleanup': _name(cleanup), 'reason': why})
    tools.database.cleanups.block(cleanup, why)


def _name(cleanup: Cleanup) -> str:
    """Return a cleanup for a log message, with its host and its migration."""
    return f'{cleanup.step} at {cleanup.host} for migration {cleanup.migration_uuid}'


def _migrate_data(cleanup: Cleanup) -> Any:
    return base.from_primitive((cleanup.input or {}).get('migrate_data'))
