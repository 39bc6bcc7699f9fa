# SPDX-License-Identifier: Apache-2.0

"""A service as stored in the database, and the list of service versions."""

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
    6: 'guests are evacuated; below, a host is no destination of an evacuation, and does not clean up after one',
    7: 'a host lists its guests when asked; below, a drain cannot check that the hypervisor has no guest',
    8: 'a host reports the diagnostics of its guests and its uptime; below, the API replies with 501',
    9: 'guests are cold-migrated; below, a host is neither source nor destination of a cold migration',
    10: 'guests are resized; below, a host is neither source nor destination of a resize',
    11: 'guests are resized where they are; below, no guest of a host is, and a conductor has to be upgraded first',
}
CURRENT_VERSION = max(SERVICE_VERSIONS)
#: From this version on a migration holds the allocation of its source.
MIGRATION_OWNED = 2
#: From this version on a host can abort a migration in its queue.
ABORTS_QUEUED = 3
#: From this version on a host answers a command for a post or rollback step at once, and runs the step afterwards.
LIGHTWEIGHT = 4
#: From this version on a host refuses commands of a migration after a later migration of the same guest.
COMPARES_TENURE = 5
#: From this version on a host starts the guests of a dead host, and removes those that were evacuated from it.
EVACUATES = 6
#: From this version on a host lists its guests when asked.
LISTS_GUESTS = 7
#: From this version on a host reports the diagnostics of its guests, and its uptime.
REPORTS_DIAGNOSTICS = 8
#: From this version on a host powers guests off to move them, and starts those that were powered off elsewhere.
MIGRATES_COLD = 9
#: From this version on a host gives a guest that it starts in a resize the new flavor.
RESIZES = 10
#: From this version on a host resizes a guest that stays there, and a conductor has the saga for it.
RESIZES_HERE = 11

COMPUTE_BINARY = 'nova-compute'
CONDUCTOR_BINARY = 'nova-conductor'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service(base.Versioned):
    """One row of ``services``. Times are UTC.

    :ivar last_seen_up: the time of its last report; None: it stopped as planned, and has not reported since.
    :ivar down_since: when an operator forced a compute service down, or a conductor declared it down: the service had
        not reported for ``service_down_time``, while the conductor's messages to itself came through the broker. None:
        it has reported since. So a host keeps its state while the broker or every conductor is away.
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
        """Return whether the service counts as up.

        It does not after it stopped, after an operator or a conductor declared it down, or before its first report.

        :param now: the database's time.
        :param lease: seconds after which a conductor that has not written to the database counts as down.
        """
        if self.forced_down or self.last_seen_up is None:
            return False
        return self.down_since is None if self.binary == COMPUTE_BINARY else not self.is_unreachable(now, lease)

    def is_unreachable(self, now: datetime.datetime, seconds: float) -> bool:
        """Return whether the last report of the service is older than some seconds.

        The report of a planned stop counts as the last one. A stopped service is down at once, but it may also be back
        soon.

        :param now: the database's time.
        """
        reported = self.last_seen_up or self.updated_at
        return reported is None or abs((now - reported).total_seconds()) > seconds
