# SPDX-License-Identifier: Apache-2.0

"""The context of a migration that this conductor owns: its row, its log and its next commit.

Every write is guarded by owner and epoch, and by the requests that the owner knows. A refused write ends the run. The
runner then reads everything again, or releases ownership.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors, tracing
from migrator.conductor import broker
from migrator.conductor.compute_client import Hosts
from migrator.conductor.guests import lists
from migrator.conductor.migration import destinations
from migrator.conductor.migration.replies import Replies
from migrator.conductor.migration.waiting import Ledger
from migrator.context import about, admin_context
from migrator.db import slots
from migrator.db.api import Database
from migrator.db.cleanups import Cleanup
from migrator.db.conductors import Owned
from migrator.db.migrations import Write
from migrator.db.sql import columns
from migrator.objects import ENDS, Guest, Migration, MigrationStatus, Outcome, Service, instance, protocol, reasons
from migrator.objects.reasons import FailureKind, Reason
from migrator.placement_client.allocations import SharedReadings, Writer
from migrator.placement_client.candidates import SharedCandidates
from migrator.placement_client.client import PlacementClient
from migrator.saga import log
from migrator.saga.saga import Failed

LOG = logging.getLogger(__name__)
Status = MigrationStatus
#: The time of the commit that writes it, by the database's clock.
NOW = columns.now()


@dataclasses.dataclass(frozen=True)
class Options:
    """The conductor's options that a saga needs. They are read again for each run, since some may change."""

    migrate_max_retries: int
    service_down_time: float
    poll_interval: float
    post_max_attempts: int
    bounds: slots.Bounds | None = None
    resizes_here: bool = False
    confirm_window: float = 0
    lease: float = 0


@dataclasses.dataclass
class Tools:
    """The services that every saga uses, and what counts its steps and attempts.

    :ivar owner: the boot of this conductor; a new one begins after its lease has expired.
    :ivar server: the RPC server name of this conductor, for events.
    :ivar on_step: see :class:`StepTimes`.
    :ivar on_next_attempt: called when a migration begins a further attempt.
    :ivar tracer: records the spans of migrations; None: they are not traced.
    :ivar candidates: the candidates of Placement for the guests that leave.
    :ivar readings: reads what guests that leave hold.
    :ivar writer: sends the writes of allocations of all migrations.
    :ivar lists: the guests that the hosts list.
    :ivar slots: when each kind of slot was last seen in use.
    :ivar placement_outage: since when Placement does not answer.
    :ivar auditing: held while an audit runs that a user has requested.
    """

    owner: str
    server: str
    database: Database
    placement: PlacementClient
    hosts: Hosts
    broker: broker.Broker
    threads: executors.Threads
    options: Options
    on_step: Callable[[str, str, str, float], None] = lambda step, direction, state, seconds: None
    on_next_attempt: Callable[[], None] = lambda: None
    tracer: tracing.Tracer | None = None

    def __post_init__(self) -> None:
        self.candidates = SharedCandidates(self.placement, self.database.services.roots, self.threads)
        self.readings = SharedReadings(self.placement, self._root_of, self.threads)
        self.writer = Writer(self.placement, self.threads)
        #: The keys of the calls that wait or run; see :meth:`submit_once`.
        self._submitted: set[tuple[str, object]] = set()
        self.slots = slots.Watch(self.threads.clock)
        self.auditing = self.threads.lock()
        self.lists = lists.Lists(self.database.services, self.list_guests, self.threads)
        self.placement_outage = broker.Outage('Placement', self.threads)
        self.placement.on_result = self.placement_outage.on_result

    def list_guests(self, service: Service) -> list[Guest]:
        """Return the guests of a host.

        :raises migrator.exception.MigratorException: the host did not list them.
        """
        return self.hosts.api.list_guests(admin_context(), service.host, lists.TIMEOUT)

    def _root_of(self, guest: instance.Instance, host: str) -> str | None:
        """Return the root provider of a host."""
        places = self.database.services.places(guest.uuid, host=host)
        return places[0].uuid if len(places) == 1 else None

    def submit_once(
        self, pool: executors.BoundedExecutor, key: tuple[str, object], function: Callable[..., None], *args: Any
    ) -> None:
        """Submit a call to a pool, unless one with the same key waits or runs."""
        if key in self._submitted:
            return
        self._submitted.add(key)

        def run() -> None:
            try:
                function(self, *args)
            finally:
                self._submitted.discard(key)

        pool.submit(run)

    def is_down(self, host: str) -> bool:
        """Return whether a host is down.

        A host that answers this conductor is never down. One that does not is down if an operator has declared it
        forced down, or if its service has not reported for a long time either.
        """
        unreachable = self.hosts.unreachable_for(host)
        if unreachable < 2 * self.options.poll_interval:
            return False
        down_time = self.options.service_down_time
        service = self.database.services.get_compute(host)
        if service.forced_down:
            return True
        if unreachable < down_time:
            return False
        stopped = service.last_seen_up is None
        return service.is_unreachable(self.database.services.now(), down_time) if stopped else bool(service.down_since)


#: A step: the attempt, its name and the direction; see :attr:`migrator.saga.log.StepRecord.key`.
StepKey = tuple[int, str, str]


class StepTimes:
    """How long the steps take that this owner has tried first, and their spans if they are traced.

    :param on_step: called with the name, direction, state and seconds of each step whose result is committed.
    :param tracer: records the spans; None: there are none.
    :param server: the name of the conductor.
    :param uuid: that of the migration.
    :param is_ours: returns whether no earlier owner has begun a step.
    """

    def __init__(
        self,
        clock: executors.Clock,
        on_step: Callable[[str, str, str, float], None],
        tracer: tracing.Tracer | None,
        server: str,
        uuid: str,
        is_ours: Callable[[StepKey], bool],
    ) -> None:
        self._clock = clock
        self._on_step = on_step
        self._tracer = tracer
        self._server = server
        self._uuid = uuid
        self._is_ours = is_ours
        self._began: dict[StepKey, float] = {}
        self._ended: dict[StepKey, float] = {}

    def trying(self, key: StepKey) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a step is tried once. What its thread does is part of the step's span."""
        if key not in self._began and self._is_ours(key):
            self._began[key] = self._clock.monotonic()
        if self._tracer is None:
            return contextlib.nullcontext()
        return about(traceparent=tracing.of_step(self._uuid, *key).header)

    def end(self, key: StepKey) -> None:
        """Take the present as the end of a step."""
        self._ended[key] = self._clock.monotonic()

    def committed(self, records: Iterable[log.StepRecord], row: Migration) -> None:
        """Report the steps that have ended, and forget them.

        :param records: what was committed.
        :param row: the migration as it is now.
        """
        now = self._clock.monotonic()
        for record in records:
            ended = self._ended.pop(record.key, None)
            if record.state == log.StepState.INTENT or ended is None:
                continue
            began = self._began.pop(record.key, None)
            if began is not None:
                self._on_step(record.step, record.direction, record.state, ended - began)
            if self._tracer is not None:
                self._export_step(self._tracer, record, ended - (ended if began is None else began), now - ended)
        if self._tracer is not None and row.ended:
            self._export_migration(self._tracer, row)

    def _export_step(self, tracer: tracing.Tracer, record: log.StepRecord, seconds: float, ago: float) -> None:
        """Record a step.

        :param seconds: how long it took.
        :param ago: how many seconds ago it ended.
        """
        ended = tracer.now() - datetime.timedelta(seconds=ago)
        began = ended - datetime.timedelta(seconds=seconds)
        if record.started_at is not None:  # an earlier owner may have begun it
            began = min(began, record.started_at)
        attributes: dict[str, str | int] = {
            'migrator.conductor': self._server,
            'migrator.attempt': record.attempt,
            'migrator.result': str(record.state),
        }
        reason = record.facts.reason
        if reason is not None:
            attributes['migrator.reason'] = str(reason)
        name = f'undo {record.step}' if record.direction == log.UNDO else record.step
        place, within = tracing.of_step(self._uuid, *record.key), tracing.of_migration(self._uuid)
        failed = record.state == log.StepState.FAILED
        tracer.export(tracing.Span(name, within, began, ended, place, failed, attributes))

    def _export_migration(self, tracer: tracing.Tracer, row: Migration) -> None:
        now = tracer.now()
        attributes: dict[str, str | int] = {
            'migrator.migration': row.uuid,
            'migrator.instance': row.instance_uuid,
            'migrator.status': row.status,
            'migrator.source': row.source_compute,
            'migrator.destination': row.dest_compute or '',
            'migrator.attempts': row.attempt,
            'migrator.request_id': row.request_id or '',
            'migrator.conductor': self._server,
        }
        began, failed = min(row.created_at or now, now), row.status in (Status.FAILED, Status.ERROR)
        place = tracing.of_migration(self._uuid)
        tracer.export(tracing.Span(row.migration_type, None, began, now, place, failed, attributes))


#: The states of a guest that an evacuation leaves shut off.
LEFT_SHUT_OFF = {'vm_state': 'stopped', 'power_state': 4}


class MigrationContext:
    """The subject of the saga of a migration.

    :param owned: the migration as it was read when this conductor took it.
    :param settling: whether the present epoch was raised to poll the hosts again, and nothing was sent in it since.
    """

    def __init__(self, tools: Tools, owned: Owned, settling: bool) -> None:
        self.tools = tools
        self.row = owned.migration
        self.instance: instance.Instance | None = owned.instance
        self.step_log = log.StepLog(log.records(owned.entries))
        #: Whether an evacuation leaves the guest shut off.
        self.stops_guest = any(entry.payload.get('stops_guest') for entry in owned.entries)
        #: The newest log entry that the migration is stuck, or is no longer stuck.
        self.stuck = _newest_stuck(owned.entries)
        #: Whether earlier migrations of the instance may have left a cleanup at its source.
        self.has_source_cleanup = owned.has_source_cleanup
        #: Whether the source was forced down when the migration was read; None: look again.
        self.source_forced_down = owned.source_forced_down
        #: Host -> its boot_id. The start of a host raises the epoch, so they hold for as long as the guard does.
        self.boots: dict[str, str | None] = dict(owned.boots)
        #: What the source has reported of the guest, perhaps long ago.
        self.definition = dict(owned.definition)
        self.replies = Replies(tools.threads.clock, settling)
        self.ledger = Ledger(tools.threads.clock)
        self.times = StepTimes(
            tools.threads.clock,
            tools.on_step,
            tools.tracer,
            tools.server,
            self.row.uuid,
            is_ours=lambda key: self.step_log.is_ours(*key),
        )
        #: What the bodies of steps have collected for the next commit.
        self.writes = Write()
        self.failure: Failed | None = None

    def become(self, fresh: MigrationContext) -> None:
        """Replace everything by what was read again, except the replies of the hosts, the waits and the times."""
        self.replies.reread(fresh.replies, same_epoch=fresh.row.epoch == self.row.epoch)
        if fresh.attempt == self.attempt:
            fresh.failure = self.failure
        fresh.replies, fresh.ledger, fresh.times = self.replies, self.ledger, self.times
        self.ledger.begin_run()
        self.__dict__.update(fresh.__dict__)

    def log_stuck(self, reason: Reason | None) -> None:
        """Add to the next commit the log entry of becoming stuck or unstuck, preceded by a requested retry."""
        row = self.row
        if row.retry_requested_at is not None:
            asked = {'by': row.retry_requested_by, 'requested_at': row.retry_requested_at.isoformat()}
            self.writes.events.append(log.Entry(log.EntryKind.RETRY, self.attempt, payload=asked))
            self.set(retry_requested_at=None)
        if reason is not None:
            boots = {host: self.boots.get(host) for host in sorted(self.ledger.waits_on)}
            payload = {**reason.document(), 'boots': boots}
            self.writes.events.append(log.Entry(log.EntryKind.STUCK, self.attempt, payload=payload))
        elif row.abandon_requested_at is None:
            self.writes.events.append(log.Entry(log.EntryKind.UNSTUCK, self.attempt))

    # --- the subject of the saga -------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """The number of the candidate; the first is 1."""
        return self.row.attempt

    @property
    def outcome(self) -> str | None:
        """None, 'forward' or 'back'."""
        return self.row.outcome

    @property
    def ended(self) -> bool:
        """Whether the end of the migration is committed."""
        return self.row.ended

    @property
    def is_abandoned(self) -> bool:
        """Whether an operator has requested to abandon the migration."""
        return self.row.abandon_requested_at is not None

    @property
    def abort_reason(self) -> str | None:
        """Why the migration should be undone: an abort request or a failure; None: no reason."""
        if self.row.abort_requested_at is not None:
            failed = self.row.abort_text if self.row.abort_status == Status.FAILED else None
            return failed or f'Aborted: requested by {self.row.abort_requested_by or "an unknown user"}.'
        return self.failure.reason if self.failure is not None else None

    def need_not_settle(self, step: str) -> bool:
        """Return whether the pivot has only waited for a free call slot of its source.

        The source must have answered every call so far, and must not be down.
        """
        unsent = self.replies.is_unsent(self.attempt, self.row.epoch, step)
        return unsent and not self.tools.hosts.unanswered_for(self.source) and not self.tools.is_down(self.source)

    def enter(self, status: str) -> None:
        """Write a status with the next commit."""
        self.set(status=status)

    def commit(self, records: Sequence[log.StepRecord] = (), outcome: str | None = None) -> None:
        """Write records, outcome and the collected writes in one guarded transaction.

        :raises migrator.exception.NotOwner: nothing was written; read everything again.
        """
        write, fields = self.writes, self.writes.fields
        if outcome is not None:
            fields['outcome'] = outcome
            if outcome == Outcome.BACK:
                lost = _reason_of([record for record in records if record.facts.lost])
                fields.setdefault('failure', lost or self.abort_reason or _reason_of(records))
                fields.setdefault('failure_kind', _kind_of(self.failure, records))
                if self.row.abort_requested_at is not None:
                    fields.setdefault('abort_status', self.row.abort_status or Status.CANCELLED.value)
        ends = fields.get('status') in ENDS
        if self.row.stuck_kind is not None and 'stuck_kind' not in fields:
            if outcome or ends or any(record.state == log.StepState.DONE for record in records):
                fields |= reasons.columns('stuck', None)
                self.log_stuck(None)
        if (self.row.wait_kind is not None or ends) and 'wait_kind' not in fields:
            fields |= reasons.columns('wait', None)
        if any((record.direction, record.state) == (log.UNDO, log.StepState.INTENT) for record in records):
            self.read_boots()
        if ends:
            write.boots_of = ()
        write.records = records
        self.row, boots = self.tools.database.migrations.commit(self.row, write)
        self.boots |= boots
        self.stuck = _newest_stuck(write.events) or self.stuck
        if write.instance and self.instance is not None:
            self.instance = self.instance.replace(**write.instance)
        self.step_log.commit(records, self.row.epoch)
        self.writes = Write()
        self.times.committed(records, self.row)

    def has_next_attempt(self) -> bool:
        """Return whether the migration may try another candidate.

        No host was named, no abort is requested, the source answers and retries are left. Without the source no
        candidate could receive the guest of a live migration.
        """
        if self.row.abort_requested_at is not None or self.row.requested_host is not None:
            return False
        if destinations.chosen(self.step_log, self.attempt) is None:
            return False
        if self.source in self.row.hosts_to_poll and self.tools.hosts.unanswered_for(self.source):
            return False
        retries = self.tools.options.migrate_max_retries
        return retries < 0 or self.attempt <= retries

    def begin_next_attempt(self, records: Sequence[log.StepRecord] = ()) -> None:
        """Commit the start of the next attempt. The records keep why the last one failed."""
        self.set(attempt=self.attempt + 1, dest_compute=None, dest_node=None, dest_host=None, queued_at=None)
        self.commit(records)
        self.failure = None
        self.ledger.forget_tries()
        self.tools.on_next_attempt()

    def undone(self, records: Sequence[log.StepRecord] = ()) -> None:
        """Commit the end of a migration whose steps are undone.

        The status is ``cancelled`` after an abort request, ``error`` if the guest is lost, or else ``failed``. The
        abort verdict has that status. The row has it if the request came before the outcome. A later one has changed
        nothing.
        """
        asked = self.row.abort_requested_at is not None
        status, text = self.row.abort_status, self.row.abort_text
        if status is None:
            status, text = Status.FAILED.value, f'it was being undone already: {self.row.failure}'
        if self.lost and any(record.facts.elsewhere for record in self.step_log.of_attempt(self.attempt)):
            status, text = Status.FAILED.value, 'the guest was not at its host'
        elif self.lost:
            status, text = Status.ERROR.value, 'the guest was lost'
            self.writes.instance['vm_state'] = 'error'
        self.set(status=status, **({'abort_status': status, 'abort_text': text} if asked else {}))
        self.commit(records)

    # --- writes collected for the next commit ------------------------------------------------------------------------

    def set(self, **fields: Any) -> None:
        """Write columns of the migration with the next commit."""
        self.writes.fields |= fields

    def read_boots(self) -> None:
        """Read the missing boot_ids of the hosts in the next commit, since a call to one of them follows it."""
        self.writes.boots_of = _without_boot(self)

    def defer(
        self,
        host: str,
        step: str,
        reason: str,
        input_: dict[str, Any] | None = None,
        blocked_because: str | None = None,
    ) -> None:
        """Defer a cleanup of a host with the next commit. The migration goes on without it.

        :param blocked_because: why the cleanup needs an operator; None: it does not.
        """
        cleanup = Cleanup(
            host=host,
            migration_uuid=self.row.uuid,
            instance_uuid=self.row.instance_uuid,
            step=step,
            reason=reason,
            epoch=self.row.epoch,
            tenure=self.row.tenure,
            input=input_,
            blocked_because=blocked_because,
        )
        self.writes.cleanups.append(cleanup)
        self.has_source_cleanup = self.has_source_cleanup or host == self.source

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The source host."""
        return self.row.source_compute

    @property
    def destination(self) -> str | None:
        """The destination of the newest attempt; None: no destination is chosen yet."""
        return self.row.dest_compute

    @property
    def guest(self) -> instance.Instance:
        """The instance, shut off if an evacuation stops it. After its deletion: a stand-in for cleaning up."""
        found = self.instance or instance.stand_in(self.row.instance_uuid, self.row.source_compute)
        return found.replace(**LEFT_SHUT_OFF) if self.stops_guest else found

    def is_deleted(self) -> bool:
        """Return whether the instance is gone from the database, which is read each time."""
        if self.instance is not None:
            self.instance = self.tools.database.instances.find(self.row.instance_uuid)
        return self.instance is None

    @property
    def lost(self) -> bool:
        """Whether the guest was found at neither host."""
        return any(record.facts.lost for record in self.step_log.of_attempt(self.attempt))

    def record(self, step: str, direction: str = log.DO) -> log.StepRecord | None:
        """Return the present attempt's record of a step."""
        return self.step_log.find(self.attempt, step, direction)

    def facts(self, step: str) -> log.Facts:
        """Return what the result of a step of the present attempt says; nothing if it is not done."""
        record = self.record(step)
        return log.Facts() if record is None else record.facts

    # --- epochs ------------------------------------------------------------------------------------------------------

    def raise_epoch(self, seen: int = 0, seen_tenure: int | None = None) -> None:
        """Begin a new epoch for settling, so that hosts refuse what was sent before.

        :param seen: the highest epoch that a host has reported.
        :param seen_tenure: the tenure above which the instance's tenure is raised too, so that hosts refuse what its
            other migrations have sent; None: the tenure stays.
        :raises migrator.exception.NotOwner: another conductor owns the migration.
        :raises migrator.exception.OddAnswer: the reported number is higher than any that a conductor gives.
        """
        epoch, reported = max(self.row.epoch, seen) + 1, max(seen, seen_tenure or 0)
        if reported >= protocol.HIGHEST or epoch > protocol.STORABLE:
            raise exception.OddAnswer(hosts=' or '.join(self.row.hosts), seen=max(reported, epoch - 1))
        write = Write(raise_epoch=epoch, raise_tenure=seen_tenure, boots_of=_without_boot(self))
        self.row, boots = self.tools.database.migrations.commit(self.row, write)
        self.boots |= boots
        self.replies.begin_epoch()
        self.ledger.forget_stuck()


def _without_boot(m: MigrationContext) -> list[str]:
    """Return the hosts whose boot_id is not known, with the destination that the next commit writes."""
    named = dict.fromkeys([*m.row.hosts, m.writes.fields.get('dest_compute')])
    return [host for host in named if host and not m.boots.get(host)]


def _newest_stuck(entries: Sequence[log.Entry]) -> log.Entry | None:
    """Return the newest entry that the migration is stuck, or is no longer stuck."""
    kinds = (log.EntryKind.STUCK, log.EntryKind.UNSTUCK)
    return next((one for one in reversed(entries) if one.kind in kinds), None)


def _kind_of(failure: Failed | None, records: Sequence[log.StepRecord]) -> str | None:
    """Return the kind of a failure, as far as a tenant may know it."""
    if any(record.facts.lost for record in records):
        certain = not any(record.facts.elsewhere for record in records)
        return FailureKind.GUEST_LOST.value if certain else None
    if failure is not None and failure.kind is not None:
        return failure.kind.value
    away = any(record.facts.unanswered for record in records) or (failure is not None and failure.unanswered)
    return FailureKind.HOST_AWAY.value if away else None


def _reason_of(records: Sequence[log.StepRecord]) -> str | None:
    """Return why a step has failed, if one has."""
    for record in records:
        if record.state == log.StepState.FAILED and record.result:
            return str(record.facts.reason)
    return None
