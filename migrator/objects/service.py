# SPDX-License-Identifier: Apache-2.0

"""A service as the database knows it, and the one list of service versions."""

from __future__ import annotations

import dataclasses
import datetime

from migrator.objects import base

#: version -> what a service of that version can do. All are conductor-owned (no RPC between compute hosts).
SERVICE_VERSIONS: dict[int, str] = {
    1: 'doubled allocations: the instance holds source and destination',
    2: 'migration-owned allocations: the migration holds the source',
    3: 'a queued live migration can be aborted',
    4: 'post and rollback are lightweight calls; below, they are plain calls, answered when they are done',
    5: 'commands carry the tenure; below, a host compares the epochs of each migration alone',
}
CURRENT_VERSION = max(SERVICE_VERSIONS)
#: From this version on a host lets go of what does not run yet.
ABORTS_QUEUED = 3
#: From this version on a host answers at once when it is told to do post or rollback, and does it later.
LIGHTWEIGHT = 4
#: From this version on a host refuses a migration of a guest that a later one has in hand.
COMPARES_TENURE = 5

COMPUTE_BINARY = 'nova-compute'
CONDUCTOR_BINARY = 'nova-conductor'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service(base.Versioned):
    """One row of ``services``. Times are UTC.

    :ivar last_seen_up: None: it has stopped in good order, and has not been heard of since.
    :ivar down_since: when a conductor has called a compute service down: it had heard nothing of it for
        ``service_down_time``, in which its own messages to itself came through the broker. None: none has, so that with
        the broker or every conductor away a host stays what it was.
    """

    id: int = 0
    uuid: str
    host: str
    binary: str = COMPUTE_BINARY
    version: int = CURRENT_VERSION
    boot_id: str | None = None
    last_seen_up: datetime.datetime | None = None
    down_since: datetime.datetime | None = None
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None

    def is_up(self, now: datetime.datetime, lease: float) -> bool:
        """Whether it counts as up: no operator has declared it down, it was not stopped, and it has been heard of.

        :param now: the database's time.
        :param lease: seconds after which a conductor, which itself writes to the database, counts as down.
        """
        if self.forced_down or self.last_seen_up is None:
            return False
        return self.down_since is None if self.binary == COMPUTE_BINARY else not self.is_silent(now, lease)

    def is_silent(self, now: datetime.datetime, seconds: float) -> bool:
        """Whether nothing has been heard of it for so long, its own word that it stops being the last.

        One that has stopped in good order is down at once, but may be back at once too.

        :param now: the database's time.
        """
        heard = self.last_seen_up or self.updated_at
        return heard is None or abs((now - heard).total_seconds()) > seconds
