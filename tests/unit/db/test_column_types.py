# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime
import json

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from migrator import exception
from migrator.db import models
from migrator.db.sql import columns
from tests.unit.db import conftest

COLUMN = sa.table('moments', sa.column('at', columns.UTCDateTime()))


def compiled(expression: object, dialect: object) -> str:
    return str(sa.select(expression).compile(dialect=dialect))


class TestNow:
    def test_sqlite_now_is_time_of_injected_clock(self, scene: conftest.Scene) -> None:
        assert scene.database.services.now() == conftest.START
        scene.clock.seconds = 90.5
        assert scene.database.services.now() == conftest.START + datetime.timedelta(seconds=90.5)

    def test_postgresql_now_is_time_of_statement_not_of_transaction(self) -> None:
        text = compiled(columns.now(), postgresql.dialect())
        assert 'clock_timestamp()' in text
        assert "timezone('utc'" in text
        assert 'now()' not in text

    def test_mysql_now_has_microseconds_and_advances_within_a_statement(self) -> None:
        assert 'SYSDATE(6)' in compiled(columns.later(15), mysql.dialect())
        assert 'MICROSECOND' in compiled(columns.later(15), mysql.dialect())

    def test_sqlite_now_calls_registered_function(self) -> None:
        assert 'migrator_later(' in compiled(columns.now(), sqlite.dialect())

    @pytest.mark.parametrize('dialect', [postgresql.dialect(), mysql.dialect(), sqlite.dialect()])
    def test_the_seconds_travel_as_a_parameter_and_not_in_the_text(self, dialect: object) -> None:
        statement = sa.select(columns.later(14.5)).compile(dialect=dialect)
        assert '14.5' not in str(statement)
        assert 14.5 in statement.params.values()

    def test_two_of_them_in_one_statement_keep_their_own_seconds(self, scene: conftest.Scene) -> None:
        with scene.database.engine.reader() as session:
            first, second = session.execute(sa.select(columns.later(1), columns.later(2))).one()
        assert columns.aware(second) - columns.aware(first) == datetime.timedelta(seconds=1)

    def test_now_compares_with_stored_time(self, scene: conftest.Scene) -> None:
        scene.conductor(lease=10)
        scene.clock.seconds = 9.999999
        assert scene.database.conductors.server_of(scene_id(scene)) == 'conductor1'
        scene.clock.seconds = 10
        assert scene.database.conductors.server_of(scene_id(scene)) is None


def scene_id(scene: conftest.Scene) -> str:
    with scene.database.engine.reader() as session:
        return str(session.execute(sa.text('SELECT id FROM conductors')).scalar_one())


class TestUTCDateTime:
    ZONE = datetime.timezone(datetime.timedelta(hours=5))

    def test_a_time_is_stored_naive_in_utc_and_read_back_aware(self) -> None:
        column = columns.UTCDateTime()
        moment = datetime.datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=self.ZONE)
        stored = column.process_bind_param(moment, sqlite.dialect())
        assert stored == datetime.datetime(2026, 1, 1, 7, 0, 0, 123456)  # noqa: DTZ001 -- what the column holds
        assert column.process_result_value(stored, sqlite.dialect()) == moment

    def test_none_is_stored_as_null(self) -> None:
        column = columns.UTCDateTime()
        assert column.process_bind_param(None, sqlite.dialect()) is None
        assert column.process_result_value(None, sqlite.dialect()) is None

    def test_mysql_keeps_the_fraction_of_a_second(self) -> None:
        assert columns.UTCDateTime().load_dialect_impl(mysql.dialect()).fsp == 6

    def test_a_time_outside_of_a_column_is_made_aware(self) -> None:
        moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        assert columns.aware('2026-01-01 00:00:00.000000') == moment
        assert columns.aware(moment.replace(tzinfo=None)) == moment
        assert columns.aware(moment) == moment


class TestText:
    @pytest.mark.parametrize(
        ('given', 'stored'),
        [
            ('plain', 'plain'), ('gr\u00fcn \U0001f600', 'gr\u00fcn \U0001f600'), (None, None), ('', ''),
            ('a\ud800b', 'a\\ud800b'), ('a\0b', 'a\\x00b'), ('x' * 20, 'x' * 20), ('x' * 21, 'x' * 17 + '...'),
            ('\0' * 6, '\\x00' * 4 + '\\...'), (7, '7'),
        ],
    )  # fmt: skip
    def test_a_text_is_stored_in_a_form_for_every_database(self, given: object, stored: object) -> None:
        assert columns.Text(20).process_bind_param(given, sqlite.dialect()) == stored

    def test_a_long_text_fits_into_the_text_column_of_mysql_whatever_its_characters(self) -> None:
        stored = columns.Text().process_bind_param('\U0001f600' * 100_000, mysql.dialect())
        assert stored is not None
        assert len(stored.encode()) < 2**16
        assert stored.endswith('...')

    def test_the_schema_has_the_same_columns_as_before(self) -> None:
        for dialect in (sqlite.dialect(), postgresql.dialect(), mysql.dialect()):
            assert columns.Text(20).compile(dialect) == 'VARCHAR(20)'
            assert columns.Text().compile(dialect) == 'TEXT'
            assert columns.Json().compile(dialect) == 'JSON'
            assert columns.Whole().compile(dialect) == 'INTEGER'
            assert columns.Whole(64).compile(dialect) == 'BIGINT'

    def test_every_column_of_text_and_json_is_of_these_types(self) -> None:
        odd = [
            str(column)
            for table in models.Base.metadata.sorted_tables
            for column in table.columns
            if not isinstance(column.type, (columns.Text, columns.Json, columns.Whole, columns.UTCDateTime))
            and not isinstance(column.type, (sa.Boolean, sa.Integer, sa.Float))
        ]
        assert odd == []

    def test_a_uuid_with_a_suffix_does_not_match(self, scene: conftest.Scene) -> None:
        """A cut text is marked as cut, so that a search for the text before the cut does not find it."""
        instance = scene.instance()
        with pytest.raises(exception.InstanceNotFound):
            scene.database.instances.get(f'{instance.uuid}0')


class TestJson:
    def test_texts_names_numbers_and_depth_fit_every_database(self) -> None:
        deep: list[object] = []
        for _ in range(2000):
            deep = [deep]
        given = {'a\0': ['\ud800', float('nan'), float('inf'), 0.5, 2**70, True, None], 'b': {'c': ('\0',)}, 7: deep}
        stored = columns.Json().process_bind_param(given, sqlite.dialect())
        text = json.dumps(stored, allow_nan=False)
        assert json.loads(text)['a\\x00'] == ['\\ud800', None, None, 0.5, 2**70, True, None]
        assert json.loads(text)['b'] == {'c': ['\\x00']}
        assert '"7": [[[' in text
        assert len(text) < 500


class TestWhole:
    @pytest.mark.parametrize(
        ('given', 'stored'),
        [
            (5, 5), (-5, -5), (None, None), (2**31 - 1, 2**31 - 1), (2**31, 2**31 - 1), (2**64, 2**31 - 1),
            (-(2**31) - 1, -(2**31)), (1.9, 1), (float('inf'), 0), (float('nan'), 0), ('7', 7), ('many', 0), ([], 0),
        ],
    )  # fmt: skip
    def test_a_number_is_bounded_by_its_column(self, given: object, stored: object) -> None:
        assert columns.Whole().process_bind_param(given, sqlite.dialect()) == stored

    def test_the_bounds_of_a_big_column_are_wider(self) -> None:
        assert columns.Whole(64).process_bind_param(2**64, sqlite.dialect()) == 2**63 - 1
        assert columns.Whole(64).process_bind_param(2**40, sqlite.dialect()) == 2**40
