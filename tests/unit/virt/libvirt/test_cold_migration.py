# SPDX-License-Identifier: Apache-2.0

"""The cold migration of a guest, with a replacement of the daemons and of qemu-img."""

import json
from unittest import mock

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import LiveMigrateData  # noqa: E402 -- as above
from migrator.virt.libvirt import evacuation, guest, identity, records, storage  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, Domain, a_disk, definition  # noqa: E402 -- as above
from tests.unit.virt.libvirt.two_hosts import Clock  # noqa: E402 -- as above

# --- the checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        ({'persistent': False}, 'is transient.*: define it first'),
        ({'obstacle': 'saved'}, 'has a saved state.*managedsave-remove'),
        ({'obstacle': 'snapshots'}, 'has snapshots.*delete them first'),
        ({'obstacle': 'checkpoints'}, 'has checkpoints.*delete them first.*virsh checkpoint-delete'),
    ],
)
def test_guest_that_would_lose_something_is_refused(local, change, match):
    vars(local.alpha.domains[0]).update(change)
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        local.checked()


def test_disk_that_is_in_the_configuration_only_is_named(local):
    (domain,) = local.alpha.domains
    domain.now = domain.xml
    domain.xml = domain.xml.replace('</devices>', a_disk(local.images / 'later').replace('vda', 'vdb') + '</devices>')
    with pytest.raises(exception.MigrationPreCheckError, match=r'has disk vdb \(.*/later\) in its configuration'):
        local.checked()


def test_guest_whose_nvram_libvirt_has_still_to_make_is_moved_and_its_nvram_removed_by_a_revert(hosts):
    system = f"<nvram template='/vars.fd'>{hosts.images}/guest.fd</nvram>"
    hosts.have(system=system)
    hosts.beta.loaders = ['/code.fd']
    data = hosts.checked()
    hosts.source.migrate_disk_and_power_off(INSTANCE, data)
    hosts.beta.makes = hosts.images / 'guest.fd'
    with hosts.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        assert hosts.files('beta') == ['guest.fd']
        destination.revert_migration_at_destination(INSTANCE, data)
    assert hosts.files('beta') == []


def test_disk_that_the_source_cannot_examine_is_refused(local):
    (local.images / 'disk').unlink()
    with pytest.raises(exception.MigrationPreCheckError, match=r'cannot examine a disk .*/disk'):
        local.checked()


def test_shared_disk_is_used_also_while_the_guest_runs(local):
    (local.images / 'disk.error').write_text('locked')
    data = local.checked(shared=True)
    assert (data.is_shared_storage, data.block_migration) == (True, False)
    assert data.destination['files'] == [f'{local.images}/disk']
    assert data.destination['copies'] == {}


@pytest.mark.parametrize(
    ('disk', 'match'),
    [
        (
            a_disk('{}/disk', more='<shareable/>'),
            'does not see .*/disk.* is defined as shareable: provide the storage',
        ),
        (a_disk('{}/disk', 'block'), 'does not see .*/disk.* not copied, because it is of type block: provide'),
    ],
)
def test_disk_that_is_never_copied_is_refused_where_it_is_missing(hosts, disk, match):
    (hosts.images / 'disk').touch()
    hosts.have(disk.format(hosts.images))
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        hosts.checked()


def test_disk_on_a_file_system_of_several_hosts_is_not_copied(local, monkeypatch):
    monkeypatch.setattr(identity, 'filesystem_of', lambda _path: 'nfs4')
    with pytest.raises(exception.MigrationPreCheckError, match=r'does not see .* not copied, because it is on nfs4'):
        local.checked()


def test_other_file_under_the_name_of_a_disk_is_refused(local):
    (local.folder / 'of-beta' / 'disk').touch()
    with pytest.raises(
        exception.MigrationPreCheckError, match=r'cannot be shown to be the same .* or move the file of that name away'
    ):
        local.checked()


def test_device_of_the_host_is_refused_with_what_to_do(hosts):
    hosts.have("<hostdev type='pci'/>")
    with pytest.raises(
        exception.MigrationPreCheckError,
        match='remove that part from the definition of the guest, or leave the guest at alpha',
    ):
        hosts.checked()


@pytest.mark.parametrize(
    ('disk', 'chain', 'match'),
    [
        ('link', None, 'is used by guest {} too'),
        ('overlay', ['overlay', 'disk'], r'is used by guest {} too \(in its disk .*/overlay\)'),
        ('overlay', 'unreadable', 'may be used by guest {}, whose disk .*/overlay cannot be read'),
    ],
)
def test_disk_that_another_guest_uses_is_not_copied(local, disk, chain, match):
    (local.images / 'link').symlink_to(local.images / 'disk')
    if chain == 'unreadable':
        (local.images / 'overlay.chain').mkdir()
    elif chain:
        names = [{'filename': f'{local.images}/{name}'} for name in chain]
        (local.images / 'overlay.chain').write_text(json.dumps(names))
    other = local.another_guest(local.images / disk)
    match = f'does not see .*/disk.* not copied, because it {match.format(other)}.*: provide the storage'
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        local.checked()
    # It leaves the source for no host that sees it.
    assert local.checked(shared=True).destination['copies'] == {}


def test_copies_need_room(local, monkeypatch):
    monkeypatch.setattr(storage, 'available', lambda _directory: 63)
    with pytest.raises(exception.MigrationPreCheckError, match=r'beta has 0 MiB left for .*/disk'):
        local.checked()


# --- the power-off ---------------------------------------------------------------------------------------------------


def test_guest_is_asked_to_shut_down_and_is_not_destroyed(local):
    local.source.migrate_disk_and_power_off(INSTANCE, local.checked())
    assert (local.alpha.asked, local.alpha.destroyed) == (1, 0)
    assert local.states()[0] == 'shutdown'


@pytest.mark.parametrize(('timeout', 'asked'), [(0, False), (60, True)])
def test_guest_that_does_not_listen_is_destroyed(local, timeout, asked):
    data = local.checked()
    local.alpha.listens = False
    local.source.conf.set_override('shutdown_timeout', timeout)
    local.source._threads.clock = Clock()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    assert (local.alpha.asked > 1, local.alpha.destroyed) == (asked, 1)
    assert local.states()[0] == 'shutdown'


def test_daemon_that_restarts_while_the_guest_shuts_down_is_waited_for(local):
    data, domain = local.checked(), local.alpha.domains[0]

    def shut_down():
        Domain.shutdown(domain)
        local.alpha.away = 3

    domain.shutdown = shut_down
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    assert (local.alpha.away, local.alpha.asked, local.alpha.destroyed) == (0, 1, 0)
    assert local.states()[0] == 'shutdown'


@pytest.mark.parametrize(('listens', 'starts'), [(True, 1), (False, 0)])
def test_revert_waits_for_a_guest_that_still_shuts_down_and_starts_it(local, monkeypatch, listens, starts):
    data, domain = local.checked(), local.alpha.domains[0]
    local.alpha.listens = listens
    monkeypatch.setattr(evacuation, '_START', 30)
    clock = Clock(after=5, call=domain.shutdown)
    with monkeypatch.context() as killed:
        killed.setattr(local.source, '_try_to_shut_down', mock.Mock(side_effect=RuntimeError('the service is killed')))
        local.source._threads.clock = Clock()
        with pytest.raises(RuntimeError):
            local.source.migrate_disk_and_power_off(INSTANCE, data)
    domain.create = mock.Mock(side_effect=domain.create)
    local.source._threads.clock = clock
    local.source.revert_migration_at_source(INSTANCE, data)
    assert (domain.create.call_count, local.states()[0], domain.starts) == (starts, 'running', 1)
    assert clock.seconds < 90


def test_paused_guest_is_destroyed_at_once(local, monkeypatch):
    monkeypatch.setattr(guest, '_has_sent', lambda _domain: False)
    local.alpha.domains[0].reported = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER]
    local.source.migrate_disk_and_power_off(INSTANCE, local.checked())
    assert (local.alpha.asked, local.alpha.destroyed) == (0, 1)


def test_autostart_is_off_until_the_guest_is_restored(local):
    data, domain = local.checked(), local.alpha.domains[0]
    for _ in range(2):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
        assert domain.starts == 0
    for _ in range(2):
        local.source.revert_migration_at_source(INSTANCE, data)
        assert (domain.starts, local.states()[0]) == (1, 'running')
    # The user may shut it down, and a late call does not start it again.
    domain.shutdown()
    local.source.revert_migration_at_source(INSTANCE, data)
    assert local.states()[0] == 'shutdown'
    assert local.source._records.list(records.OUTGOING) == []


def test_undo_of_a_later_migration_restores_the_autostart_alone(local):
    data, domain = local.checked(), local.alpha.domains[0]
    # This migration is abandoned, and the user shuts the guest down.
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    assert domain.starts == 0
    later = local.checked(power_on=False)
    local.source.revert_migration_at_source(INSTANCE, later)
    assert (local.states()[0], domain.starts) == ('shutdown', 1)
    assert local.source._records.list(records.OUTGOING) == []


def test_guest_that_was_shut_off_stays_so(local):
    local.alpha.domains[0].shutdown()
    data = local.checked(power_on=False)
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.source.revert_migration_at_source(INSTANCE, data)
    assert local.states()[0] == 'shutdown'


def test_guest_that_is_shut_off_since_the_check_is_refused_but_not_after_a_call_of_the_same_migration(local):
    data = local.checked()
    local.alpha.domains[0].shutdown()
    with pytest.raises(exception.DriverError, match='has been shut off since the check'):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.source.revert_migration_at_source(INSTANCE, data)
    assert local.states()[0] == 'shutdown'
    local.alpha.domains[0].create()
    for _ in range(2):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.source.revert_migration_at_source(INSTANCE, data)
    assert local.states()[0] == 'running'


def test_guest_runs_on_if_the_destination_cannot_be_reached_or_its_disks_have_changed(local):
    data = local.checked()
    local.reachable = False
    with pytest.raises(exception.ServiceUnreachable, match='beta is away'):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.alpha.domains[0].xml = definition(a_disk(local.images / 'overlay'))
    with pytest.raises(exception.DriverError, match=r'disks of guest .* have changed'):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    assert (local.alpha.asked, local.states()[0]) == (0, 'running')
    assert local.alpha.domains[0].starts == 1


# --- shared disks ----------------------------------------------------------------------------------------------------


def test_shared_disk_is_kept_by_a_confirmation_and_by_a_revert(local):
    data = local.checked(shared=True)
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.destination.finish_migration(INSTANCE, data)
    local.destination.revert_migration_at_destination(INSTANCE, data)
    assert local.files('alpha') == ['disk']
    local.destination.finish_migration(INSTANCE, data)
    local.source.confirm_migration_at_source(INSTANCE, data)
    assert (local.states(), local.files('alpha')) == (['absent', 'running'], ['disk'])


def test_guest_is_not_started_without_its_shared_disk_or_while_that_is_in_use(local):
    data = local.checked(shared=True)
    (local.images / 'disk.error').write_text('Failed to get shared "write" lock')
    with pytest.raises(exception.MigrationPreCheckError, match='Failed to get shared "write" lock'):
        local.destination.finish_migration(INSTANCE, data)
    (local.images / 'disk').unlink()
    with pytest.raises(exception.MigrationPreCheckError, match=r'beta does not see .*/disk'):
        local.destination.finish_migration(INSTANCE, data)
    assert local.beta.domains == []


def test_guest_that_a_restart_of_its_new_host_has_ended_is_started_again(local):
    data = local.checked(shared=True)
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.destination.finish_migration(INSTANCE, data)
    local.beta.domains[0].shutdown()
    local.destination.finish_migration(INSTANCE, data)
    assert local.states() == ['shutdown', 'running']


def test_confirmation_without_data_removes_the_definition_alone(local):
    local.source.migrate_disk_and_power_off(INSTANCE, local.checked())
    local.source.confirm_migration_at_source(INSTANCE, LiveMigrateData())
    assert (local.states()[0], local.files('alpha')) == ('absent', ['disk'])
    local.destination.revert_migration_at_destination(INSTANCE, LiveMigrateData())
