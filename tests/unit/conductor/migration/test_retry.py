# SPDX-License-Identifier: Apache-2.0

"""What follows from one try of a step that is retried until it succeeds."""

from __future__ import annotations

import pytest

from migrator.conductor.migration.hosts import RETRY, Then, Tried


def test_each_outcome_has_a_row() -> None:
    assert set(RETRY) == set(Tried)


@pytest.mark.parametrize('tried', [Tried.HERE, Tried.GONE, Tried.MAY_RUN])
def test_a_host_that_contradicts_the_log_is_never_passed_over(tried: Tried) -> None:
    assert set(RETRY[tried]) == {Then.STUCK}


def test_a_guest_that_is_paused_at_a_source_that_is_up_is_never_deferred() -> None:
    assert Then.DEFER not in RETRY[Tried.UNRESTORED]


def test_a_migration_does_not_wait_for_a_host_that_is_down() -> None:
    assert RETRY[Tried.PENDING][True] is Then.DEFER


@pytest.mark.parametrize(
    ('tried', 'cells'),
    [
        (Tried.DONE, 'done done'),
        (Tried.DELETED, 'done done'),
        (Tried.HERE, 'stuck stuck'),
        (Tried.GONE, 'stuck stuck'),
        (Tried.FAILED, 'again defer'),
        (Tried.UNRESTORED, 'again stuck'),
        (Tried.PENDING, 'again defer'),
        (Tried.MAY_RUN, 'stuck stuck'),
    ],
)
def test_the_whole_table(tried: Tried, cells: str) -> None:
    assert [then.name.lower() for then in RETRY[tried]] == cells.split()
