# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain evacuate`` on a stock nova: no guest runs twice, no disk is lost without a word.

Where guests run, and what their disks contain, is read from the hypervisor's files, and not from nova.
"""

import contextlib
import itertools
import os
import threading

import pytest

from tests.real.nova.command import KILLED, Command
from tests.real.servers import process

#: 1: it is killed before each write of an evacuation; N: before every Nth.
EVERY = int(os.environ.get('MIGRATOR_KILL_EVERY', '1'))
#: Seconds between two looks at where the guests run.
LOOK = 0.05

pytestmark = [pytest.mark.timeout(3600)]


@pytest.fixture
def drain(lab, tmp_path):
    """Return the command, with a state of its own."""
    return Command(lab, tmp_path / 'state.sqlite')


@contextlib.contextmanager
def never_twice(lab, guests):
    """Look all the time where the guests run, and fail if one runs on two hosts."""
    found, over = [], threading.Event()

    def look():
        while not over.wait(LOOK):
            found.extend((guest, where) for guest in guests if len(where := lab.runs(guest)) > 1)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
    assert found == []


def service(lab, host):
    """Return the nova-compute of a host, as nova shows it."""
    (found,) = lab.ask('GET', f'/os-services?binary=nova-compute&host={host}')['services']
    return found


def wait_until_down(lab, host):
    """Return when nova shows a host as down."""
    process.wait_until(lambda: service(lab, host)['state'] == 'down', f'{host} to be down', 60)


def evacuations(lab, guest):
    """Return the statuses of a guest's evacuations, the newest first."""
    rows = lab.ask('GET', f'/os-migrations?instance_uuid={guest}&migration_type=evacuation')['migrations']
    return [row['status'] for row in rows]


def bring_back(lab, host):
    """Start a host again, and declare it up and enabled once it has removed what was evacuated."""
    lab.give_power(host)
    lab.services[host].start()
    lab.wait_ready()
    rows = f'/os-migrations?source_compute={host}&migration_type=evacuation&status=done'
    process.wait_until(lambda: not lab.ask('GET', rows)['migrations'], 'the evacuations to be completed', 60)
    lab.ask('PUT', f'/os-services/{service(lab, host)["id"]}', forced_down=False)
    # Only a host that is up learns at once that it is enabled, and changes its traits in Placement.
    lab.wait_up(host)
    lab.enable(host)


def test_guests_of_a_host_without_power_run_elsewhere_with_their_disks(lab, drain):
    shared, (local,) = lab.guests(2, 'host1', disk='shared'), lab.guests(1, 'host1')
    disks = {guest: lab.disk(guest) for guest in (*shared, local)}
    assert 'as up (last report' in drain.run('evacuate', 'host1', '--fenced', status=1, errors=True)
    lab.cut_power('host1')
    wait_until_down(lab, 'host1')
    planned = drain.read('evacuate', 'host1', status=1)
    assert [one['obstacle']['kind'] for one in planned['guests']] == ['immovable'] * 3
    words = ('evacuate', 'host1', '--fenced', '--disks-are-shared', '--start', '--quiet-for', '5')
    with never_twice(lab, shared):
        output = drain.run(*words)
    assert {guest: len(lab.runs(guest)) for guest in shared} == dict.fromkeys(shared, 1)
    assert {guest: lab.disk(guest) for guest in shared} == {guest: disks[guest] for guest in shared}
    assert len(lab.disk(local)) == 2, 'the word was false, and nova has made its disk anew'
    assert 'Leave host1 declared forced down until it is repaired.' in output
    bring_back(lab, 'host1')
    assert lab.truth()['host1'] == set()
    assert {guest: lab.disk(guest) for guest in shared} == {guest: disks[guest] for guest in shared}
    assert drain.read('audit')['findings'] == []
    assert lab.manage('placement', 'audit', '--verbose').strip() in ('', 'Processed 0 allocations.')


@pytest.mark.slow
def test_guests_begin_again_from_their_images_only_with_that_word(lab, drain):
    (guest,) = lab.guests(1, 'host1')
    before = lab.disk(guest)
    lab.cut_power('host1')
    wait_until_down(lab, 'host1')
    drain.run('evacuate', 'host1', '--fenced', '--quiet-for', '3', status=1)
    assert (evacuations(lab, guest), lab.disk(guest)) == ([], before)
    drain.run('evacuate', 'host1', '--fenced', '--rebuild-from-image', '--quiet-for', '3')
    assert evacuations(lab, guest) == ['done']
    assert lab.runs(guest) == [], 'from 2.95 on nova leaves it shut off'
    bring_back(lab, 'host1')
    assert len(lab.disk(guest)) == 1
    assert lab.disk(guest) != before


@pytest.mark.parametrize('fences', [True, False])
def test_guests_of_a_nova_compute_that_was_killed_alone_run_once_whatever_is_typed(lab, drain, fences):
    guests = lab.guests(2, 'host1', disk='shared')
    disks = {guest: lab.disk(guest) for guest in guests}
    lab.services['host1'].kill()
    wait_until_down(lab, 'host1')
    words = ('evacuate', 'host1', '--disks-are-shared', '--start', '--quiet-for', '3')
    with never_twice(lab, guests):
        if fences:
            drain.run(*words, '--fence-command', lab.fence_command())
            assert {guest: len(lab.runs(guest)) for guest in guests} == dict.fromkeys(guests, 1)
            assert lab.truth()['host1'] == set()
        else:
            drain.run(*words)
            # It is started again while the command looks whether it reports.
            looks = drain.begin(*words, '--fenced', '--quiet-for', '30')
            lab.services['host1'].start()
            lab.wait_ready()
            drain.end(looks, 1)
            assert lab.truth()['host1'] == set(guests)
            assert [evacuations(lab, guest) for guest in guests] == [[], []]
    assert {guest: lab.disk(guest) for guest in guests} == disks
    if fences:
        bring_back(lab, 'host1')


def test_killed_before_each_write_every_guest_is_evacuated_once(lab, tmp_path):
    lab.disable('host3')
    guests = lab.guests(2, 'host1', disk='shared')
    disks = {guest: lab.disk(guest) for guest in guests}
    hosts, asked = itertools.cycle([('host1', 'host2'), ('host2', 'host1')]), 0
    for kill_at in itertools.count(1, EVERY):
        here, there = next(hosts)
        drain = Command(lab, tmp_path / f'{kill_at}.sqlite')
        drain.run('list')  # makes the state
        lab.cut_power(here)
        lab.ask('PUT', f'/os-services/{service(lab, here)["id"]}', forced_down=True)  # sooner than service_down_time
        words = ('evacuate', here, '--fenced', '--disks-are-shared', '--start', '--quiet-for', '3')
        with never_twice(lab, guests):
            with drain.begin(*words, kill_at=kill_at) as running:
                running.communicate(timeout=300)
            if running.returncode == KILLED:
                drain.run(*words)
        where, asked = f'killed before write {kill_at}', asked + 1
        assert {guest: lab.runs(guest) for guest in guests} == {guest: [there] for guest in guests}, where
        assert {guest: lab.disk(guest) for guest in guests} == disks, where
        assert {guest: len(evacuations(lab, guest)) for guest in guests} == dict.fromkeys(guests, asked), where
        bring_back(lab, here)
        if running.returncode != KILLED:
            assert running.returncode == 0
            assert kill_at > 10, 'an evacuation of two has more writes'
            return
