# SPDX-License-Identifier: Apache-2.0

"""Periodic tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from migrator.executors.threads import Threads

LOG = logging.getLogger(__name__)


class Periodic:
    """A periodic task: it runs a function repeatedly in its own thread until it is stopped.

    An error is logged and does not end the task. The interval varies by a tenth, so that many services that start at
    once do not stay in step.

    :param spacing: the interval: seconds between the end of one run and the start of the next; or a function that
        returns the present interval, called at the end of each run.
    """

    def __init__(
        self, threads: Threads, spacing: float | Callable[[], float], function: Callable[[], Any], name: str
    ) -> None:
        self._threads = threads
        self._spacing = spacing
        self._function = function
        self._name = name
        self._stop = threads.event()
        self._ended = threads.event()
        # stop() must not wait for a task that was never started.
        self._ended.set()

    def start(self) -> Periodic:
        """Start its thread. The first run comes one interval later."""
        self._ended.clear()
        self._threads.start(self._loop, name=self._name)
        return self

    def stop(self, wait: bool = True) -> None:
        """Prevent further runs, and wait for the present one."""
        self._stop.set()
        if wait:
            self._ended.wait()

    def _loop(self) -> None:
        try:
            spacing = self._interval(1.0)
            while not self._stop.wait(spacing * (0.9 + 0.2 * self._threads.random())):
                try:
                    self._function()
                except BaseException as error:  # the next run may succeed
                    if self._threads.is_final(error):
                        raise
                    LOG.exception('Periodic task failed, and will run again: %s', self._name)
                spacing = self._interval(spacing)
        finally:
            self._ended.set()

    def _interval(self, before: float) -> float:
        """Return the present interval, or the one before if it cannot be read."""
        if not callable(self._spacing):
            return self._spacing
        try:
            return float(self._spacing())
        except Exception as error:  # noqa: BLE001 -- the task has to go on, so that it reads a later correction
            LOG.error(
                'Cannot read the interval of periodic task %(task)s; keeping %(interval)g s: %(error)s',
                {'task': self._name, 'interval': before, 'error': error},
            )
            return before
