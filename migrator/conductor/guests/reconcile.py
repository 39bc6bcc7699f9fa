# SPDX-License-Identifier: Apache-2.0

"""The row and the allocation of a guest follow it to the host where it runs, as an operator requests.

First the instance gets the task_state reconciling, so that no migration of it is accepted. Then one write moves its
allocation, by the generation that was read. Last, the row gets the new host and loses the task_state. A call that is
cut off leaves the task_state, and a repeated call finishes it. The guest itself is never touched. If only the power
state of a guest differs, one write changes its row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from migrator import exception
from migrator.conductor import audit, registry
from migrator.conductor.guests import differences, lists
from migrator.db.api import Database
from migrator.db.guests.differences import Placed
from migrator.objects import GuestState, Instance, remedies
from migrator.objects.difference import POWER, RUNS, Difference, DifferenceKind
from migrator.placement_client import allocation_state, allocations, providers
from migrator.placement_client.client import PlacementClient

#: Writes of an allocation that another client changes meanwhile.
_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A guest for which hypervisors, database and Placement differ.

    :ivar shown: who -> what it has.
    :ivar hosts: the hosts that the difference concerns.
    :ivar plan: what ``act`` does; or, without it, why nothing follows, and what an operator can do.
    :ivar act: returns whether it was done, and what was done, or why not; None: nothing is certain.
    """

    uuid: str
    name: str
    shown: Mapping[str, str]
    hosts: frozenset[str]
    plan: str
    act: Callable[[], tuple[bool, str]] | None

    def advice(self) -> str:
        """Return the plan as an operator reads it."""
        return f'To do: {self.plan}' if self.act is not None else f'Left alone: {self.plan}'


def compare(database: Database, client: PlacementClient, ask: lists.Ask) -> tuple[list[Case], dict[str, str]]:
    """Compare what hypervisors, database and Placement have, guest by guest; change nothing.

    :returns: the guests that differ; and each host that may run guests and did not list them, with the reason.
    :raises migrator.exception.ServiceUnreachable: the database or Placement is unreachable.
    """
    found = differences.compare(database, ask, database.threads)
    roots = database.services.roots()
    host_of = {one.uuid: roots.get(one.root_uuid or '', one.uuid) for one in providers.list_providers(client)}
    cases = [_case(database, client, found, one, host_of) for one in found.differences]
    differ = {one.instance_uuid for one in found.differences}
    cases += [
        _of_allocation(database, client, wrong, wrong.rows.instance)
        for wrong in audit.audit(database, client)
        if wrong.rows.instance is not None
        and wrong.consumer in found.placed.keys() - differ
        and wrong.rows.instance.host in found.answered
    ]
    return cases, dict(found.unanswered)


def _case(
    database: Database,
    client: PlacementClient,
    found: differences.Comparison,
    difference: Difference,
    host_of: Mapping[str, str],
) -> Case:
    uuid = difference.instance_uuid
    held = allocation_state.normal(allocations.read(client, uuid).allocations)
    places = [f'{host_of.get(one, one)} ({audit.describe({one: amounts})})' for one, amounts in held.items()]
    shown = {
        'hypervisors': ', '.join(f'{host} ({state})' for host, state in sorted(difference.seen.items())) or 'none',
        'database': difference.host or 'none',
        'placement': ', '.join(places) or 'none',
    }
    if difference.kind == DifferenceKind.POWER and uuid in found.placed:
        shown['database'] += f' ({found.placed[uuid].vm_state})'
    hosts = frozenset(difference.hosts)
    why = why_left(found, difference)
    if uuid not in found.placed and difference.host is not None:
        why = 'a migration of it is in progress: let it end, or abort it'
    if why is not None:
        return Case(uuid, difference.name, shown, hosts, why, None)
    if difference.kind == DifferenceKind.POWER:
        (state,) = difference.seen.values()
        act = functools.partial(follow_power, database, found.placed[uuid], state)
        return Case(uuid, difference.name, shown, hosts, f'change its vm_state to {POWER[state][0]}', act)
    (host,) = difference.runs_on
    act = functools.partial(follow, database, client, found.placed[uuid], host)
    plan = f'change its host in the database, and its allocation, to {host}'
    return Case(uuid, difference.name, shown, hosts, plan, act)


def _of_allocation(database: Database, client: PlacementClient, wrong: audit.Wrong, instance: Instance) -> Case:
    remedy = audit.remedy(database, client, wrong)
    reasons = dict.fromkeys(finding.reason.rstrip('.') for finding in wrong.findings)
    shown = {'hypervisors': instance.host, 'database': instance.host, 'placement': '; '.join(reasons)}
    act = functools.partial(audit.heal, database, client, wrong) if remedy.write is not None else None
    return Case(instance.uuid, instance.name, shown, frozenset([instance.host]), remedy.observed, act)


def why_left(found: differences.Comparison, difference: Difference) -> str | None:
    """Return why nothing follows from a difference, or None if it is certain where the guest is.

    It is certain if one host runs the guest, and every host that could run it has listed its guests. Whether it runs is
    certain if in addition no other host has it.
    """
    seen = ', '.join(f'{host} ({state})' for host, state in sorted(difference.seen.items()))
    match difference.kind:
        case DifferenceKind.POWER:
            if len(difference.seen) > 1:
                return f'it is on {seen}: only {difference.host} may have it'
        case DifferenceKind.MOVED | DifferenceKind.UNFINISHED:
            states = set(difference.seen.values())
            if len(difference.runs_on) != 1 or not states <= RUNS | {GuestState.SHUTDOWN.value}:
                return f'it is on {seen}: exactly one host has to run it, and any other one must have it shut off'
        case _:
            return difference.remedy(found.unanswered)
    if found.unanswered:
        hosts = ', '.join(f'{host} ({why.rstrip(".")})' for host, why in sorted(found.unanswered.items()))
        return (
            f'these hosts did not list their guests and may run it too: {hosts}. Start their compute services, or '
            'declare those down that are fenced, and try again'
        )
    return None


def follow_power(database: Database, placed: Placed, state: str) -> tuple[bool, str]:
    """Write whether a guest runs that is where the database has it.

    :param placed: the instance as it was read before the hosts listed their guests.
    :param state: the state of the guest.
    :returns: whether it was done; and what was done, or why not.
    """
    vm_state, power_state = POWER[state]
    if not database.differences.follow_power(placed, vm_state, power_state):
        return False, 'it has changed meanwhile, or a migration of it is in progress: run this command again'
    return True, f'its vm_state is {vm_state}'


def follow(database: Database, client: PlacementClient, placed: Placed, host: str) -> tuple[bool, str]:
    """Move the row and the allocation of an instance to the host where its guest runs.

    :param placed: the instance as it was read before the hosts listed their guests.
    :param host: the only host that runs the guest.
    :returns: whether it was done; and what was done, or why not.
    :raises migrator.exception.ServiceUnreachable: the database or Placement is unreachable; repeat the call.
    """
    node = next((one.node for one in database.services.list_nodes(host=host)), None)
    if node is None:
        return False, f'{host} has not reported its hypervisor: start its compute service'
    registry.write_providers(database, client, host)
    try:
        if not database.differences.begin_to_follow(placed, host):
            return False, 'it has changed meanwhile, or a migration of it is in progress: run this command again'
    except exception.CleanupInProgress as error:
        return False, error.message
    try:
        held = _move(database, client, placed, host, node)
    except exception.PlacementRefused as error:
        database.differences.give_up(placed)
        return False, f'{host} has no room for it (make room, or move the guest back): {error.message}'
    except exception.PlacementConflict:
        return False, 'other clients have changed its allocation meanwhile: try again'
    if held is None:
        database.differences.give_up(placed)
        why = f'{host} has no room for it, or more than one of its providers has'
        return False, f'{why}: make room, or move the guest back'
    if not database.differences.follow(placed, host, node):
        return False, f'it has changed meanwhile: try again, and {remedies.offer(remedies.Kind.AUDIT)}'
    return True, f'the database has it on {host}, and its allocation is there: {audit.describe(held)}'


def _move(
    database: Database, client: PlacementClient, placed: Placed, host: str, node: str
) -> allocation_state.Allocations | None:
    """Move the allocation of an instance to a host, and return it; None: the host has no room.

    :raises migrator.exception.PlacementConflict: other clients were faster each time.
    """
    for tries in range(_TRIES):
        instance = dataclasses.replace(database.instances.get(placed.uuid), host=host, node=node)
        held = allocations.read(client, placed.uuid)
        wanted = audit.home_of(database, client, instance)
        if wanted is None or allocation_state.normal(held.allocations) == allocation_state.normal(wanted):
            return wanted
        write = allocations.Write(
            consumer=registry.consumer_of(instance), allocations=wanted, generation=held.generation
        )
        try:
            audit.send(client, write)
        except exception.PlacementConflict:
            if tries == _TRIES - 1:
                raise
        else:
            return wanted
    return None
