# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest

from migrator import exception
from migrator.conductor import cleanups, registry
from migrator.db.cleanups import Cleanup
from migrator.objects import protocol
from tests.unit.conductor import stage as stages

Stage = stages.Stage
STEP = 'rollback_live_migration_at_destination'


def deferred(still: Stage, host: str) -> Cleanup:
    """Return the deferred cleanup of a host that conductor1 has sent."""
    m = still.adopt(still.accept())
    m.defer(host, STEP, f'{host} was down')
    m.commit()
    cleanup = still.database.cleanups.adopt(still.database.cleanups.list()[0], still.tools.owner)
    assert cleanup is not None
    return cleanup


def report(cleanup: Cleanup, **fields: Any) -> protocol.Report:
    known = {'epoch': cleanup.epoch, 'boot_id': 'this boot', 'state': 'done'}
    return protocol.Report(
        migration_uuid=cleanup.migration_uuid, host=cleanup.host, step=cleanup.step, **{**known, **fields}
    )


def test_report_older_than_the_cleanup_does_not_end_it(still: Stage) -> None:
    cleanup = deferred(still, 'host2')
    cleanups.take_report(still.tools, report(cleanup, epoch=cleanup.epoch - 1))
    assert [kept.id for kept in still.database.cleanups.list()] == [cleanup.id]
    cleanups.take_report(still.tools, report(cleanup))
    assert still.database.cleanups.list() == []


def test_create_is_refused_while_the_host_removes_the_guest(build: Any) -> None:
    stage = build(options={'conductor.post_max_attempts': 1})
    faults = stage.host('host1').faults
    faults.fail('post_live_migration_at_source')
    migration = stage.begin('host2')
    stage.end(migration)
    stall = faults.stall('post_live_migration_at_source')
    stage.until(stall.reached.is_set, 120)
    row = stage.database.instances.get(migration.instance_uuid)
    registry.delete_instance(stage.database, stage.cloud.placement_client, row.uuid)
    again = row.replace(host='host1', node='host1')
    with pytest.raises(exception.CleanupInProgress, match='host1 is running post_live_migration_at_source'):
        registry.create_instance(stage.database, stage.cloud.placement_client, again)
    assert stage.database.cleanups.list()[0].blocked_because is None
    stall.release()
    stage.until(lambda: not stage.database.cleanups.list())
    assert registry.create_instance(stage.database, stage.cloud.placement_client, again).host == 'host1'


def test_failed_cleanup_does_not_prevent_create(build: Any) -> None:
    stage = build(options={'conductor.post_max_attempts': 1})
    stage.host('host1').faults.fail('post_live_migration_at_source', sticky=True)
    migration = stage.begin('host2')
    stage.end(migration)
    stage.until(lambda: 'planted' in stage.database.cleanups.list()[0].reason, 60)
    stage.simulation.advance(20)
    row = stage.database.instances.get(migration.instance_uuid)
    registry.delete_instance(stage.database, stage.cloud.placement_client, row.uuid)
    registry.create_instance(stage.database, stage.cloud.placement_client, row.replace(host='host1', node='host1'))
    (blocked,) = stage.database.cleanups.list()
    assert 'has been created at host1 since' in str(blocked.blocked_because)


@pytest.mark.parametrize('host', ['host2', 'host3'])
def test_guest_in_migration_is_neither_gone_nor_lost(still: Stage, host: str) -> None:
    cleanup = deferred(still, host)
    assert still.database.instances.get(cleanup.instance_uuid).task_state == 'migrating'
    cleanups.take_report(still.tools, report(cleanup, state='failed', reason='no guest', result={'gone': True}))
    (kept,) = still.database.cleanups.list()
    assert kept.blocked_because is None
