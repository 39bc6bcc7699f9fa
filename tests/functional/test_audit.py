# SPDX-License-Identifier: Apache-2.0

"""Wrong allocations in Placement are found, reported and healed; valid ones are never touched."""

import dataclasses
import json
import uuid as uuids

import pytest

from migrator.conductor import audit as audits
from migrator.placement_client import allocation_state, allocations
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement_faults import Fault
from tests import slow
from tests.functional import migration_requests, state
from tests.functional.faults import faults, migrate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.simulated(reason='it writes wrong allocations by hand, and judges between two requests'),
]

STRANGER = '00000000-0000-4000-8000-00000000dead'


@pytest.fixture(autouse=True)
def placement_of_the_cloud(cloud, monkeypatch):
    """The commands find the Placement of the cloud, which no configuration names."""
    monkeypatch.setattr('migrator.operator.cli.command.Asked.placement', lambda _asked: cloud.placement_client)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """An audit of few guests has several pages."""
    monkeypatch.setattr(audits, '_BATCH', 2)


def root(cloud, host):
    return next(node.uuid for node in cloud.database.services.list_nodes() if node.host == host)


def write(cloud, consumer, held, kind=allocation_state.INSTANCE):
    """Have a consumer hold this, whatever it held: host -> resource class -> amount."""
    known = allocations.read(cloud.placement_client, consumer)
    owner = allocation_state.Consumer(uuid=consumer, consumer_type=kind, project_id='demo', user_id='demo')
    by_root = {root(cloud, host): amounts for host, amounts in held.items()}
    allocations.write_all(
        cloud.placement_client, [allocations.Write(consumer=owner, allocations=by_root, generation=known.generation)]
    )


def found(cloud):
    """Return the verdicts of an audit, by consumer."""
    wrong = audits.audit(cloud.database, cloud.placement_client)
    return {one.consumer: sorted({finding.verdict for finding in one.findings}) for one in wrong}


def at_rest(cloud):
    """A guest that has moved from host1 to host2, some time ago; and its migration."""
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    cloud.simulation.advance(120)
    return cloud.database.instances.get(instance.uuid), cloud.migrations(instance)[-1]


#: Name of a wrong allocation -> its consumer, its amounts (host -> amounts, "all" is the flavor), and the verdict.
WRONG = {
    'a migration that has ended holds its source': ('migration', {'host1': 'all'}, 'leaked'),
    'a migration that has ended holds its destination': ('migration', {'host2': 'all'}, 'leaked'),
    'a migration that has ended holds a third host': ('migration', {'host3': {'VCPU': 1}}, 'leaked'),
    'an instance holds nothing': ('instance', {}, 'missing'),
    'an instance holds another host': ('instance', {'host3': 'all'}, 'wrong host'),
    'an instance holds its old host': ('instance', {'host1': 'all'}, 'wrong host'),
    'an instance holds less': ('instance', {'host2': {'MEMORY_MB': 512, 'DISK_GB': 1}}, 'wrong amount'),
    'an instance holds more': ('instance', {'host2': {**state.CLAIM, 'VCPU': 3}}, 'wrong amount'),
    'an instance holds two hosts': ('instance', {'host1': 'all', 'host2': 'all'}, 'doubled'),
    'an instance holds a part of a second host': ('instance', {'host1': {'VCPU': 1}, 'host2': 'all'}, 'doubled'),
    'an unknown instance holds something': (STRANGER, {'host1': 'all'}, 'unknown consumer'),
    'an unknown migration holds something': (STRANGER, {'host1': 'all'}, 'unknown consumer'),
}


def plant(cloud, kind):
    """Make the allocations wrong in one way; return the consumer that is wrong then, with its verdict."""
    instance, migration = at_rest(cloud)
    whose, held, verdict = WRONG[kind]
    consumer = {'instance': instance.uuid, 'migration': migration.uuid}.get(whose, whose)
    of_type = allocation_state.MIGRATION if kind.startswith('a migration') else allocation_state.INSTANCE
    flavor = instance.flavor.resources()
    write(cloud, consumer, {host: flavor if held[host] == 'all' else held[host] for host in held}, of_type)
    return consumer, verdict


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.nova_bug(1724172, 1793569)
@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
@pytest.mark.parametrize('kind', WRONG)
def test_wrong_allocations_are_found_and_healed_and_nothing_else_changes(cloud, operator, kind):
    other = cloud.boot('other', 'host2')
    consumer, verdict = plant(cloud, kind)
    assert found(cloud) == {consumer: [verdict]}
    before = state.allocations(cloud)
    status, text = operator('placement', 'audit')
    assert (status, consumer in text, verdict in text) == (1, True, True), text
    named = ('--consumer', consumer) if consumer == STRANGER else ()
    status, text = operator('placement', 'heal', *named)
    assert (status, 'Nothing was changed' in text) == (0, True), text
    assert state.allocations(cloud) == before
    status, text = operator('placement', 'heal', '--yes', *named)
    assert (status, '1 corrected, 0 left' in text) == (0, True), text
    assert found(cloud) == {}
    instance = cloud.database.instances.list({'name': 'one'})[0]
    right = {one.uuid: {'host2': one.flavor.resources()} for one in (instance, other)}
    assert state.allocations(cloud) == right
    assert operator('placement', 'heal', '--yes') == (0, 'Every allocation is correct.\n')


FINDINGS = '/migrator/v1/findings'


@pytest.mark.breaks('I19', reason='a 503 without an outage is what it is about')
def test_request_during_the_audit_of_another_one_gets_503_and_reads_nothing(cloud, monkeypatch):
    send, second = cloud.adapter.request, []

    def ask_once_more(*words, **more):
        if not second:
            second.append(None)
            before = len(cloud.adapter.sent)
            second[:] = [cloud.request('GET', FINDINGS), len(cloud.adapter.sent) - before]
        return send(*words, **more)

    monkeypatch.setattr(cloud.adapter, 'request', ask_once_more)
    assert cloud.request('GET', FINDINGS).json == {'findings': []}
    refused, reads = second
    assert (refused.status_int, refused.headers['Retry-After'], reads) == (503, '5', 0)
    assert 'Conductor conductor1 audits Placement already: try again' in refused.json['serviceUnavailable']['message']
    assert cloud.request('GET', FINDINGS).status_int == 200


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
def test_unknown_consumer_is_removed_only_if_it_is_named(cloud, operator):
    consumer, _ = plant(cloud, 'an unknown instance holds something')
    before = state.allocations(cloud)
    status, text = operator('placement', 'heal', '--yes')
    assert (status, 'name it to remove it' in text) == (1, True), text
    assert state.allocations(cloud) == before
    document = json.loads(operator('--json', 'placement', 'audit')[1])
    assert [one['consumer'] for one in document['findings']] == [consumer]
    assert set(document['findings'][0]) == {
        'consumer', 'consumer_type', 'provider', 'resources', 'verdict', 'reason', 'since', 'remedy',
    }  # fmt: skip


def test_right_allocations_have_no_finding(cloud, operator):
    instance, migration = at_rest(cloud)
    assert operator('placement', 'audit') == (0, 'Every allocation is correct.\n')
    for known in (instance.uuid, migration.uuid):
        assert operator('placement', 'heal', '--consumer', known) == (
            0,
            f'{known}: its allocation is correct, or is changing at this moment.\n',
        )


@pytest.mark.parametrize('yes', [(), ('--yes',)], ids=['dry run', 'yes'])
def test_naming_a_consumer_that_does_not_exist_is_an_error(cloud, operator, yes):
    at_rest(cloud)
    reported = f'{STRANGER}: it is neither an instance nor a migration here, and holds nothing in Placement: check the'
    status, text = operator('placement', 'heal', *yes, '--consumer', STRANGER)
    assert (status, text) == (1, f'{reported} uuid.\n')
    status, text = operator('--json', 'placement', 'heal', *yes, '--consumer', STRANGER)
    assert (status, json.loads(text)) == (
        1,
        {'dry_run': not yes, 'findings': [], 'consumers': [], 'unknown': [STRANGER]},
    )


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
@pytest.mark.parametrize('yes', [(), ('--yes',)], ids=['dry run', 'yes'])
def test_heal_json_has_same_findings_as_audit_json(cloud, operator, yes):
    consumer, _ = plant(cloud, 'a migration that has ended holds its source')
    write(cloud, STRANGER, {'host1': {'VCPU': 1}})
    audited = json.loads(operator('--json', 'placement', 'audit')[1])['findings']
    assert {one['consumer'] for one in audited} == {consumer, STRANGER}
    status, text = operator('--json', 'placement', 'heal', *yes, '--consumer', consumer)
    healed = json.loads(text)
    assert (status, healed['findings']) == (0, [one for one in audited if one['consumer'] == consumer])
    assert [(one['consumer'], one['healed']) for one in healed['consumers']] == [(consumer, bool(yes))]
    assert healed['unknown'] == []


def test_unreachable_placement_is_reported_and_nothing_changes(cloud, operator):
    at_rest(cloud)
    cloud.adapter.inject(Fault.UNREACHABLE, times=10)
    assert operator('placement', 'audit') == (3, '')
    cloud.adapter._plans.clear()


# --- a cloud that is at work -----------------------------------------------------------------------------------------


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
def test_allocation_changed_since_the_audit_is_not_written(cloud):
    consumer, _ = plant(cloud, 'an instance holds two hosts')
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    write(cloud, consumer, {'host1': {'VCPU': 1}})
    done, observed = audits.heal(cloud.database, cloud.placement_client, wrong)
    assert (done, 'audit again' in observed) == (False, True)
    assert list(state.allocations(cloud)[consumer]) == ['host1']
    write(cloud, consumer, {'host2': cloud.database.instances.get(consumer).flavor.resources()})


@pytest.mark.nova_bug('audit-deletes-what-moves')
@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
def test_allocations_of_a_migration_in_progress_are_not_healed(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=1024)
    cloud.simulation.advance(120)
    migration_requests.running(cloud, instance)
    flavor = instance.flavor.resources()
    write(cloud, instance.uuid, {'host2': flavor, 'host3': flavor})
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    done, observed = audits.heal(cloud.database, cloud.placement_client, wrong)
    assert (done, 'let it end' in observed) == (False, True)
    write(cloud, instance.uuid, {'host2': flavor})
    migration_requests.go_on(cloud)
    cloud.wait()
    state.completed(cloud, instance, 'host2')


@pytest.mark.breaks('I3', 'I4', 'I5', reason='the test writes allocations by hand')
def test_audit_ignores_allocation_missing_for_a_moment(cloud):
    instance = cloud.boot('one', 'host1')
    flavor = instance.flavor.resources()
    cloud.simulation.advance(1)
    write(cloud, instance.uuid, {})
    assert found(cloud) == {}
    write(cloud, instance.uuid, {'host1': flavor})


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
def test_leftover_of_an_earlier_migration_is_removed_during_the_next(cloud):
    instance, earlier = at_rest(cloud)
    write(cloud, earlier.uuid, {'host3': {'VCPU': 1}}, allocation_state.MIGRATION)
    migration_requests.running(cloud, instance)
    before = state.allocations(cloud)
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    assert audits.heal(cloud.database, cloud.placement_client, wrong)[0]
    assert state.allocations(cloud) == {uuid: held for uuid, held in before.items() if uuid != earlier.uuid}
    migration_requests.go_on(cloud)
    cloud.wait()


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', 'I18', reason='the test deletes an instance by hand')
def test_a_guest_that_is_deleted_while_it_is_healed_does_not_come_back(cloud):
    consumer, _ = plant(cloud, 'an instance holds nothing')
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    request, asked = cloud.adapter.request, []

    def deletes_first(url, method, **more):
        if method == 'PUT' and not asked:
            asked.append(url)
            cloud.database.instances.delete(consumer)
        return request(url, method, **more)

    cloud.adapter.request = deletes_first
    done, observed = audits.heal(cloud.database, cloud.placement_client, wrong)
    assert (asked, done, 'deleted' in observed) == ([f'/allocations/{consumer}'], False, True)
    assert consumer not in state.allocations(cloud)


def child(cloud, host, name):
    """Give a host a child provider with one PGPU; return its uuid."""
    adapter, uuid = cloud.placement.adapter(), str(uuids.uuid4())
    version = {'OpenStack-API-Version': 'placement 1.39'}
    body = {'uuid': uuid, 'name': name, 'parent_provider_uuid': root(cloud, host)}
    assert adapter.post('/resource_providers', json=body, headers=version).status_code == 200
    body = {'resource_provider_generation': 0, 'inventories': {'PGPU': {'total': 1}}}
    assert adapter.put(f'/resource_providers/{uuid}/inventories', json=body, headers=version).status_code == 200
    return uuid


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
@pytest.mark.parametrize('used', [0, 1])
def test_right_allocation_on_a_provider_tree_is_kept(cloud, used):
    """Another device fits the allocation, and the guest uses this one."""
    instance, _ = at_rest(cloud)
    children = [child(cloud, 'host2', name) for name in ('one', 'two')]
    flavor = dataclasses.replace(instance.flavor, extra_specs={'resources:PGPU': '1'})
    cloud.database.instances.update(instance.uuid, flavor=dataclasses.asdict(flavor))
    plain = instance.flavor.resources()
    owner = allocation_state.Consumer(
        uuid=instance.uuid, consumer_type=allocation_state.INSTANCE, project_id='demo', user_id='demo'
    )

    def hold(held):
        generation = allocations.read(cloud.placement_client, instance.uuid).generation
        entry = allocations.Write(consumer=owner, allocations=held, generation=generation)
        allocations.write_all(cloud.placement_client, [entry])

    hold({root(cloud, 'host2'): {**plain, 'VCPU': 3}, children[used]: {'PGPU': 1}})
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    assert audits.heal(cloud.database, cloud.placement_client, wrong)[0]
    held = allocations.read(cloud.placement_client, instance.uuid).allocations
    assert held == {root(cloud, 'host2'): plain, children[used]: {'PGPU': 1}}
    # It is not known here which of the two it uses.
    hold({root(cloud, 'host2'): plain})
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    done, observed = audits.heal(cloud.database, cloud.placement_client, wrong)
    assert (done, 'cannot choose the providers' in observed) == (False, True)
    cloud.database.instances.update(instance.uuid, flavor=dataclasses.asdict(instance.flavor))


# The fake Placement has one microversion only, and in that one every consumer has a type.
@pytest.mark.real_placement
@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
def test_leftover_without_a_consumer_type_can_be_removed(cloud, operator):
    at_rest(cloud)
    body = {
        'allocations': {root(cloud, 'host1'): {'resources': {'VCPU': 1}}},
        'consumer_generation': None,
        'project_id': 'demo',
        'user_id': 'demo',
    }
    headers = {'OpenStack-API-Version': 'placement 1.28'}
    adapter = cloud.placement.adapter()
    assert adapter.put(f'/allocations/{STRANGER}', json=body, headers=headers).status_code == 204
    status, text = operator('placement', 'heal', '--yes', '--consumer', STRANGER)
    assert (status, 'Done: its allocations are removed' in text) == (0, True), text
    assert STRANGER not in state.allocations(cloud)


def test_host_that_joins_during_audit_is_no_finding(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.simulation.advance(120)
    list_, joined = cloud.database.services.list_nodes, []

    def joins_then():
        found = list_()
        if not joined:
            joined.append(cloud.add_host('host9'))
            cloud.simulation.run_until(cloud.up)
            assert cloud.live_migrate(instance, 'host9').status_int == 202
            cloud.wait()
        return found

    cloud.database.services.list_nodes = joins_then
    assert audits.audit(cloud.database, cloud.placement_client) == []
    assert joined
    state.completed(cloud, cloud.database.instances.get(instance.uuid), 'host9')


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
@pytest.mark.parametrize('strategy', ['migration-owned', 'doubled'])
@pytest.mark.parametrize('named', [None, 'host2'], ids=['anywhere', 'to a named host'])
def test_heal_during_the_first_write_of_a_migration_leaves_the_allocations_right(cloud, named, strategy):
    """The migration has read what the heal puts right, and the heal what the migration is about to move."""
    if strategy == 'doubled':
        cloud.database.services.report('host3', 'nova-compute', 1)
    instance = cloud.boot('one', 'host1')
    flavor = instance.flavor.resources()
    write(cloud, instance.uuid, {'host1': {**flavor, 'VCPU': 3}})
    cloud.simulation.advance(120)
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    late = audits.remedy(cloud.database, cloud.placement_client, wrong).write
    request = cloud.adapter.request

    def first(url, method, **more):
        if method in ('POST', 'PUT') and url.startswith('/allocations'):
            cloud.adapter.request = request
            allocations.write_all(cloud.placement_client, [late])
        return request(url, method, **more)

    cloud.adapter.request = first
    assert cloud.live_migrate(instance, named).status_int == 202
    cloud.wait()
    (migration,) = cloud.migrations()
    assert cloud.adapter.request == request
    assert (migration.strategy, migration.stuck_reason) == (strategy, None)
    assert migration.status == ('completed' if named is None else 'failed')
    assert found(cloud) == {}
    home = cloud.database.instances.get(instance.uuid).host
    assert allocations.read(cloud.placement_client, instance.uuid).allocations == {root(cloud, home): flavor}
    if named is not None:
        assert 'was changed before the migration moved it' in migration.failure


@pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand')
@pytest.mark.cloud(options={'conductor.audit_interval': 30})
def test_a_conductor_that_audits_says_once_what_is_wrong(cloud):
    consumer, _ = plant(cloud, 'a migration that has ended holds its source')
    cloud.simulation.advance(100)
    reported = [line for line in cloud.monitor.logs if consumer in line and 'leaked' in line]
    assert len(reported) == 1
    (wrong,) = audits.audit(cloud.database, cloud.placement_client)
    assert audits.heal(cloud.database, cloud.placement_client, wrong)[0]
    cloud.simulation.advance(31)
    assert any('No wrong allocations are left in Placement' in line for line in cloud.monitor.logs)


class Auditor:
    """An audit before and after each request of a cloud to Placement, and at each commit."""

    def __init__(self, cloud):
        self.cloud, self.looks, self.wrong = cloud, 0, []
        self._busy = False
        request = cloud.adapter.request

        def watched(*args, **kwargs):
            self.look()
            try:
                return request(*args, **kwargs)
            finally:
                self.look()

        cloud.adapter.request = watched
        cloud.database.engine.boundary = lambda what: self.look() if what == 'committed' else None

    def look(self):
        if self._busy:
            return
        self._busy = True
        try:
            self.looks += 1
            self.wrong += audits.audit(self.cloud.database, self.cloud.placement_client)
        finally:
            self._busy = False


@pytest.mark.nova_bug('audit-deletes-what-moves')
@pytest.mark.parametrize('what', ['success', 'abort', 'it fails', 'the next candidate'])
def test_audit_at_any_moment_of_migration_finds_no_wrong_living_allocation(cloud, what):
    instance = cloud.boot('one', 'host1', memory_mb=1024)
    cloud.simulation.advance(120)
    auditor = Auditor(cloud)
    if what == 'abort':
        migration_requests.running(cloud, instance)
        assert migration_requests.abort(cloud, instance).status_int == 202
    elif what == 'it fails':
        faults(cloud, 'host1').fail('copying')
        migrate(cloud, instance)
    elif what == 'the next candidate':
        faults(cloud, 'host2').fail('check_can_live_migrate_destination')
        migrate(cloud, instance)
    else:
        migrate(cloud, instance)
    cloud.wait()
    cloud.database.engine.boundary = lambda what: None
    assert auditor.wrong == []
    assert auditor.looks > 15


@pytest.mark.seeds(0, 1, 2)
@pytest.mark.cloud(options={'max_concurrent_live_migrations': 2})
def test_an_audit_that_takes_its_time_beside_a_cloud_at_work_finds_nothing(cloud):
    guests = [cloud.boot(f'guest{number}', 'host1', memory_mb=512) for number in range(4)]
    cloud.simulation.advance(120)
    client = PlacementClient(slow.Slow(cloud.placement.adapter(), cloud.world.threads))
    wrong, looks = [], []

    def audit():
        while len(looks) < 400 and not (looks and cloud.idle()):
            wrong.extend(audits.audit(cloud.database, client))
            looks.append(cloud.simulation.time)

    faults(cloud, 'host1').fail('copying', instance_uuid=guests[1].uuid)
    cloud.world.threads.start(audit, name='audit')
    for guest in guests:
        cloud.simulation.advance(0.007)
        assert cloud.live_migrate(guest).status_int == 202
    state.when(cloud, guests[0], 'running')
    assert migration_requests.abort(cloud, guests[0]).status_int == 202
    cloud.wait()
    assert (wrong, len(looks) > 10) == ([], True)
