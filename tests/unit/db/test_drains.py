# SPDX-License-Identifier: Apache-2.0

"""Drains of hosts that another control plane has: no service of theirs is in this database."""

import datetime

import pytest

from migrator import exception
from migrator.db.drains import Known
from migrator.db.slots import Bounds
from migrator.objects.drain import Drain, Member


def test_drain_of_a_host_without_a_service_here_disables_nothing_here(scene):
    drains = scene.database.drains
    with pytest.raises(exception.ComputeHostNotFound):
        drains.accept(Drain(uuid='d1', host='host1'))
    drains.accept(Drain(uuid='d1', host='host1'), has_service=False)
    assert drains.get('d1').has_disabled_host is False
    with pytest.raises(exception.DrainInProgress):
        drains.accept(Drain(uuid='d2', host='host1'), has_service=False)


def test_hosts_and_guests_of_another_control_plane_are_checked_as_given(scene):
    drain = Drain(uuid='d1', host='host1', destinations=['host2'], order='priority', priorities={'guest1': 1})
    check = scene.database.drains.check
    check(drain, Known({'host1', 'host2'}, ['guest1']))
    for known, words in (
        (Known({'host2'}, ['guest1']), 'Compute host host1 could not be found'),
        (Known({'host1'}, ['guest1']), 'Compute host host2 could not be found'),
        (Known({'host1', 'host2'}, ['guest2']), 'guest1 is no guest of host1'),
    ):
        with pytest.raises(exception.Invalid, match=words):
            check(drain, known)


def test_one_drain_can_be_adopted_alone(scene):
    drains = scene.database.drains
    for number in (1, 2):
        drains.accept(Drain(uuid=f'd{number}', host=f'host{number}'), has_service=False)
    assert drains.adopt('me', 'd1') == 1
    assert [(drains.get(uuid).owner, drains.get(uuid).epoch) for uuid in ('d1', 'd2')] == [('me', 1), (None, 0)]


def test_guests_that_have_moved_show_how_long_others_take(scene):
    drains = scene.database.drains
    drains.accept(Drain(uuid='d1', host='host1', parallel=2), has_service=False)
    drains.adopt('me')
    began = drains.now()
    ended = began + datetime.timedelta(seconds=10)
    moved = {'source': 'host1', 'status': 'moved', 'began_at': began, 'ended_at': ended}
    members = [Member(instance_uuid=f'm{number}', size_mb=100, attempts=1, **moved) for number in range(3)]
    members.append(Member(instance_uuid='late', size_mb=100, attempts=2, **moved))
    members += [Member(instance_uuid=f'w{number}', size_mb=100, source='host1') for number in range(2)]
    drain = drains.write(drains.get('d1'), {'status': 'running'}, members, [])
    _, _, past, _ = scene.database.slots.recorded(['host1'])
    assert [(one.group, one.size_mb, one.seconds, one.source) for one in past] == 3 * [('d1', 100, 10.0, 'host1')]
    _, whole, places, _ = scene.database.places_of_drain(Bounds(), drain, members)
    assert whole.end is not None
    assert [places[f'w{number}'].position for number in range(2)] == [1, 2]
