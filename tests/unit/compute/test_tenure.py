# SPDX-License-Identifier: Apache-2.0

"""Two migrations of one guest on one host: tenures come before epochs, and work is serial."""

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
        # An operator's question has no tenure, so only the epochs of each migration are compared.
        (FIRST, 0, 2, 'epoch'),
        (FIRST, 0, 4, None),
        (SECOND, 0, 1, None),
    ],
)
@pytest.mark.parametrize('step', ['poll', PRE, 'live_migration_abort'])
def test_command_is_accepted_or_refused_by_tenure_and_then_by_epoch(
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


def test_tenures_of_different_guests_are_independent(scene: Scene) -> None:
    host = scene.host('beta')
    assert host.poll(1, tenure=5).refusal is None
    assert host.poll(2, tenure=1).refusal is None


def test_assignment_of_ended_migration_sets_the_tenure_of_its_guest(scene: Scene) -> None:
    host = scene.host('beta', start=False)
    last = host.command('compute_started', tenure=7)
    host.events.assignments = [Assignment(command=last, role='none', queue=False)]
    host.start()
    assert host.poll(epoch=9, tenure=6, migration_uuid=SECOND).refusal == 'tenure'
    assert host.poll(epoch=1, tenure=8, migration_uuid=SECOND).refusal is None


def records(host: scene_module.Host) -> set[str]:
    """Return the migrations that a host remembers."""
    return {*host.manager._runner._records}


def test_host_forgets_migration_when_a_later_one_of_its_guest_begins(scene: Scene) -> None:
    host = scene.host('beta')
    for tenure in range(1, 21):
        migration = scene_module.uuid(2, tenure)
        host.call(ROLLBACK, migration_uuid=migration, tenure=tenure)
        scene.until(lambda tenure=tenure: host.events.states(ROLLBACK) == ['done'] * tenure)
        assert records(host) == {migration}
    assert host.call(ROLLBACK, migration_uuid=scene_module.uuid(2, 19), tenure=19, epoch=9).refusal == 'tenure'
    assert host.poll(migration_uuid=scene_module.uuid(2, 1), tenure=1).refusal == 'tenure'
    assert records(host) == {migration}


def test_host_forgets_earlier_migration_when_its_last_work_has_ended(scene: Scene) -> None:
    host = scene.host('beta')
    stall = scene.beta.faults.stall(PRE)
    host.call(PRE, tenure=1, migration_uuid=FIRST)
    scene.until(stall.reached.is_set)
    host.call(ROLLBACK, migration_uuid=FIRST, tenure=1)
    host.call(ROLLBACK, migration_uuid=SECOND, tenure=2)
    assert records(host) == {FIRST, SECOND}
    stall.release()
    scene.until(lambda: len(host.events.states(ROLLBACK)) == 2)
    assert records(host) == {SECOND}


def test_host_forgets_earlier_migration_when_its_driver_call_has_ended(scene: Scene) -> None:
    scene.guests(1)
    host = scene.host()
    call = scene.alpha.faults.stall('live_migration_force_complete')
    copy = scene.alpha.faults.stall('copying')
    host.call(LIVE, tenure=1, migration_uuid=FIRST)
    scene.until(copy.reached.is_set)
    host.call('live_migration_force_complete', tenure=1, migration_uuid=FIRST)
    scene.until(call.reached.is_set)
    host.call('live_migration_abort', tenure=1, migration_uuid=FIRST)
    scene.until(lambda: not scene.alpha.jobs)
    host.poll(migration_uuid=SECOND, tenure=2)
    assert records(host) == {FIRST, SECOND}
    call.release()
    scene.until(lambda: records(host) == {SECOND})


def test_work_of_later_migration_waits_for_work_of_earlier_one(scene: Scene) -> None:
    host = scene.host('beta')
    stall = scene.beta.faults.stall(PRE)
    host.call(PRE, tenure=1)
    scene.until(stall.reached.is_set)
    assert host.report(ROLLBACK, migration_uuid=SECOND, tenure=2).state == 'running'
    scene.simulation.advance(5)
    assert host.events.states(ROLLBACK) == []
    stall.release()
    scene.until(lambda: host.events.states(ROLLBACK))
    # The rollback waited, and did not cancel the work of another migration.
    assert (host.events.states(PRE), host.events.states(ROLLBACK)) == (['done'], ['done'])


def test_live_migration_waits_for_driver_calls_of_earlier_migration(
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
    # The second migration has no job yet, so its force-complete does not call the driver.
    host.call('live_migration_force_complete', migration_uuid=SECOND, tenure=2)
    scene.simulation.advance(5)
    assert len(scene.world.effects('job started')) == 1
    call.release()
    scene.until(lambda: len(scene.world.effects('job started')) == 2)
    assert scene.world.effects('force complete asked') == []


def test_driver_call_does_not_delay_work_of_its_own_migration(scene: Scene) -> None:
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


def test_abort_of_later_migration_does_not_abort_job_of_earlier_one(scene: Scene) -> None:
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
