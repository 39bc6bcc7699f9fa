# SPDX-License-Identifier: Apache-2.0

"""The broker stops, is short of memory, or every conductor dies for a while under a dozen migrations.

None of them fails, all of them complete, and nothing that a user or operator is shown blames a host. With
MIGRATOR_OUTAGE=N it lasts N seconds, twice as long as a host may be unreachable; ``make test-long`` has two minutes.
"""

import json
import os

import pytest

from tests.real.cloud import ProcessCloud
from tests.real.site import Shape, Site

MOVES = 12
#: The migrations whose timelines are shown: one from before the outage, and one that was requested meanwhile.
SHOWN = slice(0, MOVES, MOVES // 2)
#: Seconds.
OUTAGE = int(os.environ.get('MIGRATOR_OUTAGE', '45'))
#: MiB; and MiB/s of the link: a copy takes some seconds, so that the outage meets migrations in every state.
MEMORY, LINK = 512, 128

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def cloud(workspace, postgresql, rabbitmq, placement_http):
    """Three computes, one conductor, one API."""
    down = max(1, OUTAGE // 2)
    options = (
        ('max_concurrent_live_migrations', 2),
        ('service_down_time', down),
        ('compute.report_interval', max(1, down // 6)),
    )
    shape = Shape(hosts=3, conductors=1, apis=1, options=options, world=('--vcpus', '64', '--link', str(LINK)))
    site = Site(workspace, shape, rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site)
    cloud.simulation.run_until(cloud.up)
    yield cloud
    cloud.close()
    site.end()


class Outage:
    """What is away for a while."""

    def __init__(self, cloud, rabbitmq, what):
        self.cloud, self.rabbitmq, self.what = cloud, rabbitmq, what

    def begin(self):
        match self.what:
            case 'broker stopped':
                self.rabbitmq.kill()
            case 'broker short of memory':
                self.rabbitmq.short_of_memory(True)
            case 'conductor killed':
                self.cloud.kill('conductor1')

    def end(self):
        match self.what:
            case 'broker stopped':
                self.rabbitmq.start()
            case 'broker short of memory':
                self.rabbitmq.short_of_memory(False)
            case 'conductor killed':
                self.cloud.start_conductor('conductor1')


def outputs(cloud, migrations):
    """All that an operator is shown of the services and of these migrations."""
    listed = cloud.request('GET', '/os-services').json['services']
    assert {one['state'] for one in listed if one['binary'] == 'nova-compute'} == {'up'}, listed
    shown = [cloud.site.manage('migration', 'show', uuid) for uuid in migrations]
    moving = cloud.request('GET', '/os-migrations').json
    return [json.dumps(listed), json.dumps(moving), cloud.site.manage('service', 'list'), *shown]


def moves(cloud):
    return [row.status for row in cloud.migrations()]


@pytest.mark.parametrize('what', ['broker stopped', 'broker short of memory', 'conductor killed'])
def test_outage_fails_no_migration_and_marks_no_host_down(cloud, rabbitmq, what):
    guests = [cloud.boot(f'guest{number}', 'host1', memory_mb=MEMORY) for number in range(MOVES)]
    for guest in guests[: MOVES // 2]:
        assert cloud.live_migrate(guest).status_int == 202
    cloud.simulation.run_until(lambda: 'running' in moves(cloud))
    outage = Outage(cloud, rabbitmq, what)
    outage.begin()
    for guest in guests[MOVES // 2 :]:
        assert cloud.live_migrate(guest).status_int == 202
    asked = [row.uuid for row in cloud.migrations()]
    assert len(asked) == MOVES
    for _ in range(4):
        cloud.simulation.advance(OUTAGE / 4)
        for text in outputs(cloud, asked[SHOWN]):
            assert '--down' not in text
            assert 'has not answered' not in text
    said = ' '.join(outputs(cloud, asked[-1:]))
    assert ('cannot reach the message broker since' if 'broker' in what else 'o conductor has listened since') in said
    outage.end()
    cloud.simulation.run_until(cloud.idle, timeout=400)
    rows = cloud.migrations()
    assert {row.status for row in rows} == {'completed'}, [(row.status, row.failure) for row in rows]
    assert not [row.stuck_reason for row in rows if row.stuck_reason]
