# SPDX-License-Identifier: Apache-2.0

"""evacuate: its forms, its answers, and its refusals in nova's order."""

import pytest

UNKNOWN = '00000000-0000-4000-8000-000000000000'


def only_migration(world):
    (found,) = world.database.migrations.list()
    return found


@pytest.fixture
def guest(world):
    """A server whose host is declared down."""
    world.force_down('source')
    return world.guest()


# --- accepted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('version', 'arguments', 'kept'),
    [
        ('2.1', {'onSharedStorage': True}, (None, False)),
        ('2.13', {'host': 'dest', 'onSharedStorage': 'false', 'adminPass': 'secret'}, ('dest', False)),
        ('2.14', {}, (None, False)),
        ('2.28', {'host': 'dest'}, ('dest', False)),
        ('2.29', {'host': 'dest', 'force': True}, ('dest', True)),
        ('2.67', {'host': 'dest', 'force': 'false', 'adminPass': ''}, ('dest', False)),
        ('2.68', {'host': 'spare', 'adminPass': 'secret'}, ('spare', False)),
        ('2.80', {}, (None, False)),
    ],
)
def test_each_form_is_accepted_and_kept_as_it_was_asked_for(world, guest, version, arguments, kept):
    response = world.ask('POST', f'/servers/{guest.uuid}/action', {'evacuate': arguments}, version=version)
    assert response.status_int == 200, response.text
    row = only_migration(world)
    assert (row.requested_host, row.force) == kept
    assert row.dest_compute == row.requested_host
    assert (row.migration_type, row.status) == ('evacuation', 'accepted')
    assert (row.source_compute, row.source_node) == ('source', 'source.example.org')
    assert row.request_id == response.headers['X-OpenStack-Request-Id']
    assert (row.user_id, row.project_id) == ('admin', 'admin')


@pytest.mark.parametrize(('version', 'remark'), [('2.94', {}), ('2.95', {'stops_guest': True})])
def test_from_2_95_the_log_says_that_the_guest_is_to_be_shut_off(world, guest, version, remark):
    assert world.evacuate(guest, version).status_int == 200
    (first,) = world.database.migrations.read_log(only_migration(world).uuid)
    assert first.payload == {'status': 'accepted'} | remark
    assert world.database.instances.get(guest.uuid).vm_state == 'active'


@pytest.mark.parametrize(
    ('version', 'arguments', 'password'),
    [
        ('2.1', {'adminPass': 'secret'}, 'secret'),
        ('2.13', {'adminPass': ''}, ''),
        ('2.13', {'onSharedStorage': True}, None),
    ],
)
def test_below_2_14_the_answer_has_the_password(world, guest, version, arguments, password):
    response = world.evacuate(guest, version, **arguments)
    assert (response.status_int, response.json) == (200, {'adminPass': password})
    assert world.threads.slept == [], 'no version waits for a check'


def test_below_2_14_an_absent_password_is_generated(world, guest):
    first, second = (world.evacuate(one, '2.1') for one in (guest, world.guest()))
    assert first.json != second.json
    assert len(first.json['adminPass']) == 12


@pytest.mark.parametrize('version', ['2.14', '2.29', '2.68', '2.80'])
def test_from_2_14_the_answer_is_empty(world, guest, version):
    response = world.evacuate(guest, version, adminPass='secret')
    assert (response.status_int, response.body) == (200, b'')


@pytest.mark.parametrize('vm_state', ['active', 'stopped', 'error'])
def test_server_in_each_state_of_nova_is_accepted(world, vm_state):
    world.force_down('source')
    assert world.evacuate(world.guest(vm_state=vm_state)).status_int == 200


def test_a_lock_does_not_forbid_it(world):
    world.force_down('source')
    assert world.evacuate(world.guest(locked_by='owner')).status_int == 200


def test_host_that_a_conductor_has_declared_down_is_down(world):
    guest = world.guest()
    world.threads.seconds = 61
    assert world.evacuate(guest).status_int == 400
    world.database.services.call_down(60)
    assert world.evacuate(guest).status_int == 200


def test_host_that_stopped_as_planned_is_down_a_while_later(world):
    """Its service has said that it is alive, so that the guests there run."""
    services, guest = world.database.services, world.guest()
    with world.database.engine.writer() as session:
        services.write_stopped(session, 'source', 'nova-compute', True)
    refused = world.evacuate(guest)
    assert (refused.status_int, 'still in use' in refused.text) == (400, True)
    world.force_down('source')
    assert world.evacuate(guest).status_int == 200


@pytest.mark.nova_bug(1978983)
def test_task_of_another_service_does_not_forbid_it(world):
    """The server could not be evacuated for ever, since its host had died during the task."""
    world.force_down('source')
    guest = world.guest(task_state='powering-off')
    assert world.evacuate(guest).status_int == 200
    assert world.database.instances.get(guest.uuid).task_state == 'rebuilding'
    assert world.migrate(guest).status_int == 409


def test_full_queue_of_the_source_does_not_forbid_it(world):
    world.conf.set_override('max_queued_live_migrations', 1, group='api')
    assert world.migrate(world.guest('one')).status_int == 202
    world.force_down('source')
    assert world.evacuate(world.guest('two')).status_int == 200


# --- as others see it ------------------------------------------------------------------------------------------------


def test_server_is_rebuilt_and_the_migration_has_no_link(world, guest):
    assert world.evacuate(guest).status_int == 200
    shown = world.get(f'/servers/{guest.uuid}')['server']
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == ('REBUILD', 'rebuilding')
    assert [one['id'] for one in world.get('/servers/detail?status=REBUILD')['servers']] == [guest.uuid]
    (listed,) = world.get('/os-migrations?migration_type=evacuation')['migrations']
    assert (listed['migration_type'], listed['status'], listed['source_compute']) == (
        'evacuation',
        'accepted',
        'source',
    )
    assert 'links' not in listed
    assert world.get('/os-migrations?migration_type=live-migration')['migrations'] == []


def test_evacuation_is_no_live_migration_of_its_server(world, guest):
    assert world.evacuate(guest).status_int == 200
    one, before = only_migration(world), world.rows()
    path = f'/servers/{guest.uuid}/migrations'
    assert world.get(path)['migrations'] == []
    for method in ('GET', 'DELETE'):
        world.refuses(world.ask(method, f'{path}/{one.id}'), 404, 'itemNotFound', str(one.id), since=before)
    forced = world.ask('POST', f'{path}/{one.id}/action', {'force_complete': None})
    world.refuses(forced, 409, 'conflictingRequest', 'rebuilding', since=before)


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('version', 'arguments', 'words'),
    [
        ('2.1', {}, ['onSharedStorage', 'required']),
        ('2.14', {'onSharedStorage': True}, ['onSharedStorage', '2.14', 'adminPass, host']),
        ('2.28', {'host': 'dest', 'force': True}, ['force', '2.28']),
        ('2.68', {'host': 'dest', 'force': True}, ['force', '2.68']),
        ('2.80', {'host': None}, ['host', 'None', 'the name of a host']),
    ],
)
def test_body_of_another_version_returns_400_with_the_field(world, guest, version, arguments, words):
    before = world.rows()
    response = world.ask('POST', f'/servers/{guest.uuid}/action', {'evacuate': arguments}, version=version)
    world.refuses(response, 400, 'badRequest', *words, since=before)


@pytest.mark.parametrize('version', ['2.29', '2.67'])
def test_force_without_a_host_returns_400(world, guest, version):
    before = world.rows()
    world.refuses(world.evacuate(guest, version, force=True), 400, 'badRequest', 'without a host', since=before)


@pytest.mark.parametrize('version', ['2.1', '2.13'])
def test_password_for_shared_storage_returns_400(world, guest, version):
    before = world.rows()
    response = world.evacuate(guest, version, onSharedStorage='yes', adminPass='')
    world.refuses(response, 400, 'badRequest', "admin password can't be changed on existing disk", since=before)


@pytest.mark.parametrize(
    ('more', 'words'),
    [
        (
            {'vm_state': 'paused'},
            "Cannot 'evacuate' instance {uuid} while it is in vm_state paused: it has to be active",
        ),
        ({'vm_state': 'building'}, 'it has to be active or stopped or error; it has no migration.'),
        ({'task_state': 'reconciling'}, 'task_state reconciling: that has to end first'),
        ({'task_state': 'deleting'}, 'task_state deleting'),
    ],
)
def test_server_in_another_state_returns_409(world, more, words):
    world.force_down('source')
    guest = world.guest(**more)
    before = world.rows()
    said = words.format(uuid=guest.uuid)
    world.refuses(world.evacuate(guest, host='dest'), 409, 'conflictingRequest', said, since=before)


def test_live_migration_in_progress_returns_409_with_its_state(world, guest):
    one = world.migration(guest)
    before = world.rows()
    said = f"Cannot 'evacuate' instance {guest.uuid} while it is in task_state migrating: migration {one.id}, accepted"
    world.refuses(world.evacuate(guest), 409, 'conflictingRequest', said, since=before)


def test_evacuation_in_progress_returns_409_and_no_advice_to_abort(world, guest):
    assert world.evacuate(guest).status_int == 200
    one, before = only_migration(world), world.rows()
    said = f'that has to end first; migration {one.id}, accepted 0 s ago, is accepted: wait for it to end.'
    for response in (world.evacuate(guest), world.migrate(guest)):
        world.refuses(response, 409, 'conflictingRequest', said, since=before)


@pytest.mark.parametrize(
    ('task_state', 'words'), [('reconciling', 'task_state reconciling'), ('migrating', 'has a migration in progress')]
)
def test_task_of_ours_that_begins_meanwhile_returns_409(world, guest, monkeypatch, task_state, words):
    one = world.migration(guest) if task_state == 'migrating' else None
    world.database.instances.update(guest.uuid, task_state=task_state)
    before = world.rows()
    monkeypatch.setattr(world.database.instances, 'get', lambda uuid: guest)
    world.refuses(world.evacuate(guest), 409, 'conflictingRequest', words, str(one.id if one else ''), since=before)


@pytest.mark.parametrize('task_state', [None, 'powering-off'])
def test_server_that_left_the_dead_host_meanwhile_returns_409(world, guest, monkeypatch, task_state):
    world.database.instances.update(guest.uuid, task_state=task_state)
    world.database.instances.update(guest.uuid, host='spare')
    before = world.rows()
    monkeypatch.setattr(world.database.instances, 'get', lambda uuid: guest)
    world.refuses(world.evacuate(guest), 409, 'conflictingRequest', 'has moved meanwhile', 'Try again', since=before)


@pytest.mark.parametrize('version', ['2.1', '2.29', '2.80'])
def test_host_that_is_up_returns_400_with_the_remedy(world, version):
    guest = world.guest()
    before = world.rows()
    response = world.evacuate(guest, version)
    said = ['Compute service of source is still in use.', 'forced_down', 'try again']
    world.refuses(response, 400, 'badRequest', *said, since=before)


def test_unknown_server_and_another_projects_server_return_404(roles):
    roles.force_down('source')
    guest = roles.guest(project='blue')
    before = roles.rows()
    for one, token in ((guest.replace(uuid=UNKNOWN), 'admin:root:admin'), (guest, 'manager:eve:red')):
        roles.refuses(roles.evacuate(one, token=token), 404, 'itemNotFound', one.uuid, since=before)


def test_only_an_administrator_may_evacuate(roles):
    roles.force_down('source')
    guest = roles.guest(project='blue')
    before = roles.rows()
    refused = roles.evacuate(guest, token='manager:eve:blue')
    roles.refuses(refused, 403, 'forbidden', 'os_compute_api:os-evacuate', since=before)
    assert roles.evacuate(guest, token='admin:root:admin').status_int == 200


def test_checks_come_in_the_order_of_nova(roles):
    """Each request lacks the first fault of the one before, and gets the error of the next."""
    guest = roles.guest(project='blue', vm_state='paused')
    manager, admin = 'manager:eve:blue', 'admin:root:admin'
    unknown = guest.replace(uuid=UNKNOWN)
    before = roles.rows()
    for version, one, token, arguments, code, words in (
        ('2.29', unknown, manager, {'host': 'nowhere', 'force': 7}, 400, 'force'),
        ('2.29', unknown, manager, {'force': True}, 404, UNKNOWN),
        ('2.29', guest, manager, {'force': True}, 403, 'os-evacuate'),
        ('2.29', guest, admin, {'force': True}, 400, 'without a host'),
        ('2.13', guest, admin, {'host': 'nowhere', 'adminPass': 'x', 'onSharedStorage': True}, 400, 'existing disk'),
        ('2.29', guest, admin, {'host': 'nowhere', 'force': True}, 404, 'Compute host nowhere could not be found'),
        ('2.29', guest, admin, {'host': 'source', 'force': True}, 400, "The target host can't be the same one"),
        ('2.29', guest, admin, {'host': 'dest', 'force': True}, 409, 'vm_state paused'),
    ):
        fault = {400: 'badRequest', 403: 'forbidden', 404: 'itemNotFound', 409: 'conflictingRequest'}[code]
        roles.refuses(roles.evacuate(one, version, token, **arguments), code, fault, words, since=before)
    roles.database.instances.update(guest.uuid, vm_state='active')
    roles.refuses(roles.evacuate(guest, token=admin, host='dest'), 400, 'badRequest', 'still in use')
    roles.force_down('source')
    assert roles.evacuate(guest, token=admin, host='dest').status_int == 200
