# SPDX-License-Identifier: Apache-2.0

"""The data that the two hosts of a migration exchange through the conductor."""

from __future__ import annotations

import dataclasses
from typing import Any

from migrator.objects import base
from migrator.objects.instance import Flavor


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveMigrateData(base.Versioned):
    """The data of one live migration for both hosts.

    The destination's check creates it. The source's check and pre_live_migration complete it. After that it does not
    change.

    :ivar block_migration: whether disks are copied too; None until the checks have found out.
    :ivar is_shared_storage: whether both hosts see the same disks.
    :ivar source: facts of the source's driver, JSON-safe.
    :ivar destination: facts of the destination's driver, JSON-safe (where to connect, what it can do).
    :ivar new_flavor: what the guest gets at the destination of a resize; None: it stays as it is.
    """

    block_migration: bool | None = None
    disk_over_commit: bool = False
    is_shared_storage: bool = True
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    destination: dict[str, Any] = dataclasses.field(default_factory=dict)
    new_flavor: Flavor | None = None
