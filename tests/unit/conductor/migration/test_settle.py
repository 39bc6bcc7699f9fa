# SPDX-License-Identifier: Apache-2.0


"""The table of the protocol, typed out from its text and not from the code's own table."""

from __future__ import annotations

import itertools

import pytest

from migrator.conductor.migration import settle
from migrator.conductor.migration.settle import Act, Column, Host, Says
from migrator.objects.protocol import Entry, GuestState

COLUMNS = (Column.NOT_SENT, Column.QUEUED, Column.RUNNING, Column.FORWARD, Column.BACK)
UNSETTLED = (Column.NOT_SENT, Column.QUEUED, Column.RUNNING)
SENT = (Column.QUEUED, Column.RUNNING)

GO_ON, QUEUE, PREPARE, WAIT, SEE_RUNNING = Act.GO_ON, Act.QUEUE, Act.PREPARE, Act.WAIT, Act.SEE_RUNNING
ASK, ABORT, FORWARD, BACK, ERROR = Act.ASK, Act.ABORT, Act.FORWARD, Act.BACK, Act.ERROR
POST, RESTORE, CLEAN, DONE, STUCK = Act.POST, Act.RESTORE, Act.CLEAN, Act.DONE, Act.STUCK

#: What each host can say, besides nothing at all and being down.
SOURCE_SAYS = (
    Says.HERE,
    Says.RETURNED,
    Says.WAITS,
    Says.STARTED,
    Says.JOB,
    Says.CUTOVER_JOB,
    Says.CUTOVER,
    Says.SHUT_OFF,
    Says.ABSENT,
    Says.BROKEN,
)
DESTINATION_SAYS = (Says.WAITING, Says.PREPARING, Says.RUNS, Says.ABSENT, Says.BROKEN)

#: A row of the table for the source: what it says, what the destination says beside it, and the five columns.
SOURCE_ROWS = [
    # here, no job | go on | never made: queue again | unwind | stuck: split brain | restore (after the cleaning)
    (Says.HERE, Says.WAITING, (GO_ON, QUEUE, BACK, STUCK, CLEAN)),
    (Says.HERE, Says.ABSENT, (GO_ON, PREPARE, BACK, STUCK, RESTORE)),
    # the call has returned: unwind
    (Says.RETURNED, Says.WAITING, (GO_ON, BACK, BACK, STUCK, CLEAN)),
    (Says.RETURNED, Says.ABSENT, (GO_ON, BACK, BACK, STUCK, RESTORE)),
    # entry waiting, or started and no job yet | stuck: not ours | wait | wait | wait | cancel it, wait
    (Says.WAITS, Says.WAITING, (STUCK, WAIT, WAIT, STUCK, ABORT)),
    (Says.STARTED, Says.WAITING, (STUCK, WAIT, WAIT, STUCK, ABORT)),
    (Says.STARTED, Says.ABSENT, (STUCK, WAIT, WAIT, STUCK, ABORT)),
    # here, a job | stuck: not ours | attach, running | attach | wait | abort it, wait
    (Says.JOB, Says.WAITING, (STUCK, SEE_RUNNING, SEE_RUNNING, WAIT, ABORT)),
    (Says.JOB, Says.ABSENT, (STUCK, SEE_RUNNING, SEE_RUNNING, WAIT, ABORT)),
    # paused for cut-over, a job | stuck | wait | wait | wait | abort it, wait
    (Says.CUTOVER_JOB, Says.WAITING, (STUCK, WAIT, WAIT, WAIT, ABORT)),
    (Says.CUTOVER_JOB, Says.ABSENT, (STUCK, WAIT, WAIT, WAIT, ABORT)),
    # paused for cut-over, no job | stuck | ask; not running there: unwind | same | post at source | restore: resume
    (Says.CUTOVER, Says.WAITING, (STUCK, BACK, BACK, STUCK, CLEAN)),
    (Says.CUTOVER, Says.ABSENT, (STUCK, BACK, BACK, STUCK, RESTORE)),
    (Says.CUTOVER, Says.RUNS, (STUCK, FORWARD, FORWARD, POST, STUCK)),
    # shut off | unwind, stopped | ask; not running there: unwind, stopped | same | post at source | restore
    (Says.SHUT_OFF, Says.WAITING, (BACK, BACK, BACK, STUCK, CLEAN)),
    (Says.SHUT_OFF, Says.ABSENT, (BACK, BACK, BACK, STUCK, RESTORE)),
    (Says.SHUT_OFF, Says.RUNS, (STUCK, FORWARD, FORWARD, POST, STUCK)),
    # absent | error | ask | ask | done | stuck
    (Says.ABSENT, Says.WAITING, (ERROR, QUEUE, STUCK, STUCK, STUCK)),
    (Says.ABSENT, Says.RUNS, (STUCK, FORWARD, FORWARD, POST, STUCK)),
    # post-copy broken off: stuck
    (Says.BROKEN, Says.WAITING, (STUCK,) * 5),
    (Says.BROKEN, Says.ABSENT, (STUCK,) * 5),
    (Says.BROKEN, Says.RUNS, (STUCK,) * 5),
]

#: A row for the destination: what it says, what the source says beside it, and the five columns.
DESTINATION_ROWS = [
    # waiting, a job at the source | (the source's: stuck) | wait | wait | wait | abort at the source first
    (Says.WAITING, Says.CUTOVER_JOB, (STUCK, WAIT, WAIT, WAIT, ABORT)),
    # waiting, no job | go on | go on | ask | stuck | clean
    (Says.WAITING, Says.HERE, (GO_ON, QUEUE, BACK, STUCK, CLEAN)),
    (Says.PREPARING, Says.HERE, (GO_ON, WAIT, BACK, STUCK, CLEAN)),
    # runs | stuck | forward | forward | post | stuck: split brain
    (Says.RUNS, Says.ABSENT, (STUCK, FORWARD, FORWARD, POST, STUCK)),
    (Says.RUNS, Says.JOB, (STUCK, FORWARD, FORWARD, WAIT, STUCK)),
    (Says.RUNS, Says.CUTOVER_JOB, (STUCK, FORWARD, FORWARD, WAIT, STUCK)),
    # absent | go on, by the journal | prepare again; source absent: error | ask; source absent: error | stuck | done
    (Says.ABSENT, Says.HERE, (GO_ON, PREPARE, BACK, STUCK, RESTORE)),
    (Says.ABSENT, Says.WAITS, (STUCK, PREPARE, WAIT, STUCK, ABORT)),
    (Says.ABSENT, Says.ABSENT, (ERROR, ERROR, ERROR, STUCK, STUCK)),
    # post-copy broken off: stuck, and while the source has a job only "runs" overrules its row
    (Says.BROKEN, Says.HERE, (STUCK,) * 5),
    (Says.BROKEN, Says.CUTOVER, (STUCK,) * 5),
    (Says.BROKEN, Says.ABSENT, (STUCK,) * 5),
]


def cells(rows: list, of_source: bool) -> list:
    """Return one parameter for each cell."""
    return [
        pytest.param(
            *((says, other) if of_source else (other, says)),
            column,
            act,
            id=f'{says.name}-{other.name}-{column.name}',
        )
        for says, other, acts in rows
        for column, act in zip(COLUMNS, acts, strict=True)
    ]


def decide(
    source: Says | Host,
    destination: Says | Host,
    column: Column,
    against: bool = False,
    asked_again: bool = False,
    late: bool = False,
) -> Act:
    hosts = [one if isinstance(one, Host) else Host(one) for one in (source, destination)]
    return settle.decide(*hosts, column, against, asked_again, late=late).act


class TestTable:
    @pytest.mark.parametrize(('source', 'destination', 'column', 'act'), cells(SOURCE_ROWS, of_source=True))
    def test_a_row_of_the_source(self, source: Says, destination: Says, column: Column, act: Act) -> None:
        assert decide(source, destination, column) == act

    @pytest.mark.parametrize(('source', 'destination', 'column', 'act'), cells(DESTINATION_ROWS, of_source=False))
    def test_a_row_of_the_destination(self, source: Says, destination: Says, column: Column, act: Act) -> None:
        assert decide(source, destination, column) == act

    def test_every_word_of_either_host_has_its_row(self) -> None:
        rows = [(says, other) for says, other, _ in SOURCE_ROWS] + [(o, says) for says, o, _ in DESTINATION_ROWS]
        assert {source for source, _ in rows} == set(SOURCE_SAYS)
        assert {destination for _, destination in rows} == set(DESTINATION_SAYS)


class TestJoins:
    @pytest.mark.parametrize('column', COLUMNS)
    @pytest.mark.parametrize('here', [Says.HERE, Says.RETURNED])
    @pytest.mark.parametrize('against', [False, True])
    def test_1_here_and_running_there_is_asked_once_more_and_then_stuck(
        self, here: Says, column: Column, against: bool
    ) -> None:
        assert decide(here, Says.RUNS, column, against) == ASK
        assert decide(here, Says.RUNS, column, against, asked_again=True) == STUCK

    @pytest.mark.parametrize('column', COLUMNS)
    @pytest.mark.parametrize('against', [False, True])
    def test_2_an_answer_that_is_missing_is_waited_for(self, column: Column, against: bool) -> None:
        for source in (*SOURCE_SAYS, Says.MISSING, Says.DOWN):
            assert decide(source, Says.MISSING, column, against) == WAIT
        for destination in (*DESTINATION_SAYS, Says.MISSING, Says.DOWN):
            assert decide(Says.MISSING, destination, column, against) == WAIT

    @pytest.mark.parametrize('against', [False, True])
    def test_3_two_asks_are_stuck(self, against: bool) -> None:
        assert decide(Says.ABSENT, Says.WAITING, Column.RUNNING, against) == STUCK

    @pytest.mark.parametrize('against', [False, True])
    @pytest.mark.parametrize('source', [Says.JOB, Says.CUTOVER_JOB])
    @pytest.mark.parametrize('column', SENT)
    def test_4_while_the_source_has_a_job_running_there_overrules_and_is_forward_whatever_is_wished(
        self, source: Says, column: Column, against: bool
    ) -> None:
        assert decide(source, Says.RUNS, column, against) == FORWARD

    def test_4_a_guest_that_runs_there_is_forward_whatever_is_wished(self) -> None:
        for source, column in itertools.product((Says.ABSENT, Says.CUTOVER, Says.SHUT_OFF), SENT):
            assert decide(source, Says.RUNS, column, against=True) == FORWARD


class TestWishes:
    @pytest.mark.parametrize('column', UNSETTLED)
    @pytest.mark.parametrize('source', [Says.HERE, Says.RETURNED, Says.SHUT_OFF])
    @pytest.mark.parametrize('destination', [Says.WAITING, Says.PREPARING, Says.ABSENT])
    def test_a_guest_that_is_here_and_nothing_under_way_is_unwound(
        self, source: Says, destination: Says, column: Column
    ) -> None:
        assert decide(source, destination, column, against=True) == BACK

    @pytest.mark.parametrize('destination', [Says.WAITING, Says.PREPARING, Says.ABSENT])
    def test_an_entry_that_waits_is_cancelled_and_a_job_aborted(self, destination: Says) -> None:
        assert decide(Says.WAITS, destination, Column.QUEUED, against=True) == ABORT
        assert decide(Says.JOB, destination, Column.QUEUED, against=True) == ABORT
        assert decide(Says.JOB, destination, Column.RUNNING, against=True) == ABORT

    def test_a_cut_over_under_way_is_waited_for_unless_an_abort_was_asked_for_which_the_driver_answers(self) -> None:
        for column in SENT:
            assert decide(Says.CUTOVER_JOB, Says.WAITING, column) == WAIT
            assert decide(Says.CUTOVER_JOB, Says.WAITING, column, against=True) == ABORT
            assert decide(Says.CUTOVER_JOB, Says.RUNS, column, against=True) == FORWARD

    def test_what_is_stuck_or_lost_stays_so(self) -> None:
        assert decide(Says.BROKEN, Says.BROKEN, Column.RUNNING, against=True) == STUCK
        assert decide(Says.ABSENT, Says.ABSENT, Column.RUNNING, against=True) == ERROR
        assert decide(Says.ABSENT, Says.WAITING, Column.NOT_SENT, against=True) == ERROR
        assert decide(Says.JOB, Says.WAITING, Column.NOT_SENT, against=True) == STUCK

    def test_a_wish_changes_nothing_once_it_is_settled(self) -> None:
        for source, destination in itertools.product(SOURCE_SAYS, DESTINATION_SAYS):
            for column in (Column.FORWARD, Column.BACK):
                assert decide(source, destination, column) == decide(source, destination, column, against=True)


FENCED = Host(Says.DOWN, forced_down=True)


class TestSourceDown:
    @pytest.mark.parametrize('source', [Host(Says.DOWN), FENCED])
    @pytest.mark.parametrize('column', SENT)
    def test_the_destination_runs_it_forward(self, source: Host, column: Column) -> None:
        assert decide(source, Says.RUNS, column) == FORWARD

    @pytest.mark.parametrize('destination', [Says.WAITING, Says.PREPARING, Says.ABSENT])
    def test_nothing_was_sent_back_with_debts(self, destination: Says) -> None:
        assert decide(Says.DOWN, destination, Column.NOT_SENT) == BACK

    def test_what_was_moving_may_go_on_as_long_as_the_destination_is_ready_for_it(self) -> None:
        assert decide(Says.DOWN, Says.WAITING, Column.RUNNING) == WAIT
        assert decide(Says.DOWN, Says.WAITING, Column.RUNNING, against=True) == STUCK
        assert decide(Says.DOWN, Says.WAITING, Column.QUEUED) == STUCK
        assert decide(Says.DOWN, Says.WAITING, Column.RUNNING, late=True) == STUCK
        assert decide(FENCED, Says.WAITING, Column.RUNNING) == ERROR

    @pytest.mark.parametrize('column', SENT)
    @pytest.mark.parametrize('destination', [Says.PREPARING, Says.ABSENT, Says.BROKEN])
    def test_else_stuck_until_it_answers_or_is_declared_down(self, column: Column, destination: Says) -> None:
        assert decide(Says.DOWN, destination, column) == STUCK
        assert decide(FENCED, destination, column) == ERROR

    def test_nothing_was_sent_and_yet_the_destination_runs_it_is_stuck(self) -> None:
        assert decide(Says.DOWN, Says.RUNS, Column.NOT_SENT) == STUCK


class TestDestinationDown:
    @pytest.mark.parametrize('destination', [Host(Says.DOWN), FENCED])
    @pytest.mark.parametrize('source', [Says.HERE, Says.RETURNED])
    @pytest.mark.parametrize('column', UNSETTLED)
    def test_here_with_no_job_back_with_debts(self, source: Says, destination: Host, column: Column) -> None:
        assert decide(source, destination, column) == BACK

    @pytest.mark.parametrize('column', SENT)
    def test_here_with_a_job_wait_and_abort_it_if_declared_down(self, column: Column) -> None:
        assert decide(Says.JOB, Says.DOWN, column) == WAIT
        assert decide(Says.JOB, FENCED, column) == ABORT

    @pytest.mark.parametrize('column', SENT)
    @pytest.mark.parametrize('says', [Says.CUTOVER, Says.SHUT_OFF])
    def test_paused_or_shut_off_without_a_verdict_is_stuck(self, column: Column, says: Says) -> None:
        assert decide(says, Says.DOWN, column) == STUCK
        assert decide(says, FENCED, column) == STUCK
        for verdict in ('failed', 'aborted'):
            assert decide(Host(says, verdict=verdict), Says.DOWN, column) == BACK

    @pytest.mark.parametrize('destination', [Host(Says.DOWN), FENCED])
    def test_absent_is_forward_only_where_its_job_was_seen(self, destination: Host) -> None:
        assert decide(Says.ABSENT, destination, Column.RUNNING) == FORWARD
        assert decide(Says.ABSENT, destination, Column.QUEUED) == STUCK
        assert decide(Says.ABSENT, destination, Column.QUEUED, against=True) == STUCK

    @pytest.mark.parametrize('column', SENT)
    def test_completed_is_forward_with_debts(self, column: Column) -> None:
        assert decide(Host(Says.CUTOVER, verdict='completed'), Says.DOWN, column) == FORWARD

    @pytest.mark.parametrize('column', SENT)
    def test_in_post_copy_and_declared_down_the_guest_is_lost(self, column: Column) -> None:
        assert decide(Host(Says.CUTOVER_JOB, post_copy=True), FENCED, column) == ERROR

    @pytest.mark.parametrize('column', SENT)
    def test_a_cut_over_with_a_job_is_waited_for(self, column: Column) -> None:
        assert decide(Says.CUTOVER_JOB, Says.DOWN, column) == WAIT
        assert decide(Says.STARTED, Says.DOWN, column) == WAIT

    def test_an_entry_that_waits_is_cancelled_if_that_is_wished(self) -> None:
        assert decide(Says.WAITS, Says.DOWN, Column.QUEUED) == WAIT
        assert decide(Says.WAITS, Says.DOWN, Column.QUEUED, against=True) == ABORT


@pytest.mark.parametrize('column', COLUMNS)
def test_both_down_is_stuck(column: Column) -> None:
    assert decide(Says.DOWN, Says.DOWN, column) == STUCK
    assert decide(FENCED, FENCED, column) == STUCK


def every_case() -> list:
    """Return every argument that decide can be given."""
    verdicts = ('', 'completed', 'failed', 'aborted')
    sources = [Host(says, verdict=verdict) for says in (*SOURCE_SAYS, Says.MISSING) for verdict in verdicts]
    sources += [Host(Says.CUTOVER_JOB, post_copy=True), Host(Says.DOWN), FENCED]
    destinations = [Host(says) for says in (*DESTINATION_SAYS, Says.MISSING, Says.DOWN)] + [FENCED]
    return list(itertools.product(sources, destinations, Column, (False, True), (False, True)))


class TestTotality:
    def test_every_case_has_an_answer_with_a_reason_that_names_both_hosts(self) -> None:
        for source, destination, column, against, again in every_case():
            decision = settle.decide(source, destination, column, against, again)
            assert decision.act in Act
            assert source.says in decision.reason
            assert destination.says in decision.reason

    def test_both_having_repeated_themselves_nobody_is_asked_again(self) -> None:
        for source, destination, column, against, _ in every_case():
            assert decide(source, destination, column, against, True) != ASK

    def test_back_is_never_decided_while_the_destination_may_run_the_guest(self) -> None:
        for source, destination, column, against, again in every_case():
            if decide(source, destination, column, against, again) in (BACK, ERROR):
                assert destination.says is not Says.RUNS
                assert source.says not in (Says.JOB, Says.WAITS, Says.STARTED) or column is Column.NOT_SENT

    def test_forward_is_decided_only_for_a_guest_that_runs_there_or_has_left_for_a_host_that_is_down(self) -> None:
        for source, destination, column, against, again in every_case():
            if decide(source, destination, column, against, again) == FORWARD:
                assert column in SENT
                left = source.says is Says.ABSENT and column is Column.RUNNING
                gone = left or source.verdict == 'completed'
                assert destination.says is Says.RUNS or (destination.says is Says.DOWN and gone)

    def test_an_outcome_once_written_is_never_decided_again(self) -> None:
        settled = [case for case in every_case() if case[2] in (Column.FORWARD, Column.BACK)]
        assert not {decide(*case) for case in settled} & {FORWARD, BACK, ERROR, QUEUE, PREPARE, GO_ON, SEE_RUNNING}

    def test_what_hosts_say_always_has_a_row(self) -> None:
        for state, job, entry in itertools.product(GuestState, (False, True), Entry):
            assert settle.source_says(state, job, entry) in SOURCE_SAYS
        for state, preparing in itertools.product(GuestState, (False, True)):
            assert settle.destination_says(state, preparing) in DESTINATION_SAYS


class TestWords:
    @pytest.mark.parametrize(
        ('state', 'job', 'entry', 'says'),
        [
            ('running', False, '', Says.HERE),
            ('paused', False, '', Says.HERE),
            ('running', False, 'returned', Says.RETURNED),
            ('running', False, 'queued', Says.WAITS),
            ('running', False, 'started', Says.STARTED),
            ('running', True, 'started', Says.JOB),
            ('running', True, '', Says.JOB),
            ('paused for cut-over', True, 'started', Says.CUTOVER_JOB),
            ('paused for cut-over', False, 'returned', Says.CUTOVER),
            ('paused for cut-over', False, '', Says.CUTOVER),
            ('shutdown', False, 'returned', Says.SHUT_OFF),
            ('absent', False, 'returned', Says.ABSENT),
            ('absent', False, '', Says.ABSENT),
            ('waiting', False, '', Says.ABSENT),
            ('post-copy broken off', False, 'returned', Says.BROKEN),
            # the entry is looked at before the driver is asked: it may still be said to be under way
            ('absent', False, 'queued', Says.WAITS),
        ],
    )
    def test_what_the_source_says(self, state: str, job: bool, entry: str, says: Says) -> None:
        assert settle.source_says(state, job, entry) == says

    @pytest.mark.parametrize(
        ('state', 'preparing', 'says'),
        [
            ('running', False, Says.RUNS),
            ('paused', False, Says.RUNS),
            ('waiting', False, Says.WAITING),
            ('waiting', True, Says.PREPARING),
            ('absent', True, Says.PREPARING),
            ('absent', False, Says.ABSENT),
            ('post-copy broken off', False, Says.BROKEN),
        ],
    )
    def test_what_the_destination_says(self, state: str, preparing: bool, says: Says) -> None:
        assert settle.destination_says(state, preparing) == says
