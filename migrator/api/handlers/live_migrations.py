# SPDX-License-Identifier: Apache-2.0

"""os-migrateLive: accept a live migration, and below version 2.34 wait for its pre-checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import webob
from oslo_log import log as logging

from migrator import exception
from migrator.api import common, schemas, tenants
from migrator.api.policies.nova import ACTIONS_DETAILS, MIGRATE_LIVE, MIGRATE_LIVE_HOST, SERVER_MIGRATIONS_INDEX_HOST
from migrator.api.request import Request, accepted
from migrator.api.schemas import server_actions
from migrator.db import actions
from migrator.objects import (
    COMPUTE_BINARY,
    MIGRATABLE_VM_STATES,
    Instance,
    Migration,
    MigrationStatus,
    Strategy,
)

LOG = logging.getLogger(__name__)

_S = MigrationStatus

#: The minor version from which the answer does not wait for the pre-checks.
ASYNCHRONOUS = 34
#: The first minor version in which a named host is verified unless ``force`` is true, so that it must be enabled.
VERIFIED = 30
#: The first and the longest pause between two reads of the migration's row, in seconds. The pauses double.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5


def migrate_live(request: Request, server_id: str) -> webob.Response:
    """Live-migrate a server. The row is committed before the answer, and a conductor runs the migration."""
    wanted = schemas.body(request, server_actions.MIGRATE_LIVE)['os-migrateLive']
    instance = common.get_instance(request, server_id)
    request.authorize(MIGRATE_LIVE, common.target(instance))
    host = wanted['host']
    if host is not None:
        request.authorize(MIGRATE_LIVE_HOST, common.target(instance))
    common.check_unlocked(request, instance)
    check_state(request, instance, 'os-migrateLive', MIGRATABLE_VM_STATES)
    force = schemas.boolean(wanted.get('force', False))
    _check_destination(request, instance, host, force)
    queued, lowest = request.services.database.migrations.count_queued(instance.host)
    _check_queue(request, instance, queued)
    block_migration = wanted['block_migration']
    migration = new_migration(
        request,
        instance,
        host,
        lowest,
        force=force,
        allows_disabled=host is not None and (force or not request.since(VERIFIED)),
        block_migration=None if block_migration == 'auto' else schemas.boolean(block_migration),
        disk_over_commit=schemas.boolean(wanted.get('disk_over_commit', False)),
    )
    accept(request, migration, actions.LIVE_MIGRATION)
    if request.since(ASYNCHRONOUS):
        wake(request, migration)
    else:
        _wait_for_checks(request, migration)
    return accepted()


def check_state(request: Request, instance: Instance, method: str, vm_states: Sequence[str]) -> None:
    """Raise unless a server is in a state in which a migration of it can begin.

    :param method: the action, for the message.
    :raises migrator.exception.InstanceInvalidState: its vm_state or task_state forbids it.
    """
    # The transaction in accept() makes the decision. This check makes the usual refusal cheap, and reports it in nova's
    # order.
    for attr, right in (('vm_state', vm_states), ('task_state', (None,))):
        state = getattr(instance, attr)
        if state not in right:
            wanted = right if attr == 'vm_state' else ()
            raise request.services.database.instances.invalid_state(
                instance.uuid, attr=attr, state=state, method=method, wanted=wanted
            )


def _check_destination(request: Request, instance: Instance, host: str | None, force: bool) -> None:
    if host is None:
        if force:
            raise exception.ForcedWithoutHost()
        return
    if not request.services.database.services.list(COMPUTE_BINARY, host):
        raise exception.Invalid(exception.ComputeHostNotFound(host=host).message)
    if host == instance.host and not request.since(ASYNCHRONOUS):
        raise exception.UnableToMigrateToSelf(instance_uuid=instance.uuid, host=host)


def _check_queue(request: Request, instance: Instance, queued: int) -> None:
    limit = request.services.conf.api.max_queued_live_migrations
    if queued >= limit:
        may_see = request.can(SERVER_MIGRATIONS_INDEX_HOST, common.target(instance))
        which = f'Host {instance.host}' if may_see else 'The host of the server'
        raise exception.TooManyQueued(which=which, queued=queued, limit=limit)


def new_migration(request: Request, instance: Instance, host: str | None, lowest: int, **more: Any) -> Migration:
    """Return the migration that a request asks for.

    :param host: the requested destination.
    :param lowest: the lowest version of the compute services, which chooses the strategy.
    """
    return Migration(
        uuid=request.services.threads.new_uuid(),
        instance_uuid=instance.uuid,
        project_id=instance.project_id,
        user_id=request.context.user_id or instance.user_id,
        source_compute=instance.host,
        source_node=instance.node,
        dest_compute=host,
        request_id=request.request_id,
        requested_host=host,
        strategy=Strategy.of_version(lowest).value,
        **more,
    )


def accept(request: Request, migration: Migration, action: str, **states: Any) -> None:
    """Commit a migration, before the answer.

    :param states: the task_state and the vm_states, unless they are those of a live migration; remarks.
    :raises migrator.exception.Conflict: the state of the server forbids it by now.
    """
    try:
        request.services.database.migrations.accept(request.context, migration, action, **states)
    except exception.InstanceInvalidState as error:
        if error.kwargs.get('attr') != 'host':
            raise
        # Another migration began and ended since the instance was read. The message of the error names the host.
        facts = error.kwargs['facts']
        raise exception.Conflict(
            f'Instance {migration.instance_uuid} has moved meanwhile: {facts} Try again.'
        ) from None


def wake(request: Request, migration: Migration) -> bool:
    """Have a conductor begin a migration that is committed, and return whether one has received the call."""
    request.concerns(migration)
    try:
        request.services.conductor.live_migrate(request.context, migration.uuid)
    except exception.MigratorException as error:
        # The row is committed, so the sweep of any conductor finds it.
        LOG.warning(
            'Could not wake a conductor for migration %(migration)s of request %(request)s: %(error)s',
            {'migration': migration.uuid, 'request': request.request_id, 'error': error},
        )
        return False
    return True


def _wait_for_checks(request: Request, migration: Migration) -> None:
    """Read the row until the checks are done, so that waiting holds a thread here and not in a conductor."""
    threads = request.services.threads
    timeout: float = request.services.conf.api.sync_timeout
    until, pause = threads.clock.monotonic() + timeout, FIRST_PAUSE
    if not wake(request, migration):
        return  # The checks begin only at a conductor's next sweep.
    while not _is_decided(request, migration) and threads.clock.monotonic() < until:
        threads.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _is_decided(request: Request, migration: Migration) -> bool:
    try:
        row = request.services.database.migrations.get(migration.uuid)
    except exception.DatabaseUnreachable as error:
        # The migration is accepted already, and an error now would deny that.
        LOG.warning(
            'Cannot read migration %(migration)s of request %(request)s: %(error)s',
            {'migration': migration.uuid, 'request': request.request_id, 'error': error},
        )
        return False
    if row.checked_at is None and row.status in (_S.FAILED, _S.ERROR):
        may_see = request.can(ACTIONS_DETAILS, {'project_id': row.project_id, 'user_id': row.user_id})
        reason = row.failure or f'The live migration ended {row.status}.'
        raise exception.MigrationPreCheckError(reason if may_see else tenants.failure(row))
    # A wait for a slot may last long, and the checks begin only afterwards.
    return row.checked_at is not None or row.ended or row.waits_for_slot
