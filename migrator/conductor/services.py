# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""A service that is gone for good is forgotten: its row, and of a compute host its hypervisor and its providers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrator import exception
from migrator.db import api as db_api
from migrator.objects import service as service_objects
from migrator.placement_client import client as placement
from migrator.placement_client import providers


def delete(
    database: db_api.Database,
    client: placement.PlacementClient,
    service: service_objects.Service,
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
    if service.binary == service_objects.COMPUTE_BINARY:
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


def _why_not(database: db_api.Database, service: service_objects.Service) -> str | None:
    host = service.host
    moving = database.migrations.list({'host': host}, in_progress=True)
    if moving:
        return f'migration {moving[0].uuid} is in progress, {len(moving)} in all: let it end, or abort it'
    guests = database.instances.list({'host': host})
    if guests:
        return f'instance {guests[0].uuid} is on it, {len(guests)} in all: move or delete it'
    owed = database.debts.list(host=host)
    if owed and not service.forced_down:
        return (
            f'it owes {owed[0].step} for migration {owed[0].migration_uuid}: start it, so that it tidies up; or declare'
            ' it down, if it never comes back'
        )
    return None
