# SPDX-License-Identifier: Apache-2.0

"""migrator-drain with a Placement that has only older microversions.

The real Placement keeps to what each microversion knows.
"""

import json

import pytest

from migrator.placement_client.client import ROCKY, PlacementClient, numbers
from migrator.testing.placement import InProcessPlacement, make_response
from tests.unit.nova.fake import FakeNova

#: Rocky, Stein, Train, the last one before consumers had types, and the newest.
VERSIONS = ['1.30', '1.31', '1.36', '1.37', '1.39']


class Older:
    """An adapter of a Placement whose newest microversion is another one."""

    def __init__(self, adapter, newest):
        self._adapter, self.newest, self.refused = adapter, newest, []

    def request(self, url, method, *, headers, **more):
        wanted = headers.get('OpenStack-API-Version', 'placement 1.0').removeprefix('placement ')
        if numbers(wanted) > numbers(self.newest):
            self.refused.append(f'{method} {url}')
            error = {'status': 406, 'title': 'Not Acceptable', 'max_version': self.newest, 'min_version': '1.0'}
            return self._answer(406, {'errors': [error | {'detail': f'Unacceptable version header: {wanted}'}]})
        response = self._adapter.request(url, method, headers=headers, **more)
        if url != '/':
            return response
        document = response.json()
        document['versions'][0]['max_version'] = self.newest
        return self._answer(200, document)

    def _answer(self, status, document):
        return make_response(None, status, [('Content-Type', 'application/json')], json.dumps(document).encode())


@pytest.fixture(scope='module')
def real(tmp_path_factory):
    with InProcessPlacement(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def nova(real):
    real.empty()
    return FakeNova(placement=PlacementClient(real.adapter()))


@pytest.fixture(params=VERSIONS)
def older(operator, nova, real, request):
    """An operator whose Placement has this microversion at most."""
    adapter = Older(real.adapter(), request.param)
    operator.connect = lambda cloud, region: (nova.client(), PlacementClient(adapter, ROCKY))
    operator.adapter = adapter
    yield operator
    assert adapter.refused == []


def moved(nova):
    """Return a guest whose nova-compute was killed while it moved it, with its migration."""
    guest = nova.add_guest('guest1')
    nova.ticks[guest] = 99
    nova.client().migrate_live(guest, 'host2')
    nova.tick(4)
    nova.kill('host1')
    nova.start('host1')
    return guest, nova.row(guest)['uuid']


def test_host_is_planned_and_emptied_evenly(older, nova):
    for number in range(4):
        nova.add_guest(f'guest{number}')
    plan = older.json('plan', 'host1')
    assert [guest['destination'] for guest in plan['guests']] == ['host2', 'host3', 'host2', 'host3']
    status, out = older.run('start', 'host1', '--spread')
    assert status == 0, out
    assert [len(nova.on(host)) for host in ('host1', 'host2', 'host3')] == [0, 2, 2]
    assert 'host1 is empty' in out


def test_plan_asks_for_what_a_nova_of_that_time_asks_for(older, nova):
    guest = nova.add_guest('guest1')
    nova.servers[guest]['flavor']['extra_specs'] = {'hw:virtio_packed_ring': 'true', 'resources_A:VCPU': '1'}
    plan = older.json('plan', 'host1')
    # No host has the trait of a root provider, which only newer ones can be asked for.
    assert plan['guests'][0]['can_move'] is (numbers(older.adapter.newest) < (1, 35))


def test_allocations_are_audited_and_healed(older, nova):
    guest, migration = moved(nova)
    (finding,) = older.json('audit')['findings']
    assert {one['consumer_type'] for one in finding['holdings']} == {'INSTANCE', 'MIGRATION'}
    assert ('consumer_type' in finding['request']['body'][guest]) is (numbers(older.adapter.newest) >= (1, 38))
    assert older.run('heal', '--yes')[0] == 0
    held = [nova.placement.read(f'/allocations/{one}')['allocations'] for one in (guest, migration)]
    assert [[*one] for one in held] == [[nova.nodes['host1']], []]
    assert older.run('audit')[0] == 0


@pytest.mark.parametrize(('newest', 'error'), [('1.29', 'it has microversion 1.29 at most, and 1.30 is needed')])
def test_placement_before_rocky_is_refused_with_its_version(operator, nova, real, newest, error):
    operator.connect = lambda cloud, region: (nova.client(), PlacementClient(Older(real.adapter(), newest), ROCKY))
    assert operator.run('plan', 'host1')[0] == 1
    assert error in operator.err


def test_another_server_is_not_taken_for_placement(operator, nova, real):
    adapter = real.adapter()
    adapter.request = lambda *_args, **_more: make_response(None, 200, [('Content-Type', 'text/html')], b'<html>')
    operator.connect = lambda cloud, region: (nova.client(), PlacementClient(adapter, ROCKY))
    assert operator.run('plan', 'host1')[0] == 3
    assert 'the server that answered GET / with 200 is not Placement' in operator.err
