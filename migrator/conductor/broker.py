# SPDX-License-Identifier: Apache-2.0

"""The reachability of the broker, of Placement and of the database, as one conductor sees them.

A conductor probes the broker with messages to itself. A host whose replies cannot arrive is not unreachable. So the
time without replies is counted on a clock that stops while no probe comes back. While the broker counts as away,
nothing is polled, sent or decided.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from oslo_log import log as logging

from migrator import exception, executors

LOG = logging.getLogger(__name__)

#: Probe intervals for which the clock goes on after a probe has come back. The next one is due then.
_DUE = 1.1
#: Probes that may be lost before the broker counts as away.
_LOST = 3


class Broker:
    """The message broker, as one conductor reaches it.

    :param server: the conductor's name, for its log.
    :param send: sends a probe with a number to this conductor. The probe comes back to :meth:`received`.
    :param spacing: returns the seconds between two calls of :meth:`probe`.
    :ivar on_change: called when the broker becomes unreachable, and when it is reachable again.
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
        self._received = 0
        self._reason = ''
        self._away_since: float | None = None
        self._unbroken_since = threads.clock.monotonic()
        #: When a probe last came back, and the reading of the clock then. It is read without the lock.
        self._proof = self._unbroken_since, 0.0

    def begin_boot(self) -> None:
        """Count from now on, because this conductor received nothing before."""
        with self._lock:
            self._unbroken_since = self._threads.clock.monotonic()

    def probe(self) -> None:
        """Send a probe; if the last ones have not come back, the broker counts as away."""
        with self._lock:
            self._sent += 1
            number = self._sent
            lost = self._away_since is None and number - self._received > _LOST
            if lost:
                self._away_since = self._proof[0]
        if lost:
            error = exception.BrokerAway(server=self._server, since=self._since(), reason=self._reason)
            LOG.error('Message broker is unreachable: %s', error)
            self.on_change()
        try:
            self._send(number)
        except exception.ServiceUnreachable as error:
            self._reason = f' ({error.message.rstrip(".")})'
        else:
            self._reason = ''

    def received(self, number: int) -> None:
        """Record that a probe has come back."""
        with self._lock:
            if not self._received < number <= self._sent:
                return
            now, spacing = self._threads.clock.monotonic(), self._spacing()
            received_at, listened = self._proof
            gap, self._received = now - received_at, number
            away, self._away_since = self._away_since, None
            if gap > _LOST * spacing or away is not None:
                self._unbroken_since = now
                gap = min(gap, _DUE * spacing)
            self._proof = now, listened + gap
        if away is not None:
            LOG.warning(
                'Message broker is reachable again for conductor %(server)s after %(seconds).0f s',
                {'server': self._server, 'seconds': now - away},
            )
            self.on_change()

    def listened(self) -> float:
        """Return the reading, in seconds, of a clock that runs only while the broker is reachable."""
        received_at, listened = self._proof
        return listened + min(self._threads.clock.monotonic() - received_at, _DUE * self._spacing())

    def unbroken_for(self) -> float:
        """Return for how many seconds the broker has been reachable without a break; 0 if it is away."""
        away = self._away_since is not None
        return 0.0 if away else self._threads.clock.monotonic() - self._unbroken_since

    def away_for(self) -> float:
        """Return for how many seconds the broker has been away; 0 if it is not away."""
        since = self._away_since
        return 0.0 if since is None else self._threads.clock.monotonic() - since

    def check(self) -> None:
        """Raise if the broker is away.

        :raises migrator.exception.BrokerAway: the broker is away. The error says since when.
        """
        if self._away_since is not None:
            raise exception.BrokerAway(server=self._server, since=self._since(), reason=self._reason)

    def _since(self) -> str:
        began = self._threads.clock.now() - datetime.timedelta(seconds=self.away_for())
        return f'{began:%Y-%m-%d %H:%M:%S} UTC'


class Outage:
    """The reachability of a service as one conductor sees it; many migrations notice the same outage.

    :param name: the name of the service in the log.
    """

    def __init__(self, name: str, threads: executors.Threads) -> None:
        self._name = name
        self._clock = threads.clock
        self._lock = threads.lock()
        self._since: float | None = None

    def lasts_for(self) -> float:
        """Return for how many seconds the service has not answered; 0 if it has answered the last request."""
        since = self._since
        return 0.0 if since is None else self._clock.monotonic() - since

    def on_result(self, error: exception.ServiceUnreachable | None) -> None:
        """Record the result of a request.

        :param error: the error, or None if the service answered.
        """
        now = self._clock.monotonic()
        with self._lock:
            since = self._since
            if (error is None) == (since is None):
                return
            self._since = None if error is None else now
        if error is not None:
            LOG.warning('Waiting for %(service)s: %(error)s', {'service': self._name, 'error': str(error)})
        elif since is not None:
            LOG.info(
                'No longer waiting for %(service)s, which answers again after %(seconds).0f s',
                {'service': self._name, 'seconds': now - since},
            )
