# SPDX-License-Identifier: Apache-2.0

"""The source compares the host that it reaches with the destination, before a guest leaves."""

import pytest

pytest.importorskip('libvirt', reason='the extra "libvirt" is not installed')

from migrator import exception
from tests.unit.virt.libvirt.daemon import INSTANCE


def check(hosts, reaches=None):
    """Run the checks of a live migration from alpha to beta.

    :param reaches: the identity of the host that alpha reaches instead; None: that of beta.
    """
    with hosts.at_beta() as destination:
        data = destination.check_can_live_migrate_destination(INSTANCE, None, False)
    hosts.beta.identity = reaches or hosts.beta.identity
    return hosts.source.check_can_live_migrate_source(INSTANCE, data)


def test_check_refuses_to_send_a_guest_to_another_host_than_its_destination(local):
    assert check(local).destination['hypervisor_uuid'] == local.beta.identity
    beta = local.beta.identity
    with pytest.raises(exception.MigrationPreCheckError) as caught:
        check(local, reaches='gamma-uuid')
    for word in ('alpha does not reach beta but another host', 'gamma-uuid', beta):
        assert word in str(caught.value)


def test_check_compares_nothing_if_this_service_cannot_reach_the_destination(local):
    local.reachable = False
    assert check(local).source['host'] == 'alpha'


def test_cold_migration_that_would_copy_to_another_host_leaves_the_guest_running(local):
    data = local.checked()
    local.beta.identity = 'c'
    with pytest.raises(exception.DriverError, match='alpha does not reach beta but another host'):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    assert local.states()[0] == 'running'
