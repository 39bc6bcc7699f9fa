# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from typing import Any

import pytest

from migrator.conductor import rpcapi, takeover
from migrator.db import types
from migrator.db.migrations import Write
from migrator.objects import protocol
from migrator.saga import log
from tests.unit.conductor import stage as stages

Stage = stages.Stage


def test_what_nobody_ever_owned_has_sent_nothing_and_nobody_is_asked(still: Stage) -> None:
    m = still.adopt(still.accept())
    assert (m.row.epoch, m.settling, m.unsure, m.must_ask) == (1, False, set(), set())


def test_who_comes_second_gets_nothing(still: Stage) -> None:
    migration = still.accept()
    still.adopt(migration)
    assert still.do(lambda: takeover.adopt(still.tools, migration.uuid, 0)) is None
    assert still.do(lambda: takeover.adopt(still.tools, migration.uuid, 1)) is None


def dead_owners(still: Stage) -> stages.Migration:
    """Return a migration whose owner has died in the middle of the preparation."""
    m = still.adopt(still.accept())
    m.will(status='preparing', dest_compute='host2', dest_node='host2')
    done = log.StepRecord('move_allocation', 'do', 'done', 1, input={'host': 'host2'})
    m.commit([done, log.StepRecord('pre_live_migration', 'do', 'intent', 1, input={})])
    still.database.conductors.retire(m.row.owner or '')
    return m.row


def test_an_adopters_first_act_is_to_ask_every_host_that_the_row_names(still: Stage) -> None:
    row = dead_owners(still)
    still.tools.owner = 'second life'
    still.database.conductors.register('second life', 'conductor1', 1e6)
    m = still.adopt(row)
    assert (m.row.owner, m.row.epoch, m.settling) == ('second life', 2, True)
    assert m.must_ask == {'host1', 'host2'}
    assert m.boots == {host: still.cloud.computes[host].boot_id for host in ('host1', 'host2')}


def test_what_it_owns_it_can_read_anew_and_nobody_else(still: Stage) -> None:
    m = still.adopt(still.accept())
    found = still.do(lambda: takeover.reload(still.tools, m.row.uuid))
    assert found.row == m.row
    still.tools.owner = 'somebody else'
    assert still.do(lambda: takeover.reload(still.tools, m.row.uuid)) is None


class TestComputeStarted:
    def queued(self, still: Stage, **fields: object) -> stages.Migration:
        m = still.adopt(still.accept(instance=still.cloud.boot('other', 'host1')))
        data = {'migrate_data': {'object': 'LiveMigrateData', 'version': '1.0', 'data': {'disk_over_commit': True}}}
        m.will(status='preparing', dest_compute='host2', dest_node='host2')
        m.commit([log.StepRecord('pre_live_migration', 'do', 'done', 1, result=data)])
        m.will(status='queued', queued_at=still.tools.threads.clock.now())
        m.commit([log.StepRecord('live_migration', 'do', 'intent', 1, input={})])
        if fields:
            still.database.migrations.commit(m.row, Write(fields=fields))
        return m.row

    def started(self, still: Stage, host: str, *guests: protocol.Guest) -> list[protocol.Assignment]:
        report = protocol.HostReport(host=host, boot_id='new boot', version=4, guests=list(guests))
        known = takeover.known_boot(still.tools, host)
        assignments, _ = still.do(lambda: takeover.compute_started(still.tools, report, known))
        return assignments

    def test_the_source_is_to_queue_what_was_queued_with_its_frozen_data_in_the_new_epoch(self, still: Stage) -> None:
        row = self.queued(still)
        (found,) = self.started(still, 'host1')
        assert (found.role, found.queue, found.destination) == ('source', True, 'host2')
        assert found.migrate_data.disk_over_commit
        assert found.instance.uuid == row.instance_uuid
        head = found.command
        assert (head.epoch, head.owner, head.reply_to, head.boot_id) == (2, row.owner, 'conductor1', 'new boot')

    def test_the_destination_is_told_of_it_and_queues_nothing(self, still: Stage) -> None:
        self.queued(still)
        (found,) = self.started(still, 'host2')
        assert (found.role, found.queue) == ('destination', False)

    def test_what_is_running_settled_or_to_be_aborted_is_not_queued_again(self, still: Stage) -> None:
        for fields in ({'status': 'running'}, {'outcome': 'back'}):
            self.queued(still, **fields)
        still.abort(self.queued(still), wake=False)
        assert [found.queue for found in self.started(still, 'host1')] == [False, False, False]

    def test_the_source_is_told_for_how_long_what_runs_has_run_already(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        for status in ('preparing', 'queued', 'running'):
            m.will(status=status, **({'running_at': types.now()} if status == 'running' else {}))
            still.do(m.commit)
        still.simulation.advance(75)
        self.queued(still)
        assert [found.running_for for found in self.started(still, 'host1')] == [75.0, 0.0]

    def test_unknown_guests_are_logged_and_known_ones_are_not(
        self, still: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = protocol.Guest(instance_uuid=still.instance.uuid, state='running')
        others = [
            protocol.Guest(instance_uuid=uuid, state=state) for uuid, state in (('b', 'waiting'), ('a', 'running'))
        ]
        self.started(still, 'host1', mine, *others)
        (line,) = [record.getMessage() for record in caplog.records if 'Unknown guests' in record.getMessage()]
        assert 'on host host1' in line
        assert 'a (running), b (waiting)' in line
        assert still.instance.uuid not in line
        caplog.clear()
        self.started(still, 'host1', mine)
        self.started(still, 'host1')
        assert 'Unknown guests' not in caplog.text

    def test_a_host_that_nothing_names_has_nothing_to_do(self, still: Stage) -> None:
        self.queued(still)
        assert self.started(still, 'host3') == []


class TestTimeouts:
    """What a source tells of a move that takes longer than it may."""

    def running(self, still: Stage, *statuses: str, **fields: Any) -> stages.Migration:
        m = still.adopt(still.accept())
        for status in ('preparing', 'queued', *statuses):
            m.will(status=status)
            still.do(m.commit)
        if fields:
            still.database.migrations.commit(m.row, Write(fields=fields))
        return m.row

    def tell(
        self, still: Stage, row: stages.Migration, action: str = 'abort', host: str = 'host1', boot: str = ''
    ) -> None:
        events = rpcapi.ConductorEvents(still.cloud._rpc('host1', f'compute:{host}'))
        boot = boot or still.cloud.computes[host].boot_id
        still.do(lambda: events.live_migration_timed_out(host, boot, row.uuid, action, 1600.0))

    @pytest.mark.parametrize('statuses', [(), ('running',)])
    @pytest.mark.parametrize('action', ['abort', 'force_complete'])
    def test_is_a_wish_with_the_time_out_as_who_asks_before_it_is_answered(
        self, still: Stage, action: str, statuses: tuple[str, ...]
    ) -> None:
        row = self.running(still, *statuses)
        self.tell(still, row, action)
        found = still.row(row)
        asked, other = found.abort_requested_at, found.force_complete_requested_at
        if action == 'force_complete':
            asked, other = other, asked
        else:
            assert found.abort_requested_by == 'the time-out of 1600 s (live_migration_completion_timeout)'
        assert asked is not None
        assert other is None
        newest = still.database.actions.list(row.instance_uuid)[0]
        assert newest.action == {'abort': 'live_migration_cancel'}.get(action, f'live_migration_{action}')
        assert newest.user_id == 'the time-out of 1600 s (live_migration_completion_timeout)'

    def test_told_twice_it_is_one_wish_and_whose_came_first_stays_theirs(self, still: Stage) -> None:
        row = self.running(still, 'running')
        still.abort(row, wake=False)
        for _ in range(2):
            self.tell(still, row)
        assert still.row(row).abort_requested_by == 'unknown'
        actions = [one.action for one in still.database.actions.list(row.instance_uuid)]
        assert actions == ['live_migration_cancel', 'live-migration']

    @pytest.mark.parametrize(
        'statuses', [('running (post-copy)',), ('post-migrating',), ('post-migrating', 'completed'), ('failed',)]
    )
    def test_once_the_guest_has_moved_or_all_is_over_it_is_too_late_and_no_error(
        self, still: Stage, statuses: tuple[str, ...]
    ) -> None:
        row = self.running(still, *statuses)
        self.tell(still, row)
        self.tell(still, row, 'force_complete')
        found = still.row(row)
        assert (found.abort_requested_at, found.force_complete_requested_at) == (None, None)

    def test_another_boot_another_host_and_an_unknown_migration_change_nothing(self, still: Stage) -> None:
        row = self.running(still, 'running')
        self.tell(still, row, boot='an earlier boot')
        self.tell(still, row, host='host2')
        self.tell(still, row.replace(uuid='00000000-0000-4000-8000-00000000abcd'))
        assert still.row(row).abort_requested_at is None


def test_a_host_that_starts_is_told_who_had_its_guests_in_hand_last(stage: Stage) -> None:
    """Else its new boot would take what an earlier migration of the guest may still send."""
    first = stage.end(stage.begin('host2'))
    there = stage.database.instances.get(first.instance_uuid)
    last = stage.end(stage.begin('host3', instance=there))
    stage.kill('host3')
    stage.cloud.start_compute('host3')
    stage.simulation.run_until(stage.cloud.up)
    stage.simulation.run_ready()
    guest = stage.cloud.computes['host3']._orders._guests[first.instance_uuid]
    assert (guest.holder, guest.tenure) == (last.uuid, 2)
