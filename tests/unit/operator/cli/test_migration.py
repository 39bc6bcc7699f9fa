# SPDX-License-Identifier: Apache-2.0

"""migrator-manage migration: the list of migrations, and the timeline of one."""

import pytest

from tests.unit.operator.cli import managing


def migrate(operator, name, source='host1', host=None, **options):
    """Request a live migration, and return the instance and its migration."""
    instance = operator.cloud.boot(name, source, **options)
    assert operator.cloud.live_migrate(instance, host).status_int == 202
    return instance, operator.cloud.migrations(instance)[0]


def sections(text):
    """Return the tables of a timeline by their titles."""
    parts = [part.splitlines() for part in text.strip('\n').split('\n\n')]
    return {lines[0]: managing.table(lines[1:]) for lines in parts[2:-1]}


@pytest.fixture
def three(operator):
    """A migration that has ended, one that runs, and one that is queued."""
    first = migrate(operator, 'first', source='host2', host='host3')
    operator.cloud.wait()
    second = migrate(operator, 'second', memory_mb=8192, host='host2')
    third = migrate(operator, 'third', memory_mb=8192, host='host3')
    operator.cloud.simulation.advance(1)
    return first, second, third


def test_the_list_shows_status_hosts_and_owner(operator, three):
    rows = operator.rows('migration', 'list')
    assert [tuple(row[name] for name in ('ID', 'TYPE', 'STATUS', 'SOURCE', 'DESTINATION')) for row in rows] == [
        ('3', 'live-migration', 'queued', 'host1', 'host3'),
        ('2', 'live-migration', 'running', 'host1', 'host2'),
        ('1', 'live-migration', 'completed', 'host2', 'host3'),
    ]
    for row, (instance, migration) in zip(rows, reversed(three), strict=True):
        assert (row['UUID'], row['INSTANCE']) == (migration.uuid, instance.uuid)
        assert (row['CONDUCTOR'], row['REMARK'], row['GUEST']) == ('conductor1', '-', instance.name)
        assert (row['PLACE'], row['EXPECTED END']) == ('1' if row['STATUS'] == 'queued' else '-', '-')
        assert row['CREATED'].startswith('2026-01-01 00:00:0')


def test_a_cold_migration_waits_for_its_user_until_the_user_decides(operator):
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    action, newest = f'/servers/{instance.uuid}/action', lambda: cloud.migrations(instance)[-1]
    assert cloud.request('POST', action, {'migrate': None}, version='2.80').status_int == 202
    cloud.simulation.run_until(lambda: newest().status == 'finished')
    (row,) = operator.rows('migration', 'list')
    remark = 'waits for its user to confirm or to revert it'
    assert (row['TYPE'], row['STATUS'], row['REMARK']) == ('migration', 'finished', remark)
    assert cloud.request('POST', action, {'confirmResize': None}, version='2.80').status_int == 204
    (row,) = operator.rows('migration', 'list')
    assert row['REMARK'] == '-'


def test_a_deferred_cleanup_and_its_block_are_remarked(operator):
    cloud = operator.cloud
    cloud.world.hypervisors['host1'].faults.fail('post_live_migration_at_source', 'it will not go', sticky=True)
    _, migration = migrate(operator, 'one', host='host2')
    cloud.wait(600)
    step = 'post_live_migration_at_source'
    (row,) = operator.rows('migration', 'list')
    assert (row['STATUS'], row['REMARK']) == ('completed', f'host1 still has to do {step}')
    (host1,) = operator.rows('service', 'list', '--host', 'host1')
    assert host1['REMARK'] == 'deferred cleanups: 1'
    (cleanup,) = cloud.database.cleanups.list()
    cloud.database.cleanups.block(cleanup, 'look first')
    (row,) = operator.rows('migration', 'list', '--host', 'host1')
    assert row['REMARK'] == f'host1 still has to do {step}, blocked: look first'
    (host1, host2) = (operator.rows('service', 'list', '--host', name)[0] for name in ('host1', 'host2'))
    assert (host1['REMARK'], host2['REMARK']) == ('deferred cleanups: 1, 1 blocked', '-')
    ((cleanup,), uuid) = operator.json('migration', 'show', migration.uuid)['cleanups'], migration.uuid
    shown = tuple(cleanup[name] for name in ('migration_uuid', 'host', 'step', 'blocked_because'))
    assert shown == (uuid, 'host1', step, 'look first')
    (service,) = operator.json('service', 'list', '--host', 'host1')['services']
    assert service['cleanups'] == {'pending': 1, 'blocked': 1}


def test_the_list_is_filtered(operator, three):
    for filters, ids in (
        (('--in-progress',), '32'),
        (('--status', 'completed'), '1'),
        (('--status', 'completed', '--status', 'queued'), '31'),
        (('--host', 'host2'), '21'),
        (('--host', 'host1', '--status', 'running'), '2'),
        (('--limit', '3'), '321'),
        (('--status', 'error'), ''),
    ):
        assert [row['ID'] for row in operator.rows('migration', 'list', *filters)] == list(ids), filters
        found = operator.json('migration', 'list', *filters)
        assert [str(one['id']) for one in found['migrations']] == list(ids), filters
        assert found['more'] is False


def test_the_list_of_one_instance_shows_that_there_are_more(operator, three):
    instance, migration = three[1]
    (row,) = operator.rows('migration', 'list', '--instance', instance.uuid)
    assert row['UUID'] == migration.uuid
    assert (
        operator.observed('migration', 'list', '--limit', 2).splitlines()[-1]
        == 'There are more: --limit shows 2 of them.'
    )
    assert operator.json('migration', 'list', '--limit', 2)['more'] is True


def test_show_begins_with_what_the_migration_waits_for(operator, three):
    instance, migration = three[2]
    text = operator.observed('migration', 'show', migration.uuid)
    lines = text.splitlines()
    assert lines[0] == f'Migration {migration.uuid} (id 3): queued'
    assert lines[1] == f'live-migration of instance {instance.uuid} (third), from host1 to host3'
    assert lines[3] == '* It is number 1 in the queue of host1, where 1 runs now.'
    found = sections(text)
    (whose,) = found['Owner']
    assert (whose['CONDUCTOR'], whose['EPOCH'], whose['ATTEMPT'], whose['OUTCOME']) == ('conductor1', '1', '1', '-')
    assert whose['LEASE'].endswith(' s left')
    assert [(row['ROLE'], row['HOST'], row['SERVICE']) for row in found['Hosts']] == [
        ('source', 'host1', 'up'),
        ('destination', 'host3', 'up'),
    ]
    assert [(row['WHAT'], row['CONDUCTOR'], row['EPOCH']) for row in found['Timeline (UTC)']] == [
        ('status accepted: admin requested it, to host3', '-', '0'),
        ('status preparing', 'conductor1', '1'),
        (
            'move_allocation: done; the instance holds its allocation (VCPU 1, MEMORY_MB 8192, DISK_GB 1) at host3, '
            'and the migration the one at the source',
            'conductor1',
            '1',
        ),
        ('check_can_live_migrate_destination at host3: done', 'conductor1', '1'),
        ('check_can_live_migrate_source at host1: done', 'conductor1', '1'),
        ('pre_live_migration at host3: done', 'conductor1', '1'),
        ('status queued', 'conductor1', '1'),
        ('live_migration at host1: begun', 'conductor1', '1'),
    ]
    assert text.splitlines()[-2] == 'What happens next'
    assert text.splitlines()[-1].startswith('When the copy has ended, host1 reports it, and host3 is polled')
    (request,) = found['Requests']
    assert (request['ACTION'], request['REQUEST']) == ('live-migration', migration.request_id)
    assert 'Deferred cleanups' not in found
    # The id shows the same as the uuid.
    assert operator.observed('migration', 'show', migration.id) == text


def test_show_in_json_has_the_same_timeline(operator, three):
    _instance, migration = three[1]
    found = operator.json('migration', 'show', migration.uuid)
    timeline = found['timeline']
    assert found['status'] == 'running'
    assert timeline['owner']['server'] == 'conductor1'
    assert (timeline['owner']['epoch'], timeline['owner']['living']) == (1, True)
    assert [entry['status'] for entry in found['statuses']] == ['accepted', 'preparing', 'queued', 'running']
    assert [(step['step'], step['state']) for step in found['steps']][-1] == ('live_migration', 'intent')
    assert [line['what'] for line in timeline['events']][-1] == 'status running'
    assert timeline['next'][0].startswith('When the copy has ended')
    assert timeline['waits'] == [line.removeprefix('* ') for line in operator.observed(
        'migration', 'show', migration.uuid).splitlines() if line.startswith('* ')]  # fmt: skip


def test_a_failed_attempt_and_its_undo_are_in_the_timeline(operator):
    operator.cloud.world.hypervisors['host2'].faults.fail('pre_live_migration', reason='no such bridge')
    _instance, migration = migrate(operator, 'one')
    operator.cloud.wait()
    found = sections(operator.observed('migration', 'show', migration.uuid))
    reported = [row['WHAT'] for row in found['Timeline (UTC)']]
    failed = 'The hypervisor of host2 failed in pre_live_migration: no such bridge'
    why = f'Host host2 could not prepare for the guest: {failed}'
    first = reported.index('pre_live_migration at host2: begun')
    assert reported[first + 1 : first + 5] == [
        f'pre_live_migration at host2: not done; {why}',
        'rollback_live_migration_at_destination at host2: done',
        'return_allocation: done',
        'attempt 2: the next candidate is host3',
    ]


def test_a_deferred_cleanup_is_in_the_timeline(operator):
    _instance, migration = migrate(operator, 'one', memory_mb=8192)
    operator.cloud.simulation.run_until(lambda: operator.cloud.migrations()[0].status == 'running')
    operator.cloud.kill('host1')
    operator.cloud.wait(900)
    text = operator.observed('migration', 'show', migration.uuid)
    (cleanup,) = sections(text)['Deferred cleanups']
    assert (cleanup['HOST'], cleanup['STEP'], cleanup['BLOCKED']) == ('host1', 'post_live_migration_at_source', '-')
    (line,) = [line for line in text.splitlines() if line.startswith('* host1 has the deferred cleanup')]
    assert 'post_live_migration_at_source' in line
    assert '* host1 runs it when its compute service is back.' in text


def test_uuid_of_a_guest_shows_its_migration_but_does_not_abandon_it(operator, three):
    instance, migration = three[1]
    assert operator.json('migration', 'show', instance.uuid)['uuid'] == migration.uuid
    status, out = operator.status('migration', 'abandon', instance.uuid, '--guest-on', 'host1')
    assert (status, out) == (1, '')
    assert f'it is a guest, whose migration is {migration.uuid}' in operator.err


@pytest.mark.parametrize('words', [('999',), ('99999999999999999999',), ('00000000-0000-4000-8000-000000000000',)])
def test_show_of_a_missing_migration_exits_1(operator, words):
    status, out = operator.status('migration', 'show', *words)
    assert (status, out) == (1, '')
    assert f'Migration {words[0]} could not be found' in operator.err


@pytest.mark.parametrize(
    'words',
    [
        ('show',),
        ('show', ''),
        ('show', '1', '2'),
        ('list', '--status', 'asleep'),
        ('list', '--limit', '0'),
        ('list', '--limit', 'ten'),
        ('list', '--instance', ''),
        ('abandon', 'web', '--guest-on', 'host1'),
    ],
)
def test_wrong_usage_exits_2_with_one_line(refused, words):
    said = refused('migration', *words)
    assert said.count('\n') == 1
    assert '--help' in said


def test_control_characters_of_a_name_are_not_printed(operator):
    instance = operator.cloud.boot('a\x1b[2Jb\nc', 'host1')
    assert operator.cloud.live_migrate(instance).status_int == 202
    operator.cloud.wait()
    for words in (('instance', 'list'), ('migration', 'show', '1')):
        text = operator.observed(*words)
        assert '\x1b' not in text
        assert r'a\x1b[2Jb\nc' in text
