# SPDX-License-Identifier: Apache-2.0

"""The log of an outage: one line when a service becomes unreachable, and one when it answers again."""

from __future__ import annotations

from oslo_log import log as logging

from migrator import exception, executors

LOG = logging.getLogger(__name__)


class Outage:
    """The reachability of a service as one conductor sees it; many migrations notice the same outage.

    :param name: the name of the service in the log.
    """

    def __init__(self, name: str, threads: executors.Threads) -> None:
        self._name = name
        self._clock = threads.clock
        self._lock = threads.lock()
        self._since: float | None = None

    def heard(self, error: exception.ServiceUnreachable | None) -> None:
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
