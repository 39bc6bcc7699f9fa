# SPDX-License-Identifier: Apache-2.0

"""The lists of steps elsewhere name the steps of the sagas."""

from __future__ import annotations

import pytest

from migrator.compute.rpcapi import COMMANDS
from migrator.conductor.migration import hosts
from migrator.conductor.notifications import phases
from migrator.conductor.tasks import sagas
from migrator.db import cleanups
from migrator.objects import protocol
from migrator.virt.driver import ComputeDriver
from migrator.virt.fake import acts

STEPS = [step for saga in sagas().values() for step in saga.steps]
#: The steps and the undos, by their names in the log and on the wire.
NAMES = {step.name for step in STEPS} | {step.undo.__name__ for step in STEPS if step.undo is not None}
CALLS = set(COMMANDS)


@pytest.mark.parametrize('name', sorted(NAMES & CALLS))
def test_step_that_a_host_does_is_listed_at_source_or_destination(name: str) -> None:
    assert (name in protocol.STEPS_AT_SOURCE) != (name in protocol.STEPS_AT_DESTINATION)


@pytest.mark.parametrize(
    ('listed', 'known'),
    [
        pytest.param(protocol.STEPS_AT_SOURCE | protocol.STEPS_AT_DESTINATION, NAMES & CALLS, id='steps of a host'),
        pytest.param(hosts._EXCHANGING, NAMES & CALLS, id='exchanging data'),
        pytest.param(hosts._RESTORING, NAMES & CALLS, id='restoring'),
        pytest.param(cleanups.REMOVES, CALLS, id='removing a guest'),
        pytest.param({step for _, step in phases._OF_STEPS}, NAMES, id='with a notification'),
        pytest.param(acts.ACTING, set(dir(ComputeDriver)), id='acting on a guest'),
    ],
)
def test_list_of_steps_names_only_what_exists(listed: set[str], known: set[str]) -> None:
    assert set(listed) - known == set()
