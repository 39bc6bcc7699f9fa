# SPDX-License-Identifier: Apache-2.0

"""os-migrateLive: its forms, its refusals, and the answer below 2.34."""

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.db import models
from migrator.objects import IN_PROGRESS, MigrationStatus
from tests.reasons import stuck_for


def only_migration(world):
    (found,) = world.database.migrations.list()
    return found


# --- accepted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('version', 'arguments', 'kept'),
    [
        ('2.1', {'host': 'dest', 'block_migration': True, 'disk_over_commit': True}, ('dest', True, True, False)),
        ('2.1', {'host': None, 'block_migration': 'false', 'disk_over_commit': '0'}, (None, False, False, False)),
        ('2.25', {'host': 'dest', 'block_migration': 'auto'}, ('dest', None, False, False)),
        ('2.30', {'host': 'dest', 'block_migration': False, 'force': True}, ('dest', False, False, True)),
        ('2.67', {'host': 'dest', 'block_migration': 'auto', 'force': 'false'}, ('dest', None, False, False)),
        ('2.68', {'host': None, 'block_migration': 'auto'}, (None, None, False, False)),
    ],
)
def test_each_form_is_accepted_and_kept_as_it_was_asked_for(world, version, arguments, kept):
    guest = world.guest()
    world.conductor.does = lambda uuid: world.move(uuid, checked_at='now')
    response = world.ask('POST', f'/servers/{guest.uuid}/action', {'os-migrateLive': arguments}, version=version)
    assert response.status_int == 202
    assert response.body == b''
    row = only_migration(world)
    assert (row.requested_host, row.block_migration, row.disk_over_commit, row.force) == kept
    assert row.dest_compute == row.requested_host
    assert (row.status, row.source_compute, row.source_node) == ('accepted', 'source', 'source.example.org')
    assert row.request_id == response.headers['X-OpenStack-Request-Id']
    assert (row.user_id, row.project_id) == ('admin', 'admin')


def test_a_paused_server_can_be_migrated(world):
    assert world.migrate(world.guest(vm_state='paused', power_state=3)).status_int == 202


def test_an_administrator_may_migrate_a_locked_server(world):
    assert world.migrate(world.guest(locked_by='owner')).status_int == 202


def test_own_host_from_2_34_is_accepted_and_left_to_conductor(world):
    assert world.migrate(world.guest(), version='2.34', host='source').status_int == 202
    assert only_migration(world).requested_host == 'source'


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('version', 'arguments', 'words'),
    [
        ('2.1', {'host': 'dest'}, ['block_migration', 'required']),
        ('2.1', {'host': 7, 'block_migration': False, 'disk_over_commit': False}, ['host', '7', 'the name of a host']),
        ('2.1', {'host': None, 'block_migration': 1, 'disk_over_commit': False}, ['block_migration', 'true or false']),
        ('2.29', {'host': 'dest', 'block_migration': 'auto', 'force': True}, ['force', 'unexpected']),
        (
            '2.68',
            {'host': 'dest', 'block_migration': 'auto', 'force': True},
            ['force', '2.68', 'block_migration, host'],
        ),
        ('2.80', [], ['os-migrateLive']),
    ],
)
def test_body_of_another_version_returns_400_with_the_field(world, version, arguments, words):
    guest = world.guest()
    before = world.rows()
    response = world.ask('POST', f'/servers/{guest.uuid}/action', {'os-migrateLive': arguments}, version=version)
    world.refuses(response, 400, 'badRequest', *words, since=before)


def test_an_unknown_server_is_a_404(world):
    guest = world.guest()
    unknown = guest.replace(uuid='0' * 8 + '-0000-4000-8000-' + '0' * 12)
    before = world.rows()
    world.refuses(world.migrate(unknown), 404, 'itemNotFound', unknown.uuid, since=before)


def test_another_projects_server_is_a_404_and_not_a_403(roles):
    guest = roles.guest(project='blue')
    before = roles.rows()
    for token in ('manager:eve:red', 'reader:eve:red'):
        roles.refuses(roles.migrate(guest, token=token), 404, 'itemNotFound', guest.uuid, since=before)


def test_a_member_may_not_and_a_manager_of_the_project_may(roles):
    guest = roles.guest(project='blue')
    before = roles.rows()
    roles.refuses(
        roles.migrate(guest, token='member:eve:blue'), 403, 'forbidden', 'os-migrate-server:migrate_live', since=before
    )
    assert roles.migrate(guest, token='manager:eve:blue').status_int == 202


def test_only_an_administrator_may_name_the_host(roles):
    guest = roles.guest(project='blue')
    before = roles.rows()
    refused = roles.migrate(guest, token='manager:eve:blue', host='dest')
    roles.refuses(refused, 403, 'forbidden', 'migrate_live:host', since=before)
    assert roles.migrate(guest, token='admin:root:admin', host='dest').status_int == 202


def test_locked_server_returns_409_unless_administrator(roles):
    guest = roles.guest(project='blue', locked_by='owner')
    before = roles.rows()
    response = roles.migrate(guest, token='manager:eve:blue')
    roles.refuses(response, 409, 'conflictingRequest', 'is locked', since=before)


@pytest.mark.nova_bug(1785031)
@pytest.mark.parametrize(
    ('versions', 'state', 'arguments', 'code', 'words'),
    [
        (['2.1', '2.30', '2.80'], {'vm_state': 'stopped'}, {}, 409, 'vm_state stopped'),
        (['2.1', '2.30', '2.80'], {'vm_state': 'error'}, {}, 409, 'vm_state error'),
        (['2.1', '2.30', '2.80'], {'task_state': 'rebuilding'}, {}, 409, 'task_state rebuilding'),
        (['2.1', '2.30', '2.34', '2.80'], {}, {'host': 'nowhere'}, 400, 'nowhere'),
        (['2.1', '2.30', '2.33'], {}, {'host': 'source'}, 400, 'current host source'),
        (['2.80'], {}, {'host': 'control'}, 400, 'control'),
        (['2.30'], {}, {'force': True}, 400, 'without a host'),
    ],
    ids=['stopped', 'error', 'rebuilding', 'unknown host', 'own host', "a conductor's host", 'force without host'],
)
def test_request_that_cannot_be_met_is_refused_and_changes_no_state(world, versions, state, arguments, code, words):
    """In nova the host was looked up after the state change."""
    world.database.services.report('control', 'nova-conductor', 4)
    guest = world.guest(**state)
    before = world.rows()
    fault = {400: 'badRequest', 409: 'conflictingRequest'}[code]
    for version in versions:
        world.refuses(world.migrate(guest, version, **arguments), code, fault, words, since=before)


@pytest.mark.parametrize('version', ['2.30', '2.80'])
def test_a_migration_in_progress_is_a_409_that_names_it(world, version):
    guest = world.guest()
    assert world.migrate(guest).status_int == 202
    world.threads.seconds += 12
    (one,) = world.database.migrations.list()
    before = world.rows()
    said = f'task_state migrating: migration {one.id}, accepted 12 s ago, is accepted: wait for it to end, or abort it.'
    world.refuses(world.migrate(guest, version=version), 409, 'conflictingRequest', said, since=before)


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        ({'status': 'running'}, 'is running: wait for it to end, or abort it.'),
        ({'status': 'running (post-copy)'}, 'is running (post-copy): wait for it to end, which no abort can prevent.'),
        ({'status': 'post-migrating'}, 'is post-migrating: wait for it to end, which no abort can prevent.'),
        ({'status': 'running', 'abort_requested_at': 'now'}, 'is running and is being aborted: wait for it to end.'),
        ({'status': 'running', **stuck_for('source says nothing')}, 'is running and stuck: ask an operator to look'),
    ],
)
def test_409_describes_the_migration_in_progress_and_the_remedy(world, fields, said):
    guest = world.guest()
    one = world.migration(guest)
    if 'abort_requested_at' in fields:
        fields = fields | {'abort_requested_at': world.threads.now()}
    world.move(one.uuid, **fields)
    world.threads.seconds += 90
    response = world.migrate(guest)
    world.refuses(response, 409, 'conflictingRequest', f'migration {one.id}, accepted 90 s ago, {said}')
    assert 'source says nothing' not in response.text


@pytest.mark.parametrize(
    ('ended', 'said'),
    [
        ([], 'vm_state error: it has to be active or paused; it has no migration.'),
        (['failed', 'error'], 'it has to be active or paused; its last migration, {id}, ended error 3 min ago.'),
    ],
)
def test_409_for_server_state_names_allowed_states_and_last_migration(world, ended, said):
    guest = world.guest()
    ids = [world.migration(guest, status).id for status in ended]
    world.database.instances.update(guest.uuid, vm_state='error')
    world.threads.seconds += 180
    world.refuses(world.migrate(guest), 409, 'conflictingRequest', said.format(id=max(ids, default=None)))


def test_409_for_another_task_names_the_task(world):
    guest = world.guest(task_state='rebuilding')
    said = 'task_state rebuilding: that has to end first; it has no migration.'
    world.refuses(world.migrate(guest), 409, 'conflictingRequest', said)


def test_server_that_moved_meanwhile_returns_409_with_its_last_migration(world, monkeypatch):
    guest = world.guest()
    one = world.migration(guest, 'completed')
    world.database.instances.update(guest.uuid, host='dest')
    monkeypatch.setattr(world.database.instances, 'get', lambda uuid: guest)
    said = f'has moved meanwhile: its last migration, {one.id}, ended completed 0 s ago. Try again.'
    response = world.migrate(guest)
    world.refuses(response, 409, 'conflictingRequest', said)
    assert 'dest' not in response.text


@pytest.mark.parametrize(
    ('lock', 'said'),
    [
        ({'locked_by': 'owner'}, 'is locked by its owner: unlock it first.'),
        ({'locked_by': 'admin'}, 'is locked by an administrator: ask one to unlock it.'),
        (
            {'locked_by': 'admin', 'locked_reason': 'disk check'},
            "is locked by an administrator ('disk check'): ask one to unlock it.",
        ),
    ],
)
def test_409_for_locked_server_names_locker_and_reason(roles, lock, said):
    guest = roles.guest(project='blue', **lock)
    roles.refuses(roles.migrate(guest, token='manager:eve:blue'), 409, 'conflictingRequest', said)


def test_too_many_waiting_at_the_source_is_a_403_that_names_the_option(world):
    world.conf.set_override('max_queued_live_migrations', 1, group='api')
    assert world.migrate(world.guest('one')).status_int == 202
    guest = world.guest('two')
    before = world.rows()
    world.refuses(world.migrate(guest), 403, 'forbidden', 'max_queued_live_migrations', 'source', since=before)
    assert world.migrate(world.guest('three', host='spare')).status_int == 202


def test_too_many_waiting_does_not_show_a_tenant_which_host_it_is(roles):
    roles.conf.set_override('max_queued_live_migrations', 1, group='api')
    assert roles.migrate(roles.guest('one', project='blue'), token='manager:eve:blue').status_int == 202
    response = roles.migrate(roles.guest('two', project='blue'), token='manager:eve:blue')
    roles.refuses(response, 403, 'forbidden', 'max_queued_live_migrations', 'The host of the server')
    assert 'source' not in response.text


# --- below 2.34 ------------------------------------------------------------------------------------------------------


def test_below_2_34_answer_waits_only_for_the_checks(world):
    world.conductor.does = lambda uuid: world.move(uuid, checked_at='now', status='preparing')
    assert world.migrate(world.guest(), '2.30').status_int == 202
    assert world.conductor.calls == [('live_migrate', only_migration(world).uuid)]
    assert world.threads.slept == []


@pytest.mark.parametrize('version', ['2.1', '2.25', '2.30', '2.33'])
@pytest.mark.parametrize(
    'failure',
    [
        'No valid host was found. Placement has no room.',
        'Compute service of dest is unavailable at this time: it is down.',
        'Migration pre-check error: the processors differ.',
    ],
)
def test_below_2_34_a_failed_check_is_a_400_with_its_reason(world, version, failure):
    world.conductor.does = lambda uuid: world.move(uuid, status='failed', failure=failure)
    guest = world.guest()
    world.refuses(world.migrate(guest, version, host='dest'), 400, 'badRequest', failure)
    assert world.database.instances.get(guest.uuid).task_state is None


def test_failed_check_from_2_34_returns_202_and_fails_row(world):
    world.conductor.does = lambda uuid: world.move(uuid, status='failed', failure='No valid host was found.')
    guest = world.guest()
    assert world.migrate(guest, '2.34').status_int == 202
    assert world.get('/os-migrations')['migrations'][0]['status'] == 'failed'


def test_failed_check_shows_a_tenant_one_of_its_sentences(roles):
    texts = {'failure': 'No valid host was found. dest: too small.', 'failure_kind': 'no-valid-host'}
    roles.conductor.does = lambda uuid: roles.move(uuid, status='failed', **texts)
    response = roles.migrate(roles.guest(project='blue'), '2.30', token='manager:eve:blue')
    roles.refuses(response, 400, 'badRequest', 'No valid host was found.')
    assert 'dest' not in response.text


def test_below_2_34_pauses_between_reads_grow_to_half_a_second(world):
    sleep = world.threads.sleep

    def meanwhile(seconds):
        sleep(seconds)
        if len(world.threads.slept) == 6:
            world.move(only_migration(world).uuid, checked_at='now')

    world.threads.sleep = meanwhile
    assert world.migrate(world.guest(), '2.30').status_int == 202
    assert world.threads.slept == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_below_2_34_unreachable_conductor_returns_202_at_once(world):
    def away(uuid):
        raise exception.RPCTimeout(target='conductor', method='live_migrate', timeout=60)

    world.conductor.does = away
    assert world.migrate(world.guest(), '2.30').status_int == 202
    assert world.threads.slept == []


def test_time_out_of_checks_returns_202(world):
    world.conf.set_override('sync_timeout', 2, group='api')
    assert world.migrate(world.guest(), '2.30').status_int == 202
    assert 2 <= sum(world.threads.slept) < 2.5
    assert only_migration(world).status == 'accepted'


def test_server_that_just_moved_returns_409_without_host_name(roles, monkeypatch):
    guest = roles.guest(project='blue')
    roles.database.instances.update(guest.uuid, host='spare')
    before = roles.rows()
    monkeypatch.setattr(roles.database.instances, 'get', lambda uuid: guest)
    response = roles.migrate(guest, token='manager:eve:blue')
    roles.refuses(response, 409, 'conflictingRequest', 'Try again', since=before)
    assert 'spare' not in response.text


def test_database_lost_after_commit_returns_202(world, monkeypatch):
    world.conf.set_override('sync_timeout', 1, group='api')

    def away(uuid):
        raise exception.DatabaseUnreachable(reason='gone')

    monkeypatch.setattr(world.database.migrations, 'get', away)
    assert world.migrate(world.guest(), '2.30').status_int == 202


def test_a_migration_that_was_aborted_meanwhile_is_a_202(world):
    world.conductor.does = lambda uuid: world.move(uuid, status='cancelled')
    assert world.migrate(world.guest(), '2.30').status_int == 202


def test_a_failure_after_the_checks_is_a_202(world):
    world.conductor.does = lambda uuid: world.move(uuid, checked_at='now', status='failed', failure='later')
    assert world.migrate(world.guest(), '2.30').status_int == 202


@pytest.mark.parametrize('status', sorted(IN_PROGRESS - {MigrationStatus.ACCEPTED}))
def test_server_with_migration_in_progress_returns_409(world, status):
    guest = world.guest()
    world.migration(guest, status)
    before = world.rows()
    world.refuses(world.migrate(guest), 409, 'conflictingRequest', since=before)


def test_unreachable_database_returns_503_without_its_address(world, monkeypatch):
    def away(uuid):
        raise exception.DatabaseUnreachable(reason='postgresql://migrator:secret@10.1.2.3 refused')

    guest = world.guest()
    before = world.rows()
    monkeypatch.setattr(world.database.instances, 'get', away)
    response = world.migrate(guest)
    world.refuses(response, 503, 'serviceUnavailable', 'database', 'try again', since=before)
    assert 'secret' not in response.text
    assert '10.1.2.3' not in response.text
    assert response.headers['Retry-After']


def test_the_action_of_the_request_is_found_under_its_id(world):
    response = world.migrate(world.guest())
    with world.database.engine.reader() as session:
        action = session.execute(sa.select(models.INSTANCE_ACTIONS)).one()
        assert action.request_id == response.headers['X-Compute-Request-Id']
