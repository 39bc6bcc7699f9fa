# SPDX-License-Identifier: Apache-2.0

"""The registration of instances: the row and the allocation, or neither.

An allocation never outlives its row, even if the process is lost in between. A repeated call repairs what the first one
has left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor import trees
from migrator.db.api import Database
from migrator.objects import Flavor, Instance, protocol
from migrator.placement_client import allocation_state, allocations, candidates, providers
from migrator.placement_client.client import PlacementClient

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Seconds until a call is repeated that failed because Placement or the database was unreachable.
_AGAIN = 2.0
#: Reads of an allocation that another client changes meanwhile, and attempts of a call to an unreachable service.
_TRIES = 5


def create(database: Database, client: PlacementClient, instance: Instance) -> Instance:
    """Register a guest that runs on its host, with its allocation there.

    An equal allocation that exists already, such as one made by another service, is taken over.

    :returns: the instance as stored.
    :raises migrator.exception.ComputeHostNotFound: no compute service of its host has reported.
    :raises migrator.exception.InstanceExists: the uuid is taken.
    :raises migrator.exception.CleanupInProgress: its host is removing what an earlier migration has left there.
    :raises migrator.exception.AllocationExists: Placement has a different allocation for it.
    :raises migrator.exception.PlacementRefused: the host has no room for it.
    :raises migrator.exception.PlacementUnreachable: Placement is unreachable; nothing was registered. If only the reply
        was lost, the allocation may exist; a repeated call takes it over.
    """
    places = database.services.places(instance.uuid, host=instance.host)
    if not places:
        raise exception.ComputeHostNotFound(host=instance.host)
    root = places[0].uuid
    trees.place(database, client, instance.host)
    # The row first: an allocation without a row would be an orphan.
    try:
        stored = database.instances.create(instance)
    except exception.InstanceExists:
        stored = database.instances.get(instance.uuid)
        if not _is_half_done(client, stored, instance):
            raise
        _claim(client, instance, root)
        return stored
    try:
        _claim(client, instance, root)
    except BaseException:  # a KeyboardInterrupt, too
        database.instances.delete(instance.uuid)
        raise
    return stored


def adopt(
    database: Database,
    client: PlacementClient,
    report: protocol.HostReport,
    stopping: executors.Event,
) -> list[str]:
    """Adopt the guests that a host reports and the database does not know.

    A guest that cannot be adopted is logged, and tried again at the next start of the host. If Placement or the
    database stays unreachable, the rest are not tried: each would wait as long.

    :param report: the report of a compute service that has started. Its node is already stored.
    :param stopping: set when the conductor stops, which ends the adoption.
    :returns: the uuids of the adopted guests.
    """
    adopted: list[str] = []
    left = [instance for instance in report.adoptable if isinstance(instance, Instance)]
    uuids = [instance.uuid for instance in left]
    why = 'the conductor is stopping'
    try:
        known = {
            one.uuid: one
            for one in _retry_while_unreachable(lambda: database.instances.list({'uuid': uuids}), stopping)
        }
        for instance in left:
            there = known.get(instance.uuid)
            # A guest in migration is on two hosts for a while.
            if there is not None and there.host != report.host and there.task_state is None:
                LOG.warning(
                    'Not adopting guest %(guest)s: it is on host %(host)s (%(state)s), but the database has it on '
                    '%(known_host)s (%(known_state)s). Find out which host has the right one, and undefine the other',
                    {
                        'guest': instance.uuid,
                        'host': report.host,
                        'state': instance.vm_state,
                        'known_host': there.host,
                        'known_state': there.vm_state,
                    },
                )
        left = [instance for instance in left if instance.uuid not in known]
        while left and not stopping.is_set():
            if _retry_while_unreachable(functools.partial(_adopt, database, client, left[0], report.host), stopping):
                adopted.append(left[0].uuid)
            del left[0]
    except exception.ServiceUnreachable as error:
        why = exception.told(error)
    if left:
        LOG.warning(
            'Not adopting %(count)d guests of host %(host)s until its compute service starts again: %(reason)s',
            {'count': len(left), 'host': report.host, 'reason': why},
        )
    return adopted


def _adopt(database: Database, client: PlacementClient, instance: Instance, host: str) -> bool:
    """Adopt one guest, or log why not; return whether it was adopted.

    :raises migrator.exception.ServiceUnreachable: Placement or the database is unreachable.
    """
    try:
        create(database, client, instance)
    except exception.InstanceExists:
        return False  # another conductor or an operator was faster
    except exception.ServiceUnreachable:
        raise
    except exception.MigratorException as error:
        LOG.warning(
            'Not adopting guest %(guest)s of host %(host)s: %(error)s',
            {'guest': instance.uuid, 'host': host, 'error': error},
        )
        return False
    except Exception:  # an error with one guest must not prevent the adoption of others
        LOG.exception('Not adopting guest %(guest)s of host %(host)s', {'guest': instance.uuid, 'host': host})
        return False
    resources = ', '.join(f'{name} {amount}' for name, amount in instance.flavor.resources().items())
    LOG.info(
        'Adopted guest %(guest)s (%(name)s) of host %(host)s with %(resources)s',
        {'guest': instance.uuid, 'name': instance.name, 'host': host, 'resources': resources},
    )
    return True


def _retry_while_unreachable(function: Callable[[], T], stopping: executors.Event) -> T:
    """Return ``function()``, repeated for some seconds while a service that it needs is unreachable.

    :raises migrator.exception.ServiceUnreachable: the service stays unreachable, or the conductor stops.
    """
    for _ in range(_TRIES - 1):
        try:
            return function()
        except exception.ServiceUnreachable:
            if stopping.wait(_AGAIN):
                raise
    return function()


def _is_half_done(client: PlacementClient, stored: Instance, instance: Instance) -> bool:
    """Return whether an earlier call like this one was cut off, and left a row without an allocation."""
    same = ('name', 'project_id', 'user_id', 'host', 'node', 'flavor', 'task_state')
    if any(getattr(stored, name) != getattr(instance, name) for name in same):
        return False
    return not allocations.read(client, stored.uuid).allocations


def placed(client: PlacementClient, flavor: Flavor, root: str) -> candidates.Candidate | None:
    """Return where Placement would place a guest of a flavor on a host, or None if the host has no room.

    :param root: uuid of the host's root provider.
    """
    groups, policy = flavor.resource_groups(), flavor.group_policy
    found = candidates.get_candidates(client, groups, in_tree=root, limit=1, group_policy=policy)
    return found[0] if found else None


def _claim(client: PlacementClient, instance: Instance, root: str) -> None:
    wanted: allocation_state.Allocations = {root: instance.flavor.resources()}
    try:
        _claim_all(client, instance, wanted, root)
    except exception.PlacementRefused:
        # The root may lack some resources. Placement knows which child providers have them.
        found = placed(client, instance.flavor, root)
        if found is None or allocation_state.normal(found.allocations) == allocation_state.normal(wanted):
            raise
        _claim_all(client, instance, found.allocations, root)


def _is_there(
    client: PlacementClient,
    instance: Instance,
    held: allocation_state.ConsumerAllocations,
    root: str,
) -> bool:
    """Return whether an instance holds the resources of its flavor, anywhere in the tree of its host."""
    total: dict[str, int] = {}
    for amounts in allocation_state.normal(held.allocations).values():
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    if total != instance.flavor.resources():
        return False
    return set(allocation_state.normal(held.allocations)) <= {one.uuid for one in providers.read_tree(client, root)}


def _claim_all(
    client: PlacementClient,
    instance: Instance,
    wanted: allocation_state.Allocations,
    root: str,
) -> None:
    consumer = consumer_of(instance)
    try:
        allocations.claim(client, consumer, wanted, generation=None)
        return
    except (exception.PlacementConflict, exception.PlacementUnreachable) as error:
        refusal = error
    # The allocation existed before, or it was written and the reply was lost.
    held = allocations.read(client, consumer.uuid)
    if allocation_state.normal(held.allocations) == allocation_state.normal(wanted) or _is_there(
        client, instance, held, root
    ):
        return
    if held.allocations:
        raise exception.AllocationExists(consumer=consumer.uuid, held=held.allocations, wanted=wanted)
    if not isinstance(refusal, exception.PlacementConflict):
        raise refusal
    # Placement was killed during an earlier write, and left an orphan consumer.
    allocations.claim(client, consumer, wanted, generation=allocations.ORPHAN_GENERATION)


def delete(database: Database, client: PlacementClient, uuid: str) -> None:
    """Delete the row of a guest and its allocation.

    :raises migrator.exception.InstanceNotFound: no such instance exists.
    :raises migrator.exception.MigrationInProgress: it is being migrated.
    :raises migrator.exception.PlacementUnreachable: nothing was changed. If Placement became unreachable in the middle,
        the task_state is deleting, no migration is accepted, and a repeated call finishes the deletion.
    """
    consumer = consumer_of(database.instances.get(uuid))
    # A read before the first change: an unreachable Placement is mostly noticed here.
    allocations.read(client, uuid)
    database.instances.begin_delete(uuid)
    for tries in range(_TRIES):
        held = allocations.read(client, uuid)
        if held.generation is None:
            break
        try:
            allocations.remove(client, consumer, generation=held.generation)
        except exception.PlacementConflict:
            # Another client was faster. Only an operator writes it now.
            if tries == _TRIES - 1:
                raise
    database.instances.delete(uuid)


def consumer_of(instance: Instance) -> allocation_state.Consumer:
    """Return an instance as a consumer of Placement."""
    return allocation_state.Consumer(
        uuid=instance.uuid,
        consumer_type=allocation_state.INSTANCE,
        project_id=instance.project_id,
        user_id=instance.user_id,
    )
