# SPDX-License-Identifier: Apache-2.0

"""An abandon must not remove the last copy of a guest. test_unstick.py has the rest."""

from __future__ import annotations

import pytest

from migrator.conductor import takeover
from migrator.conductor.migration import abandon, context
from migrator.db import cleanups
from migrator.db.cleanups import Cleanup
from migrator.objects.protocol import GuestState
from migrator.placement_client import allocations
from migrator.saga.saga import Parked
from tests import evacuated
from tests.reasons import stuck_for
from tests.unit.conductor import stage

Stage = stage.Stage
LEAVES_SOURCE = 'post_live_migration_at_source'


def abandoned(still: Stage, guest_on: str) -> context.MigrationContext:
    """Return a stuck migration from host1 to host2 that ada abandons: nothing of that is carried out yet."""
    still.simulation.advance(5)  # so that the hosts are ready
    m = still.adopt(still.accept())
    m.set(dest_compute='host2', dest_node='host2', status='preparing', **stuck_for('the test says so'))
    m.commit()
    still.database.requests.request_abandon(m.row, guest_on, 'ada')
    found = takeover.reload(still.tools, m.row.uuid)
    assert found is not None
    return found


def defer(still: Stage, m: context.MigrationContext, epoch: int) -> None:
    """Defer the removal of the source's guest, as a conductor does in a later epoch."""
    cleanup = Cleanup('host1', m.row.uuid, m.row.instance_uuid, LEAVES_SOURCE, 'host1 was down', epoch)
    with still.cloud.database.engine.writer() as session:
        cleanups.write(session, cleanup)


def test_while_it_goes_on_nothing_that_was_deferred_is_done(still: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    m = abandoned(still, 'host1')
    defer(still, m, epoch=1)
    monkeypatch.setattr(m.tools.hosts, 'was_unreachable', lambda *args: True)
    assert isinstance(still.do(lambda: abandon.abandon(m)), Parked)
    (cleanup,) = still.database.cleanups.list()
    assert cleanup.epoch == 2, 'what is being done in its epoch can end it no more'
    assert cleanup.blocked_because is not None


def test_a_cleanup_command_that_is_still_on_its_way_is_refused(still: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    m = abandoned(still, 'host1')
    defer(still, m, epoch=20)
    monkeypatch.setattr(m.tools.hosts, 'was_unreachable', lambda *args: True)
    still.do(lambda: abandon.abandon(m))
    assert m.row.epoch > 20


def test_a_copy_that_is_shut_off_stays_where_no_host_runs_the_guest(still: Stage) -> None:
    m = abandoned(still, 'host2')
    still.host('host1').power_off()
    still.host('host1').power_on()
    assert still.do(lambda: abandon.abandon(m)) is None
    assert still.host('host1').describe(m.row.instance_uuid).state == GuestState.SHUTDOWN
    (cleanup,) = still.database.cleanups.list()
    assert (cleanup.host, cleanup.step) == ('host1', LEAVES_SOURCE)
    assert 'host1 has a copy of the guest, and no host reports that it runs it' in str(cleanup.blocked_because)


# --- evacuations -----------------------------------------------------------------------------------------------------


def evacuation(still: Stage, guest_on: str) -> context.MigrationContext:
    """Return a stuck evacuation from host1, which is dead, to host2 that ada abandons."""
    still.simulation.advance(5)
    still.kill('host1')
    still.host('host1').power_off()
    m = still.adopt(still.accept(migration_type='evacuation'))
    moved = evacuated.move(still.cloud, still.instance, m.row, 'host2')
    m.set(dest_compute='host2', dest_node='host2', status='preparing', **stuck_for('the test says so'))
    m.commit([moved, evacuated.step('evacuate', 'intent')])
    still.database.requests.request_abandon(m.row, guest_on, 'ada')
    found = takeover.reload(still.tools, m.row.uuid)
    assert found is not None
    return found


def held(still: Stage, consumer: str) -> list[str]:
    names = {node.uuid: node.host for node in still.database.services.list_nodes()}
    return [names[uuid] for uuid in allocations.read(still.cloud.placement_client, consumer).allocations]


def test_evacuation_abandoned_at_its_destination_defers_the_cleanup_of_its_source(still: Stage) -> None:
    m = evacuation(still, 'host2')
    still.host('host2').spawn(still.instance)
    assert still.do(lambda: abandon.abandon(m)) is None
    (cleanup,) = still.database.cleanups.list()
    assert (cleanup.host, cleanup.step, cleanup.blocked_because) == ('host1', 'post_evacuation_at_source', None)
    instance = still.database.instances.get(still.instance.uuid)
    assert (instance.host, instance.vm_state, instance.task_state) == ('host2', 'error', None)
    assert (held(still, instance.uuid), held(still, m.row.uuid)) == (['host2'], [])
    assert still.row(m.row).status == 'error'


def test_evacuation_abandoned_at_a_destination_that_does_not_run_the_guest_blocks_the_cleanup(still: Stage) -> None:
    m = evacuation(still, 'host2')
    assert still.do(lambda: abandon.abandon(m)) is None
    (cleanup,) = still.database.cleanups.list()
    assert (cleanup.host, cleanup.step) == ('host1', 'post_evacuation_at_source')
    assert 'no host reports that it runs it' in str(cleanup.blocked_because)


def test_evacuation_abandoned_at_its_source_defers_the_rollback_of_a_dead_destination(
    still: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = evacuation(still, 'host1')
    monkeypatch.setattr(m.tools.hosts, 'was_unreachable', lambda *args: True)
    monkeypatch.setattr(type(m.tools), 'is_down', lambda *args: True)
    assert still.do(lambda: abandon.abandon(m)) is None
    (cleanup,) = still.database.cleanups.list()
    assert (cleanup.host, cleanup.step, cleanup.blocked_because) == (
        'host2',
        'rollback_evacuation_at_destination',
        None,
    )
    instance = still.database.instances.get(still.instance.uuid)
    assert (instance.host, instance.vm_state) == ('host1', 'error')
    assert (held(still, instance.uuid), held(still, m.row.uuid)) == (['host1'], [])


def test_evacuation_abandoned_at_its_source_removes_no_guest_that_its_destination_runs(still: Stage) -> None:
    m = evacuation(still, 'host1')
    still.host('host2').spawn(still.instance)
    assert still.do(lambda: abandon.abandon(m)) is None
    (cleanup,) = still.database.cleanups.list()
    assert (cleanup.host, cleanup.step) == ('host2', 'rollback_evacuation_at_destination')
    assert 'host2 has the guest too' in str(cleanup.blocked_because)
    assert still.host('host2').describe(still.instance.uuid).state == GuestState.RUNNING
