# SPDX-License-Identifier: Apache-2.0

"""What migrations that wait cost the conductor that has them, as JSON on stdout.

    python benchmarks/parked.py [--parked 0,1000,10000] [--hosts N] [--seconds N]

A conductor owns N migrations that wait in their sources' queues, and nothing happens for the given seconds of a
simulated clock: it renews its lease, sweeps, and polls its hosts, which always say the same (what the hosts themselves
would spend is left out, and so are RPC and its JSON). For each number it prints

- ``threads``: of the conductor, while they wait;
- ``calls_per_second`` to hosts, ``statements_per_second`` to the database;
- ``named`` by the largest poll of one host, and the ``reply_bytes`` of its host, as JSON;
- ``cpu``: seconds of a processor in each second of the clock, above what none costs;
- ``bytes``: of memory for each.

Exit status: 0; 2 an option cannot be.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import pathlib
import sqlite3
import sys
import time
import tracemalloc
import uuid
from collections.abc import Sequence
from typing import Any

_BEGAN = '2026-01-01 00:00:00.000000'
TREE = pathlib.Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print what it has found, and return the exit status."""
    parser = argparse.ArgumentParser(prog='parked.py', description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--parked', default='0,1000,10000', metavar='N,N', help='how many wait (default: %(default)s)')
    parser.add_argument('--hosts', type=int, default=10, metavar='N', help='number of sources (default: %(default)s)')
    parser.add_argument('--seconds', type=int, default=30, metavar='N', help='simulated seconds (default: %(default)s)')
    asked = parser.parse_args(argv)
    try:
        numbers = [int(word) for word in asked.parked.split(',')]
    except ValueError:
        parser.error(f'argument --parked: {asked.parked!r} is no list of numbers: give one such as 0,1000')
    if min(numbers) < 0 or asked.hosts < 1 or asked.seconds < 1:
        parser.error('arguments --hosts, --seconds: give 1 or more; --parked: 0 or more')
    if str(TREE) not in sys.path:
        # started by its path, a script has its own directory there and not the tree
        sys.path.insert(0, str(TREE))
    found = [measure(number, asked.hosts, asked.seconds) for number in numbers]
    least = min(one['cpu'] for one in found)
    for one in found:
        one['cpu'] = round(one['cpu'] - least, 4) if one['parked'] else round(one['cpu'], 4)
    sys.stdout.write(json.dumps(found, indent=2) + '\n')
    return 0


def measure(number: int, hosts: int, seconds: int) -> dict[str, Any]:
    """Return the cost of a number of parked migrations."""
    from migrator.objects import base
    from migrator.simulator import matrix
    from migrator.testing.cloud import SimulatedCloud

    with matrix.backend() as backend:
        cloud = SimulatedCloud(backend.directory, hosts=0, backend=backend)
        try:
            simulation, conductor = cloud.simulation, cloud.conductors['conductor1']
            assert simulation is not None
            uuids = _make_rows(backend.directory, conductor.tools.owner, number, hosts)
            calls = _answer_polls(conductor)
            tracemalloc.start()
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for one in uuids:
                _park(conductor, one)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            simulation.advance(5)  # each host has answered once: what it says from now on is no news
            statements = _count_statements(cloud)
            calls.clear()
            began = time.process_time()
            simulation.advance(seconds)
            spent = time.process_time() - began
            process: Any = cloud.processes['conductor1']
            return {
                'parked': number,
                'threads': len(process.threads),
                'calls_per_second': round(len(calls) / seconds, 2),
                'named': max(map(len, calls), default=0),
                'reply_bytes': max((len(json.dumps(base.to_primitive(one))) for one in calls), default=0),
                'statements_per_second': round(len(statements) / seconds, 2),
                'cpu': spent / seconds,
                'bytes': held // number if number else 0,
            }
        finally:
            cloud.stop()


def _make_rows(directory: pathlib.Path, owner: str, number: int, hosts: int) -> list[str]:
    """Write migrations that wait in their sources' queues, with their logs, straight into the database."""
    uuids = [str(uuid.UUID(int=2 * one + 1)) for one in range(number)]
    flavor = json.dumps({'name': 'm1', 'vcpus': 1, 'memory_mb': 512, 'root_gb': 1})
    with contextlib.closing(sqlite3.connect(directory / 'migrator.sqlite')) as connection, connection:
        for place, one in enumerate(uuids):
            source, instance = f'host{place % hosts}', str(uuid.UUID(int=2 * place + 2))
            _insert(connection, 'instances', uuid=instance, name=one, project_id='p', user_id='u', host=source,
                    node=source, flavor=flavor, vm_state='active', power_state=1, task_state='migrating')  # fmt: skip
            _insert(connection, 'migrations', uuid=one, instance_uuid=instance, in_progress_instance_uuid=instance,
                    project_id='p', user_id='u', migration_type='live-migration', status='queued', epoch=1, attempt=1,
                    source_compute=source, source_node=source, dest_compute='far', dest_node='far', owner=owner,
                    strategy='migration-owned', queued_at=_BEGAN, log_seq=3)  # fmt: skip
            for seq, step in enumerate(('move_allocation', 'pre_live_migration', 'live_migration'), 1):
                kind = 'intent' if step == 'live_migration' else 'done'
                _insert(connection, 'saga_log', migration=one, seq=seq, step=step, kind=kind, attempt=1, epoch=1,
                        conductor=owner, payload='{"input": {"host": "far"}}', at=_BEGAN)  # fmt: skip
    return uuids


def _insert(connection: sqlite3.Connection, table: str, **values: Any) -> None:
    """Insert a row; columns that must have a value and are not given get an empty one of their kind."""
    for _, name, kind, needed, default, key in connection.execute(f'PRAGMA table_info({table})'):
        if needed and default is None and not key and name not in values:
            values[name] = {'INTEGER': 0, 'BOOLEAN': 0, 'JSON': '[]', 'DATETIME': _BEGAN}.get(kind, '')
    marks = ', '.join('?' for _ in values)
    statement = f'INSERT INTO {table} ({", ".join(values)}) VALUES ({marks})'  # noqa: S608 -- names of our own
    connection.execute(statement, list(values.values()))


def _answer_polls(conductor: Any) -> list[list[Any]]:
    """Have every host answer each poll in the same way; return the list in which the replies are noted."""
    calls: list[list[Any]] = []

    def poll(_context: Any, host: str, commands: Any, _acks: Any, timeout: float) -> list[Any]:
        calls.append([_waits(host, one) for one in commands])
        return calls[-1]

    conductor.tools.hosts.api.poll_live_migrations = poll
    return calls


def _waits(host: str, order: Any) -> Any:
    """Return what a host says of a migration that waits for its turn."""
    from migrator.objects import protocol

    return protocol.Observation(
        migration_uuid=order.migration_uuid,
        host=host,
        boot_id=order.boot_id,
        epoch=order.epoch,
        guest=protocol.Guest(instance_uuid=order.instance_uuid, state=protocol.GuestState.RUNNING.value),
        entry=protocol.Entry.QUEUED.value,
    )


def _park(conductor: Any, migration_uuid: str) -> None:
    """Have a conductor hold a migration that waits for its turn at its source."""
    from migrator.conductor import runner
    from migrator.conductor.migration import context, hosts, waiting
    from migrator.saga.saga import Parked

    rows = conductor.tools.database.migrations.load(migration_uuid, conductor.tools.owner)
    subject = context.MigrationContext(conductor.tools, rows, settling=False)
    subject.ledger.waits_on = {subject.source}
    waiting.wait_for(subject, Parked('a slot in the queue', patient=True, in_status=True))
    subject.replies.seen[subject.source] = _waits(subject.source, hosts.command(subject, subject.source, 'poll'))
    conductor.runner._runs[migration_uuid] = runner._Run(subject)


def _count_statements(cloud: Any) -> list[str]:
    from migrator.db.sql.watching import watch

    statements: list[str] = []
    watch(cloud.database.engine, lambda text, _values: statements.append(text))
    return statements


if __name__ == '__main__':
    sys.exit(main())
