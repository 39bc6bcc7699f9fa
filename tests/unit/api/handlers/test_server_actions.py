# SPDX-License-Identifier: Apache-2.0

"""Lock, unlock, the reset of a state, and the actions that migrator does not serve."""

import pytest

from migrator.api.handlers import server_actions

#: Server action -> the instance action that nova 34 records for it.
RECORDED = {
    'os-migrateLive': 'live-migration',
    'evacuate': 'evacuate',
    'migrate': 'migrate',
    'resize': 'resize',
    'confirmResize': 'confirmResize',
    'revertResize': 'revertResize',
    'lock': 'lock',
    'unlock': 'unlock',
    'os-resetState': 'resetState',
}
#: Those that end within their request, with their bodies, and nova's events.
AT_ONCE = {
    'lock': (None, ['api_lock']),
    'unlock': (None, ['api_unlock']),
    'os-resetState': ({'state': 'error'}, []),
}


def act(world, guest, body, version='2.80', token='admin'):
    return world.ask('POST', f'/servers/{guest.uuid}/action', body, version=version, token=token)


def lock_of(world, guest):
    row = world.database.instances.get(guest.uuid)
    return row.locked_by, row.locked_reason


@pytest.mark.parametrize('arguments', [None, {}, {'locked_reason': 'mine'}, 'please'])
def test_below_2_73_a_lock_has_no_reason(world, arguments):
    guest = world.guest(project='blue')
    response = act(world, guest, {'lock': arguments}, '2.72', 'ada:blue')
    assert (response.status_int, response.body) == (202, b'')
    assert lock_of(world, guest) == ('owner', None)


def test_lock_from_2_73_stores_reason(world):
    guest = world.guest()
    assert act(world, guest, {'lock': {'locked_reason': 'mine'}}).status_int == 202
    assert lock_of(world, guest) == ('owner', 'mine')
    # as in nova, what comes with it does not matter
    assert act(world, guest, {'unlock': {'x': 1}}).status_int == 202
    assert lock_of(world, guest) == (None, None)


@pytest.mark.parametrize(
    ('version', 'body', 'words'),
    [
        ('2.73', {'lock': {'reason': 'mine'}}, ['reason', 'locked_reason']),
        ('2.73', {'lock': {'locked_reason': ''}}, ['locked_reason']),
        ('2.73', {'lock': {'locked_reason': 'x' * 256}}, ['locked_reason', '255']),
        ('2.73', {'lock': True}, ['lock']),
        ('2.80', {'unlock': None, 'lock': None}, ['one key']),
    ],
)
def test_body_of_another_form_returns_400(world, version, body, words):
    guest = world.guest()
    before = world.rows()
    world.refuses(act(world, guest, body, version), 400, 'badRequest', *words, since=before)


def test_owner_cannot_replace_or_remove_an_administrators_lock(world):
    guest = world.guest(project='blue')
    assert act(world, guest, {'lock': None}).status_int == 202
    assert lock_of(world, guest) == ('admin', None)
    before = world.rows()
    assert act(world, guest, {'lock': {'locked_reason': 'mine'}}, token='ada:blue').status_int == 202
    assert world.rows() == before
    refused = act(world, guest, {'unlock': None}, token='ada:blue')
    world.refuses(refused, 403, 'forbidden', 'unlock_override', since=before)


def test_an_administrator_may_undo_the_lock_of_an_owner(world):
    guest = world.guest(project='blue', locked_by='owner')
    # as in nova, what comes with it does not matter
    assert act(world, guest, {'unlock': {'x': 1}}).status_int == 202
    assert lock_of(world, guest) == (None, None)


def test_another_projects_server_is_a_404_and_a_reader_may_not(roles):
    guest = roles.guest(project='blue')
    before = roles.rows()
    for action in ('lock', 'unlock'):
        roles.refuses(act(roles, guest, {action: None}, token='member:eve:red'), 404, 'itemNotFound', since=before)
        roles.refuses(
            act(roles, guest, {action: None}, token='reader:eve:blue'), 403, 'forbidden', action, since=before
        )


@pytest.mark.parametrize('action', ['reboot', 'rebuild', 'os-start', 'createImage', 'forceDelete', 'shelve'])
def test_action_of_nova_that_is_not_served_returns_501_with_its_name(world, action):
    guest = world.guest()
    before = world.rows()
    response = act(world, guest, {action: None})
    world.refuses(response, 501, 'notImplemented', f"does not serve the server action '{action}'", 'nova', since=before)


def test_an_action_that_is_not_served_on_another_projects_server_is_a_404(world):
    guest = world.guest(project='blue')
    response = act(world, guest, {'reboot': None}, token='eve:red')
    world.refuses(response, 404, 'itemNotFound', guest.uuid)


@pytest.mark.parametrize('action', ['nonsense', 'migrateLive', 'x' * 1000])
def test_action_unknown_to_nova_returns_400_with_novas_message(world, action):
    guest = world.guest()
    before = world.rows()
    response = act(world, guest, {action: None})
    world.refuses(response, 400, 'badRequest', f'There is no such action: {action[:64]}', since=before)
    assert len(response.text) < 300


@pytest.mark.parametrize('body', [{}, {'lock': None, 'unlock': None}, [], None, 'lock', 7])
def test_body_without_exactly_one_action_returns_400(world, body):
    guest = world.guest()
    before = world.rows()
    world.refuses(act(world, guest, body), 400, 'badRequest', 'one key', since=before)


# --- reset of the state ----------------------------------------------------------------------------------------------


def reset(world, guest, state, **more):
    return act(world, guest, {'os-resetState': {'state': state}}, **more)


def states_of(world, guest):
    row = world.database.instances.get(guest.uuid)
    return row.vm_state, row.task_state


@pytest.mark.parametrize('version', ['2.1', '2.80'])
@pytest.mark.parametrize('state', ['active', 'error'])
@pytest.mark.parametrize('old', [('error', None), ('active', None), ('stopped', 'deleting')])
def test_reset_sets_the_vm_state_and_clears_the_task_state(world, version, state, old):
    guest = world.guest(vm_state=old[0], task_state=old[1], locked_by='owner')
    response = reset(world, guest, state, version=version)
    assert (response.status_int, response.body) == (202, b'')
    assert states_of(world, guest) == (state, None)
    assert world.get(f'/servers/{guest.uuid}')['server']['status'] == state.upper()


@pytest.mark.parametrize('kind', ['live-migration', 'evacuation'])
def test_reset_during_a_migration_returns_409_that_names_it(world, kind):
    guest = world.guest()
    one = world.migration(guest, 'preparing', migration_type=kind)
    before = world.rows()
    said = f'migration in progress already: migration {one.id}'
    world.refuses(reset(world, guest, 'active'), 409, 'conflictingRequest', said, since=before)


def test_reset_after_an_evacuation_that_is_done_is_accepted(world):
    guest = world.guest()
    world.migration(guest, 'done', migration_type='evacuation')
    assert reset(world, guest, 'error').status_int == 202
    assert states_of(world, guest) == ('error', None)


@pytest.mark.parametrize(
    'arguments', [None, {}, 'active', {'state': 'stopped'}, {'state': None}, {'state': 'active', 'x': 1}]
)
def test_reset_of_another_form_returns_400(world, arguments):
    guest = world.guest()
    before = world.rows()
    world.refuses(act(world, guest, {'os-resetState': arguments}), 400, 'badRequest', 'esetState', since=before)


def test_only_an_administrator_may_reset_a_state(roles):
    guest = roles.guest(project='blue')
    before = roles.rows()
    denied = reset(roles, guest, 'error', token='manager:eve:blue')
    roles.refuses(denied, 403, 'forbidden', 'os_compute_api:os-admin-actions:reset_state', since=before)
    roles.refuses(reset(roles, guest, 'error', token='manager:eve:red'), 404, 'itemNotFound', guest.uuid, since=before)
    assert reset(roles, guest, 'error', token='admin:root:admin').status_int == 202


def test_each_action_that_is_served_has_an_action_of_nova():
    assert set(server_actions.ACTIONS) == set(RECORDED)


@pytest.mark.parametrize('name', AT_ONCE)
def test_action_that_ends_at_once_is_recorded_with_its_user(world, name):
    arguments, events = AT_ONCE[name]
    guest = world.guest(project='blue')
    response = act(world, guest, {name: arguments}, token='admin:red')
    assert response.status_int == 202
    (found,) = world.get(f'/servers/{guest.uuid}/os-instance-actions')['instanceActions']
    assert (found['action'], found['user_id'], found['project_id']) == (RECORDED[name], 'admin', 'red')
    assert found['request_id'] == response.headers['X-Compute-Request-Id']
    shown = world.get(f'/servers/{guest.uuid}/os-instance-actions/{found["request_id"]}')['instanceAction']
    assert [one['event'] for one in shown['events']] == events
    assert {one['result'] for one in shown['events']} <= {'Success'}


def test_lock_of_an_owner_that_changes_nothing_is_not_recorded(world):
    guest = world.guest(project='blue', locked_by='admin')
    assert act(world, guest, {'lock': None}, token='ada:blue').status_int == 202
    assert world.get(f'/servers/{guest.uuid}/os-instance-actions')['instanceActions'] == []
