# SPDX-License-Identifier: Apache-2.0

"""migrator-manage instance: the row and the allocation are created or deleted together."""

import re

import pytest

from migrator.objects import Flavor, Instance
from migrator.placement_client import allocations

UUID = '6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11'
SIZE = ('--vcpus', 2, '--memory', 256, '--disk', 1)
WHOSE = ('--project', 'blue', '--user', 'ada')


@pytest.fixture
def stored(operator):
    """The row in the database and the allocation in Placement of a guest."""

    def stored(uuid=UUID):
        cloud = operator.cloud
        held = allocations.read(cloud.placement_client, uuid).allocations
        hosts = {node.uuid: node.host for node in cloud.database.services.list_nodes()}
        rows = cloud.database.instances.list({'uuid': uuid})
        return [row.host for row in rows], {hosts[uuid]: dict(amounts) for uuid, amounts in held.items()}

    return stored


def spawn(operator, host='host1', uuid=UUID):
    """Create a guest at a hypervisor that is not in the database."""
    flavor = Flavor(name='custom', vcpus=2, memory_mb=256, root_gb=1)
    guest = Instance(uuid=uuid, name='web', host=host, node=host, flavor=flavor, project_id='blue', user_id='ada')
    operator.cloud.world.hypervisors[host].spawn(guest)


def test_create_is_refused_if_the_host_has_no_such_guest(operator, stored):
    create = ('instance', 'create', '--uuid', UUID, '--host', 'host1', *SIZE, *WHOSE)
    assert operator.status(*create)[0] == 1
    assert (
        f'Host host1 has no guest {UUID}: give the uuid and the host of an existing guest, or --force' in operator.err
    )
    assert stored() == ([], {})
    spawn(operator, 'host2')
    assert operator.status(*create)[0] == 1
    spawn(operator, 'host1')
    assert operator.status(*create)[0] == 0
    assert stored()[0] == ['host1']


@pytest.mark.parametrize('away', ['host', 'broker'])
def test_create_on_an_unreachable_host_needs_force(operator, stored, away):
    create = ('instance', 'create', '--uuid', UUID, '--host', 'host1', *SIZE, *WHOSE)
    spawn(operator)
    if away == 'host':
        operator.cloud.kill('host1')
    else:
        operator.cloud.bus.faults = lambda message: 'refuse'
    assert operator.status(*create)[0] == 3
    assert f'Host host1 could not be asked whether it has guest {UUID}: ' in operator.err
    assert stored() == ([], {})
    assert operator.status(*create, '--force')[0] == 0
    assert stored()[0] == ['host1']


def test_an_existing_guest_is_registered_listed_migrated_and_deleted(operator, stored):
    spawn(operator)
    said = operator.observed('instance', 'create', '--uuid', UUID, '--name', 'web', '--host', 'host1', *SIZE, *WHOSE)
    assert said == (
        f'Instance {UUID} (web) is registered on host1 with an allocation of VCPU 2, MEMORY_MB 256, DISK_GB 1.\n'
    )
    claim = {'VCPU': 2, 'MEMORY_MB': 256, 'DISK_GB': 1}
    assert stored() == (['host1'], {'host1': claim})
    (row,) = operator.rows('instance', 'list')
    assert row == {
        'UUID': UUID, 'NAME': 'web', 'HOST': 'host1', 'VM STATE': 'active', 'TASK STATE': '-', 'LIVE': '-',
        'VCPUS': '2', 'MEMORY (MiB)': '256', 'DISK (GiB)': '1', 'PROJECT': 'blue',
    }  # fmt: skip

    cloud = operator.cloud
    assert cloud.live_migrate(UUID, 'host2').status_int == 202
    status, _out = operator.status('instance', 'delete', UUID)
    said = 'has a migration in progress already: migration 1, accepted 0 s ago, is '
    assert (status, said in operator.err) == (1, True)
    cloud.wait()
    assert stored() == (['host2'], {'host2': claim})

    assert 'Its guest is unchanged' in operator.observed('instance', 'delete', UUID)
    assert re.fullmatch(f'instance .* \\({UUID}\\) on host.\n', operator.err)
    assert stored() == ([], {})
    assert UUID in cloud.world.hypervisors['host2'].guests


def test_options_are_stored_and_missing_ones_have_defaults(operator, stored):
    document = operator.json(
        'instance', 'create', '--host', 'host2', *SIZE, *WHOSE, '--force', '--vm-state', 'paused', '--flavor', 'tiny',
        '--ephemeral', 3, '--swap', 1500, '--property', 'resources:VCPU=1', '--property', 'hw:numa_nodes=2',
    )  # fmt: skip
    instance = document['instance']
    assert instance['name'] == instance['uuid']
    assert (instance['vm_state'], instance['power_state'], instance['node']) == ('paused', 3, 'host2')
    assert instance['flavor']['extra_specs'] == {'resources:VCPU': '1', 'hw:numa_nodes': '2'}
    assert stored(instance['uuid']) == (['host2'], {'host2': {'VCPU': 1, 'MEMORY_MB': 256, 'DISK_GB': 6}})
    assert operator.json('instance', 'list')['instances'] == [instance | {'immovable': None, 'unstartable': None}]


def test_lists_are_filtered_and_show_that_there_are_more(operator):
    for host, project in (('host1', 'blue'), ('host1', 'red'), ('host2', 'red')):
        operator.observed('instance', 'create', '--host', host, *SIZE, '--project', project, '--user', 'ada', '--force')
    assert [row['HOST'] for row in operator.rows('instance', 'list')] == ['host2', 'host1', 'host1']
    assert [row['PROJECT'] for row in operator.rows('instance', 'list', '--host', 'host1')] == ['red', 'blue']
    assert [row['HOST'] for row in operator.rows('instance', 'list', '--project', 'red')] == ['host2', 'host1']
    assert (
        operator.observed('instance', 'list', '--limit', 2).splitlines()[-1]
        == 'There are more: --limit shows 2 of them.'
    )
    assert operator.json('instance', 'list', '--limit', 2)['more'] is True
    assert operator.json('instance', 'list', '--limit', 3)['more'] is False


def test_list_shows_which_guests_cannot_be_moved_live_and_why(operator):
    for host, name in (('host1', 'free'), ('host1', 'fixed'), ('host1', 'new')):
        operator.observed('instance', 'create', '--name', name, '--host', host, *SIZE, *WHOSE, '--force')
    uuids = {one.name: one.uuid for one in operator.cloud.database.instances.list({})}
    reported = {
        uuids['free']: {'xml': ''},
        uuids['fixed']: {
            'immovable': 'it has a pci device of its host',
            'unstartable': 'it has a TPM',
        },
    }
    operator.cloud.database.definitions.store('host1', reported, 0)
    assert [(row['NAME'], row['LIVE']) for row in operator.rows('instance', 'list')[:3]] == [
        ('new', '-'), ('fixed', 'no'), ('free', 'yes'),
    ]  # fmt: skip
    assert operator.observed('instance', 'list').splitlines()[-2:] == [
        f'fixed ({uuids["fixed"]}) cannot be moved live: it has a pci device of its host.',
        f'fixed ({uuids["fixed"]}) cannot be evacuated or moved cold: it has a TPM.',
    ]
    shown = {one['name']: one['immovable'] for one in operator.json('instance', 'list')['instances']}
    assert shown == {'new': None, 'fixed': 'it has a pci device of its host', 'free': None}


def test_without_placement_neither_is_created_and_neither_is_deleted(operator, stored, unused_port):
    create = ('instance', 'create', '--uuid', UUID, '--host', 'host1', *SIZE, *WHOSE, '--force')
    operator.configure(placement_url=f'http://127.0.0.1:{unused_port}')
    assert operator.status(*create)[0] == 3
    assert operator.err.startswith('migrator-manage: Placement is not reachable')
    assert operator.err.count('\n') == 1
    assert stored() == ([], {})
    operator.configure()
    operator.observed(*create)
    operator.configure(placement_url=f'http://127.0.0.1:{unused_port}')
    assert operator.status('instance', 'delete', UUID)[0] == 3
    assert operator.cloud.database.instances.get(UUID).task_state is None
    operator.configure()
    assert stored() == (['host1'], {'host1': {'VCPU': 2, 'MEMORY_MB': 256, 'DISK_GB': 1}})


def test_a_refusal_is_one_line_and_creates_neither(operator, stored):
    for changes, status, words in (
        (('--host', 'nowhere'), 1, 'Compute host nowhere could not be found'),
        (('--vcpus', 1000), 1, 'Placement refused PUT'),
        (('--vcpus', 0), 2, "argument --vcpus: '0' is not a whole number from 1 to 999999999"),
        (('--memory', '4G'), 2, "argument --memory: '4G' is not a whole number from 1 to 999999999"),
        (('--disk', -1), 2, 'argument --disk'),
        (('--uuid', 'web'), 2, "argument --uuid: 'web' is not a uuid"),
        (('--name', 'two\nlines'), 2, 'is not a name: give 1 to 255 printable characters'),
        (('--project', ''), 2, "argument --project: '' is not a name"),
        (('--property', 'gold'), 2, "'gold' is not of the form KEY=VALUE"),
        (('--property', 'resources:VGPU=some'), 2, "'resources:VGPU=some': the value is not a whole number"),
    ):
        given = ['--uuid', UUID, '--host', 'host1', *SIZE, *WHOSE, '--force', *changes]
        assert operator.status('instance', 'create', *given)[0] == status, changes
        assert words in operator.err
        assert operator.err.count('\n') == 1
        assert stored() == ([], {})


@pytest.mark.parametrize('left_out', ['--host', '--vcpus', '--memory', '--disk', '--project', '--user'])
def test_a_missing_argument_is_named(refused, left_out):
    words = ['--host', 'host1', *SIZE, *WHOSE]
    at = words.index(left_out)
    assert left_out in refused('instance', 'create', *words[:at], *words[at + 2 :])


def test_create_refuses_an_existing_instance_and_delete_a_missing_one(operator):
    operator.observed('instance', 'create', '--uuid', UUID, '--host', 'host1', *SIZE, *WHOSE, '--force')
    assert operator.status('instance', 'create', '--uuid', UUID, '--host', 'host1', *SIZE, *WHOSE, '--force')[0] == 1
    assert f'Instance {UUID} already exists' in operator.err
    operator.observed('instance', 'delete', UUID.upper())
    assert operator.status('instance', 'delete', UUID)[0] == 1
    assert f'Instance {UUID} could not be found' in operator.err
