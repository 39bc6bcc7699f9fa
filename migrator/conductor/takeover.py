# SPDX-License-Identifier: Apache-2.0

"""Taking over migrations that no live conductor owns, and the start of a compute host.

After a conductor was killed between the commit of an intent and its call, its lease expires. The sweep of another one
finds the migration (:meth:`migrator.db.conductors.Takeovers.orphans`), and :func:`adopt` takes it over in a new epoch.
Its first run polls every host (:func:`migrator.conductor.migration.hosts.poll_first`). Then the step is sent again if
no host has it. At the pivot, :mod:`migrator.conductor.migration.settle` decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence, Set

from oslo_log import log as logging

from migrator import exception
from migrator.conductor.migration import hosts
from migrator.conductor.migration.context import MigrationContext, Tools
from migrator.context import RequestContext, about
from migrator.db.conductors import Owned
from migrator.objects import Migration, MigrationStatus, base, protocol
from migrator.objects.migration import AbortCause
from migrator.saga import log

LOG = logging.getLogger(__name__)


def adopt(tools: Tools, uuids: Sequence[str], cast: Callable[..., None]) -> list[MigrationContext]:
    """Take over migrations of one source that no live conductor owns, or find another conductor for them.

    A takeover raises the epoch, and the migration is settled in the new epoch. A migration that never had an owner is
    not settled: nothing was sent for it.

    :param cast: sends a message to the conductor of an RPC server name.
    :returns: those that this conductor has to run. None of them if another conductor was faster, or if they have ended.
    """
    taken = tools.database.takeovers.adopt(uuids, tools.owner, tools.server, tools.options.lease)
    if taken is None:
        return []
    if taken.server is not None:
        # The sweep of their owner finds those whose message is lost.
        with contextlib.suppress(exception.ServiceUnreachable):
            for uuid in uuids:
                cast(taken.server, 'wake', migration_uuid=uuid, forwarded=True)
    for owned in taken.owned:
        with about(migration_uuid=owned.migration.uuid, instance_uuid=owned.migration.instance_uuid):
            LOG.info(
                'Took over migration %(migration)s in epoch %(epoch)d',
                {'migration': owned.migration.uuid, 'epoch': owned.migration.epoch},
            )
    return [_subject(tools, owned) for owned in taken.owned]


def reload(tools: Tools, uuid: str) -> MigrationContext | None:
    """Return a migration as read again, or None if this conductor does not own it any more."""
    owned = tools.database.migrations.load(uuid, tools.owner)
    return _subject(tools, owned) if owned is not None else None


def _subject(tools: Tools, owned: Owned) -> MigrationContext:
    subject = MigrationContext(tools, owned, settling=owned.migration.epoch > 1)
    if owned.migration.epoch > 1:
        subject.replies.must_poll = set(subject.row.hosts_to_poll)
        # A host may have received any command that was sent: poll it before the command is sent again.
        for record in subject.step_log.all():
            if record.state == log.StepState.INTENT:
                subject.replies.unsure |= {(host, record.step) for host in subject.row.hosts}
    return subject


def request_by_timeout(tools: Tools, migration: Migration, action: str, seconds: float) -> None:
    """Commit the request of a time-out, unless the guest has moved. The row names the time-out.

    :param action: ``abort`` or ``force_complete``.
    :param seconds: the time-out.
    :raises migrator.exception.InvalidMigrationState: the guest has moved, or the migration has ended.
    """
    who = f'the time-out of {seconds:.0f} s (live_migration_completion_timeout)'
    context = RequestContext(is_admin=True, overwrite=False, user_id=who)
    statuses = [MigrationStatus.QUEUED.value, MigrationStatus.RUNNING.value]
    requests = tools.database.requests
    if action == 'abort':
        written = requests.request_abort(context, migration, statuses, AbortCause.TIMEOUT)
    else:
        written = requests.request_force_complete(context, migration, statuses)
    if written:
        LOG.warning(
            'Requested %(action)s of migration %(migration)s by %(requester)s',
            {'action': action, 'migration': migration.uuid, 'requester': who},
        )


def compute_started(tools: Tools, report: protocol.HostReport) -> tuple[list[protocol.Assignment], list[str]]:
    """Store a host's new boot, and raise the epoch of every migration in progress at the host.

    :returns: the host's assignments in the order of requests, and the uuids of the migrations whose owners must be
        woken.
    :raises migrator.exception.BootReplaced: another boot is stored than the one that it replaces; nothing was changed.
    :raises migrator.exception.MachineRefused: another machine has the name of the host, or this machine has another
        name. Only the refusal was recorded.
    """
    try:
        found = tools.database.migrations.begin_boot(report, tools.database.services)
    except exception.MachineRefused as refused:
        if tools.database.machines.record_refusal(refused):
            LOG.warning('Refused a machine: %s', refused.message)
        raise
    _report_unknown_guests(tools, report, {entry.owned.migration.instance_uuid for entry in found})
    assignments = []
    for entry in found:
        owned, server = entry.owned, entry.owner_server
        migration = owned.migration
        role = 'source' if migration.source_compute == report.host else 'destination'
        if not migration.is_live:
            # Neither host has a job. The command makes the new boot refuse what is older, such as a late start.
            role = 'none'
        owner, reply_to = migration.owner or '', server or tools.server
        command = hosts.header(migration, 'compute_started', owner, reply_to, report.boot_id)
        step_log = log.StepLog(log.records(owned.entries))
        prepared = step_log.find(migration.attempt, 'pre_live_migration')
        data = prepared.facts.migrate_data if prepared is not None else None
        assignments.append(
            protocol.Assignment(
                command=command,
                role=role,
                queue=role == 'source' and _needs_queueing(migration, step_log),
                destination=migration.dest_compute,
                instance=owned.instance,
                migrate_data=base.from_primitive(data),
                running_for=_running_for(tools, migration),
            )
        )
    for migration in tools.database.migrations.last_at(report.host):
        # With this the new boot refuses late commands of an earlier migration of the guest.
        command = hosts.header(migration, 'compute_started', '', tools.server, report.boot_id)
        assignments.append(protocol.Assignment(command=command, role='none', queue=False))
    return assignments, [entry.owned.migration.uuid for entry in found]


def _report_unknown_guests(tools: Tools, report: protocol.HostReport, moving: Set[str]) -> None:
    """Log the guests of a host that the database does not know or has elsewhere. They are never changed.

    :param moving: the instances with a migration in progress that names the host.
    """
    states = {guest.instance_uuid: guest.state for guest in report.guests}
    if not states:
        return
    known_at = {instance.uuid: instance.host for instance in tools.database.instances.list({'uuid': list(states)})}
    pending = {cleanup.instance_uuid for cleanup in tools.database.cleanups.list(host=report.host)}
    elsewhere = [
        f'{uuid} ({states[uuid]}; database: {host})'
        for uuid, host in sorted(known_at.items())
        if host != report.host and uuid not in moving | pending
    ]
    if elsewhere:
        LOG.warning(
            'Guests on host %(host)s that the database has on other hosts: %(guests)s. No cleanup removes them. Look '
            'which copy of each is right, and remove the other one.',
            {'host': report.host, 'guests': ', '.join(elsewhere)},
        )
    known = known_at.keys() | {getattr(instance, 'uuid', '') for instance in report.adoptable}
    unknown = [f'{uuid} ({state})' for uuid, state in sorted(states.items()) if uuid not in known]
    if unknown:
        LOG.warning(
            'Unknown guests on host %(host)s: %(guests)s. They are left alone. Set [compute] adopt_guests on that host '
            'to adopt them. If it is set, the log of the host says why they are not adopted.',
            {'host': report.host, 'guests': ', '.join(unknown)},
        )


def _running_for(tools: Tools, migration: Migration) -> float:
    """Return for how many seconds a migration has been running, by the database's clock; 0 if it is not."""
    if migration.status != MigrationStatus.RUNNING or migration.running_at is None:
        return 0.0
    return max(0.0, (tools.database.services.now() - migration.running_at).total_seconds())


def _needs_queueing(migration: Migration, step_log: log.StepLog) -> bool:
    sent = step_log.find(migration.attempt, 'live_migration')
    return (
        sent is not None
        and sent.state == log.StepState.INTENT
        and migration.outcome is None
        and migration.status == MigrationStatus.QUEUED
        and migration.abort_requested_at is None
        and migration.abandon_requested_at is None
    )
