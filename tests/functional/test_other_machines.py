# SPDX-License-Identifier: Apache-2.0

"""Another machine does not take the name of a host, however its service was started."""

import pytest

import migrator
from migrator import context, exception
from migrator.compute import rpcapi
from migrator.conductor import registry
from migrator.testing.hypervisor.driver import FakeDriver
from tests.functional import state
from tests.functional.faults import LONG

pytestmark = pytest.mark.simulated(reason='it starts services of its own, on machines that it exchanges')

#: Seconds after which a service that does not report is down, and one after which a refused one has asked again.
DOWN, AGAIN = 70, 12


def start(cloud, hypervisor, identity=None, process=None):
    """Start a service on a machine as an embedding service does, and let it try to register.

    :param process: its process; by default the one of the host's name.
    """
    name = process or hypervisor.host
    threads = cloud.threads_for(name)
    driver, conf = FakeDriver(hypervisor, threads), cloud.conf(host=hypervisor.host)
    host = migrator.Host(conf, driver, threads=threads, client=cloud.rpc_for(name), identity=identity)
    threads.start(host.start, name='start')
    cloud.simulation.advance(2)
    return host


def stop(cloud, name='host1'):
    """Stop the service of a host as planned."""
    cloud.processes[name].start(cloud.computes[name].cleanup_host, name='stop')
    cloud.simulation.advance(3)
    cloud.kill(name)


def another_machine(cloud, name='host1', **knobs):
    """Return the machine of a host, and another one with its name, which has none of its guests."""
    return cloud.world.hypervisors[name], cloud.world.add(name, **knobs)


def back_to(cloud, machine):
    """Switch the machine of a host on again instead of the other one."""
    cloud.world.hypervisors[machine.host] = machine
    cloud.start_compute(machine.host)
    cloud.simulation.run_until(cloud.up)


def remarks(operator):
    """Return host -> what the list of services remarks, for each service."""
    shown = operator('service', 'list')[1].splitlines()
    at = shown[0].index('REMARK')
    return {line.split()[0]: line[at:] for line in shown[1:]}


def answers(cloud, host):
    """Return whether a compute service of a name lists its guests."""
    found = []

    def ask():
        try:
            found.append(rpcapi.ComputeAPI(cloud.rpc_for('api', 'api')).list_guests(context.admin_context(), host, 5.0))
        except exception.MigratorException:
            found.append(None)

    cloud.threads_for('api').start(ask, name='ask')
    cloud.simulation.run_until(lambda: found)
    return found[0] is not None


def stored(cloud):
    """Return what a registration writes, without a refusal: the service, and the hypervisors."""
    service = of_host1(cloud).replace(refused_at=None, refused_host=None, refused_identity=None)
    return service, cloud.database.services.list_nodes()


def of_host1(cloud):
    (found,) = cloud.database.services.list('nova-compute', 'host1')
    return found


def test_machine_that_takes_the_name_of_a_stopped_host_is_refused_and_serves_nothing(cloud, operator, caplog):
    guests = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    stop(cloud)
    before, placed = stored(cloud), state.allocations(cloud)
    machine, other = another_machine(cloud, vcpus=3)
    service = start(cloud, other)
    cloud.simulation.advance(DOWN)
    assert stored(cloud) == before
    assert state.allocations(cloud) == placed
    assert state.service(cloud, 'host1')['state'] == 'down'
    assert 'another machine of this name was refused, last at 20' in remarks(operator)['host1']
    assert other.identity in remarks(operator)['host1']
    (line,) = (one for one in caplog.messages if one.startswith('This machine is refused'))
    assert machine.identity in line
    assert other.identity in line
    assert not service.manager.registration.registered
    assert not answers(cloud, 'host1')
    assert cloud.database.differences.list() == []
    drain = cloud.request('POST', '/migrator/v1/drains', {'host': 'host1'}).json['drain']['uuid']
    cloud.simulation.advance(30)
    assert {one.vm_state for one in cloud.database.instances.list({'host': 'host1'})} == {'active'}
    cloud.kill('host1')
    back_to(cloud, machine)
    assert remarks(operator)['host1'] == f'drain {drain}'
    cloud.simulation.run_until(lambda: cloud.database.drains.get(drain).status == 'completed', timeout=300)
    assert {state.server(cloud, one)['status'] for one in guests} == {'ACTIVE'}


def test_refused_machine_takes_no_message_of_the_one_that_runs(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    state.when(cloud, instance, 'running')
    machine, other = another_machine(cloud)
    start(cloud, other, process='another')
    cloud.world.hypervisors['host1'] = machine
    cloud.wait()
    state.moved(cloud, instance, 'host2')
    assert [answers(cloud, 'host1') for _ in range(4)] == [True] * 4
    cloud.kill('another')


def test_renamed_machine_is_refused_until_the_service_of_its_old_name_is_deleted(cloud, operator):
    machine = cloud.world.hypervisors['host1']
    stop(cloud)
    renamed = cloud.world.add('host9')
    start(cloud, renamed, machine.identity)
    assert [one.host for one in cloud.database.services.list('nova-compute')] == ['host1', 'host2', 'host3']
    assert [one.host for one in cloud.database.services.list_nodes()] == ['host1', 'host2', 'host3']
    assert 'a machine with the same identity was refused as host9' in remarks(operator)['host1']
    assert cloud.database.services.delete(of_host1(cloud))
    cloud.simulation.advance(AGAIN)
    assert [one.host for one in cloud.database.services.list('nova-compute')] == ['host2', 'host3', 'host9']
    assert state.service(cloud, 'host9')['state'] == 'up'
    assert answers(cloud, 'host9')


def test_clone_of_a_running_machine_is_refused_under_a_new_and_under_a_known_name(cloud, operator):
    machine = cloud.world.hypervisors['host1']
    stop(cloud, 'host2')
    known = of_host1(cloud).boot_id
    for clone in (cloud.world.add('host9'), cloud.world.hypervisors['host2']):
        start(cloud, clone, machine.identity)
    assert (of_host1(cloud).boot_id, state.service(cloud, 'host1')['state']) == (known, 'up')
    assert state.service(cloud, 'host2')['state'] == 'down'
    shown = remarks(operator)
    assert 'a machine with the same identity was refused as host9' in shown['host1']
    assert 'another machine of this name was refused' in shown['host2']
    assert 'host9' not in shown
    for name in ('host2', 'host9'):
        cloud.kill(name)


def test_two_hosts_of_one_process_need_two_identities(cloud):
    one, two = cloud.world.add('host8'), cloud.world.add('host9')
    first = start(cloud, one, 'one hypervisor', process='both')
    second = start(cloud, two, 'one hypervisor', process='both')
    assert first.manager.registration.registered
    assert not second.manager.registration.registered
    threads = cloud.threads_for('both')
    threads.start(second.stop, name='stop')
    cloud.simulation.advance(3)
    apart = start(cloud, two, 'one hypervisor, the other half', process='both')
    assert apart.manager.registration.registered
    assert answers(cloud, 'host8')
    assert answers(cloud, 'host9')


def test_stand_by_of_the_same_hypervisor_takes_over(cloud):
    instance = cloud.boot('one', 'host1')
    machine = cloud.world.hypervisors['host1']
    stop(cloud)
    stand_by = start(cloud, machine, process='stand-by')
    assert of_host1(cloud).boot_id == stand_by.manager.boot_id
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    state.moved(cloud, instance, 'host2')


def test_machine_without_an_identity_is_not_compared_and_keeps_the_known_one(cloud, monkeypatch):
    machine = cloud.world.hypervisors['host1']
    stop(cloud)
    monkeypatch.setattr(FakeDriver, 'get_identity', lambda self: None)
    unknown = start(cloud, machine)
    assert unknown.manager.registration.registered
    assert of_host1(cloud).identity == machine.identity
    monkeypatch.undo()
    cloud.kill('host1')
    assert not start(cloud, cloud.world.add('host1')).manager.registration.registered
    cloud.kill('host1')
    back_to(cloud, machine)


def test_first_identity_that_is_reported_fills_an_empty_one(cloud, monkeypatch):
    monkeypatch.setattr(FakeDriver, 'get_identity', lambda self: None)
    machine = cloud.world.add('host9')
    start(cloud, machine)
    (known,) = cloud.database.services.list('nova-compute', 'host9')
    assert known.identity is None
    monkeypatch.undo()
    cloud.kill('host9')
    start(cloud, machine)
    (known,) = cloud.database.services.list('nova-compute', 'host9')
    assert known.identity == machine.identity


# --- a machine that was really replaced ------------------------------------------------------------------------------

REPLACE = 'service', 'replace', 'host1', '--old-machine-is-off'


@pytest.fixture
def placement_of_the_cloud(cloud, monkeypatch):
    """The commands find the Placement of the cloud, which no configuration names."""
    monkeypatch.setattr('migrator.operator.cli.command.Asked.placement', lambda _asked: cloud.placement_client)


def replaced(cloud, operator):
    """Return the old and the new machine of host1, after an operator has replaced the old one."""
    stop(cloud)
    machine, other = another_machine(cloud)
    start(cloud, other)
    status, text = operator(*REPLACE)
    assert status == 0
    assert f'(identity {machine.identity}) is refused if it returns.' in text
    assert 'waits for its new machine: ada declared at 20' in remarks(operator)['host1']
    cloud.simulation.advance(AGAIN)
    assert state.service(cloud, 'host1')['state'] == 'up'
    assert of_host1(cloud).identity == other.identity
    return machine, other


def everything(cloud):
    """Return what a replacement leaves as it is: the guests, their allocations, and the hypervisors."""
    rows = [(one.uuid, one.host, one.node, one.vm_state, one.task_state) for one in cloud.database.instances.list()]
    return rows, state.allocations(cloud), [node.uuid for node in cloud.database.services.list_nodes()]


@pytest.mark.usefixtures('placement_of_the_cloud')
def test_guests_of_a_replaced_machine_are_differences_and_are_not_lost(cloud, operator, caplog):
    guests = [cloud.boot(f'guest{number}', 'host1') for number in range(3)]
    cloud.boot('elsewhere', 'host2')
    cloud.simulation.advance(DOWN)
    before = everything(cloud)
    _machine, other = replaced(cloud, operator)
    assert everything(cloud) == before
    cloud.simulation.advance(2 * DOWN)
    differences = cloud.database.differences.list()
    assert [(one.name, one.kind) for one in differences] == [(f'guest{number}', 'replaced') for number in range(3)]
    shown = [remarks(operator)['host1'], operator('instance', 'reconcile', '--dry-run')[1], *caplog.messages]
    assert all('restore it on host1' in one.remedy(()) for one in differences)
    assert not [text for text in shown if 'instance delete' in text]
    drain = cloud.request('POST', '/migrator/v1/drains', {'host': 'host1'}).json['drain']['uuid']
    cloud.simulation.run_until(lambda: cloud.database.drains.get(drain).status == 'incomplete', timeout=LONG)
    assert everything(cloud) == before
    members = cloud.request('GET', f'/migrator/v1/drains/{drain}').json['drain']['members']
    assert {one['status'] for one in members} == {'blocked'}, members
    assert all('restore it on host1' in one['reason'].lower() for one in members)
    assert cloud.migrations(guests[0]) == []
    for one in guests:
        other.spawn(one)
    cloud.simulation.advance(2 * DOWN)
    assert cloud.database.differences.list() == []
    assert cloud.live_migrate(guests[0], 'host2').status_int == 202
    cloud.wait()
    state.moved(cloud, guests[0], 'host2')


def test_replaced_machine_is_refused_when_it_returns_under_any_name(cloud, operator):
    machine, other = replaced(cloud, operator)
    cloud.world.hypervisors['host1'] = machine
    returned = start(cloud, machine, process='old')
    renamed = start(cloud, cloud.world.add('host9'), machine.identity)
    cloud.simulation.advance(DOWN)
    assert not returned.manager.registration.registered
    assert not renamed.manager.registration.registered
    assert 'the machine that was replaced is on again, and was refused as host' in remarks(operator)['host1']
    assert of_host1(cloud).identity == other.identity
    assert state.service(cloud, 'host1')['state'] == 'up'
    cloud.world.hypervisors['host1'] = other
    for name in ('old', 'host9'):
        cloud.kill(name)


def test_old_machine_that_was_only_slow_is_refused_with_its_next_heartbeat(cloud, operator):
    old = cloud.processes['host1']
    cloud.simulation.pause(old)
    cloud.simulation.advance(DOWN + 20)
    assert operator(*REPLACE)[0] == 0
    cloud.simulation.resume(old)
    cloud.simulation.advance(DOWN)
    assert state.service(cloud, 'host1')['state'] == 'down'
    assert not cloud.computes['host1'].registration.registered
    assert not answers(cloud, 'host1')
    cloud.kill('host1')
    assert start(cloud, cloud.world.add('host1')).manager.registration.registered


def test_deleted_service_forgets_its_replaced_machines(cloud, operator):
    machine, _other = replaced(cloud, operator)
    cloud.kill('host1')
    cloud.simulation.advance(DOWN)
    (service,) = cloud.database.services.list('nova-compute', 'host1')
    registry.delete_service(cloud.database, cloud.placement_client, service, 60)
    assert cloud.database.machines.replacements() == {}
    back_to(cloud, machine)
