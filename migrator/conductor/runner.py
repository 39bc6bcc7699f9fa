# SPDX-License-Identifier: Apache-2.0

"""The runner of a conductor, which runs each migration when an event, a poll or a sweep wakes it.

A parked migration holds no thread. Two threads never run one migration at once.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.conductor.migration import hosts, waiting
from migrator.conductor.migration.context import MigrationContext
from migrator.db.migrations import Write
from migrator.objects import Migration, MigrationStatus, base, protocol
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga.executor import SagaExecutor
from migrator.saga.saga import Parked, Saga, Stuck

LOG = logging.getLogger(__name__)

#: Seconds until a run that ended with an unexpected error is tried again.
_AFTER_ERROR = 5.0
#: Unexpected errors in a row after which the migration is stuck: equal ones, and different ones.
_EQUAL_ERRORS, _ERRORS = 3, 12
#: Characters of such an error that the reason shows.
_SHOWN = 500


def log_context(subject: MigrationContext) -> contextlib.AbstractContextManager[None]:
    """Put a migration and its request into the log context and the calls of this thread, within the block."""
    row = subject.row
    return context.about(context.admin_context(row.request_id), row.uuid, row.instance_uuid)


@dataclasses.dataclass
class _Run:
    """One migration that this conductor runs, and the lock-protected part of its state."""

    subject: MigrationContext
    running: bool = False
    woken: bool = False
    reports: list[protocol.Report] = dataclasses.field(default_factory=list)
    observations: list[protocol.Observation] = dataclasses.field(default_factory=list)
    dirty: bool = False
    #: Its status after the last run.
    status: str = ''
    #: When it last ran (monotonic seconds).
    looked_at: float = 0.0
    #: The last unexpected error, and how often it occurred in a row.
    error: str = ''
    errors: int = 0
    #: Unexpected errors in a row, equal or not.
    in_a_row: int = 0


class Runner:
    """The runs of one conductor.

    :param pool: runs them.
    :param saga_of: returns the saga of a migration as its row is now. The choice of its destination may change it.
    :param reload: reads a migration again as its owner. It returns None if this conductor no longer owns the migration,
        or if it has ended.
    """

    def __init__(
        self,
        threads: executors.Threads,
        pool: executors.BoundedExecutor,
        saga_of: Callable[[MigrationContext], Saga[MigrationContext]],
        reload: Callable[[str], MigrationContext | None],
    ) -> None:
        self._threads = threads
        self._pool = pool
        self._saga_of = saga_of
        self._reload = reload
        self._lock = threads.lock()
        self._runs: dict[str, _Run] = {}
        #: Called with a migration that has ended while others wait for a slot, and with a migration of a drain that has
        #: ended or begun to copy.
        self.on_news: Callable[[Migration], None] = lambda row: None

        #: How many migrations have ended here, by their type and their last status.
        self.ended: collections.Counter[tuple[str, str]] = collections.Counter()

    # --- called from outside -----------------------------------------------------------------------------------------

    def take(self, subject: MigrationContext) -> None:
        """Run a migration that was just taken over; one that is here already reads its row again."""
        with self._lock:
            known = subject.row.uuid in self._runs
            if not known:
                self._runs[subject.row.uuid] = _Run(subject, looked_at=self._threads.clock.monotonic())
        self.wake(subject.row.uuid, reread=known)

    def look_after(self, seconds: float) -> None:
        """Wake each migration that has not run for ``seconds``, except in the queue or the copy phase."""
        now = self._threads.clock.monotonic()
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            if now - run.looked_at >= seconds and not waiting.lasts(run.subject):
                self.wake(run.subject.row.uuid)

    def holds(self, uuid: str) -> bool:
        """Return whether this conductor runs a migration."""
        with self._lock:
            return uuid in self._runs

    def held(self) -> list[MigrationContext]:
        """Return the migrations that this conductor runs."""
        with self._lock:
            return [run.subject for run in self._runs.values()]

    def wake(
        self,
        uuid: str,
        report: protocol.Report | None = None,
        observation: protocol.Observation | None = None,
        reread: bool = False,
    ) -> bool:
        """Wake a migration, so that it observes again.

        :param report: the report of a step.
        :param observation: the reply to a poll.
        :param reread: whether others may have changed its row: with a request, or a raised epoch.
        :returns: whether this conductor runs it.
        """
        with self._lock:
            run = self._runs.get(uuid)
            if run is None:
                return False
            if report is not None:
                run.reports.append(report)
            if observation is not None:
                run.observations.append(observation)
            run.dirty = run.dirty or reread
            run.woken = True
            if not run.running:
                run.running = True
                self._pool.submit(self._run, run)
            return True

    def wake_all(self) -> None:
        """Wake every migration."""
        for subject in self.held():
            self.wake(subject.row.uuid)

    def drop_all(self) -> None:
        """Release all migrations, because this boot of the conductor is over."""
        with self._lock:
            self._runs.clear()

    # --- one run -----------------------------------------------------------------------------------------------------

    def _run(self, run: _Run) -> None:
        try:
            with log_context(run.subject):
                self._run_while_woken(run)
        except BaseException:  # such as a time-out of a green thread: the next wake-up runs it again
            with self._lock:
                # What it had not committed is lost, so the migration is read again.
                run.running, run.dirty = False, True
            raise
        finally:
            run.subject.tools.hosts.pass_on_slots(run.subject.row.uuid)

    def _run_while_woken(self, run: _Run) -> None:
        while True:
            with self._lock:
                uuid = run.subject.row.uuid
                mine = self._runs.get(uuid) is run
                if not mine or not run.woken:
                    run.running = False
                    return
                run.woken = False
                reports, run.reports = run.reports, []
                observations, run.observations = run.observations, []
            self._run_once(run, reports, observations)

    def _run_once(self, run: _Run, reports: list[protocol.Report], observations: list[protocol.Observation]) -> None:
        subject = run.subject
        uuid = subject.row.uuid
        run.looked_at = self._threads.clock.monotonic()
        try:
            with self._lock:
                # Cleared before the read, so that a change during the read causes another read.
                dirty, run.dirty = run.dirty, False
            if dirty:
                fresh = self._reload(uuid)
                if fresh is None or not self._is_current(run):
                    self._release(run)
                    return
                subject.become(fresh)
            for report in reports:
                subject.replies.take_report(report, subject.row.epoch)
            for observation in observations:
                subject.replies.take_observation(observation, subject.row.epoch)
            if subject.row.retry_requested_at is not None:
                # Everything that has failed is tried again at once, after the hosts were polled.
                subject.ledger.forget_tries()
                subject.ledger.last = None
                subject.replies.must_poll = set(subject.row.hosts_to_poll)
            subject.replies.begin_run(news=bool(reports or observations))
            subject.ledger.begin_run()
            subject.tools.broker.check()
            pause: Parked | Stuck | None = hosts.poll_first(subject)
            if pause is None:
                pause = SagaExecutor(self._saga_of, subject).run()
            self._after(run, pause)
            run.errors = run.in_a_row = 0
        except exception.NotOwner as error:
            # Another owner, another epoch, or a new request: read the row, and observe again.
            LOG.info('Reading a migration again: %(migration)s: %(error)s', {'migration': uuid, 'error': error})
            with self._lock:
                run.dirty = run.woken = True
        except exception.NoSlot as error:
            LOG.debug('Slot was taken meanwhile: %(migration)s: %(error)s', {'migration': uuid, 'error': error})
            subject.writes = Write()
            with self._lock:
                run.woken = True
        except exception.BrokerAway as error:
            LOG.debug('Migration waits: %(migration)s: %(error)s', {'migration': uuid, 'error': error})
            # How long it has waited for anything else is not known.
            subject.ledger.last = None
            waiting.note_waiting(subject, Reason.of(WaitKind.BROKER, reason=error.message))
            self._try_later(run)
        except exception.DatabaseUnreachable as error:
            LOG.warning('Migration waits: %(migration)s: %(error)s', {'migration': uuid, 'error': error})
            # How long it has waited for anything else is not known.
            subject.ledger.last = None
            self._try_later(run)
        except exception.ServiceUnreachable as error:
            LOG.warning('Migration waits: %(migration)s: %(error)s', {'migration': uuid, 'error': error})
            self._try_later(run)
            self._count(run, error)
        except Exception as error:  # a migration must not be left without a next run
            LOG.exception('Unexpected error in migration %s; it is tried again', uuid)
            self._try_later(run)
            self._count(run, error)

    def _count(self, run: _Run, error: Exception) -> None:
        """Count an unexpected error, and write it as the stuck reason if it persists."""
        subject, shown = run.subject, base.text(f'{type(error).__name__}: {error}', _SHOWN)
        run.errors = run.errors + 1 if run.error == shown else 1
        run.error = shown
        run.in_a_row += 1
        equal = run.errors >= _EQUAL_ERRORS
        kind = StuckKind.SAME_ERROR if equal else StuckKind.OTHER_ERRORS
        reason = Reason.of(kind, subject.tools.server, reason=shown)
        # Errors that differ each time are written once.
        known = subject.row.stuck
        is_written = known == reason or (not equal and known is not None and known.key == reason.key)
        if is_written or (not equal and run.in_a_row < _ERRORS):
            return
        try:
            subject.writes = Write()
            waiting.note_stuck(subject, reason)
        except Exception:  # the same error may prevent the write; the next run tries again
            LOG.exception('Could not write that a migration is stuck: %s', subject.row.uuid)

    def _after(self, run: _Run, pause: Parked | Stuck | None) -> None:
        subject, uuid, replies = run.subject, run.subject.row.uuid, run.subject.replies
        if isinstance(pause, Parked):
            pause = waiting.wait_for(subject, pause)
        else:
            subject.ledger.last = None
        asked = subject.row.retry_requested_at is not None
        was_stuck = asked or subject.row.stuck is not None
        if isinstance(pause, Stuck) and (asked or waiting.is_news(subject, pause.reason)):
            # Logged after the write, because a conductor that has lost the migration knows nothing of its state.
            waiting.note_stuck(subject, pause.reason)
            LOG.error('Migration is stuck: %(migration)s: %(reason)s', {'migration': uuid, 'reason': pause.reason})
        elif isinstance(pause, Stuck):
            waiting.note_words(subject, pause.reason)
        elif isinstance(pause, Parked) and was_stuck and not (replies.unreported or replies.polls.are_cut_short):
            # Until every host has replied it may still be stuck.
            waiting.note_stuck(subject, None)
            LOG.info(
                'Migration is no longer stuck: %(migration)s waits for %(what)s', {'migration': uuid, 'what': pause.why}
            )
        elif pause is not None:
            LOG.debug('Migration waits: %(migration)s: for %(what)s', {'migration': uuid, 'what': pause.why})
        if pause is None:
            status = subject.row.status
            LOG.info('Migration has ended: %(migration)s: %(status)s', {'migration': uuid, 'status': status})
            self._release(run)
            self.ended[subject.row.migration_type, status] += 1
            if subject.row.drain is not None or any(one.row.waits_for_slot for one in self.held()):
                self.on_news(subject.row)
        elif subject.row.status != run.status:
            run.status = subject.row.status
            if run.status in (MigrationStatus.RUNNING, MigrationStatus.MIGRATING) and subject.row.drain is not None:
                self.on_news(subject.row)

    def _try_later(self, run: _Run) -> None:
        run.dirty = True
        run.subject.ledger.wake_at = self._threads.clock.monotonic() + _AFTER_ERROR

    def _is_current(self, run: _Run) -> bool:
        """Return False if this boot is over: the next one may have taken the migration again."""
        with self._lock:
            return self._runs.get(run.subject.row.uuid) is run

    def _release(self, run: _Run) -> None:
        uuid = run.subject.row.uuid
        with self._lock:
            if self._runs.get(uuid) is run:
                del self._runs[uuid]
