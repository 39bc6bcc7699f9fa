# SPDX-License-Identifier: Apache-2.0

"""migrator.placement_client against the real Placement over HTTP, with threads, on PostgreSQL."""

import threading
import uuid

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.conf import keystone
from migrator.objects import Flavor, Instance, Strategy
from migrator.placement_client import allocation_state, allocations, audit, providers
from migrator.placement_client import client as placement
from tests.real.servers import process
from tests.real.servers.placement import Placement

VCPU = {'VCPU': 2, 'MEMORY_MB': 512}
RACERS = 8


@pytest.fixture
def new_client(tmp_path):
    """Make clients from a section [placement], as the services do."""

    def make(**options):
        file = tmp_path / f'{uuid.uuid4()}.conf'
        file.write_text('[placement]\n' + ''.join(f'{key} = {value}\n' for key, value in options.items()))
        conf = cfg.ConfigOpts()
        keystone.PLACEMENT.register_opts(conf)
        conf(['--config-file', str(file)], default_config_files=[], default_config_dirs=[])
        return placement.client_from_conf(conf)

    return make


@pytest.fixture
def client(new_client, placement_http):
    return new_client(auth_type='none', endpoint_override=placement_http.url, timeout=10)


@pytest.fixture
def host(client):
    """Make hosts in Placement."""
    return hosts_of(client)


def hosts_of(client):
    """Return what makes hosts in a Placement."""

    def make(vcpus=16):
        one = str(uuid.uuid4())
        made = client.post('/resource_providers', {'uuid': one, 'name': f'host-{one}'}).json()
        inventories = {'VCPU': {'total': vcpus}, 'MEMORY_MB': {'total': 65536}}
        body = {'resource_provider_generation': made['generation'], 'inventories': inventories}
        client.put(f'/resource_providers/{one}/inventories', body)
        return one

    return make


def consumer(consumer_type):
    return allocation_state.Consumer(
        uuid=str(uuid.uuid4()), consumer_type=consumer_type, project_id='blue', user_id='ada'
    )


def new_pair(client, host):
    """Return a pair whose instance holds the source."""
    source, destination = {host(): VCPU}, {host(): VCPU}
    guest = consumer(allocation_state.INSTANCE)
    allocations.claim(client, guest, source, generation=None)
    return allocation_state.Pair(
        instance=guest, migration=consumer(allocation_state.MIGRATION), source=source, destination=destination
    )


def findings(client, pair, at):
    """Return what an audit has to say of a pair whose instance the database has at a host."""
    (source,), (destination,) = pair.source, pair.destination
    guest = Instance(
        uuid=pair.instance.uuid, name='vm', project_id='blue', user_id='ada', host=at, node=at,
        flavor=Flavor(name='m1', vcpus=VCPU['VCPU'], memory_mb=VCPU['MEMORY_MB'], root_gb=0),
    )  # fmt: skip
    known = [pair.instance.uuid, pair.migration.uuid]
    found = audit.compare(audit.read_all(client, known), {'source': source, 'destination': destination}, [guest], [])
    return [one for one in found if one.consumer in known]


@pytest.mark.parametrize('strategy', list(Strategy))
def test_allocations_are_right_after_move_revert_move_and_release(client, host, strategy):
    pair = new_pair(client, host)
    writer = allocations.strategy_for(client, strategy)
    assert findings(client, pair, 'source') == []
    for back in (True, False):
        seen = writer.observe(pair)
        assert seen.state is allocation_state.PairState.NOT_MOVED
        writer.move(pair, instance_generation=seen.instance.generation)
        seen = writer.observe(pair)
        assert seen.state is allocation_state.PairState.MOVED
        generations = {
            'instance_generation': seen.instance.generation, 'migration_generation': seen.migration.generation,
        }  # fmt: skip
        (writer.revert if back else writer.release)(pair, **generations)
    assert writer.observe(pair).state is allocation_state.PairState.RELEASED
    (source,), (destination,) = pair.source, pair.destination
    assert providers.usages(client, source) == {'VCPU': 0, 'MEMORY_MB': 0}
    assert providers.usages(client, destination) == VCPU
    assert findings(client, pair, 'destination') == []


def test_a_move_that_comes_after_the_rewrite_of_the_source_is_refused_and_changes_nothing(client, host):
    pair = new_pair(client, host)
    writer = allocations.strategy_for(client, 'migration-owned')
    generation = writer.observe(pair).instance.generation
    writer.rewrite_source(pair, instance_generation=generation)
    with pytest.raises(exception.PlacementConflict):
        writer.move(pair, instance_generation=generation)
    assert writer.observe(pair).state is allocation_state.PairState.NOT_MOVED


def test_concurrent_writers_of_one_generation_succeed_or_conflict_as_placement_shows(client, host, record_property):
    """What Placement does with eight migrations that move one instance at once.

    One is accepted here, round after round. It is nothing to build on: after a deadlock Placement runs the transaction
    again with a consumer's generation that it has raised already, which is then that of the winner. The right to move
    is taken in our own database first. What has to hold: an answer is true, and there are no others than these two.
    """
    winners = []
    for _round in range(5):
        source, guest = {host(64): VCPU}, consumer(allocation_state.INSTANCE)
        allocations.claim(client, guest, source, generation=None)
        racers = [
            allocation_state.Pair(
                instance=guest,
                migration=consumer(allocation_state.MIGRATION),
                source=source,
                destination={host(): VCPU},
            )
            for _ in range(RACERS)
        ]
        writer = allocations.strategy_for(client, 'migration-owned')
        generation = writer.observe(racers[0]).instance.generation
        outcomes = race(writer, racers, generation)
        assert {type(outcome) for outcome in outcomes} <= {type(None), exception.PlacementConflict}, outcomes
        winners.append(outcomes.count(None))
        held = allocations.read(client, guest.uuid).allocations
        assert dict(held) in [pair.destination for pair in racers]
        holders = [pair for pair in racers if allocations.read(client, pair.migration.uuid).allocations]
        assert len(holders) == winners[-1]
    assert all(number >= 1 for number in winners)
    record_property('winners of eight, by round', winners)
    print(f'winners of eight, by round: {winners}')


def race(writer, racers, generation):
    """Let all move at the same moment, and return what each got."""
    barrier, outcomes = threading.Barrier(len(racers)), [None] * len(racers)

    def move(number, pair):
        barrier.wait()
        try:
            writer.move(pair, instance_generation=generation)
        except exception.MigratorException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=move, args=each) for each in enumerate(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


@pytest.mark.parametrize('strategy', list(Strategy))
def test_placement_on_sqlite_with_two_writers_is_retried_until_all_have_moved(
    workspace, new_client, strategy, record_property
):
    """Placement on SQLite answers 500, "database is locked", to who comes at the same moment as another."""
    server = Placement(workspace)
    server.start()
    try:
        client = new_client(auth_type='none', endpoint_override=server.url, timeout=60)
        make = hosts_of(client)
        movers = [new_pair(client, make) for _ in range(RACERS)]
        writer = allocations.strategy_for(client, strategy)
        away = 0
        left = movers
        while left:
            reported = race(writer, left, allocations.FIRST_GENERATION)
            kinds = {type(one) for one in reported}
            assert kinds <= {type(None), exception.PlacementUnreachable, exception.PlacementConflict}, reported
            states = [writer.observe(pair).state for pair in left]
            for outcome, state in zip(reported, states, strict=True):
                assert state is allocation_state.PairState.MOVED or (
                    outcome is not None and state is allocation_state.PairState.NOT_MOVED
                )
            away += sum(isinstance(one, exception.PlacementUnreachable) for one in reported)
            left = [
                pair for pair, state in zip(left, states, strict=True) if state is allocation_state.PairState.NOT_MOVED
            ]
        record_property('answered 500', away)
        print(f'answered 500: {away}')
        for pair in movers:
            seen = writer.observe(pair)
            writer.release(
                pair, instance_generation=seen.instance.generation, migration_generation=seen.migration.generation
            )
            assert writer.observe(pair).state is allocation_state.PairState.RELEASED
    finally:
        server.stop()


# --- bad days --------------------------------------------------------------------------------------------------------


def test_a_restart_makes_it_unreachable_and_then_it_works(client, host, placement_http):
    pair = new_pair(client, host)
    writer = allocations.strategy_for(client, 'migration-owned')
    generation = writer.observe(pair).instance.generation
    placement_http.stop()
    with pytest.raises(exception.PlacementUnreachable) as caught:
        writer.move(pair, instance_generation=generation)
    assert type(caught.value) is exception.PlacementUnreachable
    placement_http.start()
    # the very same client, whose connection is stale
    assert writer.observe(pair).state is allocation_state.PairState.NOT_MOVED
    writer.move(pair, instance_generation=generation)
    assert writer.observe(pair).state is allocation_state.PairState.MOVED


def answers(client):
    try:
        return providers.list_providers(client) is not None
    except exception.PlacementUnreachable:
        return False


def test_placement_restarted_between_two_requests_is_retried_at_most_once(client, placement_http):
    providers.list_providers(client)
    placement_http.kill()
    placement_http.start()
    process.wait_until(lambda: answers(client), 'Placement to be asked again', 10)


def test_hanging_placement_is_unreachable_after_the_timeout(new_client, placement_http):
    hasty = new_client(auth_type='none', endpoint_override=placement_http.url, timeout=1)
    placement_http.pause()
    try:
        with pytest.raises(exception.PlacementUnreachable, match='timed out'):
            providers.list_providers(hasty)
    finally:
        placement_http.go_on()
    process.wait_until(lambda: answers(hasty), 'Placement to be asked again')


def test_placement_without_its_database_is_unreachable_until_it_returns(client, postgresql):
    providers.list_providers(client)
    postgresql.stop()
    with pytest.raises(exception.PlacementUnreachable, match='it answered 500'):
        providers.list_providers(client)
    postgresql.start()
    providers.list_providers(client)


# --- credentials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('auth_type', ['none', 'noauth', 'admin_token'])
def test_placement_accepts_the_login(new_client, placement_http, auth_type):
    options = {'endpoint': placement_http.url, 'token': 'admin'} if auth_type == 'admin_token' else {}
    made = new_client(auth_type=auth_type, endpoint_override=placement_http.url, **options)
    assert providers.list_providers(made) is not None


def test_a_token_that_may_not_is_said_clearly(new_client, placement_http):
    made = new_client(auth_type='admin_token', endpoint=placement_http.url, token='ada:blue')
    with pytest.raises(exception.PlacementUnauthorized) as caught:
        providers.list_providers(made)
    assert str(caught.value).startswith(
        'Placement does not let migrator in (it answered 403 to GET /resource_providers'
    )
    assert 'look at auth_type and the credentials in [placement]' in str(caught.value)


def test_an_address_that_is_not_placement_is_said_clearly(new_client, placement_http):
    nowhere = new_client(auth_type='none', endpoint_override=f'http://127.0.0.1:{process.free_port()}')
    with pytest.raises(exception.PlacementUnreachable):
        providers.list_providers(nowhere)
    beside = new_client(auth_type='none', endpoint_override=f'{placement_http.url}/compute')
    with pytest.raises((exception.PlacementUnreachable, exception.PlacementRefused)):
        providers.list_providers(beside)
