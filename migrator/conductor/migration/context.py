# SPDX-License-Identifier: Apache-2.0

"""A migration that this conductor owns: its row behind the fence, its journal, and what its hosts have said.

Every write goes through the guard (owner and epoch, and no wish that was not known). A refused write ends the run; the
runner then reads everything anew, or lets go.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor import broker, outage
from migrator.conductor.compute_client import Hosts
from migrator.conductor.migration import waiting
from migrator.db.api import Database
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Owned, Write
from migrator.objects import ENDS, MigrationStatus, Outcome, base, instance, protocol
from migrator.placement_client import client as placement
from migrator.placement_client import provider_locks
from migrator.saga import log
from migrator.saga.step import Parked, Stuck

LOG = logging.getLogger(__name__)
Status = MigrationStatus
#: Whether a host answers -> how what it waits for begins while that host does not tell of its guest.
_SILENCES = {False: '{} has not answered ', True: '{} answers, but its hypervisor has not told of the guest '}
_STUCK_KINDS = (log.EntryKind.STUCK, log.EntryKind.UNSTUCK)


@dataclasses.dataclass(frozen=True)
class Options:
    """The conductor's options that a story needs; read anew for each run, since some may change."""

    migrate_max_retries: int
    service_down_time: float
    poll_interval: float
    post_max_attempts: int


@dataclasses.dataclass
class Tools:
    """What every story is told with.

    :ivar owner: this life of this conductor; a new one after a lease has run out.
    :ivar server: its RPC server name, for events.
    :ivar turns: in which this conductor writes to Placement.
    :ivar paying: the ids of the debts about which a host is just being told.
    :ivar asking: the hosts that are just being asked about all their migrations.
    """

    owner: str
    server: str
    database: Database
    placement: placement.PlacementClient
    hosts: Hosts
    broker: broker.Broker
    threads: executors.Threads
    options: Options

    def __post_init__(self) -> None:
        self.turns = provider_locks.Turns(self.threads)
        self.running_cleanups: set[int] = set()
        self.asking: set[str] = set()
        self.placement.heard = outage.Outage('Placement', self.threads).heard


class MigrationContext:
    """The subject of a saga, for a migration.

    :param owned: what was read when it was adopted.
    :param settling: whether its present epoch was raised to ask the hosts anew, and nothing was sent in it since.
    """

    def __init__(self, tools: Tools, owned: Owned, settling: bool) -> None:
        self.tools = tools
        self.row = owned.migration
        self.instance: instance.Instance | None = owned.instance
        self.journal = log.Journal(log.records(owned.entries))
        #: The newest entry of its being stuck, or no longer.
        self.stuck = next((one for one in reversed(owned.entries) if one.kind in _STUCK_KINDS), None)
        self._events: list[log.Entry] = []
        self.settling = settling
        #: Whether earlier migrations of the instance may have left a cleanup at its source.
        self.has_source_cleanup = owned.has_source_cleanup
        self.boots: dict[str, str | None] = {}
        #: The newest report of each host's step.
        self.reports: dict[tuple[str, str], protocol.Report] = {}
        #: What each host last said when polled, in the present epoch.
        self.seen: dict[str, protocol.Observation] = {}
        #: The hosts whose word it waits for, and since when nothing was heard (monotonic seconds).
        self.waits_on: set[str] = set()
        #: The hosts that were asked in this run where the guest is, and have not said it.
        self.unheard: set[str] = set()
        #: The hosts that could not be asked in this run, for want of a place among the calls to them.
        self.unasked: set[str] = set()
        self.heard_at = tools.threads.clock.monotonic()
        #: The hosts that answer, and do not say where this guest is, and since when (monotonic seconds).
        self.unresponsive: dict[str, float] = {}
        #: When it was last woken for nothing but a silence (monotonic seconds).
        self.woken_for_silence = -math.inf
        #: When it is to be woken without an event; None: by the sweep.
        self.wake_at: float | None = None
        #: The hosts that have to answer in this epoch before anything is done or decided: an adopter's first act.
        self.must_ask: set[str] = set()
        #: Steps sent whose answer did not come: the host must be asked before they are sent again.
        self.unsure: set[tuple[str, str]] = set()
        #: Attempt, epoch and name of each step that was sent, or tried to.
        self._sent: dict[tuple[int, int, str], bool] = {}
        self.ledger = waiting.Ledger(tools.threads.clock)
        self._fields: dict[str, Any] = {}
        self._instance_fields: dict[str, Any] = {}
        self._cleanups: list[Cleanup] = []
        self._cleanups_held: str | None = None
        self._cleanups_run: list[tuple[str, str, str | None]] = []
        self._will_call = False
        self._first_tries: set[tuple[int, str, str]] = set()
        self._against: str | None = None

    def become(self, fresh: MigrationContext) -> None:
        """Take over everything that was read anew; what hosts have reported stays known."""
        fresh.reports = {key: report for key, report in self.reports.items() if key not in fresh.reports}
        fresh.ledger, fresh._sent = self.ledger, self._sent
        fresh.unresponsive, fresh.woken_for_silence = self.unresponsive, self.woken_for_silence
        if fresh.row.epoch == self.row.epoch:
            fresh.settling, fresh.unsure, fresh.must_ask = self.settling, self.unsure, self.must_ask
        if fresh.attempt == self.attempt:
            fresh._against = self._against
        self.__dict__.update(fresh.__dict__)

    def note_stuck(self, reason: str | None) -> None:
        """Commit why a person is needed; it keeps its status and both allocations, and is observed again.

        :param reason: None: the world has become a case that is known.
        """
        reason = None if reason is None else base.text(reason, protocol.LONGEST_REASON)
        self.will(stuck_reason=reason)
        if reason is None:
            self.will(waits_for=self.row.waits_for)
        self._note_stuck(reason)
        self.commit()

    def _note_stuck(self, reason: str | None) -> None:
        """Have the log get why it is stuck, or that it is no longer; and before that who has had it retried."""
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
        """Have everything that has failed be tried again at once, and the hosts asked before anything is decided."""
        self.ledger.forget_tries()
        self.ledger.last = None
        self.must_ask = set(self.hosts)

    def note_try(self, record: log.StepRecord, reason: str) -> None:
        """Write that a step which is never given up has failed for another reason than before.

        What bodies have collected is not written with it: that belongs to the commit of what is done.
        """
        tried = dataclasses.replace(record, tries=record.tries + 1, result={'reason': reason})
        known = (self.record(record.step, record.direction) or record).result
        if known is None or known.get('reason') != reason:
            if not self.tools.database.migrations.note_try(self.row, tried):
                return
            self.row = self.row.replace(log_seq=self.row.log_seq + 1)
        self.journal.put([tried])

    def wait_for(self, pause: Parked) -> Parked | Stuck:
        """Note what a run has ended with; see :func:`migrator.conductor.migration.waiting.wait_for`."""
        return waiting.wait_for(self, pause)

    def forget_writes(self) -> None:
        """Forget what bodies have collected for the next commit."""
        self._fields, self._instance_fields, self._cleanups, self._will_call = {}, {}, [], False
        self._cleanups_held, self._cleanups_run, self._events = None, [], []

    def note_waiting(self, why: str | None) -> None:
        """Write what it waits for, for whoever asks; the next commit takes it away.

        :param why: a sentence; None: nothing that is to be told.
        """
        why = None if why is None else base.text(why, protocol.LONGEST_REASON)
        if self.row.waits_for != why and self.tools.database.migrations.note_progress(self.row, {'waits_for': why}):
            self.row = self.row.replace(waits_for=why)

    def note_silence(self, host: str, seconds: float, answers: bool, helps: str = '') -> str | None:
        """Write of whose silence it waits for the end, and return that; None: it is known what it waits for.

        :param seconds: how long that has lasted.
        :param answers: whether the host answers, and only does not tell of this guest.
        :param helps: what to do about it.
        """
        known = self.row.waits_for or ''
        silence, other = _SILENCES[answers].format(host), _SILENCES[not answers].format(host)
        if known and known.endswith(helps) and not known.startswith(other):
            return None
        known = known if known.startswith(silence) else f'{silence}{self.since(seconds)}'
        self.note_waiting(f'{known}{helps}')
        return self.row.waits_for

    def is_said_silent(self, host: str) -> bool:
        """Whether it is written that a host has not answered."""
        return (self.row.waits_for or '').startswith(_SILENCES[False].format(host))

    def end_silence(self, host: str) -> None:
        """Take back what was written of a host's silence, for it has told where the guest is."""
        why = self.row.waits_for
        # Whoever has written it: by its words.
        if why is not None and why.startswith(tuple(words.format(host) for words in _SILENCES.values())):
            if self.tools.database.migrations.note_progress(self.row, {'waits_for': None}):
                self.row = self.row.replace(waits_for=None)

    def since(self, seconds: float) -> str:
        """Return in words since when something has lasted that began so many seconds ago."""
        began = self.now() - datetime.timedelta(seconds=seconds)
        return f'since {began:%Y-%m-%d %H:%M:%S} UTC'

    # --- what a saga asks --------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """Which candidate this is; the first is 1."""
        return self.row.attempt

    @property
    def outcome(self) -> str | None:
        """None, 'forward' or 'back'."""
        return self.row.outcome

    @property
    def ended(self) -> bool:
        """Whether its end has been committed."""
        return self.row.ended

    @property
    def against(self) -> str | None:
        """Why it should turn back: an abort that was asked for, or a failure."""
        if self.row.abort_requested_at is not None:
            return f'Aborted: asked for by {self.row.abort_requested_by or "somebody"}.'
        return self._against

    def note_sent(self, step: str) -> None:
        """Note that a step's order has gone to its host, answered or not."""
        self._sent[self.attempt, self.row.epoch, step] = True

    def note_unsent(self, step: str) -> None:
        """Note that a step's order could not go to its host yet, which has no place for one more call."""
        self._sent.setdefault((self.attempt, self.row.epoch, step), False)

    def is_unsent(self, step: str) -> bool:
        """Whether it is certain that nobody was told of a step in this epoch, though its intent is in the journal."""
        return self._sent.get((self.attempt, self.row.epoch, step)) is False

    def need_not_settle(self, step: str) -> bool:
        """Whether the pivot has only waited for a place among the calls to its source, which has left none without an
        answer.
        """
        return (
            self.is_unsent(step) and not self.tools.hosts.unanswered_for(self.source) and not self.is_down(self.source)
        )

    def turn_against(self, reason: str) -> None:
        """Note a failure as the wish to turn back."""
        self._against = reason

    def enter(self, status: str) -> None:
        """Have a status written with the next commit."""
        self.will(status=status)

    def commit(self, records: Sequence[log.StepRecord] = (), outcome: str | None = None) -> None:
        """Write records, outcome, and what bodies have collected by :meth:`will`, in one guarded transaction.

        :raises migrator.exception.NotOwner: nothing was written; read everything anew.
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
                return self.against or str(record.result.get('reason'))
        return self.against

    def has_next_attempt(self) -> bool:
        """Whether another candidate may be tried: none was named, no abort is wished, the source answers (no candidate
        could have the guest otherwise), and retries are left.
        """
        if self.row.abort_requested_at is not None or self.row.requested_host is not None:
            return False
        chosen = self.record('move_allocation')
        if chosen is None or not chosen.input or self.tools.hosts.unanswered_for(self.source):
            return False
        retries = self.tools.options.migrate_max_retries
        return retries < 0 or self.attempt <= retries

    def begin_next_attempt(self) -> None:
        """Commit the start of the next attempt; what speaks against the last one is in its records."""
        self.will(attempt=self.attempt + 1, dest_compute=None, dest_node=None, dest_host=None)
        self.commit()
        self._against = None
        self.ledger.forget_tries()

    def undone(self) -> None:
        """Commit the end of a migration that was undone: cancelled because asked, error if the guest is lost, or
        failed.

        What came of an abort begins with the status. It is in the row since the outcome is; an abort that came later
        has changed nothing.
        """
        asked = self.row.abort_requested_at is not None
        verdict = self.row.abort_verdict or f'{Status.FAILED}: it was being unwound already: {self.row.failure}'
        if self.lost:
            verdict = f'{Status.ERROR}: the guest was lost'
            self.change_instance(vm_state='error')
        status = verdict.partition(':')[0]
        self.will(status=status, **({'abort_verdict': verdict} if asked else {}))
        self.commit()

    # --- what bodies collect -----------------------------------------------------------------------------------------

    def will(self, **fields: Any) -> None:
        """Have columns of the migration written with the next commit."""
        self._fields |= fields

    def wake_by(self, moment: float) -> None:
        """Be woken then, or earlier if something else asks for that (monotonic seconds)."""
        self.wake_at = moment if self.wake_at is None else min(self.wake_at, moment)

    def will_call(self) -> None:
        """Have the boot_ids of the hosts read in the next commit: what follows it is a call to one of them."""
        self._will_call = True

    def change_instance(self, **fields: Any) -> None:
        """Have columns of the instance written with the next commit."""
        self._instance_fields |= fields

    def defer(
        self, host: str, step: str, reason: str, input_: dict[str, Any] | None = None, alarm: str | None = None
    ) -> None:
        """Have a debt of a host written with the next commit; the migration goes on without it.

        :param alarm: why it cannot be paid without a person.
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
        """Have nothing that is owed for the instance so far paid without a person, from the next commit on."""
        self._cleanups_held = why

    def paid(self, host: str, step: str | None = None, migration_uuid: str | None = None) -> None:
        """Have a debt of a host taken off the list with the next commit.

        :param step: None: all that it owes for the migration. :param migration_uuid: None: this migration.
        """
        self._cleanups_run.append((migration_uuid or self.row.uuid, host, step))

    # --- what bodies look up -----------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The source host."""
        return self.row.source_compute

    @property
    def destination(self) -> str | None:
        """The destination of the newest attempt; None before one is chosen."""
        return self.row.dest_compute

    @property
    def guest(self) -> instance.Instance:
        """The instance, or, where it was deleted meanwhile, as much of it as a host needs to clean up after it."""
        return self.instance or instance.stand_in(self.row.instance_uuid, self.row.source_compute)

    def is_deleted(self) -> bool:
        """Whether the instance is gone from the database; asked there, for it may be deleted in the middle."""
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
        """Whether the guest was found nowhere."""
        return any((record.result or {}).get('lost') for record in self.journal.of_attempt(self.attempt))

    def record(self, step: str, direction: str = log.DO) -> log.StepRecord | None:
        """Return the present attempt's record of a step."""
        return self.journal.find(self.attempt, step, direction)

    def tried(self) -> dict[str, str]:
        """Return the hosts of earlier attempts, each with why it could not be."""
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
        """Return what a step of the present attempt came to; {} where it is not done."""
        record = self.record(step)
        return dict(record.result or {}) if record is not None else {}

    def first_try(self, step: str) -> bool:
        """Whether the intent of a step was committed in this very run, and this is the first act on it."""
        key = (self.attempt, step, log.DO)
        if key in self._first_tries:
            self._first_tries.discard(key)
            return True
        return False

    def now(self) -> datetime.datetime:
        """Return the present time, for a column that a person reads."""
        return self.tools.threads.clock.now()

    # --- the fence ---------------------------------------------------------------------------------------------------

    def guard(self) -> None:
        """Make sure, in the database, that this conductor still owns it: between reading generations and writing.

        :raises migrator.exception.NotOwner: it does not.
        """
        self.commit()

    def raise_epoch(self, seen: int = 0, seen_tenure: int | None = None) -> None:
        """Begin a new epoch, in which hosts refuse what was sent before: the settling epoch.

        :param seen: the highest epoch that a host has told of.
        :param seen_tenure: above which the tenure of the instance is raised as well, so that hosts refuse what other
            migrations of it have sent; None: it stays.
        :raises migrator.exception.NotOwner: it is another's.
        :raises migrator.exception.OddAnswer: no conductor has given such a one.
        """
        epoch, told = max(self.row.epoch, seen) + 1, max(seen, seen_tenure or 0)
        if told >= protocol.HIGHEST or epoch > protocol.STORABLE:
            raise exception.OddAnswer(hosts=' or '.join(self.hosts), seen=max(told, epoch - 1))
        write = Write(raise_epoch=epoch, raise_tenure=seen_tenure, boots_of=self.hosts)
        self.row, boots = self.tools.database.migrations.commit(self.row, write)
        self.boots |= boots
        self.settling = True
        self.seen.clear()
        self.unsure.clear()
        self.ledger.forget_stuck()

    def reread_boots(self) -> None:
        """Look the hosts' boot_ids up again.

        :raises migrator.exception.NotOwner: the migration is another's, or in another epoch.
        """
        row, boots = self.tools.database.migrations.reread(self.row)
        if (row.owner, row.epoch) != (self.row.owner, self.row.epoch):
            raise exception.NotOwner(migration_uuid=row.uuid, owner=self.row.owner, epoch=self.row.epoch)
        self.boots |= boots

    # --- hosts -------------------------------------------------------------------------------------------------------

    def order(self, host: str, step: str) -> protocol.Command:
        """Return the head of a call to a host."""
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
        """Take in what a host reports of a step; an older epoch's does not replace a newer one's."""
        if report.epoch > max(self.row.epoch, protocol.HIGHEST):
            # Kept, it would stand for ever before whatever the host reports next.
            LOG.warning('Ignoring a report of %s with epoch %d from %s', report.step, report.epoch, report.host)
            return
        key = (report.host, report.step)
        known = self.reports.get(key)
        newer = known is None or report.epoch > known.epoch
        if newer or (known and report.epoch == known.epoch and known.state == protocol.WorkState.RUNNING):
            self.reports[key] = report
        self.unsure.discard(key)
        self.heard_at = self.tools.threads.clock.monotonic()

    def take_observation(self, observation: protocol.Observation) -> None:
        """Take in what a host said when polled."""
        self.heard_at = self.tools.threads.clock.monotonic()
        self.unresponsive.pop(observation.host, None)
        if observation.refusal is not None:
            return
        self.seen[observation.host] = observation
        going_on = {report.step for report in observation.reports}
        for host, step in list(self.reports):
            running = self.reports[host, step].state == protocol.WorkState.RUNNING
            if host == observation.host and running and step not in going_on:
                # The host does not know of it any more: it has been restarted.
                del self.reports[host, step]
        self.unsure = {key for key in self.unsure if key[0] != observation.host}
        for report in observation.reports:
            self.take_report(report)

    def note_unresponsive(self, host: str) -> None:
        """Note that a host has answered, and has not said where this guest is: its hypervisor does not tell."""
        self.unresponsive.setdefault(host, self.tools.threads.clock.monotonic())

    def unresponsive_for(self, host: str) -> float:
        """Return for how many seconds a host has answered, and not said where this guest is."""
        now = self.tools.threads.clock.monotonic()
        return now - self.unresponsive.get(host, now)

    def is_down(self, host: str) -> bool:
        """Whether a host is down: declared so, or called down for its silence and long silent to this conductor too.

        A host that is merely silent is not down, and nothing is decided against it.
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
