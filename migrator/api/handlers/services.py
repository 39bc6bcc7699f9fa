# SPDX-License-Identifier: Apache-2.0

"""The services: list, enable, disable, force down, delete."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import webob
from oslo_utils import uuidutils

from migrator import exception
from migrator.api import common, schemas
from migrator.api.policies.nova import SERVICES_DELETE, SERVICES_LIST, SERVICES_UPDATE
from migrator.api.request import Request, answer
from migrator.api.schemas import services
from migrator.objects import COMPUTE_BINARY, MigrationStatus, MigrationType, Service, remedies, times
from migrator.objects.steps import AFTER_REVERT

#: Nova's names of the availability zones of compute hosts and of all other services.
ZONE, INTERNAL = 'nova', 'internal'


def index(request: Request) -> webob.Response:
    """List the services."""
    given = request.given
    request.authorize(SERVICES_LIST)
    database = request.services.database
    now = database.services.now()
    found = database.services.list(binary=given.get('binary'), host=given.get('host'))
    return answer({'services': [_view(request, service, now) for service in found]})


def update(request: Request, service_id: str) -> webob.Response:
    """Change a compute service. Below 2.53 the last part of the URL names the change, not the service."""
    if not request.since(53):
        return _update_by_action(request, service_id)
    _check_id(request, service_id)  # first: a body that is right for another version is not what is wrong
    wanted = schemas.body(request, services.UPDATE)
    request.authorize(SERVICES_UPDATE)
    service = _find(request, service_id)
    if service.binary != COMPUTE_BINARY:
        raise exception.Invalid(
            f'Updating a {service.binary} service is not supported. Only nova-compute services can be updated.'
        )
    changes = _changes(wanted)
    if not changes:
        raise exception.Invalid("No updates were requested. Fields 'status' or 'forced_down' should be specified.")
    _update(request, service, changes)
    now = request.services.database.services.now()
    return answer({'service': _view(request, request.services.database.services.get(service.id), now)})


def delete(request: Request, service_id: str) -> webob.Response:
    """Have a conductor delete a service that is down, with its hypervisor and its providers."""
    request.authorize(SERVICES_DELETE)
    service = _find(request, service_id)
    request.services.conductor.delete_service(request.context, service.uuid)
    return webob.Response(status=204)


def _find(request: Request, service_id: str) -> Service:
    """Return the service with an id, which is a uuid from 2.53 on.

    :raises migrator.exception.Invalid: the id has another form.
    :raises migrator.exception.ServiceNotFound: no service has it.
    """
    _check_id(request, service_id)
    key = common.usual_uuid(service_id) if request.since(53) else common.integer_id(service_id)
    if key is None:
        raise exception.ServiceNotFound(service_id=service_id)
    return request.services.database.services.get(key)


def _check_id(request: Request, service_id: str) -> None:
    if request.since(53) and not uuidutils.is_uuid_like(service_id):
        raise exception.Invalid(
            f'Invalid uuid {service_id}: from version 2.53 on, a service is named by its uuid, the ID of '
            f'"{remedies.offer(remedies.Kind.LIST_SERVICES)}".'
        )
    if not request.since(53) and not (service_id.isascii() and service_id.isdigit()):
        raise exception.Invalid(f'Invalid id {service_id}: below version 2.53, a service is named by its number.')


def _changes(wanted: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if 'status' in wanted:
        changes = {'disabled': wanted['status'] == 'disabled', 'disabled_reason': wanted.get('disabled_reason')}
    if 'disabled_reason' in wanted and not changes.get('disabled'):
        raise exception.Invalid("Specifying disabled_reason requires that status is 'disabled'.")
    if 'forced_down' in wanted:
        changes['forced_down'] = schemas.boolean(wanted['forced_down'])
    return changes


def _update_by_action(request: Request, action: str) -> webob.Response:
    wanted = schemas.body(request, services.UPDATE)
    request.authorize(SERVICES_UPDATE)
    needed = {'enable': None, 'disable': None, 'disable-log-reason': 'disabled_reason'}
    if request.since(11):
        needed['force-down'] = 'forced_down'
    if action not in needed:
        raise exception.NotFound(f'Unknown action {action}: use {", ".join(needed)}.')
    field = needed[action]
    if field is not None and field not in wanted:
        raise exception.Invalid(f'Missing {field} field: {action} needs it.')
    if wanted['binary'] != COMPUTE_BINARY:
        raise exception.NotFound(f'Binary {wanted["binary"]} on host {wanted["host"]} could not be found.')
    service = request.services.database.services.get_compute(wanted['host'])
    changes: dict[str, Any] = {'disabled': action != 'enable', 'disabled_reason': None}
    view: dict[str, Any] = {'status': 'enabled' if action == 'enable' else 'disabled'}
    if action == 'disable-log-reason':
        changes['disabled_reason'] = view['disabled_reason'] = wanted['disabled_reason']
    elif action == 'force-down':
        changes = view = {'forced_down': schemas.boolean(wanted['forced_down'])}
    _update(request, service, changes)
    return answer({'service': {'host': service.host, 'binary': service.binary, **view}})


def _update(request: Request, service: Service, changes: Mapping[str, Any]) -> None:
    database = request.services.database
    if changes.get('forced_down') is False:
        done = {
            'source_compute': service.host,
            'migration_type': MigrationType.EVACUATION.value,
            'status': MigrationStatus.DONE.value,
        }
        ids = [migration.id for migration in database.migrations.list(done)]
        if ids:
            raise exception.Invalid(
                f'Unable to force up host {service.host} as `done` evacuation migration records remain associated with '
                f'the host: {", ".join(map(str, sorted(ids)))}. Start its compute service, which then removes what was '
                'evacuated from it, and try again when they are `completed`.'
            )
        reverted = [one for one in database.cleanups.list(host=service.host) if one.step == AFTER_REVERT]
        if reverted:
            raise exception.Invalid(
                f'Unable to force up host {service.host} as it may still run the guests of cold migrations that were '
                f'reverted while it was forced down: {", ".join(sorted(one.migration_uuid for one in reverted))}. '
                'Start its compute service, which then ends them, and try again when it has no such cleanup any more.'
            )
    database.services.update(service.id, **changes)


def zone(service: Service) -> str:
    """Return the availability zone of a service."""
    return ZONE if service.binary == COMPUTE_BINARY else INTERNAL


def is_up(request: Request, service: Service, now: datetime.datetime) -> bool:
    """Return whether a service is up.

    :param now: the database's time.
    """
    return service.is_up(now, request.services.conf.conductor.lease)


def _view(request: Request, service: Service, now: datetime.datetime) -> dict[str, Any]:
    view = {
        'id': service.uuid if request.since(53) else service.id,
        'binary': service.binary,
        'host': service.host,
        'zone': zone(service),
        'status': 'disabled' if service.disabled else 'enabled',
        'state': 'up' if is_up(request, service, now) else 'down',
        'updated_at': times.iso(service.last_seen_up),
        'disabled_reason': service.disabled_reason,
    }
    if request.since(11):
        view['forced_down'] = service.forced_down
    return view
