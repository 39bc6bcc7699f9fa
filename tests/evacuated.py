# SPDX-License-Identifier: Apache-2.0

"""Evacuations in the status that a test needs, which the database API writes, with their allocations."""

from __future__ import annotations

from typing import Any

from migrator import context
from migrator.db import actions
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from migrator.objects import EVACUABLE_VM_STATES, Instance, Migration
from migrator.placement_client import allocation_state, allocations
from migrator.saga import log

CLEANUP = 'post_evacuation_at_source'
OWNER = 'a conductor that was here'


def root(cloud: Any, host: str) -> str:
    """Return the uuid of a host's root provider."""
    return next(node.uuid for node in cloud.database.services.list_nodes() if node.host == host)


def accept(cloud: Any, instance: Instance, to: str | None, **fields: Any) -> Migration:
    """Accept the evacuation of a guest from its host."""
    evacuation = Migration(
        uuid=cloud.new_uuid(), instance_uuid=instance.uuid, project_id='demo', user_id='demo',
        migration_type='evacuation', source_compute=instance.host, source_node=instance.host, requested_host=to,
        dest_compute=to, **fields,
    )  # fmt: skip
    cloud.database.migrations.accept(
        context.RequestContext(user_id='demo', project_id='demo', is_admin=True), evacuation, actions.EVACUATE,
        task_state='rebuilding', vm_states=EVACUABLE_VM_STATES,
    )  # fmt: skip
    return cloud.database.migrations.get(evacuation.uuid)


def commit(cloud: Any, evacuation: Migration, **write: Any) -> Migration:
    """Write as the owner of an evacuation."""
    return cloud.database.migrations.commit(evacuation, Write(**write))[0]


def step(name: str, state: str = 'done', **fields: Any) -> log.StepRecord:
    """Return a record of the log."""
    return log.StepRecord(step=name, direction=log.DO, state=state, attempt=1, **fields)


def move(cloud: Any, instance: Instance, evacuation: Migration, to: str) -> log.StepRecord:
    """Move the allocations of an evacuation and its instance; return the step."""
    client, flavor = cloud.placement_client, instance.flavor.resources()
    source, destination = ({root(cloud, host): flavor} for host in (evacuation.source_compute, to))
    known = allocations.read(client, instance.uuid).generation
    owner = {'project_id': instance.project_id, 'user_id': instance.user_id}
    kinds = (allocation_state.INSTANCE, allocation_state.MIGRATION)
    guest, mine = (
        allocation_state.Consumer(uuid=one.uuid, consumer_type=kind, **owner)
        for one, kind in zip((instance, evacuation), kinds, strict=True)
    )
    allocations.write_all(
        client,
        [
            allocations.Write(consumer=guest, allocations=destination, generation=known),
            allocations.Write(consumer=mine, allocations=source, generation=None),
        ],
    )
    intent = {'host': to, 'node': to, 'source': source, 'destination': destination, 'instance_generation': known or 0}
    return step('move_allocation', input=intent)


def done(cloud: Any, instance: Instance, to: str) -> Migration:
    """Evacuate a guest to a host, where its source has not cleaned up yet."""
    accepted = accept(cloud, instance, to)
    (owned,) = cloud.database.takeovers.adopt([accepted.uuid], OWNER).owned
    moved = move(cloud, instance, accepted, to)
    fields = {'status': 'preparing', 'dest_compute': to, 'dest_node': to}
    preparing = commit(cloud, owned.migration, fields=fields, records=[moved])
    cleanup = Cleanup(
        host=instance.host, migration_uuid=accepted.uuid, instance_uuid=instance.uuid, step=CLEANUP,
        reason=f'{instance.host} is down', epoch=preparing.epoch, tenure=preparing.tenure,
    )  # fmt: skip
    forward = commit(
        cloud, preparing, fields={'outcome': 'forward'}, instance={'host': to, 'node': to}, cleanups=[cleanup],
        records=[step('check_can_evacuate'), step('evacuate'), step('update_instance_host')],
    )  # fmt: skip
    return commit(cloud, forward, fields={'status': 'done'}, records=[step('end_at_destination')])


def cleaned_up(cloud: Any, evacuation: Migration) -> None:
    """Have the source of an evacuation done with its cleanup, before any sweep completes the evacuation."""
    for cleanup in cloud.database.cleanups.list(migration_uuid=evacuation.uuid):
        cloud.database.cleanups.forget(cleanup)


def complete(cloud: Any, evacuation: Migration) -> None:
    """End an evacuation whose source has cleaned up, but leave its allocation."""
    cleaned_up(cloud, evacuation)
    commit(cloud, cloud.database.migrations.get(evacuation.uuid), fields={'status': 'completed'})


def replace(cloud: Any, evacuation: Migration, held: dict[str, dict[str, int]]) -> None:
    """Have an evacuation hold this, whatever it held: host -> resource class -> amount."""
    client = cloud.placement_client
    known = allocations.read(client, evacuation.uuid)
    owner = allocation_state.Consumer(
        uuid=evacuation.uuid, consumer_type=allocation_state.MIGRATION, project_id='demo', user_id='demo'
    )
    by_root = {root(cloud, host): amounts for host, amounts in held.items()}
    write = allocations.Write(consumer=owner, allocations=by_root, generation=known.generation)
    allocations.write_all(client, [write])
