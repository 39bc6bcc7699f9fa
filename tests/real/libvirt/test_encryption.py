# SPDX-License-Identifier: Apache-2.0

"""Guests' memory and disks by QEMU's own TLS."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip('libvirt', reason='the module libvirt is not installed')
trustme = pytest.importorskip('trustme', reason='the extra "real" is not installed')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from tests.real.libvirt.bench import LibvirtBench  # noqa: E402 -- as above
from tests.real.libvirt.lab import hosts  # noqa: E402 -- as above

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
