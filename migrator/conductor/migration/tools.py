# SPDX-License-Identifier: Apache-2.0

"""The services and options that every saga of a conductor uses."""

from __future__ import annotations

import dataclasses

from migrator import executors
from migrator.conductor import broker
from migrator.conductor.compute_client import Hosts
from migrator.db.api import Database
from migrator.placement_client import provider_locks
from migrator.placement_client.client import PlacementClient


@dataclasses.dataclass(frozen=True)
class Options:
    """The conductor's options that a saga needs. They are read again for each run, since some may change."""

    migrate_max_retries: int
    service_down_time: float
    poll_interval: float
    post_max_attempts: int


@dataclasses.dataclass
class Tools:
    """The services that every saga uses.

    :ivar owner: the incarnation of this conductor; a new one begins after its lease has expired.
    :ivar server: the RPC server name of this conductor, for events.
    :ivar turns: the locks for this conductor's writes to Placement.
    :ivar running_cleanups: the ids of the deferred cleanups that are being sent to a host.
    :ivar asking: the hosts that are being polled about all their migrations.
    """

    owner: str
    server: str
    database: Database
    placement: PlacementClient
    hosts: Hosts
    broker: broker.Broker
    threads: executors.Threads
    options: Options

    def __post_init__(self) -> None:
        self.turns = provider_locks.Turns(self.threads)
        self.running_cleanups: set[int] = set()
        self.asking: set[str] = set()
        self.placement.on_result = broker.Outage('Placement', self.threads).on_result

    def is_down(self, host: str) -> bool:
        """Return whether a host is down.

        It is down if an operator has declared it forced down, or if its service has not reported for a long time and
        it does not answer this conductor either. A host that only does not answer is not down.
        """
        unreachable = self.hosts.unreachable_for(host)
        if unreachable < 2 * self.options.poll_interval:
            return False
        down_time = self.options.service_down_time
        service = self.database.services.get_compute(host)
        if service.forced_down:
            return True
        if unreachable < down_time:
            return False
        stopped = service.last_seen_up is None
        return service.is_unreachable(self.database.services.now(), down_time) if stopped else bool(service.down_since)
