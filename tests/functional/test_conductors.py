# SPDX-License-Identifier: Apache-2.0

"""Several conductors: all migrations of one source belong to one of them."""

import collections

import pytest

from tests.functional import state
from tests.functional.faults import LONG, faults, migrate

pytestmark = pytest.mark.simulated(reason='it counts what each conductor owns at single moments')

#: A cloud of several conductors, each of which may receive any message.
MANY = {'hosts': 9, 'vcpus': 400, 'memory_mb': 400 * 64}


def start(cloud, number):
    """Start further conductors, up to this number."""
    for one in range(2, number + 1):
        cloud.start_conductor(f'conductor{one}')


def owners(cloud):
    """Return source -> the servers of the owners of its migrations in progress; None is no owner."""
    servers = {one.id: one.server for one in cloud.database.conductors.list()}
    found = collections.defaultdict(set)
    for row in cloud.migrations():
        if row.in_progress:
            found[row.source_compute].add(servers.get(row.owner))
    return found


def stall(cloud, *hosts):
    """Let no copy from these hosts end, and return what lets them go on."""
    return [faults(cloud, host).stall('copying', sticky=True) for host in hosts]


def leave(cloud, host, guests, to='host9'):
    """Request migrations of new guests of a host, all at once, and return the guests."""
    found = [cloud.boot(f'{host}-{number}', host, memory_mb=64) for number in range(guests)]
    for guest in found:
        migrate(cloud, guest, to)
    return found


def are_owned(cloud):
    return None not in set().union(*owners(cloud).values())


@pytest.mark.cloud(**MANY)
@pytest.mark.seeds(1, 2, 3)
def test_migrations_requested_together_belong_to_one_conductor_for_each_source(cloud):
    start(cloud, 4)
    held = stall(cloud, 'host1', 'host2')
    leave(cloud, 'host1', 6)
    leave(cloud, 'host2', 6)
    cloud.simulation.run_until(lambda: are_owned(cloud))
    assert [len(owners(cloud)[host]) for host in ('host1', 'host2')] == [1, 1]
    cloud.simulation.advance(1)
    runs = {name: len(conductor.runner.held()) for name, conductor in cloud.conductors.items()}
    assert sorted(runs.values()) == [0, 0, 6, 6], 'the owner runs them without waiting for its sweep'
    for one in held:
        one.release()
    cloud.wait()


@pytest.mark.cloud(**MANY)
@pytest.mark.parametrize('conductors', [2, 4])
def test_new_sources_go_to_the_conductors_with_the_fewest(cloud, conductors):
    start(cloud, conductors)
    hosts = [f'host{number}' for number in range(1, 9)]
    held = stall(cloud, *hosts)
    for host in hosts:
        leave(cloud, host, 2)
    cloud.simulation.run_until(lambda: are_owned(cloud))
    found = collections.Counter(server for servers in owners(cloud).values() for server in servers)
    assert sorted(found.values()) == [8 // conductors] * conductors
    for one in held:
        one.release()
    cloud.wait()


@pytest.mark.cloud(**MANY)
def test_takeover_from_a_dead_conductor_keeps_each_source_together(cloud):
    start(cloud, 4)
    hosts = ['host1', 'host2', 'host3', 'host4', 'host5', 'host6', 'host7', 'host8']
    held = stall(cloud, *hosts)
    for host in hosts:
        leave(cloud, host, 3)
    cloud.simulation.run_until(lambda: are_owned(cloud))
    (victim,) = owners(cloud)['host1']
    before = {row.uuid: row.epoch for row in cloud.migrations()}
    seen = set()
    lost = [host for host, servers in owners(cloud).items() if servers == {victim}]
    assert len(lost) == 2
    state.kill(cloud, victim)

    def taken():
        seen.add(tuple(sum(one.epoch > before[one.uuid] for one in rows(cloud, host)) for host in lost))
        return not any(victim in servers for servers in owners(cloud).values())

    cloud.simulation.run_until(taken, timeout=21)
    assert {len(servers) for servers in owners(cloud).values()} == {1}
    assert set().union(*seen) == {0, 3}, 'the migrations of a source were taken in one transaction'
    new = [owners(cloud)[host] for host in lost]
    assert new[0] != new[1], 'the sources of the dead conductor go to those with the fewest'
    for one in held:
        one.release()
    cloud.wait(LONG)


def rows(cloud, host):
    return [row for row in cloud.migrations() if row.source_compute == host]


def test_lost_message_to_the_new_owner_is_made_up_for_by_its_sweep(cloud):
    start(cloud, 2)
    lost = []

    def lose(message):
        if message.method == 'wake':
            lost.append(message)
            return 'lose'
        return None

    cloud.bus.faults = lose
    held = stall(cloud, 'host1')
    guests = leave(cloud, 'host1', 4, to='host2')
    cloud.simulation.advance(1)
    assert lost, 'each conductor has received a message'
    ((owner,),) = owners(cloud).values()
    assert len(cloud.conductors[owner].runner.held()) < 4
    cloud.simulation.advance(5)
    assert len(cloud.conductors[owner].runner.held()) == 4
    held[0].release()
    cloud.wait()
    for guest in guests:
        state.completed(cloud, guest, 'host2')


def test_source_with_nothing_in_progress_goes_to_the_conductor_with_the_fewest(cloud):
    start(cloud, 2)
    leave(cloud, 'host1', 1, to='host2')
    cloud.wait()
    held = stall(cloud, 'host3', 'host1')
    leave(cloud, 'host3', 1, to='host2')
    cloud.simulation.run_until(lambda: are_owned(cloud))
    leave(cloud, 'host1', 2, to='host2')
    cloud.simulation.run_until(lambda: are_owned(cloud))
    found = owners(cloud)
    assert len(found['host1']) == len(found['host3']) == 1
    assert found['host1'] != found['host3']
    for one in held:
        one.release()
    cloud.wait()


@pytest.mark.cloud(**MANY)
def test_stopped_conductor_hands_its_sources_over_at_the_next_sweep(cloud):
    start(cloud, 2)
    held = stall(cloud, 'host1', 'host2')
    leave(cloud, 'host1', 3)
    leave(cloud, 'host2', 3)
    cloud.simulation.run_until(lambda: are_owned(cloud))
    cloud.conductors['conductor2'].stop()
    cloud.simulation.advance(6)
    assert set().union(*owners(cloud).values()) == {'conductor1'}
    for one in held:
        one.release()
    cloud.wait()


def test_restarted_conductor_does_not_wait_for_its_own_earlier_lease(cloud):
    held = stall(cloud, 'host1')
    leave(cloud, 'host1', 1, to='host2')
    cloud.simulation.run_until(lambda: are_owned(cloud))
    state.kill(cloud, 'conductor1')
    cloud.start_conductor('conductor1')
    new = cloud.boot('new', 'host1', memory_mb=64)
    migrate(cloud, new, 'host3')
    cloud.simulation.advance(1)
    assert cloud.migrations(new)[0].owner == cloud.conductors['conductor1'].tools.owner
    held[0].release()
    cloud.wait()


def test_conductor_that_cannot_reach_the_broker_gets_no_more_migrations(cloud):
    start(cloud, 2)
    held = stall(cloud, 'host1')
    leave(cloud, 'host1', 1, to='host2')
    cloud.simulation.run_until(lambda: are_owned(cloud))
    ((away,),) = owners(cloud).values()
    (other,) = {'conductor1', 'conductor2'} - {away}

    def refused(message):
        if message.method == 'live_migrate' and message.target.server is None:
            return None
        return 'refuse' if message.sender == f'conductor:{away}' else None

    cloud.bus.faults = refused
    cloud.simulation.run_until(lambda: any(one.broker_away_since for one in cloud.database.conductors.list()))
    new = cloud.boot('new', 'host1', memory_mb=64)
    migrate(cloud, new, 'host3')
    cloud.simulation.advance(6)
    assert owners(cloud)['host1'] == {away, other}
    cloud.bus.faults = lambda message: None
    held[0].release()
    cloud.wait()


@pytest.mark.cloud(options={'conductor.lease': 15}, hosts=3)
def test_new_migration_does_not_wait_for_a_conductor_that_has_missed_a_renewal(cloud):
    """It waited for the end of the lease of the conductor that held its source, and for the next sweep."""
    stall(cloud, 'host1')
    leave(cloud, 'host1', 1, 'host2')
    cloud.simulation.run_until(lambda: owners(cloud)['host1'] == {'conductor1'})
    cloud.start_conductor('conductor2')
    state.kill(cloud, 'conductor1')
    cloud.simulation.advance(9)
    (later,) = leave(cloud, 'host1', 1, 'host3')
    cloud.simulation.advance(1)
    assert cloud.migrations(later)[-1].dest_node == 'host3'
    assert owners(cloud)['host1'] == {'conductor1', 'conductor2'}, 'the lease has not ended'
