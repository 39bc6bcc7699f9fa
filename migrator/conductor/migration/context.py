# SPDX-License-Identifier: Apache-2.0

"""The context of a migration that this conductor owns: its row, its journal and the reports of its hosts.

Every write is guarded by owner and epoch, and by the requests that the owner knows. A refused write ends the run. The
runner then reads everything again, or releases ownership.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception
from migrator.conductor.migration import waiting
from migrator.conductor.migration.tools import Tools
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Owned, Write
from migrator.objects import ENDS, MigrationStatus, Outcome, base, instance, protocol
from migrator.saga import log
from migrator.saga.step import Parked, Stuck

LOG = logging.getLogger(__name__)
Status = MigrationStatus
#: Whether a host answers -> how ``waits_for`` begins while that host does not report the guest.
_SILENCES = {False: '{} has not answered ', True: '{} answers, but its hypervisor has not reported the guest '}
_STUCK_KINDS = (log.EntryKind.STUCK, log.EntryKind.UNSTUCK)


class MigrationContext:
    """The subject of the saga of a migration.

    :param owned: the migration as it was read when this conductor took it.
    :param settling: whether the present epoch was raised to poll the hosts again, and nothing was sent in it since.
    """

    def __init__(self, tools: Tools, owned: Owned, settling: bool) -> None:
        self.tools = tools
        self.row = owned.migration
        self.instance: instance.Instance | None = owned.instance
        self.journal = log.Journal(log.records(owned.entries))
        #: The newest log entry that the migration is stuck, or is no longer stuck.
        self.stuck = next((one for one in reversed(owned.entries) if one.kind in _STUCK_KINDS), None)
        self._events: list[log.Entry] = []
        self.settling = settling
        #: Whether earlier migrations of the instance may have left a cleanup at its source.
        self.has_source_cleanup = owned.has_source_cleanup
        self.boots: dict[str, str | None] = {}
        #: The newest report of each host's step.
        self.reports: dict[tuple[str, str], protocol.Report] = {}
        #: The newest observation of each host in the present epoch.
        self.seen: dict[str, protocol.Observation] = {}
        #: The hosts whose reply or report the migration waits for.
        self.waits_on: set[str] = set()
        #: The hosts that were polled in this run and have not reported where the guest is.
        self.unheard: set[str] = set()
        #: The hosts that were not polled in this run because they had no free call slot.
        self.unasked: set[str] = set()
        #: When a host last reported or replied (monotonic seconds).
        self.heard_at = tools.threads.clock.monotonic()
        #: The hosts that answer without reporting this guest -> since when (monotonic seconds).
        self.unresponsive: dict[str, float] = {}
        #: When the run was last woken only because a host did not answer (monotonic seconds).
        self.woken_for_silence = -math.inf
        #: When to wake the run without an event (monotonic seconds); None: the sweep wakes it.
        self.wake_at: float | None = None
        #: The hosts that must answer in this epoch before anything else is done: the first act after a takeover.
        self.must_ask: set[str] = set()
        #: Steps that were sent without a reply. The host must be polled before they are sent again.
        self.unsure: set[tuple[str, str]] = set()
        #: Attempt, epoch and name of each step -> whether it was sent; False: there was no free call slot.
        self._sent: dict[tuple[int, int, str], bool] = {}
        self.ledger = waiting.Ledger(tools.threads.clock)
        self._fields: dict[str, Any] = {}
        self._instance_fields: dict[str, Any] = {}
        self._cleanups: list[Cleanup] = []
        self._cleanups_held: str | None = None
        self._cleanups_run: list[tuple[str, str, str | None]] = []
        self._will_call = False
        self._first_tries: set[tuple[int, str, str]] = set()
        self._failure: str | None = None

    def become(self, fresh: MigrationContext) -> None:
        """Replace everything by what was read again, except for the reports of the hosts."""
        fresh.reports = {key: report for key, report in self.reports.items() if key not in fresh.reports}
        fresh.ledger, fresh._sent = self.ledger, self._sent
        fresh.unresponsive, fresh.woken_for_silence = self.unresponsive, self.woken_for_silence
        if fresh.row.epoch == self.row.epoch:
            fresh.settling, fresh.unsure, fresh.must_ask = self.settling, self.unsure, self.must_ask
        if fresh.attempt == self.attempt:
            fresh._failure = self._failure
        self.__dict__.update(fresh.__dict__)

    def note_stuck(self, reason: str | None) -> None:
        """Commit why an operator is needed, or that none is needed any more.

        The migration keeps its status and both allocations, and is observed again.

        :param reason: None: the state fits a known case again.
        """
        reason = None if reason is None else base.text(reason, protocol.LONGEST_REASON)
        self.will(stuck_reason=reason)
        if reason is None:
            self.will(waits_for=self.row.waits_for)
        self._note_stuck(reason)
        self.commit()

    def _note_stuck(self, reason: str | None) -> None:
        """Add to the next commit the log entry of becoming stuck or unstuck, preceded by a requested retry."""
        row = self.row
        if row.retry_requested_at is not None:
            asked = {'by': row.retry_requested_by, 'requested_at': row.retry_requested_at.isoformat()}
            self._events.append(log.Entry(log.EntryKind.RETRY, self.attempt, payload=asked))
            self._fields['retry_requested_at'] = None
        if reason is not None:
            boots = {host: self.boots.get(host) for host in sorted(self.waits_on)}
            payload = {'reason': reason, 'boots': boots}
            self._events.append(log.Entry(log.EntryKind.STUCK, self.attempt, payload=payload))
        elif row.abandon_requested_at is None:
            self._events.append(log.Entry(log.EntryKind.UNSTUCK, self.attempt))

    def forget_tries(self) -> None:
        """Retry everything that has failed at once, and poll the hosts before anything is decided."""
        self.ledger.forget_tries()
        self.ledger.last = None
        self.must_ask = set(self.hosts)

    def note_try(self, record: log.StepRecord, reason: str) -> None:
        """Write that a step which is always retried has failed, if the reason is new.

        The writes that steps have collected stay pending. They belong to the commit of a finished step.
        """
        tried = dataclasses.replace(record, tries=record.tries + 1, result={'reason': reason})
        known = (self.record(record.step, record.direction) or record).result
        if known is None or known.get('reason') != reason:
            if not self.tools.database.migrations.note_try(self.row, tried):
                return
            self.row = self.row.replace(log_seq=self.row.log_seq + 1)
        self.journal.put([tried])

    def wait_for(self, pause: Parked) -> Parked | Stuck:
        """Record what the migration waits for; see :func:`migrator.conductor.migration.waiting.wait_for`."""
        return waiting.wait_for(self, pause)

    def forget_writes(self) -> None:
        """Drop the writes that steps have collected for the next commit."""
        self._fields, self._instance_fields, self._cleanups, self._will_call = {}, {}, [], False
        self._cleanups_held, self._cleanups_run, self._events = None, [], []

    def note_waiting(self, why: str | None) -> None:
        """Write what the migration waits for. The next commit removes it.

        :param why: a sentence; None: nothing worth reporting.
        """
        why = None if why is None else base.text(why, protocol.LONGEST_REASON)
        if self.row.waits_for != why and self.tools.database.migrations.note_progress(self.row, {'waits_for': why}):
            self.row = self.row.replace(waits_for=why)

    def note_silence(self, host: str, seconds: float, answers: bool, helps: str = '') -> str | None:
        """Record which unresponsive host the migration waits for.

        :param seconds: how long the host has not answered.
        :param answers: whether the host answers, but does not report this guest.
        :param helps: what the operator can do about it.
        :returns: the message, or None if one is already recorded.
        """
        known = self.row.waits_for or ''
        silence, other = _SILENCES[answers].format(host), _SILENCES[not answers].format(host)
        if known and known.endswith(helps) and not known.startswith(other):
            return None
        known = known if known.startswith(silence) else f'{silence}{self.since(seconds)}'
        self.note_waiting(f'{known}{helps}')
        return self.row.waits_for

    def is_said_silent(self, host: str) -> bool:
        """Return whether the row says that a host has not answered."""
        return (self.row.waits_for or '').startswith(_SILENCES[False].format(host))

    def end_silence(self, host: str) -> None:
        """Remove the message that a host does not answer, since it has reported where the guest is."""
        why = self.row.waits_for
        # Another conductor may have written the message, so it is recognised by its text.
        if why is not None and why.startswith(tuple(words.format(host) for words in _SILENCES.values())):
            if self.tools.database.migrations.note_progress(self.row, {'waits_for': None}):
                self.row = self.row.replace(waits_for=None)

    def since(self, seconds: float) -> str:
        """Return the time of an event ``seconds`` ago, in words."""
        began = self.now() - datetime.timedelta(seconds=seconds)
        return f'since {began:%Y-%m-%d %H:%M:%S} UTC'

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
    def abort_reason(self) -> str | None:
        """Why the migration should be undone: an abort request or a failure; None: no reason."""
        if self.row.abort_requested_at is not None:
            return f'Aborted: requested by {self.row.abort_requested_by or "an unknown user"}.'
        return self._failure

    def note_sent(self, step: str) -> None:
        """Note that a step was sent to its host, whether or not the host has replied."""
        self._sent[self.attempt, self.row.epoch, step] = True

    def note_unsent(self, step: str) -> None:
        """Note that a step was not sent yet because its host had no free call slot."""
        self._sent.setdefault((self.attempt, self.row.epoch, step), False)

    def is_unsent(self, step: str) -> bool:
        """Return whether a step was certainly not sent in this epoch, although its intent is in the journal."""
        return self._sent.get((self.attempt, self.row.epoch, step)) is False

    def need_not_settle(self, step: str) -> bool:
        """Return whether the pivot has only waited for a free call slot of its source.

        The source must have answered every call so far, and must not be down.
        """
        return (
            self.is_unsent(step) and not self.tools.hosts.unanswered_for(self.source) and not self.is_down(self.source)
        )

    def note_failure(self, reason: str) -> None:
        """Keep a failure as the abort reason."""
        self._failure = reason

    def enter(self, status: str) -> None:
        """Write a status with the next commit."""
        self.will(status=status)

    def commit(self, records: Sequence[log.StepRecord] = (), outcome: str | None = None) -> None:
        """Write records, outcome and the collected writes in one guarded transaction.

        :raises migrator.exception.NotOwner: nothing was written; read everything again.
        """
        fields = self._fields
        if outcome is not None:
            fields['outcome'] = outcome
            if outcome == Outcome.BACK:
                fields.setdefault('failure', self._reason_of(records))
                if self.row.abort_requested_at is not None:
                    fields.setdefault('abort_verdict', self.row.abort_verdict or Status.CANCELLED.value)
        ends = fields.get('status') in ENDS
        if self.row.stuck_reason is not None and 'stuck_reason' not in fields:
            if outcome or ends or any(record.state == log.StepState.DONE for record in records):
                fields['stuck_reason'] = None
                self._note_stuck(None)
        if self.row.waits_for is not None or ends:
            fields.setdefault('waits_for', None)
        undoes = any((record.direction, record.state) == (log.UNDO, log.StepState.INTENT) for record in records)
        calls = self._will_call or undoes
        write = Write(
            fields=fields,
            records=records,
            events=self._events,
            instance=self._instance_fields or None,
            cleanups=self._cleanups,
            cleanups_held=self._cleanups_held,
            cleanups_run=self._cleanups_run,
            boots_of=self.hosts if calls and not ends else (),
        )
        self.row, boots = self.tools.database.migrations.commit(self.row, write)
        self.boots |= boots
        self.stuck = next((one for one in reversed(self._events) if one.kind in _STUCK_KINDS), self.stuck)
        if self._instance_fields and self.instance is not None:
            self.instance = self.instance.replace(**self._instance_fields)
        for record in records:
            if not record.stored and record.state == log.StepState.INTENT:
                self._first_tries.add(record.key)
        self.journal.put([dataclasses.replace(record, stored=True, epoch=self.row.epoch) for record in records])
        self.forget_writes()

    def _reason_of(self, records: Sequence[log.StepRecord]) -> str | None:
        for record in records:
            if record.state == log.StepState.FAILED and record.result:
                return self.abort_reason or str(record.result.get('reason'))
        return self.abort_reason

    def has_next_attempt(self) -> bool:
        """Return whether the migration may try another candidate.

        No host was named, no abort is requested, the source answers and retries are left. Without the source no
        candidate could receive the guest.
        """
        if self.row.abort_requested_at is not None or self.row.requested_host is not None:
            return False
        chosen = self.record('move_allocation')
        if chosen is None or not chosen.input or self.tools.hosts.unanswered_for(self.source):
            return False
        retries = self.tools.options.migrate_max_retries
        return retries < 0 or self.attempt <= retries

    def begin_next_attempt(self) -> None:
        """Commit the start of the next attempt. The records keep why the last one failed."""
        self.will(attempt=self.attempt + 1, dest_compute=None, dest_node=None, dest_host=None)
        self.commit()
        self._failure = None
        self.ledger.forget_tries()

    def undone(self) -> None:
        """Commit the end of a migration whose steps are undone.

        The status is ``cancelled`` after an abort request, ``error`` if the guest is lost, or else ``failed``. The
        abort verdict begins with that status. The row has the verdict if the request came before the outcome. A later
        request has changed nothing.
        """
        asked = self.row.abort_requested_at is not None
        verdict = self.row.abort_verdict or f'{Status.FAILED}: it was being unwound already: {self.row.failure}'
        if self.lost:
            verdict = f'{Status.ERROR}: the guest was lost'
            self.change_instance(vm_state='error')
        status = verdict.partition(':')[0]
        self.will(status=status, **({'abort_verdict': verdict} if asked else {}))
        self.commit()

    # --- writes collected for the next commit ------------------------------------------------------------------------

    def will(self, **fields: Any) -> None:
        """Write columns of the migration with the next commit."""
        self._fields |= fields

    def wake_by(self, moment: float) -> None:
        """Wake the run at a moment (monotonic seconds), unless it will be woken earlier."""
        self.wake_at = moment if self.wake_at is None else min(self.wake_at, moment)

    def will_call(self) -> None:
        """Read the boot_ids of the hosts in the next commit, since a call to one of them follows it."""
        self._will_call = True

    def change_instance(self, **fields: Any) -> None:
        """Write columns of the instance with the next commit."""
        self._instance_fields |= fields

    def defer(
        self, host: str, step: str, reason: str, input_: dict[str, Any] | None = None, alarm: str | None = None
    ) -> None:
        """Defer a cleanup of a host with the next commit. The migration goes on without it.

        :param alarm: why the cleanup needs an operator; None: it does not.
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
            alarm=alarm,
        )
        self._cleanups.append(cleanup)
        self.has_source_cleanup = self.has_source_cleanup or host == self.source

    def hold_cleanups(self, why: str) -> None:
        """Block the deferred cleanups of the instance until an operator looks, from the next commit on."""
        self._cleanups_held = why

    def paid(self, host: str, step: str | None = None, migration_uuid: str | None = None) -> None:
        """Remove a deferred cleanup of a host with the next commit, since it was run.

        :param step: None: every cleanup that the host has deferred for the migration.
        :param migration_uuid: None: this migration.
        """
        self._cleanups_run.append((migration_uuid or self.row.uuid, host, step))

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
        """The instance; after its deletion, a stand-in with what a host needs to clean up."""
        return self.instance or instance.stand_in(self.row.instance_uuid, self.row.source_compute)

    def is_deleted(self) -> bool:
        """Return whether the instance is gone from the database, which is read each time."""
        if self.instance is not None:
            try:
                self.instance = self.tools.database.instances.get(self.row.instance_uuid)
            except exception.InstanceNotFound:
                self.instance = None
        return self.instance is None

    @property
    def hosts(self) -> list[str]:
        """The hosts that the row names."""
        return [host for host in (self.source, self.destination) if host]

    @property
    def lost(self) -> bool:
        """Whether the guest was found on no host."""
        return any((record.result or {}).get('lost') for record in self.journal.of_attempt(self.attempt))

    def record(self, step: str, direction: str = log.DO) -> log.StepRecord | None:
        """Return the present attempt's record of a step."""
        return self.journal.find(self.attempt, step, direction)

    def tried(self) -> dict[str, str]:
        """Return the hosts of earlier attempts, each with the reason of its failure."""
        found: dict[str, str] = {}
        for record in self.journal.all():
            if record.attempt < self.attempt and record.step == 'move_allocation' and record.input:
                reasons = [
                    str(other.result.get('reason'))
                    for other in self.journal.of_attempt(record.attempt)
                    if other.state == log.StepState.FAILED and other.result
                ]
                found[str(record.input['host'])] = '; '.join(reasons)
        return found

    def result(self, step: str) -> dict[str, Any]:
        """Return the result of a step of the present attempt, or {} if it is not done."""
        record = self.record(step)
        return dict(record.result or {}) if record is not None else {}

    def first_try(self, step: str) -> bool:
        """Return whether this is the first act on a step whose intent this conductor has just committed."""
        key = (self.attempt, step, log.DO)
        if key in self._first_tries:
            self._first_tries.discard(key)
            return True
        return False

    def now(self) -> datetime.datetime:
        """Return the present time, for a column that a user reads."""
        return self.tools.threads.clock.now()

    # --- epochs ------------------------------------------------------------------------------------------------------

    def guard(self) -> None:
        """Check in the database that this conductor still owns the migration.

        It is called between reading generations from Placement and writing.

        :raises migrator.exception.NotOwner: another conductor owns the migration.
        """
        self.commit()

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
            raise exception.OddAnswer(hosts=' or '.join(self.hosts), seen=max(reported, epoch - 1))
        write = Write(raise_epoch=epoch, raise_tenure=seen_tenure, boots_of=self.hosts)
        self.row, boots = self.tools.database.migrations.commit(self.row, write)
        self.boots |= boots
        self.settling = True
        self.seen.clear()
        self.unsure.clear()
        self.ledger.forget_stuck()

    def reread_boots(self) -> None:
        """Read the boot_ids of the hosts again.

        :raises migrator.exception.NotOwner: another conductor owns the migration, or it is in another epoch.
        """
        row, boots = self.tools.database.migrations.reread(self.row)
        if (row.owner, row.epoch) != (self.row.owner, self.row.epoch):
            raise exception.NotOwner(migration_uuid=row.uuid, owner=self.row.owner, epoch=self.row.epoch)
        self.boots |= boots

    # --- hosts -------------------------------------------------------------------------------------------------------

    def order(self, host: str, step: str) -> protocol.Command:
        """Return the command that identifies a step to a host."""
        return protocol.Command(
            migration_uuid=self.row.uuid,
            instance_uuid=self.row.instance_uuid,
            step=step,
            epoch=self.row.epoch,
            owner=self.row.owner or self.tools.owner,
            reply_to=self.tools.server,
            boot_id=self.boots.get(host) or '',
            tenure=self.row.tenure,
        )

    def take_report(self, report: protocol.Report) -> None:
        """Keep a host's report of a step, unless it is of an older epoch than the one that is known."""
        if report.epoch > max(self.row.epoch, protocol.HIGHEST):
            # It would take precedence over every later report of the host.
            LOG.warning(
                'Ignoring a report with impossible epoch %(epoch)d of step %(step)s from host %(host)s',
                {'epoch': report.epoch, 'step': report.step, 'host': report.host},
            )
            return
        key = (report.host, report.step)
        known = self.reports.get(key)
        newer = known is None or report.epoch > known.epoch
        if newer or (known and report.epoch == known.epoch and known.state == protocol.WorkState.RUNNING):
            self.reports[key] = report
        self.unsure.discard(key)
        self.heard_at = self.tools.threads.clock.monotonic()

    def take_observation(self, observation: protocol.Observation) -> None:
        """Keep what a host reported when it was polled."""
        self.heard_at = self.tools.threads.clock.monotonic()
        self.unresponsive.pop(observation.host, None)
        if observation.refusal is not None:
            return
        self.seen[observation.host] = observation
        going_on = {report.step for report in observation.reports}
        for host, step in list(self.reports):
            running = self.reports[host, step].state == protocol.WorkState.RUNNING
            if host == observation.host and running and step not in going_on:
                # The host no longer knows the step because it has restarted.
                del self.reports[host, step]
        self.unsure = {key for key in self.unsure if key[0] != observation.host}
        for report in observation.reports:
            self.take_report(report)

    def note_unresponsive(self, host: str) -> None:
        """Note that a host has answered without reporting this guest, since its hypervisor does not."""
        self.unresponsive.setdefault(host, self.tools.threads.clock.monotonic())

    def unresponsive_for(self, host: str) -> float:
        """Return for how many seconds a host has answered without reporting this guest."""
        now = self.tools.threads.clock.monotonic()
        return now - self.unresponsive.get(host, now)

    def is_down(self, host: str) -> bool:
        """Return whether a host is down.

        It is down if an operator has declared it forced down, or if its service has not reported for a long time and
        it does not answer this conductor either. A host that only does not answer is not down.
        """
        if self.tools.hosts.silent_for(host) < 2 * self.tools.options.poll_interval:
            return False
        down_time = self.tools.options.service_down_time
        service = self.tools.database.services.get_compute(host)
        if service.forced_down:
            return True
        if self.tools.hosts.silent_for(host) < down_time:
            return False
        stopped = service.last_seen_up is None
        return service.is_silent(self.tools.database.services.now(), down_time) if stopped else bool(service.down_since)
