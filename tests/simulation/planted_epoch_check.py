# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of the epoch check and of settling: who may write, and what a host accepts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from migrator.compute.step_runner import StepRunner
from migrator.conductor import takeover
from migrator.conductor.migration import hosts, settle, settle_table
from migrator.conductor.migration.context import MigrationContext
from migrator.db import conductors, migrations
from migrator.db.sql.statements import Prepared
from migrator.objects import COMPUTE_BINARY, protocol
from migrator.saga.saga import Back, Settlement
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()

_Migrations = migrations.Migrations
_Observed, _Act = settle_table.Observed, settle_table.Act


# --- settling --------------------------------------------------------------------------------------------------------


@SHELF.plant('model a', 'abort queued | conductor1: message live_migration call #2 | message late')
def back_is_decided_in_the_old_epoch() -> Iterator[object]:
    """No epoch is raised before something is decided against what was sent."""
    raise_epoch = MigrationContext.raise_epoch

    def only_if_reported(self: MigrationContext, seen: int = 0, seen_tenure: int | None = None) -> None:
        if seen or seen_tenure is not None:
            raise_epoch(self, seen, seen_tenure)
        self.replies.settling = True

    with patched(MigrationContext, 'raise_epoch', only_if_reported) as there:
        yield there


@SHELF.plant('model d', 'abort running')
def destination_is_rolled_back_before_it_is_settled() -> Iterator[object]:
    """An abort reason cleans the destination at once, while it is not known yet where the guest is."""
    settled = settle.settle

    def eager(m: MigrationContext) -> Settlement:
        if m.abort_reason is not None and m.record('live_migration') is not None and m.destination is not None:
            rollback = 'rollback_live_migration_at_destination'
            hosts.send_request_once(m, m.destination, rollback, instance=m.guest, migrate_data=None)
        return settled(m)

    with patched(settle, 'settle', eager) as there:
        yield there


@SHELF.plant('model e', 'success | host2: rpc poll_live_migrations handled #1 | paused past the lease')
def silence_decides_back() -> Iterator[object]:
    """A host that does not answer counts as one that has nothing of the guest: a time-out decides."""
    decide = settle_table._decide

    def impatient(source: Any, destination: Any, column: Any, abort: bool, asked_again: bool, late: bool) -> Any:
        if _Observed.MISSING in (source.observed, destination.observed):
            return _Act.BACK
        return decide(source, destination, column, abort, asked_again, late)

    with patched(settle_table, '_decide', impatient) as there:
        yield there


@SHELF.plant('model f', 'success | conductor1: rpc step_ended handled #2 | killed for ever')
def adopter_believes_the_log() -> Iterator[object]:
    """An adopter decides by the log, and asks no host.

    A guest that the log does not show as moved goes back.
    """
    subject_of, settled = takeover._subject, settle.settle
    adopted: set[tuple[str, int]] = set()

    def unpolled(tools: Any, owned: Any) -> MigrationContext:
        subject = subject_of(tools, owned)
        subject.replies.must_poll, subject.replies.unsure = set(), set()
        adopted.add((subject.row.uuid, subject.row.epoch))
        return subject

    def from_the_log(m: MigrationContext) -> Settlement:
        sent = m.record('live_migration') is not None
        if sent and m.row.epoch > 1 and (m.row.uuid, m.row.epoch) in adopted:
            return Back('its conductor is gone')
        return settled(m)

    with patched(takeover, '_subject', unpolled), patched(settle, 'settle', from_the_log) as there:
        yield there


@SHELF.plant('model order', 'moves between answers')
def destination_is_asked_before_the_source() -> Iterator[object]:
    """Where a guest is, is asked of the destination first, so that it may move between the two answers."""
    look, observe = hosts.poll, settle.observe_source
    earlier: dict[str, settle_table.Host] = {}

    def first(m: MigrationContext) -> settle_table.Host:
        if m.destination is not None:
            earlier[m.row.uuid] = look(m, m.destination)
        return observe(m)

    def kept(m: MigrationContext, host: str) -> settle_table.Host:
        return earlier.pop(m.row.uuid, None) or look(m, host) if host == m.destination else look(m, host)

    with patched(settle, 'observe_source', first), patched(hosts, 'poll', kept) as there:
        yield there


@SHELF.plant('model h', 'abort starting | conductor1: commit done #6 | killed, and started again')
def window_before_the_job_is_not_seen() -> Iterator[object]:
    """Between the queue and the driver's call a host says: here, no job."""
    observe = StepRunner.observe

    def blind(self: Any, order: protocol.Command) -> Any:
        seen = observe(self, order)
        started = seen.entry == protocol.Entry.STARTED
        return dataclasses.replace(seen, entry=protocol.Entry.NONE) if started else seen

    with patched(StepRunner, 'observe', blind) as there:
        yield there


@SHELF.plant('model fixfail', 'driver fails')
def returned_and_never_made_are_one() -> Iterator[object]:
    """A host does not distinguish a call that has returned from one that was never made.

    So the call is made again and again.
    """
    observed = settle_table.source_observed

    def same(state: str, job: bool, entry: str) -> Any:
        return observed(state, job, protocol.Entry.NONE if entry == protocol.Entry.RETURNED else entry)

    with patched(settle_table, 'source_observed', same) as there:
        yield there


@SHELF.plant('model xf', 'cut-over fails | host2: rpc poll_live_migrations handled #1 | killed for ever')
def paused_without_a_job_has_moved() -> Iterator[object]:
    """A guest that is paused at the source without a job has moved, if its destination is down."""
    down = settle_table._with_the_destination_down

    def forward(source: settle_table.Host, *rest: Any) -> Any:
        return _Act.FORWARD if source.observed is _Observed.CUTOVER else down(source, *rest)

    with patched(settle_table, '_with_the_destination_down', forward) as there:
        yield there


@SHELF.plant('model xb', 'post-copy | host2: rpc poll_live_migrations handled #1 | killed for ever')
def paused_without_a_job_has_not_moved() -> Iterator[object]:
    """A guest that is paused at the source without a job has not moved, if its destination is down."""
    down = settle_table._with_the_destination_down

    def back(source: settle_table.Host, *rest: Any) -> Any:
        return _Act.BACK if source.observed is _Observed.CUTOVER else down(source, *rest)

    with patched(settle_table, '_with_the_destination_down', back) as there:
        yield there


@SHELF.plant('1901707', 'second candidate')
def event_counts_for_every_waiter() -> Iterator[object]:
    """An early event, for the port's binding at another host, was taken for the expected one.

    Here an event of a step counts whatever host it is from, and whatever epoch. With the epoch alone nothing would be
    wrong: a host does each step of a migration once, or again to the same end, so that a late report of it is true.
    """

    def received(m: MigrationContext, host: str, step: str, record: Any) -> protocol.Report | None:
        reported = [report for (_, its), report in m.replies.reports.items() if its == step]
        return reported[-1] if reported else None

    with patched(hosts, '_known_report', received) as there:
        yield there


# --- the epoch check --------------------------------------------------------------------------------------------------


@SHELF.plant(
    'model c',
    'restarted after an abort | conductor1: message pre_live_migration call #2 | message late',
)
def message_for_another_boot_is_taken() -> Iterator[object]:
    """A compute does not look for which boot of it a message is."""
    admit = StepRunner._admit

    def any_boot(self: Any, order: protocol.Command, at_start: bool) -> Any:
        return admit(self, order.replace(boot_id=self.boot_id), at_start)

    with patched(StepRunner, '_admit', any_boot) as there:
        yield there


@SHELF.plant('I16', 'success | conductor1: rpc step_ended handled #2 | paused past the lease')
def lower_epoch_is_taken() -> Iterator[object]:
    """A compute takes every command, whatever its epoch."""
    admit = StepRunner._admit

    def any_epoch(self: Any, order: protocol.Command, at_start: bool) -> Any:
        record = self._records.get(order.migration_uuid)
        if record is not None and order.epoch <= record.epoch:
            order = order.replace(epoch=record.epoch, owner=record.owner or order.owner)
        return admit(self, order, at_start)

    with patched(StepRunner, '_admit', any_epoch) as there:
        yield there


@SHELF.plant('I14', 'success | conductor1: placement GET /allocations/UUID #1 | paused past the lease')
def guard_does_not_look_at_the_epoch() -> Iterator[object]:
    """A conductor writes all that it knows of a migration, whichever conductor owns that by now."""
    commit = _Migrations.commit

    def unguarded(self: Any, known: Any, write: Any) -> Any:
        with self._engine.writer() as session:
            table = migrations._T
            mine = sa.update(table).where(table.c.uuid == known.uuid).values(owner=known.owner, epoch=known.epoch)
            session.execute(mine)
        return commit(self, known, write)

    with patched(_Migrations, 'commit', unguarded) as there:
        yield there


@SHELF.plant('I16', 'success | conductor1: rpc post_live_migration_at_destination call #1 | killed, and started again')
def adoption_keeps_the_epoch() -> Iterator[object]:
    """A conductor adopts a migration in the epoch of the owner before."""
    epoch = conductors._T.c.epoch
    same = Prepared(conductors._TAKE.statement.values(epoch=sa.case((epoch > 0, epoch), else_=1)))
    with patched(conductors, '_TAKE', same) as there:
        yield there


@SHELF.plant('I16', 'restarted twice | host1: message compute_started call #1 | message late')
def start_report_that_comes_late_is_registered() -> Iterator[object]:
    """Whatever reports a start is the newest boot."""
    begin_boot = _Migrations.begin_boot

    def newest(self: Any, report: Any, services: Any) -> Any:
        registered = {one.boot_id for one in services.list(COMPUTE_BINARY, report.host)}
        return begin_boot(self, report.replace(replaces=next(iter(registered), None)), services)

    with patched(_Migrations, 'begin_boot', newest) as there:
        yield there


@SHELF.plant('1721652', 'success | conductor1: rpc step_ended handled #2 | killed for ever')
def adopter_counts_on_what_the_last_one_knew() -> Iterator[object]:
    """A clean-up at the start counted on what only a running service knows.

    Here an adopter does not look up the hosts' boots, nor when they refuse it: it asks and they register, at once and
    without end.
    """
    with (
        patched(conductors, 'boots_in', lambda row: {}),
        patched(hosts, 'reread_boots', lambda m: None) as there,
    ):
        yield there
