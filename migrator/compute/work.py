# SPDX-License-Identifier: Apache-2.0

"""The work that conductors have requested from this host, for each guest and migration.

*Epoch check.* The host refuses a command for another boot. It refuses a tenure that is lower than one seen for the
guest, or equal to the tenure of another migration. Within a tenure it refuses a lower epoch, and an equal epoch from
another owner. Work that was accepted in an earlier epoch may go on. It then counts as work of the newest epoch.

*One guest, one sequence.* The host does the steps for one guest one after the other, whichever migrations they belong
to. A repeated command re-attaches to its work or gets the stored report. The same work never runs twice at once. A
rollback cancels the earlier pending work of its own migration, and waits for that work to end, because it comes after
it in the sequence. Work also waits for the driver calls (abort, force-complete) that another migration has left in the
driver.

*Reports.* The host keeps the report of a step until a conductor acknowledges it. The step, its epoch and its state
stay until the process ends, so that a late duplicate does nothing. A live migration runs at most once per process. A
post step or a rollback that failed runs again when a conductor sends it again, because it observes first.
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
#: Steps whose call returns when the step has ended. They send no event.
ANSWERED = frozenset({'check_can_live_migrate_destination', 'check_can_live_migrate_source'})
#: Steps that run again if they failed and a conductor sends them again, even within one epoch.
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
    """The outcome of one step's work.

    :ivar state: done, failed or cancelled; see :class:`~migrator.objects.protocol.WorkState`.
    :ivar result: what the step returned, or the facts of its failure; JSON-safe or an object.
    :ivar reason: why it failed, for operators.
    :ivar returned: whether the driver's live_migration has returned, or can no longer be called (live migration only).
    :ivar verdict: the verdict that the driver returned; '' if it was not called or did not observe the end of the job.
    """

    state: str
    result: Any = None
    reason: str | None = None
    returned: bool = False
    verdict: str = ''


class Work(driver.CancelToken):
    """One step's work for one migration, and the token that cancels it.

    :ivar epoch: the newest epoch in which a conductor requested the work.
    :ivar begun: whether the work is no longer pending behind other work of the guest.
    :ivar started: whether the hypervisor has the job (live migration only).
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

    def log_context(self) -> contextlib.AbstractContextManager[None]:
        """Return the log context of the work: its migration, its instance and the request behind them."""
        # Created on demand, because thousands of works may wait.
        request = context.admin_context(self.request_id) if self.request_id is not None else None
        return context.about(request, self.uuid, self.instance_uuid)

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled if the work was cancelled; see :meth:`driver.CancelToken.raise_if_cancelled`."""
        if self.cancelled:
            raise exception.Cancelled(what=f'{self.step} of migration {self.uuid}')

    def acknowledge(self) -> None:
        """Drop the report, and keep only what a late duplicate needs as an answer."""
        if self.outcome is not None:
            self.kept = False
            if self.step != LIVE_MIGRATION:
                self.outcome = Outcome(self.outcome.state, None, self.outcome.reason)


@dataclasses.dataclass(frozen=True)
class Seen:
    """The state of one migration on this host, for a poll.

    :ivar refusal: why the host refuses the poll; None if it does not.
    :ivar epoch: the highest epoch seen.
    :ivar tenure: the highest tenure seen for the guest.
    """

    refusal: str | None
    epoch: int
    tenure: int = 0
    entry: str = Entry.NONE
    verdict: str = ''
    reports: tuple[Report, ...] = ()


class _Guest:
    """The state of one guest, kept until the process ends.

    :ivar tenure: the highest tenure seen.
    :ivar holder: the migration of that tenure.
    :ivar pending: the works of every migration that have not ended, in sequence; the first one may be running.
    :ivar calls: the driver calls that run beside the sequence, each with its migration.
    """

    __slots__ = ('calls', 'holder', 'pending', 'tenure')

    def __init__(self) -> None:
        self.tenure = 0
        self.holder = ''
        self.pending: list[Work] = []
        # A tuple, because a set for each of thousands of guests would cost as much memory as their works.
        self.calls: tuple[tuple[str, str], ...] = ()

    def next(self) -> Work | None:
        """Return the first work and mark it as begun, or None if there is no work that can begin now."""
        first = self.pending[0] if self.pending else None
        if first is None or first.begun or any(migration != first.uuid for _, migration in self.calls):
            return None
        first.begun = True
        return first


class _Record:
    """The state of one migration, kept until the process ends."""

    __slots__ = ('epoch', 'guest', 'owner', 'reply_to', 'tenure', 'works')

    def __init__(self, guest: _Guest) -> None:
        self.guest = guest
        self.tenure = 0
        self.epoch = 0
        self.owner: str | None = None
        self.reply_to = ''
        self.works: dict[str, Work] = {}


class Orders:
    """The work of every migration on this host since the service started.

    :param host: the name of this host.
    :param boot_id: the boot of this service.
    :param threads: makes the locks.
    :param events: the client that reports to a conductor when a step has started or ended.
    :param pool: runs steps and sends messages.
    :param foreign_boot: called after a command for another boot was refused.
    :param compares_tenure: whether tenures are compared. A service capped at an earlier version compares only epochs.
    :ivar starting: True until the reply to compute_started has been applied; every command is refused until then.
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
        """Accept or refuse a step, which runs when all earlier work of its guest has ended.

        :param body: called with the :class:`Work`; returns the result or an :class:`Outcome`.
        :param submit: hands the work to an executor that must call :meth:`run`; by default the pool of this object.
        :param stop: given by a rollback; called for each work that the rollback has cancelled.
        :param at_start: whether the step comes from the reply to compute_started.
        """
        stopped: list[Work] = []
        with self._lock:
            record, answer = self._admit(command, at_start)
            if record is not None:
                work = record.works.get(command.step)
                if work is None or self._needs_new_work(record, work, command):
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
        """Accept or refuse a command that adds no work, such as an abort."""
        with self._lock:
            answer = self._admit(command, False)[1]
        if answer.refusal == Refusal.BOOT:
            self._foreign_boot()
        return answer

    def adopt(self, command: Command) -> bool:
        """Take epoch and owner from the reply to compute_started, and return whether no newer epoch was seen."""
        with self._lock:
            return self._admit(command, True)[0] is not None

    def wait(self, command: Command, seconds: float) -> Answer:
        """Wait until the work of a command ends, for at most ``seconds``, and return the answer."""
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
        """Mark the live migration of a command's migration as cancelled, and return its work if there is any.

        The body of the work checks the mark before it calls the driver, and again when the hypervisor has the job. An
        abort between the two is therefore not lost.
        """
        with self._lock:
            work = self._records[command.migration_uuid].works.get(LIVE_MIGRATION)
            if work is not None and work.outcome is None:
                work.cancelled = True
            return work

    def may_run(self, command: Command) -> bool:
        """Return whether the hypervisor may have a job of the command's migration.

        That is a job of this boot that has started and not ended, or a job of an earlier boot.
        """
        with self._lock:
            work = self._records[command.migration_uuid].works.get(LIVE_MIGRATION)
            return work is None or (work.started and work.outcome is None)

    def begin_call(self, what: str, migration_uuid: str) -> bool:
        """Record that a driver call is about to run beside the sequence, if it may run.

        :returns: False if the call must not run: the previous such call of this migration has not returned, or another
            migration's work or call is in the driver.
        """
        with self._lock:
            guest = self._records[migration_uuid].guest
            first = guest.pending[0] if guest.pending else None
            others = {migration for _, migration in guest.calls} | ({first.uuid} if first and first.begun else set())
            if (what, migration_uuid) in guest.calls or others - {migration_uuid}:
                return False
            guest.calls += ((what, migration_uuid),)
            return True

    def end_call(self, what: str, migration_uuid: str) -> None:
        """Record that a driver call has returned, and begin the next work if it waited for the call."""
        with self._lock:
            guest = self._records[migration_uuid].guest
            guest.calls = tuple(call for call in guest.calls if call != (what, migration_uuid))
            following = guest.next()
        if following is not None:
            self._begin(following)

    # --- work ------------------------------------------------------------------------------------------------------

    def run(self, work: Work) -> None:
        """Run a step's work in the calling thread, and end it."""
        with self._lock:
            if work.entry == Entry.QUEUED:
                work.entry = Entry.STARTED
        with work.log_context():
            # The caller of a check gets the report as the answer, so an event would only repeat it.
            self.end(work, self._outcome(work), send_event=work.step not in ANSWERED)

    def attach(self, work: Work) -> None:
        """Record that the job of a work already runs; its submit callable calls this instead of an executor."""
        work.entry = Entry.STARTED
        work.started = True

    def started(self, work: Work) -> bool:
        """Record that the hypervisor has the job, report it, and return whether the work was cancelled."""
        with self._lock:
            work.started = True
            record = self._records[work.uuid]
            report = self._report(record, work)
            reply_to, cancelled = record.reply_to, work.cancelled
        self._send_later(reply_to, report, work)
        return cancelled

    def end(self, work: Work, outcome: Outcome, send_event: bool = True) -> None:
        """Store the outcome of a work, begin the next work of the guest, and report to the owner.

        :param send_event: whether to send the report as an event.
        """
        with self._lock:
            if work.outcome is not None:
                return
            record = self._records[work.uuid]
            work.outcome = outcome
            work.body = work.submit = None
            work.entry = Entry.RETURNED if outcome.returned else Entry.NONE
            waiters, work.waiters = work.waiters, ()
            record.guest.pending.remove(work)
            report, reply_to = self._report(record, work), record.reply_to
            following = record.guest.next()
        for waiter in waiters:
            waiter.set()
        if following is not None:
            self._begin(following)
        if send_event:
            self._send_later(reply_to, report, work)

    def cancelled_in_queue(self, migration_uuid: str, send_event: bool = True) -> None:
        """End a live migration whose Future was cancelled, so that the driver is never called."""
        work = self._records[migration_uuid].works[LIVE_MIGRATION]
        self.end(work, _cancelled(exception.Cancelled(what=f'Queued migration {migration_uuid}')), send_event)

    # --- polls -----------------------------------------------------------------------------------------------------

    def observe(self, command: Command) -> Seen:
        """Return the state of a migration; raise its epoch, and change nothing else."""
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
        """Drop a report that is in the journal, unless the work has a newer epoch than the acknowledgement."""
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
            uuid = command.migration_uuid
            # If the host stored such a number, it would refuse every later command for the guest.
            LOG.error(
                'Refused a command whose epoch or tenure is out of range: %(step)s of migration %(migration)s with '
                'epoch %(epoch)d and tenure %(tenure)d; check the row of the migration in the database',
                {'step': command.step, 'migration': uuid, 'epoch': command.epoch, 'tenure': command.tenure},
            )
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
        # Interned, because every message has its own copy of the names of a few conductors.
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

    def _needs_new_work(self, record: _Record, work: Work, command: Command) -> bool:
        """Return whether a command needs a new work although its step already has one."""
        if work.step == LIVE_MIGRATION:
            return False
        if command.epoch == work.epoch:
            failed = work.outcome is not None and work.outcome.state != WorkState.DONE
            return failed and work.step in REPEATABLE
        if work.outcome is not None:
            return True
        # Running work counts as work of the newest epoch, unless a later step of the same migration is pending.
        same_migration = [other for other in record.guest.pending if other.uuid == work.uuid]
        return work.cancelled or same_migration[-1] is not work

    def _enqueue(self, record: _Record, work: Work, undoing: bool) -> list[Work]:
        """Append a work to its guest's sequence, begin it if it is first, and return the works it has cancelled."""
        pending = record.guest.pending
        before = [other for other in pending if other.uuid == work.uuid]
        pending.append(work)
        if record.guest.next() is work and work.submit is not None:
            try:
                work.submit(work)
            except exception.QueueClosed:
                pending.remove(work)
                raise
        # An owner that requests a later step has seen how the earlier ones ended.
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
            # Hold the lock, as accept() does, so that a concurrent cancel sees the work either not submitted or queued.
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
                # A live migration checks this itself: it may have to abort a job that an earlier boot has started.
                work.raise_if_cancelled()
            result = work.body(work) if work.body is not None else None
            bad = base.cannot_travel(result) if not isinstance(result, Outcome) else None
            if bad is not None:
                # Such a result would make every reply fail, and the owner would never receive the end of the step.
                raise exception.DriverError(
                    f'{work.step} returned {bad}: correct the driver to return serializable data'
                )
        except exception.Cancelled as error:
            return _cancelled(error)
        except Exception as error:  # every failure has to be reported to the owner
            known = isinstance(error, exception.MigratorException)
            text = exception.told(error)
            # base.text replaces characters that cannot be encoded, and so could not be logged.
            reason = base.text(text if known else f'{self._host} failed in {work.step}: {text}')
            LOG.warning(
                'Step failed: %(step)s of migration %(migration)s: %(reason)s',
                {'step': work.step, 'migration': work.uuid, 'reason': reason},
                exc_info=not known,
            )
            facts: dict[str, Any] = {'error': type(error).__name__}
            if isinstance(error, exception.GuestStillHere):
                facts['here'] = True
            elif isinstance(error, exception.GuestNotFound):
                facts['gone'] = True
            if live:
                facts['verdict'] = ''
            return Outcome(WorkState.FAILED, facts, reason, returned=live)
        return result if isinstance(result, Outcome) else Outcome(WorkState.DONE, result)

    def _send_later(self, reply_to: str, report: Report, work: Work) -> None:
        # The pool sends it, so that a broker that does not answer blocks neither a slot nor the work of a guest. One
        # sender at a time sends all reports, so that the reports of a step arrive in order.
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
            with work.log_context():
                try:
                    self._events.step_ended(reply_to, report)
                except Exception as error:  # noqa: BLE001 -- the report is kept for the owner's poll
                    LOG.warning(
                        'Could not send a report to %(conductor)s: %(step)s of migration %(migration)s: %(error)s; the '
                        'next poll gets the report',
                        {'conductor': reply_to, 'step': report.step, 'migration': work.uuid, 'error': error},
                    )


def _cancelled(error: exception.MigratorException) -> Outcome:
    return Outcome(WorkState.CANCELLED, {'cancelled': True, 'error': type(error).__name__}, str(error))
