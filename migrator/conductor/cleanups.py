# SPDX-License-Identifier: Apache-2.0

"""Paying debts: what a host could not do for a migration that has ended without it, done when the host is back.

A debt is paid like a step after the move: the host is told, observes first, and is told again at the next sweep until
it is done. Nothing that is paid destroys an active guest: a host that answers so raises an alarm, and is left alone.
So does one that has lost the guest which it is to have.
"""

from __future__ import annotations

from collections.abc import Sequence

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.conductor.compute_client import HostBusy
from migrator.conductor.migration import hosts
from migrator.conductor.migration.context import MigrationContext, Tools
from migrator.db.cleanups import REMOVES, Cleanup
from migrator.objects import COMPARES_TENURE, base, protocol
from migrator.objects import instance as instance_objects
from migrator.saga import log
from migrator.saga.step import Failed, Parked, Stuck

LOG = logging.getLogger(__name__)


def run_all(tools: Tools, pool: executors.BoundedExecutor, owed: Sequence[Cleanup]) -> None:
    """Have every host that is up pay what it owes.

    :param pool: bounds how many hosts are told at a time.
    :param owed: all debts.
    """
    cleanups = [cleanup for cleanup in owed if cleanup.alarm is None]
    if not cleanups:
        return
    now = tools.database.services.now()
    services = tools.database.services.list()
    up = {
        service.host: service
        for service in services
        if service.boot_id and service.is_up(now, tools.options.service_down_time)
    }
    for cleanup in cleanups:
        service = up.get(cleanup.host)
        # A host of an older release answers when it has paid; told again and again, it would hold every call to it.
        if service is not None and cleanup.id not in tools.running_cleanups:
            tools.running_cleanups.add(cleanup.id)
            beside = service.version >= COMPARES_TENURE
            pool.submit(_run_and_report, tools, cleanup, service.boot_id or '', beside)


def _run_and_report(tools: Tools, cleanup: Cleanup, boot_id: str, beside: bool) -> None:
    with context.about(migration_uuid=cleanup.migration_uuid, instance_uuid=cleanup.instance_uuid):
        try:
            run_one(tools, cleanup, boot_id, beside)
        except exception.ServiceUnreachable as error:
            LOG.warning(
                '%s still owes %s for migration %s: %s', cleanup.host, cleanup.step, cleanup.migration_uuid, error
            )
        except Exception:  # a pool's error is seen by nobody else; the next sweep tries again
            LOG.exception('%s could not pay %s for migration %s', cleanup.host, cleanup.step, cleanup.migration_uuid)
        finally:
            tools.running_cleanups.discard(cleanup.id)


def run_one(tools: Tools, cleanup: Cleanup, boot_id: str, beside: bool = True) -> bool:
    """Have a host pay one debt; done twice, the second time finds it paid.

    :param boot_id: the host's present boot.
    :param beside: see :meth:`migrator.db.cleanups.Debts.adopt`.
    :returns: whether it is paid.
    :raises migrator.exception.ServiceUnreachable: the host did not answer.
    """
    held = tools.database.cleanups.adopt(cleanup, tools.owner, beside)
    if held is None:
        return False  # another conductor has it, it has been paid, or a migration has the guest in hand there
    if _is_where_the_guest_is(tools, held):
        return False
    answer = _tell(tools, held, boot_id)
    if answer is not None and answer.refusal in (protocol.Refusal.EPOCH, protocol.Refusal.TENURE):
        # Somebody has spoken to it in a later epoch: the migration's last owner, or another debt's.
        if max(answer.seen, answer.seen_tenure) >= protocol.HIGHEST:
            raise exception.OddAnswer(hosts=held.host, seen=max(answer.seen, answer.seen_tenure))
        held = tools.database.cleanups.raise_epoch(held, answer.seen, answer.seen_tenure)
        answer = _tell(tools, held, boot_id) if held is not None else None
    return answer is not None and held is not None and answer.report is not None and _take(tools, held, answer.report)


def _is_where_the_guest_is(tools: Tools, held: Cleanup) -> bool:
    """Block a cleanup that would remove the guest from the host where the database has it; return whether it is one."""
    if held.step not in REMOVES:
        return False
    try:
        here = tools.database.instances.get(held.instance_uuid).host == held.host
    except exception.InstanceNotFound:
        return False
    if here:
        _raise_alarm(
            tools,
            held,
            f'{held.step} would remove the guest from {held.host}, where the database has the instance: look which '
            'host has the guest.',
        )
    return here


def _tell(tools: Tools, held: Cleanup, boot_id: str) -> protocol.Answer | None:
    """Tell a host to pay; return its answer, or None: there are enough calls to it."""
    order = protocol.Command(
        migration_uuid=held.migration_uuid,
        instance_uuid=held.instance_uuid,
        step=held.step,
        epoch=held.epoch,
        owner=tools.owner,
        reply_to=tools.server,
        boot_id=boot_id,
        tenure=held.tenure,
    )
    data = (held.input or {}).get('migrate_data')
    try:
        return tools.hosts.tell(
            held.host,
            held.step,
            order,
            instance=_instance(tools, held),
            migrate_data=base.from_primitive(data) if data else None,
        )
    except HostBusy:
        return None


def run_at_source(m: MigrationContext) -> Failed | Parked | Stuck | None:
    """Have the source do what earlier migrations of the instance have left there, before anything else is done.

    The migration carries it out in its own name, since it has the guest in hand: it is not told twice, and nothing of
    an earlier migration can reach the guest later.

    :returns: what the migration waits for, or that the source is down; None: nothing is left there.
    :raises migrator.exception.NotOwner: the migration is another's by now.
    """
    if not m.has_source_cleanup:
        return None
    for cleanup in m.tools.database.cleanups.list(host=m.source, instance_uuid=m.row.instance_uuid):
        name = f'{cleanup.step}, the deferred cleanup of migration {cleanup.migration_uuid}'
        if cleanup.alarm is not None or _is_where_the_guest_is(m.tools, cleanup):
            return Stuck(
                f'It waits for {m.source} to do {name}, which is blocked: see "migrator-manage cleanup list"; retry '
                'it, or discard it if nothing is left to be done. The migration goes on by itself then.'
            )
        why = _carry_out(m, cleanup)
        if why is not None and m.is_down(m.source):
            return Failed(f'{m.source} is down, and has not done {name}.')
        if why is not None:
            m.note_waiting(f'for {m.source} to do {name}{f" ({why})" if why else ""}')
            return Parked(f'{m.source} to do {name}')
    m.has_source_cleanup = False
    return None


def _carry_out(m: MigrationContext, cleanup: Cleanup) -> str | None:
    """Have a deferred cleanup done in the name of a migration; return why it is not done yet, or None: it is done."""
    if m.source not in m.boots:
        m.reread_boots()
    wait = m.ledger.of(f'{cleanup.step} of {cleanup.migration_uuid}', m.source)
    if wait.next_try > m.tools.threads.clock.monotonic():
        m.wake_by(wait.next_try)
        return cleanup.reason
    data = (cleanup.input or {}).get('migrate_data')
    intent = log.StepRecord(cleanup.step, log.UNDO, log.StepState.INTENT.value, m.attempt, epoch=m.row.epoch)
    outcome = hosts.carry_out(
        m, m.source, cleanup.step, intent, instance=m.guest, migrate_data=base.from_primitive(data) if data else None
    )
    if not isinstance(outcome, protocol.Report):
        return ''
    m.reports.pop((m.source, cleanup.step), None)
    if outcome.state == protocol.WorkState.DONE:
        LOG.info('%s has done %s of migration %s', m.source, cleanup.step, cleanup.migration_uuid)
        m.paid(cleanup.host, cleanup.step, cleanup.migration_uuid)
        m.commit()
        # This migration may have a step of that name itself.
        m.raise_epoch()
        return None
    facts = outcome.result or {}
    if facts.get('here') or facts.get('gone'):
        seen = 'there and could run' if facts.get('here') else 'not there, where the database has it; it may be lost'
        why = f'{cleanup.host} was to do {cleanup.step}, but the guest is {seen}: look which host has it.'
        _raise_alarm(m.tools, cleanup, why)
        return why
    reason = outcome.reason or 'no reason given'
    m.tools.database.cleanups.note_failure(cleanup, reason)
    wait.tries += 1
    hosts.back_off(m, wait)
    return reason


def take_report(tools: Tools, report: protocol.Report) -> None:
    """Take in an event about a migration that has ended: a host has paid, or cannot.

    A lost event costs a sweep: told again, a host answers that it is done, or tries again.
    """
    for cleanup in tools.database.cleanups.list(host=report.host):
        same_step = (cleanup.migration_uuid, cleanup.step) == (report.migration_uuid, report.step)
        if same_step and cleanup.epoch == report.epoch and cleanup.owner == tools.owner:
            _take(tools, cleanup, report)


def _take(tools: Tools, cleanup: Cleanup, report: protocol.Report) -> bool:
    with context.about(migration_uuid=cleanup.migration_uuid, instance_uuid=cleanup.instance_uuid):
        return _take_in(tools, cleanup, report)


def _take_in(tools: Tools, cleanup: Cleanup, report: protocol.Report) -> bool:
    if report.state == protocol.WorkState.DONE:
        LOG.info('%s has paid %s for migration %s', cleanup.host, cleanup.step, cleanup.migration_uuid)
        tools.database.cleanups.forget(cleanup)
        return True
    if report.state == protocol.WorkState.RUNNING:
        return False
    facts = report.result or {}
    if report.reason:
        tools.database.cleanups.note_failure(cleanup, report.reason)
    if facts.get('here'):
        why = f'{cleanup.host} was to do {cleanup.step}, but the guest is there and could run: look which host runs it.'
        _raise_alarm(tools, cleanup, why)
    elif facts.get('gone') and _without_guest(tools, cleanup):
        return True
    tools.database.cleanups.let_go(cleanup)
    return False


def _without_guest(tools: Tools, cleanup: Cleanup) -> bool:
    """Take in that a host has not got the guest; whether that is as it should be the books say, read after its word."""
    try:
        instance = tools.database.instances.get(cleanup.instance_uuid)
    except exception.InstanceNotFound:
        why = 'the instance has been deleted'
    else:
        if instance.task_state is not None:
            return False  # It is on its way from there, perhaps; where it is the books say when that has ended.
        if instance.host == cleanup.host:
            _raise_alarm(
                tools,
                cleanup,
                f'{cleanup.host} was to do {cleanup.step}, but the guest is not there, where the database has it: '
                'look which host has it; it may be lost.',
            )
            return False
        why = f'the instance is at {instance.host} by now'
    LOG.info('%s need not do %s for migration %s: %s', cleanup.host, cleanup.step, cleanup.migration_uuid, why)
    tools.database.cleanups.forget(cleanup)
    return True


def _raise_alarm(tools: Tools, cleanup: Cleanup, why: str) -> None:
    LOG.error('Migration %s: %s', cleanup.migration_uuid, why)
    tools.database.cleanups.raise_alarm(cleanup, why)


def _instance(tools: Tools, cleanup: Cleanup) -> instance_objects.Instance:
    try:
        return tools.database.instances.get(cleanup.instance_uuid)
    except exception.InstanceNotFound:
        return instance_objects.stand_in(cleanup.instance_uuid, cleanup.host)
