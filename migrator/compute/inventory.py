# SPDX-License-Identifier: Apache-2.0

"""The report of a host about itself: its service, its hypervisor, its inventory and its guests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oslo_log import log as logging

from migrator import exception, executors
from migrator.objects import ComputeNode, Guest, HostReport, Instance
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

#: Seconds after which an unresponsive driver is logged. A query that has its own time-out ends earlier.
PATIENCE = 30.0


class HostInventory:
    """The last state of the host that the driver returned, so that a report never waits for a hung driver.

    :param host: the name of this host.
    :param boot_id: the boot of this service.
    :param version: the service version to report.
    :param limit: returns the current max_concurrent_live_migrations.
    :param pool: runs the driver's queries.
    :param identity: the identity of the machine; None: ask the driver.
    """

    def __init__(
        self,
        driver: ComputeDriver,
        host: str,
        boot_id: str,
        version: int,
        limit: Callable[[], int],
        threads: executors.Threads,
        pool: executors.BoundedExecutor,
        identity: str | None = None,
    ) -> None:
        self._driver = driver
        self._host = host
        self._boot_id = boot_id
        self._version = version
        self._limit = limit
        self._pool = pool
        self._threads = threads
        self._lock = threads.lock()
        #: When the pending query of the driver began, in monotonic seconds; None if no query is pending.
        self._querying_since: float | None = None
        #: Whether the last query failed, or has no reply for too long. That was logged then.
        self.unresponsive = False
        self._node: ComputeNode | None = None
        self._identity = identity or None
        self._kernel: str | None = None

    def report(
        self,
        guests: Sequence[Guest] = (),
        adoptable: Sequence[Instance] = (),
        replaces: str | None = None,
    ) -> HostReport:
        """Return the host's report, with the node as the driver last returned it.

        :param guests: every guest that the driver knows; only at start.
        :param adoptable: the guests of these that a conductor may adopt if the database does not have them.
        :param replaces: the boot that is registered, as far as it is known; only at start.
        """
        return HostReport(
            host=self._host,
            boot_id=self._boot_id,
            version=self._version,
            limit=self._limit(),
            node=self._node,
            guests=list(guests),
            adoptable=list(adoptable),
            identity=self._identity,
            kernel=self._kernel,
            replaces=replaces,
        )

    def refresh(self) -> None:
        """Query the driver for the node, and wait for the result.

        The machine and its kernel stay the same, so that each is queried until the driver has returned it.
        """
        if self._identity is None:
            self._identity = _name(self._driver.get_identity())
        if self._kernel is None:
            self._kernel = _name(self._driver.get_kernel())
        self._node = self._driver.get_node().replace(cold_migrations=self._driver.cold_migrations)

    def refresh_later(self) -> None:
        """Query the driver for the node in the background, unless the previous query is still pending.

        A driver that hangs therefore blocks one thread only.
        """
        now = self._threads.clock.monotonic()
        with self._lock:
            since = self._querying_since
            if since is None:
                self._querying_since = now
        if since is None:
            try:
                self._pool.submit(self._refresh)
            except RuntimeError:  # the process cannot start a thread
                with self._lock:
                    self._querying_since = None
                raise
        elif now - since >= PATIENCE:
            self._warn_once(f'no reply for {now - since:.0f} s')

    def _refresh(self) -> None:
        try:
            self.refresh()
        except BaseException as error:  # the next heartbeat tries again
            if self._threads.is_final(error):
                raise
            self._warn_once(exception.message_of(error))
        else:
            with self._lock:
                recovered, self.unresponsive = self.unresponsive, False
            if recovered:
                LOG.info('Hypervisor reports its inventory again: host %s', self._host)
        finally:
            with self._lock:
                self._querying_since = None

    def _warn_once(self, reason: str) -> None:
        """Log that the driver is unresponsive, unless this was logged since the last query that succeeded."""
        with self._lock:
            known, self.unresponsive = self.unresponsive, True
        if not known:
            LOG.warning(
                'Hypervisor does not report its inventory: host %(host)s keeps the last one until it does: %(reason)s',
                {'host': self._host, 'reason': reason},
            )


def _name(found: object) -> str | None:
    return str(found).strip() or None if found is not None else None
