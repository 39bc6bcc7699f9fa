# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain`` empties hosts of a stock nova while guests fail, and while processes are killed.

Where a guest is at the end is read from the hypervisor's files, and not from nova.
"""

import datetime
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
import requests

from tests.real.nova import lab as labs
from tests.real.nova.command import KILLED, Command
from tests.real.servers import process

#: 1: it is killed before each write of a drain; N: before every Nth.
EVERY = int(os.environ.get('MIGRATOR_KILL_EVERY', '1'))

pytestmark = [pytest.mark.timeout(3600)]


@pytest.fixture
def drain(lab, tmp_path):
    """Return the command, with a state of its own."""
    return Command(lab, tmp_path / 'state.sqlite')


@pytest.fixture
def openstack(lab):
    """Return a function that runs the real client, and returns what it prints."""

    def run(*arguments):
        program = pathlib.Path(sys.executable).with_name('openstack')
        command = [str(program), '--os-cloud', labs.CLOUD, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | lab.environment)
        assert done.returncode == 0, f'{command}: {done.stdout}{done.stderr}'
        return done.stdout

    return run


def moves(lab, guest, after=0, kind='live-migration'):
    """Return the statuses of a guest's migrations of a kind, the newest first."""
    rows = lab.ask('GET', f'/os-migrations?instance_uuid={guest}&migration_type={kind}')['migrations']
    return [row['status'] for row in rows if row['id'] > after]


def newest(lab):
    """Return the greatest id of a migration."""
    return max((row['id'] for row in lab.ask('GET', '/os-migrations?limit=1')['migrations']), default=0)


def wait_for_move(lab, guests, status='running'):
    """Return the first of the guests whose migration gets to a status."""
    process.wait_until(lambda: any(status in moves(lab, guest) for guest in guests), f'a move to be {status}', 120)
    return next(guest for guest in guests if status in moves(lab, guest))


def status(lab, guest):
    """Return the status of a guest."""
    return lab.ask('GET', f'/servers/{guest}')['server']['status']


def stop(lab, *guests):
    """Shut guests off."""
    for guest in guests:
        lab.ask('POST', f'/servers/{guest}/action', **{'os-stop': None})
    process.wait_until(lambda: all(status(lab, guest) == 'SHUTOFF' for guest in guests), 'guests to stop', 60)


def check_hosts(lab, guests):
    """Check that each guest is at exactly one host, and that nova has it there."""
    truth = {guest: [host for host, there in lab.truth().items() if guest in there] for guest in guests}
    shown = {guest: [lab.ask('GET', f'/servers/{guest}')['server']['OS-EXT-SRV-ATTR:host']] for guest in guests}
    assert truth == shown


def members(drain, host):
    """Return the newest drain of a host with its guests, and guest -> status."""
    listed = drain.read('list')['drains']
    shown = drain.read('show', next(one['uuid'] for one in listed if one['host'] == host))
    return shown, {one['instance_uuid']: one['status'] for one in shown['members']}


@pytest.mark.slow
def test_guests_that_cannot_move_are_left_and_named(lab, drain, openstack):
    healthy = lab.guests(5, 'host1')
    fails = {phase: lab.guests(1, 'host1', move_fails=phase)[0] for phase in ('check', 'pre', 'live', 'post')}
    (slow,) = lab.guests(1, 'host1', move_seconds='15')
    locked, stopped = lab.guests(2, 'host1')
    openstack('server', 'lock', locked)
    openstack('server', 'stop', stopped)
    process.wait_until(lambda: lab.ask('GET', f'/servers/{stopped}')['server']['status'] == 'SHUTOFF', 'it to stop')
    planned = drain.read('plan', 'host1', status=1)
    in_the_way = {one['instance_uuid']: one['obstacle']['kind'] for one in planned['guests'] if one['obstacle']}
    assert in_the_way == {locked: 'locked', stopped: 'state'}

    drain.run('start', 'host1', '--max-attempts', '2', status=1)

    shown, statuses = members(drain, 'host1')
    moved = {*healthy, slow, fails['post']}
    left = {*fails.values(), locked, stopped} - moved
    assert {guest for guest, status in statuses.items() if status == 'moved'} == moved, shown
    assert {guest for guest, status in statuses.items() if status == 'blocked'} == {locked, stopped}, shown
    assert lab.truth()['host1'] == left
    check_hosts(lab, statuses)
    assert [moves(lab, fails[phase]) for phase in ('check', 'pre', 'live')] == [
        ['error'] * 2,
        ['failed'] * 2,
        ['failed'] * 2,
    ]
    (service,) = json.loads(openstack('compute', 'service', 'list', '--host', 'host1', '-f', 'json'))
    assert service['Status'] == 'disabled'
    listed = json.loads(openstack('server', 'list', '--all-projects', '--host', 'host1', '-f', 'json'))
    assert {one['ID'] for one in listed} == left

    # what is in the way is cleared, as the reasons say
    openstack('server', 'unlock', locked)
    openstack('server', 'start', stopped)
    openstack('server', 'set', '--auto-approve', '--state', 'active', fails['post'])
    for guest in left - {locked, stopped}:
        openstack('server', 'set', '--property', 'move_fails=', guest)
    drain.run('heal', '--yes')
    drain.run('start', 'host1')
    assert lab.truth()['host1'] == set()
    check_hosts(lab, statuses)
    assert lab.manage('placement', 'audit', '--verbose').strip() in ('', 'Processed 0 allocations.')


def test_killed_before_each_write_every_guest_moves_once(lab, tmp_path):
    empty = tmp_path / 'empty.sqlite'
    Command(lab, empty).run('list')
    lab.disable('host3')
    guests = lab.guests(3, 'host1', move_seconds='0.5')
    off, hosts = guests[0], itertools.cycle([('host1', 'host2'), ('host2', 'host1')])
    stop(lab, off)
    once = {guest: ['confirmed'] if guest == off else ['completed'] for guest in guests}
    for kill_at in itertools.count(1, EVERY):
        here, there = next(hosts)
        lab.enable('host1', 'host2')
        state = tmp_path / f'{kill_at}.sqlite'
        shutil.copy(empty, state)
        drain, before = Command(lab, state), newest(lab)
        start = ('start', here, '--include-stopped')
        with drain.begin(*start, kill_at=kill_at) as running:
            running.communicate(timeout=300)
        if running.returncode == KILLED:
            in_progress = [one for one in drain.read('list')['drains'] if one['status'] != 'completed']
            drain.run('resume') if in_progress else drain.run(*start)
        where = f'killed before write {kill_at}'
        assert lab.truth() == {here: set(), there: set(guests), 'host3': set()}, where
        kinds = {guest: 'migration' if guest == off else 'live-migration' for guest in guests}
        assert {guest: moves(lab, guest, before, kinds[guest]) for guest in guests} == once, where
        assert status(lab, off) == 'SHUTOFF', where
        if running.returncode != KILLED:
            assert running.returncode == 0
            assert kill_at > 8, 'a drain of three has more writes'
            return


@pytest.mark.slow
def test_shut_off_guests_leave_and_come_back_and_what_others_have_migrated_is_blocked(lab, drain, openstack):
    off, runs, theirs = lab.guests(3, 'host1')
    fails = {phase: lab.guests(1, 'host1', move_fails=phase)[0] for phase in ('live', 'post', 'confirm')}
    stop(lab, off, theirs, *fails.values())
    openstack('server', 'migrate', '--wait', theirs)
    planned = drain.read('plan', 'host1', '--include-stopped', status=None)
    types = {one['instance_uuid']: one['migration_type'] for one in planned['guests']}
    assert types == dict.fromkeys((off, *fails.values()), 'migration') | {runs: 'live-migration'}
    drain.run('start', 'host1', '--include-stopped', '--max-attempts', '1', status=1)

    shown, statuses = members(drain, 'host1')
    moved = {off, runs, fails['post'], fails['confirm']}
    assert {guest for guest, one in statuses.items() if one == 'moved'} == moved, shown
    assert (statuses[theirs], statuses[fails['live']]) == ('blocked', 'failed'), shown
    reasons = {one['instance_uuid']: one['reason'] or '' for one in shown['members']}
    assert f'openstack server migration confirm {theirs}' in reasons[theirs]
    for phase, guest in fails.items():
        assert f'move_fails is {phase}' in reasons[guest], reasons[guest]
        actions = lab.ask('GET', f'/servers/{guest}/os-instance-actions')['instanceActions']
        assert actions[0]['request_id'] in reasons[guest], (actions, reasons[guest])
    assert (status(lab, theirs), status(lab, off), status(lab, runs)) == ('VERIFY_RESIZE', 'SHUTOFF', 'ACTIVE')

    openstack('server', 'migration', 'confirm', theirs)
    drain.run('restore', 'host1', status=1)
    assert {off, runs} <= lab.truth()['host1']
    assert moves(lab, off, kind='migration') == ['confirmed'] * 2
    check_hosts(lab, [off, runs, theirs])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['conductor', 'rabbitmq', 'placement', 'api', 'host1'])
def test_service_is_killed_and_comes_back_in_the_middle(lab, drain, name):
    guests = lab.guests(4, 'host1', move_seconds='3')
    running = drain.begin('start', 'host1')
    wait_for_move(lab, guests, 'completed')
    wait_for_move(lab, guests)
    lab.services[name].kill()
    lab.services[name].start()
    lab.wait_ready()
    output = drain.end(running, None)
    if name == 'host1':
        # nova leaves the guest that was moving, and its allocations are wrong
        assert running.returncode == 1, output
        drain.run('heal', '--yes')
        drain.run('start', 'host1')
    else:
        assert running.returncode == 0, output
    assert lab.truth()['host1'] == set()
    check_hosts(lab, guests)
    assert {guest: moves(lab, guest).count('completed') for guest in guests} == dict.fromkeys(guests, 1)
    drain.run('audit')


@pytest.mark.slow
def test_next_guest_is_requested_before_the_one_before_it_has_moved_and_a_lock_is_no_obstacle(lab, drain, openstack):
    guests = lab.guests(4, 'host1', move_seconds='6')
    openstack('server', 'lock', guests[0])
    assert drain.read('plan', 'host1', status=1)['locked'] == 1
    drain.run('start', 'host1', '--locked', 'move')
    assert lab.truth()['host1'] == set()
    check_hosts(lab, guests)
    rows = lab.ask('GET', '/os-migrations?migration_type=live-migration')['migrations']
    mine = sorted((row for row in rows if row['instance_uuid'] in guests), key=lambda row: row['id'])
    assert [row['status'] for row in mine] == ['completed'] * 4
    assert all(later['created_at'] < earlier['updated_at'] for earlier, later in itertools.pairwise(mine)), mine


def test_detached_drain_goes_on_without_its_command(lab, drain):
    guests = lab.guests(2, 'host1', move_seconds='3')
    begun = drain.read('start', 'host1', '--detach')
    (running,) = drain.read('list')['drains']
    assert (running['status'], running['pid']) == ('running', begun['pid'])
    drain.run('watch', begun['drain'])
    assert lab.truth()['host1'] == set()
    check_hosts(lab, guests)
    assert 'drain: completed (2 of 2 guests moved.' in pathlib.Path(begun['log']).read_text()


def test_drain_that_the_page_starts_goes_on_without_it(lab, drain):
    guests = lab.guests(2, 'host1', move_seconds='3')
    with drain.begin('--json', 'serve') as page:
        try:
            url, secret = json.loads(page.stdout.readline())['url'].split('/ui#token=')

            def ask(body, token=secret):
                return requests.post(f'{url}/drains', json=body, headers={'X-Auth-Token': token}, timeout=60)

            assert ask({'host': 'host1'}, token='admin').status_code == 401
            assert ask({'host': 'host1', 'dry_run': True}).json()['plan']['can_move'] == 2
            begun = ask({'host': 'host1'}).json()['drain']
            assert begun['pid'] is not None
        finally:
            page.kill()
    drain.run('watch', begun['uuid'])
    assert lab.truth()['host1'] == set()
    check_hosts(lab, guests)


def test_two_drains_at_once_move_each_guest_once(lab, drain):
    guests = [*lab.guests(3, 'host1'), *lab.guests(3, 'host2')]
    drain.run('list')  # makes the state
    drains = [drain.begin('start', host, '--spread') for host in ('host1', 'host2')]
    for running in drains:
        drain.end(running)
    assert lab.truth() == {'host1': set(), 'host2': set(), 'host3': set(guests)}
    assert {guest: moves(lab, guest) for guest in guests} == {guest: ['completed'] for guest in guests}


@pytest.mark.slow
def test_thirty_guests_leave_while_api_terminal_and_process_are_lost(lab, drain):
    guests = lab.guests(30, 'host1')
    off, paused, (suspended,) = guests[:4], guests[4:7], guests[7:8]
    stop(lab, *off)
    for guest in paused:
        lab.ask('POST', f'/servers/{guest}/action', pause=None)
    lab.ask('POST', f'/servers/{suspended}/action', suspend=None)
    wanted = dict.fromkeys(paused, 'PAUSED') | {suspended: 'SUSPENDED'}
    process.wait_until(lambda: {guest: status(lab, guest) for guest in wanted} == wanted, 'guests to stand', 60)

    def left():
        return len(lab.truth()['host1'])

    # The API is restarted, then the terminal closed, then the process killed.
    with drain.begin('start', 'host1', '--include-stopped', '--spread', '--parallel', '2') as running:
        process.wait_until(lambda: left() <= 26, 'the first to have left', 180)
        lab.services['api'].kill()
        lab.services['api'].start()
        process.wait_until(lambda: left() <= 20, 'more to have left', 180)
        running.send_signal(signal.SIGHUP)
        drain.end(running, 130)
    with drain.begin('resume') as running:
        process.wait_until(lambda: left() <= 12, 'more to have left', 180)
        running.kill()
    output = drain.run('resume', status=1)
    assert lab.truth()['host1'] == {suspended}
    check_hosts(lab, guests)
    assert {guest: moves(lab, guest) for guest in guests if guest not in (*off, suspended)} == {
        guest: ['completed'] for guest in guests if guest not in (*off, suspended)
    }
    assert [moves(lab, guest, kind='migration') for guest in off] == [['confirmed']] * len(off)
    assert {status(lab, guest) for guest in off} == {'SHUTOFF'}
    assert {status(lab, guest) for guest in paused} == {'PAUSED'}
    assert 'suspended' in output
    (uuid,) = [one['uuid'] for one in drain.read('list')['drains']]
    (run,) = drain.read('report', uuid)['runs']
    of = {one['instance_uuid']: one for one in run['members']}
    assert {of[guest]['attempts'] for guest in guests if guest != suspended} == {1}
    assert {of[guest]['destination'] for guest in guests if guest != suspended} == {'host2', 'host3'}
    assert (of[suspended]['status'], of[suspended]['attempts']) == ('blocked', 0)


@pytest.mark.slow
def test_drain_takes_no_longer_than_requests_at_once(lab, drain):
    """``nova host-evacuate-live`` requested all at once, and Nova queued them."""

    def makespan(guests):
        assert {guest: moves(lab, guest) for guest in guests} == {guest: ['completed'] for guest in guests}
        rows = [lab.ask('GET', f'/os-migrations?instance_uuid={guest}')['migrations'][0] for guest in guests]
        began, ended = min(row['created_at'] for row in rows), max(row['updated_at'] for row in rows)
        return (datetime.datetime.fromisoformat(ended) - datetime.datetime.fromisoformat(began)).total_seconds()

    first = lab.guests(7, 'host1', move_seconds='6')
    for guest in first:
        lab.move(guest, None)
    process.wait_until(lambda: lab.truth()['host1'] == set(), 'host1 to be empty', 180)
    process.wait_until(lambda: all(moves(lab, guest) == ['completed'] for guest in first), 'the moves to end', 60)
    second = lab.guests(7, 'host1', move_seconds='6')
    drain.run('start', 'host1')
    assert makespan(second) <= 1.05 * makespan(first)
