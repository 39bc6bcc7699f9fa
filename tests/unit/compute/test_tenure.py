# SPDX-License-Identifier: Apache-2.0

"""Two migrations of one guest at one host: tenures are compared before epochs, and the guest has one line of work."""

from __future__ import annotations

import pytest

from migrator.objects import Assignment
from tests.unit.compute import scene as scene_module
from tests.unit.compute.scene import Scene

PRE, ROLLBACK, LIVE = 'pre_live_migration', 'rollback_live_migration_at_destination', 'live_migration'
POST = 'post_live_migration_at_source'
FIRST, SECOND = scene_module.uuid(2, 1), scene_module.uuid(2, 9)


@pytest.mark.parametrize(
    ('migration', 'tenure', 'epoch', 'refusal'),
    [
        (FIRST, 5, 3, None),
        (FIRST, 5, 2, 'epoch'),
        (FIRST, 4, 9, 'tenure'),
        (FIRST, 6, 1, None),
        (SECOND, 5, 9, 'tenure'),
        (SECOND, 4, 9, 'tenure'),
        (SECOND, 6, 1, None),
        # Of a service of an earlier release: the epochs of each migration alone.
        (FIRST, 0, 2, 'epoch'),
        (FIRST, 0, 4, None),
        (SECOND, 0, 1, None),
    ],
)
@pytest.mark.parametrize('step', ['poll', PRE, 'live_migration_abort'])
def test_a_command_is_taken_or_refused_by_tenure_and_then_by_epoch(
    scene: Scene, step: str, migration: str, tenure: int, epoch: int, refusal: str | None
) -> None:
    host = scene.host('beta')
    assert host.poll(epoch=3, tenure=5).tenure == 5
    more = {'migration_uuid': migration, 'tenure': tenure}
    if step == 'poll':
        observation = host.poll(epoch=epoch, **more)
        assert (observation.refusal, observation.tenure) == (refusal, max(5, tenure))
    else:
        answer = host.call(step, epoch=epoch, **more)
        assert (answer.refusal, answer.seen_tenure) == (refusal, max(5, tenure))


def test_tenures_of_different_guests_have_nothing_to_do_with_each_other(scene: Scene) -> None:
    host = scene.host('beta')
    assert host.poll(1, tenure=5).refusal is None
    assert host.poll(2, tenure=1).refusal is None


def test_a_host_that_is_capped_at_an_earlier_version_compares_epochs_alone(scene: Scene) -> None:
    host = scene.host('beta', service_version_cap=4)
    assert host.poll(epoch=3, tenure=5).refusal is None
    assert host.poll(epoch=1, tenure=4, migration_uuid=SECOND).refusal is None


def test_the_answer_to_compute_started_tells_the_tenure_of_a_guest_that_no_migration_has_in_hand(scene: Scene) -> None:
    host = scene.host('beta', start=False)
    last = host.command('compute_started', tenure=7)
    host.events.assignments = [Assignment(command=last, role='none', queue=False)]
    host.start()
    assert host.poll(epoch=9, tenure=6, migration_uuid=SECOND).refusal == 'tenure'
    assert host.poll(epoch=1, tenure=8, migration_uuid=SECOND).refusal is None


def test_the_work_of_a_later_migration_waits_for_that_of_an_earlier_one(scene: Scene) -> None:
    host = scene.host('beta')
    stall = scene.beta.faults.stall(PRE)
    host.call(PRE, tenure=1)
    scene.until(stall.reached.is_set)
    assert host.report(ROLLBACK, migration_uuid=SECOND, tenure=2).state == 'running'
    scene.simulation.advance(5)
    assert host.events.states(ROLLBACK) == []
    stall.release()
    scene.until(lambda: host.events.states(ROLLBACK))
    # It has waited, and has not cancelled what is another migration's.
    assert (host.events.states(PRE), host.events.states(ROLLBACK)) == (['done'], ['done'])


def test_the_move_of_a_later_migration_waits_for_the_calls_that_an_earlier_one_has_left_in_the_driver(
    scene: Scene,
) -> None:
    scene.guests(1)
    host = scene.host()
    call = scene.alpha.faults.stall('live_migration_force_complete')
    copy = scene.alpha.faults.stall('copying')
    host.call(LIVE, tenure=1)
    scene.until(copy.reached.is_set)
    host.call('live_migration_force_complete', tenure=1)
    scene.until(call.reached.is_set)
    host.call('live_migration_abort', tenure=1)
    scene.until(lambda: not scene.alpha.jobs)
    host.call(LIVE, migration_uuid=SECOND, tenure=2)
    # Nor is the driver asked for anything about it: there is no job of it yet.
    host.call('live_migration_force_complete', migration_uuid=SECOND, tenure=2)
    scene.simulation.advance(5)
    assert len(scene.world.effects('job started')) == 1
    call.release()
    scene.until(lambda: len(scene.world.effects('job started')) == 2)
    assert scene.world.effects('force complete asked') == []


def test_a_call_of_the_same_migration_does_not_hold_up_its_own_work(scene: Scene) -> None:
    scene.guests(1)
    host = scene.host()
    call = scene.alpha.faults.stall('live_migration_force_complete')
    copy = scene.alpha.faults.stall('copying')
    host.call(LIVE, tenure=1)
    scene.until(copy.reached.is_set)
    host.call('live_migration_force_complete', tenure=1)
    scene.until(call.reached.is_set)
    host.call('rollback_live_migration_at_source', tenure=1)
    scene.until(lambda: host.events.states('rollback_live_migration_at_source'))
    assert host.events.states('rollback_live_migration_at_source') == ['done']


def test_the_abort_of_a_later_migration_does_not_strike_the_job_of_an_earlier_one(scene: Scene) -> None:
    scene.guests(1)
    host = scene.host()
    copy = scene.alpha.faults.stall('copying')
    host.call(LIVE, tenure=1)
    scene.until(copy.reached.is_set)
    host.call('live_migration_abort', migration_uuid=SECOND, tenure=2)
    scene.simulation.advance(5)
    copy.release()
    scene.until(lambda: 'done' in host.events.states(LIVE))
    assert scene.world.effects('abort asked') == []
