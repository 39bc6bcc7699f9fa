# SPDX-License-Identifier: Apache-2.0

"""Planted violations of the invariants of queues, epochs and messages."""

import concurrent.futures
import dataclasses
import datetime

import pytest

from migrator.db import slots
from migrator.db.conductors import ConductorBoot
from migrator.simulator.invariants import hosts
from migrator.simulator.world import World
from tests.reasons import stuck_for, waiting_for
from tests.unit.simulator import planting


def test_i10_more_jobs_than_slots(cloud):
    planting.effect(cloud, 'host1', 'job started')
    assert planting.found(cloud) == set()
    planting.effect(cloud, 'host1', 'job started')
    assert planting.found(cloud, quiet=False) == {'I10'}


def test_i11_key_of_ended_migration_in_queue(cloud):
    cloud.computes['host1']._waiting_live_migrations[cloud.migration.uuid] = concurrent.futures.Future()
    assert planting.found(cloud, quiet=False) == planting.found(cloud) == {'I11'}


def test_i11_key_of_unsent_migration_in_queue(copying):
    copying.computes['host3']._waiting_live_migrations[copying.second.uuid] = concurrent.futures.Future()
    assert planting.found(copying, quiet=False) == {'I11'}


def test_i11_leftover_thread(cloud):
    process = cloud.processes['host1']
    go_on = process.event()
    process.start(go_on.wait, name='left')
    cloud.simulation.run_ready()
    assert planting.found(cloud) == {'I11'}
    go_on.set()
    cloud.simulation.run_ready()
    assert planting.found(cloud) == set()


def test_i11_leftover_future(cloud):
    pool = cloud.computes['host1']._live_migration_executor
    process = cloud.processes['host1']
    go_on = process.event()
    future = pool.submit(go_on.wait)
    assert planting.found(cloud) == {'I11'}
    go_on.set()
    cloud.simulation.run_ready()
    assert future.done()
    assert planting.found(cloud) == set()


def test_i11_leftover_connection(cloud):
    with cloud.database.engine.sa_engine.connect():
        assert planting.found(cloud) == {'I11'}


def test_i13_stopped_queue_not_empty(copying):
    copying.computes['host1']._runner.queue._closed = True
    assert planting.found(copying, quiet=False) == {'I13'}


def test_i13_migration_cancelled_by_stop_ended_otherwise(cloud):
    planting.sql(
        cloud,
        "UPDATE migrations SET abort_cause = 'host-stop', abort_requested_at = '2026-01-01 00:00:00.000000'",
    )
    assert planting.found(cloud) == {'I13'}


def test_i13_migration_cancelled_by_stop_was_abandoned(cloud):
    planting.sql(
        cloud,
        "UPDATE migrations SET abort_cause = 'host-stop', abort_requested_at = '2026-01-01 00:00:00.000000',"
        " abandon_requested_at = '2026-01-01 00:00:00.000000', status = 'error'",
    )
    assert 'I13' not in planting.found(cloud)


def test_i16_boot_has_seen_uncommitted_epoch(cloud):
    cloud.computes['host1']._runner._records[cloud.migration.uuid].epoch = 99
    assert planting.found(cloud, quiet=False) == {'I16'}


def test_i16_epoch_with_two_owners(cloud):
    planting.sql(cloud, 'UPDATE migrations SET owner = ?', planting.UNKNOWN)
    assert planting.found(cloud, quiet=False) == {'I16'}


def test_i17_call_from_compute_to_compute(cloud):
    planting.send(cloud, 'compute:host1', 'compute.host2', 'pre_live_migration')
    assert planting.found(cloud, quiet=False) == {'I17'}


@pytest.mark.parametrize(
    ('bounds', 'wrong'),
    [
        (slots.Bounds(inbound=1), 'is number 2 to host2, the bound is 1'),
        (slots.Bounds(cluster=1), 'is number 2 of the cluster, the bound is 1'),
        (slots.Bounds(ahead=0), 'is number 2 from host1, 0 may be prepared ahead'),
        (slots.Bounds(2, 2, 1), None),
    ],
)
def test_i23_second_destination_beyond_a_bound(copying, bounds, wrong):
    world = World.of(copying)
    waits = copying.second.replace(dest_node=None)
    before = {**world.migrations, waits.uuid: waits}
    found = list(hosts.slots(dataclasses.replace(world, before=before, bounds=[bounds])))
    assert found == ([f'{waits.uuid} {wrong}'] if wrong else [])
    lowered = dataclasses.replace(world, before=world.migrations, bounds=[bounds])
    assert list(hosts.slots(lowered)) == [], 'a lowered bound takes nothing away'


@pytest.mark.parametrize(
    ('bounds', 'older', 'younger', 'wrong'),
    [
        (slots.Bounds(inbound=1), {}, {}, "('inbound', 'host2')"),
        (slots.Bounds(cluster=1), {}, {}, "('cluster', '')"),
        (slots.Bounds(ahead=0), {}, {}, "('source', 'host1')"),
        (slots.Bounds(inbound=2), {}, {}, None),
        (slots.Bounds(inbound=1), {'requested_host': 'host3'}, {}, None),
        (slots.Bounds(inbound=1), {'requested_host': None}, {}, None),
        (slots.Bounds(inbound=1), waiting_for('Placement'), {}, None),
        (slots.Bounds(inbound=1), stuck_for('why'), {}, None),
        (slots.Bounds(inbound=1), {'owner': None}, {}, None),
        (slots.Bounds(inbound=1), {}, {'attempt': 2}, None),
        (slots.Bounds(inbound=1), {}, {'id': 0}, None),
        (slots.Bounds(inbound=1), {}, {'migration_type': 'evacuation'}, "('inbound', 'host2')"),
    ],
)
def test_i28_slot_of_an_earlier_one(copying, bounds, older, younger, wrong):
    world = World.of(copying)
    waiting = {'dest_node': None, 'attempt': 1, 'owner': 'one', 'created_at': world.now}
    first = copying.migration.replace(**waiting, requested_host='host2').replace(**older)
    before = copying.second.replace(**waiting).replace(**younger)
    after = before.replace(dest_compute='host2', dest_node='host2')
    world = dataclasses.replace(
        world,
        bounds=[bounds],
        conductors=[ConductorBoot('one', 'first', world.now + datetime.timedelta(seconds=5))],
        before={first.uuid: first, before.uuid: before},
        migrations={first.uuid: first, after.uuid: after},
    )
    what = f'{after.uuid} took the last slot {wrong}, which the earlier {first.uuid} could have taken'
    assert list(hosts.slot_order(world)) == ([what] if wrong else [])


@pytest.mark.parametrize(
    ('owner', 'holder', 'wrong'),
    [
        ('one', {}, False),
        ('two', {}, True),
        ('two', {'lease_until': None}, False),
        ('two', {'lease_until': 7}, False),
        ('two', {'lease_until': 8}, True),
        ('two', {'broker_away_since': None}, False),
        ('two', {'server': 'second'}, False),
    ],
)
def test_i24_source_of_another_conductor(copying, owner, holder, wrong):
    world = World.of(copying)
    world = dataclasses.replace(world, lease=15)
    until = world.now + datetime.timedelta(seconds=10)
    changes = {
        name: value if isinstance(value, str) else world.now + datetime.timedelta(seconds=value or 0)
        for name, value in holder.items()
    }
    first = dataclasses.replace(ConductorBoot('one', 'first', until), **changes)
    kept = copying.migration.replace(owner='one')
    got, waited = (copying.second.replace(owner=who) for who in (owner, None))
    world = dataclasses.replace(
        world,
        conductors=[first, ConductorBoot('two', 'second', until)],
        migrations={kept.uuid: kept, got.uuid: got},
        before={kept.uuid: kept, got.uuid: waited},
    )
    found = [f'{got.uuid} went to two, and host1 belongs to one'] if wrong else []
    assert list(hosts.one_conductor(world)) == found
