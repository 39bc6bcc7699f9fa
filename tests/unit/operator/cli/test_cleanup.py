# SPDX-License-Identifier: Apache-2.0

"""The list of deferred cleanups, and the retry and discard of blocked ones."""

import pytest


@pytest.fixture
def blocked(operator):
    """A cleanup that would remove a guest from its own host, because an operator moved it back."""
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].faults.fail('post_live_migration_at_source', 'the disk is busy', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    cloud.database.instances.update(instance.uuid, host='host1', node='host1')
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list()[0].blocked_because, timeout=60)
    return cloud.database.cleanups.list()[0]


def test_each_cleanup_has_its_host_step_state_and_reason(operator, blocked):
    text = operator.observed('cleanup', 'list')
    for word in (str(blocked.id), 'host1', 'post_live_migration_at_source', 'blocked', 'would remove the guest'):
        assert word in text, text
    (document,) = operator.json('cleanup', 'list', '--blocked')['cleanups']
    assert (document['id'], document['state']) == (blocked.id, 'blocked')
    assert operator.json('cleanup', 'list', '--host', 'host2')['cleanups'] == []


def test_discard_shows_a_plan_and_with_yes_deletes_the_cleanup(operator, blocked):
    text = operator.observed('cleanup', 'discard', blocked.id)
    assert 'Nothing was changed.' in text
    assert 'No conductor would ever have host1 do post_live_migration_at_source' in text
    assert operator.cloud.database.cleanups.list() == [blocked]
    assert operator.pastes(text.splitlines()[-1].strip())[0] == 0
    assert operator.cloud.database.cleanups.list() == []
    status, out = operator.status('cleanup', 'discard', blocked.id, '--yes')
    assert (status, out) == (1, '')
    assert 'no cleanup has this id' in operator.err


def test_retry_of_a_blocked_cleanup_runs_it_again(operator, blocked):
    cloud = operator.cloud
    assert 'observes first' in operator.observed('cleanup', 'retry', blocked.id, '--dry-run')
    cloud.database.instances.update(blocked.instance_uuid, host='host2', node='host2')
    assert cloud.database.cleanups.list() == [blocked]
    cloud.world.hypervisors['host1'].faults.clear()
    operator.observed('cleanup', 'retry', blocked.id)
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list(), timeout=60)
    assert cloud.world.hypervisors['host1'].residue(blocked.instance_uuid) == []


def test_retry_and_discard_refuse_a_cleanup_that_is_not_blocked(operator):
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].faults.fail('post_live_migration_at_source', 'the disk is busy', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    (cleanup,) = cloud.database.cleanups.list()
    assert 'pending' in operator.observed('cleanup', 'list', '--instance', instance.uuid)
    for words in (('retry', cleanup.id), ('discard', cleanup.id, '--yes')):
        assert operator.status('cleanup', *words) == (1, '')
        assert 'it is not blocked: a conductor runs it when host1 is up' in operator.err
    cloud.world.hypervisors['host1'].faults.clear()
