# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import concurrent.futures
import datetime

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from migrator import context, exception
from migrator.db import models, saga_log
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from migrator.db.sql import columns
from migrator.objects import CURRENT_VERSION, Flavor, Migration, protocol
from migrator.saga import log
from tests.reasons import NOT_STUCK, stuck_for, waiting_for
from tests.unit.db import conftest

Scene = conftest.Scene
CONTEXT = context.admin_context('req-one')


def record(step: str = 'move_allocation', state: str = 'intent', **more: object) -> log.StepRecord:
    fields = {'direction': 'do', 'attempt': 1, **more}
    return log.StepRecord(step=step, state=state, **fields)


def write(scene: Scene, known: Migration, **fields: object) -> Migration:
    return scene.database.migrations.commit(known, Write(fields=fields))[0]


def history(scene: Scene, known: Migration) -> list[dict[str, object]]:
    return saga_log.history(scene.database.migrations.read_log(known.uuid))


def stored(scene: Scene) -> tuple:
    """Return everything that is stored, to see that nothing was written."""
    tables = ('migrations', 'instances', 'saga_log', 'cleanups', 'instance_actions')
    with scene.database.engine.reader() as session:
        return tuple(tuple(map(tuple, session.execute(sa.text(f'SELECT * FROM {name}')))) for name in tables)  # noqa: S608 -- names of ours


class TestAccept:
    def test_row_task_state_and_action_are_written_together(self, scene: Scene) -> None:
        instance = scene.instance()
        migration = scene.migration(instance, 'req-seven')
        assert (migration.status, migration.owner, migration.epoch, migration.attempt) == ('accepted', None, 0, 1)
        assert [entry['status'] for entry in history(scene, migration)] == ['accepted']
        assert migration.created_at == conftest.START
        assert scene.database.instances.get(instance.uuid).task_state == 'migrating'
        action = scene.database.actions.get(instance.uuid, 'req-seven')
        assert (action.action, action.migration_uuid, action.result) == ('live-migration', migration.uuid, None)

    def test_a_second_one_of_an_instance_is_refused_and_writes_nothing(self, scene: Scene) -> None:
        instance = scene.instance()
        scene.migration(instance)
        before = stored(scene)
        with pytest.raises(exception.InstanceInvalidState) as caught:
            scene.migration(instance)
        assert caught.value.kwargs['attr'] == 'task_state'
        assert stored(scene) == before

    def test_second_migration_in_progress_is_refused_by_database(self, scene: Scene) -> None:
        instance = scene.instance()
        scene.migration(instance)
        scene.database.instances.update(instance.uuid, task_state=None)
        before = stored(scene)
        with pytest.raises(
            exception.MigrationInProgress, match=r'already: migration 1, accepted \d s ago, is accepted'
        ):
            scene.migration(instance)
        assert stored(scene) == before

    def test_of_two_at_the_same_moment_one_is_accepted(self, scene: Scene) -> None:
        instance = scene.instance()
        wanted = [scene.wanted(instance) for _ in range(8)]

        def accept(one: Migration) -> bool:
            try:
                scene.database.migrations.accept(CONTEXT, one, 'live-migration')
            except exception.Conflict:
                return False
            return True

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(accept, wanted)) == 1
        assert len(scene.database.migrations.list()) == 1

    @pytest.mark.parametrize(
        ('change', 'attr'),
        [
            ({'vm_state': 'error'}, 'vm_state'),
            ({'vm_state': 'stopped'}, 'vm_state'),
            ({'task_state': 'rebuilding'}, 'task_state'),
            ({'host': 'host2'}, 'host'),
        ],
    )
    def test_an_instance_in_another_state_is_refused_by_that_state(self, scene: Scene, change: dict, attr: str) -> None:
        instance = scene.instance()
        scene.database.instances.update(instance.uuid, **change)
        before = stored(scene)
        with pytest.raises(exception.InstanceInvalidState) as caught:
            scene.migration(instance)
        assert caught.value.kwargs['attr'] == attr
        assert stored(scene) == before

    def test_an_instance_that_is_gone_is_not_found(self, scene: Scene) -> None:
        instance = scene.instance()
        scene.database.instances.delete(instance.uuid)
        with pytest.raises(exception.InstanceNotFound):
            scene.migration(instance)
        assert scene.database.migrations.list() == []

    def test_a_paused_one_may_move_and_another_type_may_take_other_states(self, scene: Scene) -> None:
        scene.migration(scene.instance(vm_state='paused'))
        broken = scene.instance(vm_state='error')
        wanted = scene.wanted(broken, migration_type='evacuation')
        scene.database.migrations.accept(CONTEXT, wanted, 'evacuate', task_state='rebuilding', vm_states=('error',))
        assert scene.database.instances.get(broken.uuid).task_state == 'rebuilding'


class TestAdopt:
    def test_adopt_sets_owner_and_next_epoch(self, scene: Scene) -> None:
        migration, owner = scene.migration(), scene.conductor()
        owned = scene.adopt(migration.uuid, owner)
        assert (owned.migration.owner, owned.migration.epoch) == (owner, 1)
        assert owned.instance.uuid == migration.instance_uuid
        assert owned.entries == []

    def test_adopt_by_eight_conductors_has_one_winner(self, scene: Scene) -> None:
        migration = scene.migration()
        owners = [scene.conductor(f'conductor{number}') for number in range(8)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda owner: scene.adopt(migration.uuid, owner), owners))
        winners = [owned.migration.owner for owned in found if owned is not None]
        assert len(winners) == 1
        row = scene.database.migrations.get(migration.uuid)
        assert (row.owner, row.epoch) == (winners[0], 1)

    def test_a_living_owner_keeps_it_until_its_lease_runs_out(self, scene: Scene) -> None:
        first, second = scene.conductor('one', lease=15), scene.conductor('two', lease=1000)
        migration = scene.owned(first)
        assert scene.database.takeovers.orphans() == []
        assert scene.adopt(migration.uuid, second) is None
        scene.clock.seconds = 14.9
        assert scene.adopt(migration.uuid, second) is None
        scene.clock.seconds = 15
        assert scene.database.takeovers.orphans() == [[migration.uuid]]
        adopted = scene.adopt(migration.uuid, second)
        assert (adopted.migration.owner, adopted.migration.epoch) == (second, 2)

    def test_takeover_never_repeats_an_epoch(self, scene: Scene) -> None:
        migration = scene.owned(scene.conductor('one', lease=10))
        scene.clock.seconds = 10
        # The third one read the list of orphans before the second one took over and died.
        (late,) = scene.database.takeovers.orphans()
        assert scene.adopt(migration.uuid, scene.conductor('two', lease=10)) is not None
        assert scene.database.takeovers.adopt(late, scene.conductor('three')) is None
        scene.clock.seconds = 20
        assert scene.adopt(migration.uuid, scene.conductor('four')).migration.epoch == 3

    def test_an_owner_that_is_not_registered_at_all_is_dead(self, scene: Scene) -> None:
        migration = scene.owned('an unknown boot')
        assert scene.database.takeovers.orphans() == [[migration.uuid]]

    def test_ended_migration_cannot_be_adopted(self, scene: Scene) -> None:
        known = scene.owned()
        write(scene, known, status='failed')
        scene.clock.seconds = 100
        assert scene.database.takeovers.orphans() == []
        assert scene.adopt(known.uuid, scene.conductor()) is None

    def test_the_adopter_reads_the_log(self, scene: Scene) -> None:
        known = scene.owned()
        scene.database.migrations.commit(known, Write(records=[record(input={'host': 'host2'})]))
        scene.clock.seconds = 100
        owned = scene.adopt(known.uuid, scene.conductor('two'))
        records = log.records(owned.entries)
        assert [(found.step, found.state, found.epoch) for found in records] == [('move_allocation', 'intent', 1)]
        assert records[0].input == {'host': 'host2'}
        assert records[0].stored

    def test_orphans_come_oldest_first(self, scene: Scene) -> None:
        uuids = [scene.migration().uuid for _ in range(3)]
        assert scene.database.takeovers.orphans() == [uuids]

    def test_adopt_of_deleted_instance_has_no_instance(self, scene: Scene) -> None:
        migration = scene.migration()
        with scene.database.engine.writer() as session:
            session.execute(sa.delete(models.Instance))
        assert scene.adopt(migration.uuid, scene.conductor()).instance is None

    def test_only_its_owner_can_load_it_and_only_while_it_is_in_progress(self, scene: Scene) -> None:
        known = scene.owned()
        assert scene.database.migrations.load(known.uuid, known.owner).migration == known
        assert scene.database.migrations.load(known.uuid, 'another') is None
        write(scene, known, status='failed')
        assert scene.database.migrations.load(known.uuid, known.owner) is None

    def test_owner_finds_its_migrations_with_epoch_and_requests(self, scene: Scene) -> None:
        owner = scene.conductor()
        first, second, third = scene.owned(owner), scene.owned(owner), scene.owned(owner)
        scene.owned()
        scene.database.requests.request_abort(CONTEXT, second, ['accepted'])
        scene.database.requests.request_force_complete(CONTEXT, third, ['accepted'])
        assert sorted(scene.database.migrations.owned_by(owner)) == sorted(
            [
                (first.uuid, 1, (False, False, False, False, False, False)),
                (second.uuid, 1, (True, False, False, False, False, False)),
                (third.uuid, 1, (False, True, False, False, False, False)),
            ]
        )


class TestCommit:
    def test_abandon_request_refuses_writes_that_do_not_know_it(self, scene: Scene) -> None:
        known = write(scene, scene.owned(), status='preparing', **stuck_for('odd'))
        scene.database.requests.request_abandon(known, known.source_compute, 'ada')
        for outcome in (None, 'back', 'forward'):
            with pytest.raises(exception.NotOwner):
                write(scene, known.replace(outcome=outcome), **NOT_STUCK)
        assert scene.database.migrations.get(known.uuid).stuck_reason == 'odd'
        write(scene, scene.database.migrations.get(known.uuid), **NOT_STUCK)

    def test_definition_with_the_flavor_from_before_a_resize_is_forgotten(self, scene: Scene) -> None:
        known = scene.owned()
        definitions, uuid = scene.database.definitions, known.instance_uuid
        definitions.store('host1', {uuid: {'xml': 'small'}}, 0)
        scene.database.migrations.commit(known, Write(instance={'host': 'host2'}))
        assert definitions.get(uuid, 'host1') == {'xml': 'small'}
        scene.database.migrations.commit(known, Write(instance={'host': 'host1', 'flavor': Flavor(name='large')}))
        assert definitions.get(uuid, 'host1') == {}

    def test_fields_records_instance_and_cleanups_are_one_transaction(self, scene: Scene) -> None:
        known = scene.owned()
        cleanup = Cleanup(
            host='host1', migration_uuid=known.uuid, instance_uuid=known.instance_uuid, step='post', reason='down',
            epoch=1, owner=known.owner,
        )  # fmt: skip
        all_of_it = Write(
            fields={'status': 'preparing', 'dest_compute': 'host2'},
            records=[record()],
            instance={'host': 'host2'},
            cleanups=[cleanup],
        )
        fresh, _ = scene.database.migrations.commit(known, all_of_it)
        assert (fresh.status, fresh.dest_compute, fresh.epoch) == ('preparing', 'host2', 1)
        row = scene.database.migrations.get(known.uuid)
        assert row.replace(updated_at=None) == fresh.replace(updated_at=None)
        assert scene.database.instances.get(known.instance_uuid).host == 'host2'
        assert [found.step for found in scene.database.migrations.steps(known.uuid)] == ['move_allocation']
        assert [found.host for found in scene.database.cleanups.list()] == ['host1']

    @pytest.mark.parametrize('change', ['owner', 'epoch', 'status', 'abort'])
    def test_commit_with_an_outdated_row_writes_nothing(self, scene: Scene, change: str) -> None:
        known = scene.owned()
        if change == 'abort':
            scene.database.requests.request_abort(CONTEXT, known, ['accepted'])
        else:
            values = {'owner': scene.conductor('two'), 'epoch': 2, 'status': 'preparing'}
            with scene.database.engine.writer() as session:
                session.execute(sa.update(models.Migration).values({change: values[change]}))
        before = stored(scene)
        everything = Write(fields={'status': 'failed'}, records=[record()], instance={'host': 'host2'}, raise_epoch=9)
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.commit(known, everything)
        assert stored(scene) == before

    def test_even_an_empty_write_is_refused_so_that_it_can_serve_as_a_guard(self, scene: Scene) -> None:
        known = scene.owned()
        scene.database.migrations.commit(known, Write())
        scene.clock.seconds = 100
        scene.adopt(known.uuid, scene.conductor('two'))
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.commit(known, Write())

    def test_owner_that_knows_the_request_can_write(self, scene: Scene) -> None:
        known = scene.owned()
        scene.database.requests.request_abort(CONTEXT, known, ['accepted'])
        fresh = scene.database.migrations.get(known.uuid)
        assert write(scene, fresh, status='cancelled').status == 'cancelled'

    def test_abort_after_outcome_refuses_only_the_end_that_misses_it(self, scene: Scene) -> None:
        known = write(scene, scene.owned(), status='preparing', outcome='back')
        scene.database.requests.request_abort(CONTEXT, known, ['preparing'])
        known = write(scene, known, **stuck_for('odd'))
        with pytest.raises(exception.NotOwner):
            write(scene, known, status='failed')
        known = scene.database.migrations.get(known.uuid)
        assert write(scene, known, status='failed').status == 'failed'
        cancel = scene.database.actions.list(known.instance_uuid)[0]
        assert (cancel.action, cancel.result) == ('live_migration_cancel', 'Error')

    def test_an_end_answers_a_force_complete_that_came_meanwhile(self, scene: Scene) -> None:
        known = write(scene, scene.owned(), status='preparing')
        known = write(scene, known, status='queued')
        known = write(scene, known, status='running', outcome='back')
        scene.database.requests.request_force_complete(CONTEXT, known, ['running'])
        with pytest.raises(exception.NotOwner):
            write(scene, known, status='failed')
        write(scene, scene.database.migrations.get(known.uuid), status='failed')
        forced = scene.database.actions.list(known.instance_uuid)[0]
        assert (forced.action, forced.result) == ('live_migration_force_complete', 'Error')

    def test_an_illegal_move_is_refused_and_writes_nothing(self, scene: Scene) -> None:
        known = scene.owned()
        before = stored(scene)
        with pytest.raises(exception.IllegalMove):
            scene.database.migrations.commit(known, Write(fields={'status': 'completed'}, records=[record()]))
        assert stored(scene) == before

    def test_an_error_in_the_middle_writes_nothing(self, scene: Scene) -> None:
        known = scene.owned()
        before = stored(scene)
        wrong = Write(fields={'status': 'preparing'}, records=[record()], instance={'host': None})
        with pytest.raises(db_exception.DBError):
            scene.database.migrations.commit(known, wrong)
        assert stored(scene) == before

    @pytest.mark.parametrize('status', ['failed', 'cancelled'])
    def test_an_end_lets_the_instance_go_and_finishes_the_action(self, scene: Scene, status: str) -> None:
        known = write(scene, scene.owned(), status='preparing', **stuck_for('odd'), **waiting_for('host2'))
        scene.clock.seconds = 7
        ended = write(scene, known, status=status, failure='no room')
        assert (ended.stuck_reason, ended.waits_for, ended.in_progress) == (None, None, False)
        assert scene.database.instances.get(known.instance_uuid).task_state is None
        action = scene.database.actions.list(known.instance_uuid)[0]
        assert (action.result, action.message) == ('Error', 'no room')
        assert action.finish_time == conftest.START + datetime.timedelta(seconds=7)
        scene.migration(scene.database.instances.get(known.instance_uuid))

    def test_completed_is_a_success_of_the_action(self, scene: Scene) -> None:
        known = scene.owned()
        for status in ('preparing', 'queued', 'running', 'post-migrating', 'completed'):
            known = write(scene, known, status=status)
        action = scene.database.actions.list(known.instance_uuid)[0]
        assert (action.result, action.message) == ('Success', None)

    def test_each_status_enters_the_history_once_with_time_owner_and_epoch(self, scene: Scene) -> None:
        known = scene.owned()
        scene.clock.seconds = 3
        known = write(scene, known, status='preparing')
        write(scene, known, status='preparing', dest_compute='host2')
        found = history(scene, known)
        assert [entry['status'] for entry in found] == ['accepted', 'preparing']
        assert found[1]['owner'] == known.owner
        assert found[1]['epoch'] == 1
        assert found[1]['at'] == (conftest.START + datetime.timedelta(seconds=3)).isoformat()

    @pytest.mark.parametrize('then', ['forward', 'back'])
    def test_second_outcome_by_owner_that_missed_the_first_is_refused(self, scene: Scene, then: str) -> None:
        known = write(scene, scene.owned(), status='preparing')
        write(scene, known, outcome='back', failure='no room')
        before = stored(scene)
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.commit(known, Write(fields={'outcome': then, 'failure': 'the cable'}))
        assert stored(scene) == before

    def test_raising_the_epoch_shuts_out_who_knows_the_old_one(self, scene: Scene) -> None:
        known = scene.owned()
        fresh, _ = scene.database.migrations.commit(known, Write(raise_epoch=5))
        assert (fresh.epoch, scene.database.migrations.get(known.uuid).epoch) == (5, 5)
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.commit(known, Write())

    def test_the_boots_of_the_hosts_are_read_in_the_same_transaction(self, scene: Scene) -> None:
        boot = scene.host('host1')
        known = scene.owned()
        _, boots = scene.database.migrations.commit(known, Write(boots_of=['host1', 'unknown']))
        assert boots == {'host1': boot}

    def test_the_log_is_added_to_and_adds_up_to_the_records(self, scene: Scene) -> None:
        known = scene.owned()
        known, _ = scene.database.migrations.commit(known, Write(records=[record(input={'a': 1})]))
        scene.clock.seconds = 5
        changed = record(state='done', input={'a': 1}, result={'b': 2}, stored=True, tries=3)
        scene.database.migrations.commit(known, Write(records=[changed, record('check', 'failed')]))
        first, second = scene.database.migrations.steps(known.uuid)
        assert (first.state, first.input, first.result, first.tries) == ('done', {'a': 1}, {'b': 2}, 3)
        assert first.started_at == conftest.START
        assert first.ended_at == conftest.START + datetime.timedelta(seconds=5)
        assert (second.step, second.state, second.stored) == ('check', 'failed', True)
        entries = scene.database.migrations.read_log(known.uuid)
        assert [one.seq for one in entries] == [1, 2, 3, 4]
        assert [one.kind for one in entries] == ['status', 'intent', 'done', 'failed']

    def test_an_owner_who_has_missed_an_entry_is_refused_and_writes_nothing(self, scene: Scene) -> None:
        known = scene.owned()
        scene.database.migrations.commit(known, Write(records=[record()]))
        before = stored(scene)
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.commit(known, Write(records=[record('check')]))
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.note_try(known, record(stored=True, tries=2, result={'reason': 'no cable'}))
        assert stored(scene) == before

    def test_a_status_stands_before_the_step_that_begins_with_it_and_an_end_last(self, scene: Scene) -> None:
        known = write(scene, scene.owned(), status='preparing')
        records = [record('pre', 'done', stored=True), record('live', 'intent')]
        known, _ = scene.database.migrations.commit(known, Write(fields={'status': 'queued'}, records=records))
        known = write(scene, known, status='post-migrating')
        scene.database.migrations.commit(known, Write(fields={'status': 'completed'}, records=[record('end', 'done')]))
        entries = scene.database.migrations.read_log(known.uuid)
        assert [one.step or one.payload['status'] for one in entries] == [
            'accepted', 'preparing', 'pre', 'queued', 'live', 'post-migrating', 'end', 'completed',
        ]  # fmt: skip

    def test_one_step_has_one_record_for_each_attempt_and_direction(self, scene: Scene) -> None:
        known = scene.owned()
        records = [record(), record(attempt=2), record(direction='undo')]
        scene.database.migrations.commit(known, Write(records=records))
        assert len(scene.database.migrations.steps(known.uuid)) == 3

    def test_a_time_of_the_database_is_written_by_the_database_and_known_after_a_look(self, scene: Scene) -> None:
        known = write(scene, scene.owned(), status='preparing', checked_at=columns.now())
        assert scene.database.migrations.get(known.uuid).checked_at == conftest.START
        assert known.checked_at == conftest.START

    def test_progress_is_written_only_while_one_is_still_the_owner(self, scene: Scene) -> None:
        known = scene.owned()
        assert scene.database.migrations.note_progress(known, {'memory_total': 7})
        assert scene.database.migrations.get(known.uuid).memory_total == 7
        scene.clock.seconds = 100
        scene.adopt(known.uuid, scene.conductor('two'))
        assert not scene.database.migrations.note_progress(known, {'memory_total': 8})
        assert scene.database.migrations.get(known.uuid).memory_total == 7


class TestBoots:
    def moving(self, scene: Scene, destination: str | None = None, **fields: object) -> Migration:
        known = write(scene, scene.owned(), status='preparing', dest_compute=destination)
        return write(scene, known, status='queued', **fields) if fields else known

    def test_a_new_boot_raises_the_epoch_of_everything_in_progress_that_names_the_host(self, scene: Scene) -> None:
        outbound = self.moving(scene)
        inbound = write(
            scene, scene.owned(source_compute='host3', instance=scene.instance('host3')), status='preparing',
            dest_compute='host1',
        )  # fmt: skip
        ended = write(scene, scene.owned(), status='failed')
        elsewhere = scene.owned(instance=scene.instance('host3'))
        accepted = scene.migration()
        boot = scene.host('host1')
        epochs = {one.uuid: scene.database.migrations.get(one.uuid).epoch for one in
                  (outbound, inbound, ended, elsewhere, accepted)}  # fmt: skip
        assert epochs == {outbound.uuid: 2, inbound.uuid: 2, ended.uuid: 1, elsewhere.uuid: 1, accepted.uuid: 0}
        assert scene.database.migrations.get(outbound.uuid).owner == outbound.owner
        assert scene.database.services.get_compute('host1').boot_id == boot

    def test_boot_returns_migrations_in_the_order_of_requests_with_owners_server(self, scene: Scene) -> None:
        moments = [conftest.START + datetime.timedelta(seconds=seconds) for seconds in (30, 10, 20)]
        queued = [self.moving(scene, 'host2', queued_at=moment) for moment in moments]
        report = protocol.HostReport(host='host1', boot_id='new', version=4)
        found = scene.database.migrations.begin_boot(report, scene.database.services)
        assert [one.owned.migration.uuid for one in found] == [one.uuid for one in queued]
        assert {one.owner_server for one in found} == {'conductor1'}
        assert {one.owned.migration.epoch for one in found} == {2}
        assert all(one.owned.instance is not None for one in found)

    def test_a_boot_that_another_has_followed_while_it_called_is_not_taken_in(self, scene: Scene) -> None:
        known = self.moving(scene)
        services, migrations = scene.database.services, scene.database.migrations
        before = scene.host('host1')
        scene.host('host1', boot_id='newer')
        for replaces in (before, None):
            late = protocol.HostReport(host='host1', boot_id='late', version=3, replaces=replaces)
            with pytest.raises(exception.BootReplaced, match='late of host1 is not registered') as caught:
                migrations.begin_boot(late, services)
            assert caught.value.kwargs['known'] == 'newer'
        found = services.get_compute('host1')
        assert (found.boot_id, found.version, migrations.get(known.uuid).epoch) == ('newer', 4, 3)
        assert migrations.begin_boot(late.replace(boot_id='newer'), services), 'its own call came twice'

    def test_owner_with_raised_epoch_is_refused_and_rereads_it(self, scene: Scene) -> None:
        known = self.moving(scene)
        scene.host('host1')
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.commit(known, Write())
        fresh, boots = scene.database.migrations.reread(known)
        assert (fresh.owner, fresh.epoch) == (known.owner, 2)
        assert boots == {'host1': scene.database.services.get_compute('host1').boot_id}


def sent(scene: Scene, boot_id: str) -> Migration:
    """Have a migration that a boot of its source has received."""
    reported = record('live_migration', input={'source_boot_id': boot_id})
    return scene.database.migrations.commit(scene.owned(), Write(records=[reported]))[0]


def stop(scene: Scene, host: str, boot_id: str, uuids: list[str]) -> list[str]:
    """Have a boot of a host stop as planned, and have cancelled these."""
    return scene.database.migrations.begin_stop(host, boot_id, uuids, scene.database.services)


class TestStops:
    def test_planned_stop_only_requests_an_abort_for_work_of_an_earlier_boot(self, scene: Scene) -> None:
        boot = scene.host('host1')
        known = sent(scene, 'an earlier boot')
        assert stop(scene, 'host1', boot, [known.uuid]) == [known.uuid]
        row = scene.database.migrations.get(known.uuid)
        assert (row.abort_requested_by, row.abort_verdict) == ('host stop', None)

    def test_planned_stop_requests_an_abort_for_cancelled_work(self, scene: Scene) -> None:
        boot = scene.host('host1')
        known = sent(scene, boot)
        assert stop(scene, 'host1', boot, [known.uuid]) == [known.uuid]
        row = scene.database.migrations.get(known.uuid)
        assert (row.abort_requested_at, row.abort_requested_by) == (conftest.START, 'host stop')
        assert row.abort_verdict == 'cancelled: in the queue of its source, which was stopped'
        with pytest.raises(exception.NotOwner):
            scene.database.migrations.commit(known, Write())

    def test_earlier_request_keeps_its_requester(self, scene: Scene) -> None:
        boot = scene.host('host1')
        known = sent(scene, boot)
        scene.database.requests.request_abort(context.RequestContext(user_id='ada'), known, ['accepted'])
        assert stop(scene, 'host1', boot, [known.uuid]) == [known.uuid]
        row = scene.database.migrations.get(known.uuid)
        assert row.abort_requested_by == 'ada'
        assert row.abort_verdict == 'cancelled: in the queue of its source, which was stopped'

    def test_stop_ignores_other_boots_other_hosts_settled_and_ended_migrations(self, scene: Scene) -> None:
        boot = scene.host('host1')
        elsewhere = scene.owned(instance=scene.instance('host3'))
        settled = write(scene, scene.owned(), status='preparing', outcome='back')
        ended = write(scene, scene.owned(), status='failed')
        mine = scene.owned()
        assert stop(scene, 'host1', boot, [elsewhere.uuid, settled.uuid, ended.uuid]) == []
        assert stop(scene, 'host1', 'an earlier boot', [mine.uuid]) == []
        for one in (elsewhere, settled, ended, mine):
            assert scene.database.migrations.get(one.uuid).abort_requested_at is None


class TestReaders:
    def test_the_newest_come_first_and_pages_neither_skip_nor_repeat(self, scene: Scene) -> None:
        made = []
        for number in range(7):
            scene.clock.seconds = number // 3  # some share a moment
            made.append(scene.migration().uuid)
        everything = [one.uuid for one in scene.database.migrations.list()]
        assert everything == list(reversed(made))
        pages, marker = [], None
        while page := scene.database.migrations.list(limit=2, marker=marker):
            pages += [one.uuid for one in page]
            marker = page[-1].uuid
        assert pages == everything

    def test_unknown_marker_is_not_found(self, scene: Scene) -> None:
        with pytest.raises(exception.MarkerNotFound):
            scene.database.migrations.list(marker='nobody')

    def test_filters(self, scene: Scene) -> None:
        one = write(scene, scene.owned(), status='preparing', dest_compute='host2')
        other = scene.migration(scene.instance('host2'))
        ended = write(scene, scene.owned(), status='failed')

        def uuids(**filters: object) -> set[str]:
            return {found.uuid for found in scene.database.migrations.list(filters)}

        assert uuids(host='host2') == {one.uuid, other.uuid}
        assert uuids(status='preparing') == {one.uuid}
        assert uuids(status=['preparing', 'failed']) == {one.uuid, ended.uuid}
        assert uuids(instance_uuid=other.instance_uuid) == {other.uuid}
        progress = scene.database.migrations.list(in_progress=True)
        assert {found.uuid for found in progress} == {one.uuid, other.uuid}
        assert [found.uuid for found in scene.database.migrations.list(in_progress=False)] == [ended.uuid]

    def test_changes_since_and_before_look_at_the_last_change(self, scene: Scene) -> None:
        old = scene.migration()
        scene.clock.seconds = 10
        known = scene.owned()
        scene.clock.seconds = 14
        write(scene, known, status='preparing')
        at = conftest.START + datetime.timedelta(seconds=12)
        assert [one.uuid for one in scene.database.migrations.list(changes_since=at)] == [known.uuid]
        assert [one.uuid for one in scene.database.migrations.list(changes_before=at)] == [old.uuid]

    def test_get_by_id_finds_migration_of_its_instance_only(self, scene: Scene) -> None:
        one, other = scene.migration(), scene.migration()
        assert scene.database.migrations.get_by_id(one.id) == one
        assert scene.database.migrations.get_by_id(one.id, one.instance_uuid) == one
        for lookup in (
            lambda: scene.database.migrations.get('nobody'),
            lambda: scene.database.migrations.get_by_id(4711),
            lambda: scene.database.migrations.get_by_id(one.id, other.instance_uuid),
        ):
            with pytest.raises(exception.MigrationNotFound):
                lookup()

    def test_count_queued_counts_migrations_waiting_to_leave_host(self, scene: Scene) -> None:
        scene.migration()
        queued = write(scene, write(scene, scene.owned(), status='preparing'), status='queued')
        scene.migration(scene.instance('host2'))
        assert scene.database.migrations.count_queued('host1') == (2, CURRENT_VERSION)
        write(scene, queued, status='running')
        assert scene.database.migrations.count_queued('host1') == (1, CURRENT_VERSION)
