# SPDX-License-Identifier: Apache-2.0

"""The form of a notification: nova's versioned objects, as nova puts them on the bus.

The names, the versions and the fields are nova 34's: ``nova/notifications/objects/instance.py``. A field that migrator
does not know is null or empty, as nova sends it if there is no value.
"""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from typing import Any

from migrator.conductor.notifications.phases import ERROR, Phase
from migrator.context import RequestContext
from migrator.objects import COMPUTE_BINARY, Flavor, Instance, Migration

#: Nova's names of power_states.
_POWER_STATES = {0: 'pending', 1: 'running', 3: 'paused', 4: 'shutdown', 6: 'crashed', 7: 'suspended'}
#: Action -> its object and the version, where it is not the usual one.
_OBJECTS = {
    'resize_prep': ('InstanceActionResizePrepPayload', '1.4'),
    'rebuild': ('InstanceActionRebuildPayload', '1.10'),
}
_USUAL = 'InstanceActionPayload', '1.9'


@dataclasses.dataclass(frozen=True)
class Notification:
    """The content of one message on the bus.

    :ivar message_id: the same each time that this notification is sent.
    :ivar at: the time of the event.
    :ivar context: that of the request of the migration.
    """

    message_id: str
    at: datetime.datetime
    publisher_id: str
    event_type: str
    priority: str
    payload: dict[str, Any]
    context: RequestContext


def notification(migration: Migration, instance: Instance, phase: Phase, server: str) -> Notification:
    """Return the message of one phase.

    :param instance: the instance as it is now, or a substitute if it is deleted.
    :param server: the name of the conductor that sends it.
    """
    name, version = _OBJECTS.get(phase.action, _USUAL)
    data = _instance(migration, instance, phase)
    if phase.action == 'resize_prep':
        data['new_flavor'] = _flavor(migration.flavors(instance.flavor)[1])
    elif phase.action == 'rebuild':
        data['trusted_image_certificates'] = None
    return Notification(
        message_id=str(uuid.uuid5(uuid.UUID(migration.uuid), f'{phase.seq} {phase.event_type}')),
        at=phase.at,
        publisher_id=f'nova-api:{server}' if phase.phase is None else f'{COMPUTE_BINARY}:{phase.host}',
        event_type=phase.event_type,
        priority='ERROR' if phase.phase == ERROR else 'INFO',
        payload=_object(name, version, data),
        context=RequestContext(
            user_id=migration.user_id, project_id=migration.project_id, request_id=migration.request_id, overwrite=False
        ),
    )


def _object(name: str, version: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        'nova_object.name': name,
        'nova_object.namespace': 'nova',
        'nova_object.version': version,
        'nova_object.data': data,
    }


def _instance(migration: Migration, instance: Instance, phase: Phase) -> dict[str, Any]:
    return {
        'uuid': instance.uuid,
        'user_id': instance.user_id,
        'tenant_id': instance.project_id,
        'reservation_id': None,
        'display_name': instance.name,
        'display_description': None,
        'host_name': instance.hostname,
        'host': phase.guest_host,
        'node': phase.guest_node,
        'os_type': None,
        'architecture': None,
        'availability_zone': 'nova',
        'flavor': _flavor(migration.flavors(instance.flavor)[phase.has_moved]),
        'image_uuid': '',
        'key_name': None,
        'kernel_id': '',
        'ramdisk_id': '',
        'created_at': _time(instance.created_at),
        'launched_at': _time(instance.launched_at),
        'terminated_at': None,
        'deleted_at': None,
        'updated_at': _time(instance.updated_at),
        'state': phase.vm_state or instance.vm_state,
        'power_state': _POWER_STATES.get(instance.power_state),
        'task_state': phase.task_state,
        'progress': 0,
        'ip_addresses': [],
        'block_devices': None,
        'metadata': {},
        'locked': instance.locked,
        'auto_disk_config': 'MANUAL',
        'request_id': migration.request_id,
        'action_initiator_user': migration.user_id,
        'action_initiator_project': migration.project_id,
        'locked_reason': instance.locked_reason,
        'shares': None,
        'fault': None if phase.fault is None else _fault(phase),
    }


def _flavor(flavor: Flavor) -> dict[str, Any]:
    data = {
        # As in GET /flavors, the name is the id.
        'flavorid': flavor.name,
        'name': flavor.name,
        'memory_mb': flavor.memory_mb,
        'vcpus': flavor.vcpus,
        'root_gb': flavor.root_gb,
        'ephemeral_gb': flavor.ephemeral_gb,
        'swap': flavor.swap,
        'rxtx_factor': 1.0,
        'vcpu_weight': 0,
        'disabled': False,
        'is_public': True,
        'extra_specs': dict(flavor.extra_specs),
        'projects': None,
        'description': None,
    }
    return _object('FlavorPayload', '1.4', data)


def _fault(phase: Phase) -> dict[str, Any]:
    data = {
        'module_name': 'migrator',
        'function_name': phase.action,
        'exception': 'MigrationError',
        'exception_message': phase.fault,
        'traceback': '',
    }
    return _object('ExceptionPayload', '1.1', data)


def _time(moment: datetime.datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
