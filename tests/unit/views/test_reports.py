# SPDX-License-Identifier: Apache-2.0

"""The report of a drain that was retried, or restored, has what each of them did, with its own times."""

import datetime

import pytest
import sqlalchemy as sa

from migrator.db.sql import drain_rows
from tests.unit.operator.cli.conftest import operator

__all__ = ['operator']


def ends(cloud, uuid):
    cloud.simulation.run_until(lambda: cloud.database.drains.get(uuid).ended, timeout=900)


@pytest.fixture
def first(operator):
    """A drain that has moved one of two guests, since the other is locked."""
    operator.locked, _ = (operator.cloud.boot(name, 'host1') for name in ('locked', 'free'))
    operator.cloud.database.instances.update(operator.locked.uuid, locked_by='owner')
    uuid = operator.json('drain', 'start', 'host1')['uuid']
    ends(operator.cloud, uuid)
    return uuid


def unlock(operator):
    operator.cloud.database.instances.update(operator.locked.uuid, locked_by=None)


def restore(operator, uuid):
    operator.cloud.simulation.advance(1)
    operator.json('drain', 'restore', uuid)
    ends(operator.cloud, uuid)


def lines_with(text, *beginnings):
    return [line for line in text.splitlines() if line.startswith(beginnings)]


def test_report_of_a_retry_says_which_drain_has_moved_a_guest_and_its_downtime(operator, first):
    unlock(operator)
    operator.cloud.simulation.advance(60)
    uuid = operator.json('drain', 'retry', first)['uuid']
    ends(operator.cloud, uuid)
    (before,) = (one for one in operator.json('drain', 'report', first)['runs'][0]['members'] if one['name'] == 'free')
    (run,) = operator.json('drain', 'report', uuid)['runs']
    moved = {one['name']: one for one in run['members']}
    assert {name: one['moved_by'] for name, one in moved.items()} == {'free': first, 'locked': None}
    assert moved['free']['downtime'] == before['downtime'] is not None
    text = operator.observed('drain', 'report', uuid)
    assert f'Retry of: drain {first}' in text.splitlines()
    assert 'Guests: 2 moved; 1 of them moved before this drain' in text.splitlines()
    (free, locked) = lines_with(text, 'free', 'locked')
    assert free.endswith(f'It was moved by drain {first}.')
    assert locked.endswith('  -')
    again = operator.json('drain', 'restore', uuid)['uuid']
    ends(operator.cloud, again)
    assert operator.json('drain', 'report', uuid)['runs'][0] == run


def test_report_of_a_retry_whose_first_drain_was_purged_says_so_much(operator, first):
    unlock(operator)
    uuid = operator.json('drain', 'retry', first)['uuid']
    ends(operator.cloud, uuid)
    operator.cloud.database.drains.purge(operator.cloud.database.drains.now(), 1)
    (free,) = lines_with(operator.observed('drain', 'report', uuid), 'free')
    assert free.endswith(f'It was moved by drain {first}.')


def test_report_of_a_restored_drain_has_what_the_drain_did_and_what_the_restore_did(operator, first):
    (before,) = operator.json('drain', 'report', first)['runs']
    operator.cloud.simulation.advance(60)
    restore(operator, first)
    report = operator.json('drain', 'report', first)
    kept, back = report['runs']
    assert (report['status'], kept) == ('restored', before)
    assert [back[name] for name in ('direction', 'status', 'checks')] == ['back', 'restored', []]
    assert [one['name'] for one in back['members']] == ['free']
    apart = datetime.datetime.fromisoformat(back['requested_at']) - datetime.datetime.fromisoformat(kept['ended_at'])
    assert apart >= datetime.timedelta(seconds=60)
    assert kept['ended_at'] < back['requested_at'] <= back['began_at'] < back['ended_at']
    text = operator.observed('drain', 'report', first)
    assert lines_with(text, 'Drain:', 'Restore:', 'Guests:') == [
        f'Drain: {first} of host1: incomplete',
        'Guests: 1 blocked, 1 moved',
        f'Restore: {first} of host1: restored',
        'Guests: 1 back',
    ]
    assert text.count('guests at the hypervisor: ') == 1
    titles = lines_with(operator.observed('drain', 'report', first, '--markdown'), '#')
    assert titles == ['# Drain of host1: incomplete', '# Restore of host1: restored']


def test_each_restore_is_reported_with_the_guests_that_it_had_left_to_bring_back(operator):
    one, _ = (operator.cloud.boot(name, 'host1') for name in ('one', 'two'))
    uuid = operator.json('drain', 'start', 'host1')['uuid']
    ends(operator.cloud, uuid)
    operator.cloud.database.instances.update(one.uuid, locked_by='owner')
    restore(operator, uuid)
    operator.cloud.database.instances.update(one.uuid, locked_by=None)
    restore(operator, uuid)
    runs = operator.json('drain', 'report', uuid)['runs']
    assert [(run['status'], {each['name']: each['status'] for each in run['members']}) for run in runs] == [
        ('completed', {'one': 'moved', 'two': 'moved'}),
        ('incomplete', {'one': 'blocked', 'two': 'moved'}),
        ('restored', {'one': 'moved'}),
    ]
    operator.cloud.simulation.advance(61)
    assert operator.json('drain', 'purge', '--before', '1m')['purged'] == 1
    with operator.cloud.database.engine.reader() as session:
        assert session.execute(sa.select(drain_rows.RUNS)).all() == []
