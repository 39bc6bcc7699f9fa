# SPDX-License-Identifier: Apache-2.0

"""What one host of a move reports, and what the other one refuses to do because of it."""

import json
import os

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import LiveMigrateData  # noqa: E402 -- as above
from migrator.virt import driver  # noqa: E402 -- as above
from migrator.virt.libvirt import records  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, definition  # noqa: E402 -- as above

HOSTILE = definition('<emulator>/bin/sh</emulator>')


def all_files(hosts):
    """Return every file of both hosts, and beside their directories."""
    return sorted(path for path in hosts.folder.rglob('*') if '.migrator-directory' not in path.name)


def reported(local, **changes):
    """Return the data of the check of the source, with what it has changed of its one disk."""
    data = local.source.check_can_migrate_source(INSTANCE, LiveMigrateData())
    facts = {**data.source['disks'][0], **changes}
    return data.replace(source={**data.source, 'power_on': True, 'disks': [facts]})


# --- a hostile source ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('phase', ['check_can_migrate_destination', 'finish_migration', 'evacuate'])
def test_hostile_definition_starts_nothing_and_makes_nothing(local, phase):
    data = local.checked()
    data = data.replace(source={**data.source, 'xml': HOSTILE, 'disks': []})
    before = all_files(local)
    with local.at_beta() as destination, pytest.raises(exception.MigrationPreCheckError, match='emulator that libvirt'):
        getattr(destination, phase)(INSTANCE, data)
    assert local.beta.domains == []
    assert [path for path in all_files(local) if path not in before and path.suffix != '.json'] == []


def test_definition_that_has_changed_since_the_start_is_not_made_persistent(local):
    data = local.checked(shared=True)
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    local.beta.createXML(local.alpha.domains[0].xml, 0)
    hostile = data.replace(source={**data.source, 'xml': HOSTILE})
    with pytest.raises(exception.MigrationPreCheckError, match='emulator that libvirt'):
        local.destination.finish_migration(INSTANCE, hostile)
    assert [domain.persistent for domain in local.beta.domains] == [False]


def test_disk_that_is_not_the_one_of_the_definition_is_not_copied(local):
    data = reported(local, path=f'{local.folder}/elsewhere/disk')
    with (
        local.at_beta() as destination,
        pytest.raises(exception.MigrationPreCheckError, match='alpha has described another disk'),
    ):
        destination.check_can_migrate_destination(INSTANCE, data)


@pytest.mark.parametrize('path', ['{}/elsewhere/disk', '{}/images/link/disk'])
def test_copy_is_not_adopted_outside_of_the_places_for_disks(local, path):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    (local.folder / 'elsewhere').mkdir()
    (local.folder / 'of-beta' / 'link').symlink_to(local.folder / 'elsewhere')
    facts = {**data.source['disks'][0], 'path': path.format(local.folder)}
    data = data.replace(source={**data.source, 'disks': [facts]})
    with local.at_beta() as destination, pytest.raises(exception.MigrationPreCheckError, match='allowed_paths of beta'):
        destination.finish_migration(INSTANCE, data)
    assert [*(local.folder / 'elsewhere').iterdir()] == []
    assert local.beta.domains == []


def test_file_that_is_no_disk_of_the_guest_does_not_grow(local):
    data = reported(local)
    (local.folder / 'of-beta' / 'other').touch()
    grow = {'path': f'{local.images}/other', 'format': 'raw', 'size': 2**20}
    data = data.replace(source={**data.source, 'grow': grow})
    with local.at_beta() as destination:
        for phase in ('check_can_migrate_destination', 'finish_migration'):
            with pytest.raises(exception.MigrationPreCheckError, match=r'/other.* grow, as alpha wants'):
                getattr(destination, phase)(INSTANCE, data.replace(destination={'copies': {}}))
    assert (local.folder / 'of-beta' / 'other').stat().st_size == 0


def test_revert_removes_nothing_but_drafts_of_the_guest(local):
    data = local.checked()
    other = local.folder / 'other.draft'
    other.mkdir()
    for draft in (str(other), str(local.folder / 'of-beta'), f'{local.folder}/*'):
        forged = data.replace(destination={**data.destination, 'copies': {'vda': draft}})
        with local.at_beta() as destination:
            destination.revert_migration_at_destination(INSTANCE, forged)
    assert other.is_dir()
    assert (local.folder / 'of-beta').is_dir()


def test_only_an_nvram_is_taken_for_a_file_that_libvirt_has_made(local):
    victim = local.folder / 'victim'
    victim.touch()
    data = local.checked()
    data = data.replace(source={**data.source, 'files': {**data.source['files'], str(victim): {'absent': True}}})
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        destination.revert_migration_at_destination(INSTANCE, data)
    assert victim.exists()


def test_malformed_definition_of_a_live_migration_is_refused(local):
    source = {'xml': '<!DOCTYPE d><domain/>', 'disks': []}
    with pytest.raises(exception.MigrationPreCheckError, match='declares a document type'):
        local.destination.pre_live_migration(INSTANCE, LiveMigrateData(source=source), driver.NeverCancelled())


def test_what_is_no_file_is_not_read(local):
    os.mkfifo(local.folder / 'of-beta' / 'pipe')
    facts = {'target': 'hda', 'kind': 'file', 'path': f'{local.images}/pipe', 'identity': 'x', 'read_only': True}
    source = {'xml': definition(), 'disks': [], 'files_read': [facts]}
    with local.at_beta() as beta, pytest.raises(exception.MigrationPreCheckError, match=r'/pipe .* is no file'):
        beta.pre_live_migration(INSTANCE, LiveMigrateData(source=source), driver.NeverCancelled())


def test_symbolic_link_in_the_place_of_a_file_that_was_made_is_not_followed(local):
    victim = local.folder / 'victim'
    victim.touch()
    (local.images / 'made').symlink_to(victim)
    made = {'files': {f'{local.images}/made': victim.stat().st_ino}, 'directories': [], 'token': ''}
    local.source._records.write(records.INCOMING, INSTANCE.uuid, made)
    local.source._incoming.remove(INSTANCE.uuid)
    assert victim.exists()


def test_disk_of_another_guest_is_not_removed_as_a_log(local):
    disk = local.images / 'other-guest' / 'disk'
    source = {'xml': definition(), 'disks': [], 'logs': [str(disk)]}
    with local.at_beta() as beta:
        beta.pre_live_migration(INSTANCE, LiveMigrateData(source=source), driver.NeverCancelled())
        disk.touch()
        beta.rollback_live_migration_at_destination(INSTANCE, None)
        assert disk.exists()


def chained(path, outside, others=None):
    """Let the header of an image name a file outside of the places for disks."""
    data = {'extents': [{'filename': str(path)}, {'filename': str(outside)}]} if others == 'extents' else {}
    chain = [{'filename': str(path), 'format-specific': {'data': data}}]
    chain += [] if data else [{'filename': str(outside)}]
    path.with_name(f'{path.name}.chain').write_text(json.dumps(chain))


@pytest.mark.parametrize('kind', ['backing', 'extents'])
@pytest.mark.parametrize(
    'devices',
    [
        "<disk type='file' device='cdrom'><driver type='qcow2'/><source file='{0}/cd'/><target dev='hda'/><readonly/>"
        '</disk>',
        "<disk type='file'><driver type='qcow2'/><source file='{0}/disk'/><backingStore type='file'>"
        "<format type='qcow2'/><source file='{0}/cd'/></backingStore><target dev='vda'/></disk>",
    ],
)
def test_image_that_names_a_file_outside_of_the_places_for_disks_is_not_read(hosts, devices, kind):
    (hosts.images / 'cd').write_bytes(b'header')
    (hosts.images / 'disk').write_bytes(b'header')
    hosts.have(devices.format(hosts.images))
    data = LiveMigrateData(source=json.loads(json.dumps(hosts.source.get_definition(INSTANCE.uuid))))
    (hosts.folder / 'secret').touch()
    chained(hosts.images / 'cd', hosts.folder / 'secret', kind)
    with pytest.raises(exception.MigrationPreCheckError, match='secret, which backs it, is neither below'):
        hosts.destination.check_can_evacuate(INSTANCE, data)


@pytest.mark.parametrize('more', [{}, {'files_read': []}])
def test_device_of_a_storage_pool_is_not_read_unless_it_is_known_to_be_the_same(hosts, more):
    (hosts.images / 'sda1').touch()
    pool = hosts.alpha.storagePoolDefineXML(f'<pool><name>disks</name><path>{hosts.images}</path></pool>', 0)
    pool.active, pool.kind = True, libvirt.VIR_STORAGE_VOL_BLOCK
    hosts.beta.pools['disks'] = pool
    hosts.have(
        "<disk type='volume' device='cdrom'><source pool='disks' volume='sda1'/><target dev='hda'/><readonly/></disk>"
    )
    source = {**hosts.source.get_definition(INSTANCE.uuid), **more}
    with pytest.raises(
        exception.MigrationPreCheckError, match=r'sda1 .* cannot be shown to be the same device at beta'
    ):
        hosts.destination.check_can_evacuate(INSTANCE, LiveMigrateData(source=source))


def test_copy_that_names_a_file_outside_of_the_places_for_disks_is_not_started(local):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    (local.folder / 'secret').touch()
    with local.at_beta() as destination:
        chained(local.images / 'disk', local.folder / 'secret')
        with pytest.raises(exception.MigrationPreCheckError, match='secret, which backs it, is neither below'):
            destination.finish_migration(INSTANCE, data)
    assert local.beta.domains == []


# --- a hostile destination -------------------------------------------------------------------------------------------


def test_file_that_is_no_disk_of_the_guest_is_not_sent(local):
    data = local.checked()
    (local.folder / 'secret').touch()
    facts = {**data.source['disks'][0], 'path': f'{local.folder}/secret'}
    with pytest.raises(exception.DriverError, match='/secret is no disk of guest'):
        local.source.migrate_disk_and_power_off(INSTANCE, data.replace(source={**data.source, 'disks': [facts]}))
    assert local.states()[0] == 'running'
    assert local.files('beta') == []


def test_file_that_the_guest_does_not_read_is_not_sent_before_a_live_migration(local):
    secret = {'target': 'hda', 'kind': 'file', 'path': f'{local.folder}/secret', 'read_only': True}
    there = {'host': 'beta', 'copies': {'hda': f'{local.folder}/draft'}, 'owner': [0, 0]}
    (local.folder / 'secret').touch()
    with pytest.raises(exception.DriverError, match='/secret is no disk of guest'):
        local.source._send_files(INSTANCE, LiveMigrateData(source={'files_read': [secret]}, destination=there))
    assert local.files('beta') == []


def test_confirmation_removes_no_file_outside_of_the_places_for_disks(local, caplog):
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
    secret = local.folder / 'secret'
    secret.touch()
    facts = {**data.source['disks'][0], 'path': str(secret), 'inode': secret.stat().st_ino}
    local.source.confirm_migration_at_source(INSTANCE, data.replace(source={**data.source, 'disks': [facts]}))
    assert secret.exists()
    assert 'it is neither below instances_path' in caplog.text
