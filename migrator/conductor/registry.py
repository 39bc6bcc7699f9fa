# SPDX-License-Identifier: Apache-2.0

"""The registration of instances, of the resource providers of hosts, and the deletion of services.

An instance has its row and its allocation, or neither. An allocation never outlives its row, even if the process is
lost in between. A repeated call repairs what the first one has left.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor.migration.context import Tools
from migrator.context import RequestContext, admin_context
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, Flavor, Instance, Migration, MigrationStatus, Service, protocol, remedies
from migrator.objects.instance import spec_problem
from migrator.objects.remedies import Reading
from migrator.placement_client import allocation_state, allocations, candidates, providers
from migrator.placement_client.client import PlacementClient
from migrator.rpc import expose

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Seconds to wait for what a host reports about itself or a guest.
_REPORT = 10.0
#: Seconds until a call is repeated that failed because Placement or the database was unreachable.
_AGAIN = 2.0
#: Reads of an allocation that another client changes meanwhile, and attempts of a call to an unreachable service.
_TRIES = 5


def create_instance(database: Database, client: PlacementClient, instance: Instance) -> Instance:
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
    write_providers(database, client, instance.host)
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


def adopt_instances(
    database: Database, client: PlacementClient, report: protocol.HostReport, stopping: executors.Event
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
        why = exception.message_of(error)
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
    others = {other: state for other, state in database.differences.seen(instance.uuid).items() if other != host}
    try:
        if others:
            seen = ', '.join(f'{other} ({state})' for other, state in sorted(others.items()))
            raise exception.GuestElsewhere(host=host, instance_uuid=instance.uuid, seen=seen)
        create_instance(database, client, instance)
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
    # It is there, whatever its service says of its flavor.
    for key, value in instance.flavor.extra_specs.items():
        problem = spec_problem(key, value)
        if problem is not None:
            LOG.warning(
                'Guest %(guest)s of host %(host)s has the extra spec %(key)s=%(value)s, which nova would refuse: '
                '%(problem)s. It may find no other host',
                {'guest': instance.uuid, 'host': host, 'key': key, 'value': value, 'problem': problem},
            )
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
    """Return where Placement would place a guest that a host has already, or None if the host has no room.

    Its traits do not matter any more.

    :param root: uuid of the host's root provider.
    """
    found = candidates.get_candidates(client, flavor.request.without_traits(), in_tree=root, limit=1, is_there=True)
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
    client: PlacementClient, instance: Instance, held: allocation_state.ConsumerAllocations, root: str
) -> bool:
    """Return whether an instance holds the resources of its flavor, anywhere in the tree of its host."""
    total: dict[str, int] = {}
    for amounts in allocation_state.normal(held.allocations).values():
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    if total not in instance.flavor.request.totals:
        return False
    return set(allocation_state.normal(held.allocations)) <= {one.uuid for one in providers.read_tree(client, root)}


def _claim_all(client: PlacementClient, instance: Instance, wanted: allocation_state.Allocations, root: str) -> None:
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


def delete_instance(database: Database, client: PlacementClient, uuid: str) -> None:
    """Delete the row of a guest and its allocations, including those at the sources of its evacuations.

    :raises migrator.exception.InstanceNotFound: no such instance exists.
    :raises migrator.exception.MigrationInProgress: it is being migrated.
    :raises migrator.exception.PlacementUnreachable: nothing was changed. If Placement became unreachable in the middle,
        the task_state is deleting, no migration is accepted, and a repeated call finishes the deletion.
    """
    consumer = consumer_of(database.instances.get(uuid))
    # A read before the first change: an unreachable Placement is mostly noticed here.
    allocations.read(client, uuid)
    database.instances.begin_delete(uuid)
    for one in database.migrations.list({'instance_uuid': uuid, 'status': MigrationStatus.DONE.value}):
        _remove_all(client, consumer_of_migration(one, consumer))
    _remove_all(client, consumer)
    database.instances.delete(uuid)


def complete_evacuation(database: Database, client: PlacementClient, done: Migration) -> bool:
    """Release the allocation at the source of an evacuation that is done, and write that it is completed.

    :param done: the migration; nothing of its guest is left at the source.
    :returns: whether this call has completed it.
    :raises migrator.exception.PlacementUnreachable: Placement did not answer; repeat the call.
    :raises migrator.exception.PlacementConflict: other writers were faster each time; repeat the call.
    """
    _remove_all(client, consumer_of_migration(done))
    return database.cleanups.complete_evacuation(done)


def _remove_all(client: PlacementClient, consumer: allocation_state.Consumer) -> allocation_state.Allocations:
    """Remove every allocation of a consumer that only an operator or a sweep writes now, and return them."""
    for tries in range(_TRIES):
        held = allocations.read(client, consumer.uuid)
        if held.generation is None:
            break
        try:
            allocations.remove(client, consumer, generation=held.generation)
        except exception.PlacementConflict:
            # Another client was faster.
            if tries == _TRIES - 1:
                raise
        else:
            return held.allocations
    return {}


def consumer_of(instance: Instance) -> allocation_state.Consumer:
    """Return an instance as a consumer of Placement."""
    return allocation_state.Consumer(
        uuid=instance.uuid,
        consumer_type=allocation_state.INSTANCE,
        project_id=instance.project_id,
        user_id=instance.user_id,
    )


def consumer_of_migration(
    migration: Migration, owner: allocation_state.Consumer | Instance | None = None
) -> allocation_state.Consumer:
    """Return a migration as a consumer of Placement.

    :param owner: the instance, to which the allocation belongs; None: the user who has requested the migration.
    """
    of = owner or migration
    return allocation_state.Consumer(
        uuid=migration.uuid, consumer_type=allocation_state.MIGRATION, project_id=of.project_id, user_id=of.user_id
    )


def write_providers(database: Database, client: PlacementClient, host: str) -> None:
    """Write the resource providers that a host has reported to Placement, unless they are written already.

    :raises migrator.exception.PlacementUnreachable: Placement is unreachable.
    :raises migrator.exception.MigratorException: Placement does not accept them.
    """
    placed = False
    while not placed:
        nodes = [node for node in database.services.nodes_to_place() if node.host == host]
        placed = not nodes
        for node in nodes:
            providers.ensure_tree(client, node.providers, sleep=database.threads.sleep)
            # If the host reported others meanwhile, write again: this write may have come after theirs.
            placed = database.services.note_placed(node)


def write_all_providers(database: Database, client: PlacementClient, host: str | None = None) -> None:
    """Write the resource providers of hosts to Placement, and log the hosts that it refuses.

    :param host: the only host to write, or None for all.
    """
    try:
        for name in [host] if host is not None else [node.host for node in database.services.nodes_to_place()]:
            try:
                write_providers(database, client, name)
            except exception.ServiceUnreachable:
                raise
            except (exception.MigratorException, ValueError) as error:
                LOG.error(
                    'Placement does not accept the resource providers of host %(host)s, which cannot be a destination'
                    ' now: %(error)s',
                    {'host': name, 'error': error},
                )
    except exception.ServiceUnreachable as error:
        LOG.warning(
            'Could not write the resource providers of hosts to Placement yet; the next sweep tries again: %s', error
        )
    except Exception:  # the pool would drop the error
        LOG.exception('Could not write the resource providers of hosts to Placement yet; the next sweep tries again')


def delete_service(database: Database, client: PlacementClient, service: Service, lease: float) -> list[Migration]:
    """Delete a service that is down; a repeated call finishes one that was cut off.

    The deferred cleanups of a compute host that is forced down are deleted with it. Evacuations that are done release
    what they hold there, and the next sweep completes them.

    :param lease: seconds without a report after which a conductor counts as down.
    :returns: the evacuations from it that were done.
    :raises migrator.exception.ServiceInUse: it is up, or instances, migrations or deferred cleanups need it. Nothing
        was changed.
    :raises migrator.exception.ProviderInUse: Placement has allocations on it. Nothing was changed; or, if they appeared
        meanwhile, only child providers were deleted, which the host reports again at its start.
    :raises migrator.exception.ServiceNotFound: another call has deleted it meanwhile.
    :raises migrator.exception.PlacementUnreachable: Placement is unreachable. Nothing was changed, or a repeated call
        finishes the deletion.
    """
    host = service.host
    if service.is_up(database.services.now(), lease):
        raise exception.ServiceInUse(host=host, reason='it is up: stop it first')
    nodes, done = [], []
    if service.binary == COMPUTE_BINARY:
        why = _why_not(database, service)
        if why is not None:
            raise exception.ServiceInUse(host=host, reason=why)
        nodes = database.services.list_nodes(host=host)
        done = database.migrations.list({'source_compute': host, 'status': MigrationStatus.DONE.value})
    released = {one.uuid: _remove_all(client, consumer_of_migration(one)) for one in done}
    try:
        for node in nodes:
            providers.delete_tree(client, node.uuid)
        if not database.services.delete(service):
            # The host reports its providers at its start only, so they are written again, by a sweep if not here.
            write_providers(database, client, host)
            database.services.get(service.uuid)  # another call may have deleted it
            raise exception.ServiceInUse(host=host, reason='an instance or a migration needs it now, or it is up again')
    except (exception.ProviderInUse, exception.ServiceInUse):
        _claim_again(database, client, [(one, released[one.uuid]) for one in done if released[one.uuid]])
        raise
    if service.binary == COMPUTE_BINARY:
        database.machines.forget(host)
    return done


class HostCalls:
    """The calls of the API that concern services and hosts."""

    conf: cfg.ConfigOpts
    tools: Tools

    @expose
    def delete_service(self, context: RequestContext, service_uuid: str) -> None:
        """Delete a service that is down; see :func:`delete_service`."""
        database = self.tools.database
        service = database.services.get(service_uuid)
        lease = self.conf.conductor.lease
        delete_service(database, self.tools.placement, service, lease)

    @expose
    def get_diagnostics(self, context: RequestContext, instance: Instance) -> dict[str, Any]:
        """Return what a guest's host reports; see :meth:`migrator.compute.rpcapi.ComputeAPI.get_diagnostics`."""
        with _reported_by(instance.host):
            return self.tools.hosts.api.get_diagnostics(admin_context(), instance.host, instance, _REPORT)

    @expose
    def get_host_uptime(self, context: RequestContext, host: str) -> str | None:
        """Return the uptime of a host as text, or None if its driver does not know it."""
        with _reported_by(host):
            return self.tools.hosts.api.get_host_uptime(admin_context(), host, _REPORT)


@contextlib.contextmanager
def _reported_by(host: str) -> Iterator[None]:
    """Turn a failure of a host into an error that asks the caller to try again."""
    try:
        yield
    except (exception.DriverError, exception.RemoteError) as error:
        raise exception.ServiceUnreachable(service=f'The hypervisor of {host}', reason=error.message) from error


def _claim_again(
    database: Database, client: PlacementClient, released: list[tuple[Migration, allocation_state.Allocations]]
) -> None:
    """Return to evacuations what they held at a source that is not deleted after all."""
    for migration, held in released:
        owner = database.instances.find(migration.instance_uuid)
        if owner is not None:  # one that was deleted meanwhile holds nothing any more
            allocations.claim(client, consumer_of_migration(migration, owner), held, generation=None)


def _why_not(database: Database, service: Service) -> str | None:
    host = service.host
    moving = database.migrations.list({'host': host}, in_progress=True)
    if moving:
        return f'migration {moving[0].uuid} is in progress, {len(moving)} in all: let it end, or abort it'
    seen = [] if service.is_fenced else [one for one in database.differences.list(host) if host in one.seen]
    if seen:
        helps = 'reconcile or remove it there, or, once the host is fenced, declare it forced down'
        return f'guest {seen[0].name} ({seen[0].instance_uuid}) was last seen on it, {len(seen)} in all: {helps}'
    guests = database.instances.list({'host': host})
    if guests:
        # A guest of a machine that was replaced is not lost.
        was_replaced = database.machines.had_guest(host, guests[0].uuid)
        computes = database.services.list(COMPUTE_BINARY)
        fenced = {one.host for one in computes if one.is_fenced}
        others = database.differences.seen(guests[0].uuid).keys() - {host} - fenced
        look = {
            Reading.HOST_REPORTS: service.reports or database.machines.is_on(service, guests[0].uuid),
            Reading.ELSEWHERE: bool(others),
            Reading.NOT_ALL_LISTED: any(one.may_run_unlisted for one in computes),
            Reading.ON_A_HOST: bool(others),
            Reading.REPLACED: was_replaced,
        }
        helps = remedies.joined(
            ' Or ',
            remedies.offer(remedies.Kind.EVACUATE, look, guest=guests[0].uuid),
            'restore it there.' if was_replaced else '',
            remedies.offer(remedies.Kind.DELETE_INSTANCE, look, guest=guests[0].uuid),
        )
        helps = helps or remedies.offer(remedies.Kind.SEE_WHERE)
        return f'instance {guests[0].uuid} is on it, {len(guests)} in all. {helps}'.rstrip('.')
    deferred = database.cleanups.list(host=host)
    if deferred and not service.forced_down:
        return (
            f'its cleanup {deferred[0].step} for migration {deferred[0].migration_uuid} is not done: start the service'
            ' to run the cleanup, or force it down if it never comes back'
        )
    return None
