# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of cold migrations: a guest runs twice or is lost, or allocations are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from migrator.api.handlers import cold_migrations
from migrator.conductor import registry
from migrator.conductor.migration import allocations as allocation_steps
from migrator.conductor.migration import destinations, hosts
from migrator.conductor.migration.context import MigrationContext
from migrator.conductor.migration.settle_table import Host
from migrator.conductor.tasks import cold_migrate, resize_here
from migrator.db import actions
from migrator.objects import Instance, Migration
from migrator.placement_client import allocations
from migrator.saga.saga import Done, Verdict
from migrator.testing.hypervisor.driver import FakeDriver
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()


def _done(*_arguments: Any) -> Done:
    return Done()


def _begins(m: MigrationContext) -> Mapping[str, Any]:
    m.read_boots()
    return {}


@SHELF.plant('I1', 'cold')
def destination_starts_before_the_source_is_off() -> Iterator[object]:
    """The destination is sent the start although the source has not reported the guest as shut off."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(cold_migrate, 'migrate_disk_and_power_off', _done))
        yield stack.enter_context(patched(cold_migrate, 'check_source_is_off', _begins))


@SHELF.plant('I4', 'cold')
def source_is_released_when_the_guest_has_arrived() -> Iterator[object]:
    """The migration does not hold the source's allocation until it is confirmed.

    So a revert may have no room.
    """
    update = cold_migrate.update_instance_host

    def releasing(m: MigrationContext) -> Verdict:
        held = allocations.read(m.tools.placement, m.row.uuid)
        if held.generation is not None:
            allocations.remove(m.tools.placement, registry.consumer_of_migration(m.row), generation=held.generation)
        return update(m)

    with patched(cold_migrate, 'update_instance_host', releasing) as there:
        yield there


@SHELF.plant('I15', 'cold', 'cold reverted')
def vm_state_is_not_given_back() -> Iterator[object]:
    """The instance stays resized when its migration has ended."""
    with patched(cold_migrate, 'give_state_back', _done) as there:
        yield there


@SHELF.plant('nova 34', 'cold confirmed late')
def confirmation_does_not_wait_for_the_destination() -> Iterator[object]:
    """The source removes its copy before the destination has reported the guest.

    It may be the last one.
    """
    confirmed = cold_migrate.wait_for_confirmation

    def at_once(m: MigrationContext) -> Mapping[str, Any] | Verdict:
        return confirmed(m) if m.row.confirm_requested_at is None else _begins(m)

    with patched(cold_migrate, 'wait_for_confirmation', at_once) as there:
        yield there


@SHELF.plant('1715182', 'cold reverted')
def revert_does_not_return_the_allocation() -> Iterator[object]:
    """The instance holds the destination after a revert, and the migration holds the source for ever."""
    with patched(cold_migrate, 'return_source_allocation', _done) as there:
        yield there


@SHELF.plant('I1', 'cold destination unreachable')
def destination_that_does_not_answer_counts_as_fenced() -> Iterator[object]:
    """A revert starts the guest at the source while the destination, which is not forced down, runs it."""
    look_at, tried = hosts.poll, hosts._tried

    def fenced(m: MigrationContext, host: str) -> Host:
        found = look_at(m, host)
        return Host(found.observed, forced_down=True, post_copy=found.post_copy)

    def pending(m: MigrationContext, host: str, step: str, outcome: hosts.Found) -> tuple[hosts.Tried, str]:
        found, reason = tried(m, host, step, outcome)
        return (hosts.Tried.PENDING if found is hosts.Tried.MAY_RUN else found), reason

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(hosts, 'poll', fenced))
        yield stack.enter_context(patched(hosts, '_tried', pending))


@SHELF.plant('55f4552621', 'cold confirmed late')
def decision_is_taken_twice() -> Iterator[object]:
    """A migration that a user has confirmed is reverted, too."""

    def finished(request: Any, instance: Any) -> Migration:
        wanted = {'instance_uuid': instance.uuid, 'status': 'finished'}
        found: Migration = request.services.database.migrations.list(wanted, in_progress=True)[0]
        return found

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(cold_migrations, '_finished', finished))
        yield stack.enter_context(patched(actions, '_WAITS_FOR_USER', actions._M.c.status == 'finished'))


@SHELF.plant('I4', 'resize')
def destination_is_chosen_for_the_old_flavor() -> Iterator[object]:
    """The instance holds the amounts of its old flavor at the destination of a resize."""
    with patched(Migration, 'flavors', lambda _migration, own: (own, own)) as there:
        yield there


@SHELF.plant('I4', 'resize', 'resizes seed 5')
def revert_keeps_the_new_flavor() -> Iterator[object]:
    """The instance has the new flavor after a revert, and holds the amounts of the old one."""
    at = destinations.flavor_at

    def new(migration: Migration, _host: str | None) -> dict[str, Any]:
        return at(migration, migration.dest_compute)

    with patched(destinations, 'flavor_at', new) as there:
        yield there


@SHELF.plant('nova 34', 'cold | host2: rpc poll_live_migrations handled #1 | killed for ever')
def source_restores_the_guest_before_the_start_is_undone() -> Iterator[object]:
    """What the destination has begun is not removed, neither at once nor when the destination is back."""
    with patched(cold_migrate, 'revert_migration_at_destination', _done) as there:
        yield there


@SHELF.plant('I2', 'resize here')
def confirmation_leaves_the_old_definition_of_a_guest_that_stays() -> Iterator[object]:
    """The host is not sent the confirmation, and keeps the old definition for ever."""
    with patched(resize_here, 'confirm_resize', _done) as there:
        yield there


@SHELF.plant('1715182', 'resize here')
def confirmation_keeps_the_allocation_of_a_migration_that_stays() -> Iterator[object]:
    """The migration holds the old flavor at the host of the instance for ever."""
    with patched(allocation_steps, 'release_source_allocation', _done) as there:
        yield there


@SHELF.plant('I4', 'resize here reverted')
def revert_of_a_guest_that_stays_keeps_the_new_flavor() -> Iterator[object]:
    """The instance keeps the new flavor after a revert, although the guest gets its old size."""
    return_flavor = resize_here.return_old_flavor

    def keeping(m: MigrationContext) -> Mapping[str, Any] | Verdict:
        found = return_flavor(m)
        m.writes.instance.pop('flavor', None)
        return found

    with patched(resize_here, 'return_old_flavor', keeping) as there:
        yield there


@SHELF.plant('I1', 'resize here interrupted')
def resize_undone_before_its_switch_leaves_the_guest_off() -> Iterator[object]:
    """A host that lost the command between the power-off and the switch does not start the guest."""
    revert = FakeDriver.revert_resize

    def ends(driver: FakeDriver, instance: Instance, migration_uuid: str) -> None:
        guest = driver.hypervisor.guests.get(instance.uuid)
        if guest is not None and guest.resize is not None and guest.resize.old is None:
            guest.resize = None
        revert(driver, instance, migration_uuid)

    with patched(FakeDriver, 'revert_resize', ends) as there:
        yield there
