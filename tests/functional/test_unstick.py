# SPDX-License-Identifier: Apache-2.0

"""A stuck migration: retried, or abandoned with its guest on either host, despite failures."""

import json

import pytest
import sqlalchemy as sa

from migrator.conductor.migration import settle
from migrator.db import cleanups, models
from migrator.db.cleanups import Cleanup
from migrator.objects.protocol import GuestState
from migrator.objects.steps import ABANDON_ALLOCATIONS, ABANDON_CLEAN
from migrator.testing.placement_faults import Fault
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, AtCommit, boot_failing, by_turns, faults
from tests.reasons import stuck_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes'),
]


@pytest.fixture(autouse=True)
def short_copies(monkeypatch):
    """A copy whose source is unreachable is late at once."""
    monkeypatch.setattr(settle, 'SECONDS_PER_GIB', 0)


def row(cloud, instance):
    return cloud.migrations(instance)[-1]


def is_stuck(cloud, instance):
    cloud.simulation.run_until(lambda: row(cloud, instance).stuck_reason, timeout=300)
    return instance


def lost_power(cloud):
    """The source has lost its power while it copied; it is not declared fenced."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migration_requests.running(cloud, instance)
    cloud.world.hypervisors['host1'].power_off()
    state.kill(cloud, 'host1')
    return is_stuck(cloud, instance)


def split(cloud):
    """The guest has moved, and the source runs it too."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    stall = faults(cloud, 'host1').stall('post_live_migration_at_source')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    state.kill(cloud, 'host1')
    stall.release()
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    cloud.world.hypervisors['host1'].spawn(instance)
    state.restart(cloud, 'host1')
    return is_stuck(cloud, instance)


def ended(cloud, instance, host):
    """Assert that a server's newest migration is abandoned, in Placement as in the row."""
    found = row(cloud, instance)
    assert (found.status, found.stuck_reason) == ('error', None)
    assert found.failure == f'Abandoned by ada with the guest on {host}.'
    shown = state.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-SRV-ATTR:host'], shown['OS-EXT-STS:task_state']) == ('ERROR', host, None)
    assert cloud.database.instances.get(instance.uuid).node == getattr(
        found, 'source_node' if host == 'host1' else 'dest_node'
    )
    assert state.allocations(cloud) == {instance.uuid: {host: instance.flavor.resources()}}
    assert state.result(cloud, instance) == ('Error', found.failure)


def everything_in(cloud):
    """Return every row of the database on migrations, and all allocations and guests."""
    tables = (models.Migration, models.SagaLog, models.Cleanup, models.Instance, models.InstanceAction)
    with cloud.database.engine.reader() as session:
        rows = {
            table.__tablename__: [dict(one) for one in session.execute(sa.select(table.__table__)).mappings()]
            for table in tables
        }
    guests = {one.uuid: state.guests(cloud, one) for one in cloud.database.instances.list()}
    return json.dumps([rows, state.allocations(cloud), guests, cloud.waiting()], default=str)


# --- refusals, and the dry run ---------------------------------------------------------------------------------------


def test_migration_that_is_not_stuck_is_neither_retried_nor_abandoned(cloud, operator):
    instance = cloud.boot('one', 'host1')
    migration_requests.running(cloud, instance)
    uuid = row(cloud, instance).uuid
    before = everything_in(cloud)
    assert operator('migration', 'retry', uuid) == (1, '')
    assert operator('migration', 'abandon', uuid, '--guest-on', 'host1', '--yes') == (1, '')
    assert everything_in(cloud) == before
    migration_requests.go_on(cloud)
    cloud.wait()
    assert operator('migration', 'abandon', uuid, '--guest-on', 'host1', '--yes') == (1, '')
    state.completed(cloud, instance, 'host2')


def test_a_host_that_has_no_part_in_it_is_refused(cloud, operator):
    instance = lost_power(cloud)
    before = everything_in(cloud)
    words = ('migration', 'abandon', row(cloud, instance).uuid, '--guest-on', 'host3', '--yes')
    assert operator(*words) == (2, '')
    assert everything_in(cloud) == before


@pytest.mark.parametrize('words', [('retry', '--dry-run'), ('abandon',), ('abandon', '--dry-run')])
@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_a_dry_run_changes_nothing(cloud, operator, words, host):
    instance = lost_power(cloud)
    verb, *options = words
    on = ('--guest-on', host) if verb == 'abandon' else ()
    before = everything_in(cloud)
    status, text = operator('migration', verb, row(cloud, instance).uuid, *on, *options)
    assert status == 0
    assert 'Nothing was changed' in text
    assert 'is down' in text
    assert everything_in(cloud) == before


# --- retry -----------------------------------------------------------------------------------------------------------


@pytest.mark.cloud(options={'conductor.post_max_attempts': 3})
def test_a_source_that_could_not_be_restored_is_tried_again_from_the_start(cloud, operator):
    instance = boot_failing(cloud)
    faults(cloud, 'host1').fail('rollback_live_migration_at_source', 'no such socket', sticky=True)
    before = state.everything(cloud)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    is_stuck(cloud, instance)
    uuid = row(cloud, instance).uuid
    faults(cloud, 'host1').clear()
    # One more failure would be one too many, were the others still counted.
    faults(cloud, 'host1').fail('rollback_live_migration_at_source', 'no such socket')
    status, text = operator('migration', 'retry', uuid)
    assert (status, 'no longer stuck' in text) == (0, True), text
    cloud.wait()
    state.failed(cloud, instance, before, '')
    assert row(cloud, instance).retry_requested_at is None
    reported = operator.shows(instance)
    assert 'ada requested a retry' in reported
    assert 'rollback_live_migration_at_source at host1: done' in reported


def test_retry_request_without_a_wake_up_is_found_by_the_sweep_and_by_a_takeover(cloud):
    instance = lost_power(cloud)
    cloud.database.requests.request_retry(row(cloud, instance), 'ada')
    cloud.simulation.run_until(lambda: row(cloud, instance).retry_requested_at is None, timeout=30)
    assert row(cloud, instance).stuck_reason
    cloud.database.requests.request_retry(row(cloud, instance), 'ada')
    state.kill(cloud, 'conductor1')
    cloud.start_conductor('conductor2')
    cloud.world.hypervisors['host1'].power_on()
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    assert row(cloud, instance).retry_requested_at is None
    assert state.migration(cloud, instance)['status'] == 'failed'


# --- abandon ---------------------------------------------------------------------------------------------------------


def test_abandoned_on_the_source_its_destination_is_cleaned(cloud, operator):
    instance = lost_power(cloud)
    status, text = operator('migration', 'abandon', row(cloud, instance).uuid, '--guest-on', 'host1', '--yes')
    assert (status, 'host2: done' in text) == (0, True), text
    ended(cloud, instance, 'host1')
    assert list(state.guests(cloud, instance)) == ['host1']
    assert cloud.database.cleanups.list() == []


def test_abandon_on_the_destination_defers_a_blocked_cleanup_at_a_source_that_is_down(cloud, operator, caplog):
    """Only the operator says that the guest is there, and the source may have the last copy of it."""
    instance = lost_power(cloud)
    uuid = row(cloud, instance).uuid
    assert operator('migration', 'abandon', uuid, '--guest-on', 'host2', '--yes')[0] == 0
    ended(cloud, instance, 'host2')
    (cleanup,) = cloud.database.cleanups.list()
    assert (cleanup.host, cleanup.step) == ('host1', 'post_live_migration_at_source')
    assert 'look where the guest is' in cleanup.blocked_because
    (line,) = [one for one in caplog.records if one.getMessage().endswith(cleanup.blocked_because)]
    assert line.levelname == 'ERROR'
    cloud.world.hypervisors['host1'].power_on()
    state.restart(cloud, 'host1')
    cloud.simulation.advance(60)
    assert cloud.world.hypervisors['host1'].describe(instance.uuid).state == GuestState.SHUTDOWN, 'it is not touched'
    # The operator has looked, and has started it where he said that it was: now it may go.
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    cloud.world.hypervisors['host2'].spawn(instance)
    assert 'observes first' in operator('migration', 'retry', uuid, '--dry-run')[1]
    assert len(cloud.database.cleanups.list()) == 1
    assert operator('migration', 'retry', uuid)[0] == 0
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list(), timeout=60)
    assert 'host1' not in state.guests(cloud, instance)


@pytest.mark.breaks('I1', 'I2', 'I5', reason='the test runs the guest a second time')
@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_abandoned_after_the_move_no_copy_that_runs_is_touched(cloud, operator, host):
    instance = split(cloud)
    assert row(cloud, instance).outcome == 'forward'
    other = 'host2' if host == 'host1' else 'host1'
    assert operator('migration', 'abandon', row(cloud, instance).uuid, '--guest-on', host, '--yes')[0] == 0
    ended(cloud, instance, host)
    cloud.simulation.advance(60)
    assert sorted(cloud.world.active_on(instance.uuid)) == ['host1', 'host2']
    (cleanup,) = cloud.database.cleanups.list()
    assert (cleanup.host, bool(cleanup.blocked_because)) == (other, True)


@pytest.mark.breaks('I1', 'I2', 'I5', reason='the test runs the guest a second time')
@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_abandoned_after_the_move_the_host_that_has_lost_its_copy_is_cleaned(cloud, operator, host):
    instance = split(cloud)
    other = 'host2' if host == 'host1' else 'host1'
    faults(cloud, 'host1').fail('get_guest')  # so that its end is not seen before it is abandoned
    cloud.database.requests.request_abandon(row(cloud, instance), host, 'ada')
    cloud.world.hypervisors[other].delete(instance.uuid)
    cloud.wait(LONG)
    ended(cloud, instance, host)
    assert list(state.guests(cloud, instance)) == [host]
    assert cloud.database.cleanups.list() == []


@pytest.mark.breaks('I4', 'I5', reason='the test writes an allocation by hand')
@pytest.mark.parametrize('host', ['host1', 'host2'])
@pytest.mark.parametrize('held', ['nothing', 'something else'])
def test_unknown_allocations_are_written_as_the_log_has_them(cloud, operator, host, held):
    instance = cloud.boot('one', 'host1', memory_mb=1024)
    faults(cloud, 'host1').fail('copying')
    stall = faults(cloud, 'host2').stall('rollback_live_migration_at_destination')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    adapter = cloud.placement.adapter()
    version = {'OpenStack-API-Version': 'placement 1.39'}
    for consumer in (instance.uuid, row(cloud, instance).uuid):
        now = adapter.get(f'/allocations/{consumer}', headers=version).json()
        amounts = {uuid: {'resources': {'VCPU': 1}} for uuid in now['allocations']} if held != 'nothing' else {}
        body = {**now, 'allocations': amounts}
        assert adapter.put(f'/allocations/{consumer}', json=body, headers=version).status_code == 204
    stall.release()
    is_stuck(cloud, instance)
    assert 'The allocations fit no known case' in row(cloud, instance).stuck_reason
    assert operator('migration', 'abandon', row(cloud, instance).uuid, '--guest-on', host, '--yes')[0] == 0
    ended(cloud, instance, host)


def test_abandon_while_placement_is_away_waits_and_states_why(cloud, operator):
    instance = lost_power(cloud)
    uuid = row(cloud, instance).uuid
    cloud.adapter.inject(Fault.UNREACHABLE, times=1000)
    status, text = operator('migration', 'abandon', uuid, '--guest-on', 'host1', '--yes', '--wait', '20')
    assert (status, 'has not ended yet' in text) == (1, True), text
    reported = operator.shows(instance)
    assert 'It waits: Placement is not reachable' in reported
    assert 'It is being abandoned' in reported
    assert operator('migration', 'retry', uuid) == (1, '')
    assert operator('migration', 'abandon', uuid, '--guest-on', 'host2', '--yes') == (1, '')
    cloud.adapter._plans.clear()
    # The same once more only waits for it.
    assert operator('migration', 'abandon', uuid, '--guest-on', 'host1', '--yes')[0] == 0
    ended(cloud, instance, 'host1')


def test_abandoned_migration_is_first_removed_from_the_queue(cloud, operator):
    """Whatever could still move the guest is gone before the allocations say where it is."""
    instance = cloud.boot('one', 'host1')
    migration_requests.queued(cloud, instance)
    cloud.world.hypervisors['host2'].delete(instance.uuid)
    found = row(cloud, instance)
    other = found.dest_compute
    cloud.world.hypervisors[other].delete(instance.uuid)
    with cloud.database.engine.writer() as session:
        values = stuck_for('the test says so')
        session.execute(sa.update(models.Migration).where(models.Migration.uuid == found.uuid).values(**values))
    cloud.database.requests.request_abandon(row(cloud, instance), 'host1', 'ada')
    cloud.simulation.run_until(lambda: row(cloud, instance).ended, timeout=LONG)
    assert found.uuid not in cloud.waiting()['host1']
    assert (row(cloud, instance).status, state.host_of(cloud, instance)) == ('error', 'host1')
    migration_requests.go_on(cloud)
    cloud.wait()
    assert cloud.world.effects('job started', instance.uuid) == []


@pytest.mark.breaks('I1', 'I2', 'I5', reason='the test destroys the only copy of a guest')
def test_a_guest_that_vanishes_from_the_queue_has_not_moved_to_a_host_that_is_down(cloud, operator):
    """No job was seen, so nothing shows that the destination has it; an abort is not "completed"."""
    instance = cloud.boot('one', 'host1')
    migration_requests.queued(cloud, instance)
    destination = row(cloud, instance).dest_compute
    state.kill(cloud, destination)
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    assert migration_requests.abort(cloud, instance).status_int == 202
    is_stuck(cloud, instance)
    assert 'No migration job of the guest was seen' in row(cloud, instance).stuck_reason
    assert state.host_of(cloud, instance) == 'host1'
    assert operator('migration', 'abandon', row(cloud, instance).uuid, '--guest-on', 'host1', '--yes')[0] == 0
    assert (row(cloud, instance).status, state.host_of(cloud, instance)) == ('error', 'host1')
    assert migration_requests.verdict(cloud, instance) == ('Error', 'error: the migration was abandoned')
    migration_requests.go_on(cloud)


# --- deferred cleanups, and missing reports ------------------------------------------------------------------------


def defer(cloud, instance, host, step, blocked_because=None):
    """A host has a cleanup of a server's migration, sent in a later epoch than the migration's own."""
    found = row(cloud, instance)
    cleanup = Cleanup(
        host=host,
        migration_uuid=found.uuid,
        instance_uuid=instance.uuid,
        step=step,
        reason='the test says so',
        epoch=found.epoch + 20,
        blocked_because=blocked_because,
    )
    with cloud.database.engine.writer() as session:
        cleanups.write(session, cleanup)


@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_earlier_deferred_cleanup_does_not_remove_the_last_copy(cloud, operator, host):
    """It was deferred when the migration went forward; where the guest is now was not observed."""
    instance = lost_power(cloud)
    defer(cloud, instance, 'host1', 'post_live_migration_at_source')
    assert operator('migration', 'abandon', row(cloud, instance).uuid, '--guest-on', host, '--yes')[0] == 0
    ended(cloud, instance, host)
    cloud.world.hypervisors['host1'].power_on()
    state.restart(cloud, 'host1')
    cloud.simulation.advance(60)
    assert cloud.world.hypervisors['host1'].describe(instance.uuid).state == GuestState.SHUTDOWN
    # If the operator has named the host of the guest, it is not done at all.
    deferred = [(cleanup.host, 'look' in cleanup.blocked_because) for cleanup in cloud.database.cleanups.list()]
    assert deferred == ([] if host == 'host1' else [('host1', True)])


def test_deferred_cleanup_done_by_abandon_is_removed(cloud, operator):
    instance = lost_power(cloud)
    defer(cloud, instance, 'host2', 'rollback_live_migration_at_destination', blocked_because='look first')
    defer(cloud, instance, 'host2', 'post_live_migration_at_destination', blocked_because='look first')
    assert operator('migration', 'abandon', row(cloud, instance).uuid, '--guest-on', 'host1', '--yes')[0] == 0
    ended(cloud, instance, 'host1')
    assert list(state.guests(cloud, instance)) == ['host1']
    assert cloud.database.cleanups.list() == []


def test_cleanup_that_keeps_failing_at_the_destination_is_deferred(cloud, operator):
    instance = lost_power(cloud)
    stall = faults(cloud, 'host2').stall('rollback_live_migration_at_destination')
    uuid = row(cloud, instance).uuid
    status, text = operator('migration', 'abandon', uuid, '--guest-on', 'host1', '--yes', '--wait', '20')
    assert (status, 'has not ended yet' in text) == (1, True), text
    assert 'It waits: for host2 to end rollback_live_migration_at_destination.' in operator.shows(instance)
    cloud.simulation.run_until(lambda: row(cloud, instance).ended, timeout=75)
    ended(cloud, instance, 'host1')
    assert [cleanup.host for cleanup in cloud.database.cleanups.list()] == ['host2']
    stall.release()
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list(), timeout=60)


def test_abandon_with_source_that_keeps_its_job_needs_operator(cloud, operator):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migration_requests.running(cloud, instance)
    with cloud.database.engine.writer() as session:
        stuck = sa.update(models.Migration).where(models.Migration.uuid == row(cloud, instance).uuid)
        session.execute(stuck.values(**stuck_for('the test says so')))
    cloud.bus.faults = lambda message: 'lose' if message.method == 'live_migration_abort' else None
    cloud.database.requests.request_abandon(row(cloud, instance), 'host1', 'ada')
    cloud.simulation.advance(30)
    assert 'It waits: for host1 to abort the job' in operator.shows(instance)
    cloud.simulation.run_until(
        lambda: 'did not abort the job' in (row(cloud, instance).stuck_reason or ''), timeout=150
    )
    cloud.bus.faults = lambda message: None
    cloud.simulation.run_until(lambda: row(cloud, instance).ended, timeout=90)
    ended(cloud, instance, 'host1')


def test_a_source_that_does_not_have_the_guest_leaves_the_destination_as_it_is(cloud):
    """The operator who named this host has not looked: what the destination has may be all that is left."""
    instance = lost_power(cloud)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'wake' else None
    cloud.database.requests.request_abandon(row(cloud, instance), 'host1', 'ada')
    cloud.world.hypervisors['host1'].power_on()
    cloud.world.hypervisors['host1'].delete(instance.uuid)
    before = state.guests(cloud, instance)
    state.restart(cloud, 'host1')
    cloud.wait(LONG)
    ended(cloud, instance, 'host1')
    assert state.guests(cloud, instance) == before
    (cleanup,) = cloud.database.cleanups.list()
    assert (cleanup.host, 'does not have the guest' in cleanup.blocked_because) == ('host2', True)


def test_retry_with_unreachable_hosts_claims_nothing_about_the_guest(cloud, operator):
    instance = lost_power(cloud)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'poll_live_migrations' else None
    status, text = operator('migration', 'retry', row(cloud, instance).uuid, '--wait', '20')
    assert (status, 'no longer stuck' in text) == (1, False), text
    assert row(cloud, instance).stuck_reason
    assert row(cloud, instance).retry_requested_at is not None
    cloud.bus.faults = lambda message: None
    cloud.simulation.run_until(lambda: row(cloud, instance).retry_requested_at is None, timeout=30)
    assert row(cloud, instance).stuck_reason


@pytest.mark.cloud(options={'conductor.post_max_attempts': 1})
def test_control_characters_of_a_driver_are_escaped(cloud, operator):
    instance = boot_failing(cloud)
    faults(cloud, 'host1').fail('rollback_live_migration_at_source', 'no \x1b[2J socket', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    is_stuck(cloud, instance)
    status, text = operator('migration', 'retry', row(cloud, instance).uuid)
    assert (status, '\x1b' in text, '\\x1b[2J socket' in text) == (1, False, True), text


#: Its commits, from the raised epoch on, for a request that its sweep finds.
COMMITS = range(1, 8)


@pytest.mark.parametrize(('number', 'moment'), by_turns(COMMITS))
@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_a_conductor_that_dies_in_the_middle_is_followed_by_another_with_the_same_end(cloud, number, moment, host):
    instance = lost_power(cloud)
    at = AtCommit(cloud, number, moment, lambda: state.kill(cloud, 'conductor1'))
    cloud.database.requests.request_abandon(row(cloud, instance), host, 'ada')
    cloud.simulation.run_until(lambda: at.injected or row(cloud, instance).ended, timeout=60)
    assert at.injected or number > COMMITS[-1] - 1, 'there are fewer commits than are tried'
    cloud.database.engine.boundary = lambda what: None
    cloud.start_conductor('conductor2')
    cloud.wait(LONG)
    ended(cloud, instance, host)
    assert len(cloud.database.cleanups.list()) == (host == 'host2')
    steps = [one.step for one in cloud.database.migrations.steps(row(cloud, instance).uuid)]
    assert steps.count(ABANDON_CLEAN) == steps.count(ABANDON_ALLOCATIONS) == 1


def test_owner_that_does_not_know_the_request_cannot_write(cloud):
    """It was stuck when that was asked for; what has become a known case since is not gone on with."""
    instance = lost_power(cloud)
    cloud.bus.faults = lambda message: 'lose' if message.method == 'wake' else None
    cloud.database.requests.request_abandon(row(cloud, instance), 'host2', 'ada')
    state.force_down(cloud, 'host1')
    cloud.wait(LONG)
    ended(cloud, instance, 'host2')
