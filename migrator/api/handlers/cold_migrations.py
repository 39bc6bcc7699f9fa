# SPDX-License-Identifier: Apache-2.0

"""migrate, resize, confirmResize, revertResize: accept a cold migration, and its user's decision."""

from __future__ import annotations

from typing import Any

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers import live_migrations, server_migrations, services
from migrator.api.handlers.derived import flavors
from migrator.api.policies.nova import CONFIRM_RESIZE, MIGRATE, MIGRATE_HOST, RESIZE, REVERT_RESIZE
from migrator.api.request import Request, accepted
from migrator.api.schemas import server_actions
from migrator.db import actions
from migrator.objects import (
    COLD_MIGRATABLE_VM_STATES,
    COMPUTE_BINARY,
    RESIZED,
    Flavor,
    Instance,
    Migration,
    MigrationStatus,
    MigrationType,
)

#: The first minor version in which a request may name a host.
NAMES_HOST = 56


def migrate(request: Request, server_id: str) -> webob.Response:
    """Cold-migrate a server. The row is committed before the answer, and a conductor runs the migration.

    The checks come in nova's order.
    """
    wanted = schemas.body(request, server_actions.MIGRATE)['migrate']
    instance = common.get_instance(request, server_id)
    host = (wanted or {}).get('host') if request.since(NAMES_HOST) else None
    request.authorize(MIGRATE if host is None else MIGRATE_HOST, common.target(instance))
    common.check_unlocked(request, instance)
    live_migrations.check_state(request, instance, 'migrate', COLD_MIGRATABLE_VM_STATES)
    _check_is_up(request, instance.host, 'migrate', instance)
    if host is not None:
        if host == instance.host:
            raise exception.UnableToMigrateToSelf(instance_uuid=instance.uuid, host=host)
        if not request.services.database.services.list(COMPUTE_BINARY, host):
            raise exception.Invalid(exception.ComputeHostNotFound(host=host).message)
    return _accept(request, instance, actions.MIGRATE, host, migration_type=MigrationType.MIGRATION.value)


def resize(request: Request, server_id: str) -> webob.Response:
    """Cold-migrate a server to another host and to another flavor. The checks come in nova's order.

    ``OS-DCF:diskConfig`` has no effect: no driver changes a file system inside a guest.
    """
    wanted = schemas.body(request, server_actions.RESIZE)['resize']
    instance = common.get_instance(request, server_id)
    request.authorize(RESIZE, common.target(instance))
    common.check_unlocked(request, instance)
    live_migrations.check_state(request, instance, 'resize', COLD_MIGRATABLE_VM_STATES)
    _check_is_up(request, instance.host, 'resize', instance)
    flavor = _new_flavor(request, instance, str(wanted['flavorRef']))
    more = {'new_flavor': flavor, 'migration_type': MigrationType.RESIZE.value}
    return _accept(request, instance, actions.RESIZE, None, **more)


def _new_flavor(request: Request, instance: Instance, flavor_id: str) -> Flavor:
    """Return the flavor to resize a server to.

    :raises migrator.exception.Invalid: it is unknown, is the server's own, or has no root disk.
    """
    try:
        flavor = flavors.find(request, flavor_id)
    except exception.NotFound as error:
        raise exception.Invalid(error.message) from error
    if flavor.root_gb == 0 and instance.flavor.root_gb != 0:
        reason = 'Resize to zero disk flavor is not allowed.'
        raise exception.Invalid(f'Server disk was unable to be resized because: {reason}')
    if flavor == instance.flavor:
        raise exception.Invalid('When resizing, instances must change flavor!')
    return flavor


def _accept(request: Request, instance: Instance, action: str, host: str | None, **more: Any) -> webob.Response:
    lowest = request.services.database.services.lowest_version()
    migration = live_migrations.new_migration(request, instance, host, lowest, **more)
    states = {'task_state': 'resize_prep', 'vm_states': COLD_MIGRATABLE_VM_STATES}
    live_migrations.accept(request, migration, action, **states)
    live_migrations.wake(request, migration)
    return accepted()


def confirm(request: Request, server_id: str) -> webob.Response:
    """Let a server stay where its cold migration has moved it."""
    schemas.body(request, server_actions.CONFIRM_RESIZE)
    _decide(request, server_id, actions.CONFIRM_RESIZE, CONFIRM_RESIZE)
    return webob.Response(status=204)


def revert(request: Request, server_id: str) -> webob.Response:
    """Move a server back to where it was before its cold migration."""
    schemas.body(request, server_actions.REVERT_RESIZE)
    _decide(request, server_id, actions.REVERT_RESIZE, REVERT_RESIZE)
    return accepted()


def _decide(request: Request, server_id: str, action: str, rule: str) -> None:
    instance = common.get_instance(request, server_id)
    request.authorize(rule, common.target(instance))
    common.check_unlocked(request, instance)
    live_migrations.check_state(request, instance, action, (RESIZED,))
    migration = _finished(request, instance)
    # Nova checks this for a confirmation only. A revert needs the source even more.
    _check_is_up(request, migration.source_compute, action, instance)
    # Its copy at the source is given up only once its host reports it. A revert is refused from then on.
    if action == actions.CONFIRM_RESIZE:
        _check_is_up(request, instance.host, action, instance)
    try:
        request.services.database.requests.request_decision(request.context, migration, action)
    except exception.InvalidMigrationState as error:
        raise _not_resized(instance) from error
    server_migrations.wake_owner(request, migration)


def _finished(request: Request, instance: Instance) -> Migration:
    wanted = {'instance_uuid': instance.uuid, 'status': MigrationStatus.FINISHED.value}
    found = request.services.database.migrations.list(wanted, in_progress=True)
    if not found or found[0].confirm_requested_at is not None or found[0].revert_requested_at is not None:
        raise _not_resized(instance)
    return found[0]


def _not_resized(instance: Instance) -> exception.Invalid:
    return exception.Invalid(
        f'Instance {instance.uuid} has no cold migration that waits to be confirmed or reverted: look at its actions.'
    )


def _check_is_up(request: Request, host: str, action: str, instance: Instance) -> None:
    """Raise unless the compute service of a host is up.

    The message does not name the host, since the caller may not be allowed to know it.

    :raises migrator.exception.Conflict: it is down.
    """
    database = request.services.database
    now = database.services.now()
    if not any(services.is_up(request, one, now) for one in database.services.list(COMPUTE_BINARY, host)):
        which = 'of the server' if host == instance.host else 'from which the server was migrated'
        other = ', or revert the migration' if action == actions.CONFIRM_RESIZE and host == instance.host else ''
        raise exception.Conflict(
            f'The compute service of the host {which} is down: start it, then {action} again{other}.'
        )
