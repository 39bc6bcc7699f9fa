# SPDX-License-Identifier: Apache-2.0

"""The tables of legal moves of a drain and of its members."""

from __future__ import annotations

import itertools

import pytest

from migrator import exception
from migrator.objects.drain import (
    DRAIN_ENDS,
    LEGAL_DRAIN_MOVES,
    LEGAL_MEMBER_MOVES,
    Drain,
    DrainStatus,
    MemberStatus,
    check_drain_move,
    check_member_move,
)


def drain(status: DrainStatus) -> Drain:
    return Drain(uuid='d', host='host1', status=status.value)


@pytest.mark.parametrize(('old', 'new'), list(itertools.product(DrainStatus, DrainStatus)))
def test_status_of_a_drain_outside_its_table_is_refused(old: DrainStatus, new: DrainStatus) -> None:
    if (old, new) in LEGAL_DRAIN_MOVES:
        check_drain_move(drain(old), new.value)
        return
    with pytest.raises(exception.IllegalMoveOfDrain, match=f'The status of drain d cannot go from {old} to {new}'):
        check_drain_move(drain(old), new.value)


@pytest.mark.parametrize(('old', 'new'), list(itertools.product(MemberStatus, MemberStatus)))
def test_status_of_a_member_outside_its_table_is_refused(old: MemberStatus, new: MemberStatus) -> None:
    if (old, new) in LEGAL_MEMBER_MOVES:
        check_member_move(drain(DrainStatus.RUNNING), old.value, new.value)
        return
    with pytest.raises(exception.IllegalMoveOfDrain, match=f'A member of drain d cannot go from {old} to {new}'):
        check_member_move(drain(DrainStatus.RUNNING), old.value, new.value)


def test_drain_that_has_ended_goes_on_only_by_a_restore() -> None:
    assert {(old, new) for old, new in LEGAL_DRAIN_MOVES if old in DRAIN_ENDS} == {
        (end, DrainStatus.ACCEPTED) for end in DRAIN_ENDS
    }
