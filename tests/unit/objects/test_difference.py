# SPDX-License-Identifier: Apache-2.0

"""The remedies of guests that are not where the database has them."""

import pytest

from migrator.objects.difference import Difference, is_power_wrong


def difference(kind, **seen):
    return Difference(instance_uuid='i', name='web', host='host1', kind=kind, seen=seen)


@pytest.mark.parametrize('kind', ['moved', 'twice', 'unknown'])
def test_guest_that_two_hosts_run_has_to_be_stopped_on_one(kind):
    assert difference(kind, host2='running', host3='paused').remedy.startswith('stop it at once')


def test_moved_guest_that_no_host_runs_has_to_be_started_first():
    assert difference('moved', host2='shutdown').remedy.startswith('start it on one host')
    assert 'reconcile lets' in difference('moved', host2='running').remedy


@pytest.mark.parametrize(
    ('vm_state', 'state', 'wrong'),
    [
        ('active', 'running', False), ('active', 'paused', False), ('active', 'shutdown', True),
        ('paused', 'shutdown', True), ('paused', 'running', False),
        ('stopped', 'shutdown', False), ('stopped', 'running', True), ('stopped', 'paused', True),
        ('stopped', 'post-copy broken off', False), ('error', 'shutdown', False), ('error', 'running', False),
    ],
)  # fmt: skip
def test_power_is_wrong_only_if_a_guest_is_shut_off_and_its_instance_runs_or_the_other_way_round(
    vm_state, state, wrong
):
    assert is_power_wrong(vm_state, state) is wrong
