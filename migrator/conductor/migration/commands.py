# SPDX-License-Identifier: Apache-2.0

"""The commands to the hosts up to the move, each with its payload.

The steps of the saga send them, and settling sends the last two again if a host has lost one.
"""

from __future__ import annotations

from typing import Any

from migrator.conductor.migration import hosts
from migrator.conductor.migration.context import MigrationContext
from migrator.objects import base, protocol
from migrator.saga.step import Failed, Parked

Found = protocol.Report | Failed | Parked


def check_destination(m: MigrationContext) -> Found:
    """Run the check at the destination."""
    assert m.destination is not None
    return hosts.check(
        m,
        m.destination,
        'check_can_live_migrate_destination',
        instance=m.instance,
        block_migration=m.row.block_migration,
        disk_over_commit=m.row.disk_over_commit,
    )


def check_source(m: MigrationContext) -> Found:
    """Run the check at the source, with the destination's reply."""
    data = migrate_data(m, 'check_can_live_migrate_destination')
    return hosts.check(m, m.source, 'check_can_live_migrate_source', instance=m.instance, migrate_data=data)


def prepare(m: MigrationContext) -> Found:
    """Prepare the destination. It fails if the destination is down."""
    assert m.destination is not None
    record = m.record('pre_live_migration')
    assert record is not None
    data = migrate_data(m, 'check_can_live_migrate_source')
    found = hosts.carry_out(m, m.destination, 'pre_live_migration', record, instance=m.instance, migrate_data=data)
    if isinstance(found, Parked) and m.tools.is_down(m.destination):
        return Failed(f'Host {m.destination} is down.')
    return found


def queue(m: MigrationContext) -> Failed | Parked:
    """Queue the guest at the source. Settling finds out how its job ends."""
    record = m.record('live_migration')
    assert record is not None
    found = hosts.carry_out(
        m,
        m.source,
        'live_migration',
        record,
        instance=m.instance,
        destination=m.destination,
        migrate_data=migrate_data(m, 'pre_live_migration'),
    )
    if isinstance(found, protocol.Report):
        # The job has ended before the first poll.
        m.ledger.wake_now()
        return Parked(f'a poll of {m.source} for how the job ended')
    return found


def migrate_data(m: MigrationContext, step: str) -> Any:
    """Return the data of the hosts for each other, as a step of the present attempt has returned it."""
    return base.from_primitive(m.result(step)['migrate_data'])
