# SPDX-License-Identifier: Apache-2.0

"""The saga of an evacuation: the table of steps with their undos, and their functions in order.

The guest is started anew at its destination, from what was stored while its source lived. The committed intent to start
it is the pivot. A source that comes back before it keeps the guest. A source that comes back later removes its copy:
see :mod:`migrator.conductor.cleanups`, which also completes the evacuation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from migrator import exception
from migrator.conductor.guests import lists
from migrator.conductor.migration import abandon, allocations, elsewhere, hosts
from migrator.conductor.migration.context import LEFT_SHUT_OFF, NOW, MigrationContext, Status
from migrator.conductor.migration.settle import settle_start
from migrator.conductor.migration.settle_table import Host
from migrator.objects import LiveMigrateData, Service
from migrator.objects.reasons import Reason, StuckKind
from migrator.saga import log
from migrator.saga.saga import Back, Done, Failed, GoOn, Kind, Parked, Saga, Settlement, Step, Stuck, Verdict


def saga() -> Saga[MigrationContext]:
    """Return the saga of an evacuation."""
    compensatable, pivot, retriable = Kind.COMPENSATABLE, Kind.PIVOT, Kind.RETRIABLE
    # fmt: off
    return Saga(
        Step('move_allocation', compensatable, status=Status.PREPARING,
             intent=choose_destination, do=allocations.move_allocation,
             undo=allocations.return_allocation),
        # The check changes nothing.
        Step('check_can_evacuate', compensatable,
             do=check_can_evacuate),
        # From the commit of the intent on the guest may run at the destination. Only the destination knows.
        Step('evacuate', pivot,
             intent=note_queued, do=evacuate,
             undo=rollback_evacuation_at_destination),
        # The outcome, the new host and the deferred cleanup at the source are one commit.
        Step('update_instance_host', retriable,
             do=update_instance_host),
        # With doubled allocations the instance holds the source's until here.
        Step('hold_source_allocation', retriable,
             intent=allocations.empty_intent, do=allocations.hold_source_allocation),
        # The instance is free for the next task. The migration holds the source's allocation until the source has
        # cleaned up.
        Step('end_at_destination', retriable, status=Status.DONE,
             do=end_at_destination),
        settle=settle, abandon=abandon.abandon,
    )
    # fmt: on


# --- 1 move_allocation -----------------------------------------------------------------------------------------------


def choose_destination(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Choose the next candidate, unless the source is back or another host has the guest."""
    refused = _is_back(m) or _copies(m)
    return allocations.next_candidate(m) if isinstance(refused, lists.Copies) else refused


# --- 2 check_can_evacuate --------------------------------------------------------------------------------------------


def check_can_evacuate(m: MigrationContext) -> Verdict:
    """Check whether the destination can start the guest from its stored definition."""
    definition = m.tools.database.definitions.get(m.row.instance_uuid, m.source)
    return hosts.check(m, m.destination, 'check_can_evacuate', migrate_data=LiveMigrateData(source=definition))


# --- 3 evacuate ------------------------------------------------------------------------------------------------------


def note_queued(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Record that the guest may be started from now on, unless the source is back or another host has it.

    The log keeps which hosts were asked in vain. A source that registers while ``queued_at`` is not set requests an
    abort. So either this commit fails, or the registration sees ``queued_at``.
    """
    back = _is_back(m)
    if back is not None:
        return back
    copies = _copies(m)
    if not isinstance(copies, lists.Copies):
        return copies
    m.set(checked_at=NOW, queued_at=NOW)
    m.read_boots()
    return {'source_boot_id': m.boots.get(m.source), 'not_asked': sorted(copies.unasked)}


def evacuate(m: MigrationContext) -> Failed | Parked:
    """Have the destination start the guest. Settling finds out whether it has."""
    data = hosts.migrate_data(m, 'check_can_evacuate')
    return hosts.begin(m, m.destination, 'evacuate', instance=m.guest, migrate_data=data)


def rollback_evacuation_at_destination(m: MigrationContext) -> Verdict:
    """Remove what the start has left at the destination."""
    data = hosts.migrate_data(m, 'check_can_evacuate')
    step = 'rollback_evacuation_at_destination'
    return hosts.retry(m, m.destination, step, m.record('evacuate', log.UNDO), instance=m.guest, migrate_data=data)


def settle(m: MigrationContext) -> Settlement:
    """Poll the destination for the guest, and decide whether it was started."""
    if m.record('evacuate') is None:
        return Back(m.abort_reason) if m.abort_reason is not None else GoOn()
    return settle_start(m, 'evacuate', evacuate, _when_destination_is_down)


def _when_destination_is_down(m: MigrationContext, _found: Host) -> Stuck:
    return Stuck(Reason.of(StuckKind.EVACUATION_DOWN, m.destination))


# --- 4, 5, 6 the end -------------------------------------------------------------------------------------------------


def update_instance_host(m: MigrationContext) -> Verdict:
    """Set the instance's host, and defer the cleanup at the source, in the commit of the outcome."""
    m.writes.instance |= {'host': m.row.dest_compute, 'node': m.row.dest_node}
    if m.stops_guest:
        m.writes.instance |= LEFT_SHUT_OFF
    elif m.guest.vm_state == 'error':
        m.writes.instance['vm_state'] = 'active'
    # An earlier cleanup could restore or resume the source's copy. The new one removes it.
    for older in m.tools.database.cleanups.list(host=m.source, instance_uuid=m.row.instance_uuid):
        m.writes.cleanups_run.append((older.migration_uuid, older.host, older.step))
    m.writes.keeps_definition = True
    data = {'migrate_data': m.facts('check_can_evacuate').migrate_data}
    m.defer(m.source, 'post_evacuation_at_source', f'{m.source} was down when the guest was evacuated from it', data)
    return Done()


def end_at_destination(_m: MigrationContext) -> Verdict:
    """Free the instance for the next task."""
    return Done()


# --- shared by several -----------------------------------------------------------------------------------------------


def _copies(m: MigrationContext) -> Failed | Parked | lists.Copies:
    """Have all hosts list their guests, and refuse a guest that one of them has.

    They do that after the source was declared down.
    """
    source = _service(m)
    declared = source.down_since if source is not None else None
    return elsewhere.refuse(m, [m.source], whole=True, after=declared)


def _service(m: MigrationContext) -> Service | None:
    """Return the compute service of the source, or None if it was deleted."""
    with contextlib.suppress(exception.ComputeHostNotFound):
        return m.tools.database.services.get_compute(m.source)
    return None


def _is_back(m: MigrationContext) -> Failed | None:
    """Return a failure if the source has reported since an operator or a conductor declared it down."""
    source, service = m.source, _service(m)
    if service is None:
        return None
    if service.last_seen_up is not None and service.down_since is None:
        reported = f'last reported at {service.last_seen_up:%Y-%m-%d %H:%M:%S} UTC'
        if service.forced_down:
            return Failed(
                f'Source {source} {reported}, after it was forced down: the guest was left there. If nothing runs '
                'there, stop its compute service, and force it down again.'
            )
        return Failed(
            f'Source {source} is not down, and {reported}: the guest was left there. If nothing runs there, force it '
            'down.'
        )
    if m.tools.database.machines.is_on(service, m.row.instance_uuid):
        return Failed(
            f'The machine that has the guest of {source} is on: it was refused as {service.refused_host} at '
            f'{service.refused_at:%Y-%m-%d %H:%M:%S} UTC, and its guests run. If that machine is off by now, force the '
            'host down again.'
        )
    earlier = m.step_log.find(m.attempt - 1, 'evacuate')
    sent = (earlier.input if earlier is not None else None) or {}
    if sent and sent['source_boot_id'] != service.boot_id:
        return Failed(f'The compute service of source {source} was started, so the host is not dead.')
    return None
