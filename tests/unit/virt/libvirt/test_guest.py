# SPDX-License-Identifier: Apache-2.0

"""The conversion of libvirt's states to the states of a guest, at either end of a migration."""

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator.objects import protocol  # noqa: E402 -- what is tested needs libvirt
from migrator.virt.libvirt import guest  # noqa: E402 -- as above

UUID = '00000000-0000-4000-8000-000000000001'
OUT = libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
PAUSED, RUNNING = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_RUNNING


def converted(state, reason=0, prepared=False, **facts):
    return guest.to_guest(UUID, guest.DomainState(state, reason, **facts), prepared)


@pytest.mark.parametrize(
    ('seen', 'prepared', 'state', 'more'),
    [
        ((None,), False, 'absent', {}),
        ((None,), True, 'waiting', {}),
        ((RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED), False, 'running', {}),
        ((RUNNING, libvirt.VIR_DOMAIN_RUNNING_MIGRATED), True, 'running', {}),
        ((RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY), True, 'running', {'post_copy': True}),
        ((RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED), True, 'post-copy broken off', {'post_copy': True}),
        ((libvirt.VIR_DOMAIN_BLOCKED,), False, 'running', {}),
        ((libvirt.VIR_DOMAIN_SHUTDOWN,), False, 'running', {}),
        ((libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED), False, 'shutdown', {}),
        ((libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_FAILED), False, 'shutdown', {}),
        # The guest was sent here and could not be started. The rollback removes what is left.
        ((libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_FAILED), True, 'waiting', {'incoming': True}),
        ((libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED), True, 'shutdown', {}),
        ((libvirt.VIR_DOMAIN_CRASHED,), False, 'shutdown', {}),
        ((libvirt.VIR_DOMAIN_PMSUSPENDED,), False, 'paused', {}),
        ((PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER), False, 'paused', {}),
        ((PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR), False, 'paused', {}),
        ((PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY), False, 'paused for cut-over', {'post_copy': True}),
        ((PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED), False, 'post-copy broken off', {'post_copy': True}),
        # At the source the guest is in its switchover. At the destination it has not arrived yet.
        ((PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION), False, 'paused for cut-over', {}),
        ((PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION), True, 'waiting', {'incoming': True}),
        ((PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP), True, 'waiting', {'incoming': True}),
    ],
)
def test_state_of_a_domain_is_converted(seen, prepared, state, more):
    wanted = protocol.Guest(instance_uuid=UUID, state=state, **more)
    assert converted(*seen, prepared=prepared) == wanted


def test_guest_that_another_tool_migrates_here_is_waiting():
    assert converted(PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION, receiving=True).state == 'waiting'


def test_only_an_outgoing_migration_is_a_job():
    assert converted(RUNNING, operation=OUT).job
    assert (
        converted(PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION, prepared=True, operation=OUT).state
        == 'paused for cut-over'
    )
    assert not converted(RUNNING, operation=libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP).job


def test_guest_that_this_host_migrates_away_is_not_arriving():
    seen = converted(PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION, prepared=True, moved=True)
    assert (seen.state, seen.incoming) == ('paused for cut-over', False)


@pytest.mark.parametrize('reason', [libvirt.VIR_DOMAIN_PAUSED_USER, libvirt.VIR_DOMAIN_PAUSED_IOERROR])
def test_qemu_is_queried_whether_it_has_sent_a_guest_paused_before(monkeypatch, reason):
    class Domain:
        def state(self):
            return [PAUSED, reason]

        def jobStats(self):  # noqa: N802 -- libvirt's name
            return {'type': libvirt.VIR_DOMAIN_JOB_NONE}

    monkeypatch.setattr(guest, 'find_domain', lambda *_: Domain())
    monkeypatch.setattr(guest, '_has_sent', lambda _domain: True)
    assert guest.to_guest(UUID, guest.read_state(None, UUID, moved=True), False).state == 'paused for cut-over'
    assert guest.to_guest(UUID, guest.read_state(None, UUID), False).state == 'paused'


def test_guest_paused_by_its_user_and_sent_is_in_switchover():
    assert converted(PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER, sent=True).state == 'paused for cut-over'


# --- diagnostics -----------------------------------------------------------------------------------------------------


class Counted:
    """A running guest with two disks and three interfaces; libvirt has no figures of the second disk."""

    def lookupByUUIDString(self, _uuid):  # noqa: N802 -- libvirt's name
        return self

    def XMLDesc(self, _flags):  # noqa: N802 -- libvirt's name
        return """<domain type='kvm'><devices>
            <disk type='file'><target dev='vda'/></disk><disk type='file'><target dev='vdb'/></disk>
            <interface><mac address='52:54:00:00:00:01'/><target dev='tap0'/></interface>
            <interface><mac address='52:54:00:00:00:02'/></interface>
            <interface><mac address='52:54:00:00:00:03'/><target dev='gone'/></interface>
        </devices></domain>"""

    def info(self):
        return [RUNNING, 2 * 2**20, 2**20, 2, 50]

    def vcpus(self):
        return [(0, 1, 20, 3), (1, 1, 30, 5)], [(True,), (True,)]

    def blockStats(self, device):  # noqa: N802 -- libvirt's name
        if device == 'vdb':
            raise libvirt.libvirtError('no such figures')
        return 1, 2, 3, 4, -1

    def interfaceStats(self, device):  # noqa: N802 -- libvirt's name
        if device == 'gone':
            raise libvirt.libvirtError('no such interface')
        return 1, 2, 3, 4, 5, 6, 7, 8


def test_diagnostics_are_what_libvirt_has_counted():
    assert guest.diagnostics_of(Counted(), UUID) == {
        'driver': 'libvirt', 'hypervisor': 'kvm', 'hypervisor_os': 'linux',
        'memory_details': {'maximum': 2048, 'used': 1024},
        'cpu_details': [{'id': 0, 'time': 20}, {'id': 1, 'time': 30}],
        'disk_details': [
            {'device': 'vda', 'read_requests': 1, 'read_bytes': 2, 'write_requests': 3, 'write_bytes': 4,
             'errors_count': -1},
        ],
        'nic_details': [
            {'mac_address': '52:54:00:00:00:01', 'device': 'tap0', 'rx_octets': 1, 'rx_packets': 2, 'rx_errors': 3,
             'rx_drop': 4, 'tx_octets': 5, 'tx_packets': 6, 'tx_errors': 7, 'tx_drop': 8},
            {'mac_address': '52:54:00:00:00:02'},
        ],
    }  # fmt: skip


# --- adoption --------------------------------------------------------------------------------------------------------


class Domain:
    """A guest as libvirt defines it.

    Each of its disks has 3 GiB and one byte.
    """

    def __init__(self, inner):
        self._xml = f'<domain><vcpu>2</vcpu>{inner}</domain>'

    def lookupByUUIDString(self, _uuid):  # noqa: N802 -- libvirt's name
        return self

    def XMLDesc(self, _flags):  # noqa: N802 -- libvirt's name
        return self._xml

    def name(self):
        return 'instance-1'

    def state(self):
        return RUNNING, 0

    def maxMemory(self):  # noqa: N802 -- libvirt's name
        return 2**20

    def blockInfo(self, _target):  # noqa: N802 -- libvirt's name
        return 3 * 2**30 + 1, 0, 0


def adopted(inner, space=()):
    return guest.to_instance(guest.facts_of(Domain(inner), UUID), 'alpha', 'our-project', 'our-user', space)


@pytest.mark.parametrize('version', ['1.0', '1.1'])
def test_adopted_guest_of_nova_keeps_its_owner(version):
    owner = (
        f"<metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/{version}'><nova:owner>"
        "<nova:user uuid='u'/><nova:project uuid='p'/></nova:owner></nova:instance></metadata>"
    )
    found = adopted(owner)
    assert (found.project_id, found.user_id) == ('p', 'u')
    assert (adopted('').project_id, adopted('').user_id) == ('our-project', 'our-user')


def test_flavor_of_an_adopted_guest_has_its_resources():
    found = adopted('', space=[3 * 2**30 + 1, 2**30])
    assert (found.flavor.vcpus, found.flavor.memory_mb, found.flavor.root_gb) == (2, 1024, 5)


def test_only_files_of_its_own_count_as_disks_of_a_guest():
    disks = """<devices>
        <disk type='file'><source file='/a'/><target dev='vda'/></disk>
        <disk type='file'><source file='/b'/><target dev='vdb'/><shareable/></disk>
        <disk type='block'><source dev='/dev/c'/><target dev='vdc'/></disk>
        <disk type='network'><source protocol='rbd'/><target dev='vdd'/></disk>
        <disk type='file' device='cdrom'><source file='/e'/><target dev='vde'/></disk>
        </devices>"""
    assert guest.facts_of(Domain(disks), UUID).disks == (('/a', 3 * 2**30 + 1),)
