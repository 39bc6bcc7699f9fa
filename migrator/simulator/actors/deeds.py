# SPDX-License-Identifier: Apache-2.0

"""The actions of a plan, each of a user, an operator, a supervisor or an embedding service."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrator import exception
from migrator.conductor import registry
from migrator.objects import RESIZED, Flavor, Instance
from migrator.simulator.actors import workers
from migrator.simulator.actors.operator import Operator
from migrator.simulator.actors.user import resize_to
from migrator.simulator.workloads import plans
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.hypervisor.hypervisor import OWNING
from migrator.testing.simulation.sim_thread import ProcessKilled

#: The task_states in which only a migration starts the guest.
_STARTED_BY_MIGRATIONS = ('rebuilding', 'resize_prep', 'resize_migrating', 'resize_reverting')
#: Seconds after which an embedding service repeats a failed request, and how often it repeats it.
_AGAIN, _TRIES = 2.0, 60


def do(operator: Operator, deed: plans.Deed, guests: Sequence[Instance]) -> None:
    """Do an action of a plan."""
    if isinstance(deed.whom, str) and deed.name in _AT_A_PLACE:
        _AT_A_PLACE[deed.name](operator, deed.whom, deed.more)
    elif isinstance(deed.whom, str):
        _do_to_a_process(operator, deed, deed.whom)
    else:
        _do_to_a_guest(operator, deed, guests[deed.whom])


def _do_to_a_process(operator: Operator, deed: plans.Deed, name: str) -> None:
    if deed.name == 'stop and start':
        operator.supervisor.stop_and_start(name, deed.more)
    elif deed.name == 'upgrade':
        operator.cloud.versions.pop(name, None)
        operator.supervisor.stop_and_start(name, deed.more)
    elif deed.name == 'kill':
        operator.supervisor.kill(name, deed.more)
    elif deed.name == 'no thread to be had':
        operator.supervisor.starve(name, deed.more)
    elif deed.name == 'slow link':
        operator.cloud.world.hypervisors[name].set_link(64.0 * deed.more)
    elif deed.name == 'hypervisor hangs':
        for phase in deed.more:
            operator.cloud.world.hypervisors[name].faults.stall(phase, sticky=True)
    elif deed.name == 'hypervisor fails':
        for phase in deed.more:
            operator.cloud.world.hypervisors[name].faults.fail(phase, 'planned: it fails', sticky=True)
    elif deed.name == 'hypervisor works':
        for phase in deed.more:
            operator.cloud.world.hypervisors[name].faults.clear(phase)
    elif deed.name == 'hypervisor answers':
        operator.cloud.world.hypervisors[name].faults.clear()
    elif deed.name in ('limit', 'bound') and name not in operator.supervisor.down:
        option, value = ('max_concurrent_live_migrations', deed.more) if deed.name == 'limit' else deed.more
        # A process whose start has failed is not there.
        with contextlib.suppress(ProcessKilled, KeyError):
            operator.cloud.set_option(name, option, value)


def _do_to_a_guest(operator: Operator, deed: plans.Deed, instance: Instance) -> None:
    if deed.name in _TO_A_GUEST:
        _TO_A_GUEST[deed.name](operator, instance, deed.more)
    elif deed.name in ('migrate', 'migrate to'):
        operator.user.migrate(instance, deed.more)
    elif deed.name == 'abort':
        operator.user.abort(instance)
    elif deed.name == 'force complete':
        operator.user.force_complete(instance)
    elif deed.name == 'look':
        operator.user.request('GET', '/os-migrations')
        operator.user.request('GET', f'/servers/{instance.uuid}/migrations')
    elif deed.name == 'guest vanishes':
        for hypervisor in operator.cloud.world.hypervisors.values():
            hypervisor.delete(instance.uuid)
        rows = operator.cloud.migrations(instance)
        moved = {row.uuid for row in rows if row.ended or row.running_at is not None}
        operator.vanished.setdefault(instance.uuid, moved)
    elif deed.name == 'bring back':
        bring_back(operator.cloud, instance, *deed.more)
    elif deed.name == 'its host is lost':
        operator.lose(instance, *deed.more)
    elif deed.name == 'evacuate soon':
        operator.evacuate_soon(instance, *deed.more)
    elif deed.name == 'delete':
        operator.delete(instance)
    elif deed.name in ('lock', 'unlock'):
        action = {deed.name: None}
        operator.user.request('POST', f'/servers/{instance.uuid}/action', action)
    elif deed.name == 'retry once stuck':
        operator.once_stuck(instance, operator.retry)
    elif deed.name == 'abandon once stuck':
        operator.once_stuck(instance, operator.abandon)
    else:
        _do_as_its_user(operator.cloud, deed.name, instance)


def _do_as_its_user(cloud: SimulatedCloud, name: str, instance: Instance) -> None:
    hypervisors = list(cloud.world.hypervisors.values())
    if any(not row.is_live for row in cloud.migrations(instance)):
        # Its user reaches only the copy on its host in the database, and not one that was left behind.
        with contextlib.suppress(exception.InstanceNotFound):
            row = cloud.database.instances.get(instance.uuid)
            hypervisors = [cloud.world.hypervisors[row.host]]
            if name == 'resume the guest' and (row.task_state in _STARTED_BY_MIGRATIONS or row.vm_state == RESIZED):
                # Like nova, an embedding service starts no guest that is being evacuated or cold-migrated.
                return
    # Nor one that an operator has left behind.
    runs_on = cloud.world.active_on(instance.uuid)
    for hypervisor in [one for one in hypervisors if one.host in runs_on] if runs_on else hypervisors:
        act = {
            'pause the guest': hypervisor.pause,
            'resume the guest': hypervisor.resume,
            'shut the guest off': hypervisor.shut_off,
        }[name]
        if instance.uuid in hypervisor.guests:
            with contextlib.suppress(ValueError):  # the guest's state does not allow the action
                act(instance.uuid)


def bring_back(cloud: SimulatedCloud, instance: Instance, host: str, shut_off: bool) -> None:
    """Move a guest as an embedding service does: delete it and create it on another host.

    Nothing is done while the guest is migrated, if one of the hosts has no power, or if the guest is not active on
    exactly its own host. Existing parts of the guest on the other host, such as a copy that a pending cleanup would
    remove, are replaced.

    :param shut_off: whether to shut the guest off there.
    """
    assert cloud.simulation is not None
    target = cloud.world.hypervisors[host]
    with contextlib.suppress(exception.MigratorException):
        row = cloud.database.instances.get(instance.uuid)
        source = cloud.world.hypervisors[row.host]
        if row.task_state or row.host == host or not target.powered or not source.powered:
            return
        if cloud.world.active_on(row.uuid) != [row.host]:
            return
        registry.delete_instance(cloud.database, cloud.placement_client, row.uuid)
        source.delete(row.uuid)
        target.delete(row.uuid)
        again = row.replace(host=host, node=host)
        for _ in range(_TRIES):
            try:
                registry.create_instance(cloud.database, cloud.placement_client, again)
            except exception.ServiceUnreachable:
                cloud.simulation.advance(_AGAIN)
            else:
                target.spawn(row)
                if shut_off:
                    target.shut_off(row.uuid)
                return


def move_by_hand(operator: Operator, instance: Instance, host: str, leaves: bool) -> None:
    """Move a guest as ``virsh`` does.

    Nothing is done if it does not run, if a hypervisor moves it, or if the host has something of it or no power. An
    operator does not do this at a host that is declared down either, nor while the guest is being moved back by a
    revert, which may have asked all hosts a moment before.

    :param leaves: whether its old host keeps a copy that is shut off.
    """
    cloud, uuid = operator.cloud, instance.uuid
    hypervisors = cloud.world.hypervisors
    target, have = hypervisors[host], [one for one in hypervisors.values() if uuid in one.guests]
    runs = [one for one in have if one.guests[uuid].state in OWNING]
    moving = any(uuid in one.jobs or uuid in one.pending for one in hypervisors.values())
    if len(runs) != 1 or target in have or moving or not runs[0].powered or not target.powered:
        return
    declared = {service.host for service in cloud.database.services.list() if service.forced_down}
    with contextlib.suppress(exception.InstanceNotFound):
        row = cloud.database.instances.get(uuid)
        reverts = any(one.in_progress and one.revert_requested_at for one in cloud.migrations(instance))
        if not {host, runs[0].host} & declared and not reverts:
            operator.by_hand.add(uuid)
            (runs[0].shut_off if leaves else runs[0].delete)(uuid)
            target.spawn(row)


def start_by_hand(operator: Operator, instance: Instance) -> None:
    """Start a copy of a guest that no host runs, as ``virsh`` does.

    Nothing is done while a migration of it is in progress.
    """
    cloud, uuid = operator.cloud, instance.uuid
    with contextlib.suppress(exception.InstanceNotFound):
        if cloud.database.instances.get(uuid).task_state is not None or cloud.world.active_on(uuid):
            return
        declared = {service.host for service in cloud.database.services.list() if service.forced_down}
        for hypervisor in cloud.world.hypervisors.values():
            if hypervisor.powered and hypervisor.host not in declared and uuid in hypervisor.guests:
                operator.by_hand.add(uuid)
                with contextlib.suppress(ValueError):  # the guest's state does not allow it
                    hypervisor.resume(uuid)
                return


# --- drains ----------------------------------------------------------------------------------------------------------


def drain(operator: Operator, host: str, wanted: Mapping[str, Any]) -> None:
    """Request a drain.

    :param wanted: the body of the request without its host. The deadline is in seconds from now.
    """
    body = {'host': host, **wanted}
    if 'deadline' in body:
        now = operator.cloud.world.threads.clock.now()
        body['deadline'] = (now + datetime.timedelta(seconds=body['deadline'])).isoformat()
    operator.user.ask(lambda: operator.user.request('POST', _DRAINS, body), lambda: False)


def change_drain(operator: Operator, host: str, action: Mapping[str, Any]) -> None:
    """Request to change the newest drain of a host.

    :param action: the body of the request.
    """
    drains = [row.object for row in operator.cloud.backend.tables.read('drains') if row.host == host]
    if drains:
        path = f'{_DRAINS}/{drains[-1].uuid}/action'
        operator.user.ask(lambda: operator.user.request('POST', path, action), lambda: False)


def _boot(operator: Operator, host: str, memory_mb: int) -> None:
    """Start another guest on a host, disabled or not, unless the host has no power."""
    cloud, hypervisor = operator.cloud, operator.cloud.world.hypervisors[host]
    if not hypervisor.powered:
        return
    uuid, flavor = cloud.new_uuid(), Flavor(name=f'm{memory_mb}', vcpus=1, memory_mb=memory_mb, root_gb=1)
    new = Instance(uuid=uuid, name=uuid, host=host, node=host, flavor=flavor, project_id='demo', user_id='demo')
    for _ in range(_TRIES):
        try:
            stored = registry.create_instance(cloud.database, cloud.placement_client, new)
        except exception.ServiceUnreachable:
            operator.user.wait(_AGAIN)
        except exception.MigratorException:
            return  # such as a host that is full
        else:
            hypervisor.spawn(stored)
            return


def _set_service(operator: Operator, host: str, fields: Mapping[str, Any]) -> None:
    """Enable or disable a host by hand."""
    path = f'/os-services/{operator.cloud.database.services.get_compute(host).uuid}'
    operator.user.ask(lambda: operator.user.request('PUT', path, fields), lambda: False)


_DRAINS = '/migrator/v1/drains'
#: An action on a host, or an outage of a service -> what does it, with the operator, the host and the argument.
_AT_A_PLACE: Mapping[str, Callable[[Operator, str, Any], None]] = {
    'drain': drain,
    'maintain': workers.maintain,
    'change the drain': change_drain,
    'boot': _boot,
    'set the service': _set_service,
    'power is lost': lambda operator, host, more: operator.supervisor.lose_power(host, more),
    'broker away': lambda operator, _broker, more: operator.supervisor.take_broker_away(*more),
    'Placement away': lambda operator, _placement, more: operator.supervisor.take_placement_away(more),
    'another machine': lambda operator, host, more: operator.supervisor.switch_on_another(host, more),
    'force down': lambda operator, host, more: operator.fence(host, more),
}
#: An action that concerns a guest -> what does it.
_TO_A_GUEST: Mapping[str, Callable[[Operator, Instance, Any], None]] = {
    'migrate soon': lambda operator, instance, more: operator.user.migrate_soon(instance, more),
    'force to': lambda operator, instance, more: operator.user.force_to(instance, *more),
    'migrate cold soon': lambda operator, instance, more: operator.user.migrate_soon(instance, more, cold=True),
    'resize soon': lambda operator, instance, more: operator.user.act_soon(instance, resize_to(more)),
    'decide later': lambda operator, instance, more: operator.user.decide_later(instance, *more),
    'move by hand': lambda operator, instance, more: move_by_hand(operator, instance, *more),
    'start by hand': lambda operator, instance, _more: start_by_hand(operator, instance),
}
