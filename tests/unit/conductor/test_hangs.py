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

"""A hypervisor that hangs while its compute service lives: what waits for it says so, and is for a person to end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from migrator.conductor import owned
from tests.unit.conductor import stage as stages

Stage = stages.Stage
ENDLESS = {'dirty_rate': 10000.0, 'auto_converge_after': 0}
SLOW = ('get_guest', 'copying', 'live_migration_abort', 'get_progress')


@pytest.mark.parametrize('aborted', [False, True])
def test_a_source_that_does_not_tell_of_the_guest(build: Callable[..., Stage], aborted: bool) -> None:
    stage = build(**ENDLESS)
    migration = stage.begin()
    stage.until_status(migration, 'running')
    stalls = [stage.host('host1').faults.stall(phase, sticky=True) for phase in SLOW]
    if aborted:
        stage.abort(migration)
    why = stage.until_stuck(migration, 100)
    assert 'host1 answers, but its hypervisor has long not told of the guest' in why
    for phase in SLOW:
        stage.host('host1').faults.clear(phase)
    for stall in stalls:
        stall.release()
    stage.until(lambda: stage.row(migration).stuck_reason is None)
    if not aborted:
        stage.abort(migration)
    assert stage.end(migration).status == 'cancelled'
    stage.check(migration, 'host1')


@pytest.mark.parametrize('step', ['rollback_live_migration_at_destination', 'post_live_migration_at_source'])
def test_a_step_that_is_never_given_up_and_does_not_end(build: Callable[..., Stage], step: str) -> None:
    stage = build()
    host = 'host2' if 'destination' in step else 'host1'
    stall = stage.host(host).faults.stall(step)
    if 'rollback' in step:
        stage.host('host1').faults.fail('copying')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    stage.until(lambda: stage.row(migration).waits_for, 70)
    assert f'{host} has not ended {step}' in str(stage.row(migration).waits_for)
    assert f'{host} is up, and has long not ended {step}' in stage.until_stuck(migration, 300)
    stall.release()
    assert stage.end(migration).status == ('failed' if 'rollback' in step else 'completed')
    stage.check(migration, 'host1' if 'rollback' in step else 'host2')


def test_a_step_that_ends_and_is_begun_anew_has_not_been_going_on_all_the_time(
    build: Callable[..., Stage],
) -> None:
    stage = build()
    stall = stage.host('host1').faults.stall('arrived')
    migration = stage.begin('host2')
    stage.until(stall.reached.is_set)
    stage.host('host1').faults.lie('get_guest', lambda truth: truth.replace(state='running'), sticky=True)
    stall.release()
    why = stage.until_stuck(migration)
    assert 'the guest is there and could run' in why
    stage.simulation.advance(8 * 60)
    (record,) = [one for one in stage.database.migrations.steps(migration.uuid) if one.step == owned.STUCK]
    said = [event['stuck'] for event in record.result['events']]
    assert set(said) <= {why, None}
    assert len(said) <= 3, 'it is not told anew each time it is asked'


def test_one_of_which_nothing_has_been_done_is_abandoned(build: Callable[..., Stage]) -> None:
    """Its first conductor has died before its first step, and who adopts it asks the source where the guest is."""
    stage = build()
    stall = stage.host('host1').faults.stall('get_guest', sticky=True)
    migration = stage.accept()
    assert stage.database.migrations.adopt(migration.uuid, 0, 'a life that has ended') is not None
    assert 'its hypervisor has long not told' in stage.until_stuck(migration, 150)
    assert stage.row(migration).status == 'accepted'
    stage.database.wishes.request_abandon(stage.row(migration), 'host1', 'an operator')
    stall.release()
    assert stage.end(migration).status == 'error'
    stage.check(migration, 'host1')
