# SPDX-License-Identifier: Apache-2.0

"""The lab itself: a stock nova moves a guest, and the hypervisor's files have it where nova has it."""

from tests.real.servers import process


def test_guest_is_moved_by_openstacksdk(lab):
    (guest,) = lab.guests(1, 'host1')
    assert lab.truth() == {'host1': {guest}, 'host2': set(), 'host3': set()}
    lab.cloud.compute.live_migrate_server(guest, host='host2', block_migration='auto')

    def moved():
        server = lab.cloud.compute.get_server(guest)
        return (server.compute_host, server.status, server.task_state) == ('host2', 'ACTIVE', None)

    process.wait_until(moved, 'the guest to be at host2')
    assert lab.truth() == {'host1': set(), 'host2': {guest}, 'host3': set()}
    assert 'can be deleted' not in lab.manage('placement', 'audit', '--verbose')
