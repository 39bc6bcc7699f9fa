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
    'locked': 'locked',
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

#: The sort keys that nova ignores, below the minor version 75.
IGNORED_SORT_KEYS = (
    'architecture', 'cell_name', 'cleaned', 'default_ephemeral_device', 'default_swap_device', 'deleted', 'deleted_at',
    'disable_terminate', 'ephemeral_gb', 'ephemeral_key_uuid', 'id', 'key_data', 'launched_on', 'memory_mb', 'os_type',
    'reservation_id', 'root_gb', 'shutdown_terminate', 'user_data', 'vcpus', 'vm_mode',
)  # fmt: skip

#: The parameters that nova knows and refuses.
REFUSED = (
    'block_device_mapping', 'services', 'metadata', 'system_metadata', 'info_cache', 'security_groups', 'pci_devices',
)  # fmt: skip

_TEXTS = (
    'all_tenants', 'deleted', 'host', 'image', 'image_ref', 'launch_index', 'project_id', 'soft_deleted', 'sort_dir',
    'status', 'task_state', 'tenant_id', 'user_id', 'uuid', 'vm_state',
)  # fmt: skip
#: Nova compares the other parameters with regular expressions, and so requires one.
_PATTERNS = (
    'access_ip_v4', 'access_ip_v6', 'auto_disk_config', 'availability_zone', 'config_drive', 'created_at',
    'description', 'display_description', 'display_name', 'flavor', 'hostname', 'ip', 'ip6', 'kernel_id', 'key_name',
    'launched_at', 'locked_by', 'name', 'node', 'power_state', 'progress', 'ramdisk_id', 'reservation_id',
    'root_device_name', 'terminated_at',
)  # fmt: skip
_MOMENTS = types.many(types.MOMENT)


def _sort_key(*more: str) -> types.Schema:
    keys = sorted([*SORT_KEYS, *more])
    return types.many({'type': 'string', 'enum': keys, 'description': ', '.join(sorted(SORT_KEYS))})


_V2_1 = {
    **types.PAGE,
    **dict.fromkeys((*_TEXTS, *REFUSED), types.ANY),
    **dict.fromkeys(_PATTERNS, types.REGEX),
    'changes-since': _MOMENTS,
    'sort_key': _sort_key(*IGNORED_SORT_KEYS),
}
_V2_26 = {**_V2_1, **dict.fromkeys(('tags', 'tags-any', 'not-tags', 'not-tags-any'), types.REGEX)}
_V2_66 = {**_V2_26, 'changes-before': _MOMENTS}
_V2_73 = {**_V2_66, 'locked': types.ANY}
_V2_75 = {**_V2_73, 'sort_key': _sort_key()}

INDEX = {
    1: types.parameters(_V2_1),
    26: types.parameters(_V2_26),
    66: types.parameters(_V2_66),
    73: types.parameters(_V2_73),
    75: types.parameters(_V2_75, unknown=False),
}
