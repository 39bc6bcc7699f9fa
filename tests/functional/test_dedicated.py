# SPDX-License-Identifier: Apache-2.0

"""A guest with dedicated processors moves between hosts with and without such processors."""

import pytest

from migrator.conductor import audit
from migrator.objects import Flavor
from tests.functional import state
from tests.functional.test_cold_migration import newest

pytestmark = pytest.mark.simulated(reason='it changes what fake hypervisors offer')

FLAVOR = Flavor(name='pinned', vcpus=2, memory_mb=512, root_gb=1, extra_specs={'hw:cpu_policy': 'dedicated'})
SHARED, PINNED = ({name: 2, 'MEMORY_MB': 512, 'DISK_GB': 1} for name in ('VCPU', 'PCPU'))


def offers(cloud, **pcpus):
    """Let hosts have dedicated processors."""
    for host, number in pcpus.items():
        cloud.world.hypervisors[host].capacity.totals['PCPU'] = number
        cloud.computes.pop(host).cleanup_host()
        cloud.start_compute(host)
    cloud.simulation.advance(60)


def moved(cloud, guest, host=None):
    assert cloud.live_migrate(guest, host).status_int == 202
    cloud.wait()
    return newest(cloud, guest)


def right(cloud):
    """Return whether the audit of Placement finds nothing."""
    return list(audit.audit(cloud.database, cloud.placement_client)) == []


def test_a_guest_takes_the_form_that_its_host_has(cloud):
    offers(cloud, host2=4)
    guest = cloud.boot('one', 'host1', flavor=FLAVOR)
    assert state.allocations(cloud) == {guest.uuid: {'host1': SHARED}}
    assert right(cloud)
    assert moved(cloud, guest, 'host2').status == 'completed'
    assert state.allocations(cloud) == {guest.uuid: {'host2': PINNED}}
    assert right(cloud)
    assert moved(cloud, guest, 'host3').status == 'completed'
    assert state.allocations(cloud) == {guest.uuid: {'host3': SHARED}}
    assert right(cloud)


def test_a_host_whose_dedicated_processors_are_taken_gets_none_by_its_shared_ones(cloud):
    offers(cloud, host1=4, host2=1, host3=1)
    guest = cloud.boot('one', 'host1', flavor=FLAVOR)
    ended = moved(cloud, guest)
    assert (ended.status, state.host_of(cloud, guest)) == ('failed', 'host1')
    assert 'host2: it has 1 of PCPU free, and 2 are needed' in ended.failure
    assert state.allocations(cloud) == {guest.uuid: {'host1': PINNED}}


def test_hypervisors_count_dedicated_processors_too(cloud):
    offers(cloud, host1=4)
    cloud.boot('one', 'host1', flavor=FLAVOR)
    shown = state.get(cloud, '/os-hypervisors/detail')['hypervisors']
    assert {one['service']['host']: one['vcpus_used'] for one in shown}['host1'] == 2
