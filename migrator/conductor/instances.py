# SPDX-License-Identifier: Apache-2.0

"""Registering instances: the row and the allocation, or neither.

Whatever happens in between, down to the loss of the process: an allocation never outlives its row, and the same call
again sets right what the first one has left.
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

#: Seconds until a guest is tried again that could not be adopted, for Placement or the database was away.
_AGAIN = 2.0
#: How often an allocation that somebody else changes meanwhile is read again.
_TRIES = 5


def create(database: Database, client: PlacementClient, instance: Instance) -> Instance:
    """Register a guest that runs on its host, with its allocation there.

    :returns: the instance as stored.
    :raises migrator.exception.ComputeHostNotFound: no compute service of its host has reported.
    :raises migrator.exception.InstanceExists: the uuid is taken.
    :raises migrator.exception.CleanupInProgress: its host is just removing what an earlier migration has left there.
    :raises migrator.exception.AllocationExists: Placement has another allocation for it. One that is the same already,
        as of a guest that was another service's until now, is taken over.
    :raises migrator.exception.PlacementRefused: the host has no room for it.
    :raises migrator.exception.PlacementUnreachable: Placement is away; nothing was registered. (Where it went away
        with the answer only, the allocation may be there; the same call again takes it over.)
    """
    places = database.services.places(instance.uuid, host=instance.host)
    if not places:
        raise exception.ComputeHostNotFound(host=instance.host)
    root = places[0].uuid
    trees.place(database, client, instance.host)
    # The row first: an allocation without a row would have no living reason.
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
    except BaseException:  # an interruption from the keyboard, too
        database.instances.delete(instance.uuid)
        raise
    return stored


def adopt(
    database: Database,
    client: PlacementClient,
    report: protocol.HostReport,
    stopping: executors.Event,
) -> list[str]:
    """Take in the guests that a host has and the database does not know, as its driver tells of them.

    What cannot be taken in now is told in the log, and tried again when the host starts next. Where Placement or the
    database stays away that is all that is left: each guest would be waited for as long.

    :param report: of a compute that has started, its node already stored.
    :param stopping: set when the conductor stops, which ends it as well.
    :returns: the uuids of those that were taken in.
    """
    adopted: list[str] = []
    left = [instance for instance in report.adoptable if isinstance(instance, Instance)]
    uuids = [instance.uuid for instance in left]
    why = 'the conductor stops'
    try:
        known = {one.uuid: one for one in _patiently(lambda: database.instances.list({'uuid': uuids}), stopping)}
        for instance in left:
            there = known.get(instance.uuid)
            # One that moves is on two hosts for a while.
            if there is not None and there.host != report.host and there.task_state is None:
                LOG.warning(
                    'Guest %s is at %s (%s), and the books have it at %s (%s). It is not adopted: look which host has '
                    'the right one, and undefine what is left at the other',
                    instance.uuid,
                    report.host,
                    instance.vm_state,
                    there.host,
                    there.vm_state,
                )
        left = [instance for instance in left if instance.uuid not in known]
        while left and not stopping.is_set():
            if _patiently(functools.partial(_adopt, database, client, left[0], report.host), stopping):
                adopted.append(left[0].uuid)
            del left[0]
    except exception.ServiceUnreachable as error:
        why = exception.told(error)
    if left:
        LOG.warning(
            '%d guests of %s are not adopted, and are tried again when its compute service starts next: %s',
            len(left),
            report.host,
            why,
        )
    return adopted


def _adopt(database: Database, client: PlacementClient, instance: Instance, host: str) -> bool:
    """Take in one guest, or tell in the log why not; return whether it was taken in.

    :raises migrator.exception.ServiceUnreachable: Placement or the database is away.
    """
    try:
        create(database, client, instance)
    except exception.InstanceExists:
        return False  # somebody was faster
    except exception.ServiceUnreachable:
        raise
    except exception.MigratorException as error:
        LOG.warning('Guest %s of %s is not adopted: %s', instance.uuid, host, error)
        return False
    except Exception:  # what is odd about one guest must not keep the others out
        LOG.exception('Guest %s of %s is not adopted', instance.uuid, host)
        return False
    resources = ', '.join(f'{name} {amount}' for name, amount in instance.flavor.resources().items())
    LOG.info('Adopted guest %s (%s) of %s: %s', instance.uuid, instance.name, host, resources)
    return True


def _patiently(function: Callable[[], T], stopping: executors.Event) -> T:
    """Return ``function()``, tried again for some seconds where something that it needs is away.

    :raises migrator.exception.ServiceUnreachable: it stays away, or there is no time left.
    """
    for _ in range(_TRIES - 1):
        try:
            return function()
        except exception.ServiceUnreachable:
            if stopping.wait(_AGAIN):
                raise
    return function()


def _is_half_done(client: PlacementClient, stored: Instance, instance: Instance) -> bool:
    """Whether an instance is what a process that was lost has made of this very call: a row without an allocation."""
    same = ('name', 'project_id', 'user_id', 'host', 'node', 'flavor', 'task_state')
    if any(getattr(stored, name) != getattr(instance, name) for name in same):
        return False
    return not allocations.read(client, stored.uuid).allocations


def placed(client: PlacementClient, flavor: Flavor, root: str) -> candidates.Candidate | None:
    """Return how Placement would place a guest of a flavor on a host, or None: the host has no room for it.

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
        # Not everything may be had at the root; which children have the rest, Placement knows.
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
    """Whether what an instance holds is its flavor, somewhere in the tree of its host."""
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
    # It was there before, or it was done and the answer was lost.
    held = allocations.read(client, consumer.uuid)
    if allocation_state.normal(held.allocations) == allocation_state.normal(wanted) or _is_there(
        client, instance, held, root
    ):
        return
    if held.allocations:
        raise exception.AllocationExists(consumer=consumer.uuid, held=held.allocations, wanted=wanted)
    if not isinstance(refusal, exception.PlacementConflict):
        raise refusal
    # Placement was killed over an earlier write of it.
    allocations.claim(client, consumer, wanted, generation=allocations.ORPHAN_GENERATION)


def delete(database: Database, client: PlacementClient, uuid: str) -> None:
    """Forget a guest, and what it holds.

    :raises migrator.exception.InstanceNotFound: there is none.
    :raises migrator.exception.MigrationInProgress: it is being migrated.
    :raises migrator.exception.PlacementUnreachable: nothing was changed; or, where Placement went away in the middle,
        its task_state is deleting, no migration of it is accepted, and the same call again finishes it.
    """
    consumer = consumer_of(database.instances.get(uuid))
    # Before anything is changed: that Placement is away is mostly noticed here.
    allocations.read(client, uuid)
    database.instances.begin_delete(uuid)
    for tries in range(_TRIES):
        held = allocations.read(client, uuid)
        if held.generation is None:
            break
        try:
            allocations.remove(client, consumer, generation=held.generation)
        except exception.PlacementConflict:
            # Another writer was faster; nobody but an operator writes it now.
            if tries == _TRIES - 1:
                raise
    database.instances.delete(uuid)


def consumer_of(instance: Instance) -> allocation_state.Consumer:
    """Return the instance as Placement's consumer."""
    return allocation_state.Consumer(
        uuid=instance.uuid,
        consumer_type=allocation_state.INSTANCE,
        project_id=instance.project_id,
        user_id=instance.user_id,
    )
