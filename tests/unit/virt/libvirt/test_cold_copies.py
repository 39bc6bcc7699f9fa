# SPDX-License-Identifier: Apache-2.0

"""The copies of the disks of a cold migration, with a replacement of the daemons and of qemu-img."""

import errno
import json
import os
import pathlib
from unittest import mock

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import LiveMigrateData  # noqa: E402 -- as above
from migrator.virt.libvirt import records  # noqa: E402 -- as above
from tests.unit.virt.libvirt import daemon  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, Domain, a_disk  # noqa: E402 -- as above
from tests.unit.virt.libvirt.two_hosts import CONTENT  # noqa: E402 -- as above


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


def test_revert_before_the_checks_keeps_the_files_of_a_live_migration(hosts):
    disk = hosts.images / 'disk'
    disk.touch()
    arrived = {'files': {str(disk): disk.stat().st_ino}, 'directories': []}
    hosts.destination._records.write(records.INCOMING, INSTANCE.uuid, arrived)
    hosts.destination.revert_migration_at_destination(INSTANCE, LiveMigrateData())
    assert disk.exists()


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
    assert 'Cannot delete the copied disks' in caplog.text
    assert len(local.files('beta')) == 1
    local.checked()
    assert local.files('beta') == []


@pytest.mark.parametrize('by', ['check', 'revert'])
def test_pool_of_a_copy_that_was_never_finished_goes_with_its_draft(local, by):
    data = local.checked()
    local.beta.breaks_after = 1
    with pytest.raises(exception.DriverError, match='the stream broke'):
        local.source.migrate_disk_and_power_off(INSTANCE, data)
    assert len(local.beta.pools) == len(local.files('beta')) == 1
    if by == 'check':
        local.checked()
    else:
        with local.at_beta() as destination:
            destination.revert_migration_at_destination(INSTANCE, data)
    assert (local.beta.pools, local.files('beta')) == ({}, [])


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
