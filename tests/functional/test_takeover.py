# SPDX-License-Identifier: Apache-2.0

"""One conductor takes over from another, whatever happens to it meanwhile."""

import pytest

from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults, migrate

pytestmark = pytest.mark.simulated(reason='it kills a conductor, and loses messages, at single moments')


def orphaned(cloud):
    """Have a migration whose conductor is killed in mid-copy, and whose guest arrives afterwards."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=instance.uuid, sticky=True)
    migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'running')
    cloud.start_conductor('conductor2')
    state.kill(cloud, 'conductor1')
    migration_requests.go_on(cloud)
    cloud.simulation.run_until(lambda: not cloud.world.hypervisors['host1'].jobs)
    return instance


@pytest.mark.parametrize('number', range(1, 6))
def test_a_question_that_gets_no_answer_is_asked_again_and_the_same_answer_then_counts(cloud, number):
    """It hung for ever: what the host said at last was what it had said before, so no migration was woken."""
    instance = orphaned(cloud)
    asked = []

    def refused(message):
        if (message.sender, message.method, message.kind) == ('conductor:conductor2', 'poll_live_migrations', 'call'):
            asked.append(message)
            return 'refuse' if len(asked) == number else None
        return None

    cloud.bus.faults = refused
    cloud.wait(LONG)
    assert len(asked) >= min(number, 3)
    state.completed(cloud, instance, 'host2')
