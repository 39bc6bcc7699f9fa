# SPDX-License-Identifier: Apache-2.0

"""What follows from a try of a step that is retried at a host: a pure function of the try, in a table."""

from __future__ import annotations

import enum
from types import MappingProxyType


class Tried(enum.StrEnum):
    """The outcome of one try, which is a row of the table."""

    DONE = 'done'
    #: The host refused, since the guest is there and could run.
    HERE = 'the guest is there'
    #: The host refused, since the guest is not there.
    GONE = 'the guest is not there'
    DELETED = 'the guest is not there, and its instance was deleted'
    FAILED = 'failed'
    #: The host failed to restore the guest, or to end it. An ended migration must leave no guest paused, and must not
    #: start one before the other copy has ended.
    UNRESTORED = 'the host failed to restore or to end the guest'
    PENDING = 'not ended'
    #: Only a fenced host runs no guest that another host may start.
    MAY_RUN = 'not ended, and the guest may run at the host, which is down'


class Then(enum.StrEnum):
    """What follows from a try, which is a cell of the table."""

    DONE = 'done'
    AGAIN = 'wait, and try again'
    DEFER = 'defer the step as a cleanup, and go on'
    STUCK = 'stuck, and ask the host again'


#: Outcome of the try -> what follows: while the step is tried again, and once it is given up.
RETRY = MappingProxyType(
    {
        Tried.DONE: (Then.DONE, Then.DONE),
        Tried.HERE: (Then.STUCK, Then.STUCK),
        Tried.GONE: (Then.STUCK, Then.STUCK),
        Tried.DELETED: (Then.DONE, Then.DONE),
        Tried.FAILED: (Then.AGAIN, Then.DEFER),
        Tried.UNRESTORED: (Then.AGAIN, Then.STUCK),
        Tried.PENDING: (Then.AGAIN, Then.DEFER),
        Tried.MAY_RUN: (Then.STUCK, Then.STUCK),
    }
)
