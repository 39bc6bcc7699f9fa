# SPDX-License-Identifier: Apache-2.0

"""The check that no remedy is shown for long that harms a living guest."""

import datetime
import types

import pytest

from migrator.objects import Service
from migrator.objects.difference import Difference
from migrator.objects.drain import Member
from migrator.simulator.monitoring.remedies import WITHDRAWN, Remedies

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
GUEST = '43b8ec21-ca42-424c-ac8a-509dbc78c9a9'


def world(at, differences=(), reason=None, states=(), reports=True, busy=True, powered=True):
    """Return what the check reads of a world: host1 of the guest, and host2, which has some guests."""
    services = [
        Service(uuid=host, host=host, last_seen_up=NOW, down_since=None if reports else NOW)
        for host in ('host1', 'host2')
    ]
    return types.SimpleNamespace(
        at=at,
        busy={'runs': 0} if busy else {},
        differences=differences,
        members={'d': [Member(instance_uuid=GUEST, source='host1', status='blocked', reason=reason)]},
        services=services,
        instances={GUEST: types.SimpleNamespace(host='host1')},
        hosts={
            'host1': types.SimpleNamespace(powered=powered, states={}),
            'host2': types.SimpleNamespace(powered=powered, states=dict.fromkeys(states, 'running')),
        },
    )


def missing():
    return [Difference(instance_uuid=GUEST, name='one', host='host1', kind='missing', seen={})]


EVACUATE = f'If the host is dead and fenced, evacuate the guest: openstack server evacuate {GUEST}.'
HARMFUL = [{'differences': missing(), 'states': [GUEST]}, {'reason': EVACUATE}]


@pytest.mark.parametrize('what', HARMFUL, ids=['delete', 'evacuate'])
def test_remedy_against_what_a_host_has_is_found_once_it_has_lasted(what):
    remedies = Remedies()
    assert list(remedies.look(world(0, **what))) == []
    assert list(remedies.look(world(WITHDRAWN, **what))) == []
    (found,) = remedies.look(world(WITHDRAWN + 1, **what))
    assert GUEST in found


@pytest.mark.parametrize(
    'right',
    [
        {'differences': missing()},
        {'differences': missing(), 'states': [GUEST], 'reports': False},
        {'differences': missing(), 'states': [GUEST], 'powered': False},
        {'reason': EVACUATE, 'reports': False},
        {'reason': 'It is locked.'},
    ],
)
def test_remedy_that_nothing_contradicts_is_right(right):
    remedies = Remedies()
    assert list(remedies.look(world(0, **right))) == []
    assert list(remedies.look(world(WITHDRAWN + 1, **right))) == []


@pytest.mark.parametrize('what', HARMFUL, ids=['delete', 'evacuate'])
def test_remedy_that_was_withdrawn_or_that_no_conductor_could_withdraw_begins_anew(what):
    for between in ({}, {**what, 'busy': False}):
        remedies = Remedies()
        assert list(remedies.look(world(0, **what))) == []
        assert list(remedies.look(world(WITHDRAWN, **between))) == []
        assert list(remedies.look(world(WITHDRAWN + 1, **what))) == []
