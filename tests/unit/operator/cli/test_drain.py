# SPDX-License-Identifier: Apache-2.0

"""migrator-manage drain, and openstack host drain: what they say about time."""

import functools
import time
import types
from urllib import parse

import pytest
import sqlalchemy as sa

from migrator.db.sql.drain_rows import DRAINS
from migrator.objects.drain import DRAIN_ENDS, Drain, Member
from migrator.operator.osc import drain as osc
from migrator.operator.watch import errors, subjects

UUID = '48b30000-0000-4000-8000-000000000000'


def openstack(cloud, command, *words, away=0):
    """Run a command of openstack host drain on the API of a cloud, and return its columns and its values.

    :param away: how many GETs get no answer.
    """
    lost = [errors.ApiUnreachable(url='http://api/', reason='refused') for _ in range(away)]

    def request(method, path, body=None, **query):
        if method == 'GET' and lost:
            raise lost.pop()
        return cloud.request(method, f'/migrator/v1{path}?{parse.urlencode(query)}', body).json

    client = types.SimpleNamespace(request=request, get=functools.partial(request, 'GET'))
    run = command(types.SimpleNamespace(client_manager=types.SimpleNamespace(migrator=client)), None)
    return run.take_action(run.get_parser('openstack host drain').parse_args([*words]))


def getter(cloud):
    """Return the function that gets documents from the API of a cloud."""
    return lambda path, **query: cloud.request('GET', f'/migrator/v1{path}?{parse.urlencode(query)}').json


def watch(cloud, uuid):
    """Return what a watch of a drain shows now."""
    return subjects.Drain(getter(cloud), cloud.database.drains.now, uuid).look()


def shown_of(cloud, command, *words):
    """Return what a command prints with ``-f json``."""
    names, values = openstack(cloud, command, '-f', 'json', *words)
    read = (getattr(value, 'machine_readable', lambda value=value: value) for value in values)
    return dict(zip(names, (one() for one in read), strict=True))


def test_plan_shows_how_long_it_takes_once_that_is_known(operator):
    cloud = operator.cloud  # its links carry 1024 MiB/s
    guests = [cloud.boot(f'guest{number}', 'host1', memory_mb=10240) for number in range(3)]
    out = operator.observed('drain', 'plan', 'host1')
    assert out.splitlines()[-1].endswith('How long that takes is not known: too few live migrations have completed.')
    for guest in guests:
        assert cloud.live_migrate(guest, 'host2').status_int == 202
    cloud.wait()
    plan = operator.json('drain', 'plan', 'host2')
    assert plan['guests'][0]['expected_seconds']['p50'] == 10
    assert plan['expected_seconds'] == {'p50': 30, 'p80': 30}
    assert 'That is expected to take ' in operator.observed('drain', 'plan', 'host2').splitlines()[-1]


def test_openstack_prints_times_as_migrator_manage_does(operator):
    cloud = operator.cloud
    for number in range(6):
        cloud.boot(f'guest{number}', 'host1', memory_mb=10240)

    def said(begins):
        columns, values = openstack(cloud, osc.ShowDrain, '-f', 'json', uuid)
        expected = dict(zip(columns, values, strict=True))['expected']
        assert expected.machine_readable().keys() == {'start', 'end', 'reason'}
        assert str(expected).startswith(begins)
        return str(expected)

    def seconds(host):
        columns, rows = openstack(cloud, osc.PlanDrain, host)
        return [row[columns.index('Seconds')] for row in rows]

    assert seconds('host1') == [''] * 6
    uuid = shown_of(cloud, osc.CreateDrain, 'host1', '--destination', 'host2')['uuid']
    cloud.simulation.run_until(lambda: cloud.database.drains.counts([uuid])[uuid]['moving'] > 0)
    assert said('When it ends is not known. Fewer than 3 ') in operator.observed('drain', 'show', uuid)
    cloud.simulation.run_until(lambda: cloud.database.drains.counts([uuid])[uuid]['moved'] == 4)
    assert said('It is expected to end at ') in operator.observed('drain', 'show', uuid)
    cloud.wait()
    assert said('It has ended: completed.')
    assert seconds('host2') == ['10'] * 6


def test_shut_off_guests_are_included_if_requested(operator):
    cloud = operator.cloud
    off, _on = (cloud.boot(name, 'host1') for name in ('off', 'on'))
    cloud.world.hypervisors['host1'].shut_off(off.uuid)
    cloud.database.instances.update(off.uuid, vm_state='stopped', power_state=4)
    status, refused = operator.status('drain', 'plan', 'host1')
    assert status == 1
    assert '1 guest of host1 can move, 1 cannot.' in refused
    assert '--include-stopped' in refused
    out = operator.observed('drain', 'plan', 'host1', '--include-stopped')
    assert '2 guests of host1 can move, 0 cannot.' in out
    assert out.splitlines()[-1].endswith(
        '1 of them is moved while it is shut off, and how long that takes is not known.'
    )
    columns, rows = openstack(cloud, osc.PlanDrain, 'host1', '--include-stopped')
    assert all(row[columns.index('Room At')] for row in rows)
    created = shown_of(cloud, osc.CreateDrain, 'host1', '--include-stopped')
    assert created['include_stopped'] is True
    cloud.simulation.run_until(lambda: cloud.database.drains.get(created['uuid']).ended)
    assert 'It also moves the guests that are shut off.' in operator.observed('drain', 'show', created['uuid'])
    (listed,) = operator.json('drain', 'list')['drains']
    assert (listed['include_stopped'], listed['status']) == (True, 'completed')
    started = operator.json('drain', 'start', 'host2', '--include-stopped')
    assert started['include_stopped'] is True
    cloud.wait()


def test_wait_goes_on_when_the_api_is_away_after_it_has_taken_the_request(operator, monkeypatch, capsys):
    cloud = operator.cloud
    guest = cloud.boot('guest', 'host1')
    monkeypatch.setattr(time, 'sleep', cloud.simulation.advance)
    columns, values = openstack(cloud, osc.CreateDrain, '--wait', 'host1', away=2)
    assert str(values[columns.index('status')]) == 'completed'
    assert cloud.database.instances.get(guest.uuid).host != 'host1'
    assert capsys.readouterr().err.splitlines()[0] == (
        'The request to http://api/ failed: refused. Check that the service runs there, and that this machine reaches '
        'it. Trying again every 1 s.'
    )


def test_plan_shows_the_old_copy_of_a_guest_that_waits_for_its_user(operator):
    cloud = operator.cloud
    guest = cloud.boot('left', 'host1')
    body = {'migrate': {'host': 'host2'}}
    assert cloud.request('POST', f'/servers/{guest.uuid}/action', body, version='2.56').status_int == 202
    cloud.simulation.run_until(lambda: cloud.database.migrations.list()[0].status == 'finished')
    status, out = operator.status('drain', 'plan', 'host1')
    assert status == 1
    shown = (
        f'left ({guest.uuid}): It is in VERIFY_RESIZE at host2, and host1 keeps its old copy. Its user has to confirm'
    )
    assert out.splitlines()[-1].startswith(shown)
    columns, rows = openstack(cloud, osc.PlanDrain, 'host1')
    assert [row[columns.index('Name')] for row in rows] == ['left']


@pytest.mark.parametrize('text', ['', 'a/b'])
def test_name_that_is_no_part_of_a_url_is_refused(text):
    parser = osc.ShowDrain(None, None).get_parser('openstack host drain show')
    with pytest.raises(SystemExit):
        parser.parse_args([text])


#: The status and direction of a drain, the statuses of its guests, and its result in a list and in a watch.
RESULTS = [
    ('running', 'away', ['moved', 'gone', 'waiting'], 'running: 1 of 3 moved', '1 of 3 guests moved, 1 gone'),
    ('completed', 'away', ['moved', 'gone'], 'completed: 1 moved', '1 of 2 guests moved, 1 gone'),
    ('incomplete', 'away', ['gone', 'failed'], 'incomplete: 1 of 2 left', '0 of 2 guests moved, 1 failed, 1 gone'),
    ('running', 'back', ['moved', 'gone', 'waiting'], 'restoring: 1 of 2 back', '1 of 2 guests back'),
    ('restored', 'back', ['moved', 'gone', 'gone'], 'restored: 1 back', '1 of 1 guest back'),
    ('incomplete', 'back', ['gone', 'gone', 'failed'], 'incomplete: 1 of 1 not back', '0 of 1 guest back, 1 failed'),
]


@pytest.mark.parametrize(('status', 'direction', 'guests', 'listed', 'watched'), RESULTS, ids=str)
def test_result_counts_what_is_left_and_not_what_a_restore_leaves_alone(
    operator, status, direction, guests, listed, watched
):
    drains = operator.cloud.database.drains
    members = [Member(instance_uuid=f'{number}', status=one) for number, one in enumerate(guests)]
    drains.accept(Drain(uuid=UUID, host='host1', status=status, direction=direction), moved=members)
    if status in DRAIN_ENDS:
        with operator.cloud.database.engine.writer() as session:
            session.execute(sa.update(DRAINS).values(in_progress_host=None))
    (row,) = operator.rows('drain', 'list')
    assert row['RESULT'] == listed
    assert f' of host1: {listed}.' in operator.observed('drain', 'show', UUID)
    ((*_, moved, total, _),) = openstack(operator.cloud, osc.ListDrain)[1]
    assert [moved, total] == [word for word in watched.split() if word.isdecimal()][:2]
    assert watch(operator.cloud, UUID).foot == watched
