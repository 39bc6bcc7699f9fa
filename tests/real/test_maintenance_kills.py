# SPDX-License-Identifier: Apache-2.0

"""Two users work on six hosts while conductors, computes, APIs and the broker are killed."""

import collections
import contextlib
import json
import threading
import time

import pytest
import requests

from tests.real.cloud import ProcessCloud
from tests.real.site import Shape, Site
from tests.real.test_kills import Killer
from tests.real.users import LOOK

HOSTS = [f'host{number}' for number in range(1, 7)]
GUESTS, MEMORY, LINK = 18, 256, 256
#: Seconds for all of it.
PATIENCE = 400
KILLS = {'conductor1': 4, 'conductor2': 4, 'api1': 1, 'api2': 1, 'rabbitmq': 1, **dict.fromkeys(HOSTS, 1)}
PAUSES = {'conductor1': 1, 'conductor2': 1}
ROOT = '/migrator/v1/maintenances'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE)]


@pytest.fixture
def cloud(workspace, tmp_path, postgresql, rabbitmq, placement_http):
    """Six computes, two conductors, two APIs, and users who may do everything with maintenances."""
    policies = tmp_path / 'maintenances.yaml'
    policies.write_text(
        json.dumps({f'migrator:maintenances:{name}': '@' for name in ('show', 'begin', 'done', 'retry', 'resume')})
    )
    options = (
        ('conductor.lease', 4),
        ('conductor.sweep_interval', 2),
        ('conductor.poll_interval', 1),
        ('compute.report_interval', 1),
        ('oslo_policy.policy_file', str(policies)),
    )
    shape = Shape(hosts=6, conductors=2, apis=2, options=options, world=('--vcpus', '64', '--link', str(LINK)))
    site = Site(workspace, shape, rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site)
    cloud.simulation.run_until(cloud.up)
    yield cloud
    cloud.close()
    site.end()


class HostKiller(Killer):
    """One that leaves a host alone while a user works there."""

    def __init__(self, *given):
        super().__init__(*given)
        self.at = collections.defaultdict(threading.Lock)

    def _kill(self, name):
        with self.at[name]:
            super()._kill(name)


class Worker:
    """A user who claims what is ready, starts its compute service anew, and says so, at an API of its own."""

    def __init__(self, cloud, killer, name, api, uuid):
        self.cloud, self.killer, self.name, self.uuid = cloud, killer, name, uuid
        self.url = f'{cloud.site.url(api)}{ROOT}/{uuid}'
        #: (host, claim) of each work, in order.
        self.worked = []
        self.wrong = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def ends(self):
        self._thread.join()
        assert self.wrong == []
        return self.worked

    def _ask(self, method, path='', body=None):
        """Return the status and the document of a reply; None where none came."""
        headers = {'X-Auth-Token': f'{self.name}:ops', 'OpenStack-API-Version': 'compute 2.80'}
        with contextlib.suppress(requests.RequestException):
            response = requests.request(method, f'{self.url}{path}', json=body, headers=headers, timeout=70)
            return response.status_code, response.json()
        return None, None

    def _run(self):
        ends = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < ends:
                status, found = self._ask('GET')
                if status == 200 and self._act(found['maintenance']):
                    return
                time.sleep(LOOK)
            self.wrong.append(f'{self.name} has waited for too long: {found}')
        except Exception as error:  # noqa: BLE001 -- the test shows it
            self.wrong.append(repr(error))

    def _act(self, maintenance):
        """Do what can be done now, and return whether nothing is left."""
        if maintenance['ended_at'] is not None:
            return True
        for one in maintenance['hosts']:
            if one['status'] == 'ready':
                self._ask('POST', '/action', {'begin': {'host': one['host']}})
                return False  # the claim is read, since the reply may be lost
            if one['status'] == 'failed':
                self._ask('POST', '/action', {'retry': {'host': one['host']}})
            if one['status'] == 'working' and one['claimed_by'] == self.name:
                self._work(one['host'], one['claim'])
        if maintenance['status'] == 'paused':
            self._ask('POST', '/action', {'resume': None})
        return False

    def _work(self, host, claim):
        if (host, claim) not in self.worked:
            self.worked.append((host, claim))
            with self.killer.at[host]:
                there = self.cloud.database.instances.list({'host': host})
                self.wrong += [f'{one.name} is on {host}, which is worked on' for one in there]
                self.cloud.kill(host)
                self.cloud.site.services[host].start(wait=False)
        # If the reply is lost, the next look shows whether it has arrived.
        self._ask('POST', '/action', {'done': {'host': host, 'claim': claim}})


def test_each_host_is_worked_on_once_when_any_process_is_killed(cloud, rabbitmq):
    guests = [cloud.boot(f'vm-{number}', HOSTS[number % 6], MEMORY, dirty_rate=20) for number in range(GUESTS)]
    body = {'hosts': HOSTS, 'parallel': 2, 'returned_by': 'restart', 'drain': {'max_attempts': 20}}
    response = cloud.request('POST', ROOT, body)
    assert response.status_int == 202, response.text
    uuid = response.json['maintenance']['uuid']
    with HostKiller(cloud, {rabbitmq.name: rabbitmq}, 11, KILLS, PAUSES) as killer:
        workers = [Worker(cloud, killer, name, api, uuid) for name, api in (('ada', 'api1'), ('bob', 'api2'))]
        cloud.simulation.run_until(lambda: killer.finished, timeout=PATIENCE)
    works = [one for worker in workers for one in worker.ends()]
    row, turns = cloud.database.maintenances.get(uuid), cloud.database.maintenances.read_turns(uuid)
    assert (row.status, row.message) == ('completed', '6 of 6 hosts done.')
    assert sorted(host for host, _claim in works) == HOSTS
    assert {(turn.host, turn.claim) for turn in turns} == {*works}
    assert [one.host for one in cloud.database.services.list('nova-compute') if one.disabled] == []
    cloud.simulation.run_until(cloud.up)
    cloud.come_to_rest()
    assert {cloud.database.instances.get(guest.uuid).host for guest in guests} <= {*HOSTS}
    assert json.loads(cloud.site.manage('placement', 'audit', '--json'))['findings'] == []
    cloud.judge(set())
