# SPDX-License-Identifier: Apache-2.0

"""A server's migrations in progress: look, abort, force complete."""

import pytest

from migrator import exception
from migrator.api.policies.nova import (
    SERVER_MIGRATIONS_DELETE,
    SERVER_MIGRATIONS_FORCE_COMPLETE,
    SERVER_MIGRATIONS_INDEX,
    SERVER_MIGRATIONS_SHOW,
)
from migrator.objects import migration

PROGRESS = sorted(migration.IN_PROGRESS)
ENDS = sorted(migration.ENDS)


def path(one):
    return f'/servers/{one.instance_uuid}/migrations/{one.id}'


def abort(world, one, version='2.80', token='admin'):
    return world.ask('DELETE', path(one), version=version, token=token)


def force(world, one, version='2.80', token='admin', body=None):
    return world.ask(
        'POST', f'{path(one)}/action', {'force_complete': None} if body is None else body, version=version, token=token
    )


# --- looking ---------------------------------------------------------------------------------------------------------


def test_an_accepted_migration_has_a_time_of_update_as_novas_schema_demands(world):
    one = world.migration(world.guest(), 'accepted')
    world.move(one.uuid, updated_at=None)
    shown = world.get(path(one), '2.104')['migration']
    assert shown['updated_at'] == shown['created_at']


def test_figures_are_the_hypervisors_last_report(world):
    one = world.migration(world.guest())
    world.move(one.uuid, memory_total=400, memory_processed=100, memory_remaining=300)
    shown = world.get(path(one))['migration']
    assert (shown['memory_total_bytes'], shown['memory_processed_bytes'], shown['memory_remaining_bytes']) == (
        400,
        100,
        300,
    )
    assert shown['disk_total_bytes'] is None


@pytest.mark.parametrize('status', PROGRESS)
def test_every_status_of_progress_is_listed_and_shown(world, status):
    """Nova leaves 'running (post-copy)' out, so that it can be neither shown nor aborted."""
    one = world.migration(world.guest(), status)
    (listed,) = world.get(f'/servers/{one.instance_uuid}/migrations')['migrations']
    assert listed['status'] == status
    assert world.get(path(one))['migration']['status'] == status


@pytest.mark.parametrize('status', ENDS)
def test_ended_migration_is_not_listed(world, status):
    one = world.migration(world.guest(), status)
    assert world.get(f'/servers/{one.instance_uuid}/migrations') == {'migrations': []}
    world.refuses(world.ask('GET', path(one)), 404, 'itemNotFound', 'not in progress', status)


def test_other_migration_type_is_not_listed(world):
    one = world.migration(world.guest(), migration_type='evacuation')
    assert world.get(f'/servers/{one.instance_uuid}/migrations') == {'migrations': []}
    world.refuses(world.ask('GET', path(one)), 404, 'itemNotFound')


@pytest.mark.parametrize('migration_id', ['999', 'x', '99999999999999999999', '{uuid}', '-1', '1.0'])
def test_an_unknown_id_is_a_404_the_uuid_included(world, migration_id):
    one = world.migration(world.guest())
    asked = f'/servers/{one.instance_uuid}/migrations/{migration_id.format(uuid=one.uuid)}'
    world.refuses(world.ask('GET', asked), 404, 'itemNotFound')
    world.refuses(world.ask('DELETE', asked), 404, 'itemNotFound')


def test_url_below_its_version_returns_404(world):
    one = world.migration(world.guest())
    before = world.rows()
    for method, url, version in (
        ('GET', path(one), '2.22'),
        ('GET', f'/servers/{one.instance_uuid}/migrations', '2.22'),
        ('DELETE', path(one), '2.23'),
        ('POST', f'{path(one)}/action', '2.21'),
    ):
        response = world.ask(method, url, {'force_complete': None} if method == 'POST' else None, version=version)
        world.refuses(response, 404, 'itemNotFound', f'has version {version}', since=before)


def test_hosts_are_null_for_manager_and_shown_to_administrator(roles):
    one = roles.migration(roles.guest(project='blue'), dest_node='dest.example.org')
    (seen,) = roles.get(f'/servers/{one.instance_uuid}/migrations', token='manager:eve:blue')['migrations']
    hosts = ('source_compute', 'source_node', 'dest_compute', 'dest_node', 'dest_host')
    assert [seen[name] for name in hosts] == [None] * 5
    (seen,) = roles.get(f'/servers/{one.instance_uuid}/migrations', token='admin:root:x')['migrations']
    assert [seen[name] for name in hosts][:3] == ['source', 'source.example.org', 'dest']


def test_missing_role_returns_403_and_other_project_404(roles):
    one = roles.migration(roles.guest(project='blue'))
    before = roles.rows()
    listing = f'/servers/{one.instance_uuid}/migrations'
    for method, url, rule, who in (
        ('GET', listing, SERVER_MIGRATIONS_INDEX, 'member'),
        ('GET', path(one), SERVER_MIGRATIONS_SHOW, 'manager'),
        ('DELETE', path(one), SERVER_MIGRATIONS_DELETE, 'member'),
        ('POST', f'{path(one)}/action', SERVER_MIGRATIONS_FORCE_COMPLETE, 'member'),
    ):
        body = {'force_complete': None} if method == 'POST' else None
        response = roles.ask(method, url, body, token=f'{who}:eve:blue')
        roles.refuses(response, 403, 'forbidden', rule, since=before)
        response = roles.ask(method, url, body, token='manager:eve:red')
        roles.refuses(response, 404, 'itemNotFound', one.instance_uuid, since=before)


# --- abort -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('status', 'version'),
    [('running', '2.24'), ('running', '2.65'), ('accepted', '2.65'), ('preparing', '2.65'), ('queued', '2.80')],
)
def test_abort_commits_request_and_action_before_the_wake_up(world, status, version):
    one = world.migration(world.guest(), status)
    seen = []
    world.conductor.does = lambda uuid: seen.append(world.database.migrations.get(uuid).abort_requested_at)
    response = abort(world, one, version)
    assert (response.status_int, response.body) == (202, b'')
    row = world.database.migrations.get(one.uuid)
    assert seen == [row.abort_requested_at]
    assert seen[0] is not None
    assert row.abort_requested_by == 'admin'
    assert row.status == status
    assert world.conductor.calls == [('wake', one.uuid, None)]
    (action,) = [each for each in world.database.actions.list(one.instance_uuid) if each.action != 'live-migration']
    assert action.action == 'live_migration_cancel'
    assert action.migration_uuid == one.uuid
    assert action.request_id == response.headers['X-Compute-Request-Id']


def test_the_wake_up_goes_to_the_owners_server(world):
    one = world.migration(world.guest())
    world.database.conductors.register('boot', 'control1', lease=15)
    world.move(one.uuid, owner='boot')
    abort(world, one)
    assert world.conductor.calls == [('wake', one.uuid, 'control1')]


def test_wake_up_goes_to_any_conductor_if_the_owner_is_dead(world):
    one = world.migration(world.guest())
    world.database.conductors.register('boot', 'control1', lease=15)
    world.move(one.uuid, owner='boot')
    world.threads.seconds += 16
    abort(world, one)
    assert world.conductor.calls == [('wake', one.uuid, None)]


def test_abort_stays_accepted_if_the_wake_up_fails(world):
    one = world.migration(world.guest())

    def unreachable(uuid):
        raise exception.ServiceUnreachable(service='RabbitMQ', reason='refused')

    world.conductor.does = unreachable
    assert abort(world, one).status_int == 202
    assert world.database.migrations.get(one.uuid).abort_requested_at is not None


def test_a_second_abort_is_a_202_and_nothing_is_done_twice(world):
    one = world.migration(world.guest(), 'queued')
    assert abort(world, one).status_int == 202
    before = world.rows()
    assert abort(world, one).status_int == 202
    assert world.rows() == before
    assert len(world.conductor.calls) == 1


@pytest.mark.parametrize('status', ENDS)
def test_after_the_end_an_abort_is_a_409(world, status):
    one = world.migration(world.guest(), status)
    before = world.rows()
    world.refuses(abort(world, one), 409, 'conflictingRequest', 'task_state None', since=before)


@pytest.mark.parametrize(
    ('status', 'version'),
    [
        ('accepted', '2.64'),
        ('preparing', '2.64'),
        ('queued', '2.64'),
        ('queued', '2.24'),
        ('running (post-copy)', '2.80'),
        ('post-migrating', '2.80'),
        ('post-migrating', '2.24'),
    ],
)
def test_abort_in_wrong_status_returns_400_with_the_reason(world, status, version):
    one = world.migration(world.guest(), status)
    before = world.rows()
    world.refuses(abort(world, one, version), 400, 'badRequest', status, 'running', since=before)
    assert world.conductor.calls == []


def test_abort_after_the_pivot_returns_400_with_the_reason(world):
    one = world.migration(world.guest(), 'running (post-copy)')
    world.refuses(abort(world, one), 400, 'badRequest', 'the guest runs at the destination already')


@pytest.mark.parametrize('status', ['accepted', 'preparing', 'queued'])
def test_abort_queued_on_old_host_returns_400(world, status):
    world.host('source', version=2)
    one = world.migration(world.guest(), status)
    before = world.rows()
    world.refuses(abort(world, one), 400, 'badRequest', 'too old', 'service version 2', since=before)


def test_abort_running_on_old_host_returns_202(world):
    world.host('source', version=2)
    assert abort(world, world.migration(world.guest())).status_int == 202


def test_abort_at_another_server_returns_404(world):
    one = world.migration(world.guest('one'))
    for other in (world.guest('idle'), world.guest('moving')):
        if other.name == 'moving':
            world.migration(other)
        before = world.rows()
        response = world.ask('DELETE', f'/servers/{other.uuid}/migrations/{one.id}')
        world.refuses(response, 404, 'itemNotFound', str(one.id), other.uuid, since=before)


def test_an_abort_of_a_locked_server_is_a_409_but_not_for_an_administrator(roles):
    one = roles.migration(roles.guest(project='blue', locked_by='owner'))
    before = roles.rows()
    roles.refuses(abort(roles, one, token='manager:eve:blue'), 409, 'conflictingRequest', 'is locked', since=before)
    assert abort(roles, one, token='admin:root:x').status_int == 202


# --- force complete --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('version', ['2.22', '2.80'])
def test_force_complete_commits_request_and_action_before_the_wake_up(world, version):
    one = world.migration(world.guest())
    response = force(world, one, version)
    assert (response.status_int, response.body) == (202, b'')
    assert world.database.migrations.get(one.uuid).force_complete_requested_at is not None
    assert world.conductor.calls == [('wake', one.uuid, None)]
    actions = {each.action for each in world.database.actions.list(one.instance_uuid)}
    assert actions == {'live-migration', 'live_migration_force_complete'}


def test_a_second_force_complete_is_a_202_and_nothing_is_done_twice(world):
    one = world.migration(world.guest())
    assert force(world, one).status_int == 202
    before = world.rows()
    assert force(world, one).status_int == 202
    assert world.rows() == before


@pytest.mark.parametrize('status', sorted(set(PROGRESS) - {'running'}))
def test_force_complete_of_migration_that_is_not_running_returns_400(world, status):
    one = world.migration(world.guest(), status)
    before = world.rows()
    world.refuses(force(world, one), 400, 'badRequest', status, since=before)


def test_force_complete_of_unknown_migration_returns_400(world):
    one = world.migration(world.guest())
    before = world.rows()
    for migration_id in ('999', one.uuid):
        asked = f'/servers/{one.instance_uuid}/migrations/{migration_id}/action'
        response = world.ask('POST', asked, {'force_complete': None})
        world.refuses(response, 400, 'badRequest', migration_id, since=before)


@pytest.mark.parametrize('status', ['completed', 'cancelled', 'failed', 'error'])
@pytest.mark.parametrize(('ask', 'method'), [(abort, 'abort live migration'), (force, 'force_complete')])
def test_409_for_ended_migration_names_its_status_and_time(world, status, ask, method):
    one = world.migration(world.guest(), status)
    world.migration(world.guest('another'), 'running')
    world.threads.seconds += 40
    before = world.rows()
    said = (
        f"Cannot '{method}' instance {one.instance_uuid} while it is in task_state None: it has to be migrating; "
        f'migration {one.id} ended {status} 40 s ago and cannot be changed any more.'
    )
    world.refuses(ask(world, one), 409, 'conflictingRequest', said, since=before)


def test_409_for_one_of_several_ended_migrations_describes_that_one(world):
    guest = world.guest()
    first = world.migration(guest, 'cancelled')
    world.threads.seconds += 3600
    world.migration(guest, 'completed')
    world.threads.seconds += 1
    said = f'migration {first.id} ended cancelled 60 min 1 s ago'
    world.refuses(abort(world, first), 409, 'conflictingRequest', said)


def test_force_complete_of_a_paused_server_is_a_409_that_names_the_migration(world):
    one = world.migration(world.guest(vm_state='paused'))
    world.threads.seconds += 7
    before = world.rows()
    said = f'vm_state paused: it has to be active; migration {one.id}, accepted 7 s ago, is running'
    world.refuses(force(world, one), 409, 'conflictingRequest', said, since=before)


def test_force_complete_of_a_locked_server_is_a_409(roles):
    one = roles.migration(roles.guest(project='blue', locked_by='admin'))
    before = roles.rows()
    roles.refuses(force(roles, one, token='manager:eve:blue'), 409, 'conflictingRequest', 'is locked', since=before)


@pytest.mark.parametrize('body', [{'force_complete': True}, {'force_complete': None, 'x': 1}, {'abort': None}, [], 'x'])
def test_any_other_body_is_a_400(world, body):
    one = world.migration(world.guest())
    before = world.rows()
    world.refuses(force(world, one, body=body), 400, 'badRequest', since=before)
