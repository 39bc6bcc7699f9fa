# SPDX-License-Identifier: Apache-2.0

"""Bounds on migrations: what waits for a slot, what is admitted next, and what a user sees meanwhile."""

import pytest

from migrator.db.sql import watching
from tests.functional import migration_requests, state, test_evacuation
from tests.functional.faults import faults

pytestmark = pytest.mark.simulated(reason='it changes bounds of the conductors, and lets single seconds pass')

INBOUND = 'max_concurrent_inbound_live_migrations'
CLUSTER = 'conductor.max_cluster_live_migrations'
AHEAD = 'conductor.prepare_ahead'


def boot(cloud, *hosts):
    return [cloud.boot(f'guest{number}', host) for number, host in enumerate(hosts, 1)]


def begin(cloud, instances, host=None):
    """Request the migration of each server, and let what is admitted run; no copy gets on."""
    for instance in instances:
        faults(cloud, instance.host).stall('copying', instance_uuid=instance.uuid, sticky=True)
        assert cloud.live_migrate(instance, host).status_int == 202
    cloud.simulation.advance(1)


def rows(cloud, instances):
    return [cloud.migrations(instance)[-1] for instance in instances]


def all_complete(cloud, instances):
    migration_requests.go_on(cloud)
    cloud.wait()
    assert [row.status for row in rows(cloud, instances)] == ['completed'] * len(instances)


def chosen_at(cloud, instance):
    """Return when the destination of a server's newest migration was chosen."""
    entries = cloud.database.migrations.read_log(cloud.migrations(instance)[-1].uuid)
    return next(entry.at for entry in entries if entry.step == 'move_allocation')


def admitted(cloud, instances):
    return [row.dest_node is not None for row in rows(cloud, instances)]


@pytest.mark.cloud(options={INBOUND: 1})
def test_migration_that_waits_for_a_slot_fails_once_its_source_is_forced_down(cloud):
    instances = boot(cloud, 'host1', 'host3')
    begin(cloud, instances, 'host2')
    state.force_down(cloud, 'host3')
    cloud.simulation.advance(60)
    first, second = rows(cloud, instances)
    assert (first.status, second.status) == ('running', 'failed')
    assert 'host3 is unavailable at this time: it is forced down' in second.failure


@pytest.mark.cloud(options={INBOUND: 1})
def test_migration_to_its_own_host_fails_without_waiting_for_a_slot_there(cloud):
    (one,), own = boot(cloud, 'host1'), cloud.boot('own', 'host2')
    begin(cloud, [one], 'host2')
    assert cloud.live_migrate(own, 'host2').status_int == 202
    cloud.simulation.advance(10)
    first, second = rows(cloud, [one, own])
    assert (first.status, second.status) == ('running', 'failed')
    assert 'to current host host2: name another host, or none.' in second.failure


@pytest.mark.cloud(options={INBOUND: 1})
def test_second_migration_to_a_host_waits_accepted_and_then_moves(cloud):
    instances = boot(cloud, 'host1', 'host3')
    begin(cloud, instances, 'host2')
    first, second = rows(cloud, instances)
    assert (first.dest_node, second.status) == ('host2', 'accepted')
    assert second.waits_for == 'for an inbound slot at host2: 1 of 1'
    migration_requests.go_on(cloud)
    cloud.wait()
    for instance in instances:
        state.moved(cloud, instance, 'host2')


@pytest.mark.cloud(options={INBOUND: 1, 'max_concurrent_live_migrations': 4})
def test_another_host_is_taken_when_the_first_is_full(cloud):
    instances = boot(cloud, 'host1', 'host1', 'host1')
    begin(cloud, instances)
    assert sorted(row.dest_node or '' for row in rows(cloud, instances)) == ['', 'host2', 'host3']
    assert rows(cloud, instances)[2].waits_for == 'for an inbound slot at one of 2 hosts'
    all_complete(cloud, instances)


@pytest.mark.cloud(options={CLUSTER: 1})
def test_migration_that_waits_for_the_cluster_has_prepared_nothing_and_is_aborted(cloud):
    instances = boot(cloud, 'host1', 'host2')
    begin(cloud, instances)
    waits = rows(cloud, instances)[1]
    assert (waits.status, waits.waits_for) == ('accepted', 'for a slot of the cluster: 1 of 1')
    assert not [entry for entry in cloud.database.migrations.read_log(waits.uuid) if entry.step]
    assert migration_requests.abort(cloud, instances[1]).status_int == 202
    cloud.simulation.advance(1)
    assert rows(cloud, instances)[1].status == 'cancelled'
    migration_requests.go_on(cloud)
    cloud.wait()
    state.moved(cloud, instances[0], 'host2')


@pytest.mark.cloud(options={AHEAD: 0})
def test_nothing_is_prepared_ahead_of_a_free_slot_of_the_source(cloud):
    instances = boot(cloud, 'host1', 'host1', 'host2')
    begin(cloud, instances)
    assert admitted(cloud, instances) == [True, False, True]
    assert rows(cloud, instances)[1].waits_for == 'for a slot at source host1: 1 of 1'
    all_complete(cloud, instances)


@pytest.mark.cloud(options={AHEAD: 1})
def test_as_many_as_configured_are_prepared_ahead(cloud):
    instances = boot(cloud, 'host1', 'host1', 'host1')
    begin(cloud, instances)
    assert admitted(cloud, instances) == [True, True, False]


@pytest.mark.cloud(options={INBOUND: 1})
def test_end_of_a_migration_admits_the_oldest_that_waits(cloud, operator):
    instances = boot(cloud, 'host1', 'host3', 'host1')
    begin(cloud, instances, 'host2')
    assert admitted(cloud, instances) == [True, False, False]
    shown = operator.shows(instances[2])
    assert 'It waits: for an inbound slot at host2: 1 of 1.' in shown
    assert 'It is number 2 of the 2 migrations that wait for a slot.' in shown
    migration_requests.go_on_with(cloud, instances[0])
    cloud.simulation.run_until(lambda: rows(cloud, instances)[0].ended)
    cloud.simulation.run_until(lambda: any(admitted(cloud, instances)[1:]), timeout=2)
    assert admitted(cloud, instances)[1:] == [True, False]


@pytest.mark.cloud(options={CLUSTER: 2})
def test_changed_bound_interrupts_nothing_and_admits_what_waits(cloud):
    instances = boot(cloud, 'host1', 'host2', 'host3')
    begin(cloud, instances)
    assert admitted(cloud, instances) == [True, True, False]
    cloud.set_option('conductor1', CLUSTER, 1)
    cloud.simulation.advance(10)
    assert admitted(cloud, instances) == [True, True, False]
    cloud.set_option('conductor1', CLUSTER, 0)
    cloud.simulation.advance(5)
    assert admitted(cloud, instances) == [True, True, True]


@pytest.mark.cloud(options={CLUSTER: 1}, hosts=4)
def test_next_destination_after_a_failed_one_keeps_the_slot_of_the_cluster(cloud):
    faults(cloud, 'host2').fail('pre_live_migration', 'host2 has a bad day')
    instances = boot(cloud, 'host1', 'host3')
    begin(cloud, instances)
    assert rows(cloud, instances)[0].attempt == 2
    assert admitted(cloud, instances) == [True, False]


@pytest.mark.cloud(options={INBOUND: 1})
def test_stuck_migration_keeps_its_slot_until_it_goes_on(cloud):
    stall = faults(cloud, 'host2').stall('pre_live_migration', sticky=True)
    instances = boot(cloud, 'host1', 'host3')
    begin(cloud, instances, 'host2')
    cloud.simulation.run_until(lambda: rows(cloud, instances)[0].stuck_reason, timeout=600)
    cloud.simulation.advance(60)
    assert admitted(cloud, instances) == [True, False]
    assert rows(cloud, instances)[1].waits_for == 'for an inbound slot at host2: 1 of 1'
    faults(cloud, 'host2').clear('pre_live_migration')
    stall.release()
    all_complete(cloud, instances)


@pytest.mark.cloud(options={CLUSTER: 1})
def test_answer_below_2_34_does_not_wait_for_a_slot(cloud):
    instances = boot(cloud, 'host1', 'host2')
    begin(cloud, instances[:1])
    asked = cloud.simulation.time
    assert cloud.live_migrate(instances[1], version='2.30').status_int == 202
    assert cloud.simulation.time - asked < 1
    assert rows(cloud, instances)[1].waits_for_slot


def test_without_a_bound_nothing_counts_slots(cloud):
    statements = []
    watching.watch(cloud.database.engine, lambda statement, _values: statements.append(statement))
    (instance,) = boot(cloud, 'host1')
    begin(cloud, [instance])
    migration_requests.go_on(cloud)
    cloud.wait()
    assert not [text for text in statements if 'slot_lock' in text or 'waits_for LIKE' in text]


@pytest.mark.cloud(options={INBOUND: 1}, hosts=4)
def test_evacuation_waits_for_an_inbound_slot_and_takes_one(cloud):
    moves, later = boot(cloud, 'host3', 'host4')
    dead = test_evacuation.boot(cloud, 'dead', 'host1')
    begin(cloud, [moves], 'host2')
    test_evacuation.lose(cloud, 'host1')
    test_evacuation.evacuate(cloud, dead, 'host2')
    cloud.simulation.advance(1)
    assert rows(cloud, [dead])[0].waits_for == 'for an inbound slot at host2: 1 of 1'
    begin(cloud, [later], 'host2')
    migration_requests.go_on(cloud)
    cloud.wait()
    # The start of the guest takes no time here, and a copy does.
    assert chosen_at(cloud, dead) <= chosen_at(cloud, later)
    assert [(row.status, row.failure) for row in rows(cloud, [dead, later])] == [('done', None), ('completed', None)]
    test_evacuation.come_back(cloud, 'host1')
    cloud.simulation.advance(60)
