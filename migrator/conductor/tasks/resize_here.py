# SPDX-License-Identifier: Apache-2.0

"""The sagas of a resize whose guest stays at its host: the steps, and their functions in order.

Its first step is that of every cold migration (:mod:`migrator.conductor.tasks.cold_migrate`), which chooses the
destination. If that is the source, the rest is here. There is only one copy of the guest, and the host itself knows
which of its two definitions the guest has. So nothing is settled between hosts: each command may be repeated, and the
host finds out what is left to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrator.conductor.migration import abandon, allocations, hosts
from migrator.conductor.migration.context import MigrationContext, Status
from migrator.conductor.migration.settle_table import Observed
from migrator.conductor.tasks import cold_migrate, live_migrate
from migrator.objects import RESIZED, LiveMigrateData, protocol
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga import log
from migrator.saga.saga import Back, Done, Failed, Forward, GoOn, Kind, Parked, Saga, Settlement, Step, Stuck, Verdict


def saga() -> Saga[MigrationContext]:
    """Return the saga of a resize at one host, up to its confirmation."""
    compensatable, pivot, retriable = Kind.COMPENSATABLE, Kind.PIVOT, Kind.RETRIABLE
    # fmt: off
    return Saga(
        # The migration holds the old flavor, and the instance the new one, both at this host.
        Step('move_allocation', compensatable, status=cold_migrate.status_before_power_off,
             intent=live_migrate.choose_destination, do=allocations.move_allocation,
             undo=allocations.return_allocation),
        # The check changes nothing.
        Step('check_can_resize', compensatable,
             do=check_can_resize),
        # The guest is powered off, gets the new definition, which keeps the old one, and is started.
        Step('resize', pivot, status=Status.MIGRATING,
             intent=cold_migrate.note_state, do=resize,
             undo=revert_resize),
        # The outcome, the new flavor and the end of the task are one commit.
        Step('update_instance_flavor', retriable, status=Status.FINISHED,
             do=update_instance_flavor),
        # The migration waits here for its user. It holds the old allocation, so that a revert has room.
        Step('confirm_resize', retriable, status=Status.CONFIRMING,
             intent=wait_for_confirmation, do=confirm_resize),
        Step('release_source_allocation', retriable,
             intent=allocations.empty_intent, do=allocations.release_source_allocation),
        Step('confirm', retriable, status=Status.CONFIRMED,
             do=cold_migrate.give_state_back),
        settle=settle, abandon=abandon.abandon,
    )
    # fmt: on


def reverts() -> Saga[MigrationContext]:
    """Return the saga of a resize at one host that is finished, and that a user has reverted."""
    pivot, retriable = Kind.PIVOT, Kind.RETRIABLE
    # fmt: off
    return Saga(
        Step('resize', pivot,
             do=resize),
        # The intent and the old flavor are one commit.
        Step('revert_resize', retriable, status=Status.REVERTING,
             intent=return_old_flavor, do=revert_resize),
        Step('return_source_allocation', retriable,
             intent=allocations.empty_intent, do=cold_migrate.return_source_allocation),
        Step('revert', retriable, status=Status.REVERTED,
             do=cold_migrate.give_state_back),
        settle=settle, abandon=abandon.abandon,
    )
    # fmt: on


# --- 2 check_can_resize ----------------------------------------------------------------------------------------------


def check_can_resize(m: MigrationContext) -> Verdict:
    """Check whether the guest can be resized at its host. The log keeps how."""
    data = LiveMigrateData(new_flavor=m.row.new_flavor)
    return hosts.check(m, m.source, 'check_can_resize', migrate_data=data)


# --- 3 resize --------------------------------------------------------------------------------------------------------


def resize(m: MigrationContext) -> Failed | Parked:
    """Have the host resize the guest. Settling finds out whether it has."""
    return hosts.begin(m, m.source, 'resize', **_guest(m))


def settle(m: MigrationContext) -> Settlement:
    """Poll the host, and decide whether the guest is resized.

    It is resized if the host reports that the step is done.
    """
    if m.record('resize') is None:
        return Back(m.abort_reason) if m.abort_reason is not None else GoOn()
    while True:
        found = hosts.poll(m, m.source)
        m.ledger.waits_on = {m.source}
        if found.observed is Observed.MISSING:
            return hosts.wait_for_observation(m, m.source)
        if found.observed is Observed.DOWN and not found.forced_down:
            return Stuck(Reason.of(StuckKind.RESIZE_DOWN, m.source))
        report = m.replies.reports.get((m.source, 'resize'))
        state = report.state if report is not None else None
        if state == protocol.WorkState.DONE:
            return Forward()
        if found.observed is not Observed.DOWN:
            if state == protocol.WorkState.RUNNING:
                return Parked(Reason.of(WaitKind.RESIZE, m.source))
            if state is None and m.abort_reason is None:
                # The host has lost the command, and finds out how far it had come.
                return resize(m)
        if m.replies.settling:
            # A host that dies while it resizes the guest reports no reason.
            why = (report.reason if report is not None else None) or f'{m.source} was forced down'
            return Back(m.abort_reason or f'Host {m.source} could not resize the guest: {why}', another=True)
        # The host refuses what is still on its way from now on.
        m.raise_epoch()


# --- 4 update_instance_flavor ----------------------------------------------------------------------------------------


def update_instance_flavor(m: MigrationContext) -> Verdict:
    """Set the instance's flavor, and free it for its user, in the commit of the outcome."""
    m.writes.instance |= {'flavor': m.row.new_flavor, 'vm_state': RESIZED, 'task_state': None}
    m.writes.instance['power_state'] = cold_migrate.power_state(m)
    return Done()


# --- 5 the confirmation ----------------------------------------------------------------------------------------------


def wait_for_confirmation(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Wait for the confirmation, and for the host to report the guest.

    A host that is down drops the old definition when it is back.
    """
    if m.row.confirm_requested_at is None:
        return cold_migrate.waits_for_its_user()
    found = hosts.poll(m, m.source)
    if found.observed is Observed.MISSING:
        return hosts.wait_for_observation(m, m.source)
    if found.observed is Observed.ABSENT:
        return Stuck(Reason.of(StuckKind.RESIZE_NOT_CONFIRMED, m.source, observed=found.observed))
    m.read_boots()
    return {}


def confirm_resize(m: MigrationContext) -> Verdict:
    """Have the host drop the old definition."""
    return hosts.retry(m, m.source, 'confirm_resize', **_guest(m))


# --- the revert ------------------------------------------------------------------------------------------------------


def return_old_flavor(m: MigrationContext) -> Mapping[str, Any] | Verdict:
    """Wait for the host to report the guest, and give the instance its old flavor.

    The host may never answer after that. The guest gets its old size when the host is back.
    """
    found = hosts.poll(m, m.source)
    if found.observed is Observed.MISSING:
        return hosts.wait_for_observation(m, m.source)
    if found.observed in (Observed.DOWN, Observed.ABSENT):
        return Stuck(Reason.of(StuckKind.RESIZE_NOT_REVERTED, m.source, observed=found.observed))
    m.writes.instance |= {'flavor': m.row.old_flavor, 'power_state': cold_migrate.power_state(m)}
    m.read_boots()
    return {}


def revert_resize(m: MigrationContext) -> Verdict:
    """Give the guest its old definition again: a step of a revert, and the undo of ``resize``."""
    return hosts.retry(m, m.source, 'revert_resize', m.record('resize', log.UNDO), **_guest(m))


# --- shared by several -----------------------------------------------------------------------------------------------


def _guest(m: MigrationContext) -> dict[str, Any]:
    return {'instance': m.guest, 'migrate_data': hosts.migrate_data(m, 'check_can_resize')}
