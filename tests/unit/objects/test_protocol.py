# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pytest

from migrator import exception
from migrator.objects import base
from migrator.objects.protocol import Guest, GuestState


@pytest.mark.parametrize('state', GuestState)
def test_a_guest_is_present_in_any_form_but_absent_and_active_only_while_it_runs(state: GuestState) -> None:
    guest = Guest(instance_uuid='i', state=state.value)
    assert guest.present == (state is not GuestState.ABSENT)
    assert guest.active == (state is GuestState.RUNNING)


@pytest.mark.parametrize('state', ['active', '', None, 1])
def test_a_guest_is_in_a_state_that_there_is(state):
    """One that was in none was taken for absent."""
    with pytest.raises(exception.ValidationError, match=rf'Guest.state. Value: {state}. running, paused, .* or absent'):
        Guest(instance_uuid='i', state=state)
    assert Guest(instance_uuid='i', state=GuestState.RUNNING) == Guest(instance_uuid='i', state='running')


def test_a_guest_whose_host_says_nonsense_arrives_and_is_known_for_one_of_which_nothing_is_told():
    said = base.to_primitive(Guest(instance_uuid='i', state='running', job=True))
    said['data']['state'] = 'active'
    guest = base.from_primitive(said)
    assert (guest.state, guest.told, guest.job) == ('active', False, True)
    assert (guest.present, guest.active) == (True, False)
    assert base.to_primitive(guest) == said
    assert Guest(instance_uuid='i').told
