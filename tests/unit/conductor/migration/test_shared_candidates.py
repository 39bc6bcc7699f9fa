# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import collections
from typing import Any

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.conductor import registry
from migrator.conductor.migration import destinations
from migrator.db import models
from migrator.placement_client import allocations, candidates
from migrator.testing.placement_faults import Fault
from tests import work
from tests.unit.conductor import stage as stages

Stage = stages.Stage


class Chooser:
    """A choice of destinations for guests on host1, with the lists of one conductor."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        client, threads = stage.cloud.placement_client, stage.database.threads
        self.readings = allocations.SharedReadings(client, lambda _instance, _host: None, threads)
        self.shared = candidates.SharedCandidates(client, stage.database.services.roots, threads)

    def choose(self, instance: Any = None, **more: Any) -> destinations.Destination:
        stage, guest = self.stage, instance or self.stage.instance
        migration = stages.Migration(
            uuid='m', instance_uuid=guest.uuid, project_id='demo', user_id='demo', source_compute='host1',
            source_node='host1',
        )  # fmt: skip
        spec = destinations.RequestSpec(migration, guest)
        return destinations.choose(stage.database, self.readings, self.shared, spec, **more)

    def asked(self) -> int:
        """Return how often Placement was asked for candidates."""
        return sum('allocation_candidates' in url for _, url in self.stage.cloud.adapter.sent)


@pytest.fixture
def chooser(still: Stage) -> Chooser:
    return Chooser(still)


def test_guests_of_a_flavor_share_one_request_for_some_seconds(chooser: Chooser) -> None:
    other = chooser.stage.cloud.boot('other', 'host1')
    larger = chooser.stage.cloud.boot('larger', 'host1', memory_mb=4096)
    before = chooser.asked()
    assert [chooser.choose(guest).host for guest in (None, other, None)] == ['host2'] * 3
    assert chooser.asked() - before == 1
    chooser.choose(larger)
    assert chooser.asked() - before == 2
    chooser.stage.simulation.advance(candidates.FRESH + 0.1)
    chooser.choose(other)
    assert chooser.asked() - before == 3


def test_request_that_must_not_be_old_is_sent_anew(chooser: Chooser) -> None:
    before = chooser.asked()
    chooser.choose()
    chooser.choose(asked_after=chooser.shared.sent())
    assert chooser.asked() - before == 2


def test_refused_destination_leaves_the_list_until_the_next_request(chooser: Chooser) -> None:
    chooser.shared.refused(chooser.choose().destination)
    assert chooser.choose().host == 'host3'
    chooser.stage.simulation.advance(candidates.FRESH + 0.1)
    assert chooser.choose().host == 'host2'


def test_old_list_without_a_usable_host_is_asked_for_anew(chooser: Chooser) -> None:
    cloud = chooser.stage.cloud
    giants = [cloud.boot(name, host, memory_mb=65536) for name, host in (('one', 'host2'), ('two', 'host3'))]
    for asked in (2, 1):
        before = chooser.asked()
        with pytest.raises(exception.NoValidHost):
            chooser.choose()
        assert chooser.asked() - before == asked, 'a new list is not asked for again, nor what the hosts lack'
    chooser.stage.do(lambda: registry.delete_instance(chooser.stage.database, cloud.placement_client, giants[0].uuid))
    assert chooser.choose().host == 'host2'


def test_what_hosts_lack_is_asked_again_only_for_a_newer_list_in_which_a_host_has_no_name_for_it(
    chooser: Chooser,
) -> None:
    request = chooser.stage.instance.flavor.request
    found = chooser.shared.get(request, None)
    empty = candidates.Candidates({}, [], found.number, found.until, True)
    before = chooser.asked()
    for _ in range(5):
        # Each host has room, so that what it lacks has no name.
        assert len(chooser.shared.lacks(request, empty).unexplained) == 3
    assert chooser.asked() - before == 1
    newer = candidates.Candidates({}, [], found.number + 1, found.until, True)
    chooser.shared.lacks(request, newer, in_tree='of a host without a provider')
    assert chooser.asked() - before == 1
    chooser.shared.lacks(request, newer)
    assert chooser.asked() - before == 2


def test_hosts_beyond_the_limit_of_a_request_are_candidates(chooser: Chooser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, 'LIMIT', 1)
    services = chooser.stage.database.services
    for first, second in (('host2', 'host3'), ('host3', 'host2')):
        services.update(services.get_compute(first).id, disabled=True)
        services.update(services.get_compute(second).id, disabled=False)
        chooser.stage.simulation.advance(candidates.FRESH + 0.1)
        assert chooser.choose().host == second


def test_unreachable_placement_is_asked_again_by_the_next_choice(chooser: Chooser) -> None:
    chooser.stage.cloud.adapter.inject(Fault.UNREACHABLE, times=1)
    with pytest.raises(exception.PlacementUnreachable):
        chooser.choose()
    assert chooser.choose().host == 'host2'


def test_choice_costs_the_same_among_many_hosts(chooser: Chooser) -> None:
    stage, costs = chooser.stage, []
    client, engine = stage.cloud.placement_client, stage.database.engine
    for hosts in (30, 300):
        work.add_hosts(engine, 'host3', hosts)
        known = {one['uuid'] for one in client.read('/resource_providers')['resource_providers']}
        with engine.reader() as session:
            nodes = session.execute(sa.select(models.COMPUTE_NODES)).all()
        for node in nodes:
            if node.uuid not in known:
                client.post('/resource_providers', {'uuid': node.uuid, 'name': node.host})
                inventories = {name: {'total': 10**6} for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')}
                body = {'resource_provider_generation': 0, 'inventories': inventories}
                client.put(f'/resource_providers/{node.uuid}/inventories', body)
        stage.simulation.advance(candidates.FRESH + 0.1)
        assert chooser.choose().host == 'host2'
        assert len(chooser.shared.get(stage.instance.flavor.request, None).hosts) == hosts
        first = len(stage.cloud.adapter.sent)
        with work.counted(engine) as done:
            chooser.choose()
        requests = collections.Counter(method for method, _ in stage.cloud.adapter.sent[first:])
        costs.append((requests, done))
    (few_requests, few), (many_requests, many) = costs
    assert many_requests == few_requests == {'GET': 1}, 'it reads the allocations of the guest'
    assert not few.grows_to(many)


def test_guest_goes_elsewhere_if_its_host_has_been_filled_since_the_list_was_made(stage: Stage) -> None:
    other = stage.cloud.boot('other', 'host1')
    first = stage.begin()
    assert stage.end(first).dest_compute == 'host2'
    stage.cloud.boot('giant', 'host2', memory_mb=65536 - 512)
    before = len(stage.cloud.adapter.sent)
    second = stage.begin(instance=other)
    assert stage.end(second).status == 'completed'
    stage.check(second, 'host3')
    sent = [(method, url.partition('?')[0]) for method, url in stage.cloud.adapter.sent[before:]]
    assert ('GET', '/allocation_candidates') not in sent
    assert sent.count(('POST', '/allocations')) >= 2, 'Placement has refused the first one'
