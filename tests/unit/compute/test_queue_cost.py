# SPDX-License-Identifier: Apache-2.0

"""What a queue of live migrations costs: the counts of ``benchmarks/live_migration_queue.py``, and not its seconds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import live_migration_queue as bench
from migrator.compute import live_migration_queue


def test_aborting_one_of_10_000_that_wait_touches_one_entry() -> None:
    assert bench.cancel(10_000)[0] == 1


def test_a_walk_over_all_that_wait_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = live_migration_queue.LiveMigrationQueue.cancel

    def walking(self: Any, migration_uuid: str) -> bool:
        return next(cancel(self, uuid) for uuid in list(self._waiting) if uuid == migration_uuid)

    monkeypatch.setattr(live_migration_queue.LiveMigrationQueue, 'cancel', walking)
    assert bench.cancel(100)[0] == 100


def test_one_that_waits_costs_at_most_4_kib_and_one_that_was_aborted_keeps_less_than_half_of_it() -> None:
    waiting, aborted = bench.memory(1000)
    assert waiting <= 4096
    assert aborted < waiting / 2


def test_nothing_waits_after_a_stop_with_1_000_and_a_driver_that_hangs() -> None:
    bench.stop_seconds(1000, broker_hangs=False)


def test_it_prints_one_document_with_what_is_allowed_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    # its exit status tells of seconds too, and those are the machine's
    bench.main(['--stop', '20', '--cancel', '20', '--memory', '1000'])
    found = json.loads(capsys.readouterr().out)
    assert found['stop'].keys() >= {'queued', 'seconds', 'allowed_seconds'}
    assert (found['cancel']['entries_touched'], found['cancel']['allowed_entries']) == (1, 1)
    assert found['memory']['bytes_each'] <= found['memory']['allowed_bytes'] == 4096
    assert found['nova']['bytes_each'] == 35 * 1024
