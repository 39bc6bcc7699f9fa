# SPDX-License-Identifier: Apache-2.0

"""Tests of every cell of the table that settles a migration after a restart.

The protocol is written here a second time, cell by cell. A row or column that only one of the two has fails a test.
``test_settle_table.py`` tests how two rows are combined, and ``tests/functional/test_restart.py`` how each comes about.
"""

from __future__ import annotations

import pytest

from migrator.conductor.migration import settle_table
from migrator.conductor.migration.settle_table import Act, Column, Observed
from tests.unit.conductor.migration import test_settle_table

COLUMNS = (Column.NOT_SENT, Column.QUEUED, Column.RUNNING)

#: not sent | sent, row queued | sent, row running
SOURCE = {
    Observed.HERE: 'go on | queue | back',
    Observed.RETURNED: 'go on | back | back',
    Observed.WAITS: 'stuck | wait | wait',
    Observed.STARTED: 'stuck | wait | wait',
    Observed.JOB: 'stuck | see running | see running',
    Observed.CUTOVER_JOB: 'stuck | wait | wait',
    Observed.CUTOVER: 'stuck | back | back',
    Observed.SHUT_OFF: 'back | back | back',
    Observed.ABSENT: 'error | ask | ask',
    Observed.BROKEN: 'stuck | stuck | stuck',
}
DESTINATION = {
    Observed.WAITING: 'go on | go on | ask',
    Observed.PREPARING: 'go on | wait | ask',
    Observed.RUNS: 'stuck | forward | forward',
    Observed.ABSENT: 'go on | prepare | ask',
    Observed.BROKEN: 'stuck | stuck | stuck',
}
BOTH = (('source', settle_table.SOURCE, SOURCE), ('destination', settle_table.DESTINATION, DESTINATION))


def cells() -> list[object]:
    """Return one parameter for each cell of the table as it is in the code."""
    return [
        pytest.param(typed, observed, place, act, id=f'{host}-{observed.name}-{column.name}')
        for host, table, typed in BOTH
        for observed, acts in table.items()
        for place, (column, act) in enumerate(zip(COLUMNS, acts, strict=True))
    ]


@pytest.mark.parametrize(('typed', 'observed', 'place', 'act'), cells())
def test_cell_is_as_the_protocol_says(typed: dict[Observed, str], observed: Observed, place: int, act: Act) -> None:
    assert observed in typed, f'no expected cells for "{observed}"'
    wanted = typed[observed].split(' | ')
    assert len(wanted) == len(Column)
    assert act is Act[wanted[place].upper().replace(' ', '_')]


def test_table_has_every_row_and_column() -> None:
    assert set(COLUMNS) == set(Column)
    for host, table, typed in BOTH:
        assert set(table) == set(typed), host


def test_each_row_is_combined_with_others() -> None:
    joined = [(observed, other) for observed, other, _ in test_settle_table.SOURCE_ROWS]
    joined += [(other, observed) for observed, other, _ in test_settle_table.DESTINATION_ROWS]
    assert {source for source, _ in joined} == set(settle_table.SOURCE)
    assert {destination for _, destination in joined} == set(settle_table.DESTINATION)


def test_every_report_of_a_host_has_a_row_or_counts_as_no_reply() -> None:
    assert set(settle_table.SOURCE) | set(settle_table.DESTINATION) | {Observed.MISSING, Observed.DOWN} == set(Observed)
