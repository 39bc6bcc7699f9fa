# SPDX-License-Identifier: Apache-2.0

"""What databases read for lists, sweeps and choices beside 100,000 ended migrations and 10,000 hosts."""

import datetime
import re
import uuid

import pytest
import sqlalchemy as sa

from migrator import executors
from migrator.db import models
from migrator.db.api import Database
from migrator.db.saga_log import Notified
from migrator.db.schema import sync
from migrator.db.slots import Bounds
from migrator.db.sql import attention, columns
from migrator.db.sql.watching import watch
from migrator.objects import COMPUTE_BINARY, CURRENT_VERSION, protocol
from tests.unit.db import conftest

ENDED, GUESTS, IN_PROGRESS, HOSTS, OTHERS = 100_000, 2_000, 40, 20, 10_000
DAY = datetime.timedelta(days=1)
BOOT = '00000000-0000-4000-8000-000000000000'
#: More rows than any of the statements needs, and far fewer than there are.
MOST = 4_000
#: Instructions of SQLite's virtual machine for one row, at least.
STEPS = 20
#: The time some seconds ago, by the column n.
AGO = {
    'sqlite': 'migrator_later(-n)',
    'postgresql': "timezone('utc', clock_timestamp()) - n * interval '1 second'",
    'mysql': 'TIMESTAMPADD(SECOND, -n, UTC_TIMESTAMP(6))',
}
OPERATIONS = {
    'the newest': lambda database: database.migrations.list(limit=50),
    'the next page': lambda database: database.migrations.list(limit=50, marker='m50000'),
    'a status': lambda database: database.migrations.list({'status': 'failed'}, limit=50),
    'a status that none has': lambda database: database.migrations.list({'status': 'error'}, limit=50),
    'a guest': lambda database: database.migrations.list({'instance_uuid': 'g77'}, limit=50),
    'in progress': lambda database: database.migrations.list(in_progress=True),
    'in progress at a host': lambda database: database.migrations.list({'host': 'host7'}, in_progress=True),
    'changed': lambda database: database.migrations.list(changes_since=minutes_ago(database), limit=50),
    'changed, no limit': lambda database: database.migrations.list(changes_since=minutes_ago(database)),
    'servers': lambda database: database.instances.list(limit=50),
    'servers that changed': lambda database: database.instances.list(changes_since=minutes_ago(database), limit=50),
    'what a sweep has to do': lambda database: database.due('c1', 3600.0),
    'orphans': lambda database: database.takeovers.orphans(),
    'sources': lambda database: database.takeovers.sources(),
    'a takeover': lambda database: database.takeovers.adopt(['p7'], conductor(database, 'one')),
    'a takeover, by the holder': lambda database: database.takeovers.adopt(['p8'], conductor(database, 'two'), 'two'),
    'owned': lambda database: database.migrations.owned_by('c1'),
    'queued': lambda database: database.migrations.count_queued('host7'),
    'destinations': lambda database: database.services.places('g77', uuids=['h1', 'h2']),
    'the load of destinations': lambda database: database.services.inbound(),
    'a start of a host': lambda database: database.migrations.begin_boot(report(), database.services),
    'the last at a host': lambda database: database.migrations.last_at('host7'),
    'a start of a conductor': lambda database: database.conductors.register(str(uuid.uuid4()), 'conductor', 60),
    'evacuations that are done': lambda database: database.cleanups.cleaned_evacuations(),
    'purge': lambda database: database.purge.next(database.services.now(), 0, 100),
    'purge, nothing left': lambda database: database.purge.next(database.services.now(), ENDED + IN_PROGRESS, 100),
    'what a forecast follows from': lambda database: database.slots.recorded(['host7']),
    'places in the queue': lambda database: database.places(Bounds(), [database.migrations.get('p7')]),
    'a look for notifications': lambda database: Notified(database.engine).look(86400.0),
    'notifications to send': lambda database: Notified(database.engine).unsent(100),
    'failures': lambda database: attention.failures(database.engine, minutes_ago(database) + 31 * DAY),
    'what needs a host': lambda database: attention.migrations_at(database.engine, ['host7']),
    'guests of a host': lambda database: attention.guests_at(database.engine, ['host7']),
    'a service is deleted': lambda database: database.services.delete(database.services.get_compute('host9')),
}


@pytest.fixture(scope='module', params=['sqlite', 'postgresql', 'mariadb'])
def database(request, tmp_path_factory):
    if request.param == 'sqlite':
        url = f'sqlite:///{tmp_path_factory.mktemp("plans")}/migrator.sqlite'
    else:
        url = request.getfixturevalue(request.param).create_database(f'plans_{uuid.uuid4().hex}')
    made = Database(url, executors.NativeThreads())
    sync.sync(made.engine)
    scene = conftest.Scene(made, executors.SystemClock(), executors.NativeThreads(), url)
    for number in range(HOSTS):
        scene.host(f'host{number}', BOOT)
    with made.engine.sa_engine.begin() as session:
        fill(session)
    if request.param != 'sqlite':  # SQLite chooses its plans without statistics
        with made.engine.sa_engine.connect().execution_options(isolation_level='AUTOCOMMIT') as connection:
            for table in ('instances', 'migrations', 'notified', 'services', 'compute_nodes'):
                connection.exec_driver_sql(f'ANALYZE {"" if request.param == "postgresql" else "TABLE"} {table}')
    yield made
    made.close()


def fill(session):
    """Insert hosts, guests with migrations that have ended, and a few guests with one in progress."""
    digits = [sa.union_all(*(sa.select(sa.literal(d).label('d')) for d in range(10))).subquery() for _ in range(5)]
    n = sum((digit.c.d * 10**place for place, digit in enumerate(digits)), sa.literal(0)).label('n')
    crossed = digits[0]
    for digit in digits[1:]:
        crossed = crossed.join(digit, sa.true())
    numbers = sa.select(n).select_from(crossed).subquery()
    n = numbers.c.n
    ago = sa.literal_column(AGO[session.dialect.name], columns.UTCDateTime())

    def name(prefix, number):
        return sa.literal(prefix) + sa.cast(number, sa.String(10))

    def insert(table, count, **values):
        query = sa.select(*(value.label(column) for column, value in values.items())).where(n < count)
        session.execute(sa.insert(table).from_select(list(values), query.order_by(n)))

    host = {'uuid': name('h', n), 'host': name('other', n)}
    version, binary = sa.literal(CURRENT_VERSION), sa.literal(COMPUTE_BINARY)
    insert(models.SERVICES, OTHERS, **host, binary=binary, version=version, last_seen_up=ago)
    empty = {column: sa.literal([], columns.Json()) for column in ('cpu_info', 'providers')}
    hypervisor = {'hypervisor_type': sa.literal('x'), 'hypervisor_version': sa.literal(1), 'host_ip': sa.literal('x')}
    insert(models.COMPUTE_NODES, OTHERS, **host, **hypervisor, **empty, node=name('other', n))
    guest = {column: sa.literal('x') for column in ('name', 'project_id', 'user_id', 'node', 'vm_state')}
    guest |= {'power_state': sa.literal(1), 'tenure': sa.literal(ENDED // GUESTS)}
    guest |= {'host': name('host', n % HOSTS), 'flavor': sa.literal({'name': 'x'}, columns.Json()), 'created_at': ago}
    one = {column: sa.literal('x') for column in ('project_id', 'user_id', 'migration_type', 'source_node', 'strategy')}
    one |= {'source_compute': name('host', n % HOSTS), 'dest_compute': name('host', (n + 1) % HOSTS)}
    one |= {'owner': name('c', n % 4), 'created_at': ago, 'updated_at': ago, 'epoch': sa.literal(1)}
    insert(models.INSTANCES, GUESTS, uuid=name('g', n), **guest)
    ended = sa.case((n % 10 == 0, 'failed'), else_='completed')
    of = {'instance_uuid': name('g', n % GUESTS), 'tenure': n // GUESTS + 1}
    insert(models.MIGRATIONS, ENDED, uuid=name('m', n), status=ended, **of, **one)
    insert(models.NOTIFIED, ENDED, migration=name('m', n), seq=sa.literal(0), at=ago)
    moving = {'instance_uuid': name('g', n), 'in_progress_instance_uuid': name('g', n)}
    insert(models.MIGRATIONS, IN_PROGRESS, uuid=name('p', n), status=sa.literal('running'), **moving, **one)


def minutes_ago(database):
    return database.services.now() - datetime.timedelta(minutes=5)


def conductor(database, server):
    id_ = str(uuid.uuid4())
    database.conductors.register(id_, server, 60)
    return id_


def report():
    return protocol.HostReport(host='host7', boot_id=BOOT, version=4)


@pytest.mark.parametrize('what', OPERATIONS)
def test_what_is_read_does_not_grow_with_ended_migrations_or_hosts(database, what):
    sent = []
    engine = database.engine.sa_engine

    def note(statement, parameters):
        if re.search(r'\b(migrations|instances)\b', statement) and not statement.startswith('INSERT'):
            sent.append((statement, parameters))

    end = watch(database.engine, note)
    try:
        OPERATIONS[what](database)
    finally:
        end()
    for statement, parameters in sent:
        with engine.connect() as connection:
            read, plan = READ[engine.dialect.name](connection, statement, parameters)
            connection.rollback()
        assert read < MOST, f'{read} rows are read by {statement}: {plan}'
    assert sent


def read_by_sqlite(connection, statement, parameters):
    plan = connection.exec_driver_sql(f'EXPLAIN QUERY PLAN {statement}', parameters).all()
    steps = []
    connection.connection.driver_connection.set_progress_handler(lambda: steps.append(STEPS), STEPS)
    result = connection.exec_driver_sql(statement, parameters)
    if result.returns_rows:
        result.all()
    connection.connection.driver_connection.set_progress_handler(None, 0)
    return len(steps), [row[-1] for row in plan]


def read_by_postgresql(connection, statement, parameters):
    (plan,) = connection.exec_driver_sql(f'EXPLAIN (ANALYZE, FORMAT JSON) {statement}', parameters).scalars().one()
    return read_by(plan['Plan']), plan


def read_by(node):
    """Return the rows that the scans of a plan of PostgreSQL have read."""
    read = 0
    if 'Scan' in node['Node Type']:
        removed = sum(value for key, value in node.items() if key.startswith('Rows Removed by'))
        read = (node['Actual Rows'] + removed) * node['Actual Loops']
    return read + sum(read_by(child) for child in node.get('Plans', ()))


def read_by_mariadb(connection, statement, parameters):
    plan = connection.exec_driver_sql(f'EXPLAIN {statement}', parameters).all()
    connection.exec_driver_sql('FLUSH STATUS')
    result = connection.exec_driver_sql(statement, parameters)
    if result.returns_rows:
        result.all()
    counted = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'", ()).all()
    return sum(int(value) for _, value in counted), plan


READ = {'sqlite': read_by_sqlite, 'postgresql': read_by_postgresql, 'mysql': read_by_mariadb}
