# SPDX-License-Identifier: Apache-2.0

"""The real clients against the application, over HTTP on loopback."""

import json
import os
import pathlib
import re
import sys

import openstack
import pytest
from keystoneauth1 import session as ks_session
from keystoneauth1 import token_endpoint
from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from openstack import exceptions as sdk_exceptions

from migrator.objects import instance
from tests import forked

HERE = pathlib.Path(sys.executable).parent


def session_of(world, token='admin'):
    session = ks_session.Session(auth=token_endpoint.Token(world.url, token))
    session.session.trust_env = False
    return session


@pytest.fixture
def nova(served):
    def make(version='2.80', token='admin'):
        return nova_client.Client(version, session=session_of(served, token))

    return make


@pytest.fixture
def sdk(served):
    session = session_of(served)
    return openstack.connection.Connection(
        session=session, compute_endpoint_override=served.url, compute_default_microversion=None
    )


@pytest.fixture
def cli(served):
    """Run ``openstack`` or ``nova`` in a process of its own, and return its output."""

    def run(*args, client='openstack', fails=False):
        known = {'PATH': os.environ['PATH'], 'HOME': os.environ.get('HOME', '/'), 'NO_PROXY': '*'}
        auth = {
            'OS_AUTH_URL': served.auth_url, 'OS_USERNAME': 'admin', 'OS_PASSWORD': 'x', 'OS_PROJECT_NAME': 'admin',
            'OS_USER_DOMAIN_NAME': 'Default', 'OS_PROJECT_DOMAIN_NAME': 'Default', 'OS_IDENTITY_API_VERSION': '3',
        }  # fmt: skip
        command, options = [str(HERE / client), *args], {'env': known | auth, 'timeout': 60}
        done = forked.run(command, **options, modules=forked.CLIENTS)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


# --- python-novaclient -----------------------------------------------------------------------------------------------


def test_novaclient_lists_and_finds(served, nova):
    guest = served.guest('web')
    client = nova()
    assert [server.name for server in client.servers.list()] == ['web']
    assert client.servers.get(guest.uuid).status == 'ACTIVE'
    assert client.servers.find(name='web').id == guest.uuid
    assert [service.host for service in client.services.list(binary='nova-compute')] == ['source', 'dest', 'spare']
    assert len(client.hypervisors.list(detailed=True)) == 3
    assert client.hypervisors.search('dest')[0].hypervisor_hostname == 'dest.example.org'


@pytest.mark.parametrize('version', ['2.88', '2.90', '2.96'])
def test_novaclient_at_later_versions(served, nova, version):
    one = served.migration(served.guest('web'))
    client = nova(version)
    (server,) = client.servers.list()
    assert (server.name, server.status) == ('web', 'MIGRATING')
    assert [service.state for service in client.services.list(binary='nova-compute')] == ['up'] * 3
    assert client.hypervisors.list(detailed=True)[0].hypervisor_hostname == 'source.example.org'
    assert client.hypervisors.search('dest', servers=True)[0].servers == []
    assert [row.uuid for row in client.migrations.list(instance_uuid=one.instance_uuid)] == [one.uuid]
    action = client.instance_action.list(server)[0]
    assert client.instance_action.get(server, action.request_id).events[0]['details'] is None


@pytest.mark.parametrize('version', ['2.1', '2.24', '2.25', '2.30', '2.67', '2.68', '2.80', '2.96'])
def test_novaclient_live_migrates_in_every_form(served, nova, version):
    served.conductor.does = lambda uuid: served.move(uuid, checked_at='now')
    guest = served.guest()
    more = {'disk_over_commit': False} if version in ('2.1', '2.24') else {}
    block = False if more else 'auto'
    nova(version).servers.live_migrate(guest.uuid, 'dest', block, **more)
    (row,) = served.database.migrations.list()
    assert row.requested_host == 'dest'


@pytest.mark.parametrize('version', ['2.24', '2.65', '2.96'])
def test_novaclient_looks_aborts_and_forces(served, nova, version):
    one = served.migration(served.guest())
    client = nova(version)
    (seen,) = client.server_migrations.list(one.instance_uuid)
    assert seen.id == one.id
    assert client.server_migrations.get(one.instance_uuid, one.id).status == 'running'
    client.server_migrations.live_migration_abort(one.instance_uuid, one.id)
    client.server_migrations.live_migrate_force_complete(one.instance_uuid, one.id)
    row = served.database.migrations.get(one.uuid)
    assert row.abort_requested_at is not None
    assert row.force_complete_requested_at is not None
    assert [action.action for action in client.instance_action.list(one.instance_uuid)][-1] == 'live-migration'


@pytest.mark.parametrize('version', ['2.1', '2.23', '2.59', '2.66', '2.80'])
def test_novaclient_lists_migrations(served, nova, version):
    served.migration(served.guest())
    assert [one.status for one in nova(version).migrations.list(status='running')] == ['running']


@pytest.mark.parametrize('version', ['2.1', '2.13', '2.14', '2.28', '2.29', '2.67', '2.68', '2.96'])
def test_novaclient_evacuates_in_every_form(served, nova, version):
    served.force_down('source')
    one, another = served.guest(), served.guest()
    forced = {'force': True} if version in ('2.29', '2.67') else {}
    shared = {'on_shared_storage': False} if version in ('2.1', '2.13') else {}
    servers = nova(version).servers
    _, answer = servers.evacuate(one.uuid, 'dest', password='secret', **forced, **shared)
    assert answer == ({'adminPass': 'secret'} if shared else None)
    servers.evacuate(another.uuid)
    later, first = served.database.migrations.list()
    assert (first.requested_host, first.force) == ('dest', bool(forced))
    assert (later.requested_host, later.force) == (None, False)
    assert {row.migration_type for row in (first, later)} == {'evacuation'}
    assert {server.status for server in servers.list()} == {'REBUILD'}


def test_novaclient_resets_a_state(served, nova):
    guest = served.guest(vm_state='error')
    nova().servers.reset_state(guest.uuid, 'active')
    assert nova().servers.get(guest.uuid).status == 'ACTIVE'


@pytest.mark.parametrize('version', ['2.1', '2.53'])
def test_novaclient_changes_services_and_locks(served, nova, version):
    client = nova(version)
    if version == '2.1':
        client.services.disable('source', 'nova-compute')
    else:
        client.services.disable_log_reason(served.database.services.get_compute('source').uuid, 'broken fan')
    assert served.database.services.get_compute('source').disabled
    guest = served.guest()
    client.servers.lock(guest.uuid)
    assert served.database.instances.get(guest.uuid).locked
    client.servers.unlock(guest.uuid)
    assert not served.database.instances.get(guest.uuid).locked


def test_novaclient_reads_diagnostics_and_uptime(served, nova):
    guest = served.guest()
    assert nova('2.47').servers.diagnostics(guest.uuid)[1] == {'cpu0_time': 17, 'tap0_rx': 1}
    assert nova('2.80').servers.diagnostics(guest.uuid)[1]['cpu_details'][0]['time'] == 17
    node = served.database.services.list_nodes()[0]
    assert 'load average' in nova('2.80').hypervisors.uptime(node.uuid).uptime


@pytest.mark.parametrize('version', ['2.1', '2.55', '2.61', '2.80'])
def test_novaclient_reads_flavors_zones_and_groups_and_deletes_a_service(served, nova, version):
    served.guest(flavor=instance.Flavor(name='m1', extra_specs={'hw:cpu_policy': 'shared'}))
    client = nova(version)
    (flavor,) = client.flavors.list()
    assert client.flavors.get('m1').vcpus == 1
    assert flavor.get_keys() == {'hw:cpu_policy': 'shared'}
    assert [zone.zoneName for zone in client.availability_zones.list(detailed=True)] == ['nova']
    assert client.server_groups.list() == []
    service = client.services.list(host='spare')[0]
    client.services.delete(service.id)
    assert served.conductor.calls == [('delete_service', served.database.services.get_compute('spare').uuid)]


def test_novaclient_understands_the_errors(served, nova):
    guest = served.guest()
    with pytest.raises(nova_exceptions.BadRequest, match='Compute service of source is still in use'):
        nova().servers.evacuate(guest.uuid)
    with pytest.raises(nova_exceptions.NotFound, match='nowhere'):
        nova().servers.evacuate(guest.uuid, 'nowhere')
    with pytest.raises(nova_exceptions.BadRequest, match='nowhere'):
        nova().servers.live_migrate(guest.uuid, 'nowhere', 'auto')
    with pytest.raises(nova_exceptions.NotFound):
        nova().servers.get('11111111-2222-4333-8444-555555555555')
    with pytest.raises(nova_exceptions.Forbidden):
        nova(token='ada:blue').services.list()
    with pytest.raises(nova_exceptions.HTTPNotImplemented, match='does not serve'):
        nova().servers.reboot(guest.uuid)
    with pytest.raises(nova_exceptions.HTTPNotImplemented, match='does not serve'):
        nova().servers.delete(guest.uuid)


# --- openstacksdk ----------------------------------------------------------------------------------------------------


def test_the_sdk_lists_finds_and_live_migrates(served, sdk):
    guest = served.guest('web')
    served.conductor.does = lambda uuid: served.move(uuid, checked_at='now')
    assert [server.name for server in sdk.compute.servers()] == ['web']
    assert sdk.compute.find_server('web').id == guest.uuid
    assert {service.host for service in sdk.compute.services()} == {'source', 'dest', 'spare'}
    assert {hypervisor.name for hypervisor in sdk.compute.hypervisors(details=True)} == {
        'source.example.org', 'dest.example.org', 'spare.example.org',
    }  # fmt: skip
    sdk.compute.live_migrate_server(guest.uuid, host='dest', force=True, block_migration='auto')
    (row,) = served.database.migrations.list()
    assert (row.requested_host, row.force) == ('dest', True)
    served.move(row.uuid, status='running')
    (seen,) = sdk.compute.server_migrations(guest.uuid)
    assert seen.uuid == row.uuid
    sdk.compute.abort_server_migration(seen.id, guest.uuid)
    assert served.database.migrations.get(row.uuid).abort_requested_at is not None
    assert [one.status for one in sdk.compute.migrations()] == ['running']
    actions = list(sdk.compute.server_actions(guest.uuid))
    assert {action.action for action in actions} == {'live-migration', 'live_migration_cancel'}


def test_the_sdk_evacuates_and_resets_a_state(served, sdk):
    served.force_down('source')
    named, free = served.guest('named', vm_state='error'), served.guest('free')
    sdk.compute.reset_server_state(named.uuid, 'active')
    sdk.compute.evacuate_server(named.uuid, host='dest', admin_pass='secret')
    sdk.compute.evacuate_server(free.uuid)
    rows = {row.instance_uuid: row.requested_host for row in served.database.migrations.list()}
    assert rows == {named.uuid: 'dest', free.uuid: None}
    assert {migration.migration_type for migration in sdk.compute.migrations()} == {'evacuation'}
    assert list(sdk.compute.server_migrations(named.uuid)) == []
    assert [action.action for action in sdk.compute.server_actions(free.uuid)] == ['evacuate']
    assert {server.status for server in sdk.compute.servers()} == {'REBUILD'}


def test_the_sdk_reads_what_is_around_a_migration_and_deletes_a_service(served, sdk):
    guest = served.guest(flavor=instance.Flavor(name='m1', memory_mb=1024, extra_specs={'hw:cpu_policy': 'shared'}))
    assert [(one.id, one.ram) for one in sdk.compute.flavors()] == [('m1', 1024)]
    assert sdk.compute.find_flavor('m1', get_extra_specs=True).extra_specs == {'hw:cpu_policy': 'shared'}
    assert [zone.name for zone in sdk.compute.availability_zones(details=True)] == ['nova']
    assert list(sdk.compute.server_groups()) == []
    assert sdk.compute.get_server_diagnostics(guest.uuid).cpu_details[0]['time'] == 17
    hypervisor = sdk.compute.find_hypervisor('dest.example.org')
    assert 'load average' in sdk.compute.get_hypervisor(hypervisor).uptime
    service = served.database.services.get_compute('spare')
    sdk.compute.delete_service(service.uuid)
    assert served.conductor.calls[-1] == ('delete_service', service.uuid)


def test_the_sdk_locks_completes_and_changes_services(served, sdk):
    one = served.migration(served.guest('moving'))
    sdk.compute.lock_server(one.instance_uuid, locked_reason='mine')
    assert sdk.compute.get_server(one.instance_uuid).is_locked
    assert served.database.instances.get(one.instance_uuid).locked_reason == 'mine'
    sdk.compute.unlock_server(one.instance_uuid)
    assert not sdk.compute.get_server(one.instance_uuid).is_locked
    sdk.compute.force_complete_server_migration(one.id, one.instance_uuid)
    assert served.database.migrations.get(one.uuid).force_complete_requested_at is not None
    for name, values, shows in (
        ('disable_service', {'disabled_reason': 'fan'}, ('disabled', False)),
        ('enable_service', {}, ('enabled', False)),
        ('update_service_forced_down', {'forced': True}, ('enabled', True)),
        ('update_service', {'status': 'disabled', 'forced_down': False}, ('disabled', False)),
    ):
        (service,) = sdk.compute.services(host='source')
        getattr(sdk.compute, name)(service, **values)
        row = served.database.services.get_compute('source')
        assert ('disabled' if row.disabled else 'enabled', row.forced_down) == shows


def test_the_sdk_does_not_read_an_uptime_by_itself_from_2_88_on(served, sdk):
    with pytest.raises(sdk_exceptions.SDKException, match='not supported anymore'):
        sdk.compute.get_hypervisor_uptime(served.database.services.list_nodes()[0].uuid)


def test_the_sdk_follows_pages(served, sdk):
    for number in range(5):
        served.guest(f'vm{number}')
    assert len(list(sdk.compute.servers(limit=2))) == 5


def test_the_sdk_understands_the_errors(served, sdk):
    with pytest.raises(sdk_exceptions.BadRequestException, match='nowhere'):
        sdk.compute.live_migrate_server(served.guest().uuid, host='nowhere', block_migration='auto')


# --- openstack -------------------------------------------------------------------------------------------------------


def test_the_openstack_command_resizes_and_confirms_or_reverts(served, cli):
    served.database.flavors.create(instance.Flavor(name='large', vcpus=4, memory_mb=2048, root_gb=20))
    for name, decision in (('one', 'confirm'), ('two', 'revert')):
        guest = served.guest(name)
        said = cli('server', 'resize', '--flavor', 'm1', name, fails=True)
        assert 'When resizing, instances must change flavor!' in said
        cli('server', 'resize', '--flavor', 'large', name)
        (row,) = served.database.migrations.list({'instance_uuid': guest.uuid})
        assert (row.migration_type, row.new_flavor.name) == ('resize', 'large')
        served.move(row.uuid, status='finished', dest_compute='dest', outcome='forward')
        served.database.instances.update(guest.uuid, vm_state='resized', task_state=None, host='dest')
        assert json.loads(cli('server', 'show', name, '-f', 'json'))['status'] == 'VERIFY_RESIZE'
        cli('server', 'resize', decision, name)
        assert getattr(served.database.migrations.get(row.uuid), f'{decision}_requested_at') is not None
    assert len(json.loads(cli('server', 'migration', 'list', '--type', 'resize', '-f', 'json'))) == 2


def test_the_openstack_command_evacuates_and_resets_a_state(served, cli):
    named, free = served.guest('named'), served.guest('free', vm_state='error')
    text = cli('server', 'evacuate', 'free', fails=True)
    assert 'Compute service of source is still in use' in text
    cli('--os-compute-api-version', '2.80', 'compute', 'service', 'set', '--down', 'source', 'nova-compute')
    cli('server', 'set', '--state', 'active', '--auto-approve', 'free')
    assert json.loads(cli('server', 'show', 'free', '-f', 'json'))['status'] == 'ACTIVE'
    cli('--os-compute-api-version', '2.80', 'server', 'evacuate', '--host', 'dest', '--password', 'secret', 'named')
    cli('--os-compute-api-version', '2.13', 'server', 'evacuate', 'free')
    rows = {row.instance_uuid: row for row in served.database.migrations.list()}
    assert (rows[named.uuid].requested_host, rows[free.uuid].requested_host) == ('dest', None)
    listed = json.loads(cli('server', 'migration', 'list', '--type', 'evacuation', '-f', 'json'))
    assert {one['Status'] for one in listed} == {'accepted'}
    assert {one['Status'] for one in json.loads(cli('server', 'list', '-f', 'json'))} == {'REBUILD'}
    (event,) = json.loads(cli('server', 'event', 'list', 'named', '-f', 'json'))
    assert event['Action'] == 'evacuate'
    served.move(rows[named.uuid].uuid, status='done')
    up = ('--os-compute-api-version', '2.80', 'compute', 'service', 'set', '--up', 'source', 'nova-compute')
    cli(*up, fails=True)
    served.move(rows[named.uuid].uuid, status='completed')
    cli(*up)


# --- nova ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('version', ['2.13', '2.80'])
def test_the_nova_command_evacuates_a_server_and_a_host(served, cli, version):
    def nova(*args):
        return cli('--os-compute-api-version', version, *args, client='nova')

    guests = [served.guest(name, vm_state='error') for name in ('one', 'two', 'three')]
    served.force_down('source')
    nova('reset-state', '--active', 'one')
    assert [served.database.instances.get(one.uuid).vm_state for one in guests] == ['active', 'error', 'error']
    text = nova('evacuate', 'one', 'dest', '--password', 'secret')
    assert ('secret' in text) == (version == '2.13')
    text = nova('host-evacuate', '--target_host', 'spare', 'source.example.org')
    assert text.count('True') == 2, text
    assert f"Cannot 'evacuate' instance {guests[0].uuid} while it is in task_state rebuilding" in text
    rows = {row.instance_uuid: row.requested_host for row in served.database.migrations.list()}
    assert rows == dict(zip([guest.uuid for guest in guests], ['dest', 'spare', 'spare'], strict=True))


def test_the_nova_command_migrates_or_resizes_and_confirms_or_reverts(served, cli):
    def nova(*args):
        return cli('--os-compute-api-version', '2.80', *args, client='nova')

    served.database.flavors.create(instance.Flavor(name='large', vcpus=4, memory_mb=2048, root_gb=20))
    cases = [('one', ('resize', 'one', 'large'), 'confirm'), ('two', ('migrate', 'two'), 'revert')]
    for name, words, decision in cases:
        guest = served.guest(name)
        nova(*words)
        (row,) = served.database.migrations.list({'instance_uuid': guest.uuid})
        wanted = ('resize', 'large') if words[0] == 'resize' else ('migration', None)
        assert (row.migration_type, row.new_flavor and row.new_flavor.name) == wanted
        served.move(row.uuid, status='finished', dest_compute='dest', outcome='forward')
        served.database.instances.update(guest.uuid, vm_state='resized', task_state=None, host='dest')
        assert 'VERIFY_RESIZE' in nova('show', name)
        nova(f'resize-{decision}', name)
        assert getattr(served.database.migrations.get(row.uuid), f'{decision}_requested_at') is not None


# --- both ------------------------------------------------------------------------------------------------------------

#: The client; its words; a regular expression that its output has. The names in braces are those of the test.
READS = (
    ('nova', 'list --all-tenants', '{guest} .*ACTIVE'),
    ('nova', 'hypervisor-list', '{hypervisor} .* up '),
    ('nova', 'hypervisor-show {hypervisor}', 'service_host .* {host} '),
    ('nova', 'hypervisor-stats', 'running_vms .* [0-9]'),
    ('nova', '--os-compute-api-version 2.50 hypervisor-servers {host}', '{guest} '),
    ('nova', 'service-list', '{service} .* {host} .* enabled .* up '),
    ('nova', 'migration-list', '{uuid} .*running'),
    ('nova', 'server-migration-list {moving}', '{migration} .*running'),
    ('nova', 'server-migration-show {moving} {migration}', 'uuid .* {uuid} '),
    ('nova', 'instance-action-list {moving}', 'live-migration .* {request} '),
    ('nova', 'instance-action {moving} {request}', 'conductor_live_migrate_instance'),
    ('nova', 'availability-zone-list', r'nova .* available(.|\n)*- {host} '),
    ('nova', 'flavor-list', ' {flavor} '),
    ('nova', 'flavor-show {flavor}', 'name .* {flavor} '),
    ('nova', 'server-group-list', 'Members'),
    ('nova', 'version-list', r'v2\.1 .* 2\.104 '),
    ('openstack', 'hypervisor stats show', 'running_vms .* [0-9]'),
    ('openstack', 'server migration show {moving} {uuid}', 'Status .* running '),
    ('openstack', '--os-compute-api-version 2.87 hypervisor show {hypervisor}', 'vcpus_used '),
)
#: Each changes something, and what it changes is read or changed back by the next.
CHANGES = (
    ('nova', 'lock {guest}', ''),
    ('openstack', 'server show {guest} -f value -c locked', 'True'),
    ('nova', 'unlock {guest}', ''),
    ('openstack', 'server lock {guest}', ''),
    ('nova', 'show {guest}', 'locked .* True '),
    ('openstack', 'server unlock {guest}', ''),
    ('nova', 'service-disable {service} --reason fan', 'disabled .* fan '),
    ('nova', 'service-enable {service}', 'enabled'),
    ('openstack', 'compute service set --disable --disable-reason fan {host} nova-compute', ''),
    ('openstack', 'compute service list --long', '{host} .* disabled .* fan '),
    ('openstack', 'compute service set --enable {host} nova-compute', ''),
    ('nova', 'service-list --host {host}', '{host} .* enabled '),
    ('nova', 'diagnostics {guest}', 'driver .* libvirt '),
    ('nova', 'hypervisor-uptime {hypervisor}', 'uptime .* load average'),
    ('nova', 'live-migration-force-complete {moving} {migration}', ''),
    ('openstack', 'server migration force complete {moving} {migration}', ''),
    ('openstack', 'server event list {moving}', 'live_migration_force_complete'),
    ('nova', 'service-force-down {spare}', 'nova-compute .* True '),
    ('nova', 'service-force-down --unset {spare}', 'nova-compute .* False '),
    ('nova', 'service-delete {spare}', ''),
    ('nova', 'host-evacuate-live --target-host dest {host}', '{guest} .* True '),
    ('nova', 'host-servers-migrate dest', '{there} .* True '),
)


@pytest.mark.slow
def test_commands_show_what_they_read_and_change(served, cli):
    guest, one = served.guest('still'), served.migration(served.guest('moving'))
    services = served.database.services
    names = {
        'host': 'source', 'there': served.guest('there', host='dest').uuid, 'hypervisor': services.list_nodes()[0].uuid,
        'service': services.get_compute('source').uuid, 'spare': services.get_compute('spare').uuid,
        'guest': guest.uuid, 'flavor': 'm1', 'moving': one.instance_uuid, 'migration': one.id, 'uuid': one.uuid,
        'request': served.database.actions.list(one.instance_uuid)[0].request_id,
    }  # fmt: skip
    wrong = []
    for client, words, shows in (*READS, *CHANGES):
        output = cli('--os-compute-api-version', '2.80', *words.format(**names).split(), client=client)
        if not re.search(shows.format(**names), output):
            wrong.append(f'{client} {words} does not show {shows}:\n{output}')
    assert wrong == []
    assert services.get_compute('spare').uuid in [call[1] for call in served.conductor.calls]


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        ('server migration show moving 1', 'No ServerMigration found'),  # it asks for server 1
        ('host list', 'migrator does not serve GET /v2.1/os-hosts'),
    ],
)
def test_openstack_commands_that_fail_say_why(served, cli, words, reason):
    one = served.migration(served.guest('moving'))
    assert one.id == 1
    assert reason in cli(*words.split(), fails=True)
