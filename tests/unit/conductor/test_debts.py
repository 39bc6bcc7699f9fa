# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest

from migrator.conductor import debts
from migrator.db import debts as rows
from migrator.objects import command
from tests.unit.conductor import stage as stages

Stage = stages.Stage
STEP = 'rollback_live_migration_at_destination'


def deferred(still: Stage, host: str) -> rows.Debt:
    """Return the cleanup that a host owes for a migration, and that conductor1 has told it to do."""
    m = still.adopt(still.accept())
    m.owe(host, STEP, f'{host} was down')
    m.commit()
    debt = still.database.debts.adopt(still.database.debts.list()[0], still.tools.owner)
    assert debt is not None
    return debt


def report(debt: rows.Debt, **fields: Any) -> command.Report:
    known = {'epoch': debt.epoch, 'boot_id': 'this boot', 'state': 'done'}
    return command.Report(migration_uuid=debt.migration_uuid, host=debt.host, step=debt.step, **{**known, **fields})


def test_a_report_from_before_it_was_deferred_does_not_end_a_cleanup(still: Stage) -> None:
    debt = deferred(still, 'host2')
    debts.take_report(still.tools, report(debt, epoch=debt.epoch - 1))
    assert [kept.id for kept in still.database.debts.list()] == [debt.id]
    debts.take_report(still.tools, report(debt))
    assert still.database.debts.list() == []


@pytest.mark.parametrize('host', ['host2', 'host3'])
def test_a_guest_that_is_being_migrated_is_neither_gone_nor_lost(still: Stage, host: str) -> None:
    debt = deferred(still, host)
    assert still.database.instances.get(debt.instance_uuid).task_state == 'migrating'
    debts.take_report(still.tools, report(debt, state='failed', reason='no guest', result={'gone': True}))
    (kept,) = still.database.debts.list()
    assert kept.alarm is None
