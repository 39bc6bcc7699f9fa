# SPDX-License-Identifier: Apache-2.0

"""Whether messages come through the broker: a conductor's own, sent to itself, is the proof.

A host whose answers cannot arrive is not silent. So the silence of hosts is counted on a clock that stands still while
there is no such proof, and while there is none for long nothing is asked, sent or decided.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from oslo_log import log as logging

from migrator import exception, executors

LOG = logging.getLogger(__name__)

#: The clock of silence goes on for so many spacings after a proof: the next one is due then.
_DUE = 1.1
#: So many messages to itself may be lost; then the broker counts as away.
_LOST = 3


class Broker:
    """The message broker, as one conductor reaches it.

    :param server: the conductor's name, for whom it tells.
    :param send: sends this conductor the message of a number, which is to come back to :meth:`heard`.
    :param spacing: returns the seconds between two calls of :meth:`knock`.
    :ivar on_change: called when the broker is away, and when it is back.
    """

    def __init__(
        self, server: str, send: Callable[[int], None], threads: executors.Threads, spacing: Callable[[], float]
    ) -> None:
        self._server = server
        self._send = send
        self._threads = threads
        self._spacing = spacing
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threads.lock()
        self._sent = 0
        self._heard = 0
        self._reason = ''
        self._away_since: float | None = None
        self._unbroken_since = threads.clock.monotonic()
        #: When a message of its own last came back, and what the clock of silence was then; read without the lock.
        self._proof = self._unbroken_since, 0.0

    def begin_life(self) -> None:
        """Count from now on: whoever was away until now has heard nobody."""
        with self._lock:
            self._unbroken_since = self._threads.clock.monotonic()

    def knock(self) -> None:
        """Send this conductor a message; where none has come back for long, the broker is away."""
        with self._lock:
            self._sent += 1
            number = self._sent
            lost = self._away_since is None and number - self._heard > _LOST
            if lost:
                self._away_since = self._proof[0]
        if lost:
            LOG.error('%s', exception.BrokerAway(server=self._server, since=self._since(), reason=self._reason))
            self.on_change()
        try:
            self._send(number)
        except exception.ServiceUnreachable as error:
            self._reason = f' ({error.message.rstrip(".")})'
        else:
            self._reason = ''

    def heard(self, number: int) -> None:
        """Take in that a message has come back."""
        with self._lock:
            if not self._heard < number <= self._sent:
                return
            now, spacing = self._threads.clock.monotonic(), self._spacing()
            heard_at, listened = self._proof
            gap, self._heard = now - heard_at, number
            away, self._away_since = self._away_since, None
            if gap > _LOST * spacing or away is not None:
                self._unbroken_since = now
                gap = min(gap, _DUE * spacing)
            self._proof = now, listened + gap
        if away is not None:
            LOG.warning('%s reaches the message broker again, after %.0f s', self._server, now - away)
            self.on_change()

    def listened(self) -> float:
        """Return the time of a clock that goes on only while this conductor can be reached, in seconds."""
        heard_at, listened = self._proof
        return listened + min(self._threads.clock.monotonic() - heard_at, _DUE * self._spacing())

    def unbroken_for(self) -> float:
        """Return for how many seconds this life of the conductor could be reached without a break; away: 0."""
        away = self._away_since is not None
        return 0.0 if away else self._threads.clock.monotonic() - self._unbroken_since

    def away_for(self) -> float:
        """Return for how many seconds this conductor has heard nothing of itself; 0: the broker is not away."""
        since = self._away_since
        return 0.0 if since is None else self._threads.clock.monotonic() - since

    def check(self) -> None:
        """Raise if the broker is away.

        :raises migrator.exception.BrokerAway: and since when.
        """
        if self._away_since is not None:
            raise exception.BrokerAway(server=self._server, since=self._since(), reason=self._reason)

    def _since(self) -> str:
        began = self._threads.clock.now() - datetime.timedelta(seconds=self.away_for())
        return f'{began:%Y-%m-%d %H:%M:%S} UTC'
