# SPDX-License-Identifier: Apache-2.0

"""Plans of drains of a stock Nova, and the choice of a destination."""

import datetime
import threading

import pytest

from migrator import executors
from migrator.drain.engine import Refused
from migrator.nova import plan, recorded
from migrator.objects.drain import Drain, Member
from migrator.placement_client.client import PlacementClient
from tests.unit import placements
from tests.unit.nova.fake import FakeNova

SSD = 'CUSTOM_SSD'
SECRET = 'COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST'


class Cloud:
    """A Nova in memory, with guests on host1, and a clock."""

    def __init__(self, placement):
        self.placement = placement
        self.fake = FakeNova(placement=placement)
        self.spread = plan.Spread(self.fake.client(), placement, executors.NativeThreads(self))

    def monotonic(self):
        return self.fake.now.timestamp()

    def now(self):
        return self.fake.now

    def plan(self, *hosts, **fields):
        """Return the plan of each host, or that of host1."""
        drains = [Drain(uuid=host, host=host, **fields) for host in hosts or ('host1',)]
        plans = plan.plan(self.fake.client(), self.placement, drains, self)
        return plans if hosts else plans[0]

    def guest(self, name='guest0', host='host1', specs=(), **fields):
        """Add a guest with extra specs."""
        one = self.fake.add_guest(name, host, **fields)
        self.fake.servers[one]['flavor']['extra_specs'] = dict(specs)
        return one

    def way(self, **fields):
        """Return the obstacle of the only guest of host1."""
        (guest,) = self.plan(**fields)['guests']
        assert guest['can_move'] == (guest['destination'] is not None)
        return guest['obstacle']

    def destination(self, **fields):
        """Return the destination of the only guest of host1."""
        (guest,) = self.plan(**fields)['guests']
        return guest['destination']

    def group(self, policy, *members, **rules):
        group = {'id': f'group{len(self.fake.groups)}', 'name': 'web', 'policy': policy, 'rules': rules}
        group['project_id'] = self.fake.servers[members[0]]['tenant_id']
        self.fake.groups.append(group | {'members': list(members)})

    def aggregate(self, *hosts, zone=None, **metadata):
        one = {'uuid': f'aggregate{len(self.fake.aggregates)}', 'name': 'some', 'hosts': list(hosts)}
        given = metadata | ({'availability_zone': zone} if zone else {})
        self.fake.aggregates.append(one | {'availability_zone': zone, 'metadata': given})
        for host in hosts if zone else ():
            self.fake.services[host]['zone'] = zone

    def inventory(self, host, **totals):
        """Let a host have these totals."""
        url = f'/resource_providers/{self.fake.nodes[host]}'
        generation = self.placement.read(url)['generation']
        inventories = {name: {'total': total} for name, total in totals.items()}
        self.placement.put(
            f'{url}/inventories', {'resource_provider_generation': generation, 'inventories': inventories}
        )

    def trait(self, host, *names):
        for name in names:
            if name.startswith('CUSTOM_'):
                self.placement.put(f'/traits/{name}')
        url = f'/resource_providers/{self.fake.nodes[host]}'
        generation = self.placement.read(url)['generation']
        self.placement.put(f'{url}/traits', {'resource_provider_generation': generation, 'traits': [*names]})

    def choose(self, guest, avoided=(), in_flight=None, **fields):
        member = Member(instance_uuid=guest, source='host1')
        return self.spread.choose(Drain(uuid='d1', host='host1', **fields), member, avoided, in_flight or {})


@pytest.fixture(scope='module')
def _running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def cloud(_running):
    _running.empty()
    return Cloud(PlacementClient(_running.adapter()))


# --- the document ----------------------------------------------------------------------------------------------------


def test_plan_names_destinations_and_changes_nothing(cloud):
    for number in range(4):
        cloud.guest(f'guest{number}')
    planned = cloud.plan()
    assert (planned['host'], planned['can_move'], planned['cannot_move']) == ('host1', 4, 0)
    assert [guest['destination'] for guest in planned['guests']] == ['host2', 'host3', 'host2', 'host3']
    assert planned['guests'][0] | {'instance_uuid': 0} == {
        'instance_uuid': 0,
        'name': 'guest0',
        'size_mb': 1024,
        'can_move': True,
        'destination': 'host2',
        'migration_type': 'live-migration',
        'obstacle': None,
        'expected_seconds': None,
    }
    assert {method for method, _path in cloud.fake.requests} == {'GET'}


def test_plan_of_several_hosts_sends_no_guest_to_one_of_them(cloud):
    cloud.guest('guest1', 'host1')
    cloud.guest('guest2', 'host2')
    plans = cloud.plan('host1', 'host2')
    assert [one['host'] for one in plans] == ['host1', 'host2']
    assert {guest['destination'] for one in plans for guest in one['guests']} == {'host3'}


def test_guests_are_in_the_order_of_the_drain(cloud):
    for number, ram in enumerate((1024, 4096, 2048)):
        cloud.guest(f'guest{number}', ram=ram)
    planned = cloud.plan(order='largest_first')
    assert [guest['name'] for guest in planned['guests']] == ['guest1', 'guest2', 'guest0']


def test_destinations_of_the_drain_are_the_only_ones(cloud):
    cloud.guest()
    assert cloud.destination(destinations=['host3']) == 'host3'


# --- what is in the way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('fields', 'kind', 'remedy'),
    [
        ({'locked': True}, 'locked', 'openstack server unlock'),
        ({'vm_state': 'stopped'}, 'state', 'Start it'),
        ({'vm_state': 'error'}, 'state', 'openstack server set --state active'),
    ],
)
def test_state_of_the_guest_is_in_the_way(cloud, fields, kind, remedy):
    cloud.guest(**fields)
    way = cloud.way()
    assert way['kind'] == kind
    assert remedy in way['remedy']


def test_shut_off_guest_is_planned_cold_if_it_is_included(cloud):
    # The device keeps a guest only from moving live.
    off = cloud.guest('off', vm_state='stopped', specs={'pci_passthrough:alias': 'gpu:1'})
    cloud.guest('runs')
    (without, _) = cloud.plan()['guests']
    assert not without['can_move']
    assert 'Or drain the host with --include-stopped' in without['obstacle']['remedy']
    planned = {one['name']: one for one in cloud.plan(include_stopped=True)['guests']}
    assert {name: (one['can_move'], one['migration_type']) for name, one in planned.items()} == {
        'off': (True, 'migration'),
        'runs': (True, 'live-migration'),
    }
    assert planned['off']['destination'] in ('host2', 'host3')
    cloud.fake.servers[off]['flavor']['extra_specs'] = {'accel:device_profile': 'fpga'}
    left = next(one for one in cloud.plan(include_stopped=True)['guests'] if one['name'] == 'off')
    assert (left['can_move'], left['obstacle']['kind']) == (False, 'immovable')


def test_busy_guest_gets_a_destination(cloud):
    cloud.guest(task_state='migrating')
    (guest,) = cloud.plan()['guests']
    assert (guest['can_move'], guest['obstacle']['kind']) == (True, 'busy')


def test_old_copy_of_a_resized_guest_is_in_the_plan_until_its_user_decides(cloud):
    for name, vm_state in (('resized', 'resized'), ('long ago', 'active')):
        one = cloud.guest(name)
        cloud.fake._add_row(one, 'host2', 'req-1')
        cloud.fake.rows[-1] |= {'status': 'finished', 'migration_type': 'resize', 'dest_compute': 'host2'}
        cloud.fake.servers[one] |= {'host': 'host2', 'vm_state': vm_state}
    planned = cloud.plan()
    assert planned['guests'] == []
    (copy,) = planned['copies']
    assert (copy['name'], copy['guest_on']) == ('resized', 'host2')
    assert f'openstack server migration revert {copy["instance_uuid"]}' in copy['remedy']


def test_guest_that_is_deleted_softly_is_in_the_plan(cloud):
    guest = cloud.fake.add_guest('one')
    cloud.fake.servers[guest]['vm_state'] = 'soft-delete'
    planned = cloud.plan()
    (copy,) = planned['copies']
    assert (planned['guests'], copy['instance_uuid'], copy['guest_on']) == ([], guest, 'host1')
    assert 'SOFT_DELETED' in copy['reason']
    assert f'openstack server restore {guest}' in copy['remedy']


def test_guests_of_a_host_that_is_down_cannot_move(cloud):
    cloud.guest()
    cloud.fake.kill('host1')
    assert 'migrator-drain evacuate host1' in cloud.way()['remedy']


@pytest.mark.parametrize(
    ('specs', 'reason'),
    [
        ({'hw:mem_encryption': 'True'}, 'memory is encrypted'),
        ({'hw:tpm_version': '2.0'}, 'TPM'),
        ({'pci_passthrough:alias': 'gpu:1'}, 'PCI device (gpu:1)'),
        ({'accel:device_profile': 'fpga'}, 'accelerator (fpga)'),
        ({'resources:VGPU': '1'}, 'vGPU'),
    ],
)
def test_what_nova_does_not_move_live_is_immovable(cloud, specs, reason):
    cloud.fake.newest = (2, 95)
    cloud.guest(specs=specs)
    way = cloud.way()
    assert way['kind'] == 'immovable'
    assert reason in way['reason']
    assert 'openstack server' in way['remedy']


def test_vgpu_is_movable_where_nova_moves_it(cloud):
    cloud.guest(specs={'resources:VGPU': '1'})
    cloud.inventory('host3', VCPU=8, MEMORY_MB=8192, DISK_GB=10, VGPU=1)
    assert cloud.destination() == 'host3'


@pytest.mark.parametrize('specs', [{'hw:mem_encryption': 'false'}, {'hw:tpm_secret_security': 'host'}])
def test_same_extra_specs_with_other_values_are_movable(cloud, specs):
    cloud.guest(specs={'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'host'} | specs)
    cloud.trait('host2', 'COMPUTE_SECURITY_TPM_2_0', 'COMPUTE_SECURITY_TPM_TIS', SECRET)
    assert cloud.destination() == 'host2'


# --- room and traits -------------------------------------------------------------------------------------------------


def test_plan_counts_the_room_that_its_own_guests_use(cloud):
    for host in ('host2', 'host3'):
        cloud.inventory(host, VCPU=8, MEMORY_MB=5000, DISK_GB=100)
    for number in range(3):
        cloud.guest(f'guest{number}', ram=4000)
    planned = cloud.plan()
    assert planned['can_move'] == 2
    way = planned['guests'][2]['obstacle']
    assert way['kind'] == 'no_destination'
    assert 'the nearest is short of 3000 MEMORY_MB' in way['reason']


@pytest.mark.parametrize(('value', 'host'), [('required', 'host3'), ('forbidden', 'host2')])
def test_traits_of_the_flavor_decide(cloud, value, host):
    cloud.guest(specs={f'trait:{SSD}': value})
    cloud.trait('host3', SSD)
    assert cloud.destination() == host


def test_dedicated_cpus_are_requested_as_such(cloud):
    cloud.guest(vcpus=2, specs={'hw:cpu_policy': 'dedicated'})
    for host in ('host2', 'host3'):
        cloud.inventory(host, MEMORY_MB=8192, DISK_GB=10)
    assert 'host2: it has no PCPU free in Placement' in cloud.way()['reason']
    cloud.inventory('host3', PCPU=2, MEMORY_MB=8192, DISK_GB=10)
    assert cloud.destination() == 'host3'


def test_a_host_with_too_few_dedicated_cpus_gets_no_guest_by_its_shared_ones(cloud):
    """Nova drops it in a filter, which no API shows."""
    cloud.guest(vcpus=4, specs={'hw:cpu_policy': 'dedicated'})
    cloud.inventory('host2', VCPU=16, PCPU=1, MEMORY_MB=8192, DISK_GB=10)
    assert cloud.destination() == 'host3'


def test_dedicated_cpus_are_also_requested_as_shared_ones(cloud):
    """Nova does so too, for hosts whose operator has not set cpu_dedicated_set yet."""
    cloud.guest(vcpus=2, specs={'hw:cpu_policy': 'dedicated'})
    assert cloud.destination() == 'host2'


def test_an_older_nova_asks_for_no_traits_of_secrets(cloud):
    cloud.guest(specs={'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'host'})
    cloud.trait('host2', 'COMPUTE_SECURITY_TPM_2_0', 'COMPUTE_SECURITY_TPM_TIS')
    assert f'host2: it lacks {SECRET}' in cloud.way()['reason']
    cloud.fake.newest = (2, 100)
    assert cloud.destination() == 'host2'


def test_an_older_nova_asks_for_none_of_them_with_shared_processors_either(cloud):
    specs = {'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'host', 'hw:cpu_policy': 'dedicated'}
    cloud.guest(specs=specs)
    cloud.trait('host2', 'COMPUTE_SECURITY_TPM_2_0', 'COMPUTE_SECURITY_TPM_TIS')
    cloud.fake.newest = (2, 100)
    assert cloud.destination() == 'host2'


def test_what_only_the_scheduler_can_judge_is_named(cloud):
    specs = {'capabilities:cpu_info:vendor': 'AMD', 'aggregate_instance_extra_specs:ssd': '<or> a <or> b', 'gold': '1'}
    cloud.guest(specs=specs | {'hw:boot_menu': 'true', 'group_policy': 'none', 'hw:numa_nodes': '2'})
    cloud.fake.servers[cloud.guest('guest1')]['image'] = ''
    assert cloud.plan()['not_judged'] == [
        'The properties of images were not seen for 1 guest whose root disk is a volume.',
        "Only Nova's scheduler can judge aggregate_instance_extra_specs:ssd=<or> a <or> b of guest0.",
        "Only Nova's scheduler can judge capabilities:cpu_info:vendor=AMD of guest0.",
        "Only Nova's scheduler can judge gold=1 of guest0.",
        "Only Nova's scheduler can judge hw:numa_nodes=2 of guest0.",
    ]
    cloud.fake.newest = (2, 96)
    assert cloud.plan()['not_judged'][0].startswith('The properties of images were not seen: Nova shows them from')


def test_hidden_extra_specs_are_named(cloud):
    del cloud.fake.servers[cloud.guest()]['flavor']['extra_specs']
    (said,) = cloud.plan()['not_judged']
    assert said.startswith('The extra specs of 1 guest were not seen: a policy of Nova')


def test_properties_of_an_image_are_part_of_the_request(cloud):
    guest = cloud.guest()
    cloud.fake.servers[guest]['image'] = {
        'id': 'i',
        'properties': {'os_secure_boot': 'required'},
    }
    cloud.trait('host3', 'COMPUTE_SECURITY_UEFI_SECURE_BOOT')
    assert cloud.destination() == 'host3'


def test_root_disk_on_a_volume_needs_no_room(cloud):
    for host in ('host2', 'host3'):
        cloud.inventory(host, VCPU=8, MEMORY_MB=8192)
    guest = cloud.guest()
    assert 'DISK_GB' in cloud.way()['reason']
    cloud.fake.servers[guest]['image'] = ''
    assert cloud.destination() == 'host2'


# --- services, zones, groups and aggregates --------------------------------------------------------------------------


def test_disabled_and_down_hosts_are_named(cloud):
    cloud.guest()
    cloud.fake.services['host2'] |= {'status': 'disabled', 'disabled_reason': 'broken fan'}
    cloud.fake.services['host3']['state'] = 'down'
    assert 'host2: it is disabled (broken fan); host3: it is down.' in cloud.way()['reason']
    cloud.fake.services['host3'] |= {'state': 'up', 'forced_down': True}
    assert 'host3: it is down' in cloud.way()['reason']


def test_guest_stays_in_the_zone_for_which_it_was_requested(cloud):
    cloud.guest(pinned_availability_zone='az1')
    cloud.aggregate('host1', 'host3', zone='az1')
    assert cloud.destination() == 'host3'
    assert 'host2: it is not in the availability zone az1' in cloud.way(destinations=['host2'])['reason']


def test_default_zone_excludes_no_host(cloud):
    cloud.guest(pinned_availability_zone='nova')
    cloud.aggregate('host2', 'host3', zone='az1')
    assert cloud.destination() == 'host2'


def test_hosts_of_the_own_zone_come_first_where_nova_does_not_show_who_is_bound_to_it(cloud):
    cloud.fake.newest = (2, 95)
    for number in range(2):
        cloud.guest(f'guest{number}')
    cloud.aggregate('host1', 'host3', zone='az1')
    assert [guest['destination'] for guest in cloud.plan()['guests']] == ['host3', 'host3']
    cloud.fake.newest = (2, 96)
    assert [guest['destination'] for guest in cloud.plan()['guests']] == ['host2', 'host3']


def test_members_with_affinity_cannot_leave_their_host(cloud):
    group = [cloud.guest(), cloud.guest('guest1')]
    cloud.group('affinity', *group)
    way = cloud.plan()['guests'][0]['obstacle']
    assert way['kind'] == 'no_destination'
    assert 'web has the policy affinity' in way['reason']
    assert 'openstack server group delete group0' in way['remedy']


def test_member_with_affinity_goes_where_another_one_is(cloud):
    cloud.group('affinity', cloud.guest(), cloud.guest('guest1', 'host3'))
    assert cloud.destination() == 'host3'


def test_hosts_of_other_members_are_excluded_by_anti_affinity(cloud):
    cloud.group('anti-affinity', cloud.guest(), cloud.guest('guest1', 'host2'))
    assert cloud.destination() == 'host3'
    assert 'members of the server group web' in cloud.way(destinations=['host2'])['reason']


def test_anti_affinity_may_allow_several_at_a_host(cloud):
    cloud.group('anti-affinity', cloud.guest(), cloud.guest('guest1', 'host2'), max_server_per_host=2)
    assert cloud.destination(destinations=['host2']) == 'host2'


def test_members_that_the_plan_moves_count(cloud):
    cloud.fake.add_host('host4')
    cloud.group('anti-affinity', cloud.guest('guest1', 'host1'), cloud.guest('guest2', 'host2'))
    cloud.guest('guest3', 'host4')
    cloud.guest('guest4', 'host4')
    found = [guest['destination'] for one in cloud.plan('host1', 'host2') for guest in one['guests']]
    assert sorted(found) == ['host3', 'host4']


@pytest.mark.parametrize(('others', 'requests'), [(1, 1), (60, 1)])
def test_members_are_read_by_the_fewest_requests(cloud, others, requests):
    cloud.group('soft-anti-affinity', cloud.guest(), *(cloud.guest(f'other{n}', 'host2') for n in range(others)))
    cloud.fake.requests.clear()
    cloud.plan()
    ones = [path for _, path in cloud.fake.requests if path.startswith('/servers/') and path != '/servers/detail']
    lists = [path for _, path in cloud.fake.requests if path == '/servers/detail']
    assert len(ones) + len(lists) - 1 == requests, 'besides the list of the host'


@pytest.mark.parametrize(('policy', 'host'), [('soft-anti-affinity', 'host3'), ('soft-affinity', 'host2')])
def test_soft_policies_are_preferences(cloud, policy, host):
    cloud.group(policy, cloud.guest(), cloud.guest('guest1', 'host2'))
    assert cloud.destination() == host
    assert cloud.destination(destinations=['host2']) == 'host2'


def test_aggregates_of_other_projects_are_excluded(cloud):
    cloud.guest(tenant_id='blue')
    cloud.aggregate('host2', filter_tenant_id='red, green')
    assert cloud.destination() == 'host3'
    cloud.aggregate('host2', filter_tenant_id2='blue')
    assert cloud.destination() == 'host2'


def test_flavor_may_ask_for_the_metadata_of_an_aggregate(cloud):
    cloud.guest(specs={'aggregate_instance_extra_specs:disk': 'ssd'})
    cloud.aggregate('host3', disk='ssd')
    assert cloud.destination() == 'host3'
    assert 'none of its aggregates has disk=ssd' in cloud.way(destinations=['host2'])['reason']


def test_hypervisor_is_of_the_same_type_and_not_older(cloud):
    cloud.guest()
    kinds = {'host1': ('QEMU', 8), 'host2': ('QEMU', 7), 'host3': ('VMware', 9)}
    cloud.fake.kinds = kinds
    reason = cloud.way()['reason']
    assert 'host2: its hypervisor has version 7, and that of host1 has the newer version 8' in reason
    assert 'host3: its hypervisor is VMware, and that of host1 is QEMU' in reason


# --- expected times --------------------------------------------------------------------------------------------------


def test_expected_times_follow_from_what_nova_has_completed(cloud):
    for number in range(4):
        guest = cloud.guest(f'moved{number}', 'host2')
        cloud.fake.ticks[guest] = 20
        cloud.fake.client().migrate_live(guest, 'host3')
    cloud.fake.tick(200)
    cloud.guest(ram=2048)
    planned = cloud.plan()
    seconds = planned['guests'][0]['expected_seconds']
    # Each took 23 s or so for 1 GiB, and waited for the one before.
    assert 40 <= seconds['p50'] <= 52
    assert planned['expected_seconds'] is not None


def test_migrations_that_ran_at_the_same_time_are_not_taken_for_a_queue():
    fake = FakeNova()
    fake.at_once = 4
    for number in range(4):
        guest = fake.add_guest(f'moved{number}', 'host2')
        fake.ticks[guest] = 20 + number
        fake.client().migrate_live(guest, 'host3')
    fake.tick(100)
    past = recorded.completed(fake.client(), {})
    assert all(one.seconds > 20 for one in past)


# --- the choice of a destination -------------------------------------------------------------------------------------


def test_host_with_the_fewest_moves_is_chosen_within_the_bound(cloud):
    guest = cloud.guest()
    assert cloud.choose(guest, in_flight={'host2': 1}) == 'host3'
    assert cloud.choose(guest, in_flight={'host2': 1, 'host3': 2}) == 'host2'
    assert cloud.choose(guest, in_flight={'host2': 2, 'host3': 2}) is None


def test_hosts_take_turns_where_none_has_fewer_moves(cloud):
    chosen = []
    for number in range(4):
        chosen.append(cloud.choose(cloud.guest(f'guest{number}')))
        cloud.fake.now += datetime.timedelta(seconds=plan.FRESH + 1)
    assert chosen == ['host2', 'host3', 'host2', 'host3']


def test_avoided_host_is_chosen_only_if_no_other_one_can_take_the_guest(cloud):
    guest = cloud.guest()
    assert cloud.choose(guest, ['host2'], {'host3': 1}) == 'host3'
    assert cloud.choose(guest, ['host2'], {'host3': 2}) is None
    assert cloud.choose(guest, ['host2', 'host3'], {'host3': 1}) == 'host2'
    assert cloud.choose(guest, ['host2'], {'host3': 2}, destinations=['host2']) == 'host2'


def test_choice_honours_the_drain_and_the_constraints_of_the_plan(cloud):
    guest = cloud.guest()
    cloud.group('anti-affinity', guest, cloud.guest('guest1', 'host2'))
    assert cloud.choose(guest) == 'host3'
    with pytest.raises(Refused, match='members of the server group web'):
        cloud.choose(guest, destinations=['host2'])


def test_choice_reads_the_hosts_again_after_a_while(cloud):
    guest = cloud.guest()
    assert cloud.choose(guest, in_flight={'host3': 1}) == 'host2'
    cloud.fake.services['host2']['status'] = 'disabled'
    cloud.fake.now += datetime.timedelta(seconds=plan.FRESH + 1)
    assert cloud.choose(guest, in_flight={'host3': 1}) == 'host3'


def test_guest_without_any_host_is_refused_with_the_reason(cloud):
    guest = cloud.guest()
    for host in ('host2', 'host3'):
        cloud.fake.services[host]['status'] = 'disabled'
    with pytest.raises(Refused, match='host2: it is disabled; host3: it is disabled'):
        cloud.choose(guest)


class Turns(executors.NativeThreads):
    """Threads with one kind of lock, which sets ``settled`` when a thread has to wait for it."""

    def __init__(self, clock):
        super().__init__(clock)
        self.settled = threading.Event()

    def lock(self):
        inner, settled = threading.Lock(), self.settled

        class Lock:
            def __enter__(self):
                if not inner.acquire(blocking=False):
                    settled.set()
                    inner.acquire()

            def __exit__(self, *_exc_info):
                inner.release()

        return Lock()


def test_drain_that_chooses_while_another_one_reads_placement_finds_a_host(cloud):
    guests, chosen, threads = [cloud.guest('guest0'), cloud.guest('guest1')], [], Turns(cloud)
    cloud.spread = plan.Spread(cloud.fake.client(), cloud.placement, threads)

    def choose_second():
        try:
            chosen.append(cloud.choose(guests[1]))
        except Refused as error:
            chosen.append(str(error))
        threads.settled.set()

    second, inner = threading.Thread(target=choose_second), cloud.placement.request

    def request(method, url, **more):
        if 'allocation_candidates' in url and second.ident is None:
            second.start()
            assert threads.settled.wait(60)  # it has chosen, or waits for the first
        return inner(method, url, **more)

    cloud.placement.request = request
    chosen.append(cloud.choose(guests[0]))
    second.join(60)
    assert sorted(chosen) == ['host2', 'host3']
