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

"""A process of ours with `concurrency_backend = eventlet`: two of its threads want one row on PostgreSQL.

The one that has it waits until the server says that the other waits for it; then it commits. So it ends only if a
statement that waits in the server lets other threads run.

Usage: green_database.py URL
"""

from __future__ import annotations

import sys

from oslo_config import cfg

from migrator.cmd import concurrency
from migrator.conf import service as service_conf

conf = cfg.ConfigOpts()
service_conf.register_opts(conf)
conf([], default_config_files=[], default_config_dirs=[])
conf.set_override('concurrency_backend', 'eventlet')
concurrency.choose(conf)

import sqlalchemy as sa  # noqa: E402 -- when it is settled what threads are

from migrator import executors  # noqa: E402 -- likewise
from migrator.db import engine as engines  # noqa: E402 -- likewise

WAITS = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
CHANGE = sa.text('UPDATE green SET value = value + 1')


def main() -> None:
    """Have them meet."""
    threads = executors.NativeThreads()
    engine = engines.Engine(sys.argv[1], threads)
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE green (value integer)'))
        session.execute(sa.text('INSERT INTO green VALUES (0)'))
    pool = executors.BoundedExecutor(1, threads)

    def change():
        with engine.writer() as session:
            session.execute(CHANGE)

    def waited_for():
        with engine.reader() as session:
            return session.execute(WAITS).scalar_one()

    with engine.writer() as session:
        session.execute(CHANGE)
        other = pool.submit(change)
        while not waited_for():
            if other.done():
                other.result()
            threads.sleep(0.01)
    other.result()
    with engine.reader() as session:
        print('the value is', session.execute(sa.text('SELECT value FROM green')).scalar_one())
    engine.dispose()


if __name__ == '__main__':
    main()
