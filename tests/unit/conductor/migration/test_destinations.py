# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.conductor.migration import destinations
from migrator.db import models
from migrator.db.migrations import Write
from migrator.placement_client.allocations import SharedReadings
from migrator.placement_client.candidates import SharedCandidates
from migrator.saga import log
from migrator.testing.placement_faults import Fault
from migrator.virt import driver
from tests.unit.conductor import stage as stages

Stage = stages.Stage


def choose(
    stage: Stage, tried: dict[str, str] | None = None, reachable: bool = True, **fields: Any
) -> destinations.Destination:
    migration = stages.Migration(
        uuid='m',
        instance_uuid=stage.instance.uuid,
        project_id='demo',
        user_id='demo',
        source_compute='host1',
        source_node='host1',
        **fields,
    )
    client = stage.cloud.placement_client
    # Its own list, as of a conductor that has not asked yet.
    shared = SharedCandidates(client, stage.database.services.roots, stage.database.threads)
    readings = SharedReadings(client, lambda _instance, _host: None, stage.database.threads)
    spec = destinations.RequestSpec(migration, stage.instance, tried or {})
    return destinations.choose(stage.database, readings, shared, spec, reachable)


def why_not(stage: Stage, error: type[Exception], *args: Any, **fields: Any) -> str:
    with pytest.raises(error) as caught:
        choose(stage, *args, **fields)
    return str(caught.value)


def inbound(stage: Stage, host: str) -> None:
    """Have a migration of some other guest be on its way to a host."""
    other = stage.cloud.boot('other', 'host1')
    known = stage.adopt(stage.accept(instance=other)).row
    stage.database.migrations.commit(known, Write(fields={'status': 'preparing', 'dest_compute': host}))


def change_node(stage: Stage, host: str, **values: Any) -> None:
    """Have a host have reported something else of its hypervisor."""
    nodes = models.COMPUTE_NODES
    with stage.database.engine.writer() as session:
        session.execute(sa.update(nodes).where(nodes.c.host == host).values(**values))


class TestOfItsOwnChoice:
    def test_the_first_by_name_and_never_the_source_with_what_it_is_to_hold_there(self, stage: Stage) -> None:
        found = choose(stage)
        claim = stage.instance.flavor.resources()
        assert (found.host, found.node) == ('host2', 'host2')
        assert found.destination == {driver.node_uuid('host2'): claim}
        assert found.source == {driver.node_uuid('host1'): claim}
        assert found.instance_generation == 1

    def test_a_host_with_fewer_inbound_migrations_comes_first(self, still: Stage) -> None:
        inbound(still, 'host2')
        assert choose(still).host == 'host3'

    def test_a_host_that_was_tried_is_not_tried_again(self, stage: Stage) -> None:
        assert choose(stage, {'host2': 'disk full'}).host == 'host3'
        reason = why_not(stage, exception.NoValidHost, {'host2': 'disk full.', 'host3': 'on fire'})
        assert reason.endswith('could move to none. host2: disk full; host3: on fire.')

    @pytest.mark.parametrize(
        ('change', 'reason'),
        [
            ({'disabled': True}, 'host2: it is disabled'),
            ({'forced_down': True}, 'host2: it is forced down'),
            ({'last_seen_up': None}, 'host2: its compute service was stopped'),
        ],
    )
    def test_a_host_that_is_disabled_or_down_is_passed_over(self, stage: Stage, change: dict, reason: str) -> None:
        service = stage.database.services.get_compute('host2')
        stage.database.services.update(service.id, **change)
        assert choose(stage).host == 'host3'
        service = stage.database.services.get_compute('host3')
        stage.database.services.update(service.id, disabled=True)
        assert reason in why_not(stage, exception.NoValidHost)

    def test_conductor_without_broker_treats_no_unreachable_host_as_down(self, still: Stage) -> None:
        still.cloud.simulation.run_ready()
        for host in ('host2', 'host3'):
            long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
            known = still.database.services.get_compute(host).id
            still.database.services.update(known, last_seen_up=long_ago, down_since=long_ago)
        assert 'host2: it is down, and last reported at 2020-01-01 00:00:00 UTC' in why_not(
            still, exception.NoValidHost
        )
        assert choose(still, reachable=False).host == 'host2'
        for host in ('host2', 'host3'):
            still.database.services.update(still.database.services.get_compute(host).id, last_seen_up=None)
        assert choose(still, reachable=False).host == 'host2', 'it may be back, and no report has arrived'
        still.database.services.update(still.database.services.get_compute('host2').id, forced_down=True)
        assert choose(still, reachable=False).host == 'host3', 'forced down is down for every reader'

    @pytest.mark.parametrize(
        ('reported', 'host'), [(None, 'host2'), (['migration', 'resize'], 'host2'), (['migration'], 'host3')]
    )
    def test_a_host_whose_driver_is_known_not_to_resize_is_passed_over(
        self, still: Stage, reported: Any, host: str
    ) -> None:
        change_node(still, 'host2', cold_migrations=reported)
        assert choose(still, migration_type='resize').host == host
        assert choose(still, migration_type='migration').host == 'host2'

    def test_a_host_with_another_or_an_older_hypervisor_is_passed_over(self, still: Stage) -> None:
        still.cloud.simulation.run_ready()
        change_node(still, 'host2', hypervisor_type='QEMU')
        assert choose(still).host == 'host3'
        change_node(still, 'host3', hypervisor_version=999)
        said = why_not(still, exception.NoValidHost)
        assert 'host2: The hypervisor of host2 is of type QEMU, and that of host1' in said
        assert 'host3: The hypervisor of host3 has version 999, and is older than that of host1' in said
        why_not(still, exception.InvalidHypervisorType, requested_host='host2')
        why_not(still, exception.DestinationHypervisorTooOld, requested_host='host3')
        why_not(still, exception.DestinationHypervisorTooOld, requested_host='host3', force=True)
        change_node(still, 'host3', hypervisor_version=1001)
        assert choose(still).host == 'host3', 'a newer one can take it'

    def test_host_with_a_deferred_cleanup_of_this_instance_is_not_chosen(self, still: Stage) -> None:
        known = still.adopt(still.accept())
        known.defer('host2', 'rollback_live_migration_at_destination', 'it is down')
        known.commit()
        assert choose(still).host == 'host3'

    def test_a_host_without_room_is_no_candidate(self, stage: Stage) -> None:
        stage.cloud.boot('giant', 'host2', memory_mb=65536)
        assert choose(stage).host == 'host3'

    def test_no_room_on_any_host_is_the_reason(self, stage: Stage) -> None:
        for host in ('host2', 'host3'):
            stage.cloud.boot('giant', host, memory_mb=65536)
        why = why_not(stage, exception.NoValidHost)
        assert 'No host can take the instance: host2: it has 0 of MEMORY_MB free, and 512 are needed; host3: ' in why

    def test_an_instance_without_an_allocation_is_to_be_healed_first(self, stage: Stage) -> None:
        client = stage.cloud.placement_client
        held = stages.allocations.read(client, stage.instance.uuid)
        owner = stages.allocations.allocation_state.Consumer(
            uuid=stage.instance.uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
        )
        stages.allocations.remove(client, owner, generation=held.generation or 0)
        assert 'heal its allocation' in why_not(stage, exception.Invalid)

    def test_a_placement_that_is_away_is_to_be_asked_later(self, stage: Stage) -> None:
        stage.cloud.adapter.inject(Fault.UNREACHABLE, times=9)
        assert why_not(stage, exception.PlacementUnreachable)


class TestNamed:
    def test_named_host_is_chosen_though_others_are_freer(self, still: Stage) -> None:
        inbound(still, 'host3')
        assert choose(still, requested_host='host3').host == 'host3'

    def test_disabled_host_is_chosen_only_if_the_request_allows_it(self, stage: Stage) -> None:
        service = stage.database.services.get_compute('host3')
        stage.database.services.update(service.id, disabled=True)
        assert choose(stage, requested_host='host3', allows_disabled=True).host == 'host3'
        assert 'it is disabled' in why_not(stage, exception.ComputeServiceUnavailable, requested_host='host3')

    def test_unknown_named_host_is_refused_by_name(self, stage: Stage) -> None:
        assert 'nowhere' in why_not(stage, exception.ComputeHostNotFound, requested_host='nowhere')

    @pytest.mark.parametrize('change', [{'forced_down': True}, {'last_seen_up': None}])
    def test_named_host_that_is_down_is_unavailable(self, stage: Stage, change: dict) -> None:
        service = stage.database.services.get_compute('host3')
        stage.database.services.update(service.id, **change)
        assert 'host3' in why_not(stage, exception.ComputeServiceUnavailable, requested_host='host3')

    def test_named_host_without_room_is_refused_by_name(self, stage: Stage) -> None:
        stage.cloud.boot('giant', 'host3', memory_mb=65536)
        assert 'Host host3 cannot take the instance: it has 0 of MEMORY_MB free' in why_not(
            stage, exception.NoValidHost, requested_host='host3'
        )

    def test_named_host_already_tried_is_refused(self, stage: Stage) -> None:
        assert 'host3' in why_not(stage, exception.NoValidHost, {'host3': 'disk full'}, requested_host='host3')


class TestForced:
    def test_forced_host_is_claimed_at_root_without_candidates(self, stage: Stage) -> None:
        found = choose(stage, requested_host='host3', force=True)
        assert found.destination == {driver.node_uuid('host3'): stage.instance.flavor.resources()}
        assert not any('candidates' in url for _, url in stage.cloud.adapter.sent)

    def test_the_host_must_still_be_there_and_up(self, stage: Stage) -> None:
        why_not(stage, exception.ComputeHostNotFound, requested_host='nowhere', force=True)

    def test_an_allocation_on_several_providers_cannot_be_forced(self, stage: Stage) -> None:
        client, uuid = stage.cloud.placement_client, stage.instance.uuid
        held = stages.allocations.read(client, uuid)
        owner = stages.allocations.allocation_state.Consumer(
            uuid=uuid, consumer_type='INSTANCE', project_id='demo', user_id='demo'
        )
        both = {driver.node_uuid('host1'): {'VCPU': 1}, driver.node_uuid('host2'): {'MEMORY_MB': 512}}
        stages.allocations.claim(client, owner, both, generation=held.generation)
        why_not(stage, exception.ForcedWithNestedAllocations, requested_host='host3', force=True)


def test_destination_that_a_newer_release_has_written_is_read_without_what_it_has_added() -> None:
    stored = {'host': 'host2', 'node': 'n', 'source': {}, 'destination': {}, 'instance_generation': 1, 'newer': True}
    step_log = log.StepLog([log.StepRecord('move_allocation', log.DO, 'intent', 1, input=stored)])
    found = destinations.chosen(step_log, 1)
    assert found is not None
    assert (found.host, found.instance_generation) == ('host2', 1)
