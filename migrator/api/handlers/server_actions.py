# SPDX-License-Identifier: Apache-2.0

"""POST /servers/{id}/action: the actions on a server."""

from __future__ import annotations

from collections.abc import Callable

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers import cold_migrations, evacuations, live_migrations, not_served
from migrator.api.policies.nova import LOCK, RESET_STATE, UNLOCK, UNLOCK_OVERRIDE
from migrator.api.request import Request, accepted
from migrator.api.schemas import server_actions


def act(request: Request, server_id: str) -> webob.Response:
    """Run the action that the one key of the body names."""
    document = request.json_document()
    if not isinstance(document, dict) or len(document) != 1:
        raise exception.Invalid(
            'Malformed request body: it has to be an object with one key, the action, such as '
            '{"os-migrateLive": {...}}.'
        )
    name = next(iter(document))
    if name in ACTIONS:
        return ACTIONS[name](request, server_id)
    if name not in not_served.ACTIONS:
        raise exception.Invalid(f'There is no such action: {name[:64]}')
    common.get_instance(request, server_id)
    return not_served.refuse_what(f'the server action {name!r}')


def lock(request: Request, server_id: str) -> webob.Response:
    """Lock a server against actions of users other than administrators."""
    given = schemas.body(request, server_actions.LOCK)['lock']
    instance = common.get_instance(request, server_id)
    request.authorize(LOCK, common.target(instance))
    is_owner = instance.project_id == request.context.project_id
    # An owner must not replace an administrator's lock, because the owner could then remove it.
    if not (instance.locked and is_owner):
        reason = given.get('locked_reason') if given and request.since(73) else None
        by = 'owner' if is_owner else 'admin'
        request.services.database.instances.set_lock(request.context, instance.uuid, by, reason)
    return accepted()


def unlock(request: Request, server_id: str) -> webob.Response:
    """Unlock a server. A policy decides about a lock of another user."""
    schemas.body(request, server_actions.UNLOCK)
    instance = common.get_instance(request, server_id)
    request.authorize(UNLOCK, common.target(instance))
    is_owner = instance.project_id == request.context.project_id
    if instance.locked and instance.locked_by != ('owner' if is_owner else 'admin'):
        request.authorize(UNLOCK_OVERRIDE, common.target(instance))
    request.services.database.instances.set_lock(request.context, instance.uuid, None)
    return accepted()


def reset_state(request: Request, server_id: str) -> webob.Response:
    """Set the vm_state of a server without a migration in progress, and clear its task_state."""
    wanted = schemas.body(request, server_actions.RESET_STATE)['os-resetState']
    instance = common.get_instance(request, server_id)
    request.authorize(RESET_STATE, common.target(instance))
    request.services.database.instances.reset_state(request.context, instance.uuid, wanted['state'])
    return accepted()


ACTIONS: dict[str, Callable[[Request, str], webob.Response]] = {
    'os-migrateLive': live_migrations.migrate_live,
    'evacuate': evacuations.evacuate,
    'migrate': cold_migrations.migrate,
    'resize': cold_migrations.resize,
    'confirmResize': cold_migrations.confirm,
    'revertResize': cold_migrations.revert,
    'os-resetState': reset_state,
    'lock': lock,
    'unlock': unlock,
}
