# SPDX-License-Identifier: Apache-2.0

"""What this host has been asked to do, per guest and migration.

The fence: a command of another boot is refused. So is one whose tenure is lower than one seen for the guest, or equal
and another migration's; within a tenure, one of a lower epoch than one seen, and one of the same epoch from another
owner. Work that was taken in an earlier epoch may go on, and counts as the newest epoch's.

The line: on this host the work for one guest is done one step after the other, whichever migration it is for. The same
command again re-attaches to the work, or gets the stored answer; it is never done twice at once. A rollback first
cancels the work of its own migration before it in the line, and waits for it by standing in line itself. The work of a
migration also waits for the driver calls (abort, force-complete) that an earlier migration has left in the driver.

The report of a step is kept until it is acknowledged; after that the step, its epoch and its state stay for the life
of the process, so that a late duplicate does nothing. A live migration is made at most once in the life of a process.
A post step or a rollback that failed is done again when asked again, for it observes first.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.objects import Answer, Command, Entry, EventClient, Refusal, Report, WorkState, base
from migrator.virt import driver

LOG = logging.getLogger(__name__)


LIVE_MIGRATION = 'live_migration'
#: Steps whose call is answered when they are done.
ANSWERED = frozenset({'check_can_live_migrate_destination', 'check_can_live_migrate_source'})
#: Steps that are done again when they failed and are asked for again, also within one epoch.
REPEATABLE = frozenset(
    {
        'post_live_migration_at_source',
        'post_live_migration_at_destination',
        'rollback_live_migration_at_source',
        'rollback_live_migration_at_destination',
    }
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a step's work came to.

    :ivar state: done, failed or cancelled; see :class:`~migrator.objects.protocol.WorkState`.
    :ivar result: what the step returned, or what is known of its failure; JSON-safe or an object.
    :ivar reason: why it failed, for a person.
    :ivar returned: the driver's move has returned, or cannot be called any more (live migration only).
    :ivar verdict: what the driver said that its move came to; '' if it was not called, or nobody saw the end.
    """

    state: str
    result: Any = None
    reason: str | None = None
    returned: bool = False
    verdict: str = ''


class Work(driver.CancelToken):
    """One step's work for one migration; also the token by which its body learns that it is no longer wanted.

    :ivar epoch: the newest in which it was asked for.
    :ivar begun: its turn has come.
    :ivar started: the hypervisor has the job (live migration only).
    """

    __slots__ = (
        'begun',
        'body',
        'cancelled',
        'entry',
        'epoch',
        'instance_uuid',
        'kept',
        'outcome',
        'request_id',
        'started',
        'step',
        'submit',
        'uuid',
        'waiters',
    )

    def __init__(
        self, command: Command, body: Callable[[Work], Any] | None, submit: Callable[[Work], None] | None = None
    ) -> None:
        self.uuid = command.migration_uuid
        self.instance_uuid = command.instance_uuid
        request = context.subject().request
        self.request_id = request.request_id if request is not None else None
        self.step = command.step
        self.epoch = command.epoch
        self.body = body
        self.submit = submit
        self.begun = False
        self.cancelled = False
        self.started = False
        self.entry: str = Entry.QUEUED if command.step == LIVE_MIGRATION else Entry.NONE
        self.outcome: Outcome | None = None
        self.kept = True
        self.waiters: tuple[executors.Event, ...] = ()

    def about(self) -> contextlib.AbstractContextManager[None]:
        """Let what this thread logs within the block name the migration, its instance, and the request behind them."""
        # Made when it is needed, for thousands of works may wait.
        request = context.admin_context(self.request_id) if self.request_id is not None else None
        return context.about(request, self.uuid, self.instance_uuid)

    def raise_if_cancelled(self) -> None:
        """Raise if the work is no longer wanted; see :meth:`driver.CancelToken.raise_if_cancelled`."""
        if self.cancelled:
            raise exception.Cancelled(what=f'{self.step} of migration {self.uuid}')

    def acknowledge(self) -> None:
        """Keep only what a late duplicate has to be answered with."""
        if self.outcome is not None:
            self.kept = False
            if self.step != LIVE_MIGRATION:
                self.outcome = Outcome(self.outcome.state, None, self.outcome.reason)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What is known of a migration when it is polled.

    :ivar refusal: why the poll is not answered; None if it is.
    :ivar epoch: the highest seen.
    :ivar tenure: the highest seen for its guest.
    """

    refusal: str | None
    epoch: int
    tenure: int = 0
    entry: str = Entry.NONE
    verdict: str = ''
    reports: tuple[Report, ...] = ()


class _Guest:
    """What is known of one guest; it stays for the life of the process.

    :ivar tenure: the highest seen.
    :ivar holder: the migration of that tenure.
    :ivar line: the works that have not ended, of every migration.
    :ivar calls: what is asked of the driver beside the line, and for which migration.
    """

    __slots__ = ('calls', 'holder', 'line', 'tenure')

    def __init__(self) -> None:
        self.tenure = 0
        self.holder = ''
        self.line: list[Work] = []
        # Most have none, and thousands may wait: a set would cost as much as their work.
        self.calls: tuple[tuple[str, str], ...] = ()

    def next(self) -> Work | None:
        """Return the work whose turn has come, and note that it has begun; None: there is none, or it has to wait."""
        first = self.line[0] if self.line else None
        if first is None or first.begun or any(migration != first.uuid for _, migration in self.calls):
            return None
        first.begun = True
        return first


class _Record:
    """What is known of one migration; it stays for the life of the process."""

    __slots__ = ('epoch', 'guest', 'owner', 'reply_to', 'tenure', 'works')

    def __init__(self, guest: _Guest) -> None:
        self.guest = guest
        self.tenure = 0
        self.epoch = 0
        self.owner: str | None = None
        self.reply_to = ''
        self.works: dict[str, Work] = {}


class Orders:
    """All that this host has been asked to do since it started.

    :param host: the name of this host.
    :param boot_id: of this life.
    :param threads: where its lock comes from.
    :param events: whom to tell that a step has started or ended.
    :param pool: where steps run, and messages are sent from.
    :param foreign_boot: called when a command for another boot was refused.
    :param compares_tenure: whether tenures are compared; a service capped at an earlier version compares epochs alone.
    :ivar starting: the answer to compute_started has not been applied: nothing is taken.
    """

    def __init__(
        self,
        host: str,
        boot_id: str,
        threads: executors.Threads,
        events: EventClient,
        pool: executors.BoundedExecutor,
        foreign_boot: Callable[[], None],
        compares_tenure: bool = True,
    ) -> None:
        self._host = host
        self._boot_id = boot_id
        self._threads = threads
        self._events = events
        self._pool = pool
        self._foreign_boot = foreign_boot
        self._lock = threads.lock()
        self._compares_tenure = compares_tenure
        self._guests: dict[str, _Guest] = {}
        self._records: dict[str, _Record] = {}
        self._outbox_lock = threads.lock()
        self._outbox: collections.deque[tuple[str, Report, Work]] = collections.deque()
        self._sending = False
        self.starting = True

    # --- commands --------------------------------------------------------------------------------------------------

    def accept(
        self,
        command: Command,
        body: Callable[[Work], Any] | None,
        *,
        submit: Callable[[Work], None] | None = None,
        stop: Callable[[Work], None] | None = None,
        at_start: bool = False,
    ) -> Answer:
        """Take a step, to be done when it is first in its migration's line; answer at once.

        :param body: called with its :class:`Work`; what it returns is the result, or the :class:`Outcome`.
        :param submit: hands the work to who runs it, who has to call :meth:`run`; this object's pool if not given.
        :param stop: given by a step that undoes: called for each work that it has cancelled.
        :param at_start: it is in the answer to compute_started.
        """
        stopped: list[Work] = []
        with self._lock:
            record, answer = self._admit(command, at_start)
            if record is not None:
                work = record.works.get(command.step)
                if work is None or self._anew(record, work, command):
                    work = Work(command, body, submit or self._submit)
                    try:
                        stopped = self._enqueue(record, work, undoing=stop is not None)
                    except exception.QueueClosed:
                        return self._refuse(command, Refusal.STOPPING)
                work.epoch = command.epoch
                answer = self._answer(record, work)
        if answer.refusal == Refusal.BOOT:
            self._foreign_boot()
        for other in stopped:
            if stop is not None:
                stop(other)
        return answer

    def admit(self, command: Command) -> Answer:
        """Return whether a command is taken that is no work of its own, such as an abort."""
        with self._lock:
            answer = self._admit(command, False)[1]
        if answer.refusal == Refusal.BOOT:
            self._foreign_boot()
        return answer

    def adopt(self, command: Command) -> bool:
        """Take over epoch and owner from the answer to compute_started; False if a newer epoch was seen."""
        with self._lock:
            return self._admit(command, True)[0] is not None

    def wait(self, command: Command, seconds: float) -> Answer:
        """Return the answer to a command when its work has ended, or as it stands after ``seconds``."""
        with self._lock:
            record = self._records[command.migration_uuid]
            work = record.works[command.step]
            if work.outcome is not None:
                return self._answer(record, work)
            ended = self._threads.event()
            work.waiters = (*work.waiters, ended)
        ended.wait(seconds)
        with self._lock:
            work.waiters = tuple(waiter for waiter in work.waiters if waiter is not ended)
            return self._answer(record, work)

    def cancel_live(self, command: Command) -> Work | None:
        """Mark the live migration of a command's migration as no longer wanted; return it, or None if there is none.

        Its body looks at that before it calls the driver, and when the hypervisor has the job, so that an abort in
        between is not lost.
        """
        with self._lock:
            work = self._records[command.migration_uuid].works.get(LIVE_MIGRATION)
            if work is not None and work.outcome is None:
                work.cancelled = True
            return work

    def may_run(self, command: Command) -> bool:
        """Whether the hypervisor may have a job of the command's migration: one of this boot that has started and not
        ended, or one of an earlier boot.
        """
        with self._lock:
            work = self._records[command.migration_uuid].works.get(LIVE_MIGRATION)
            return work is None or (work.started and work.outcome is None)

    def begin_call(self, what: str, migration_uuid: str) -> bool:
        """Note that the driver is about to be asked for something beside the line.

        :returns: False: it must not be. The last such call of this migration has not returned, or another migration's
            work is in the driver.
        """
        with self._lock:
            guest = self._records[migration_uuid].guest
            first = guest.line[0] if guest.line else None
            others = {migration for _, migration in guest.calls} | ({first.uuid} if first and first.begun else set())
            if (what, migration_uuid) in guest.calls or others - {migration_uuid}:
                return False
            guest.calls += ((what, migration_uuid),)
            return True

    def end_call(self, what: str, migration_uuid: str) -> None:
        """Note that such a call has returned, and let the next work in line begin if it has waited for that."""
        with self._lock:
            guest = self._records[migration_uuid].guest
            guest.calls = tuple(call for call in guest.calls if call != (what, migration_uuid))
            following = guest.next()
        if following is not None:
            self._begin(following)

    # --- work ------------------------------------------------------------------------------------------------------

    def run(self, work: Work) -> None:
        """Do a step's work, in the calling thread, and end it."""
        with self._lock:
            if work.entry == Entry.QUEUED:
                work.entry = Entry.STARTED
        with work.about():
            # A check is answered by the call itself; an event would tell its caller the same again.
            self.end(work, self._outcome(work), tell=work.step not in ANSWERED)

    def attach(self, work: Work) -> None:
        """Note that the job of a work runs already; called by who was to submit it."""
        work.entry = Entry.STARTED
        work.started = True

    def started(self, work: Work) -> bool:
        """Note that the hypervisor has the job; return whether it is no longer wanted."""
        with self._lock:
            work.started = True
            record = self._records[work.uuid]
            report = self._report(record, work)
            reply_to, cancelled = record.reply_to, work.cancelled
        self._tell(reply_to, report, work)
        return cancelled

    def end(self, work: Work, outcome: Outcome, tell: bool = True) -> None:
        """Store what a work came to, let the next in line begin, and tell the owner.

        :param tell: whether to send the event.
        """
        with self._lock:
            if work.outcome is not None:
                return
            record = self._records[work.uuid]
            work.outcome = outcome
            work.body = work.submit = None
            work.entry = Entry.RETURNED if outcome.returned else Entry.NONE
            waiters, work.waiters = work.waiters, ()
            record.guest.line.remove(work)
            report, reply_to = self._report(record, work), record.reply_to
            following = record.guest.next()
        for waiter in waiters:
            waiter.set()
        if following is not None:
            self._begin(following)
        if tell:
            self._tell(reply_to, report, work)

    def cancelled_in_queue(self, migration_uuid: str, tell: bool = True) -> None:
        """End a live migration whose Future has been cancelled: the driver was not called and never will be."""
        work = self._records[migration_uuid].works[LIVE_MIGRATION]
        self.end(work, _cancelled(exception.Cancelled(what=f'Migration {migration_uuid}, which waited,')), tell)

    # --- polls -----------------------------------------------------------------------------------------------------

    def observe(self, command: Command) -> Seen:
        """Return what is known of a migration; a poll raises the epoch, and changes nothing else."""
        with self._lock:
            record, answer = self._admit(command, False)
            if record is not None:
                live = record.works.get(LIVE_MIGRATION)
                reports = tuple(self._report(record, work) for work in record.works.values() if work.kept)
                verdict = live.outcome.verdict if live is not None and live.outcome is not None else ''
                entry = live.entry if live is not None else Entry.NONE
                return Seen(None, record.epoch, record.guest.tenure, entry, verdict, reports)
        if answer.refusal == Refusal.BOOT:
            self._foreign_boot()
        return Seen(answer.refusal, answer.seen, answer.seen_tenure)

    def acknowledge(self, migration_uuid: str, step: str, epoch: int) -> None:
        """Forget a report that is safely in the journal; one of an older epoch than the work's says nothing."""
        with self._lock:
            record = self._records.get(migration_uuid)
            work = record.works.get(step) if record is not None else None
            if work is not None and epoch >= work.epoch:
                work.acknowledge()

    # --- below: the lock is held -----------------------------------------------------------------------------------

    def _admit(self, command: Command, at_start: bool) -> tuple[_Record | None, Answer]:
        if self.starting and not at_start:
            return None, self._refuse(command, Refusal.STARTING)
        if command.boot_id != self._boot_id:
            return None, self._refuse(command, Refusal.BOOT)
        if command.is_odd:
            # Remembered, it would keep out whatever else comes for the guest.
            text = (
                'Refused %s of migration %s with epoch %d and tenure %d, out of range: look at its row in the database'
            )
            LOG.error(text, command.step, command.migration_uuid, command.epoch, command.tenure)
            return None, self._refuse(command, Refusal.EPOCH)
        guest = self._guests.setdefault(command.instance_uuid, _Guest())
        tenure = command.tenure if self._compares_tenure else 0
        if 0 < tenure < guest.tenure or (0 < tenure == guest.tenure and command.migration_uuid != guest.holder):
            return None, self._refuse(command, Refusal.TENURE)
        record = self._records.get(command.migration_uuid)
        if record is None:
            record = self._records[command.migration_uuid] = _Record(guest)
        if tenure <= record.tenure:
            if command.epoch < record.epoch:
                return None, self._refuse(command, Refusal.EPOCH)
            if command.epoch == record.epoch and record.owner not in (None, command.owner):
                return None, self._refuse(command, Refusal.EPOCH)
        if tenure:
            guest.tenure, guest.holder, record.tenure = tenure, command.migration_uuid, tenure
        record.epoch = command.epoch
        # There are few conductors, and every message brings their names anew.
        record.owner, record.reply_to = sys.intern(command.owner), sys.intern(command.reply_to)
        return record, Answer(seen=record.epoch, boot_id=self._boot_id, seen_tenure=guest.tenure)

    def _refuse(self, command: Command, refusal: Refusal) -> Answer:
        record, guest = self._records.get(command.migration_uuid), self._guests.get(command.instance_uuid)
        return Answer(
            refusal=refusal.value,
            seen=record.epoch if record is not None else 0,
            boot_id=self._boot_id,
            seen_tenure=guest.tenure if guest is not None else 0,
        )

    def _anew(self, record: _Record, work: Work, command: Command) -> bool:
        if work.step == LIVE_MIGRATION:
            return False
        if command.epoch == work.epoch:
            failed = work.outcome is not None and work.outcome.state != WorkState.DONE
            return failed and work.step in REPEATABLE
        if work.outcome is not None:
            return True
        # What runs counts as the newest epoch's, unless something that undoes it stands behind it.
        mine = [other for other in record.guest.line if other.uuid == work.uuid]
        return work.cancelled or mine[-1] is not work

    def _enqueue(self, record: _Record, work: Work, undoing: bool) -> list[Work]:
        line = record.guest.line
        before = [other for other in line if other.uuid == work.uuid]
        line.append(work)
        if record.guest.next() is work and work.submit is not None:
            try:
                work.submit(work)
            except exception.QueueClosed:
                line.remove(work)
                raise
        # A later step is asked for by who has seen how the earlier ones ended.
        for other in record.works.values():
            other.acknowledge()
        record.works[work.step] = work
        if not undoing:
            return []
        for other in before:
            other.cancelled = True
        return before

    def _answer(self, record: _Record, work: Work) -> Answer:
        report = self._report(record, work)
        return Answer(seen=record.epoch, boot_id=self._boot_id, report=report, seen_tenure=record.guest.tenure)

    def _report(self, record: _Record, work: Work) -> Report:
        outcome = work.outcome
        if outcome is None:
            result = {'started': work.started} if work.step == LIVE_MIGRATION else None
            outcome = Outcome(WorkState.RUNNING, result)
        return Report(
            migration_uuid=work.uuid,
            host=self._host,
            boot_id=self._boot_id,
            step=work.step,
            epoch=record.epoch,
            state=str(outcome.state),
            result=outcome.result,
            reason=outcome.reason,
        )

    # --- below: the lock is not held -------------------------------------------------------------------------------

    def _submit(self, work: Work) -> None:
        self._pool.submit(self.run, work)

    def _begin(self, work: Work) -> None:
        try:
            # As in accept, under the lock: who cancels it finds it not begun, or in the queue.
            with self._lock:
                work.raise_if_cancelled()
                if work.submit is not None:
                    work.submit(work)
        except (exception.Cancelled, exception.QueueClosed) as error:
            self.end(work, _cancelled(error))

    def _outcome(self, work: Work) -> Outcome:
        live = work.step == LIVE_MIGRATION
        try:
            if not live:
                # A live migration looks for itself: the job that an earlier life has started has to be aborted.
                work.raise_if_cancelled()
            result = work.body(work) if work.body is not None else None
            odd = base.cannot_travel(result) if not isinstance(result, Outcome) else None
            if odd is not None:
                # Kept as it is, it would be in the way of every answer, and nobody would hear of the step's end.
                raise exception.DriverError(f'{work.step} returned {odd}: what JSON can carry would do')
        except exception.Cancelled as error:
            return _cancelled(error)
        except Exception as error:  # whatever it was, the owner has to hear of it
            known = isinstance(error, exception.MigratorException)
            told = exception.told(error)
            # No log can hold what no encoding has.
            reason = base.text(told if known else f'{self._host} failed in {work.step}: {told}')
            LOG.warning('%s of migration %s failed: %s', work.step, work.uuid, reason, exc_info=not known)
            facts: dict[str, Any] = {'error': type(error).__name__}
            if isinstance(error, exception.GuestStillHere):
                facts['here'] = True
            elif isinstance(error, exception.GuestNotFound):
                facts['gone'] = True
            if live:
                facts['verdict'] = ''
            return Outcome(WorkState.FAILED, facts, reason, returned=live)
        return result if isinstance(result, Outcome) else Outcome(WorkState.DONE, result)

    def _tell(self, reply_to: str, report: Report, work: Work) -> None:
        # From the pool, so that a broker that does not answer holds up no slot and no line; by one sender, so that
        # what is told of a step arrives in its order.
        with self._outbox_lock:
            self._outbox.append((reply_to, report, work))
            if self._sending:
                return
            self._sending = True
        self._pool.submit(self._send)

    def _send(self) -> None:
        while True:
            with self._outbox_lock:
                if not self._outbox:
                    self._sending = False
                    return
                reply_to, report, work = self._outbox.popleft()
            with work.about():
                try:
                    self._events.step_ended(reply_to, report)
                except Exception as error:  # noqa: BLE001 -- the report is kept for the owner's poll
                    LOG.warning('%s did not hear of %s of %s: %s', reply_to, report.step, report.migration_uuid, error)


def _cancelled(error: exception.MigratorException) -> Outcome:
    return Outcome(WorkState.CANCELLED, {'cancelled': True, 'error': type(error).__name__}, str(error))
