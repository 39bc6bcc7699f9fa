# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of a compute's queue, of aborts, of planned stops and of the API."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging

from migrator import executors
from migrator.api.handlers import live_migrations, server_migrations
from migrator.compute import live_migration_queue
from migrator.compute.manager import ComputeManager
from migrator.compute.step_runner import StepRunner
from migrator.compute.work import LIVE_MIGRATION, Work
from migrator.conductor.migration import hosts
from migrator.db import actions, conductors, migrations, slots
from migrator.db.sql.statements import Prepared
from tests.simulation.plant import Shelf, patched

LOG = logging.getLogger('migrator.planted')

SHELF = Shelf()

_Manager = ComputeManager
#: Seconds until a write that the API has already confirmed.
_LATER = 0.2
_Queue = live_migration_queue.LiveMigrationQueue


# --- the queue -------------------------------------------------------------------------------------------------------


@SHELF.plant('nova 34', 'abort running')
def abort_of_a_running_one_is_swallowed() -> Iterator[object]:
    """The queue claimed to have cancelled work that was running already.

    Here it claims that for work that it does not know.
    """
    cancel = _Queue.cancel

    def yes(self: Any, migration_uuid: str) -> bool:
        return cancel(self, migration_uuid) or migration_uuid not in self._waiting

    with patched(_Queue, 'cancel', yes) as there:
        yield there


@SHELF.plant('nova 34', 'driver fails')
def failing_step_leaks_its_entry() -> Iterator[object]:
    """A step that failed left its entry in the queue; here the entry goes when the move has succeeded."""

    def at_the_end(self: Any, work: Any, outcome: Any, send_event: bool = True) -> None:
        if work.step == LIVE_MIGRATION and outcome.state == 'done':
            take(self.queue, work.uuid)
        end(self, work, outcome, send_event)

    take, end = _Queue.take, StepRunner.end
    with patched(_Queue, 'take', lambda *_args: None), patched(StepRunner, 'end', at_the_end) as there:
        yield there


@SHELF.plant('nova 34', 'seed 6', 'seed 11', 'seed 19')
def entry_is_stored_after_its_work_was_submitted() -> Iterator[object]:
    """An abort between a placeholder and its Future was lost, and a faster worker leaked an entry.

    Here, too, the Future is stored when its work has been submitted, under no lock.
    """

    def naive(self: Any, migration_uuid: str, place: int, function: Any, /, *args: Any) -> None:
        self._waiting[migration_uuid] = live_migration_queue.Future()
        future = self._executor.submit_at(place, function, *args)
        with self._lock:
            pass  # where a worker may get on
        self._waiting[migration_uuid] = future

    with patched(_Queue, 'submit', naive) as there:
        yield there


@SHELF.plant('I10', 'abort queued')
def limit_of_moves_is_ignored() -> Iterator[object]:
    """Every move gets its slot at once."""

    def at_once(self: Any, migration_uuid: str, _place: int, function: Any, /, *args: Any) -> None:
        self._waiting[migration_uuid] = self._executor.submit_now(function, *args)

    with patched(_Queue, 'submit', at_once) as there:
        yield there


@SHELF.plant('1753676', 'restart with a queue')
def job_of_an_earlier_boot_has_no_slot() -> Iterator[object]:
    """After a restart a transfer went on that no service monitored.

    Here it takes no slot, and the next one starts beside it.
    """

    def init_host(self: Any) -> None:
        self.driver.init_host(self.host)
        self.registration.inventory.refresh()

    with patched(_Manager, 'init_host', init_host) as there:
        yield there


@SHELF.plant('I10', 'restart with a queue')
def queue_is_last_in_first_out() -> Iterator[object]:
    """What came last into the queue gets the next slot."""
    wait = executors.BoundedExecutor._wait

    def upside_down(self: Any, future: Any, call: Any) -> None:
        wait(self, future, call)
        self._waiting.move_to_end(future, last=False)

    with patched(executors.BoundedExecutor, '_wait', upside_down) as there:
        yield there


@SHELF.plant('I10', 'seed 750012', 'seed 750034')
def queue_has_the_order_of_arrival() -> Iterator[object]:
    """What was prepared first gets the next slot, although another one was requested earlier."""
    submit = _Queue.submit

    def by_arrival(self: Any, migration_uuid: str, _place: int, function: Any, /, *args: Any) -> None:
        submit(self, migration_uuid, 0, function, *args)

    with patched(_Queue, 'submit', by_arrival) as there:
        yield there


@SHELF.plant('nova 34', 'abort preparing')
def rollback_does_not_stop_what_it_undoes() -> Iterator[object]:
    """An abort during the preparation waited for the end of that step.

    Here a rollback neither stops the preparation nor waits for it.
    """

    def beside(self: Any, command: Any, body: Any, **options: Any) -> Any:
        if options.get('cancels') is None:
            return accept(self, command, body, **options)
        answer = self.admit(command)
        if answer.refusal is not None:
            return answer
        with self._lock:
            record = self._records[command.migration_uuid]
            if record.needs_new_work(command):
                work = Work(command.migration_uuid, command.instance_uuid, command.step, command.epoch, body, '')
                work.begun = True
                record.works[work.step] = work
                record.guest.pending.append(work)
                self.pool.submit(self.run, work)
            return self._answer(record, record.works[command.step])

    accept = StepRunner.accept
    with patched(StepRunner, 'accept', beside) as there:
        yield there


# --- aborts and stops ------------------------------------------------------------------------------------------------


@SHELF.plant('1960412', 'abort queued')
def api_writes_the_end_of_a_queued_one() -> Iterator[object]:
    """The abort of a queued migration wrote its status in the service that received the request.

    Here the API writes the end itself.
    """
    request = actions.Requests.request_abort

    def at_once(self: Any, context: Any, migration: Any, statuses: Any) -> bool:
        done = request(self, context, migration, statuses)
        with self._engine.writer() as session:
            table = migrations._T
            queued = sa.update(table).where(table.c.uuid == migration.uuid, table.c.status == 'queued')
            session.execute(queued.values(status='cancelled'))
        return done

    with patched(actions.Requests, 'request_abort', at_once) as there:
        yield there


@SHELF.plant('I9', 'abort running | conductor1: message live_migration_abort call #1 | message refused')
def abort_is_sent_once() -> Iterator[object]:
    """The abort command is sent to the source once, and not again if it is lost or comes too early."""
    send = hosts.send_request

    def once(m: Any, wait: Any, request: str, **payload: Any) -> None:
        if wait.tries:
            return
        wait.tries = 1
        send(m, wait, request, **payload)
        m.ledger.wake_at = None

    with patched(hosts, 'send_request', once) as there:
        yield there


@SHELF.plant('I8', 'abort running | api: commit begin #2 | killed, and started again')
def abort_is_answered_before_it_is_written() -> Iterator[object]:
    """The 202 to an abort comes first, and the request is written afterwards, if the API still lives."""
    write, wake = actions.Requests.request_abort, server_migrations.wake_owner
    kept: list[Any] = []

    def keep(*args: Any) -> bool:
        kept[:] = args
        return True

    def later(request: Any, migration: Any) -> None:
        threads = request.services.threads

        def write_and_wake() -> None:
            threads.sleep(_LATER)
            write(*kept)
            wake(request, migration)

        threads.start(write_and_wake, name='later')

    with patched(actions.Requests, 'request_abort', keep), patched(server_migrations, 'wake_owner', later) as there:
        yield there


@SHELF.plant('I8', 'success')
def answered_before_it_is_accepted() -> Iterator[object]:
    """The 202 to a live migration comes before its row is committed."""
    accept = live_migrations.accept

    def later(*given: Any, **states: Any) -> None:
        threads = given[0].services.threads

        def write() -> None:
            threads.sleep(_LATER)
            accept(*given, **states)

        threads.start(write, name='later')

    with patched(live_migrations, 'accept', later) as there:
        yield there


@SHELF.plant('nova 34', 'stop with a queue')
def stop_is_not_reported() -> Iterator[object]:
    """Migrations that a clean stop had cancelled were left to themselves.

    Here the stop is not reported, so that no conductor unwinds them.
    """
    within = _Manager._run_within

    def unreported(self: Any, seconds: float, function: Any, name: str) -> bool:
        return name == 'compute-stopping' or bool(within(self, seconds, function, name))

    with patched(_Manager, '_run_within', unreported) as there:
        yield there


@SHELF.plant('I13', 'stop with a queue')
def stop_waits_for_what_runs() -> Iterator[object]:
    """A planned stop waits ten seconds for what runs, whatever was configured."""
    cleanup = _Manager.cleanup_host

    def slow(self: Any) -> None:
        self._run_within(10.0, self._runner.queue.drain, 'drain')
        cleanup(self)

    with patched(_Manager, 'cleanup_host', slow) as there:
        yield there


# --- what a client sees ----------------------------------------------------------------------------------------------


@SHELF.plant('I15', 'success')
def accepted_in_two_transactions() -> Iterator[object]:
    """The instance is set migrating in a transaction of its own, before there is a migration."""
    accept = migrations.Migrations.accept

    def halves(self: Any, context: Any, migration: Any, *rest: Any, **states: Any) -> None:
        instances, mine = migrations._I, migrations._I.c.uuid == migration.instance_uuid
        with self._engine.writer() as session:
            session.execute(sa.update(instances).where(mine).values(task_state='migrating'))
        with self._engine.writer() as session:
            session.execute(sa.update(instances).where(mine).values(task_state=None))
        accept(self, context, migration, *rest, **states)

    with patched(migrations.Migrations, 'accept', halves) as there:
        yield there


@SHELF.plant('I20', 'success')
def database_is_named_in_the_log() -> Iterator[object]:
    """The database's address, with its password, is logged with each migration that is accepted."""
    accept = live_migrations.accept

    def leak(request: Any, migration: Any, *rest: Any, **states: Any) -> None:
        LOG.info('Accepted %s in %s', migration.uuid, request.services.database.migrations._engine.sa_engine.url)
        accept(request, migration, *rest, **states)

    with patched(live_migrations, 'accept', leak) as there:
        yield there


@SHELF.plant('1785031', 'refused')
def destination_is_looked_at_when_all_is_written() -> Iterator[object]:
    """An unknown host was refused when the instance was set migrating already, and it stayed so.

    Here likewise.
    """
    check, accept = live_migrations._check_destination, live_migrations.accept

    def first(request: Any, migration: Any, *rest: Any) -> None:
        accept(request, migration, *rest)
        instance = request.services.database.instances.get(migration.instance_uuid)
        check(request, instance, migration.requested_host, migration.force)

    with (
        patched(live_migrations, '_check_destination', lambda *_args: None),
        patched(live_migrations, 'accept', first) as there,
    ):
        yield there


# --- bounds ----------------------------------------------------------------------------------------------------------


@SHELF.plant('I23', 'bounds seed 6', 'bounds seed 1', 'bounds seed 12')
def slots_are_counted_before_the_commit() -> Iterator[object]:
    """Two conductors count the same free slot and both take it.

    Here only the choice of a destination counts the slots, and not its commit. A migration that was accepted and not
    looked at yet keeps no slot, so that two are chosen at the same moment.
    """
    looked_at = Prepared(slots._WAITERS.statement.where(slots._T.c.wait_kind.is_not(None)))
    with patched(slots, '_WAITERS', looked_at), patched(slots, 'take', lambda *_args: None) as there:
        yield there


@SHELF.plant('I23', 'bounds seed 27')
def stuck_migrations_keep_no_slot() -> Iterator[object]:
    """A migration that waits for an operator may still copy, or hold a prepared destination.

    Here it is not counted, so that others get its slots.
    """
    moving = Prepared(slots._ADMITTED_ROWS.statement.where(slots._T.c.stuck_kind.is_(None)))
    with patched(slots, '_ADMITTED_ROWS', moving) as there:
        yield there


# --- the conductor of a source ---------------------------------------------------------------------------------------


@SHELF.plant('I24', 'emptied-hosts seed 1')
def receiver_takes_what_it_receives() -> Iterator[object]:
    """Each conductor took the migrations whose messages it received.

    Several wrote to one resource provider, and polled one host. Here likewise.
    """
    with patched(conductors, '_choose', lambda _session, _uuid, me, *_more: (me, None)) as there:
        yield there


@SHELF.plant('I24', 'emptied-hosts seed 1')
def holder_of_a_source_is_ignored() -> Iterator[object]:
    """The conductor with the fewest sources gets each migration, even if another one holds the source."""

    def fewest(session: Any, uuid: str, me: str, my_server: str, lease: float) -> tuple[str, str | None]:
        known = {'one': uuid, 'me': me, 'my_server': my_server, 'late': lease / 2}
        found = session.execute(conductors._CONDUCTORS_WITH_SOURCES, known).all()
        chosen = min(found, key=lambda one: (one.sources, one.id != me, one.id), default=None)
        return (me, None) if chosen is None or chosen.id == me else (chosen.id, chosen.server)

    with patched(conductors, '_choose', fewest) as there:
        yield there


@SHELF.plant('I28', 'bounds seed 52', 'bounds seed 1')
def youngest_gets_the_slot() -> Iterator[object]:
    """A free slot is given to the youngest that waits for it."""

    def place(self: Any, one: Any) -> tuple[Any, ...]:
        retry, ahead, since, id_ = in_order(self, one)
        return retry, ahead, -since, -id_

    in_order = slots.Slots._place
    with patched(slots.Slots, '_place', place) as there:
        yield there


@SHELF.plant('I28', 'bounds seed 17')
def prepare_ahead_comes_before_an_idle_source() -> Iterator[object]:
    """A migration that is prepared ahead gets the slot before a younger one whose source runs nothing."""

    def place(self: Any, one: Any) -> tuple[Any, ...]:
        retry, _ahead, since, id_ = in_order(self, one)
        return retry, False, since, id_

    in_order = slots.Slots._place
    with patched(slots.Slots, '_place', place) as there:
        yield there


@SHELF.plant('I28', 'bounds seed 28', 'bounds seed 49')
def no_slot_is_kept() -> Iterator[object]:
    """A free slot is not kept for an older migration that requested the host."""

    def allowance_of(self: Any, one: Any, was_full: Any) -> Any:
        return slots.Allowance(self, one, collections.Counter(), (), was_full)

    with patched(slots.Slots, 'allowance_of', allowance_of) as there:
        yield there
