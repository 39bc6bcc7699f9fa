# SPDX-License-Identifier: Apache-2.0

"""What an operator sees and requests at /migrator/v1, as with migrator-manage."""

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.db import models
from tests.reasons import stuck_for

ROOT = '/migrator/v1'
LATE = '2099-01-01T00:00:00Z'


@pytest.fixture
def stuck(world):
    world.conductor.read_allocations = lambda context, consumer: {}
    return world.migration(world.guest(name='web'), **stuck_for('both hosts have the guest'), owner='c1', epoch=2)


@pytest.fixture
def blocked(world, stuck):
    """The id of a blocked cleanup, which comes after a pending one."""
    row = {'migration_uuid': stuck.uuid, 'instance_uuid': stuck.instance_uuid, 'reason': 'it was down', 'epoch': 1}
    with world.database.engine.writer() as session:
        for host, why in (('source', None), ('dest', 'the guest may run there')):
            values = row | {'host': host, 'step': 'post_live_migration_at_source', 'blocked_because': why}
            session.execute(sa.insert(models.CLEANUPS).values(**values))
    return world.database.cleanups.list()[-1].id


def act(world, path, body):
    return world.ask('POST', f'{ROOT}/{path}/action', body)


def test_a_migration_has_a_timeline_with_what_it_waits_for_and_what_happens_next(world, stuck):
    shown = world.get(f'{ROOT}/migrations/{stuck.uuid}/timeline')['timeline']
    assert 'It is stuck and needs an operator: both hosts have the guest' in shown['waits']
    assert shown['events'][0]['what'].startswith('status accepted: ada requested it')
    assert any('migration retry' in line for line in shown['next'])
    assert [host['role'] for host in shown['hosts']] == ['source', 'destination']
    assert shown['requests'][0]['action'] == 'live-migration'
    assert world.get(f'{ROOT}/migrations/{stuck.id}/timeline')['timeline'] == shown
    for name in (stuck.instance_uuid, 'web', stuck.uuid[:8]):
        assert world.get(f'{ROOT}/migrations/{name}')['migration']['uuid'] == stuck.uuid
    by_guest = act(world, f'migrations/{stuck.instance_uuid}', {'retry': None})
    world.refuses(by_guest, 404, 'itemNotFound', stuck.uuid)


@pytest.mark.parametrize('id_', ['x', str(2**31), '9' * 5000])
def test_a_migration_with_an_id_that_no_database_holds_is_not_found(world, id_):
    for path in ('', '/timeline'):
        world.refuses(world.ask('GET', f'{ROOT}/migrations/{id_}{path}'), 404, 'itemNotFound', id_)
    world.refuses(act(world, f'migrations/{id_}', {'retry': None}), 404, 'itemNotFound', id_)


def test_migrations_are_filtered_by_several_statuses_and_have_expected_times_only_on_request(world, stuck):
    done = world.migration(world.guest(), status='completed')
    world.migration(world.guest(), status='failed')
    listed = world.get(f'{ROOT}/migrations?status=completed&status=running')['migrations']
    assert [one['uuid'] for one in listed] == [done.uuid, stuck.uuid]
    assert 'expected' not in listed[0]
    listed = world.get(f'{ROOT}/migrations?expected=true')['migrations']
    assert len(listed) == 3
    assert listed[2]['expected']['reason'].startswith('It is stuck.')


def test_a_retry_is_planned_and_requested(world, stuck):
    before = world.rows()
    planned = act(world, f'migrations/{stuck.uuid}', {'retry': {'dry_run': True}})
    assert (planned.status_int, planned.json['plan'][0]) == (200, 'It is stuck: both hosts have the guest')
    assert world.rows() == before
    assert world.conductor.calls == []
    done = act(world, f'migrations/{stuck.uuid}', {'retry': None})
    assert (done.status_int, done.json['migration']['retry_requested_at'] is not None) == (202, True)
    assert world.database.migrations.get(stuck.uuid).retry_requested_by == 'admin'
    assert world.conductor.calls == [('wake', stuck.uuid, None)]


def test_an_abandonment_is_planned_and_requested(world, stuck):
    path, before = f'migrations/{stuck.uuid}', world.rows()
    planned = act(world, path, {'abandon': {'guest_on': 'dest', 'dry_run': True}}).json
    assert 'It ends in error. The instance is at dest then' in ' '.join(planned['plan'])
    world.refuses(act(world, path, {'abandon': {'guest_on': 'spare'}}), 400, 'badRequest', 'give source or dest')
    world.refuses(act(world, path, {'abandon': None}), 400, 'badRequest', 'abandon', since=before)
    world.refuses(act(world, path, {'retry': None, 'abandon': {'guest_on': 'dest'}}), 400, 'badRequest', since=before)
    done = act(world, path, {'abandon': {'guest_on': 'dest'}})
    assert (done.status_int, done.json['migration']['abandon']['guest_on']) == (202, 'dest')
    for body in ({'retry': None}, {'abandon': {'guest_on': 'source'}}):
        refused = act(world, path, body)
        world.refuses(refused, 409, 'conflictingRequest', f'{stuck.uuid} is being abandoned already', 'is on dest')
        assert 'not stuck' not in refused.text


def test_a_request_is_accepted_while_no_conductor_can_be_woken(world, stuck):
    def unreachable(migration_uuid):
        raise exception.ServiceUnreachable(service='The message broker', reason='away')

    world.conductor.does = unreachable
    assert act(world, f'migrations/{stuck.uuid}', {'retry': {}}).status_int == 202


def test_only_a_stuck_migration_is_retried_or_abandoned(world):
    running = world.migration(world.guest())
    for body in ({'retry': None}, {'retry': {'dry_run': True}}, {'abandon': {'guest_on': 'dest', 'dry_run': True}}):
        words = ['is not stuck: it is running.', 'An abort undoes']
        world.refuses(act(world, f'migrations/{running.uuid}', body), 409, 'conflictingRequest', *words)
    finished = world.finished(world.guest())
    world.database.conductors.register('c1', 'conductor1', 60)
    world.move(finished.uuid, owner='c1')
    refused = act(world, f'migrations/{finished.uuid}', {'retry': None})
    words = ['is not stuck: it is finished. It waits for its user to confirm or to revert it.']
    world.refuses(refused, 409, 'conflictingRequest', *words)
    assert 'abort' not in refused.text


def test_ended_migrations_are_counted_and_purged(world):
    guest = world.guest()
    newer = [world.migration(guest, status='completed') for _ in range(2)][-1]
    counted = act(world, 'migrations', {'purge': {'before': LATE, 'dry_run': True}}).json['purge']
    assert (counted['found'], counted['purged'], counted['kept']) == (1, 0, 1)
    purged = act(world, 'migrations', {'purge': {'before': LATE}}).json['purge']
    assert (purged['purged'], purged['left']) == (1, 0)
    assert [one.uuid for one in world.database.migrations.list()] == [newer.uuid]
    world.refuses(act(world, 'migrations', {'purge': {}}), 400, 'badRequest', 'before')
    world.refuses(act(world, 'migrations', {'purge': {'before': LATE, 'max_rows': 0}}), 400, 'badRequest', 'max_rows')
    assert act(world, 'drains', {'purge': {'before': LATE}}).json['purge']['purged'] == 0


def test_cleanups_are_listed_paged_and_shown(world, stuck, blocked):
    page = world.get(f'{ROOT}/cleanups?limit=1')
    assert [one['state'] for one in page['cleanups']] == ['pending']
    marker = page['cleanups'][0]['id']
    assert f'marker={marker}' in page['cleanups_links'][0]['href']
    for query in (f'marker={marker}', 'blocked=true', f'host=dest&migration_uuid={stuck.uuid.upper()}'):
        assert [one['id'] for one in world.get(f'{ROOT}/cleanups?{query}')['cleanups']] == [blocked]
    assert world.get(f'{ROOT}/cleanups/{blocked}')['cleanup']['blocked_because'] == 'the guest may run there'
    for wrong in ('0', 'x', '99999999999'):
        for response in (
            world.ask('GET', f'{ROOT}/cleanups/{wrong}'),
            act(world, f'cleanups/{wrong}', {'retry': None}),
            act(world, f'cleanups/{wrong}', {'discard': {'dry_run': True}}),
        ):
            world.refuses(response, 404, 'itemNotFound', f'No cleanup has the id {wrong},')


def test_a_blocked_cleanup_is_retried_or_discarded(world, blocked):
    path = f'cleanups/{blocked}'
    for action in ('retry', 'discard'):
        planned = act(world, path, {action: {'dry_run': True}})
        assert planned.status_int == 200
        assert 'have dest do post_live_migration_at_source' in planned.json['plan'][0]
    assert world.database.cleanups.list()[-1].blocked_because
    done = act(world, path, {'retry': None})
    assert (done.status_int, done.json['message'].startswith(f'Cleanup {blocked} is unblocked')) == (202, True)
    world.refuses(act(world, path, {'discard': None}), 409, 'conflictingRequest', 'it is not blocked')
    with world.database.engine.writer() as session:
        session.execute(sa.update(models.CLEANUPS).values(blocked_because='look'))
    assert act(world, path, {'discard': None}).status_int == 200
    assert [one.host for one in world.database.cleanups.list()] == ['source']


def test_services_have_their_leases_their_cleanups_and_why_no_report_arrives(world, blocked):
    page = world.get(f'{ROOT}/services')
    assert page['no_reports_because'] == 'no conductor has listened yet'
    assert {one['host']: one['cleanups'] for one in page['services']} == {
        'dest': {'pending': 1, 'blocked': 1},
        'source': {'pending': 1, 'blocked': 0},
        'spare': {'pending': 0, 'blocked': 0},
    }
    world.database.services.report('conductor1', 'nova-conductor', 1)
    world.database.conductors.register('c1', 'conductor1', 60)
    page = world.get(f'{ROOT}/services?binary=nova-conductor')
    assert page['no_reports_because'] is None
    assert [(one['lease']['server'], one['lease']['boots']) for one in page['services']] == [('conductor1', 1)]
    assert world.get(f'{ROOT}/services?host=spare')['services'][0]['state'] == 'up'


def test_findings_come_from_a_conductor_and_are_503_without_one(world):
    finding = dict.fromkeys(('consumer', 'consumer_type', 'provider', 'verdict', 'reason', 'remedy'), 'x')
    finding |= {'resources': {'VCPU': 1}, 'since': None}
    world.conductor.audit = lambda context: [finding]
    assert world.get(f'{ROOT}/findings') == {'findings': [finding]}

    def unreachable(context):
        raise exception.ServiceUnreachable(service='A conductor', reason='away')

    world.conductor.audit = unreachable
    response = world.ask('GET', f'{ROOT}/findings')
    world.refuses(response, 503, 'serviceUnavailable', 'try again')


def test_calibration_is_empty_before_any_drain_and_reads_no_more_drains_than_a_page_has(world, monkeypatch):
    read = []
    monkeypatch.setattr(world.database.drains, 'predictions', lambda drains: read.append(drains) or {})
    for wanted in ('', '?drains=5', '?drains=999999999'):
        found = world.get(f'{ROOT}/drains/calibration{wanted}')['calibration']
    assert read == [50, 5, 1000]
    assert found == {'samples': 0, 'median_error': None, 'p50_held': None, 'p80_held': None, 'drains': []}


def test_only_an_administrator_looks_and_requests(roles):
    guest = roles.guest()
    one = roles.migration(guest, **stuck_for('why'))
    asked = [('GET', f'{ROOT}/{path}', None) for path in ('cleanups', 'cleanups/1', 'services', 'findings')]
    asked.append(('GET', f'{ROOT}/migrations/{one.uuid}/timeline', None))
    asked += [
        ('POST', f'{ROOT}/{path}/action', body)
        for path, body in (
            (f'migrations/{one.uuid}', {'retry': None}),
            (f'migrations/{one.uuid}', {'abandon': {'guest_on': 'dest'}}),
            ('migrations', {'purge': {'before': LATE}}),
            ('drains', {'purge': {'before': LATE}}),
            ('cleanups/1', {'retry': None}),
            ('cleanups/1', {'discard': None}),
        )
    ]
    before = roles.rows()
    for method, path, body in asked:
        response = roles.ask(method, path, body, token='manager:eve:admin')
        roles.refuses(response, 403, 'forbidden', 'migrator:', since=before)
