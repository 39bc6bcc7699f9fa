# SPDX-License-Identifier: Apache-2.0

"""Tests that a failure names the host, the step and the error, and an unreachable source as such."""

import pytest

STEPS = [
    ('host2', 'check_can_live_migrate_destination'),
    ('host1', 'check_can_live_migrate_source'),
    ('host2', 'pre_live_migration'),
    ('host1', 'live_migration'),
]


def failure(stage, migration):
    return stage.end(migration, 400) and stage.row(migration).failure


@pytest.mark.parametrize(('host', 'step'), STEPS)
def test_unexpected_error_is_reported_with_type_host_and_step(stage, host, step, monkeypatch):
    def fail(*args):
        raise KeyError('name')

    monkeypatch.setattr(stage.cloud.computes[host].driver, step, fail)
    migration = stage.begin('host2')
    assert f"{host} failed in {step}: KeyError: 'name'" in failure(stage, migration)


@pytest.mark.parametrize('named', ['host2', None])
def test_unreachable_source_is_the_reason_of_its_failed_check(build, named):
    stage = build(hosts=3)
    stall = stage.host('host1').faults.stall('check_can_live_migrate_source')
    migration = stage.begin(named)
    stage.until(stall.reached.is_set)
    stage.kill('host1')
    reason = failure(stage, migration)
    assert reason.startswith('The source host1 did not answer check_can_live_migrate_source within 60.0 s')
    assert 'host3' not in reason
    assert 'No valid host' not in reason
    assert '1800' not in reason


@pytest.mark.parametrize('named', ['host2', None])
def test_guest_that_never_was_at_the_source_is_not_reported_lost(stage, named):
    del stage.host('host1').guests[stage.instance.uuid]
    migration = stage.begin(named)
    reason = failure(stage, migration)
    assert f'host1 has no guest {stage.instance.uuid}' in reason
    assert 'lost' not in reason
    steps = stage.database.migrations.steps(migration.uuid)
    assert [step for step in steps if 'lost' in str((step.result or {}).get('reason'))] == []
