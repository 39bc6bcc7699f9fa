# SPDX-License-Identifier: Apache-2.0

"""The lab under the other tests of this folder: its hosts are hosts, and its guests can be moved."""

import contextlib
import re
import sys
import threading

import pytest

from tests.real.libvirt.lab import emulator, guests, hosts, machine
from tests.real.servers import process

try:
    import libvirt
except ImportError:
    libvirt = None  # the fixtures say so


@contextlib.contextmanager
def connected(host):
    """Give a connection of its own, without an event loop."""
    connection = libvirt.open(host.uri)
    try:
        yield connection
    finally:
        connection.close()


def migrate(guest, source, destination, flags=0, **parameters):
    """Move a guest, and return when it has arrived.

    Its connection is its own: in libvirt before 10.0 a call may wait for the end of another thread's on the same one.
    """
    flags |= libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
    flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    with connected(source) as connection:
        domain = connection.lookupByUUIDString(guest.uuid)
        domain.migrateToURI3(
            destination.p2p_uri, {libvirt.VIR_MIGRATE_PARAM_URI: destination.migrate_uri, **parameters}, flags
        )


# --- hosts -----------------------------------------------------------------------------------------------------------


def test_two_hosts_differ_in_all_that_libvirt_looks_at(alpha, beta):
    with connected(alpha) as one, connected(beta) as other:
        assert (one.getHostname(), other.getHostname()) == ('alpha', 'beta')
        uuids = [re.search(r'<uuid>(.*?)</uuid>', each.getCapabilities())[1] for each in (one, other)]
    assert uuids == [alpha.uuid, beta.uuid]
    assert alpha.uuid != beta.uuid


def test_a_host_accelerates_only_where_the_processor_can(alpha):
    with connected(alpha) as connection:
        assert ("<domain type='kvm'" in connection.getCapabilities()) is machine.accelerated()


def test_power_off_ends_all_that_a_host_runs_and_keeps_what_it_knows(lab, alpha):
    guest = lab.start_guest(alpha, 'demo')
    assert any('guest=demo' in line for line in process.left_of(alpha.directory))
    alpha.power_off()
    assert not process.left_of(alpha.directory)
    alpha.power_on()
    assert alpha.domains() == [guest.uuid]
    assert not alpha.virsh('list', '--uuid').split()


def test_a_daemon_that_is_killed_comes_back_and_its_guest_never_stopped(lab, alpha):
    guest = lab.start_guest(alpha, 'demo')
    with guest.watch() as watch:
        alpha.kill_daemon()
        alpha.wait()
        guest.unharmed(alpha)
    assert watch.longest_silence < 2
    assert alpha.virsh('list', '--uuid').split() == [guest.uuid]


def test_a_daemon_may_be_made_to_stay_away(alpha):
    alpha.kill_daemon(comes_back=False)
    with pytest.raises(process.ServerError, match='in vain: alpha to answer'):
        alpha.wait(1.5)
    alpha.start_daemon()
    assert alpha.ready()


def test_a_daemon_may_hang(lab, alpha):
    guest = lab.start_guest(alpha, 'demo')
    alpha.stop_daemon()
    with pytest.raises(process.ServerError, match='took more than 1 s'):
        alpha.virsh('hostname', timeout=1)
    guest.unharmed(alpha)
    alpha.continue_daemon()
    alpha.wait()


def test_a_guest_does_not_start_where_it_is_not_to(lab, alpha):
    guest = guests.Guest(lab, 'demo')
    alpha.fault_qemu('no such luck')
    with pytest.raises(process.ServerError, match='no such luck'):
        guest.start(alpha)
    alpha.fault_qemu(None)
    guest.start(alpha)


def test_hosts_are_fresh_after_any_test(lab, alpha, beta):
    lab.start_guest(alpha, 'zero')
    # without having to switch it off for that
    alpha.remove_guests()
    assert alpha.domains() == []
    lab.start_guest(alpha, 'one', disks=[lab.make_disk(alpha, 'one', 8)])
    lab.start_guest(beta, 'two', persistent=False, disks=[lab.make_disk(None, 'two', 8)])
    alpha.kill_daemon(comes_back=False)
    beta.fault_qemu('no')
    beta.stop_daemon()
    lab.fresh()
    assert (alpha.domains(), beta.domains()) == ([], [])
    assert [*alpha.images.iterdir(), *lab.shared.iterdir()] == []
    lab.start_guest(beta, 'three')
    beta.power_off()
    lab.fresh()
    assert beta.domains() == []


# --- what runs on a host ---------------------------------------------------------------------------------------------


@pytest.fixture
def service(workspace):
    """Start Python programs on hosts."""
    made = []

    def make(host, text):
        one = hosts.Service(host, 'service', ['-c', text], ready=lambda each: 'ready' in each.tail())
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        one.kill()


LOOK = f"""
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(socket.gethostname(), os.listdir({hosts.IMAGES!r}), 'ready')
time.sleep(100)
"""


def test_service_on_a_host_has_its_paths_and_receives_signals(alpha, beta, service):
    (alpha.images / 'an-image').touch()
    on_alpha, on_beta = service(alpha, LOOK), service(beta, LOOK)
    assert on_alpha.tail() == "alpha ['an-image'] ready"
    assert on_beta.tail() == 'beta [] ready'
    on_alpha.stop()
    assert on_alpha.status == 7


def test_a_service_ends_with_its_host_and_with_who_started_it(alpha, service):
    first = service(alpha, LOOK)
    alpha.power_off()
    process.wait_until(lambda: not first.running, 'the service to end')
    assert first.status == -9
    assert not process.left_of(first.directory)
    alpha.power_on()
    second = service(alpha, LOOK)
    second.kill()
    assert not process.left_of(second.directory)


def test_a_service_uses_its_own_libvirtd(alpha, beta, service):
    text = 'import libvirt; print(libvirt.open("qemu:///system").getHostname(), "ready"); import time; time.sleep(9)'
    assert service(beta, text).tail() == 'beta ready'


# --- guests ----------------------------------------------------------------------------------------------------------


def test_a_guest_counts_and_its_host_knows_it(lab, alpha, beta):
    guest = lab.start_guest(alpha, 'demo', uuid='6a3cb47e-4b0f-4cb9-b5b1-5b5d5f1a4f8e', rate=20)
    guest.unharmed(alpha)
    assert alpha.domains() == ['6a3cb47e-4b0f-4cb9-b5b1-5b5d5f1a4f8e']
    assert not beta.domains()
    assert not guest.ticks(beta)
    with connected(alpha) as connection:
        assert '<metadata>' not in connection.lookupByName('demo').XMLDesc()


@pytest.mark.parametrize('rate', [0, 80])
def test_a_guest_survives_a_migration_and_the_way_back(lab, alpha, beta, rate):
    guest = lab.start_guest(alpha, 'demo', rate=rate)
    with guest.watch() as watch:
        migrate(guest, alpha, beta)
    guest.survived(alpha, beta)
    assert 0.01 < watch.longest_silence < 5
    assert (alpha.domains(), beta.domains()) == ([], [guest.uuid])
    migrate(guest, beta, alpha)
    guest.survived(beta, alpha)


def test_a_guest_survives_a_migration_that_is_aborted(lab, alpha, beta):
    guest = lab.start_guest(alpha, 'demo', rate=20)
    errors = []

    def move():
        try:
            migrate(guest, alpha, beta, bandwidth=10)
        except libvirt.libvirtError as error:
            errors.append(error.get_error_code())

    mover = threading.Thread(target=move)
    mover.start()
    with connected(alpha) as connection:
        domain = connection.lookupByUUIDString(guest.uuid)
        process.wait_until(lambda: domain.jobStats().get('memory_processed', 0) > 5 << 20, 'the copy to go on')
        domain.abortJob()
    mover.join()
    assert errors == [libvirt.VIR_ERR_OPERATION_ABORTED]
    guest.unharmed(alpha)
    assert (alpha.domains(), beta.domains()) == ([guest.uuid], [])


def test_a_disk_that_is_shared_stays_where_it_is(lab, alpha, beta):
    disk = lab.make_disk(None, 'demo', 64, data_mib=4)
    guest = lab.start_guest(alpha, 'demo', disks=[disk])
    # without VIR_MIGRATE_UNSAFE: libvirt takes it for shared
    migrate(guest, alpha, beta)
    guest.survived(alpha, beta)


def test_a_disk_that_is_not_shared_is_not_left_behind_by_mistake(lab, alpha, beta):
    guest = lab.start_guest(alpha, 'demo', disks=[lab.make_disk(alpha, 'demo', 64)])
    with pytest.raises(libvirt.libvirtError, match='without shared storage is unsafe'):
        migrate(guest, alpha, beta)
    guest.unharmed(alpha)


def test_a_disk_that_is_not_shared_is_copied(lab, alpha, beta):
    disks = [lab.make_disk(alpha, 'first', 64, data_mib=16), lab.make_disk(alpha, 'second', 8, data_mib=8)]
    guest = lab.start_guest(alpha, 'demo', disks=disks)
    for name, size in (('first', 64), ('second', 8)):
        lab.make_disk(beta, name, size)
        assert not guests.same_image(*(host.images / f'{name}.qcow2' for host in (alpha, beta)))
    migrate(guest, alpha, beta, libvirt.VIR_MIGRATE_NON_SHARED_DISK)
    guest.survived(alpha, beta)
    for name in ('first', 'second'):
        assert guests.same_image(*(host.images / f'{name}.qcow2' for host in (alpha, beta)))


# --- the emulator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('given', 'becomes'),
    [
        (['-m', '256'], ['-m', 'size=262152k']),
        (['-m', 'size=262144k'], ['-m', 'size=262152k']),
        (['-m', 'size=1024M,slots=4,maxmem=8G'], ['-m', 'size=1048584k,slots=4,maxmem=8G']),
        (
            ['-object', '{"qom-type":"memory-backend-ram","id":"pc.ram","size":1048576}'],
            ['-object', '{"qom-type": "memory-backend-ram", "id": "pc.ram", "size": 1056768}'],
        ),
        (['-object', '{"qom-type":"secret","id":"x"}'], ['-object', '{"qom-type":"secret","id":"x"}']),
        (['-name', '256', '-M', 'none'], ['-name', '256', '-M', 'none']),
    ],
)
def test_an_emulated_guest_has_a_little_more_memory_than_was_asked_for(given, becomes):
    assert emulator.larger(given) == becomes


# --- where it cannot be ----------------------------------------------------------------------------------------------


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(process, 'which', lambda name, *folders: None if name in ('gcc', 'virsh') else f'/{name}')
    monkeypatch.setattr(machine.os, 'geteuid', lambda: 1000)
    monkeypatch.setattr(machine.importlib.util, 'find_spec', lambda name: object())
    monkeypatch.setattr(machine, '_has_driver', lambda: True)
    assert machine.missing.__wrapped__() == 'virsh (package libvirt-clients), gcc (package gcc), root'


def test_lab_without_namespaces_reports_the_reason(monkeypatch):
    monkeypatch.setattr(machine, 'UNSHARE', (sys.executable, '-c', 'raise SystemExit("not for you")'))
    assert machine._no_namespaces() == 'not for you'
