# SPDX-License-Identifier: Apache-2.0

"""The page about maintenances has each field of the request."""

import pathlib
import re

from migrator.drain.maintenance.request import FIELDS, OF_DRAINS
from migrator.drain.maintenance.turns import TurnStatus

PAGE = pathlib.Path('doc/source/maintenances.rst').read_text(encoding='utf-8')


def rows(heading):
    """Return the first words of the rows of the table with a heading."""
    table = PAGE.partition(f'\n{heading} ')[2].partition('\n==')[2].partition('\n==')[0]
    return re.findall(r'(?m)^``(\w+)``', table)


def test_table_of_fields_is_whole():
    assert rows('field') == [field.name for field in FIELDS]
    of_drain = PAGE.partition('further fields of the drain of each host:')[2].partition('(:doc:')[0]
    assert re.findall(r'``(\w+)``', of_drain) == [field.name for field in OF_DRAINS]


def test_table_of_statuses_is_whole():
    assert rows('status') == [status.value for status in TurnStatus]
