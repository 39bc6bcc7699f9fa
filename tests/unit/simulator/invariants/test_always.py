# SPDX-License-Identifier: Apache-2.0

"""Planted violations of the invariants of guests, allocations and rows after every event."""

import dataclasses

import pytest

from migrator.simulator.invariants import check
from migrator.simulator.world import World
from migrator.virt import driver
from tests.unit.simulator import planting


def test_i1_guest_active_twice(cloud):
    planting.add_guest(cloud, 'host3')
    planting.fence_off(cloud, 'host3')
    assert planting.found(cloud, quiet=False) == planting.found(cloud) == {'I1'}


def test_i1_violation_noted_by_world(cloud):
    cloud.world.violations.append('guest was destroyed, its last copy')
    assert planting.found(cloud, quiet=False) == {'I1'}


def test_i2_host_changed_before_switchover(copying):
    planting.sql(copying, "UPDATE instances SET host = 'host2' WHERE uuid = ?", copying.instance.uuid)
    assert planting.found(copying, quiet=False) == {'I2'}


def test_i2_host_changed_after_end(cloud):
    planting.sql(cloud, "UPDATE instances SET host = 'host1'")
    assert planting.found(cloud, quiet=False) == {'I2'}


def test_i2_outcome_forward_while_source_runs_guest(copying):
    planting.sql(copying, "UPDATE migrations SET outcome = 'forward' WHERE uuid = ?", copying.migration.uuid)
    planting.sql(copying, "UPDATE instances SET host = 'host2' WHERE uuid = ?", copying.instance.uuid)
    assert planting.found(copying, quiet=False) == {'I2'}


def test_i4_migration_holds_more_than_source(copying):
    planting.write(
        copying, copying.migration.uuid, 'host1', planting.generation(copying, copying.migration.uuid), MEMORY_MB=1024
    )
    assert planting.found(copying, quiet=False) == {'I4'}


def test_i4_instance_does_not_hold_destination(copying):
    # The waiting guest on host2 is then not covered, which is I5.
    planting.write(copying, copying.instance.uuid, 'host3', planting.generation(copying, copying.instance.uuid))
    assert planting.found(copying, quiet=False) == {'I4', 'I5'}


def test_i4_migration_holds_allocation_before_move(cloud):
    planting.accept(cloud)
    cloud.new = cloud.migrations()[-1]
    planting.write(cloud, cloud.new.uuid, 'host1', None)
    assert planting.found(cloud, quiet=False) == {'I4'}


def test_i5_part_without_allocation(cloud):
    planting.leave(cloud, 'host3', 'check file')
    assert planting.found(cloud, quiet=False) == planting.found(cloud) == {'I5'}


@pytest.mark.parametrize('exempt', [planting.fence_off, planting.defer])
def test_i5_host_that_is_down_or_has_deferred_cleanup_is_exempt(cloud, exempt):
    planting.leave(cloud, 'host3', 'check file')
    exempt(cloud, 'host3')
    assert planting.found(cloud, quiet=False) == set()


def test_i5_instance_being_deleted_is_exempt(cloud):
    planting.leave(cloud, 'host3', 'check file')
    cloud.database.instances.begin_delete(cloud.instance.uuid)
    assert 'I5' not in planting.found(cloud, quiet=False)


def test_i6_usage_above_capacity(cloud):
    provider = (
        'SELECT inventories.id FROM inventories JOIN resource_providers ON resource_provider_id = resource_providers.id'
    )
    wanted = f"{provider} AND name = 'host2' AND total > 10000"
    statement = f'UPDATE inventories SET total = 100 WHERE id IN ({wanted})'  # noqa: S608 - the text is the test's own
    planting.sql(cloud, statement, database='placement')
    assert planting.found(cloud, quiet=False) == {'I6'}


def test_i6_consumers_hold_more_than_usage(cloud):
    world = World.of(cloud)
    provider = world.providers[driver.node_uuid('host2')]
    provider.holders[planting.UNKNOWN] = {'VCPU': 1}
    assert {one.id for one in check.check(world, quiet=False)} == {'I6'}


def test_i12_rollback_in_log_after_post_step(cloud):
    planting.step_log(cloud, 'undo_intent', 'pre_live_migration')
    assert planting.found(cloud, quiet=False) == {'I12'}


@pytest.mark.parametrize(
    ('host', 'method', 'expected'),
    [
        ('host2', 'rollback_live_migration_at_destination', {'I12'}),
        ('host3', 'rollback_live_migration_at_destination', set()),
        ('host1', 'rollback_live_migration_at_source', {'I12'}),
    ],
    ids=['destination', 'earlier candidate', 'source'],
)
def test_i12_rollback_sent_after_post_step(cloud, host, method, expected):
    planting.send(cloud, 'conductor:conductor1', f'compute.{host}', method)
    assert planting.found(cloud, quiet=False) == expected


def test_i12_destination_rolled_back_before_settling(copying):
    planting.send(copying, 'conductor:conductor1', 'compute.host3', 'rollback_live_migration_at_destination')
    assert planting.found(copying, quiet=False) == set(), 'host3 may be an earlier candidate'
    planting.send(copying, 'conductor:conductor1', 'compute.host2', 'rollback_live_migration_at_destination')
    assert planting.found(copying, quiet=False) == {'I12'}


def test_i12_post_step_sent_to_source_with_job(copying):
    planting.send(copying, 'conductor:conductor1', 'compute.host2', 'post_live_migration_at_destination')
    assert planting.found(copying, quiet=False) == set()
    planting.send(copying, 'conductor:conductor1', 'compute.host1', 'post_live_migration_at_source')
    assert planting.found(copying, quiet=False) == {'I12'}


def without_running(history):
    return [entry for entry in history if entry['status'] != 'running'][:3] + history[-1:]


def with_a_lower_epoch(history):
    return [*history[:-1], {**history[-1], 'epoch': 0}]


def with_another_owner(history):
    return [*history[:-1], {**history[-1], 'owner': planting.UNKNOWN}]


def in_a_future_epoch(history):
    return [*history[:-1], {**history[-1], 'epoch': 7}]


def earlier_than_start(history):
    return [*history[:-1], {**history[-1], 'at': '2025-01-01T00:00:00+00:00'}]


def changed(cloud, change):
    """Return a world in which the history of the migration has been changed."""
    world = World.of(cloud)
    uuid = cloud.migration.uuid
    return dataclasses.replace(world, histories={**world.histories, uuid: change(world.histories[uuid])})


@pytest.mark.parametrize(
    'change',
    [
        without_running,
        with_a_lower_epoch,
        with_another_owner,
        in_a_future_epoch,
        earlier_than_start,
        lambda history: history[1:],
        lambda history: history[:-1],
    ],
)
def test_i14_impossible_history(cloud, change):
    world = changed(cloud, change)
    assert {one.id for one in check.check(world, quiet=False)} == {one.id for one in check.check(world)} == {'I14'}


def test_i14_status_changed_after_end(cloud):
    planting.sql(cloud, "UPDATE migrations SET status = 'failed'")
    world = changed(cloud, lambda history: [*history, {**history[-1], 'status': 'failed'}])
    assert {one.id for one in check.check(world)} == {'I14'}


def test_i14_ended_migration_is_stuck(cloud):
    planting.sql(cloud, "UPDATE migrations SET stuck_kind = 'planted'")
    assert planting.found(cloud) == {'I14'}


@pytest.mark.parametrize('state', ['migrating', 'rebuilding'])
def test_i15_task_state_without_migration(cloud, state):
    planting.sql(cloud, 'UPDATE instances SET task_state = ?', state)
    assert planting.found(cloud, quiet=False) == {'I15'}


def test_i15_migration_without_task_state(copying):
    planting.sql(copying, 'UPDATE instances SET task_state = NULL WHERE uuid = ?', copying.instance.uuid)
    assert planting.found(copying, quiet=False) == {'I15'}


def test_i15_ended_migration_marked_as_in_progress(cloud):
    planting.sql(cloud, 'UPDATE migrations SET in_progress_instance_uuid = instance_uuid')
    assert planting.found(cloud, quiet=False) == {'I15'}


def test_i31_host_without_the_trait_that_the_flavor_requires(cloud):
    world = World.of(cloud)
    (uuid, instance), *_ = world.instances.items()
    world.instances[uuid] = instance.replace(flavor=instance.flavor.replace(extra_specs={'trait:CUSTOM_X': 'required'}))
    assert [one.id for one in check.check(world, quiet=False)] == ['I31']
    vars(world.hosts[instance.host])['traits'] = ('CUSTOM_X',)
    assert list(check.check(world, quiet=False)) == []
