# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from typing import Any

import pytest

from migrator.conductor import rpcapi, takeover
from migrator.db.migrations import Write
from migrator.db.sql import columns
from migrator.objects import protocol
from migrator.saga import log
from tests.unit.conductor import stage as stages

Stage = stages.Stage


def test_takeover_of_a_migration_without_an_owner_polls_no_host(still: Stage) -> None:
    m = still.adopt(still.accept())
    assert (m.row.epoch, m.replies.settling, m.replies.unsure, m.replies.must_poll) == (1, False, set(), set())


def test_second_takeover_gets_nothing(still: Stage) -> None:
    migration = still.accept()
    still.adopt(migration)
    assert still.do(lambda: takeover.adopt(still.tools, [migration.uuid], still._cast)) == []


def migration_of_a_dead_owner(still: Stage) -> stages.Migration:
    """Return a migration whose owner died in the middle of the preparation."""
    m = still.adopt(still.accept())
    m.set(status='preparing', dest_compute='host2', dest_node='host2')
    done = log.StepRecord('move_allocation', 'do', 'done', 1, input={'host': 'host2'})
    m.commit([done, log.StepRecord('pre_live_migration', 'do', 'intent', 1, input={})])
    still.database.conductors.retire(m.row.owner or '')
    return m.row


def test_takeover_polls_every_host_of_the_row_first(still: Stage) -> None:
    row = migration_of_a_dead_owner(still)
    still.tools.owner = 'second boot'
    still.database.conductors.register('second boot', 'conductor1', 1e6)
    m = still.adopt(row)
    assert (m.row.owner, m.row.epoch, m.replies.settling) == ('second boot', 2, True)
    assert m.replies.must_poll == {'host1', 'host2'}
    assert m.boots == {host: still.cloud.computes[host].boot_id for host in ('host1', 'host2')}


def test_only_the_owner_can_reload(still: Stage) -> None:
    m = still.adopt(still.accept())
    found = still.do(lambda: takeover.reload(still.tools, m.row.uuid))
    assert found.row == m.row
    still.tools.owner = 'another conductor'
    assert still.do(lambda: takeover.reload(still.tools, m.row.uuid)) is None


class TestComputeStarted:
    def queued(self, still: Stage, **fields: object) -> stages.Migration:
        m = still.adopt(still.accept(instance=still.cloud.boot('other', 'host1')))
        data = {'migrate_data': {'object': 'LiveMigrateData', 'version': '1.0', 'data': {'disk_over_commit': True}}}
        m.set(status='preparing', dest_compute='host2', dest_node='host2')
        m.commit([log.StepRecord('pre_live_migration', 'do', 'done', 1, result=data)])
        m.set(status='queued', queued_at=still.tools.threads.clock.now())
        m.commit([log.StepRecord('live_migration', 'do', 'intent', 1, input={})])
        if fields:
            still.database.migrations.commit(m.row, Write(fields=fields))
        return m.row

    def started(self, still: Stage, host: str, *guests: protocol.Guest) -> list[protocol.Assignment]:
        before = still.database.services.get_compute(host).boot_id
        report = protocol.HostReport(host=host, boot_id='new boot', version=4, guests=list(guests), replaces=before)
        assignments, _ = still.do(lambda: takeover.compute_started(still.tools, report))
        return assignments

    def test_queued_migration_is_assigned_to_the_source_in_the_new_epoch(self, still: Stage) -> None:
        row = self.queued(still)
        (found,) = self.started(still, 'host1')
        assert (found.role, found.queue, found.destination) == ('source', True, 'host2')
        assert found.migrate_data.disk_over_commit
        assert found.instance.uuid == row.instance_uuid
        head = found.command
        assert (head.epoch, head.owner, head.reply_to, head.boot_id) == (2, row.owner, 'conductor1', 'new boot')

    def test_destination_gets_an_assignment_without_a_queue(self, still: Stage) -> None:
        self.queued(still)
        (found,) = self.started(still, 'host2')
        assert (found.role, found.queue) == ('destination', False)

    def test_running_settled_or_aborted_migration_is_not_queued_again(self, still: Stage) -> None:
        for fields in ({'status': 'running'}, {'outcome': 'back'}):
            self.queued(still, **fields)
        still.abort(self.queued(still), wake=False)
        assert [found.queue for found in self.started(still, 'host1')] == [False, False, False]

    def test_assignment_has_the_running_time(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        for status in ('preparing', 'queued', 'running'):
            m.set(status=status, **({'running_at': columns.now()} if status == 'running' else {}))
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

    def test_guests_that_the_database_has_on_another_host_are_logged(
        self, still: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = protocol.Guest(instance_uuid=still.instance.uuid, state='running')
        self.started(still, 'host2', mine)
        (line,) = [record.getMessage() for record in caplog.records if 'has on other hosts' in record.getMessage()]
        assert (
            f'on host host2 that the database has on other hosts: {mine.instance_uuid} (running; database: host1)'
            in line
        )
        caplog.clear()
        self.started(still, 'host1', mine)
        assert 'has on other hosts' not in caplog.text

    def test_host_without_migrations_gets_no_assignment(self, still: Stage) -> None:
        self.queued(still)
        assert self.started(still, 'host3') == []


class TestTimeouts:
    """The report of a source that a migration takes longer than allowed."""

    def running(self, still: Stage, *statuses: str, **fields: Any) -> stages.Migration:
        m = still.adopt(still.accept())
        for status in ('preparing', 'queued', *statuses):
            m.set(status=status)
            still.do(m.commit)
        if fields:
            still.database.migrations.commit(m.row, Write(fields=fields))
        return m.row

    def report(
        self, still: Stage, row: stages.Migration, action: str = 'abort', host: str = 'host1', boot: str = ''
    ) -> None:
        events = rpcapi.ConductorEvents(still.cloud.rpc_for('host1', f'compute:{host}'))
        boot = boot or still.cloud.computes[host].boot_id
        still.do(lambda: events.live_migration_timed_out(host, boot, row.uuid, action, 1600.0))

    @pytest.mark.parametrize('statuses', [(), ('running',)])
    @pytest.mark.parametrize('action', ['abort', 'force_complete'])
    def test_time_out_is_committed_as_the_requester_before_the_reply(
        self, still: Stage, action: str, statuses: tuple[str, ...]
    ) -> None:
        row = self.running(still, *statuses)
        self.report(still, row, action)
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

    def test_second_time_out_does_not_replace_the_first_request(self, still: Stage) -> None:
        row = self.running(still, 'running')
        still.abort(row, wake=False)
        for _ in range(2):
            self.report(still, row)
        assert still.row(row).abort_requested_by == 'unknown'
        actions = [one.action for one in still.database.actions.list(row.instance_uuid)]
        assert actions == ['live_migration_cancel', 'live-migration']

    @pytest.mark.parametrize(
        'statuses', [('running (post-copy)',), ('post-migrating',), ('post-migrating', 'completed'), ('failed',)]
    )
    def test_time_out_after_the_pivot_is_ignored(self, still: Stage, statuses: tuple[str, ...]) -> None:
        row = self.running(still, *statuses)
        self.report(still, row)
        self.report(still, row, 'force_complete')
        found = still.row(row)
        assert (found.abort_requested_at, found.force_complete_requested_at) == (None, None)

    def test_time_out_of_wrong_boot_host_or_migration_changes_nothing(self, still: Stage) -> None:
        row = self.running(still, 'running')
        self.report(still, row, boot='an earlier boot')
        self.report(still, row, host='host2')
        self.report(still, row.replace(uuid='00000000-0000-4000-8000-00000000abcd'))
        assert still.row(row).abort_requested_at is None


def test_starting_host_gets_the_last_migration_of_each_guest(stage: Stage) -> None:
    """Without it the new boot would accept late commands of an earlier migration of the guest."""
    first = stage.end(stage.begin('host2'))
    there = stage.database.instances.get(first.instance_uuid)
    last = stage.end(stage.begin('host3', instance=there))
    stage.kill('host3')
    stage.cloud.start_compute('host3')
    stage.simulation.run_until(stage.cloud.up)
    stage.simulation.run_ready()
    guest = stage.cloud.computes['host3']._runner._guests[first.instance_uuid]
    assert (guest.holder, guest.tenure) == (last.uuid, 2)
