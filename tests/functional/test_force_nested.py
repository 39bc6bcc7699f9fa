# SPDX-License-Identifier: Apache-2.0

"""Forced migrations and provider trees, with the cases of the 2018 thread on nested allocations.

What a guest holds at its source, and what it would have to hold at its destination, is on one provider (flat) or on
several (nested); a move is forced or not. Force carries over an allocation on a single provider, or fails; without it
Placement is asked where there is room, and every case moves.
"""

import functools
from typing import NamedTuple

import pytest

from migrator.conductor import registry
from migrator.objects import Flavor, Instance, ProviderInventory
from migrator.placement_client import allocations, candidates
from migrator.virt import driver
from tests.functional import migration_requests, state
from tests.functional.faults import faults
from tests.functional.test_bad_input import reported

pytestmark = [
    pytest.mark.simulated(reason='its hosts report trees of resource providers'),
    pytest.mark.cloud(hosts=0),
]

PLACEMENT = {'OpenStack-API-Version': 'placement 1.39'}
USUAL = {'VCPU': 16, 'MEMORY_MB': 65536, 'DISK_GB': 1000}
#: The device that is at the root of a flat host, and on a child of a nested one.
DEVICE = {'PGPU': 1}
#: It is asked for in no group, so that either kind of host will do.
WANTS_A_DEVICE = {'resources:PGPU': '1'}


# --- hosts and guests ------------------------------------------------------------------------------------------------


def add(cloud, host, at_root=None, **children):
    """Add a host.

    :param at_root: the whole of what its root provider has, if not as usual: resource class -> total.
    :param children: name -> the same, of a provider below.
    """
    below = [
        ProviderInventory(
            uuid=cloud.new_uuid(),
            name=f'{host}_{name}',
            parent_uuid=driver.node_uuid(host),
            inventory={resource: {'total': total} for resource, total in totals.items()},
        )
        for name, totals in children.items()
    ]
    hypervisor = cloud.world.add(host, children=below)
    if at_root is not None:
        hypervisor.capacity.totals = at_root
    cloud.start_compute(host)
    cloud.simulation.run_until(cloud.up)
    return hypervisor


def add_flat(cloud, host):
    add(cloud, host, {**USUAL, **DEVICE})


def add_nested(cloud, host):
    add(cloud, host, gpu=DEVICE)


def add_numa(cloud, host):
    """All that there is, is on one child."""
    add(cloud, host, {}, numa=USUAL)


#: What a kind of host is made by, and how a guest with a device is held there.
KINDS = {
    'flat': (add_flat, lambda host: {host: {**state.CLAIM, **DEVICE}}),
    'nested': (add_nested, lambda host: {host: state.CLAIM, f'{host}_gpu': DEVICE}),
}


def boot(cloud, host, extra_specs):
    """Put a guest on a host, its allocation spread over the host's tree as Placement proposes."""
    flavor = Flavor(name='special', extra_specs=extra_specs)
    found = candidates.get_candidates(cloud.placement_client, flavor.request, in_tree=driver.node_uuid(host))
    instance = Instance(
        uuid=cloud.new_uuid(), name='one', project_id='demo', user_id='demo', host=host, node=host, flavor=flavor
    )
    owner = registry.consumer_of(instance)
    allocations.claim(cloud.placement_client, owner, found[0].allocations, generation=None)
    stored = cloud.database.instances.create(instance)
    cloud.world.hypervisors[host].spawn(stored)
    return stored


def between(cloud, source, destination):
    """Add a host of each kind, ``from`` and ``to``, and return a guest with a device on the first."""
    for host, kind in (('from', source), ('to', destination)):
        KINDS[kind][0](cloud, host)
    instance = boot(cloud, 'from', WANTS_A_DEVICE)
    assert held(cloud) == {instance.uuid: KINDS[source][1]('from')}
    return instance


def forced(cloud, instance, host, force=True, version='2.67'):
    """Ask for a move to a host, forced or expressly not."""
    body = {'os-migrateLive': {'host': host, 'block_migration': 'auto', 'force': force}}
    return cloud.request('POST', f'/servers/{instance.uuid}/action', body, version=version)


# --- the allocations -------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """What Placement says of one provider. Any write of an allocation there raises its generation."""

    uuid: str
    generation: int
    inventories: dict
    #: Consumer -> amounts, and the consumer's generation.
    holders: dict


def ledger(cloud):
    """Return every usage by the provider's name, read from Placement past our own code."""
    get = functools.partial(cloud.placement.adapter().get, headers=PLACEMENT)
    pages = {}
    for one in get('/resource_providers').json()['resource_providers']:
        url = f'/resource_providers/{one["uuid"]}'
        holders = {
            consumer: (entry['resources'], entry['consumer_generation'])
            for consumer, entry in get(f'{url}/allocations').json()['allocations'].items()
        }
        inventories = get(f'{url}/inventories').json()['inventories']
        pages[one['name']] = Page(one['uuid'], one['generation'], inventories, holders)
    return pages


def held(cloud):
    """Return what every consumer holds: consumer -> name of the provider -> amounts."""
    found = {}
    for name, page in ledger(cloud).items():
        for consumer, (amounts, _) in page.holders.items():
            found.setdefault(consumer, {})[name] = amounts
    return found


class Before(NamedTuple):
    """All that must be the same after a move that was refused."""

    everything: dict
    ledger: dict
    held: dict
    effects: int


def look(cloud):
    return Before(state.everything(cloud), ledger(cloud), held(cloud), len(cloud.world.log))


# --- how a move ends -------------------------------------------------------------------------------------------------


def moves(cloud, instance, _before, response, _version, right):
    """It completes: the instance holds what is right at the destination, and no consumer anything else."""
    assert (response.status_int, response.body) == (202, b'')
    cloud.wait()
    found = state.migration(cloud, instance)
    assert (found['status'], found['source_compute'], found['dest_compute']) == ('completed', 'from', 'to')
    assert state.result(cloud, instance) == ('Success', None)
    shown = state.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == ('ACTIVE', None)
    assert shown['OS-EXT-SRV-ATTR:host'] == 'to'
    assert {host: state for host, (state, _, _) in state.guests(cloud, instance).items()} == {'to': 'running'}
    assert held(cloud) == {instance.uuid: right('to')}


def fails(cloud, instance, before, response, version, words):
    """It fails and says why, in the answer too where that waits for the checks; no host has done anything."""
    if version == '2.30':
        reported(response, 400, *words)
    else:
        assert (response.status_int, response.body) == (202, b'')
    cloud.wait()
    for word in words:
        state.failed(cloud, instance, before.everything, word)
    shown = state.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == ('ACTIVE', None)
    assert shown['OS-EXT-SRV-ATTR:host'] == 'from'
    assert len(cloud.world.log) == before.effects


def fails_at_once(cloud, instance, before, response, version, _right):
    """Nothing was written to Placement, not even the same once more; the error names every provider."""
    names = [page.uuid for page in before.ledger.values() if instance.uuid in page.holders]
    words = [f'on {len(names)} resource providers', *names, 'a sharing provider counts', 'leave force out']
    assert len(names) > 1
    fails(cloud, instance, before, response, version, words)
    assert ledger(cloud) == before.ledger
    records = cloud.database.migrations.steps(cloud.migrations(instance)[-1].uuid)
    assert {(one.step, one.input) for one in records} == {('move_allocation', None)}, 'it was not even intended'


def fails_at_the_claim(cloud, instance, before, response, version, _right):
    """Placement has refused what force has asked for; each holds what it held."""
    fails(cloud, instance, before, response, version, ['Placement refused the allocation at to'])
    assert {name: page.inventories for name, page in ledger(cloud).items()} == {
        name: page.inventories for name, page in before.ledger.items()
    }
    assert held(cloud) == before.held


# --- the table of eight ----------------------------------------------------------------------------------------------

TABLE = [
    # case, source, destination, force, how it ends
    (0, 'flat', 'flat', False, moves),
    (0, 'flat', 'flat', True, moves),
    (1, 'nested', 'nested', False, moves),
    (1, 'nested', 'nested', True, fails_at_once),
    (2, 'flat', 'nested', False, moves),
    (2, 'flat', 'nested', True, fails_at_the_claim),
    (3, 'nested', 'flat', False, moves),
    (3, 'nested', 'flat', True, fails_at_once),
]
NAMES = [f'case {case}, {source} to {to}, {"" if force else "not "}forced' for case, source, to, force, _ in TABLE]


@pytest.mark.parametrize('version', ['2.30', '2.67'])
@pytest.mark.parametrize(('_case', 'source', 'destination', 'force', 'ends'), TABLE, ids=NAMES)
def test_each_case_of_the_thread_ends_as_it_must(cloud, _case, source, destination, force, ends, version):
    instance = between(cloud, source, destination)
    before = look(cloud)
    response = forced(cloud, instance, 'to', force, version)
    ends(cloud, instance, before, response, version, KINDS[destination][1])


@pytest.mark.parametrize('host', [None, 'to'])
@pytest.mark.parametrize('destination', list(KINDS))
@pytest.mark.parametrize('source', list(KINDS))
def test_without_force_every_nested_case_is_migrated(cloud, source, destination, host):
    instance = between(cloud, source, destination)
    response = cloud.live_migrate(instance, host, version='2.68')
    moves(cloud, instance, None, response, '2.68', KINDS[destination][1])


def test_refused_forced_migration_succeeds_without_force(cloud):
    instance = between(cloud, 'nested', 'nested')
    forced(cloud, instance, 'to')
    cloud.wait()
    response = forced(cloud, instance, 'to', force=False)
    moves(cloud, instance, None, response, '2.67', KINDS['nested'][1])
    assert [one['status'] for one in state.migrations(cloud, instance)] == ['completed', 'failed']


# --- the same by evacuation ------------------------------------------------------------------------------------------


def lose_the_source(cloud, instance):
    """Let a conductor fetch the definition, then cut the power of the host and force it down."""
    cloud.simulation.run_until(lambda: cloud.database.definitions.get(instance.uuid, 'from'))
    cloud.kill('from')
    cloud.world.hypervisors['from'].power_off()
    state.force_down(cloud, 'from')


def evacuated(cloud, instance, version, **more):
    """Evacuate a guest to ``to``, and return how that ended."""
    body = {'evacuate': {'host': 'to', **more}}
    response = cloud.request('POST', f'/servers/{instance.uuid}/action', body, version=version)
    assert (response.status_int, response.body) == (200, b'')
    cloud.wait()
    return cloud.migrations(instance)[-1]


@pytest.mark.parametrize('version', ['2.29', '2.67'])
@pytest.mark.parametrize(
    ('_case', 'source', 'destination', 'force', 'ends'), [one for one in TABLE if one[3]], ids=NAMES[1::2]
)
def test_forced_evacuation_ends_as_a_forced_migration_does(cloud, _case, source, destination, force, ends, version):
    instance = between(cloud, source, destination)
    lose_the_source(cloud, instance)
    before = look(cloud)
    evacuation = evacuated(cloud, instance, version, force=force)
    if ends is moves:
        assert evacuation.status == 'done'
        assert held(cloud) == {
            instance.uuid: KINDS[destination][1]('to'),
            evacuation.uuid: KINDS[source][1]('from'),
        }
        return
    assert evacuation.status == 'failed'
    assert held(cloud) == before.held
    if ends is fails_at_once:
        assert ledger(cloud) == before.ledger
        for uuid in (page.uuid for page in before.ledger.values() if instance.uuid in page.holders):
            assert uuid in evacuation.failure
    else:
        assert 'Placement refused the allocation at to' in evacuation.failure


@pytest.mark.parametrize('destination', list(KINDS))
@pytest.mark.parametrize('source', list(KINDS))
def test_without_force_every_nested_case_is_evacuated(cloud, source, destination):
    instance = between(cloud, source, destination)
    lose_the_source(cloud, instance)
    evacuation = evacuated(cloud, instance, '2.68')
    assert evacuation.status == 'done'
    assert held(cloud) == {instance.uuid: KINDS[destination][1]('to'), evacuation.uuid: KINDS[source][1]('from')}


# --- a whole tree on the way -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'is_doubled',
    [
        pytest.param(False, id='migration-owned'),
        pytest.param(True, id='doubled', marks=pytest.mark.cloud(hosts=0, options={'compute.service_version_cap': 1})),
    ],
)
@pytest.mark.parametrize('comes_back', [False, True], ids=['forward', 'back'])
def test_nested_allocation_is_held_on_both_hosts_during_move_and_on_one_after_it(cloud, is_doubled, comes_back):
    """nova 66297f0c4a: what was held of child providers was left behind."""
    right = KINDS['nested'][1]
    instance = between(cloud, 'nested', 'nested')
    migration_requests.running(cloud, instance)
    moving = cloud.migrations(instance)[-1].uuid
    if is_doubled:
        assert held(cloud) == {instance.uuid: {**right('from'), **right('to')}}
    else:
        assert held(cloud) == {instance.uuid: right('to'), moving: right('from')}
    if comes_back:
        assert migration_requests.abort(cloud, instance).status_int == 202
    else:
        migration_requests.go_on(cloud)
    cloud.wait()
    status, host = ('cancelled', 'from') if comes_back else ('completed', 'to')
    assert state.migration(cloud, instance)['status'] == status
    assert state.host_of(cloud, instance) == host
    assert held(cloud) == {instance.uuid: right(host)}


# --- one provider that is not the root -------------------------------------------------------------------------------


@pytest.mark.parametrize('version', ['2.30', '2.67'])
@pytest.mark.parametrize(
    ('destination', 'ends'), [(add, moves), (add_numa, fails_at_the_claim)], ids=['all at the root', 'all on a child']
)
def test_allocation_on_one_child_is_forced_onto_a_root_with_the_resources(cloud, destination, ends, version):
    """The edge case of the thread: the root itself holds nothing. It is one provider, so force works."""
    add_numa(cloud, 'from')
    destination(cloud, 'to')
    instance = boot(cloud, 'from', {})
    assert held(cloud) == {instance.uuid: {'from_numa': state.CLAIM}}
    before = look(cloud)
    response = forced(cloud, instance, 'to', version=version)
    ends(cloud, instance, before, response, version, lambda host: {host: state.CLAIM})


# --- shared storage --------------------------------------------------------------------------------------------------

IS_LENT = 'the disk is lent by a provider that is in no tree of a host'
ON_HOST = {'VCPU': 1, 'MEMORY_MB': 512}


@pytest.fixture
def borrower(cloud):
    """A guest on ``from``, which like ``to`` has no disk: both borrow from the provider ``storage``."""
    storage, aggregate = cloud.new_uuid(), cloud.new_uuid()
    ask = functools.partial(cloud.placement.adapter().request, headers=PLACEMENT)

    def write(method, url, body):
        ask(f'/resource_providers{url}', method, json=body)

    write('POST', '', {'uuid': storage, 'name': 'storage'})
    inventories = {'DISK_GB': {'total': 100}}
    write('PUT', f'/{storage}/inventories', {'resource_provider_generation': 0, 'inventories': inventories})
    traits = [candidates.SHARING_TRAIT]
    write('PUT', f'/{storage}/traits', {'resource_provider_generation': 1, 'traits': traits})
    for host in ('from', 'to'):
        hypervisor = add(cloud, host, {name: total for name, total in USUAL.items() if name != 'DISK_GB'})
        # as it sees it itself: the storage is mounted
        hypervisor.capacity.totals = {**hypervisor.capacity.totals, 'DISK_GB': 100}
    for uuid in (storage, driver.node_uuid('from'), driver.node_uuid('to')):
        generation = ask(f'/resource_providers/{uuid}', 'GET').json()['generation']
        body = {'resource_provider_generation': generation, 'aggregates': [aggregate]}
        write('PUT', f'/{uuid}/aggregates', body)
    instance = boot(cloud, 'from', {})
    assert held(cloud) == {instance.uuid: {'from': ON_HOST, 'storage': {'DISK_GB': 1}}}
    return instance


@pytest.mark.breaks('I3', reason=IS_LENT)
@pytest.mark.parametrize('version', ['2.30', '2.67'])
def test_forced_move_with_sharing_provider_fails_and_names_it(cloud, borrower, version):
    before = look(cloud)
    response = forced(cloud, borrower, 'to', version=version)
    fails_at_once(cloud, borrower, before, response, version, None)
    assert before.ledger['storage'].uuid in state.result(cloud, borrower)[1]


@pytest.mark.breaks('I3', reason=IS_LENT)
@pytest.mark.parametrize('host', [None, 'to'])
def test_a_guest_that_borrows_its_disk_moves_without_force_and_borrows_twice_meanwhile(cloud, borrower, host):
    faults(cloud, 'from').stall('copying', sticky=True)
    response = cloud.live_migrate(borrower, host)
    state.when(cloud, borrower, 'running')
    right = {name: {name: ON_HOST, 'storage': {'DISK_GB': 1}} for name in ('from', 'to')}
    assert held(cloud) == {borrower.uuid: right['to'], cloud.migrations(borrower)[-1].uuid: right['from']}
    migration_requests.go_on(cloud)
    moves(cloud, borrower, None, response, '2.80', right.get)


# --- numbered groups -------------------------------------------------------------------------------------------------


def test_a_numbered_group_moves_from_child_to_child(cloud):
    """As nova writes it: a class of the operator's own, in a group of its own."""
    for host in ('from', 'to'):
        add(cloud, host, nic={'CUSTOM_NIC': 2}, other={'CUSTOM_OTHER': 2})
    instance = boot(cloud, 'from', {'resources1:CUSTOM_NIC': '2'})
    assert held(cloud) == {instance.uuid: {'from': state.CLAIM, 'from_nic': {'CUSTOM_NIC': 2}}}
    response = cloud.live_migrate(instance)
    moves(cloud, instance, None, response, '2.80', lambda host: {host: state.CLAIM, f'{host}_nic': {'CUSTOM_NIC': 2}})


def test_numbered_group_is_allocated_from_one_child(cloud):
    add(cloud, 'from', both={'CUSTOM_NIC': 1, 'CUSTOM_BANDWIDTH': 100})
    add(cloud, 'apart', nic={'CUSTOM_NIC': 1}, bandwidth={'CUSTOM_BANDWIDTH': 100})
    instance = boot(cloud, 'from', {'resources1:CUSTOM_NIC': '1', 'resources1:CUSTOM_BANDWIDTH': '50'})
    before = look(cloud)
    response = cloud.live_migrate(instance)
    fails(cloud, instance, before, response, '2.80', ['No valid host was found'])
    add(cloud, 'to', both={'CUSTOM_NIC': 1, 'CUSTOM_BANDWIDTH': 100})
    response = cloud.live_migrate(instance)
    wanted = {'CUSTOM_NIC': 1, 'CUSTOM_BANDWIDTH': 50}
    moves(cloud, instance, None, response, '2.80', lambda host: {host: state.CLAIM, f'{host}_both': wanted})


TWO_GROUPS = {'resources1:PGPU': '1', 'resources2:PGPU': '1'}


@pytest.mark.parametrize('policy', [{}, {'group_policy': 'none'}])
def test_groups_that_need_not_be_isolated_may_share_a_child(cloud, policy):
    for host in ('from', 'to'):
        add(cloud, host, gpu={'PGPU': 2})
    instance = boot(cloud, 'from', {**TWO_GROUPS, **policy})
    response = cloud.live_migrate(instance)
    moves(cloud, instance, None, response, '2.80', lambda host: {host: state.CLAIM, f'{host}_gpu': {'PGPU': 2}})


def test_isolated_groups_are_each_on_own_child(cloud):
    for host in ('from', 'to'):
        add(cloud, host, gpu1={'PGPU': 2}, gpu2={'PGPU': 2})
    instance = boot(cloud, 'from', {**TWO_GROUPS, 'group_policy': 'isolate'})
    response = cloud.live_migrate(instance)

    def right(host):
        return {host: state.CLAIM, f'{host}_gpu1': {'PGPU': 1}, f'{host}_gpu2': {'PGPU': 1}}

    moves(cloud, instance, None, response, '2.80', right)


def test_isolated_groups_find_no_room_on_host_with_one_child(cloud):
    add(cloud, 'from', gpu1={'PGPU': 1}, gpu2={'PGPU': 1})
    add(cloud, 'to', gpu={'PGPU': 2})
    instance = boot(cloud, 'from', {**TWO_GROUPS, 'group_policy': 'isolate'})
    before = look(cloud)
    response = cloud.live_migrate(instance)
    fails(cloud, instance, before, response, '2.80', ['No valid host was found'])
    assert ledger(cloud) == before.ledger


def test_a_guest_with_a_numbered_group_can_be_registered_where_a_child_has_it(cloud):
    add(cloud, 'from', gpu=DEVICE)
    flavor = Flavor(name='special', extra_specs={'resources1:PGPU': '1'})
    instance = cloud.boot('one', 'from', flavor=flavor)
    assert held(cloud) == {instance.uuid: KINDS['nested'][1]('from')}


def test_registration_interrupted_after_the_claim_is_completed_by_a_second_call(cloud):
    add(cloud, 'from', gpu=DEVICE)
    flavor = Flavor(name='special', extra_specs={'resources1:PGPU': '1'})
    instance = cloud.boot('one', 'from', flavor=flavor)
    before = held(cloud)
    cloud.database.instances.delete(instance.uuid)
    again = registry.create_instance(cloud.database, cloud.placement_client, instance)
    assert (again.uuid, held(cloud)) == (instance.uuid, before)
