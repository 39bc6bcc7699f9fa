# SPDX-License-Identifier: Apache-2.0

"""The sagas of a cold migration: the tables of steps with their undos, and their functions in order.

The source powers the guest off, and then the destination starts it. The migration is ``finished`` then, until a user
confirms or reverts it. To confirm it is the rest of the first saga. To revert it is a saga of its own, without an undo:
once the guest has ended at the destination, it can only be restored at the source.

A resize is a cold migration to another flavor, with the same sagas. If Placement has room for it only at its host, it
stays there, and follows :mod:`migrator.conductor.tasks.resize_here` from the choice of its destination on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrator.conductor.guests import lists
from migrator.conductor.migration import abandon, allocations, destinations, elsewhere, hosts
from migrator.conductor.migration.context import MigrationContext, Status
from migrator.conductor.migration.settle import settle_start
from migrator.conductor.migration.settle_table import Host, Observed
from migrator.conductor.tasks import live_migrate
from migrator.objects import RESIZED, STOPPED, GuestState, LiveMigrateData, protocol, steps
from migrator.objects.difference import POWER
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga import log
from migrator.saga.saga import Back, Done, Failed, GoOn, Kind, Parked, Saga, Settlement, Step, Stuck, Verdict


def saga() -> Saga[MigrationContext]:
    """Return the saga of a cold migration, up to its confirmation."""
    compensatable, pivot, retriable = Kind.COMPENSATABLE, Kind.PIVOT, Kind.RETRIABLE
    # fmt: off
    return Saga(
        Step('move_allocation', compensatable, status=status_before_power_off,
             intent=live_migrate.choose_destination, do=allocations.move_allocation,
             undo=allocations.return_allocation),
        # The checks change nothing.
        Step('check_can_migrate_source', compensatable,
             do=check_can_migrate_source),
        Step('check_can_migrate_destination', compensatable,
             do=check_can_migrate_destination),
        Step('migrate_disk_and_power_off', compensatable, status=Status.MIGRATING,
             intent=note_state, do=migrate_disk_and_power_off,
             undo=revert_migration_at_source),
        # From the commit of the intent on the guest may run at the destination. The source has just reported that it is
        # off there.
        Step('finish_migration', pivot,
             intent=check_source_is_off, do=finish_migration,
             undo=revert_migration_at_destination),
        # The outcome, the new host and the end of the task are one commit.
        Step('update_instance_host', retriable, status=Status.FINISHED,
             do=update_instance_host),
        # The migration waits here for its user. It holds the source's allocation, so that a revert has room.
        Step('confirm_migration_at_source', retriable, status=Status.CONFIRMING,
             intent=wait_for_confirmation, do=confirm_migration_at_source),
        Step('release_source_allocation', retriable,
             intent=allocations.empty_intent, do=allocations.release_source_allocation),
        Step('confirm', retriable, status=Status.CONFIRMED,
             do=give_state_back),
        settle=settle, abandon=abandon.abandon,
    )
    # fmt: on


def reverts() -> Saga[MigrationContext]:
    """Return the saga of a cold migration that is finished, and that a user has reverted."""
    pivot, retriable = Kind.PIVOT, Kind.RETRIABLE
    # fmt: off
    return Saga(
        Step('finish_migration', pivot,
             do=finish_migration),
        # The source starts its copy only after this one has ended.
        Step('revert_migration_at_destination', retriable, status=Status.REVERTING,
             intent=wait_for_both_hosts, do=revert_migration_at_destination),
        Step('return_instance_host', retriable,
             do=return_instance_host),
        Step('revert_migration_at_source', retriable,
             intent=note_ended_at_destination, do=revert_migration_at_source),
        Step('return_source_allocation', retriable,
             intent=allocations.empty_intent, do=return_source_allocation),
        Step('revert', retriable, status=Status.REVERTED,
             do=give_state_back),
        settle=settle, abandon=abandon.abandon,
    )
    # fmt: on


# --- 1 move_allocation -----------------------------------------------------------------------------------------------


def status_before_power_off(m: MigrationContext) -> str:
    """Return the status while nothing is powered off.

    A later attempt keeps its status, since none leads back.
    """
    return Status.MIGRATING if m.row.status == Status.MIGRATING else Status.PRE_MIGRATING


# --- 2, 3 the checks -------------------------------------------------------------------------------------------------


def check_can_migrate_source(m: MigrationContext) -> Verdict:
    """Check whether the guest can leave the source.

    The log keeps what the destination needs to start it.
    """
    for source in m.tools.database.services.places('', host=m.source):
        refused = destinations.refusal_of_cold_migration(source, m.row.migration_type)
        if refused is not None:
            return Failed(f'Source {m.source} cannot take part: {refused}')
    data = LiveMigrateData(new_flavor=m.row.new_flavor)
    return hosts.check(m, m.source, 'check_can_migrate_source', migrate_data=data)


def check_can_migrate_destination(m: MigrationContext) -> Verdict:
    """Check whether the destination can start the guest."""
    data = hosts.migrate_data(m, 'check_can_migrate_source')
    return hosts.check(m, m.destination, 'check_can_migrate_destination', migrate_data=data)


# --- 4 migrate_disk_and_power_off ------------------------------------------------------------------------------------


def note_state(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Record the vm_state of the guest, which it gets back when the migration is confirmed or reverted.

    Another host must not have the guest. If it is shut off at the source although the database has it running, it may
    run at any host. It is not started then, and the database follows its host.
    """
    data = hosts.migrate_data(m, 'check_can_migrate_source') or hosts.migrate_data(m, 'check_can_resize')
    assert data is not None  # this step follows the check
    vm_state = m.guest.vm_state if data.source['power_on'] else STOPPED
    copies = elsewhere.refuse(m, [m.source], whole=vm_state != m.guest.vm_state)
    if not isinstance(copies, lists.Copies):
        return copies
    m.read_boots()
    m.writes.instance['task_state'] = 'resize_migrating'
    return {'vm_state': vm_state}


def migrate_disk_and_power_off(m: MigrationContext) -> Verdict:
    """Have the source power the guest off, and copy the disks that the destination does not see."""
    found = hosts.carry_out(m, m.source, 'migrate_disk_and_power_off', **_guest(m))
    if not isinstance(found, protocol.Report):
        return found
    if found.state != protocol.WorkState.DONE:
        return Failed(f'Host {m.source} could not power the guest off, or copy its disks: {found.reason}')
    return Done()


# --- 5 finish_migration ----------------------------------------------------------------------------------------------


def check_source_is_off(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Record that the guest may be started from now on, if the source reports that it is off there.

    A source that is down since has reported before that it has powered the guest off.
    """
    source = hosts.poll(m, m.source)
    if source.observed is Observed.MISSING:
        return hosts.wait_for_observation(m, m.source)
    if source.observed not in (Observed.SHUT_OFF, Observed.DOWN):
        return Failed(f'Source {m.source} {source.observed}, although it had powered the guest off.')
    m.read_boots()
    return {}


def finish_migration(m: MigrationContext) -> Failed | Parked:
    """Have the destination start the guest. Settling finds out whether it has."""
    return hosts.begin(m, m.destination, 'finish_migration', **_guest(m))


def settle(m: MigrationContext) -> Settlement:
    """Poll the host that was sent the last command, and decide whether the guest was started."""
    if m.record('finish_migration') is None:
        return _settle_at_source(m)
    return settle_start(m, 'finish_migration', finish_migration, _when_destination_is_down)


def _when_destination_is_down(m: MigrationContext, found: Host) -> Stuck | Parked | Back | None:
    host = m.destination
    if not found.forced_down:
        return Stuck(Reason.of(StuckKind.DESTINATION_DOWN, host))
    if not m.replies.settling:
        # The source may have restored the guest of an earlier attempt in this epoch, and would not do it again.
        return None
    # It may have started the guest, which may have been moved from there since.
    copies = elsewhere.refuse_start(m, m.source)
    if not isinstance(copies, lists.Copies):
        return copies
    return Back(f'Destination {host} was forced down before it had reported that it has started the guest.')


def _settle_at_source(m: MigrationContext) -> Settlement:
    """Decide before anything was started: the guest stays at the source if there is a reason to abort."""
    if m.abort_reason is None:
        return GoOn()
    if m.record('migrate_disk_and_power_off') is not None:
        if not m.replies.settling:
            m.raise_epoch()
        if hosts.poll(m, m.source).observed is Observed.MISSING:
            return hosts.wait_for_observation(m, m.source)
    return Back(m.abort_reason)


# --- 6 update_instance_host ------------------------------------------------------------------------------------------


def update_instance_host(m: MigrationContext) -> Verdict:
    """Set the instance's host and flavor, and free it for its user, in the commit of the outcome."""
    m.writes.instance |= {'host': m.row.dest_compute, 'node': m.row.dest_node}
    m.writes.instance |= destinations.flavor_at(m.row, m.destination)
    m.writes.instance |= {'vm_state': RESIZED, 'task_state': None, 'power_state': power_state(m)}
    return Done()


# --- 7, 8, 9 the confirmation ----------------------------------------------------------------------------------------


def wait_for_confirmation(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Wait for the confirmation, and then for the destination to report that it has the guest.

    The source's copy may be the last one.
    """
    if m.row.confirm_requested_at is None:
        return waits_for_its_user()
    assert m.destination is not None
    found = hosts.poll(m, m.destination)
    if found.observed is Observed.MISSING:
        return hosts.wait_for_observation(m, m.destination)
    if found.observed is not Observed.RUNS:
        helps = f'start the compute service of {m.destination}. Or look' if found.observed is Observed.DOWN else 'look'
        words = {'source': m.source, 'observed': found.observed, 'look': helps, 'migration': m.row.uuid}
        return Stuck(Reason.of(StuckKind.NOT_CONFIRMED, m.destination, **words))
    m.read_boots()
    return {}


def waits_for_its_user() -> Parked:
    """Return that a finished migration waits for its user."""
    return Parked(Reason.of(WaitKind.USER), patient=True, in_status=True, hosts=())


def confirm_migration_at_source(m: MigrationContext) -> Verdict:
    """Remove what is left of the guest at the source."""
    return _retry(m, m.source, 'confirm_migration_at_source')


def give_state_back(m: MigrationContext) -> Verdict:
    """Give the instance its vm_state from before the migration."""
    m.writes.instance['vm_state'] = _vm_state(m)
    return Done()


# --- the revert ------------------------------------------------------------------------------------------------------


def wait_for_both_hosts(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Wait for both hosts to report that the guest can go back: the source has it, shut off.

    If all hosts are asked, the log keeps which were asked in vain.
    """
    assert m.destination is not None
    if not m.replies.settling:
        # An undo of an earlier attempt may have sent the same command in this epoch.
        m.raise_epoch()
    source, destination = hosts.poll(m, m.source), hosts.poll(m, m.destination)
    missing = [
        host for host, found in ((m.source, source), (m.destination, destination)) if found.observed is Observed.MISSING
    ]
    if missing:
        return hosts.wait_for_observation(m, *missing)
    if source.observed is not Observed.SHUT_OFF:
        helps = (
            'start its compute service'
            if source.observed is Observed.DOWN
            else f'if {m.destination} has the guest, abandon the migration with the guest on that host'
        )
        words = {'observed': source.observed, 'destination': m.destination, 'look': helps}
        return Stuck(Reason.of(StuckKind.NOT_REVERTED, m.source, **words))
    if destination.observed is Observed.DOWN and not destination.forced_down:
        return Stuck(Reason.of(StuckKind.DESTINATION_MAY_RUN, m.destination))
    # A guest that is not as it was left there may be anywhere.
    has_left = destination.observed is Observed.ABSENT and not destination.forced_down
    copies = elsewhere.refuse_start(m, m.source, whole=not _is_as_started(m, destination), has_left=has_left)
    if not isinstance(copies, lists.Copies):
        return copies
    m.read_boots()
    return {'not_asked': sorted(copies.unasked)} if copies.unasked else {}


def _is_as_started(m: MigrationContext, destination: Host) -> bool:
    """Return whether the destination has the guest as it was started there."""
    seen = m.replies.seen.get(m.destination or '')
    is_off = seen is not None and seen.guest.state == GuestState.SHUTDOWN
    return destination.observed is Observed.RUNS and (not is_off or _vm_state(m) == STOPPED)


def revert_migration_at_destination(m: MigrationContext) -> Verdict:
    """End the guest at the destination: a step of a revert, and the undo of ``finish_migration``.

    A fenced destination does it when it is back.
    """
    undone = m.record('finish_migration', log.UNDO)
    return _retry(m, m.destination, steps.AFTER_REVERT, undone, runs_at=None if undone is not None else m.source)


def return_instance_host(m: MigrationContext) -> Verdict:
    """Set the instance's host and flavor to those of the source again, before the source starts the guest."""
    m.writes.instance |= {'host': m.row.source_compute, 'node': m.row.source_node, 'power_state': power_state(m)}
    m.writes.instance |= destinations.flavor_at(m.row, m.source)
    return Done()


def note_ended_at_destination(m: MigrationContext) -> Mapping[str, Any]:
    """Return an empty intent, once it is committed that the destination has ended the guest."""
    m.read_boots()
    return {}


def revert_migration_at_source(m: MigrationContext) -> Verdict:
    """Restore the guest at the source: a step of a revert, and the undo of the power-off."""
    undone = m.record('migrate_disk_and_power_off', log.UNDO)
    return _retry(m, m.source, 'revert_migration_at_source', undone)


def return_source_allocation(m: MigrationContext) -> Verdict:
    """Return the source's allocation to the instance, and release the destination's."""
    return allocations.return_allocation(m, 'return_source_allocation', log.DO)


# --- shared by several -----------------------------------------------------------------------------------------------


def _vm_state(m: MigrationContext) -> str:
    """Return the vm_state that the instance had before the migration."""
    record = m.record('migrate_disk_and_power_off') or m.record('resize')
    assert record is not None
    return str((record.input or {})['vm_state'])


def power_state(m: MigrationContext) -> int:
    """Return the power_state of the guest after its start, which leaves only a stopped guest shut off."""
    state = GuestState.SHUTDOWN if _vm_state(m) == STOPPED else GuestState.RUNNING
    return POWER[state.value][1]


def _guest(m: MigrationContext) -> dict[str, Any]:
    return {'instance': m.guest, 'migrate_data': hosts.migrate_data(m, 'check_can_migrate_destination')}


def _retry(
    m: MigrationContext, host: str | None, step: str, undone: log.StepRecord | None = None, **more: Any
) -> Verdict:
    return hosts.retry(m, host, step, undone, **_guest(m), **more)
