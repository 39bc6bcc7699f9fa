# SPDX-License-Identifier: Apache-2.0
"""Deferred cleanups beside a migration: adoption of the row, the command and its result, in one step.

The command on its way, late commands and other migrations of the instance are in
:mod:`tests.simulation.model.cleanups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.model import messages
from tests.simulation.model.search import Step
from tests.simulation.model.state import NO_OWNER, Cleanup, Conductor, Destination, Message, Row, Source, Up

_KIND = {'clean': 'clean', 'restore': 'restore', 'post': 'post'}


def run_one(index: int, name: str, plants: frozenset[str]) -> Callable[..., Iterator[Step]]:
    """Return the rule by which a conductor has a host run its deferred cleanup.

    :param name: S or D.
    """
    side, part = ('left', 'right')[index], 'source' if name == 'S' else 'destination'

    def steps(row: Row, host: Any, me: Conductor, other: Conductor) -> Iterator[Step]:
        cleanup = row.cleanup_s if name == 'S' else row.cleanup_d
        if cleanup is None or host.up != Up.UP or me.paused:
            return
        free = cleanup.owner == NO_OWNER or (cleanup.owner == 1 - index and other.paused)
        if cleanup.owner != index and not free:
            return
        mine = cleanup if cleanup.owner == index else Cleanup(cleanup.what, cleanup.epoch + 1, index)
        order = Message(_KIND[cleanup.what], name, mine.epoch, host.boot)
        after, answer, broken = _take(host, order, row, index, plants)
        if answer.startswith('seen') and 'cleanup-epoch' not in plants:
            # The host has seen a newer epoch, or this one of the migration's owner: as for a migration, one above it.
            mine = mine._replace(epoch=max(mine.epoch, int(answer.split()[1])) + 1)
        left = None if answer == 'ok' else mine
        cleaned_up = row._replace(cleanup_s=left) if name == 'S' else row._replace(cleanup_d=left)
        refusal = f'{name} refuses the cleanup {cleanup.what}: {answer}' if answer in ('here', 'gone') else ''
        label = f'{side} has {name} run the cleanup {cleanup.what} in epoch {order.first}: {answer}'
        yield Step(label, {'row': cleaned_up, part: after}, broken=broken, stuck=refusal)

    return steps


def _take(host: Any, order: Message, row: Row, owner: int, plants: frozenset[str]) -> tuple[Any, str, str]:
    if isinstance(host, Source):
        return messages.at_source(host, order, row, owner, plants)
    assert isinstance(host, Destination)
    return messages.at_destination(host, order, row, owner, plants)[0]
