# SPDX-License-Identifier: Apache-2.0

"""migrator.db on SQLite, PostgreSQL and MariaDB: the races of the protocol, and failures."""

import contextlib
import datetime
import functools
import threading
import time

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from migrator import exception, executors
from migrator.db import conductors, models, saga_log, slots
from migrator.db.migrations import Write
from migrator.db.schema import sync
from migrator.db.sql import columns, engine
from migrator.objects.drain import Drain
from tests.real.conftest import new_url
from tests.real.rows import CONTEXT, accepted, ended, instance, migration, owner
from tests.real.servers import process
from tests.real.servers.waiters import WAITERS
from tests.unit.db import bare

RACERS = 6


class WrongClock(executors.SystemClock):
    """A machine's clock that is a day ahead."""

    def now(self):
        return super().now() + datetime.timedelta(days=1)


class StandingClock(executors.SystemClock):
    """A clock that only a test moves."""

    at = 0.0

    def monotonic(self):
        return self.at


@pytest.fixture
def on_server(server_url, new_database):
    return new_database(server_url, lease=4)


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


# --- on each database ------------------------------------------------------------------------------------------------


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


def test_the_events_of_all_logs_are_in_the_order_of_time(database, monkeypatch):
    monkeypatch.setattr(saga_log, 'SETTLED', -60.0)  # not even those of this moment are held back
    with database.engine.reader() as session:
        last = (saga_log.settled(session) - datetime.timedelta(hours=1), '', 0)
    made = [accepted(database).uuid]
    database.drains.accept(Drain(uuid=executors.NativeThreads().new_uuid(), host='host1'), has_service=False)
    made += [database.drains.list()[0].uuid, *(accepted(database).uuid for _ in range(2))]
    found = []
    while True:
        with database.engine.reader() as session:
            page = saga_log.events_after(session, *last, 1)
        if not page:
            break
        found += page
        last = page[-1][:3]
    assert [(one.of, one.uuid, one.payload['status']) for one in found] == [
        ('drain' if uuid == made[1] else 'migration', uuid, 'accepted') for uuid in made
    ]


def test_equal_flavors_are_listed_once(database):
    found = [instance(database) for _ in range(2)]
    assert database.instances.flavors('blue') == database.instances.flavors() == [found[0].flavor]


def test_a_lease_is_held_while_renewed_and_then_runs_out_for_good(database):
    one = owner(database)
    moved = accepted(database)
    assert database.takeovers.adopt([moved.uuid], one).owned[0].migration.owner == one
    assert database.takeovers.orphans() == []
    assert database.conductors.renew(one, 0.2)
    process.wait_until(database.takeovers.orphans, 'the lease to run out', 10)
    assert database.takeovers.orphans() == [[moved.uuid]]
    assert not database.conductors.renew(one, 60)
    assert database.conductors.server_of(one) is None


def test_the_owner_that_was_superseded_writes_nothing(database):
    old, new = owner(database), owner(database)
    moved = accepted(database)
    known = database.takeovers.adopt([moved.uuid], old).owned[0].migration
    database.conductors.retire(old)
    taken = database.takeovers.adopt([moved.uuid], new).owned[0].migration
    assert (taken.owner, taken.epoch) == (new, known.epoch + 1)
    with pytest.raises(exception.NotOwner):
        database.migrations.commit(known, Write({'status': 'preparing'}))
    after, _boots = database.migrations.commit(taken, Write({'status': 'preparing'}))
    assert after.status == database.migrations.get(moved.uuid).status == 'preparing'


# --- races on a server, each racer with connections of its own -------------------------------------------------------


@pytest.fixture
def racers(on_server, server_url, new_database):
    return [new_database(server_url) for _ in range(RACERS)]


def test_concurrent_requests_for_one_instance_accept_one(on_server, racers):
    guest = instance(on_server)
    asks = [lambda each=each: each.migrations.accept(CONTEXT, migration(guest), 'live-migration') for each in racers]
    outcomes = at_once(asks)
    assert outcomes.count(None) == 1
    losers = {type(outcome) for outcome in outcomes if outcome is not None}
    assert losers <= {exception.MigrationInProgress, exception.InstanceInvalidState}
    assert len(on_server.migrations.list()) == len(on_server.actions.list(guest.uuid)) == 1


def test_concurrent_takeovers_of_one_migration_have_one_owner(on_server, racers):
    for _round in range(5):
        moved = accepted(on_server)
        owners = [owner(on_server) for _ in racers]
        pairs = zip(racers, owners, strict=True)
        outcomes = at_once([functools.partial(each.takeovers.adopt, [moved.uuid], who) for each, who in pairs])
        (winner,) = [outcome for outcome in outcomes if outcome is not None]
        assert not isinstance(winner, Exception)
        (won,) = winner.owned
        assert won.migration.epoch == 1
        assert on_server.migrations.get(moved.uuid).owner == won.migration.owner


def test_concurrent_receivers_of_a_new_source_choose_one_conductor(on_server, racers):
    on_server.services.report('source', 'nova-compute', 4)
    owners = [owner(on_server) for _ in racers]
    for _round in range(5):
        rows = [accepted(on_server) for _ in racers]
        pairs = zip(racers, rows, owners, strict=True)
        adopts = [
            functools.partial(each.takeovers.adopt, [row.uuid], who, f'conductor-{who}') for each, row, who in pairs
        ]
        assert {type(outcome) for outcome in at_once(adopts)} == {conductors.Taken}
        moved = [on_server.migrations.get(row.uuid) for row in rows]
        assert len({one.owner for one in moved}) == 1
        for one in moved:
            on_server.migrations.commit(one, Write({'status': 'failed'}))


@pytest.mark.parametrize(
    ('bounds', 'admitted'),
    [
        (slots.Bounds(inbound=3, cluster=5), 5),
        # All leave one source, which runs one at once.
        (slots.Bounds(inbound=3, cluster=5, ahead=3), 4),
    ],
)
def test_concurrent_admissions_never_exceed_a_bound(on_server, racers, bounds, admitted):
    request = slots.Request(bounds, lambda _axis: False)
    known = {}
    for number in range(4 * RACERS):
        each = racers[number % RACERS]
        known[number] = each.takeovers.adopt([accepted(each).uuid], owner(each)).owned[0].migration

    def admit(number):
        host = f'host{number % 2}'
        fields = {'status': 'preparing', 'dest_compute': host, 'dest_node': host}
        racers[number % RACERS].migrations.commit(known[number], Write(fields=fields, slots=request))
        return host

    outcomes = at_once([lambda number=number: admit(number) for number in known])
    hosts = [one for one in outcomes if isinstance(one, str)]
    assert {type(one) for one in outcomes if not isinstance(one, str)} == {exception.NoSlot}
    assert len(hosts) == len(on_server.migrations.list({'status': 'preparing'})) == admitted
    assert max(hosts.count(host) for host in hosts) <= bounds.inbound


def test_a_commit_that_meets_an_adoption_under_way_waits_and_then_lets_go(on_server, racers):
    old, new = owner(on_server), owner(on_server)
    moved = accepted(on_server)
    known = on_server.takeovers.adopt([moved.uuid], old).owned[0].migration
    on_server.conductors.retire(old)
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
        process.wait_until(lambda: waiters(on_server), 'the commit to wait for the lock', 10)
        assert outcome == []
    late.join(30)
    assert [type(error) for error in outcome] == [exception.NotOwner]
    assert on_server.migrations.get(moved.uuid).status == 'accepted'


def waiters(database):
    """Return how many sessions wait for a lock."""
    with database.engine.sa_engine.connect() as connection:
        return connection.execute(sa.text(WAITERS[connection.dialect.name])).scalar_one()


def test_leases_are_held_by_the_clock_of_the_database_and_no_other(on_server, server_url, new_database):
    wrong = new_database(server_url, executors.NativeThreads(WrongClock()))
    one = owner(on_server, lease=30)
    moved = accepted(on_server)
    assert on_server.takeovers.adopt([moved.uuid], one)
    assert wrong.takeovers.orphans() == []
    assert wrong.conductors.renew(one, 0.1)
    process.wait_until(on_server.takeovers.orphans, 'the lease to run out', 10)


#: The server's own clock has to go on within a transaction; a test cannot move it.
SLEEP = {'postgresql': 'SELECT pg_sleep(0.05)', 'mysql': 'SELECT sleep(0.05)'}


def test_the_time_of_a_statement_is_not_that_of_its_transaction(on_server):
    with on_server.engine.writer() as session:
        first = session.execute(sa.select(columns.now())).scalar_one()
        session.execute(sa.text(SLEEP[session.dialect.name]))
        second = session.execute(sa.select(columns.now())).scalar_one()
    assert second - first >= datetime.timedelta(seconds=0.05)


def test_a_renewal_that_has_waited_for_a_lock_until_the_lease_ran_out_is_refused(on_server, racers):
    one = owner(on_server, lease=0.5)
    outcome = []
    late = threading.Thread(target=lambda: outcome.append(racers[0].conductors.renew(one, 60)))
    with racers[1].engine.writer() as session:
        session.execute(sa.update(models.Conductor).values(server='held'))
        late.start()
        process.wait_until(lambda: waiters(on_server), 'the renewal to wait for the lock', 10)
        process.wait_until(lambda: on_server.conductors.server_of(one) is None, 'the lease to run out', 10)
    late.join(30)
    assert outcome == [False]


def test_a_transaction_reads_what_others_have_committed_since_it_began(on_server, racers):
    """The order of the locks of :mod:`migrator.db.slots` and :mod:`migrator.db.tenures` counts on it."""
    one = owner(on_server)
    with racers[0].engine.writer() as session:
        session.execute(sa.select(models.Conductor)).all()
        on_server.conductors.register('another', 'conductor', 60)
        found = session.execute(sa.select(models.Conductor.id)).scalars().all()
    assert {*found} == {one, 'another'}


# --- patience --------------------------------------------------------------------------------------------------------


def test_lock_wait_is_shorter_than_a_third_of_the_lease(on_server, racers):
    one = owner(on_server)
    with racers[0].engine.writer() as session:
        session.execute(sa.update(models.Conductor).values(server='held'))
        began = time.monotonic()
        with pytest.raises(exception.DatabaseUnreachable, match=r'(?i)lock (wait )?timeout'):
            on_server.conductors.renew(one, 60)
        # the machine's own stalls are not patience: that it is a second is read below
        assert 0.5 < time.monotonic() - began < 4
    assert on_server.conductors.renew(one, 60)


def test_idle_lock_is_released_within_a_third_of_the_lease(on_server, racers):
    one = owner(on_server)
    scope = on_server.engine.writer()
    session = scope.__enter__()
    session.execute(sa.update(models.Conductor).values(server='held'))
    # this racer's own patience is that of a lease of 15 s
    began = time.monotonic()
    assert racers[0].conductors.renew(one, 60)
    assert time.monotonic() - began < 4
    with pytest.raises(exception.DatabaseUnreachable):
        scope.__exit__(None, None, None)
    assert on_server.conductors.server_of(one) != 'held'
    assert on_server.conductors.renew(one, 60)


#: The settings of a session, and their values for a lease of 4 s.
SETTINGS = {
    'postgresql': (
        "SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')",
        ('1s', '1s'),
    ),
    'mysql': (
        'SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@idle_transaction_timeout, @@tx_isolation',
        (1, 1, 1, 'READ-COMMITTED'),
    ),
}


def test_the_settings_of_a_session_outlive_a_transaction_that_is_rolled_back(on_server):
    query, wanted = SETTINGS[on_server.engine.sa_engine.dialect.name]

    def settings():
        with on_server.engine.reader() as session:
            return tuple(session.execute(sa.text(query)).one())

    assert settings() == wanted
    with contextlib.suppress(ZeroDivisionError), on_server.engine.writer() as session:
        session.execute(sa.text('SELECT 1'))
        raise ZeroDivisionError
    assert settings() == wanted


# --- a database that gives way, or goes ------------------------------------------------------------------------------


def test_the_victim_of_a_deadlock_runs_again(on_server, racers):
    first, second = owner(on_server), owner(on_server)
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


@pytest.mark.parametrize('server', ['postgresql'], indirect=True)
def test_a_transaction_that_cannot_be_serialised_runs_again(on_server, racers):
    one = owner(on_server)
    tries = []

    @engine.retried
    def transaction():
        tries.append(one)
        with on_server.engine.writer() as session:
            session.execute(sa.text('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ'))
            session.execute(sa.select(models.Conductor.server)).all()
            if len(tries) == 1:
                assert racers[0].conductors.renew(one, 30)
            session.execute(sa.update(models.Conductor).values(server='last'))

    transaction()
    assert len(tries) == 2
    assert on_server.conductors.server_of(one) == 'last'


def test_a_column_that_must_be_unique_says_so_in_one_way_on_all(database):
    one = owner(database)
    with pytest.raises(db_exception.DBDuplicateEntry):
        database.conductors.register(one, 'other', 1)


def test_concurrent_reports_of_definitions_are_all_stored(on_server, racers):
    guests = [instance(on_server).uuid for _ in range(20)]
    reports = [{uuid: {'xml': str(number)} for uuid in guests} for number in range(RACERS)]
    stores = [
        functools.partial(one.definitions.store, 'source', said, 0.0) for one, said in zip(racers, reports, strict=True)
    ]
    assert at_once(stores) == [None] * RACERS
    # One report, as a whole, is the last one.
    assert len({on_server.definitions.get(uuid, 'source')['xml'] for uuid in guests}) == 1


def test_concurrent_writers_of_missing_uuids_agree_on_each_row(on_server, racers):
    with on_server.engine.writer() as session:
        quote = on_server.engine.sa_engine.dialect.identifier_preparer.initial_quote
        bare.insert(lambda text: session.execute(sa.text(text)), 40, quote)

    def fill(racer):
        filled = [racer.migrations.fill_uuids(7) for _ in range(10)]
        return sum(filled), {one.id: one.uuid for one in racer.migrations.list()}

    found = at_once([lambda racer=racer: fill(racer) for racer in (on_server, *racers)])
    assert sum(filled for filled, _ in found) == 40
    assert all(seen == found[0][1] for _, seen in found)
    assert len(set(found[0][1].values())) == 40


@pytest.mark.parametrize('how', ['stop', 'kill'])
def test_a_server_that_restarts_is_not_noticed_between_two_transactions(on_server, server, how):
    one = owner(on_server)
    # several connections, all of which are then stale
    at_once([lambda: on_server.conductors.renew(one, 60)] * 4)
    getattr(server, how)()
    server.start()
    assert at_once([lambda: on_server.conductors.renew(one, 60)] * 4) == [True] * 4


def test_connection_is_tested_only_after_it_was_idle(postgresql, new_database, monkeypatch):
    with new_url(postgresql) as url:
        clock = StandingClock()
        database = new_database(url, threads=executors.NativeThreads(clock))
        sync.sync(database.engine)
        tested, dialect = [], database.engine.sa_engine.dialect
        monkeypatch.setattr(
            dialect, 'do_ping', lambda used: tested.append(used) or type(dialect).do_ping(dialect, used)
        )
        one = owner(database)
        for _ in range(3):
            assert database.conductors.renew(one, 60)
        assert not tested
        clock.at += 1.0
        assert database.conductors.renew(one, 60)
        assert len(tested) == 1


def test_a_server_that_restarts_in_a_transaction_is_unreachable_once_and_nothing_is_written(on_server, server):
    one = owner(on_server)

    def transaction():
        with on_server.engine.writer() as session:
            session.execute(sa.update(models.Conductor).values(server='half'))
            server.restart()
            session.execute(sa.update(models.Conductor).values(server='whole'))

    with pytest.raises(exception.DatabaseUnreachable):
        transaction()
    assert on_server.conductors.server_of(one) == f'conductor-{one}'


def test_a_server_that_is_away_is_unreachable_for_old_and_new_and_then_is_there(
    on_server, server, server_url, new_database
):
    one = owner(on_server)
    server.stop()
    fresh = new_database(server_url, max_retries=0)
    for each in (on_server, fresh):
        with pytest.raises(exception.DatabaseUnreachable, match='Connection refused') as caught:
            each.conductors.renew(one, 60)
        assert 'guessed' not in str(caught.value)
    server.start()
    assert on_server.conductors.renew(one, 60)
    assert fresh.conductors.renew(one, 60)


def test_a_server_that_is_read_only_is_said_to_be_and_then_takes_changes_again(on_server, server):
    one = owner(on_server)
    name = on_server.engine.sa_engine.url.database
    server.make_read_only(name)
    on_server.engine.dispose()
    with pytest.raises(exception.DatabaseReadOnly, match=r'The database is read-only: .*cannot execute'):
        on_server.conductors.renew(one, 60)
    assert on_server.conductors.server_of(one) == f'conductor-{one}'
    server.make_read_only(name, False)
    on_server.engine.dispose()
    assert on_server.conductors.renew(one, 60)


@pytest.mark.parametrize(
    ('right', 'wrong', 'reason'),
    [
        ('guessed', 'wrong', 'password authentication failed|Access denied'),
        ('test_', 'no_', 'does not exist|Access denied'),
    ],
)
def test_refusal_of_the_server_is_reported_in_one_line(server_url, new_database, right, wrong, reason):
    with pytest.raises(exception.DatabaseUnreachable, match=reason) as caught:
        sync.check(new_database(server_url.replace(right, wrong), max_retries=0).engine)
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


def test_concurrent_purges_delete_each_row_once_and_keep_the_newest(on_server, racers):
    guest = instance(on_server)
    last = [ended(on_server, guest) for _ in range(20)][-1]
    before = on_server.services.now()

    def purge(racer):
        def run():
            gone, at = 0, 0
            while ids := racer.purge.next(before, at, 3):
                gone += racer.purge.delete(before, ids).migrations
                at = ids[-1]
            return gone

        return run

    assert sum(at_once([purge(racer) for racer in racers])) == 19
    assert [one.uuid for one in on_server.migrations.list()] == [last]
