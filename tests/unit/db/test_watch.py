# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

from __future__ import annotations

import sqlalchemy as sa

from migrator import executors
from migrator.db import engine as engines
from migrator.db import watch


def test_statements_and_commits_are_told_and_transaction_control_is_neither(tmp_path):
    engine = engines.Engine(f'sqlite:///{tmp_path}/x.sqlite', executors.NativeThreads())
    told = []
    watch.watch(engine, told.append, lambda: told.append('a commit'))
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
        session.execute(sa.text('INSERT INTO t VALUES (1)'))
    with engine.reader() as session:
        assert session.execute(sa.text('SELECT a FROM t')).scalar() == 1
    engine.dispose()
    assert told == ['CREATE TABLE t (a INTEGER)', 'INSERT INTO t VALUES (1)', 'a commit', 'SELECT a FROM t']
