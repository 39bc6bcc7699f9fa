# SPDX-License-Identifier: Apache-2.0

"""Guests that were moved by hand are found, reported once, and followed if that is certain."""

import contextlib
import io
import itertools
import json

import pytest

from migrator import exception
from migrator.conductor import audit
from migrator.conductor.guests import reconcile
from migrator.db.guests import differences
from tests.functional import migration_requests, state
from tests.functional.faults import faults

pytestmark = [
    pytest.mark.simulated(reason='it moves guests without the control plane, and lets single seconds pass'),
    pytest.mark.breaks(
        'I1', 'I2', 'I3', 'I4', 'I5', 'I15', 'I22', reason='the test moves guests without the control plane'
    ),
]

MINUTE = 60


@pytest.fixture(autouse=True)
def short_births(monkeypatch):
    """A guest may be reported at once."""
    for module in (audit, differences):
        monkeypatch.setattr(module, '_BIRTH', 0.0)


@pytest.fixture(autouse=True)
def placement_of_the_cloud(cloud, monkeypatch):
    """The commands find the Placement of the cloud, which no configuration names."""
    monkeypatch.setattr('migrator.operator.cli.command.Asked.placement', lambda _asked: cloud.placement_client)


def boot(cloud, name='one', host='host1'):
    instance = cloud.boot(name, host)
    cloud.simulation.advance(1)
    return instance


def by_hand(cloud, instance, source, destination):
    """Move a guest as virsh does. Without a source it is only started, without a destination only removed."""
    if source is not None:
        cloud.world.hypervisors[source].delete(instance.uuid)
    if destination is not None:
        cloud.world.hypervisors[destination].spawn(instance)


def moved(cloud, name='one'):
    """Return a guest that was moved by hand from host1 to host2."""
    instance = boot(cloud, name)
    by_hand(cloud, instance, 'host1', 'host2')
    return instance


def reported(caplog):
    return [message for message in caplog.messages if 'is not as the database has it' in message]


def stored(cloud):
    """Return name -> kind, for each difference that is stored."""
    return {one.name: one.kind for one in cloud.database.differences.list()}


def place(cloud, instance):
    """Return where the database and Placement have a guest."""
    row = cloud.database.instances.get(instance.uuid)
    return row.host, row.node, row.task_state, sorted(state.allocations(cloud)[instance.uuid])


def is_clean(cloud):
    return not audit.audit(cloud.database, cloud.placement_client)


AT_1, AT_2 = ('host1', 'host1', None, ['host1']), ('host2', 'host2', None, ['host2'])

#: Kind of difference -> the host that loses the guest, and the one that gets it.
CASES = {'moved': ('host1', 'host2'), 'missing': ('host1', None), 'twice': (None, 'host2')}


def test_changes_by_hand_are_found_within_a_minute_and_reported_once_by_name(cloud, caplog):
    cloud.start_conductor('conductor2')
    guests = {kind: boot(cloud, f'{kind}-guest') for kind in CASES}
    for kind, instance in guests.items():
        by_hand(cloud, instance, *CASES[kind])
    cloud.simulation.advance(MINUTE)
    assert stored(cloud) == {f'{kind}-guest': kind for kind in CASES}
    cloud.kill('conductor1')
    cloud.simulation.advance(2 * MINUTE)
    for kind, instance in guests.items():
        (message,) = (one for one in reported(caplog) if f' {kind}-guest ({instance.uuid})' in one)
        assert 'Remedy: ' in message
    assert [record.args['name'] for record in caplog.records if record.levelname == 'ERROR'] == ['twice-guest']
    assert len(reported(caplog)) == len(CASES)


def test_difference_is_shown_with_the_services_and_goes_when_the_guest_is_back(cloud, operator):
    instance = moved(cloud)
    cloud.simulation.advance(MINUTE)
    status, text = operator('service', 'list', '--host', 'host1')
    assert (status, 'guests not as in the database: one is on host2' in text) == (0, True), text
    for host in ('host1', 'host2'):
        (shown,) = cloud.request('GET', f'/migrator/v1/hosts/{host}').json['host']['differences']
        assert (shown['name'], shown['kind'], shown['host'], shown['seen']) == (
            'one', 'moved', 'host1', {'host2': 'running'},
        )  # fmt: skip
        assert shown['since'] is not None
        assert 'reconcile' in shown['remedy']
    assert cloud.request('GET', '/migrator/v1/hosts/host3').json['host']['differences'] == []
    gauge = cloud.conductors['conductor1'].metrics.registry
    assert gauge.get_sample_value('migrator_guest_differences', {'kind': 'moved'}) == 1
    by_hand(cloud, instance, 'host2', 'host1')
    cloud.simulation.advance(MINUTE)
    assert stored(cloud) == {}
    assert gauge.get_sample_value('migrator_guest_differences', {'kind': 'moved'}) == 0


@pytest.mark.slow
def test_guest_that_the_database_does_not_have_is_reported(cloud, caplog):
    instance = boot(cloud)
    cloud.database.instances.delete(instance.uuid)
    cloud.simulation.advance(MINUTE)
    assert stored(cloud) == {instance.uuid: 'unknown'}
    assert 'instance create' in reported(caplog)[0]
    cloud.world.hypervisors['host1'].delete(instance.uuid)


def test_migration_in_progress_is_no_difference(cloud):
    instance = boot(cloud)
    stall = faults(cloud, 'host1').stall('post_live_migration_at_source', sticky=True)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.simulation.advance(2 * MINUTE)
    assert stored(cloud) == {}
    migration_requests.go_on(cloud)
    cloud.wait()
    cloud.simulation.advance(MINUTE)
    assert stored(cloud) == {}


@pytest.mark.slow
def test_guest_of_a_host_that_is_down_is_no_difference(cloud):
    boot(cloud)
    cloud.world.hypervisors['host1'].power_off()
    state.kill(cloud, 'host1')
    cloud.simulation.advance(4 * MINUTE)
    assert stored(cloud) == {}


def test_dry_run_shows_the_difference_and_changes_nothing(cloud, operator):
    instance = moved(cloud)
    for words in (('--dry-run',), (), ('--host', 'host2')):
        status, text = operator('instance', 'reconcile', *words)
        assert status == 0, text
        for line in ('hypervisors: host2 (running)', 'database: host1', 'placement: host1 (', 'Nothing was changed.'):
            assert line in text, text
    assert operator('instance', 'reconcile', '--host', 'host3')[1].startswith('Every guest is where')
    assert place(cloud, instance) == AT_1
    by_hand(cloud, instance, 'host2', 'host1')


def test_reconcile_follows_a_guest_that_runs_at_exactly_one_host(cloud, operator):
    instance = moved(cloud)
    cloud.simulation.advance(MINUTE)
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, '1 done, 0 left' in text) == (0, True), text
    assert place(cloud, instance) == AT_2
    assert (is_clean(cloud), stored(cloud)) == (True, {})
    assert operator('instance', 'reconcile', '--yes')[1].startswith('Every guest is where')
    assert cloud.live_migrate(instance, 'host3').status_int == 202
    cloud.wait()
    assert place(cloud, instance)[0] == 'host3'


def test_interactive_reconcile_asks_first(cloud, operator, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    instance = moved(cloud)
    for answer, after in (('no', AT_1), ('yes', AT_2)):
        monkeypatch.setattr('sys.stdin', Terminal(f'{answer}\n'))
        text = operator('instance', 'reconcile')[1]
        assert 'To do: change its host in the database, and its allocation, to host2' in text
        assert place(cloud, instance) == after


@pytest.mark.slow
def test_copy_that_is_shut_off_does_not_prevent_that_the_rest_follows(cloud, operator):
    instance = boot(cloud)
    cloud.world.hypervisors['host1'].guests[instance.uuid].state = 'shutdown'
    by_hand(cloud, instance, None, 'host2')
    assert operator('instance', 'reconcile', '--yes')[0] == 0
    assert place(cloud, instance) == AT_2
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, 'take the definition of the others away' in text) == (1, True), text
    cloud.world.hypervisors['host1'].delete(instance.uuid)


def test_guest_that_was_shut_off_or_started_by_hand_is_reported_and_followed(cloud, operator, caplog):
    instance = boot(cloud)
    cases = [('shut_off', 'stopped', 4, 'is shut off on host1'), ('resume', 'active', 1, 'runs on host1')]
    for act, vm_state, power_state, words in cases:
        getattr(cloud.world.hypervisors['host1'], act)(instance.uuid)
        before = place(cloud, instance)
        cloud.simulation.advance(MINUTE)
        assert stored(cloud) == {'one': 'power'}
        assert f'one {words}' in operator('service', 'list', '--host', 'host1')[1]
        status, text = operator('instance', 'reconcile', '--yes')
        assert (status, '1 done, 0 left' in text) == (0, True), text
        row = cloud.database.instances.get(instance.uuid)
        assert (row.vm_state, row.power_state) == (vm_state, power_state)
        assert (place(cloud, instance), is_clean(cloud), stored(cloud)) == (before, True, {})
    assert len(reported(caplog)) == 2


def test_power_state_is_followed_only_if_no_other_host_may_run_the_guest(cloud, operator):
    instance = boot(cloud)
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    state.kill(cloud, 'host3')
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, 'these hosts did not list their guests and may run it too: host3' in text) == (1, True), text
    assert cloud.database.instances.get(instance.uuid).vm_state == 'active'


def test_guest_that_two_hosts_run_is_left(cloud, operator, caplog):
    instance = boot(cloud)
    by_hand(cloud, instance, None, 'host2')
    cloud.simulation.advance(MINUTE)
    assert 'stop each other one at once' in reported(caplog)[0]
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, '0 done, 1 left' in text) == (1, True), text
    assert place(cloud, instance) == AT_1
    cloud.world.hypervisors['host2'].delete(instance.uuid)


def test_guest_is_left_while_a_host_that_may_run_it_does_not_answer(cloud, operator):
    instance = moved(cloud)
    state.kill(cloud, 'host3')
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, 'these hosts did not list their guests and may run it too: host3' in text) == (1, True), text
    assert place(cloud, instance) == AT_1
    service = cloud.database.services.get_compute('host3')
    cloud.database.services.update(service.id, forced_down=True)
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, place(cloud, instance)) == (0, AT_2), text


def test_reconcile_does_not_claim_where_the_guests_of_a_host_are_that_does_not_answer(cloud, operator):
    boot(cloud)
    state.kill(cloud, 'host3')
    status, text = operator('instance', 'reconcile')
    assert (status, text.splitlines()[-1]) == (
        1, 'No difference was found. Where the guests of host3 are is not known.',
    ), text  # fmt: skip
    assert operator('--json', 'instance', 'reconcile')[0] == 1


@pytest.mark.slow
def test_guest_is_left_if_its_host_has_no_room(cloud, operator):
    instance = moved(cloud)
    with contextlib.suppress(exception.PlacementRefused):
        for number in itertools.count():
            cloud.boot(f'other{number}', 'host2')
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, 'room' in text) == (1, True), text
    assert place(cloud, instance) == AT_1
    by_hand(cloud, instance, 'host2', 'host1')


def test_migration_accepted_meanwhile_stops_the_reconcile(cloud):
    instance = moved(cloud)
    cases, _ = reconcile.compare(
        cloud.database,
        cloud.placement_client,
        lambda service: cloud.computes[service.host].driver.list_guests(),
    )
    (case,) = cases
    assert cloud.live_migrate(instance, 'host3').status_int == 202
    done, text = case.act()
    assert (done, 'a migration of it is in progress' in text) == (False, True), text
    cloud.wait()
    assert (case.act()[0], is_clean(cloud)) == (False, True)


@pytest.mark.parametrize('last', [pytest.param('begin_to_follow', marks=pytest.mark.slow), 'allocation'])
def test_reconcile_that_was_killed_is_finished_by_the_next(cloud, operator, monkeypatch, last):
    instance = moved(cloud)

    class Killed(BaseException):
        pass

    def kill(*_args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(
            *((reconcile, '_move') if last == 'begin_to_follow' else (type(cloud.database.differences), 'follow')), kill
        )
        with pytest.raises(Killed):
            operator('instance', 'reconcile', '--yes')
    assert place(cloud, instance)[2] == 'reconciling'
    assert cloud.live_migrate(instance, 'host3').status_int == 409
    cloud.simulation.advance(MINUTE)
    assert stored(cloud) == {'one': 'moved'}
    status, text = operator('instance', 'reconcile', '--yes')
    assert (status, place(cloud, instance), is_clean(cloud)) == (0, AT_2, True), text


@pytest.mark.slow
def test_guest_that_came_back_after_a_killed_reconcile_is_free_again(cloud, operator, monkeypatch):
    instance = moved(cloud)
    with monkeypatch.context() as patched:
        patched.setattr(type(cloud.database.differences), 'follow', lambda *_args: False)
        assert operator('instance', 'reconcile', '--yes')[0] == 1
    by_hand(cloud, instance, 'host2', 'host1')
    status, text = operator('--json', 'instance', 'reconcile', '--yes')
    assert (status, [one['done'] for one in json.loads(text)['guests']]) == (0, [True]), text
    assert (place(cloud, instance), is_clean(cloud)) == (AT_1, True)


@pytest.mark.slow
def test_wrong_allocation_of_a_guest_is_shown_and_healed(cloud, operator):
    instance = moved(cloud)
    assert operator('instance', 'reconcile', '--yes')[0] == 0
    held = cloud.placement_client.read(f'/allocations/{instance.uuid}')
    root = cloud.database.services.list_nodes(host='host3')[0].uuid
    resources = next(iter(held['allocations'].values()))['resources']
    body = {**held, 'allocations': {root: {'resources': resources}}}
    cloud.placement_client.put(f'/allocations/{instance.uuid}', body)
    assert operator('instance', 'reconcile', '--yes')[0] == 0
    assert (place(cloud, instance), is_clean(cloud)) == (AT_2, True)
