# SPDX-License-Identifier: Apache-2.0


"""Bad input: each has its code and a message that says what would do, and leaves nothing half done.

What the API can see by itself is refused at once, at every version, and there is no migration then. What only the
conductor finds out is, below 2.34, the answer to the request too; from 2.34 the request is accepted, and the end of
the migration and of its action tell. Either way everything is as it was before.
"""

import pytest

from migrator.api import app
from migrator.conductor import rpcapi
from migrator.context import RequestContext
from tests.functional import seen

#: One on either side of 2.34.
VERSIONS = ['2.30', '2.80']

NAMES = {
    400: 'badRequest', 401: 'unauthorized', 403: 'forbidden', 404: 'itemNotFound', 409: 'conflictingRequest',
    501: 'notImplemented',
}  # fmt: skip


def told(response, code, *words):
    """Assert that a response is an error of nova's form, with these words in its message."""
    assert response.status_int == code, response.text
    assert list(response.json) == [NAMES[code]]
    error = response.json[NAMES[code]]
    assert error['code'] == code
    for word in words:
        assert word in error['message'], error['message']


def refused(cloud, instance, before, response, code, *words):
    """Assert that the API itself has refused: nothing was written."""
    told(response, code, *words)
    assert seen.everything(cloud) == before
    assert seen.migrations(cloud, instance) == []
    assert seen.get(cloud, f'/servers/{instance.uuid}/os-instance-actions')['instanceActions'] == []


def ends_failed(cloud, instance, before, response, version, words):
    """Assert that the conductor found out: the answer below 2.34, the migration and its action from there."""
    if tuple(map(int, version.split('.'))) < (2, 34):
        told(response, 400, words)
    else:
        assert (response.status_int, response.body) == (202, b'')
    cloud.wait()
    seen.failed(cloud, instance, before, words)


# --- the host --------------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1785031)
@pytest.mark.parametrize('version', VERSIONS)
def test_an_unknown_host_is_a_400_and_nothing_has_changed(cloud, version):
    """A bad host was looked at after the state had been changed, and left the server migrating."""
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'nowhere', version=version)
    refused(cloud, instance, before, response, 400, 'Compute host nowhere could not be found', 'compute services')


@pytest.mark.parametrize('version', VERSIONS)
def test_a_host_that_is_forced_down_is_refused(cloud, version):
    instance = cloud.boot('one', 'host1')
    seen.force_down(cloud, 'host3')
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'host3', version=version)
    words = 'Compute service of host3 is unavailable at this time: it is forced down'
    ends_failed(cloud, instance, before, response, version, words)


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.simulated(reason='it waits for more than a minute')
def test_a_host_that_has_not_been_heard_of_for_a_minute_is_refused(cloud, version):
    instance = cloud.boot('one', 'host1')
    seen.kill(cloud, 'host3')
    cloud.simulation.advance(75)
    assert seen.service(cloud, 'host3')['state'] == 'down'
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'host3', version=version)
    words = 'Compute service of host3 is unavailable at this time: it is down, and last reported at 20'
    ends_failed(cloud, instance, before, response, version, words)


@pytest.mark.parametrize('version', ['2.1', '2.30'])
def test_the_servers_own_host_is_refused_at_once_below_2_34(cloud, version):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'host1', version=version)
    refused(cloud, instance, before, response, 400, f'Unable to migrate instance {instance.uuid} to current host host1')


@pytest.mark.parametrize('version', ['2.34', '2.80'])
def test_the_servers_own_host_fails_the_migration_from_2_34(cloud, version):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'host1', version=version)
    ends_failed(cloud, instance, before, response, version, 'to current host host1')


@pytest.mark.parametrize('version', VERSIONS)
def test_a_named_host_that_is_too_full_is_refused(cloud, version):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    cloud.boot('big', 'host3', memory_mb=60000)
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'host3', version=version)
    words = 'No valid host was found. Placement has no room for the instance on host host3'
    ends_failed(cloud, instance, before, response, version, words)


@pytest.mark.nova_bug(1712008)
@pytest.mark.parametrize('version', ['2.30', '2.67'])
def test_a_host_that_is_too_full_is_not_forced(cloud, version):
    """Force skips the choice, never the claim."""
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    cloud.boot('big', 'host3', memory_mb=60000)
    before = seen.everything(cloud)
    arguments = {'host': 'host3', 'block_migration': 'auto', 'force': True}
    path = f'/servers/{instance.uuid}/action'
    response = cloud.request('POST', path, {'os-migrateLive': arguments}, version=version)
    ends_failed(cloud, instance, before, response, version, 'Placement refused the allocation at host3')


@pytest.mark.nova_bug(2153425)
@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.simulated(reason='it makes a hypervisor lie about its size')
def test_a_host_whose_hypervisor_says_that_it_is_too_small_is_refused(cloud, version):
    """The host's own limits count too, at the moment of the move."""
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    # less than what was reported when the service started
    cloud.world.hypervisors['host3'].capacity.totals['MEMORY_MB'] = 4096
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'host3', version=version)
    words = f'Host host3 has no room for instance {instance.uuid}: 8192 of MEMORY_MB are needed, 4096 are free'
    ends_failed(cloud, instance, before, response, version, words)


@pytest.mark.parametrize('version', VERSIONS)
def test_when_every_host_is_full_no_valid_host_is_found(cloud, version):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    for host in ('host2', 'host3'):
        cloud.boot(f'big-{host}', host, memory_mb=60000)
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, version=version)
    why = 'No valid host was found. No host that has room in Placement'
    ends_failed(cloud, instance, before, response, version, why)


def test_when_no_host_at_all_has_room_that_is_said(cloud):
    big = cloud.boot('big', 'host1', memory_mb=40000)
    for host in ('host2', 'host3'):
        cloud.boot(f'big-{host}', host, memory_mb=40000)
    before = seen.everything(cloud)
    response = cloud.live_migrate(big)
    ends_failed(cloud, big, before, response, '2.80', 'Placement has no room for the instance on any host.')


@pytest.mark.parametrize('version', VERSIONS)
def test_hosts_that_are_disabled_or_down_are_not_chosen_and_the_message_says_which(cloud, version):
    instance = cloud.boot('one', 'host1')
    disabled = seen.service(cloud, 'host2')['id']
    assert cloud.request('PUT', f'/os-services/{disabled}', {'status': 'disabled'}).status_int == 200
    seen.force_down(cloud, 'host3')
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, version=version)
    ends_failed(cloud, instance, before, response, version, 'host2: it is disabled; host3: it is forced down')


def test_a_disabled_host_that_is_named_is_taken(cloud):
    instance = cloud.boot('one', 'host1')
    disabled = seen.service(cloud, 'host2')['id']
    assert cloud.request('PUT', f'/os-services/{disabled}', {'status': 'disabled'}).status_int == 200
    cloud.live_migrate(instance, 'host2')
    cloud.wait()
    seen.completed(cloud, instance, 'host2')


# --- the instance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('version', VERSIONS)
def test_a_server_that_is_not_active_or_paused_is_a_409(cloud, version):
    instance = cloud.boot('one', 'host1', vm_state='stopped')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, version=version)
    words = f"Cannot 'os-migrateLive' instance {instance.uuid} while it is in vm_state stopped"
    refused(cloud, instance, before, response, 409, words)


@pytest.mark.parametrize('version', VERSIONS)
def test_a_server_that_is_active_in_the_books_and_shut_off_on_its_host_fails_its_check(cloud, version):
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, 'host2', version=version)
    ends_failed(cloud, instance, before, response, version, f'guest {instance.uuid} is shutdown at host1')


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.simulated(reason='it looks twice at the same moment')
def test_a_server_that_is_being_migrated_is_a_409_and_the_migration_goes_on(cloud, version):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    cloud.live_migrate(instance, 'host2')
    for status in ('preparing', 'running'):
        if status == 'running':
            seen.when(cloud, instance, status)
        before = seen.everything(cloud)
        response = cloud.live_migrate(instance, 'host3', version=version)
        told(response, 409, instance.uuid, 'task_state migrating')
        assert seen.everything(cloud) == before
    cloud.wait()
    assert len(seen.migrations(cloud, instance)) == 1
    seen.completed(cloud, instance, 'host2')


@pytest.mark.parametrize('version', VERSIONS)
def test_an_unknown_server_is_a_404(cloud, version):
    unknown = '3f2504e0-4f89-41d3-9a0c-0305e82c3301'
    told(cloud.live_migrate(unknown, version=version), 404, f'Instance {unknown} could not be found')


@pytest.mark.nova_bug(1729356)
@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.breaks('I3', 'I5', reason='the test takes the allocation of the instance away by hand')
def test_a_server_without_an_allocation_is_told_so_and_not_moved(cloud, version):
    """A misleading message where the allocation was missing."""
    instance = cloud.boot('one', 'host1')
    answer = cloud.placement.adapter().delete(f'/allocations/{instance.uuid}')
    assert answer.status_code == 204
    before = seen.everything(cloud)
    response = cloud.live_migrate(instance, version=version)
    ends_failed(cloud, instance, before, response, version, f'Instance {instance.uuid} has no allocation')


@pytest.mark.parametrize('version', VERSIONS)
def test_block_migration_where_the_storage_is_shared_fails_the_check(cloud, version):
    instance = cloud.boot('one', 'host1')
    arguments = {'host': 'host2', 'block_migration': True}
    before = seen.everything(cloud)
    path = f'/servers/{instance.uuid}/action'
    response = cloud.request('POST', path, {'os-migrateLive': arguments}, version=version)
    words = 'Migration pre-check error: storage is shared: request block_migration False or auto'
    ends_failed(cloud, instance, before, response, version, words)


# --- the form --------------------------------------------------------------------------------------------------------

OF_2_1 = {'host': None, 'block_migration': False, 'disk_over_commit': False}
OF_2_25 = {'host': None, 'block_migration': 'auto'}


@pytest.mark.parametrize('host', [None, 'host2'])
@pytest.mark.parametrize('version', ['2.30', '2.67'])
def test_force_needs_a_host_to_force(cloud, version, host):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    arguments = {**OF_2_25, 'host': host, 'force': True}
    path = f'/servers/{instance.uuid}/action'
    response = cloud.request('POST', path, {'os-migrateLive': arguments}, version=version)
    if host is None:
        refused(cloud, instance, before, response, 400, 'Force cannot be used without a host')
    else:
        assert response.status_int == 202


FORMS = {
    '2.1': [
        ({**OF_2_1, 'force': True}, 'force'),
        ({**OF_2_1, 'block_migration': 'auto'}, 'block_migration'),
        ({**OF_2_1, 'block_migration': 1}, 'block_migration'),
        ({**OF_2_1, 'block_migration': None}, 'block_migration'),
        ({**OF_2_1, 'disk_over_commit': 'perhaps'}, 'disk_over_commit'),
        ({**OF_2_1, 'host': 7}, 'host'),
        ({**OF_2_1, 'host': ''}, 'host'),
        ({**OF_2_1, 'host': 'a host'}, 'host'),
        ({**OF_2_1, 'host': 'h' * 256}, 'host'),
        ({'host': None}, 'block_migration'),
    ],
    '2.24': [
        ({'host': None, 'block_migration': False}, 'disk_over_commit'),
    ],
    '2.25': [
        (OF_2_1, 'disk_over_commit'),
        ({**OF_2_25, 'force': False}, 'force'),
        ({**OF_2_25, 'block_migration': 'maybe'}, 'block_migration'),
        ({'block_migration': 'auto'}, 'host'),
    ],
    '2.30': [
        ({**OF_2_25, 'force': 'perhaps'}, 'force'),
        ({**OF_2_25, 'disk_over_commit': False}, 'disk_over_commit'),
    ],
    '2.34': [
        ({**OF_2_25, 'force': None}, 'force'),
        ({**OF_2_25, 'availability_zone': 'nova'}, 'availability_zone'),
    ],
    '2.68': [
        ({**OF_2_25, 'force': False}, 'force'),
    ],
    '2.80': [
        ({**OF_2_25, 'force': True}, 'force'),
        ({**OF_2_25, 'host': ['host2']}, 'host'),
        ({}, 'host'),
        (None, 'os-migrateLive'),
        ([], 'os-migrateLive'),
    ],
}


@pytest.mark.parametrize('version', FORMS)
def test_a_form_that_its_version_does_not_have_is_a_400_that_names_the_field(cloud, version):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    for arguments, word in FORMS[version]:
        path = f'/servers/{instance.uuid}/action'
        response = cloud.request('POST', path, {'os-migrateLive': arguments}, version=version)
        refused(cloud, instance, before, response, 400, word)


def test_a_body_that_is_no_action_is_a_400(cloud):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    for body in ({}, [], {'os-migrateLive': OF_2_25, 'unlock': None}):
        refused(cloud, instance, before, cloud.request('POST', f'/servers/{instance.uuid}/action', body), 400)


@pytest.mark.parametrize(('version', 'code'), [('2.999', 406), ('3.1', 406), ('2.x', 400), ('two', 400)])
def test_a_version_that_is_not_there_changes_nothing(cloud, version, code):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    path = f'/servers/{instance.uuid}/action'
    response = cloud.request('POST', path, {'os-migrateLive': OF_2_25}, version=version)
    assert response.status_int == code
    assert version.replace('x', '') in response.text
    assert seen.everything(cloud) == before


# --- who asks --------------------------------------------------------------------------------------------------------


def ask_as(cloud, *roles):
    """Have everybody who asks from now on be a user of the guests' project with these roles."""

    def known(handle):
        def authenticated(request):
            request.environ['migrator.context'] = RequestContext(
                user_id='eve', project_id='demo', roles=list(roles), request_id=request.request_id, overwrite=False
            )
            return handle(request)

        return authenticated

    threads = cloud.threads_for('api')
    door = rpcapi.ConductorAPI(cloud._rpc('api', 'api:eve'))
    cloud.app = app.make_app(cloud.conf(), cloud.database_of(threads), door, threads, auth=known)


MANAGER = ('manager', 'member', 'reader')
MEMBER = ('member', 'reader')


@pytest.mark.parametrize('version', VERSIONS)
def test_without_a_token_it_is_a_401(cloud, version):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    path = f'/servers/{instance.uuid}/action'
    response = cloud.request('POST', path, {'os-migrateLive': OF_2_25}, version=version, token='')
    refused(cloud, instance, before, response, 401, 'X-Auth-Token')


@pytest.mark.parametrize('version', VERSIONS)
def test_another_projects_server_is_a_404_that_says_no_more_than_of_one_that_is_not_there(cloud, version):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    path = f'/servers/{instance.uuid}/action'
    response = cloud.request('POST', path, {'os-migrateLive': OF_2_25}, version=version, token='eve:other')
    refused(cloud, instance, before, response, 404, f'Instance {instance.uuid} could not be found')


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.simulated(reason='it plays the middleware that says who asks')
def test_a_member_of_the_project_may_not_migrate_and_the_message_names_the_policy(cloud, version):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    admins = cloud.app
    ask_as(cloud, *MEMBER)
    response = cloud.live_migrate(instance, version=version)
    cloud.app = admins
    refused(cloud, instance, before, response, 403, 'os_compute_api:os-migrate-server:migrate_live to be performed')


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.simulated(reason='it plays the middleware that says who asks')
def test_a_manager_of_the_project_may_migrate_and_may_not_name_the_host(cloud, version):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    admins = cloud.app
    ask_as(cloud, *MANAGER)
    response = cloud.live_migrate(instance, 'host2', version=version)
    accepted = cloud.live_migrate(instance, version=version)
    cloud.app = admins
    told(response, 403, 'os_compute_api:os-migrate-server:migrate_live:host')
    assert accepted.status_int == 202
    cloud.wait()
    assert before['servers'][instance.uuid]['OS-EXT-SRV-ATTR:host'] == 'host1'
    seen.completed(cloud, instance, 'host2')


@pytest.mark.parametrize('version', ['2.1', '2.30'])
@pytest.mark.simulated(reason='it plays the middleware that says who asks')
def test_who_may_not_see_hosts_is_told_why_without_their_names(cloud, version):
    instance = cloud.boot('one', 'host1')
    for host in ('host2', 'host3'):
        seen.force_down(cloud, host)
    before = seen.everything(cloud)
    admins = cloud.app
    ask_as(cloud, *MANAGER)
    response = cloud.live_migrate(instance, version=version)
    cloud.app = admins
    told(response, 400, 'No valid host was found', '<host>: it is forced down')
    assert 'host2' not in response.text
    seen.failed(cloud, instance, before, 'host2: it is forced down')


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.simulated(reason='it plays the middleware that says who asks')
def test_a_locked_server_is_a_409_but_for_an_administrator(cloud, version):
    instance = cloud.boot('one', 'host1')
    assert cloud.request('POST', f'/servers/{instance.uuid}/action', {'lock': None}).status_int == 202
    before = seen.everything(cloud)
    admins = cloud.app
    ask_as(cloud, *MANAGER)
    response = cloud.live_migrate(instance, version=version)
    cloud.app = admins
    refused(cloud, instance, before, response, 409, f'Instance {instance.uuid} is locked')
    assert cloud.live_migrate(instance, version=version).status_int == 202
    cloud.wait()
    seen.completed(cloud, instance, 'host2')


# --- limits, and what is not served ----------------------------------------------------------------------------------


@pytest.mark.cloud(options={'api.max_queued_live_migrations': 2})
def test_a_queue_that_is_full_takes_no_more_and_says_which_option(cloud):
    instances = [cloud.boot(f'vm{number}', 'host1', memory_mb=4096) for number in range(4)]
    # What is being prepared does not count.
    for instance, status in zip(instances, ('running', 'queued', 'queued'), strict=False):
        assert cloud.live_migrate(instance).status_int == 202
        seen.when(cloud, instance, status)
    before = seen.everything(cloud)
    response = cloud.live_migrate(instances[3])
    refused(cloud, instances[3], before, response, 403, 'host1', 'max_queued_live_migrations is 2')
    cloud.wait()


@pytest.mark.parametrize(
    ('method', 'path', 'body'),
    [
        ('POST', '/servers', {'server': {'name': 'one'}}),
        ('POST', '/servers/{uuid}/action', {'reboot': {'type': 'HARD'}}),
        ('POST', '/servers/{uuid}/action', {'resize': {'flavorRef': '1'}}),
        ('DELETE', '/servers/{uuid}', None),
        ('GET', '/images', None),
    ],
)
def test_what_is_not_served_says_so_and_touches_nothing(cloud, method, path, body):
    instance = cloud.boot('one', 'host1')
    before = seen.everything(cloud)
    response = cloud.request(method, path.format(uuid=instance.uuid), body)
    refused(cloud, instance, before, response, 501, 'migrator does not serve')
