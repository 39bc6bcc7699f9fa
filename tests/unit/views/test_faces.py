# SPDX-License-Identifier: Apache-2.0

"""In each of its states a noun has one document: of REST, of ``--json`` and of OSC."""

import json
import pathlib
import re
from urllib import parse

import jsonschema
import pytest
import sqlalchemy as sa

import migrator.api.own.ui
from migrator.api.own import answers
from migrator.db import models
from migrator.db.sql import drain_rows
from migrator.objects import MigrationStatus
from migrator.objects.drain import DrainStatus, MemberStatus
from migrator.operator.osc import drain as osc
from migrator.operator.watch import subjects
from migrator.placement_client import allocation_state, allocations
from tests.unit.operator.cli.conftest import operator
from tests.unit.operator.cli.test_drain import shown_of

__all__ = ['operator']

ROOT = '/migrator/v1'


class Known(dict):
    """A document that refuses keys which it lacks, where ``get`` would hide that."""

    def get(self, key, default=None):
        assert key in self, f'{key} is in no document'
        return super().get(key, default)


def known(value):
    if isinstance(value, dict):
        return Known({key: known(one) for key, one in value.items()})
    return [known(one) for one in value] if isinstance(value, list) else value


class Faces:
    """The faces of one cloud, in which nothing moves."""

    def __init__(self, operator):
        self.operator, self.cloud = operator, operator.cloud
        self.now = self.cloud.database.services.now

    def rest(self, path, schema):
        found = self.cloud.request('GET', f'{ROOT}{path}').json
        jsonschema.validate(found, schema)
        return found

    def set(self, table, **values):
        with self.cloud.database.engine.writer() as session:
            session.execute(sa.update(table).values(**values))

    def watched(self, kind, name):
        """Look once, as ``watch`` does; the subject refuses a key that its document lacks."""

        def get(path, **query):
            found = self.cloud.request('GET', f'{ROOT}{path}?{parse.urlencode(query)}').json
            return found if path.endswith('/events') else known(found)  # what an event has depends on its kind

        return getattr(subjects, kind)(get, self.now, name).look()


@pytest.fixture
def faces(operator):
    return Faces(operator)


@pytest.fixture
def drain(faces):
    cloud = faces.cloud
    for number in range(2):
        cloud.boot(f'guest{number}', 'host1')
    uuid = faces.operator.json('drain', 'start', 'host1', '--reason', 'disks')['uuid']
    cloud.simulation.run_until(lambda: cloud.database.drains.counts([uuid])[uuid]['moving'] > 0)
    cloud.kill('conductor1')
    return uuid


def test_report_of_a_drain_is_the_same_by_rest_and_by_the_commands(faces, drain):
    faces.set(drain_rows.DrainRow.__table__, status='incomplete', checks=[{'what': 'guests', 'left': ['a|b *c*']}])
    faces.set(drain_rows.DrainMember.__table__, status='failed', reason='No | host\x1b[2J <b>has</b> room.')
    found = faces.rest(f'/drains/{drain}/report', answers.DRAIN_REPORT)['report']
    assert faces.operator.json('drain', 'report', drain) == found
    assert [one['attempts'] for one in found['runs'][0]['members']] == [1, 1]
    faces.set(drain_rows.DrainRow.__table__, reason='\x1b[31mred\nGuests: none')
    lines = faces.operator.observed('drain', 'report', 'host1').splitlines()
    assert not any('\x1b' in line or line == 'Guests: none' for line in lines)
    assert lines[0] == f'Drain: {drain} of host1: incomplete'
    assert sum('failed' in line and line.startswith('guest') for line in lines) == 2
    assert lines[-1] == 'guests: a|b *c*'
    text = faces.operator.observed('drain', 'report', drain, '--markdown')
    assert '# Drain of host1: incomplete' in text
    (row, _) = (line for line in text.splitlines() if line.startswith('| guest'))
    assert row.count(' | ') == 6
    assert '\\<b\\>has' in row
    assert 'guests: a\\|b \\*c\\*' in text
    assert '\x1b' not in text


STATES = [
    *({'status': status.value} for status in DrainStatus),
    *(
        {'status': 'running', **more}
        for more in ({'paused': True}, {'direction': 'back'}, {'has_disabled_host': False})
    ),
    {'status': 'incomplete', 'message': 'One is left.', 'checks': [{'what': 'guests', 'left': ['one']}]},
]


@pytest.mark.parametrize('state', STATES, ids=str)
def test_drain_in_each_state(faces, drain, state):
    faces.set(drain_rows.DRAINS, **state)
    found = faces.rest(f'/drains/{drain}', answers.DRAIN)['drain']
    assert faces.operator.json('drain', 'show', drain) == found
    assert shown_of(faces.cloud, osc.ShowDrain, drain) == found
    (listed,) = faces.rest('/drains', answers.DRAINS)['drains']
    assert listed == {name: value for name, value in found.items() if name not in ('members', 'expected')}
    assert faces.operator.json('drain', 'list')['drains'] == [listed]
    assert faces.watched('Drain', drain).title


@pytest.mark.parametrize('status', [status.value for status in MemberStatus])
def test_guest_of_a_drain_in_each_state(faces, drain, status):
    faces.set(drain_rows.DrainMember.__table__, status=status, reason='as it is')
    found = faces.rest(f'/drains/{drain}', answers.DRAIN)['drain']['members']
    page = faces.rest(f'/drains/{drain}/members', answers.MEMBERS)['members']
    assert [{name: value for name, value in one.items() if name != 'migrations'} for one in page] == found
    assert faces.operator.json('drain', 'show', drain)['members'] == found
    assert shown_of(faces.cloud, osc.ShowDrain, drain)['members'] == found
    assert {one['status'] for one in found} == {status}


@pytest.mark.parametrize('status', [status.value for status in MigrationStatus])
def test_migration_in_each_state(faces, drain, status):
    faces.set(models.MIGRATIONS, status=status)
    whole = faces.rest('/migrations?expected=true', answers.MIGRATIONS)['migrations']
    assert faces.operator.json('migration', 'list')['migrations'] == whole
    for uuid in [one['uuid'] for one in whole]:
        found = faces.rest(f'/migrations/{uuid}', answers.MIGRATION)['migration']
        timeline = faces.rest(f'/migrations/{uuid}/timeline', answers.TIMELINE)['timeline']
        assert faces.operator.json('migration', 'show', uuid) == found | {'timeline': timeline}
        assert faces.watched('Migration', uuid).title


def test_hosts_cleanups_services_and_differences(faces, drain):
    operator, cloud = faces.operator, faces.cloud
    (one, *_) = cloud.database.migrations.list()
    entry = {'host': 'host1', 'migration_uuid': one.uuid, 'instance_uuid': one.instance_uuid, 'input': {}}
    with cloud.database.engine.writer() as session:
        for step, blocked in (('cleanup', None), ('rollback', 'look first')):
            session.execute(
                sa.insert(models.CLEANUPS).values(step=step, reason='away', blocked_because=blocked, epoch=1, **entry)
            )
    cleanups = faces.rest('/cleanups', answers.CLEANUPS)['cleanups']
    assert {each['state'] for each in cleanups} == {'pending', 'blocked'}
    assert operator.json('cleanup', 'list')['cleanups'] == cleanups
    assert faces.rest('/hosts/host1', answers.HOST)['host']['cleanups'] == cleanups
    assert operator.json('service', 'list') == faces.rest('/services', answers.SERVICES)
    assert [one['name'] for one in faces.rest('/hosts', answers.HOSTS)['hosts']] == ['host1', 'host2', 'host3']
    assert faces.watched('Host', 'host1').notes


def test_findings_and_differences(faces, monkeypatch):
    operator, cloud = faces.operator, faces.cloud
    monkeypatch.setattr('migrator.operator.cli.command.Asked.placement', lambda _asked: cloud.placement_client)
    guest = cloud.boot('guest', 'host1')
    cloud.world.hypervisors['host1'].remove(guest.uuid, 'an operator')
    cloud.simulation.advance(240)
    (difference,) = faces.rest('/differences', answers.DIFFERENCES)['differences']
    assert (difference['name'], difference['kind']) == ('guest', 'missing')
    assert faces.rest('/hosts/host1', answers.HOST)['host']['differences'] == [difference]
    (service,) = operator.json('service', 'list', '--host', 'host1')['services']
    assert service['differences'] == 1
    node = next(one.uuid for one in cloud.database.services.list_nodes() if one.host == 'host2')
    stranger = allocation_state.Consumer(
        uuid='00000000-0000-4000-8000-00000000dead', consumer_type='INSTANCE', project_id='demo', user_id='demo'
    )
    allocations.claim(cloud.placement_client, stranger, {node: {'VCPU': 1}}, generation=None)
    findings = faces.rest('/findings', answers.FINDINGS)['findings']
    status, out = operator.status('--json', 'placement', 'audit')
    assert (status, json.loads(out)['findings']) == (1, findings)
    assert {one['consumer'] for one in findings} == {stranger.uuid}


#: What the page's own code and the browser have under such names.
_OF_THE_PAGE = {'w3', 'of_nova', 'of_services', 'drain_command', 'is_evacuation'}


def test_page_reads_no_key_that_no_schema_has():
    def keys(schema):
        for name, one in schema.get('properties', {}).items():
            yield name
            yield from keys(one)
        yield from keys(schema['items']) if 'items' in schema else ()

    schemas = [one for one in vars(answers).values() if isinstance(one, dict)]
    known = {name for schema in schemas for name in keys(schema)}
    text = '\n'.join(path.read_text() for path in pathlib.Path(migrator.api.own.ui.__file__).parent.glob('*.js'))
    read = set(re.findall(r'\.([a-z][a-z0-9]*_[a-z0-9_]+)\b', text))
    assert len(read) > 15
    assert read - known - _OF_THE_PAGE == set()
