# SPDX-License-Identifier: Apache-2.0
"""The identity of a conductor, and what all of its rules need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tests.simulation.model.next_act import Next, next_act, owns
from tests.simulation.model.search import Step
from tests.simulation.model.state import (
    Conductor,
    Message,
    Row,
)

Steps = Iterator[Step]


@dataclasses.dataclass(frozen=True)
class Rules:
    """The identity of one conductor, and what all of its rules need.

    :ivar index: 0 or 1. :ivar candidates: how many destinations there are. :ivar plants: planted mistakes.
    """

    index: int
    candidates: int
    plants: frozenset[str]

    @property
    def side(self) -> str:
        """The part that it is."""
        return ('left', 'right')[self.index]

    # --- what is shared ----------------------------------------------------------------------------------------------

    def owns(self, me: Conductor, row: Row) -> bool:
        """Whether a write would be let through."""
        return owns(row, self.index, me.epoch)

    def next(self, me: Conductor, row: Row) -> Next | None:
        """What comes next, if it is awake and free."""
        return next_act(row, self.index, me) if me.at == ('run',) and not me.paused else None

    def order(self, me: Conductor, row: Row, kind: str, host: str) -> Conductor:
        """Return the conductor about to send a command.

        The boot is that of the commit before, in the same epoch.
        """
        about = row.destination if kind == 'live' else ''
        return me._replace(at=('send', Message(kind, host, me.epoch, row.boot(host), about)))

    def step(self, label: str, me: Conductor, row: Row | None = None, broken: str = '', stuck: str = '') -> Step:
        """Return a step of this conductor."""
        changes = {self.side: me} if row is None else {self.side: me, 'row': row}
        return Step(f'{self.side} {label}', changes, broken=broken, stuck=stuck)
