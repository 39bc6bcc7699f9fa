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

import datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from migrator.db import types
from tests.unit.db import conftest

COLUMN = sa.table('moments', sa.column('at', types.UTCDateTime()))


def compiled(expression: object, dialect: object) -> str:
    return str(sa.select(expression).compile(dialect=dialect))


class TestNow:
    def test_on_sqlite_it_is_the_time_of_the_injected_clock(self, scene: conftest.Scene) -> None:
        assert scene.database.services.now() == conftest.START
        scene.clock.seconds = 90.5
        assert scene.database.services.now() == conftest.START + datetime.timedelta(seconds=90.5)

    def test_on_postgresql_it_is_the_time_of_the_statement_and_not_of_the_transaction(self) -> None:
        text = compiled(types.now(), postgresql.dialect())
        assert 'clock_timestamp()' in text
        assert "timezone('utc'" in text
        assert 'now()' not in text

    def test_on_mysql_it_is_utc_with_microseconds(self) -> None:
        assert 'UTC_TIMESTAMP(6)' in compiled(types.later(15), mysql.dialect())
        assert 'MICROSECOND' in compiled(types.later(15), mysql.dialect())

    def test_on_sqlite_it_is_the_registered_function(self) -> None:
        assert 'migrator_later(' in compiled(types.now(), sqlite.dialect())

    @pytest.mark.parametrize('dialect', [postgresql.dialect(), mysql.dialect(), sqlite.dialect()])
    def test_the_seconds_travel_as_a_parameter_and_not_in_the_text(self, dialect: object) -> None:
        statement = sa.select(types.later(14.5)).compile(dialect=dialect)
        assert '14.5' not in str(statement)
        assert 14.5 in statement.params.values()

    def test_two_of_them_in_one_statement_keep_their_own_seconds(self, scene: conftest.Scene) -> None:
        with scene.database.engine.reader() as session:
            first, second = session.execute(sa.select(types.later(1), types.later(2))).one()
        assert types.aware(second) - types.aware(first) == datetime.timedelta(seconds=1)

    def test_it_compares_with_a_stored_time(self, scene: conftest.Scene) -> None:
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
        column = types.UTCDateTime()
        moment = datetime.datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=self.ZONE)
        stored = column.process_bind_param(moment, sqlite.dialect())
        assert stored == datetime.datetime(2026, 1, 1, 7, 0, 0, 123456)  # noqa: DTZ001 -- what the column holds
        assert column.process_result_value(stored, sqlite.dialect()) == moment

    def test_nothing_stays_nothing(self) -> None:
        column = types.UTCDateTime()
        assert column.process_bind_param(None, sqlite.dialect()) is None
        assert column.process_result_value(None, sqlite.dialect()) is None

    def test_mysql_keeps_the_fraction_of_a_second(self) -> None:
        assert types.UTCDateTime().load_dialect_impl(mysql.dialect()).fsp == 6

    def test_what_a_database_answers_outside_a_column_is_made_aware(self) -> None:
        moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        assert types.aware('2026-01-01 00:00:00.000000') == moment
        assert types.aware(moment.replace(tzinfo=None)) == moment
        assert types.aware(moment) == moment
