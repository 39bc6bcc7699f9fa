# SPDX-License-Identifier: Apache-2.0

"""Migrations and their logs. The API accepts them, and only the conductor that owns one writes it."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception, executors
from migrator.context import RequestContext
from migrator.db import actions, cleanups, drains, instances, machines, models, saga_log, slots
from migrator.db.cleanups import Cleanup
from migrator.db.conductors import Owned, read_owned
from migrator.db.guests import definitions
from migrator.db.services import LOWEST_VERSION, Services, boot_columns, boots_in, read_boots
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import (
    COMPUTE_BINARY,
    ENDS,
    MIGRATABLE_VM_STATES,
    OWN_TASKS,
    ComputeNode,
    Migration,
    MigrationStatus,
    MigrationType,
    protocol,
    reasons,
)
from migrator.objects.drain import Drain
from migrator.objects.migration import AbortCause, check_move
from migrator.saga import log

_T = models.MIGRATIONS
_I = models.INSTANCES
_L = models.SAGA_LOG
_IN_PROGRESS = models.IN_PROGRESS
_ENDS = [status.value for status in ENDS]
#: The hot statements are built once, since it takes longer to build one than to execute it. ``_write`` adds the columns
#: that an update sets, and the parameters of ``_MINE``.
_MINE = (_T.c.uuid == sa.bindparam('my_uuid'), _T.c.owner == sa.bindparam('me'), _T.c.epoch == sa.bindparam('my_epoch'))
_UPDATE = sa.update(_T).where(*_MINE)
_UPDATE_IN_PROGRESS = _UPDATE.where(_IN_PROGRESS)
_UPDATE_INSTANCE = sa.update(_I).where(_I.c.uuid == sa.bindparam('my_instance'))

#: The columns of the requests to an owner.
_KINDS = ('abort', 'force_complete', 'retry', 'abandon', 'confirm', 'revert')
REQUESTS = tuple(f'{kind}_requested_at' for kind in _KINDS)
OWNED_BY = Prepared(
    sa.select(_T.c.uuid, _T.c.epoch, *(_T.c[name] for name in REQUESTS)).where(
        _IN_PROGRESS, _T.c.owner == sa.bindparam('me')
    )
)

_AT: Any = sa.bindparam('at_host')
_TAKE_ANY = _UPDATE_INSTANCE.where(
    _I.c.vm_state.in_(sa.bindparam('vm_states', expanding=True)),
    _I.c.host == _AT,
).values(task_state=sa.bindparam('new_state'), tenure=_I.c.tenure + 1)
_TAKE_INSTANCE = Prepared(_TAKE_ANY.where(_I.c.task_state.is_(None)))
#: A drain requests nothing of a host that is forced down.
_TAKE_FOR_DRAIN = Prepared(
    _TAKE_ANY.where(
        _I.c.task_state.is_(None),
        ~sa.exists().where(
            models.SERVICES.c.host == _I.c.host,
            models.SERVICES.c.binary == COMPUTE_BINARY,
            models.SERVICES.c.forced_down == sa.true(),
        ),
    )
)
#: A dead host ends no task of another service. If the instance has a migration in progress, the insert fails.
_TAKE_FROM_DEAD = Prepared(_TAKE_ANY.where(sa.or_(_I.c.task_state.is_(None), _I.c.task_state.not_in(OWN_TASKS))))
#: The instance may have changed since the caller has read it.
_INSERT = Prepared(
    sa.insert(_T).values(
        {
            new: sa.select(old).where(_I.c.uuid == sa.bindparam('my_instance')).scalar_subquery()
            for new, old in (('tenure', _I.c.tenure), ('old_flavor', _I.c.flavor))
        }
    )
)
_NAMES_HOST = (sa.or_(_T.c.source_compute == _AT, _T.c.dest_compute == _AT), _IN_PROGRESS, _T.c.epoch > 0)
#: A migration of epoch 0 never had an owner, so nothing was sent for it.
_RAISE_EPOCHS = Prepared(sa.update(_T).where(*_NAMES_HOST).values(epoch=_T.c.epoch + 1))
#: The guests of a host that was started are not to be started elsewhere, unless that has begun.
_ABORT_EVACUATIONS = Prepared(
    sa.update(_T)
    .where(_T.c.migration_type == MigrationType.EVACUATION.value, _T.c.source_compute == _AT)
    .where(_IN_PROGRESS, _T.c.queued_at.is_(None), _T.c.abort_requested_at.is_(None))
    .values(
        abort_requested_at=columns.now(),
        abort_requested_by='host start',
        abort_cause=AbortCause.HOST_START.value,
        abort_status=MigrationStatus.FAILED.value,
        abort_text=sa.bindparam('text'),
    )
)
_NAMED = Prepared(
    sa.select(_T.c.uuid, models.CONDUCTORS.c.server)
    .outerjoin(models.CONDUCTORS, models.CONDUCTORS.c.id == _T.c.owner)
    .where(*_NAMES_HOST)
    .order_by(_T.c.id)
)
_LISTING = models.Listing(
    _T,
    in_progress=_IN_PROGRESS,
    ended=models.ENDED,
    is_stuck=_T.c.stuck_kind.is_not(None),
    is_not_stuck=_T.c.stuck_kind.is_(None),
    host=sa.or_(_T.c.source_compute == sa.bindparam('host'), _T.c.dest_compute == sa.bindparam('host')),
    changes_since=_T.c.changed_at >= sa.bindparam('changes_since'),
    changes_before=_T.c.changed_at <= sa.bindparam('changes_before'),
)
_QUEUED = Prepared(
    sa.select(sa.func.count(), LOWEST_VERSION).where(
        _T.c.source_compute == _AT, _IN_PROGRESS, _T.c.status.in_(['accepted', 'queued'])
    )
)


@dataclasses.dataclass
class Write:
    """The contents of one guarded transaction of an owner.

    :ivar fields: columns of the migration. A ``status`` must be a legal move. An end also frees the instance and clears
        why it is stuck and what it waits for.
    :ivar records: steps whose new state is appended to the log.
    :ivar events: other entries of the log, which come before the records.
    :ivar instance: columns of the instance.
    :ivar cleanups: new deferred cleanups; each replaces an older one of the same host and step.
    :ivar cleanups_held: why every deferred cleanup of the instance is blocked until an operator looks; None: it is not.
    :ivar cleanups_run: migration, host and step of cleanups to remove, since they were run; None as step: every step.
    :ivar raise_epoch: the new epoch; None: the epoch stays.
    :ivar raise_tenure: the tenure above which the instance's tenure is raised for this migration; None: it stays.
    :ivar keeps_definition: whether the guest's definition at its source counts for the destination, until the
        destination reports its own. So a guest whose next host dies too can be evacuated again.
    :ivar boots_of: the hosts whose boot_id this transaction reads.
    :ivar slots: the slots that this transaction takes for the destination in ``fields``; None: no bound is set.
    """

    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    records: Sequence[log.StepRecord] = ()
    events: builtins.list[log.Entry] = dataclasses.field(default_factory=list)
    instance: dict[str, Any] = dataclasses.field(default_factory=dict)
    cleanups: builtins.list[Cleanup] = dataclasses.field(default_factory=list)
    cleanups_held: str | None = None
    cleanups_run: builtins.list[tuple[str, str, str | None]] = dataclasses.field(default_factory=list)
    raise_epoch: int | None = None
    raise_tenure: int | None = None
    keeps_definition: bool = False
    boots_of: Sequence[str] = ()
    slots: slots.Request | None = None


@dataclasses.dataclass(frozen=True)
class Named:
    """A migration in progress that names a host which has just started, with the server of its owner."""

    owned: Owned
    owner_server: str | None


class Migrations:
    """The rows of ``migrations`` and ``saga_log``."""

    def __init__(self, engine: Engine, threads: executors.Threads) -> None:
        self._engine = engine
        self._threads = threads

    # --- the API's part ----------------------------------------------------------------------------------------------

    @retried
    def accept(
        self,
        context: RequestContext,
        migration: Migration,
        action: str,
        task_state: str = 'migrating',
        vm_states: Sequence[str] = MIGRATABLE_VM_STATES,
        drain: Drain | None = None,
        **remarks: Any,
    ) -> None:
        """Insert a migration and set its instance's task_state, in one transaction before the 202.

        An evacuation replaces a task_state of another service, which is that of a dead host.

        :param vm_states: the allowed values of the instance's vm_state.
        :param drain: the drain that requests it, as its owner knows it.
        :param remarks: further values of the first entry of its log.
        :raises migrator.exception.MigrationInProgress: the instance has a migration in progress.
        :raises migrator.exception.InstanceInvalidState: the instance's task_state or vm_state forbids it, or that its
            host is forced down, in a drain.
        :raises migrator.exception.InstanceNotFound: the instance was deleted.
        :raises migrator.exception.NotOwner: another conductor owns the drain.
        """
        values = models.values_of(migration) | {'log_seq': 1, 'my_instance': migration.instance_uuid}
        for name in ('tenure', 'old_flavor'):
            del values[name]
        values['in_progress_instance_uuid'] = migration.instance_uuid
        try:
            with self._engine.writer() as session:
                if drain is not None:
                    drains.guard(session, drain)
                wanted = {'my_instance': migration.instance_uuid, 'vm_states': [*vm_states]}
                wanted |= {'at_host': migration.source_compute, 'new_state': task_state}
                take = _TAKE_FROM_DEAD if migration.is_evacuation else _TAKE_FOR_DRAIN if drain else _TAKE_INSTANCE
                if not session.execute(take, wanted).rowcount:
                    raise instances.refusal(session, migration, vm_states)
                session.execute(_INSERT, values)
                accepted = log.Entry(log.EntryKind.STATUS, payload={'status': migration.status, **remarks})
                saga_log.append(session, migration.replace(epoch=0, owner=None, log_seq=0), [accepted])
                actions.start(session, context, action, migration.instance_uuid, migration.uuid)
        except DBDuplicateEntry:
            with self._engine.reader() as session:
                facts = instances.standing(session, migration.instance_uuid)
            raise exception.MigrationInProgress(instance_uuid=migration.instance_uuid, facts=facts) from None

    # --- readers -----------------------------------------------------------------------------------------------------

    def get(self, uuid: str) -> Migration:
        """Return one migration by its uuid.

        :raises migrator.exception.MigrationNotFound: no migration has this uuid.
        """
        return self._get(sa.select(_T).where(_T.c.uuid == uuid), migration_id=uuid)

    def get_by_id(self, migration_id: int, instance_uuid: str | None = None) -> Migration:
        """Return one migration by its integer id.

        :param instance_uuid: the instance that the migration must belong to; None: any.
        :raises migrator.exception.MigrationNotFound: no migration of that instance has this id.
        """
        query = sa.select(_T).where(_T.c.id == migration_id)
        if instance_uuid is not None:
            query = query.where(_T.c.instance_uuid == instance_uuid)
        return self._get(query, migration_id=migration_id)

    def _get(self, query: Any, migration_id: int | str) -> Migration:
        with self._engine.reader() as session:
            row = session.execute(query).one_or_none()
            if row is None:
                raise exception.MigrationNotFound(migration_id=migration_id)
        return self._objects([row])[0]

    def list(
        self,
        filters: Mapping[str, Any] | None = None,
        in_progress: bool | None = None,
        limit: int | None = None,
        marker: str | None = None,
        marker_project: str | None = None,
        changes_since: datetime.datetime | None = None,
        changes_before: datetime.datetime | None = None,
    ) -> builtins.list[Migration]:
        """Return migrations, the newest first (created_at, then id, both descending).

        :param filters: column -> value, or list of values; ``host`` means source or destination, and ``stuck``
            is a boolean.
        :param marker: the uuid of the last migration of the previous page.
        :param marker_project: the project that the marker must belong to; None: any.
        :raises migrator.exception.MarkerNotFound: no migration of that project has the marker's uuid.
        """
        wanted = dict(filters or {})
        if 'stuck' in wanted:
            wanted['is_stuck' if wanted.pop('stuck') else 'is_not_stuck'] = True
        if in_progress is not None:
            wanted['in_progress' if in_progress else 'ended'] = True
        changed = {'changes_since': changes_since, 'changes_before': changes_before}
        wanted |= {name: value for name, value in changed.items() if value is not None}
        few = bool(in_progress) or changes_since is not None
        with self._engine.reader() as session:
            found = _LISTING.page(session, wanted, limit, marker, marker_project, few)
        return self._objects(found)

    def _objects(self, found: Sequence[Any]) -> builtins.list[Migration]:
        """Return the objects of rows, after giving a uuid to rows without one."""
        bare = [row.id for row in found if row.uuid is None]
        if not bare or self._engine.reads_only:
            return [models.migration(row) for row in found]
        self._fill(bare)
        query = sa.select(_T.c.id, _T.c.uuid).where(_T.c.id.in_(bare))
        with self._engine.reader() as session:
            uuids = {row.id: row.uuid for row in session.execute(query)}
        return [models.migration(row).replace(uuid=row.uuid or uuids[row.id]) for row in found]

    def read_log(self, uuid: str) -> builtins.list[log.Entry]:
        """Return a migration's log, oldest first."""
        return self.read_logs([uuid])[uuid]

    def read_logs(self, uuids: Sequence[str], only_statuses: bool = False) -> dict[str, builtins.list[log.Entry]]:
        """Return the logs of some migrations by their uuids, each oldest first.

        :param only_statuses: return only the entries of a new status.
        """
        with self._engine.reader() as session:
            return saga_log.read(session, uuids, only_statuses)

    def steps(self, uuid: str) -> builtins.list[log.StepRecord]:
        """Return the records that result from a migration's log, oldest first."""
        return log.records(self.read_log(uuid))

    def count_queued(self, host: str) -> tuple[int, int]:
        """Return how many migrations wait to leave a host, and the lowest version of the compute services."""
        with self._engine.reader() as session:
            count, lowest = session.execute(_QUEUED, {'at_host': host}).one()
            return int(count), int(lowest)

    # --- rows from before migrations had a uuid ----------------------------------------------------------------------

    def count_without_uuid(self) -> int:
        """Return the number of migrations without a uuid."""
        query = sa.select(sa.func.count()).where(_T.c.uuid.is_(None))
        with self._engine.reader() as session:
            return int(session.execute(query).scalar_one())

    def fill_uuids(self, count: int) -> int:
        """Give a uuid to migrations without one, the oldest first.

        Several processes may do this at once. Each row gets one uuid, from the first of them.

        :param count: the largest number of rows.
        :returns: the number of rows that this call has filled; 0: no row is left, or other processes were faster.
        """
        query = sa.select(_T.c.id).where(_T.c.uuid.is_(None)).order_by(_T.c.id).limit(count)
        with self._engine.reader() as session:
            bare = [int(id_) for (id_,) in session.execute(query)]
        return self._fill(bare) if bare else 0

    @retried
    def _fill(self, ids: Sequence[int]) -> int:
        filled = 0
        with self._engine.writer() as session:
            # The fixed order prevents a deadlock between two processes that fill the same rows.
            for id_ in sorted(ids):
                # A new uuid is not a change in the sense of changes_since, so updated_at stays.
                values = {'uuid': self._threads.new_uuid(), 'updated_at': _T.c.updated_at}
                found = session.execute(sa.update(_T).where(_T.c.id == id_, _T.c.uuid.is_(None)).values(**values))
                filled += found.rowcount
        return filled

    # --- the owner's part --------------------------------------------------------------------------------------------

    def owned_by(self, owner: str) -> builtins.list[tuple[str, int, tuple[bool, ...]]]:
        """Return (uuid, epoch, whether each of :data:`REQUESTS` is set) of an owner's migrations in progress."""
        with self._engine.reader() as session:
            return [
                (uuid, epoch, tuple(request is not None for request in requests))
                for uuid, epoch, *requests in session.execute(OWNED_BY, {'me': owner})
                if uuid is not None
            ]

    def load(self, uuid: str, owner: str) -> Owned | None:
        """Return a migration in progress, or None if this conductor does not own it."""
        with self._engine.reader() as session:
            return next(iter(read_owned(session, [uuid], owner)), None)

    @retried
    def commit(self, known: Migration, write: Write) -> tuple[Migration, dict[str, str | None]]:
        """Write as the owner, guarded by owner, epoch and the known requests.

        :param known: the migration as its owner knows it.
        :returns: the migration after the write, and the boot_ids of ``write.boots_of``.
        :raises migrator.exception.NotOwner: the owner or epoch differs, a request was added, or the migration already
            has an outcome. Nothing was written; read the migration again.
        :raises migrator.exception.IllegalMove: the table of legal moves has no such move.
        :raises migrator.exception.NoSlot: a slot of ``write.slots`` is not free. Nothing was written.
        """
        fields = dict(write.fields)
        if write.raise_epoch is not None:
            fields['epoch'] = write.raise_epoch
        status = fields.get('status')
        ends = status in _ENDS
        changes = status is not None and status != known.status
        if status is not None and changes:
            check_move(known.uuid, known.status, status)
        entries = _entries(write, status if changes else None, fields.get('attempt', known.attempt))
        if entries:
            fields['log_seq'] = known.log_seq + len(entries)
        if ends:
            fields |= {'in_progress_instance_uuid': None}
            fields |= reasons.columns('stuck', None) | reasons.columns('wait', None)
        with self._engine.writer() as session:
            if write.slots is not None:
                # The slots are counted before this row has the destination. So the lock of the slots always comes
                # before that of a migration.
                slots.take(session, known, fields, write.slots)
            # The guard is also the lock of the migration, so it comes next even if it changes nothing.
            if not _write(session, _guard(known, fields, ends), known, fields or {'epoch': known.epoch}):
                raise exception.NotOwner(migration_uuid=known.uuid, owner=known.owner, epoch=known.epoch)
            saga_log.append(session, known, entries, fields.get('epoch', known.epoch))
            instance = {**write.instance, 'task_state': None} if ends else write.instance
            if instance:
                _write(session, _UPDATE_INSTANCE, known, instance)
            if write.cleanups_held is not None:
                cleanups.hold(session, known.instance_uuid, write.cleanups_held)
            for uuid, host, step in write.cleanups_run:
                cleanups.forget(session, uuid, host, step)
            for cleanup in write.cleanups:
                cleanups.write(session, cleanup)
            if write.keeps_definition:
                definitions.keep(session, known)
            if 'flavor' in instance:
                definitions.forget(session, known.instance_uuid)
            if changes:
                actions.finish_all(session, known, str(status), fields)
            if write.raise_tenure is not None:
                fields['tenure'] = cleanups.take_tenure(session, known.instance_uuid, known.uuid, write.raise_tenure)
            boots = read_boots(session, write.boots_of)
        # This process's own time is close enough to the database's until the row is read again.
        now = self._threads.clock.now()
        kept = {key: now if isinstance(value, columns.later) else value for key, value in fields.items()}
        kept.pop('in_progress_instance_uuid', None)
        return known.replace(**kept), boots

    @retried
    def note_progress(self, known: Migration, figures: Mapping[str, Any]) -> bool:
        """Write the progress of the copy, or what the migration waits for, as the owner.

        :returns: whether it was written. It is not if another conductor owns the migration, or if it has ended.
        """
        with self._engine.writer() as session:
            return _write(session, _UPDATE_IN_PROGRESS, known, figures)

    @retried
    def note_try(self, known: Migration, record: log.StepRecord) -> bool:
        """Append to the log that a step has failed and is tried again, as the owner.

        :returns: whether it was written. It is not if another conductor owns the migration.
        """
        with self._engine.writer() as session:
            locked = _write(session, _UPDATE, known, {'log_seq': known.log_seq + 1})
            if locked:
                saga_log.append(session, known, [record.entry()])
            return locked

    @retried
    def begin_boot(self, report: protocol.HostReport, services: Services) -> builtins.list[Named]:
        """Store a host's new boot, and raise the epoch of each migration in progress that names the host.

        The migrations keep their owners.

        :returns: those migrations, in the order of their requests.
        :raises migrator.exception.BootReplaced: another boot is registered than the one that it replaces, and than it
            itself; nothing was changed. So a report that comes late never takes the place of a newer boot.
        :raises migrator.exception.MachineRefused: another machine has the name; nothing was changed.
        """
        with self._engine.writer() as session:
            known = services.lock_boot(session, report.host)
            if report.replaces != '' and known not in (report.replaces, report.boot_id):
                raise exception.BootReplaced(host=report.host, boot_id=report.boot_id, known=known)
            claims = machines.compare(session, report)
            more: dict[str, Any] = {'slots': report.limit, 'kernel': report.kernel}
            services.write_report(session, report.host, COMPUTE_BINARY, report.version, report.boot_id, **more)
            if claims:
                machines.claim(session, report)
            if isinstance(report.node, ComputeNode):
                services.write_node(session, report.node)
            session.execute(_RAISE_EPOCHS, {'at_host': report.host})
            text = f'{report.host} was started, so it is not dead.'
            session.execute(_ABORT_EVACUATIONS, {'at_host': report.host, 'text': text})
            found = session.execute(_NAMED, {'at_host': report.host}).all()
            servers = {uuid: server for uuid, server in found if uuid is not None}
            return [Named(read_owned(session, [uuid])[0], server) for uuid, server in servers.items()]

    def last_at(self, host: str) -> builtins.list[Migration]:
        """Return the last migration of each instance at a host, if it has ended.

        An instance counts if it is at the host or has a deferred cleanup there.
        """
        with self._engine.reader() as session:
            return [models.migration(row) for row in session.execute(_last_at(), {'at_host': host})]

    @retried
    def begin_stop(self, host: str, boot_id: str, uuids: Sequence[str], services: Services) -> builtins.list[str]:
        """Write that a boot of a host stops, and request to abort what it has cancelled in its queue.

        The abort verdict is written too, since the source itself has reported it and may never answer again. A
        migration whose command an earlier boot received gets no verdict. That boot may have begun it, so the hosts must
        be polled.

        :returns: the migrations in progress without an outcome whose source is this boot of this host.
        """
        table = models.SERVICES
        same_boot = sa.exists().where(
            table.c.host == host, table.c.binary == COMPUTE_BINARY, table.c.boot_id == boot_id
        )
        open_ = [_T.c.uuid.in_(builtins.list(uuids)), _T.c.source_compute == host, _IN_PROGRESS, _T.c.outcome.is_(None)]
        with self._engine.writer() as session:
            services.write_stopped(session, host, COMPUTE_BINARY, table.c.boot_id == boot_id)
            session.execute(
                sa.update(_T)
                .where(*open_, _T.c.abort_requested_at.is_(None), same_boot)
                .values(
                    abort_requested_at=columns.now(),
                    abort_requested_by='host stop',
                    abort_cause=AbortCause.HOST_STOP.value,
                )
            )
            sent = saga_log.sent_to_boot(session, uuids, boot_id)
            cancelled = {'abort_status': MigrationStatus.CANCELLED.value, 'cancelled_by_stop': True}
            cancelled['abort_text'] = 'in the queue of its source, which was stopped'
            session.execute(sa.update(_T).where(*open_, same_boot, _T.c.uuid.in_(sent)).values(**cancelled))
            return [uuid for (uuid,) in session.execute(sa.select(_T.c.uuid).where(*open_, same_boot)) if uuid]

    def reread(self, known: Migration) -> tuple[Migration, dict[str, str | None]]:
        """Read a migration and the boot_ids of its hosts again."""
        with self._engine.reader() as session:
            row = session.execute(sa.select(_T, *boot_columns(_T)).where(_T.c.uuid == known.uuid)).one()
            return models.migration(row), boots_in(row)


@functools.cache
def _last_at() -> Prepared:
    cleanup, guests = models.CLEANUPS, sa.select(_I.c.uuid).where(_I.c.host == _AT)
    # A join, since MariaDB would evaluate a subquery for each instance there is.
    here = sa.union(guests, sa.select(cleanup.c.instance_uuid).where(cleanup.c.host == _AT)).subquery()
    return Prepared(
        sa.select(_T)
        .join(_I, sa.and_(_I.c.uuid == _T.c.instance_uuid, _I.c.tenure == _T.c.tenure))
        .join(here, here.c.uuid == _I.c.uuid)
        .where(_T.c.tenure > 0, models.ENDED)
    )


def _guard(known: Migration, fields: Mapping[str, Any], ends: bool) -> Any:
    """Return the guarded update of a migration's row, which writes nothing if the owner is outdated."""
    null = []
    # The outcome is set once. An owner that would set it again has not read it.
    if fields.get('outcome') is not None:
        null.append('outcome')
    # Before the outcome, an unread abort request stops the write. The end must carry its verdict.
    if known.abort_requested_at is None and (known.outcome is None or ends):
        null.append('abort_requested_at')
    if known.force_complete_requested_at is None and ends:
        null.append('force_complete_requested_at')
    # An unread request to abandon stops every write, so that the migration is abandoned in the state in which
    # it was stuck.
    if known.abandon_requested_at is None:
        null.append('abandon_requested_at')
    same = 'retry_requested_at' in fields and known.retry_requested_at is not None
    if 'retry_requested_at' in fields and not same:
        null.append('retry_requested_at')
    return _update_while(same, *null)


@functools.cache
def _update_while(same_retry: bool, *null: str) -> Any:
    """Return the update of a migration that has the known status, and nothing in some columns.

    :param same_retry: a later request to retry must stay, since the owner has not read it.
    """
    guard = _UPDATE.where(_T.c.status == sa.bindparam('my_status'), *(_T.c[name].is_(None) for name in null))
    return guard.where(_T.c.retry_requested_at == sa.bindparam('my_retry')) if same_retry else guard


@functools.cache
def _prepared(statement: Any, *set_to_now: str) -> Prepared:
    return Prepared(statement.values({name: columns.now() for name in set_to_now}) if set_to_now else statement)


def _write(session: Any, statement: Any, known: Migration, values: Mapping[str, Any]) -> bool:
    """Execute an update for a known migration, and return whether it has matched a row.

    :param values: column -> its value; that of a time may be :func:`migrator.db.columns.now`.
    """
    set_to_now = columns.set_to_now(values)
    parameters = {
        'my_uuid': known.uuid,
        'me': known.owner,
        'my_epoch': known.epoch,
        'my_status': known.status,
        'my_instance': known.instance_uuid,
        'my_retry': known.retry_requested_at,
    }
    parameters |= {name: value for name, value in values.items() if name not in set_to_now}
    return bool(session.execute(_prepared(statement, *set_to_now), parameters).rowcount)


def _entries(write: Write, status: str | None, attempt: int) -> list[log.Entry]:
    """Return the log entries of a write, in order.

    The status of an end comes last. Any other status comes before the first step that begins with it.
    """
    steps = [record.entry() for record in write.records]
    if status is not None:
        entry = log.Entry(log.EntryKind.STATUS, attempt, payload={'status': str(status)})
        begins = (number for number, record in enumerate(write.records) if not record.stored)
        steps.insert(len(steps) if status in _ENDS else next(begins, 0), entry)
    return [*write.events, *steps]
