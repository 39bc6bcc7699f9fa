# SPDX-License-Identifier: Apache-2.0

"""The actions of a server, and their events from the log."""

import hashlib

import pytest
import sqlalchemy as sa

from migrator.db import models
from migrator.db.sql import columns


@pytest.fixture
def failed_migration(world):
    """A server of project blue whose migration failed at the destination, with its log."""
    guest = world.guest(project='blue')
    one = world.migration(guest, 'preparing')
    world.threads.seconds = 5
    world.move(one.uuid, status='failed', failure='dest could not prepare')
    with world.database.engine.writer() as session:
        for number, (step, kind, payload) in enumerate(
            [
                ('move_allocation', 'done', {}),
                ('pre_live_migration', 'failed', {'result': {'reason': 'no room at dest'}}),
                ('pre_live_migration', 'undo_done', {}),
                ('move_allocation', 'undo_intent', {}),
            ]
        ):
            world.threads.seconds = number
            entry = {'kind': kind, 'step': step, 'payload': payload, 'epoch': 1, 'attempt': 1}
            session.execute(sa.insert(models.SAGA_LOG).values(migration=one.uuid, seq=10 + number, **entry))
        ended = {'finish_time': columns.later(5), 'message': 'dest could not prepare', 'result': 'Error'}
        session.execute(sa.update(models.INSTANCE_ACTIONS).values(**ended))
    return one


def path(one, request_id=''):
    return f'/servers/{one.instance_uuid}/os-instance-actions' + (f'/{request_id}' if request_id else '')


def request_id(world, one):
    return world.database.actions.list(one.instance_uuid)[0].request_id


def test_action_has_user_request_and_result(world, failed_migration):
    (action,) = world.get(path(failed_migration))['instanceActions']
    assert (action['action'], action['user_id'], action['project_id']) == ('live-migration', 'ada', 'blue')
    assert action['message'] == 'dest could not prepare'
    assert action['updated_at'] > action['start_time']
    assert 'updated_at' not in world.get(path(failed_migration), '2.57')['instanceActions'][0]


def test_events_come_from_the_log_the_newest_first(world, failed_migration):
    events = world.get(path(failed_migration, request_id(world, failed_migration)))['instanceAction']['events']
    assert [(event['event'], event['result']) for event in events] == [
        ('conductor_move_allocation_undo', None),
        ('compute_pre_live_migration_undo', 'Success'),
        ('compute_pre_live_migration', 'Error'),
        ('conductor_move_allocation', 'Success'),
        ('conductor_live_migrate_instance', 'Error'),
    ]
    assert events[0]['finish_time'] is None
    assert events[2]['traceback'] == 'no room at dest'
    assert (events[2]['host'], events[3]['host']) == ('dest', 'source')
    assert events[2]['hostId'] == hashlib.sha224(b'bluedest').hexdigest()


@pytest.mark.parametrize(
    ('version', 'token', 'fields'),
    [
        ('2.1', 'admin', {'event', 'start_time', 'finish_time', 'result', 'traceback'}),
        ('2.50', 'ada:blue', None),
        ('2.51', 'ada:blue', {'event', 'start_time', 'finish_time', 'result'}),
        ('2.62', 'ada:blue', {'event', 'start_time', 'finish_time', 'result', 'hostId'}),
        ('2.61', 'admin', {'event', 'start_time', 'finish_time', 'result', 'traceback'}),
        ('2.62', 'admin', {'event', 'start_time', 'finish_time', 'result', 'traceback', 'host', 'hostId'}),
        ('2.84', 'ada:blue', {'event', 'start_time', 'finish_time', 'result', 'hostId'}),
        ('2.84', 'admin', {'event', 'start_time', 'finish_time', 'result', 'traceback', 'host', 'hostId', 'details'}),
    ],
)
def test_role_decides_which_fields_of_events_are_shown(world, failed_migration, version, token, fields):
    action = world.get(path(failed_migration, request_id(world, failed_migration)), version, token)['instanceAction']
    if fields is None:
        assert 'events' not in action
    else:
        assert all(set(event) == fields for event in action['events'])


def test_details_say_why_an_event_has_failed(world, failed_migration):
    shown = world.get(path(failed_migration, request_id(world, failed_migration)), '2.84')['instanceAction']
    assert [event['details'] for event in shown['events']][1:4] == [None, 'no room at dest', None]


def test_tenant_sees_a_sentence_of_the_table_for_a_message(world, failed_migration):
    for url in (path(failed_migration), path(failed_migration, request_id(world, failed_migration))):
        text = world.ask('GET', url, token='ada:blue').text
        assert 'The move failed; an administrator can see why.' in text
        assert 'dest' not in text


def test_evacuation_is_an_action_whose_events_name_its_hosts(world):
    guest = world.guest()
    one = world.migration(guest, 'preparing', migration_type='evacuation')
    events = [
        ('move_allocation', 'done', {}),
        ('check_can_evacuate', 'done', {}),
        ('evacuate', 'failed', {'result': {'reason': 'no disk'}}),
    ]
    with world.database.engine.writer() as session:
        for number, (step, kind, payload) in enumerate(events):
            entry = {'kind': kind, 'step': step, 'payload': payload, 'epoch': 1, 'attempt': 1}
            session.execute(sa.insert(models.SAGA_LOG).values(migration=one.uuid, seq=10 + number, **entry))
    (listed,) = world.get(path(one))['instanceActions']
    assert (listed['action'], listed['user_id']) == ('evacuate', 'ada')
    events = world.get(path(one, listed['request_id']))['instanceAction']['events']
    assert [(event['event'], event['result'], event['host']) for event in events] == [
        ('compute_evacuate', 'Error', 'dest'),
        ('compute_check_can_evacuate', 'Success', 'dest'),
        ('conductor_move_allocation', 'Success', 'source'),
        ('rebuild_server', None, 'source'),
    ]
    assert events[0]['traceback'] == 'no disk'


def test_an_abort_is_an_action_with_one_event_of_its_own(world):
    one = world.migration(world.guest())
    response = world.ask('DELETE', f'/servers/{one.instance_uuid}/migrations/{one.id}')
    action = world.get(path(one, response.headers['X-Compute-Request-Id']))['instanceAction']
    assert action['action'] == 'live_migration_cancel'
    assert [(event['event'], event['finish_time']) for event in action['events']] == [
        ('conductor_live_migration_cancel', None)
    ]
    listed = world.get(path(one))['instanceActions']
    assert [action['action'] for action in listed] == ['live_migration_cancel', 'live-migration']


@pytest.mark.parametrize(
    ('version', 'query', 'words'),
    [
        ('2.58', 'limit=x', ['limit']),
        ('2.58', 'limit=1&limit=2', ['limit', 'one value']),
        ('2.58', 'marker=req-unknown', ['marker [req-unknown] not found']),
        ('2.58', 'changes-since=x', ['changes-since']),
        ('2.58', 'changes-before=2026-01-01', ['changes-before']),
        ('2.58', 'colour=red', ['colour']),
        ('2.66', 'changes-since=2026-01-02&changes-before=2026-01-01', ['less than or equal']),
    ],
)
def test_invalid_parameter_returns_400(world, failed_migration, version, query, words):
    response = world.ask('GET', f'{path(failed_migration)}?{query}', version=version)
    world.refuses(response, 400, 'badRequest', *words)


@pytest.mark.parametrize(
    ('query', 'count'),
    [
        ('changes-since=2026-01-01T00:00:01Z', 1),
        ('changes-since=2027-01-01T00:00:00Z', 0),
        ('changes-before=2025-01-01T00:00:00Z', 0),
        ('limit=0', 0),
    ],
)
def test_a_list_is_filtered_by_time(world, failed_migration, query, count):
    assert len(world.get(f'{path(failed_migration)}?{query}')['instanceActions']) == count


def test_below_2_58_parameters_are_ignored(world, failed_migration):
    assert len(world.get(f'{path(failed_migration)}?limit=x', '2.57')['instanceActions']) == 1


def test_unknown_or_another_projects_server_returns_404(world, failed_migration):
    world.refuses(world.ask('GET', path(failed_migration, 'req-unknown')), 404, 'itemNotFound', 'req-unknown')
    for url in (path(failed_migration), path(failed_migration, request_id(world, failed_migration))):
        world.refuses(world.ask('GET', url, token='eve:red'), 404, 'itemNotFound', failed_migration.instance_uuid)


def test_without_a_role_there_is_nothing_to_see(roles):
    one = roles.migration(roles.guest(project='blue'))
    for url in (path(one), path(one, request_id(roles, one))):
        roles.refuses(roles.ask('GET', url, token='none:eve:blue'), 403, 'forbidden', 'os-instance-actions')
        assert roles.ask('GET', url, token='reader:eve:blue').status_int == 200
