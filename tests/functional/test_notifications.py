# SPDX-License-Identifier: Apache-2.0

"""The notifications of migrations: which ones, in which order, and each at least once with one id."""

import collections

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.conductor.notifications import periodic
from migrator.db import models
from migrator.db.sql import watching
from migrator.objects import Flavor
from tests.functional import migration_requests, state
from tests.functional.faults import LONG, faults, migrate
from tests.functional.test_cold_migration import CONFIRM, REVERT, act, finish
from tests.functional.test_evacuation import boot as boot_defined
from tests.functional.test_evacuation import come_back, evacuate, lose

pytestmark = pytest.mark.simulated(reason='it takes the place of the bus')

LIVE = ['live_migration_pre.start host2', 'live_migration_pre.end host2']
ARRIVED = [
    'live_migration_post.start host1', 'live_migration_post_dest.start host2', 'live_migration_post.end host1',
    'live_migration_post_dest.end host2',
]  # fmt: skip
UNDONE = [
    'live_migration_rollback.start host1', 'live_migration_rollback_dest.start host2',
    'live_migration_rollback_dest.end host2', 'live_migration_rollback.end host1',
]  # fmt: skip
COLD = [
    'resize_prep.start host2', 'resize_prep.end host2', 'resize.start host1', 'resize.end host1',
    'resize_finish.start host2', 'resize_finish.end host2',
]  # fmt: skip


class Bus:
    """The bus of notifications.

    :ivar accepted: every message, with a repeated one each time.
    :ivar on_accepted: called after each message was accepted, before its sender knows.
    """

    def begin(self, cloud=None):
        """Forget everything."""
        self.cloud = cloud
        self.accepted = []
        self.is_away = False
        self.on_accepted = lambda: None

    def send(self, notification):
        if self.is_away:
            raise exception.ServiceUnreachable(service='The bus of notifications', reason='planned by the test')
        self.accepted.append(notification)
        self.on_accepted()

    def of(self, instance):
        """Return what was accepted about an instance, each once, as ``action.phase host``."""
        found = {}
        for one in self.accepted:
            if one.payload['nova_object.data']['uuid'] == instance.uuid:
                found.setdefault(one.message_id, one)
        return [
            f'{one.event_type.removeprefix("instance.")} {one.publisher_id.split(":")[1]}' for one in found.values()
        ]

    def wait(self):
        """Let the conductors send what there is to send."""
        self.cloud.simulation.advance(2 * periodic.INTERVAL + 1)


BUS = Bus()
BUS.begin()
#: A cloud whose conductors send notifications.
notifies = pytest.mark.cloud(send=BUS.send)


@pytest.fixture
def bus(cloud):
    """The bus, once the conductor has looked for the first time."""
    BUS.begin(cloud)
    cloud.simulation.advance(2 * periodic.INTERVAL)
    return BUS


def last(bus):
    return bus.accepted[-1]


def waits_for(cloud, conductor='conductor1'):
    return cloud.conductors[conductor].metrics.registry.get_sample_value('migrator_notifications_wait_seconds')


def data(notification):
    return notification.payload['nova_object.data']


# --- which ones ------------------------------------------------------------------------------------------------------


@notifies
def test_a_live_migration_sends_the_names_of_nova_in_order(cloud, bus):
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance, 'host2')
    cloud.wait()
    bus.wait()
    assert bus.of(instance) == LIVE + ARRIVED
    first, *_, end = bus.accepted
    assert (first.publisher_id, first.priority) == ('nova-compute:host2', 'INFO')
    assert [data(one)['host'] for one in (first, end)] == ['host1', 'host2']
    assert [data(one)['task_state'] for one in (first, end)] == ['migrating', None]
    (migration,) = cloud.migrations(instance)
    shown = {'uuid': instance.uuid, 'display_name': 'one', 'state': 'active', 'power_state': 'running', 'fault': None}
    shown |= {'request_id': migration.request_id, 'action_initiator_user': 'admin'}
    assert {name: data(end)[name] for name in shown} == shown
    assert data(end)['flavor']['nova_object.data']['memory_mb'] == 512
    assert len({one.message_id for one in bus.accepted}) == len(bus.accepted) == 6


@notifies
def test_an_abort_and_the_rollback_are_sent(cloud, bus):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').stall('copying', instance_uuid=instance.uuid, sticky=True)
    migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'running')
    cloud.simulation.advance(1)
    assert migration_requests.abort(cloud, instance).status_int == 202
    migration_requests.go_on(cloud)
    cloud.wait()
    bus.wait()
    abort = ['live_migration_abort.start host1', 'live_migration_abort.end host1']
    assert bus.of(instance) == LIVE + abort + UNDONE
    assert data(last(bus))['task_state'] is None


@notifies
def test_a_destination_that_cannot_prepare_is_rolled_back_and_the_next_one_is_named(cloud, bus):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('pre_live_migration', 'no such bridge: br-int', after=True)
    migrate(cloud, instance)
    cloud.wait()
    bus.wait()
    second = [one.replace('host2', 'host3') for one in LIVE + ARRIVED]
    assert bus.of(instance) == [LIVE[0], *UNDONE, *second]
    states = [data(one)['task_state'] for one in bus.accepted]
    assert states == ['migrating'] * (len(states) - 1) + [None], 'the task goes on after the rollback'


@notifies
def test_a_forced_end_is_sent_and_a_lost_guest_is_an_error(cloud, bus):
    instance = cloud.boot('one', 'host1', memory_mb=4096, dirty_rate=2000)
    migrate(cloud, instance, 'host2')
    state.when(cloud, instance, 'running')
    cloud.simulation.advance(2)
    assert migration_requests.force_complete(cloud, instance).status_int == 202
    cloud.simulation.advance(1)
    for host in ('host1', 'host2'):
        cloud.world.hypervisors[host].guests.pop(instance.uuid, None)
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].stuck_reason or cloud.idle(), timeout=LONG)
    bus.wait()
    found = bus.of(instance)
    assert found[:4] == [*LIVE, *(f'live_migration_force_complete.{phase} host1' for phase in ('start', 'end'))], found


@notifies
@pytest.mark.parametrize('decision', [CONFIRM, REVERT])
def test_a_cold_migration_sends_the_parts_of_a_resize(cloud, bus, decision):
    instance = cloud.boot('one', 'host1')
    finish(cloud, instance, 'host2')
    bus.wait()
    assert bus.of(instance) == COLD
    assert (data(last(bus))['host'], data(last(bus))['state']) == ('host2', 'resized')
    assert data(bus.accepted[0])['new_flavor']['nova_object.name'] == 'FlavorPayload'
    act(cloud, instance, decision)
    cloud.wait()
    bus.wait()
    name = 'resize_confirm' if decision == CONFIRM else 'resize_revert'
    assert bus.of(instance) == [*COLD, f'{name}.start host1', f'{name}.end host1']
    assert (data(last(bus))['host'], data(last(bus))['state']) == (
        'host2' if decision == CONFIRM else 'host1',
        'active',
    )


@notifies
def test_a_resize_shows_the_flavor_of_the_host_that_has_the_guest(cloud, bus):
    cloud.database.flavors.create(Flavor(name='large', vcpus=4, memory_mb=2048))
    instance = cloud.boot('one', 'host1')
    assert act(cloud, instance, 'resize', {'flavorRef': 'large'}) == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].status == 'finished')
    bus.wait()
    assert bus.of(instance) == COLD
    found = [data(one)['flavor']['nova_object.data']['name'] for one in bus.accepted]
    assert found == [instance.flavor.name] * 5 + ['large']
    assert data(bus.accepted[0])['new_flavor']['nova_object.data']['name'] == 'large'
    act(cloud, instance, CONFIRM)
    cloud.wait()


@notifies
def test_a_cold_migration_that_fails_ends_with_an_error(cloud, bus):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').fail('migrate_disk_and_power_off', 'no space left', after=True)
    act(cloud, instance, 'migrate', {'host': 'host2'})
    cloud.wait()
    bus.wait()
    assert bus.of(instance) == [*COLD[:3], 'resize.error host1']
    assert last(bus).priority == 'ERROR'
    assert 'no space left' in data(last(bus))['fault']['nova_object.data']['exception_message']


@notifies
def test_an_evacuation_sends_the_request_and_the_rebuild(cloud, bus):
    instance = boot_defined(cloud, 'one', 'host1')
    lose(cloud, 'host1')
    evacuate(cloud, instance, 'host2')
    cloud.wait()
    bus.wait()
    assert bus.of(instance) == ['evacuate conductor1', 'rebuild.start host2', 'rebuild.end host2']
    assert bus.accepted[0].publisher_id == 'nova-api:conductor1'
    come_back(cloud, 'host1')
    cloud.simulation.advance(60)
    assert len(bus.accepted) == 3


# --- at least once, with one id --------------------------------------------------------------------------------------


@notifies
def test_a_bus_that_is_away_delays_no_migration_and_gets_everything_later(cloud, bus):
    bus.is_away = True
    instances = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(3)]
    began = cloud.simulation.time
    for instance in instances:
        migrate(cloud, instance, 'host2')
    cloud.wait()
    effects = [cloud.world.effects(effect) for effect in ('job started', 'job completed')]
    copies = sum(ended.time - started.time for started, ended in zip(*effects, strict=True))
    assert round(cloud.simulation.time - began, 6) == round(copies, 6), 'something has waited for the bus'
    cloud.simulation.advance(60)
    assert bus.accepted == []
    assert 60 <= waits_for(cloud) <= cloud.simulation.time - began
    bus.is_away = False
    cloud.simulation.advance(periodic.LONGEST)
    assert waits_for(cloud) == 0
    assert [bus.of(instance) for instance in instances] == [LIVE + ARRIVED] * 3
    assert len(bus.accepted) == 18, 'each once'
    said = [line for line in cloud.monitor.logs if 'Could not send a notification' in line]
    assert len(said) == 1


@notifies
def test_what_a_killed_conductor_did_not_record_is_sent_again_with_the_same_id(cloud, bus):
    instance = cloud.boot('one', 'host1')
    held = cloud.threads_for('conductor1').event()
    bus.on_accepted = lambda: len(bus.accepted) == 3 and held.wait(LONG)
    migrate(cloud, instance, 'host2')
    cloud.wait()
    cloud.simulation.run_until(lambda: len(bus.accepted) == 3, timeout=60)
    cloud.kill('conductor1')
    bus.on_accepted = lambda: None
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(60)
    assert bus.of(instance) == LIVE + ARRIVED
    again = collections.Counter(one.message_id for one in bus.accepted)
    assert sorted(again.values()) in ([1, 1, 1, 1, 1, 2], [1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 2])
    for uuid in again:
        same = [one for one in bus.accepted if one.message_id == uuid]
        assert len({(one.event_type, one.at, str(one.payload)) for one in same}) == 1


@notifies
def test_an_end_is_sent_whose_conductor_was_killed_before_it_sent_anything(cloud, bus):
    bus.is_away = True
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance, 'host2')
    cloud.wait()
    cloud.kill('conductor1')
    bus.is_away = False
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(60)
    assert bus.of(instance) == LIVE + ARRIVED
    assert len(bus.accepted) == 6


@notifies
def test_a_conductor_that_does_not_send_any_more_has_no_notification_that_waits(cloud, bus):
    bus.is_away = True
    migrate(cloud, cloud.boot('one', 'host1'), 'host2')
    cloud.wait()
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(60)
    other, sender = sorted(('conductor1', 'conductor2'), key=lambda name: waits_for(cloud, name))
    assert (waits_for(cloud, other), waits_for(cloud, sender) > 0) == (0, True)
    tools = {name: cloud.conductors[name].tools for name in (sender, other)}
    while tools[sender].owner < tools[other].owner:  # the first one of all sends
        cloud.conductors[sender].begin_boot()  # as after a lost lease
    cloud.simulation.advance(2 * periodic.LONGEST)
    assert (waits_for(cloud, sender), waits_for(cloud, other) > 0) == (0, True)


@notifies
@pytest.mark.seeds(1, 2)
def test_of_two_conductors_one_sends_and_the_other_continues_after_it(cloud, bus):
    cloud.start_conductor('conductor2')
    world = cloud.threads_for('world')
    bus.on_accepted = lambda: world.sleep(0.5)  # so that the looks of two would overlap
    instances = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(4)]
    for instance in instances[:2]:
        migrate(cloud, instance, 'host2')
    cloud.wait()
    cloud.simulation.advance(10)
    assert len(bus.accepted) == 12, 'each once'
    first = min(cloud.database.conductors.list(), key=lambda one: one.id).server
    for instance in instances[2:]:
        migrate(cloud, instance, 'host2')
    cloud.simulation.advance(0.5)
    cloud.kill(first)
    cloud.wait(LONG)
    cloud.simulation.advance(30)
    for instance in instances:
        assert bus.of(instance) == LIVE + ARRIVED


@notifies
def test_a_migration_that_began_and_ended_while_no_conductor_looked_is_sent(cloud, bus, monkeypatch):
    monkeypatch.setattr(periodic, 'INTERVAL', 90.0)
    cloud.simulation.advance(3)
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance, 'host2')
    cloud.wait()
    cloud.simulation.advance(120)
    assert bus.of(instance) == LIVE + ARRIVED


@notifies
@pytest.mark.not_quiet(reason='its conductor has stopped')
def test_a_slow_bus_does_not_delay_the_stop_of_a_conductor(cloud, bus):
    bus.is_away = True
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance, 'host2')
    cloud.wait()
    bus.is_away = False
    world, stopped = cloud.threads_for('world'), []
    bus.on_accepted = lambda: world.sleep(4)
    cloud.simulation.run_until(lambda: bus.accepted, timeout=120)

    def stop():
        cloud.conductors.pop('conductor1').stop()
        stopped.append(cloud.simulation.time)

    began = cloud.simulation.time
    cloud.processes['conductor1'].start(stop, name='stop')
    cloud.simulation.run_until(lambda: stopped)
    assert stopped[0] - began < 1
    cloud.simulation.advance(30)
    assert len(bus.accepted) == 1, 'the next conductor sends the others'


@notifies
def test_a_migration_whose_notifications_cannot_be_derived_keeps_no_other_back(cloud, bus, monkeypatch, caplog):
    bad, good = cloud.boot('bad', 'host1'), cloud.boot('good', 'host1')
    derive = periodic.notification

    def fail(row, instance, phase, server):
        if row.instance_uuid == bad.uuid and phase.phase == 'end':
            raise ValueError('planned by the test')
        return derive(row, instance, phase, server)

    monkeypatch.setattr(periodic, 'notification', fail)
    migrate(cloud, bad, 'host2')
    cloud.wait()
    migrate(cloud, good, 'host2')
    cloud.wait()
    cloud.simulation.advance(10)
    assert (bus.of(bad), bus.of(good)) == ([], LIVE + ARRIVED)
    assert waits_for(cloud) > 10
    assert caplog.text.count('Could not derive the notifications') == 1
    monkeypatch.setattr(periodic, 'notification', derive)
    bus.wait()
    assert bus.of(bad) == LIVE + ARRIVED
    assert waits_for(cloud) == 0
    assert len(bus.accepted) == 12, 'each once'


# --- off, on and old -------------------------------------------------------------------------------------------------


def rows(cloud):
    with cloud.database.engine.reader() as session:
        return session.execute(sa.select(models.NOTIFIED)).all()


def test_while_off_nothing_is_read_and_later_nothing_of_the_past_is_sent(cloud):
    statements = []
    end = watching.watch(cloud.database.engine, lambda statement, _values: statements.append(statement))
    past, present = cloud.boot('past', 'host1'), cloud.boot('present', 'host1')
    migrate(cloud, past, 'host2')
    cloud.wait()
    end()
    assert not [one for one in statements if 'notified' in one]
    faults(cloud, 'host1').stall('copying', instance_uuid=present.uuid, sticky=True)
    migrate(cloud, present, 'host2')
    state.when(cloud, present, 'running')
    bus = Bus()
    bus.begin(cloud)
    cloud.bus.notify = bus.send
    cloud.kill('conductor1')
    cloud.start_conductor('conductor1')
    cloud.simulation.advance(30)
    assert bus.accepted == []
    migration_requests.go_on(cloud)
    cloud.wait()
    bus.wait()
    assert (bus.of(past), bus.of(present)) == ([], ARRIVED)
    assert len(rows(cloud)) == 3
    assert not [one for one in rows(cloud) if one.open]


@notifies
def test_after_a_day_a_notification_is_dropped(cloud, bus, monkeypatch):
    monkeypatch.setattr(periodic, 'OLDEST', 20.0)
    bus.is_away = True
    old, new = cloud.boot('old', 'host1'), cloud.boot('new', 'host1')
    migrate(cloud, old, 'host2')
    cloud.wait()
    cloud.simulation.advance(30)
    migrate(cloud, new, 'host2')
    cloud.wait()
    bus.is_away = False
    cloud.simulation.advance(40)
    assert (bus.of(old), bus.of(new)) == ([], LIVE + ARRIVED)
    assert len([line for line in cloud.monitor.logs if 'older than a day' in line]) == 6


@notifies
def test_more_than_one_query_finds_are_sent_without_a_pause(cloud, bus, monkeypatch):
    monkeypatch.setattr(periodic, '_AT_ONCE', 1)
    bus.is_away = True
    instances = [cloud.boot(f'guest{number}', 'host1', memory_mb=64) for number in range(4)]
    for instance in instances:
        migrate(cloud, instance, 'host2')
    cloud.wait()
    bus.is_away = False
    times = []
    bus.on_accepted = lambda: times.append(cloud.simulation.time)
    cloud.simulation.advance(2 * periodic.LONGEST)
    assert [bus.of(instance) for instance in instances] == [LIVE + ARRIVED] * 4
    assert times[-1] - times[0] < periodic.INTERVAL / 2


@notifies
@pytest.mark.breaks('I3', reason='it deletes a row, and leaves the allocation')
def test_a_deleted_instance_is_named_by_its_uuid(cloud, bus):
    bus.is_away = True
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance, 'host2')
    cloud.wait()
    cloud.database.instances.delete(instance.uuid)
    bus.is_away = False
    cloud.simulation.advance(60)
    assert bus.of(instance) == LIVE + ARRIVED
    assert data(last(bus))['tenant_id'] == cloud.migrations()[0].project_id
