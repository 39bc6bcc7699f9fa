# SPDX-License-Identifier: Apache-2.0

"""migrate, confirmResize and revertResize: forms, answers, and refusals in nova's order."""

import pytest

from migrator.db import models


def act(world, guest, action, arguments=None, version='2.80', token='admin'):
    path = f'/servers/{guest.uuid}/action'
    return world.ask('POST', path, {action: arguments}, version=version, token=token)


def only_migration(world):
    (found,) = world.database.migrations.list()
    return found


@pytest.mark.parametrize(
    ('version', 'arguments', 'host'),
    [
        ('2.1', None, None),
        ('2.55', {'host': 'dest'}, None),
        ('2.56', None, None),
        ('2.56', {}, None),
        ('2.56', {'host': None}, None),
        ('2.80', {'host': 'dest'}, 'dest'),
    ],
)
def test_each_form_is_accepted_and_committed_before_the_conductor_is_called(world, version, arguments, host):
    guest, seen = world.guest(), []
    world.conductor.does = lambda uuid: seen.append(
        (
            world.database.migrations.get(uuid).status,
            world.database.instances.get(guest.uuid).task_state,
            world.database.actions.list(guest.uuid)[0].action,
        )
    )
    response = act(world, guest, 'migrate', arguments, version)
    assert (response.status_int, response.body) == (202, b'')
    row = only_migration(world)
    assert (row.migration_type, row.requested_host, row.dest_compute) == ('migration', host, host)
    assert seen == [('accepted', 'resize_prep', 'migrate')]
    assert world.get(f'/servers/{guest.uuid}')['server']['status'] == 'RESIZE'
    # A migration in progress of this type is none of the server's live migrations.
    assert world.get(f'/servers/{guest.uuid}/migrations')['migrations'] == []
    assert world.get('/os-migrations')['migrations'][0]['migration_type'] == 'migration'


def test_migrate_is_refused_in_novas_order(world):
    guest = world.guest(vm_state='paused')
    world.force_down('source')
    before = world.rows()
    response = act(world, guest, 'migrate', {'host': 'source'})
    world.refuses(response, 409, 'conflictingRequest', 'vm_state paused', since=before)
    world.database.instances.update(guest.uuid, vm_state='active')
    world.refuses(act(world, guest, 'migrate', {'host': 'source'}), 409, 'conflictingRequest', 'is down')
    world.database.services.update(world.database.services.get_compute('source').id, forced_down=False)
    with world.database.engine.writer() as session:
        session.execute(models.SERVICES.update().values(down_since=None))
    world.refuses(act(world, guest, 'migrate', {'host': 'source'}), 400, 'badRequest', 'current host source')
    world.refuses(act(world, guest, 'migrate', {'host': 'nowhere'}), 400, 'badRequest', 'nowhere')
    world.refuses(act(world, guest, 'migrate', {'hosts': 'dest'}), 400, 'badRequest', 'hosts')
    world.refuses(act(world, guest, 'migrate', 'dest'), 400, 'badRequest')


def test_a_lock_forbids_each_of_the_three(roles):
    guest = roles.guest(project='demo', locked_by='owner')
    for action in ('migrate', 'confirmResize', 'revertResize'):
        response = act(roles, guest, action, token='manager:eve:demo')
        roles.refuses(response, 409, 'conflictingRequest', 'is locked')


def test_a_named_host_needs_an_administrator(roles):
    guest = roles.guest(project='demo')
    response = act(roles, guest, 'migrate', {'host': 'dest'}, token='manager:eve:demo')
    roles.refuses(response, 403, 'forbidden')
    assert act(roles, guest, 'migrate', token='member:eve:demo').status_int == 403
    assert act(roles, guest, 'migrate', token='manager:eve:demo').status_int == 202


@pytest.mark.parametrize(
    ('action', 'other', 'column', 'task_state'),
    [
        ('confirmResize', 'revertResize', 'confirm_requested_at', None),
        ('revertResize', 'confirmResize', 'revert_requested_at', 'resize_reverting'),
    ],
)
def test_one_decision_is_accepted_for_the_owner_of_the_migration(world, action, other, column, task_state):
    guest = world.guest()
    world.refuses(act(world, guest, action), 409, 'conflictingRequest', 'it has to be resized')
    migration = world.finished(guest)
    assert world.get(f'/servers/{guest.uuid}')['server']['status'] == 'VERIFY_RESIZE'
    world.conductor.calls.clear()
    response = act(world, guest, action, {'anything': True})
    assert (response.status_int, response.body) == (204 if action == 'confirmResize' else 202, b'')
    row = only_migration(world)
    assert getattr(row, column) is not None
    assert (row.status, world.database.instances.get(guest.uuid).task_state) == ('finished', task_state)
    assert world.database.actions.list(guest.uuid)[0].action == action
    assert world.conductor.calls == [('wake', migration.uuid, None)]
    before = world.rows()
    for again in (action, other):
        code = 400 if task_state is None else 409
        assert act(world, guest, again).status_int == code
    assert world.rows() == before


def test_a_decision_is_refused_while_the_source_is_down(world):
    guest = world.guest()
    world.finished(guest)
    world.force_down('source')
    for action in ('confirmResize', 'revertResize'):
        world.refuses(act(world, guest, action), 409, 'conflictingRequest', 'is down')
