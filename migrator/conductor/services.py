# SPDX-License-Identifier: Apache-2.0

"""The deletion of a service that is gone for good: its row, its hypervisor and its resource providers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrator import exception
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, Service
from migrator.placement_client import providers
from migrator.placement_client.client import PlacementClient


def delete(
    database: Database,
    client: PlacementClient,
    service: Service,
    lease: float,
    sleep: Callable[[float], None],
) -> None:
    """Delete a service that is down; a repeated call finishes one that was cut off.

    The deferred cleanups of a compute host that is forced down are deleted with it.

    :param lease: seconds without a report after which a conductor counts as down.
    :param sleep: waits for a number of seconds.
    :raises migrator.exception.ServiceInUse: it is up, or instances, migrations or deferred cleanups need it. Nothing
        was changed.
    :raises migrator.exception.ProviderInUse: Placement has allocations on it. Nothing was changed.
    :raises migrator.exception.PlacementUnreachable: Placement is unreachable. Nothing was changed, or a repeated call
        finishes the deletion.
    """
    host = service.host
    if service.is_up(database.services.now(), lease):
        raise exception.ServiceInUse(host=host, reason='it is up: stop it first')
    nodes = []
    if service.binary == COMPUTE_BINARY:
        why = _why_not(database, service)
        if why is not None:
            raise exception.ServiceInUse(host=host, reason=why)
        nodes = [node for node in database.services.list_nodes() if node.host == host]
    for node in nodes:
        providers.delete_tree(client, node.uuid)
    if not database.services.delete(service):
        # The host reports its providers at its start only, so they are written again here.
        for node in nodes:
            tree: Any = node.providers
            providers.ensure_tree(client, tree, sleep=sleep)
        raise exception.ServiceInUse(host=host, reason='an instance or a migration needs it now, or it is up again')


def _why_not(database: Database, service: Service) -> str | None:
    host = service.host
    moving = database.migrations.list({'host': host}, in_progress=True)
    if moving:
        return f'migration {moving[0].uuid} is in progress, {len(moving)} in all: let it end, or abort it'
    guests = database.instances.list({'host': host})
    if guests:
        return f'instance {guests[0].uuid} is on it, {len(guests)} in all: move or delete it'
    deferred = database.cleanups.list(host=host)
    if deferred and not service.forced_down:
        return (
            f'its cleanup {deferred[0].step} for migration {deferred[0].migration_uuid} is not done: start the service'
            ' to run the cleanup, or force it down if it never comes back'
        )
    return None
