# SPDX-License-Identifier: Apache-2.0

"""Shared parts of the tests of aborts and of force complete: requests, statuses, and the checks."""

from migrator.context import RequestContext
from tests.functional import state
from tests.functional.faults import faults

#: The requester, unless a test has another one: ``user_id`` and project of a token of noauth2.
WHO = 'admin'
#: The tables with what REST shows of migrations and drains.
SHOWN = ('drains', 'drain_members', 'migrations')


def path(cloud, instance):
    """Return the path of a server's newest migration."""
    return f'/servers/{instance.uuid}/migrations/{cloud.migrations(instance)[-1].id}'


def abort(cloud, instance, version='2.80', token=WHO):
    """Ask for the abort of a server's newest migration, and return the response."""
    return cloud.request('DELETE', path(cloud, instance), version=version, token=token)


def force_complete(cloud, instance, version='2.80', token=WHO):
    """Ask for the end of a server's newest migration, and return the response."""
    body = {'force_complete': None}
    return cloud.request('POST', f'{path(cloud, instance)}/action', body, version=version, token=token)


def refused(response, code, *words):
    """Assert that a request was refused with a code, in nova's form, and that the message has these words."""
    assert response.status_int == code, response.text
    error = response.json[{400: 'badRequest', 403: 'forbidden', 404: 'itemNotFound', 409: 'conflictingRequest'}[code]]
    assert error['code'] == code
    for word in words:
        assert word in error['message'], error['message']


def until(cloud, condition, timeout=60):
    """Let time pass until a condition holds of what REST shows of migrations and drains.

    A request costs more than a simulated second, so that it is asked only after a write.
    """
    written = None

    def holds():
        nonlocal written
        before, written = written, sum(cloud.backend.writes[table] for table in SHOWN)
        return written != before and condition()

    cloud.simulation.run_until(holds, timeout=timeout)


# --- how to get to a status ------------------------------------------------------------------------------------------


def accepted(cloud, instance):
    """Request a migration that no conductor takes yet: its wake-up is lost."""
    cloud.bus.faults = lambda message: 'lose' if message.method == 'live_migrate' else None
    assert cloud.live_migrate(instance).status_int == 202
    cloud.bus.faults = lambda message: None
    assert state.migration(cloud, instance)['status'] == 'accepted'


def preparing(cloud, instance, seconds=30.0):
    """Ask for a migration whose destination takes its time to prepare, looking at its token every 0.1 s."""
    for hypervisor in cloud.world.hypervisors.values():
        hypervisor.pre_seconds = seconds
    assert cloud.live_migrate(instance).status_int == 202
    cloud.simulation.run_until(lambda: state.step(cloud, instance, 'pre_live_migration'))
    cloud.simulation.advance(1)
    assert state.migration(cloud, instance)['status'] == 'preparing'


def queued(cloud, instance):
    """Ask for a migration that waits behind another of the same host, and return the other one's instance."""
    first = cloud.boot('first', instance.host, memory_mb=1024)
    faults(cloud, instance.host).stall('copying', instance_uuid=first.uuid, sticky=True)
    assert cloud.live_migrate(first).status_int == 202
    state.when(cloud, first, 'running')
    assert cloud.live_migrate(instance).status_int == 202
    state.when(cloud, instance, 'queued')
    cloud.simulation.run_until(lambda: any(cloud.waiting().values()))
    return first


def running(cloud, instance):
    """Ask for a migration whose copy does not get on."""
    faults(cloud, instance.host).stall('copying', instance_uuid=instance.uuid, sticky=True)
    assert cloud.live_migrate(instance).status_int == 202
    state.when(cloud, instance, 'running')


def post_copy(cloud, instance):
    """Have a migration in post-copy whose last pages do not come; needs hypervisors that can."""
    faults(cloud, instance.host).stall('postcopy', instance_uuid=instance.uuid, sticky=True)
    assert cloud.live_migrate(instance).status_int == 202
    state.when(cloud, instance, 'running')
    assert force_complete(cloud, instance).status_int == 202
    state.when(cloud, instance, 'running (post-copy)')


def post_migrating(cloud, instance):
    """Have a migration whose guest has moved, and whose source does not clean up yet."""
    faults(cloud, instance.host).stall('post_live_migration_at_source', instance_uuid=instance.uuid, sticky=True)
    assert cloud.live_migrate(instance).status_int == 202
    state.when(cloud, instance, 'post-migrating')


#: Status -> what brings a migration there.
TO = {
    'accepted': accepted,
    'preparing': preparing,
    'queued': queued,
    'running': running,
    'running (post-copy)': post_copy,
    'post-migrating': post_migrating,
}


def go_on(cloud):
    """Let everything that hangs go on."""
    for hypervisor in cloud.world.hypervisors.values():
        hypervisor.faults.clear()
        hypervisor.pre_seconds = 0.0


def go_on_with(cloud, instance):
    """Let the copy of one guest go on, and leave the others."""
    planted = faults(cloud, instance.host)
    for fault in planted.planted:
        if fault.instance_uuid == instance.uuid:
            fault.sticky = False
            fault.stall.release()


# --- what is seen of it ----------------------------------------------------------------------------------------------


def actions(cloud, instance, name):
    """Return the actions of one kind of a server, the oldest first, each with its events."""
    url = f'/servers/{instance.uuid}/os-instance-actions'
    listed = [one for one in state.get(cloud, url)['instanceActions'] if one['action'] == name]
    return [state.get(cloud, f'{url}/{one["request_id"]}')['instanceAction'] for one in reversed(listed)]


def verdict(cloud, instance, name='live_migration_cancel'):
    """Return (result, message) of the one action of a kind that a server has."""
    (found,) = actions(cloud, instance, name)
    (event,) = found['events']
    assert event['event'] == f'conductor_{name}'
    return event['result'], found['message']


def context():
    """Return the requester of a request that is written past the API."""
    return RequestContext(user_id=WHO, project_id=WHO, is_admin=True)


def at(cloud, row):
    """Return a migration as it is now."""
    return cloud.database.migrations.get(row.uuid)


def without(cloud, instance, waits=True):
    """Return what :func:`state.everything` would say if a server had never been asked to be migrated.

    :param waits: whether it is in the queue.
    """
    found = state.everything(cloud)
    row = cloud.migrations(instance)[-1]
    found['servers'][instance.uuid] |= {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None}
    found['allocations'][instance.uuid] = found['allocations'].pop(row.uuid)
    found['guests'][instance.uuid].pop(row.dest_compute)
    here, _, parts = found['guests'][instance.uuid][row.source_compute]
    found['guests'][instance.uuid][row.source_compute] = (here, False, parts)
    if waits:
        found['waiting'][row.source_compute].remove(row.uuid)
    return found


def calls(cloud, host, phase, instance):
    """Return a counter of the calls of a driver's method for a guest: each is answered truly, and counted."""
    return faults(cloud, host).lie(phase, lambda truth: truth, sticky=True, instance_uuid=instance.uuid)


def effects(cloud, instance, *names):
    """Return (host, effect) of what hypervisors have done with a guest, in order."""
    return [
        (one.host, one.effect) for one in cloud.world.log if one.instance_uuid == instance.uuid and one.effect in names
    ]


def cancelled(cloud, instance, before):
    """Assert that a server's newest migration was cancelled on request, without a trace.

    :param before: what :func:`state.everything` said before it was asked for.
    """
    row = cloud.migrations(instance)[-1]
    assert (row.status, row.abort_verdict) == ('cancelled', 'cancelled')
    assert row.abort_requested_at is not None
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    assert state.in_progress(cloud, instance) == []
    assert verdict(cloud, instance) == ('Success', None)
    whole = actions(cloud, instance, 'live-migration')[-1]
    assert 'Aborted' in whole['message']
    assert state.everything(cloud) == before
    assert state.server(cloud, instance)['status'] == 'ACTIVE'


def completed(cloud, instance, host='host2'):
    """Assert that a server's newest migration ended well, at a host, and that the action shows it."""
    found = state.migration(cloud, instance)
    assert (found['status'], found['dest_compute']) == ('completed', host)
    whole = actions(cloud, instance, 'live-migration')[-1]
    assert (whole['message'], whole['events'][-1]['result']) == (None, 'Success')
    state.moved(cloud, instance, host)


def too_late(cloud, instance, host='host2'):
    """Assert that an abort came too late: the migration completed, and the abort's action says why."""
    row = cloud.migrations(instance)[-1]
    assert row.status == 'completed'
    assert row.abort_verdict.startswith('completed: ')
    assert verdict(cloud, instance) == ('Error', row.abort_verdict)
    state.moved(cloud, instance, host)
