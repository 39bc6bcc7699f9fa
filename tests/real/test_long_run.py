# SPDX-License-Identifier: Apache-2.0

"""A short piece of the long run, and its audit, which finds what is wrong with a site."""

import contextlib
import dataclasses
import json
import socket
import uuid

import psycopg2
import pytest
import requests

from tests.long_run import audit, faults, table
from tests.long_run.journal import Journal, read
from tests.long_run.piece import Piece, Settings
from tests.real import plugin

#: The bounds of the product are shortened, and so are the faults.
OPTIONS = (
    ('conductor.lease', 4),
    ('conductor.sweep_interval', 1),
    ('compute.report_interval', 2),
    ('service_down_time', 12),
    ('max_concurrent_live_migrations', 2),
)
SETTINGS = Settings(
    minutes=0.5, seed=4, pace=5, longest=5, hosts=3, guests=6, options=OPTIONS, memory=256, link=256, patience=240
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def piece(workspace, rabbitmq, tmp_path):
    """A piece that has been run. Its own database and Placement are not the session's."""
    plugin.need('postgresql')
    plugin.need('placement_http')
    journal = Journal(tmp_path)
    with Piece(workspace, SETTINGS, journal, rabbitmq) as made:
        made.run()
        yield made


def found(piece, seen=None):
    return {one.sort for one in audit.judge(seen or audit.read(piece.where), piece.known)}


@contextlib.contextmanager
def changed(piece, statement, undo, *values):
    """Change rows for a while, past the product."""
    with contextlib.closing(psycopg2.connect(piece.where.database)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
            assert cursor.rowcount == 1
            yield
            cursor.execute(undo, values)


def put(piece, consumer, allocations):
    answer = requests.put(
        f'{piece.where.placement}/allocations/{consumer}',
        json={
            'allocations': allocations, 'project_id': 'demo', 'user_id': 'demo',
            'consumer_generation': requests.get(
                f'{piece.where.placement}/allocations/{consumer}', headers=HEADERS, timeout=30
            ).json().get('consumer_generation'),
        },
        headers=HEADERS,
        timeout=30,
    )  # fmt: skip
    assert answer.status_code == 204, answer.text


HEADERS = {'X-Auth-Token': 'admin', 'OpenStack-API-Version': 'placement 1.28'}


def providers(piece):
    listed = requests.get(f'{piece.where.placement}/resource_providers', headers=HEADERS, timeout=30).json()
    return {one['name']: one['uuid'] for one in listed['resource_providers']}


def test_piece_finds_nothing_wrong_and_its_audit_finds_what_is_made_wrong(piece):
    # One test, since the piece takes more than a minute and each test process would run a piece of its own.
    _finds_nothing(piece)
    _finds_allocation_that_is_held_twice(piece)
    _finds_guest_on_two_hosts(piece)
    _finds_migration_that_does_not_end(piece)
    _finds_rows_that_a_failover_has_lost(piece)


def _finds_nothing(piece):
    assert piece.findings == []
    records = read(piece.journal.directory)
    figures = table.figures(records)
    assert (figures.pieces, figures.broken_off, figures.audits, figures.failed) == ([1], 0, 1, 0)
    assert figures.migrations['completed'] >= 4
    assert {*figures.faults} == {faults.KILL, faults.STOP, faults.RESTART, faults.CUT}
    assert faults.FAIL_OVER in {one['target'] for one in records if one['kind'] == 'fault' and one['no_commits']}
    text = table.rst(figures)
    for row in ('* - lost\n     - 0\n', '* - stuck\n     - 0\n', '* - leaked\n     - 0\n', '* - doubled\n     - 0\n'):
        assert row in text


def _finds_allocation_that_is_held_twice(piece):
    guest = audit.read(piece.where).instances[0]
    held = {'VCPU': 1, 'MEMORY_MB': SETTINGS.memory, 'DISK_GB': 1}
    there = providers(piece)
    other = next(name for name in there if name != guest['host'])
    put(piece, guest['uuid'], {there[name]: {'resources': held} for name in (guest['host'], other)})
    assert found(piece) == {audit.LEAKED}
    put(piece, guest['uuid'], {there[guest['host']]: {'resources': held | {'VCPU': 2}}})
    assert found(piece) == {audit.DOUBLED}
    put(piece, guest['uuid'], {there[guest['host']]: {'resources': held}})
    assert found(piece) == set()


def _finds_guest_on_two_hosts(piece):
    guest = audit.read(piece.where).instances[0]
    other = next(name for name in providers(piece) if name != guest['host'])
    ask(piece, 'add', other)
    instance = {'uuid': guest['uuid'], 'name': 'vm', 'project_id': 'demo', 'user_id': 'demo', 'host': other}
    flavor = {'object': 'Flavor', 'version': '1.0', 'data': {'name': 'm1'}}
    primitive = {'object': 'Instance', 'version': '1.0', 'data': instance | {'node': other, 'flavor': flavor}}
    ask(piece, 'spawn', other, primitive, 0.0)
    assert found(piece) == {audit.DOUBLED, audit.LEAKED}
    ask(piece, 'delete', other, guest['uuid'])
    assert audit.DOUBLED not in {one.sort for one in audit.doubled({**audit.look(piece.where.world), 'violations': []})}


def ask(piece, call, host, *args):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(piece.where.world)
        connection.sendall(json.dumps({'call': call, 'host': host, 'args': args}).encode() + b'\n')
        answer = json.loads(connection.makefile().readline())
    assert 'error' not in answer, answer
    return answer


def _finds_migration_that_does_not_end(piece):
    moved = audit.read(piece.where).migrations[0]
    stuck = 'UPDATE migrations SET in_progress_instance_uuid = instance_uuid WHERE uuid = %s'
    undo = 'UPDATE migrations SET in_progress_instance_uuid = NULL WHERE uuid = %s'
    with changed(piece, stuck, undo, moved['uuid']):
        assert audit.STUCK in found(piece)


def _finds_rows_that_a_failover_has_lost(piece):
    seen = audit.read(piece.where)
    assert found(piece, dataclasses.replace(seen, drains=seen.drains[1:])) >= {audit.LOST}
    piece.known.migrations.add(lost := str(uuid.uuid4()))
    assert audit.LOST in found(piece)
    piece.known.migrations.remove(lost)
