# SPDX-License-Identifier: Apache-2.0

"""[libvirt] require_encryption: what a host refuses to send, and to receive."""

import pytest

pytest.importorskip('libvirt', reason='the extra "libvirt" is not installed')

from migrator import exception
from migrator.objects import LiveMigrateData, protocol
from migrator.virt.libvirt import plans
from tests.unit.virt.libvirt.daemon import INSTANCE

SAFE = {'live_migration_scheme': 'tls', 'live_migration_with_native_tls': True}


def configure(driver, **options):
    for name, value in options.items():
        driver.conf.set_override(name, value, group='libvirt')


@pytest.fixture
def running(local, monkeypatch):
    """Two hosts with TLS, and a guest that runs at alpha."""
    for each in (local.source, local.destination):
        configure(each, **SAFE)
    return local


def refused(call, *words):
    with pytest.raises((exception.MigrationPreCheckError, exception.DriverError)) as caught:
        call()
    for word in ('require_encryption', *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ('uri', 'encrypted'),
    [
        ('qemu:///system', True),
        ('qemu+unix:///system?socket=/run/s', True),
        ('qemu+tls://%s/system', True),
        ('qemu+ssh://root@%s/system?keyfile=/k', True),
        ('qemu://%s/system', True),
        ('qemu+tcp://%s/system', False),
        ('qemu+ext://%s/system', False),
        ('qemu+tls://%s/system?no_verify=1', False),
        ('qemu+ssh://%s/system?no_tty=1&no_verify=1', False),
        ('qemu+tls://%s/system?no_verify=0', True),
        ('qemu+tls://%s/system?no_verify=2', False),
        ('qemu+tls://%s/system?no_verify=-1', False),
        ('qemu+tls://%s/system?no_verify', False),
        ('qemu+tls://%s/system?NO_Verify=1', False),
        ('qemu+ssh://%s/system?no_tty=1;no_verify=1', False),
        ('qemu+tls://%s/system?no%5Fverify=%31', False),
        ('qemu+tls://%s/system?no_verify=0&no_verify=1', False),
        ('qemu+libssh2://%s/system?known_hosts_verify=normal', True),
        ('qemu+libssh2://%s/system?known_hosts_verify=ignore', False),
        ('qemu+libssh://%s/system?Known_Hosts_Verify=auto', False),
        ('qemu+tls://[%s/system', False),
        ('', False),
        ('alias', False),
    ],
)
def test_uri_is_encrypted_if_libvirt_encrypts_and_checks_whom_it_reaches(uri, encrypted):
    assert plans.is_encrypted(uri) is encrypted


@pytest.mark.parametrize('requires', ['source', 'destination', 'neither'])
@pytest.mark.parametrize(
    ('changed', 'words'),
    [
        ({'live_migration_scheme': 'tcp'}, 'live_migration_scheme'),
        ({'live_migration_uri': 'qemu+tcp://%s/system'}, 'live_migration_uri'),
        ({'live_migration_with_native_tls': False}, 'live_migration_with_native_tls is False'),
        ({'connection_uri': 'qemu+tcp://alpha/system'}, 'connection_uri'),
    ],
)
def test_live_migration_that_sends_anything_unencrypted_is_refused(running, changed, words, requires):
    configure(running.source, **changed, require_encryption=requires == 'source')
    data = LiveMigrateData(destination={'host': 'beta', 'require_encryption': requires == 'destination'})
    guest = protocol.Guest(instance_uuid=INSTANCE.uuid, state=protocol.GuestState.RUNNING.value)

    def check():
        return running.source.check_can_live_migrate_source(INSTANCE, data)

    def plan():
        return plans.plan(running.source.connection, running.source.conf, guest, INSTANCE, 'beta', data)

    if requires == 'neither':
        for call in (check, plan):
            # What else these daemons lack is another test's.
            with pytest.raises(Exception) as caught:
                call()
            assert 'require_encryption' not in str(caught.value)
    else:
        refused(check, words, 'alpha')
        refused(plan, words, 'alpha')


def test_destination_that_cannot_encrypt_refuses_by_itself(running):
    configure(running.destination, require_encryption=True, live_migration_with_native_tls=False)
    refused(
        lambda: running.destination.check_can_live_migrate_destination(INSTANCE, None, False),
        'live_migration_with_native_tls is False at host beta',
    )


@pytest.mark.parametrize('requires', ['source', 'destination'])
def test_cold_migration_over_tcp_is_refused_and_over_tls_is_not(running, requires):
    configure(getattr(running, requires), require_encryption=True)
    # A cold migration sends no memory.
    configure(running.source, live_migration_with_native_tls=False)
    assert running.checked().destination['host'] == 'beta'
    configure(running.source, live_migration_scheme='tcp')
    refused(running.checked, 'live_migration_scheme host alpha uses qemu+tcp://%s/system')


def test_cold_migration_from_a_host_that_does_not_report_whether_it_encrypts_is_refused(running):
    data = running.checked()
    configure(running.destination, require_encryption=True)
    old = data.replace(source={name: value for name, value in data.source.items() if name != 'unencrypted'})
    with pytest.raises(exception.MigrationPreCheckError, match='alpha does not report whether it encrypts'):
        running.destination.check_can_migrate_destination(INSTANCE, LiveMigrateData(source=old.source))


@pytest.mark.parametrize('requires', ['source', 'destination'])
def test_guest_runs_on_if_its_disks_could_be_copied_only_over_tcp_since_the_checks(running, requires):
    configure(getattr(running, requires), require_encryption=True)
    data = running.checked()
    configure(running.source, live_migration_scheme='tcp')
    with pytest.raises(exception.DriverError, match='require_encryption is set, and by live_migration_scheme'):
        running.source.migrate_disk_and_power_off(INSTANCE, data)
    assert (running.alpha.asked, running.states()[0]) == (0, 'running')
