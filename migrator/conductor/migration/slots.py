# SPDX-License-Identifier: Apache-2.0

"""How a migration waits for its slots, and when it looks for them again; see :mod:`migrator.db.slots`."""

from __future__ import annotations

import math

from migrator import exception
from migrator.conductor.migration import waiting
from migrator.conductor.migration.context import MigrationContext
from migrator.db import slots
from migrator.saga.saga import Parked


def allowance(m: MigrationContext, bounds: slots.Bounds) -> slots.Allowance:
    """Return what a migration may take now."""
    tools = m.tools
    found = tools.database.slots.read(bounds, m.source)
    tools.slots.note(found, tools.options.poll_interval)
    return found.allowance_of(slots.Waiter.of(m.row), tools.slots.was_full)


def wait(m: MigrationContext, error: exception.NoSlot) -> Parked:
    """Record that a migration waits for a slot. The end of another migration or a poll wakes it."""
    m.ledger.candidates = error.kwargs.get('candidates', ())
    m.ledger.wake_at = math.inf
    waiting.note_waiting(m, error.message)
    return Parked(error.message.removeprefix('for '), patient=True, hosts=())
