# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of the hosts: their steps, their deferred cleanups, and the guests they accept."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from migrator import context as migrator_context
from migrator import exception, rpc
from migrator.compute.manager import ComputeManager
from migrator.compute.rpcapi import TOPIC, VERSION
from migrator.compute.step_runner import StepRunner
from migrator.compute.work import LIVE_MIGRATION, step
from migrator.conductor import cleanups
from migrator.conductor.migration import hosts
from migrator.conductor.migration.context import MigrationContext
from migrator.conductor.tasks import live_migrate
from migrator.db import conductors
from migrator.db.services import Services
from migrator.objects import protocol as command
from migrator.saga.saga import Verdict
from migrator.testing.hypervisor.driver import FakeDriver
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()

_Manager = ComputeManager


# --- what a host does ------------------------------------------------------------------------------------------------


@SHELF.plant(
    '1713783', 'success | host2: driver host2 post_live_migration_at_destination #1 | killed, and started again'
)
def start_destroys_what_has_just_arrived() -> Iterator[object]:
    """A restart destroyed guests that no evacuation had moved.

    Here it destroys guests that have not been made the host's own yet.
    """
    init_host = _Manager.init_host

    def tidy(self: Any) -> None:
        hypervisor = self.driver.hypervisor
        for uuid, guest in list(hypervisor.guests.items()):
            if not guest.persistent:
                with hypervisor.world.lock:
                    hypervisor.remove(uuid, self.driver.boot)
        init_host(self)

    with patched(_Manager, 'init_host', tidy) as there:
        yield there


@SHELF.plant('I18', 'success')
def file_of_the_check_is_left() -> Iterator[object]:
    """What the check of the destination made stays there when the guest has come."""
    with patched(FakeDriver, 'cleanup_live_migration_destination_check', lambda self, instance: None) as there:
        yield there


@SHELF.plant('1757292', 'driver fails')
def what_was_prepared_stays_after_a_rollback() -> Iterator[object]:
    """A port still named its migration target after the rollback.

    Here a rollback at the destination removes what the check has left, and not what the preparation made.
    """

    @step(wait=None, cancels=True)
    def some(self: Any, work: Any, instance: Any, migrate_data: Any) -> None:
        self.driver.cleanup_live_migration_destination_check(instance)

    with patched(_Manager, 'rollback_live_migration_at_destination', some) as there:
        yield there


@SHELF.plant('I18', 'success')
def guest_is_not_made_the_destinations_own() -> Iterator[object]:
    """The destination's post step does nothing."""
    nothing = step(wait=None)(lambda *_args, **_rest: None)
    with patched(_Manager, 'post_live_migration_at_destination', nothing) as there:
        yield there


@SHELF.plant('I1', 'cut-over fails')
def users_pause_is_lost() -> Iterator[object]:
    """Restoring the guest at the source starts it, whatever its user had made of it."""
    rollback = inspect.unwrap(_Manager.rollback_live_migration_at_source)

    @step(wait=None, cancels=True)
    def start(self: Any, work: Any, instance: Any, migrate_data: Any) -> Any:
        guest = self.driver.hypervisor.guests.get(instance.uuid)
        if guest is not None:
            guest.resume_to = command.GuestState.RUNNING.value
        return rollback(self, work, instance, migrate_data)

    with patched(_Manager, 'rollback_live_migration_at_source', start) as there:
        yield there


@SHELF.plant('1944619', 'pre fails')
def rollback_of_the_preparation_touches_the_source() -> Iterator[object]:
    """A rollback before the copy phase re-attached at the source what had never been detached.

    Here it commands the source to tidy up.
    """
    rollback = live_migrate.rollback_live_migration_at_destination

    def both(m: MigrationContext) -> Verdict:
        with contextlib.suppress(exception.MigratorException):
            if m.record('live_migration') is None:
                order = hosts.command(m, m.source, 'post_live_migration_at_source')
                m.tools.hosts.send(m.source, order, instance=m.guest, migrate_data=None)
        return rollback(m)

    with patched(live_migrate, 'rollback_live_migration_at_destination', both) as there:
        yield there


@SHELF.plant('06d25926a1', 'success | host1: message step_ended cast #1 | message refused')
def event_that_cannot_be_sent_holds_up_its_step() -> Iterator[object]:
    """A notification that failed kept a port from being activated.

    Here a step whose event cannot be sent does not end.
    """
    end = StepRunner.end

    def report_first(self: Any, work: Any, outcome: Any, send_event: bool = True) -> None:
        if send_event and work.step != LIVE_MIGRATION:
            record = self._records[work.uuid]
            report = dataclasses.replace(self._report(record, work), state=str(outcome.state), result=outcome.result)
            self._events.step_ended(record.reply_to, report)
        end(self, work, outcome, send_event and work.step == LIVE_MIGRATION)

    with patched(StepRunner, 'end', report_first) as there:
        yield there


@SHELF.plant('2044235', 'success')
def destination_asks_the_source_itself() -> Iterator[object]:
    """The destination's check called the source, and a missing answer was an error of the destination.

    Here, too, the check calls the source.
    """
    check = _Manager.check_can_live_migrate_destination

    def nested(self: Any, context: Any, command: Any, instance: Any, **rest: Any) -> Any:
        target = rpc.Target(topic=TOPIC, server=instance.host, version=VERSION)
        with contextlib.suppress(exception.MigratorException):
            who = migrator_context.admin_context()
            self._rpc.call(who, target, 'poll_live_migrations', 1.0, commands=[], acks=[], wait=0.5)
        return check(self, context, command, instance, **rest)

    nested.__dict__.update(check.__dict__)
    with patched(_Manager, 'check_can_live_migrate_destination', nested) as there:
        yield there


# --- cleanups --------------------------------------------------------------------------------------------------------


@SHELF.plant('I18', 'next move')
def cleanup_is_not_recorded() -> Iterator[object]:
    """What a host that is down could not do is forgotten."""
    with patched(MigrationContext, 'defer', lambda self, *_args, **_rest: None) as there:
        yield there


@SHELF.plant('1852610', 'next move')
def cleanup_is_never_run() -> Iterator[object]:
    """Leftovers of a migration kept their host from being deleted, or orphaned its provider.

    Here no conductor has a host that is back run its deferred cleanups.
    """
    with patched(cleanups, 'run_all', lambda tools, pool, deferred: None) as there:
        yield there


@SHELF.plant('I5', 'next move')
def host_with_a_cleanup_is_taken_as_destination() -> Iterator[object]:
    """A guest goes back to a host that still has to tidy up after it."""
    places = Services.places

    def forgiving(self: Any, *args: Any, **rest: Any) -> Any:
        return [dataclasses.replace(place, has_cleanup=False) for place in places(self, *args, **rest)]

    with patched(Services, 'places', forgiving) as there:
        yield there


@SHELF.plant('nova 34', 'seed 1')
def conductor_keeps_what_it_receives() -> Iterator[object]:
    """Each conductor took the migrations whose messages it received, so all of them polled one host."""
    with patched(conductors, '_choose', lambda _session, _uuid, me, _server: (me, None)) as there:
        yield there
