# SPDX-License-Identifier: Apache-2.0

"""Errors of a driver that do not derive from Exception: each migration ends, and a log names it."""

import inspect
import itertools

import pytest

from migrator.simulator.faults import BASE_EXCEPTIONS
from migrator.virt.driver import ComputeDriver
from tests.functional import migration_requests

pytestmark = pytest.mark.simulated(reason='the errors that it plants are objects')

#: What a live migration, its rollback, its abort and its poll call. The crash matrix plants such errors in all others.
METHODS = (
    'check_can_live_migrate_destination', 'check_can_live_migrate_source', 'pre_live_migration', 'live_migration',
    'post_live_migration_at_source', 'post_live_migration_at_destination', 'rollback_live_migration_at_source',
    'rollback_live_migration_at_destination', 'live_migration_abort', 'live_migration_force_complete', 'get_guest',
    'get_progress',
)  # fmt: skip
#: What a request or a poll calls while the guest is copied.
WHILE_COPYING = {
    'live_migration_abort': migration_requests.abort,
    'live_migration_force_complete': migration_requests.force_complete,
    'get_progress': lambda cloud, instance: cloud.simulation.advance(60),
}


def test_methods_are_those_of_a_driver():
    known = {name for name, _ in inspect.getmembers(ComputeDriver, inspect.isfunction)}
    assert set(METHODS) <= known


@pytest.mark.parametrize(('method', 'kind'), list(zip(METHODS, itertools.cycle(BASE_EXCEPTIONS), strict=False)))
def test_migration_ends_and_the_log_names_the_error(cloud, caplog, method, kind):
    instance = cloud.boot('one', 'host1')
    source, *others = cloud.world.hypervisors.values()
    planted = [one.faults.fail(method, error=kind('of the driver')) for one in (source, *others)]
    if method.startswith('rollback'):
        source.faults.fail('copying')
    stall = source.faults.stall('copying') if method in WHILE_COPYING else None
    cloud.live_migrate(instance)
    if stall is not None:
        cloud.simulation.run_until(stall.reached.is_set)
        WHILE_COPYING[method](cloud, instance)
        cloud.simulation.run_until(lambda: any(fault.count for fault in planted))
        stall.release()
    cloud.wait()
    assert any(fault.count for fault in planted), 'the method was called'
    (migration,) = cloud.migrations(instance)
    ends = ('failed', 'error') if method.startswith('rollback') else ('completed', 'failed')
    assert migration.status in ends
    where = migration.dest_compute if migration.status == 'completed' else 'host1'
    assert cloud.world.active_on(instance.uuid) == [where]
    assert f'{kind.__name__}: of the driver' in caplog.text


@pytest.mark.parametrize('kind', BASE_EXCEPTIONS)
def test_abort_during_a_step_that_raises_base_exception_ends_the_migration(cloud, caplog, kind):
    instance = cloud.boot('one', 'host1')
    faults = [cloud.world.hypervisors[host].faults for host in ('host2', 'host3')]
    stalls = [one.stall('pre_live_migration') for one in faults]
    for one in faults:
        one.fail('pre_live_migration', after=True, error=kind('of the driver'))
    cloud.live_migrate(instance)
    cloud.simulation.run_until(lambda: any(stall.reached.is_set() for stall in stalls))
    assert migration_requests.abort(cloud, instance).status_int == 202
    for stall in stalls:
        stall.release()
    cloud.wait()
    (migration,) = cloud.migrations(instance)
    assert migration.status in ('cancelled', 'failed')
    assert cloud.world.active_on(instance.uuid) == ['host1']
    assert f'{kind.__name__}: of the driver' in caplog.text
