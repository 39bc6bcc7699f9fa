# SPDX-License-Identifier: Apache-2.0

"""No kind of move brings a guest to a host that its flavor forbids."""

import pytest

from migrator.conductor.drains import plan
from migrator.db.slots import Bounds
from migrator.objects import Flavor
from migrator.objects.drain import Drain
from migrator.simulator.runs import gild
from migrator.simulator.workloads.plans import TRAIT
from tests.functional import state
from tests.functional.test_cold_migration import CONFIRM, act, finish, newest
from tests.functional.test_drain import drain, ends
from tests.functional.test_evacuation import evacuate, lose

pytestmark = pytest.mark.simulated(reason='it kills a host, and gives fake hypervisors a trait')

NEEDS = Flavor(name='gold', extra_specs={f'trait:{TRAIT}': 'required'})
LARGE = NEEDS.replace(name='large gold', memory_mb=1024)


@pytest.fixture
def guest(cloud):
    """A guest that needs the trait, which only its host and host3 have."""
    for host in ('host1', 'host3'):
        gild(cloud, host)
    cloud.database.flavors.create(LARGE)
    # Without the trait host2 would be taken first, since its name comes first.
    return cloud.boot('one', 'host1', flavor=NEEDS)


def live(cloud, guest):
    assert cloud.live_migrate(guest).status_int == 202
    cloud.wait()


def cold(cloud, guest):
    finish(cloud, guest)
    assert act(cloud, guest, CONFIRM) == 204
    cloud.wait()


def resized(cloud, guest):
    assert act(cloud, guest, 'resize', {'flavorRef': LARGE.name}) == 202
    cloud.simulation.run_until(lambda: newest(cloud, guest).status == 'finished')
    assert act(cloud, guest, CONFIRM) == 204
    cloud.wait()


def evacuated(cloud, guest):
    cloud.simulation.advance(20)  # so that a conductor fetches its definition
    lose(cloud, 'host1')
    evacuate(cloud, guest)
    cloud.wait()


def drained(cloud, guest):
    planned = plan.plan(cloud.database, cloud.placement_client, Drain(uuid='d', host='host1'), Bounds())
    assert [one['destination'] for one in planned['guests']] == ['host3']
    ends(cloud, drain(cloud)['uuid'])


@pytest.mark.parametrize('move', [live, cold, resized, evacuated, drained])
def test_each_kind_of_move_finds_the_only_host_with_the_trait(cloud, guest, move):
    move(cloud, guest)
    assert state.host_of(cloud, guest) == 'host3'


def test_a_named_host_without_the_trait_is_refused(cloud, guest):
    assert cloud.live_migrate(guest, 'host2').status_int == 202
    cloud.wait()
    assert (newest(cloud, guest).status, state.host_of(cloud, guest)) == ('failed', 'host1')
    assert f'Host host2 cannot take the instance: it lacks {TRAIT}.' in newest(cloud, guest).failure


def test_the_failure_says_what_each_host_lacks(cloud, guest):
    cloud.boot('giant', 'host3', memory_mb=65536)
    live(cloud, guest)
    words = f'No host can take the instance: host2: it lacks {TRAIT}; host3: it has 0 of MEMORY_MB free'
    assert words in newest(cloud, guest).failure


def test_a_forced_host_is_not_asked_for(cloud, guest):
    body = {'os-migrateLive': {'host': 'host2', 'block_migration': 'auto', 'force': True}}
    assert cloud.request('POST', f'/servers/{guest.uuid}/action', body, version='2.67').status_int == 202
    cloud.wait()
    assert state.host_of(cloud, guest) == 'host2'
