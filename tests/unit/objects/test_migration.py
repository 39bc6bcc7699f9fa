# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import itertools

import pytest

from migrator import exception
from migrator.objects import migration
from migrator.objects.migration import ENDS, FINAL, IN_PROGRESS, LEGAL_MOVES, MigrationStatus


class TestLegalMoves:
    def test_no_move_leaves_an_end(self) -> None:
        assert not [move for move in LEGAL_MOVES if move[0] in FINAL]

    def test_every_status_can_be_reached_and_from_each_an_end(self) -> None:
        reached = {MigrationStatus.ACCEPTED}
        while more := {to for start, to in LEGAL_MOVES if start in reached} - reached:
            reached |= more
        assert reached == set(MigrationStatus)
        for status in IN_PROGRESS:
            ahead = {status}
            while more := {to for start, to in LEGAL_MOVES if start in ahead} - ahead:
                ahead |= more
            assert ahead & ENDS

    def test_every_status_in_progress_can_become_error(self) -> None:
        assert {start for start, to in LEGAL_MOVES if to is MigrationStatus.ERROR} == IN_PROGRESS

    def test_no_move_leads_back(self) -> None:
        order = list(MigrationStatus)
        for start, to in LEGAL_MOVES:
            assert order.index(start) < order.index(to), (start, to)

    def test_every_move_has_a_remark(self) -> None:
        assert all(remark.strip() for remark in LEGAL_MOVES.values())

    def test_status_after_the_pivot_cannot_become_cancelled_or_failed(self) -> None:
        for start in (MigrationStatus.RUNNING_POST_COPY, MigrationStatus.POST_MIGRATING):
            ends = {to for one, to in LEGAL_MOVES if one is start}
            assert not ends & {MigrationStatus.CANCELLED, MigrationStatus.FAILED}

    def test_completed_comes_only_after_the_source_has_cleaned_up(self) -> None:
        assert {start for start, to in LEGAL_MOVES if to is MigrationStatus.COMPLETED} == {
            MigrationStatus.POST_MIGRATING,
            MigrationStatus.DONE,
        }

    @pytest.mark.parametrize(('old', 'new'), list(itertools.product(MigrationStatus, MigrationStatus)))
    def test_status_move_outside_the_table_is_refused(self, old: MigrationStatus, new: MigrationStatus) -> None:
        legal = (old, new) in LEGAL_MOVES or (old is new and old in IN_PROGRESS)
        if legal:
            migration.check_move('m', old, new)
            return
        with pytest.raises(exception.IllegalMove) as caught:
            migration.check_move('m', old.value, new.value)
        assert caught.value.kwargs == {'migration_uuid': 'm', 'old': old, 'new': new}


class TestStatuses:
    def test_a_status_is_in_progress_or_an_end_and_never_both(self) -> None:
        assert set(MigrationStatus) == ENDS | IN_PROGRESS
        assert not ENDS & IN_PROGRESS
        ends = {'completed', 'cancelled', 'failed', 'error', 'done', 'confirmed', 'reverted'}
        assert {status.value for status in ENDS} == ends

    def test_status_values_are_those_of_nova(self) -> None:
        assert MigrationStatus.RUNNING_POST_COPY == 'running (post-copy)'
        assert MigrationStatus.POST_MIGRATING == 'post-migrating'

    @pytest.mark.parametrize('status', MigrationStatus)
    def test_migration_has_ended_exactly_in_an_end_status(self, status: MigrationStatus) -> None:
        one = migration.Migration(
            uuid='m', instance_uuid='i', project_id='p', user_id='u', source_compute='h', source_node='h',
            status=status.value,
        )  # fmt: skip
        assert one.ended == (status in ENDS)
        assert one.in_progress == (not one.ended)


@pytest.mark.parametrize(
    ('kind', 'task'),
    [
        ('live-migration', 'live-migration'),
        ('evacuation', 'evacuation'),
        ('migration', 'migration'),
        ('resize', 'resize here'),
    ],
)
def test_only_a_resize_to_its_own_host_leaves_the_guest_there(kind: str, task: str) -> None:
    one = migration.Migration(
        uuid='m', instance_uuid='i', project_id='p', user_id='u', source_compute='h', source_node='h',
        dest_compute='h', migration_type=kind,
    )  # fmt: skip
    assert one.task == task
