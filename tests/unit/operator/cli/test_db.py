# SPDX-License-Identifier: Apache-2.0

import sqlite3

import pytest

from tests.unit.db import bare
from tests.unit.operator.cli import managing


@pytest.fixture
def operator(tmp_path, backend, capsys):
    operator = managing.Operator(tmp_path, backend, capsys, hosts=1)
    yield operator
    operator.close()


def insert(operator, number):
    with sqlite3.connect(operator.cloud.backend.directory / 'migrator.sqlite') as connection:
        bare.insert(connection.execute, number)


def test_without_rows_to_convert_it_reports_zero(operator):
    assert (
        operator.observed('db', 'online_data_migrations') == 'Migrations without a uuid: 0 found, 0 filled, 0 left.\n'
    )


def test_without_a_limit_all_rows_are_converted(operator):
    insert(operator, 120)
    assert operator.json('db', 'online_data_migrations') == {'migration_uuids': {'needed': 120, 'done': 120, 'left': 0}}
    assert len({one.uuid for one in operator.cloud.migrations()}) == 120


def test_with_a_limit_it_continues_and_exits_1_while_rows_are_left(operator):
    insert(operator, 120)
    status, out = operator.status('db', 'online_data_migrations', '--max-count', 70)
    assert (status, out) == (
        1,
        'Migrations without a uuid: 120 found, 70 filled, 50 left.'
        f' Run migrator-manage --config-file {operator.file} db online_data_migrations again.\n',
    )
    assert operator.observed('db', 'online_data_migrations', '--max-count', 70).startswith(
        'Migrations without a uuid: 50'
    )


def test_the_database_accepts_the_greatest_limit(operator):
    insert(operator, 3)
    done = operator.json('db', 'online_data_migrations', '--max-count', 999999999)
    assert done == {'migration_uuids': {'needed': 3, 'done': 3, 'left': 0}}


@pytest.mark.parametrize('count', ['0', '-1', 'many', '99999999999999999999'])
def test_an_invalid_limit_is_refused(refused, count):
    said = refused('db', 'online_data_migrations', '--max-count', count)
    assert f'{count!r} is not a whole number from 1 to 999999999' in said
