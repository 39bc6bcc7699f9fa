# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of verdicts that one source has made, although another one contradicts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from migrator.conductor.drains import engine
from migrator.conductor.guests import lists
from migrator.conductor.tasks import cold_migrate, evacuate
from migrator.db import machines
from migrator.drain import run
from migrator.objects import remedies
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()
_DELETE = remedies.Kind.DELETE_INSTANCE


@SHELF.plant('I1', 'by-hand seed 31', 'by-hand seed 65')
def evacuation_asks_no_other_host() -> Iterator[object]:
    """A guest whose host in the database dies is started elsewhere, although another host runs it."""
    with patched(evacuate, '_copies', lambda _m: lists.NONE) as there:
        yield there


@SHELF.plant('I1', 'by-hand seed 68')
def revert_takes_an_absence_for_the_end_of_a_guest() -> Iterator[object]:
    """A source starts its copy in a revert, since its destination lacks the guest. Another host runs it."""
    with patched(cold_migrate, '_is_as_started', lambda _m, _destination: True) as there:
        yield there


@SHELF.plant('I25', 'hosts-away seed 4', 'hosts-away seed 5')
def silence_of_the_source_is_an_attempt() -> Iterator[object]:
    """A drain gives guests up because the compute service of their host was away."""
    fail = run._Run._fail

    def counted(self: Any, member: Any, move: Any) -> None:
        fail(self, member, dataclasses.replace(move, unanswered=False))

    with (
        patched(engine.ConductorEngine, '_is_reported', lambda _self, _instance: None),
        patched(engine._InTheWay, 'obstacle', lambda _self, _guest: None),
        patched(run._Run, '_fail', counted) as there,
    ):
        yield there


@SHELF.plant('I1', 'evacuations seed 35', 'evacuations seed 26')
def another_machine_takes_the_name_of_a_host() -> Iterator[object]:
    """A machine that registers with the name of a host is that host, whatever its identity is."""
    with patched(machines, 'compare', lambda _session, _report: False) as there:
        yield there


@SHELF.plant('I30', 'by-hand seed 22', 'by-hand seed 77')
def missing_guest_is_forgotten_although_a_host_has_not_listed_its_guests() -> Iterator[object]:
    """A guest is offered for deletion while a host that may have it does not answer."""
    without = dataclasses.replace(remedies.TABLE[_DELETE], forbidden_by=frozenset())
    with patched(remedies, 'TABLE', {**remedies.TABLE, _DELETE: without}) as there:
        yield there


@SHELF.plant('I1', 'by-hand seed 70')
def missing_guest_is_started_although_a_host_has_not_answered() -> Iterator[object]:
    """A guest that its own host did not have is evacuated, while a host that may run it does not answer."""
    copies = lists.copies

    def unaware(found: Any, known: Any, *args: Any) -> Any:
        return copies(found, dataclasses.replace(known, is_missing=False), *args)

    with patched(lists, 'copies', unaware) as there:
        yield there
