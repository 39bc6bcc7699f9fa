# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What a host reports of itself: its service, its hypervisor, its inventory, its guests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oslo_log import log as logging

from migrator import executors
from migrator.objects import command as command_objects
from migrator.objects import compute_node
from migrator.objects import instance as instance_objects
from migrator.virt import driver as virt_driver

LOG = logging.getLogger(__name__)


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
        driver: virt_driver.ComputeDriver,
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
        self._lock = threads.lock()
        self._asking = False
        self._node: compute_node.ComputeNode | None = None

    def report(
        self,
        guests: Sequence[command_objects.Guest] = (),
        adoptable: Sequence[instance_objects.Instance] = (),
    ) -> command_objects.HostReport:
        """Return the host's report, with the node as last seen.

        :param guests: every guest that the driver knows; only at start.
        :param adoptable: those of them that the books are to take in if they do not know them.
        """
        return command_objects.HostReport(
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
        """Have the driver asked for the node, unless it has not answered the last time yet."""
        with self._lock:
            if self._asking:
                return
            self._asking = True
        self._pool.submit(self._refresh)

    def _refresh(self) -> None:
        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001 -- the next heartbeat asks again
            LOG.warning('The hypervisor of %s does not tell what it has: %s', self._host, error)
        finally:
            with self._lock:
                self._asking = False
