# SPDX-License-Identifier: Apache-2.0

"""A server's live migrations in progress: list, show, abort, force complete."""

from __future__ import annotations

from typing import Any

import webob
from oslo_log import log as logging

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers import migrations
from migrator.api.policies.nova import (
    SERVER_MIGRATIONS_DELETE,
    SERVER_MIGRATIONS_FORCE_COMPLETE,
    SERVER_MIGRATIONS_INDEX,
    SERVER_MIGRATIONS_INDEX_HOST,
    SERVER_MIGRATIONS_SHOW,
)
from migrator.api.request import Request, accepted, answer
from migrator.api.schemas import server_migrations
from migrator.objects import ABORTS_QUEUED, Instance, Migration, MigrationStatus, MigrationType, times

LOG = logging.getLogger(__name__)

_S = MigrationStatus

#: First minor version -> the statuses in which a migration can be aborted.
ABORTABLE: dict[int, list[str]] = {
    24: [_S.RUNNING.value],
    65: [_S.ACCEPTED.value, _S.PREPARING.value, _S.QUEUED.value, _S.RUNNING.value],
}
COMPLETABLE = [_S.RUNNING.value]


def index(request: Request, server_id: str) -> webob.Response:
    """List a server's live migrations in progress."""
    instance = common.get_instance(request, server_id)
    request.authorize(SERVER_MIGRATIONS_INDEX, common.target(instance))
    shows_hosts = request.can(SERVER_MIGRATIONS_INDEX_HOST, common.target(instance))
    found = request.services.database.migrations.list(
        {'instance_uuid': instance.uuid, 'migration_type': _LIVE, 'hidden': False}, in_progress=True
    )
    return answer({'migrations': [_view(request, migration, shows_hosts) for migration in found]})


def show(request: Request, server_id: str, migration_id: str) -> webob.Response:
    """Show one of a server's live migrations in progress."""
    instance = common.get_instance(request, server_id)
    request.authorize(SERVER_MIGRATIONS_SHOW, common.target(instance))
    migration = _find(request, instance, migration_id)
    if not migration.in_progress:
        raise exception.MigrationNotFound(
            f'Live migration {migration.id} of server {instance.uuid} is not in progress: it is {migration.status}.'
        )
    return answer({'migration': _view(request, migration, True)})


def delete(request: Request, server_id: str, migration_id: str) -> webob.Response:
    """Abort a live migration. The request is committed before the answer, and the owner acts on it."""
    instance = common.get_instance(request, server_id)
    request.authorize(SERVER_MIGRATIONS_DELETE, common.target(instance))
    common.check_unlocked(request, instance)
    # Nova checks task_state first. Its answer for a migration of another server then depends on the state of this one.
    migration = _find(request, instance, migration_id)
    _check_state(request, instance, 'task_state', 'migrating', 'abort live migration', migration_id)
    statuses = ABORTABLE[max(first for first in ABORTABLE if request.since(first))]
    # A repeated request gets the same answer as the first, also if it is too late to abort by now.
    if migration.abort_requested_at is None or migration.status not in _TOO_LATE:
        _check_status(migration, statuses, 'abort')
        if migration.status != _S.RUNNING:
            _check_host_aborts_queued(request, instance, migration)
    if request.services.database.requests.request_abort(request.context, migration, statuses):
        wake_owner(request, migration)
    return accepted()


def act(request: Request, server_id: str, migration_id: str) -> webob.Response:
    """Force the completion of a running live migration, whatever it has still to copy."""
    schemas.body(request, server_migrations.FORCE_COMPLETE)
    instance = common.get_instance(request, server_id)
    request.authorize(SERVER_MIGRATIONS_FORCE_COMPLETE, common.target(instance))
    common.check_unlocked(request, instance)
    for attr, wanted in (('vm_state', 'active'), ('task_state', 'migrating')):
        _check_state(request, instance, attr, wanted, 'force_complete', migration_id)
    try:
        migration = _find(request, instance, migration_id)
    except exception.NotFound as error:
        # As in nova, an action is not answered with 404.
        raise exception.Invalid(error.message) from None
    _check_status(migration, COMPLETABLE, 'force_complete')
    if request.services.database.requests.request_force_complete(request.context, migration, COMPLETABLE):
        wake_owner(request, migration)
    return accepted()


_LIVE = MigrationType.LIVE_MIGRATION.value


def _find(request: Request, instance: Instance, migration_id: str) -> Migration:
    number = common.integer_id(migration_id)
    try:
        if number is not None:
            found = request.services.database.migrations.get_by_id(number, instance.uuid)
            if found.migration_type == _LIVE and not found.hidden:
                return found
    except exception.MigrationNotFound:
        pass  # the error below is the same for every reason
    raise exception.MigrationNotFoundForInstance(migration_id=migration_id, instance_uuid=instance.uuid)


def _check_state(request: Request, instance: Instance, attr: str, wanted: str, method: str, migration_id: str) -> None:
    state = getattr(instance, attr)
    if state != wanted:
        number = common.integer_id(migration_id)
        raise request.services.database.instances.invalid_state(
            instance.uuid, attr=attr, state=state, method=method, wanted=[wanted], migration_id=number
        )


#: Status -> why a migration can neither be aborted nor forced to complete any more.
_TOO_LATE = {
    _S.RUNNING_POST_COPY.value: 'the guest runs at the destination already while its memory follows',
    _S.POST_MIGRATING.value: 'the guest runs at the destination already',
}


def _check_status(migration: Migration, statuses: list[str], method: str) -> None:
    if migration.status in statuses:
        return
    why = _TOO_LATE.get(migration.status)
    raise exception.InvalidMigrationState(
        migration_id=migration.id,
        instance_uuid=migration.instance_uuid,
        state=f'{migration.status} ({why})' if why else migration.status,
        method=method,
        wanted=' or '.join(statuses),
    )


def _check_host_aborts_queued(request: Request, instance: Instance, migration: Migration) -> None:
    service = request.services.database.services.get_compute(instance.host)
    needed = ABORTS_QUEUED
    if service.version < needed:
        raise exception.Invalid(
            f'Live migration {migration.id} is {migration.status}, and the compute service of its host is too old to '
            f'abort it there (it has service version {service.version}, {needed} is needed): wait until it is running, '
            'or upgrade that host.'
        )


def wake_owner(request: Request, migration: Migration) -> None:
    """Wake the conductor that owns a migration, for a request that is committed."""
    services = request.services
    request.concerns(migration)
    try:
        owner = services.database.conductors.owner_of(migration.uuid)
        services.conductor.wake(request.context, migration.uuid, owner)
    except exception.MigratorException as error:
        # The request is committed, so the owner's sweep finds it.
        LOG.warning(
            'Could not wake the owner of migration %(migration)s for request %(request)s: %(error)s',
            {'migration': migration.uuid, 'request': request.request_id, 'error': error},
        )


def _view(request: Request, migration: Migration, shows_hosts: bool) -> dict[str, Any]:
    view: dict[str, Any] = {
        'id': migration.id,
        'server_uuid': migration.instance_uuid,
        'status': migration.status,
        'created_at': times.iso(migration.created_at),
        # Nova's schema does not allow null here.
        'updated_at': times.iso(migration.updated_at or migration.created_at),
        'memory_total_bytes': migration.memory_total,
        'memory_processed_bytes': migration.memory_processed,
        'memory_remaining_bytes': migration.memory_remaining,
        'disk_total_bytes': migration.disk_total,
        'disk_processed_bytes': migration.disk_processed,
        'disk_remaining_bytes': migration.disk_remaining,
        **migrations.hosts(migration, shows_hosts),
    }
    if request.since(59):
        view['uuid'] = migration.uuid
    if request.since(80):
        view |= {'user_id': migration.user_id, 'project_id': migration.project_id}
    return view
