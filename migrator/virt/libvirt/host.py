# SPDX-License-Identifier: Apache-2.0

"""The facts about a libvirt host, and the resources that it offers to guests."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import libvirt
import os_traits
from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.objects import ComputeNode, ProviderInventory, request
from migrator.virt import driver
from migrator.virt.libvirt import storage

LOG = logging.getLogger(__name__)

#: Seconds within which the file system of instances_path must report its size, less than the deadline of libvirt calls.
DISK_DEADLINE = 5.0

#: Features of processors -> what their traits are called, unless that is the feature's own name.
_FEATURES = {
    'aes': ('AESNI',),
    'bmi1': ('BMI',),
    'fma': ('FMA3',),
    'gfni': ('AVX512GFNI',),
    'pclmuldq': ('CLMUL',),
    'sha-ni': ('SHA',),
    'svm': ('SVM', 'AMD_SVM'),
    'vaes': ('AVX512VAES',),
    'vmx': ('VMX', 'INTEL_VMX'),
    'vpclmulqdq': ('AVX512VPCLMULQDQ',),
}
#: The beginnings of the traits that are looked for in the description of the processor, and of firmware and TPM.
_OF_PROCESSOR = ('HW_CPU_X86_', 'HW_CPU_HYPERTHREADING')
_OF_FIRMWARE = (
    os_traits.COMPUTE_SECURITY_UEFI_SECURE_BOOT, os_traits.COMPUTE_SECURITY_TPM_1_2, os_traits.COMPUTE_SECURITY_TPM_2_0,
    os_traits.COMPUTE_SECURITY_TPM_TIS, os_traits.COMPUTE_SECURITY_TPM_CRB,
)  # fmt: skip
#: Traits of processors that nothing here looks for: an operator may have set them.
_OF_OTHERS = frozenset([*os_traits.get_traits('HW_CPU_X86_AMD_SEV'), *os_traits.get_traits('HW_CPU_X86_INTEL_TDX')])
#: What libvirt lists among the devices of a guest -> the beginning of the traits for it.
_DEVICES = {
    ('disk', 'bus'): 'COMPUTE_STORAGE_BUS',
    ('video', 'modelType'): 'COMPUTE_GRAPHICS_MODEL',
}
#: What each QEMU emulates that libvirt can define for a guest.
_ALWAYS = (
    os_traits.COMPUTE_NET_VIRTIO_PACKED,
    os_traits.COMPUTE_SOCKET_PCI_NUMA_AFFINITY,
    *(f'COMPUTE_NET_VIF_MODEL_{model}' for model in ('E1000', 'E1000E', 'PCNET', 'NE2K_PCI', 'RTL8139', 'VIRTIO')),
    *(f'COMPUTE_SOUND_MODEL_{model}' for model in ('SB16', 'ES1370', 'PCSPK', 'AC97', 'ICH6', 'ICH9', 'USB')),
)
#: Traits -> the oldest libvirt and QEMU that have what they stand for.
_SINCE = {
    os_traits.COMPUTE_SOUND_MODEL_VIRTIO: ((10, 4, 0), (8, 2, 0)),
    os_traits.COMPUTE_ADDRESS_SPACE_PASSTHROUGH: ((8, 7, 0), (2, 7, 0)),
    os_traits.COMPUTE_ADDRESS_SPACE_EMULATED: ((8, 7, 0), (2, 7, 0)),
    os_traits.COMPUTE_SECURITY_STATELESS_FIRMWARE: ((8, 6, 0), (0, 0, 0)),
}
_GIB = 2**30
#: Directory -> the probe that queries the size of its file system. A file system hangs for the whole process.
_PROBES: dict[str, executors.Probe[int]] = {}


def node_of(connection: Any, host: str, conf: cfg.ConfigOpts) -> ComputeNode:
    """Return the facts about a host, and its resource provider.

    :param connection: a ``libvirt.virConnect``.
    :param host: the name of this compute host.
    :param conf: with the options of :mod:`migrator.conf.libvirt` registered.
    :raises migrator.exception.ConfigurationError: the processors for guests are not those of the host.
    :raises migrator.exception.ServiceUnreachable: the file system of instances_path hangs.
    :raises migrator.exception.DriverError: the file system of instances_path fails.
    """
    uuid = driver.node_uuid(host)
    disk_gib = _disk_gib(os.path.abspath(conf.instances_path), host)
    _model, memory_mb, count, *_rest = connection.getInfo()
    shared, dedicated = _processors(conf, count, lambda: _online(connection, count))
    inventory = {
        'VCPU': _amount(shared, conf.reserved_host_cpus, conf.cpu_allocation_ratio),
        'PCPU': _amount(dedicated, 0, 1.0),
        'MEMORY_MB': _amount(memory_mb, conf.reserved_host_memory_mb, conf.ram_allocation_ratio),
        'DISK_GB': _amount(disk_gib, -(-conf.reserved_host_disk_mb // 1024), conf.disk_allocation_ratio),
    }
    capabilities = connection.getCapabilities()
    present, absent = _traits(connection, capabilities)
    root = ProviderInventory(
        uuid=uuid,
        name=host,
        inventory={name: amount for name, amount in inventory.items() if amount['total']},
        traits=present,
        absent_traits=absent,
    )
    return ComputeNode(
        uuid=uuid,
        host=host,
        node=host,
        hypervisor_type=connection.getType(),
        hypervisor_version=connection.getVersion(),
        host_ip=conf.libvirt.live_migration_inbound_addr or '127.0.0.1',
        cpu_info=cpu_info(capabilities),
        providers=[root],
    )


def _online(connection: Any, count: int) -> set[int]:
    """Return the processors that are online. Their numbers have gaps where others are not."""
    try:
        _count, states, _online = connection.getCPUMap()
    except libvirt.libvirtError:
        return set(range(count))
    return {number for number, is_online in enumerate(states) if is_online}


def _processors(conf: cfg.ConfigOpts, count: int, online: Callable[[], set[int]]) -> tuple[int, int]:
    """Return how many processors guests share, and how many there are for guests with dedicated ones.

    :param count: how many the host has.
    :param online: returns their numbers.
    """
    sets: dict[str, set[int]] = {}
    for option in ('cpu_shared_set', 'cpu_dedicated_set'):
        value = conf.compute[option]
        try:
            sets[option] = request.processors(value or '')
        except ValueError as error:
            raise exception.ConfigurationError(option=f'[compute] {option}', value=value, detail=str(error)) from None
        if sets[option] and (others := sets[option] - online()):
            detail = f'processor {min(others)} is not online at this host: leave it out'
            raise exception.ConfigurationError(option=f'[compute] {option}', value=value, detail=detail)
    shared, dedicated = sets.values()
    if shared & dedicated:
        detail = f'processor {min(shared & dedicated)} is in cpu_shared_set too: leave it out of one'
        value = conf.compute.cpu_dedicated_set
        raise exception.ConfigurationError(option='[compute] cpu_dedicated_set', value=value, detail=detail)
    return len(shared) or (0 if dedicated else count), len(dedicated)


def _traits(connection: Any, capabilities: str) -> tuple[list[str], list[str]]:
    """Return the traits of a host, and those that it lacks, as far as libvirt can describe it."""
    cpu = domain = ''
    with contextlib.suppress(libvirt.libvirtError):
        expand = libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
        cpu = connection.baselineCPU([host_cpu(capabilities)], expand)
    with contextlib.suppress(libvirt.libvirtError):
        domain = connection.getDomainCapabilities()
    try:
        return traits_of(capabilities, cpu, domain, connection.getLibVersion(), connection.getVersion())
    except (ElementTree.ParseError, ValueError) as error:
        LOG.warning('Cannot read the traits of this host from libvirt, and those in Placement stay: %s', error)
        return [], []


def cpu_info(capabilities: str) -> dict[str, Any]:
    """Return the host's processor from libvirt's capabilities, in the format of nova's API."""
    cpu = ElementTree.fromstring(capabilities).find('host/cpu')  # noqa: S314 -- libvirt wrote it
    if cpu is None:
        return {}
    found: dict[str, Any] = {name: cpu.findtext(name) for name in ('arch', 'model', 'vendor') if cpu.findtext(name)}
    topology = cpu.find('topology')
    if topology is not None:
        found['topology'] = {
            name: int(topology.get(name, 1)) for name in ('sockets', 'cores', 'threads') if topology.get(name)
        }
    found['features'] = sorted(feature.get('name', '') for feature in cpu.findall('feature'))
    return found


def host_uuid(capabilities: str) -> str:
    """Return the uuid by which libvirt identifies the host."""
    return ElementTree.fromstring(capabilities).findtext('host/uuid') or ''  # noqa: S314 -- libvirt wrote it


def host_cpu(capabilities: str) -> str:
    """Return the host's processor in libvirt's format, or '' if the capabilities contain none."""
    cpu = ElementTree.fromstring(capabilities).find('host/cpu')  # noqa: S314 -- libvirt wrote it
    return ElementTree.tostring(cpu, encoding='unicode') if cpu is not None else ''


def _disk_gib(directory: str, host: str) -> int:
    # A query of an NFS whose server is away never returns. Without the probe it would block a thread of libvirt's pool.
    probe = _PROBES.setdefault(directory, executors.Probe(functools.partial(_size_gib, directory)))
    try:
        return probe.ask(DISK_DEADLINE)
    except executors.ProbeTimeout:
        raise exception.ServiceUnreachable(
            service=f'instances_path of {host} ({directory})',
            reason=f'its file system did not report its size within {DISK_DEADLINE:g} s',
        ) from None
    except OSError as error:
        raise exception.DriverError(
            host=host, phase='get_node', reason=f'cannot read the size of instances_path ({directory}): {error}'
        ) from error


def _size_gib(directory: str) -> int:
    numbers = os.statvfs(storage.existing(directory))
    return numbers.f_blocks * numbers.f_frsize // _GIB


def _amount(total: int, reserved: int, ratio: float) -> dict[str, Any]:
    return {
        'total': total,
        'reserved': min(reserved, total),
        'min_unit': 1,
        'max_unit': max(total, 1),
        'step_size': 1,
        'allocation_ratio': ratio,
    }


# --- traits ----------------------------------------------------------------------------------------------------------


def traits_of(
    capabilities: str, cpu: str, domain_capabilities: str, version: int, hypervisor: int
) -> tuple[list[str], list[str]]:
    """Return the traits of a host, and those that it is known to lack, both sorted.

    :param capabilities: those of the host, as libvirt describes them.
    :param cpu: the processor with all its features, as libvirt describes it; '': only the capabilities have it.
    :param domain_capabilities: what guests can have; '': libvirt cannot say it.
    :param version: that of libvirt, as its API has it.
    :param hypervisor: the version of QEMU, likewise.
    """
    found = {*_of_processor(capabilities, cpu)}
    kinds = [*_OF_PROCESSOR] if cpu else []
    if domain_capabilities:
        found.update(_of_devices(ElementTree.fromstring(domain_capabilities)), _ALWAYS)  # noqa: S314 -- libvirt wrote it
        kinds += [*_DEVICES.values(), *_OF_FIRMWARE]
        versions = _version(version), _version(hypervisor)
        for trait, least in _SINCE.items():
            if all(one >= two for one, two in zip(versions, least, strict=True)):
                found.add(trait)
    every = os_traits.get_traits()
    present = found.intersection(every)
    absent = {trait for trait in every if trait.startswith(tuple(kinds)) and trait not in _OF_OTHERS} - present
    return sorted(present), sorted(absent)


def _of_processor(capabilities: str, cpu: str) -> Iterator[str]:
    root = ElementTree.fromstring(capabilities)  # noqa: S314 -- libvirt wrote it
    yield f'HW_ARCH_{(root.findtext("host/cpu/arch") or "").upper()}'
    for guest in root.findall('guest/arch'):
        yield f'COMPUTE_ARCH_{guest.get("name", "").upper()}'
    if int(getattr(root.find('host/cpu/topology'), 'attrib', {}).get('threads', 1)) > 1:
        yield os_traits.HW_CPU_HYPERTHREADING
    if root.findtext('host/cpu/arch') not in ('x86_64', 'i686'):
        return
    features = root.findall('host/cpu/feature')
    if cpu:
        features += ElementTree.fromstring(cpu).findall('feature')  # noqa: S314 -- libvirt wrote it
    for feature in features:
        if feature.get('policy') != 'disable':
            name = feature.get('name', '')
            for one in _FEATURES.get(name, (re.sub('[^a-z0-9]', '', name).upper(),)):
                yield f'HW_CPU_X86_{one}'


def _of_devices(root: ElementTree.Element) -> Iterator[str]:
    for (device, kind), prefix in _DEVICES.items():
        for value in _values(root, f'devices/{device}', kind):
            yield f'{prefix}_{value.replace("-", "_").upper()}'
    if 'yes' in _values(root, 'os/loader', 'secure'):
        yield os_traits.COMPUTE_SECURITY_UEFI_SECURE_BOOT
    if 'emulator' in _values(root, 'devices/tpm', 'backendModel'):
        for model in _values(root, 'devices/tpm', 'model'):
            yield f'COMPUTE_SECURITY_{model.replace("-", "_").upper()}'
        # An older libvirt does not say which versions there are, and has both.
        for version in _values(root, 'devices/tpm', 'backendVersion') or ['1.2', '2.0']:
            yield f'COMPUTE_SECURITY_TPM_{version.replace(".", "_")}'


def _values(root: ElementTree.Element, path: str, name: str) -> list[str]:
    """Return the values of an enumeration of something that is supported."""
    found = root.find(path)
    if found is None or found.get('supported') == 'no':
        return []
    return [value.text or '' for value in found.findall(f"enum[@name='{name}']/value")]


def _version(number: int) -> tuple[int, int, int]:
    return number // 1_000_000, number // 1000 % 1000, number % 1000
