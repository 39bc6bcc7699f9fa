# SPDX-License-Identifier: Apache-2.0

"""The schemas of the lists of servers."""

from __future__ import annotations

from migrator.api.schemas import types

#: Nova's filters for attributes that migrator does not store. Only the empty value finds a server.
WITHOUT_NOTION = (
    'access_ip_v4', 'access_ip_v6', 'config_drive', 'image', 'image_ref', 'kernel_id', 'key_name', 'ramdisk_id',
    'reservation_id', 'root_device_name', 'terminated_at',
)  # fmt: skip

#: Nova's sort key -> the attribute of an instance; None: migrator does not store it, so all servers are equal.
SORT_KEYS = {
    'access_ip_v4': None,
    'access_ip_v6': None,
    'auto_disk_config': None,
    'availability_zone': None,
    'config_drive': None,
    'created_at': 'created_at',
    'display_description': None,
    'display_name': 'name',
    'host': 'host',
    'hostname': 'name',
    'image_ref': None,
    'instance_type_id': None,
    'kernel_id': None,
    'key_name': None,
    'launch_index': None,
    'launched_at': 'launched_at',
    'locked_by': 'locked_by',
    'node': 'node',
    'power_state': 'power_state',
    'progress': None,
    'project_id': 'project_id',
    'ramdisk_id': None,
    'root_device_name': None,
    'task_state': 'task_state',
    'terminated_at': None,
    'updated_at': 'updated_at',
    'user_id': 'user_id',
    'uuid': 'uuid',
    'vm_state': 'vm_state',
}

#: The sort keys that show which servers share a host. They are for administrators, as in nova.
SHOWS_HOSTS = ('host', 'node')

_V2_1 = {
    **types.PAGE,
    **dict.fromkeys(WITHOUT_NOTION, types.ANY),
    'all_tenants': types.ANY,
    'auto_disk_config': types.ANY,
    'availability_zone': types.ANY,
    'changes-since': types.MOMENT,
    'created_at': types.ANY,
    'deleted': types.ANY,
    'description': types.REGEX,
    'display_description': types.REGEX,
    'display_name': types.REGEX,
    'flavor': types.ANY,
    'host': types.ANY,
    'hostname': types.ANY,
    'instance_type_id': types.ANY,
    'ip': types.REGEX,
    'ip6': types.REGEX,
    'launch_index': types.ANY,
    'launched_at': types.ANY,
    'locked_by': types.ANY,
    'name': types.REGEX,
    'node': types.ANY,
    'power_state': types.ANY,
    'progress': types.ANY,
    'project_id': types.ANY,
    'soft_deleted': types.ANY,
    'sort_dir': types.many({'type': 'string', 'enum': ['asc', 'desc'], 'description': 'asc or desc'}),
    'sort_key': types.many({'type': 'string', 'enum': sorted(SORT_KEYS)}),
    'status': types.ANY,
    'task_state': types.ANY,
    'tenant_id': types.ANY,
    'user_id': types.ANY,
    'uuid': types.ANY,
    'vm_state': types.ANY,
}
_V2_26 = {**_V2_1, **dict.fromkeys(('tags', 'tags-any', 'not-tags', 'not-tags-any'), types.ANY)}
_V2_66 = {**_V2_26, 'changes-before': types.MOMENT}
_V2_73 = {**_V2_66, 'locked': types.ANY}

INDEX = {
    1: types.parameters(_V2_1),
    26: types.parameters(_V2_26),
    66: types.parameters(_V2_66),
    73: types.parameters(_V2_73),
    75: types.parameters(_V2_73, unknown=False),
}
