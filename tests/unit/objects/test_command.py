# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


from __future__ import annotations

import pytest

from migrator.objects.command import Guest, GuestState


@pytest.mark.parametrize('state', GuestState)
def test_a_guest_is_present_in_any_form_but_absent_and_active_only_while_it_runs(state: GuestState) -> None:
    guest = Guest(instance_uuid='i', state=state.value)
    assert guest.present == (state is not GuestState.ABSENT)
    assert guest.active == (state is GuestState.RUNNING)
