# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sqlite3

import pytest

from tests.unit.cli import managing
from tests.unit.db import bare


@pytest.fixture
def operator(tmp_path, backend, capsys):
    operator = managing.Operator(tmp_path, backend, capsys, hosts=1)
    yield operator
    operator.close()


def insert(operator, number):
    with sqlite3.connect(operator.cloud.directory / 'migrator.sqlite') as connection:
        bare.insert(connection.execute, number)


def test_where_nothing_is_to_be_done_it_says_so(operator):
    assert (
        operator.observed('db', 'online_data_migrations') == 'Migrations without a uuid: 0 found, 0 filled, 0 left.\n'
    )


def test_without_a_limit_all_is_done_at_once(operator):
    insert(operator, 120)
    assert operator.json('db', 'online_data_migrations') == {'migration_uuids': {'needed': 120, 'done': 120, 'left': 0}}
    assert len({one.uuid for one in operator.cloud.migrations()}) == 120


def test_with_a_limit_it_goes_on_where_it_left_off_and_its_status_says_whether_some_are_left(operator):
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


def test_the_greatest_limit_that_is_taken_is_one_that_the_database_takes(operator):
    insert(operator, 3)
    done = operator.json('db', 'online_data_migrations', '--max-count', 999999999)
    assert done == {'migration_uuids': {'needed': 3, 'done': 3, 'left': 0}}


@pytest.mark.parametrize('count', ['0', '-1', 'many', '99999999999999999999'])
def test_a_limit_that_is_no_number_of_rows_is_refused(operator, count):
    status, _ = operator.status('db', 'online_data_migrations', '--max-count', count)
    assert status == 2
    assert f'{count!r} is no whole number from 1 to 999999999' in operator.err
