# SPDX-License-Identifier: Apache-2.0
"""Faults of conductors and hosts, which cost the budget of crashes; messages.py has the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from migrator.objects.migration import MigrationStatus as Status
from tests.simulation.model import hosts
from tests.simulation.model.search import FAULT, USER, Step
from tests.simulation.model.state import (
    IDLE,
    NO_OWNER,
    Budget,
    Cleanup,
    Conductor,
    Destination,
    Message,
    Row,
    Source,
    Up,
    add,
)

_ABORTABLE = (Status.ACCEPTED, Status.PREPARING, Status.QUEUED, Status.RUNNING)


def _less(budget: Budget) -> Budget:
    return budget._replace(crashes=budget.crashes - 1)


def user_aborts(row: Row, budget: Budget) -> Iterator[Step]:
    """The API commits the abort request; after the outcome a request changes nothing, and is left out."""
    if budget.aborts and row.outcome == '' and row.status in _ABORTABLE and not row.abort:
        changes = {'row': row._replace(abort='user'), 'budget': budget._replace(aborts=budget.aborts - 1)}
        yield Step('USER aborts', changes, USER)


def forget_cleanup(cleanup: Cleanup | None, index: int) -> Cleanup | None:
    """Return a deferred cleanup as it stands when its owner is gone."""
    return cleanup._replace(owner=NO_OWNER) if cleanup is not None and cleanup.owner == index else cleanup


def conductor_fails(side: str, index: int) -> Callable[..., Iterator[Step]]:
    """Return the rule by which a conductor is killed.

    It is there again at once, in a new boot that owns nothing: what happens while it is away can also happen
    while it is idle. One that is paused until another has adopted its migration releases it when it wakes, since every
    commit is behind the guard; so that is the same as to be killed, but where a commit is done and the call not yet
    sent: see :func:`tests.simulation.model.messages.send`.
    """

    def steps(me: Conductor, row: Row, budget: Budget) -> Iterator[Step]:
        if not budget.crashes or me.paused:
            return
        owner = NO_OWNER if row.owner == index else row.owner
        cleanups = {
            'cleanup_s': forget_cleanup(row.cleanup_s, index),
            'cleanup_d': forget_cleanup(row.cleanup_d, index),
        }
        changes = {side: IDLE, 'row': row._replace(owner=owner, **cleanups), 'budget': _less(budget)}
        yield Step(f'FAULT {side} crashes', changes, FAULT)
        if me.at == ('read late',):
            # Planted: here, too, a pause is more than a crash.
            yield Step(f'FAULT {side} is paused', {side: me._replace(paused=True), 'budget': _less(budget)}, FAULT)

    return steps


def conductor_wakes(side: str) -> Callable[..., Iterator[Step]]:
    """Return the rule by which a paused conductor goes on where it was."""

    def steps(me: Conductor) -> Iterator[Step]:
        if me.paused:
            yield Step(f'{side} wakes', {side: me._replace(paused=False)})

    return steps


def source_fails(source: Source, budget: Budget, net: tuple[Message, ...], row: Row) -> Iterator[Step]:
    """The source's compute service is killed, or cannot be reached for a while."""
    yield from _host_fails(source, budget, net, row.boot_s, 'source', 'S')


def destination_fails(destination: Destination, budget: Budget, net: tuple[Message, ...], row: Row) -> Iterator[Step]:
    """The destination's is."""
    yield from _host_fails(destination, budget, net, row.boot_d, 'destination', 'D')


def _host_fails(
    host: Source | Destination, budget: Budget, net: tuple[Message, ...], replaces: int, part: str, name: str
) -> Iterator[Step]:
    if not budget.crashes:
        return
    spent = {'budget': _less(budget)}
    if host.up == Up.UP:
        if isinstance(host, Source):
            yield from hosts.kill_source(host, 'FAULT S is killed', spent, FAULT)
        else:
            yield Step('FAULT D is killed', {part: host._replace(up=Up.DEAD, work=''), **spent}, FAULT)
        yield Step(f'FAULT {name} cannot be reached', {part: host._replace(up=Up.UNREACHABLE), **spent}, FAULT)
    elif host.up == Up.STARTING:
        late = add(net, Message('started', 'C', host.boot, replaces, name))
        gone = {part: host._replace(up=Up.DEAD, work=''), 'net': late, **spent}
        yield Step(f'FAULT {name} is killed, its compute_started is on its way', gone, FAULT)


def hypervisor_hangs(destination: Destination, budget: Budget) -> Iterator[Step]:
    """The hypervisor of D answers nothing, until an operator has repaired it."""
    if destination.hangs:
        yield Step('USER repairs the hypervisor of D', {'destination': destination._replace(hangs=False)}, USER)
    elif budget.hangs:
        changes = {'destination': destination._replace(hangs=True), 'budget': budget._replace(hangs=budget.hangs - 1)}
        yield Step('FAULT the hypervisor of D hangs', changes, FAULT)


def host_returns(host: Source | Destination, part: str, name: str) -> Iterator[Step]:
    """The network is back."""
    if host.up == Up.UNREACHABLE:
        yield Step(f'{name} can be reached again', {part: host._replace(up=Up.UP)})
