# SPDX-License-Identifier: Apache-2.0

"""Hosts of older releases, side by side with new ones."""

import pytest

from migrator.compute import rpcapi

ENDS = ('post_live_migration_at_source', 'post_live_migration_at_destination')


def sent(cloud, method):
    """Return the messages of a call: (kind, from or to a host)."""
    return [message.kind for message in cloud.recorder.messages if message.method == method]


def moving(cloud, method):
    """Begin a move whose post step hangs on one of its hosts; return the stall."""
    host = 'host1' if method.endswith('source') else 'host2'
    stall = cloud.world.hypervisors[host].faults.stall(method)
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance, host='host2').status_int == 202
    return stall


@pytest.mark.simulated(reason='looks at single messages')
@pytest.mark.cloud(options={'compute.service_version_cap': 3})
@pytest.mark.parametrize('method', ENDS)
def test_post_below_version_4_is_answered_when_it_is_done(cloud, method):
    stall = moving(cloud, method)
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.simulation.advance(rpcapi.PLAIN_WAIT - 1)
    assert sent(cloud, method) == ['call']
    stall.release()
    cloud.wait()
    assert sent(cloud, method) == ['call', 'reply']
    assert [one.status for one in cloud.migrations()] == ['completed']


@pytest.mark.simulated(reason='looks at single messages')
@pytest.mark.cloud(options={'compute.service_version_cap': 3})
@pytest.mark.parametrize('method', ENDS)
def test_long_post_step_below_version_4_blocks_no_other_work_and_is_sent_once(cloud, method):
    stall = moving(cloud, method)
    cloud.simulation.advance(90)
    assert stall.reached.is_set()
    for each in ENDS:
        assert sent(cloud, each) == ['call', 'reply'], 'the other host is informed too'
    stall.release()
    cloud.wait()
    assert [one.status for one in cloud.migrations()] == ['completed']


@pytest.mark.simulated(reason='looks at single messages')
@pytest.mark.cloud(options={'compute.service_version_cap': 3, 'conductor.post_max_attempts': 1})
def test_long_cleanup_below_version_4_is_sent_by_one_call_at_a_time(cloud):
    faults = cloud.world.hypervisors['host1'].faults
    faults.fail('post_live_migration_at_source', 'planned: not at once')
    stall = faults.stall('post_live_migration_at_source')
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance, host='host2').status_int == 202
    cloud.simulation.run_until(lambda: cloud.database.cleanups.list())
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.simulation.advance(60)
    calls = sent(cloud, 'post_live_migration_at_source')
    assert max(calls[:n].count('call') - calls[:n].count('reply') for n in range(len(calls) + 1)) == 1
    stall.release()
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list())


@pytest.mark.simulated(reason='looks at single messages')
@pytest.mark.parametrize('method', ENDS)
def test_post_from_version_4_is_answered_at_once(cloud, method):
    stall = moving(cloud, method)
    cloud.simulation.advance(90)
    assert stall.reached.is_set()
    assert sent(cloud, method)[:2] == ['call', 'reply']
    stall.release()
    cloud.wait()


@pytest.mark.cloud(options={'compute.service_version_cap': 3})
def test_failed_rollback_below_version_4_is_tried_again(cloud):
    faults = cloud.world.hypervisors['host2'].faults
    faults.fail('pre_live_migration', 'planned: it cannot')
    faults.fail('rollback_live_migration_at_destination', 'planned: not at once')
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance, host='host2').status_int == 202
    cloud.wait()
    assert [one.status for one in cloud.migrations()] == ['failed']
    assert cloud.database.cleanups.list() == []


@pytest.mark.nova_bug(1377644)
@pytest.mark.simulated(reason='looks at single messages')
@pytest.mark.cloud(options={'upgrade_levels.compute': '1.0'})
def test_pinned_version_sends_new_hosts_the_old_messages(cloud):
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    assert [one.status for one in cloud.migrations()] == ['completed']
    for method in ENDS:
        assert sent(cloud, method)[:2] == ['call', 'reply']
