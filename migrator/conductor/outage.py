# SPDX-License-Identifier: Apache-2.0

"""Says once that something is away that everything waits for, and once that it is back."""

from __future__ import annotations

from oslo_log import log as logging

from migrator import exception, executors

LOG = logging.getLogger(__name__)


class Outage:
    """What one conductor knows of whether a service answers; many stories notice the same outage.

    :param name: of the service, for the log.
    """

    def __init__(self, name: str, threads: executors.Threads) -> None:
        self._name = name
        self._clock = threads.clock
        self._lock = threads.lock()
        self._since: float | None = None

    def heard(self, error: exception.ServiceUnreachable | None) -> None:
        """Take in what came of a request.

        :param error: None: it was answered.
        """
        now = self._clock.monotonic()
        with self._lock:
            since = self._since
            if (error is None) == (since is None):
                return
            self._since = None if error is None else now
        if error is not None:
            LOG.warning('%s What needs %s waits for it.', str(error).rstrip('.') + '.', self._name)
        elif since is not None:
            LOG.info('%s answers again, after %.0f s', self._name, now - since)
