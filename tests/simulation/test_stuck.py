# SPDX-License-Identifier: Apache-2.0

"""A stuck migration is checked again with each sweep, and not as fast as its hosts can answer."""

from migrator.simulator.actors.operator import Operator
from migrator.testing.cloud import SimulatedCloud

POSTS = ('post_live_migration_at_source', 'post_live_migration_at_destination')
#: Seconds, and how many post steps may be sent in them: two with each sweep, and some more.
LONG, MOST = 20.0, 20


def test_two_stuck_post_steps_are_not_sent_in_a_loop(tmp_path):
    """An operator starts the guest at its source, and it is gone from its destination, after it had moved."""
    cloud = SimulatedCloud(tmp_path, hosts=2)
    operator = Operator(cloud)
    instance = cloud.boot('one', 'host1')
    source, destination = (cloud.world.hypervisors[host] for host in ('host1', 'host2'))
    stalls = [source.faults.stall(POSTS[0]), destination.faults.stall(POSTS[1])]
    operator.user.migrate(instance)
    assert operator.user.until(lambda: all(stall.reached.is_set() for stall in stalls))
    del destination.guests[instance.uuid]
    source.guests[instance.uuid].state = 'running'
    # Hosts that answer at once would let no time pass.
    cloud.bus.faults = lambda message: 0.05
    for stall in stalls:
        stall.release()

    def sent():
        return sum(one.kind == 'call' and one.method in POSTS for one in cloud.recorder.messages)

    before = sent()
    operator.user.until(lambda: sent() - before > MOST, within=LONG)
    stuck = [row.stuck_reason for row in cloud.migrations()]
    reported = sent() - before
    cloud.stop()
    assert all(stuck)
    assert reported <= MOST
