# SPDX-License-Identifier: Apache-2.0

"""The messages to hosts, as their versions have them."""

import pytest

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
@pytest.mark.parametrize('method', ENDS)
def test_post_is_answered_at_once(cloud, method):
    stall = moving(cloud, method)
    cloud.simulation.advance(90)
    assert stall.reached.is_set()
    assert sent(cloud, method)[:2] == ['call', 'reply']
    stall.release()
    cloud.wait()


@pytest.mark.nova_bug(1377644)
@pytest.mark.simulated(reason='looks at single messages')
@pytest.mark.cloud(options={'upgrade_levels.compute': '1.0'})
def test_pinned_version_sends_all_messages(cloud):
    instance = cloud.boot('one', 'host1')
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    assert [one.status for one in cloud.migrations()] == ['completed']
    for method in ENDS:
        assert sent(cloud, method)[:2] == ['call', 'reply']
