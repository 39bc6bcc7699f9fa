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
"""Each invariant: a violation is planted in a simulated cloud, and found; and where there is none, none is found.

Two clouds are made, once: one whose migration has completed, and one whose migration copies and has a second one
waiting behind it. After each test all that it may have touched is put back.
"""

import collections
import concurrent.futures
import contextlib
import copy
import json
import sqlite3

import pytest

from migrator import context
from migrator.objects import command
from migrator.objects import migration as migration_objects
from migrator.placement_client import allocations, pairs
from migrator.testing import invariants
from migrator.testing import rpc as testing_rpc
from migrator.testing.cloud import Exchange, SimulatedCloud
from migrator.testing.fence import Fence
from migrator.testing.invariants import When, World
from migrator.testing.watcher import Watcher
from migrator.virt import fake, fake_hypervisor

DATABASES = ('migrator', 'placement')
UNKNOWN = '00000000-0000-4000-8000-000000000000'


# --- three clouds ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def simulated(directory, **what):
    cloud = SimulatedCloud(directory, hosts=3, **what)
    try:
        yield cloud
    finally:
        cloud.stop()


@pytest.fixture(scope='module')
def completed_cloud(tmp_path_factory):
    with simulated(tmp_path_factory.mktemp('completed')) as cloud:
        cloud.instance = cloud.boot('one', 'host1')
        assert cloud.live_migrate(cloud.instance, host='host2').status_int == 202
        cloud.wait()
        cloud.simulation.run()
        (cloud.migration,) = cloud.migrations()
        assert cloud.migration.status == 'completed'
        yield cloud


@pytest.fixture(scope='module')
def copying_cloud(tmp_path_factory):
    with simulated(tmp_path_factory.mktemp('copying')) as cloud:
        cloud.instance, second = cloud.boot('one', 'host1'), cloud.boot('two', 'host1')
        cloud.world.hypervisors['host1'].faults.stall('copying')
        for instance in (cloud.instance, second):
            assert cloud.live_migrate(instance, host='host2').status_int == 202
        cloud.simulation.advance(1)
        cloud.migration, cloud.second = cloud.migrations()
        assert (cloud.migration.status, cloud.second.status) == ('running', 'queued')
        yield cloud


@pytest.fixture
def cloud(completed_cloud):
    """The cloud in which one migration has completed, from host1 to host2."""
    with put_back(completed_cloud):
        yield completed_cloud


@pytest.fixture
def copying(copying_cloud):
    """The cloud in which one migration copies, from host1 to host2, and a second one waits behind it."""
    with put_back(copying_cloud):
        yield copying_cloud


@contextlib.contextmanager
def put_back(cloud):
    """Put back whatever a test may touch."""
    for name in DATABASES:
        backup(cloud.directory / f'{name}.sqlite', cloud.directory / f'{name}.kept')
    lists = [cloud.world.log, cloud.world.violations, cloud.recorder.messages, cloud.history]
    dicts = [compute._waiting_live_migrations for compute in cloud.computes.values()]
    for hypervisor in cloud.world.hypervisors.values():
        dicts += [hypervisor.guests, hypervisor.residues, hypervisor.jobs]
    kept_lists, kept_dicts = [list(one) for one in lists], [dict(one) for one in dicts]
    residues = [(parts, set(parts)) for host in cloud.world.hypervisors.values() for parts in host.residues.values()]
    guests = [(one, copy.copy(one)) for host in cloud.world.hypervisors.values() for one in host.guests.values()]
    epochs = [(one, one.epoch) for host in cloud.computes.values() for one in host._orders._records.values()]
    yield
    for name in DATABASES:
        backup(cloud.directory / f'{name}.kept', cloud.directory / f'{name}.sqlite')
    for one, kept in zip(lists, kept_lists, strict=True):
        one[:] = kept
    for one, kept in zip(dicts, kept_dicts, strict=True):
        one.clear()
        one.update(kept)
    for parts, kept in residues:
        parts.clear()
        parts.update(kept)
    for guest, kept in guests:
        vars(guest).update(vars(kept))
    for record, epoch in epochs:
        record.epoch = epoch
    for compute in cloud.computes.values():
        compute._queue._closed = False


def backup(origin, copy_):
    with contextlib.closing(sqlite3.connect(origin)) as here, contextlib.closing(sqlite3.connect(copy_)) as there:
        here.backup(there)


# --- planting, and finding -------------------------------------------------------------------------------------------


def found(cloud, quiet=True, logs=()):
    """Return the ids of the invariants that do not hold."""
    return {violation.id for violation in invariants.check(World.of(cloud, logs), quiet)}


def sql(cloud, statement, *values, database='migrator'):
    with contextlib.closing(sqlite3.connect(cloud.directory / f'{database}.sqlite')) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1


def write(cloud, consumer, host, generation, **amounts):
    """Write what a consumer holds, as somebody would who means no good."""
    held = {fake.node_uuid(host): {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1, **amounts}} if host else {}
    who = pairs.Consumer(uuid=consumer, consumer_type='INSTANCE', project_id='demo', user_id='demo')
    allocations.write_all(
        cloud.placement_client, [allocations.Write(consumer=who, allocations=held, generation=generation)]
    )


def generation(cloud, consumer):
    return allocations.read(cloud.placement_client, consumer).generation


def add_guest(cloud, host, state='running'):
    """Have a host hold a guest of the instance, past everything."""
    hypervisor = cloud.world.hypervisors[host]
    hypervisor.guests[cloud.instance.uuid] = fake_hypervisor.FakeGuest(cloud.instance.uuid, state=state)


def leave(cloud, host, *parts):
    """Have a host hold something of the instance."""
    residues = cloud.world.hypervisors[host].residues
    residues[cloud.instance.uuid] = residues.get(cloud.instance.uuid, set()) | set(parts)


def fence_off(cloud, host):
    sql(cloud, "UPDATE services SET forced_down = 1 WHERE host = ? AND binary = 'nova-compute'", host)


def owe(cloud, host):
    sql(
        cloud,
        'INSERT INTO host_debts (host, migration_uuid, instance_uuid, step, reason, epoch, created_at)'
        " VALUES (?, ?, ?, 'post_live_migration_at_source', 'planted', 1, '2026-01-01 00:00:00.000000')",
        host,
        cloud.migration.uuid,
        cloud.instance.uuid,
    )


def effect(cloud, host, what, who='hypervisor', at=None):
    entry = fake_hypervisor.Effect(2000.0, host, what, cloud.instance.uuid, who)
    cloud.world.log.insert(len(cloud.world.log) if at is None else at, entry)


def exchange(cloud, method, path, status, **fields):
    default = {'body': None, 'version': '2.80', 'token': 'admin', 'answer': '', 'request_id': 'req-unknown'}
    cloud.history.append(Exchange(method=method, path=path, status=status, **{**default, **fields}))


def live_migrate(cloud, status, **fields):
    path = f'/servers/{cloud.instance.uuid}/action'
    exchange(cloud, 'POST', path, status, body={'os-migrateLive': {'host': None}}, **fields)


def shown(cloud, status, **fields):
    migration = {'id': cloud.migration.id, 'status': status}
    exchange(cloud, 'GET', '/os-migrations', 200, answer={'migrations': [migration]}, **fields)


# --- where there is nothing to find ----------------------------------------------------------------------------------


def test_every_invariant_is_in_the_table_and_states_itself():
    assert {one.id for one in invariants.INVARIANTS} == {f'I{number}' for number in range(1, 21)}
    assert max(collections.Counter((one.id, one.when) for one in invariants.INVARIANTS).values()) == 1
    for one in invariants.INVARIANTS:
        assert one.function.__doc__.startswith(f'{one.id}, ')


def test_after_a_migration_that_completed_nothing_is_wrong(cloud):
    invariants.assert_holds(World.of(cloud))


def test_while_a_migration_copies_nothing_is_wrong(copying):
    invariants.assert_holds(World.of(copying), quiet=False)


def test_what_was_planted_is_put_back(cloud, copying):
    assert found(cloud) == set()
    assert found(copying, quiet=False) == set()


@pytest.mark.parametrize('phase', ['check_can_live_migrate_source', 'pre_live_migration', 'copying', 'cutover'])
def test_after_a_migration_that_was_rolled_back_nothing_is_wrong(tmp_path, phase):
    with simulated(tmp_path) as cloud:
        watcher = Watcher(cloud)
        instance = cloud.boot('one', 'host1')
        for hypervisor in cloud.world.hypervisors.values():
            hypervisor.faults.fail(phase, sticky=True)
        assert cloud.live_migrate(instance).status_int == 202
        cloud.wait()
        cloud.simulation.run()
        assert cloud.migrations()[0].status == 'failed'
        world = watcher.snapshot()
        watcher.close()
        invariants.assert_holds(world, seen=watcher.violations)


def test_reading_a_world_leaves_no_trace(cloud):
    requests, messages, sent = list(cloud.placement.requests), list(cloud.recorder.messages), list(cloud.adapter.sent)
    World.of(cloud)
    assert (cloud.placement.requests, cloud.recorder.messages, cloud.adapter.sent) == (requests, messages, sent)


def test_what_does_not_hold_is_told_with_its_time_and_what_is_allowed_is_not(cloud):
    sql(cloud, 'UPDATE instances SET power_state = 4')
    with pytest.raises(invariants.Broken, match=r'I1 at 100\d\.\d{6}: instance .* is running at host2') as raised:
        invariants.assert_holds(World.of(cloud))
    assert [one.id for one in raised.value.violations] == ['I1']
    invariants.assert_holds(World.of(cloud), allowed={'I1'})


def test_every_request_of_a_client_is_kept_with_its_answer(cloud):
    response = cloud.request('GET', f'/servers/{cloud.instance.uuid}', token='somebody:demo', version='2.1')
    kept = cloud.history[-1]
    assert (kept.method, kept.version, kept.token, kept.status) == ('GET', '2.1', 'somebody:demo', response.status_int)
    assert kept.answer['server']['id'] == cloud.instance.uuid
    assert kept.request_id == response.headers['X-OpenStack-Request-Id']


# --- I1 to I3: the guest, where it is said to be, and the books ------------------------------------------------------


def test_i1_a_guest_that_is_active_twice(cloud):
    add_guest(cloud, 'host3')
    fence_off(cloud, 'host3')
    assert found(cloud, quiet=False) == found(cloud) == {'I1'}


def test_i1_what_the_world_noted_by_itself(cloud):
    cloud.world.violations.append('guest was destroyed, its last copy')
    assert found(cloud, quiet=False) == {'I1'}


def test_i1_a_guest_in_another_power_state_than_the_row_says(cloud):
    sql(cloud, 'UPDATE instances SET power_state = 3')
    assert found(cloud) == {'I1'}
    assert found(cloud, quiet=False) == set()


def test_i1_a_guest_that_its_user_has_paused_is_to_stay_paused(cloud):
    hypervisor = cloud.world.hypervisors['host2']
    hypervisor.pause(cloud.instance.uuid)
    assert found(cloud) == set()
    hypervisor.guests[cloud.instance.uuid].state = 'running'
    assert found(cloud) == {'I1'}


@pytest.mark.parametrize('how', ['gone', 'waiting'])
def test_i2_a_guest_that_is_not_where_the_row_says(cloud, how):
    guests = cloud.world.hypervisors['host2'].guests
    if how == 'gone':
        del guests[cloud.instance.uuid]
    else:
        guests[cloud.instance.uuid].state = command.GuestState.WAITING
    assert found(cloud) == {'I2'}


def test_i2_a_host_that_is_changed_before_cut_over(copying):
    sql(copying, "UPDATE instances SET host = 'host2' WHERE uuid = ?", copying.instance.uuid)
    assert found(copying, quiet=False) == {'I2'}


def test_i2_a_host_that_is_changed_after_the_end(cloud):
    sql(cloud, "UPDATE instances SET host = 'host1'")
    assert found(cloud, quiet=False) == {'I2'}


def test_i2_a_migration_that_goes_forward_while_its_source_runs_the_guest(copying):
    sql(copying, "UPDATE migrations SET outcome = 'forward' WHERE uuid = ?", copying.migration.uuid)
    sql(copying, "UPDATE instances SET host = 'host2' WHERE uuid = ?", copying.instance.uuid)
    assert found(copying, quiet=False) == {'I2'}


@pytest.mark.parametrize('consumer', ['nobody', 'the ended migration'])
def test_i3_a_consumer_without_a_reason(cloud, consumer):
    write(cloud, UNKNOWN if consumer == 'nobody' else cloud.migration.uuid, 'host1', None)
    assert found(cloud) == {'I3'}
    assert found(cloud, quiet=False) == set()


def test_i3_an_instance_that_holds_more_than_its_flavor(cloud):
    write(cloud, cloud.instance.uuid, 'host2', generation(cloud, cloud.instance.uuid), MEMORY_MB=1024)
    assert found(cloud) == {'I3'}


def test_i3_an_instance_that_holds_its_flavor_elsewhere(cloud):
    # That host2 has it uncovered is I5.
    write(cloud, cloud.instance.uuid, 'host3', generation(cloud, cloud.instance.uuid))
    assert found(cloud) == {'I3', 'I5'}


# --- I4 to I6: the books meanwhile -----------------------------------------------------------------------------------


def test_i4_a_migration_that_holds_more_than_the_source(copying):
    write(copying, copying.migration.uuid, 'host1', generation(copying, copying.migration.uuid), MEMORY_MB=1024)
    assert found(copying, quiet=False) == {'I4'}


def test_i4_an_instance_that_does_not_hold_the_destination(copying):
    # What waits at host2 is uncovered then: I5.
    write(copying, copying.instance.uuid, 'host3', generation(copying, copying.instance.uuid))
    assert found(copying, quiet=False) == {'I4', 'I5'}


def test_i4_a_migration_that_holds_something_before_its_move(cloud):
    accept(cloud)
    cloud.new = cloud.migrations()[-1]
    write(cloud, cloud.new.uuid, 'host1', None)
    assert found(cloud, quiet=False) == {'I4'}


def accept(cloud):
    """Accept a migration that no conductor hears of: no time passes."""
    migration = migration_objects.Migration(
        uuid=UNKNOWN,
        instance_uuid=cloud.instance.uuid,
        project_id='demo',
        user_id='demo',
        source_compute='host2',
        source_node='host2',
    )
    cloud.database.migrations.accept(context.admin_context(), migration, 'live-migration')


def test_i5_what_no_allocation_covers(cloud):
    leave(cloud, 'host3', 'check file')
    assert found(cloud, quiet=False) == found(cloud) == {'I5'}


@pytest.mark.parametrize('excuse', [fence_off, owe])
def test_i5_a_host_that_is_down_or_owes_is_excused(cloud, excuse):
    leave(cloud, 'host3', 'check file')
    excuse(cloud, 'host3')
    assert found(cloud) == set()


def test_i6_more_is_used_than_there_is(cloud):
    provider = (
        'SELECT inventories.id FROM inventories JOIN resource_providers ON resource_provider_id = resource_providers.id'
    )
    statement = f"UPDATE inventories SET total = 100 WHERE id IN ({provider} AND name = 'host2' AND total > 10000)"  # noqa: S608
    sql(cloud, statement, database='placement')
    assert found(cloud, quiet=False) == {'I6'}


def test_i6_consumers_that_hold_more_than_is_used(cloud):
    world = World.of(cloud)
    provider = world.providers[fake.node_uuid('host2')]
    provider.holders[UNKNOWN] = {'VCPU': 1}
    assert {one.id for one in invariants.check(world, quiet=False)} == {'I6'}


# --- I7 to I9: the ends ----------------------------------------------------------------------------------------------


def test_i7_a_migration_that_has_not_ended_and_does_not_say_why(cloud):
    accept(cloud)
    assert found(cloud) == {'I7'}
    assert found(cloud, quiet=False) == set()


def test_i7_stuck_says_why(cloud):
    accept(cloud)
    sql(cloud, "UPDATE migrations SET stuck_reason = 'look at host2' WHERE uuid = ?", UNKNOWN)
    assert found(cloud) == set()


def test_i8_a_202_that_is_lost(cloud):
    live_migrate(cloud, 202)
    assert found(cloud, quiet=False) == {'I8'}


def test_i8_a_4xx_that_made_a_migration(cloud):
    live_migrate(cloud, 409, request_id=cloud.migration.request_id)
    assert found(cloud, quiet=False) == {'I8'}


def test_i8_below_2_34_the_ended_row_tells_why_and_so_does_its_action(cloud):
    live_migrate(cloud, 400, request_id=cloud.migration.request_id, version='2.30')
    assert found(cloud, quiet=False) == {'I8'}
    sql(cloud, "UPDATE migrations SET failure = 'no room'")
    assert found(cloud, quiet=False) == {'I8'}
    sql(cloud, "UPDATE instance_actions SET result = 'Error', message = 'no room'")
    assert found(cloud, quiet=False) == set()


def test_i9_an_abort_that_is_lost(cloud):
    abort(cloud)
    assert found(cloud, quiet=False) == {'I9'}


def test_i9_the_verdict_says_how_it_ended(cloud):
    abort(cloud)
    sql(cloud, "UPDATE migrations SET abort_requested_at = '2026-01-01 00:00:00.000000'")
    assert found(cloud, quiet=False) == {'I9'}
    sql(cloud, "UPDATE migrations SET abort_verdict = 'completed: too late'")
    assert found(cloud, quiet=False) == set()


def test_i9_completed_though_the_driver_was_told_before_cut_over(cloud):
    abort(cloud)
    sql(
        cloud,
        "UPDATE migrations SET abort_verdict = 'completed: too late',"
        " abort_requested_at = '2026-01-01 00:00:00.000000'",
    )
    arrived = next(
        number for number, one in enumerate(cloud.world.log) if (one.host, one.effect) == ('host2', 'running')
    )
    effect(cloud, 'host1', 'abort asked', at=arrived)
    assert found(cloud, quiet=False) == {'I9'}


def abort(cloud):
    exchange(cloud, 'DELETE', f'/servers/{cloud.instance.uuid}/migrations/{cloud.migration.id}', 202)


# --- I10 to I13: the queue -------------------------------------------------------------------------------------------


def test_i10_more_jobs_than_there_are_slots(cloud):
    effect(cloud, 'host1', 'job started')
    assert found(cloud) == set()
    effect(cloud, 'host1', 'job started')
    assert found(cloud, quiet=False) == {'I10'}


def test_i11_a_key_that_is_no_migration_in_progress(cloud):
    cloud.computes['host1']._waiting_live_migrations[cloud.migration.uuid] = concurrent.futures.Future()
    assert found(cloud, quiet=False) == found(cloud) == {'I11'}


def test_i11_a_key_at_a_host_that_was_never_sent_it(copying):
    copying.computes['host3']._waiting_live_migrations[copying.second.uuid] = concurrent.futures.Future()
    assert found(copying, quiet=False) == {'I11'}


def test_i11_a_thread_that_is_left(cloud):
    process = cloud.processes['host1']
    go_on = process.event()
    process.start(go_on.wait, name='left')
    cloud.simulation.run_ready()
    assert found(cloud) == {'I11'}
    go_on.set()
    cloud.simulation.run_ready()
    assert found(cloud) == set()


def test_i11_a_future_that_is_left(cloud):
    pool = cloud.computes['host1']._live_migration_executor
    process = cloud.processes['host1']
    go_on = process.event()
    future = pool.submit(go_on.wait)
    assert found(cloud) == {'I11'}
    go_on.set()
    cloud.simulation.run_ready()
    assert future.done()
    assert found(cloud) == set()


def test_i11_a_connection_that_is_left(cloud):
    with contextlib.closing(sqlite3.connect(cloud.directory / 'migrator.sqlite')):
        assert found(cloud) == {'I11'}


def test_i12_a_rollback_in_the_journal_after_a_post_step(cloud):
    sql(
        cloud,
        'INSERT INTO saga_steps (saga, step, direction, state, epoch, attempt, tries, started_at)'
        " VALUES (?, 'pre_live_migration', 'undo', 'intent', 1, 1, 1, '2026-01-01 00:00:00.000000')",
        cloud.migration.uuid,
    )
    assert found(cloud, quiet=False) == {'I12'}


def test_i12_a_rollback_that_is_sent_after_a_post_step(cloud):
    send(cloud, 'conductor:conductor1', 'compute.host2', 'rollback_live_migration_at_destination')
    assert found(cloud, quiet=False) == {'I12'}


def send(cloud, sender, target, method):
    message = testing_rpc.Recorded(sender, target, method, 'call', 1, cloud.migration.uuid)
    cloud.recorder.messages.append(message)


def test_i13_a_queue_that_is_stopped_and_not_empty(copying):
    copying.computes['host1']._queue._closed = True
    assert found(copying, quiet=False) == {'I13'}


def test_i13_what_a_stop_has_cancelled_ends_cancelled(cloud):
    sql(
        cloud,
        "UPDATE migrations SET abort_requested_by = 'host stop', abort_requested_at = '2026-01-01 00:00:00.000000'",
    )
    assert found(cloud) == {'I13'}


# --- I14 to I18: rows, fences, messages, debris ----------------------------------------------------------------------


def without_running(history):
    return [entry for entry in history if entry['status'] != 'running'][:3] + history[-1:]


def with_a_lower_epoch(history):
    return [*history[:-1], {**history[-1], 'epoch': 0}]


def with_another_owner(history):
    return [*history[:-1], {**history[-1], 'owner': UNKNOWN}]


def in_a_future_epoch(history):
    return [*history[:-1], {**history[-1], 'epoch': 7}]


def earlier_than_it_began(history):
    return [*history[:-1], {**history[-1], 'at': '2025-01-01T00:00:00+00:00'}]


@pytest.mark.parametrize(
    'change',
    [
        without_running,
        with_a_lower_epoch,
        with_another_owner,
        in_a_future_epoch,
        earlier_than_it_began,
        lambda history: history[1:],
        lambda history: history[:-1],
    ],
)
def test_i14_a_history_that_cannot_be(cloud, change):
    sql(cloud, 'UPDATE migrations SET history = ?', json.dumps(change(cloud.migration.history)))
    assert found(cloud, quiet=False) == found(cloud) == {'I14'}


def test_i14_an_end_that_is_left(cloud):
    history = [*cloud.migration.history, {**cloud.migration.history[-1], 'status': 'failed'}]
    sql(cloud, "UPDATE migrations SET status = 'failed', history = ?", json.dumps(history))
    assert found(cloud) == {'I14'}


def test_i14_stuck_is_not_an_end(cloud):
    sql(cloud, "UPDATE migrations SET stuck_reason = 'planted'")
    assert found(cloud) == {'I14'}


@pytest.mark.parametrize('state', ['migrating', 'rebuilding'])
def test_i15_a_task_state_without_a_migration(cloud, state):
    sql(cloud, 'UPDATE instances SET task_state = ?', state)
    assert found(cloud, quiet=False) == {'I15'}


def test_i15_a_migration_without_a_task_state(copying):
    sql(copying, 'UPDATE instances SET task_state = NULL WHERE uuid = ?', copying.instance.uuid)
    assert found(copying, quiet=False) == {'I15'}


def test_i15_an_ended_migration_that_keeps_its_instance(cloud):
    sql(cloud, 'UPDATE migrations SET in_progress_instance_uuid = instance_uuid')
    assert found(cloud, quiet=False) == {'I15'}


def test_i16_a_boot_that_has_seen_an_epoch_that_was_never_committed(cloud):
    cloud.computes['host1']._orders._records[cloud.migration.uuid].epoch = 99
    assert found(cloud, quiet=False) == {'I16'}


def test_i16_an_epoch_with_two_owners(cloud):
    sql(cloud, 'UPDATE migrations SET owner = ?', UNKNOWN)
    assert found(cloud, quiet=False) == {'I16'}


def test_i17_a_compute_that_calls_a_compute(cloud):
    send(cloud, 'compute:host1', 'compute.host2', 'pre_live_migration')
    assert found(cloud, quiet=False) == {'I17'}


def test_i18_debris_at_the_source(cloud):
    leave(cloud, 'host1', 'directory')
    # Which nothing covers: I5. A host that is down is excused from that, but not from this.
    assert found(cloud) == {'I5', 'I18'}
    fence_off(cloud, 'host1')
    assert found(cloud) == {'I18'}
    assert found(cloud, quiet=False) == set()


def test_i18_unless_a_debt_says_so(cloud):
    leave(cloud, 'host1', 'directory')
    owe(cloud, 'host1')
    assert found(cloud) == set()


def test_i18_what_is_left_of_the_move_where_the_guest_has_gone(cloud):
    leave(cloud, 'host2', 'receiving process')
    assert found(cloud) == {'I18'}


def test_i18_a_guest_that_would_not_survive_a_restart(cloud):
    cloud.world.hypervisors['host2'].guests[cloud.instance.uuid].persistent = False
    assert found(cloud) == {'I18'}


# --- I19 and I20: what is told ---------------------------------------------------------------------------------------


def test_i19_a_client_that_sees_a_move_that_cannot_be(cloud):
    for status in ('accepted', 'queued', 'completed'):
        shown(cloud, status)
    assert found(cloud) == set()
    shown(cloud, 'running', token='somebody')
    assert found(cloud) == set(), 'another client'
    shown(cloud, 'running')
    assert found(cloud, quiet=False) == {'I19'}


@pytest.mark.parametrize(
    ('status', 'answer', 'expected'),
    [
        (500, 'Unexpected error', {'I19'}),
        (503, 'A service that is needed is not reachable', {'I19'}),
        (503, 'The database is not reachable', set()),
        (501, 'not served', set()),
    ],
)
def test_i19_a_5xx_while_the_database_is_up(cloud, status, answer, expected):
    exchange(cloud, 'GET', '/servers', status, answer=answer)
    assert found(cloud, quiet=False) == expected


def test_i20_a_secret_in_the_log(cloud):
    dsn = f'sqlite:///{cloud.directory}/migrator.sqlite'
    assert found(cloud, logs=['all is well']) == set()
    assert found(cloud, quiet=False, logs=[f'cannot open {dsn}']) == {'I20'}
    exchange(cloud, 'GET', '/servers', 200, token='a-token-of-some-length')
    assert found(cloud, quiet=False, logs=['who came with a-token-of-some-length']) == {'I20'}


def test_i20_a_host_that_a_user_should_not_hear_of(cloud):
    told = {'badRequest': {'message': 'host2 has no room'}}
    exchange(cloud, 'POST', '/servers/x/action', 400, answer=told)
    exchange(cloud, 'POST', '/servers/x/action', 400, answer=told, token='somebody', body={'host': 'host2'})
    assert found(cloud) == set(), 'an administrator, and a user who named it'
    exchange(cloud, 'POST', '/servers/x/action', 400, answer=told, token='somebody')
    assert found(cloud, quiet=False) == {'I20'}


# --- the watcher -----------------------------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path):
    with simulated(tmp_path) as cloud:
        cloud.instance = cloud.boot('one', 'host1')
        cloud.watcher = Watcher(cloud)
        try:
            yield cloud
        finally:
            cloud.watcher.close()


def seen(cloud):
    return [violation.id for violation in cloud.watcher.violations]


def test_the_watcher_looks_after_every_event_and_is_not_counted(watched):
    watcher = watched.watcher
    boot_requests = len(watched.placement.requests)
    assert watched.live_migrate(watched.instance).status_int == 202
    watched.wait()
    events = len(watched.recorder.messages) + len(watched.world.log)
    assert watcher.looks > events
    assert watcher.violations == []
    # What one migration costs: nothing of it is the watcher's.
    assert [one.method for one in watched.placement.requests[boot_requests:]] == ['GET', 'GET', 'POST', 'PUT']
    assert any('completed' in line for line in watcher.logs)


def test_the_watcher_sees_what_is_over_at_the_end_and_says_when(watched):
    watched.simulation.advance(2.5)
    other = watched.world.hypervisors['host3']
    other.spawn(watched.instance)
    watched.simulation.advance(1)
    other.delete(watched.instance.uuid)
    watched.world.violations.clear()
    assert found(watched) == set()
    assert [(one.id, one.at) for one in watched.watcher.violations if one.id == 'I1'] == [('I1', 1002.5)]
    assert {'I1', 'I5'} == set(seen(watched))


def test_the_watcher_sees_an_outcome_that_is_taken_back(watched):
    watched.world.hypervisors['host1'].faults.stall('post_live_migration_at_source')
    assert watched.live_migrate(watched.instance).status_int == 202
    watched.simulation.advance(5)
    assert watched.migrations()[0].outcome == 'forward'
    sql(watched, "UPDATE migrations SET outcome = 'back'")
    watched.watcher.look()
    assert seen(watched) == [], 'nobody has committed anything'
    watched.database.instances.update(watched.instance.uuid, locked_by=None)
    assert {'I14', 'I2'} == set(seen(watched))


def test_the_watcher_sees_a_queue_that_is_out_of_order(watched):
    watched.world.hypervisors['host1'].faults.stall('copying')
    others = [watched.boot(name, 'host1') for name in ('two', 'three')]
    for instance in (watched.instance, *others):
        assert watched.live_migrate(instance, host='host2').status_int == 202
        watched.simulation.advance(1)
    hypervisor = watched.world.hypervisors['host1']
    assert seen(watched) == []
    with watched.world.lock:
        # The third starts in the place of the first, which is before the second.
        hypervisor.jobs[others[1].uuid] = hypervisor.jobs.pop(watched.instance.uuid)
        watched.world.record('host1', 'job started', others[1].uuid, 'host1/1')
    assert seen(watched) == ['I10']
    assert 'which came first' in watched.watcher.violations[0].what


def test_the_watcher_sees_a_stop_that_takes_too_long(watched):
    compute = watched.computes['host1']
    compute.cleanup_host()
    assert seen(watched) == []
    watched.processes['host1'] = watched.simulation.process('host1')
    compute = watched.start_compute('host1')
    compute._served.stop = lambda: None
    compute._registration.stop = lambda: watched.world_threads.sleep(2.5)
    compute.cleanup_host()
    assert seen(watched) == ['I13']


def test_only_a_simulated_cloud_can_be_watched(cloud):
    simulation, cloud.simulation = cloud.simulation, None
    try:
        with pytest.raises(ValueError, match='stands still'):
            Watcher(cloud)
    finally:
        cloud.simulation = simulation


# --- the fence -------------------------------------------------------------------------------------------------------


def told(fence, epoch, refusal=None, seen=None, pending=None, arrives=True):
    """Have one call arrive at boot b and be answered; return what the fence says of it."""
    head = command.Command(
        migration_uuid='m', instance_uuid='i', step='live_migration', epoch=epoch, owner='o', reply_to='c', boot_id='b'
    )
    message = collections.namedtuple('Message', 'body')(json.dumps({'args': {'command': head.to_primitive()}}))
    pending = pending or object()
    if arrives:
        fence.arrived(message, pending)
    answer = command.Answer(refusal=refusal, seen=epoch if seen is None else seen, boot_id='b')
    return list(fence.answered(pending, answer.to_primitive()))


def test_an_older_epoch_that_is_taken_in_is_found():
    fence = Fence()
    assert told(fence, 2) == []
    assert told(fence, 1) == ['boot b took in epoch 1 of migration m, having seen 2']


def test_an_older_epoch_that_is_refused_is_right_and_so_is_one_that_came_before():
    fence, early = Fence(), object()
    assert told(fence, 2, pending=early) == []
    assert told(fence, 5) == []
    assert told(fence, 4, refusal='epoch', seen=5) == []
    # Its answer was late, or it came twice: it had arrived before 5 did.
    assert told(fence, 2, seen=5, pending=early, arrives=False) == []


def test_what_is_kept_for_the_end_and_what_is_always_watched_are_told_apart():
    assert {one.when for one in invariants.INVARIANTS} == set(When)
