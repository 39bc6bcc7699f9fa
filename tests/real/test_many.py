# SPDX-License-Identifier: Apache-2.0


"""Many migrations at once over many services, during outages of the broker and the database."""

import collections
import threading
import time

import pytest

from migrator.objects import MigrationStatus
from tests.real.cloud import ProcessCloud
from tests.real.site import Shape, Site
from tests.real.users import User

MOVES = 200
GUESTS = 40
#: MiB. The four that leave a host at once share a link of 1 GiB/s: a second is enough for all.
MEMORY = 256
#: The number of moves that are done -> the server that is killed then.
KILLED = {30: 'rabbitmq', 80: 'postgresql', 130: 'placement'}
#: How many migrations have to be in progress at that moment.
CAUGHT = 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def cloud(workspace, postgresql, rabbitmq, placement_http):
    """Four computes, two conductors, two APIs, and a tap on what they say to each other."""
    shape = Shape(
        hosts=4, conductors=2, apis=2, options=(('max_concurrent_live_migrations', 4),), world=('--vcpus', '64')
    )
    site = Site(workspace, shape, rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site, site.tap())
    cloud.simulation.run_until(cloud.up)
    yield cloud
    cloud.close()
    site.end()


def in_progress(cloud):
    return cloud.database.migrations.list(in_progress=True)


def test_two_hundred_migrations_end_right_though_broker_database_and_placement_are_killed_meanwhile(
    cloud, rabbitmq, postgresql, placement_http
):
    servers = {one.name: one for one in (rabbitmq, postgresql, placement_http)}
    guests = [cloud.boot(f'vm-{n}', f'host{1 + n % 4}', MEMORY, dirty_rate=20) for n in range(GUESTS)]
    user = User(cloud, guests, MOVES)
    to_kill = dict(KILLED)
    caught = {}
    at = {}
    restart = threading.Thread()
    began = time.monotonic()

    def all_is_done():
        nonlocal restart
        if to_kill and user.done >= min(to_kill) and not restart.is_alive():
            found = in_progress(cloud)
            statuses = collections.Counter(one.status for one in found)
            if len(found) >= CAUGHT and statuses[MigrationStatus.RUNNING]:
                name = to_kill.pop(min(to_kill))
                servers[name].kill()
                at[name] = time.monotonic()
                caught[name] = {one.uuid for one in found}
                restart = threading.Thread(target=servers[name].start)
                restart.start()
                print(f'{time.monotonic() - began:.0f} s, {user.done} done: {name} is killed; {dict(statuses)}')
        return user.step()

    cloud.simulation.run_until(all_is_done, timeout=300)
    restart.join()
    cloud.wait()
    print(f'{time.monotonic() - began:.0f} s: all done; answers {dict(user.answers)}')

    # Nothing that was accepted is lost: it has ended, and says why if not as it was meant to.
    migrations = {one.uuid: one for one in cloud.migrations()}
    assert set(caught) == set(KILLED.values())
    for name, uuids in caught.items():
        assert uuids <= migrations.keys(), name
    status = MigrationStatus
    assert {one.status for one in migrations.values()} <= {status.COMPLETED, status.FAILED}
    assert [one.uuid for one in migrations.values() if one.status == status.FAILED and not one.failure] == []
    assert sum(one.status == status.COMPLETED for one in migrations.values()) >= MOVES
    cloud.judge(set())

    # Every service had a part in it, the tap has received messages of all, also after the broker was killed, and no
    # compute host has called another.
    assert {name for name, answer in user.answers if answer == 202} == {'api1', 'api2'}
    tap = cloud.tap
    assert tap.taps == 2
    services = {f'{each.kind}:{name}' for name, each in cloud.site.services.items()}
    for before in (True, False):
        received = {one.sender for one in tap.messages if (one.at < at['rabbitmq']) is before}
        assert received == services, f'{"before" if before else "after"} the broker was killed'
    assert tap.recorder.compute_to_compute() == []
