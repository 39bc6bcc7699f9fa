# SPDX-License-Identifier: Apache-2.0

import pytest


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Two hosts, see :mod:`tests.unit.virt.libvirt.two_hosts`."""
    # This module needs libvirt. pytest reads this file also where libvirt is not installed.
    from tests.unit.virt.libvirt.two_hosts import Hosts

    return Hosts(tmp_path, monkeypatch)


@pytest.fixture
def local(hosts):
    """A guest of alpha with a disk that only alpha has."""
    from tests.unit.virt.libvirt.two_hosts import CONTENT, a_disk

    (hosts.images / 'disk').write_bytes(CONTENT)
    hosts.have(a_disk(hosts.images / 'disk'))
    return hosts
