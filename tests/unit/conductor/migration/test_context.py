# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import math

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.conductor.migration import context, destinations, hosts, waiting
from migrator.db import conductors, models
from migrator.objects import protocol
from migrator.objects.reasons import Reason, StuckKind
from migrator.saga import log
from migrator.saga.saga import Failed
from tests.unit.conductor import stage

Stage = stage.Stage
#: What an intent of move_allocation stores.
CHOSEN = {'host': 'host2', 'node': 'host2', 'source': {}, 'destination': {}, 'instance_generation': 1}


def intent(step: str = 'move_allocation', **more: object) -> log.StepRecord:
    return log.StepRecord(step, 'do', more.pop('state', 'intent'), more.pop('attempt', 1), **more)


def report(step: str = 'live_migration', epoch: int = 1, state: str = 'running', boot: str = 'b') -> protocol.Report:
    return protocol.Report(migration_uuid='m', host='host1', boot_id=boot, step=step, epoch=epoch, state=state)


class TestCommit:
    def test_collected_writes_are_written_once_with_next_commit(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        m.set(status='preparing', dest_compute='host2')
        m.set(dest_node='node2')
        m.writes.instance['power_state'] = 4
        m.defer('host2', 'post', 'it is down', {'a': 1})
        m.commit([intent()])
        row = still.row(m.row)
        assert (row.status, row.dest_compute, row.dest_node) == ('preparing', 'host2', 'node2')
        assert still.database.instances.get(row.instance_uuid).power_state == 4
        assert m.instance is not None
        assert m.instance.power_state == 4
        cleanup = still.database.cleanups.list()[0]
        assert (cleanup.host, cleanup.migration_uuid, cleanup.epoch) == ('host2', row.uuid, 1)
        assert cleanup.owner is None, 'the conductor that runs it takes it, with an epoch of its own'
        m.commit()
        assert len(still.database.cleanups.list()) == 1

    def test_refused_commit_changes_neither_database_nor_log(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        with still.cloud.database.engine.writer() as session:
            session.execute(sa.update(models.Migration).values(epoch=7))
        with pytest.raises(exception.NotOwner):
            m.commit([intent()])
        assert m.record('move_allocation') is None
        assert still.database.migrations.steps(m.row.uuid) == []

    def test_unread_request_refuses_the_commit(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        still.abort(m.row, wake=False)
        with pytest.raises(exception.NotOwner):
            m.commit()

    def test_back_keeps_its_reason(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        m.commit([intent(state='failed', result={'reason': 'no room'})], outcome='back')
        assert (still.row(m.row).outcome, still.row(m.row).failure) == ('back', 'no room')

    def test_done_step_clears_stuck_and_a_guard_does_not(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        waiting.note_stuck(m, Reason.of(StuckKind.UNKNOWN_GUEST, reason='odd'))
        assert still.row(m.row).stuck_reason == 'odd'
        m.commit()
        assert still.row(m.row).stuck_reason == 'odd'
        m.commit([intent(state='done')])
        assert still.row(m.row).stuck_reason is None

    def test_first_act_after_its_own_intent_is_recognised(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        assert not m.step_log.first_try(m.attempt, 'move_allocation')
        m.commit([intent()])
        assert m.step_log.first_try(m.attempt, 'move_allocation')
        assert not m.step_log.first_try(m.attempt, 'move_allocation')


class TestEnds:
    @pytest.mark.parametrize(
        ('lost', 'aborted', 'status', 'vm_state'),
        [
            (False, False, 'failed', 'active'),
            (False, True, 'cancelled', 'active'),
            (True, False, 'error', 'error'),
            (True, True, 'error', 'error'),
        ],
    )
    def test_undone_migration_ends_in_status_of_its_reason(
        self, still: Stage, lost: bool, aborted: bool, status: str, vm_state: str
    ) -> None:
        migration = still.accept()
        if aborted:
            still.abort(migration, wake=False)
        m = still.adopt(migration)
        m.set(status='preparing')
        m.commit([intent(state='failed', result={'reason': 'r', 'lost': True} if lost else {'reason': 'r'})], 'back')
        m.undone()
        assert m.ended
        assert still.row(m.row).status == status
        instance = still.database.instances.get(m.row.instance_uuid)
        assert (instance.vm_state, instance.task_state) == (vm_state, None)


class TestAttempts:
    def test_next_attempt_needs_a_retry_left_no_named_host_and_no_abort(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        assert not m.has_next_attempt(), 'no candidate was chosen, so there is none left either'
        m.commit([intent(input=CHOSEN)])
        for retries, more in ((-1, True), (0, False), (1, True), (5, True)):
            m.tools.options = m.tools.options.__class__(retries, 60, 2, 10)
            assert m.has_next_attempt() == more
        m.row = m.row.replace(requested_host='host2')
        assert not m.has_next_attempt()

    def test_the_next_one_forgets_the_destination_and_remembers_why_it_was_given_up(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        m.set(status='preparing', dest_compute='host2', dest_node='host2')
        m.commit([intent(input=CHOSEN), intent('pre', state='failed', result={'reason': 'disk full'})])
        m.failure = Failed('disk full')
        m.begin_next_attempt()
        row = still.row(m.row)
        assert (row.attempt, row.dest_compute, row.dest_node) == (2, None, None)
        assert destinations.tried(m.step_log, m.attempt) == {'host2': 'disk full'}
        assert (m.abort_reason, m.row.hosts) == (None, ['host1'])
        assert m.record('move_allocation') is None


class TestEpochs:
    def test_raising_it_begins_a_settling_epoch_above_everything_seen(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        m.raise_epoch()
        assert (m.row.epoch, still.row(m.row).epoch, m.replies.settling) == (2, 2, True)
        m.raise_epoch(seen=9)
        assert (m.row.epoch, still.row(m.row).epoch) == (10, 10)
        m.raise_epoch(seen=3)
        assert m.row.epoch == 11

    @pytest.mark.parametrize('seen', [protocol.HIGHEST, 2**31 - 2, 2**31, 2**40, 2**63])
    def test_reported_epoch_that_no_conductor_issued_raises_no_epoch(self, still: Stage, seen: int) -> None:
        m = still.adopt(still.accept())
        for reported in ((seen, None), (0, seen)):
            with pytest.raises(exception.OddAnswer, match=f'epoch or tenure {seen}'):
                m.raise_epoch(*reported)
        assert (m.row.epoch, m.row.tenure) == (still.row(m.row).epoch, still.row(m.row).tenure) == (1, 1)

    def test_highest_epoch_that_a_host_may_report_leaves_room(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        m.raise_epoch(protocol.HIGHEST - 1, protocol.HIGHEST - 1)
        for _ in range(3):
            m.raise_epoch()
        assert still.row(m.row).epoch == protocol.HIGHEST + 3
        assert still.row(m.row).tenure < 2**30 + 10 < 2**31

    def test_epoch_at_column_maximum_is_not_raised(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        with still.cloud.database.engine.writer() as session:
            session.execute(sa.update(models.Migration).values(epoch=2**31 - 1))
        m.row = still.row(m.row)
        with pytest.raises(exception.OddAnswer, match=str(2**31 - 1)):
            m.raise_epoch()

    def test_epoch_of_migration_owned_by_another_is_not_raised(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        with still.cloud.database.engine.writer() as session:
            session.execute(sa.update(models.Migration).values(owner='another'))
        with pytest.raises(exception.NotOwner):
            m.raise_epoch()
        with pytest.raises(exception.NotOwner):
            hosts.reread_boots(m)

    def test_command_has_migration_step_epoch_owner_and_boot(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        hosts.reread_boots(m)
        order = hosts.command(m, 'host1', 'pre_live_migration')
        assert (order.migration_uuid, order.instance_uuid) == (m.row.uuid, m.row.instance_uuid)
        assert (order.step, order.epoch, order.owner, order.reply_to) == (
            'pre_live_migration', 1, m.row.owner, 'conductor1'
        )  # fmt: skip
        assert order.boot_id == still.cloud.computes['host1'].boot_id

    def test_command_keeps_owner_of_its_epoch_in_next_boot(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        owner = m.row.owner
        still.tools.owner = 'the next boot'
        assert hosts.command(m, 'host1', 'pre_live_migration').owner == owner


class TestReports:
    @pytest.mark.parametrize(
        ('known', 'received', 'kept'),
        [
            (('running', 1), ('done', 1), ('done', 1)),
            (('done', 1), ('running', 1), ('done', 1)),
            (('done', 2), ('failed', 1), ('done', 2)),
            (('done', 1), ('running', 2), ('running', 2)),
        ],
    )
    def test_an_older_one_does_not_replace_a_newer_one(
        self, still: Stage, known: tuple, received: tuple, kept: tuple
    ) -> None:
        m = still.adopt(still.accept())
        for state, epoch in (known, received):
            m.replies.take_report(report(epoch=epoch, state=state), m.row.epoch)
        found = m.replies.reports['host1', 'live_migration']
        assert (found.state, found.epoch) == kept

    @pytest.mark.parametrize('epoch', [2**31 - 2, 2**40, 2**63])
    def test_a_report_of_an_epoch_that_no_conductor_has_given_is_ignored(
        self, still: Stage, caplog: pytest.LogCaptureFixture, epoch: int
    ) -> None:
        m = still.adopt(still.accept())
        m.replies.take_report(report(epoch=1, state='running'), m.row.epoch)
        m.replies.take_report(report(epoch=epoch, state='failed'), m.row.epoch)
        kept = m.replies.reports['host1', 'live_migration']
        assert (kept.state, kept.epoch) == ('running', 1)
        assert f'epoch {epoch}' in caplog.text
        m.replies.take_report(report(epoch=2, state='done'), m.row.epoch)
        assert m.replies.reports['host1', 'live_migration'].state == 'done'

    def test_an_answer_to_a_poll_brings_its_reports_and_ends_the_doubt_about_its_host(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        m.replies.unsure = {('host1', 'live_migration'), ('host2', 'pre_live_migration')}
        m.replies.take_observation(
            protocol.Observation(
                migration_uuid='m', host='host1', boot_id='b', epoch=1, guest=protocol.Guest(instance_uuid='i'),
                reports=[report()],
            ),
            m.row.epoch,
        )  # fmt: skip
        assert m.replies.unsure == {('host2', 'pre_live_migration')}
        assert m.replies.reports['host1', 'live_migration'].state == 'running'

    def test_refusal_is_no_observation_of_the_guest(self, still: Stage) -> None:
        m = still.adopt(still.accept())
        m.replies.unsure = {('host1', 'live_migration')}
        m.replies.take_observation(
            protocol.Observation(
                migration_uuid='m', host='host1', boot_id='b', epoch=1, guest=protocol.Guest(instance_uuid='i'),
                refusal='starting',
            ),
            m.row.epoch,
        )  # fmt: skip
        assert (m.replies.seen, m.replies.unsure) == ({}, {('host1', 'live_migration')})


def test_new_epoch_discards_earlier_observations(still: Stage) -> None:
    """The restart of a host raises the epoch, and what the owner knew may be of the boot before."""
    m = still.adopt(still.accept())
    m.replies.settling, m.replies.unsure, m.replies.must_poll = True, {('host1', 'live_migration')}, {'host1'}
    m.become(context.MigrationContext(m.tools, conductors.Owned(m.row, m.instance, []), settling=False))
    assert (m.replies.settling, m.replies.unsure) == (True, {('host1', 'live_migration')})
    assert m.replies.must_poll == {'host1'}
    newer = conductors.Owned(m.row.replace(epoch=m.row.epoch + 1), m.instance, [])
    m.become(context.MigrationContext(m.tools, newer, settling=False))
    assert (m.replies.settling, m.replies.unsure, m.replies.must_poll) == (False, set(), set())


def test_stopped_host_is_not_gone_before_it_can_return(still: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    m = still.adopt(still.accept())
    # This conductor has not asked it anything for long, which says nothing of it.
    monkeypatch.setattr(m.tools.hosts, 'unreachable_for', lambda host: math.inf)
    boot = still.cloud.computes['host1'].boot_id
    still.database.migrations.begin_stop('host1', boot, [], still.database.services)
    assert not still.database.services.get_compute('host1').is_up(still.database.services.now(), 60)
    assert not m.tools.is_down('host1')
    still.cloud.simulation.advance(61)
    assert m.tools.is_down('host1')


def test_a_deleted_instance_leaves_as_much_as_a_host_needs_to_clean_up(still: Stage) -> None:
    m = still.adopt(still.accept())
    assert m.guest == m.instance
    m.instance = None
    assert (m.guest.uuid, m.guest.host) == (m.row.instance_uuid, 'host1')
    assert m.guest.to_primitive()
