# SPDX-License-Identifier: Apache-2.0


"""Guests that leave a host at once share requests to Placement, and each ends as it would alone."""

import pytest

from migrator.conductor import registry
from migrator.placement_client import allocations
from migrator.testing.placement_faults import Fault
from tests.functional import migration_requests

pytestmark = pytest.mark.simulated(reason='requests to Placement take their time on its clock')

GUESTS = 6
#: The requests that move one guest each; then one request moves all others.
ALONE = 2
#: What may happen to a write. An odd document is a fault of reads.
FAULTS = [fault for fault in Fault if fault is not Fault.ODD]


@pytest.fixture
def guests(cloud):
    """Guests of host1; each request to Placement takes some time."""
    booted = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(GUESTS)]
    world = cloud.threads_for('world')
    cloud.placement.before_request = lambda *_: world.sleep(0.02)
    yield booted
    cloud.placement.before_request = None


def held(cloud, instance):
    return allocations.read(cloud.placement_client, instance.uuid)


def leave(cloud, guests):
    """Migrate all guests and return the statuses in which they end."""
    for guest in guests:
        assert cloud.live_migrate(guest).status_int == 202
    cloud.wait()
    return [cloud.migrations(guest)[-1].status for guest in guests]


def posts(cloud):
    return [method for method, url in cloud.adapter.sent if (method, url) == ('POST', '/allocations')]


def test_all_but_the_first_guests_are_moved_by_one_request(cloud, guests):
    assert leave(cloud, guests) == ['completed'] * GUESTS
    assert len(posts(cloud)) == ALONE + 1


@pytest.mark.parametrize('fault', FAULTS)
def test_all_guests_leave_whatever_happens_to_the_joint_request(cloud, guests, fault):
    cloud.adapter.inject(fault, method='POST', url='^/allocations$', skip=ALONE)
    assert leave(cloud, guests) == ['completed'] * GUESTS
    cloud.adapter.deliver()
    if fault in (Fault.CONFLICT, Fault.REFUSED):
        assert len(posts(cloud)) == ALONE + 1 + GUESTS - ALONE
    assert len({tuple(held(cloud, guest).allocations) for guest in guests}) == 2


@pytest.mark.parametrize('fault', [None, Fault.TIMEOUT_NOT_DONE, Fault.TIMEOUT_DONE, Fault.TIMEOUT_LATE])
@pytest.mark.breaks('I4', 'I5', reason='a guest holds something of another host')
def test_a_guest_that_holds_something_of_another_host_leaves_with_the_others(cloud, guests, fault):
    odd = guests[-1]
    before = held(cloud, odd)
    rest = {cloud.database.services.places(odd.uuid, host='host3')[0].uuid: {'VCPU': 1}}
    write = allocations.Write(
        consumer=registry.consumer_of(odd), allocations={**before.allocations, **rest}, generation=before.generation
    )
    allocations.write_all(cloud.placement_client, [write])
    if fault is not None:
        cloud.adapter.inject(fault, method='POST', url='^/allocations$', skip=ALONE, times=2)
    assert leave(cloud, guests) == ['completed'] * GUESTS
    assert len(held(cloud, odd).allocations) == 1


@pytest.mark.parametrize('late', [False, True])
def test_an_abort_of_one_guest_leaves_the_others_to_move(cloud, guests, late):
    fault = Fault.TIMEOUT_LATE if late else Fault.TIMEOUT_DONE
    cloud.adapter.inject(fault, method='POST', url='^/allocations$', skip=ALONE)
    for guest in guests:
        assert cloud.live_migrate(guest).status_int == 202
    cloud.simulation.run_until(lambda: len(posts(cloud)) > ALONE)
    cloud.simulation.advance(0.03)
    aborted = guests[-1]
    assert migration_requests.abort(cloud, aborted).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(aborted)[-1].ended)
    cloud.adapter.deliver()
    cloud.wait()
    assert [cloud.migrations(guest)[-1].status for guest in guests] == ['completed'] * (GUESTS - 1) + ['cancelled']
