# SPDX-License-Identifier: Apache-2.0

"""A service that is gone for good is forgotten: its row, and of a compute host its hypervisor and its providers."""

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
    """Forget a service that is down; the same call again finishes what one that was cut off has left.

    What a compute host owes is forgotten with it where it has been declared down.

    :param lease: seconds of silence after which a conductor counts as down.
    :param sleep: waits so many seconds.
    :raises migrator.exception.ServiceInUse: it is up, or instances, migrations or debts still need it; nothing was
        changed.
    :raises migrator.exception.ProviderInUse: something is allocated on it in Placement; nothing was changed.
    :raises migrator.exception.PlacementUnreachable: Placement is away; nothing was changed, or the same call again
        finishes it.
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
        # It reports its tree when it starts, and not again.
        for node in nodes:
            tree: Any = node.providers
            providers.ensure_tree(client, tree, sleep=sleep)
        raise exception.ServiceInUse(host=host, reason='an instance or a migration has come to it, or it is back')


def _why_not(database: Database, service: Service) -> str | None:
    host = service.host
    moving = database.migrations.list({'host': host}, in_progress=True)
    if moving:
        return f'migration {moving[0].uuid} is in progress, {len(moving)} in all: let it end, or abort it'
    guests = database.instances.list({'host': host})
    if guests:
        return f'instance {guests[0].uuid} is on it, {len(guests)} in all: move or delete it'
    owed = database.cleanups.list(host=host)
    if owed and not service.forced_down:
        return (
            f'it owes {owed[0].step} for migration {owed[0].migration_uuid}: start it, so that it tidies up; or declare'
            ' it down, if it never comes back'
        )
    return None
