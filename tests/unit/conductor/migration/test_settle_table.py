# SPDX-License-Identifier: Apache-2.0


"""The table of the protocol, typed out from its text and not from the code's own table."""

from __future__ import annotations

import itertools

import pytest

from migrator.conductor.migration import settle_table
from migrator.conductor.migration.settle_table import Act, Column, Host, Observed
from migrator.objects.protocol import Entry, GuestState

COLUMNS = (Column.NOT_SENT, Column.QUEUED, Column.RUNNING)
SENT = (Column.QUEUED, Column.RUNNING)

GO_ON, QUEUE, PREPARE, WAIT, SEE_RUNNING = Act.GO_ON, Act.QUEUE, Act.PREPARE, Act.WAIT, Act.SEE_RUNNING
OTHER, ABORT, FORWARD, BACK, ERROR, STUCK = Act.OTHER_DECIDES, Act.ABORT, Act.FORWARD, Act.BACK, Act.ERROR, Act.STUCK

#: What each host can say, besides nothing at all and being down.
SOURCE_OBSERVED = (
    Observed.HERE,
    Observed.RETURNED,
    Observed.WAITS,
    Observed.STARTED,
    Observed.JOB,
    Observed.CUTOVER_JOB,
    Observed.CUTOVER,
    Observed.SHUT_OFF,
    Observed.ABSENT,
    Observed.BROKEN,
)
DESTINATION_OBSERVED = (Observed.WAITING, Observed.PREPARING, Observed.RUNS, Observed.ABSENT, Observed.BROKEN)

#: A row of the table for the source: what it says, what the destination says beside it, and the three columns.
SOURCE_ROWS = [
    # here, no job | go on | never made: queue again | unwind
    (Observed.HERE, Observed.WAITING, (GO_ON, QUEUE, BACK)),
    (Observed.HERE, Observed.ABSENT, (GO_ON, PREPARE, BACK)),
    # the call has returned: unwind
    (Observed.RETURNED, Observed.WAITING, (GO_ON, BACK, BACK)),
    (Observed.RETURNED, Observed.ABSENT, (GO_ON, BACK, BACK)),
    # entry waiting, or started and no job yet | stuck: not ours | wait | wait
    (Observed.WAITS, Observed.WAITING, (STUCK, WAIT, WAIT)),
    (Observed.STARTED, Observed.WAITING, (STUCK, WAIT, WAIT)),
    (Observed.STARTED, Observed.ABSENT, (STUCK, WAIT, WAIT)),
    # here, a job | stuck: not ours | attach, running | attach
    (Observed.JOB, Observed.WAITING, (STUCK, SEE_RUNNING, SEE_RUNNING)),
    (Observed.JOB, Observed.ABSENT, (STUCK, SEE_RUNNING, SEE_RUNNING)),
    # paused for cut-over, a job | stuck | wait | wait
    (Observed.CUTOVER_JOB, Observed.WAITING, (STUCK, WAIT, WAIT)),
    (Observed.CUTOVER_JOB, Observed.ABSENT, (STUCK, WAIT, WAIT)),
    # paused for cut-over, no job | stuck | ask; not running there: unwind | same
    (Observed.CUTOVER, Observed.WAITING, (STUCK, BACK, BACK)),
    (Observed.CUTOVER, Observed.ABSENT, (STUCK, BACK, BACK)),
    (Observed.CUTOVER, Observed.RUNS, (STUCK, FORWARD, FORWARD)),
    # shut off | unwind, stopped | ask; not running there: unwind, stopped | same
    (Observed.SHUT_OFF, Observed.WAITING, (BACK, BACK, BACK)),
    (Observed.SHUT_OFF, Observed.ABSENT, (BACK, BACK, BACK)),
    (Observed.SHUT_OFF, Observed.RUNS, (STUCK, FORWARD, FORWARD)),
    # absent | error | ask | ask
    (Observed.ABSENT, Observed.WAITING, (ERROR, QUEUE, STUCK)),
    (Observed.ABSENT, Observed.RUNS, (STUCK, FORWARD, FORWARD)),
    # post-copy broken off: stuck
    (Observed.BROKEN, Observed.WAITING, (STUCK,) * 3),
    (Observed.BROKEN, Observed.ABSENT, (STUCK,) * 3),
    (Observed.BROKEN, Observed.RUNS, (STUCK,) * 3),
]

#: A row for the destination: what it says, what the source says beside it, and the three columns.
DESTINATION_ROWS = [
    # waiting, a job at the source | (the source's: stuck) | wait | wait
    (Observed.WAITING, Observed.CUTOVER_JOB, (STUCK, WAIT, WAIT)),
    # waiting, no job | go on | go on | ask
    (Observed.WAITING, Observed.HERE, (GO_ON, QUEUE, BACK)),
    (Observed.PREPARING, Observed.HERE, (GO_ON, WAIT, BACK)),
    (Observed.PREPARING, Observed.WAITS, (STUCK, WAIT, WAIT)),
    (Observed.PREPARING, Observed.ABSENT, (ERROR, WAIT, STUCK)),
    # runs | stuck | forward | forward
    (Observed.RUNS, Observed.ABSENT, (STUCK, FORWARD, FORWARD)),
    (Observed.RUNS, Observed.JOB, (STUCK, FORWARD, FORWARD)),
    (Observed.RUNS, Observed.CUTOVER_JOB, (STUCK, FORWARD, FORWARD)),
    # absent | go on, by the log | prepare again; source absent: error | ask; source absent: error
    (Observed.ABSENT, Observed.HERE, (GO_ON, PREPARE, BACK)),
    (Observed.ABSENT, Observed.WAITS, (STUCK, PREPARE, WAIT)),
    (Observed.ABSENT, Observed.ABSENT, (ERROR, ERROR, ERROR)),
    # post-copy broken off: stuck, and while the source has a job only "runs" overrules its row
    (Observed.BROKEN, Observed.HERE, (STUCK,) * 3),
    (Observed.BROKEN, Observed.CUTOVER, (STUCK,) * 3),
    (Observed.BROKEN, Observed.ABSENT, (STUCK,) * 3),
]


def cells(rows: list, of_source: bool) -> list:
    """Return one parameter for each cell."""
    return [
        pytest.param(
            *((observed, other) if of_source else (other, observed)),
            column,
            act,
            id=f'{observed.name}-{other.name}-{column.name}',
        )
        for observed, other, acts in rows
        for column, act in zip(COLUMNS, acts, strict=True)
    ]


def decide(
    source: Observed | Host,
    destination: Observed | Host,
    column: Column,
    abort: bool = False,
    asked_again: bool = False,
    late: bool = False,
) -> Act:
    hosts = [one if isinstance(one, Host) else Host(one) for one in (source, destination)]
    return settle_table.decide(*hosts, column, abort, asked_again, late=late).act


class TestTable:
    @pytest.mark.parametrize(('source', 'destination', 'column', 'act'), cells(SOURCE_ROWS, of_source=True))
    def test_a_row_of_the_source(self, source: Observed, destination: Observed, column: Column, act: Act) -> None:
        assert decide(source, destination, column) == act

    @pytest.mark.parametrize(('source', 'destination', 'column', 'act'), cells(DESTINATION_ROWS, of_source=False))
    def test_a_row_of_the_destination(self, source: Observed, destination: Observed, column: Column, act: Act) -> None:
        assert decide(source, destination, column) == act

    def test_every_observation_of_either_host_has_its_row(self) -> None:
        rows = [(observed, other) for observed, other, _ in SOURCE_ROWS] + [
            (o, observed) for observed, o, _ in DESTINATION_ROWS
        ]
        assert {source for source, _ in rows} == set(SOURCE_OBSERVED)
        assert {destination for _, destination in rows} == set(DESTINATION_OBSERVED)
        assert {*SOURCE_OBSERVED, *DESTINATION_OBSERVED, Observed.MISSING, Observed.DOWN} == set(Observed)


class TestJoins:
    @pytest.mark.parametrize('column', COLUMNS)
    @pytest.mark.parametrize('here', [Observed.HERE, Observed.RETURNED])
    @pytest.mark.parametrize('abort', [False, True])
    def test_1_here_and_running_there_is_asked_once_more_and_then_stuck(
        self, here: Observed, column: Column, abort: bool
    ) -> None:
        assert decide(here, Observed.RUNS, column, abort) == OTHER
        assert decide(here, Observed.RUNS, column, abort, asked_again=True) == STUCK

    @pytest.mark.parametrize('column', COLUMNS)
    @pytest.mark.parametrize('abort', [False, True])
    def test_2_an_answer_that_is_missing_is_waited_for(self, column: Column, abort: bool) -> None:
        stops = (Observed.WAITS, Observed.JOB, Observed.CUTOVER_JOB) if abort and column in SENT else ()
        for source in (*SOURCE_OBSERVED, Observed.MISSING, Observed.DOWN):
            assert decide(source, Observed.MISSING, column, abort) == (ABORT if source in stops else WAIT)
        for destination in (*DESTINATION_OBSERVED, Observed.MISSING, Observed.DOWN):
            assert decide(Observed.MISSING, destination, column, abort) == WAIT

    def test_2_a_post_copy_is_not_aborted_while_the_destination_is_missing(self) -> None:
        source = Host(Observed.CUTOVER_JOB, post_copy=True)
        assert decide(source, Observed.MISSING, Column.RUNNING, abort=True) == WAIT

    @pytest.mark.parametrize('abort', [False, True])
    def test_3_two_asks_are_stuck(self, abort: bool) -> None:
        assert decide(Observed.ABSENT, Observed.WAITING, Column.RUNNING, abort) == STUCK

    @pytest.mark.parametrize('abort', [False, True])
    @pytest.mark.parametrize('source', [Observed.JOB, Observed.CUTOVER_JOB])
    @pytest.mark.parametrize('column', SENT)
    def test_4_running_at_the_destination_is_forward_despite_a_job_and_an_abort(
        self, source: Observed, column: Column, abort: bool
    ) -> None:
        assert decide(source, Observed.RUNS, column, abort) == FORWARD

    def test_4_guest_that_runs_at_the_destination_is_forward_despite_an_abort(self) -> None:
        for source, column in itertools.product((Observed.ABSENT, Observed.CUTOVER, Observed.SHUT_OFF), SENT):
            assert decide(source, Observed.RUNS, column, abort=True) == FORWARD


class TestRequests:
    @pytest.mark.parametrize('column', COLUMNS)
    @pytest.mark.parametrize('source', [Observed.HERE, Observed.RETURNED, Observed.SHUT_OFF])
    @pytest.mark.parametrize('destination', [Observed.WAITING, Observed.PREPARING, Observed.ABSENT])
    def test_a_guest_that_is_here_and_nothing_under_way_is_unwound(
        self, source: Observed, destination: Observed, column: Column
    ) -> None:
        assert decide(source, destination, column, abort=True) == BACK

    @pytest.mark.parametrize('destination', [Observed.WAITING, Observed.PREPARING, Observed.ABSENT])
    def test_an_entry_that_waits_is_cancelled_and_a_job_aborted(self, destination: Observed) -> None:
        assert decide(Observed.WAITS, destination, Column.QUEUED, abort=True) == ABORT
        assert decide(Observed.JOB, destination, Column.QUEUED, abort=True) == ABORT
        assert decide(Observed.JOB, destination, Column.RUNNING, abort=True) == ABORT

    def test_a_cut_over_under_way_is_waited_for_unless_an_abort_was_asked_for_which_the_driver_answers(self) -> None:
        for column in SENT:
            assert decide(Observed.CUTOVER_JOB, Observed.WAITING, column) == WAIT
            assert decide(Observed.CUTOVER_JOB, Observed.WAITING, column, abort=True) == ABORT
            assert decide(Observed.CUTOVER_JOB, Observed.RUNS, column, abort=True) == FORWARD

    def test_abort_does_not_change_stuck_or_lost(self) -> None:
        assert decide(Observed.BROKEN, Observed.BROKEN, Column.RUNNING, abort=True) == STUCK
        assert decide(Observed.ABSENT, Observed.ABSENT, Column.RUNNING, abort=True) == ERROR
        assert decide(Observed.ABSENT, Observed.WAITING, Column.NOT_SENT, abort=True) == ERROR
        assert decide(Observed.ABSENT, Observed.WAITING, Column.QUEUED, abort=True) == STUCK
        assert decide(Observed.JOB, Observed.WAITING, Column.NOT_SENT, abort=True) == STUCK


FENCED = Host(Observed.DOWN, forced_down=True)


class TestSourceDown:
    @pytest.mark.parametrize('source', [Host(Observed.DOWN), FENCED])
    @pytest.mark.parametrize('column', SENT)
    def test_the_destination_runs_it_forward(self, source: Host, column: Column) -> None:
        assert decide(source, Observed.RUNS, column) == FORWARD

    @pytest.mark.parametrize('destination', [Observed.WAITING, Observed.PREPARING, Observed.ABSENT])
    def test_pivot_not_sent_is_back_with_deferred_cleanups(self, destination: Observed) -> None:
        assert decide(Observed.DOWN, destination, Column.NOT_SENT) == BACK

    def test_running_copy_waits_while_destination_is_ready(self) -> None:
        assert decide(Observed.DOWN, Observed.WAITING, Column.RUNNING) == WAIT
        assert decide(Observed.DOWN, Observed.WAITING, Column.RUNNING, abort=True) == STUCK
        assert decide(Observed.DOWN, Observed.WAITING, Column.QUEUED) == STUCK
        assert decide(Observed.DOWN, Observed.WAITING, Column.RUNNING, late=True) == STUCK
        assert decide(FENCED, Observed.WAITING, Column.RUNNING) == ERROR

    @pytest.mark.parametrize('column', SENT)
    @pytest.mark.parametrize('destination', [Observed.PREPARING, Observed.ABSENT, Observed.BROKEN])
    def test_else_stuck_until_it_answers_or_is_declared_down(self, column: Column, destination: Observed) -> None:
        assert decide(Observed.DOWN, destination, column) == STUCK
        assert decide(FENCED, destination, column) == ERROR

    def test_guest_runs_at_destination_without_command_sent_is_stuck(self) -> None:
        assert decide(Observed.DOWN, Observed.RUNS, Column.NOT_SENT) == STUCK


class TestDestinationDown:
    @pytest.mark.parametrize('destination', [Host(Observed.DOWN), FENCED])
    @pytest.mark.parametrize('source', [Observed.HERE, Observed.RETURNED])
    @pytest.mark.parametrize('column', COLUMNS)
    def test_guest_at_the_source_without_a_job_is_back_with_deferred_cleanups(
        self, source: Observed, destination: Host, column: Column
    ) -> None:
        assert decide(source, destination, column) == BACK

    @pytest.mark.parametrize('column', SENT)
    def test_here_with_a_job_wait_and_abort_it_if_declared_down(self, column: Column) -> None:
        assert decide(Observed.JOB, Observed.DOWN, column) == WAIT
        assert decide(Observed.JOB, FENCED, column) == ABORT

    @pytest.mark.parametrize('column', SENT)
    @pytest.mark.parametrize('observed', [Observed.CUTOVER, Observed.SHUT_OFF])
    def test_paused_or_shut_off_without_a_verdict_is_stuck(self, column: Column, observed: Observed) -> None:
        assert decide(observed, Observed.DOWN, column) == STUCK
        assert decide(observed, FENCED, column) == STUCK
        for verdict in ('failed', 'aborted'):
            assert decide(Host(observed, verdict=verdict), Observed.DOWN, column) == BACK

    @pytest.mark.parametrize('destination', [Host(Observed.DOWN), FENCED])
    def test_absent_is_forward_only_where_its_job_was_seen(self, destination: Host) -> None:
        assert decide(Observed.ABSENT, destination, Column.RUNNING) == FORWARD
        assert decide(Observed.ABSENT, destination, Column.QUEUED) == STUCK
        assert decide(Observed.ABSENT, destination, Column.QUEUED, abort=True) == STUCK

    @pytest.mark.parametrize('column', SENT)
    def test_completed_is_forward_with_deferred_cleanups(self, column: Column) -> None:
        assert decide(Host(Observed.CUTOVER, verdict='completed'), Observed.DOWN, column) == FORWARD

    @pytest.mark.parametrize('column', SENT)
    def test_post_copy_with_fenced_destination_loses_guest(self, column: Column) -> None:
        assert decide(Host(Observed.CUTOVER_JOB, post_copy=True), FENCED, column) == ERROR

    @pytest.mark.parametrize('column', SENT)
    def test_a_cut_over_with_a_job_is_waited_for(self, column: Column) -> None:
        assert decide(Observed.CUTOVER_JOB, Observed.DOWN, column) == WAIT
        assert decide(Observed.STARTED, Observed.DOWN, column) == WAIT

    def test_waiting_entry_is_cancelled_by_an_abort(self) -> None:
        assert decide(Observed.WAITS, Observed.DOWN, Column.QUEUED) == WAIT
        assert decide(Observed.WAITS, Observed.DOWN, Column.QUEUED, abort=True) == ABORT


@pytest.mark.parametrize('column', COLUMNS)
def test_both_down_is_stuck(column: Column) -> None:
    assert decide(Observed.DOWN, Observed.DOWN, column) == STUCK
    assert decide(FENCED, FENCED, column) == STUCK


def every_case() -> list:
    """Return every argument that decide can be given."""
    verdicts = ('', 'completed', 'failed', 'aborted')
    sources = [
        Host(observed, verdict=verdict) for observed in (*SOURCE_OBSERVED, Observed.MISSING) for verdict in verdicts
    ]
    sources += [Host(Observed.CUTOVER_JOB, post_copy=True), Host(Observed.DOWN), FENCED]
    destinations = [Host(observed) for observed in (*DESTINATION_OBSERVED, Observed.MISSING, Observed.DOWN)] + [FENCED]
    return list(itertools.product(sources, destinations, Column, (False, True), (False, True)))


class TestTotality:
    def test_every_case_has_an_answer_with_a_reason_that_names_both_hosts(self) -> None:
        for source, destination, column, abort, again in every_case():
            decision = settle_table.decide(source, destination, column, abort, again)
            assert decision.act in Act
            assert source.observed in decision.reason
            assert destination.observed in decision.reason

    def test_repeated_observations_are_not_polled_again(self) -> None:
        for source, destination, column, abort, _ in every_case():
            assert decide(source, destination, column, abort, True) != OTHER

    def test_back_is_never_decided_while_the_destination_may_run_the_guest(self) -> None:
        for source, destination, column, abort, again in every_case():
            if decide(source, destination, column, abort, again) in (BACK, ERROR):
                assert destination.observed is not Observed.RUNS
                assert (
                    source.observed not in (Observed.JOB, Observed.WAITS, Observed.STARTED) or column is Column.NOT_SENT
                )

    def test_forward_is_decided_only_for_a_guest_that_runs_there_or_has_left_for_a_host_that_is_down(self) -> None:
        for source, destination, column, abort, again in every_case():
            if decide(source, destination, column, abort, again) == FORWARD:
                assert column in SENT
                left = source.observed is Observed.ABSENT and column is Column.RUNNING
                gone = left or source.verdict == 'completed'
                assert destination.observed is Observed.RUNS or (destination.observed is Observed.DOWN and gone)

    def test_every_poll_has_a_row(self) -> None:
        for state, job, entry in itertools.product(GuestState, (False, True), Entry):
            assert settle_table.source_observed(state, job, entry) in SOURCE_OBSERVED
        for state, preparing in itertools.product(GuestState, (False, True)):
            assert settle_table.destination_observed(state, preparing) in DESTINATION_OBSERVED


class TestWords:
    @pytest.mark.parametrize(
        ('state', 'job', 'entry', 'observed'),
        [
            ('running', False, '', Observed.HERE),
            ('paused', False, '', Observed.HERE),
            ('running', False, 'returned', Observed.RETURNED),
            ('running', False, 'queued', Observed.WAITS),
            ('running', False, 'started', Observed.STARTED),
            ('running', True, 'started', Observed.JOB),
            ('running', True, '', Observed.JOB),
            ('paused for cut-over', True, 'started', Observed.CUTOVER_JOB),
            ('paused for cut-over', False, 'returned', Observed.CUTOVER),
            ('paused for cut-over', False, '', Observed.CUTOVER),
            ('shutdown', False, 'returned', Observed.SHUT_OFF),
            ('absent', False, 'returned', Observed.ABSENT),
            ('absent', False, '', Observed.ABSENT),
            ('waiting', False, '', Observed.ABSENT),
            ('post-copy broken off', False, 'returned', Observed.BROKEN),
            # the entry is looked at before the driver is asked: it may still be said to be under way
            ('absent', False, 'queued', Observed.WAITS),
        ],
    )
    def test_observation_of_the_source(self, state: str, job: bool, entry: str, observed: Observed) -> None:
        assert settle_table.source_observed(state, job, entry) == observed

    @pytest.mark.parametrize(
        ('state', 'preparing', 'observed'),
        [
            ('running', False, Observed.RUNS),
            ('paused', False, Observed.RUNS),
            ('waiting', False, Observed.WAITING),
            ('waiting', True, Observed.PREPARING),
            ('absent', True, Observed.PREPARING),
            ('absent', False, Observed.ABSENT),
            ('post-copy broken off', False, Observed.BROKEN),
        ],
    )
    def test_observation_of_the_destination(self, state: str, preparing: bool, observed: Observed) -> None:
        assert settle_table.destination_observed(state, preparing) == observed
