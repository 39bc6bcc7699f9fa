# SPDX-License-Identifier: Apache-2.0


"""What one migration costs, counted at the interfaces, and that it waits for nothing but the copy."""

import collections

import pytest

from migrator.db.sql import watching
from tests.functional import migration_requests, state

pytestmark = pytest.mark.simulated(reason='it counts every message, request, statement and commit')

#: What may be asked for, per migration: nova 34 asks for 13, 85, 108 and 33.
LIMITS = {'Placement requests': 4, 'RPC messages': 20, 'SQL statements': 40, 'commits': 16}
#: What an operation costs exactly, without polls, once the versions of the hosts are known. If a change makes it
#: cheaper, write the new figures here. If it makes it dearer, say in the commit what is bought with it.
EXACT = {
    'a migration': (3, 15, 28, 9),
    # The first one at a boot of a host reads the service version of the host.
    'an abort in the queue': (1, 6, 18, 5),
}
#: Threads that look after the cloud as a whole, whether anything migrates or not.
BACKGROUND = ('lease', 'sweep', 'poll', 'heartbeat', 'heartbeats')


class Meter:
    """A count of what the services request from now on, without what the test itself reads."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.statements = []
        self.commits = []
        self._messages = slice(len(cloud.recorder.messages), None)
        self._requests = slice(len(cloud.placement.requests), None)
        self._end = watching.watch(cloud.database.engine, self._on_statement, self._on_commit)

    def stop(self):
        """Count no more."""
        self._messages = slice(self._messages.start, len(self.cloud.recorder.messages))
        self._requests = slice(self._requests.start, len(self.cloud.placement.requests))
        self._end()

    def _on_statement(self, statement, _values):
        who = self._who()
        if who:
            self.statements.append((who, statement))

    def _on_commit(self):
        who = self._who()
        if who:
            self.commits.append(who)

    def _who(self):
        thread = self.cloud.simulation.scheduler.current
        return None if thread.acting.is_world or thread.name in BACKGROUND else thread.acting.name

    @property
    def messages(self):
        """What was said, heartbeats aside."""
        return [message for message in self.cloud.recorder.messages[self._messages] if not message.heartbeat]

    @property
    def requests(self):
        """What Placement was asked."""
        return self.cloud.placement.requests[self._requests]

    def exact(self):
        """Return the four figures, without the polls and their answers."""
        said = [message for message in self.messages if not message.poll]
        return len(self.requests), len(said), len(self.statements), len(self.commits)

    def counts(self):
        """Return the four figures."""
        figures = (len(self.requests), len(self.messages), len(self.statements), len(self.commits))
        return dict(zip(LIMITS, figures, strict=True))

    def table(self):
        """Return what was counted, as a table."""
        counts = self.counts()
        lines = [f'{"":20}{"counted":>8}{"limit":>8}']
        lines += [f'{name:20}{counts[name]:8}{limit:8}' for name, limit in LIMITS.items()]
        lines += ['', 'Placement requests:', *(f'  {one.method} {one.url}' for one in self.requests)]
        said = collections.Counter((message.method, message.kind) for message in self.messages)
        lines += ['', 'RPC messages:', *(f'  {count} {kind:5} {method}' for (method, kind), count in said.items())]
        written = collections.Counter((who, statement.split()[0]) for who, statement in self.statements)
        lines += ['', 'SQL statements:', *(f'  {count:2} {verb} by {who}' for (who, verb), count in written.items())]
        commits = collections.Counter(self.commits)
        lines += ['', 'commits:', *(f'  {count:2} by {who}' for who, count in commits.items())]
        return '\n'.join(lines)


def measure(cloud, instance, **asked):
    """Migrate an instance of an idle cloud and return the meter; it stops at the commit of the end."""
    meter = Meter(cloud)
    assert cloud.live_migrate(instance, **asked).status_int == 202
    cloud.wait()
    meter.stop()
    return meter


@pytest.fixture
def show(request):
    """Print past pytest's capture, so that the table is seen in every run that is not distributed."""

    def printed(text):
        capture = request.config.pluginmanager.getplugin('capturemanager')
        with capture.global_and_fixture_disabled():
            print(f'\n{text}')

    return printed


def test_migration_in_an_idle_cloud_stays_within_its_budget(cloud, show):
    instance = cloud.boot('one', 'host1')
    meter = measure(cloud, instance)
    show(meter.table())
    state.completed(cloud, instance, 'host2')
    counts = meter.counts()
    assert {name: count for name, count in counts.items() if count > LIMITS[name]} == {}, meter.table()


def test_migration_and_abort_in_the_queue_cost_exactly_this(cloud):
    for host in ('host2', 'host3'):
        measure(cloud, cloud.boot(f'to {host}', 'host1', memory_mb=64), host=host)
    moved = measure(cloud, cloud.boot('moved', 'host1', memory_mb=64), host='host2')
    assert moved.exact() == EXACT['a migration'], moved.table()
    instance = cloud.boot('one', 'host1')
    first = migration_requests.queued(cloud, instance)
    aborted = Meter(cloud)
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].ended)
    aborted.stop()
    assert cloud.migrations(instance)[-1].status == 'cancelled'
    assert aborted.exact() == EXACT['an abort in the queue'], aborted.table()
    migration_requests.go_on_with(cloud, first)
    cloud.wait()


@pytest.mark.cloud(vcpus=400, memory_mb=400 * 64)
def test_on_a_source_with_two_hundred_guests_it_costs_no_more(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=64)
    alone = measure(cloud, instance, host='host2')
    others = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(200)]
    among_many = measure(cloud, others[0], host='host2')
    # The second one shares the candidates of the first.
    for meter, requests in ((alone, ['GET', 'GET', 'POST', 'PUT']), (among_many, ['GET', 'POST', 'PUT'])):
        assert [one.method for one in meter.requests] == requests, meter.table()
        assert all(meter.counts()[what] <= limit for what, limit in LIMITS.items()), meter.table()


@pytest.mark.cloud(vcpus=400, memory_mb=400 * 64)
@pytest.mark.parametrize(('at_once', 'limit'), [(1, 1.4), (4, 1.4)])
def test_when_a_host_is_emptied_the_guests_share_requests(cloud, at_once, limit):
    guests = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(20)]
    cloud.set_option('host1', 'max_concurrent_live_migrations', at_once)
    world = cloud.threads_for('world')
    cloud.placement.before_request = lambda *_: world.sleep(0.02)
    meter = Meter(cloud)
    for guest in guests:
        assert cloud.live_migrate(guest).status_int == 202
    cloud.wait()
    meter.stop()
    cloud.placement.before_request = None
    assert {migration.status for migration in cloud.migrations()} == {'completed'}
    assert len(meter.requests) <= limit * len(guests), meter.table()


def test_a_guest_that_writes_its_memory_costs_no_more(cloud):
    instance = cloud.boot('busy', 'host1', dirty_rate=400)
    counts = measure(cloud, instance).counts()
    assert {name: count for name, count in counts.items() if count > LIMITS[name]} == {}


@pytest.mark.parametrize('memory_mb', [512, 16384])
def test_a_migration_takes_exactly_as_long_as_the_hypervisor_copies(cloud, memory_mb):
    instance = cloud.boot('one', 'host1', memory_mb=memory_mb, dirty_rate=20)
    asked = cloud.simulation.time
    measure(cloud, instance)
    ended = cloud.simulation.time
    started, arrived = (cloud.world.effects(effect)[-1].time for effect in ('job started', 'job completed'))
    assert round(ended - asked, 6) == round(arrived - started, 6), 'a sleep or a poll lies on the path'
    assert arrived - started >= memory_mb / 1024


def test_migration_makes_one_poll_call_after_the_copy_has_ended(cloud):
    instance = cloud.boot('one', 'host1')
    meter = measure(cloud, instance)
    polls = [message for message in meter.messages if message.method == 'poll_live_migrations']
    assert [(message.kind, message.target) for message in polls if message.kind == 'call'] == [
        ('call', 'compute.host2')
    ]
    arrived = next(
        index
        for index, message in enumerate(meter.messages)
        if message.method == 'step_ended' and message.sender == 'compute:host1'
    )
    assert meter.messages.index(polls[0]) > arrived, 'it was asked because of an event, not because of a clock'


def test_no_compute_host_calls_another(cloud):
    measure(cloud, cloud.boot('one', 'host1'))
    assert cloud.recorder.compute_to_compute() == []


def test_every_further_candidate_costs_one_move_back_and_no_more_search(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host2'].faults.fail('check_can_live_migrate_destination')
    meter = measure(cloud, instance)
    state.completed(cloud, instance, 'host3')
    # search, read, move, and move back with the generation that is known; then read and move
    assert len(meter.requests) == LIMITS['Placement requests'] + 3, meter.table()


@pytest.mark.parametrize('slots', [1, 4])
def test_guest_of_a_drain_costs_a_move_and_a_release(cloud, slots):
    cloud.set_option('host1', 'max_concurrent_live_migrations', slots)
    guests = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(12)]
    meter = Meter(cloud)
    answer = cloud.request('POST', '/migrator/v1/drains', {'host': 'host1'})
    assert answer.status_int == 202, answer.text
    cloud.simulation.run_until(lambda: not cloud.database.drains.list(in_progress=True))
    meter.stop()
    assert all(cloud.database.instances.get(guest.uuid).host != 'host1' for guest in guests)
    # and what is read once for all of them, or to see that the host is empty
    assert len(meter.requests) <= 2 * len(guests) + 4, meter.table()
