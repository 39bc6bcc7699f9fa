# SPDX-License-Identifier: Apache-2.0


"""The visible state of a cloud: by REST, in Placement's allocations, and on its hypervisors."""

from migrator import exception
from migrator.objects import ENDS
from migrator.virt import driver

#: What a guest of 512 MiB holds of its host.
CLAIM = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}


# --- by REST ---------------------------------------------------------------------------------------------------------


def get(cloud, path, version='2.80'):
    """Return the document at a path, which must be there."""
    response = cloud.request('GET', path, version=version)
    assert response.status_int == 200, response.text
    return response.json


def server(cloud, instance):
    """Return a server as it is shown."""
    return get(cloud, f'/servers/{instance.uuid}')['server']


def host_of(cloud, instance):
    """Return where the API says that a server is."""
    return server(cloud, instance)['OS-EXT-SRV-ATTR:host']


def migrations(cloud, instance):
    """Return a server's migrations as os-migrations lists them, the newest first."""
    return get(cloud, f'/os-migrations?instance_uuid={instance.uuid}')['migrations']


def migration(cloud, instance):
    """Return a server's newest migration."""
    return migrations(cloud, instance)[0]


def in_progress(cloud, instance):
    """Return a server's migrations in progress."""
    return get(cloud, f'/servers/{instance.uuid}/migrations')['migrations']


def action(cloud, instance):
    """Return the newest action of a server, with its events."""
    newest = get(cloud, f'/servers/{instance.uuid}/os-instance-actions')['instanceActions'][0]
    return get(cloud, f'/servers/{instance.uuid}/os-instance-actions/{newest["request_id"]}')['instanceAction']


def result(cloud, instance):
    """Return (result, message) of a server's newest action."""
    found = action(cloud, instance)
    whole = next(event for event in found['events'] if event['event'] == 'conductor_live_migrate_instance')
    return whole['result'], found['message']


def service(cloud, host):
    """Return a compute service as it is listed."""
    return get(cloud, f'/os-services?binary=nova-compute&host={host}')['services'][0]


def force_down(cloud, host, forced_down=True):
    """Declare a host fenced, as its operator would."""
    body = {'forced_down': forced_down}
    response = cloud.request('PUT', f'/os-services/{service(cloud, host)["id"]}', body)
    assert response.status_int == 200, response.text


# --- in Placement ----------------------------------------------------------------------------------------------------


def allocations(cloud):
    """Return what every consumer holds: consumer -> host -> amounts, read without our own client."""
    held = {}
    for host in cloud.world.hypervisors:
        url = f'/resource_providers/{driver.node_uuid(host)}/allocations'
        answer = cloud.placement.adapter().get(url, headers={'OpenStack-API-Version': 'placement 1.39'})
        for consumer, entry in answer.json().get('allocations', {}).items():
            held.setdefault(consumer, {})[host] = entry['resources']
    return held


# --- on the hypervisors ----------------------------------------------------------------------------------------------


def guests(cloud, instance):
    """Return host -> what is there of a guest: its state, its job, and whatever was made for it."""
    found = {}
    for host, hypervisor in cloud.world.hypervisors.items():
        parts = hypervisor.residue(instance.uuid)
        if parts:
            guest = hypervisor.guests.get(instance.uuid)
            state = str(guest.state) if guest is not None else None
            found[host] = (state, instance.uuid in hypervisor.jobs, tuple(parts))
    return found


# --- all of it -------------------------------------------------------------------------------------------------------


def everything(cloud):
    """Return all that a migration which was undone, or never began, has to leave as it was."""
    listed = get(cloud, '/servers/detail?all_tenants=1')['servers']
    shown = ('status', 'OS-EXT-STS:vm_state', 'OS-EXT-STS:task_state', 'OS-EXT-SRV-ATTR:host')
    return {
        'servers': {one['id']: {name: one[name] for name in shown} for one in listed},
        'allocations': allocations(cloud),
        'guests': {one.uuid: guests(cloud, one) for one in cloud.database.instances.list()},
        'waiting': cloud.waiting(),
    }


def moved(cloud, instance, host, status='ACTIVE'):
    """Assert that a server is at a host, whole, and nowhere else in any form."""
    shown = server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == (status, None)
    assert shown['OS-EXT-SRV-ATTR:host'] == host
    held = allocations(cloud)
    assert held.pop(instance.uuid) == {host: instance.flavor.resources()}
    assert held.keys() <= {one.uuid for one in cloud.database.instances.list()}, (
        'a migration that ended holds something'
    )
    found = guests(cloud, instance)
    assert list(found) == [host], found
    assert found[host][0] == {'ACTIVE': 'running', 'PAUSED': 'paused'}[status]


def completed(cloud, instance, host, status='ACTIVE'):
    """Assert that a server's newest migration ended well, at a host."""
    found = migration(cloud, instance)
    assert (found['status'], found['dest_compute']) == ('completed', host)
    assert result(cloud, instance) == ('Success', None)
    moved(cloud, instance, host, status)


def failed(cloud, instance, before, why, status='failed'):
    """Assert that a server's newest migration was undone without a trace, and that its action shows why.

    :param before: what :func:`everything` said before it was asked for.
    :param why: words that the message has.
    """
    assert migration(cloud, instance)['status'] == status
    outcome, message = result(cloud, instance)
    assert outcome == 'Error'
    assert why in message, message
    assert in_progress(cloud, instance) == []
    assert everything(cloud) == before


def history(cloud, instance):
    """Return the statuses that a server's newest migration has had, in order."""
    return [entry['status'] for entry in cloud.history_of(cloud.migrations(instance)[-1])]


def when(cloud, instance, *statuses, within=60):
    """Let the cloud run until a server's newest migration has one of some statuses."""

    def so():
        status = cloud.migrations(instance)[-1].status
        assert status in statuses or status not in ENDS, f'it is {status} already'
        return status in statuses

    cloud.simulation.run_until(so, timeout=within)


def step(cloud, instance, name, state='intent', direction='do'):
    """Return whether the log of a server's newest migration has a step in a state."""
    records = cloud.database.migrations.steps(cloud.migrations(instance)[-1].uuid)
    return any((one.step, one.state, one.direction) == (name, state, direction) for one in records)


class Outage:
    """The database refuses to begin a transaction that writes, for some seconds of the cloud's clock."""

    def __init__(self, cloud, seconds):
        self.refused = 0
        self._until = cloud.simulation.time + seconds
        self._cloud = cloud
        cloud.database.engine.boundary = self._at

    def _at(self, what):
        if what == 'begin' and self._cloud.simulation.time < self._until:
            self.refused += 1
            raise exception.DatabaseUnreachable(reason='planned by the test')


# --- what happens to processes ---------------------------------------------------------------------------------------


def kill(cloud, name):
    """Kill -9 a process: ``api``, ``conductor1``, ``host1``."""
    cloud.kill(name)


def restart(cloud, host):
    """Start the compute service of a host anew, and return when a conductor has answered it."""
    cloud.start_compute(host)
    cloud.simulation.run_until(cloud.up)
