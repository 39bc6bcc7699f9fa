# SPDX-License-Identifier: Apache-2.0

"""Guests' memory and disks by QEMU's own TLS, and the daemons' connection by libvirt's."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip('libvirt', reason='the module libvirt is not installed')
trustme = pytest.importorskip('trustme', reason='the extra "real" is not installed')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from tests.real.libvirt.bench import LibvirtBench  # noqa: E402 -- as above
from tests.real.libvirt.lab import hosts  # noqa: E402 -- as above
from tests.real.servers import process  # noqa: E402 -- as above

SAFE = {'live_migration_with_native_tls': True, 'require_encryption': True}


@pytest.fixture
def bench(fresh: hosts.Lab, tmp_path: pathlib.Path) -> Iterator[LibvirtBench]:
    made = LibvirtBench(fresh, tmp_path, **SAFE)
    yield made
    made.close()
    for host in (made.alpha, made.beta):
        shutil.rmtree(host.certificates)
        host.certificates.mkdir()


def certify(host: hosts.Host, authority: trustme.CA) -> None:
    """Give the QEMU of a host its certificates, as server and as client."""
    host.certificates.chmod(0o755)
    authority.cert_pem.write_to_path(host.certificates / 'ca-cert.pem')
    for role in ('server', 'client'):
        issued = authority.issue_cert(host.name)
        issued.cert_chain_pems[0].write_to_path(host.certificates / f'{role}-cert.pem')
        issued.private_key_pem.write_to_path(host.certificates / f'{role}-key.pem')


def test_guest_moves_encrypted_if_its_hosts_trust_each_other(bench: LibvirtBench) -> None:
    authority = trustme.CA()
    for host in (bench.alpha, bench.beta):
        certify(host, authority)
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.ended)
    assert call.result() is not None
    assert bench.at_destination().state == 'running'


def test_guest_stays_if_its_hosts_do_not_trust_each_other(bench: LibvirtBench) -> None:
    for host in (bench.alpha, bench.beta):
        certify(host, trustme.CA())
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.ended)
    assert isinstance(call.error, exception.LiveMigrationFailed)
    assert bench.at_source().state == 'running'


#: Where the daemon of a host has its certificates.
PKI = '/etc/libvirt/daemon'

TLS = """
listen_tls = 1
listen_addr = "{address}"
tls_port = "{port}"
ca_file = "{pki}/cacert.pem"
cert_file = "{pki}/servercert.pem"
key_file = "{pki}/serverkey.pem"
"""


def listen(host: hosts.Host, port: int, authority: trustme.CA) -> None:
    """Let the daemon of a host take connections by TLS, and have certificates as server and as client."""
    place = host.outside(PKI)
    place.mkdir()
    authority.cert_pem.write_to_path(place / 'cacert.pem')
    for role in ('server', 'client'):
        issued = authority.issue_cert(host.name)
        issued.cert_chain_pems[0].write_to_path(place / f'{role}cert.pem')
        issued.private_key_pem.write_to_path(place / f'{role}key.pem')
    file = host.outside('/etc/libvirt/libvirtd.conf')
    tls = TLS.format(address=hosts.ADDRESS, port=port, pki=PKI)
    file.write_text(file.read_text().replace('\nlisten_tls = 0\n', tls))
    host.kill_daemon()
    host.wait()


@pytest.fixture
def ports(fresh: hosts.Lab) -> Iterator[dict[str, int]]:
    """The ports at which the daemons listen after listen(); the lab is afterwards as it was."""
    files = {host: host.outside('/etc/libvirt/libvirtd.conf') for host in fresh.hosts.values()}
    before = {host: file.read_text() for host, file in files.items()}
    yield {name: process.free_port() for name in fresh.hosts}
    for host, file in files.items():
        file.write_text(before[host])
        shutil.rmtree(host.outside(PKI), ignore_errors=True)
        shutil.rmtree(host.certificates)
        host.certificates.mkdir()
        host.kill_daemon()
        host.wait()


@pytest.mark.parametrize('trusted', [True, False])
def test_guest_moves_by_tls_between_the_daemons_only_if_they_trust_each_other(
    fresh: hosts.Lab, ports: dict[str, int], tmp_path: pathlib.Path, trusted: bool
) -> None:
    authority = trustme.CA()
    for name, host in fresh.hosts.items():
        certify(host, authority)
        listen(host, ports[name], authority if trusted else trustme.CA())
    with contextlib.closing(LibvirtBench(fresh, tmp_path, **SAFE)) as bench:
        for name, other in (('alpha', 'beta'), ('beta', 'alpha')):
            uri = f'qemu+tls://%s:{ports[other]}/system?pkipath={PKI}'
            bench.confs[name].set_override('live_migration_uri', uri, group='libvirt')
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.ended)
        if trusted:
            assert call.result() is not None
            assert bench.at_destination().state == 'running'
        else:
            assert isinstance(call.error, exception.DriverError)
            assert 'certificate' in str(call.error)
            assert bench.at_source().state == 'running'
