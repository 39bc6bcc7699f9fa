# SPDX-License-Identifier: Apache-2.0

"""The diagnostics of a server, as the driver of its host reports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import webob

from migrator import exception
from migrator.api import common
from migrator.api.handlers import services
from migrator.api.policies.nova import DIAGNOSTICS
from migrator.api.request import Request, answer
from migrator.objects import COMPUTE_BINARY, GuestState, Instance

#: Nova's form of 2.48: each list, and the fields of its items.
_LISTS = {
    'cpu_details': ('id', 'time', 'utilisation'),
    'disk_details': ('read_bytes', 'read_requests', 'write_bytes', 'write_requests', 'errors_count'),
    'nic_details': (
        'mac_address', 'rx_octets', 'rx_errors', 'rx_drop', 'rx_packets', 'rx_rate', 'tx_octets', 'tx_errors',
        'tx_drop', 'tx_packets', 'tx_rate',
    ),
}  # fmt: skip
_MEMORY = ('maximum', 'used')
#: Below 2.48, as nova's libvirt driver: the names of a disk's and of an interface's figures -> the names of 2.48.
_OF_DISK = {
    'read_req': 'read_requests', 'read': 'read_bytes', 'write_req': 'write_requests', 'write': 'write_bytes',
    'errors': 'errors_count',
}  # fmt: skip
_OF_NIC = {
    'rx': 'rx_octets', 'rx_packets': 'rx_packets', 'rx_errors': 'rx_errors', 'rx_drop': 'rx_drop', 'tx': 'tx_octets',
    'tx_packets': 'tx_packets', 'tx_errors': 'tx_errors', 'tx_drop': 'tx_drop',
}  # fmt: skip


def show(request: Request, server_id: str) -> webob.Response:
    """Show what a running server uses, as its host reports it."""
    instance = common.get_instance(request, server_id)
    request.authorize(DIAGNOSTICS, common.target(instance))
    database = request.services.database
    now = database.services.now()
    if not any(services.is_up(request, one, now) for one in database.services.list(COMPUTE_BINARY, instance.host)):
        raise exception.Conflict(
            f'The compute service of the host of server {instance.uuid} is down: start it, or evacuate the server.'
        )
    reply = request.services.conductor.get_diagnostics(request.context, instance)
    if reply['state'] != GuestState.RUNNING:
        wanted = [GuestState.RUNNING.value]
        raise database.instances.invalid_state(
            instance.uuid, attr='power state', state=reply['state'], method='get_diagnostics', wanted=wanted
        )
    found = reply['diagnostics']
    if found is None:
        raise webob.exc.HTTPNotImplemented(
            f'The driver of the host of server {instance.uuid} does not report diagnostics.'
        )
    return answer(_view(request, instance, found) if request.since(48) else _flat(found))


def _view(request: Request, instance: Instance, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the diagnostics in nova's form of 2.48. What the driver has left out is null."""
    lists = {
        name: [{field: item.get(field) for field in fields} for item in found.get(name, ())]
        for name, fields in _LISTS.items()
    }
    now, launched = request.services.database.services.now(), instance.launched_at
    return {
        'state': 'running',
        'driver': found.get('driver'),
        'hypervisor': found.get('hypervisor'),
        'hypervisor_os': found.get('hypervisor_os'),
        'uptime': None if launched is None else max(0, int((now - launched).total_seconds())),
        'config_drive': False,
        'num_cpus': len(lists['cpu_details']),
        'num_disks': len(lists['disk_details']),
        'num_nics': len(lists['nic_details']),
        'memory_details': {name: found.get('memory_details', {}).get(name) for name in _MEMORY},
        **lists,
    }


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the diagnostics as nova's libvirt driver has them below 2.48. Memory is in KiB there."""
    flat = {f'cpu{cpu["id"]}_time': cpu['time'] for cpu in found.get('cpu_details', ())}
    for name, figures in (('disk_details', _OF_DISK), ('nic_details', _OF_NIC)):
        for item in found.get(name, ()):
            if 'device' in item:
                known = {short: item[figure] for short, figure in figures.items() if figure in item}
                flat |= {f'{item["device"]}_{short}': value for short, value in known.items()}
    maximum = found.get('memory_details', {}).get('maximum')
    return flat if maximum is None else flat | {'memory': maximum * 1024}
