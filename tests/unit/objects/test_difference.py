# SPDX-License-Identifier: Apache-2.0

"""The remedies of guests that are not where the database has them."""

import pytest

from migrator.objects.difference import Difference, is_power_wrong


def difference(kind, **seen):
    return Difference(instance_uuid='i', name='web', host='host1', kind=kind, seen=seen)


def remedy(kind, unlisted=(), **seen):
    return difference(kind, **seen).remedy(unlisted)


@pytest.mark.parametrize('kind', ['moved', 'twice', 'unknown'])
def test_guest_that_two_hosts_run_has_to_be_stopped_on_one(kind):
    assert remedy(kind, host2='running', host3='paused').startswith(
        'find out which copy is right, and stop each other one at once'
    )


def test_moved_guest_that_no_host_runs_has_to_be_started_first():
    assert remedy('moved', host2='shutdown').startswith('start it on one host')
    assert 'reconcile lets' in remedy('moved', host2='running')


@pytest.mark.parametrize('kind', ['moved', 'missing', 'power', 'unfinished'])
def test_while_a_host_has_not_listed_its_guests_the_remedy_is_to_have_them_listed(kind):
    seen = {} if kind == 'missing' else {'host2' if kind == 'moved' else 'host1': 'running'}
    found = remedy(kind, ['host1', 'host3'], **seen)
    assert 'reconcile' not in found
    assert 'delete' not in found
    assert 'host1 and host3 did not list guests' in found or kind == 'power'


def test_missing_guest_is_forgotten_only_if_every_host_has_listed_its_guests():
    assert (
        remedy('missing')
        == 'start it on host1 again; or, only if the guest itself is lost for good: migrator-manage instance delete i'
    )
    assert 'delete' not in remedy('replaced')


def test_copies_are_undefined_only_beside_one_that_runs():
    assert 'take the definition of the others away (host2;' in remedy('twice', host1='running', host2='shutdown')
    assert remedy('twice', host1='shutdown', host2='shutdown').startswith('start it on one host')


def test_what_a_fenced_host_has_shown_is_left_out():
    moved = difference('moved', host2='running', host3='shutdown')
    assert (moved.without(['host4']), moved.without(['host2']).seen) == (moved, {'host3': 'shutdown'})
    assert moved.without(['host2', 'host3']).kind == 'missing'
    assert difference('twice', host1='shutdown', host2='running').without(['host2']) is None


def test_unknown_guest_that_runs_is_not_removed():
    assert 'take' not in remedy('unknown', host2='running')
    assert 'or take its definition from the host' in remedy('unknown', host2='shutdown')


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
