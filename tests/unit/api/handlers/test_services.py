# SPDX-License-Identifier: Apache-2.0

"""The services: listed, disabled, forced down."""

import urllib.parse

import pytest

from migrator import exception

UNKNOWN = '11111111-2222-4333-8444-555555555555'


def listed(world, query='', version='2.80'):
    return world.get(f'/os-services{query}', version)['services']


def update(world, body, host='source', version='2.80'):
    return world.ask('PUT', f'/os-services/{world.database.services.get_compute(host).uuid}', body, version=version)


def test_service_has_zone_status_and_state(world):
    world.database.services.report('control', 'nova-conductor', 4)
    one, *_, last = listed(world)
    service = world.database.services.get_compute('source')
    assert one == {
        'id': service.uuid, 'binary': 'nova-compute', 'host': 'source', 'zone': 'nova', 'status': 'enabled',
        'state': 'up', 'updated_at': '2026-01-01T00:00:00.000000', 'disabled_reason': None, 'forced_down': False,
    }  # fmt: skip
    assert (last['binary'], last['zone']) == ('nova-conductor', 'internal')
    assert listed(world, version='2.52')[0]['id'] == service.id
    assert 'forced_down' not in listed(world, version='2.10')[0]


def test_host_is_down_if_a_conductor_or_an_operator_declares_it_down(world):
    world.threads.seconds = 61
    states = {one['host']: one['state'] for one in listed(world)}
    assert set(states.values()) == {'up'}, 'no conductor has listened, and so nothing is known of any host'
    world.database.services.call_down(60)
    assert {one['state'] for one in listed(world)} == {'down'}
    world.database.services.report('source', 'nova-compute', 5)
    assert {one['host'] for one in listed(world) if one['state'] == 'up'} == {'source'}
    assert update(world, {'forced_down': True}).json['service']['state'] == 'down'


@pytest.mark.parametrize(
    ('query', 'hosts'),
    [
        ('?binary=&host=', ['source', 'dest', 'spare']),
        ('?host=dest', ['dest']),
        ('?binary=nova-compute&host=spare', ['spare']),
        ('?binary=nova-scheduler', []),
    ],
)
def test_a_list_is_filtered_by(world, query, hosts):
    assert [one['host'] for one in listed(world, query)] == hosts


def test_unknown_parameters_are_a_400_from_2_75(world):
    assert world.ask('GET', '/os-services?colour=red', version='2.74').status_int == 200
    world.refuses(world.ask('GET', '/os-services?colour=red', version='2.75'), 400, 'badRequest', 'colour')


def test_disabling_and_enabling(world):
    response = update(world, {'status': 'disabled', 'disabled_reason': 'broken fan'}, version='2.53')
    assert response.json['service']['status'] == 'disabled'
    assert response.json['service']['disabled_reason'] == 'broken fan'
    service = world.database.services.get_compute('source')
    assert (service.disabled, service.disabled_reason) == (True, 'broken fan')
    assert update(world, {'status': 'enabled'}).json['service']['disabled_reason'] is None
    assert not world.database.services.get_compute('source').disabled


@pytest.mark.parametrize(('said', 'meant'), [(True, True), ('true', True), (False, False)])
def test_forcing_down(world, said, meant):
    assert update(world, {'forced_down': said}).json['service']['forced_down'] is meant
    assert world.database.services.get_compute('source').forced_down is meant


@pytest.mark.parametrize(
    ('body', 'words'),
    [
        ({}, ['No updates', 'forced_down']),
        ({'status': 'off'}, ['status', 'off', 'enabled or disabled']),
        ({'disabled_reason': 'x'}, ["status is 'disabled'"]),
        ({'status': 'enabled', 'disabled_reason': 'x'}, ["status is 'disabled'"]),
        ({'status': 'disabled', 'disabled_reason': ''}, ['disabled_reason']),
        ({'forced_down': 1}, ['forced_down', 'true or false']),
        ({'colour': 'red'}, ['colour']),
        ([], ['Invalid input for the request.', 'Value: []']),
    ],
)
def test_invalid_update_returns_400(world, body, words):
    before = world.rows()
    world.refuses(update(world, body), 400, 'badRequest', *words, since=before)


def test_an_unknown_service_is_a_404_and_a_number_a_400(world):
    before = world.rows()
    body = {'status': 'enabled'}
    world.refuses(world.ask('PUT', f'/os-services/{UNKNOWN}', body), 404, 'itemNotFound', UNKNOWN, since=before)
    world.refuses(world.ask('PUT', '/os-services/1', body), 400, 'badRequest', 'uuid', since=before)
    # The form of a client that is older than the version that it requests: the URL is what has changed.
    old = {'host': 'source', 'binary': 'nova-compute'}
    words = ['Invalid uuid enable', 'from version 2.53 on']
    world.refuses(world.ask('PUT', '/os-services/enable', old), 400, 'badRequest', *words, since=before)


def test_a_uuid_in_capitals_names_the_service_of_an_update(world):
    uuid = world.database.services.get_compute('source').uuid
    response = world.ask('PUT', f'/os-services/{uuid.upper()}', {'status': 'disabled'})
    assert (response.status_int, response.json['service']['status']) == (200, 'disabled')


def test_update_of_a_conductor_returns_400(world):
    world.database.services.report('control', 'nova-conductor', 4)
    uuid = world.database.services.list('nova-conductor')[0].uuid
    response = world.ask('PUT', f'/os-services/{uuid}', {'status': 'disabled'})
    world.refuses(response, 400, 'badRequest', 'nova-conductor')


@pytest.mark.parametrize(
    ('version', 'action', 'more', 'shown', 'kept'),
    [
        ('2.1', 'disable', {}, {'status': 'disabled'}, (True, None, False)),
        ('2.1', 'enable', {}, {'status': 'enabled'}, (False, None, False)),
        ('2.1', 'disable-log-reason', {'disabled_reason': 'x'}, {'status': 'disabled', 'disabled_reason': 'x'},
         (True, 'x', False)),
        ('2.52', 'force-down', {'forced_down': True}, {'forced_down': True}, (False, None, True)),
    ],
)  # fmt: skip
def test_below_2_53_the_url_names_the_change(world, version, action, more, shown, kept):
    body = {'host': 'source', 'binary': 'nova-compute', **more}
    response = world.ask('PUT', f'/os-services/{action}', body, version=version)
    assert response.json == {'service': {'host': 'source', 'binary': 'nova-compute', **shown}}
    service = world.database.services.get_compute('source')
    assert (service.disabled, service.disabled_reason, service.forced_down) == kept


@pytest.mark.parametrize(
    ('version', 'action', 'body', 'code', 'fault'),
    [
        ('2.1', 'explode', {'host': 'source', 'binary': 'nova-compute'}, 404, 'itemNotFound'),
        ('2.10', 'force-down', {'host': 'source', 'binary': 'nova-compute'}, 404, 'itemNotFound'),
        ('2.11', 'force-down', {'host': 'source', 'binary': 'nova-compute'}, 400, 'badRequest'),
        ('2.1', 'disable-log-reason', {'host': 'source', 'binary': 'nova-compute'}, 400, 'badRequest'),
        ('2.1', 'disable', {'host': 'source'}, 400, 'badRequest'),
        ('2.1', 'disable', {'host': 'nowhere', 'binary': 'nova-compute'}, 404, 'itemNotFound'),
        ('2.1', 'disable', {'host': 'source', 'binary': 'nova-scheduler'}, 404, 'itemNotFound'),
    ],
)
def test_below_2_53_invalid_update_is_refused(world, version, action, body, code, fault):
    before = world.rows()
    world.refuses(world.ask('PUT', f'/os-services/{action}', body, version=version), code, fault, since=before)


def test_caller_other_than_administrator_gets_403(world):
    before = world.rows()
    world.refuses(world.ask('GET', '/os-services', token='ada:blue'), 403, 'forbidden', 'os-services:list')
    uuid = world.database.services.get_compute('source').uuid
    for url, version in ((uuid, '2.80'), ('disable', '2.1')):
        body = {'status': 'disabled'} if version == '2.80' else {'host': 'source', 'binary': 'nova-compute'}
        response = world.ask('PUT', f'/os-services/{url}', body, version=version, token='ada:blue')
        world.refuses(response, 403, 'forbidden', 'os-services:update', since=before)


# --- after an evacuation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize('version', ['2.11', '2.52', '2.53', '2.80'])
def test_host_with_evacuations_that_are_done_cannot_be_forced_up(world, version):
    guests = world.guest(), world.guest()
    ids = [world.migration(guest, 'done', migration_type='evacuation').id for guest in guests]
    world.force_down('source')
    before = world.rows()

    def force(forced_down, host='source'):
        if version in ('2.53', '2.80'):
            return update(world, {'forced_down': forced_down}, host, version)
        body = {'host': host, 'binary': 'nova-compute', 'forced_down': forced_down}
        return world.ask('PUT', '/os-services/force-down', body, version=version)

    for false in (False, 'false', '0'):
        said = ['Unable to force up host source as `done` evacuation', f': {ids[0]}, {ids[1]}. Start', 'completed']
        world.refuses(force(false), 400, 'badRequest', *said, since=before)
    assert force(True).status_int == 200
    assert force(False, 'dest').status_int == 200, 'it is no source'
    (one, another) = world.database.migrations.list({'migration_type': 'evacuation'})
    world.move(one.uuid, status='completed')
    assert f': {another.id}. Start' in force(False).text
    world.move(another.uuid, status='completed')
    assert force(False).status_int == 200
    assert not world.database.services.get_compute('source').forced_down


@pytest.mark.parametrize('status', ['accepted', 'preparing', 'failed', 'error', 'completed'])
def test_host_with_an_evacuation_in_another_status_can_be_forced_up(world, status):
    world.migration(world.guest(), status, migration_type='evacuation')
    world.force_down('source')
    assert update(world, {'forced_down': False}).status_int == 200
    assert not world.database.services.get_compute('source').forced_down


@pytest.mark.parametrize('change', [{'status': 'disabled', 'disabled_reason': 'x'}, {'status': 'enabled'}])
def test_other_changes_of_a_host_with_an_evacuation_that_is_done_are_possible(world, change):
    world.migration(world.guest(), 'done', migration_type='evacuation')
    assert update(world, change).status_int == 200


# --- delete ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('version', ['2.1', '2.52', '2.53', '2.80'])
def test_conductor_deletes_the_service(world, version):
    service = world.database.services.get_compute('source')
    ids = [str(service.id)] if version in ('2.1', '2.52') else [service.uuid, service.uuid.upper()]
    for id_ in ids:
        answer = world.ask('DELETE', f'/os-services/{id_}', version=version)
        assert (answer.status_int, answer.body) == (204, b'')
    assert world.conductor.calls == [('delete_service', service.uuid)] * len(ids)


@pytest.mark.parametrize(
    ('version', 'id_', 'code', 'fault'),
    [
        ('2.52', 'a', 400, 'badRequest'),
        ('2.52', '-1', 400, 'badRequest'),
        ('2.52', '\u00b2', 400, 'badRequest'),
        ('2.52', '999', 404, 'itemNotFound'),
        ('2.52', '9' * 30, 404, 'itemNotFound'),
        ('2.53', '1', 400, 'badRequest'),
        ('2.53', '11111111-2222-4333-8444-555555555555', 404, 'itemNotFound'),
    ],
)
def test_delete_of_an_unknown_service_is_refused(world, version, id_, code, fault):
    before = world.rows()
    path = f'/os-services/{urllib.parse.quote(id_)}'
    world.refuses(world.ask('DELETE', path, version=version), code, fault, id_, since=before)
    assert world.conductor.calls == []


@pytest.mark.parametrize(
    ('error', 'code', 'fault'),
    [
        (exception.ServiceInUse(host='source', reason='it is up: stop it first'), 409, 'conflictingRequest'),
        (exception.ProviderInUse(provider='p', consumers='c'), 409, 'conflictingRequest'),
        (exception.PlacementConflict(method='PUT', url='/allocations/c', reason='r'), 409, 'conflictingRequest'),
        (exception.ServiceNotFound(service_id='s'), 404, 'itemNotFound'),
        (exception.ServiceTooOld('[upgrade_levels] conductor is 1.1'), 501, 'notImplemented'),
        (exception.PlacementUnreachable(reason='r'), 503, 'serviceUnavailable'),
    ],
)
def test_error_of_the_conductor_is_the_answer(world, error, code, fault):
    def fail(_uuid):
        raise error

    world.conductor.does = fail
    path = f'/os-services/{world.database.services.get_compute("source").uuid}'
    world.refuses(world.ask('DELETE', path), code, fault, *([] if code == 503 else [error.message]))


def test_only_an_administrator_deletes_a_service(world):
    path = f'/os-services/{world.database.services.get_compute("source").uuid}'
    world.refuses(world.ask('DELETE', path, token='ada:blue'), 403, 'forbidden', 'os-services:delete')
    assert world.conductor.calls == []
