# SPDX-License-Identifier: Apache-2.0

"""The audit and the repair over the real Placement, with a Nova in memory."""

from __future__ import annotations

import dataclasses

import pytest

from migrator import executors
from migrator.nova import audit
from migrator.placement_client import allocation_state, allocations
from migrator.placement_client.client import PlacementClient
from tests.unit import placements
from tests.unit.nova.fake import FakeNova


class Threads(executors.NativeThreads):
    """Threads whose sleep only calls a function."""

    def __init__(self):
        super().__init__()
        self.slept = []
        self.meanwhile = lambda: None

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.meanwhile()


@dataclasses.dataclass
class Cloud:
    """A Nova in memory over the real Placement."""

    fake: FakeNova
    placement: PlacementClient
    threads: Threads

    def audit(self):
        return audit.audit(self.fake.client(), self.placement, self.threads, 10)

    def heal(self, finding, *named):
        return audit.heal(self.fake.client(), self.placement, finding, named)

    def hosts_of(self, *consumers):
        """Return the host of what each consumer holds."""
        host_of = {uuid: host for host, uuid in self.fake.nodes.items()}
        return [[host_of[uuid] for uuid in allocations.read(self.placement, one).allocations] for one in consumers]

    def move(self, guest, seconds):
        self.fake.client().migrate_live(guest, 'host2')
        self.fake.tick(seconds)
        return self.fake.row(guest)

    def after_a_kill(self):
        """Kill nova-compute with one migration running and one queued, start it, and return both."""
        guests = [self.fake.add_guest(name) for name in ('runs', 'waits')]
        for guest in guests:
            self.fake.ticks[guest] = 9
            self.fake.client().migrate_live(guest, 'host2')
        self.fake.tick(4)
        rows = [self.fake.row(guest) for guest in guests]
        assert [row['status'] for row in rows] == ['running', 'queued']
        self.fake.kill('host1')
        self.fake.start('host1')
        return guests, [row['uuid'] for row in rows]


@pytest.fixture(scope='module')
def running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def cloud(running):
    running.empty()
    placement = PlacementClient(running.adapter())
    return Cloud(FakeNova(placement=placement), placement, Threads())


def test_healthy_cloud_has_no_finding_and_is_read_once(cloud):
    for name in ('guest1', 'guest2'):
        cloud.move(cloud.fake.add_guest(name), 9)
    assert cloud.audit() == audit.Audited(findings=[], others=[])
    assert cloud.threads.slept == []


def test_healthy_moves_are_never_an_error(cloud):
    guests = [cloud.fake.add_guest(f'guest{number}') for number in range(4)]
    cloud.fake.at_once = 2
    seen = set()
    cloud.threads.meanwhile = cloud.fake.tick
    for guest in guests:
        cloud.fake.ticks[guest] = 2
        cloud.fake.client().migrate_live(guest)
    while set(guests) & {guest for guest, one in cloud.fake.servers.items() if one['task_state']}:
        # A second passes between the reading of the allocations and that of the servers.
        cloud.fake.before = lambda method, path: cloud.fake.tick() if path == '/servers/detail' else None
        found = cloud.audit()
        assert found.findings == []
        seen |= {one.verdict for one in found.others}
    assert seen == {audit.IN_PROGRESS}


def test_killed_nova_compute_leaves_exactly_its_guests_and_heal_moves_the_allocations_back(cloud):
    bystander = cloud.fake.add_guest('bystander', 'host2')
    guests, migrations = cloud.after_a_kill()
    found = cloud.audit()
    assert {one.consumer for one in found.findings} == set(guests)
    assert {one.verdict for one in found.findings} == {audit.WRONG_HOST}
    assert cloud.threads.slept == [10]
    # One was queued: nova-compute has lost it, or a reset of its state hides that it still waits.
    (lost,) = [one for one in found.findings if one.doubt is not None]
    assert (lost.consumer, cloud.heal(lost)[0]) == (guests[1], False)
    assert [cloud.heal(one, guests[1]) for one in found.findings] == [
        (True, 'it holds 1 VCPU, 1024 MEMORY_MB, 1 DISK_GB on host1, and nothing else')
    ] * 2
    assert cloud.hosts_of(*guests, *migrations, bystander) == [['host1'], ['host1'], [], [], ['host2']]
    assert cloud.audit().findings == []


def test_each_repair_is_one_request(cloud):
    cloud.after_a_kill()
    findings, written = cloud.audit().findings, []
    inner = cloud.placement.request
    cloud.placement.request = lambda method, *args, **more: (written.append(method), inner(method, *args, **more))[1]
    cloud.heal(findings[0], findings[0].consumer)
    assert [method for method in written if method != 'GET'] == ['POST']


def test_guest_that_changes_between_the_readings_is_no_finding(cloud):
    guests, _ = cloud.after_a_kill()
    cloud.threads.meanwhile = lambda: cloud.fake.servers[guests[0]].update(task_state='migrating')
    found = cloud.audit()
    assert [one.consumer for one in found.findings] == [guests[1]]
    assert [(one.consumer, one.verdict) for one in found.others] == [(guests[0], audit.IN_PROGRESS)]


def test_guest_that_has_changed_since_the_audit_is_left(cloud):
    guests, _ = cloud.after_a_kill()
    finding = next(one for one in cloud.audit().findings if one.consumer == guests[0])
    cloud.fake.servers[guests[0]]['task_state'] = 'rebooting'
    assert cloud.heal(finding) == (False, 'it has changed since the audit: audit again')
    assert cloud.hosts_of(guests[0]) == [['host2']]


@pytest.mark.parametrize('whose', ['guest', 'migration'])
def test_write_that_comes_first_is_kept(cloud, whose):
    guests, migrations = cloud.after_a_kill()
    finding = next(one for one in cloud.audit().findings if one.consumer == guests[0])
    consumer = guests[0] if whose == 'guest' else migrations[0]
    held = allocations.read(cloud.placement, consumer)
    owner = allocation_state.Consumer(
        uuid=consumer, consumer_type='OTHER', project_id=held.project_id, user_id=held.user_id
    )
    post = cloud.placement.post

    def write_first(url, body):
        allocations.write_all(
            cloud.placement,
            [allocations.Write(consumer=owner, allocations=held.allocations, generation=held.generation)],
        )
        return post(url, body)

    cloud.placement.post = write_first
    assert cloud.heal(finding) == (False, 'another client has written it since the audit: audit again')
    assert cloud.hosts_of(guests[0], migrations[0]) == [['host2'], ['host1']]


def test_write_that_placement_refuses_is_left(cloud):
    guests, migrations = cloud.after_a_kill()
    finding = next(one for one in cloud.audit().findings if one.consumer == guests[0])
    url = f'/resource_providers/{cloud.fake.nodes["host1"]}/inventories'
    found = cloud.placement.read(url)
    found['inventories']['VCPU']['max_unit'] = found['inventories']['VCPU']['min_unit'] = 2
    cloud.placement.put(url, found)
    done, text = cloud.heal(finding)
    assert (done, 'Placement refuses it' in text) == (False, True)
    assert cloud.hosts_of(guests[0], migrations[0]) == [['host2'], ['host1']]


def test_guest_in_error_after_its_move_is_repaired_once_it_is_named(cloud):
    guest = cloud.fake.add_guest('guest1')
    cloud.fake.fails[guest] = 'post'
    row = cloud.move(guest, 9)
    (finding,) = cloud.audit().findings
    assert (finding.verdict, finding.consumer) == (audit.LEAKED, guest)
    done, text = cloud.heal(finding)
    assert (done, 'the server is ERROR' in text) == (False, True)
    assert cloud.heal(finding, row['uuid'])[0]
    assert cloud.hosts_of(guest, row['uuid']) == [['host2'], []]


def test_allocation_of_a_deleted_guests_migration_is_removed_once_it_is_named(cloud):
    guests, migrations = cloud.after_a_kill()
    cloud.fake.delete(guests[1])
    finding = next(one for one in cloud.audit().findings if one.consumer != guests[0])
    assert (finding.consumer, finding.verdict) == (migrations[1], audit.LEAKED)
    assert not cloud.heal(finding)[0]
    assert cloud.heal(finding, migrations[1]) == (True, 'it holds nothing')
    assert cloud.hosts_of(migrations[1]) == [[]]


def test_migration_that_one_list_lacks_is_not_taken_for_that_of_a_deleted_guest(cloud):
    """The database of its cell does not answer for a moment, in which the migrations are listed."""
    guest = cloud.fake.add_guest('guest1')
    cloud.fake.ticks[guest] = 9
    row = cloud.move(guest, 4)
    rows = []

    def away(_method, path):
        if path == '/os-migrations':
            rows.extend(cloud.fake.rows)
            cloud.fake.rows.clear()

    def back(_method, path):
        if path == '/os-migrations':
            cloud.fake.rows.extend(rows)
            cloud.fake.before = cloud.fake.after = lambda _method, _path: None

    cloud.fake.before, cloud.fake.after = away, back
    found = cloud.audit()
    assert found.findings == []
    assert [(one.consumer, one.verdict) for one in found.others] == [(guest, audit.IN_PROGRESS)]
    assert cloud.hosts_of(guest, row['uuid']) == [['host2'], ['host1']]


@pytest.mark.parametrize('named', [False, True])
def test_living_migration_keeps_its_allocation_while_nova_leaves_its_cell_out_of_every_list(cloud, named):
    guest = cloud.fake.add_guest('guest1')
    cloud.fake.ticks[guest] = 9
    row = cloud.move(guest, 4)
    cloud.fake.second_cell, cloud.fake.leaves_out = {'host1'}, lambda path: path == '/os-migrations'
    (finding,) = cloud.audit().findings
    assert (finding.consumer, finding.verdict) == (row['uuid'], audit.LEAKED)
    if named:  # after the operator has looked, and the cell answers again
        cloud.fake.leaves_out = lambda path: False
    done, text = cloud.heal(finding, *([row['uuid']] if named else []))
    assert (done, ('a list of Nova shows it' if named else 'find out whether its guest exists') in text) == (
        False,
        True,
    )
    assert cloud.hosts_of(guest, row['uuid']) == [['host2'], ['host1']]


def test_allocation_of_a_deleted_guest_is_removed(cloud):
    guest = cloud.fake.add_guest('guest1')
    held = allocations.read(cloud.placement, guest).allocations
    cloud.fake.delete(guest)
    owner = allocation_state.Consumer(uuid=guest, consumer_type='INSTANCE', project_id='blue', user_id='ada')
    allocations.claim(cloud.placement, owner, held, generation=None)
    (finding,) = cloud.audit().findings
    assert (finding.consumer, finding.verdict, finding.doubt) == (guest, audit.LEAKED, None)
    assert cloud.heal(finding)[0]
    assert cloud.hosts_of(guest) == [[]]


def test_consumer_of_another_service_is_left_unless_it_is_named(cloud):
    other = '00000000-0000-4000-8000-000000000001'
    owner = allocation_state.Consumer(uuid=other, consumer_type='VOLUME', project_id='blue', user_id='ada')
    allocations.claim(cloud.placement, owner, {cloud.fake.nodes['host3']: {'DISK_GB': 5}}, generation=None)
    (finding,) = cloud.audit().findings
    assert (finding.consumer, finding.verdict) == (other, audit.UNKNOWN_CONSUMER)
    assert not cloud.heal(finding)[0]
    assert cloud.hosts_of(other) == [['host3']]
    assert cloud.heal(finding, other)[0]
    assert cloud.hosts_of(other) == [[]]


def test_servers_of_a_cell_that_does_not_answer_are_counted(cloud):
    guest = cloud.fake.add_guest('guest1')
    shown = cloud.fake._show
    cloud.fake._show = lambda server, version: {'id': server['id'], 'status': 'UNKNOWN'}
    assert cloud.audit() == audit.Audited(findings=[], others=[], unreadable=1)
    cloud.fake._show = shown
    assert cloud.hosts_of(guest) == [['host1']]
