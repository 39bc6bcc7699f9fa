# SPDX-License-Identifier: Apache-2.0

"""The timeline of a migration line by line, and what happens next."""

import dataclasses

import pytest

from migrator.db.cleanups import Cleanup
from migrator.objects import Flavor, Instance
from migrator.objects.reasons import Reason, StuckKind
from migrator.saga import log
from migrator.views import explain, unstick
from tests.reasons import stuck_for
from tests.unit.views.test_timeline import LIVING, OVER, back, facts, service, step


def reported(**fields):
    return [line.what for line in explain.lines(facts(**fields))]


def done(name, seconds=0, direction='do', **fields):
    return step(name, 'done', direction, ended_at=back(30 - seconds), owner='owner-1', epoch=1, **fields)


MOVED = {'host': 'dst', 'source': {}, 'destination': {'p': {'VCPU': 2}}}


@pytest.mark.parametrize(
    ('record', 'words'),
    [
        (step('pre_live_migration', 'failed', result={'reason': 'no such bridge'}), 'not done; no such bridge'),
        (done('live_migration', result={'verdict': 'completed', 'job': False}), 'done; the destination runs the guest'),
        (
            done('live_migration', result={'post_copy': True}),
            'done; the destination runs the guest, and its memory follows',
        ),
        (step('live_migration', 'failed', result={'reason': 'it broke'}), 'not moved; it broke'),
        (done('pre_live_migration', result={'migrate_data': {'object': 'X'}}), 'done'),
        (done('pre_live_migration', seconds=7), 'done after 7 s'),
        (
            done('post_live_migration_at_source', result={'deferred': 'src is down'}),
            'not done, and deferred; src is down',
        ),
        (done('complete'), 'done'),
        (done('post_live_migration_at_source', tries=3), 'done, tried 3 times'),
        (step('post_live_migration_at_source', tries=2, result={'reason': 'busy'}), 'failed so far; busy'),
        (step('post_live_migration_at_source', tries=4, result={'reason': 'busy'}), 'failed so far; busy'),
        (step('move_allocation', tries=2, input=MOVED), 'begun again'),
        (
            done('move_allocation', input=MOVED),
            'done; the instance holds its allocation (VCPU 2) at dst, and the migration the one at the source',
        ),
    ],
)
def test_step_result_is_one_line(record, words):
    assert explain.result_of(record) == words


SPLIT = Reason.of(StuckKind.UNKNOWN_GUEST, reason='split brain')


class TestTheLines:
    def test_an_undo_is_called_by_what_it_does(self):
        undone = done('pre_live_migration', direction='undo')
        assert reported(steps=[undone])[-1] == 'rollback_live_migration_at_destination at dst: done'

    def test_attempt_without_a_candidate_names_none(self):
        first, failed = (
            done('move_allocation', input=MOVED),
            step('move_allocation', 'failed', result={'reason': 'full'}),
        )
        lines = reported(steps=[first, dataclasses.replace(failed, attempt=2)])
        assert lines[-2:] == ['attempt 2: there is no next candidate', 'move_allocation: not done; full']

    def test_takeover_has_a_line_where_another_conductor_continues(self):
        first, second = done('pre_live_migration'), done('live_migration', seconds=9)
        boots = [LIVING, dataclasses.replace(LIVING, id='owner-2', server='conductor2')]
        found = facts(steps=[first, second], boots=boots)
        entries = [*found.entries[:-1], dataclasses.replace(found.entries[-1], conductor='owner-2', epoch=2)]
        lines = explain.lines(dataclasses.replace(found, entries=entries, steps=log.records(entries)))
        assert [(line.server, line.epoch, line.what) for line in lines][-4:] == [
            ('conductor1', 1, 'pre_live_migration at dst: done'),
            ('conductor1', 1, 'live_migration at src: begun'),
            ('conductor2', 2, 'conductor2 has taken it over from conductor1, and polled the hosts'),
            ('conductor2', 2, 'live_migration at src: done after 9 s; the destination runs the guest'),
        ]

    def test_stuck_reason_is_shown_after_the_migration_continued(self):
        entries = [
            log.Entry('stuck', payload=SPLIT.document(), conductor='owner-1', epoch=1, at=back(25)),
            log.Entry('retry', payload={'by': 'ada', 'requested_at': back(20).isoformat()}, at=back(19)),
            log.Entry('unstuck', conductor='owner-1', epoch=2, at=back(19)),
        ]
        lines = reported(entries=entries)
        assert lines[-3:] == ['stuck: split brain', 'ada requested a retry', 'no longer stuck']

    def test_the_lines_stand_in_the_order_of_the_log_whatever_the_times_say(self):
        found = facts(steps=[done('move_allocation', input=MOVED), step('live_migration')])
        late = [dataclasses.replace(one, at=back(60 - one.seq)) for one in found.entries]
        early = [dataclasses.replace(one, at=back(60 + one.seq)) for one in found.entries]
        for entries in (late, early):
            lines = explain.lines(dataclasses.replace(found, entries=entries, steps=log.records(entries)))
            assert [line.what.split(':')[0] for line in lines] == [
                'status accepted', 'move_allocation', 'live_migration at src',
            ]  # fmt: skip

    def test_stop_of_a_host_is_named_as_the_requester(self):
        lines = reported(abort_requested_at=back(5), abort_cause='host-stop')
        assert lines[-1] == 'the planned stop of src requested an abort'


class TestWhatHappensNext:
    def next_(self, **fields):
        return explain.next_(facts(**fields))

    def test_ended_migration_needs_nothing(self):
        assert self.next_(status='completed') == ['Nothing: the guest runs at dst.']
        assert self.next_(status='failed') == ['Nothing: the guest is at src, and can be migrated again while it runs.']

    def test_stuck_migration_lists_commands(self):
        lines = self.next_(**stuck_for('odd'))
        assert '  migrator-manage migration retry m' in lines
        assert '  migrator-manage migration abandon m --guest-on HOST --yes' in lines

    def test_host_is_filled_in_only_if_the_hosts_have_reported(self):
        for outcome, host in (('back', 'src'), ('forward', 'dst')):
            lines = self.next_(**stuck_for('odd'), outcome=outcome)
            assert f'  migrator-manage migration abandon m --guest-on {host} --yes' in lines

    def test_before_the_guest_moves_the_steps_are_those_that_are_left(self):
        (line,) = self.next_(status='preparing', steps=[done('move_allocation', input=MOVED)])
        assert line.startswith('check_can_live_migrate_destination at dst, then check_can_live_migrate_source at src')

    def test_after_the_guest_has_moved(self):
        steps = [done('live_migration'), done('update_instance_host'), step('post_live_migration_at_source')]
        assert self.next_(status='post-migrating', outcome='forward', steps=steps) == [
            'The guest has moved, and nothing is undone any more. post_live_migration_at_source at src, then '
            'post_live_migration_at_destination at dst, then release_source_allocation, then complete.'
        ]

    def test_undo_lists_steps_in_saga_order(self):
        steps = [
            done('move_allocation', input=MOVED), done('check_can_live_migrate_destination'),
            done('check_can_live_migrate_source'), done('pre_live_migration'),
            step('live_migration', 'failed', result={'reason': 'x'}), step('pre_live_migration', direction='undo'),
        ]  # fmt: skip
        assert self.next_(outcome='back', steps=steps) == [
            'It is being undone. rollback_live_migration_at_destination at dst, then '
            'rollback_live_migration_at_source at src, then return_allocation. Then it ends failed.'
        ]

    def test_ended_migration_with_blocked_cleanup_needs_operator(self):
        for status, host in (('completed', 'dst'), ('failed', 'src')):
            deferred = Cleanup(
                host=host, migration_uuid='m', instance_uuid='i', step='s', reason='it failed', epoch=1,
                blocked_because='look',
            )  # fmt: skip
            (line,) = self.next_(status=status, cleanups=[deferred])
            assert line.startswith('A blocked cleanup does not run until an operator has looked.')

    def test_abandoned_migration_shows_the_remaining_steps(self):
        steps = [step('abandon', input={'guest_on': 'src'}), done('abandon_clean', input={'host': 'dst'})]
        assert self.next_(steps=steps, abandon_requested_at=back(5), abandon_guest_on='src') == [
            'It is being abandoned: write the allocations; it ends in error, the instance being at src in vm_state '
            'error.'
        ]

    def test_without_a_conductor_nothing(self):
        assert self.next_(boots=[OVER], owner='owner-0')[0] == 'Nothing, until a conductor is started.'

    def test_blocked_cleanup_shows_the_command(self):
        cleanup = Cleanup(
            'src', 'm', 'i', 'post_live_migration_at_source', 'r', 1, blocked_because='look', created_at=back(9)
        )
        lines = self.next_(status='completed', cleanups=[cleanup])
        assert lines[-1].endswith('migrator-manage migration retry m')
        calm = dataclasses.replace(cleanup, blocked_because=None)
        down = [service('src', seen=500), service('dst')]
        assert self.next_(status='completed', cleanups=[calm], services=down)[-1] == (
            'src does post_live_migration_at_source when its compute service is back; '
            'until then it is no destination for this instance.'
        )


COLD = {'migration_type': 'migration'}


class TestAColdMigration:
    BEGUN = (done('move_allocation', input=MOVED), done('check_can_migrate_source'))
    POWERED_OFF = (
        *BEGUN,
        done('check_can_migrate_destination'),
        done('migrate_disk_and_power_off', input={'vm_state': 'stopped'}),
    )

    def next_(self, **fields):
        return explain.next_(facts(**COLD, **fields))

    def test_lines_name_the_host_of_each_step_and_what_has_become_of_the_guest(self):
        steps = [*self.POWERED_OFF, done('finish_migration', seconds=3)]
        assert reported(steps=steps, **COLD)[-4:] == [
            'check_can_migrate_destination at dst: done',
            'migrate_disk_and_power_off at src: done',
            'finish_migration at dst: begun',
            'finish_migration at dst: done after 3 s; the destination has the guest',
        ]

    def test_requests_name_the_user_or_the_drain(self):
        confirmed = {'confirm_requested_at': back(5), **COLD}
        assert reported(**confirmed)[-1] == 'an unknown user confirmed it'
        assert reported(**confirmed, drain='d1')[-1] == 'drain d1 requested it with its confirmation'
        assert reported(revert_requested_at=back(5), **COLD)[-1] == 'an unknown user reverted it'

    def test_request_of_a_resize_names_both_flavors(self):
        flavors = {'old_flavor': Flavor(name='small'), 'new_flavor': Flavor(name='large')}
        asked = reported(migration_type='resize', **flavors)[0]
        assert asked.endswith('requested it, to any host that can take it, with flavor large in place of small')

    def test_before_the_start_the_steps_are_those_that_are_left(self):
        assert self.next_(status='pre-migrating', steps=self.BEGUN) == [
            'check_can_migrate_destination at dst, then migrate_disk_and_power_off at src, then finish_migration at '
            'dst. Then it is finished, and waits for its user to confirm or to revert it.'
        ]

    def test_that_of_a_drain_is_confirmed_at_once(self):
        (line,) = self.next_(status='migrating', steps=self.POWERED_OFF, confirm_requested_at=back(60), drain='d1')
        assert 'Then it is finished, and confirmed at once: update_instance_host, then ' in line

    def test_start_that_was_sent_is_polled_and_may_be_tried_elsewhere(self):
        (line,) = self.next_(status='migrating', steps=[*self.POWERED_OFF, step('finish_migration')])
        assert line.startswith('dst starts the guest, and is polled. Then it is finished, and waits for its user')
        assert line.endswith('the next candidate is tried unless the user requested a host.')

    def test_abort_is_stated(self):
        (line,) = self.next_(status='migrating', steps=self.POWERED_OFF, abort_requested_at=back(5))
        assert line == 'It is aborted: unless the destination has the guest already, everything is undone.'

    def test_finished_one_names_both_commands(self):
        lines = self.next_(status='finished', outcome='forward', steps=self.POWERED_OFF)
        assert [line.strip() for line in lines[-2:]] == [
            'openstack server migration confirm i',
            'openstack server migration revert i',
        ]

    def test_decided_one_lists_what_is_left(self):
        steps = [*self.POWERED_OFF, done('finish_migration'), done('update_instance_host')]
        forward = {'outcome': 'forward', 'steps': steps}
        assert self.next_(status='finished', confirm_requested_at=back(1), **forward) == [
            'The guest has moved, and nothing is undone any more. confirm_migration_at_source at src, then '
            'release_source_allocation, then confirm.'
        ]
        (line,) = self.next_(status='reverting', revert_requested_at=back(1), **forward)
        assert line.startswith('The guest goes back to its source, and nothing is undone any more. ')
        assert 'revert_migration_at_destination at dst, then return_instance_host, then ' in line

    def test_guest_that_stays_is_resized_and_not_moved(self):
        stays = {'dest_compute': 'src', 'migration_type': 'resize', 'outcome': 'forward'}
        texts = [
            *explain.next_(facts(**stays | {'outcome': None}, steps=[done('check_can_resize'), step('resize')])),
            *explain.next_(facts(**stays, status='finished')),
            *explain.next_(facts(**stays, status='confirming', confirm_requested_at=back(1), owner=None)),
            *explain.next_(facts(**stays, status='reverting', revert_requested_at=back(1))),
            *explain.next_(facts(**stays | {'outcome': None}, **stuck_for('odd'))),
        ]
        assert not any('which host' in line for line in texts)
        for text in (
            'src gives the guest its new flavor, and is polled. ',
            'Nothing, until its user decides. src keeps the old definition of the guest, ',
            'conductor1 takes it over, and polls src first.',
            'The guest has its new flavor, and nothing is undone any more. ',
            'The guest gets its old flavor, and nothing is undone any more. revert_resize at src, ',
            'If the cause cannot be fixed: look whether the guest is at src, ',
            'migration abandon m --guest-on src',
        ):
            assert any(text in line for line in texts), (text, texts)

    @pytest.mark.parametrize(
        ('outcome', 'flavor'), [(None, 'its old flavor again'), ('forward', 'only its new flavor')]
    )
    def test_abandoned_guest_that_stays_may_be_restarted_by_its_host(self, outcome, flavor):
        found = facts(migration_type='resize', dest_compute='src', outcome=outcome, **stuck_for('odd'))
        lines = [*unstick.plan_abandon(found, 'src', lambda consumer: {})]
        assert any(f'src gives the guest {flavor} in a deferred cleanup, and may restart it' in line for line in lines)
        assert not any('both hosts' in line or 'Nothing is started' in line for line in lines)

    def test_guest_of_a_failed_resize_at_one_host_is_looked_for_there(self):
        ended = facts(migration_type='resize', dest_compute='src', status='error')
        who = {'uuid': 'i', 'name': 'web', 'project_id': 'p', 'user_id': 'u', 'flavor': Flavor(name='small')}
        guest = Instance(**who, host='src', node='src', vm_state='error')
        (line,) = explain.next_(dataclasses.replace(ended, instance=guest))
        assert 'at src: look for its guest there. ' in line

    def test_ended_ones_need_nothing(self):
        assert self.next_(status='confirmed') == ['Nothing: the guest is at dst.']
        assert self.next_(status='reverted') == ['Nothing: the guest is at src, and can be migrated again.']
        assert self.next_(status='failed') == ['Nothing: the guest is at src, and can be migrated again.']
