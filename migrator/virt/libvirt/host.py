# SPDX-License-Identifier: Apache-2.0

"""The facts about a libvirt host, and the resources that it offers to guests."""

from __future__ import annotations

import functools
import os
from typing import Any
from xml.etree import ElementTree

from oslo_config import cfg

from migrator import exception, executors
from migrator.objects import ComputeNode, ProviderInventory
from migrator.virt import driver
from migrator.virt.libvirt import storage

#: Seconds within which the file system of instances_path must report its size, less than the deadline of libvirt calls.
DISK_DEADLINE = 5.0

_GIB = 2**30
#: Directory -> the probe that queries the size of its file system. A file system hangs for the whole process.
_PROBES: dict[str, executors.Probe[int]] = {}


def node_of(connection: Any, host: str, conf: cfg.ConfigOpts) -> ComputeNode:
    """Return the facts about a host, and its resource provider.

    :param connection: a ``libvirt.virConnect``.
    :param host: the name of this compute host.
    :param conf: with the options of :mod:`migrator.conf.libvirt` registered.
    :raises migrator.exception.ServiceUnreachable: the file system of instances_path hangs.
    :raises migrator.exception.DriverError: the file system of instances_path fails.
    """
    uuid = driver.node_uuid(host)
    disk_gib = _disk_gib(os.path.abspath(conf.instances_path), host)
    _model, memory_mb, processors, *_rest = connection.getInfo()
    inventory = {
        'VCPU': _amount(processors, conf.reserved_host_cpus, conf.cpu_allocation_ratio),
        'MEMORY_MB': _amount(memory_mb, conf.reserved_host_memory_mb, conf.ram_allocation_ratio),
        'DISK_GB': _amount(disk_gib, -(-conf.reserved_host_disk_mb // 1024), conf.disk_allocation_ratio),
    }
    root = ProviderInventory(
        uuid=uuid, name=host, inventory={name: amount for name, amount in inventory.items() if amount['total']}
    )
    return ComputeNode(
        uuid=uuid,
        host=host,
        node=host,
        hypervisor_type=connection.getType(),
        hypervisor_version=connection.getVersion(),
        host_ip=conf.libvirt.live_migration_inbound_addr or '127.0.0.1',
        cpu_info=cpu_info(connection.getCapabilities()),
        providers=[root],
    )


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
