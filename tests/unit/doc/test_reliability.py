# SPDX-License-Identifier: Apache-2.0

"""The table of the page on reliability has the recorded figures of the long run."""

import ast
import json
import sys

import pytest

pytest.importorskip('psycopg2', reason='the long run needs the extra postgresql')

from tests.long_run import table


def fault(kind, target, at, took, how='', no_commits=False):
    return {
        'kind': 'fault', 'fault': kind, 'target': target, 'at': at, 'took': took, 'how': how, 'error': None,
        'no_commits': no_commits,
    }  # fmt: skip


#: What a piece writes while it runs.
PIECE = [
    {'kind': 'piece'},
    fault('kill', 'host1', at=20, took=9),
    fault('cut', 'db-a', at=24, took=12, how='stalled', no_commits=True),
    fault('restart', 'database failover', at=32, took=12, no_commits=True),
    fault('stop', 'database', at=42, took=2, no_commits=True),
    {'kind': 'takeover', 'at': 40.5, 'seconds': 25.5, 'alone': True},
    {'kind': 'drain', 'status': 'completed'},
    *({'kind': 'rss', 'at': 60.0 * minute, 'processes': {'host1': [7, 1024 * minute]}} for minute in range(61)),
    {'kind': 'audit'},
    {'kind': 'minute', 'seconds': 3600.0, 'migrations': {'completed': 3}},
    {'kind': 'end'},
]


def test_audit_of_the_long_run_shares_no_code_with_what_it_judges():
    tree = ast.parse((table.PAGE.parents[2] / 'tests/long_run/audit.py').read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    roots = {(getattr(node, 'module', None) or one.name).split('.')[0] for node in imports for one in node.names}
    assert roots - sys.stdlib_module_names == {'amqp', 'psycopg2'}


def test_page_has_the_table_of_the_recorded_pieces():
    assert table.PAGE.read_text() == table.rst(table.total(table.recorded()))


def test_recorded_pieces_have_the_figures_of_their_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(table, 'RECORD', tmp_path / 'figures.jsonl')
    monkeypatch.setattr(table, 'PAGE', tmp_path / 'table.inc')
    table.RECORD.touch()
    records = [{'piece': number, **one} for number in (1, 2) for one in PIECE]
    for _ in range(2):  # what is recorded is not added again
        table.record(records)
    assert len([json.loads(line) for line in table.RECORD.read_text().splitlines()]) == 2
    assert table.total(table.recorded()) == table.figures(records)
    # the database committed from 32 s to 40 s
    assert table.figures(records).reachable == [8.0, 8.0]
    assert 'host1 +60.0 of 60 min' in table.PAGE.read_text()
