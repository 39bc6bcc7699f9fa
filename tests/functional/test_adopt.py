# SPDX-License-Identifier: Apache-2.0

"""Guests of a host that are not registered: they are adopted with the option, and else logged."""

import itertools
import logging

import pytest

from migrator.objects import Flavor, Instance
from migrator.placement_client import allocations
from migrator.testing.placement_faults import Fault
from tests.functional import migration_requests, state

pytestmark = [
    pytest.mark.simulated(reason='it puts guests on hosts by hand'),
    pytest.mark.breaks('I5', reason='a guest that is put there by hand has no allocation yet'),
]

FLAVOR = Flavor(name='hand-made', vcpus=2, memory_mb=1024, root_gb=5)


def a_stranger(cloud, host='host1', flavor=FLAVOR):
    """Put a guest on a host without registering it."""
    instance = Instance(
        uuid=cloud.new_uuid(), name='stranger', project_id='p', user_id='u', host=host, node=host, flavor=flavor
    )
    cloud.world.hypervisors[host].spawn(instance)
    return instance.uuid


def start_again(cloud, host='host1', **options):
    """Stop a compute service, and start it with other options."""
    cloud.computes.pop(host).cleanup_host()
    cloud.options.update(options)
    cloud.start_compute(host)
    cloud.simulation.run_until(cloud.up)
    cloud.simulation.advance(1)


def known(cloud):
    return {one.uuid: one for one in cloud.database.instances.list({})}


def test_a_guest_is_adopted_with_what_it_has_and_can_be_moved(cloud):
    uuid = a_stranger(cloud)
    before = cloud.world.hypervisors['host1'].describe(uuid)
    start_again(cloud, **{'compute.adopt_guests': True})
    found = known(cloud)[uuid]
    assert (found.host, found.vm_state, found.project_id) == ('host1', 'active', 'migrator')
    assert found.flavor.resources() == {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 5}
    node = next(node for node in cloud.database.services.list_nodes() if node.host == 'host1')
    held = allocations.read(cloud.placement_client, uuid).allocations
    assert held == {node.uuid: {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 5}}
    assert cloud.world.hypervisors['host1'].describe(uuid) == before
    body = {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}
    assert cloud.request('POST', f'/servers/{uuid}/action', body).status_int == 202
    cloud.wait()
    assert known(cloud)[uuid].host != 'host1'


def test_a_second_start_adopts_nothing_twice(cloud):
    uuid = a_stranger(cloud)
    start_again(cloud, **{'compute.adopt_guests': True})
    first = known(cloud)
    start_again(cloud)
    assert known(cloud) == first
    assert uuid in first


@pytest.mark.breaks('I1', reason='it was moved by hand')
def test_guest_registered_on_another_host_is_logged_with_both_hosts(cloud, caplog):
    uuid = a_stranger(cloud)
    cloud.world.hypervisors['host1'].shut_off(uuid)
    start_again(cloud, **{'compute.adopt_guests': True})
    before = known(cloud)[uuid]
    other = Instance(uuid=uuid, name='stranger', project_id='p', user_id='u', host='host2', node='host2', flavor=FLAVOR)
    cloud.world.hypervisors['host2'].spawn(other)
    start_again(cloud, 'host2')
    assert known(cloud)[uuid] == before
    assert f'guest {uuid}: it is on host host2 (active), but the database has it on host1 (active)' in caplog.text


def test_guest_without_room_in_placement_is_logged_and_the_others_are_adopted(cloud, caplog):
    huge = Flavor(name='huge', vcpus=1, memory_mb=10_000_000, root_gb=1)
    too_big, other = a_stranger(cloud, flavor=huge), a_stranger(cloud)
    start_again(cloud, **{'compute.adopt_guests': True})
    assert set(known(cloud)) == {other}
    assert f'Not adopting guest {too_big} of host host1' in caplog.text
    assert not allocations.read(cloud.placement_client, too_big).allocations


def test_placement_that_is_away_for_a_moment_is_waited_for(cloud):
    uuid = a_stranger(cloud)
    cloud.adapter.inject(Fault.UNREACHABLE, method='PUT', url=f'/allocations/{uuid}')
    start_again(cloud, **{'compute.adopt_guests': True})
    cloud.simulation.run_until(lambda: uuid in known(cloud))


# --- Placement stays away --------------------------------------------------------------------------------------------

ADOPTS = {'compute.adopt_guests': True}
#: Longer than any test.
ALWAYS = 10**6


def away_for(cloud, *uuids):
    """Have Placement away whenever it is asked for these guests, and for these alone."""
    for uuid in uuids:
        cloud.adapter.inject(Fault.UNREACHABLE, url=f'/allocations/{uuid}', times=ALWAYS)


def asked_for(cloud, uuids):
    """Return for which guests Placement has been asked."""
    return [uuid for uuid in uuids if any(uuid in url for _method, url in cloud.adapter.sent)]


def not_adopted(caplog):
    """Return what the log warns of guests that are not adopted."""
    reported = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in reported if 'Not adopting' in line]


@pytest.mark.cloud(options={'conductor.poll_concurrency': 1}, auto_converge_after=0)
def test_while_placement_is_away_for_those_to_be_adopted_a_migration_is_looked_after_as_ever(cloud):
    moving = cloud.boot('one', 'host1', memory_mb=1024, dirty_rate=2000.0)
    assert cloud.live_migrate(moving, 'host2').status_int == 202
    state.when(cloud, moving, 'running')
    cloud.simulation.advance(5)
    away_for(cloud, *(a_stranger(cloud, 'host3') for _ in range(5)))
    start_again(cloud, 'host3', **ADOPTS)
    before = cloud.migrations(moving)[-1].memory_processed
    cloud.simulation.advance(6)
    assert cloud.migrations(moving)[-1].memory_processed > before
    assert migration_requests.force_complete(cloud, moving).status_int == 202
    cloud.wait(60)
    migration_requests.completed(cloud, moving)


def test_placement_that_stays_away_ends_the_adoption_with_one_log_line_and_the_next_start_goes_on(cloud, caplog):
    strangers = [a_stranger(cloud) for _ in range(3)]
    away_for(cloud, *strangers)
    start_again(cloud, **ADOPTS)
    cloud.simulation.advance(60)
    assert known(cloud) == {}
    (reported,) = not_adopted(caplog)
    assert reported.startswith('Not adopting 3 guests of host host1')
    assert 'compute service starts again' in reported
    assert 'Placement is not reachable' in reported
    assert len(asked_for(cloud, strangers)) == 1
    cloud.adapter._plans.clear()
    start_again(cloud)
    assert set(known(cloud)) == {*strangers}


def test_failure_with_one_guest_is_logged_and_the_others_are_adopted(cloud, caplog):
    odd, other = a_stranger(cloud), a_stranger(cloud)
    # no driver should say this, and the conductor cannot count it
    cloud.world.hypervisors['host1'].faults.lie(
        'get_instance', lambda truth: truth.replace(flavor=FLAVOR.replace(vcpus='many')), instance_uuid=odd, sticky=True
    )
    start_again(cloud, **ADOPTS)
    assert set(known(cloud)) == {other}
    assert [odd in line for line in not_adopted(caplog)] == [True]


def test_error_that_ends_an_adoption_is_logged(cloud, caplog, monkeypatch):
    a_stranger(cloud)
    instances = cloud.conductors['conductor1'].tools.database.instances
    listed, times = instances.list, itertools.count(1)

    def break_down(filters):
        # first the unknown guests are looked for, then those to adopted
        if next(times) == 2:
            raise RuntimeError('the database is on fire')
        return listed(filters)

    monkeypatch.setattr(instances, 'list', break_down)
    start_again(cloud, **ADOPTS)
    assert 'the database is on fire' in caplog.text
    assert 'Could not adopt the guests of host host1' in caplog.text
    assert known(cloud) == {}


@pytest.mark.not_quiet(reason='its conductor has stopped')
def test_a_conductor_that_stops_ends_what_it_adopts_and_says_what_is_left(cloud, caplog):
    for host in ('host1', 'host2', 'host3'):
        away_for(cloud, a_stranger(cloud, host), a_stranger(cloud, host))
        start_again(cloud, host, **ADOPTS)
    before, stopped = cloud.simulation.time, []

    def stop():
        cloud.conductors.pop('conductor1').stop()
        stopped.append(cloud.simulation.time)

    cloud.processes['conductor1'].start(stop, name='stop')
    cloud.simulation.run_until(lambda: stopped)
    assert stopped[0] - before < 1
    reported = not_adopted(caplog)
    assert [line.partition(' until ')[0] for line in sorted(reported)] == [
        f'Not adopting 2 guests of host host{n}' for n in (1, 2, 3)
    ]
