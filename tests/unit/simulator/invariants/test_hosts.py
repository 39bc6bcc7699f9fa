# SPDX-License-Identifier: Apache-2.0
"""What must be true of queues, fences and messages: planted, and found."""

import concurrent.futures
import contextlib
import sqlite3

from tests.unit.simulator import planting


def test_i10_more_jobs_than_there_are_slots(cloud):
    planting.effect(cloud, 'host1', 'job started')
    assert planting.found(cloud) == set()
    planting.effect(cloud, 'host1', 'job started')
    assert planting.found(cloud, quiet=False) == {'I10'}


def test_i11_a_key_that_is_no_migration_in_progress(cloud):
    cloud.computes['host1']._waiting_live_migrations[cloud.migration.uuid] = concurrent.futures.Future()
    assert planting.found(cloud, quiet=False) == planting.found(cloud) == {'I11'}


def test_i11_a_key_at_a_host_that_was_never_sent_it(copying):
    copying.computes['host3']._waiting_live_migrations[copying.second.uuid] = concurrent.futures.Future()
    assert planting.found(copying, quiet=False) == {'I11'}


def test_i11_a_thread_that_is_left(cloud):
    process = cloud.processes['host1']
    go_on = process.event()
    process.start(go_on.wait, name='left')
    cloud.simulation.run_ready()
    assert planting.found(cloud) == {'I11'}
    go_on.set()
    cloud.simulation.run_ready()
    assert planting.found(cloud) == set()


def test_i11_a_future_that_is_left(cloud):
    pool = cloud.computes['host1']._live_migration_executor
    process = cloud.processes['host1']
    go_on = process.event()
    future = pool.submit(go_on.wait)
    assert planting.found(cloud) == {'I11'}
    go_on.set()
    cloud.simulation.run_ready()
    assert future.done()
    assert planting.found(cloud) == set()


def test_i11_a_connection_that_is_left(cloud):
    with contextlib.closing(sqlite3.connect(cloud.directory / 'migrator.sqlite')):
        assert planting.found(cloud) == {'I11'}


def test_i13_a_queue_that_is_stopped_and_not_empty(copying):
    copying.computes['host1']._queue._closed = True
    assert planting.found(copying, quiet=False) == {'I13'}


def test_i13_what_a_stop_has_cancelled_ends_cancelled(cloud):
    planting.sql(
        cloud,
        "UPDATE migrations SET abort_requested_by = 'host stop', abort_requested_at = '2026-01-01 00:00:00.000000'",
    )
    assert planting.found(cloud) == {'I13'}


def test_i16_a_boot_that_has_seen_an_epoch_that_was_never_committed(cloud):
    cloud.computes['host1']._orders._records[cloud.migration.uuid].epoch = 99
    assert planting.found(cloud, quiet=False) == {'I16'}


def test_i16_an_epoch_with_two_owners(cloud):
    planting.sql(cloud, 'UPDATE migrations SET owner = ?', planting.UNKNOWN)
    assert planting.found(cloud, quiet=False) == {'I16'}


def test_i17_a_compute_that_calls_a_compute(cloud):
    planting.send(cloud, 'compute:host1', 'compute.host2', 'pre_live_migration')
    assert planting.found(cloud, quiet=False) == {'I17'}
