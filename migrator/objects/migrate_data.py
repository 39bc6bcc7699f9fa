# SPDX-License-Identifier: Apache-2.0

"""What the two hosts must know of each other to move one guest; it travels through the conductor."""

from __future__ import annotations

import dataclasses
from typing import Any

from migrator.objects import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveMigrateData(base.Versioned):
    """Made by the destination's check, completed by the source's check and by pre_live_migration, then frozen.

    :ivar block_migration: whether disks are copied too; None until the checks have found out.
    :ivar is_shared_storage: whether both hosts see the same disks.
    :ivar source: facts of the source's driver, JSON-safe.
    :ivar destination: facts of the destination's driver, JSON-safe (where to connect, what it can do).
    """

    block_migration: bool | None = None
    disk_over_commit: bool = False
    is_shared_storage: bool = True
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    destination: dict[str, Any] = dataclasses.field(default_factory=dict)
