# SPDX-License-Identifier: Apache-2.0

"""What needs an operator: each kind of line, alike everywhere, and mended by its own command."""

import contextlib
import datetime
import json
import shlex
import sqlite3

import pytest
import sqlalchemy as sa

from migrator.api.own import answers
from migrator.db import models
from migrator.db.sql import watching
from migrator.objects import remedies
from migrator.objects.difference import Difference
from migrator.views import attention
from tests.functional.faults import faults
from tests.reasons import stuck_for
from tests.unit.operator.cli.conftest import operator
from tests.unit.views.test_faces import Faces

__all__ = ['operator']


class Watched(Faces):
    """A cloud, and what it says needs an operator."""

    def lines(self):
        """Return the lines, which REST and ``status`` show alike."""
        found = self.rest('/attention', answers.ATTENTION)
        status, out = self.operator.status('status', '--json')
        assert (status, self.operator.err) == (1 if found['count'] else 0, '')
        assert json.loads(out) == found
        assert attention.counts(self.cloud.database, 60) == {
            kind.value: sum(one['kind'] == kind for one in found['attention']) for kind in attention.Attention
        }
        return {one['id'].partition(' ')[0]: one for one in found['attention']}

    def kinds(self):
        return sorted(self.lines())

    def type(self, command):
        """Do what a line's command says, by the operator's command or by the request that the client sends."""
        program, *words = shlex.split(command)
        if program == 'migrator-manage':
            status, _ = self.operator.status(*words)
            assert status == 0, self.operator.err
            return
        match words:
            case ['server', 'unlock', guest]:
                self.ask('POST', f'/servers/{guest}/action', {'unlock': None})
            case ['server', 'migrate', '--live-migration', guest]:
                body = {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}
                self.ask('POST', f'/servers/{guest}/action', body)
            case ['server', 'evacuate', guest]:
                self.ask('POST', f'/servers/{guest}/action', {'evacuate': {}})
            case ['compute', 'service', 'set', '--down' | '--up' as how, host, _]:
                self.set_service(host, forced_down=how == '--down')
            case ['compute', 'service', 'set', '--enable', host, _]:
                self.set_service(host, status='enabled')
            case _:
                raise AssertionError(f'{command} is unknown here')

    def ask(self, method, path, body):
        response = self.cloud.request(method, path, body)
        assert response.status_int in (200, 202), response.text

    def set_service(self, host, **values):
        (service,) = self.cloud.database.services.list('nova-compute', host)
        self.ask('PUT', f'/os-services/{service.uuid}', values)

    def drain(self, host='host1', *words):
        return self.operator.json('drain', 'start', host, *words)['uuid']

    def until(self, kind):
        """Let time pass until a line of a kind is there; read them once in fifteen seconds, for that is dear."""
        for _ in range(60):
            if kind in self.lines():
                return
            self.cloud.simulation.advance(15)
        raise AssertionError(f'there is no {kind}')

    def until_ended(self, uuid):
        self.cloud.simulation.run_until(lambda: self.cloud.database.drains.get(uuid).ended, 900)

    def until_moved(self, instance, source='host1'):
        self.cloud.simulation.run_until(
            lambda: (
                self.cloud.database.instances.get(instance.uuid).host != source
                and not self.cloud.database.migrations.list({'instance_uuid': instance.uuid}, in_progress=True)
            ),
            900,
        )


@pytest.fixture
def site(operator):
    return Watched(operator)


def test_nothing_needs_an_operator(site):
    site.cloud.boot('one', 'host1')
    assert site.lines() == {}
    assert site.operator.observed('status') == 'Nothing needs an operator.\n'


def test_drain_that_leaves_a_guest_is_mended_by_its_commands(site):
    guest = site.cloud.boot('one', 'host1')
    site.cloud.boot('other', 'host1')
    site.cloud.database.instances.update(guest.uuid, locked_by='owner')
    uuid = site.drain()
    site.cloud.simulation.run_until(lambda: 'guest-blocked' in site.lines())
    assert site.lines()['guest-blocked']['commands'] == [f'openstack server unlock {guest.uuid}']
    site.until_ended(uuid)
    assert site.kinds() == ['drain-incomplete']
    line = site.lines()['drain-incomplete']
    assert line['title'] == 'Incomplete: the drain of host1, which has 1 guest left'
    see, retry, restore = line['commands']
    assert (see, retry) == ('migrator-manage drain show host1', 'migrator-manage drain retry host1')
    assert restore == 'migrator-manage drain restore host1'
    site.type(f'openstack server unlock {guest.uuid}')
    site.type(retry)
    site.until_moved(guest)
    (newest, *_) = site.cloud.database.drains.list('host1')
    site.until_ended(newest.uuid)
    assert site.kinds() == ['host-disabled']
    line = site.lines()['host-disabled']
    assert line['since'] is not None
    restore, enable = line['commands']
    assert enable == 'openstack compute service set --enable host1 nova-compute'
    site.type(restore)
    site.until_ended(newest.uuid)
    assert site.lines() == {}


def test_host_that_an_operator_has_disabled_is_no_line_and_the_drain_of_an_enabled_one_neither(site):
    site.set_service('host2', status='disabled')
    assert site.lines() == {}
    uuid = site.drain()
    site.until_ended(uuid)
    site.type(site.lines()['host-disabled']['commands'][1])
    assert site.lines() == {}
    site.set_service('host1', status='disabled')  # by an operator now
    assert site.lines() == {}


def test_failed_migration_stays_until_the_guest_has_moved(site):
    guest = site.cloud.boot('one', 'host1')
    for host in ('host2', 'host3'):
        faults(site.cloud, host).fail('pre_live_migration', 'the disk is full', sticky=True)
    assert site.cloud.live_migrate(guest).status_int == 202
    site.cloud.wait()
    line = site.lines()['migration-failed']
    assert line['title'] == 'Failed: the live migration of one, which the database has on host1'
    see, again = line['commands']
    site.type(again)  # it fails again: the newest failure is shown, and only that
    site.cloud.wait()
    (found,) = site.lines().values()
    assert found['migration_uuid'] != line['migration_uuid']
    for host in ('host2', 'host3'):
        faults(site.cloud, host).clear('pre_live_migration')
    site.type(again)
    assert site.kinds() == ['migration-failed']  # the next one has not ended
    site.cloud.wait()
    assert site.lines() == {}
    assert see == f'migrator-manage migration show {line["migration_uuid"]}'


@pytest.mark.parametrize('how', ['a day later', 'deleted', 'abandoned', 'moved by hand'])
def test_failed_migration_that_is_nobodys_concern_any_more(site, how):
    guest = site.cloud.boot('one', 'host1')
    faults(site.cloud, 'host1').fail('check_can_live_migrate_source', 'it has a tape', sticky=True)
    assert site.cloud.live_migrate(guest).status_int == 202
    site.cloud.wait()
    assert site.kinds() == ['migration-failed']
    old = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    match how:
        case 'a day later':
            site.set(models.MIGRATIONS, created_at=old, updated_at=old)
        case 'deleted':
            site.cloud.database.instances.delete(guest.uuid)
        case 'abandoned':
            site.set(models.MIGRATIONS, abandon_requested_at=old)
        case _:
            site.set(models.INSTANCES, host='host2')
    assert 'migration-failed' not in site.kinds()


def test_host_that_dies_is_declared_down_and_its_guests_are_evacuated(site):
    guest = site.cloud.boot('one', 'host1')
    site.cloud.simulation.advance(240)  # the host reports the guest's definition
    site.cloud.kill('host1')
    site.until('host-down')
    line = site.lines()['host-down']
    assert 'The database has 1 guest there' in line['text']
    site.cloud.world.hypervisors['host1'].power_off()
    site.type(line['commands'][1])
    assert site.kinds() == ['forced-down']
    assert site.lines()['forced-down']['failed'] is True
    site.type(f'openstack server evacuate {guest.uuid}')
    site.until_moved(guest)
    line = site.lines()['forced-down']
    assert (line['failed'], 'The database has no guest there' in line['text']) == (False, True)
    (up,) = line['commands']
    assert up == 'openstack compute service set --up host1 nova-compute'


def test_failed_evacuation_is_offered_again_while_the_host_is_dead(site):
    guest = site.cloud.boot('one', 'host1')
    site.cloud.kill('host1')
    site.cloud.world.hypervisors['host1'].power_off()
    site.until('host-down')
    site.set_service('host1', forced_down=True)
    for host in ('host2', 'host3'):
        faults(site.cloud, host).fail('check_can_evacuate', 'its disks are missing', sticky=True)
    site.type(f'openstack server evacuate {guest.uuid}')
    site.cloud.wait()
    line = site.lines()['migration-failed']
    assert line['commands'][1:] == [f'openstack server evacuate {guest.uuid}']
    site.set(models.SERVICES, forced_down=False, down_since=None)
    assert len(site.lines()['migration-failed']['commands']) == 1
    site.set_service('host1', forced_down=True)
    site.cloud.kill('conductor1')  # no service reads what the host reports, if it is back
    site.until('no-conductor')
    lines = site.lines()
    assert len(lines['migration-failed']['commands']) == 1
    assert lines['forced-down']['commands'] == ['openstack server list --all-projects --host host1']
    assert 'another host' not in lines['forced-down']['text']


def test_host_that_is_back_ends_a_reverted_guest_before_it_is_declared_up(site):
    guest = site.cloud.boot('one', 'host1')
    site.ask('POST', f'/servers/{guest.uuid}/action', {'migrate': {'host': 'host2'}})
    site.cloud.simulation.run_until(lambda: site.cloud.migrations()[0].status == 'finished')
    site.cloud.kill('host2')
    site.set_service('host2', forced_down=True)
    site.ask('POST', f'/servers/{guest.uuid}/action', {'revertResize': None})
    site.cloud.wait()
    site.cloud.start_compute('host2')
    site.cloud.simulation.advance(1)
    line = site.lines()['forced-down']
    assert 'It still has to end copies of guests that are elsewhere. Once' in line['text']
    site.cloud.simulation.advance(60)
    line = site.lines()['forced-down']
    assert 'This lets it be used' in line['text']
    site.type(line['commands'][1])
    assert site.kinds() == []


def test_stuck_migration_and_blocked_cleanup(site):
    guest = site.cloud.boot('one', 'host1', memory_mb=65536)
    assert site.cloud.live_migrate(guest, 'host2').status_int == 202
    site.cloud.simulation.run_until(lambda: site.cloud.database.migrations.list()[0].status == 'running')
    site.cloud.kill('conductor1')
    site.set(models.MIGRATIONS, **stuck_for('no host reports it'))
    (row,) = site.cloud.database.migrations.list()
    line = site.lines()['stuck']
    assert line['text'].startswith('No host reports it')
    assert line['commands'] == [
        f'migrator-manage migration show {row.uuid}',
        f'migrator-manage migration retry {row.uuid}',
    ]
    assert line['otherwise']['commands'] == [
        f'migrator-manage migration abandon {row.uuid} --guest-on {host}' for host in ('host1', 'host2')
    ]
    with site.cloud.database.engine.writer() as session:
        session.execute(
            sa.insert(models.CLEANUPS).values(
                host='host1',
                migration_uuid=row.uuid,
                instance_uuid=guest.uuid,
                input={},
                step='rollback',
                epoch=1,
                reason='away',
                blocked_because='The guest may be there.',
            )
        )
    line = site.lines()['cleanup-blocked']
    assert line['text'].startswith('The guest may be there.')
    site.type(line['commands'][0])
    assert 'cleanup-blocked' not in site.kinds()
    site.until('no-conductor')


def test_words_of_a_user_are_no_command(site):
    guest = site.cloud.boot('one', 'host1')
    evil = f'see openstack server delete --force {guest.uuid}. Then migrator-manage drain cancel host1'
    site.cloud.boot('other', 'host1', memory_mb=8192)
    path, body = f'/servers/{guest.uuid}/action', {'lock': {'locked_reason': evil}}
    assert site.cloud.request('POST', path, body, token='demo:demo').status_int == 202
    uuid = site.drain()
    site.cloud.simulation.run_until(lambda: 'guest-blocked' in site.lines())
    assert site.lines()['guest-blocked']['commands'] == [f'openstack server unlock {guest.uuid}']
    typed = [line for line in site.operator.observed('drain', 'show', uuid).splitlines() if line.startswith('    ')]
    assert typed == [f'    openstack server unlock {guest.uuid}']


def test_paused_drain_waits_for_an_operator(site):
    site.cloud.boot('one', 'host1', memory_mb=8192)
    uuid = site.drain()
    site.operator.observed('drain', 'pause', uuid)
    (resume,) = site.lines()['drain-paused']['commands']
    site.type(resume)
    assert site.lines() == {}


def test_restore_that_has_not_brought_all_guests_back(site):
    guest = site.cloud.boot('one', 'host1')
    uuid = site.drain()
    site.until_ended(uuid)
    site.cloud.database.instances.update(guest.uuid, locked_by='owner')
    site.operator.observed('drain', 'restore', uuid)
    site.until_ended(uuid)
    assert site.kinds() == ['drain-incomplete']
    line = site.lines()['drain-incomplete']
    _see, restore = line['commands']
    assert (line['title'], restore) == ('Incomplete: the restore of host1', 'migrator-manage drain restore host1')
    site.cloud.database.instances.update(guest.uuid, locked_by=None)
    site.type(restore)
    site.until_ended(uuid)
    assert site.lines() == {}


def refuse(site, host, identity='x', refused_as='host2'):
    """Have a machine refused that came instead of host2."""
    (service,) = site.cloud.database.services.list('nova-compute', host)
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    values = {'refused_at': at, 'refused_host': refused_as, 'refused_identity': identity}
    site.cloud.database.services.update(service.id, **values)


def test_machine_that_was_refused(site):
    refuse(site, 'host2')
    line = site.lines()['host-refused']
    assert line['commands'] == ['migrator-manage service list --host host2']
    assert 'came as host2' in line['text']
    assert line['otherwise'] is None, 'the machine of host2 reports'


def test_refused_machine_may_take_the_place_of_one_that_does_not_report(site):
    site.cloud.kill('host2')
    site.cloud.simulation.run_until(
        lambda: site.cloud.database.services.list('nova-compute', 'host2')[0].down_since, 900
    )
    refuse(site, 'host2')
    replace = 'migrator-manage service replace host2 --old-machine-is-off'
    otherwise = site.lines()['host-refused']['otherwise']
    assert otherwise['commands'] == [replace]
    assert otherwise['text'].startswith('Only if the old machine of host2 is off for good')
    (service,) = site.cloud.database.services.list('nova-compute', 'host2')
    refuse(site, 'host2', refused_as='host9')
    assert site.lines()['host-refused']['otherwise'] is None, 'it has another name'
    refuse(site, 'host2', identity=service.identity)
    assert site.lines()['host-refused']['otherwise'] is None, 'it is the machine of host2 itself'
    refuse(site, 'host2')
    site.type(replace)
    assert 'host-refused' not in site.lines()
    refuse(site, 'host2', identity=service.identity)
    assert site.lines()['host-refused']['otherwise'] is None, 'it is the one that was declared off'


@pytest.mark.parametrize(
    ('kind', 'seen', 'remedy', 'more'),
    [
        ('moved', {'host2': 'running'}, 'lets the database and Placement follow', True),
        ('moved', {'host2': 'running', 'host3': 'running'}, 'stop each other one at once', False),
        ('missing', {}, 'start it on host1 again; or, only if the guest itself is lost for good: ', False),
    ],
)
def test_difference_has_the_remedy_of_its_kind(site, kind, seen, remedy, more):
    guest = site.cloud.boot('one', 'host1')
    found = Difference(instance_uuid=guest.uuid, name='one', host='host1', kind=kind, seen=seen)
    site.cloud.database.differences.replace([found])
    line = site.lines()['difference']
    assert remedy in line['text']
    reconcile = 'migrator-manage instance reconcile'
    assert line['commands'] == [f'{reconcile} --dry-run', *([reconcile] if more else [])]


def test_guest_of_a_drain_that_failed_is_tried_again_until_it_has_left(site):
    guest = site.cloud.boot('one', 'host1', memory_mb=1024)
    other = site.cloud.boot('other', 'host1', memory_mb=2048)
    site.cloud.set_option('host1', 'max_concurrent_live_migrations', 2)
    faults(site.cloud, 'host1').fail('cutover', instance_uuid=guest.uuid)
    stall = faults(site.cloud, 'host1').stall('copying', instance_uuid=other.uuid)
    site.drain('host1', '--max-attempts', '1', '--order', 'smallest_first')
    site.until('guest-failed')
    line = site.lines()['guest-failed']
    see, again = line['commands']
    assert see == f'migrator-manage migration show {line["migration_uuid"]}'
    assert 'This was attempt 1 of 1. Try it again: ' in line['text']
    site.type(again)
    assert 'guest-failed' in site.lines(), 'it has not ended'
    site.cloud.simulation.run_until(lambda: site.cloud.database.instances.get(guest.uuid).host != 'host1', 300)
    assert site.cloud.database.drains.list(in_progress=True)
    assert 'guest-failed' not in site.lines()
    stall.release()


def test_dead_host_that_only_a_resize_needs(site):
    guest = site.cloud.boot('one', 'host1')
    site.ask('POST', f'/servers/{guest.uuid}/action', {'migrate': None})
    site.cloud.simulation.run_until(lambda: site.cloud.database.migrations.list()[0].status == 'finished')
    site.cloud.kill('host1')
    site.until('host-down')
    assert '1 migration that need the host' in site.lines()['host-down']['text']


def test_guests_that_are_elsewhere_are_not_evacuated(site):
    guest = site.cloud.boot('one', 'host1')
    site.set_service('host1', forced_down=True)
    site.cloud.database.differences.replace(
        [Difference(instance_uuid=guest.uuid, name='one', host='host1', kind='moved', seen={'host2': 'running'})]
    )
    site.set(models.SERVICES, down_since=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    line = site.lines()['forced-down']
    assert 'evacuate' not in line['text']
    assert 'on another host' in line['text']


def test_guest_that_is_on_no_host(site):
    guest = site.cloud.boot('one', 'host1')
    site.cloud.world.hypervisors['host1'].remove(guest.uuid, 'an operator')
    site.cloud.simulation.advance(240)
    line = site.lines()['difference']
    assert (line['title'], line['failed']) == ('Not as in the database: one is on no host', True)


def test_text_is_wrapped_and_commands_are_not(site, monkeypatch):
    monkeypatch.setenv('COLUMNS', '60')
    guest = site.cloud.boot('one', 'host1')
    faults(site.cloud, 'host1').fail(
        'check_can_live_migrate_source', 'it has a tape \x1b[31m' + 'and more ' * 20, sticky=True
    )
    assert site.cloud.live_migrate(guest).status_int == 202
    site.cloud.wait()
    status, out = site.operator.status('status')
    assert status == 1
    lines = out.splitlines()
    assert lines[0] == '1 thing needs an operator.'
    assert '\x1b' not in out
    for line in lines:
        assert len(line) <= 60 or line.startswith('    ')
    assert f'    openstack server migrate --live-migration {guest.uuid}' in lines


def test_ended_migrations_cost_no_statement_and_failed_ones_are_found_by_an_index(site):
    guest = site.cloud.boot('one', 'host1')
    faults(site.cloud, 'host1').fail('check_can_live_migrate_source', 'it has a tape', sticky=True)
    assert site.cloud.live_migrate(guest).status_int == 202
    site.cloud.wait()
    statements = []
    watching.watch(site.cloud.database.engine, lambda statement, values: statements.append((statement, values)))
    assert len(attention.documents(site.cloud.database, 60)) == 1
    few, statements[:] = len(statements), []
    (row,) = site.cloud.database.migrations.list()
    with site.cloud.database.engine.writer() as session:
        columns = {c.name: getattr(row, c.name) for c in models.MIGRATIONS.c if hasattr(row, c.name)}
        columns |= {'id': None, 'in_progress_instance_uuid': None}
        more = [{**columns, 'uuid': f'{n:08x}-0000-4000-8000-000000000000', 'status': 'completed'} for n in range(500)]
        for one in more:
            del one['id']
            one['instance_uuid'] = one['uuid']
        session.execute(sa.insert(models.MIGRATIONS), more)
    statements.clear()
    assert len(attention.documents(site.cloud.database, 60)) == 1
    assert len(statements) == few
    (sought,) = [(text, values) for text, values in statements if 'abandon_requested_at IS NULL' in text]
    with contextlib.closing(sqlite3.connect(f'{site.cloud.backend.directory}/migrator.sqlite')) as database:
        plan = database.execute(f'EXPLAIN QUERY PLAN {sought[0]}', sought[1]).fetchall()
    assert any('ix_migrations_status' in str(row) for row in plan), plan


def test_commands_are_found_in_the_texts_of_the_table():
    free = [
        kind for kind, row in remedies.TABLE.items() if row.command and '{' not in row.command.replace('{manage}', '')
    ]
    for kind in free:
        for one in remedies.commands_in(f'Do this: {remedies.command(kind, dict.fromkeys(remedies.Reading, False))}.'):
            assert one in remedies.TABLE[kind].command.replace('{manage}', 'migrator-manage')
    guest = '11111111-2222-4333-8444-555555555555'
    text = remedies.offer(remedies.Kind.RESTORE_OR_DELETE, guest=guest)
    assert remedies.commands_in(text) == [
        f'openstack server restore {guest}',
        f'openstack server delete --force {guest}',
    ]
    text = remedies.offer(remedies.Kind.ENABLE, host='host1.example.org')
    assert remedies.commands_in(text) == ['openstack compute service set --enable host1.example.org nova-compute']
    assert remedies.commands_in('') == remedies.commands_in('No command helps.') == []
