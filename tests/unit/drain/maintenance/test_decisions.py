# SPDX-License-Identifier: Apache-2.0

"""What a user decides about hosts that fail, do not come back, or are left out."""

import pytest

from migrator.drain.maintenance import errors
from tests.unit.drain.maintenance.test_run import Night


def test_host_whose_guests_cannot_move_fails_before_any_of_them_leaves():
    night = Night(guests={'guest1': ('host1', 4), 'guest2': ('host1', 2)}, max_failures=1)
    night.site.known_stuck.add('guest2')
    assert night.go_on() == {'host1': 'failed', 'host2': 'draining'}
    turn = night.turn('host1')
    assert turn.reason == '1 guest cannot move. guest2: It has a device. Then retry the host, or skip it.'
    assert (turn.is_out, turn.drain, night.site.machines['host1'].disabled_by) == (False, None, None)
    night.site.known_stuck.clear()
    night.retry('host1')
    night.work('host2')
    night.until_ready('host1')


def test_host_that_is_not_expected_back_is_given_up():
    night = Night().until_ready()
    claim = night.begin()
    night.done(claim)
    with pytest.raises(errors.InvalidTurn, match='report that with fail'):
        night.skip('host1')
    assert night.fail(claim).reason == 'It was given up: no package. Mend it. Then retry the host, or skip it.'
    assert night.fail(claim).status == 'failed'
    with pytest.raises(errors.InvalidTurn, match='no work is in progress there'):
        night.done(claim)
    assert night.site.machines['host1'].disabled_by is not None


def test_nothing_is_changed_once_it_was_cancelled():
    night = Night().until_ready()
    night.begin()
    first = night.change('cancel')
    assert night.change('cancel') == first
    for action in ('pause', 'resume'):
        with pytest.raises(errors.InvalidTurn, match='it was cancelled'):
            night.change(action)


def test_host_that_is_ready_says_which_other_host_keeps_its_work_from_beginning():
    night = Night().until_ready()
    night.site.machines['host2'].runs = False
    night.go_on(100)
    assert night.turn('host1').reason.startswith('Its work cannot begin yet. At most 1 may be out of service: host2')


def test_host_that_gets_its_guests_back_is_not_given_up():
    night = Night()
    night.store.write(night.row, {'guests': 'back'}, [], [])
    night.until_ready()
    claim = night.begin()
    night.done(claim)
    night.site.machines['host1'].start(night.site.time)
    night.go_on(10)
    assert not night.turn('host1').is_out
    with pytest.raises(errors.InvalidTurn, match='it is back, and its guests are on their way'):
        night.fail(claim)


@pytest.mark.parametrize('parallel', [1, 2])
def test_host_that_was_skipped_does_not_count_any_more(parallel):
    night = Night(parallel=parallel).until_ready()
    night.fail(night.begin())
    night.go_on()
    night.change('resume')
    assert (night.go_on()['host2'] == 'waiting') == (parallel == 1)
    night.skip('host1', None, True)
    night.until_ready('host2')
    with pytest.raises(errors.InvalidTurn, match='only a host that has failed can stay disabled'):
        night.skip('host2', None, True)
