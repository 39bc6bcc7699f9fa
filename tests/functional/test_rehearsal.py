# SPDX-License-Identifier: Apache-2.0

"""What needs an operator is produced on a served demo, and mended by the command beside it."""

import pytest

from tests.functional import commands
from tests.functional.rehearsals import Rehearsal

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path):
    words = ('--hosts', '4', '--instances', '6', '--guest-memory', '512', '--dirty-rate', '0')
    with commands.Served(tmp_path, *words) as served:
        yield Rehearsal(tmp_path, served)
        assert served.stop() == 0
        assert 'Traceback' not in served.said


def migrate(site, guest, host):
    site.act(guest, 'os-migrateLive', {'host': host, 'block_migration': 'auto'})


def test_stuck_migration_ends_by_its_retry(site):
    guest = site.running('host1')[0]
    site.breaks('fail', 'host1', '1', '--no-rollback')
    migrate(site, guest, 'host2')
    show, retry, *_ = site.until_shown('Stuck')['Stuck']
    assert 'it is stuck' in site.types(show).lower()
    site.breaks('fail', 'host1', '0')
    said = site.types(retry)
    assert 'It is no longer stuck: it ' in said
    assert 'no conductor was woken' not in said
    _show, again = site.until_shown('Failed')['Failed']
    site.types_openstack(again)
    site.until_shown()
    assert guest not in site.running('host1')


def test_guest_that_was_moved_by_hand_is_followed_by_reconcile(site):
    guest = site.running('host2')[0]
    assert 'The database has it on host2' in site.breaks('move', guest, 'host3')
    look, follow = site.until_shown('Not as in the database')['Not as in the database']
    assert 'To do: change its host in the database' in site.types(look)
    assert '1 done' in site.types(follow, '--yes')
    site.until_shown()
    assert guest in site.running('host3')


def test_guest_that_failed_in_a_drain_in_progress_is_moved_by_its_command(site):
    site.breaks('fail', 'host1', '1')
    site.breaks('slow', 'host1', '8')
    started = site.manage('drain', 'start', 'host1', '--max-attempts', '1', '--parallel', '1')
    assert started.returncode == 0, started.stderr
    _show, again = site.until_shown('Failed')['Failed']
    # Otherwise the drain might end before the guest has moved, and the line with it.
    assert site.manage('drain', 'pause', 'host1').returncode == 0
    site.until_shown('Failed', 'Paused')
    site.types_openstack(again)
    (resume,) = site.until_shown('Paused')['Paused']
    site.types(resume)
    site.breaks('slow', 'host1', '1')
    restore, _enable = site.until_shown('Disabled')['Disabled']
    site.types(restore)
    site.until_shown()


def test_blocked_cleanup_runs_by_its_retry_after_the_guest_is_followed(site):
    (guest,) = site.running('host2')
    site.breaks('kill', 'host2', '--power')
    site.force_down('host2', True)
    site.act(guest, 'evacuate', {'host': 'host3'})
    site.until(lambda: guest in site.running('host3'))
    site.until(lambda: site.send('GET', '/migrator/v1/migrations?status=done')['migrations'])
    # An operator moves it once more, by hand, before its old host is back.
    site.breaks('move', guest, 'host4')
    site.breaks('revive', 'host2')
    shown = site.until_shown('Forced down', 'Not as in the database', 'Blocked')
    assert '1 done' in site.types(shown['Not as in the database'][1], '--yes')
    assert 'is unblocked' in site.types(shown['Blocked'][0])
    cleanups, up = site.until_shown('Forced down')['Forced down']
    site.until(lambda: 'post_evacuation' not in site.types(cleanups))
    site.until(lambda: not site.send('GET', '/migrator/v1/migrations?status=done')['migrations'])
    site.types_openstack(up)
    site.until_shown()


def test_refused_machine_takes_the_place_of_one_that_is_declared_off(site):
    (guest,) = site.running('host3')
    site.breaks('kill', 'host3', '--power')
    site.breaks('revive', 'host3', '--other-machine')
    see, replace = site.until_shown('Down', 'Refused')['Refused']
    assert 'another machine of this name was refused' in site.types(see)
    assert 'takes the place of the old one' in site.types(replace)
    # The old machine had the guest, and no host has it now: it is restored by hand.
    site.until_shown('Not as in the database')
    site.breaks('move', guest, 'host3')
    site.until_shown()


def test_refusal_is_forgotten_when_the_machine_of_the_host_is_back(site):
    site.breaks('kill', 'host4')
    site.breaks('revive', 'host4', '--other-machine')
    site.until(lambda: 'Refused' in site.status())
    site.breaks('kill', 'host4')
    site.breaks('revive', 'host4')
    site.until(lambda: 'Refused' not in site.status())
