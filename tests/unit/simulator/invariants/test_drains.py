# SPDX-License-Identifier: Apache-2.0

"""Planted violations of the invariants of drains."""

import dataclasses

import pytest

from migrator.db.drains import Event
from migrator.objects import Service
from migrator.objects.drain import Drain, Member, disabled_reason
from migrator.simulator.invariants import drains
from migrator.simulator.monitoring.drain_requests import DrainRequests
from migrator.simulator.world import World

DRAIN = Drain(uuid='drain1', host='host1', status='running', max_attempts=1)


def world_of(cloud, drain=DRAIN, members=(), **more):
    return dataclasses.replace(World.of(cloud), drains={drain.uuid: drain}, members={drain.uuid: members}, **more)


def member(cloud, **fields):
    return Member(instance_uuid=cloud.instance.uuid, **fields)


def drained(cloud, **fields):
    one = cloud.migration.replace(drain=DRAIN.uuid, requested_host=None, **fields)
    return {one.uuid: one}


def test_two_drains_of_a_host(cloud):
    world = world_of(cloud)
    second = dataclasses.replace(world, drains={**world.drains, 'drain2': DRAIN.replace(uuid='drain2')})
    assert list(drains.legal(world)) == []
    assert list(drains.legal(second)) == ['host1 has 2 drains in progress']


@pytest.mark.parametrize(
    ('fields', 'wrong'),
    [
        ({}, None),
        ({'source_compute': 'host3'}, 'of a drain of host1 leaves host3'),
        ({'drain': 'drain2', 'status': 'running'}, 'belongs to drain drain2, which does not exist'),
        ({'drain': 'drain2', 'status': 'completed'}, None),
        ({'dest_compute': 'host3'}, 'goes to host3, which is no destination of its drain'),
    ],
)
def test_migration_that_is_not_one_of_its_drain(cloud, fields, wrong):
    world = world_of(cloud, DRAIN.replace(destinations=['host2']))
    one = cloud.migration.replace(**{'drain': DRAIN.uuid, 'requested_host': None, **fields})
    found = list(drains.legal(dataclasses.replace(world, drained={one.uuid: one})))
    assert found == ([f'migration {one.uuid} {wrong}'] if wrong else [])


def test_more_migrations_than_the_bound(copying):
    now = {one.uuid: one.replace(drain=DRAIN.uuid) for one in (copying.migration, copying.second)}
    before = dict([next(iter(now.items()))])
    for parallel, wrong in ((1, True), (2, False), (None, False)):
        drain = DRAIN.replace(parallel=parallel)
        found = list(drains.legal(world_of(copying, drain, migrations=now, before=before)))
        assert bool(found) is wrong, found


def test_completed_drain_of_a_host_with_a_guest(cloud):
    drain = DRAIN.replace(status='completed', host='host2')
    world = world_of(cloud, drain, drains_before={drain.uuid: DRAIN})
    assert [one.partition(cloud.instance.uuid)[2] for one in drains.legal(world)] == [
        ' in the database',
        ' at the hypervisor',
        ' in Placement',
    ]
    assert (
        list(drains.legal(world_of(cloud, DRAIN.replace(status='completed'), drains_before={DRAIN.uuid: DRAIN}))) == []
    )


def test_drain_that_has_ended_with_a_member_that_waits(cloud):
    (found,) = drains.legal(world_of(cloud, DRAIN.replace(status='incomplete'), [member(cloud)]))
    assert found.endswith(f'has ended incomplete, but {cloud.instance.uuid} is waiting')


@pytest.mark.parametrize(
    ('drain', 'fields', 'wrong'),
    [
        ({'paused': True}, {}, None),
        ({}, {'reason': 'it is locked'}, None),
        ({}, {}, 'is running and does not show what it waits for'),
        ({'paused': True}, {'status': 'moving', 'mark': 'none'}, 'moves, but its migration is not there'),
        ({'status': 'cancelled'}, {'status': 'gone'}, 'is still disabled by it'),
    ],
)
def test_at_rest(cloud, drain, fields, wrong):
    one = DRAIN.replace(**drain)
    host = Service(
        uuid='service1', host='host1', binary='nova-compute', disabled=True, disabled_reason=disabled_reason(one)
    )
    found = list(drains.ends(world_of(cloud, one, [member(cloud, **fields)], services=[host])))
    assert [text.endswith(wrong) for text in found] == ([True] if wrong else [])


@pytest.mark.parametrize(
    ('statuses', 'wrong'),
    [
        (['waiting', 'moving', 'moving', 'moved'], None),
        (['waiting', 'moved'], 'moved from waiting to moved'),
        (['waiting', 'moving', 'moved', 'restore', 'moving', 'moved'], None),
        (['waiting', 'moving', 'restore', 'moving', 'moved'], 'moved from gone to moving'),
    ],
)
def test_moves_in_the_log(cloud, statuses, wrong):
    log = [
        Event(number, None, 'request', {'action': status, 'by': None})
        if status == 'restore'
        else Event(number, None, 'member', {'instance': cloud.instance.uuid, 'status': status})
        for number, status in enumerate(statuses)
    ]
    found = list(drains.moves(world_of(cloud, DRAIN, [member(cloud, status='moved')], drain_logs={DRAIN.uuid: log})))
    assert [text.endswith(wrong) for text in found] == ([True] if wrong else [])
    assert list(drains.moves(world_of(cloud, DRAIN, [member(cloud)], drain_logs={DRAIN.uuid: log})))


@pytest.mark.parametrize(
    ('statuses', 'wrong'),
    [
        (['accepted', 'running', 'completed', 'restore', 'running', 'restored'], None),
        (['accepted', 'completed'], f'drain {DRAIN.uuid} moved from accepted to completed'),
        (['running', 'completed', 'running'], f'drain {DRAIN.uuid} moved from completed to running'),
    ],
)
def test_status_of_a_drain_in_its_log(cloud, statuses, wrong):
    log = [
        Event(number, None, 'request', {'action': status, 'by': None})
        if status == 'restore'
        else Event(number, None, 'status', {'status': status})
        for number, status in enumerate(statuses)
    ]
    found = list(drains.moves(world_of(cloud, DRAIN, [], drain_logs={DRAIN.uuid: log})))
    assert found == ([wrong] if wrong else [])


class TestRequests:
    def found(self, world, requests=None):
        return list((requests or DrainRequests()).look(world))

    def test_migration_of_its_mark(self, copying):
        mine = member(copying, status='moving', mark=copying.migration.uuid)
        assert self.found(world_of(copying, DRAIN, [mine], drained=drained(copying))) == []

    def test_migration_without_a_mark_of_the_member(self, copying):
        mine = member(copying, status='moving', mark='another')
        without, of_none = self.found(world_of(copying, DRAIN, [mine], drained=drained(copying)))
        assert without.endswith('is in progress, but no member moves with it')
        assert 'was requested without a mark of its member' in of_none

    def test_mark_of_two_members(self, copying):
        mine = member(copying, status='moving', mark=copying.migration.uuid)
        members = [mine, mine.replace(instance_uuid='another')]
        assert 'is one of another member' in ' '.join(self.found(world_of(copying, DRAIN, members)))

    def test_more_migrations_than_attempts_unless_the_guest_came_back(self, copying):
        first, second = (drained(copying, uuid=uuid, status='failed') for uuid in ('first', 'second'))

        def look(requests, status, mark, rows):
            return self.found(
                world_of(copying, DRAIN, [member(copying, status=status, mark=mark)], drained=rows), requests
            )

        again = DrainRequests()
        assert look(again, 'moving', 'first', first) == []
        (found,) = look(again, 'moving', 'second', first | second)
        assert 'has requested 2 migrations' in found
        back = DrainRequests()
        assert look(back, 'moving', 'first', first) == []
        assert look(back, 'gone', 'first', first) == []
        assert look(back, 'moving', 'second', first) == []
        assert look(back, 'moving', 'second', first | second) == []
