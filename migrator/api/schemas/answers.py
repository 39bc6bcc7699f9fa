# SPDX-License-Identifier: Apache-2.0

"""The schemas of the answers of the Compute API at its newest version.

A property that is not required depends on the caller's rights or on the state of the resource. An older version leaves
out what a later one has added, as in Nova.
"""

from __future__ import annotations

from migrator.api.schemas.types import Schema, closed, each, many, or_null, whole
from migrator.objects import MigrationStatus, MigrationType

_TEXT: Schema = {'type': 'string'}
_NUMBER: Schema = {'type': 'integer'}
_FLAG: Schema = {'type': 'boolean'}
_NULL: Schema = {'type': 'null'}
_UUID: Schema = {'type': 'string', 'format': 'uuid'}
_TIME: Schema = {'type': 'string', 'description': 'a time in UTC, such as 2026-01-31T13:00:00.000000'}
_ZULU: Schema = {'type': 'string', 'description': 'a time in UTC, such as 2026-01-31T13:00:00Z'}
_TEXT_OR_NULL, _NUMBER_OR_NULL, _TIME_OR_NULL = (or_null(one) for one in (_TEXT, _NUMBER, _TIME))
_EMPTY_TEXT: Schema = {'type': 'string', 'enum': ['']}
_EMPTY_LIST: Schema = {'type': 'array', 'maxItems': 0}
_EMPTY: Schema = closed({})
_TEXTS: Schema = {'type': 'object', 'additionalProperties': _TEXT}
_LINKS = many(whole(rel={'type': 'string', 'enum': ['self', 'bookmark']}, href=_TEXT))


def _word(*words: str) -> Schema:
    return {'type': 'string', 'enum': [*words]}


def _and(schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of an object that may have further properties."""
    return closed({**schema['properties'], **properties}, schema['required'])


def _page(name: str, schema: Schema, links: str | None = None) -> Schema:
    """Return the schema of a page of a list, which has a link if it is full.

    :param links: the name of the link.
    """
    further = many(whole(rel={'type': 'string', 'const': 'next'}, href=_TEXT))
    return closed({name: many(schema), links or f'{name}_links': {**further, 'minItems': 1, 'maxItems': 1}}, [name])


#: Of an action: no body.
NOTHING = None

# --- servers ---------------------------------------------------------------------------------------------------------

_BASIC = whole(id=_UUID, name=_TEXT, links=_LINKS)
_FLAVOR_OF_SERVER = _and(
    whole(original_name=_TEXT, **each('vcpus ram disk ephemeral swap', _NUMBER)),
    extra_specs=_TEXTS,
)
_ALWAYS = whole(
    **_BASIC['properties'],
    status=_word(
        'ACTIVE', 'BUILD', 'DELETED', 'ERROR', 'MIGRATING', 'PAUSED', 'REBUILD', 'RESCUE', 'RESIZE', 'REVERT_RESIZE',
        'SHELVED', 'SHELVED_OFFLOADED', 'SHUTOFF', 'SOFT_DELETED', 'SUSPENDED', 'UNKNOWN', 'VERIFY_RESIZE',
    ),
    **each('tenant_id user_id hostId', _TEXT),
    flavor=_FLAVOR_OF_SERVER,
    **each('created updated', _ZULU),
    **each('accessIPv4 accessIPv6 config_drive image', _EMPTY_TEXT),
    **each('addresses metadata scheduler_hints', _EMPTY),
    **each('os-extended-volumes:volumes_attached tags', _EMPTY_LIST),
    **each('OS-SRV-USG:terminated_at description key_name', _NULL),
    **each('pinned_availability_zone trusted_image_certificates', _NULL),
    **each('OS-DCF:diskConfig OS-EXT-AZ:availability_zone OS-EXT-SRV-ATTR:hostname', _TEXT),
    **each('OS-EXT-STS:task_state OS-EXT-STS:vm_state locked_reason', _TEXT_OR_NULL),
    **{'OS-EXT-STS:power_state': {**_NUMBER_OR_NULL, 'enum': [0, 1, 3, 4, 6, 7, None]}},
    **{'OS-SRV-USG:launched_at': _TIME_OR_NULL},
    locked=_FLAG,
)  # fmt: skip
_DETAILS = _and(
    _ALWAYS,
    progress=_NUMBER,
    host_status=_word('UP', 'DOWN', 'MAINTENANCE', 'UNKNOWN'),
    **each('OS-EXT-SRV-ATTR:host OS-EXT-SRV-ATTR:hypervisor_hostname OS-EXT-SRV-ATTR:instance_name', _TEXT),
    **each('OS-EXT-SRV-ATTR:kernel_id OS-EXT-SRV-ATTR:ramdisk_id', _EMPTY_TEXT),
    **each('OS-EXT-SRV-ATTR:reservation_id OS-EXT-SRV-ATTR:root_device_name OS-EXT-SRV-ATTR:user_data', _NULL),
    **{'OS-EXT-SRV-ATTR:launch_index': _NUMBER},
)
SERVERS, SERVERS_DETAIL = _page('servers', _BASIC), _page('servers', _DETAILS)
SERVER = whole(
    server=closed({**_DETAILS['properties'], 'server_groups': _EMPTY_LIST}, [*_DETAILS['required'], 'server_groups'])
)
_OF_CPU = whole(**each('id time utilisation', _NUMBER_OR_NULL))
_OF_DISK = whole(**each('read_bytes read_requests write_bytes write_requests errors_count', _NUMBER_OR_NULL))
_OF_NIC = whole(
    mac_address=_TEXT_OR_NULL,
    **each('rx_octets rx_errors rx_drop rx_packets rx_rate', _NUMBER_OR_NULL),
    **each('tx_octets tx_errors tx_drop tx_packets tx_rate', _NUMBER_OR_NULL),
)
DIAGNOSTICS = whole(
    state=_word('running'),
    driver=_word('ironic', 'libvirt', 'vmwareapi', 'xenapi'),
    **each('hypervisor hypervisor_os', _TEXT_OR_NULL),
    uptime=_NUMBER_OR_NULL,
    config_drive=_FLAG,
    **each('num_cpus num_disks num_nics', _NUMBER),
    memory_details=whole(**each('maximum used', _NUMBER_OR_NULL)),
    cpu_details=many(_OF_CPU),
    disk_details=many(_OF_DISK),
    nic_details=many(_OF_NIC),
)

# --- migrations ------------------------------------------------------------------------------------------------------

_EVERY_MIGRATION: Schema = {
    'id': _NUMBER,
    'uuid': _UUID,
    'status': _word(*(one.value for one in MigrationStatus)),
    **each('user_id project_id', _TEXT),
    **each('source_compute source_node dest_compute dest_node dest_host', _TEXT_OR_NULL),
}
_BYTES: Schema = {
    **_NUMBER_OR_NULL,
    'minimum': 0,
    'description': 'null until the hypervisor reports it; 0 while nothing has to be copied',
}
_OF_SERVER = whole(
    **_EVERY_MIGRATION,
    server_uuid=_UUID,
    **each('created_at updated_at', _TIME),
    **each('memory_total_bytes memory_processed_bytes memory_remaining_bytes', _BYTES),
    **each('disk_total_bytes disk_processed_bytes disk_remaining_bytes', _BYTES),
)
SERVER_MIGRATIONS, SERVER_MIGRATION = whole(migrations=many(_OF_SERVER)), whole(migration=_OF_SERVER)
MIGRATIONS = _page(
    'migrations',
    _and(
        whole(
            **_EVERY_MIGRATION,
            instance_uuid=_UUID,
            created_at=_TIME,
            updated_at=_TIME_OR_NULL,
            migration_type=_word(*(one.value for one in MigrationType)),
            **each('old_instance_type_id new_instance_type_id', _NUMBER_OR_NULL),
        ),
        links=_LINKS,
    ),
)
_ACTION = whole(
    action=_TEXT,
    instance_uuid=_UUID,
    request_id=_TEXT,
    **each('user_id project_id message', _TEXT_OR_NULL),
    start_time=_TIME,
    updated_at=_TIME_OR_NULL,
)
_EVENT = _and(
    whole(**each('event hostId', _TEXT), start_time=_TIME, finish_time=_TIME_OR_NULL, result=_TEXT_OR_NULL),
    host=_TEXT,
    **each('traceback details', _TEXT_OR_NULL),
)
INSTANCE_ACTIONS = _page('instanceActions', _ACTION, 'links')
INSTANCE_ACTION = whole(instanceAction=whole(**_ACTION['properties'], events=many(_EVENT)))

# --- services and hypervisors ----------------------------------------------------------------------------------------

_STATE: Schema = {'state': _word('up', 'down'), 'status': _word('enabled', 'disabled')}
_SERVICE = whole(
    id=_UUID,
    **each('binary host zone', _TEXT),
    **_STATE,
    updated_at=_TIME_OR_NULL,
    disabled_reason=_TEXT_OR_NULL,
    forced_down=_FLAG,
)
SERVICES, SERVICE = whole(services=many(_SERVICE)), whole(service=_SERVICE)
_HYPERVISOR = whole(id=_UUID, hypervisor_hostname=_TEXT, **_STATE)
_WITH_SERVERS: Schema = {'servers': many(whole(name=_TEXT, uuid=_UUID))}
_HYPERVISOR_DETAILS = _and(
    whole(
        **_HYPERVISOR['properties'],
        hypervisor_type=_TEXT,
        hypervisor_version=_NUMBER,
        host_ip=_TEXT_OR_NULL,
        service=whole(id=_TEXT, host=_TEXT, disabled_reason=_TEXT_OR_NULL),
        uptime=_TEXT_OR_NULL,
    ),
    **_WITH_SERVERS,
)
HYPERVISORS = _page('hypervisors', _and(_HYPERVISOR, **_WITH_SERVERS))
HYPERVISORS_DETAIL = _page('hypervisors', _HYPERVISOR_DETAILS)
HYPERVISOR = whole(hypervisor=_HYPERVISOR_DETAILS)


def _zones(hosts: Schema) -> Schema:
    zone = whole(zoneName=_TEXT, zoneState=whole(available=_FLAG), hosts=hosts)
    return whole(availabilityZoneInfo=many(zone))


_OF_HOST: Schema = {
    'type': 'object',
    'additionalProperties': whole(**each('active available', _FLAG), updated_at=_TIME_OR_NULL),
}
ZONES, ZONES_DETAIL = _zones(_NULL), _zones({'type': ['object', 'null'], 'additionalProperties': _OF_HOST})

# --- flavors and groups ----------------------------------------------------------------------------------------------

_FLAVOR = whole(id=_TEXT, name=_TEXT, links=_LINKS, description=_NULL)
_FLAVOR_DETAILS = _and(
    whole(
        **_FLAVOR['properties'],
        **each('ram vcpus disk swap OS-FLV-EXT-DATA:ephemeral', _NUMBER),
        **{'os-flavor-access:is_public': _FLAG},
    ),
    extra_specs=_TEXTS,
)
FLAVORS, FLAVORS_DETAIL = _page('flavors', _FLAVOR), _page('flavors', _FLAVOR_DETAILS)
FLAVOR = whole(flavor=_FLAVOR_DETAILS)
EXTRA_SPECS, EXTRA_SPEC = whole(extra_specs=_TEXTS), {**_TEXTS, 'minProperties': 1, 'maxProperties': 1}
AGGREGATES, SERVER_GROUPS = whole(aggregates=_EMPTY_LIST), whole(server_groups=_EMPTY_LIST)
