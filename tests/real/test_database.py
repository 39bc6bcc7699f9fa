# SPDX-License-Identifier: Apache-2.0

"""migrator.db on SQLite and PostgreSQL: its schema, the races of the protocol, and failures."""

import datetime
import functools
import threading
import time
import uuid

import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.runtime import migration as alembic_migration
from oslo_db import exception as db_exception

from migrator import context, exception, executors
from migrator.db import engine, models, saga_log, slots
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from migrator.db.schema import sync
from migrator.objects import Flavor, Instance, Migration, compute_node, protocol
from migrator.saga import log
from tests.real.servers import process
from tests.unit.db import bare

CONTEXT = context.RequestContext(user_id='ada', project_id='blue', overwrite=False)
RACERS = 6
ODD = ['nul', 'surrogate', 'long', 'emoji']


class WrongClock(executors.SystemClock):
    """A machine's clock that is a day ahead."""

    def now(self):
        return super().now() + datetime.timedelta(days=1)


@pytest.fixture
def database(url, new_database):
    made = new_database(url)
    sync.sync(made.engine)
    return made


@pytest.fixture
def on_postgresql(database_url, new_database):
    made = new_database(database_url, lease=4)
    sync.sync(made.engine)
    return made


def instance(database):
    return database.instances.create(
        Instance(
            uuid=str(uuid.uuid4()), name='vm', project_id='blue', user_id='ada', host='source', node='source',
            flavor=Flavor(name='m1'),
        )
    )  # fmt: skip


def migration(guest):
    return Migration(
        uuid=str(uuid.uuid4()), instance_uuid=guest.uuid, project_id='blue', user_id='ada', source_compute='source',
        source_node='source',
    )  # fmt: skip


def accepted(database):
    one = migration(instance(database))
    database.migrations.accept(CONTEXT, one, 'live-migration')
    return database.migrations.get(one.uuid)


def owner(database, lease=60.0):
    one = str(uuid.uuid4())
    database.conductors.register(one, f'conductor-{one}', lease)
    return one


def at_once(functions):
    """Run all at the same moment, and return what each returned or raised."""
    barrier = threading.Barrier(len(functions))
    outcomes = [None] * len(functions)

    def run(number, function):
        barrier.wait()
        try:
            outcomes[number] = function()
        except Exception as error:  # noqa: BLE001 -- it is the outcome
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def ended(database, guest):
    """Have a guest migrated to an end."""
    one = migration(guest)
    database.migrations.accept(CONTEXT, one, 'live-migration')
    taken = database.migrations.adopt(one.uuid, 0, owner(database)).migration
    database.migrations.commit(taken, Write(fields={'status': 'failed'}))
    return one.uuid


# --- the schema ------------------------------------------------------------------------------------------------------


def test_the_schema_that_the_versions_make_from_nothing_is_that_of_the_models(database):
    with database.engine.sa_engine.connect() as connection:
        options = {'compare_type': True, 'compare_server_default': True}
        found = alembic_migration.MigrationContext.configure(connection, opts=options)
        assert autogenerate.compare_metadata(found, models.Base.metadata) == []
    assert sync.version(database.engine) == sync.head()
    assert sync.sync(database.engine) == sync.head()
    sync.check(database.engine)


def test_empty_or_newer_schema_is_reported(url, new_database):
    made = new_database(url)
    with pytest.raises(exception.SchemaTooOld, match='no version at all'):
        sync.check(made.engine)
    sync.sync(made.engine)
    with made.engine.writer() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for function in (sync.check, sync.sync):
        with pytest.raises(exception.SchemaTooNew, match='9999'):
            function(made.engine)


# --- one code path ---------------------------------------------------------------------------------------------------


def test_values_are_read_with_their_type(database):
    guest = instance(database)
    found = database.instances.get(guest.uuid)
    assert found == guest
    assert found.launched_at.tzinfo is not None
    assert found.flavor.name == 'm1'
    one = migration(guest)
    database.migrations.accept(CONTEXT, one, 'live-migration')
    (listed,) = database.migrations.list({'host': 'source'})
    assert (listed.uuid, listed.force, listed.block_migration) == (one.uuid, False, None)
    history = saga_log.history(database.migrations.read_log(listed.uuid))
    assert [entry['status'] for entry in history] == ['accepted']


@pytest.mark.parametrize('odd', ['a\0b', 'a\ud800b', 'x' * 100_000, '\U0001f600' * 70_000], ids=ODD)
def test_texts_of_hosts_and_drivers_are_stored_escaped_and_cut(database, odd):
    """A text that a database cannot hold keeps no host from registering, and no migration from settling."""
    provider = compute_node.ProviderInventory(uuid=str(uuid.uuid4()), name=odd, inventory={'VCPU': {'total': odd}})
    node = compute_node.ComputeNode(
        uuid=provider.uuid, host='source', node=odd, hypervisor_type=odd, hypervisor_version=2**64, host_ip=odd,
        cpu_info={odd: [odd, float('nan')]}, providers=[provider],
    )  # fmt: skip
    report = protocol.HostReport(host='source', boot_id=str(uuid.uuid4()), version=2**64, node=node)
    database.migrations.begin_boot(report, database.services, None)
    assert database.services.get_compute('source').version == 2**31 - 1
    (found,) = database.services.list_nodes()
    assert (found.hypervisor_version, len(found.hypervisor_type)) == (2**31 - 1, min(64, len(found.hypervisor_type)))
    database.services.update(1, disabled=True, disabled_reason=odd)
    moved = accepted(database)
    database.instances.update(moved.instance_uuid, locked_by='admin', locked_reason=odd)
    known = database.migrations.adopt(moved.uuid, moved.epoch, owner(database)).migration
    figures = {'memory_total': 2**64, 'disk_remaining': -(2**64), 'waits_for': odd}
    assert database.migrations.note_progress(known, figures)
    record = log.StepRecord(
        step='check', direction=log.DO, attempt=1, state='done', input={odd: odd}, result={'a': odd}
    )
    cleanup = Cleanup('source', moved.uuid, moved.instance_uuid, 'step', odd, 1, alarm=odd, input={'a': odd})
    fields = {'status': 'error', 'failure': odd, 'stuck_reason': odd, 'abort_verdict': odd}
    database.migrations.commit(known, Write(fields, records=[record], cleanups=[cleanup]))
    ended = database.migrations.get(moved.uuid)
    assert (ended.status, ended.memory_total, ended.disk_remaining) == ('error', 2**63 - 1, -(2**63))
    for text in (
        ended.failure,
        database.cleanups.list()[0].reason,
        database.actions.list(moved.instance_uuid)[0].message,
    ):
        assert text[0] == odd[0]
        assert text.encode('utf-8')
        assert len(text) < 20_000


@pytest.mark.parametrize('odd', ['a\0b', '\ud800', 'x' * 300], ids=ODD[:3])
def test_lookup_of_an_impossible_value_finds_nothing(database, odd):
    instance(database)
    with pytest.raises(exception.InstanceNotFound):
        database.instances.get(odd)
    assert database.instances.list({'host': odd, 'project_id': [odd, 'red']}) == []
    assert database.services.list(host=odd) == []


def test_a_second_migration_of_an_instance_is_refused_and_leaves_nothing(database):
    first = accepted(database)
    guest = database.instances.get(first.instance_uuid)
    with pytest.raises(exception.InstanceInvalidState):
        database.migrations.accept(CONTEXT, migration(guest), 'live-migration')
    # should task_state ever be wrong, the unique column still holds
    database.instances.update(guest.uuid, task_state=None)
    with pytest.raises(exception.MigrationInProgress):
        database.migrations.accept(CONTEXT, migration(guest), 'live-migration')
    assert database.instances.get(guest.uuid).task_state is None
    assert len(database.migrations.list()) == len(database.actions.list(guest.uuid)) == 1


def test_a_lease_is_held_while_renewed_and_then_runs_out_for_good(database):
    one = owner(database)
    moved = accepted(database)
    assert database.migrations.adopt(moved.uuid, moved.epoch, one).migration.owner == one
    assert database.migrations.orphans() == []
    assert database.conductors.renew(one, 0.2)
    process.wait_until(database.migrations.orphans, 'the lease to run out', 10)
    assert database.migrations.orphans() == [(moved.uuid, 1)]
    assert not database.conductors.renew(one, 60)
    assert database.conductors.server_of(one) is None


def test_the_owner_that_was_superseded_writes_nothing(database):
    old, new = owner(database), owner(database)
    moved = accepted(database)
    known = database.migrations.adopt(moved.uuid, moved.epoch, old).migration
    database.conductors.retire(old)
    taken = database.migrations.adopt(moved.uuid, known.epoch, new).migration
    assert (taken.owner, taken.epoch) == (new, known.epoch + 1)
    with pytest.raises(exception.NotOwner):
        database.migrations.commit(known, Write({'status': 'preparing'}))
    after, _boots = database.migrations.commit(taken, Write({'status': 'preparing'}))
    assert after.status == database.migrations.get(moved.uuid).status == 'preparing'


# --- races on PostgreSQL, each racer with connections of its own -----------------------------------------------------


@pytest.fixture
def racers(on_postgresql, database_url, new_database):
    return [new_database(database_url) for _ in range(RACERS)]


def test_concurrent_requests_for_one_instance_accept_one(on_postgresql, racers):
    guest = instance(on_postgresql)
    asks = [lambda each=each: each.migrations.accept(CONTEXT, migration(guest), 'live-migration') for each in racers]
    outcomes = at_once(asks)
    assert outcomes.count(None) == 1
    losers = {type(outcome) for outcome in outcomes if outcome is not None}
    assert losers <= {exception.MigrationInProgress, exception.InstanceInvalidState}
    assert len(on_postgresql.migrations.list()) == len(on_postgresql.actions.list(guest.uuid)) == 1


def test_concurrent_takeovers_of_one_migration_have_one_owner(on_postgresql, racers):
    for _round in range(5):
        moved = accepted(on_postgresql)
        owners = [owner(on_postgresql) for _ in racers]
        pairs = zip(racers, owners, strict=True)
        outcomes = at_once([functools.partial(each.migrations.adopt, moved.uuid, 0, who) for each, who in pairs])
        (winner,) = [outcome for outcome in outcomes if outcome is not None]
        assert not isinstance(winner, Exception)
        assert winner.migration.epoch == 1
        assert on_postgresql.migrations.get(moved.uuid).owner == winner.migration.owner


def test_concurrent_admissions_never_exceed_a_bound(on_postgresql, racers):
    request = slots.Request(slots.Bounds(inbound=3, cluster=5), lambda _axis: False)
    known = {}
    for number in range(4 * RACERS):
        each = racers[number % RACERS]
        known[number] = each.migrations.adopt(accepted(each).uuid, 0, owner(each)).migration

    def admit(number):
        host = f'host{number % 2}'
        fields = {'status': 'preparing', 'dest_compute': host, 'dest_node': host}
        racers[number % RACERS].migrations.commit(known[number], Write(fields=fields, slots=request))
        return host

    outcomes = at_once([lambda number=number: admit(number) for number in known])
    hosts = [one for one in outcomes if isinstance(one, str)]
    assert {type(one) for one in outcomes if not isinstance(one, str)} == {exception.NoSlot}
    assert (len(hosts), max(hosts.count(host) for host in hosts)) == (5, 3)
    assert len(on_postgresql.migrations.list({'status': 'preparing'})) == 5


def test_a_commit_that_meets_an_adoption_under_way_waits_and_then_lets_go(on_postgresql, racers):
    old, new = owner(on_postgresql), owner(on_postgresql)
    moved = accepted(on_postgresql)
    known = on_postgresql.migrations.adopt(moved.uuid, moved.epoch, old).migration
    on_postgresql.conductors.retire(old)
    adopter, owner_ = racers[:2]
    outcome = []

    def commit():
        try:
            owner_.migrations.commit(known, Write({'status': 'preparing'}))
        except Exception as error:  # noqa: BLE001 -- it is the outcome
            outcome.append(error)

    late = threading.Thread(target=commit)
    with adopter.engine.writer() as session:
        session.execute(
            sa.update(models.Migration).where(models.Migration.uuid == moved.uuid).values(owner=new, epoch=2)
        )
        late.start()
        process.wait_until(lambda: waiters(on_postgresql), 'the commit to wait for the lock', 10)
        assert outcome == []
    late.join(30)
    assert [type(error) for error in outcome] == [exception.NotOwner]
    assert on_postgresql.migrations.get(moved.uuid).status == 'accepted'


def waiters(database):
    """Return how many sessions of this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with database.engine.sa_engine.connect() as connection:
        return connection.execute(sa.text(query)).scalar_one()


def test_leases_are_held_by_the_clock_of_the_database_and_no_other(on_postgresql, database_url, new_database):
    wrong = new_database(database_url, executors.NativeThreads(WrongClock()))
    one = owner(on_postgresql, lease=30)
    moved = accepted(on_postgresql)
    assert on_postgresql.migrations.adopt(moved.uuid, moved.epoch, one)
    assert wrong.migrations.orphans() == []
    assert wrong.conductors.renew(one, 0.1)
    process.wait_until(on_postgresql.migrations.orphans, 'the lease to run out', 10)


def test_the_time_of_a_statement_is_not_that_of_its_transaction(on_postgresql):
    """A renewal that has waited for a lock must not be dated back to when it began to wait."""
    from migrator.db import models

    with on_postgresql.engine.writer() as session:
        first = session.execute(sa.select(models.now())).scalar_one()
        session.execute(sa.text('SELECT pg_sleep(0.05)'))
        second = session.execute(sa.select(models.now())).scalar_one()
    assert second - first >= datetime.timedelta(seconds=0.05)


# --- patience --------------------------------------------------------------------------------------------------------


def test_lock_wait_is_shorter_than_a_third_of_the_lease(on_postgresql, racers):
    one = owner(on_postgresql)
    with racers[0].engine.writer() as session:
        session.execute(sa.update(models.Conductor).values(server='held'))
        began = time.monotonic()
        with pytest.raises(exception.DatabaseUnreachable, match='lock timeout'):
            on_postgresql.conductors.renew(one, 60)
        # the machine's own stalls are not patience: that it is a second is read below
        assert 0.5 < time.monotonic() - began < 4
    assert on_postgresql.conductors.renew(one, 60)


def test_idle_lock_is_released_within_a_third_of_the_lease(on_postgresql, racers):
    one = owner(on_postgresql)
    scope = on_postgresql.engine.writer()
    session = scope.__enter__()
    session.execute(sa.update(models.Conductor).values(server='held'))
    # this racer's own patience is that of a lease of 15 s
    began = time.monotonic()
    assert racers[0].conductors.renew(one, 60)
    assert time.monotonic() - began < 4
    with pytest.raises(exception.DatabaseUnreachable):
        scope.__exit__(None, None, None)
    assert on_postgresql.conductors.server_of(one) != 'held'
    assert on_postgresql.conductors.renew(one, 60)


def test_the_patience_of_a_session_outlives_a_transaction_that_is_rolled_back(on_postgresql):
    query = sa.text("SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')")

    def settings():
        with on_postgresql.engine.reader() as session:
            return tuple(session.execute(query).one())

    assert settings() == ('1s', '1s')
    with pytest.raises(db_exception.DBError), on_postgresql.engine.writer() as session:
        session.execute(sa.text('SELECT 1 / 0'))
    assert settings() == ('1s', '1s')


# --- a database that gives way, or goes ------------------------------------------------------------------------------


def test_the_victim_of_a_deadlock_runs_again(on_postgresql, racers):
    first, second = owner(on_postgresql), owner(on_postgresql)
    both_hold_one = threading.Barrier(2)
    tries = []

    def write(database, *owners):
        @engine.retried
        def transaction():
            tries.append(owners)
            with database.engine.writer() as session:
                for one in owners:
                    session.execute(sa.update(models.Conductor).where(models.Conductor.id == one).values(server='x'))
                    if len(tries) <= 2 and one == owners[0]:
                        both_hold_one.wait(10)

        transaction()

    outcomes = at_once([lambda: write(racers[0], first, second), lambda: write(racers[1], second, first)])
    assert outcomes == [None, None]
    assert len(tries) == 3


def test_a_transaction_that_cannot_be_serialised_runs_again(on_postgresql, racers):
    one = owner(on_postgresql)
    tries = []

    @engine.retried
    def transaction():
        tries.append(one)
        with on_postgresql.engine.writer() as session:
            session.execute(sa.text('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ'))
            session.execute(sa.select(models.Conductor.server)).all()
            if len(tries) == 1:
                assert racers[0].conductors.renew(one, 30)
            session.execute(sa.update(models.Conductor).values(server='last'))

    transaction()
    assert len(tries) == 2
    assert on_postgresql.conductors.server_of(one) == 'last'


def test_a_column_that_must_be_unique_says_so_in_one_way_on_both(database):
    one = owner(database)
    with pytest.raises(db_exception.DBDuplicateEntry):
        database.conductors.register(one, 'other', 1)


def test_concurrent_writers_of_missing_uuids_agree_on_each_row(on_postgresql, racers):
    with on_postgresql.engine.writer() as session:
        bare.insert(session.exec_driver_sql, 40)

    def fill(racer):
        filled = [racer.migrations.fill_uuids(7) for _ in range(10)]
        return sum(filled), {one.id: one.uuid for one in racer.migrations.list()}

    found = at_once([lambda racer=racer: fill(racer) for racer in (on_postgresql, *racers)])
    assert sum(filled for filled, _ in found) == 40
    assert all(seen == found[0][1] for _, seen in found)
    assert len(set(found[0][1].values())) == 40


@pytest.mark.parametrize('how', ['stop', 'kill'])
def test_a_server_that_restarts_is_not_noticed_between_two_transactions(on_postgresql, postgresql, how):
    one = owner(on_postgresql)
    # several connections, all of which are then stale
    at_once([lambda: on_postgresql.conductors.renew(one, 60)] * 4)
    getattr(postgresql, how)()
    postgresql.start()
    assert at_once([lambda: on_postgresql.conductors.renew(one, 60)] * 4) == [True] * 4


def test_a_server_that_restarts_in_a_transaction_is_unreachable_once_and_nothing_is_written(on_postgresql, postgresql):
    one = owner(on_postgresql)

    def transaction():
        with on_postgresql.engine.writer() as session:
            session.execute(sa.update(models.Conductor).values(server='half'))
            postgresql.restart()
            session.execute(sa.update(models.Conductor).values(server='whole'))

    with pytest.raises(exception.DatabaseUnreachable):
        transaction()
    assert on_postgresql.conductors.server_of(one) == f'conductor-{one}'


def test_a_server_that_is_away_is_unreachable_for_old_and_new_and_then_is_there(
    on_postgresql, postgresql, database_url, new_database
):
    one = owner(on_postgresql)
    postgresql.stop()
    fresh = new_database(database_url, max_retries=0)
    for each in (on_postgresql, fresh):
        with pytest.raises(exception.DatabaseUnreachable, match='Connection refused') as caught:
            each.conductors.renew(one, 60)
        assert 'guessed' not in str(caught.value)
    postgresql.start()
    assert on_postgresql.conductors.renew(one, 60)
    assert fresh.conductors.renew(one, 60)


def test_a_server_that_is_read_only_is_said_to_be_and_then_takes_changes_again(on_postgresql, postgresql):
    one = owner(on_postgresql)
    name = on_postgresql.engine.sa_engine.url.database
    postgresql.administer(f'ALTER DATABASE {name} SET default_transaction_read_only = on')
    on_postgresql.engine.dispose()
    with pytest.raises(exception.DatabaseReadOnly, match='The database is read-only: cannot execute UPDATE'):
        on_postgresql.conductors.renew(one, 60)
    assert on_postgresql.conductors.server_of(one) == f'conductor-{one}'
    postgresql.administer(f'ALTER DATABASE {name} RESET default_transaction_read_only')
    on_postgresql.engine.dispose()
    assert on_postgresql.conductors.renew(one, 60)


@pytest.mark.parametrize(
    ('right', 'wrong', 'reason'),
    [('guessed', 'wrong', 'password authentication failed'), ('test_', 'no_', 'does not exist')],
)
def test_refusal_of_the_server_is_reported_in_one_line(database_url, new_database, right, wrong, reason):
    with pytest.raises(exception.DatabaseUnreachable, match=reason) as caught:
        sync.check(new_database(database_url.replace(right, wrong), max_retries=0).engine)
    assert '\n' not in str(caught.value)


# --- purge -----------------------------------------------------------------------------------------------------------


def test_a_purge_leaves_the_last_migration_of_each_guest(database):
    guests = [instance(database) for _ in range(2)]
    uuids = [[ended(database, guest) for _ in range(3)] for guest in guests]
    before = database.services.now()
    assert database.purge.count(before) == (4, 2)
    gone = database.purge.delete(before, database.purge.next(before, 0, 100))
    assert (gone.migrations, gone.instance_actions) == (4, 4)
    assert {one.uuid for one in database.migrations.list()} == {made[-1] for made in uuids}
    assert all(len(database.actions.list(guest.uuid)) == 1 for guest in guests)


def test_concurrent_purges_delete_each_row_once_and_keep_the_newest(on_postgresql, racers):
    guest = instance(on_postgresql)
    last = [ended(on_postgresql, guest) for _ in range(20)][-1]
    before = on_postgresql.services.now()

    def purge(racer):
        def run():
            gone, at = 0, 0
            while ids := racer.purge.next(before, at, 3):
                gone += racer.purge.delete(before, ids).migrations
                at = ids[-1]
            return gone

        return run

    assert sum(at_once([purge(racer) for racer in racers])) == 19
    assert [one.uuid for one in on_postgresql.migrations.list()] == [last]
