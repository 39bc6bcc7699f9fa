# SPDX-License-Identifier: Apache-2.0

"""The time-outs of running live migrations, which the source reports to a conductor.

The source measures the time with its own clock and options. It aborts nothing itself. A conductor commits a request to
abort or to force-complete, with the time-out as the requester. The owner of the migration acts on it as on any other
request, so the verdict is stored where the verdict of every abort is. A request that comes when the guest has just
moved changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from migrator import exception, executors
from migrator.compute.work import Work
from migrator.conf.compute import Timeout
from migrator.objects import EventClient

LOG = logging.getLogger(__name__)

#: Seconds between two checks of the running migrations.
LOOK = 1.0


class _Running:
    """A running live migration.

    :ivar gib: how much it has to transfer.
    :ivar since: when it began, in monotonic seconds.
    :ivar reporting: whether a report of its time-out is being sent.
    :ivar reported: the actions that a conductor has received.
    """

    __slots__ = ('gib', 'reported', 'reporting', 'since', 'work')

    def __init__(self, work: Work, gib: float, since: float) -> None:
        self.work = work
        self.gib = gib
        self.since = since
        self.reporting = False
        self.reported: set[str] = set()


class Timeouts:
    """The periodic check of the running migrations; it has a thread only while a migration runs.

    :param host: the name of this host.
    :param boot_id: the boot of this service.
    :param options: returns the current options.
    :param events: the client that reports a time-out to a conductor.
    :param pool: sends the messages, so that a broker that hangs does not delay a check.
    """

    def __init__(
        self,
        host: str,
        boot_id: str,
        options: Callable[[], Timeout],
        threads: executors.Threads,
        events: EventClient,
        pool: executors.BoundedExecutor,
    ) -> None:
        self._host = host
        self._boot_id = boot_id
        self._options = options
        self._known = options()
        self._threads = threads
        self._events = events
        self._pool = pool
        self._lock = threads.lock()
        self._running: dict[str, _Running] = {}
        self._watch: executors.Periodic | None = None
        self._stopped = False

    def begin(self, work: Work, gib: float, already: float = 0.0) -> None:
        """Measure the time of a migration from now on, until its work has an outcome.

        :param gib: how much it has to transfer; see :meth:`migrator.objects.Flavor.gib_to_copy`.
        :param already: seconds for which it ran before this service started.
        """
        running = _Running(work, gib, self._threads.clock.monotonic() - already)
        watch: executors.Periodic | None = None
        with self._lock:
            if self._stopped:
                return
            self._running[work.uuid] = running
            if self._watch is None:
                watch = self._watch = executors.Periodic(self._threads, LOOK, self._look, 'time-outs')
        if watch is not None:
            try:
                watch.start()
            except RuntimeError as error:  # the process cannot start a thread; the next migration tries again
                LOG.warning(
                    'Cannot check the time-out of migration %(migration)s; the next migration tries again: %(error)s',
                    {'migration': work.uuid, 'error': error},
                )
                with self._lock:
                    self._watch = None

    def stop(self) -> None:
        """Stop checking, without waiting.

        The next start of the service continues to measure the migrations that run now.
        """
        with self._lock:
            self._stopped = True
            self._running.clear()
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop(wait=False)

    def _look(self) -> None:
        try:
            self._known = self._options()
        except exception.ConfigurationError as error:
            LOG.error('Keeping the previous time-out options: %s', error)
        action, now = self._known.action, self._threads.clock.monotonic()
        due: list[_Running] = []
        ended: executors.Periodic | None = None
        with self._lock:
            for uuid, running in list(self._running.items()):
                if running.work.outcome is not None:
                    del self._running[uuid]
                elif 0 < self._allowed(running) < now - running.since:
                    if not running.reporting and action not in running.reported:
                        running.reporting = True
                        due.append(running)
            if not self._running:
                ended, self._watch = self._watch, None
        if ended is not None:
            ended.stop(wait=False)
        for running in due:
            self._pool.submit(self._report, running, action, self._allowed(running))

    def _allowed(self, running: _Running) -> float:
        """Return how many seconds a migration may take; 0 if there is no limit."""
        return self._known.per_gib * running.gib

    def _report(self, running: _Running, action: str, allowed: float) -> None:
        uuid = running.work.uuid
        try:
            with running.work.log_context():
                LOG.warning(
                    'Live migration timed out: migration %(migration)s did not end within %(seconds).0f s; requesting '
                    '%(action)s',
                    {'migration': uuid, 'seconds': allowed, 'action': action},
                )
                try:
                    self._events.live_migration_timed_out(self._host, self._boot_id, uuid, action, allowed)
                    running.reported.add(action)
                except Exception as error:  # noqa: BLE001 -- the next check reports it again
                    LOG.warning(
                        'Could not report the time-out of migration %(migration)s to a conductor, trying again: '
                        '%(error)s',
                        {'migration': uuid, 'error': error},
                    )
        finally:
            running.reporting = False
