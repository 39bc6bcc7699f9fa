# SPDX-License-Identifier: Apache-2.0

"""Runs the stories: parks them without a thread, and wakes each by event, poll or sweep, never twice at once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.conductor.migration import hosts, waiting
from migrator.conductor.migration.context import MigrationContext
from migrator.objects import base, protocol
from migrator.saga.executor import SagaExecutor
from migrator.saga.saga import Saga
from migrator.saga.step import Parked, Stuck

LOG = logging.getLogger(__name__)

#: Seconds after which a run that an unexpected error has ended is tried again.
_AFTER_ERROR = 5.0
#: So many equal unexpected errors in a row need a person; and so many that differ.
_EQUAL_ERRORS, _ERRORS = 3, 12
#: So many characters of such an error are told.
_SHOWN = 500


def about(subject: MigrationContext) -> contextlib.AbstractContextManager[None]:
    """Let what this thread logs within the block, and the calls that it makes, name a migration and its request."""
    row = subject.row
    return context.about(context.admin_context(row.request_id), row.uuid, row.instance_uuid)


@dataclasses.dataclass
class _Tale:
    """One migration in this conductor's hands, and the lock-protected part of its state."""

    subject: MigrationContext
    running: bool = False
    woken: bool = False
    reports: list[protocol.Report] = dataclasses.field(default_factory=list)
    observations: list[protocol.Observation] = dataclasses.field(default_factory=list)
    dirty: bool = False
    #: When it was last looked at (monotonic seconds).
    looked_at: float = 0.0
    #: The last unexpected error, and how often in a row it was met.
    error: str = ''
    errors: int = 0
    #: How many there were in a row, whatever they say.
    in_a_row: int = 0


class Runner:
    """The stories of one conductor.

    :param stories: returns the saga for a migration type.
    :param reload: reads a migration anew, as its owner; None: it is no longer this conductor's, or has ended.
    :param pool: where runs happen.
    """

    def __init__(
        self,
        threads: executors.Threads,
        pool: executors.BoundedExecutor,
        stories: Callable[[str], Saga[MigrationContext]],
        reload: Callable[[str], MigrationContext | None],
    ) -> None:
        self._threads = threads
        self._pool = pool
        self._stories = stories
        self._reload = reload
        self._lock = threads.lock()
        self._tales: dict[str, _Tale] = {}

    # --- from outside ------------------------------------------------------------------------------------------------

    def take(self, subject: MigrationContext) -> None:
        """Take up a migration that was just adopted, and run it; one that is here already reads itself anew."""
        with self._lock:
            known = subject.row.uuid in self._tales
            if not known:
                self._tales[subject.row.uuid] = _Tale(subject, looked_at=self._threads.clock.monotonic())
        self.wake(subject.row.uuid, reread=known)

    def look_after(self, seconds: float) -> None:
        """Have every migration look again that has not for so long, but for those in the queue or in their copy."""
        now = self._threads.clock.monotonic()
        with self._lock:
            tales = list(self._tales.values())
        for tale in tales:
            if now - tale.looked_at >= seconds and not waiting.lasts(tale.subject):
                self.wake(tale.subject.row.uuid)

    def holds(self, uuid: str) -> bool:
        """Whether a migration is in this conductor's hands."""
        with self._lock:
            return uuid in self._tales

    def held(self) -> list[MigrationContext]:
        """Return the migrations in this conductor's hands."""
        with self._lock:
            return [tale.subject for tale in self._tales.values()]

    def wake(
        self,
        uuid: str,
        report: protocol.Report | None = None,
        observation: protocol.Observation | None = None,
        reread: bool = False,
    ) -> bool:
        """Have a migration look again.

        :param report: an event of it. :param observation: a poll's answer about it.
        :param reread: whether its row may have been changed by others: a wish, or a raised epoch.
        :returns: whether this conductor has it.
        """
        with self._lock:
            tale = self._tales.get(uuid)
            if tale is None:
                return False
            if report is not None:
                tale.reports.append(report)
            if observation is not None:
                tale.observations.append(observation)
            tale.dirty = tale.dirty or reread
            tale.woken = True
            if not tale.running:
                tale.running = True
                self._pool.submit(self._run, tale)
            return True

    def wake_all(self) -> None:
        """Have every migration look again."""
        for subject in self.held():
            self.wake(subject.row.uuid)

    def drop_all(self) -> None:
        """Let go of everything: this life of the conductor is over."""
        with self._lock:
            self._tales.clear()

    # --- one run -----------------------------------------------------------------------------------------------------

    def _run(self, tale: _Tale) -> None:
        try:
            with about(tale.subject):
                self._run_while_woken(tale)
        except BaseException:  # such as a time-out of a green thread: the next one that wakes it runs it again
            with self._lock:
                tale.running = False
            raise

    def _run_while_woken(self, tale: _Tale) -> None:
        while True:
            with self._lock:
                uuid = tale.subject.row.uuid
                mine = self._tales.get(uuid) is tale
                if not mine or not tale.woken:
                    tale.running = False
                    return
                tale.woken = False
                reports, tale.reports = tale.reports, []
                observations, tale.observations = tale.observations, []
            self._look_once(tale, reports, observations)

    def _look_once(self, tale: _Tale, reports: list[protocol.Report], observations: list[protocol.Observation]) -> None:
        subject = tale.subject
        uuid = subject.row.uuid
        tale.looked_at = self._threads.clock.monotonic()
        try:
            with self._lock:
                # Before it is read: what changes meanwhile is read once more.
                dirty, tale.dirty = tale.dirty, False
            if dirty:
                fresh = self._reload(uuid)
                if fresh is None:
                    self._let_go(uuid)
                    return
                subject.become(fresh)
            for report in reports:
                subject.take_report(report)
            for observation in observations:
                subject.take_observation(observation)
            if subject.row.retry_requested_at is not None:
                subject.forget_tries()
            subject.waits_on, subject.unheard, subject.unasked = set(), set(), set()
            subject.wake_at = None
            subject.tools.broker.check()
            pause: Parked | Stuck | None = hosts.ask_first(subject)
            if pause is None:
                pause = SagaExecutor(self._stories(subject.row.migration_type), subject).run()
            self._after(tale, pause)
            tale.errors = tale.in_a_row = 0
        except exception.NotOwner as error:
            # Another owner, another epoch, or a wish that was not known: read it, and observe again.
            LOG.info('%s', error)
            with self._lock:
                tale.dirty = tale.woken = True
        except exception.BrokerAway as error:
            LOG.debug('Migration %s waits: %s', uuid, error)
            # How long it has waited for anything else is not known.
            subject.ledger.last = None
            subject.note_waiting(error.message)
            self._try_later(tale)
        except exception.DatabaseUnreachable as error:
            LOG.warning('Migration %s waits: %s', uuid, error)
            # How long it has waited for anything else is not known.
            subject.ledger.last = None
            self._try_later(tale)
        except exception.ServiceUnreachable as error:
            LOG.warning('Migration %s waits: %s', uuid, error)
            self._try_later(tale)
            self._count(tale, error)
        except Exception as error:  # no error may leave a migration where nobody looks at it again
            LOG.exception('Migration %s met an unexpected error, and will be tried again', uuid)
            self._try_later(tale)
            self._count(tale, error)

    def _count(self, tale: _Tale, error: Exception) -> None:
        """Tell a person of an error that does not pass."""
        subject, told = tale.subject, base.text(f'{type(error).__name__}: {error}', _SHOWN)
        tale.errors = tale.errors + 1 if tale.error == told else 1
        tale.error = told
        tale.in_a_row += 1
        equal = tale.errors >= _EQUAL_ERRORS
        which = 'the same unexpected error' if equal else 'an unexpected error'
        meets = f'Conductor {subject.tools.server} meets {which} each time'
        reason = f'{meets}{"" if equal else ", and not the same, such as"}: {told}. See its log. It is tried again.'
        known = subject.row.stuck_reason or ''
        if (not equal and (tale.in_a_row < _ERRORS or known.startswith(meets))) or known == reason:
            return
        try:
            subject.forget_writes()
            subject.note_stuck(reason)
        except Exception:  # what keeps it from being told may be the error itself; the next try tells it
            LOG.exception('Migration %s could not be noted as stuck', subject.row.uuid)

    def _after(self, tale: _Tale, pause: Parked | Stuck | None) -> None:
        subject = tale.subject
        if isinstance(pause, Parked):
            pause = subject.wait_for(pause)
        else:
            subject.ledger.last = None
        asked = subject.row.retry_requested_at is not None
        if isinstance(pause, Stuck) and (asked or subject.row.stuck_reason != pause.reason):
            # It is said once it is written: who lost it meanwhile has looked at what another one does.
            subject.note_stuck(pause.reason)
            LOG.error('Migration %s is stuck: %s', subject.row.uuid, pause.reason)
        elif isinstance(pause, Parked) and not subject.unheard and (asked or subject.row.stuck_reason is not None):
            # Where hosts have yet to answer nobody knows.
            subject.note_stuck(None)
            LOG.info('Migration %s is no longer stuck: it waits for %s', subject.row.uuid, pause.why)
        elif pause is not None:
            LOG.debug('Migration %s waits for %s', subject.row.uuid, pause)
        if pause is None:
            LOG.info('Migration %s has ended: %s', subject.row.uuid, subject.row.status)
            self._let_go(subject.row.uuid)

    def _try_later(self, tale: _Tale) -> None:
        tale.dirty = True
        tale.subject.wake_at = self._threads.clock.monotonic() + _AFTER_ERROR

    def _let_go(self, uuid: str) -> None:
        with self._lock:
            self._tales.pop(uuid, None)
