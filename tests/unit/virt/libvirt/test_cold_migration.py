# SPDX-License-Identifier: Apache-2.0

"""The cold migration of a guest, with a replacement of the daemons and of qemu-img."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import pathlib
from unittest import mock
from uuid import uuid4

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import LiveMigrateData  # noqa: E402 -- as above
from migrator.virt.libvirt import evacuation, guest, records, storage  # noqa: E402 -- as above
from migrator.virt.libvirt.cold_migration import driver  # noqa: E402 -- as above
from migrator.virt.libvirt.connection import Connection  # noqa: E402 -- as above
from tests.unit.virt.libvirt import daemon  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, Domain, a_disk, definition  # noqa: E402 -- as above

RUNNING = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]
#: More than one buffer of a stream.
CONTENT = os.urandom(400_000)


class Clock:
    """A clock that gains a second each time that it is read, and calls a function at one of these."""

    def __init__(self, after=0, call=lambda: None):
        self.seconds, self.after, self.call = 0, after, call

    def monotonic(self):
        self.seconds += 1
        if self.seconds == self.after:
            self.call()
        return self.seconds

    def now(self):
        return datetime.datetime.fromtimestamp(10**9 + self.seconds, datetime.UTC)


class Hosts:
    """Hosts alpha and beta, whose instances_path is their own or the same."""

    def __init__(self, folder, monkeypatch):
        daemon.install_qemu_img(folder, monkeypatch)
        self.folder, self.images = folder, folder / 'images'
        for name in ('alpha', 'beta'):
            (folder / f'of-{name}').mkdir()
        self.look_from('alpha')
        self.source, self.alpha = daemon.driver_of('alpha', folder, self.images, monkeypatch)
        self.destination, self.beta = daemon.driver_of('beta', folder, self.images, monkeypatch)
        # Alpha's service makes drafts at beta.
        self.beta.where = lambda path: pathlib.Path(str(path).replace(str(self.images), str(folder / 'of-beta')))
        self.reachable = True
        monkeypatch.setattr(driver, 'POLL_INTERVAL', 0.01)
        monkeypatch.setattr(Connection, '_opened', lambda connection: self.opened(connection.uri))

    def look_from(self, host):
        """Let the drivers see the files of a host."""
        self.images.unlink(missing_ok=True)
        self.images.symlink_to(f'of-{host}')

    def opened(self, uri):
        """Return the daemon of another host."""
        assert uri == 'qemu+tcp://beta/system'
        if not self.reachable:
            raise daemon.error(libvirt.VIR_ERR_RPC, 'beta is away')
        return self.beta

    @contextlib.contextmanager
    def at_beta(self):
        """Let the drivers see the files of beta."""
        self.look_from('beta')
        try:
            yield self.destination
        finally:
            self.look_from('alpha')

    def have(self, *devices):
        """Let alpha run the guest, which it starts when it boots."""
        domain = Domain(self.alpha, definition(''.join(devices)), True)
        domain.starts, domain.reported = 1, list(RUNNING)
        self.alpha.domains.append(domain)

    def another_guest(self, path):
        """Let alpha have a guest that reads a file, and return its uuid."""
        uuid = str(uuid4())
        xml = definition(a_disk(path, more='<readonly/>'), name='other').replace(INSTANCE.uuid, uuid)
        self.alpha.domains.append(Domain(self.alpha, xml, True))
        return uuid

    def checked(self, shared=False, power_on=True):
        """Return the data of both checks, as it comes out of the database."""
        data = self.source.check_can_migrate_source(INSTANCE, LiveMigrateData())
        data = data.replace(source=json.loads(json.dumps({**data.source, 'power_on': power_on})))
        with self.at_beta() if not shared else contextlib.nullcontext(self.destination) as destination:
            return destination.check_can_migrate_destination(INSTANCE, data)

    def states(self):
        """Return the state of the guest on both hosts."""
        return [each.get_guest(INSTANCE.uuid).state for each in (self.source, self.destination)]

    def files(self, host):
        """Return the names of the files of a host, without markers."""
        return sorted(path.name for path in (self.folder / f'of-{host}').glob('[!.]*'))


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    return Hosts(tmp_path, monkeypatch)


@pytest.fixture
def local(hosts):
    """A guest of alpha with a disk that only alpha has."""
    (hosts.images / 'disk').write_bytes(CONTENT)
    hosts.have(a_disk(hosts.images / 'disk'))
    return hosts


# --- the checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        ({'persistent': False}, 'is transient.*: define it first'),
        ({'obstacle': 'saved'}, 'has a saved state.*managedsave-remove'),
        ({'obstacle': 'snapshots'}, 'has snapshots.*delete them first'),
    ],
)
def test_guest_that_would_lose_something_is_refused(local, change, match):
    vars(local.alpha.domains[0]).update(change)
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        local.checked()


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
        (a_disk('{}/disk', more='<shareable/>'), 'does not see .*/disk .* is defined as shareable .*mount the storage'),
        (a_disk('{}/disk', 'block'), 'does not see .*/disk .* is of type block and is not copied'),
    ],
)
def test_disk_that_is_never_copied_is_refused_where_it_is_missing(hosts, disk, match):
    (hosts.images / 'disk').touch()
    hosts.have(disk.format(hosts.images))
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        hosts.checked()


def test_disk_on_a_file_system_of_several_hosts_is_not_copied(local, monkeypatch):
    monkeypatch.setattr(storage, 'filesystem_of', lambda _path: 'nfs4')
    with pytest.raises(exception.MigrationPreCheckError, match=r'does not see .* is on nfs4 and is not copied'):
        local.checked()


def test_other_file_under_the_name_of_a_disk_is_refused(local):
    (local.folder / 'of-beta' / 'disk').touch()
    with pytest.raises(exception.MigrationPreCheckError, match=r'cannot be shown to be the same .* or move away what'):
        local.checked()


def test_device_of_the_host_is_refused_with_what_to_do(hosts):
    hosts.have("<hostdev type='pci'/>")
    with pytest.raises(exception.MigrationPreCheckError, match='remove that from its definition, or leave it at alpha'):
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
    match = f'does not see .*/disk .*which {match.format(other)}.* and is not copied: mount the storage'
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


# --- the copies ------------------------------------------------------------------------------------------------------


def test_local_disk_arrives_whole_and_the_source_loses_it_once_confirmed(local):
    data = local.checked()
    assert (data.is_shared_storage, data.block_migration) == (False, True)
    assert local.files('beta') == []
    for _ in range(2):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        for _ in range(2):
            destination.finish_migration(INSTANCE, data)
            assert local.states() == ['shutdown', 'running']
            assert (local.folder / 'of-beta' / 'disk').read_bytes() == CONTENT
            assert local.files('beta') == ['disk']
    assert local.beta.domains[0].starts == 1
    for _ in range(2):
        local.source.confirm_migration_at_source(INSTANCE, data)
        assert (local.states(), local.files('alpha')) == (['absent', 'running'], [])
    assert local.beta.pools == {}


def test_confirmation_keeps_a_disk_that_another_guest_uses_since(local, caplog):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
    other = local.another_guest(local.images / 'disk')
    local.source.confirm_migration_at_source(INSTANCE, data)
    assert (local.states(), local.files('alpha')) == (['absent', 'running'], ['disk'])
    assert f'Kept disk {local.images}/disk' in caplog.text
    assert other in caplog.text


def test_revert_removes_the_copy_and_keeps_the_disk(local):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        for _ in range(2):
            destination.revert_migration_at_destination(INSTANCE, data)
            assert local.files('beta') == []
    local.source.revert_migration_at_source(INSTANCE, data)
    assert (local.states(), local.files('alpha')) == (['running', 'absent'], ['disk'])
    assert [local.destination._records.list(kind) for kind in (records.INCOMING, records.ARRIVED)] == [[], []]


def test_revert_of_a_later_migration_keeps_the_files_of_an_earlier_one(local):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        # The guest is evacuated, and a later migration fails before its start here.
        local.beta.domains.clear()
        later = data.replace(destination={**data.destination, 'token': 'later'})
        for each in (later, LiveMigrateData()):
            destination.revert_migration_at_destination(INSTANCE, each)
        assert local.files('beta') == ['disk']


@pytest.mark.parametrize('end', ['evacuated', 'checked'])
def test_files_belong_to_the_guest_once_it_is_evacuated_or_checked_anew(local, end):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        if end == 'evacuated':
            destination.post_evacuation_at_source(INSTANCE, data)
        else:
            local.beta.domains.clear()
            local.alpha.domains[0].create()
            local.checked(shared=True)
        assert destination._records.list(records.ARRIVED) == []
        destination.revert_migration_at_destination(INSTANCE, data)
        assert local.files('beta') == ['disk']


def test_start_does_not_take_over_what_an_earlier_migration_has_recorded(local):
    data = local.checked(shared=True)
    other = local.images / 'other'
    other.touch()
    old = {'files': {str(other): other.stat().st_ino}, 'directories': [], 'token': 'earlier'}
    local.destination._records.write(records.INCOMING, INSTANCE.uuid, old)
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.destination.finish_migration(INSTANCE, data)
    local.destination.revert_migration_at_destination(INSTANCE, data)
    assert other.exists()


@pytest.mark.parametrize('power_on', [True, False])
def test_failure_to_persist_a_started_guest_is_repaired_by_a_second_call(local, monkeypatch, power_on):
    if not power_on:
        local.alpha.domains[0].shutdown()
    data = local.checked(power_on=power_on)
    data = data.replace(source={**data.source, 'autostart': True})
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        with monkeypatch.context() as broken:
            broken.setattr(Domain, 'setAutostart', mock.Mock(side_effect=daemon.error(libvirt.VIR_ERR_RPC, 'it broke')))
            with pytest.raises(exception.DriverError, match='it broke'):
                destination.finish_migration(INSTANCE, data)
        destination.finish_migration(INSTANCE, data)
    [domain] = local.beta.domains
    assert (domain.persistent, domain.starts, domain.isActive()) == (True, 1, power_on)
    assert local.destination._records.list(records.INCOMING) == []


def test_guest_that_is_started_and_not_defined_is_a_failure(local, monkeypatch):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    monkeypatch.setattr(daemon.Daemon, 'defineXML', lambda *_args: None)
    with local.at_beta() as destination, pytest.raises(exception.DriverError, match='is started at beta, and not def'):
        destination.finish_migration(INSTANCE, data)


@pytest.mark.parametrize('how', ['cold', 'confirmed'])
def test_guest_that_moves_on_leaves_no_record_that_names_its_disks(local, how):
    left = {'files': {f'{local.images}/disk': (local.images / 'disk').stat().st_ino}, 'directories': []}
    local.source._records.write(records.INCOMING, INSTANCE.uuid, left)
    data = local.checked()
    if how == 'cold':
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    else:
        local.alpha.domains[0].shutdown()
        local.source.confirm_migration_at_source(INSTANCE, LiveMigrateData())
    assert local.source._records.list(records.INCOMING) == []
    assert local.files('alpha') == ['disk']


@pytest.mark.parametrize('again', [True, False])
def test_copy_that_was_interrupted_is_made_again_or_removed(local, again):
    data = local.checked()
    local.beta.breaks_after = 1
    with pytest.raises(exception.DriverError, match='the stream broke'):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination, pytest.raises(exception.DriverError, match='is missing or not whole'):
        destination.finish_migration(INSTANCE, data)
    assert local.states()[1] == 'waiting'
    local.beta.breaks_after = None
    if again:
        local.source.migrate_disk_and_power_off(INSTANCE, data)
        with local.at_beta() as destination:
            destination.finish_migration(INSTANCE, data)
        assert (local.folder / 'of-beta' / 'disk').read_bytes() == CONTENT
    else:
        local.source.revert_migration_at_source(INSTANCE, data)
        assert (local.states()[0], local.files('beta')) == ('running', [])


def test_copy_from_before_a_guest_has_run_again_is_not_used(local):
    data, disk = local.checked(), local.images / 'disk'
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.alpha.domains[0].create()
    disk.write_bytes(CONTENT[::-1])
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
    assert (local.folder / 'of-beta' / 'disk').read_bytes() == CONTENT[::-1]


def test_guest_is_restored_although_its_copies_cannot_be_deleted_and_a_later_check_does_that(local, caplog):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.reachable = False
    local.source.revert_migration_at_source(INSTANCE, data)
    assert local.states()[0] == 'running'
    assert 'Cannot delete the copies of the disks' in caplog.text
    assert len(local.files('beta')) == 1
    local.checked()
    assert local.files('beta') == []


def test_file_that_appears_in_the_way_of_a_copy_is_neither_overwritten_nor_removed(local):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    other = local.folder / 'of-beta' / 'disk'
    other.write_text("another owner's")
    with local.at_beta() as destination:
        with pytest.raises(exception.MigrationPreCheckError, match=r'appeared at beta .* move it away'):
            destination.finish_migration(INSTANCE, data)
        destination.revert_migration_at_destination(INSTANCE, data)
    assert other.read_text() == "another owner's"
    assert local.files('beta') == ['disk']


def test_disk_arrives_without_the_file_that_backs_it(local):
    (local.images / 'base').touch()
    (local.images / 'disk.chain').write_text(
        json.dumps([{'filename': f'{local.images}/disk'}, {'filename': f'{local.images}/base'}])
    )
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
    assert local.files('beta') == ['disk']
    assert (local.folder / 'of-beta' / 'disk').read_bytes() == CONTENT
    assert local.files('alpha') == ['base', 'disk', 'disk.chain']


def test_name_of_a_copy_survives_a_loss_of_power_before_its_draft_is_removed(hosts, monkeypatch):
    (hosts.images / 'own').mkdir()
    (hosts.images / 'own' / 'disk').write_bytes(CONTENT)
    hosts.have(a_disk(hosts.images / 'own' / 'disk'))
    data = hosts.checked()
    hosts.source.migrate_disk_and_power_off(INSTANCE, data)
    beta, synced, sync = hosts.folder / 'of-beta', set(), os.fsync

    def note(file):
        path = pathlib.Path(os.readlink(f'/proc/self/fd/{file if isinstance(file, int) else file.fileno()}'))
        if (beta / 'own' / 'disk').exists() and list(beta.glob('*.draft/disk')):
            synced.add(path)
        sync(file)

    monkeypatch.setattr(os, 'fsync', note)
    with hosts.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
    assert {beta, beta / 'own'} <= synced
    assert hosts.files('beta') == ['own']


def test_holes_are_not_sent(local):
    with (local.images / 'disk').open('wb') as disk:
        disk.seek(2**20)
        disk.write(CONTENT)
        disk.truncate(3 * 2**20)
    local.source.migrate_disk_and_power_off(INSTANCE, local.checked())
    [copy] = (local.folder / 'of-beta').glob('*.draft/disk')
    assert copy.read_bytes() == (local.images / 'disk').read_bytes()
    assert local.beta.holes >= 2 * 2**20


def test_disk_that_cannot_be_searched_for_data_is_not_taken_for_a_hole(local, monkeypatch):
    data, seek = local.checked(), os.lseek

    def fail(file, offset, whence):
        if whence == os.SEEK_DATA:
            raise OSError(errno.EIO, 'Input/output error')
        return seek(file, offset, whence)

    monkeypatch.setattr(os, 'lseek', fail)
    with pytest.raises(exception.DriverError, match='Input/output error'):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    assert list((local.folder / 'of-beta').glob('*.draft/whole')) == []


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
