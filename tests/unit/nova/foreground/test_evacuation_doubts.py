# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain evacuate`` where Nova shows too little, late, or what another reading contradicts."""

import os
import signal

import pytest

from tests.unit.nova.foreground.test_evacuation import FENCED, volume

__all__ = ['volume']


def once(operator, when, act):
    """Have something done at the first look at which a condition holds."""
    done = []
    operator.threads.on_sleep = lambda: not done and when() and done.append(act())


def test_guest_that_a_dead_destination_may_have_started_is_not_requested_again(operator, nova, volume):
    """Nova takes the task away after the start, and writes the new host after that."""
    guest = volume('guest0')
    nova.lose('host1')

    def kill():
        nova.kill(nova.rows[-1]['dest_compute'])
        nova.servers[guest]['task_state'] = None

    once(operator, lambda: nova.rows and nova.rows[-1]['status'] == 'pre-migrating', kill)
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (1, [guest])
    assert 'Look at both hosts' in out
    # Nor does another evacuation request it.
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (1, [guest])
    assert 'Its evacuation 1 is pre-migrating, to host2: host2 may run it.' in out


@pytest.mark.parametrize('task', ['rebuild_spawning', None])
def test_guest_that_another_administrator_evacuates_is_left_alone(operator, nova, volume, task):
    guest = volume('guest0')
    nova.lose('host1')
    nova.client().evacuate(guest, 'host2')
    nova.tick(2)
    nova.ticks[guest] = 300
    nova.rows[-1]['ticks'] = 300
    nova.servers[guest]['task_state'] = task
    assert operator.run(*FENCED)[0] == 1
    assert nova.asked == [guest]


def test_guest_whose_live_migration_was_in_progress_is_left_whatever_its_state(operator, nova, volume):
    guest = volume('guest0')
    nova.client().migrate_live(guest, 'host2')
    nova.tick(4)
    nova.lose('host1')
    nova.servers[guest] |= {'vm_state': 'error', 'task_state': None}
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (1, [])
    assert 'Its live-migration 1 is running, to host2: host2 may run it.' in out


def test_running_move_behind_many_others_of_the_host_is_seen(operator, nova, volume):
    guest, noise = volume('guest0'), volume('noise')
    nova.client().migrate_live(guest, 'host2')
    nova.tick(4)
    for _ in range(210):
        nova._add_row(noise, None, 'req')
        nova.rows[-1]['status'] = 'failed'
    nova.lose('host1')
    assert 'host2 may run it' in operator.run('evacuate', 'host1')[1]
    assert operator.run(*FENCED)[0] == 1
    assert nova.asked == [noise]


def test_second_record_that_reports_stops_it(operator, nova, volume):
    volume('guest0')
    nova.lose('host1')
    second = nova.services['host1'] | {'id': 'another', 'forced_down': True}
    nova.more_services.append(second)
    operator.threads.on_sleep = lambda: second.update(updated_at=nova._time())
    assert operator.run(*FENCED)[0] == 1
    assert (nova.asked, nova.harmed) == ([], [])


def test_second_record_that_does_not_report_is_declared_down_too(operator, nova, volume):
    volume('guest0')
    nova.lose('host1')
    second = nova.services['host1'] | {'id': 'another'}
    nova.more_services.append(second)
    assert operator.run(*FENCED)[0] == 0
    assert second['forced_down']


def test_span_shorter_than_the_interval_of_reports_is_refused(operator, nova):
    assert operator.run(*FENCED, '--quiet-for', '5')[0] == 2


def test_evacuation_that_was_never_declared_is_cancelled(operator, nova, volume):
    volume('guest0')
    nova.kill('host1')
    assert operator.run('evacuate', 'host1', '--fence-command', 'false')[0] == 1
    assert operator.run('cancel')[0] == 1
    assert operator.json('list')['drains'][0]['status'] == 'cancelled'
    assert nova.services['host1']['status'] == 'enabled'


def test_cancelled_evacuation_leaves_the_dead_host_disabled(operator, nova, volume):
    for number in range(3):
        volume(f'guest{number}')
    nova.lose('host1')
    once(operator, lambda: nova.asked, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert operator.run(*FENCED, '--parallel', '1')[0] == 130
    operator.threads.on_sleep = lambda: None
    operator.run('cancel')
    assert (nova.services['host1']['status'], nova.services['host1']['forced_down']) == ('disabled', True)


def test_host_that_dies_during_a_drain_is_evacuated_in_its_place(operator, nova, volume):
    moving, waiting = volume('guest0'), volume('guest1')
    nova.ticks[moving] = 300
    once(operator, lambda: nova.rows and nova.rows[-1]['status'] == 'running', lambda: os.kill(os.getpid(), 15))
    assert operator.run('start', 'host1')[0] == 143
    operator.threads.on_sleep = lambda: None
    nova.lose('host1')
    assert 'host2 may run it' in operator.run('evacuate', 'host1')[1]
    assert operator.run(*FENCED)[0] == 1
    assert nova.asked == [waiting]
    assert [one['status'] for one in operator.json('list')['drains']] == ['incomplete', 'cancelled']


@pytest.mark.parametrize('fails', ['late', 'pre'])
def test_guest_whose_start_has_failed_late_is_not_requested_again(operator, nova, volume, fails):
    guest = volume('guest0')
    nova.fails[guest] = fails
    nova.lose('host1')
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (1, [guest])
    assert 'host2 may have started it before: look there' in out
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (1, [guest])
    assert 'Its evacuation 1 is failed, to host2: host2 may run it.' in out


def test_guest_without_a_host_is_tried_again_and_started_since_it_is_in_error(operator, nova, volume):
    guest = volume('guest0', vm_state='stopped')
    nova.fails[guest] = 'check'
    nova.lose('host1')
    once(operator, lambda: nova.rows and nova.rows[-1]['status'] == 'error', lambda: nova.fails.clear())
    status, out = operator.run(*FENCED)
    assert (status, nova.asked, nova.servers[guest]['vm_state']) == (0, [guest, guest], 'active')
    assert 'It is in ERROR now, and so Nova starts it at its next evacuation' in out
    other = volume('guest1', vm_state='error')
    assert 'Nova starts what it shows in ERROR in any case: guest1.' in operator.run('evacuate', 'host1')[1], other


def test_guest_whose_live_migration_nova_could_not_abort_is_left(operator, nova, volume):
    guest = volume('guest0')
    nova.client().migrate_live(guest, 'host2')
    nova.tick(4)
    nova.kill('host1')
    nova.start('host1')
    assert nova.rows[-1]['status'] == 'error'
    nova.lose('host1')
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (1, [])
    assert 'Its live-migration 1 is error, to host2: host2 may run it.' in out


def test_host_with_an_evacuation_that_has_not_ended_is_not_to_be_started(operator, nova, volume):
    guest = volume('guest0')
    nova.lose('host1')
    once(operator, lambda: nova.rows and nova.rows[-1]['status'] == 'pre-migrating', lambda: nova.kill('host2'))
    nova.ticks[guest] = 300
    advance = nova.advance_evacuation
    nova.advance_evacuation = lambda row: row['status'] != 'pre-migrating' and advance(row)

    def forget():
        nova.servers[guest]['task_state'] = None

    once(operator, lambda: nova.rows and nova.rows[-1]['status'] == 'pre-migrating', forget)
    status, out = operator.run(*FENCED)
    assert status == 1
    assert 'Do not start nova-compute at host1: it would destroy these guests and their disks there' in out
    assert '--up' not in out


def test_task_that_was_there_before_is_not_taken_for_the_request(operator, nova, volume):
    guest = volume('guest0', task_state='rebuilding')
    nova.lose('host1')
    assert operator.run(*FENCED)[0] == 0
    assert nova.asked == [guest]


def test_stuck_evacuation_is_given_up_by_a_cancel_that_aborts(operator, nova, volume):
    volume('guest0')
    nova.lose('host1')
    nova.advance_evacuation = lambda row: None
    once(operator, lambda: operator.threads.clock.seconds > 380, lambda: os.kill(os.getpid(), 15))
    out = operator.run(*FENCED)[1]
    assert 'To let Nova evacuate it, set its state to ERROR' in out
    operator.threads.on_sleep, operator.threads.clock.seconds = (lambda: None), 0.0
    operator.run('cancel', '--abort-running')
    assert operator.json('list')['drains'][0]['status'] == 'cancelled'


def test_row_of_an_evacuation_to_the_host_that_never_ended_is_no_obstacle(operator, nova, volume):
    guest = volume('guest0', host='host2')
    nova.lose('host2')
    nova.client().evacuate(guest, 'host1')
    nova.tick(2)
    nova.rows[-1]['forgotten'] = True
    nova.servers[guest] |= {'host': 'host1', 'task_state': None}
    nova.truth[guest] = 'host1'
    nova.advance_evacuation, advance = (lambda row: row['id'] > 1 and advance(row)), nova.advance_evacuation
    nova.lose('host1')
    assert operator.run(*FENCED)[0] == 0
    assert nova.asked == [guest, guest]


def test_guest_that_was_unshelved_after_an_evacuation_is_evacuated_again(operator, nova, volume):
    guest = volume('guest0')
    nova.lose('host1')
    assert operator.run(*FENCED)[0] == 0
    nova.come_back('host1')
    nova.services['host1']['forced_down'] = False
    nova.tick(1)
    nova._add_action(guest, 'unshelve')
    nova.servers[guest] |= {'host': 'host1', 'vm_state': 'active'}
    nova.truth[guest] = 'host1'
    nova.tick(1)
    nova.lose('host1')
    operator.threads.clock.seconds = 0.0
    assert operator.run(*FENCED)[0] == 0
    assert nova.asked == [guest, guest]


def test_guest_that_is_deleted_before_its_request_stops_nothing(operator, nova, volume):
    first, second = volume('guest0'), volume('guest1')
    nova.lose('host1')
    looks = []

    def after(method, path):
        if path == '/os-services' and operator.threads.clock.seconds > 60 and first in nova.servers and looks.append(1):
            nova.delete(first)

    nova.after = after
    once(operator, lambda: operator.threads.clock.seconds > 60 and first in nova.servers, lambda: nova.delete(first))
    assert operator.run(*FENCED)[0] == 0
    assert nova.asked[-1] == second


def test_request_that_nova_has_lost_is_named_and_holds_back_no_other(operator, nova, volume):
    lost, other = volume('guest0'), volume('guest1')
    nova.lose('host1')
    advance = nova.advance_evacuation
    nova.advance_evacuation = lambda row: row['instance_uuid'] != lost and advance(row)
    once(operator, lambda: operator.threads.clock.seconds > 370, lambda: os.kill(os.getpid(), 15))
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (143, [lost, other])
    assert 'Its task_state has been rebuilding for more than 300 s' in out
    assert 'and Nova shows migration 1 as accepted. Check nova-conductor' in out


def test_same_command_goes_on_after_ctrl_c(operator, nova, volume):
    guests = [volume(f'guest{number}') for number in range(3)]
    nova.lose('host1')
    once(operator, lambda: nova.asked, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert operator.run(*FENCED, '--parallel', '1')[0] == 130
    operator.threads.on_sleep = lambda: None
    assert operator.run(*FENCED, '--parallel', '1')[0] == 0
    assert nova.asked == guests


def test_resumed_evacuation_ends_with_the_same_report(operator, nova, volume):
    for number in range(2):
        volume(f'guest{number}')
    nova.lose('host1')
    once(operator, lambda: nova.asked, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert operator.run(*FENCED, '--parallel', '1')[0] == 130
    operator.threads.on_sleep = lambda: None
    status, out = operator.run('resume')
    assert status == 0
    assert 'Leave host1 declared forced down until it is repaired.' in out


@pytest.mark.parametrize(
    ('fields', 'says'),
    [
        ({'vm_state': 'stopped'}, 'it has a vTPM'),
        ({'locked': True}, 'it has a vTPM'),
        ({'task_state': 'powering-off'}, 'openstack server set --state error'),
    ],
)
def test_refusal_by_nova_is_shown_as_nova_says_it(operator, nova, volume, fields, says):
    guest = volume('guest0', **fields)
    nova.refuses[guest] = 'it has a vTPM'
    nova.lose('host1')
    status, out = operator.run(*FENCED)
    assert status == 1
    assert 'Nova refuses to evacuate it: it has a vTPM' in out
    assert says in out


def test_cell_that_is_left_out_of_a_list_does_not_make_the_host_empty(operator, nova, volume):
    guest = volume('guest0')
    nova.lose('host1')
    nova.second_cell = {'host1'}
    nova.leaves_out = lambda path: path == '/servers/detail' and operator.threads.clock.seconds < 90
    assert operator.run(*FENCED)[0] == 0
    assert nova.asked == [guest]


def test_guest_that_was_unshelved_at_the_host_is_evacuated(operator, nova, volume):
    guest = volume('guest0')
    nova.client().migrate_live(guest, 'host2')
    nova.tick(8)
    nova.tick(1)
    nova._add_action(guest, 'unshelve')
    nova.servers[guest]['host'] = nova.truth[guest] = 'host1'
    nova.lose('host1')
    assert operator.run(*FENCED)[0] == 0
    assert nova.asked == [guest]


def test_plan_of_a_healthy_host_says_that_it_reports(operator, nova, volume):
    volume('guest0')
    status, out = operator.run('evacuate', 'host1')
    assert status == 1
    assert 'Nova shows its nova-compute as up' in out
    assert '--fence' not in out
    nova.services['host1']['forced_down'] = True
    assert 'is shown as down because it is declared forced down. Its guests may run.' in operator.run(*FENCED[:2])[1]


@pytest.mark.parametrize('state', ['building', 'shelved', 'rescued', 'resized'])
def test_no_state_is_reset_that_would_lose_something(operator, nova, volume, state):
    nova.statuses = {state: state.upper()}
    volume('guest0', vm_state=state)
    nova.lose('host1')
    assert 'set --state' not in operator.run('evacuate', 'host1')[1]


def test_guest_that_its_user_deletes_is_left(operator, nova, volume):
    volume('guest0', task_state='deleting')
    nova.lose('host1')
    assert operator.run(*FENCED)[0] == 1
    assert nova.asked == []


def test_fence_command_is_not_called_if_its_log_cannot_be_written(operator, nova, volume, monkeypatch):
    volume('guest0')
    nova.kill('host1')
    opened = os.open
    monkeypatch.setattr(os, 'open', lambda path, *more: opened(f'{path}/x' if '.fence' in str(path) else path, *more))
    assert operator.run('evacuate', 'host1', '--fence-command', 'true')[0] == 1
    monkeypatch.undo()
    assert operator.run('resume')[0] == 1
    assert 'was not declared down yet' in operator.err
