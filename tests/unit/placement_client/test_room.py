# SPDX-License-Identifier: Apache-2.0

"""The room that plans give out, from the real Placement.

``tests/functional/test_drain.py`` has whole plans.
"""

import dataclasses

import pytest

from migrator.drain import plan
from migrator.objects import Flavor
from migrator.placement_client import candidates

FLAVOR = Flavor(name='small', vcpus=2, memory_mb=512, root_gb=0)
SSD = 'CUSTOM_SSD'


def need(only=None, refused=(), rank=lambda host: (), traits=None):
    """Return what a guest needs; the hosts in ``refused`` are no destinations."""
    specs = {f'trait:{name}': value for name, value in (traits or {}).items()}
    asked = dataclasses.replace(FLAVOR, extra_specs=specs).request
    return plan.Need(asked, only, tuple(refused), dict.fromkeys(refused, 'it is down').get, rank)


@pytest.fixture
def room(client, world):
    client.put(f'/traits/{SSD}')
    hosts = {'host1': world.host(), 'host2': world.host(traits=[SSD]), 'host3': world.host(VCPU=2, MEMORY_MB=512)}
    return plan.Rooms(candidates.Room(client), {root: host for host, root in hosts.items()}, {'host1'})


def test_guests_take_the_host_with_the_fewest_guests_that_still_has_room(room):
    taken = [room.take(need()) for _ in range(6)]
    assert taken == ['host2', 'host3', 'host2', 'host2', 'host2', None]


def test_a_host_of_a_lower_rank_is_taken_first(room):
    later = need(rank=lambda host: (host == 'host2',))
    assert [room.take(later) for _ in range(3)] == ['host3', 'host2', 'host2']


def test_only_a_host_with_the_required_traits_is_taken(room):
    assert room.take(need(traits={SSD: 'required'})) == 'host2'
    assert room.take(need(traits={SSD: 'forbidden'})) == 'host3'


def test_a_host_that_is_refused_is_named_with_the_reason(room):
    without = need(only=['host2'], refused=['host2'])
    assert room.take(without) is None
    found = room.why_none(without)
    assert found.kind == 'no_destination'
    assert 'host2: it is down; host3: it is not among the destinations of the drain.' in found.reason


def test_the_lack_of_a_host_with_the_traits_is_stated(room, client):
    client.put('/traits/CUSTOM_NONE')
    without = need(traits={'CUSTOM_NONE': 'required'})
    assert room.take(without) is None
    assert room.why_none(without).reason == (
        'No other host can take it: host2: it lacks CUSTOM_NONE; host3: it lacks CUSTOM_NONE.'
    )


def test_a_trait_that_placement_does_not_know_is_stated(room):
    without = need(traits={'CUSTOM_UNKNOWN': 'required'})
    assert room.take(without) is None
    assert 'CUSTOM_UNKNOWN' in room.why_none(without).reason
    assert room.take(need()) == 'host2'
