# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain evacuate``: nothing that may run is started elsewhere, and nothing is lost unsaid."""

import json
import sys

import pytest

from migrator.db.drains import Drains
from migrator.nova.errors import NovaUnreachable

FENCED = ('evacuate', 'host1', '--fenced')


@pytest.fixture
def volume(nova):
    """Return a function that adds a guest on a volume."""
    return lambda name, **fields: nova.add_guest(name, image='', **fields)


def test_plan_shows_what_each_guest_loses_and_changes_nothing(operator, nova, volume):
    volume('on-volume')
    nova.add_guest('on-disk')
    nova.lose('host1')
    status, out = operator.run('evacuate', 'host1')
    assert status == 1
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith('on-')}
    assert 'its memory' in rows['on-volume']
    assert 'Its root disk is no volume. If the new host does not find it, Nova makes an empty one' in rows['on-disk']
    assert (
        '1 guest of host1 can be evacuated, 1 cannot. The evacuated guests are left shut off at their new hosts' in out
    )
    assert f'migrator-drain --state {operator.path} evacuate host1 --fence-command' in out
    assert not [one for one in nova.requests if one[0] != 'GET']
    assert operator.json('list') == {'drains': []}
    assert operator.run('evacuate', 'host1', '--disks-are-shared')[0] == 0
    found = operator.json('evacuate', 'host1', '--rebuild-from-image')
    assert {one['name']: one['loses'] for one in found['guests']} == {
        'on-volume': 'its memory',
        'on-disk': 'its memory and all of its local disks',
    }


def test_guests_are_started_elsewhere_and_the_end_says_what_runs_where(operator, nova, volume):
    guests = [volume(f'guest{number}') for number in range(3)]
    left = nova.add_guest('on-disk')
    nova.lose('host1')
    status, out = operator.run(*FENCED, '--start')
    assert status == 1
    assert (nova.asked, nova.harmed, nova.emptied) == (guests, [], [])
    assert {nova.servers[guest]['vm_state'] for guest in guests} == {'active'}
    assert nova.servers[left]['host'] == 'host1'
    assert (nova.services['host1']['forced_down'], nova.services['host1']['status']) == (True, 'disabled')
    for guest in guests:
        where = nova.servers[guest]['host']
        assert any(guest in line and f'ACTIVE on {where}' in line for line in out.splitlines())
    assert 'Leave host1 declared forced down until it is repaired.' in out
    assert 'openstack compute service set --up host1 nova-compute' in out


@pytest.mark.parametrize(('newest', 'start', 'state'), [((2, 104), (), 'stopped'), ((2, 90), (), 'active')])
def test_guests_are_left_as_nova_leaves_them_and_the_plan_says_how(operator, nova, volume, newest, start, state):
    nova.newest = newest
    guest = volume('guest0')
    nova.lose('host1')
    status, out = operator.run(*FENCED, *start)
    assert (status, nova.servers[guest]['vm_state']) == (0, state), out
    says = 'left shut off' if state == 'stopped' else 'guests that ran are started'
    assert says in out


@pytest.mark.parametrize('is_forced_down', [False, True])
def test_host_that_reports_is_not_evacuated(operator, nova, volume, is_forced_down):
    volume('guest0')
    nova.services['host1']['forced_down'] = is_forced_down
    assert operator.run(*FENCED)[0] == 1
    assert 'as up (last report' in operator.err or 'has reported' in operator.err
    assert nova.asked == []
    assert not [one for one in nova.requests if one[0] != 'GET']
    assert operator.json('list') == {'drains': []}


def test_guest_that_runs_on_with_a_dead_nova_compute_is_only_harmed_if_the_operator_lies(operator, nova, volume):
    volume('guest0')
    nova.kill('host1')
    assert operator.run('evacuate', 'host1')[0] == 0
    assert 'look at its power' in operator.run('evacuate', 'host1')[1]
    assert nova.harmed == []


def test_nova_compute_that_reports_in_between_stops_it_and_the_printed_command_goes_on(operator, nova, volume):
    guests = [volume(f'guest{number}') for number in range(3)]
    nova.lose('host1')
    nova.after = lambda method, path: method == 'POST' and nova.services['host1'].update(state='up')
    status, out = operator.run(*FENCED, '--parallel', '1')
    assert (status, nova.asked) == (1, guests[:1])
    assert 'its nova-compute has reported, or its record was changed otherwise' in out
    nova.after = lambda _method, _path: None
    assert operator.run('resume')[0] == 1  # it looks again, and does not go on
    assert operator.run(*FENCED)[0] == 1
    nova.kill('host1')
    assert operator.run(*FENCED)[0] == 0
    assert (nova.asked, nova.harmed) == (guests, [])


def fence(tmp_path, text):
    """Return a fence command: a script of Python."""
    script = tmp_path / 'fence.py'
    script.write_text(text)
    return f'{sys.executable} {script} {{host}}'


def test_fence_command_gets_the_host_and_its_call_is_recorded_before(operator, nova, volume, tmp_path):
    volume('guest0')
    nova.kill('host1')
    done = tmp_path / 'done'
    command = fence(
        tmp_path, f'import sys, os; open({str(done)!r}, "w").write(sys.argv[1] + os.environ["MIGRATOR_HOST"])'
    )
    nova.before = lambda method, path: method == 'PUT' and done.exists() and nova.unpowered.add('host1')
    status, out = operator.run('evacuate', 'host1', '--fence-command', command)
    assert (status, done.read_text(), nova.harmed) == (0, 'host1host1', []), out
    assert f'--fence-command {sys.executable}' not in out


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        ('raise SystemExit(3)', 'exit status 3'),
        ('import time; time.sleep(60)', 'it did not end within 1 s, and was killed'),
    ],
)
def test_fence_command_that_fails_leaves_everything_as_it_was(operator, nova, volume, tmp_path, text, why):
    volume('guest0')
    nova.kill('host1')
    words = ('--fence-command', fence(tmp_path, text), '--fence-timeout', '1')
    assert operator.run('evacuate', 'host1', *words)[0] == 1
    assert why in operator.err
    assert 'Nothing was declared or evacuated.' in operator.err
    assert (nova.asked, nova.services['host1']['forced_down']) == ([], False)
    nova.lose('host1')
    again = operator.err.partition('guests: ')[2].strip()
    assert operator.pastes(again)[0] == 0
    assert nova.harmed == []


def test_fence_command_that_ends_well_is_not_believed_while_the_host_reports(operator, nova, volume, tmp_path):
    volume('guest0')
    nova.kill('host1')
    back = tmp_path / 'back'
    operator.threads.on_sleep = lambda: back.exists() and nova.services['host1'].update(state='up')
    words = ('--fence-command', fence(tmp_path, f'open({str(back)!r}, "w")'))
    assert operator.run('evacuate', 'host1', *words)[0] == 1
    assert (nova.asked, nova.services['host1']['forced_down']) == ([], False)


def test_interrupted_fence_command_is_named_and_needs_the_word(operator, nova, volume, tmp_path):
    volume('guest0')
    nova.kill('host1')
    command = fence(tmp_path, 'import os, signal; os.kill(os.getppid(), signal.SIGINT); import time; time.sleep(9)')
    assert operator.run('evacuate', 'host1', '--fence-command', command)[0] == 130
    assert operator.run('resume')[0] == 1
    assert f'the fence command {sys.executable} was interrupted, and may have cut off host1' in operator.err
    nova.lose('host1')
    status, out = operator.pastes(operator.err.partition('guests: ')[2].strip())
    assert status == 0, out + operator.err
    assert (len(nova.asked), nova.harmed) == (1, [])


def test_it_goes_on_after_a_kill_at_every_write_and_asks_for_no_guest_twice(operator, nova, volume, monkeypatch):
    """The run is cut off before and after each write, to its state or to Nova."""
    guests = [volume(f'guest{number}') for number in range(2)]
    nova.lose('host1')
    writes, cut = [0], [0]

    class Killed(BaseException):
        """The process is gone."""

    def write(*_args):
        writes[0] += 1
        if writes[0] == cut[0]:
            raise Killed

    def around(method):
        def wrapper(*args, **kwargs):
            write()
            result = method(*args, **kwargs)
            write()
            return result

        return wrapper

    for name in ('accept', 'write', 'adopt'):
        monkeypatch.setattr(Drains, name, around(getattr(Drains, name)))
    nova.before = nova.after = lambda method, _path: method != 'GET' and write()
    for cut[0] in range(1, 100):
        writes[0], operator.threads.clock.seconds = 0, 0.0
        try:
            status, _out = operator.run(*FENCED)
        except Killed:
            continue
        break
    assert (status, cut[0] > 10) == (0, True)
    assert (sorted(nova.asked), nova.harmed) == (sorted(guests), [])
    assert {nova.servers[guest]['host'] for guest in guests} <= {'host2', 'host3'}


def test_guest_whose_move_was_in_progress_is_left_with_the_reason(operator, nova, volume):
    guest = volume('guest0')
    nova.client().migrate_live(guest, 'host2')
    nova.tick(4)
    nova.lose('host1')
    status, out = operator.run(*FENCED)
    assert (status, nova.asked) == (1, [])
    assert 'Its live-migration 1 is running, to host2: host2 may run it.' in out
    assert f'look whether host2 runs the guest. Only if it does not: openstack server evacuate {guest}' in out


def test_guest_in_a_state_that_nova_does_not_evacuate_is_named(operator, nova, volume):
    guest = volume('guest0', vm_state='paused')
    nova.lose('host1')
    status, out = operator.run('evacuate', 'host1')
    assert status == 1
    assert 'It is paused, and Nova evacuates only guests that are active, stopped or in ERROR.' in out
    assert f'openstack server set --state error {guest}' in out


def test_failed_evacuation_is_tried_again_and_named_at_the_end(operator, nova, volume):
    guest = volume('guest0')
    nova.fails[guest] = 'claim'
    nova.lose('host1')
    status, out = operator.run(*FENCED, '--max-attempts', '2')
    assert (status, nova.asked, nova.servers[guest]['host']) == (1, [guest, guest], 'host1')
    assert 'ended as failed, to host2: the lab says so' in out
    assert 'ACTIVE on host1' in out


def test_other_words_and_a_restore_are_refused(operator, nova, volume):
    volume('guest0')
    nova.lose('host1')
    nova.before = lambda method, _path: (
        (_ for _ in ()).throw(NovaUnreachable(reason='away')) if method == 'PUT' else None
    )
    assert operator.run(*FENCED)[0] == 3
    nova.before = lambda _method, _path: None
    assert operator.run(*FENCED, '--start')[0] == 1
    assert 'is in progress with other options (none of these options, not --start)' in operator.err
    uuid = operator.json('list')['drains'][0]['uuid']
    assert operator.run(*FENCED)[0] == 0
    assert operator.run('restore', uuid)[0] == 1
    assert 'is an evacuation, and has no restore. Leave host1 declared forced down' in operator.err


def test_audit_of_the_end_explains_what_the_dead_host_holds(operator, nova, volume):
    volume('guest0')
    nova.lose('host1')
    found = operator.run(*FENCED, '--json')[1]
    end = json.loads(found.splitlines()[-1]) if found.rstrip().endswith('}') else {}
    assert end, found
    assert end['audit']['findings'] == []
    nova.come_back('host1')
    assert operator.json('audit')['findings'] == []
