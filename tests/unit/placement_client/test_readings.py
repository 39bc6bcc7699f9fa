# SPDX-License-Identifier: Apache-2.0

"""Reads of what the guests of a host hold, against the real Placement."""

import dataclasses

import pytest

from migrator import exception
from migrator.objects import Flavor
from migrator.objects.instance import stand_in
from migrator.placement_client import allocations
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement_faults import Fault, FaultyAdapter
from migrator.testing.simulation.threads import Simulation

HELD = {'VCPU': 1, 'MEMORY_MB': 64}


class Site:
    """A host with guests, and simulated threads that read what these hold.

    Each request to Placement takes a second.
    """

    def __init__(self, in_process, world, new_consumer, seed):
        self.simulation = Simulation(seed)
        self.threads = self.simulation.process('conductor')
        self.adapter = FaultyAdapter(in_process.adapter())
        self.host = world.host('host', VCPU=99, MEMORY_MB=9999, DISK_GB=99)
        self.shared = allocations.SharedReadings(
            PlacementClient(self.adapter), lambda _instance, host: self.host if host == 'host' else None, self.threads
        )
        self.client = world.client
        self.new_consumer = new_consumer
        self.results = {}
        in_process.before_request = self.wait

    def wait(self, *_request):
        """Let a request of the process take its time; the test itself does not wait."""
        if self.simulation.scheduler.me().acting is self.threads:
            self.simulation.world.sleep(1.0)

    def guest(self, held=None):
        """Return a guest that holds what its flavor wants, or something else."""
        consumer = self.new_consumer()
        if held != {}:
            allocations.claim(self.client, consumer, held or {self.host: HELD}, generation=None)
        flavor = Flavor(name='small', vcpus=1, memory_mb=64, root_gb=0)
        return dataclasses.replace(stand_in(consumer.uuid, 'host'), flavor=flavor)

    def read(self, *guests, host='host', others_follow=False):
        """Read what guests hold, each in a thread of its own."""
        for guest in guests:
            self.threads.start(self.read_one, guest, host, others_follow, name=guest.uuid)

    def read_one(self, guest, host, others_follow):
        """Note what a guest holds, or why that is not known."""
        try:
            found = self.shared.read(guest, host, others_follow)
        except exception.MigratorException as error:
            self.results[guest.uuid] = type(error)
        else:
            self.results[guest.uuid] = found.generation, dict(found.allocations)

    def run(self):
        """Run all threads and return the paths that were requested."""
        self.simulation.run()
        return [url.partition('?')[0] for _method, url in self.adapter.sent]


@pytest.fixture(params=range(3))
def site(request, in_process, world, new_consumer):
    made = Site(in_process, world, new_consumer, request.param)
    yield made
    made.simulation.close()


def test_guests_that_are_read_during_a_request_are_read_together(site):
    first, *others = [site.guest() for _ in range(6)]
    site.read(first)
    site.simulation.run_ready()
    site.read(*others)
    joint = [f'/resource_providers/{site.host}/allocations', '/resource_providers']
    assert site.run() == [f'/allocations/{first.uuid}', *joint]
    assert list(site.results.values()) == [(1, {site.host: HELD})] * 6
    assert site.shared._queues == {}


def test_one_or_two_guests_are_read_alone(site):
    first, second = site.guest(), site.guest()
    site.read(first)
    assert site.run() == [f'/allocations/{first.uuid}']
    site.read(first, second)
    assert sorted(site.run()[1:]) == sorted(f'/allocations/{one.uuid}' for one in (first, second))


def test_guests_of_an_unknown_host_are_read_alone(site):
    guests = [site.guest() for _ in range(4)]
    site.read(*guests, host='elsewhere')
    assert sorted(site.run()) == sorted(f'/allocations/{one.uuid}' for one in guests)


def test_a_guest_that_holds_more_or_less_than_its_flavor_is_read_alone(site, world):
    disk = world.host('storage', DISK_GB=99)
    parts = [
        {site.host: {'VCPU': 1}, disk: {'DISK_GB': 1}},
        {site.host: {**HELD, 'DISK_GB': 1}},
        {disk: {'DISK_GB': 1}},
    ]
    odd, others = [site.guest(held) for held in parts], [site.guest() for _ in range(4)]
    nothing = site.guest({})
    site.read(*others, *odd, nothing)
    site.run()
    assert [site.results[one.uuid] for one in odd] == [(1, held) for held in parts]
    assert site.results[nothing.uuid] == (None, {})
    assert [site.results[one.uuid] for one in others] == [(1, {site.host: HELD})] * 4


def test_guests_of_a_host_with_nested_providers_are_read_alone(site, world):
    child = world.host('child', parent=site.host, VGPU=8)
    held = {site.host: HELD, child: {'VGPU': 1}}
    guests = [site.guest(held) for _ in range(4)]
    site.read(*guests)
    site.run()
    assert list(site.results.values()) == [(1, held)] * 4


def test_a_write_that_follows_a_joint_read_has_the_right_generation(site):
    guests = [site.guest() for _ in range(5)]
    written = site.new_consumer()
    written = dataclasses.replace(written, uuid=guests[3].uuid)
    allocations.claim(site.client, written, {site.host: HELD}, generation=1)
    site.read(*guests)
    site.run()
    assert site.results[written.uuid] == (2, {site.host: HELD})


def test_a_reading_is_never_older_than_its_request(site):
    first, *guests = [site.guest() for _ in range(6)]
    late = guests.pop()
    site.read(first, *guests)
    # the joint read is on its way, and Placement has done its first request
    site.simulation.advance(2.5)
    consumer = dataclasses.replace(site.new_consumer(), uuid=late.uuid)
    allocations.claim(site.client, consumer, {site.host: HELD}, generation=1)
    site.read(late)
    site.run()
    assert site.results[late.uuid] == (2, {site.host: HELD})


def test_without_a_reply_the_others_read_again(site):
    guests = [site.guest() for _ in range(5)]
    site.adapter.inject(Fault.UNREACHABLE, skip=1)
    site.read(*guests)
    site.run()
    found = sorted(map(str, site.results.values()))
    assert found == sorted(map(str, [(1, {site.host: HELD})] * 4 + [exception.PlacementUnreachable]))
    assert site.shared._queues == {}


def test_a_request_that_hangs_delays_the_others_for_a_bounded_time(site, in_process):
    first, *others = [site.guest() for _ in range(4)]
    in_process.before_request = lambda *_: site.simulation.world.sleep(60)
    site.read(first)
    site.simulation.advance(1)
    in_process.before_request = site.wait
    site.read(*others)
    site.simulation.advance(allocations.PATIENCE + 1.5)
    assert set(site.results) == {one.uuid for one in others}
    site.run()


def test_guests_that_follow_one_another_share_a_joint_read_for_a_time(site):
    first, second, third, fourth = (site.guest() for _ in range(4))
    joint = [f'/resource_providers/{site.host}/allocations', '/resource_providers']
    site.read(first, others_follow=True)
    assert site.run() == joint
    site.simulation.advance(allocations.KEPT / 2)
    site.read(second, others_follow=True)
    assert site.run() == joint
    # what one guest has used is not used again, such as for its next attempt
    site.read(second, others_follow=True)
    assert site.run() == [*joint, f'/allocations/{second.uuid}']
    # a request without others is sent after the call
    site.read(third)
    assert site.run()[3:] == [f'/allocations/{third.uuid}']
    site.simulation.advance(allocations.KEPT)
    site.read(fourth, others_follow=True)
    assert site.run()[4:] == joint
    assert set(map(str, site.results.values())) == {str((1, {site.host: HELD}))}


def test_guests_with_nested_providers_that_follow_one_another_are_read_alone(site, world):
    child = world.host('child', parent=site.host, VGPU=8)
    guests = [site.guest({site.host: HELD, child: {'VGPU': 1}}) for _ in range(3)]
    for guest in guests:
        site.read(guest, others_follow=True)
        sent = site.run()
    assert len(sent) == 2 + len(guests)
