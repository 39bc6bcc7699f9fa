# SPDX-License-Identifier: Apache-2.0

"""What requests cost among many compute hosts: as much as among few."""

import pytest

from tests import work

FEW, MANY = 10, 300


@pytest.fixture
def crowded(world):
    """Return a function that grows the world to a number of compute hosts."""

    def grown(count):
        work.add_hosts(world.database.engine, 'spare', count)
        return world

    return grown


def cost(world, ask):
    """Return the statements and the instructions that a request takes."""
    with work.counted(world.database.engine) as done:
        assert ask().status_int in (200, 202)
    return done


def migrate(world, **arguments):
    guest = world.guest()
    return lambda: world.migrate(guest, **arguments)


def evacuate(world):
    world.force_down('source')
    guest = world.guest()
    return lambda: world.evacuate(guest, host='dest')


def show_server(world):
    guest = world.guest()
    return lambda: world.ask('GET', f'/servers/{guest.uuid}')


def show_hypervisor(world):
    uuid = world.database.services.list_nodes()[0].uuid
    return lambda: world.ask('GET', f'/os-hypervisors/{uuid}')


@pytest.mark.parametrize(
    'request_of',
    [
        pytest.param(migrate, id='migrate'),
        pytest.param(lambda world: migrate(world, host='dest'), id='migrate to a host'),
        pytest.param(evacuate, id='evacuate'),
        pytest.param(show_server, id='server'),
        pytest.param(show_hypervisor, id='hypervisor'),
    ],
)
def test_request_costs_the_same_among_many_hosts(crowded, request_of):
    few = cost(crowded(FEW), request_of(crowded(FEW)))
    many = cost(crowded(MANY), request_of(crowded(MANY)))
    assert not few.grows_to(many)


def test_the_lowest_version_and_the_requested_host_take_one_statement_each(crowded):
    world = crowded(FEW)
    of_services = [text for text in cost(world, migrate(world, host='dest')).statements if 'FROM services' in text]
    assert len(of_services) == 2
