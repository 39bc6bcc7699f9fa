# SPDX-License-Identifier: Apache-2.0

"""What a host reports of itself: its service, its hypervisor, its inventory, its guests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oslo_log import log as logging

from migrator import exception, executors
from migrator.objects import Guest, HostReport, Instance, compute_node
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

#: A driver that has not answered for so many seconds is told of; a question that ends by itself does so before.
PATIENCE = 30.0


class HostInventory:
    """Keeps what the driver last said of the host, so that a report never waits for a driver that hangs.

    :param host: the name of this host.
    :param boot_id: of this life.
    :param version: the service version to report.
    :param limit: asked for the present max_concurrent_live_migrations.
    :param pool: where the driver is asked.
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
    ) -> None:
        self._driver = driver
        self._host = host
        self._boot_id = boot_id
        self._version = version
        self._limit = limit
        self._pool = pool
        self._clock = threads.clock
        self._lock = threads.lock()
        #: When the driver was asked that has not answered yet, by the clock; None: it has.
        self._asking: float | None = None
        self._silent = False
        self._node: compute_node.ComputeNode | None = None

    def report(
        self,
        guests: Sequence[Guest] = (),
        adoptable: Sequence[Instance] = (),
    ) -> HostReport:
        """Return the host's report, with the node as last seen.

        :param guests: every guest that the driver knows; only at start.
        :param adoptable: those of them that the books are to take in if they do not know them.
        """
        return HostReport(
            host=self._host,
            boot_id=self._boot_id,
            version=self._version,
            limit=self._limit(),
            node=self._node,
            guests=list(guests),
            adoptable=list(adoptable),
        )

    def refresh(self) -> None:
        """Ask the driver for the node, now."""
        self._node = self._driver.get_node()

    def refresh_later(self) -> None:
        """Have the driver asked for the node, unless it has not answered the last time yet: one that hangs has one
        thread of ours, and no more."""
        now = self._clock.monotonic()
        with self._lock:
            asking = self._asking
            if asking is None:
                self._asking = now
        if asking is None:
            try:
                self._pool.submit(self._refresh)
            except RuntimeError:  # there is no thread to be had
                with self._lock:
                    self._asking = None
                raise
        elif now - asking >= PATIENCE:
            self._says_nothing(f'there has been no answer for {now - asking:.0f} s')

    def _refresh(self) -> None:
        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001 -- the next heartbeat asks again
            self._says_nothing(exception.told(error))
        else:
            with self._lock:
                silent, self._silent = self._silent, False
            if silent:
                LOG.info('The hypervisor of %s tells again what it has', self._host)
        finally:
            with self._lock:
                self._asking = None

    def _says_nothing(self, why: str) -> None:
        with self._lock:
            known, self._silent = self._silent, True
        if not known:
            LOG.warning(
                'The hypervisor of %s does not tell what it has; until it does, what it has told last is reported: %s',
                self._host,
                why,
            )
