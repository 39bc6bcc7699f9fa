# SPDX-License-Identifier: Apache-2.0

"""The copies of what a guest only reads, and of images that keep more than their content."""

import json
import pathlib

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import LiveMigrateData  # noqa: E402 -- as above
from migrator.virt.driver import NeverCancelled, Verdict  # noqa: E402 -- as above
from migrator.virt.libvirt import plans, records, storage  # noqa: E402 -- as above
from migrator.virt.libvirt.definition.disks import files_read  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, Domain, a_disk, definition  # noqa: E402 -- as above
from tests.unit.virt.libvirt.two_hosts import CONTENT  # noqa: E402 -- as above

CD = "<disk type='{}' device='cdrom'><source {}='{}'/><target dev='hda'/><readonly/></disk>"


@pytest.fixture
def cd(hosts):
    """A guest of alpha with a config drive that only alpha has."""
    path = hosts.images / INSTANCE.uuid / 'disk.config'
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    hosts.have(CD.format('file', 'file', path))
    return hosts


def prepared(hosts, definition=None):
    """Return the data of a live migration whose destination is prepared."""
    with hosts.at_beta() as destination:
        data = destination.check_can_live_migrate_destination(INSTANCE, None, False, definition)
    data = hosts.source.check_can_live_migrate_source(INSTANCE, data)
    data = data.replace(source=json.loads(json.dumps(data.source)))
    with hosts.at_beta() as destination:
        for _ in range(2):
            found = destination.pre_live_migration(INSTANCE, data, NeverCancelled())
    return found


def of_beta(hosts):
    return hosts.folder / 'of-beta' / INSTANCE.uuid / 'disk.config'


def move(hosts, domain, _uri):
    """Move a guest as libvirt does, if the destination has what it reads."""
    assert of_beta(hosts).read_bytes() == CONTENT
    arrived = Domain(hosts.beta, domain.xml, True)
    arrived.reported = list(domain.reported)
    hosts.beta.domains.append(arrived)
    hosts.alpha.domains.remove(domain)


def migrate(hosts, data):
    return hosts.source.live_migration(INSTANCE, 'beta', data, lambda: None)


def test_config_drive_is_copied_before_the_job_and_leaves_its_source(cd):
    data = prepared(cd)
    assert not data.block_migration
    assert of_beta(cd).read_bytes() == bytes(len(CONTENT))
    cd.alpha.migrate = lambda *moved: move(cd, *moved)
    assert migrate(cd, data) is Verdict.COMPLETED
    with cd.at_beta() as destination:
        destination.post_live_migration_at_destination(INSTANCE, data)
        assert destination._records.list(records.INCOMING) == []
    cd.source.post_live_migration_at_source(INSTANCE, data)
    assert [path.name for path in of_beta(cd).parent.iterdir()] == ['disk.config']
    assert not (cd.folder / 'of-alpha' / INSTANCE.uuid).exists()
    assert cd.beta.pools == {}


def test_rollback_removes_the_copy_and_nothing_else(cd):
    data = prepared(cd)
    cd.alpha.migrate = lambda *_: (_ for _ in ()).throw(libvirt.libvirtError('no luck'))
    with pytest.raises(exception.MigratorException):
        migrate(cd, data)
    assert of_beta(cd).read_bytes() == CONTENT
    cd.source.rollback_live_migration_at_source(INSTANCE, data)
    with cd.at_beta() as destination:
        for _ in range(2):
            destination.rollback_live_migration_at_destination(INSTANCE, data)
        assert not of_beta(cd).parent.exists()
    assert (cd.images / INSTANCE.uuid / 'disk.config').read_bytes() == CONTENT


def test_copy_that_breaks_off_starts_no_job_and_is_made_again(cd):
    data = prepared(cd)
    cd.beta.breaks_after = 1000
    with pytest.raises(exception.DriverError, match='the stream broke'):
        migrate(cd, data)
    assert cd.source.get_guest(INSTANCE.uuid).state == 'running'
    cd.beta.breaks_after = None
    cd.alpha.migrate = lambda *moved: move(cd, *moved)
    assert migrate(cd, data) is Verdict.COMPLETED


def test_destination_that_was_rolled_back_gets_no_copy(cd):
    data = prepared(cd)
    with cd.at_beta() as destination:
        destination.rollback_live_migration_at_destination(INSTANCE, data)
    with pytest.raises(exception.DriverError, match='cannot open directory'):
        migrate(cd, data)
    assert not of_beta(cd).parent.exists()
    assert cd.beta.pools == {}


def test_file_that_has_changed_since_the_check_is_not_copied(cd):
    data = prepared(cd)
    (cd.images / INSTANCE.uuid / 'disk.config').write_bytes(CONTENT[::-1])
    with pytest.raises(exception.DriverError, match='has changed since the check'):
        migrate(cd, data)


@pytest.mark.parametrize('same', [True, False])
def test_file_that_the_destination_has_is_used_if_its_content_is_the_same(cd, same):
    of_beta(cd).parent.mkdir()
    of_beta(cd).write_bytes(CONTENT if same else CONTENT[::-1])
    if same:
        assert prepared(cd).destination['copies'] == {}
    else:
        with pytest.raises(exception.MigrationPreCheckError, match=r'is another one at beta than at .*: move it away'):
            prepared(cd)
    with cd.at_beta() as destination:
        destination.rollback_live_migration_at_destination(INSTANCE, None)
    assert of_beta(cd).exists()


def test_file_of_no_guest_and_one_that_another_guest_reads_stay_at_the_source(hosts, caplog):
    iso, drive = hosts.images / 'boot.iso', hosts.images / INSTANCE.uuid / 'disk.config'
    drive.parent.mkdir()
    iso.write_bytes(CONTENT)
    drive.write_bytes(CONTENT)
    hosts.have(CD.format('file', 'file', iso), CD.format('file', 'file', drive).replace('hda', 'hdb'))
    data = prepared(hosts)
    assert sorted(data.destination['copies']) == ['hda', 'hdb']
    other = hosts.another_guest(drive)
    hosts.alpha.migrate = lambda *moved: move(hosts, *moved)
    assert migrate(hosts, data) is Verdict.COMPLETED
    hosts.source.post_live_migration_at_source(INSTANCE, data)
    assert iso.exists()
    assert drive.exists()
    assert other in caplog.text


def test_cold_migration_copies_it_too_and_takes_it_back(cd):
    data = cd.checked()
    cd.source.migrate_disk_and_power_off(INSTANCE, data)
    with cd.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        assert of_beta(cd).read_bytes() == CONTENT
        destination.revert_migration_at_destination(INSTANCE, data)
        assert not of_beta(cd).exists()
    assert (cd.images / INSTANCE.uuid / 'disk.config').exists()


@pytest.mark.parametrize('changed', [True, False])
def test_refusal_of_a_stored_definition_counts_while_the_guest_has_it(hosts, changed):
    hosts.have(CD.format('file', 'file', '/nowhere/boot.iso'))
    stored = json.loads(json.dumps(hosts.source.get_definition(INSTANCE.uuid)))
    if changed:
        hosts.alpha.domains[0].xml = hosts.alpha.domains[0].xml.replace(
            CD.format('file', 'file', '/nowhere/boot.iso'), ''
        )
        assert prepared(hosts, stored).destination['ready']
    else:
        with pytest.raises(exception.MigrationPreCheckError, match=r'does not have /nowhere/boot\.iso'):
            prepared(hosts, stored)
        assert hosts.destination._records.list(records.INCOMING) == [], 'its check refuses, before it is prepared'


# --- what an image keeps besides its content -------------------------------------------------------------------------

SNAPSHOT = {'snapshots': [{'name': 'before-upgrade'}]}
BITMAP = {'format-specific': {'data': {'bitmaps': [{'name': 'backup-0'}]}}}


@pytest.mark.parametrize(
    ('kept', 'backed', 'live', 'cold'),
    [
        (SNAPSHOT, False, 'snapshot before-upgrade, which a copy lacks: .* or move the guest cold', None),
        (BITMAP, False, 'bitmap backup-0, which a copy lacks: .*bitmap --remove', None),
        (SNAPSHOT, True, 'snapshot before-upgrade', 'snapshot before-upgrade, which a copy lacks'),
        ({}, True, None, None),
    ],
)
def test_image_with_what_its_copy_would_lack_is_not_copied(local, kept, backed, live, cold):
    disk = local.images / 'disk'
    chain = [{'filename': str(disk), **kept}, *([{'filename': f'{local.images}/base'}] if backed else [])]
    (local.images / 'base').touch()
    (local.images / 'disk.chain').write_text(json.dumps(chain))
    for ask, refusal in ((lambda: prepared(local), live), (local.checked, cold)):
        if refusal is None:
            ask()
        else:
            with pytest.raises(exception.MigrationPreCheckError, match=refusal):
                ask()
        with local.at_beta() as destination:
            destination.rollback_live_migration_at_destination(INSTANCE, None)
    assert disk.exists()


def test_file_behind_a_symbolic_link_stays_at_its_source(cd):
    path, real = cd.images / INSTANCE.uuid / 'disk.config', cd.images / 'boot.iso'
    path.rename(real)
    path.symlink_to('../boot.iso')
    data = prepared(cd)
    cd.alpha.migrate = lambda *moved: move(cd, *moved)
    migrate(cd, data)
    cd.source.post_live_migration_at_source(INSTANCE, data)
    assert real.read_bytes() == CONTENT
    assert path.read_bytes() == CONTENT


def test_directory_of_a_guest_that_has_left_is_removed_by_any_of_its_names(tmp_path):
    directory = tmp_path / 'true' / INSTANCE.uuid
    directory.mkdir(parents=True)
    (tmp_path / 'instances').symlink_to('true')
    storage.remove_directory(str(directory / 'disk.config'), str(tmp_path / 'instances'))
    assert not directory.exists()


def copied(hosts):
    """Migrate the guest, and return what beta has then: name -> content."""
    data = prepared(hosts)
    hosts.alpha.migrate = lambda domain, _uri: hosts.alpha.domains.remove(domain)
    migrate(hosts, data)
    with hosts.at_beta() as destination:
        destination._remove_received('post_live_migration_at_destination', INSTANCE)
    return {name: (hosts.folder / 'of-beta' / name).read_bytes() for name in hosts.files('beta')}


def test_disk_that_only_the_running_guest_has_is_not_lost_cold(local):
    domain = local.alpha.domains[0]
    more = a_disk(local.images / 'more').replace('vda', 'vdb')
    domain.now = domain.xml.replace('</devices>', f'{more}</devices>')
    with pytest.raises(exception.MigrationPreCheckError, match=r'has disk vdb \(.*/more\) in use and not in its'):
        local.checked()


def test_image_that_a_guest_only_reads_goes_with_what_backs_it(hosts):
    for name in ('cd', 'base'):
        (hosts.images / name).write_bytes(name.encode())
    chain = [{'filename': f'{hosts.images}/cd'}, {'filename': f'{hosts.images}/base'}]
    (hosts.images / 'cd.chain').write_text(json.dumps(chain))
    hosts.have(a_disk(hosts.images / 'cd', more='<readonly/>'))
    assert copied(hosts) == {'cd': b'cd', 'base': b'base'}
    hosts.have(a_disk(hosts.images / 'cd', more='<readonly/>'))
    for name in ('cd', 'base'):
        (hosts.folder / 'of-beta' / name).unlink()
    data = hosts.checked()
    hosts.source.migrate_disk_and_power_off(INSTANCE, data)
    with hosts.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
        assert hosts.files('beta') == ['base', 'cd']


def test_symbolic_link_to_nothing_in_the_place_of_a_file_is_refused(cd):
    of_beta(cd).parent.mkdir()
    of_beta(cd).symlink_to('/nowhere')
    with pytest.raises(
        exception.MigrationPreCheckError, match='is a symbolic link at beta to a file that does not exist'
    ):
        prepared(cd)


def test_copy_of_an_earlier_migration_is_made_anew(cd):
    migrate_to_nothing = prepared(cd)
    draft = pathlib.Path(migrate_to_nothing.destination['copies']['hda'])
    cd.alpha.migrate = lambda *_: (_ for _ in ()).throw(libvirt.libvirtError('no luck'))
    with pytest.raises(exception.MigratorException):
        migrate(cd, migrate_to_nothing)
    # The source was killed before it could undefine the pool, and the guest was moved by hand.
    with cd.at_beta() as destination:
        pool = cd.beta.storagePoolDefineXML(f'<pool><name>{draft.name}</name><path>{draft}</path></pool>', 0)
        pool.active = True
        destination._incoming.keep(INSTANCE.uuid)
        of_beta(cd).unlink()
    prepared(cd)
    assert cd.beta.pools == {}


def test_cd_of_the_next_start_goes_along(hosts):
    for name in ('now.iso', 'later.iso'):
        (hosts.images / name).write_bytes(name.encode())
    hosts.have(CD.format('file', 'file', hosts.images / 'later.iso'))
    domain = hosts.alpha.domains[0]
    domain.now = domain.xml.replace('later.iso', 'now.iso')
    assert copied(hosts) == {'now.iso': b'now.iso', 'later.iso': b'later.iso'}


@pytest.mark.parametrize('same', [True, False])
def test_cd_in_a_storage_pool_is_the_same_at_the_destination(hosts, same):
    for name in ('alpha', 'beta'):
        (hosts.folder / f'of-{name}' / 'boot.iso').write_bytes(CONTENT if same or name == 'alpha' else CONTENT[::-1])
    for daemon in (hosts.alpha, hosts.beta):
        daemon.storagePoolDefineXML(f'<pool><name>isos</name><path>{hosts.images}</path></pool>', 0).active = True
    hosts.beta.pools['isos'].directory = hosts.images
    hosts.have(CD.format('volume', 'pool', 'isos').replace('<source', "<source volume='boot.iso'"))
    stored = LiveMigrateData(source=json.loads(json.dumps(hosts.source.get_definition(INSTANCE.uuid))))
    with hosts.at_beta() as destination:
        if same:
            destination.check_can_evacuate(INSTANCE, stored)
        else:
            with pytest.raises(exception.MigrationPreCheckError, match='is another one at beta'):
                destination.check_can_evacuate(INSTANCE, stored)
    if same:
        assert prepared(hosts).destination['copies'] == {}
    else:
        with pytest.raises(exception.MigrationPreCheckError, match='is another one at beta'):
            prepared(hosts)


@pytest.mark.parametrize(
    'xml',
    [
        "<domain><os><acpi><table type='slic'>{}</table></acpi></os></domain>",
        '<domain><os><shim>{}</shim></os></domain>',
        "<domain><sysinfo type='fwcfg'><entry name='opt/one' file='{}'/></sysinfo></domain>",
        "<domain><devices><interface type='ethernet'><rom file='{}'/></interface></devices></domain>",
    ],
)
def test_file_of_a_table_a_rom_or_a_shim_is_read_too(tmp_path, xml):
    (tmp_path / 'one').write_bytes(CONTENT)
    (found,) = files_read(str(tmp_path), xml.format(tmp_path / 'one'))
    assert (found.path, found.copyable, found.size) == (str(tmp_path / 'one'), True, len(CONTENT))


def test_floppy_that_a_guest_may_write_to_is_a_disk():
    floppy = "<disk type='file' device='floppy'><source file='/a'/><target dev='fda'/>{}</disk>"
    assert [disk.target for disk in storage.defined_disks(definition(floppy.format('')))] == ['fda']
    assert storage.defined_disks(definition(floppy.format('<readonly/>'))) == []


# --- images that other files back ------------------------------------------------------------------------------------


def test_copy_of_a_disk_needs_none_of_the_files_that_backed_it(local):
    disk = local.images / 'disk'
    backing = f"<backingStore type='file'><format type='qcow2'/><source file='{local.images}/base'/></backingStore>"
    (local.images / 'base').touch()
    disk.with_name('disk.chain').write_text(json.dumps([{'filename': str(disk)}, {'filename': f'{local.images}/base'}]))
    local.alpha.domains[0].xml = definition(a_disk(disk, more=backing))
    data = prepared(local)
    plan = plans._definitions(local.source.connection, INSTANCE, data)
    assert ['backingStore' in text for text in plan.values()] == [False, False]
    with local.at_beta() as destination:
        destination.rollback_live_migration_at_destination(INSTANCE, None)
    data = local.checked()
    local.source.migrate_disk_and_power_off(INSTANCE, data)
    with local.at_beta() as destination:
        destination.finish_migration(INSTANCE, data)
    assert 'backingStore' not in local.beta.domains[0].xml
