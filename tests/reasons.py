# SPDX-License-Identifier: Apache-2.0

"""Columns of a migration that waits, or is stuck, for a reason in a test's own words."""

from __future__ import annotations

from typing import Any

from migrator.objects import reasons
from migrator.objects.reasons import Reason, StuckKind, WaitKind


def stuck_for(text: str) -> dict[str, Any]:
    """Return the columns of a migration whose ``stuck_reason`` is this text."""
    return reasons.columns('stuck', Reason.of(StuckKind.UNKNOWN_GUEST, reason=text))


def waiting_for(text: str) -> dict[str, Any]:
    """Return the columns of a migration whose ``waits_for`` is this text."""
    return reasons.columns('wait', Reason.of(WaitKind.PLACEMENT_ERROR, reason=text))


def waiting_for_slot(text: str) -> dict[str, Any]:
    """Return the columns of a migration that waits for a slot."""
    return reasons.columns('wait', Reason.of(WaitKind.SLOT, what=text))


NOT_STUCK = reasons.columns('stuck', None)
