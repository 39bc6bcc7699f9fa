# SPDX-License-Identifier: Apache-2.0

"""Writes of allocations that are sent together."""

import dataclasses

import pytest

from migrator import exception
from migrator.placement_client import allocation_state, allocations
from migrator.placement_client.allocation_state import PairState
from migrator.placement_client.allocations import MOST, PATIENCE, Writer
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement_faults import Fault, FaultyAdapter
from migrator.testing.simulation.threads import Simulation

FLAVOR = {'VCPU': 1, 'MEMORY_MB': 64}
FIRST = allocations.FIRST_GENERATION


class Site:
    """A host full of guests, and simulated threads of one process that write their allocations.

    Each request to Placement takes ``seconds``.
    """

    def __init__(self, in_process, world, new_pair, seed):
        self.simulation = Simulation(seed)
        self.threads = self.simulation.process('conductor')
        self.seconds = 1.0
        in_process.before_request = self.wait
        self.adapter = FaultyAdapter(in_process.adapter())
        client = PlacementClient(self.adapter)
        self.strategy = allocations.strategy_for(client, 'migration-owned', Writer(client, self.threads).write)
        self.client = world.client
        self.source = {world.host('source', VCPU=99, MEMORY_MB=9999): FLAVOR}
        self.destination = {world.host('destination', VCPU=99, MEMORY_MB=9999): FLAVOR}
        self.full = {world.host('full', VCPU=1, MEMORY_MB=32): FLAVOR}
        self.new_pair = new_pair
        #: The caller of each write -> the class of its error or None, and when its call has returned.
        self.results = {}

    def pairs(self, count):
        """Return guests on the source that are about to move."""
        return [self.new_pair(self.source, self.destination) for _ in range(count)]

    def start(self, name, write, *args, **more):
        """Call a function in a thread of its own."""

        def called():
            try:
                write(*args, **more)
            except (exception.MigratorException, RuntimeError, ValueError) as error:
                self.results[name] = type(error), self.simulation.time
            else:
                self.results[name] = None, self.simulation.time

        self.threads.start(called, name=str(name))

    def move(self, name, pair, **more):
        """Move a guest in a thread of its own."""
        self.start(name, self.strategy.move, pair, **{'instance_generation': FIRST, **more})

    def run(self):
        """Run all threads. Return the error of each, and the requests."""
        self.simulation.run()
        return {name: error for name, (error, _at) in self.results.items()}, len(self.adapter.sent)

    def wait(self, *_request):
        """Let a request of the process take its time; the test itself does not wait."""
        if self.simulation.scheduler.me().acting is self.threads:
            self.simulation.world.sleep(self.seconds)

    def states(self, pairs):
        """Return the state of each guest."""
        return [self.strategy_of(self.client).observe(pair).state for pair in pairs]

    @staticmethod
    def strategy_of(client):
        """Return a strategy that sends each write at once."""
        return allocations.strategy_for(client, 'migration-owned')


@pytest.fixture(params=range(3))
def site(request, in_process, world, new_pair):
    made = Site(in_process, world, new_pair, request.param)
    yield made
    made.simulation.close()


def test_a_lone_write_is_sent_at_once(site):
    (pair,) = site.pairs(1)
    site.move('lone', pair)
    assert site.run() == ({'lone': None}, 1)
    assert site.results['lone'] == (None, site.seconds)
    site.start('release', site.strategy.release, pair, instance_generation=None, migration_generation=FIRST)
    assert site.run() == ({'lone': None, 'release': None}, 2)
    assert [method for method, _url in site.adapter.sent] == ['POST', 'PUT']
    assert site.states([pair]) == [PairState.RELEASED]


def test_writes_that_arrive_during_a_request_are_sent_together_in_the_next_one(site):
    gone, back, *others = pairs = site.pairs(6)
    for pair in (gone, back):
        site.strategy_of(site.client).move(pair, instance_generation=FIRST)
    for number, pair in enumerate(others):
        site.move(number, pair)
    site.start('release', site.strategy.release, gone, instance_generation=None, migration_generation=FIRST)
    site.start('return', site.strategy.revert, back, instance_generation=FIRST + 1, migration_generation=FIRST)
    errors, requests = site.run()
    assert (set(errors.values()), requests) == ({None}, 2)
    assert site.states(pairs) == [PairState.RELEASED, PairState.NOT_MOVED] + [PairState.MOVED] * 4
    assert sorted(at for _error, at in site.results.values()) == [1.0] + [2.0] * 5


def test_a_request_has_at_most_so_many_callers(site):
    pairs = site.pairs(MOST + 2)
    for number, pair in enumerate(pairs):
        site.move(number, pair)
    errors, requests = site.run()
    assert (set(errors.values()), requests) == ({None}, 3)
    assert set(site.states(pairs)) == {PairState.MOVED}


@pytest.mark.parametrize('wrong', ['no room', 'stale', 'orphan', 'deleted'])
def test_when_one_is_refused_each_gets_the_answer_of_its_own_write(site, wrong):
    first, bad, *others = site.pairs(5)
    generation, error = FIRST, exception.PlacementConflict
    if wrong == 'no room':
        bad, error = dataclasses.replace(bad, destination=site.full), exception.PlacementRefused
    elif wrong == 'stale':
        generation = FIRST + 1
    elif wrong == 'orphan':
        body = allocations.Write(consumer=bad.migration, allocations={}, generation=None).body()
        site.client.put(f'/allocations/{bad.migration.uuid}', body)
    else:
        allocations.remove(site.client, bad.instance, generation=FIRST)
    before = site.states([bad])
    site.move('first', first)
    site.simulation.run_ready()
    site.move('bad', bad, instance_generation=generation)
    for number, pair in enumerate(others):
        site.move(number, pair)
    errors, _requests = site.run()
    assert errors == {'first': None, 'bad': error, 0: None, 1: None, 2: None}
    assert site.states([bad]) == before
    assert set(site.states([first, *others])) == {PairState.MOVED}


def test_an_unknown_provider_leaves_orphan_consumers_that_each_can_take_over(site):
    """Placement has created the consumers of a request before it looks for the providers, and leaves them."""
    first, bad, *others = site.pairs(4)
    nowhere = {'00000000-0000-4000-8000-000000000000': FLAVOR}
    bad = dataclasses.replace(bad, destination=nowhere)
    site.move('first', first)
    site.simulation.run_ready()
    for name, pair in {'bad': bad, 0: others[0], 1: others[1]}.items():
        site.move(name, pair)
    errors, _requests = site.run()
    conflict = exception.PlacementConflict
    assert errors == {'first': None, 'bad': conflict, 0: conflict, 1: conflict}
    for name, pair in {'bad': bad, 0: others[0], 1: others[1]}.items():
        site.move(name, pair, migration_generation=allocations.ORPHAN_GENERATION)
    errors, _requests = site.run()
    assert errors['bad'] is exception.PlacementRefused
    for name, pair in enumerate(others):
        if errors[name] is not None:
            site.move(name, pair, migration_generation=allocations.ORPHAN_GENERATION)
    site.run()
    assert set(site.states([first, *others])) == {PairState.MOVED}


def test_a_refusal_costs_one_request_for_each(site):
    pairs = site.pairs(4)
    site.adapter.inject(Fault.CONFLICT, skip=1)
    for number, pair in enumerate(pairs):
        site.move(number, pair)
    errors, requests = site.run()
    assert (set(errors.values()), requests) == ({None}, 1 + 1 + 3)
    assert set(site.states(pairs)) == {PairState.MOVED}


@pytest.mark.parametrize('fault', [Fault.TIMEOUT_DONE, Fault.TIMEOUT_NOT_DONE, Fault.ERROR_DONE, Fault.UNREACHABLE])
def test_without_a_reply_the_outcome_is_unknown_to_each(site, fault):
    pairs = site.pairs(4)
    site.adapter.inject(fault, skip=1)
    for number, pair in enumerate(pairs):
        site.move(number, pair)
    errors, requests = site.run()
    assert sorted(map(str, errors.values())) == sorted(map(str, [None] + [exception.PlacementUnreachable] * 3))
    assert requests == 2
    done = fault in (Fault.TIMEOUT_DONE, Fault.ERROR_DONE)
    assert site.states(pairs).count(PairState.MOVED) == (4 if done else 1)


def late(site):
    """Send the moves of three guests in one request that is late. Return the guests."""
    first, *pairs = site.pairs(4)
    site.adapter.inject(Fault.TIMEOUT_LATE, skip=1)
    site.move('first', first)
    site.simulation.run_ready()
    for number, pair in enumerate(pairs):
        site.move(number, pair)
    site.run()
    assert set(site.states(pairs)) == {PairState.NOT_MOVED}
    return pairs


def test_a_late_request_changes_nothing_once_one_of_its_guests_was_written_again(site):
    undone, *others = pairs = late(site)
    at_once = site.strategy_of(site.client)
    at_once.rewrite_source(undone, instance_generation=FIRST)
    assert [response.status_code for response in site.adapter.deliver()] == [409]
    assert set(site.states(pairs)) == {PairState.NOT_MOVED}
    for pair in others:
        at_once.move(pair, instance_generation=at_once.observe(pair).instance.generation)
    assert site.states(pairs) == [PairState.NOT_MOVED, PairState.MOVED, PairState.MOVED]


def test_a_late_request_that_comes_before_anything_else_moves_all_its_guests(site):
    pairs = late(site)
    assert [response.status_code for response in site.adapter.deliver()] == [204]
    assert set(site.states(pairs)) == {PairState.MOVED}
    with pytest.raises(exception.PlacementConflict):
        site.strategy_of(site.client).move(pairs[0], instance_generation=FIRST)


def test_a_request_that_is_done_twice_moves_no_guest_again(site):
    pairs = site.pairs(3)
    site.adapter.inject(Fault.DUPLICATED, times=2)
    for number, pair in enumerate(pairs):
        site.move(number, pair)
    site.run()
    at_once = site.strategy_of(site.client)
    back, released, _left = pairs
    at_once.revert(back, instance_generation=FIRST + 1, migration_generation=FIRST)
    at_once.release(released, instance_generation=None, migration_generation=FIRST)
    assert {response.status_code for response in site.adapter.deliver()} == {409}
    assert site.states(pairs) == [PairState.NOT_MOVED, PairState.RELEASED, PairState.MOVED]


def test_two_writes_of_one_consumer_are_not_in_one_request(site):
    first, pair = site.pairs(2)
    site.move('first', first)
    site.simulation.run_ready()
    for name in ('one', 'other'):
        site.start(name, site.strategy.rewrite_source, pair, instance_generation=FIRST)
    errors, requests = site.run()
    assert sorted(map(str, errors.values())) == sorted(map(str, [None, None, exception.PlacementConflict]))
    assert requests == 3


def test_a_request_that_hangs_delays_the_next_one_for_a_bounded_time(site):
    hangs, *others = site.pairs(4)
    site.seconds = 60.0
    site.move('hangs', hangs)
    site.simulation.advance(1)
    site.seconds = 1.0
    for number, pair in enumerate(others):
        site.move(number, pair)
    errors, requests = site.run()
    assert (set(errors.values()), requests) == ({None}, 2)
    assert {at for name, (_error, at) in site.results.items() if name != 'hangs'} <= {
        PATIENCE + 1 + site.seconds,
        PATIENCE + site.seconds,
    }
    assert site.results['hangs'][1] == 60.0


def test_an_unexpected_error_leaves_the_outcome_unknown_to_the_others(site):
    first, *others = site.pairs(4)

    def request(url, method, **kwargs):
        if len(site.adapter.sent) == 1:
            raise RuntimeError('a mistake in the adapter')
        return send(url, method, **kwargs)

    site.move('first', first)
    send, site.adapter.request = site.adapter.request, request
    for number, pair in enumerate(others):
        site.move(number, pair)
    errors, _requests = site.run()
    found = sorted(map(str, errors.values()))
    assert found == sorted(map(str, [None, RuntimeError] + [exception.PlacementUnreachable] * 2))
    site.move('next', first, instance_generation=FIRST + 1, migration_generation=FIRST)
    site.run()
    assert site.results['next'][0] is not exception.PlacementUnreachable


def test_a_write_that_may_not_be_sent_is_an_error_of_its_caller_alone(site):
    first, *others = site.pairs(3)
    site.move('first', first)
    empty = allocations.Write(consumer=others[0].migration, allocations={}, generation=None)
    site.start('empty', site.strategy.write, [empty])
    for number, pair in enumerate(others):
        site.move(number, pair)
    errors, requests = site.run()
    assert (errors.pop('empty'), set(errors.values()), requests) == (ValueError, {None}, 2)


def test_the_consumers_of_a_doubled_guest_are_written_with_others(site):
    doubled = allocations.strategy_for(site.strategy.client, 'doubled', site.strategy.write)
    pairs = site.pairs(3)
    for number, pair in enumerate(pairs):
        site.start(number, doubled.move, pair, instance_generation=FIRST)
    errors, requests = site.run()
    assert (set(errors.values()), requests) == ({None}, 2)
    held = [allocations.read(site.client, pair.instance.uuid).allocations for pair in pairs]
    assert held == [allocation_state.total([site.source, site.destination])] * 3


def test_thread_that_is_interrupted_keeps_no_other_waiting(site, monkeypatch):
    make, made = site.threads.event, []

    class Interrupted:
        """An event whose wait ends in an error, such as a time-out of a green thread."""

        def __init__(self, event):
            self.set, self.clear, self._event = event.set, event.clear, event

        def wait(self, timeout=None):
            self._event.wait(timeout)
            raise RuntimeError('interrupted')

    def event():
        made.append(Interrupted(make()) if len(made) == 1 else make())
        return made[-1]

    monkeypatch.setattr(site.threads, 'event', event)
    for name, pair in enumerate(site.pairs(3)):
        site.move(name, pair)
    errors, _requests = site.run()
    assert sorted(map(str, errors.values())) == [str(RuntimeError), 'None', 'None']
