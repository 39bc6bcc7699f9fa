# SPDX-License-Identifier: Apache-2.0

"""The real ``openstack`` client, unmodified, against a served demo cloud."""

import collections
import json
import pathlib
import sys

import pytest

from tests import backends
from tests.functional import commands

pytestmark = pytest.mark.slow

OPENSTACK = pathlib.Path(sys.executable).parent / 'openstack'


@pytest.fixture(scope='module')
def served(tmp_path_factory):
    if not OPENSTACK.exists():
        backends.left_out('python-openstackclient is not installed')
    directory = tmp_path_factory.mktemp('served')
    with commands.Served(directory, '--instances', '4', '--guest-memory', '256', '--placement', '127.0.0.1:0') as cloud:
        yield cloud
        assert cloud.stop() == 0
        assert 'Traceback' not in cloud.said


@pytest.fixture
def openstack(served, tmp_path):
    """Run the client with the environment that the demo has printed; returns its answer."""

    def openstack(*words, listing=True, fails=False):
        command = [str(OPENSTACK), *words, *(['-f', 'json'] if listing else [])]
        env = commands.environment(tmp_path, **served.exports())
        ended = commands.client(command, env)
        assert (ended.returncode != 0) is fails, ended.stderr
        if fails:
            return ended.stderr
        return json.loads(ended.stdout) if listing else ended.stdout

    return openstack


def wait_for(openstack, server, status='completed', tries=100):
    """Wait until the migrations of a server have this status, and return them."""
    found = []
    for _ in range(tries):
        found = openstack('server', 'migration', 'list', '--server', server)
        if found and {one['Status'] for one in found} == {status}:
            return found
    raise AssertionError(f'migrations of {server}: {found}')


def delete_service(openstack, service_id, tries=100):
    """Delete a service, once its host has cleaned up after the last of its evacuated guests."""
    for left in reversed(range(tries)):
        try:
            openstack('compute', 'service', 'delete', str(service_id), listing=False)
        except AssertionError:
            if not left:
                raise
        else:
            return


def on_host1(openstack):
    """Return the names of the servers on host1."""
    return [one['Name'] for one in openstack('server', 'list', '--long', '--all-projects', '--host', 'host1')]


def test_servers_services_and_hypervisors_are_listed(openstack):
    servers = openstack('server', 'list')
    assert [one['Name'] for one in servers] == ['vm-4', 'vm-3', 'vm-2', 'vm-1']
    assert {one['Status'] for one in servers} == {'ACTIVE'}
    services = openstack('compute', 'service', 'list')
    up = {(one['Binary'], one['Host']) for one in services if one['State'] == 'up'}
    assert up == {('nova-conductor', 'conductor1')} | {('nova-compute', f'host{number}') for number in range(1, 5)}
    hypervisors = openstack('hypervisor', 'list')
    assert {one['Hypervisor Hostname'] for one in hypervisors} == {f'host{number}' for number in range(1, 5)}


def test_what_clients_read_around_a_migration_is_served(openstack):
    (flavor,) = openstack('flavor', 'list', '--long')
    shown = openstack('flavor', 'show', flavor['ID'])
    assert (shown['ram'], shown['vcpus']) == (flavor['RAM'], flavor['VCPUs'])
    zones = openstack('availability', 'zone', 'list', '--compute', '--long')
    assert {one['Host Name'] for one in zones if one['Zone Name'] == 'nova'} == {f'host{n}' for n in range(1, 5)}
    assert openstack('server', 'group', 'list') == []
    assert 'load_average' in openstack('hypervisor', 'show', 'host1')
    found = openstack('server', 'show', '--diagnostics', 'vm-1')
    assert (found['state'], found['memory_details']['maximum']) == ('running', 256)
    service = next(one for one in openstack('compute', 'service', 'list') if one['Host'] == 'host1')
    said = openstack('compute', 'service', 'delete', str(service['ID']), listing=False, fails=True)
    assert 'it is up: stop it first' in said


@pytest.mark.parametrize(
    'words',
    [
        ('server', 'delete', '--wait', 'vm-1'),
        ('server', 'reboot', 'vm-1'),
        ('aggregate', 'create', 'rack'),
    ],
)
def test_command_that_only_nova_serves_fails_and_changes_nothing(openstack, words):
    said = openstack(*words, listing=False, fails=True)
    assert 'migrator does not serve' in said
    assert 'nova' in said
    assert [one['Name'] for one in openstack('server', 'list', '--status', 'ACTIVE')] == [
        'vm-4',
        'vm-3',
        'vm-2',
        'vm-1',
    ]


def test_a_server_that_does_not_exist_is_not_found(openstack):
    said = openstack('server', 'delete', 'vm-5', listing=False, fails=True)
    assert 'vm-5' in said
    assert 'does not serve' not in said


def test_a_server_is_live_migrated_to_a_named_host(openstack):
    name = on_host1(openstack)[0]
    openstack('server', 'migrate', '--live-migration', '--host', 'host3', name, listing=False)
    (migration,) = wait_for(openstack, name)
    assert (migration['Source Compute'], migration['Dest Compute']) == ('host1', 'host3')
    shown = openstack('server', 'show', name)
    assert shown['OS-EXT-SRV-ATTR:host'] == 'host3'
    assert shown['status'] == 'ACTIVE'
    assert shown['OS-EXT-STS:task_state'] is None


def test_a_server_is_live_migrated_without_a_host_and_the_client_can_wait(openstack):
    name = on_host1(openstack)[-1]
    openstack('server', 'migrate', '--live-migration', '--wait', name, listing=False)
    (migration,) = wait_for(openstack, name)
    assert migration['Source Compute'] == 'host1' != migration['Dest Compute']
    assert openstack('server', 'show', name)['OS-EXT-SRV-ATTR:host'] == migration['Dest Compute']


def test_the_lines_that_the_demo_prints_are_right_as_they_stand(served, openstack):
    printed = [line.split()[1:] for line in served.said.splitlines() if line.startswith('openstack ')]
    assert len(printed) == 6
    for words in printed:
        if 'migrate' not in words:
            openstack(*words)


def test_the_placement_is_in_the_catalog(openstack):
    providers = openstack('resource', 'provider', 'list')
    assert {one['name'] for one in providers} == {f'host{number}' for number in range(1, 5)}


def test_host_is_drained_and_restored(openstack):
    hosts = {one['Name']: one['Host'] for one in openstack('server', 'list', '--long')}
    full = max(hosts.values(), key=[*hosts.values()].count)
    leave = sorted(name for name, host in hosts.items() if host == full)
    planned = openstack('host', 'drain', 'plan', full)
    assert sorted(one['name'] for one in planned) == leave
    assert all(one['destination'] not in (None, full) for one in planned)
    ended = openstack('host', 'drain', 'create', '--wait', '--reason', 'new firmware', full)
    assert (ended['status'], ended['guests']['moved']) == ('completed', len(leave)), ended
    assert full not in {one['Host'] for one in openstack('server', 'list', '--long')}
    said = openstack('host', 'drain', 'cancel', ended['uuid'], listing=False, fails=True)
    assert 'while it is completed' in said
    back = openstack('host', 'drain', 'restore', '--wait', ended['uuid'])
    assert back['status'] == 'restored', back
    assert {one['Name']: one['Host'] for one in openstack('server', 'list', '--long')} == hosts
    (listed,) = openstack('host', 'drain', 'list', '--host', full)
    assert (listed['uuid'], listed['guests']['moved']) == (ended['uuid'], len(leave))


DOWN = ('--os-compute-api-version', '2.80', 'compute', 'service', 'set')


def evacuate(openstack, dead, *words):
    """Declare a host down and evacuate a server from it; return the completed migration.

    The host is up in truth. If it reports before the server is started elsewhere, the evacuation fails, and both are
    repeated. The same happens if the server has just arrived, and its definition was not fetched before the host was
    declared down: only a host that is up is asked.
    """
    tries = 8
    for _ in range(tries):
        openstack(*DOWN, '--down', dead, 'nova-compute', listing=False)
        # not with --wait: python-openstackclient 10.5 compares the status in lower case with ACTIVE, and waits for ever
        openstack(*words, listing=False)
        ended = None
        while ended is None or ended['Status'] not in ('completed', 'failed'):
            found = openstack('server', 'migration', 'list', '--server', words[-1])
            ended = max((one for one in found if one['Type'] == 'evacuation'), key=lambda one: one['Id'])
        if ended['Status'] == 'completed':
            return ended
        openstack(*DOWN, '--up', dead, 'nova-compute', listing=False)
    raise AssertionError(f'{tries} evacuations have failed, the last one is {ended}')


def test_servers_of_a_host_that_is_declared_down_are_evacuated(openstack):
    """The host is up in truth, so it cleans up at once, while it is still declared down."""
    hosts = {one['Name']: one['Host'] for one in openstack('server', 'list', '--long')}
    (dead, _), *_ = collections.Counter(hosts.values()).most_common()
    other = next(host for host in ('host1', 'host2') if host != dead)
    named, *chosen = [name for name, host in hosts.items() if host == dead]
    said = openstack('server', 'evacuate', named, listing=False, fails=True)
    assert f'Compute service of {dead} is still in use' in said
    to_other = ('--os-compute-api-version', '2.80', 'server', 'evacuate', '--host', other)
    for name in (named, *chosen):
        words = to_other if name == named else ('server', 'evacuate')
        migration = evacuate(openstack, dead, *words, name)
        shown = openstack('server', 'show', name)
        assert shown['OS-EXT-SRV-ATTR:host'] == migration['Dest Compute'] != dead
        assert (shown['status'], shown['OS-EXT-STS:task_state']) == ('ACTIVE', None)
        events = [one for one in openstack('server', 'event', 'list', name) if one['Action'] == 'evacuate']
        event = max(events, key=lambda one: one['Start Time'])
        said = openstack('server', 'event', 'show', name, event['Request ID'], listing=False)
        assert 'compute_evacuate' in said
        assert said.count('rebuild_server') == 1
        assert 'Error' not in said
    assert openstack('server', 'show', named)['OS-EXT-SRV-ATTR:host'] == other
    service = next(one for one in openstack('compute', 'service', 'list') if one['Host'] == dead)
    delete_service(openstack, service['ID'])
    # The service runs in truth, and so registers again.
    assert service['ID'] not in {one['ID'] for one in openstack('compute', 'service', 'list')}
