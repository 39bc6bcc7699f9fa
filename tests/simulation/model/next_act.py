# SPDX-License-Identifier: Apache-2.0
"""The next step of the saga, as saga/executor.py and tasks/live_migrate.py read it from a log."""

from __future__ import annotations

import enum
import functools

from tests.simulation.model.state import BACK, FORWARD, Conductor, Phase, Post, Row, Undo


class Next(enum.Enum):
    """What an owner does when it is woken."""

    READ_ANEW = "its row is another's, or in another epoch"
    TURN_BACK = 'nothing was sent: back, without asking a host'
    READ_ALLOCATIONS = 'look at the pair'
    CHECK = 'have the destination check'
    AWAIT_PRE = 'ask the destination how far it is'
    SETTLE = 'ask both hosts'
    UNWIND = 'begin to unwind'
    CLEAN = 'have the destination cleaned'
    RESTORE = 'have the source restored'
    AWAIT_JOB = 'ask the source whether its job has ended'
    POST = 'the post steps'
    RELEASE = 'intend the release'


@functools.cache
def owns(row: Row, index: int, epoch: int) -> bool:
    """Whether the guard of a conductor's write would find the row."""
    return not row.ended and row.owner == index and row.epoch == epoch


@functools.cache
def next_act(row: Row, index: int, me: Conductor) -> Next:
    """Return what a conductor that is woken does next."""
    if not owns(row, index, me.epoch):
        return Next.READ_ANEW
    if row.outcome == FORWARD:
        return _forward(row)
    if row.outcome == BACK or row.undo != Undo.NONE:
        return _backward(row)
    must_abort = bool(row.abort) or me.must_abort
    if row.phase == Phase.NOTHING:
        return Next.TURN_BACK if must_abort else Next.READ_ALLOCATIONS
    if must_abort or row.phase == Phase.LIVE_INTENDED:
        return Next.SETTLE
    return {Phase.MOVE_INTENDED: Next.READ_ALLOCATIONS, Phase.MOVED: Next.CHECK, Phase.PRE_INTENDED: Next.AWAIT_PRE}[
        row.phase
    ]


def _forward(row: Row) -> Next:
    if not row.post & Post.INTENDED:
        return Next.AWAIT_JOB
    both = Post.SOURCE_DONE | Post.DESTINATION_DONE
    if row.post & both != both:
        return Next.POST
    return Next.READ_ALLOCATIONS if row.post & Post.RELEASE_INTENDED else Next.RELEASE


def _backward(row: Row) -> Next:
    if row.undo == Undo.CLEAN_INTENDED:
        return Next.CLEAN
    if row.undo == Undo.RESTORE_INTENDED:
        return Next.RESTORE
    return Next.READ_ALLOCATIONS if row.undo == Undo.RETURN_INTENDED else Next.UNWIND
