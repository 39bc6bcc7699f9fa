# SPDX-License-Identifier: Apache-2.0

"""What a migration waits for, in words that say what helps."""

import dataclasses
import datetime

import pytest

from migrator.conductor.tasks import sagas
from migrator.db.cleanups import Cleanup
from migrator.db.conductors import ConductorBoot
from migrator.objects import Migration, Service, steps
from migrator.saga import log
from migrator.views import timeline
from tests.reasons import stuck_for, waiting_for

NOW = datetime.datetime(2026, 1, 1, 3, 0, tzinfo=datetime.UTC)
LIVING = ConductorBoot('owner-1', 'conductor1', NOW + datetime.timedelta(seconds=10))
OVER = ConductorBoot('owner-0', 'conductor0', NOW - datetime.timedelta(seconds=50))


def back(seconds):
    return NOW - datetime.timedelta(seconds=seconds)


def service(host, seen=5.0, **fields):
    down_since = back(seen - 60) if seen > 60 else None
    return Service(uuid=host, host=host, last_seen_up=back(seen), down_since=down_since, **fields)


def step(name, state='intent', direction='do', tries=1, **fields):
    return log.StepRecord(
        step=name, direction=direction, state=state, attempt=1, tries=tries, started_at=back(30), **fields
    )


ACCEPTED = {'status': 'accepted', 'at': back(60).isoformat(), 'owner': None, 'epoch': 0}


def logged(steps=(), history=(ACCEPTED,)):
    """Return the log that adds up to these steps and statuses."""
    entries = [
        log.Entry(
            'status', payload={'status': one['status']}, conductor=one['owner'], epoch=one['epoch'],
            at=datetime.datetime.fromisoformat(one['at']),
        )
        for one in history
    ]  # fmt: skip
    for record in steps:
        undo = 'undo_' if record.direction == log.UNDO else ''
        ended_at = record.ended_at or record.started_at
        common = {'attempt': record.attempt, 'step': record.step, 'conductor': record.owner, 'epoch': record.epoch}
        input_ = {'input': record.input} if record.input else {}
        result = {'result': record.result} if record.result else {}
        tries = {'tries': record.tries} if record.tries != 1 else {}
        if record.state == 'intent' or ended_at != record.started_at:
            at_first = tries if record.state == 'intent' and not result else {}
            entries.append(log.Entry(f'{undo}intent', payload=input_ | at_first, at=record.started_at, **common))
        if record.state != 'intent':
            entries.append(log.Entry(f'{undo}{record.state}', payload=input_ | result | tries, at=ended_at, **common))
        elif result:
            entries.append(log.Entry(f'{undo}tried', payload=result | tries, at=record.started_at, **common))
    entries.sort(key=lambda one: one.at)
    return [dataclasses.replace(one, seq=number) for number, one in enumerate(entries, 1)]


BOTH_UP = (service('src'), service('dst'))


def facts(
    steps=(),
    history=(ACCEPTED,),
    entries=(),
    cleanups=(),
    boots=(LIVING,),
    services=BOTH_UP,
    before=0,
    running=0,
    **fields,
):
    values = {
        'uuid': 'm', 'instance_uuid': 'i', 'project_id': 'p', 'user_id': 'u', 'source_compute': 'src',
        'source_node': 'src', 'dest_compute': 'dst', 'status': 'running', 'owner': 'owner-1', 'epoch': 1,
        **fields,
    }  # fmt: skip
    found = [*logged(steps, history), *entries]
    entries = [dataclasses.replace(one, seq=number) for number, one in enumerate(found, 1)]
    migration = Migration(**values)
    return timeline.Facts(
        now=NOW, migration=migration, saga=sagas()[migration.task], instance=None, entries=entries,
        steps=log.records(entries), cleanups=cleanups,
        requests=(), services=services, boots=boots, lease=60, before=before, running=running,
    )  # fmt: skip


def waits(**fields):
    return timeline.waits(facts(**fields))


def test_migration_without_problem_goes_on():
    assert waits(status='preparing') == ['No problem is known: the migration goes on.']


def test_finished_cold_migration_waits_for_its_user():
    cold = {'status': 'finished', 'migration_type': 'migration', 'outcome': 'forward'}
    assert waits(**cold) == ['It waits for its user to confirm or to revert it.']
    assert waits(**cold, confirm_requested_at=NOW) == ['No problem is known: the migration goes on.']


NO_OWNER = (
    'No conductor has listened since 2026-01-01 02:59:10 UTC: each host is shown in its state at that time. '
    'Start a conductor. Do not fence a host for this.'
)


class TestItsConductor:
    def test_unowned_migration_is_taken_over_by_living_conductor(self):
        assert waits(status='accepted', owner=None) == [
            'No conductor owns it yet. The next sweep of conductor1 takes it over.'
        ]

    def test_unowned_migration_without_living_conductor_states_so(self):
        assert waits(status='accepted', owner=None, boots=[OVER]) == [
            'No conductor owns it yet.',
            NO_OWNER,
        ]

    def test_migration_of_gone_conductor_is_taken_over_by_living_one(self):
        other = dataclasses.replace(LIVING, id='owner-2', server='conductor2')
        assert waits(status='preparing', owner='owner-0', boots=[LIVING, other, OVER]) == [
            'Its conductor conductor0 is gone: its lease ended 50 s ago. '
            'The next sweep of conductor1 or conductor2 takes it over.'
        ]

    def test_no_host_is_blamed_without_living_conductor(self):
        unreachable = [service('src', seen=500), service('dst', seen=500)]
        assert waits(status='preparing', owner='owner-0', boots=[OVER], services=unreachable) == [
            'Its conductor conductor0 is gone: its lease ended 50 s ago.',
            NO_OWNER,
        ]

    def test_while_the_broker_is_away_no_host_is_blamed_for_its_silence(self):
        unreachable = [service('src', seen=500), service('dst', seen=500)]
        away = dataclasses.replace(LIVING, broker_away_since=back(70))
        assert waits(status='preparing', boots=[away], services=unreachable) == [
            'conductor1 cannot reach the message broker since 2026-01-01 02:58:50 UTC: each host is shown in its '
            'state at that time. Look at the broker. Do not fence a host for this.'
        ]
        other = dataclasses.replace(LIVING, id='owner-2', server='conductor2')
        (line, *_) = waits(status='preparing', boots=[away, other], services=unreachable)
        assert line.startswith('The compute service of the source src is down'), 'the other conductor listens'


class TestItsHosts:
    def test_unreachable_host_is_named_with_the_remedy(self):
        lines = waits(status='preparing', services=[service('src', seen=600), service('dst')])
        assert lines == [
            'The compute service of the source src is down: it last reported 10 min ago. Start it. Or, if the '
            'host is fenced and nothing can run there, declare that: '
            'openstack compute service set --down src nova-compute'
        ]

    def test_stopped_service_is_named_as_stopped(self):
        (line,) = waits(
            status='preparing', services=[dataclasses.replace(service('src'), last_seen_up=None), service('dst')]
        )
        assert line.startswith('The compute service of the source src was stopped. Start it. Or, if the host is fenced')

    def test_forced_down_host_is_named_as_forced_down(self):
        lines = waits(status='preparing', services=[service('src'), service('dst', forced_down=True)])
        assert lines == ['The destination dst is forced down: an operator has declared that nothing runs there.']

    def test_host_without_service_is_named_as_never_reported(self):
        lines = waits(status='preparing', services=[service('src')])
        assert lines == ['The destination dst has no compute service: no service of that name has ever reported.']


class TestWhatItWaitsFor:
    def test_stuck_migration_states_reason_first_and_that_it_is_observed_again(self):
        lines = waits(**stuck_for('split brain.'), **waiting_for('src has not answered for 61 s'))
        assert lines[:3] == [
            'It is stuck and needs an operator: split brain.',
            'It is observed again with each sweep, and goes on once that is fixed.',
            'It waits: src has not answered for 61 s.',
        ]

    def test_abandoned_migration_shows_no_other_wait(self):
        request = {'abandon_requested_at': back(5), 'abandon_requested_by': 'ada', 'abandon_guest_on': 'src'}
        entries = [log.Entry('stuck', payload={'reason': 'split brain.'}, conductor='owner-1', epoch=1, at=back(40))]
        steps = [step('live_migration')]
        assert waits(**stuck_for('split brain.'), steps=steps, entries=entries, **request) == [
            'It is being abandoned, as requested 5 s ago by ada: the guest is on src.',
            'That has not begun yet. It is stuck: split brain.',
        ]
        entries.append(log.Entry('intent', step='abandon', conductor='owner-1', epoch=2, at=back(4)))
        assert waits(**stuck_for('split brain.'), steps=steps, entries=entries, **request) == [
            'It is being abandoned, as requested 5 s ago by ada: the guest is on src.',
            'It was stuck: split brain.',
        ]
        # By its place in the log: conductors need not have one clock.
        entries.append(log.Entry('stuck', payload={'reason': 'no room.'}, conductor='owner-1', epoch=2, at=back(6)))
        assert waits(**stuck_for('no room.'), steps=steps, entries=entries, **request) == [
            'It is being abandoned, as requested 5 s ago by ada: the guest is on src.',
            'The abandonment is stuck and needs an operator: no room.',
            'It is tried again with each sweep, and ends once that is fixed.',
        ]

    @pytest.mark.parametrize(
        ('before', 'running', 'words'),
        [
            (0, 1, 'It is number 1 in the queue of src, where 1 runs now.'),
            (6, 2, 'It is number 7 in the queue of src, where 2 run now.'),
            (0, 0, 'It is number 1 in the queue of src, where no migration runs now.'),
        ],
    )
    def test_queued_migration_states_its_position(self, before, running, words):
        assert waits(steps=[step('live_migration')], status='queued', before=before, running=running) == [words]

    def test_a_step_that_is_not_done_says_where_and_since_when(self):
        assert waits(steps=[step('pre_live_migration')], status='preparing') == [
            'dst does pre_live_migration: begun 30 s ago.'
        ]
        assert waits(steps=[step('post_live_migration_at_source', tries=4)], status='post-migrating') == [
            'src does post_live_migration_at_source: begun 30 s ago.'
        ]
        assert waits(steps=[step('release_source_allocation')], status='post-migrating') == [
            'The conductor does release_source_allocation: begun 30 s ago.'
        ]

    def test_finished_steps_and_earlier_attempts_are_not_waited_for(self):
        done = step('pre_live_migration', state='done')
        assert waits(steps=[done], status='preparing') == ['No problem is known: the migration goes on.']
        assert waits(steps=[step('pre_live_migration')], attempt=2, status='preparing') == [
            'No problem is known: the migration goes on.'
        ]

    def test_undone_migration_states_reason_and_pending_undo(self):
        lines = waits(
            steps=[step('pre_live_migration', direction='undo')], status='running', outcome='back', failure='the cable'
        )
        assert lines == [
            'It is being undone: the cable',
            'dst undoes pre_live_migration: begun 30 s ago.',
        ]

    def test_running_migration_states_remaining_memory(self):
        lines = waits(steps=[step('live_migration')], memory_total=4 * 2**30, memory_remaining=2**29)
        assert lines[-1] == '0.5 of 4.0 GiB of memory are still to be copied.'

    def test_requests_are_shown_with_their_requesters(self):
        lines = waits(
            abort_requested_at=back(7), abort_requested_by='ada', force_complete_requested_at=back(9), status='queued'
        )
        assert lines == [
            'An abort was requested 7 s ago by ada.',
            'A forced completion was requested 9 s ago.',
        ]

    @pytest.mark.parametrize('status', ['queued', 'running', 'running (post-copy)'])
    @pytest.mark.parametrize(
        'fields',
        [stuck_for('src no longer moves it'), {'abandon_requested_at': back(3), 'abandon_guest_on': 'src'}],
        ids=['stuck', 'abandoned'],
    )
    def test_given_up_migration_is_not_shown_as_moving(self, status, fields):
        """Beside "no longer moves it" stood how much of the guest's memory was still to be copied."""
        memory = {'memory_total': 4 * 2**30, 'memory_remaining': 2**29}
        lines = '\n'.join(waits(steps=[step('live_migration')], status=status, **memory, **fields))
        for words in ('does live_migration', 'to be copied', 'in the queue'):
            assert words not in lines

    def test_step_stuck_after_failures_is_shown_with_the_last_failure(self):
        failing = step('post_live_migration_at_source', tries=10, result={'reason': 'busy'})
        lines = waits(steps=[failing], status='post-migrating', outcome='forward', **stuck_for('10 failures'))
        assert lines[-1] == ('src does post_live_migration_at_source: begun 30 s ago; the last time it failed: busy')


class TestItsEnd:
    def ended(self, status, **fields):
        history = [{'status': status, 'at': back(120).isoformat(), 'owner': 'owner-1', 'epoch': 1}]
        return waits(status=status, history=history, **fields)

    def test_ended_migration_states_location_of_guest(self):
        assert self.ended('completed') == ['It ended completed 2 min ago: the guest runs at dst.']
        assert self.ended('confirmed', migration_type='resize') == [
            'It ended confirmed 2 min ago: the guest is at dst.'
        ]
        assert self.ended('failed', failure='the cable') == [
            'It ended failed 2 min ago, undone: the cable',
            'The guest is at src, and nothing of the migration is left.',
        ]
        assert self.ended('cancelled', abort_requested_at=back(130), failure='Aborted: requested by ada.') == [
            'It ended cancelled 2 min ago, undone: Aborted: requested by ada.',
            'The guest is at src, and nothing of the migration is left.',
            'An abort was requested 2 min 10 s ago by an unknown user, and was done.',
        ]

    def test_guest_is_not_located_on_a_host_with_a_blocked_cleanup(self):
        def has_cleanup(host):
            return Cleanup(
                host=host, migration_uuid='m', instance_uuid='i', step='s', reason='it failed', epoch=1,
                blocked_because='look',
                created_at=back(60),
            )  # fmt: skip

        assert self.ended('completed', cleanups=[has_cleanup('dst')])[0] == (
            'It ended completed 2 min ago: the guest had moved to dst.'
        )
        assert self.ended('completed', cleanups=[has_cleanup('src')])[0] == (
            'It ended completed 2 min ago: the guest runs at dst.'
        )
        assert self.ended('failed', cleanups=[has_cleanup('src')])[1:2] == ['The guest was at src then.']

    def test_migration_in_error_needs_an_operator(self):
        first, second = self.ended('error', failure='the guest is gone')
        assert first == 'It ended in error 2 min ago: the guest is gone'
        assert 'look for it' in second

    def test_abandoned_migration_names_operator(self):
        why = 'Abandoned by ada with the guest on src.'
        assert self.ended('error', failure=why, abandon_guest_on='src') == [f'It ended in error 2 min ago: {why}']

    def test_late_abort_is_shown_as_not_done(self):
        asked = {'abort_requested_at': back(130), 'abort_requested_by': 'ada'}
        lines = self.ended('completed', **asked, abort_status='completed', abort_text='before the abort')
        assert lines[1] == (
            'An abort was requested 2 min 10 s ago by ada, and was not done: completed: before the abort.'
        )

    def test_deferred_cleanups_are_shown_after_the_end(self):
        cleanup = Cleanup('src', 'm', 'i', 'post_live_migration_at_source', 'src is down', 1, created_at=back(90))
        down = [service('src', seen=500), service('dst')]
        assert self.ended('completed', cleanups=[cleanup], services=down)[1:] == [
            'src has the deferred cleanup post_live_migration_at_source, since 90 s ago: src is down',
            'src runs it when its compute service is back.',
        ]
        blocked = dataclasses.replace(cleanup, blocked_because='the guest is there')
        assert self.ended('completed', cleanups=[blocked])[2:] == [
            'The cleanup is blocked and needs an operator: the guest is there'
        ]


@pytest.mark.parametrize('task', sorted(sagas()))
def test_each_undo_is_shown_under_the_name_of_its_command_to_the_host(task):
    undos = {step.undo.__name__ for step in sagas()[task].steps if step.undo is not None}
    assert undos <= steps.ENDING | {'return_allocation'}
