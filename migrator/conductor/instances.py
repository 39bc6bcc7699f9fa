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

"""Registering instances: the row and the allocation, or neither."""

from __future__ import annotations

from oslo_log import log as logging

from migrator import exception
from migrator.db import api as db_api
from migrator.objects import instance as instance_objects
from migrator.placement_client import allocations, pairs
from migrator.placement_client import client as placement

LOG = logging.getLogger(__name__)


def create(
    database: db_api.Database, client: placement.PlacementClient, instance: instance_objects.Instance
) -> instance_objects.Instance:
    """Register a guest that runs on its host, with its allocation there.

    :returns: the instance as stored.
    :raises migrator.exception.ComputeHostNotFound: no compute service of its host has reported.
    :raises migrator.exception.InstanceExists: the uuid is taken.
    :raises migrator.exception.PlacementRefused: the host has no room for it.
    :raises migrator.exception.PlacementUnreachable: Placement is away; nothing was registered.
    """
    places = database.services.places(instance.uuid, host=instance.host)
    if not places:
        raise exception.ComputeHostNotFound(host=instance.host)
    # The row first: an allocation without a row would have no living reason.
    stored = database.instances.create(instance)
    try:
        claim = {places[0].uuid: instance.flavor.resources()}
        allocations.claim(client, consumer_of(instance), claim, generation=None)
    except exception.MigratorException:
        database.instances.delete(instance.uuid)
        raise
    return stored


def delete(database: db_api.Database, client: placement.PlacementClient, uuid: str) -> None:
    """Forget a guest, and what it holds.

    :raises migrator.exception.InstanceNotFound: there is none.
    :raises migrator.exception.MigrationInProgress: it is being migrated.
    :raises migrator.exception.PlacementUnreachable: the row is gone, its allocation is not: an audit will tell.
    """
    instance = database.instances.get(uuid)
    database.instances.delete(uuid)
    held = allocations.read(client, uuid)
    if held.generation is not None:
        allocations.remove(client, consumer_of(instance), generation=held.generation)


def consumer_of(instance: instance_objects.Instance) -> pairs.Consumer:
    """Return the instance as Placement's consumer."""
    return pairs.Consumer(
        uuid=instance.uuid,
        consumer_type=pairs.INSTANCE,
        project_id=instance.project_id,
        user_id=instance.user_id,
    )
