# SPDX-License-Identifier: Apache-2.0

"""A service as stored, the node of its host, and the list of service versions."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from migrator.objects import base

#: version -> what a service of that version can do, and an older one cannot. The lowest compute service decides how the
#: allocations of a new migration are kept; that of the source, whether the migration can be aborted in its queue.
SERVICE_VERSIONS: dict[int, str] = {
    1: 'doubled allocations: the instance holds source and destination',
    2: 'migration-owned allocations: the migration holds the source',
    3: 'a queued live migration can be aborted',
}
CURRENT_VERSION = max(SERVICE_VERSIONS)
#: From this version on a migration holds the allocation of its source.
MIGRATION_OWNED = 2
#: From this version on a host can abort a migration in its queue.
ABORTS_QUEUED = 3

COMPUTE_BINARY = 'nova-compute'
CONDUCTOR_BINARY = 'nova-conductor'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service(base.Versioned):
    """One row of ``services``. Times are UTC.

    :ivar last_seen_up: the time of its last report; None: it stopped as planned, and has not reported since.
    :ivar down_since: when an operator forced a compute service down, or a conductor declared it down: the service had
        not reported for ``service_down_time``, while the conductor's messages to itself came through the broker. None:
        it has reported since. So a host keeps its state while the broker or every conductor is away.
    :ivar kernel: the start of the kernel that the registered boot of a compute service has reported; None: it has not.
    :ivar identity: the identity of the machine that has the name of this compute host; None: none was reported.
    :ivar refused_at: when a machine was last refused because of this one; None: not since this host has registered.
    :ivar refused_host: the name of that machine: that of this host, or another one under which this machine came.
    :ivar refused_identity: the identity of that machine.
    """

    id: int = 0
    uuid: str
    host: str
    binary: str = COMPUTE_BINARY
    version: int = CURRENT_VERSION
    boot_id: str | None = None
    kernel: str | None = None
    last_seen_up: datetime.datetime | None = None
    down_since: datetime.datetime | None = None
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    identity: str | None = None
    refused_at: datetime.datetime | None = None
    refused_host: str | None = None
    refused_identity: str | None = None
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

    @property
    def reports(self) -> bool:
        """Whether a compute service reports, forced down or not."""
        return self.last_seen_up is not None and self.down_since is None

    @property
    def is_fenced(self) -> bool:
        """Whether nothing runs at the host: it is forced down, and has not reported since.

        A host that reports is not dead, whatever was declared before.
        """
        return self.forced_down and not self.reports

    @property
    def may_run_unlisted(self) -> bool:
        """Whether the host of a compute service may run guests and does not report them."""
        return not self.forced_down and not self.reports

    def is_unreachable(self, now: datetime.datetime, seconds: float) -> bool:
        """Return whether the last report of the service is older than some seconds.

        The report of a planned stop counts as the last one. A stopped service is down at once, but it may also be back
        soon.

        :param now: the database's time.
        """
        reported = self.last_seen_up or self.updated_at
        return reported is None or abs((now - reported).total_seconds()) > seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProviderInventory(base.Versioned):
    """One resource provider of a host's tree, as Placement describes it.

    ``inventory`` maps a resource class to ``{total, reserved, min_unit, max_unit, step_size, allocation_ratio}``.

    :ivar absent_traits: those that the driver knows the host to lack. All others stay as an operator has set them.
    """

    uuid: str
    name: str
    parent_uuid: str | None = None
    inventory: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    traits: list[str] = dataclasses.field(default_factory=list)
    absent_traits: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeNode(base.Versioned):
    """One hypervisor.

    Its uuid is the uuid of the root provider of its tree in Placement. Memory is in MiB, disk in GiB.

    :ivar cold_migrations: the types of migrations of powered-off guests that its driver supports: ``migration`` and
        ``resize``. The compute service fills it in. None: it has not reported yet.
    """

    id: int = 0
    uuid: str
    host: str
    node: str
    hypervisor_type: str = 'fake'
    hypervisor_version: int = 1000
    host_ip: str = '127.0.0.1'
    cpu_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    providers: list[ProviderInventory] = dataclasses.field(default_factory=list)
    cold_migrations: list[str] | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None

    def total(self, resource_class: str) -> int:
        """Return the total of a resource class over the whole tree, in the unit of the class."""
        return sum(int(provider.inventory.get(resource_class, {}).get('total', 0)) for provider in self.providers)
