# SPDX-License-Identifier: Apache-2.0

"""What migrator-manage watch shows, from the answers of the REST API."""

import argparse
import io
import json
import types
from urllib import parse

import pytest
import rich.console

from migrator.operator.osc import drain as osc
from migrator.operator.watch import commands, errors, screen, subjects
from tests.functional.faults import faults
from tests.functional.test_cold_migration import CONFIRM, act
from tests.functional.test_resize import LARGE, resize

pytestmark = pytest.mark.simulated(reason='it injects faults at one host, and lets single seconds pass')


class Watch:
    """A watch that prints lines, with a second between two looks."""

    def __init__(self, cloud, as_json=False):
        self.cloud, self.away = cloud, []
        self.out, self.errors = io.StringIO(), io.StringIO()
        self._view = screen.Lines(self.out, self.errors, as_json)

    def get(self, path, **query):
        if self.away:
            raise self.away.pop()
        found = self.cloud.request('GET', f'/migrator/v1{path}?{parse.urlencode(query)}')
        assert found.status_int == 200, found.text
        return found.json

    def __call__(self, kind, name):
        subject = kind(self.get, self.cloud.world.threads.clock.now, name)
        return commands.follow(subject, self._view, self.cloud.simulation.advance)

    @property
    def lines(self):
        return self.out.getvalue().splitlines()


def drawn(picture):
    """Return what a terminal shows of a picture."""
    console = rich.console.Console(file=io.StringIO(), width=120, height=30)
    console.print(screen.draw(picture, console))
    return console.file.getvalue()


def start(cloud, **more):
    return cloud.request('POST', '/migrator/v1/drains', {'host': 'host1', **more}).json['drain']['uuid']


def test_drain_is_shown_event_by_event_and_completed_exits_with_0(cloud):
    names = [cloud.boot(f'guest{number}', 'host1').name for number in range(3)]
    watch = Watch(cloud)
    assert watch(subjects.Drain, start(cloud)) == 0
    for name in names:
        mine = [line.split()[2:] for line in watch.lines if f'  {name}: ' in line]
        assert [words[0] for words in mine] == ['waiting', 'moving', 'moved']
        assert mine[-1][1] == 'to'
    assert 'drain: completed (3 of 3 guests moved. host1 is empty.' in watch.lines[-1]
    assert watch.errors.getvalue() == ''


def test_json_lines_are_the_events_of_the_api(cloud):
    cloud.boot('guest0', 'host1')
    uuid, watch = start(cloud), Watch(cloud, as_json=True)
    assert watch(subjects.Drain, uuid) == 0
    assert [json.loads(line) for line in watch.lines] == watch.get(f'/drains/{uuid}/events')['events']


def test_drain_that_cannot_empty_its_host_exits_with_1_and_says_why(cloud):
    locked = cloud.boot('locked', 'host1')
    cloud.database.instances.update(locked.uuid, locked_by='owner')
    watch = Watch(cloud)
    assert watch(subjects.Drain, start(cloud)) == 1
    assert 'locked: blocked (It is locked by its owner.' in watch.out.getvalue()
    assert 'drain: incomplete' in watch.lines[-1]


def test_api_that_is_away_is_reported_once_and_the_watch_goes_on(cloud):
    cloud.boot('guest0', 'host1')
    watch = Watch(cloud)
    uuid, passed = start(cloud), []

    def passes(seconds):
        cloud.simulation.advance(seconds)
        if not passed:
            watch.away = [errors.ApiUnreachable(url='http://api/', reason='refused') for _ in range(3)]
        passed.append(seconds)

    subject = subjects.Drain(watch.get, cloud.world.threads.clock.now, uuid)
    assert commands.follow(subject, watch._view, passes) == 0
    assert len(passed) > 3
    assert watch.errors.getvalue() == (
        'The request to http://api/ failed: refused. Check that the service runs there, and that this machine reaches '
        'it. Trying again every 1 s.\n'
    )


def test_api_that_is_away_from_the_beginning_is_an_error(cloud):
    watch = Watch(cloud)
    watch.away = [errors.ApiUnreachable(url='http://api/', reason='refused')]
    with pytest.raises(errors.ApiUnreachable):
        watch(subjects.Drain, 'any')


def test_picture_of_a_drain_has_the_progress_of_its_moving_guests(cloud):
    moving = cloud.boot('moving', 'host1')
    faults(cloud, 'host1').stall('cutover', instance_uuid=moving.uuid, sticky=True)
    uuid, watch = start(cloud), Watch(cloud)
    cloud.simulation.run_until(lambda: [row.memory_processed for row in cloud.migrations(moving)] not in ([], [None]))
    (row,) = subjects.Drain(watch.get, cloud.world.threads.clock.now, uuid).look().rows
    (migration,) = cloud.migrations(moving)
    assert (row.name, row.status, row.destination) == ('moving', 'running', migration.dest_compute)
    assert (row.total, row.processed) == (migration.memory_total, migration.memory_processed)
    assert row.share > 0
    assert 'moving' in drawn(subjects.Drain(watch.get, cloud.world.threads.clock.now, uuid).look())
    faults(cloud, 'host1').clear()
    assert watch(subjects.Drain, uuid) == 0


def test_ctrl_c_says_that_the_drain_goes_on_and_how_to_cancel_it(cloud, capsys):
    cloud.boot('guest0', 'host1')
    uuid, watch = start(cloud), Watch(cloud)

    def interrupted(_seconds):
        raise KeyboardInterrupt

    threads = types.SimpleNamespace(clock=cloud.world.threads.clock, sleep=interrupted)
    asked = types.SimpleNamespace(
        drain_command='migrator-manage drain', arguments=argparse.Namespace(json=False), threads=threads
    )
    with pytest.raises(KeyboardInterrupt):
        commands.watch(asked, watch.get, 'Drain', uuid)
    said = capsys.readouterr().err
    assert said == f'The drain goes on. To cancel it: migrator-manage drain cancel {uuid}\n'
    watch(subjects.Drain, uuid)


def test_migration_is_shown_status_by_status_and_completed_exits_with_0(cloud):
    instance = cloud.boot('guest0', 'host1')
    cloud.live_migrate(instance)
    (migration,) = cloud.migrations(instance)
    watch = Watch(cloud)
    assert watch(subjects.Migration, migration.uuid) == 0
    shown = [line.split(maxsplit=3)[2].rstrip(',') for line in watch.lines if '  guest0: ' in line]
    assert shown == [one['status'] for one in cloud.history_of(migration)]
    ended = subjects.Migration(watch.get, cloud.world.threads.clock.now, migration.uuid).look()
    assert 'completed' in drawn(ended)
    assert shown[-1] == 'completed'


def test_migration_that_fails_exits_with_1_and_says_why(cloud):
    instance = cloud.boot('guest0', 'host1')
    faults(cloud, 'host1').fail('copying')
    cloud.live_migrate(instance)
    (migration,) = cloud.migrations(instance)
    watch = Watch(cloud, as_json=True)
    assert watch(subjects.Migration, migration.uuid) == 1
    last = json.loads(watch.lines[-1])
    assert (last['kind'], last['status'], last['instance_name']) == ('migration', 'failed', 'guest0')
    assert 'could not move the guest' in last['failure']


def test_host_is_watched_until_no_migration_is_in_progress_there(cloud):
    leaving = [cloud.boot(f'leaving{number}', 'host1') for number in range(2)]
    coming = cloud.boot('coming', 'host2')
    for instance in leaving:
        cloud.live_migrate(instance)
    cloud.live_migrate(coming, 'host1')
    watch = Watch(cloud)
    assert watch(subjects.Host, 'host1') == 0
    ends = [line.split()[1] for line in watch.lines if ': completed, ' in line]
    assert sorted(ends) == ['coming:', 'leaving0:', 'leaving1:']
    assert Watch(cloud)(subjects.Host, 'host1') == 0


@pytest.mark.cloud(hosts=1, options={'allow_resize_to_same_host': True})
def test_guest_that_is_resized_at_its_host_is_shown_there(cloud, operator):
    guest = cloud.boot('one', 'host1')
    cloud.database.flavors.create(LARGE)
    migration = resize(cloud, guest)
    assert act(cloud, guest, CONFIRM) == 204
    watch = Watch(cloud)
    assert watch(subjects.Migration, migration.uuid) == 0
    assert {line.rsplit(', ', 1)[1] for line in watch.lines if '  one: ' in line} == {'stays at host1'}
    assert 'resize of instance INSTANCE (one), which stays at host1\n' in operator.shows(guest)


def test_name_of_a_host_stays_one_part_of_the_path():
    asked = []

    def get(path, **_query):
        asked.append(path)
        raise errors.ApiRefused(url=path, reason='no such host')

    for name in ('../hosts', 'a?b'):
        with pytest.raises(errors.ApiRefused):
            subjects.Host(get, lambda: None, name).look()
    assert asked == ['/hosts/..%2Fhosts', '/hosts/a%3Fb']


def test_openstack_host_drain_asks_for_what_it_is_given_as_one_part_of_the_path():
    asked = []

    def request(method, path, body=None):
        asked.append((method, path))
        raise errors.ApiRefused(url=path, reason='no such drain')

    app = types.SimpleNamespace(client_manager=types.SimpleNamespace(migrator=types.SimpleNamespace(request=request)))
    for command in (osc.ShowDrain, osc.WatchDrain, osc.CancelDrain, osc.RestoreDrain):
        run = command(app, None)
        with pytest.raises(errors.ApiRefused):
            run.take_action(run.get_parser('openstack host drain').parse_args(['a?b']))
    assert asked == [('GET', '/drains/a%3Fb')] * 4


def test_openstack_host_drain_watch_exits_as_the_drain_has_ended(cloud, capsys):
    cloud.boot('guest0', 'host1')
    uuid, watch = start(cloud), Watch(cloud)
    watch(subjects.Drain, uuid)
    client = types.SimpleNamespace(get=watch.get, request=lambda _method, path: watch.get(path))
    app = types.SimpleNamespace(client_manager=types.SimpleNamespace(migrator=client))
    capsys.readouterr()
    assert osc.WatchDrain(app, None).run(argparse.Namespace(drain=uuid)) == 0
    assert capsys.readouterr().out == watch.out.getvalue()
