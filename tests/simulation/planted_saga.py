# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of the saga: steps that are left out, swallowed, reordered, or forgotten half-way."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

from migrator import exception
from migrator.conductor import periodics, takeover
from migrator.conductor.migration import allocations as allocation_steps
from migrator.conductor.migration import hosts, settle, settle_table
from migrator.conductor.migration.context import MigrationContext, Status
from migrator.conductor.runner import Runner
from migrator.conductor.tasks import live_migrate
from migrator.db import conductors, migrations
from migrator.objects import Outcome, protocol
from migrator.objects.reasons import Reason, WaitKind
from migrator.saga import log
from migrator.saga.executor import SagaExecutor
from migrator.saga.saga import Done, Failed, Parked, Settlement, Verdict
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()

_POST = ('post_live_migration_at_source', 'post_live_migration_at_destination')


# --- after the move --------------------------------------------------------------------------------------------------


@SHELF.plant('1628606', 'success')
def host_is_updated_at_the_end() -> Iterator[object]:
    """The instance's host was updated when the post steps were done; here with the last step."""

    def move(m: MigrationContext) -> Verdict:
        m.set(status=Status.POST_MIGRATING.value)
        return Done()

    def end(m: MigrationContext) -> Verdict:
        m.writes.instance |= {'host': m.row.dest_compute, 'node': m.row.dest_node}
        return complete(m)

    complete = live_migrate.complete
    with patched(live_migrate, 'update_instance_host', move), patched(live_migrate, 'complete', end) as there:
        yield there


@SHELF.plant('1379581', 'success | host2: driver host2 post_live_migration_at_destination done #1 | driver raises')
def host_goes_back_when_a_post_step_fails() -> Iterator[object]:
    """The update of the host was skipped if a step after the switchover raised.

    Here the host is set back then.
    """
    retry = hosts.retry

    def undone(m: MigrationContext, host: str, step: str, *more: Any, **payload: Any) -> Any:
        found = retry(m, host, step, *more, **payload)
        if step in _POST and m.ledger.of(step, host).tries:
            m.writes.instance['host'] = m.source
            m.commit()
        return found

    with patched(hosts, 'retry', undone) as there:
        yield there


@SHELF.plant('2000069', 'success | host1: driver host1 post_live_migration_at_source #1 | driver raises')
def failing_post_step_is_swallowed() -> Iterator[object]:
    """An exception in the destination's post step was logged and ignored.

    Here a step that failed counts as done.
    """
    carry_out = hosts.carry_out

    def swallow(m: MigrationContext, host: str, step: str, *more: Any, **payload: Any) -> Any:
        found = carry_out(m, host, step, *more, **payload)
        if step in _POST and isinstance(found, protocol.Report):
            return found.replace(state=protocol.WorkState.DONE.value)
        return found

    with patched(hosts, 'carry_out', swallow) as there:
        yield there


@SHELF.plant('1475411, 1843639', 'success | host1: driver host1 post_live_migration_at_source #1 | driver raises')
def failing_post_step_fails_the_migration() -> Iterator[object]:
    """A clean-up that failed after the switchover made the migration fail.

    Here the migration ends in error at the first failure.
    """
    retry = hosts.retry

    def strict(m: MigrationContext, host: str, step: str, *more: Any, **payload: Any) -> Any:
        found = retry(m, host, step, *more, **payload)
        if step in _POST and m.ledger.of(step, host).tries:
            m.set(status=Status.ERROR.value)
            m.commit()
        return found

    with patched(hosts, 'retry', strict) as there:
        yield there


@SHELF.plant('1488435', 'success')
def source_post_waits_for_the_destinations() -> Iterator[object]:
    """What failed in one post step kept the others from being done; here the source's is skipped when the
    destination's has not been done before it."""
    post = live_migrate.post_live_migration_at_source

    def second(m: MigrationContext) -> Verdict:
        other = m.record('post_live_migration_at_destination')
        return post(m) if other is not None and other.state == log.StepState.DONE else Done()

    with patched(live_migrate, 'post_live_migration_at_source', second) as there:
        yield there


@SHELF.plant('1669054', 'success')
def node_is_not_updated() -> Iterator[object]:
    """Data that one migration had written made the next one fail.

    Here the instance keeps the node that it came from.
    """
    change = live_migrate.update_instance_host

    def host_only(m: MigrationContext) -> Verdict:
        verdict = change(m)
        del m.writes.instance['node']
        return verdict

    with patched(live_migrate, 'update_instance_host', host_only) as there:
        yield there


@SHELF.plant('I12', 'post-copy')
def source_is_tidied_while_it_still_sends() -> Iterator[object]:
    """The post steps do not wait for the end of a job that goes on in post-copy."""

    def at_once(m: MigrationContext) -> Any:
        m.set(status=Status.POST_MIGRATING.value)
        m.read_boots()
        return {}

    with patched(live_migrate, 'wait_for_job', at_once) as there:
        yield there


# --- back ------------------------------------------------------------------------------------------------------------


@SHELF.plant('1949808', 'abort queued')
def abort_of_a_queued_one_only_cancels_it() -> Iterator[object]:
    """The abort of a queued one cancelled its Future and left the destination as it was; here likewise."""
    rollback = live_migrate.rollback_live_migration_at_destination

    def unless_queued(m: MigrationContext) -> Verdict:
        return Done() if m.row.status == Status.QUEUED and m.row.abort_requested_at else rollback(m)

    with patched(live_migrate, 'rollback_live_migration_at_destination', unless_queued) as there:
        yield there


@SHELF.plant('1470420', 'driver fails')
def what_failed_is_not_cleaned() -> Iterator[object]:
    """Files stayed behind, for only migrations in error were cleaned, and not those that had failed.

    Here only aborted migrations are cleaned.
    """
    rollback = live_migrate.rollback_live_migration_at_destination

    def if_aborted(m: MigrationContext) -> Verdict:
        return rollback(m) if m.row.abort_requested_at else Done()

    with patched(live_migrate, 'rollback_live_migration_at_destination', if_aborted) as there:
        yield there


@SHELF.plant('nova 34', 'stop with a queue')
def planned_stop_leaves_the_allocations() -> Iterator[object]:
    """A clean stop cancelled queued migrations, and left their allocations.

    Here a migration that a stop has cancelled keeps its allocations.
    """
    give_back = allocation_steps.return_allocation

    def unless_stopped(m: MigrationContext) -> Verdict:
        return Done() if settle.was_cancelled_by_stop(m) else give_back(m)

    with patched(allocation_steps, 'return_allocation', unless_stopped) as there:
        yield there


@SHELF.plant(
    '1662626', 'driver fails | host2: driver host2 rollback_live_migration_at_destination done #1 | driver raises'
)
def failing_clean_up_is_never_tried_again() -> Iterator[object]:
    """A clean-up that raised left the instance migrating for ever; here what failed once stays failed."""
    retry = hosts.retry

    def once(m: MigrationContext, host: str, step: str, *more: Any, **payload: Any) -> Any:
        return (
            Parked(Reason.of(WaitKind.POLL, host))
            if m.ledger.of(step, host).tries
            else retry(m, host, step, *more, **payload)
        )

    with patched(hosts, 'retry', once) as there:
        yield there


@SHELF.plant('1778206', 'success | host2: driver host2 check_can_live_migrate_destination done #1 | driver raises')
def what_the_check_left_is_not_rolled_back() -> Iterator[object]:
    """Resources made before the step that failed leaked.

    Here a failure in the checks undoes nothing at the destination.
    """
    made = live_migrate.saga

    def changed() -> Any:
        saga = made()
        groups: list[Any] = [group if len(group) > 1 else group[0] for group in saga.groups]
        groups[1] = dataclasses.replace(groups[1], undo=None)
        return type(saga)(*groups, settle=saga.settle, abandon=saga.abandon)

    with patched(live_migrate, 'saga', changed) as there:
        yield there


@SHELF.plant('1969980', 'success | host2: driver host2 check_can_live_migrate_destination #1 | driver raises')
def rollback_needs_what_is_not_there_yet() -> Iterator[object]:
    """A rollback crashed on data that an early failure had not set.

    Here it needs the answer of the preparation.
    """
    undo = live_migrate._undo

    def crash(m: MigrationContext, host: str | None, step: str) -> Verdict:
        assert m.facts('check_can_live_migrate_source').migrate_data
        return undo(m, host, step)

    with patched(live_migrate, '_undo', crash) as there:
        yield there


@SHELF.plant('1841411', 'driver fails')
def instance_that_was_rolled_back_is_in_error() -> Iterator[object]:
    """A guest that was recovered cleanly had its server turned to ERROR; here whatever is unwound does."""
    undone = MigrationContext.undone

    def spoil(self: MigrationContext, records: Sequence[log.StepRecord] = ()) -> None:
        self.writes.instance['vm_state'] = 'error'
        undone(self, records)

    with patched(MigrationContext, 'undone', spoil) as there:
        yield there


@SHELF.plant('1435633', 'success | host2: driver host2 check_can_live_migrate_destination #1 | killed for ever')
def check_that_times_out_is_an_error() -> Iterator[object]:
    """A destination that did not answer its check put the server into ERROR; here likewise."""
    check = hosts.check

    def spoil(m: MigrationContext, host: str, step: str, **payload: Any) -> Any:
        found = check(m, host, step, **payload)
        if isinstance(found, Failed) and 'did not answer' in found.reason:
            m.writes.instance['vm_state'] = 'error'
        return found

    with patched(hosts, 'check', spoil) as there:
        yield there


@SHELF.plant('1580609', 'cut-over fails')
def guest_is_left_paused() -> Iterator[object]:
    """A guest that had been paused to switch over stayed paused; here the source is not restored."""
    with patched(live_migrate, 'rollback_live_migration_at_source', lambda m: Done()) as there:
        yield there


# --- the conductor lives and dies ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _dies_of(errors: Callable[[BaseException | None], bool]) -> Iterator[object]:
    """Have the thread that runs a migration die of some errors, still marked as running."""
    later = Runner._try_later

    def die(self: Any, one: Any) -> None:
        if errors(sys.exception()):
            raise RuntimeError('planted')
        later(self, one)

    def run(self: Any, one: Any) -> None:
        self._run_while_woken(one)

    with patched(Runner, '_run', run), patched(Runner, '_try_later', die) as there:
        yield there


@SHELF.plant('1397153', 'success | conductor1: commit begin #3 | unforeseen error')
def unknown_error_ends_the_saga() -> Iterator[object]:
    """An unforeseen exception left the instance migrating.

    Here it ends the thread that runs the saga.
    """
    with _dies_of(lambda error: not isinstance(error, exception.ServiceUnreachable)) as there:
        yield there


@SHELF.plant('1905944', 'success | conductor1: commit begin #8 | commits refused for a while')
def saga_thread_dies_with_the_database() -> Iterator[object]:
    """A job's monitor died of an error of the database or of RPC.

    Here the thread that runs the saga does.
    """
    with _dies_of(lambda error: isinstance(error, exception.ServiceUnreachable)) as there:
        yield there


@SHELF.plant('nova 34', 'success | conductor1: commit begin #2 | killed for ever')
def no_takeover() -> Iterator[object]:
    """A conductor died after it had moved the allocations, and the migration stayed accepted.

    Here no conductor looks for migrations without an owner.
    """
    with patched(conductors.Takeovers, 'orphans', lambda self: []) as there:
        yield there


@SHELF.plant('nova 34', 'post-copy')
def post_copy_is_not_in_progress() -> Iterator[object]:
    """A migration in post-copy was in no list of migrations in progress; here it is taken for an end."""
    ends = [*migrations._ENDS, Status.RUNNING_POST_COPY.value]
    with patched(migrations, '_ENDS', ends) as there:
        yield there


@SHELF.plant('cfb99acd6a', 'driver fails')
def error_path_raises() -> Iterator[object]:
    """Logging an error raised another one, which hid it.

    Here the reason of a failed migration cannot be read.
    """

    def verdict(m: MigrationContext) -> str | None:
        report = m.replies.reports.get((m.source, 'live_migration'))
        return report.result['message'] if report is not None and report.state != 'running' else None

    with patched(settle, '_verdict_of', verdict) as there:
        yield there


@SHELF.plant('1786346, 1901707', 'success | host1: message step_ended cast #2 | message lost')
def only_events_are_processed() -> Iterator[object]:
    """The wait for an event that did not come lasted for ever; here unresponsive hosts are not polled."""
    with patched(periodics, '_poll_host', lambda *_args: None) as there:
        yield there


@SHELF.plant('1788014', 'driver fails')
def event_is_taken_for_success() -> Iterator[object]:
    """Every event was taken for success, whatever it reported, and the destination activated.

    Here the destination's post step is sent at the end of any job.
    """
    settled = settle.settle

    def hopeful(m: MigrationContext) -> Settlement:
        report = m.replies.reports.get((m.source, 'live_migration'))
        ended = report is not None and report.state != protocol.WorkState.RUNNING
        if ended and m.outcome is None and m.destination is not None:
            hosts.send_request_once(m, m.destination, _POST[1], instance=m.guest, migrate_data=None)
        return settled(m)

    with patched(settle, 'settle', hopeful) as there:
        yield there


@SHELF.plant('1753676', 'success | host1: rpc live_migration handled #1 | killed, and started again')
def what_a_killed_host_had_queued_is_forgotten() -> Iterator[object]:
    """A killed compute left its queued migrations queued for ever.

    Here they are not queued again, neither at the host's start nor when the host reports that it has not begun.
    """
    column = {
        **settle_table.SOURCE,
        settle_table.Observed.HERE: (
            *settle_table.SOURCE[settle_table.Observed.HERE][:1],
            settle_table.Act.WAIT,
            settle_table.Act.BACK,
        ),
    }
    with (
        patched(takeover, '_needs_queueing', lambda migration, step_log: False),
        patched(settle_table, 'SOURCE', MappingProxyType(column)) as there,
    ):
        yield there


@SHELF.plant('I4', 'success')
def intent_comes_after_the_act() -> Iterator[object]:
    """A step is done before its intent is committed: the two go into one transaction afterwards."""

    def late(self: Any, step: Any) -> Any:
        kept = self._flush
        self._flush = lambda records=(): self._buffer.records.extend(records)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, '_flush', kept)
            verdict = self._intend(step)
            self.subject.step_log.put(self._buffer.records)
        return self._take(step, verdict or step.do(self.subject))

    with patched(SagaExecutor, '_do', late) as there:
        yield there


@SHELF.plant('I2', 'success')
def outcome_and_host_are_two_commits() -> Iterator[object]:
    """The outcome is committed first, and the instance's host in a transaction of its own."""
    commit = MigrationContext.commit

    def halves(self: MigrationContext, records: Sequence[log.StepRecord] = (), outcome: str | None = None) -> None:
        if outcome == Outcome.FORWARD:
            kept, self.writes.instance = self.writes.instance, {}
            commit(self, records, outcome)
            self.writes.instance = kept
            records, outcome = (), None
        commit(self, records, outcome)

    with patched(MigrationContext, 'commit', halves) as there:
        yield there


@SHELF.plant('I2', 'success')
def host_is_updated_with_the_intent() -> Iterator[object]:
    """The instance is said to be at the destination as soon as it is sent off."""
    note_queued = live_migrate.note_queued

    def early(m: MigrationContext) -> Any:
        m.writes.instance |= {'host': m.row.dest_compute, 'node': m.row.dest_node}
        return note_queued(m)

    with patched(live_migrate, 'note_queued', early) as there:
        yield there


@SHELF.plant('I14', 'success')
def history_is_not_kept() -> Iterator[object]:
    """A change of status is not written into the log."""
    entries = migrations._entries

    def forget(write: Any, status: str | None, attempt: int) -> Any:
        return entries(write, None, attempt)

    with patched(migrations, '_entries', forget) as there:
        yield there
