# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Bad days: whatever fails or dies on the way, a migration ends, its guest runs once, and the books are right."""

import itertools

import pytest

from migrator import exception
from migrator.testing.placement_faults import Fault
from tests.functional import seen

#: Long enough for everything that has to be waited for: a dead host, and ten tries with growing pauses.
LONG = 900


def faults(cloud, host):
    return cloud.world.hypervisors[host].faults


def migrate(cloud, instance, host=None):
    """Ask for a migration, and return what the cloud was like before."""
    before = seen.everything(cloud)
    assert cloud.live_migrate(instance, host).status_int == 202
    return before


# --- before the guest moves ------------------------------------------------------------------------------------------


@pytest.mark.cloud(hosts=4)
def test_a_candidate_that_fails_its_check_is_left_clean_and_the_next_one_is_used(cloud):
    """Museum 14: a rejected candidate kept its allocation."""
    instance = cloud.boot('one', 'host1')
    for host in ('host2', 'host3'):
        # the check fails after it has made its file
        faults(cloud, host).fail('check_can_live_migrate_destination', after=True)
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, 'host4')
    assert [effect.host for effect in cloud.world.effects('check file removed', instance.uuid)] == ['host4']
    assert [effect.host for effect in cloud.world.effects('removed', instance.uuid)] == ['host2', 'host3', 'host1']


@pytest.mark.parametrize('phase', ['check_can_live_migrate_destination', 'pre_live_migration'])
@pytest.mark.parametrize('after', [False, True])
def test_when_every_candidate_fails_everything_is_as_before(cloud, phase, after):
    """Museum 13: the destination's allocation leaked on a rollback. Museum 36: a healthy guest was left in ERROR."""
    instance = cloud.boot('one', 'host1')
    for host in ('host2', 'host3'):
        faults(cloud, host).fail(phase, f'{host} has a bad day', after=after)
    before = migrate(cloud, instance)
    cloud.wait()
    seen.failed(cloud, instance, before, 'Every candidate was tried')
    for host in ('host2', 'host3'):
        assert f'{host} has a bad day' in seen.result(cloud, instance)[1]


@pytest.mark.parametrize('phase', ['check_can_live_migrate_destination', 'pre_live_migration'])
@pytest.mark.parametrize('after', [False, True])
def test_when_the_named_host_fails_no_other_is_tried(cloud, phase, after):
    """Museum 13, 37, 45, 46: what failed in the preparation must not touch the source, nor leave a thing behind."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host3').fail(phase, 'the disk is full', after=after)
    before = migrate(cloud, instance, 'host3')
    source_before = len([effect for effect in cloud.world.log if effect.host == 'host1'])
    cloud.wait()
    seen.failed(cloud, instance, before, 'the disk is full')
    assert len([effect for effect in cloud.world.log if effect.host == 'host1']) == source_before
    assert cloud.adapter.sent.count(('POST', '/allocations')) == 2, 'one move, one move back'


def test_with_no_retries_allowed_one_candidate_is_tried_only(cloud):
    cloud.conductors['conductor1'].conf.set_override('migrate_max_retries', 0)
    cloud.simulation.advance(6)
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('check_can_live_migrate_destination', 'no')
    before = migrate(cloud, instance)
    cloud.wait()
    seen.failed(cloud, instance, before, 'host2')


def test_a_source_that_fails_its_check_always_fails_the_migration_and_nothing_else(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host1').fail('check_can_live_migrate_source', 'the storage is odd', sticky=True)
    before = migrate(cloud, instance)
    cloud.wait()
    seen.failed(cloud, instance, before, 'the storage is odd')


def test_a_destination_that_prepares_badly_once_is_cleaned_and_the_next_one_is_used(cloud):
    """Museum 46: the leak of an attachment when the driver's preparation raised."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('pre_live_migration', after=True)
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, 'host3')


@pytest.mark.parametrize('phase', ['check_can_live_migrate_destination', 'check_can_live_migrate_source'])
def test_a_host_that_hangs_in_its_check_and_is_killed_counts_as_failing(cloud, phase):
    """Museum 9, 10: a check that nobody answers is a check that failed, not an instance in ERROR."""
    instance = cloud.boot('one', 'host1')
    host = 'host2' if phase.endswith('destination') else 'host1'
    stall = faults(cloud, host).stall(phase)
    before = migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    seen.kill(cloud, host)
    stall.release()
    if host == 'host1':
        seen.restart(cloud, host)
    cloud.wait(LONG)
    if host == 'host1':
        assert seen.migration(cloud, instance)['status'] in ('completed', 'failed')
        if seen.migration(cloud, instance)['status'] == 'failed':
            seen.failed(cloud, instance, before, 'check_can_live_migrate_source')
    else:
        assert seen.migration(cloud, instance)['status'] == 'completed'
        assert seen.host_of(cloud, instance) == 'host3'


def test_a_destination_that_hangs_in_its_preparation_and_dies_is_given_up_for_the_next(cloud):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('pre_live_migration', after=True)
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    seen.kill(cloud, 'host2')
    cloud.wait(LONG)
    assert seen.host_of(cloud, instance) == 'host3'
    assert seen.books(cloud)[instance.uuid] == {'host3': seen.CLAIM}
    assert [debt.host for debt in cloud.database.debts.list()] == ['host2'], 'what it left is on its account'


def test_a_destination_that_hangs_in_its_preparation_is_waited_for(cloud):
    """Museum 60: a destination that is slow is no reason for a time-out."""
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('pre_live_migration')
    migrate(cloud, instance)
    cloud.simulation.advance(300)
    assert seen.server(cloud, instance)['status'] == 'MIGRATING'
    assert seen.in_progress(cloud, instance)[0]['status'] == 'preparing'
    stall.release()
    cloud.wait()
    seen.completed(cloud, instance, 'host2')


# --- while it moves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('phase', ['live_migration', 'starting', 'copying', 'cutover'])
@pytest.mark.parametrize('leave_paused', [False, True])
def test_a_driver_that_fails_leaves_the_guest_running_where_it_was(cloud, phase, leave_paused):
    """Museum 13, 36, 47, 50: roll back to exactly what was, the guest running and the server ACTIVE."""
    instance = cloud.boot('one', 'host1', dirty_rate=50)
    cloud.world.hypervisors['host1'].leave_paused = leave_paused
    faults(cloud, 'host1').fail(phase, 'the hypervisor has a bad day')
    before = migrate(cloud, instance)
    cloud.wait()
    seen.failed(cloud, instance, before, 'bad day' if phase in ('live_migration', 'starting') else 'hypervisor')
    assert cloud.world.active_on(instance.uuid) == ['host1']


def test_a_guest_that_was_paused_by_its_user_is_still_paused_after_a_failed_cut_over(cloud):
    """Museum 36, 47: put back what was there, not what is usual."""
    instance = cloud.boot('one', 'host1', vm_state='paused')
    cloud.world.hypervisors['host1'].pause(instance.uuid)
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover')
    before = migrate(cloud, instance)
    cloud.wait()
    seen.failed(cloud, instance, before, '')
    assert seen.server(cloud, instance)['status'] == 'PAUSED'


def test_a_driver_whose_connection_breaks_while_the_job_goes_on_is_listened_to_again(cloud):
    """Museum 3, 56: the watcher died, and the guest went on to the destination."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    faults(cloud, 'host1').fail('live_migration', after=True)
    faults(cloud, 'host1').fail('attach_live_migration')
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, 'host2')


def test_a_copy_that_is_slow_but_moves_is_never_given_up(cloud):
    """Museum 57: false "no progress" aborts."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    cloud.world.hypervisors['host1'].set_link(10.0)
    migrate(cloud, instance)
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')


def test_a_rollback_that_fails_a_few_times_is_tried_again_until_it_is_clean(cloud):
    """Museum 7, 38: a cleanup that raised left the server in MIGRATING for ever."""
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover')
    for host in ('host1', 'host2'):
        for _ in range(3):
            faults(cloud, host).fail(f'rollback_live_migration_at_{"source" if host == "host1" else "destination"}')
    before = migrate(cloud, instance)
    cloud.wait()
    seen.failed(cloud, instance, before, '')


@pytest.mark.cloud(options={'conductor.post_max_attempts': 3})
def test_a_destination_that_cannot_be_cleaned_owes_it_and_the_server_is_free(cloud):
    """Museum 7, 49, 50: a cleanup that fails for ever is not the server's trouble."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('rollback_live_migration_at_destination', 'it will not go', sticky=True)
    faults(cloud, 'host1').fail('copying')
    before = migrate(cloud, instance)
    cloud.wait(LONG)
    assert seen.migration(cloud, instance)['status'] == 'failed'
    after = seen.everything(cloud)
    assert after['servers'] == before['servers']
    assert after['books'] == before['books']
    debt = cloud.database.debts.list()[0]
    assert (debt.host, debt.step) == ('host2', 'rollback_live_migration_at_destination')
    assert 'it will not go' in debt.reason


@pytest.mark.cloud(options={'conductor.post_max_attempts': 3})
def test_a_host_that_owes_for_a_server_is_no_destination_for_it(cloud):
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('rollback_live_migration_at_destination', sticky=True)
    faults(cloud, 'host1').fail('copying')
    migrate(cloud, instance)
    cloud.wait(LONG)
    migrate(cloud, instance)
    cloud.wait()
    assert seen.host_of(cloud, instance) == 'host3'


# --- after it has moved ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize('after', [False, True])
@pytest.mark.parametrize(
    ('host', 'phase'),
    [('host1', 'post_live_migration_at_source'), ('host2', 'post_live_migration_at_destination')],
)
def test_a_post_step_that_fails_once_is_done_again_and_the_server_is_at_its_new_host_meanwhile(
    cloud, host, phase, after
):
    """Museum 4, 5, 6, 7, 43: the guest runs at the destination, and every post step fails once."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, host).fail(phase, after=after)
    migrate(cloud, instance)
    seen.when(cloud, instance, 'post-migrating')
    assert seen.host_of(cloud, instance) == 'host2'
    assert seen.in_progress(cloud, instance)[0]['status'] == 'post-migrating'
    cloud.wait()
    seen.completed(cloud, instance, 'host2')
    assert cloud.database.debts.list() == []


@pytest.mark.cloud(options={'conductor.post_max_attempts': 3})
@pytest.mark.parametrize(
    ('host', 'phase'),
    [('host1', 'post_live_migration_at_source'), ('host2', 'post_live_migration_at_destination')],
)
def test_a_post_step_that_fails_for_ever_becomes_a_debt_and_the_migration_ends(cloud, host, phase):
    """Museum 4, 6, 49: the server does not wait for a host that cannot clean up."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, host).fail(phase, 'the disk is full', sticky=True)
    migrate(cloud, instance)
    cloud.wait(LONG)
    assert seen.migration(cloud, instance)['status'] == 'completed'
    assert seen.result(cloud, instance) == ('Success', None)
    assert (seen.server(cloud, instance)['status'], seen.host_of(cloud, instance)) == ('ACTIVE', 'host2')
    assert seen.books(cloud) == {instance.uuid: {'host2': seen.CLAIM}}
    assert cloud.world.active_on(instance.uuid) == ['host2']
    debts = cloud.database.debts.list()
    assert [(debt.host, debt.step) for debt in debts] == [(host, phase)]
    assert 'the disk is full' in debts[0].reason


def test_a_destination_that_dies_in_its_post_step_owes_it_and_the_migration_ends(cloud):
    """Museum 6: the destination died in its post step, and the server was MIGRATING for ever."""
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('post_live_migration_at_destination')
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    seen.kill(cloud, 'host2')
    cloud.wait(LONG)
    assert seen.migration(cloud, instance)['status'] == 'completed'
    assert seen.host_of(cloud, instance) == 'host2'
    assert [(debt.host, debt.step) for debt in cloud.database.debts.list()] == [
        ('host2', 'post_live_migration_at_destination')
    ]


# --- Placement -------------------------------------------------------------------------------------------------------


def test_a_placement_that_cannot_be_reached_is_waited_for(cloud):
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.UNREACHABLE, times=4)
    migrate(cloud, instance)
    cloud.simulation.advance(3)
    assert seen.in_progress(cloud, instance)[0]['status'] in ('accepted', 'preparing')
    cloud.wait()
    seen.completed(cloud, instance, 'host2')


ANSWERS_LOST = [
    Fault.UNREACHABLE,
    Fault.TIMEOUT_NOT_DONE,
    Fault.TIMEOUT_DONE,
    Fault.CONFLICT,
    Fault.ERROR_NOT_DONE,
    Fault.ERROR_DONE,
]
LATE = [Fault.TIMEOUT_LATE, Fault.DUPLICATED]


@pytest.mark.parametrize('fault', [*ANSWERS_LOST, *LATE], ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize('method', ['GET', 'POST', 'PUT'])
def test_no_fault_of_a_single_request_to_placement_harms_a_migration(cloud, method, fault):
    """Museum 25, 26: observe again, never a blind resend; and what arrives late changes nothing."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(fault, method=method, url='/allocations')
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, 'host2')
    cloud.adapter.deliver()
    seen.moved(cloud, instance, 'host2')


@pytest.mark.parametrize('fault', [*ANSWERS_LOST, *LATE], ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize('request_', ['the move', 'the move back'])
def test_no_fault_of_a_single_request_to_placement_harms_a_rollback(cloud, request_, fault):
    """Museum 13, 26: whatever becomes of one request, the books end as they were."""
    instance = cloud.boot('one', 'host1')
    faults(cloud, 'host2').fail('pre_live_migration', 'the disk is full')
    before = seen.everything(cloud)
    cloud.adapter.inject(fault, method='POST', url='/allocations', skip=int(request_ == 'the move back'))
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    seen.failed(cloud, instance, before, 'the disk is full')
    cloud.adapter.deliver()
    assert seen.everything(cloud) == before


def test_a_move_that_arrives_when_all_is_over_is_refused_by_its_generation(cloud):
    """Museum 26: the late move of a dead conductor would let an ended migration hold the source."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.TIMEOUT_LATE, method='POST', url='/allocations')
    faults(cloud, 'host2').fail('pre_live_migration')
    before = migrate(cloud, instance, 'host2')
    cloud.wait()
    late = cloud.adapter.deliver()
    assert [answer.status_code for answer in late] == [409]
    assert seen.everything(cloud) == before


def test_a_capacity_that_was_taken_meanwhile_is_a_refusal_and_the_next_candidate_is_used(cloud):
    """Museum 16, 58: the claim is refused after the host was chosen."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.REFUSED, method='POST', url='/allocations')
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, 'host3')


def test_a_capacity_that_was_taken_at_the_named_host_fails_the_migration(cloud):
    """Museum 15, 16: no destination without a claim."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.REFUSED, method='POST', url='/allocations')
    before = migrate(cloud, instance, 'host2')
    cloud.wait()
    seen.failed(cloud, instance, before, 'Placement refused the move to host2')


def test_a_placement_that_is_away_for_minutes_delays_a_rollback_and_no_more(cloud):
    instance = cloud.boot('one', 'host1', dirty_rate=900)
    stall = faults(cloud, 'host1').stall('copying')
    faults(cloud, 'host1').fail('copying')
    before = migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    cloud.adapter.inject(Fault.UNREACHABLE, times=50)
    stall.release()
    cloud.simulation.advance(30)
    assert seen.server(cloud, instance)['status'] == 'MIGRATING'
    cloud.wait(LONG)
    seen.failed(cloud, instance, before, '')


def test_a_consumer_that_somebody_else_writes_between_all_our_requests_is_not_overwritten(cloud):
    """Museum 25: lost updates for want of a generation."""
    instance = cloud.boot('one', 'host1')
    cloud.adapter.inject(Fault.CONFLICT, method='POST', times=12)
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, 'host2')


# --- the database ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('status', ['preparing', 'queued', 'running', 'post-migrating'])
def test_a_database_that_refuses_for_five_seconds_in_the_middle_costs_time_only(cloud, status):
    """Museum 3, 8: an error of the database while the guest moves must not end the watch."""
    instance = cloud.boot('one', 'host1', memory_mb=2048)
    stalls = {
        'preparing': faults(cloud, 'host2').stall('pre_live_migration'),
        'queued': faults(cloud, 'host1').stall('starting'),
        'running': faults(cloud, 'host1').stall('copying'),
        'post-migrating': faults(cloud, 'host1').stall('post_live_migration_at_source'),
    }
    for other, stall in stalls.items():
        if other != status:
            stall.release()
    migrate(cloud, instance)
    seen.when(cloud, instance, status)
    outage = seen.Outage(cloud, 5)
    stalls[status].release()
    cloud.wait()
    assert outage.refused
    seen.completed(cloud, instance, 'host2')


class AtCommit:
    """Acts at one commit of the conductor: before it is begun, or when it is done and its answer on the way."""

    def __init__(self, cloud, number, moment, act):
        self.left = number
        self.struck = False
        self._cloud = cloud
        self._moment = moment
        self._act = act
        cloud.engine.boundary = self._at

    def _at(self, what):
        thread = self._cloud.simulation.baton.current
        story = thread.acting.name == 'conductor1' and 'story' in thread.name
        if what != self._moment or not story:
            return
        self.left -= 1
        if not self.left:
            self.struck = True
            self._act()


def refuse():
    raise exception.DatabaseUnreachable(reason='planned by the test')


#: A migration that goes well has so many commits of its conductor's, its adoption aside.
COMMITS = range(1, 10)
#: One whose driver fails at cut-over.
COMMITS_BACK = range(1, 12)
#: By turns, for what need not be tried twice at each commit.
MOMENTS = itertools.cycle(['begin', 'committed'])


@pytest.mark.parametrize(('number', 'moment'), zip(COMMITS, MOMENTS, strict=False))
def test_whichever_commit_is_refused_or_its_answer_lost_the_migration_completes(cloud, number, moment):
    """Museum 3, 8: nothing rests on hearing that a commit was done."""
    instance = cloud.boot('one', 'host1')
    at = AtCommit(cloud, number, moment, refuse)
    migrate(cloud, instance)
    cloud.wait()
    assert at.struck
    assert seen.migration(cloud, instance)['status'] == 'completed'
    seen.completed(cloud, instance, seen.host_of(cloud, instance))


@pytest.mark.parametrize(('number', 'moment'), zip(COMMITS_BACK, MOMENTS, strict=False))
def test_whichever_commit_of_a_rollback_is_refused_or_its_answer_lost_all_is_as_before(cloud, number, moment):
    """Museum 7, 8: the same, on the way back."""
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover')
    at = AtCommit(cloud, number, moment, refuse)
    before = migrate(cloud, instance)
    cloud.wait()
    assert at.struck
    seen.failed(cloud, instance, before, '')


def surprise():
    raise RuntimeError('nobody has thought of this')


@pytest.mark.parametrize('number', [1, 4, 8])
def test_an_error_that_nobody_has_thought_of_costs_a_few_seconds_and_no_more(cloud, number):
    """Museum 8, 62: an unknown exception left the server MIGRATING, and its own handling failed."""
    instance = cloud.boot('one', 'host1')
    at = AtCommit(cloud, number, 'begin', surprise)
    migrate(cloud, instance)
    cloud.wait()
    assert at.struck
    seen.completed(cloud, instance, seen.host_of(cloud, instance))


# --- messages --------------------------------------------------------------------------------------------------------


def test_when_every_event_is_lost_the_polls_finish_it(cloud):
    """Museum 42: an event that never comes."""
    instance = cloud.boot('one', 'host1')
    cloud.bus.faults = lambda message: 'lose' if message.method == 'step_ended' else None
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, 'host2')
    assert cloud.simulation.time < 60


def test_when_every_event_is_lost_the_polls_finish_a_rollback_too(cloud):
    """Museum 41, 42: an event that never comes, then a failure."""
    instance = cloud.boot('one', 'host1')
    cloud.bus.faults = lambda message: 'lose' if message.method == 'step_ended' else None
    faults(cloud, 'host1').fail('copying')
    before = migrate(cloud, instance)
    cloud.wait()
    seen.failed(cloud, instance, before, '')


def test_events_that_come_twice_or_late_change_nothing(cloud):
    """Museum 42: an event that comes too late."""
    instance = cloud.boot('one', 'host1')
    cloud.bus.faults = lambda message: {0: 'duplicate', 1: 7.0}.get(message.number % 3)
    migrate(cloud, instance)
    cloud.wait()
    seen.completed(cloud, instance, seen.host_of(cloud, instance))


def test_when_the_wake_up_is_lost_the_sweep_takes_it_up(cloud):
    """A killed conductor left it `accepted` for ever, which no API could abort."""
    instance = cloud.boot('one', 'host1')
    cloud.bus.faults = lambda message: 'lose' if message.method == 'live_migrate' else None
    migrate(cloud, instance)
    assert seen.in_progress(cloud, instance)[0]['status'] == 'accepted'
    cloud.simulation.advance(6)
    cloud.wait()
    seen.completed(cloud, instance, 'host2')


CALLS = [
    'check_can_live_migrate_destination',
    'check_can_live_migrate_source',
    'pre_live_migration',
    'live_migration',
    'poll_live_migrations',
    'post_live_migration_at_source',
    'post_live_migration_at_destination',
]


def on_the_first(cloud, method, fault):
    """Have something done to the first call of a method; all others arrive."""
    faults_left = [fault]

    def on(message):
        wanted = (message.method, message.kind) == (method, 'call')
        return faults_left.pop() if wanted and faults_left else None

    cloud.bus.faults = on


#: 90 s is past the time-out of every call that is answered at once.
MESSAGE_FAULTS = ['lose', 'lose_answer', 'duplicate', 90.0, 'refuse']


@pytest.mark.parametrize('fault', MESSAGE_FAULTS)
@pytest.mark.parametrize('method', CALLS)
def test_no_single_message_that_is_lost_late_or_doubled_harms_a_migration(cloud, method, fault):
    """Museum 9, 10, 42, 60: time-outs, and what arrives after them."""
    instance = cloud.boot('one', 'host1')
    on_the_first(cloud, method, fault)
    migrate(cloud, instance)
    cloud.wait(LONG)
    cloud.simulation.advance(90 if fault == 90.0 else 0)
    seen.completed(cloud, instance, seen.host_of(cloud, instance))
    assert cloud.world.violations == []


@pytest.mark.parametrize('fault', MESSAGE_FAULTS)
@pytest.mark.parametrize(
    'method',
    ['live_migration', 'rollback_live_migration_at_destination', 'rollback_live_migration_at_source'],
)
def test_no_single_message_that_is_lost_late_or_doubled_harms_a_rollback(cloud, method, fault):
    """Museum 7, 42, 60: the same, on the way back."""
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover')
    on_the_first(cloud, method, fault)
    before = migrate(cloud, instance, 'host2')
    cloud.wait(LONG)
    cloud.simulation.advance(90 if fault == 90.0 else 0)
    seen.failed(cloud, instance, before, '')


def test_a_broker_that_is_away_for_a_minute_costs_time_only(cloud):
    """Museum 59: the broker is down when the guest has moved."""
    instance = cloud.boot('one', 'host1', memory_mb=2048)
    migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    until = cloud.simulation.time + 60
    cloud.bus.faults = lambda message: 'refuse' if cloud.simulation.time < until else None
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')


# --- processes: conductors -------------------------------------------------------------------------------------------


def kill_conductor_at(cloud, number, moment):
    """Kill the conductor at one of its commits, and start another one when that has happened."""
    victim = cloud.processes['conductor1']
    at = AtCommit(cloud, number, moment, lambda: cloud.simulation.kill(victim))

    def strike_and_take_over():
        cloud.simulation.run_until(lambda: at.struck)
        del cloud.conductors['conductor1']
        cloud.start_conductor('conductor2')
        cloud.wait(LONG)

    return strike_and_take_over


@pytest.mark.parametrize('moment', ['begin', 'committed'])
@pytest.mark.parametrize('number', COMMITS)
def test_wherever_a_conductor_is_killed_another_one_finishes_the_migration(cloud, number, moment):
    """Museum 8 and the conductor that died after moving the allocations: nothing stays half done."""
    instance = cloud.boot('one', 'host1')
    finish = kill_conductor_at(cloud, number, moment)
    migrate(cloud, instance)
    finish()
    seen.completed(cloud, instance, seen.host_of(cloud, instance))
    assert len(cloud.world.effects('job started', instance.uuid)) == 1


@pytest.mark.parametrize('moment', ['begin', 'committed'])
@pytest.mark.parametrize('number', COMMITS_BACK)
def test_wherever_a_conductor_is_killed_on_the_way_back_another_one_finishes_the_rollback(cloud, number, moment):
    """Museum 7, 8, 13: the same, on the way back."""
    instance = cloud.boot('one', 'host1')
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover')
    finish = kill_conductor_at(cloud, number, moment)
    before = migrate(cloud, instance)
    finish()
    seen.failed(cloud, instance, before, '')


def test_a_conductor_that_was_paused_past_its_lease_writes_nothing_when_it_wakes(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    cloud.simulation.pause(cloud.processes['conductor1'])
    cloud.start_conductor('conductor2')
    cloud.simulation.advance(17)
    cloud.simulation.resume(cloud.processes['conductor1'])
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')
    entries = cloud.migrations(instance)[0].history
    assert [entry['epoch'] for entry in entries] == sorted(entry['epoch'] for entry in entries)


def test_with_its_only_conductor_dead_a_migration_waits_and_the_next_life_finishes_it(cloud):
    instance = cloud.boot('one', 'host1')
    migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    seen.kill(cloud, 'conductor1')
    cloud.simulation.advance(600)
    assert seen.server(cloud, instance)['status'] == 'MIGRATING'
    cloud.start_conductor('conductor1')
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')


# --- processes: computes ---------------------------------------------------------------------------------------------


def test_what_waited_on_a_source_that_was_killed_is_queued_again_in_its_order(cloud):
    """Museum 2, and the killed compute that left a queued migration `queued` for ever."""
    instances = [cloud.boot(f'vm{number}', 'host1', memory_mb=2048) for number in range(4)]
    for instance in instances:
        migrate(cloud, instance)
    seen.when(cloud, instances[0], 'running')
    for instance in instances[1:]:
        seen.when(cloud, instance, 'queued')
    seen.kill(cloud, 'host1')
    cloud.simulation.advance(1)
    seen.restart(cloud, 'host1')
    cloud.wait(LONG)
    for instance in instances:
        seen.completed(cloud, instance, seen.host_of(cloud, instance))
    started = [effect.instance_uuid for effect in cloud.world.effects('job started')]
    assert started == [instance.uuid for instance in instances], 'each once, first in, first out'


@pytest.mark.parametrize('down_for', [0.5, 5, 30])
def test_a_source_that_is_killed_while_it_copies_finds_its_job_again_or_its_guest_gone(cloud, down_for):
    """Museum 2: the watcher died and the transfer went on by itself; no split brain."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    seen.kill(cloud, 'host1')
    cloud.simulation.advance(down_for)
    seen.restart(cloud, 'host1')
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')
    assert len(cloud.world.effects('job started', instance.uuid)) == 1


def test_a_source_that_is_killed_while_it_copies_and_never_comes_back_owes_its_cleanup(cloud):
    """Museum 2, 6: the guest has moved; the server does not wait for a dead host."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    seen.kill(cloud, 'host1')
    cloud.wait(LONG)
    assert seen.migration(cloud, instance)['status'] == 'completed'
    assert seen.host_of(cloud, instance) == 'host2'
    assert seen.books(cloud) == {instance.uuid: {'host2': seen.CLAIM | {'MEMORY_MB': 4096}}}
    assert [(debt.host, debt.step) for debt in cloud.database.debts.list()] == [
        ('host1', 'post_live_migration_at_source')
    ]


def test_a_source_that_is_killed_before_its_hypervisor_has_the_job_starts_it_once(cloud):
    """Museum 2: the driver call of a dead life may still start a job; it is waited for or called off."""
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host1').stall('starting')
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    seen.kill(cloud, 'host1')
    seen.restart(cloud, 'host1')
    stall.release()
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')
    assert len(cloud.world.effects('job started', instance.uuid)) == 1


@pytest.mark.parametrize('prepared', [True, False])
def test_a_destination_that_restarts_between_its_preparation_and_the_copy_still_receives_the_guest(cloud, prepared):
    """What was prepared survives a restart of the service; where it does not, it is prepared again."""
    first, second = (cloud.boot(name, 'host1', memory_mb=4096) for name in ('first', 'second'))
    migrate(cloud, first, 'host3')
    migrate(cloud, second, 'host2')
    seen.when(cloud, second, 'queued')
    seen.kill(cloud, 'host2')
    if not prepared:
        hypervisor = cloud.world.hypervisors['host2']
        with cloud.world.lock:
            hypervisor.remove(second.uuid, 'reboot')
    seen.restart(cloud, 'host2')
    assert seen.in_progress(cloud, second)[0]['status'] == 'queued'
    cloud.wait(LONG)
    seen.completed(cloud, first, 'host3')
    seen.completed(cloud, second, 'host2')


@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_a_host_that_restarts_while_the_destination_prepares_is_asked_again(cloud, host):
    instance = cloud.boot('one', 'host1')
    stall = faults(cloud, 'host2').stall('pre_live_migration')
    migrate(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    seen.kill(cloud, host)
    stall.release()
    seen.restart(cloud, host)
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')


@pytest.mark.parametrize('host', ['host1', 'host2'])
@pytest.mark.parametrize('status', ['queued', 'running'])
def test_a_host_that_is_merely_silent_is_not_down_and_nothing_is_decided_against_it(cloud, host, status):
    instance = cloud.boot('one', 'host1', memory_mb=8192)
    stall = faults(cloud, 'host1').stall('starting' if status == 'queued' else 'copying')
    migrate(cloud, instance)
    seen.when(cloud, instance, status)
    # its heartbeats are heard, its answers are not
    cloud.bus.faults = lambda message: (
        'lose' if f'.{host}' in str(message.target) or message.method == 'step_ended' else None
    )
    cloud.simulation.advance(200)
    assert seen.in_progress(cloud, instance)[0]['status'] == status
    assert seen.service(cloud, host)['state'] == 'up'
    cloud.bus.faults = lambda message: None
    stall.release()
    cloud.wait(LONG)
    seen.completed(cloud, instance, 'host2')


# --- whole hosts -----------------------------------------------------------------------------------------------------


def test_a_destination_that_loses_its_power_in_the_copy_leaves_the_guest_where_it_was(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    before = migrate(cloud, instance, 'host2')
    seen.when(cloud, instance, 'running')
    cloud.world.hypervisors['host2'].power_off()
    seen.kill(cloud, 'host2')
    cloud.wait(LONG)
    assert seen.migration(cloud, instance)['status'] == 'failed'
    after = seen.everything(cloud)
    assert after['servers'] == before['servers']
    assert after['books'] == before['books']
    assert cloud.world.active_on(instance.uuid) == ['host1']
    assert [debt.host for debt in cloud.database.debts.list()] == ['host2']


def test_a_destination_that_hangs_and_is_fenced_in_the_copy_has_its_job_aborted(cloud):
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    faults(cloud, 'host1').stall('copying')
    before = migrate(cloud, instance, 'host2')
    seen.when(cloud, instance, 'running')
    seen.kill(cloud, 'host2')
    cloud.simulation.advance(200)
    assert seen.in_progress(cloud, instance)[0]['status'] == 'running', 'its service is down, its hypervisor may not be'
    seen.force_down(cloud, 'host2')
    cloud.wait(LONG)
    assert seen.migration(cloud, instance)['status'] == 'failed'
    assert seen.everything(cloud)['servers'] == before['servers']
    assert cloud.world.active_on(instance.uuid) == ['host1']


def test_a_source_that_loses_its_power_and_is_fenced_ends_in_error_with_nothing_left_elsewhere(cloud):
    """Museum 2, 29: the guest is lost; the server can be evacuated, and says so."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    cloud.world.hypervisors['host1'].power_off()
    seen.kill(cloud, 'host1')
    cloud.simulation.advance(200)
    stuck = cloud.migrations(instance)[0]
    assert (stuck.status, bool(stuck.stuck_reason)) == ('running', True), 'nobody has said that the host is fenced'
    seen.force_down(cloud, 'host1')
    cloud.wait(LONG)
    assert seen.migration(cloud, instance)['status'] == 'error'
    shown = seen.server(cloud, instance)
    assert (shown['status'], shown['OS-EXT-SRV-ATTR:host']) == ('ERROR', 'host1')
    assert shown['OS-EXT-STS:task_state'] is None
    assert seen.books(cloud) == {instance.uuid: {'host1': seen.CLAIM | {'MEMORY_MB': 4096}}}
    assert list(seen.guests(cloud, instance)) == ['host1']


def test_a_guest_that_its_user_shuts_off_in_the_copy_stays_shut_off_where_it_was(cloud):
    """Museum 20, 29: the user acts on the guest behind our back."""
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    before = migrate(cloud, instance)
    seen.when(cloud, instance, 'running')
    cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    cloud.wait()
    assert seen.migration(cloud, instance)['status'] == 'failed'
    assert seen.books(cloud) == before['books']
    assert seen.guests(cloud, instance) == {'host1': ('shutdown', False, before['guests'][instance.uuid]['host1'][2])}
