# SPDX-License-Identifier: Apache-2.0

"""A process with ``concurrency_backend = eventlet``: two of its threads lock one row on a server.

The one that has it waits until the server says that the other waits for it; then it commits. So it ends only if a
statement that waits in the server lets other threads run.

Usage: green_database.py URL
"""

from __future__ import annotations

import sys

from oslo_config import cfg

from migrator.conf import service
from migrator.runtime import concurrency

conf = cfg.ConfigOpts()
service.register_opts(conf)
conf([], default_config_files=[], default_config_dirs=[])
conf.set_override('concurrency_backend', 'eventlet')
concurrency.choose(conf)

import sqlalchemy as sa  # noqa: E402 -- when it is settled what threads are

from migrator import executors  # noqa: E402 -- likewise
from migrator.db.sql.engine import Engine  # noqa: E402 -- likewise
from tests.real.servers.waiters import WAITERS  # noqa: E402 -- likewise

CHANGE = sa.text('UPDATE green SET value = value + 1')


def main() -> None:
    """Have them meet."""
    threads = executors.NativeThreads()
    engine = Engine(sys.argv[1], threads)
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE green (value integer)'))
        session.execute(sa.text('INSERT INTO green VALUES (0)'))
    pool = executors.BoundedExecutor(1, threads)

    def change():
        with engine.writer() as session:
            session.execute(CHANGE)

    def waited_for():
        with engine.reader() as session:
            return session.execute(sa.text(WAITERS[session.dialect.name])).scalar_one()

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
