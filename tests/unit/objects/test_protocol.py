# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pytest

from migrator import exception
from migrator.objects import base
from migrator.objects.protocol import Guest, GuestState


@pytest.mark.parametrize('state', GuestState)
def test_guest_is_present_unless_absent_and_active_only_while_running(state: GuestState) -> None:
    guest = Guest(instance_uuid='i', state=state.value)
    assert guest.present == (state is not GuestState.ABSENT)
    assert guest.active == (state is GuestState.RUNNING)


@pytest.mark.parametrize('state', ['active', '', None, 1])
def test_guest_with_unknown_state_is_refused(state):
    """A guest in an unknown state once counted as absent."""
    with pytest.raises(
        exception.ValidationError, match=rf'Guest.state. Value: {state}. Use running, paused, .* or absent'
    ):
        Guest(instance_uuid='i', state=state)
    assert Guest(instance_uuid='i', state=GuestState.RUNNING) == Guest(instance_uuid='i', state='running')


def test_unknown_state_in_a_report_is_kept_and_marked_as_unknown():
    report = base.to_primitive(Guest(instance_uuid='i', state='running', job=True))
    report['data']['state'] = 'active'
    guest = base.from_primitive(report)
    assert (guest.state, guest.is_known, guest.job) == ('active', False, True)
    assert (guest.present, guest.active) == (True, False)
    assert base.to_primitive(guest) == report
    assert Guest(instance_uuid='i').is_known
