# SPDX-License-Identifier: Apache-2.0

"""The real client drains a host while any process of RabbitMQ, Placement or migrator is killed."""

import json
import os
import subprocess
import sys

import pytest

from tests.real.cloud import ProcessCloud
from tests.real.site import TREE, Shape, Site
from tests.real.test_evacuation import Operator
from tests.real.test_kills import Killer

#: The guests of the host; the acceptance of this test is 200.
GUESTS = int(os.environ.get('MIGRATOR_DRAINED', '24'))
#: Seconds for the kills, and then for the rest of the drain.
PATIENCE = 250 + 6 * GUESTS
#: The guests that one answer lists; fewer than there are, so that pages follow each other.
PAGE = 10
MEMORY, LINK = 256, 256
KILLS = {'conductor1': 3, 'conductor2': 3, 'host1': 2, 'host2': 2, 'host3': 2, 'api1': 1, 'rabbitmq': 1, 'placement': 1}
PAUSES = {'conductor1': 1, 'conductor2': 1}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE + 200)]


@pytest.fixture
def cloud(workspace, postgresql, rabbitmq, placement_http):
    """Three computes, two conductors, two APIs."""
    options = (
        ('max_concurrent_live_migrations', 2),
        ('conductor.lease', 4),
        ('conductor.sweep_interval', 2),
        ('conductor.poll_interval', 1),
        ('compute.report_interval', 1),
    )
    world = ('--vcpus', str(4 * GUESTS), '--link', str(LINK))
    site = Site(
        workspace,
        Shape(hosts=3, conductors=2, apis=2, options=options, world=world),
        rabbitmq,
        postgresql,
        placement_http,
    )
    site.start()
    cloud = ProcessCloud(site)
    cloud.simulation.run_until(cloud.up)
    yield cloud
    cloud.close()
    site.end()


def watch(cloud, uuid):
    """Start ``migrator-manage watch`` on a drain, at the API that is killed, and return its process."""
    file = cloud.site.services['api1'].file
    command = [
        sys.executable,
        '-m',
        'migrator.cmd.manage',
        '--config-file',
        str(file),
        '--json',
        'watch',
        'drain',
        uuid,
    ]
    env = os.environ | {'PYTHONPATH': str(TREE), 'NO_PROXY': '*'}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def shown_on_page(cloud, uuid):
    """Return the guests of a drain from the lists that the page for a browser asks for, page by page."""
    path = f'/migrator/v1/drains/{uuid}/members?limit={PAGE}'
    found, answer = [], {'members_links': True}
    while 'members_links' in answer:
        marker = f'&marker={found[-1]["instance_uuid"]}' if found else ''
        answer = cloud.request('GET', f'{path}{marker}').json
        found += answer['members']
    return found


def test_host_is_emptied_while_any_process_is_killed(cloud, tmp_path, rabbitmq, placement_http):
    servers = {one.name: one for one in (rabbitmq, placement_http)}
    guests = [cloud.boot(f'vm-{number}', 'host1', MEMORY, dirty_rate=20) for number in range(GUESTS)]
    operator = Operator(cloud, tmp_path)
    try:
        planned = json.loads(operator.run('openstack', 'host', 'drain', 'plan', 'host1', '-f', 'json'))
        assert {one['destination'] for one in planned} == {'host2', 'host3'}
        shown = operator.run('openstack', 'host', 'drain', 'create', '--max-attempts', '20', 'host1', '-f', 'json')
        uuid = json.loads(shown[shown.index('{') :])['uuid']
        with watch(cloud, uuid) as watching:
            with Killer(cloud, servers, 7, KILLS, PAUSES) as killer:
                cloud.simulation.run_until(lambda: killer.finished, timeout=PATIENCE)
            cloud.simulation.run_until(lambda: cloud.database.drains.get(uuid).ended, timeout=PATIENCE)
            output, errors = watching.communicate(timeout=60)
        events = [json.loads(line) for line in output.splitlines()]
        moved = {one['instance'] for one in events if one.get('status') == 'moved'}
        assert (watching.returncode, moved) == (0, {guest.uuid for guest in guests}), errors
        # The last event of a guest, as watch has it, is what the page shows.
        watched = {
            one['instance']: (one['status'], one.get('destination')) for one in events if one['kind'] == 'member'
        }
        members = shown_on_page(cloud, uuid)
        assert {one['instance_uuid']: (one['status'], one['destination']) for one in members} == watched
        assert len(members) == GUESTS
        for one in members:
            newest = one['migrations'][-1]
            assert (newest['status'], newest['destination']) == ('completed', one['destination']), one
        assert [one['seq'] for one in events] == list(range(1, len(events) + 1))
        listed = json.loads(operator.run('openstack', 'host', 'drain', 'list', '--host', 'host1', '-f', 'json'))
        assert [(one['status'], one['guests']['moved']) for one in listed] == [('completed', GUESTS)], listed
    finally:
        operator.close()
    assert {cloud.database.instances.get(guest.uuid).host for guest in guests} == {'host2', 'host3'}
    cloud.come_to_rest()
    assert json.loads(cloud.site.manage('placement', 'audit', '--json'))['findings'] == []
    cloud.judge(set())
