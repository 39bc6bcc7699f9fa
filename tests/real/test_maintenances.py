# SPDX-License-Identifier: Apache-2.0

"""The rows of maintenances in PostgreSQL and MariaDB: random days end as they do in memory."""

import uuid

import pytest

from migrator import executors
from migrator.db.api import Database
from migrator.db.schema import sync
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects.drain import Drain
from tests.unit.db import conftest
from tests.unit.db.maintenances.test_store import Stored
from tests.unit.drain.maintenance.day import Day


@pytest.fixture(params=['postgresql', 'mariadb'])
def database(request):
    url = request.getfixturevalue(request.param).create_database(f'maintenances_{uuid.uuid4().hex}')
    made = Database(url, executors.NativeThreads())
    sync.sync(made.engine)
    yield made
    made.close()


def test_random_day_is_the_same_on_a_database(database):
    day, same = Day(3, lambda site: Stored(site, database.maintenances)), Day(3)
    assert (day.live(), same.live()) == ([], [])
    assert (day.turns(), day.store.log) == (same.turns(), same.store.log)


def test_host_in_a_maintenance_is_drained_only_by_it(database):
    conftest.Scene(database, executors.SystemClock(), executors.NativeThreads(), '').host('host1', 'boot')
    rows, uuids = database.maintenances, [str(uuid.uuid4()) for _ in range(3)]
    rows.accept(Maintenance(uuid=uuids[0]), [Turn(host='host1')])
    with pytest.raises(errors.HostInMaintenance):
        database.drains.accept(Drain(uuid=uuids[1], host='host1'))
    turn = rows.read_turns(uuids[0])[0].replace(status='draining', is_out=True, drain=uuids[2])
    rows.write(rows.get(uuids[0]), {}, [turn], [])
    database.drains.accept(Drain(uuid=uuids[2], host='host1', planned={'guest': 'host2'}), turn=(uuids[0], 'host1'))
    assert rows.out() == {'host1'}
    assert database.services.get_compute('host1').disabled
    assert database.drains.hints(uuids[2], 'guest').first == 'host2'
