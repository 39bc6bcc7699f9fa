# SPDX-License-Identifier: Apache-2.0

"""The disks that a definition names."""

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator.virt.libvirt.definition import disks  # noqa: E402 -- what is tested needs libvirt


def test_volumes_are_resolved_to_files_and_devices():
    class Pools:
        def storagePoolLookupByName(self, pool):  # noqa: N802 -- libvirt's name
            self.kind = libvirt.VIR_STORAGE_VOL_FILE if pool == 'files' else libvirt.VIR_STORAGE_VOL_BLOCK
            return self

        def storageVolLookupByName(self, volume):  # noqa: N802 -- libvirt's name
            self.volume = volume
            return self

        def info(self):
            return self.kind, 0, 0

        def path(self):
            return f'/pool/{self.volume}'

    definition = """<domain><devices>
        <disk type='file'><source file='/a'/><target dev='vda'/></disk>
        <disk type='volume'><source pool='files' volume='b'/><target dev='vdb'/></disk>
        <disk type='volume'><source pool='lvm' volume='c'/><target dev='vdc'/></disk>
        </devices></domain>"""
    found = [(one.target, one.kind, one.path) for one in disks.volumes_of(Pools(), definition)]
    assert found == [('vdb', 'file', '/pool/b'), ('vdc', 'block', '/pool/c')]
