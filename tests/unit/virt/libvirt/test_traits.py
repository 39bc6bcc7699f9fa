# SPDX-License-Identifier: Apache-2.0

"""The traits of a host, from what libvirt says of it."""

import pytest

pytest.importorskip('libvirt', reason='the extra "libvirt" is not installed')

from migrator.virt.libvirt import host

HOST = """
<capabilities>
  <host><cpu><arch>x86_64</arch><model>EPYC</model><topology sockets='1' cores='4' threads='{threads}'/>
    <feature name='svm'/></cpu></host>
  <guest><os_type>hvm</os_type><arch name='x86_64'/></guest><guest><os_type>hvm</os_type><arch name='aarch64'/></guest>
</capabilities>"""
CPU = """
<cpu><model>EPYC</model><feature policy='require' name='avx2'/><feature policy='require' name='sse4.1'/>
  <feature policy='require' name='aes'/><feature policy='disable' name='avx512f'/><feature name='invtsc'/></cpu>"""
GUESTS = """
<domainCapabilities>
  <os supported='yes'><loader supported='yes'><enum name='secure'><value>{secure}</value></enum></loader></os>
  <devices>
    <disk supported='yes'><enum name='bus'><value>ide</value><value>virtio</value><value>nvme</value></enum></disk>
    <video supported='no'><enum name='modelType'><value>qxl</value></enum></video>
    <tpm supported='yes'><enum name='model'><value>tpm-tis</value></enum>
      <enum name='backendModel'><value>{tpm}</value></enum>
      <enum name='backendVersion'><value>2.0</value></enum></tpm>
  </devices>
</domainCapabilities>"""
NEW, OLD = (10004000, 8002000), (7000000, 5002000)


def found(threads=2, cpu=CPU, secure='yes', tpm='emulator', versions=NEW):
    domain = GUESTS.format(secure=secure, tpm=tpm)
    present, absent = host.traits_of(HOST.format(threads=threads), cpu, domain, *versions)
    assert not {*present} & {*absent}
    assert not [one for one in absent if 'AMD_SEV' in one or 'SECRET' in one or 'ATTACH' in one]
    return present


def test_features_of_the_processor_are_traits():
    assert {one for one in found() if one.startswith('HW_')} == {
        *('HW_ARCH_X86_64', 'HW_CPU_HYPERTHREADING', 'HW_CPU_X86_AESNI', 'HW_CPU_X86_AVX2', 'HW_CPU_X86_SSE41'),
        *('HW_CPU_X86_SVM', 'HW_CPU_X86_AMD_SVM'),
    }
    assert 'HW_CPU_HYPERTHREADING' not in found(threads=1)


def test_devices_that_libvirt_lists_are_traits():
    assert {one for one in found() if 'STORAGE' in one or 'GRAPHICS' in one or 'ARCH' in one} == {
        *('COMPUTE_STORAGE_BUS_IDE', 'COMPUTE_STORAGE_BUS_VIRTIO'),
        *('COMPUTE_ARCH_X86_64', 'COMPUTE_ARCH_AARCH64', 'HW_ARCH_X86_64'),
    }


def test_secure_boot_and_a_tpm_are_traits_where_they_are_supported():
    security = {'COMPUTE_SECURITY_UEFI_SECURE_BOOT', 'COMPUTE_SECURITY_TPM_2_0', 'COMPUTE_SECURITY_TPM_TIS'}
    assert security <= {*found()}
    assert not security & {*found(secure='no', tpm='passthrough')}


def test_what_an_old_libvirt_lacks_is_no_trait():
    new = {'COMPUTE_SOUND_MODEL_VIRTIO', 'COMPUTE_ADDRESS_SPACE_EMULATED'}
    assert new <= {*found()}
    assert not new & {*found(versions=OLD)}


def test_host_that_libvirt_cannot_describe_has_the_traits_that_are_known():
    present, absent = host.traits_of(HOST.format(threads=1), '', '', *OLD)
    assert present == [
        *('COMPUTE_ARCH_AARCH64', 'COMPUTE_ARCH_X86_64', 'HW_ARCH_X86_64'),
        *('HW_CPU_X86_AMD_SVM', 'HW_CPU_X86_SVM'),
    ]
    assert absent == [], 'what libvirt could not describe this time may be there'


def test_what_a_host_is_known_to_lack_is_reported_too():
    domain = GUESTS.format(secure='no', tpm='emulator')
    _present, absent = host.traits_of(HOST.format(threads=1), CPU, domain, *NEW)
    assert {'HW_CPU_X86_AVX512F', 'HW_CPU_HYPERTHREADING', 'COMPUTE_STORAGE_BUS_SCSI'} <= {*absent}
    assert {'COMPUTE_SECURITY_UEFI_SECURE_BOOT', 'COMPUTE_SECURITY_TPM_CRB'} <= {*absent}


def test_features_of_another_architecture_have_no_such_traits():
    there = HOST.format(threads=1).replace('x86_64', 'aarch64')
    assert not [one for one in host.traits_of(there, CPU, '', *NEW)[0] if one.startswith('HW_CPU_X86')]
