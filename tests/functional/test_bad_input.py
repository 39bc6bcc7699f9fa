# SPDX-License-Identifier: Apache-2.0


"""Bad input: each has its code and a message that says what would do, and leaves nothing half done.

What the API can see by itself is refused at once, at every version, and there is no migration then; the tests of
``migrator/api`` have every such case, and here is one of each code. What only the conductor finds out is, below 2.34,
the answer to the request too; from 2.34 the request is accepted, and the end of the migration and of its action say so.
Either way everything is as it was before.
"""

import pytest

from tests.functional import state

#: One on either side of 2.34; and with force, which 2.68 has no longer.
VERSIONS = ['2.30', '2.80']
FORCED = ['2.30', '2.67']
NO_MEMORY = 'No host can take the instance: host2: it has 5536 of MEMORY_MB free, and 8192 are needed'

NAMES = {400: 'badRequest', 401: 'unauthorized', 404: 'itemNotFound', 409: 'conflictingRequest'}


def reported(response, code, *words):
    """Assert that a response is an error of nova's form, with these words in its message."""
    assert response.status_int == code, response.text
    assert list(response.json) == [NAMES[code]]
    error = response.json[NAMES[code]]
    assert error['code'] == code
    for word in words:
        assert word in error['message'], error['message']


def ask(cloud, instance, version, token='admin', **arguments):
    """Ask for a migration, by default to any host."""
    body = {'os-migrateLive': {'host': None, 'block_migration': 'auto', **arguments}}
    return cloud.request('POST', f'/servers/{instance.uuid}/action', body, version=version, token=token)


# --- what only the conductor finds out -------------------------------------------------------------------------------


def forced_down(cloud, _instance):
    state.force_down(cloud, 'host3')


def source_forced_down(cloud, _instance):
    state.force_down(cloud, 'host1')


def killed(cloud, _instance):
    state.kill(cloud, 'host3')
    cloud.simulation.advance(75)
    assert state.service(cloud, 'host3')['state'] == 'down'


def full(*hosts):
    """Return what leaves no room at some hosts."""

    def fill(cloud, _instance):
        for host in hosts:
            cloud.boot(f'big-{host}', host, memory_mb=50000 if host == 'host1' else 60000)

    return fill


def shrunk(cloud, _instance):
    """The hypervisor has less than what was reported when the service started."""
    cloud.world.hypervisors['host3'].capacity.totals['MEMORY_MB'] = 4096


def disable(cloud, host):
    service = state.service(cloud, host)['id']
    assert cloud.request('PUT', f'/os-services/{service}', {'status': 'disabled'}).status_int == 200


def disabled(cloud, _instance):
    disable(cloud, 'host3')


def disabled_and_forced_down(cloud, _instance):
    disable(cloud, 'host2')
    state.force_down(cloud, 'host3')


def shut_off(cloud, instance):
    """The database does not know of it."""
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)


def without_allocation(cloud, instance):
    assert cloud.placement.adapter().delete(f'/allocations/{instance.uuid}').status_code == 204


def nothing(_cloud, _instance):
    pass


#: What makes it so, how a migration is asked for and at which versions, and the message.
FOUND = {
    'forced down': (forced_down, {'host': 'host3'}, VERSIONS, 'host3 is unavailable at this time: it is forced down'),
    'source forced down': (source_forced_down, {}, VERSIONS, 'host1 is unavailable at this time: it is forced down'),
    'down': (killed, {'host': 'host3'}, VERSIONS, 'is unavailable at this time: it is down, and last reported at 20'),
    'disabled': (disabled, {'host': 'host3'}, VERSIONS, 'host3 is unavailable at this time: it is disabled'),
    'disabled, and not forced': (
        disabled, {'host': 'host3', 'force': False}, FORCED, 'host3 is unavailable at this time: it is disabled',
    ),
    'own host': (nothing, {'host': 'host1'}, ['2.34', '2.80'], 'to current host host1'),
    'too full': (full('host3'), {'host': 'host3'}, VERSIONS, 'Host host3 cannot take the instance: it has '),
    'forced and too full': (
        full('host3'), {'host': 'host3', 'force': True}, FORCED, 'Placement refused the allocation at host3',
    ),
    'too small by its hypervisor': (
        shrunk, {'host': 'host3'}, VERSIONS, 'Host host3 has no room for instance {uuid}: 8192 of MEMORY_MB are needed',
    ),
    'every other host is full': (full('host2', 'host3'), {}, VERSIONS, f'{NO_MEMORY}; host3: it has '),
    'every host is full': (full('host1', 'host2', 'host3'), {}, ['2.80'], f'{NO_MEMORY}; host3: it has '),
    'disabled or down': (
        disabled_and_forced_down, {}, VERSIONS, 'host2: it is disabled; host3: it is forced down',
    ),
    'shut off': (shut_off, {'host': 'host2'}, VERSIONS, 'guest {uuid} is shutdown at host1'),
    'no allocation': (without_allocation, {}, VERSIONS, 'Instance {uuid} has no allocation'),
    'shared storage': (
        nothing, {'host': 'host2', 'block_migration': True}, VERSIONS, 'storage is shared: request block_migration',
    ),
}  # fmt: skip

MARKS = {
    'down': pytest.mark.simulated(reason='it waits for more than a minute'),
    'too small by its hypervisor': pytest.mark.simulated(reason='it makes a hypervisor lie about its size'),
    'no allocation': pytest.mark.breaks('I3', 'I5', reason='the test takes the allocation away by hand'),
}


@pytest.mark.nova_bug(1712008, 1729356, 2153425)
@pytest.mark.parametrize(
    ('case', 'version'),
    [
        pytest.param(case, version, marks=MARKS.get(case, ()))
        for case, (_, _, versions, _) in FOUND.items()
        for version in versions
    ],
)
def test_request_refused_by_conductor_fails_migration_and_changes_nothing(cloud, case, version):
    """Force skips the choice, never the claim; the host's own limits count too, at the moment of the move."""
    prepare, arguments, _, words = FOUND[case]
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    prepare(cloud, instance)
    before = state.everything(cloud)
    response = ask(cloud, instance, version, **arguments)
    words = words.format(uuid=instance.uuid)
    if version == '2.30':
        reported(response, 400, words)
    else:
        assert (response.status_int, response.body) == (202, b'')
    cloud.wait()
    state.failed(cloud, instance, before, words)


def test_what_has_filled_a_host_a_moment_ago_is_in_the_reason(cloud):
    """What the hosts lack is asked for again, as the list of those with room is."""
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    full('host3')(cloud, instance)
    reported(ask(cloud, instance, '2.30', host='host3'), 400, 'Host host3 cannot take the instance: it has 5536 of')
    full('host2')(cloud, instance)
    reported(ask(cloud, instance, '2.30'), 400, f'{NO_MEMORY}; host3: it has 5536 of')


@pytest.mark.parametrize(('version', 'arguments'), [('2.29', {}), ('2.30', {'force': True}), ('2.67', {'force': True})])
def test_a_disabled_host_that_is_named_is_taken_where_nova_forces_it(cloud, version, arguments):
    instance = cloud.boot('one', 'host1')
    disable(cloud, 'host2')
    assert ask(cloud, instance, version, host='host2', **arguments).status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2')


# --- what the API sees -----------------------------------------------------------------------------------------------


def stopped(cloud, instance):
    cloud.database.instances.update(instance.uuid, vm_state='stopped')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)


@pytest.mark.nova_bug(1785031)
@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.parametrize(
    ('prepare', 'arguments', 'code', 'words'),
    [
        (nothing, {'host': 'nowhere'}, 400, 'Compute host nowhere could not be found'),
        (nothing, {'force': 'perhaps'}, 400, 'force'),
        (nothing, {'token': ''}, 401, 'X-Auth-Token'),
        (nothing, {'token': 'eve:other'}, 404, 'Instance {uuid} could not be found'),
        (stopped, {}, 409, "Cannot 'os-migrateLive' instance {uuid} while it is in vm_state stopped"),
    ],
    ids=['unknown host', 'form', 'no token', "another project's", 'stopped'],
)
def test_request_refused_by_api_leaves_no_migration_and_no_action(cloud, version, prepare, arguments, code, words):
    """A bad host was looked at after the state had been changed, and left the server migrating."""
    instance = cloud.boot('one', 'host1')
    prepare(cloud, instance)
    before = state.everything(cloud)
    reported(ask(cloud, instance, version, **arguments), code, words.format(uuid=instance.uuid))
    assert state.everything(cloud) == before
    assert state.migrations(cloud, instance) == []
    assert state.get(cloud, f'/servers/{instance.uuid}/os-instance-actions')['instanceActions'] == []


@pytest.mark.simulated(reason='it looks twice at the same moment')
def test_a_server_that_is_being_migrated_is_a_409_and_the_migration_goes_on(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    cloud.live_migrate(instance, 'host2')
    for status in ('preparing', 'running'):
        if status == 'running':
            state.when(cloud, instance, status)
        before = state.everything(cloud)
        reported(cloud.live_migrate(instance, 'host3'), 409, instance.uuid, 'task_state migrating')
        assert state.everything(cloud) == before
    cloud.wait()
    assert len(state.migrations(cloud, instance)) == 1
    state.completed(cloud, instance, 'host2')
