# SPDX-License-Identifier: Apache-2.0

"""The real clients evacuate guests of a dead host.

The services are processes on RabbitMQ and PostgreSQL.
"""

import collections
import pathlib
import statistics
import sys
import time

import openstack
import pytest

from migrator.api import devidentity
from migrator.conductor import registry
from migrator.objects import Flavor, Instance, MigrationStatus
from migrator.runtime import http_server
from migrator.testing.hypervisor.hypervisor import OWNING
from tests import forked
from tests.functional import commands, state
from tests.real.cloud import ProcessCloud, TimedOut
from tests.real.servers import process
from tests.real.site import Shape, Site

BIN = pathlib.Path(sys.executable).parent
#: A dead host, and where its guests go.
DEAD, ALIVE = 'host1', ('host2', 'host3')
#: The guests of a whole host.
MANY = 50

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Operator:
    """The operator of a cloud, who uses the real clients."""

    def __init__(self, cloud, tmp_path):
        self._cloud = cloud
        self._home = tmp_path
        compute = f'{cloud.site.url()}/v2.1'
        self._identity = http_server.listen(devidentity.make_app({'compute': compute}), process.HOST, 0)
        self._auth = {
            'auth_url': f'{self._identity.url}/v3', 'username': 'admin', 'password': 'x', 'project_name': 'admin',
            'user_domain_name': 'Default', 'project_domain_name': 'Default',
        }  # fmt: skip

    def start(self, client, *words):
        """Start ``openstack`` or ``nova``, and return its process."""
        auth = {f'OS_{name.upper()}': value for name, value in self._auth.items()}
        env = commands.environment(self._home, **auth, OS_COMPUTE_API_VERSION='2.80', NO_PROXY='*')
        streams = {'stdout': forked.PIPE, 'stderr': forked.STDOUT, 'text': True}
        return forked.Process([str(BIN / client), *words], modules=forked.CLIENTS, env=env, **streams)

    def run(self, client, *words, fails=False):
        """Run ``openstack`` or ``nova`` to its end, and return what it prints."""
        with self.start(client, *words) as running:
            output, _ = running.communicate(timeout=commands.PATIENCE)
        assert (running.returncode != 0) is fails, output
        return output

    def set(self, *options, fails=False):
        """Change the compute service of the dead host."""
        return self.run('openstack', 'compute', 'service', 'set', *options, DEAD, 'nova-compute', fails=fails)

    def evacuate_by_sdk(self, instance):
        """Evacuate a guest with openstacksdk, and return its host when it is active."""
        # From 2.95 on, which this client would choose, an evacuated guest stays stopped.
        options = {'load_envvars': False, 'load_yaml_config': False, 'compute_default_microversion': '2.94'}
        with openstack.connect(**options, auth=self._auth) as connection:
            connection.session.session.trust_env = False
            connection.compute.evacuate_server(instance.uuid)
            server = connection.compute.get_server(instance.uuid)
            patience = {'interval': 0.2, 'wait': commands.PATIENCE}
            return connection.compute.wait_for_server(server, 'ACTIVE', **patience).compute_host

    def close(self):
        """Stop the identity service."""
        self._identity.stop()


@pytest.fixture(scope='module')
def whole(workspace, postgresql, rabbitmq, placement_http):
    """Three computes, one conductor, one API, for one test after another."""
    options = (('compute.report_interval', 1), ('conductor.poll_interval', 1), ('conductor.sweep_interval', 1))
    site = Site(workspace, Shape(options=options, world=('--vcpus', '64')), rabbitmq, postgresql, placement_http)
    site.start()
    made = ProcessCloud(site)
    yield made
    made.close()
    site.end()


@pytest.fixture
def cloud(whole):
    whole.begin({})
    yield whole
    whole.come_to_rest()
    whole.judge(set())
    whole.forget()


@pytest.fixture
def operator(cloud, tmp_path):
    made = Operator(cloud, tmp_path)
    yield made
    made.close()


# --- what happens to the host ----------------------------------------------------------------------------------------


def boot(cloud, *names):
    """Boot guests on the host that dies, and let a conductor fetch their definitions.

    Each is started before it is registered. A conductor that asks for the definition in between asks again late.
    """
    guests = []
    for name in names:
        flavor = Flavor(name='small', vcpus=1, memory_mb=512, root_gb=1)
        new = Instance(
            uuid=cloud.new_uuid(), name=name, project_id='demo', user_id='demo', host=DEAD, node=DEAD, flavor=flavor
        )
        cloud.world.hypervisors[DEAD].spawn(new, dirty_rate=20.0)
        guests.append(registry.create_instance(cloud.database, cloud.placement_client, new))
    stored = cloud.database.definitions
    cloud.simulation.run_until(lambda: all(stored.get(guest.uuid, DEAD) for guest in guests))
    return guests


def come_back(cloud):
    """Start the compute service of the dead host, and return when it has registered."""
    before = cloud.database.services.get_compute(DEAD).boot_id
    cloud.start_compute(DEAD)
    cloud.simulation.run_until(lambda: cloud.database.services.get_compute(DEAD).boot_id != before)


# --- what there is ---------------------------------------------------------------------------------------------------


def statuses(cloud):
    """Return how many evacuations have each status."""
    return collections.Counter(one.status for one in cloud.migrations() if one.is_evacuation)


def wait_for(cloud, status, number):
    """Wait until there is this number of evacuations, and each has a status."""
    try:
        cloud.simulation.run_until(lambda: statuses(cloud) == {status: number})
    except TimedOut:
        wrong = [(one.status, one.failure, one.waits_for, one.stuck_reason) for one in cloud.migrations()]
        raise AssertionError(wrong) from None


def assert_runs_once_elsewhere(cloud, guests):
    """Assert that each guest was started once, and runs at the host of its instance alone."""
    assert collections.Counter(effect.instance_uuid for effect in cloud.world.effects('evacuated')) == dict.fromkeys(
        (guest.uuid for guest in guests), 1
    )
    for guest in guests:
        host = state.host_of(cloud, guest)
        assert host in ALIVE
        assert cloud.world.active_on(guest.uuid) == [host]


def assert_stays_forced_down(cloud, operator):
    """Assert that the dead host cannot be taken for alive yet. The client does not print why."""
    operator.set('--up', fails=True)
    response = cloud.request('PUT', f'/os-services/{state.service(cloud, DEAD)["id"]}', {'forced_down': False})
    assert response.status_int == 400
    assert f'Unable to force up host {DEAD}' in response.json['badRequest']['message']
    assert state.service(cloud, DEAD)['forced_down']


def running_at(look, instance_uuid):
    """Return the hosts that run a guest, of a world that was looked at."""
    hosts = look['hosts'].items()
    return [host for host, each in hosts if each['guests'].get(instance_uuid, {}).get('state') in OWNING]


# --- the tests -------------------------------------------------------------------------------------------------------


def test_each_client_evacuates_guests_of_a_host_that_was_killed_with_them(cloud, operator):
    guests = named, waited, by_nova, by_sdk, *_rest = boot(cloud, 'named', 'waited', 'nova', 'sdk', 'four', 'five')
    dead = cloud.world.hypervisors[DEAD]
    cloud.kill(DEAD)
    dead.power_off()
    assert f'Compute service of {DEAD} is still in use' in operator.run(
        'openstack', 'server', 'evacuate', named.uuid, fails=True
    )
    operator.set('--down')

    operator.run('openstack', 'server', 'evacuate', '--host', 'host3', named.uuid)
    stalls = [cloud.world.hypervisors[host].faults.stall('evacuate', instance_uuid=waited.uuid) for host in ALIVE]
    with operator.start('openstack', 'server', 'evacuate', '--wait', waited.uuid) as waiting:
        cloud.simulation.run_until(lambda: any(stall.is_set() for stall in stalls))
        assert state.server(cloud, waited)['status'] == 'REBUILD'
        assert waiting.poll() is None
        for host, stall in zip(ALIVE, stalls, strict=True):
            stall.release()
            cloud.world.hypervisors[host].faults.clear('evacuate')
        cloud.simulation.run_until(lambda: state.server(cloud, waited)['status'] == 'ACTIVE')
        # openstackclient 10.5 compares "active" with "ACTIVE", and waits for ever.
        waiting.kill()
    operator.run('nova', 'evacuate', by_nova.uuid, 'host2')
    assert operator.evacuate_by_sdk(by_sdk) in ALIVE
    cloud.wait()
    assert operator.run('nova', 'host-evacuate', DEAD).count('True') == 2
    wait_for(cloud, MigrationStatus.DONE, len(guests))
    assert [state.host_of(cloud, guest) for guest in (named, by_nova)] == ['host3', 'host2']
    assert_runs_once_elsewhere(cloud, guests)
    cloud.site.manage('placement', 'audit')

    assert_stays_forced_down(cloud, operator)
    dead.power_on()
    stalled = dead.faults.stall('post_evacuation_at_source', instance_uuid=named.uuid)
    come_back(cloud)
    cloud.simulation.run_until(stalled.is_set)
    assert_stays_forced_down(cloud, operator)
    stalled.release()
    wait_for(cloud, MigrationStatus.COMPLETED, len(guests))
    operator.set('--up')
    cloud.simulation.run_until(cloud.up)
    assert [dead.residue(guest.uuid) for guest in guests] == [[]] * len(guests)
    assert_runs_once_elsewhere(cloud, guests)
    cloud.site.manage('placement', 'audit')


def test_a_host_whose_process_alone_was_killed_ends_its_copies_and_none_runs_twice_from_then_on(cloud, operator):
    guests = boot(cloud, 'one', 'two', 'three', 'four')
    cloud.kill(DEAD)
    operator.set('--down')
    operator.run('nova', 'host-evacuate', DEAD)
    wait_for(cloud, MigrationStatus.DONE, len(guests))
    assert all(DEAD in cloud.world.active_on(guest.uuid) for guest in guests)
    looks = []

    def all_are_completed():
        looks.append(cloud.world.client.look())
        return statuses(cloud) == {MigrationStatus.COMPLETED: len(guests)}

    come_back(cloud)
    cloud.simulation.run_until(all_are_completed)
    operator.set('--up')
    cloud.simulation.run_until(cloud.up)
    assert_runs_once_elsewhere(cloud, guests)
    cloud.site.manage('placement', 'audit')

    # The host is a destination again, and what comes back to it stays.
    back = guests[0]
    assert cloud.live_migrate(back, DEAD).status_int == 202
    cloud.simulation.run_until(lambda: looks.append(cloud.world.client.look()) or cloud.idle())
    cloud.kill(DEAD)
    cloud.start_compute(DEAD)
    cloud.simulation.run_until(cloud.up)
    looks.append(cloud.world.client.look())
    assert cloud.world.active_on(back.uuid) == [DEAD]
    for guest in guests:
        ended = [one for one in looks if _was_ended(one, guest)]
        # During a switchover no copy runs for a moment.
        assert max(len(running_at(one, guest.uuid)) for one in ended) == 1
    assert {effect.effect for effect in cloud.world.log if effect.host == DEAD and effect.who == 'user'} == {'running'}
    cloud.site.manage('placement', 'audit')


def _was_ended(look, guest):
    """Return whether the copy of the host that returned was ended, in a world that was looked at."""
    return any(one['effect'] == 'ended' and one['instance_uuid'] == guest.uuid for one in look['log'])


def threads_of_conductor(cloud):
    """Return the number of threads that the conductor has, in the middle of some samples."""
    pid, found = cloud.site.services['conductor1'].pid, []
    until = time.monotonic() + 3
    cloud.simulation.run_until(lambda: found.append(_threads(pid)) or time.monotonic() > until)
    return statistics.median(found)


def _threads(pid):
    return len(list(pathlib.Path(f'/proc/{pid}/task').iterdir()))


def test_a_dead_host_of_fifty_is_evacuated_and_no_thread_of_the_conductor_waits(cloud, operator):
    guests = boot(cloud, *(f'vm-{number}' for number in range(MANY)))
    dead = cloud.world.hypervisors[DEAD]
    cloud.kill(DEAD)
    dead.power_off()
    operator.set('--down')
    stalls = [cloud.world.hypervisors[host].faults.stall('evacuate', sticky=True) for host in ALIVE]
    assert operator.run('nova', 'host-evacuate', DEAD).count('True') == MANY
    cloud.simulation.run_until(lambda: all(one.queued_at for one in cloud.migrations()))
    waiting = threads_of_conductor(cloud)
    assert statuses(cloud) == {MigrationStatus.PREPARING: MANY}
    for host, stall in zip(ALIVE, stalls, strict=True):
        cloud.world.hypervisors[host].faults.clear('evacuate')
        stall.release()
    wait_for(cloud, MigrationStatus.DONE, MANY)
    # Those that take calls are kept, so only what the evacuations have held is less now.
    idle = threads_of_conductor(cloud)
    print(f'{waiting:g} threads of the conductor while {MANY} evacuations wait, {idle:g} when they are done')
    assert waiting <= idle + 5
    assert_runs_once_elsewhere(cloud, guests)
    cloud.site.manage('placement', 'audit')
    dead.power_on()
    come_back(cloud)
    wait_for(cloud, MigrationStatus.COMPLETED, MANY)
    operator.set('--up')
    cloud.simulation.run_until(cloud.up)
    assert_runs_once_elsewhere(cloud, guests)
    cloud.site.manage('placement', 'audit')
