# SPDX-License-Identifier: Apache-2.0

"""Maintenances in a whole control plane: hosts are emptied, worked on and used again."""

import datetime
import uuid

import pytest

from migrator import exception
from migrator.db import saga_log
from migrator.objects import Flavor
from migrator.objects.protocol import NO_UUID
from tests.functional import state
from tests.functional.faults import faults
from tests.functional.migration_requests import go_on, refused
from tests.functional.test_drain import DRAINS, host_of, is_disabled

pytestmark = pytest.mark.simulated(reason='it kills single services, and lets single seconds pass')

LONG = 900
MAINTENANCES = '/migrator/v1/maintenances'


class Rounds:
    """A maintenance of some hosts, and its users."""

    def __init__(self, cloud, *hosts, **more):
        self.cloud, self.store = cloud, cloud.database.maintenances
        body = {'hosts': [*hosts], 'in_order': True, 'returned_by': 'restart', **more}
        self.uuid = requested(cloud.request('POST', MAINTENANCES, body), 202)['maintenance']['uuid']

    @property
    def row(self):
        return self.store.get(self.uuid)

    def show(self):
        return self.cloud.request('GET', f'{MAINTENANCES}/{self.uuid}').json['maintenance']

    def statuses(self):
        return {one['host']: one['status'] for one in self.show()['hosts']}

    def until(self, timeout=LONG, **wanted):
        self.cloud.simulation.run_until(lambda: wanted.items() <= self.statuses().items(), timeout=timeout)

    def act(self, action, **given):
        return self.cloud.request('POST', f'{MAINTENANCES}/{self.uuid}/action', {action: given or None})

    def begin(self, host):
        return requested(self.act('begin', host=host))['host']['claim']

    def work(self, host):
        """Have a host worked on that is ready: its compute service is started anew."""
        claim = self.begin(host)
        assert host_of_all(self.cloud, host) == []
        requested(self.act('done', host=host, claim=claim))
        self.cloud.kill(host)
        self.cloud.start_compute(host)

    def ends(self):
        self.cloud.simulation.run_until(lambda: self.row.ended, timeout=LONG)
        return self.row


def requested(response, status=200):
    assert response.status_int == status, response.text
    return response.json


def host_of_all(cloud, host):
    return [one.name for one in cloud.database.instances.list({'host': host})]


def test_hosts_are_worked_on_one_after_the_other_and_each_guest_moves_once(cloud):
    guests = [cloud.boot(f'guest{number}', f'host{1 + number % 2}') for number in range(6)]
    rounds = Rounds(cloud, 'host1', 'host2')
    rounds.until(host1='ready', host2='waiting')
    assert (is_disabled(cloud, 'host1'), is_disabled(cloud, 'host2')) == (True, False)
    assert rounds.row.waits_for == 'At most 1 may be out of service: host1 (it is ready).'
    rounds.work('host1')
    rounds.until(host1='done')
    assert not is_disabled(cloud, 'host1')
    rounds.until(host2='ready')
    rounds.work('host2')
    ended = rounds.ends()
    assert (ended.status, ended.message) == ('completed', '2 of 2 hosts done.')
    assert [len(cloud.migrations(one)) for one in guests] == [1] * 6
    assert {host_of(cloud, one) for one in guests} == {'host3'}


def test_host_in_a_maintenance_is_drained_by_no_user(cloud):
    cloud.boot('guest', 'host2')
    rounds = Rounds(cloud, 'host1', 'host2')
    rounds.until(host1='ready')
    refused(cloud.request('POST', DRAINS, {'host': 'host2'}), 409, f'Host host2 is in maintenance {rounds.uuid}')
    assert requested(rounds.act('cancel'), 202)['maintenance']['status'] == 'cancelling'
    assert rounds.ends().status == 'cancelled'
    assert rounds.statuses() == {'host1': 'skipped', 'host2': 'skipped'}
    assert not is_disabled(cloud, 'host1')
    assert cloud.request('POST', DRAINS, {'host': 'host2'}).status_int == 202


def test_maintenance_whose_conductor_dies_goes_on_and_its_host_is_claimed_once(cloud):
    cloud.boot('guest', 'host1')
    cloud.start_conductor('conductor2')
    rounds = Rounds(cloud, 'host1')
    rounds.until(host1='draining')
    (owner,) = (name for name, one in cloud.conductors.items() if one.tools.owner == rounds.row.owner)
    cloud.kill(owner)
    rounds.until(host1='ready')
    chosen = str(uuid.uuid4())
    for _ in range(2):  # as if the first reply had been lost
        claim = requested(rounds.act('begin', host='host1', claim=chosen.upper()))['host']['claim']
        assert claim == chosen
    for other in ({}, {'claim': str(uuid.uuid4())}):
        refused(rounds.act('begin', host='host1', **other), 409, 'admin has claimed it')
    requested(rounds.act('done', host='host1', claim=claim.upper()))
    cloud.kill('host1')
    cloud.start_compute('host1')
    assert rounds.ends().status == 'completed'


def test_restart_of_the_service_does_not_count_as_a_reboot(cloud):
    rounds = Rounds(cloud, 'host1', returned_by='reboot')
    rounds.until(host1='ready')
    rounds.work('host1')
    cloud.simulation.advance(60)
    assert rounds.statuses() == {'host1': 'returning'}
    cloud.kill('host1')
    cloud.world.hypervisors['host1'].power_off()
    cloud.world.hypervisors['host1'].power_on()
    cloud.start_compute('host1')
    assert rounds.ends().status == 'completed'


def test_guest_that_is_shut_off_stays_if_the_request_says_so(cloud):
    off = cloud.boot('off', 'host1')
    cloud.database.instances.update(off.uuid, vm_state='stopped')
    cloud.world.hypervisors['host1'].shut_off(off.uuid)
    rounds = Rounds(cloud, 'host1', stopped='stay')
    rounds.until(host1='ready')
    cloud.world.hypervisors['host1'].resume(off.uuid)
    refused(rounds.act('begin', host='host1'), 409, f'guests that are not shut off: {off.uuid}')


@pytest.mark.cloud(hosts=4)
def test_guest_that_has_no_planned_host_goes_to_no_host_that_is_worked_on_later(cloud):
    slow = cloud.boot('slow', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=slow.uuid, sticky=True)
    rounds = Rounds(cloud, 'host1', 'host2', 'host3')
    rounds.until(host1='draining')
    late = cloud.boot('late', 'host1')
    go_on(cloud)
    rounds.until(host1='ready')
    assert host_of(cloud, late) == 'host4'


def test_dedicated_processors_that_no_host_reports_are_planned_as_shared_ones(cloud):
    flavor = Flavor(name='pinned', vcpus=2, memory_mb=1024, extra_specs={'hw:cpu_policy': 'dedicated'})
    engine = cloud.conductors['conductor1'].maintenances.engine
    guest = cloud.boot('pinned', 'host1', flavor=flavor)
    rounds = Rounds(cloud, 'host1', stopped='stay')
    (found,) = engine.guests(rounds.row)
    assert (found.uuid, found.needs['VCPU'], 'PCPU' in found.needs) == (guest.uuid, 2, False)
    cloud.database.instances.update(guest.uuid, vm_state='stopped')
    assert [one.only for one in engine.guests(rounds.row)] == [frozenset()]


def test_host_that_dies_while_it_is_drained_fails_and_so_pauses_the_rest(cloud):
    guests = [cloud.boot(f'guest{number}', 'host1') for number in range(2)]
    rounds = Rounds(cloud, 'host1', 'host2')
    rounds.until(host1='draining')
    cloud.kill('host1')
    cloud.world.hypervisors['host1'].power_off()
    cloud.simulation.advance(100)
    state.force_down(cloud, 'host1')
    rounds.until(host1='failed')
    assert rounds.row.shown_status == 'paused'
    assert 'host1 was declared down before its work.' in rounds.store.read_turns(rounds.uuid)[0].reason
    assert len(guests) == 2


def test_hosts_that_died_elsewhere_keep_further_ones_from_being_begun(cloud):
    rounds = Rounds(
        cloud, 'host1', deadline=(cloud.database.maintenances.now() + datetime.timedelta(hours=1)).isoformat()
    )
    rounds.until(host1='ready')
    cloud.kill('host3')
    cloud.simulation.run_until(lambda: state.service(cloud, 'host3')['state'] == 'down', timeout=200)
    refused(rounds.act('begin', host='host1'), 409, 'Host host3 is down, and is no host of a maintenance')


def test_error_of_a_service_is_what_a_maintenance_waits_for_until_it_is_over(cloud):
    rounds = Rounds(cloud, 'host1')
    engine = cloud.conductors['conductor1'].maintenances.engine
    reports = engine.reports

    def unreachable(_hosts):
        raise exception.DatabaseUnreachable(reason='planned by the test')

    engine.reports = unreachable
    cloud.simulation.run_until(lambda: rounds.row.waits_for, timeout=60)
    assert 'planned by the test' in rounds.row.waits_for
    cloud.simulation.advance(60)
    assert [one.kind for one in rounds.store.read_log(rounds.uuid)] == ['status', 'waits']
    engine.reports = reports
    rounds.until(host1='ready')
    assert rounds.row.waits_for is None


def test_what_a_maintenance_needs_is_in_the_list_of_what_needs_an_operator(cloud):
    rounds = Rounds(cloud, 'host1', work_timeout=60)
    rounds.until(host1='ready')
    assert attention(cloud) == {}  # the drain has ended, and the host is disabled
    claim = rounds.begin('host1')
    cloud.simulation.advance(80)
    assert rounds.show()['hosts'][0]['claim_has_lapsed']
    assert attention(cloud) == {'maintenance-host': 'Lapsed: the work at host1, in a maintenance'}
    requested(rounds.act('fail', host='host1', claim=claim, reason='no disk'))
    cloud.simulation.run_until(lambda: rounds.row.ended, timeout=60)
    assert attention(cloud) == {'maintenance-host': 'Failed: host1, in a maintenance'}
    (service,) = cloud.database.services.list('nova-compute', 'host1')
    requested(cloud.request('PUT', f'/os-services/{service.uuid}', {'status': 'enabled'}))
    requested(cloud.request('PUT', f'/os-services/{service.uuid}', {'status': 'disabled'}))
    assert attention(cloud) == {}  # that is an operator's decision
    requested(rounds.act('skip', host='host1', stays_disabled=True))
    cloud.simulation.run_until(lambda: rounds.row.ended, timeout=60)
    assert attention(cloud) == {}


def test_maintenance_that_is_paused_after_a_failure_is_in_that_list(cloud):
    rounds = Rounds(cloud, 'host1', 'host2')
    rounds.until(host1='ready')
    requested(rounds.act('fail', host='host1', claim=rounds.begin('host1')))
    cloud.simulation.run_until(lambda: rounds.row.paused, timeout=60)
    assert attention(cloud) == {
        'maintenance-host': 'Failed: host1, in a maintenance',
        'maintenance-paused': 'Paused: the maintenance of 2 hosts',
    }


def attention(cloud):
    lines = requested(cloud.request('GET', '/migrator/v1/attention'))['attention']
    return {one['kind']: one['title'] for one in lines}


def test_events_of_a_maintenance_are_in_the_stream(cloud):
    rounds = Rounds(cloud, 'host1')
    rounds.until(host1='ready')
    cloud.simulation.advance(5)
    with cloud.database.engine.reader() as session:
        found = saga_log.events_after(session, rounds.row.created_at, NO_UUID, 0, 100)
    mine = [one.payload['status'] for one in found if (one.of, one.kind) == ('maintenance', 'turn')]
    assert mine == ['draining', 'ready']


@pytest.mark.parametrize(('version', 'force'), [('2.25', {}), ('2.33', {'force': True}), ('2.60', {'force': True})])
def test_no_guest_goes_to_a_host_that_is_out_of_service_even_if_it_is_forced(cloud, version, force):
    guest = cloud.boot('guest', 'host2')
    rounds = Rounds(cloud, 'host1')
    rounds.until(host1='ready')
    body = {'os-migrateLive': {'host': 'host1', 'block_migration': 'auto', **force}}
    response = cloud.request('POST', f'/servers/{guest.uuid}/action', body, version=version)
    if version == '2.60':
        assert response.status_int == 202
        cloud.simulation.run_until(lambda: cloud.migrations(guest)[0].ended, timeout=60)
    else:
        refused(response, 400, f'maintenance {rounds.uuid} has it out of service')
    (row,) = cloud.migrations(guest)
    assert (row.status, host_of(cloud, guest)) in {('failed', 'host2'), ('error', 'host2')}
    assert f'maintenance {rounds.uuid} has it out of service' in row.failure


def test_host_that_an_operator_enables_meanwhile_gets_no_guest_until_its_maintenance_has_done(cloud):
    guest = cloud.boot('guest', 'host2')
    rounds = Rounds(cloud, 'host1')
    rounds.until(host1='ready')
    (service,) = cloud.database.services.list('nova-compute', 'host1')
    requested(cloud.request('PUT', f'/os-services/{service.uuid}', {'status': 'enabled'}))
    body = {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}
    assert cloud.request('POST', f'/servers/{guest.uuid}/action', body).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(guest)[0].ended, timeout=60)
    assert host_of(cloud, guest) == 'host3'


@pytest.mark.cloud(hosts=4)
def test_guests_are_brought_back_before_the_host_is_done_if_the_request_says_so(cloud):
    guests = [cloud.boot(f'guest{number}', 'host1') for number in range(2)]
    rounds = Rounds(cloud, 'host1', 'host2', guests='back')
    rounds.until(host1='ready')
    rounds.work('host1')
    rounds.until(host1='done')
    assert {host_of(cloud, one) for one in guests} == {'host1'}
    rounds.until(host2='ready')  # it has no guests
    rounds.work('host2')
    assert rounds.ends().message == '2 of 2 hosts done.'
    assert not is_disabled(cloud, 'host1')
    assert not is_disabled(cloud, 'host2')
    assert [one['reason'] for one in rounds.show()['hosts']] == [None, None]


def test_restore_of_a_host_in_a_maintenance_is_only_the_maintenances_own(cloud):
    cloud.boot('guest', 'host1')
    rounds = Rounds(cloud, 'host1')
    rounds.until(host1='ready')
    drain = rounds.show()['hosts'][0]['drain']
    refused(cloud.request('POST', f'{DRAINS}/{drain}/action', {'restore': None}), 409, f'maintenance {rounds.uuid}')


def test_host_with_a_locked_guest_fails_before_the_others_leave(cloud):
    locked, free = (cloud.boot(name, 'host1') for name in ('locked', 'free'))
    cloud.request('POST', f'/servers/{locked.uuid}/action', {'lock': None})
    rounds = Rounds(cloud, 'host1')
    rounds.until(host1='failed')
    assert f'locked ({locked.uuid}): It is locked by' in rounds.show()['hosts'][0]['reason']
    assert f'openstack server unlock {locked.uuid}' in rounds.show()['hosts'][0]['reason']
    assert (is_disabled(cloud, 'host1'), host_of(cloud, free)) == (False, 'host1')
    cloud.request('POST', f'/servers/{locked.uuid}/action', {'unlock': None})
    requested(rounds.act('retry', host='host1'))
    requested(rounds.act('resume'), 202)
    rounds.until(host1='ready')


def test_device_that_was_reported_before_is_asked_for_again_before_its_host_fails(cloud):
    guest = cloud.boot('device', 'host1')
    cloud.world.hypervisors['host1'].guests[guest.uuid].immovable = 'it has a device of its host'
    cloud.simulation.run_until(lambda: cloud.database.definitions.reported([guest.uuid]).get(guest.uuid), timeout=300)
    rounds = Rounds(cloud, 'host1', max_failures=1)
    rounds.until(host1='failed')
    assert 'It cannot be moved live: it has a device of its host.' in rounds.show()['hosts'][0]['reason']
    assert not is_disabled(cloud, 'host1')
    cloud.world.hypervisors['host1'].guests[guest.uuid].immovable = ''
    requested(rounds.act('retry', host='host1'))
    rounds.until(host1='ready')
