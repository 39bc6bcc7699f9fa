# SPDX-License-Identifier: Apache-2.0

"""Tells the conductor of moves that take longer than they may. Nothing is aborted here: a time-out is a wish.

The source counts, by its own clock and options; a conductor commits the wish, with the time-out as who asks, and the
migration's owner acts on it as on anybody's. So the verdict is found where that of every abort is, and a wish that
comes when the guest has just moved changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from migrator import exception, executors
from migrator.compute.work import Work
from migrator.conf.compute import Timeout
from migrator.objects import EventClient, Instance, LiveMigrateData

LOG = logging.getLogger(__name__)

#: Seconds between two looks at the moves that run.
LOOK = 1.0
#: What a guest's memory, and each of its disks that is copied, counts as at least, in GiB; nova's number.
LEAST = 2.0


def data_gib(instance: Instance, migrate_data: LiveMigrateData) -> float:
    """Return how much a move has to transfer, in GiB, as nova reckons it: what the time that it may take grows with.

    A guest that nova has not made may have disks of which its flavor says nothing: what its driver's check has told of
    those that will be copied comes first.
    """
    flavor = instance.flavor
    amounts = [flavor.memory_mb / 1024]
    if migrate_data.block_migration:
        disks = (flavor.root_gb, flavor.ephemeral_gb, flavor.swap / 1024)
        amounts += [disk for disk in migrate_data.source.get('copied_gib', disks) if disk]
    return sum(max(LEAST, amount) for amount in amounts)


class _Running:
    """A move that runs.

    :ivar since: when it began, in monotonic seconds.
    :ivar told: the actions that a conductor has been told to be due.
    """

    __slots__ = ('gib', 'since', 'telling', 'told', 'work')

    def __init__(self, work: Work, gib: float, since: float) -> None:
        self.work = work
        self.gib = gib
        self.since = since
        self.telling = False
        self.told: set[str] = set()


class Timeouts:
    """Looks at the moves that run; while none does there is no thread.

    :param host: the name of this host.
    :param boot_id: of this life.
    :param options: returns the options as they now are.
    :param events: whom to tell.
    :param pool: where messages are sent from, so that a broker that hangs holds up no look.
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
        """Count from now on; until the work has its outcome.

        :param gib: how much it has to transfer; see :func:`data_gib`.
        :param already: seconds for which it has run in an earlier life of this service.
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
            except RuntimeError as error:  # no thread is to be had; the next migration tries again
                LOG.warning('The time-out of migration %s is not watched yet: %s', work.uuid, error)
                with self._lock:
                    self._watch = None

    def stop(self) -> None:
        """Look no more; waits for nothing. What runs is counted on by the next life."""
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
            LOG.error('%s What was said before stays.', error)
        action, now = self._known.action, self._threads.clock.monotonic()
        due: list[_Running] = []
        ended: executors.Periodic | None = None
        with self._lock:
            for uuid, running in list(self._running.items()):
                if running.work.outcome is not None:
                    del self._running[uuid]
                elif 0 < self._allowed(running) < now - running.since:
                    if not running.telling and action not in running.told:
                        running.telling = True
                        due.append(running)
            if not self._running:
                ended, self._watch = self._watch, None
        if ended is not None:
            ended.stop(wait=False)
        for running in due:
            self._pool.submit(self._tell, running, action, self._allowed(running))

    def _allowed(self, running: _Running) -> float:
        """Return how many seconds a move may take; 0: for ever."""
        return self._known.per_gib * running.gib

    def _tell(self, running: _Running, action: str, allowed: float) -> None:
        uuid = running.work.uuid
        try:
            with running.work.about():
                LOG.warning('Migration %s has not ended after the %.0f s that it may take: %s', uuid, allowed, action)
                try:
                    self._events.live_migration_timed_out(self._host, self._boot_id, uuid, action, allowed)
                    running.told.add(action)
                except Exception as error:  # noqa: BLE001 -- it is told again at the next look
                    LOG.warning('No conductor heard of the time-out of migration %s: %s', uuid, error)
        finally:
            running.telling = False
