# SPDX-License-Identifier: Apache-2.0

"""What follows from one try of a step that is retried until it succeeds."""

from __future__ import annotations

import pytest

from migrator.conductor.migration.hosts import RETRY, State, Then, Tried


def test_each_outcome_has_a_cell_for_each_state() -> None:
    assert set(RETRY) == set(Tried)
    assert {len(row) for row in RETRY.values()} == {len(State)}


@pytest.mark.parametrize('state', State)
@pytest.mark.parametrize('tried', [Tried.HERE, Tried.GONE, Tried.MAY_RUN])
def test_a_host_that_contradicts_the_journal_is_never_passed_over(tried: Tried, state: State) -> None:
    assert RETRY[tried][state] is Then.STUCK


@pytest.mark.parametrize('state', [State.UP, State.EXHAUSTED])
def test_a_guest_that_is_paused_at_a_source_that_is_up_is_never_deferred(state: State) -> None:
    assert RETRY[Tried.UNRESTORED][state] in (Then.AGAIN, Then.STUCK)


@pytest.mark.parametrize('tried', [Tried.FAILED, Tried.PENDING, Tried.UNRESTORED])
def test_a_migration_does_not_wait_for_a_host_that_is_down(tried: Tried) -> None:
    assert RETRY[tried][State.DOWN] is Then.DEFER


@pytest.mark.parametrize(
    ('tried', 'cells'),
    [
        (Tried.DONE, 'done done done'),
        (Tried.DELETED, 'done done done'),
        (Tried.HERE, 'stuck stuck stuck'),
        (Tried.GONE, 'stuck stuck stuck'),
        (Tried.FAILED, 'again defer defer'),
        (Tried.UNRESTORED, 'again stuck defer'),
        (Tried.PENDING, 'again again defer'),
        (Tried.MAY_RUN, 'stuck stuck stuck'),
    ],
)
def test_the_whole_table(tried: Tried, cells: str) -> None:
    assert [then.name.lower() for then in RETRY[tried]] == cells.split()
