# SPDX-License-Identifier: Apache-2.0

"""The rows of the steps of hosts agree with the sagas, the commands and the methods of a driver."""

from __future__ import annotations

import pytest

from migrator.compute.manager import ComputeManager
from migrator.conductor.tasks import sagas
from migrator.objects import steps
from migrator.testing.hypervisor import acts
from migrator.virt.driver import ComputeDriver

ROWS = {row.name: row for row in steps.STEPS}
DONE = [step for saga in sagas().values() for step in saga.steps]


def test_rows_of_the_sagas_are_their_steps_and_undos_at_hosts():
    names = {step.name for step in DONE} | {step.undo.__name__ for step in DONE if step.undo is not None}
    assert {row.name for row in steps.STEPS if row.in_saga} == names & set(ROWS)
    assert {name for name in names if hasattr(ComputeManager, name)} <= set(ROWS)


@pytest.mark.parametrize('name', sorted({step.name for step in DONE} & set(ROWS)))
def test_undo_of_a_row_is_that_of_the_saga_at_the_same_host(name):
    # A revert begins behind the step, and does not undo it.
    undos = {step.undo.__name__ for step in DONE if step.name == name and step.undo is not None}
    assert {ROWS[name].undo} - {''} == undos
    for undo in undos:
        assert (ROWS[undo].at, ROWS[undo].ends) == (ROWS[name].at, True)


def test_pivots_and_undos_are_those_of_the_sagas():
    assert {saga.pivot.name for saga in sagas().values()} == steps.PIVOTS
    assert {step.name: step.undo.__name__ for step in DONE if step.undo is not None} == steps.UNDOS


def test_rows_are_commands_of_a_host_and_what_acts_is_a_method_of_a_driver():
    assert [name for name in ROWS if not hasattr(ComputeManager, name)] == []
    assert set(dir(ComputeDriver)) >= set(acts.ACTING)


def test_each_saga_has_one_step_that_removes_the_guest_from_each_host():
    for saga in (steps.Saga.LIVE_MIGRATION, steps.Saga.EVACUATION, steps.Saga.COLD_MIGRATION):
        removing = [row.at for row in steps.STEPS if row.saga == saga and row.removes]
        assert sorted(removing) == sorted(steps.At)
