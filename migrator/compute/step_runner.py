# SPDX-License-Identifier: Apache-2.0

"""The runner of the steps that conductors have requested from this host, for each guest and migration.

*Epoch check.* The host refuses a command for another boot. It refuses a tenure that is lower than one seen for the
guest, or equal to the tenure of another migration. Within a tenure it refuses a lower epoch, and an equal epoch from
another owner. It refuses a migration uuid that it knows for another guest. Work that was accepted in an earlier epoch
may go on. It then counts as work of the newest epoch.

*One guest, one sequence.* The host does the steps for one guest one after the other, whichever migrations they belong
to. A repeated command re-attaches to its work or gets the stored report. The same work never runs twice at once. A
rollback cancels the earlier pending work of its own migration, and waits for that work to end, because it comes after
it in the sequence. Work also waits for the driver calls (abort, force-complete) that another migration has left in the
driver.

*Slots.* A live migration that is first in its sequence waits in the queue for a slot. If an earlier boot has started
its job, then the job holds a slot already, and the live migration waits for the end of the job.

*Reports.* The host keeps the report of a step until a conductor acknowledges it. The step, its epoch and its state
stay, so that a late duplicate does nothing. They are dropped when a later migration of the guest has begun, whose
tenure refuses the duplicate, or when the process ends. A live migration runs at most once per process. A post step or a
rollback that failed runs again when a conductor sends it again, because it observes first.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from migrator import context, exception, executors, tracing
from migrator.compute import inherited_jobs, live_migration_queue
from migrator.compute.work import LIVE_MIGRATION, GuestRecord, MigrationRecord, Seen, Work, WorkEnd
from migrator.objects import Answer, Command, Entry, EventClient, Instance, Refusal, Report, WorkState, base
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)


class StepRunner:
    """The steps of every migration on this host since the service started.

    :param host: the name of this host.
    :param boot_id: the boot of this service.
    :param driver: is called to abort a live migration, or to force it to complete.
    :param threads: makes the locks.
    :param events: the client that reports to a conductor when a step has started, or has ended and no caller waits.
    :param pool: runs steps and driver calls.
    :param queue: runs live migrations.
    :param foreign_boot: called after a command for another boot was refused.
    :param around: runs a work by calling the function that it is given, such as :func:`traced`; None: nothing does.
    :ivar boot_id: the given boot.
    :ivar inherited: the jobs of an earlier boot.
    :ivar reports: sends the reports, one at a time, so that the reports of a step arrive in order.
    :ivar starting: True until the reply to compute_started has been applied; every command is refused until then.
    """

    def __init__(
        self,
        host: str,
        boot_id: str,
        driver: ComputeDriver,
        threads: executors.Threads,
        events: EventClient,
        pool: executors.BoundedExecutor,
        queue: live_migration_queue.LiveMigrationQueue,
        foreign_boot: Callable[[], None],
        around: Callable[[Callable[[Work], None], Work], None] | None = None,
    ) -> None:
        self.boot_id = boot_id
        self.pool = pool
        self.queue = queue
        self.inherited = inherited_jobs.InheritedJobs(driver, threads, queue)
        # A pool of its own, so that a broker that does not answer blocks neither a slot nor the work of a guest.
        self.reports = executors.BoundedExecutor(1, threads, name='reports')
        self.starting = True
        self._host = host
        self._driver = driver
        self._threads = threads
        self._events = events
        self._foreign_boot = foreign_boot
        self._run = self.run if around is None else functools.partial(around, self.run)
        self._lock = threads.lock()
        self._guests: dict[str, GuestRecord] = {}
        self._records: dict[str, MigrationRecord] = {}

    # --- commands --------------------------------------------------------------------------------------------------

    def accept(
        self,
        command: Command,
        body: Callable[[Work], Any],
        *,
        wait: float = 0.0,
        cancels: Instance | None = None,
        at_start: bool = False,
        packed: bytes = b'',
    ) -> Answer:
        """Accept or refuse a step, which runs when all earlier work of its guest has ended.

        :param body: called with the :class:`Work`; returns the result or a :class:`WorkEnd`.
        :param wait: seconds to wait for the end of the step.
        :param cancels: given by a rollback: its guest, whose earlier work of the same migration is cancelled.
        :param at_start: whether the step comes from the reply to compute_started.
        :param packed: see :attr:`Work.packed`.
        """
        cancelled: list[Work] = []
        waiter: tuple[MigrationRecord, Work, executors.Event] | None = None
        with self._lock:
            record, answer = self._admit(command, at_start)
            if record is not None:
                if record.needs_new_work(command):
                    entry = Entry.QUEUED if command.step == LIVE_MIGRATION else Entry.NONE
                    # Interned, because every message has its own copy of the name.
                    step = sys.intern(command.step)
                    of = (command.migration_uuid, command.instance_uuid, step, command.epoch)
                    work = Work(*of, body, entry, command.place, packed)
                    record.guest.pending.append(work)
                    try:
                        if record.guest.next() is work:
                            self._submit_of(work)(self._run, work)
                    except exception.QueueClosed:
                        record.guest.pending.remove(work)
                        return self._refuse(command, Refusal.STOPPING)
                    cancelled = record.store(work, undoing=cancels is not None)
                work = record.works[command.step]
                work.epoch = command.epoch
                if wait and work.outcome is None:
                    # Registered under the lock, so that end() either finds the waiter or has sent the event.
                    waiter = record, work, self._threads.event()
                    work.waiters = (*work.waiters, waiter[-1])
                answer = self._answer(record, work)
        if answer.refusal == Refusal.BOOT:
            self._foreign_boot()
        for other in cancelled:
            # Other work checks its token itself.
            if other.step == LIVE_MIGRATION and cancels is not None:
                self._end_live_migration(other, other.uuid, cancels)
        return answer if waiter is None else self._wait(*waiter, wait)

    def _wait(self, record: MigrationRecord, work: Work, ended: executors.Event, seconds: float) -> Answer:
        """Wait until a work ends, for at most ``seconds``, and return the answer."""
        ended.wait(seconds)
        with self._lock:
            work.waiters = tuple(waiter for waiter in work.waiters if waiter is not ended)
            return self._answer(record, work)

    def admit(self, command: Command, at_start: bool = False) -> Answer:
        """Accept or refuse a command that adds no work, such as an abort; take its epoch and owner."""
        with self._lock:
            answer = self._admit(command, at_start)[1]
        if answer.refusal == Refusal.BOOT:
            self._foreign_boot()
        return answer

    def abort(self, command: Command, instance: Instance) -> Answer:
        """Cancel the live migration of the command's migration.

        The body of the work checks the mark before it calls the driver, and :meth:`started` does when the hypervisor
        has the job. An abort between the two is therefore not lost.
        """
        answer = self.admit(command)
        if answer.refusal is not None:
            return answer
        with self._lock:
            work = _live_migration(self._records.get(command.migration_uuid))
            if work is not None and work.outcome is None:
                work.cancelled = True
        if work is None or work.outcome is None:
            self._end_live_migration(work, command.migration_uuid, instance)
        outcome = work.outcome if work is not None else None
        result = {
            'cancelled': outcome is not None and outcome.state == WorkState.CANCELLED and not outcome.returned,
            'verdict': outcome.verdict if outcome is not None else '',
        }
        return answer.replace(report=self._done(command, result))

    def force_complete(self, command: Command, instance: Instance) -> Answer:
        """Force the live migration of the command's migration to complete, if the hypervisor may have its job."""
        answer = self.admit(command)
        if answer.refusal is not None:
            return answer
        with self._lock:
            work = _live_migration(self._records.get(command.migration_uuid))
            # It may have a job of an earlier boot, or one of this boot that has started and not ended.
            may_run = work is None or (work.started and work.outcome is None)
        if may_run:
            method = self._driver.live_migration_force_complete
            self._call_driver('force-complete', method, command.migration_uuid, instance)
        return answer.replace(report=self._done(command, None))

    def _end_live_migration(self, work: Work | None, migration_uuid: str, instance: Instance) -> None:
        """Cancel a live migration in the queue or, if it has started, have the driver abort it."""
        if self.queue.cancel(migration_uuid):
            self.cancelled_in_queue(migration_uuid)
        elif work is None or work.started:
            self._call_driver('abort', self._driver.live_migration_abort, migration_uuid, instance)

    def cancelled_in_queue(self, migration_uuid: str, send_event: bool = True) -> None:
        """End a live migration whose Future was cancelled, so that the driver is never called."""
        with self._lock:  # a command that comes at the same moment is queued before it is stored
            work = self._records[migration_uuid].works[LIVE_MIGRATION]
        self.end(work, _cancelled(exception.Cancelled(what=f'Queued migration {migration_uuid}')), send_event)

    # --- driver calls beside the sequence --------------------------------------------------------------------------

    def _call_driver(
        self, what: str, method: Callable[[Instance], None], migration_uuid: str, instance: Instance
    ) -> None:
        """Have the pool call the driver for a running live migration, if the call may run beside other work."""
        if not self.begin_call(what, migration_uuid):
            return
        log_context = context.about(context.subject().request, migration_uuid, instance.uuid)

        def call() -> None:
            with log_context:
                try:
                    method(instance)
                except BaseException as error:  # the verdict of the live migration shows the result
                    if self._threads.is_final(error):
                        raise
                    LOG.warning(
                        'Driver call failed: %(call)s of instance %(instance)s on host %(host)s: %(error)s',
                        {
                            'call': what,
                            'instance': instance.uuid,
                            'host': self._host,
                            'error': exception.message_of(error),
                        },
                    )
                finally:
                    self.end_call(what, migration_uuid)

        self.pool.submit(call)

    def begin_call(self, what: str, migration_uuid: str) -> bool:
        """Record that a driver call is about to run beside the sequence, if it may run.

        :returns: False if the call must not run: the previous such call of this migration has not returned, another
            migration's work or call is in the driver, or a later migration of the guest has begun.
        """
        with self._lock:
            record = self._records.get(migration_uuid)
            if record is None:
                return False
            guest = record.guest
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
            self._forget(migration_uuid)
            following = guest.next()
        self._begin(following)

    # --- work ------------------------------------------------------------------------------------------------------

    def run(self, work: Work) -> None:
        """Run the body of a work in the calling thread, and end the work."""
        live = work.step == LIVE_MIGRATION
        if live:
            self.queue.take(work.uuid)
        with self._lock:
            if work.entry == Entry.QUEUED:
                work.entry = Entry.STARTED
        with work.log_context():
            try:
                if not live:
                    # A live migration checks this itself: it may have to abort a job that an earlier boot has started.
                    work.raise_if_cancelled()
                outcome = _outcome(work.step, work.body(work))
            except exception.Cancelled as error:
                outcome = _cancelled(error)
            except BaseException as error:  # every failure has to be reported to the owner
                if self._threads.is_final(error):
                    raise
                outcome = _failed(work, error, self._host)
            self.end(work, outcome)

    def started(self, work: Work, instance: Instance) -> None:
        """Record that the hypervisor has the job, report it, and abort the job if the work was cancelled."""
        with self._lock:
            work.started = True
            record = self._records[work.uuid]
            report, reply_to, cancelled = self._report(record, work), record.reply_to, work.cancelled
        self.reports.submit(self._send, reply_to, report, work)
        if cancelled:
            # The abort came after the entry was removed and before the job existed.
            self._call_driver('abort', self._driver.live_migration_abort, work.uuid, instance)

    def end(self, work: Work, outcome: WorkEnd, send_event: bool = True) -> None:
        """Store the outcome of a work, begin the next work of the guest, and report to the owner.

        :param send_event: whether to send the report as an event.
        """
        with self._lock:
            if work.outcome is not None:
                return
            record = self._records[work.uuid]
            work.outcome = outcome
            work.body, work.packed = _ended, b''
            work.entry = Entry.RETURNED if outcome.returned else Entry.NONE
            waiters, work.waiters = work.waiters, ()
            record.guest.pending.remove(work)
            report, reply_to = self._report(record, work), record.reply_to
            following = record.guest.next()
            self._forget(work.uuid)
        for waiter in waiters:
            waiter.set()
        self._begin(following)
        # A caller that waits gets the report as the answer, so an event would only repeat it.
        if send_event and not waiters:
            self.reports.submit(self._send, reply_to, report, work)

    def _begin(self, work: Work | None) -> None:
        """Submit the work that is now the first of its guest, if there is one."""
        if work is None:
            return
        try:
            # Hold the lock, as accept() does, so that a concurrent cancel sees the work either not submitted or queued.
            with self._lock:
                work.raise_if_cancelled()
                self._submit_of(work)(self._run, work)
        except (exception.Cancelled, exception.QueueClosed) as error:
            self.end(work, _cancelled(error))

    def _send(self, reply_to: str, report: Report, work: Work) -> None:
        with work.log_context():
            try:
                self._events.step_ended(reply_to, report)
            except Exception as error:  # noqa: BLE001 -- the report is kept for the owner's poll
                LOG.warning(
                    'Could not send a report to %(conductor)s: %(step)s of migration %(migration)s: %(error)s; the '
                    'next poll gets the report',
                    {'conductor': reply_to, 'step': report.step, 'migration': work.uuid, 'error': error},
                )

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
        """Drop a report that is in the log, unless the work has a newer epoch than the acknowledgement."""
        with self._lock:
            record = self._records.get(migration_uuid)
            work = record.works.get(step) if record is not None else None
            if work is not None and epoch >= work.epoch:
                work.acknowledge()

    # --- below: the lock is held -----------------------------------------------------------------------------------

    def _submit_of(self, work: Work) -> Callable[..., Any]:
        """Return the submit method for a work that can begin: that of the pool, or of the queue."""
        if work.step != LIVE_MIGRATION:
            return self.pool.submit
        job = self.inherited.take(work) if self.inherited.jobs else None
        if job is None:
            return functools.partial(self.queue.submit, work.uuid, work.place)
        # The job already holds a slot. In the queue the live migration would wait for its own job.
        work.entry, work.started = Entry.STARTED, True
        work.body = functools.partial(work.body, inherited=job)
        return self.pool.submit

    def _admit(self, command: Command, at_start: bool) -> tuple[MigrationRecord | None, Answer]:
        if self.starting and not at_start:
            return None, self._refuse(command, Refusal.STARTING)
        if command.boot_id != self.boot_id:
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
        record, known = self._records.get(command.migration_uuid), self._guests.get(command.instance_uuid)
        if record is not None and record.guest is not known:
            # The reports of the first guest would be taken for those of the second.
            LOG.error(
                'Refused a command whose migration uuid belongs to another guest: %(step)s of migration %(migration)s '
                'for guest %(guest)s; find out who has used this uuid twice',
                {'step': command.step, 'migration': command.migration_uuid, 'guest': command.instance_uuid},
            )
            return None, self._refuse(command, Refusal.GUEST)
        guest = self._guests.setdefault(command.instance_uuid, GuestRecord())
        tenure = command.tenure
        if 0 < tenure < guest.tenure or (0 < tenure == guest.tenure and command.migration_uuid != guest.holder):
            return None, self._refuse(command, Refusal.TENURE)
        if record is None:
            record = self._records[command.migration_uuid] = MigrationRecord(guest)
        if tenure <= record.tenure:
            if command.epoch < record.epoch:
                return None, self._refuse(command, Refusal.EPOCH)
            if command.epoch == record.epoch and record.owner not in (None, command.owner):
                return None, self._refuse(command, Refusal.EPOCH)
        if tenure:
            before = guest.holder
            guest.tenure, guest.holder, record.tenure = tenure, command.migration_uuid, tenure
            self._forget(before)
        record.epoch = command.epoch
        # Interned, because every message has its own copy of the names of a few conductors.
        record.owner, record.reply_to = sys.intern(command.owner), sys.intern(command.reply_to)
        return record, Answer(seen=record.epoch, boot_id=self.boot_id, seen_tenure=guest.tenure)

    def _forget(self, migration_uuid: str) -> None:
        """Drop the record of a migration without work or calls if a later one of its guest has begun.

        The tenure of the guest refuses every later command for it.
        """
        record = self._records.get(migration_uuid)
        if record is None or not 0 < record.tenure < record.guest.tenure:
            return
        guest = record.guest
        if migration_uuid not in {*(work.uuid for work in guest.pending), *(uuid for _, uuid in guest.calls)}:
            del self._records[migration_uuid]

    def _refuse(self, command: Command, refusal: Refusal) -> Answer:
        record, guest = self._records.get(command.migration_uuid), self._guests.get(command.instance_uuid)
        return Answer(
            refusal=refusal.value,
            seen=record.epoch if record is not None else 0,
            boot_id=self.boot_id,
            seen_tenure=guest.tenure if guest is not None else 0,
        )

    def _answer(self, record: MigrationRecord, work: Work) -> Answer:
        report = self._report(record, work)
        return Answer(seen=record.epoch, boot_id=self.boot_id, report=report, seen_tenure=record.guest.tenure)

    def _report(self, record: MigrationRecord, work: Work) -> Report:
        outcome = work.outcome
        if outcome is None:
            result = {'started': work.started} if work.step == LIVE_MIGRATION else None
            outcome = WorkEnd(WorkState.RUNNING, result)
        return Report(
            migration_uuid=work.uuid,
            host=self._host,
            boot_id=self.boot_id,
            step=work.step,
            epoch=record.epoch,
            state=str(outcome.state),
            result=outcome.result,
            reason=outcome.reason,
        )

    def _done(self, command: Command, result: Any) -> Report:
        """Return the report of a command that adds no work."""
        return Report(
            migration_uuid=command.migration_uuid,
            host=self._host,
            boot_id=self.boot_id,
            step=command.step,
            epoch=command.epoch,
            state=WorkState.DONE.value,
            result=result,
        )


def _live_migration(record: MigrationRecord | None) -> Work | None:
    """Return the work of a live migration, if there is one."""
    return record.works.get(LIVE_MIGRATION) if record is not None else None


def _ended(work: Work) -> None:
    """Replace the body of a work that has ended, so that the work no longer keeps the data of its guest."""


def traced(tracer: tracing.Tracer, host: str) -> Callable[[Callable[[Work], None], Work], None]:
    """Return what runs a work as a span of the conductor's step.

    :param host: the name of this host.
    """

    def around(run: Callable[[Work], None], work: Work) -> None:
        began = tracer.now()
        # The report may be acknowledged as soon as the work has ended, which drops its traceparent.
        parent, migration = tracing.read(work.traceparent), tracing.of_migration(work.uuid)
        run(work)
        if migration is None:
            return
        if parent is None or parent.trace != migration.trace:
            parent = migration
        state = work.outcome.state if work.outcome is not None else WorkState.RUNNING
        attributes: dict[str, str | int] = {'migrator.host': host, 'migrator.result': str(state)}
        if work.outcome is not None and work.outcome.reason is not None:
            attributes['migrator.reason'] = work.outcome.reason
        failed, ended = state == WorkState.FAILED, tracer.now()
        tracer.export(tracing.Span(f'{work.step} at {host}', parent, began, ended, None, failed, attributes))

    return around


def _outcome(step: str, result: Any) -> WorkEnd:
    """Return the outcome of a body that has returned.

    :raises migrator.exception.DriverError: the result cannot be sent. Every reply would fail with it, and the owner
        would never receive the end of the step.
    """
    if isinstance(result, WorkEnd):
        return result
    bad = base.cannot_travel(result)
    if bad is not None:
        raise exception.DriverError(f'{step} returned {bad}: correct the driver to return serializable data')
    return WorkEnd(WorkState.DONE, result)


def _failed(work: Work, error: BaseException, host: str) -> WorkEnd:
    """Log the error of a body, and return its outcome."""
    known = isinstance(error, exception.MigratorException)
    text = exception.message_of(error)
    # base.text replaces characters that cannot be encoded, and so could not be logged.
    reason = base.text(text if known else f'{host} failed in {work.step}: {text}')
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
    live = work.step == LIVE_MIGRATION
    if live:
        facts['verdict'] = ''
    return WorkEnd(WorkState.FAILED, facts, reason, returned=live)


def _cancelled(error: exception.MigratorException) -> WorkEnd:
    return WorkEnd(WorkState.CANCELLED, {'cancelled': True, 'error': type(error).__name__}, str(error))
