# SPDX-License-Identifier: Apache-2.0

"""Drains of a stock Nova behind the REST API, run by a conductor without compute services."""

import contextlib

import pytest

from migrator.cmd.conductor import make_mover
from migrator.placement_client.client import PlacementClient
from migrator.testing.cloud import SimulatedCloud
from tests.unit import placements
from tests.unit.nova.fake import FakeNova

pytestmark = pytest.mark.simulated(reason='its Nova is in memory, and goes by the clock of the simulation')


class Site:
    """A Nova in memory, with the API and a conductor of ours beside it."""

    def __init__(self, backend, placement):
        self.cloud = SimulatedCloud(backend.directory, backend=backend, hosts=0, options={'drain.engine': 'nova'})
        self.threads = self.cloud.world.threads
        self.nova = FakeNova(placement=PlacementClient(placement.adapter()))
        self._ticked = int(self.threads.clock.monotonic())
        self.nova.before = self._tick
        (self.conductor,) = self.cloud.conductors
        self.start_conductor(self.conductor)

    def _tick(self, _method, _path):
        now = int(self.threads.clock.monotonic())
        self._ticked, passed = now, now - self._ticked
        self.nova.tick(passed)

    def start_conductor(self, name):
        manager = self.cloud.conductors.get(name) or self.cloud.start_conductor(name)
        manager.drains.mover = make_mover(self.nova.client(), self.nova.placement, self.cloud.database, self.threads)

    def ask(self, method, path, body=None, status=200):
        answer = self.cloud.request(method, f'/migrator/v1/drains{path}', body)
        assert answer.status_int == status, answer.text
        return answer.json

    def ends(self, uuid):
        self.cloud.simulation.run_until(lambda: self.cloud.database.drains.get(uuid).ended, timeout=600)
        return self.ask('GET', f'/{uuid}')['drain']


@pytest.fixture(scope='module')
def running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def site(backend, running):
    running.empty()
    made = Site(backend, running)
    with contextlib.closing(made.cloud):
        yield made
        made.cloud.stop()


def test_host_of_nova_is_emptied_and_restored(site):
    for number in range(2):
        site.nova.add_guest(f'guest{number}')
    uuid = site.ask('POST', '', {'host': 'host1', 'reason': 'firmware'}, 202)['drain']['uuid']
    assert site.ends(uuid)['status'] == 'completed'
    assert site.nova.on('host1') == []
    assert site.nova.services['host1']['disabled_reason'] == f'drain {uuid}: firmware'
    site.ask('POST', f'/{uuid}/action', {'restore': None}, 202)
    assert site.ends(uuid)['status'] == 'restored'
    assert site.nova.on('host1') == ['guest0', 'guest1']
    assert site.nova.services['host1']['status'] == 'enabled'


def test_plan_is_made_from_nova(site):
    site.nova.add_guest('free')
    site.nova.add_guest('kept', locked=True)
    plan = site.ask('POST', '', {'host': 'host1', 'dry_run': True})['plan']
    assert {guest['name']: guest['can_move'] for guest in plan['guests']} == {'free': True, 'kept': False}
    assert plan['locked'] == 1
    plan = site.ask('POST', '', {'host': 'host1', 'dry_run': True, 'locked': 'move'})['plan']
    assert (plan['can_move'], plan['cannot_move'], plan['locked']) == (2, 0, 1)
    refused = site.ask('POST', '', {'host': 'host9', 'dry_run': True}, 400)
    assert 'host9' in refused['badRequest']['message']


def test_locked_guest_of_nova_moves_if_the_drain_has_them_moved(site):
    site.nova.add_guest('kept', locked=True)
    uuid = site.ask('POST', '', {'host': 'host1', 'locked': 'move'}, 202)['drain']['uuid']
    assert site.ends(uuid)['status'] == 'completed'
    assert site.nova.on('host1') == []


def test_shut_off_guest_of_nova_is_moved_once_and_confirmed_by_the_next_conductor(site):
    guest = site.nova.add_guest('off', vm_state='stopped')
    site.nova.add_guest('runs')
    plan = site.ask('POST', '', {'host': 'host1', 'dry_run': True, 'include_stopped': True})['plan']
    types = {one['name']: one['migration_type'] for one in plan['guests']}
    assert types == {'off': 'migration', 'runs': 'live-migration'}
    uuid = site.ask('POST', '', {'host': 'host1', 'include_stopped': True}, 202)['drain']['uuid']
    site.cloud.simulation.run_until(lambda: any(row['instance_uuid'] == guest for row in site.nova.rows), timeout=60)
    shown = {one['name']: one['expected'] for one in site.ask('GET', f'/{uuid}')['drain']['members']}
    assert 'cold migration' in shown['off']['reason']
    site.cloud.kill(site.conductor)
    site.cloud.conductors.pop(site.conductor, None)
    site.start_conductor('conductor9')
    ended = site.ends(uuid)
    assert (ended['status'], ended['include_stopped'], site.nova.on('host1')) == ('completed', True, [])
    assert [row['status'] for row in site.nova.rows if row['instance_uuid'] == guest] == ['confirmed']
    (member,) = [one for one in ended['members'] if one['name'] == 'off']
    assert member['migration_uuid'] == f'0:{site.nova.actions[0]["request_id"]}'
    site.ask('POST', f'/{uuid}/action', {'restore': None}, 202)
    assert site.ends(uuid)['status'] == 'restored'
    assert site.nova.on('host1') == ['off', 'runs']


def test_drain_of_an_unknown_host_ends_with_the_reason(site):
    uuid = site.ask('POST', '', {'host': 'host9'}, 202)['drain']['uuid']
    ended = site.ends(uuid)
    assert ended['status'] == 'incomplete'
    assert ended['message'].startswith('Nova has no nova-compute at host9. Name a host')


def test_guest_of_nova_is_shown_with_its_destination_and_progress(site):
    guest = site.nova.add_guest('guest0')
    site.nova.ticks[guest] = 40
    uuid = site.ask('POST', '', {'host': 'host1'}, 202)['drain']['uuid']

    def shown():
        (member,) = site.ask('GET', f'/{uuid}')['drain']['members'] or [{'migration': None}]
        return member['migration'] or {}

    site.cloud.simulation.run_until(lambda: shown().get('memory_processed_bytes'), timeout=60)
    assert shown()['destination'] == site.nova.row(guest)['dest_compute']
    assert shown()['memory_total_bytes'] == 2**30
    assert site.ends(uuid)['members'][0]['migration'] is None


def test_next_conductor_goes_on_without_a_second_request(site):
    guest = site.nova.add_guest('guest0')
    site.nova.ticks[guest] = 40
    uuid = site.ask('POST', '', {'host': 'host1'}, 202)['drain']['uuid']
    site.cloud.simulation.run_until(lambda: site.nova.rows, timeout=60)
    site.cloud.kill(site.conductor)
    site.cloud.conductors.pop(site.conductor, None)
    site.start_conductor('conductor9')
    assert site.ends(uuid)['status'] == 'completed'
    assert len(site.nova.rows) == 1
