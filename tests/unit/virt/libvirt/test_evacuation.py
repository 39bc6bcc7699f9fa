# SPDX-License-Identifier: Apache-2.0

"""The evacuation of a guest, with a replacement of the daemon and of qemu-img."""

import json
import shutil
import socket

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import LiveMigrateData  # noqa: E402 -- as above
from migrator.virt import driver as driver_of_all  # noqa: E402 -- as above
from migrator.virt.libvirt import records  # noqa: E402 -- as above
from migrator.virt.libvirt.definition import consoles, needs  # noqa: E402 -- as above
from tests.unit.virt.libvirt import daemon  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE, Domain, a_disk, definition  # noqa: E402 -- as above


@pytest.fixture
def images(tmp_path):
    (tmp_path / 'images').mkdir()
    return tmp_path / 'images'


@pytest.fixture
def make_driver(tmp_path, images, monkeypatch):
    """Return a driver of a host by its name; all hosts have the same instances_path."""
    daemon.install_qemu_img(tmp_path, monkeypatch)
    return lambda host: daemon.driver_of(host, tmp_path, images, monkeypatch)


@pytest.fixture
def source(make_driver):
    return make_driver('alpha')


@pytest.fixture
def destination(make_driver):
    return make_driver('beta')


def described(source, xml, persistent=True):
    """Return the data of an evacuation of a guest that the source has described."""
    driver, libvirtd = source
    libvirtd.domains[:] = [Domain(libvirtd, xml, persistent)]
    found = driver.get_definition(INSTANCE.uuid)
    return LiveMigrateData(source=json.loads(json.dumps(found)))


def refused(destination, data, match):
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        destination[0].check_can_evacuate(INSTANCE, data)
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        destination[0].evacuate(INSTANCE, data)
    assert destination[1].domains == []
    destination[0].rollback_evacuation_at_destination(INSTANCE, data)
    assert destination[0].get_guest(INSTANCE.uuid).state == 'absent'


# --- the definition --------------------------------------------------------------------------------------------------


def test_missing_guest_has_no_definition(source):
    assert source[0].get_definition(INSTANCE.uuid) is None


def test_definition_says_which_device_keeps_the_guest_from_being_moved(source):
    for device, immovable in (("<hostdev type='pci'/>", 'it has a pci device of its host'), ('', None)):
        data = described(source, definition(device))
        assert (data.source['immovable'] or '').startswith(immovable or '')
        assert (data.source['immovable'] is None) == (immovable is None)


@pytest.mark.parametrize(
    ('devices', 'words'),
    [
        ("<hostdev type='pci'/>", 'it has a device of its host, so that no other host can start it: remove that part'),
        ("<serial type='tcp'><source mode='connect' host='192.0.2.1' service='1'/></serial>", 'allowed_parts of alpha'),
        ("<disk type='file'><source file='/of/x'/><target dev='vda'/></disk>", 'to [libvirt] allowed_paths of alpha'),
        ('', None),
    ],
)
def test_definition_says_why_no_other_host_would_start_the_guest(source, devices, words):
    found = described(source, definition(devices)).source['unstartable']
    assert found is None if words is None else words in found


def test_definition_names_each_file_that_backs_a_disk(source, images):
    for name in ('disk', 'base'):
        (images / name).touch()
    (images / 'disk.chain').write_text(
        json.dumps([{'filename': f'{images}/disk'}, {'filename': f'{images}/base'}, {'filename': 'nbd://server'}])
    )
    # A QEMU of this host uses it.
    (images / 'disk.error').write_text('locked')
    data = described(source, definition(a_disk(images / 'disk')))
    assert set(data.source['files']) == {f'{images}/disk', f'{images}/base'}
    assert data.source['persistent'] is True


def test_disk_that_the_source_could_not_identify_is_refused_with_its_reason(source, destination, images):
    data = described(source, definition(a_disk(images / 'disk')))
    (images / 'disk').touch()
    refused(destination, data, 'alpha could not identify it: .*No such file or directory')


def test_guest_without_a_stored_definition_is_refused(destination):
    refused(destination, LiveMigrateData(), 'host alpha has not reported the definition of guest')


def test_password_is_not_reported_and_its_guest_is_refused(source, destination):
    data = described(source, definition("<graphics type='vnc' passwd='hidden'/>"))
    assert 'hidden' not in json.dumps(data.source)
    refused(destination, data, 'has a password')


# --- the check -------------------------------------------------------------------------------------------------------


def test_check_returns_the_shared_files_and_leaves_nothing(source, destination, images):
    (images / 'disk').touch()
    data = described(source, definition(a_disk(images / 'disk')))
    checked = destination[0].check_can_evacuate(INSTANCE, data)
    assert checked.is_shared_storage
    assert checked.destination == {'host': 'beta', 'files': [f'{images}/disk']}
    assert destination[0].get_guest(INSTANCE.uuid).state == 'absent'


def test_missing_disk_is_refused(source, destination, images):
    (images / 'disk').touch()
    data = described(source, definition(a_disk(images / 'disk')))
    (images / 'disk').unlink()
    refused(destination, data, 'host beta does not see .*/disk')


def test_stale_disk_on_storage_that_is_not_shared_is_refused(source, destination, images):
    (images / 'disk').touch()
    data = described(source, definition(a_disk(images / 'disk')))
    images.rename(images.parent / "alpha's")
    images.mkdir()
    (images / 'disk').touch()
    refused(destination, data, 'cannot be shown to be the same at alpha and beta: .* is missing here')


def test_disk_in_use_is_refused_unless_it_is_shareable(source, destination, images):
    (images / 'disk').touch()
    data = described(source, definition(a_disk(images / 'disk')))
    (images / 'disk.error').write_text('qemu-img: Could not open: Failed to get shared "write" lock\n')
    refused(destination, data, 'host beta cannot use .*/disk .*Failed to get shared "write" lock')
    shareable = described(source, definition(a_disk(images / 'disk', more='<shareable/>')))
    destination[0].check_can_evacuate(INSTANCE, shareable)


def test_backing_file_that_the_source_has_not_reported_is_refused(source, destination, images):
    (images / 'disk').touch()
    (images / 'base').touch()
    data = described(source, definition(a_disk(images / 'disk')))
    (images / 'disk.chain').write_text(json.dumps([{'filename': f'{images}/disk'}, {'filename': f'{images}/base'}]))
    refused(destination, data, '/base .*it was no disk of the guest when it reported the definition')


@pytest.mark.parametrize(
    ('images_of_chain', 'match'),
    [
        ([{'filename': '{0}/disk'}, {'filename': '{1}/other'}], '/other, which backs it, is neither below'),
        (
            [{'filename': '{0}/disk', 'format-specific': {'data': {'data-file': '{1}/other'}}}],
            '/other, which backs it, is neither below',
        ),
        (
            [{'filename': '{0}/disk', 'format-specific': {'data': {'data-file': 'content'}}}],
            '/content .* it was no disk of the guest',
        ),
        ([{'filename': '{0}/disk'}, {'filename': 'fat:rw:/etc'}], 'fat:rw:/etc, which backs it, is no absolute path'),
    ],
)
def test_what_backs_a_disk_is_bounded_and_the_same(source, destination, images, tmp_path, images_of_chain, match):
    (images / 'disk').touch()
    (tmp_path / 'outside').mkdir()
    (tmp_path / 'outside' / 'other').touch()
    (images / 'content').touch()
    data = described(source, definition(a_disk(images / 'disk')))
    chain = json.dumps(images_of_chain).replace('{0}', str(images)).replace('{1}', str(tmp_path / 'outside'))
    (images / 'disk.chain').write_text(chain)
    refused(destination, data, match)


def test_network_disk_needs_no_proof_and_a_disk_of_the_host_is_refused(source, destination):
    data = described(source, definition(a_disk('pool/image', 'network')))
    assert destination[0].check_can_evacuate(INSTANCE, data).destination['files'] == []
    refused(destination, described(source, definition(a_disk('nvme', 'nvme'))), 'devices/disk@type=nvme')


def test_nvram_is_treated_as_a_disk(source, destination, images):
    (images / 'vars').touch()
    data = described(source, definition(system=f'<nvram>{images}/vars</nvram>'))
    assert destination[0].check_can_evacuate(INSTANCE, data).destination['files'] == [f'{images}/vars']
    (images / 'vars').unlink()
    refused(destination, data, r'/vars \(disk nvram\)')


@pytest.mark.parametrize(
    ('devices', 'match'),
    [
        ("<hostdev type='pci'/>", 'has a device of its host'),
        ("<interface type='hostdev'/>", 'has a network device of its host'),
        ("<filesystem type='mount'/>", 'has a directory of its host'),
        ("<tpm><backend type='emulator'/></tpm>", 'has a TPM'),
        ("<memory model='nvdimm'><source><path>/m</path></source></memory>", 'has memory in a file'),
        ("<interface type='bridge'><source bridge='nonesuch'/></interface>", 'does not have a bridge nonesuch'),
        ("<interface type='network'><source network='net'/></interface>", 'does not have an active network net'),
        ("<disk device='cdrom'><source file='{}/none.iso'/><target dev='hda'/></disk>", 'does not have .*/none.iso'),
    ],
)
def test_guest_that_needs_what_only_its_host_has_is_refused(source, destination, images, devices, match):
    refused(destination, described(source, definition(devices.format(images))), match)


def test_networks_and_files_that_the_host_has_are_no_obstacle(source, destination, images, monkeypatch):
    (images / 'br').touch()
    monkeypatch.setattr(needs, 'NETWORK_DEVICES', str(images))
    destination[1].networks.append('net')
    devices = (
        "<interface type='bridge'><source bridge='br'/></interface>"
        "<interface type='network'><source network='net'/></interface><interface type='user'/>"
        f"<disk device='cdrom'><source file='{images}/br'/><target dev='hda'/></disk>"
        f"<disk device='cdrom'><source file='{images}/none.iso' startupPolicy='optional'/><target dev='hdb'/></disk>"
    )
    data = described(source, definition(devices, f'<kernel>{images}/br</kernel>'))
    destination[0].conf.set_override('allowed_parts', ['devices/interface@type=user'], group='libvirt')
    destination[0].check_can_evacuate(INSTANCE, data)


@pytest.mark.parametrize(
    ('devices', 'match'),
    [
        (
            "<disk device='cdrom'><source file='/none.iso'/><target dev='hda'/></disk>",
            r'/none\.iso of guest .*: provide it there, or, for a CD, eject it',
        ),
        (
            "<channel type='unix'><source mode='bind' path='{gone}/agent'/></channel>",
            'beta does not have the directory {gone}, in which guest .* has a socket: make it there',
        ),
        (
            "<graphics type='vnc'><listen type='socket' socket='{gone}/vnc'/></graphics>",
            'beta does not have the directory {gone}, in which guest .* has a socket: make it there',
        ),
        (
            "<channel type='file'><source path='{gone}/one.log'/></channel>",
            'beta does not have the directory {gone}, in which guest .* has a log: make it there',
        ),
        (
            "<serial type='pty'><log file='{gone}/one.log'/></serial>",
            'beta does not have the directory {gone}, in which guest .* has a log: make it there',
        ),
        (
            "<serial type='unix'><source mode='connect' path='{gone}/one'/></serial>",
            'beta does not have {gone}/one, the socket that guest .* needs: provide it there',
        ),
        ("<serial type='pipe'><source path='{gone}/one'/></serial>", 'beta does not have {gone}/one, the pipe'),
        (
            "<rng model='virtio'><backend model='random'>{gone}/one</backend></rng>",
            'beta does not have {gone}/one, the device that guest .* needs',
        ),
        ("<interface type='bridge'><source bridge='none'/></interface>", 'beta does not have a bridge none, which'),
        ("<interface type='network'><source network='net'/></interface>", 'beta does not have an active network net'),
        (
            "<graphics type='vnc' listen='198.51.100.9'/>",
            r'cannot listen at 198\.51\.100\.9 port of any number',
        ),
    ],
)
def test_guest_that_needs_what_the_destination_lacks_is_not_prepared_for_a_live_migration(
    source, destination, tmp_path, devices, match
):
    driver, _libvirtd = destination
    (gone := tmp_path / 'gone').mkdir()
    (gone / 'one').touch()
    data = described(source, definition(devices.replace('{gone}', str(gone))))
    shutil.rmtree(gone)
    with pytest.raises(exception.MigrationPreCheckError, match=match.replace('{gone}', str(gone))):
        driver.pre_live_migration(INSTANCE, data, driver_of_all.NeverCancelled())
    assert driver._records.list(records.INCOMING) == []


def test_path_that_the_service_of_the_source_does_not_see_is_not_asked_of_the_destination(source, destination, images):
    devices = f"<channel type='unix'><source mode='connect' path='{images}/none/socket'/></channel>"
    destination[0].conf.set_override('allowed_parts', ['devices/channel/source@path'], group='libvirt')
    destination[0].check_can_evacuate(INSTANCE, described(source, definition(devices)))


def test_console_at_a_port_that_is_taken_is_refused(source, destination):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        data = described(source, definition(f"<graphics type='vnc' port='{port}' autoport='no' listen='127.0.0.1'/>"))
        refused(destination, data, rf'cannot listen at 127\.0\.0\.1 port {port} on host beta: Address already in use')
    destination[0].check_can_evacuate(INSTANCE, data)


def test_cd_of_the_same_name_with_another_content_is_refused(source, destination, images):
    (images / 'boot.iso').write_bytes(b'of alpha')
    disk = f"<disk type='file' device='cdrom'><source file='{images}/boot.iso'/><target dev='hda'/></disk>"
    data = described(source, definition(disk))
    destination[0].check_can_evacuate(INSTANCE, data)
    (images / 'boot.iso').write_bytes(b'of  beta')
    refused(destination, data, r'boot\.iso \(disk hda of guest .*\) is another one at beta than at alpha: move it away')


def test_nvram_that_was_never_made_is_no_obstacle_and_one_in_its_place_is(source, destination, images):
    nvram = f"<nvram template='/vars.fd'>{images}/guest.fd</nvram>"
    data = described(source, definition(system=nvram))
    destination[1].loaders = ['/code.fd']
    assert destination[0].check_can_evacuate(INSTANCE, data).destination['files'] == []
    (images / 'guest.fd').touch()
    refused(
        destination, data, r'had no NVRAM when .*/guest\.fd\. If the guest has started since, that is its own, and has'
    )


def test_definition_that_libvirt_refuses_is_refused_with_its_reason(source, destination):
    destination[1].refusal = "does not support machine type 'pc-9'"
    refused(destination, described(source, definition()), "libvirt of host beta refuses .* machine type 'pc-9'")


def test_name_of_another_guest_is_refused(source, destination):
    libvirtd = destination[1]
    libvirtd.domains.append(Domain(libvirtd, '<name>guest</name><uuid>other</uuid>', True))
    with pytest.raises(exception.MigrationPreCheckError, match='guest other of host beta has the name'):
        destination[0].check_can_evacuate(INSTANCE, described(source, definition()))


def test_host_that_has_the_guest_is_refused(source, destination):
    data = described(source, definition())
    destination[1].defineXML(definition())
    with pytest.raises(exception.MigrationPreCheckError, match=r'already has guest .* which is shutdown'):
        destination[0].check_can_evacuate(INSTANCE, data)


# --- the start -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('change', 'state'),
    [
        ({}, 'running'),
        ({'vm_state': 'stopped'}, 'shutdown'),
        ({'power_state': 3}, 'paused'),
        ({'vm_state': 'error'}, 'running'),
    ],
)
def test_guest_comes_back_as_it_was_and_a_second_call_changes_nothing(source, destination, change, state):
    source[1].domains.append(Domain(source[1], definition(), True))
    source[1].domains[0].starts = 1
    driver, libvirtd = destination
    data = LiveMigrateData(source=source[0].get_definition(INSTANCE.uuid))
    for _ in range(2):
        driver.evacuate(INSTANCE.replace(**change), data)
        assert driver.get_guest(INSTANCE.uuid).state == state
        assert [(domain.persistent, domain.starts) for domain in libvirtd.domains] == [(True, 1)]
    assert driver._records.list(records.INCOMING) == []


def test_console_at_an_address_of_the_source_listens_at_that_of_the_destination(source, destination, monkeypatch):
    monkeypatch.setattr(consoles, '_is_here', '198.51.100.1'.__eq__)
    graphics = "<graphics type='vnc' listen='198.51.100.1'><listen type='address' address='198.51.100.1'/></graphics>"
    data = described(source, definition(graphics))
    assert data.source['own_addresses'] == ['198.51.100.1']
    destination[0].conf.set_override('server_listen', '198.51.100.2', group='vnc')
    monkeypatch.setattr(consoles, 'why_not_free', lambda _address, _port: '')
    destination[0].evacuate(INSTANCE, data)
    (arrived,) = destination[1].domains
    assert (arrived.xml.count('198.51.100.2'), arrived.xml.count('198.51.100.1')) == (2, 0)


def test_saved_state_that_is_lost_is_logged(source, destination, caplog):
    driver, libvirtd = source
    libvirtd.domains[:] = [Domain(libvirtd, definition(), True)]
    libvirtd.domains[0].obstacle = 'saved'
    data = LiveMigrateData(source=json.loads(json.dumps(driver.get_definition(INSTANCE.uuid))))
    destination[0].evacuate(INSTANCE.replace(vm_state='stopped'), data)
    assert f'Lost the saved memory of guest {INSTANCE.uuid}, which only alpha had' in caplog.text


def test_transient_guest_stays_transient(source, destination):
    destination[0].evacuate(INSTANCE, described(source, definition(), persistent=False))
    assert [domain.persistent for domain in destination[1].domains] == [False]


def test_start_that_fails_leaves_no_guest_after_its_rollback(source, destination, images):
    log = images / 'guest' / 'console.log'
    devices = f"<serial type='pty'><log file='{log}'/></serial>"
    driver, libvirtd = destination
    libvirtd.start_error = 'no luck'
    data = described(source, definition(devices))
    with pytest.raises(exception.DriverError, match='no luck'):
        driver.evacuate(INSTANCE, data)
    assert log.parent.exists()
    for _ in range(2):
        driver.rollback_evacuation_at_destination(INSTANCE, data)
        assert driver.get_guest(INSTANCE.uuid).state == 'absent'
        assert not log.parent.exists()


def test_start_of_an_earlier_boot_is_waited_for(source, destination):
    driver, libvirtd = destination
    data = described(source, definition())
    driver._incoming.begin(INSTANCE.uuid)
    started = libvirtd.add(definition(), False)
    started.reported = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP]
    driver.evacuate(INSTANCE, data)
    assert driver.get_guest(INSTANCE.uuid).state == 'running'
    assert [domain.persistent for domain in libvirtd.domains] == [True]
    assert driver._records.list(records.INCOMING) == []


def test_start_that_does_not_end_is_an_error_and_its_rollback_ends_it(source, destination):
    driver, libvirtd = destination
    libvirtd.start_ends = False
    data = described(source, definition())
    driver._incoming.begin(INSTANCE.uuid)
    started = libvirtd.add(definition(), False)
    started.reported = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP]
    with pytest.raises(exception.DriverError, match='has been starting'):
        driver.evacuate(INSTANCE, data)
    driver.rollback_evacuation_at_destination(INSTANCE, data)
    assert libvirtd.domains == []


@pytest.mark.parametrize('change', [{}, {'power_state': 3}])
def test_rollback_does_not_end_a_guest_that_runs_or_is_paused(source, destination, change):
    data = described(source, definition())
    destination[0].evacuate(INSTANCE.replace(**change), data)
    with pytest.raises(exception.GuestStillHere):
        destination[0].rollback_evacuation_at_destination(INSTANCE, data)
    assert len(destination[1].domains) == 1


def test_rollback_removes_the_definition_of_a_guest_that_is_shut_off_and_keeps_its_disk(source, destination, images):
    (images / 'disk').touch()
    data = described(source, definition(a_disk(images / 'disk')))
    stopped = INSTANCE.replace(vm_state='stopped')
    destination[0].evacuate(stopped, data)
    destination[0].rollback_evacuation_at_destination(stopped, data)
    assert destination[1].domains == []
    assert (images / 'disk').exists()


# --- the source ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('runs', [True, False])
@pytest.mark.parametrize('persistent', [True, False])
def test_copy_at_the_source_is_removed_and_its_disk_is_kept(source, destination, images, runs, persistent):
    (images / 'disk').touch()
    data = described(source, definition(a_disk(images / 'disk')), persistent)
    checked = destination[0].check_can_evacuate(INSTANCE, data)
    driver, libvirtd = source
    if runs or not persistent:
        libvirtd.domains[0].reported = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]
    for kind in (records.INCOMING, records.OUTGOING):
        driver._records.write(kind, INSTANCE.uuid, {'files': {f'{images}/disk': (images / 'disk').stat().st_ino}})
    for _ in range(2):
        driver.post_evacuation_at_source(INSTANCE, checked)
        assert driver.get_guest(INSTANCE.uuid).state == 'absent'
    assert (images / 'disk').exists()
    assert [driver._records.list(kind) for kind in (records.INCOMING, records.OUTGOING)] == [[], []]
