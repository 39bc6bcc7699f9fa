# SPDX-License-Identifier: Apache-2.0

"""The cost of a queue: the counts of ``benchmarks/live_migration_queue.py``, without its times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import live_migration_queue as bench
from migrator.compute import live_migration_queue

pytestmark = pytest.mark.slow


def test_abort_of_one_of_2_000_waiting_touches_one_entry() -> None:
    assert bench.cancel(2_000)[0] == 1


def test_walk_over_all_waiting_entries_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = live_migration_queue.LiveMigrationQueue.cancel

    def walking(self: Any, migration_uuid: str) -> bool:
        return next(cancel(self, uuid) for uuid in list(self._waiting) if uuid == migration_uuid)

    monkeypatch.setattr(live_migration_queue.LiveMigrationQueue, 'cancel', walking)
    assert bench.cancel(100)[0] == 100


def test_waiting_migration_costs_2_kib_and_aborted_one_keeps_its_report() -> None:
    waiting, aborted = bench.memory(1000)
    assert waiting <= bench.allowed_bytes()
    assert aborted <= bench.allowed_bytes() * 3 // 4


def test_stop_with_1_000_queued_and_hung_driver_leaves_none_waiting() -> None:
    bench.stop_seconds(1000, broker_hangs=False)


def test_benchmark_prints_one_document_with_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    # The exit status is not checked, because it also depends on the speed of the machine.
    bench.main(['--stop', '20', '--cancel', '20', '--memory', '1000'])
    found = json.loads(capsys.readouterr().out)
    assert found['stop'].keys() >= {'queued', 'seconds', 'allowed_seconds'}
    assert (found['cancel']['entries_touched'], found['cancel']['allowed_entries']) == (1, 1)
    assert found['memory']['bytes_each'] <= found['memory']['allowed_bytes'] == bench.allowed_bytes()
    assert found['nova']['bytes_each'] == 35 * 1024
