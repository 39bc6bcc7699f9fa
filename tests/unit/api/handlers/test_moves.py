# SPDX-License-Identifier: Apache-2.0

"""What every request that moves a server has in common: what is committed, and when."""

import pytest

from migrator import exception

#: Action of a request -> its answer, the task_state of the server, and the name of the action in its list.
ACTIONS = {
    'os-migrateLive': (202, 'migrating', 'live-migration'),
    'evacuate': (200, 'rebuilding', 'evacuate'),
    'migrate': (202, 'resize_prep', 'migrate'),
}
ARGUMENTS = {'os-migrateLive': {'host': None, 'block_migration': 'auto'}, 'evacuate': {}}


@pytest.fixture(params=ACTIONS)
def action(request, world):
    """The action of a request, for an evacuation with the host of the server declared down."""
    if request.param == 'evacuate':
        world.force_down('source')
    return request.param


def ask(world, guest, action):
    return world.ask('POST', f'/servers/{guest.uuid}/action', {action: ARGUMENTS.get(action)})


def test_row_task_state_and_action_are_committed_before_the_conductor_is_called(world, action):
    guest, seen = world.guest(), []
    world.conductor.does = lambda uuid: seen.append(
        (
            world.database.migrations.get(uuid).status,
            world.database.instances.get(guest.uuid).task_state,
            world.database.actions.list(guest.uuid)[0].action,
        )
    )
    code, task_state, name = ACTIONS[action]
    assert ask(world, guest, action).status_int == code
    assert seen == [('accepted', task_state, name)]
    (row,) = world.database.migrations.list()
    assert world.conductor.calls == [('live_migrate', row.uuid)]


def test_migration_stays_accepted_if_no_conductor_can_be_woken(world, action):
    def unreachable(uuid):
        raise exception.ServiceUnreachable(service='RabbitMQ', reason='refused')

    world.conductor.does = unreachable
    assert ask(world, world.guest(), action).status_int == ACTIONS[action][0]
    assert [row.status for row in world.database.migrations.list()] == ['accepted']


@pytest.mark.parametrize('action', ['os-migrateLive', 'evacuate'], indirect=True)
@pytest.mark.parametrize(
    ('version', 'strategy'), [(1, 'doubled'), (2, 'migration-owned'), (4, 'migration-owned'), (6, 'migration-owned')]
)
def test_the_lowest_compute_service_version_chooses_the_strategy(world, action, version, strategy):
    world.host('old', version=version)
    ask(world, world.guest(), action)
    assert [row.strategy for row in world.database.migrations.list()] == [strategy]


def test_database_accepts_one_of_two_concurrent_requests(world, action, monkeypatch):
    """Both requests pass the check before the transaction."""
    guest = world.guest()
    code, task_state, _ = ACTIONS[action]
    assert ask(world, guest, action).status_int == code
    before = world.rows()
    monkeypatch.setattr(world.database.instances, 'get', lambda uuid: guest)
    is_busy = f'while it is in task_state {task_state}'
    said = {'evacuate': 'has a migration in progress already'}.get(action, is_busy)
    world.refuses(ask(world, guest, action), 409, 'conflictingRequest', guest.uuid, said, since=before)
