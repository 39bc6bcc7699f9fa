# SPDX-License-Identifier: Apache-2.0

"""Planted bugs between two migrations of one guest, and in the reason of a wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from migrator.compute.step_runner import StepRunner
from migrator.conductor import broker, cleanups
from migrator.conductor.migration import hosts, settle_table, waiting
from migrator.conductor.tasks import live_migrate
from migrator.db import cleanups as cleanup_rows
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()


@SHELF.plant('I21', 'second-migrations seed 98')
def cleanup_beside_the_next_migration() -> Iterator[object]:
    """A cleanup is run at the source of the next migration, whatever that is doing there."""
    with (
        patched(cleanup_rows, '_check_free', lambda *args: None),
        patched(live_migrate.cleanups, 'run_at_source', lambda m: None) as there,
    ):
        yield there


@SHELF.plant('I22', 'second-migrations seed 335')
def cleanup_removes_the_guest_where_it_is() -> Iterator[object]:
    """Whether the database has the guest at the host of a cleanup is not looked at."""
    with (
        patched(cleanups, '_is_where_the_guest_is', lambda tools, held: False),
        patched(cleanup_rows, 'hold_at', lambda *args: None) as there,
    ):
        yield there


@SHELF.plant('I21', 'second-migrations seed 6')
def tenure_is_not_compared() -> Iterator[object]:
    """A host compares the epochs of each migration alone, and keeps a line of work for each."""
    admit = StepRunner._admit

    def of_each(self: Any, order: Any, at_start: bool) -> Any:
        # A guest of its own for each migration.
        return admit(self, order.replace(tenure=0, instance_uuid=order.migration_uuid), at_start)

    with patched(StepRunner, '_admit', of_each) as there:
        yield there


@SHELF.plant('I21', 'second-migrations seed 6')
def call_is_of_no_migration() -> Iterator[object]:
    """The work of a migration does not wait for what an earlier one has asked of the driver."""

    def begin(self: Any, what: str, migration_uuid: str) -> bool:
        known = self.__dict__.setdefault('planted', set())
        begun = (what, migration_uuid) not in known
        known.add((what, migration_uuid))
        return begun

    def end(self: Any, what: str, migration_uuid: str) -> None:
        self.__dict__.setdefault('planted', set()).discard((what, migration_uuid))

    with (
        patched(StepRunner, 'begin_call', begin),
        patched(StepRunner, 'end_call', end) as there,
    ):
        yield there


@SHELF.plant('I2', 'second-migrations seed 57')
def absent_is_forward_without_a_job() -> Iterator[object]:
    """A guest that is not at its source has moved, if its destination is down.

    It does not matter whether a job of the guest was seen.
    """
    down = settle_table._with_the_destination_down

    def forward(source: settle_table.Host, *rest: Any) -> Any:
        return settle_table.Act.FORWARD if source.observed is settle_table.Observed.ABSENT else down(source, *rest)

    with patched(settle_table, '_with_the_destination_down', forward) as there:
        yield there


@SHELF.plant('I21', 'second-migrations seed 41')
def cleanup_raises_no_tenure() -> Iterator[object]:
    """A cleanup is sent with the tenure that its migration had.

    A host that knows a later tenure refuses it.
    """
    take = cleanup_rows.take_tenure

    def keep(session: Any, instance_uuid: str, migration_uuid: str, seen: int = 0) -> int:
        taken = take(session, instance_uuid, migration_uuid, 0)
        return min(taken, 1)

    with patched(cleanup_rows, 'take_tenure', keep) as there:
        yield there


@SHELF.plant('I7', 'bad-nights seed 65', 'bad-nights seed 8', 'bad-nights seed 22')
def wait_has_no_reason() -> Iterator[object]:
    """A wait for a host that answers without getting anywhere lasts for ever, and reports nothing."""
    with patched(waiting, 'wait_for', lambda m, pause: pause) as there:
        yield there


@SHELF.plant('I7', 'bad-nights seed 7')
def a_wait_in_the_queue_begins_anew() -> Iterator[object]:
    """A wait for a host begins anew each time that its migration has been in the queue of that host."""
    wait_for = waiting.wait_for

    def forgetful(m: Any, pause: Any) -> Any:
        if m.ledger.last is not None and m.ledger.last.what != pause.why:
            m.ledger.last = None
        return wait_for(m, pause)

    with patched(waiting, 'wait_for', forgetful) as there:
        yield there


@SHELF.plant('I26', 'bad-nights seed 17')
def stuck_step_is_not_stuck_while_it_is_tried() -> Iterator[object]:
    """A migration is not stuck while its host tries a step again, and is stuck again after that."""
    retry = hosts.retry

    def forgetful(m: Any, host: str, step: str, *more: Any, **payload: Any) -> Any:
        wait = m.ledger.of(step, host)
        if wait.next_try <= m.tools.threads.clock.monotonic():
            wait.stuck = None
        return retry(m, host, step, *more, **payload)

    with patched(hosts, 'retry', forgetful) as there:
        yield there


@SHELF.plant('I27', 'outages seed 4')
def outage_of_placement_counts_as_a_wait() -> Iterator[object]:
    """A migration becomes stuck while Placement is away, as if a host had not reported."""
    wait_for = waiting.wait_for

    def impatient(m: Any, pause: Any) -> Any:
        return wait_for(m, dataclasses.replace(pause, outage=''))

    with patched(waiting, 'wait_for', impatient) as there:
        yield there


@SHELF.plant('I7', 'outages seed 1')
def hosts_are_called_down_right_after_an_outage() -> Iterator[object]:
    """A conductor that reaches the broker again calls every host down that sent nothing meanwhile."""
    with patched(broker.Broker, 'unbroken_for', lambda self: 1e9) as there:
        yield there


@SHELF.plant('I7', 'outages seed 52')
def broker_outage_is_not_noticed() -> Iterator[object]:
    """A conductor takes a broker that is away for hosts that are unreachable."""
    with (
        patched(broker.Broker, 'check', lambda self: None),
        patched(broker.Broker, 'away_for', lambda self: 0.0) as there,
    ):
        yield there
