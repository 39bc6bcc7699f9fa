# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sqlalchemy as sa

from migrator import executors
from migrator.db import watch
from migrator.db.engine import Engine


def test_watch_reports_statements_and_commits_but_no_transaction_control(tmp_path):
    engine = Engine(f'sqlite:///{tmp_path}/x.sqlite', executors.NativeThreads())
    seen = []
    watch.watch(engine, seen.append, lambda: seen.append('a commit'))
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
        session.execute(sa.text('INSERT INTO t VALUES (1)'))
    with engine.reader() as session:
        assert session.execute(sa.text('SELECT a FROM t')).scalar() == 1
    engine.dispose()
    assert seen == ['CREATE TABLE t (a INTEGER)', 'INSERT INTO t VALUES (1)', 'a commit', 'SELECT a FROM t']
