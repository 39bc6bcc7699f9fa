# SPDX-License-Identifier: Apache-2.0

"""The history of the compute API as far as it concerns migrator, and the version of a request."""

from __future__ import annotations

import re

import microversion_parse
import webob

from migrator import exception

SERVICE_TYPE = 'compute'
STANDARD_HEADER = 'OpenStack-API-Version'
LEGACY_HEADER = 'X-OpenStack-Nova-API-Version'

#: Each version that changes something here, and since 2.80 each version. The others behave like the one before.
HISTORY: dict[str, str] = {
    '2.1': 'the beginning: host, block_migration and disk_over_commit of os-migrateLive are all required',
    '2.3': 'servers: more OS-EXT-SRV-ATTR fields, and delete_on_termination of volumes',
    '2.5': 'servers: ip6 filters also for users who are not administrators',
    '2.9': 'servers: locked',
    '2.11': 'os-services: forced_down, and PUT force-down',
    '2.16': 'servers: host_status',
    '2.19': 'servers: description',
    '2.21': 'os-instance-actions: of deleted servers too, which migrator does not keep',
    '2.22': 'force_complete of a running live migration',
    '2.23': "a server's migrations; os-migrations: migration_type, and links of those in progress",
    '2.24': 'DELETE aborts a running live migration',
    '2.25': "os-migrateLive: block_migration may be 'auto', disk_over_commit is gone",
    '2.26': 'servers: tags, and filters by them',
    '2.28': 'os-hypervisors: cpu_info is an object instead of a string',
    '2.30': 'os-migrateLive: force, which leaves the choice of host unchecked',
    '2.33': 'os-hypervisors: pages',
    '2.34': 'os-migrateLive: the answer does not wait for the pre-checks',
    '2.38': 'servers: an unknown status is a 400',
    '2.47': 'servers: the flavor is embedded',
    '2.48': 'servers: diagnostics in one form for all hypervisors',
    '2.51': 'os-instance-actions: events for all users, their tracebacks for administrators',
    '2.53': 'services and hypervisors: uuids; PUT /os-services/{uuid}; hypervisors: with_servers, nothing unknown',
    '2.55': 'flavors: description',
    '2.58': 'os-instance-actions: pages, updated_at, changes-since',
    '2.59': 'migrations: uuid; os-migrations: pages, changes-since, no unknown parameters',
    '2.61': 'flavors: extra_specs',
    '2.62': 'os-instance-actions: host and hostId of events',
    '2.63': 'servers: trusted_image_certificates',
    '2.65': 'DELETE aborts accepted, preparing and queued live migrations too',
    '2.66': 'changes-before, for servers, os-migrations and os-instance-actions',
    '2.68': 'os-migrateLive: no force any more',
    '2.71': 'servers: server_groups of one server',
    '2.73': 'lock: locked_reason; servers: locked_reason, and the filter locked',
    '2.75': 'servers, services, flavors: no unknown parameters; flavors: swap 0; hypervisors: an empty list of servers',
    '2.80': 'migrations: user_id and project_id; os-migrations: filters by them',
    '2.81': 'nothing: images of aggregates are not served',
    '2.82': 'nothing: external events are not served',
    '2.83': 'servers: more filters also for users who are not administrators',
    '2.84': 'os-instance-actions: details of events',
    '2.85': 'nothing: volume attachments are not served',
    '2.86': 'nothing: extra specs are not changed here',
    '2.87': 'nothing: rescue is not served',
    '2.88': 'os-hypervisors: uptime in place of figures of use; no statistics',
    '2.89': 'nothing: volume attachments are not served',
    '2.90': 'servers: hostname for all users, and as a filter for them',
    '2.91': 'nothing: unshelve is not served',
    '2.92': 'nothing: key pairs are not served',
    '2.93': 'nothing: rebuild is not served',
    '2.94': 'nothing: servers are not created here',
    '2.95': 'evacuate: the server is stopped at its destination',
    '2.96': 'servers: pinned_availability_zone',
    '2.97': 'nothing: shares are not served',
    '2.98': 'nothing: no server has an image here',
    '2.99': 'nothing: consoles are not served',
    '2.100': 'servers: scheduler_hints',
    '2.101': 'nothing: volume attachments are not served',
    '2.102': 'no unknown parameters anywhere; flavors: the filter name, no rxtx_factor and OS-FLV-DISABLED:disabled',
    '2.103': 'nothing: os-volumes_boot is not served',
    '2.104': 'nothing: servers are not changed here',
}

MINIMUM = microversion_parse.parse_version_string(next(iter(HISTORY)))
MAXIMUM = microversion_parse.parse_version_string(list(HISTORY)[-1])

_WELL_FORMED = re.compile(r'[1-9]\d{0,8}\.(0|[1-9]\d{0,8})')


def of_request(request: webob.Request) -> microversion_parse.Version:
    """Return the version that a request names, or the minimum.

    :raises migrator.exception.InvalidAPIVersion: the version is malformed.
    :raises migrator.exception.VersionNotSupported: the version is below the minimum or above the maximum.
    """
    wanted = microversion_parse.get_version(request.headers, SERVICE_TYPE, [LEGACY_HEADER])
    if wanted is None:
        return MINIMUM
    if wanted.lower() == 'latest':
        return MAXIMUM
    if not _WELL_FORMED.fullmatch(wanted):
        raise exception.InvalidAPIVersion(version=wanted[:64])
    version = microversion_parse.parse_version_string(wanted)
    if not version.matches(MINIMUM, MAXIMUM):
        raise exception.VersionNotSupported(version=wanted, minimum=MINIMUM, maximum=MAXIMUM)
    return version


def mark(response: webob.Response, version: microversion_parse.Version) -> None:
    """Set the version headers of a response, and the Vary header for caches."""
    response.headers[STANDARD_HEADER] = f'{SERVICE_TYPE} {version}'
    response.headers[LEGACY_HEADER] = str(version)
    response.headers['Vary'] = f'{STANDARD_HEADER}, {LEGACY_HEADER}'
