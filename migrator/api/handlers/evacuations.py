# SPDX-License-Identifier: Apache-2.0

"""evacuate: accept the evacuation of a server whose host is down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers import live_migrations, services
from migrator.api.policies.nova import EVACUATE
from migrator.api.request import Request, accepted, answer
from migrator.api.schemas import server_actions
from migrator.db import actions
from migrator.objects import COMPUTE_BINARY, EVACUABLE_VM_STATES, OWN_TASKS, Instance, MigrationType

#: The first minor version whose answer has no password.
WITHOUT_PASSWORD = 14
#: The first minor version in which a named host is verified unless ``force`` is true, so that it must be enabled.
VERIFIED = 29
#: The first minor version that leaves the server shut off at its destination.
STOPS = 95
#: The length of nova's passwords.
PASSWORD_LENGTH = 12


def evacuate(request: Request, server_id: str) -> webob.Response:
    """Evacuate a server. The row is committed before the answer, and a conductor runs the migration.

    As in nova a lock does not forbid it, and the checks come in nova's order.
    """
    wanted = schemas.body(request, server_actions.EVACUATE)['evacuate']
    instance = common.get_instance(request, server_id)
    request.authorize(EVACUATE, common.target(instance))
    host = wanted.get('host')
    force = schemas.boolean(wanted.get('force', False))
    if force and host is None:
        raise exception.ForcedWithoutHost()
    password = _password(request, wanted)
    if host is not None:
        if not request.services.database.services.list(COMPUTE_BINARY, host):
            raise exception.ComputeHostNotFound(host=host)
        if host == instance.host:
            raise exception.Invalid(
                f"The target host can't be the same one: instance {instance.uuid} is at {host}. Name another host, or "
                'none.'
            )
    seen = instance if _has_task_of_ours(request, instance) else instance.replace(task_state=None)
    live_migrations.check_state(request, seen, 'evacuate', EVACUABLE_VM_STATES)
    _check_source_is_down(request, instance)
    lowest = request.services.database.services.lowest_version()
    more = {'force': force, 'allows_disabled': host is not None and (force or not request.since(VERIFIED))}
    migration = live_migrations.new_migration(
        request, instance, host, lowest, migration_type=MigrationType.EVACUATION.value, **more
    )
    remarks = {'stops_guest': True} if request.since(STOPS) else {}
    live_migrations.accept(
        request, migration, actions.EVACUATE, task_state='rebuilding', vm_states=EVACUABLE_VM_STATES, **remarks
    )
    live_migrations.wake(request, migration)
    return accepted(200) if request.since(WITHOUT_PASSWORD) else answer({'adminPass': password})


def _password(request: Request, wanted: Mapping[str, Any]) -> str | None:
    """Return the password that nova would answer with. It has no effect."""
    given: str | None = wanted.get('adminPass')
    if schemas.boolean(wanted.get('onSharedStorage', False)):
        if given is not None:
            raise exception.Invalid(
                "admin password can't be changed on existing disk: leave adminPass out if onSharedStorage is true."
            )
        return None
    # No guest gets the password, so a part of a random uuid is good enough.
    return given if given is not None else request.services.threads.new_uuid().replace('-', '')[:PASSWORD_LENGTH]


def _has_task_of_ours(request: Request, instance: Instance) -> bool:
    """Return whether migrator itself is busy with a server.

    The task of another service, such as ``powering-off``, may have died with the host. Nova ignores every task.
    """
    if instance.task_state is None or instance.task_state in OWN_TASKS:
        return instance.task_state is not None
    return bool(request.services.database.migrations.list({'instance_uuid': instance.uuid}, in_progress=True))


def _check_source_is_down(request: Request, instance: Instance) -> None:
    database = request.services.database
    now = database.services.now()
    patience = request.services.conf.service_down_time
    for one in database.services.list(COMPUTE_BINARY, instance.host):
        # A service that was stopped a moment ago has said so, and its guests run.
        has_just_stopped = not one.forced_down and one.last_seen_up is None and not one.is_unreachable(now, patience)
        if services.is_up(request, one, now) or has_just_stopped:
            raise exception.ComputeServiceInUse(host=instance.host)
