# SPDX-License-Identifier: Apache-2.0

"""A server as nova shows it at each version. Unknown fields have nova's empty value."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from migrator.api import common
from migrator.api.handlers import services
from migrator.api.policies.nova import EXTENDED_ATTRIBUTES, EXTRA_SPECS, HOST_STATUS
from migrator.api.request import Request
from migrator.objects import COMPUTE_BINARY, MIGRATABLE_VM_STATES, Flavor, Instance, Service, times

ZONE = services.ZONE

#: vm_state -> status, unless task_state decides.
STATUSES = {
    'active': 'ACTIVE',
    'building': 'BUILD',
    'deleted': 'DELETED',
    'error': 'ERROR',
    'paused': 'PAUSED',
    'rescued': 'RESCUE',
    'resized': 'VERIFY_RESIZE',
    'shelved': 'SHELVED',
    'shelved_offloaded': 'SHELVED_OFFLOADED',
    'soft-delete': 'SOFT_DELETED',
    'stopped': 'SHUTOFF',
    'suspended': 'SUSPENDED',
}
#: An evacuation rebuilds the guest elsewhere.
REBUILDING = ('rebuilding', 'rebuild_block_device_mapping', 'rebuild_spawning')
RESIZING = ('resize_prep', 'resize_migrating', 'resize_migrated', 'resize_finish')

#: The statuses of nova's that no server has here.
OTHER_STATUSES = frozenset({'HARD_REBOOT', 'PASSWORD', 'REBOOT'})

_WITH_PROGRESS = ('ACTIVE', 'BUILD', 'REBUILD', 'RESIZE', 'VERIFY_RESIZE', 'MIGRATING')


def status(instance: Instance) -> str:
    """Return nova's status of a server."""
    if instance.task_state == 'migrating' and instance.vm_state in MIGRATABLE_VM_STATES:
        return 'MIGRATING'
    if instance.task_state in REBUILDING and instance.vm_state in ('active', 'stopped', 'error'):
        return 'REBUILD'
    if instance.task_state in RESIZING and instance.vm_state in ('active', 'stopped'):
        return 'RESIZE'
    if instance.task_state == 'resize_reverting' and instance.vm_state == 'resized':
        return 'REVERT_RESIZE'
    return STATUSES.get(instance.vm_state, 'UNKNOWN')


def basic(request: Request, instance: Instance) -> dict[str, Any]:
    """Return the fields of a server in a plain list."""
    return {'id': instance.uuid, 'name': instance.name, 'links': common.links(request, f'servers/{instance.uuid}')}


@dataclasses.dataclass(frozen=True)
class Details:
    """The full view of servers. Policies and hosts are looked up once for all servers of an answer.

    :ivar alone: whether the answer is one server rather than a list.
    :ivar progress: server -> the percentage of its memory that its live migration has copied.
    """

    request: Request
    alone: bool
    hosts: dict[str, str] | None
    located: bool
    extra_specs: bool
    progress: Mapping[str, int]

    @classmethod
    def of(cls, request: Request, instances: Sequence[Instance], alone: bool = False) -> Details:
        """Return the view for these servers."""
        target = common.target(instances[0]) if alone else None
        hosts = None
        if request.since(16) and request.can(HOST_STATUS, target):
            hosts = _host_statuses(request, {instance.host for instance in instances})
        return cls(
            request=request,
            alone=alone,
            hosts=hosts,
            located=request.can(EXTENDED_ATTRIBUTES, target),
            extra_specs=request.since(47) and request.can(EXTRA_SPECS, target),
            progress=_progress(request, [one.uuid for one in instances if status(one) == 'MIGRATING']),
        )

    def view(self, instance: Instance) -> dict[str, Any]:
        """Return all fields of a server that the caller may see."""
        request = self.request
        view = basic(request, instance) | {
            'status': status(instance),
            'tenant_id': instance.project_id,
            'user_id': instance.user_id,
            'metadata': {},
            'hostId': common.host_id(instance.project_id, instance.host),
            'image': '',
            'flavor': self._flavor(instance.flavor),
            'created': common.zulu(instance.created_at),
            'updated': common.zulu(instance.updated_at or instance.created_at),
            'addresses': {},
            'accessIPv4': '',
            'accessIPv6': '',
            'OS-DCF:diskConfig': 'MANUAL',
            'OS-EXT-AZ:availability_zone': ZONE,
            'OS-EXT-STS:task_state': instance.task_state,
            'OS-EXT-STS:vm_state': instance.vm_state,
            'OS-EXT-STS:power_state': instance.power_state,
            'OS-SRV-USG:launched_at': times.iso(instance.launched_at),
            'OS-SRV-USG:terminated_at': None,
            'config_drive': '',
            'key_name': None,
            'os-extended-volumes:volumes_attached': [],
        }
        if view['status'] in _WITH_PROGRESS:
            view['progress'] = self.progress.get(instance.uuid, 0)
        if self.located:
            view |= self._location(instance)
        return view | self._added_since(instance)

    def _added_since(self, instance: Instance) -> dict[str, Any]:
        added: list[tuple[int, str, Any]] = [
            (9, 'locked', instance.locked),
            (19, 'description', None),
            (26, 'tags', []),
            (63, 'trusted_image_certificates', None),
            (73, 'locked_reason', instance.locked_reason),
            (90, 'OS-EXT-SRV-ATTR:hostname', instance.hostname),
            (96, 'pinned_availability_zone', None),
            (100, 'scheduler_hints', {}),
        ]
        if self.alone:
            added.append((71, 'server_groups', []))
        if self.hosts is not None:
            added.append((16, 'host_status', self.hosts.get(instance.host, 'UNKNOWN')))
        return {name: value for first, name, value in added if self.request.since(first)}

    def _location(self, instance: Instance) -> dict[str, Any]:
        location: dict[str, Any] = {
            'host': instance.host,
            'instance_name': f'instance-{instance.id:08x}',
            'hypervisor_hostname': instance.node,
        }
        if self.request.since(3):
            location |= {
                'reservation_id': None,
                'launch_index': 0,
                'hostname': instance.hostname,
                'kernel_id': '',
                'ramdisk_id': '',
                'root_device_name': None,
                'user_data': None,
            }
        return {f'OS-EXT-SRV-ATTR:{name}': value for name, value in location.items()}

    def _flavor(self, flavor: Flavor) -> dict[str, Any]:
        if not self.request.since(47):
            # As in GET /flavors, the name is the id.
            link = common.links(self.request, f'flavors/{flavor.name}')[1]
            return {'id': flavor.name, 'links': [link]}
        view: dict[str, Any] = {
            'original_name': flavor.name,
            'vcpus': flavor.vcpus,
            'ram': flavor.memory_mb,
            'disk': flavor.root_gb,
            'ephemeral': flavor.ephemeral_gb,
            'swap': flavor.swap,
        }
        return view | {'extra_specs': flavor.extra_specs} if self.extra_specs else view


def _progress(request: Request, uuids: list[str]) -> dict[str, int]:
    if not uuids:
        return {}
    found = request.services.database.migrations.list({'instance_uuid': uuids}, in_progress=True)
    return {
        one.instance_uuid: 100 - round(100 * (one.memory_remaining or 0) / one.memory_total)
        for one in found
        if one.memory_total
    }


def _host_statuses(request: Request, hosts: Iterable[str]) -> dict[str, str]:
    now = request.services.database.services.now()
    computes = request.services.database.services.list(COMPUTE_BINARY, sorted(hosts))
    return {service.host: _host_status(request, service, now) for service in computes}


def _host_status(request: Request, service: Service, now: datetime.datetime) -> str:
    if service.forced_down:
        return 'DOWN'
    if service.disabled:
        return 'MAINTENANCE'
    return 'UP' if services.is_up(request, service, now) else 'UNKNOWN'
