# SPDX-License-Identifier: Apache-2.0

"""An abandon must not remove the last copy of a guest. test_unstick.py has the rest."""

from __future__ import annotations

import pytest

from migrator.conductor import takeover
from migrator.conductor.migration import abandon, context
from migrator.db import cleanups
from migrator.db.cleanups import Cleanup
from migrator.objects.protocol import GuestState
from migrator.saga.saga import Parked
from tests.unit.conductor import stage

Stage = stage.Stage
LEAVES_SOURCE = 'post_live_migration_at_source'


def abandoned(still: Stage, guest_on: str) -> context.MigrationContext:
    """Return a stuck migration from host1 to host2 that ada abandons: nothing of that is carried out yet."""
    still.simulation.advance(5)  # so that the hosts are ready
    m = still.adopt(still.accept())
    m.will(dest_compute='host2', dest_node='host2', status='preparing', stuck_reason='the test says so')
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
    assert cleanup.alarm is not None


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
    assert 'host1 has a copy of the guest, and no host reports that it runs it' in str(cleanup.alarm)
