# SPDX-License-Identifier: Apache-2.0

"""Planted bugs of drains: what they request, when they end, and what a cancel leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrator.conductor.drains.engine import ConductorEngine
from migrator.db import drains
from migrator.drain import run
from migrator.drain.engine import Check
from tests.simulation.plant import Shelf, patched

SHELF = Shelf()

_Engine = ConductorEngine


@SHELF.plant('I25', 'drain cancelled | conductor1: commit done #3 | paused past the lease')
def request_is_not_guarded_by_the_drain() -> Iterator[object]:
    """The commit that accepts a migration does not check the owner and the epoch of its drain."""
    guard = drains.guard

    def writes_only(session: Any, drain: Any, values: Any = None) -> None:
        if values is not None:
            guard(session, drain, values)

    with patched(drains, 'guard', writes_only) as there:
        yield there


@SHELF.plant('I25', 'drain')
def request_has_a_new_mark() -> Iterator[object]:
    """A migration is requested with another uuid than the committed one.

    The next owner then requests one more.
    """
    ask = _Engine.ask

    def anew(self: Any, drain: Any, member: Any, host: Any) -> None:
        ask(self, drain, member.replace(mark=self._tools.threads.new_uuid()), host)

    with patched(_Engine, 'ask', anew) as there:
        yield there


@SHELF.plant('I25', 'drain fails')
def host_is_not_checked_to_be_empty() -> Iterator[object]:
    """A drain is completed once nothing is left to request."""
    with patched(_Engine, 'check_empty', lambda _self, _host: [Check('guests')]) as there:
        yield there


@SHELF.plant('I25', 'maintenances seed 50749')
def guest_on_its_way_to_the_host_does_not_count() -> Iterator[object]:
    """A host is empty although a migration to it is in progress, which Placement does not show yet."""
    check = _Engine.check_empty

    def blind(self: Any, host: str) -> list[Check]:
        found = check(self, host)
        return [Check(one.what, [left for left in one.left if 'on its way' not in left]) for one in found]

    with patched(_Engine, 'check_empty', blind) as there:
        yield there


@SHELF.plant('I25', 'drain cancelled')
def cancel_aborts_nothing() -> Iterator[object]:
    """A cancel only waits for the migrations that were requested."""
    with patched(_Engine, 'abort', lambda *_args: None) as there:
        yield there


@SHELF.plant('I25', 'drain cancelled')
def cancel_leaves_the_host_disabled() -> Iterator[object]:
    """A host stays disabled after the drain that had disabled it was cancelled."""
    with patched(_Engine, 'enable', lambda *_args: None) as there:
        yield there


@SHELF.plant('I25', 'drain cancelled')
def drain_has_no_bound() -> Iterator[object]:
    """The migrations of all guests are requested at once."""
    with patched(run._Run, '_free', lambda _self: 1000) as there:
        yield there


@SHELF.plant('I25', 'drain fails')
def attempts_are_not_counted() -> Iterator[object]:
    """A guest is tried again and again."""
    fail = run._Run._fail

    def again(self: Any, member: Any, move: Any) -> None:
        fail(self, member.replace(attempts=0), move)

    with patched(run._Run, '_fail', again) as there:
        yield there


@SHELF.plant('I25', 'drain')
def moved_guests_are_forgotten() -> Iterator[object]:
    """A member whose migration has ended stays as it is."""
    with patched(run._Run, '_take', lambda *_args: None) as there:
        yield there
