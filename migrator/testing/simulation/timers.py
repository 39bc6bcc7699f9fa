# SPDX-License-Identifier: Apache-2.0

"""The virtual clock of a simulation, and the timers of its waiting threads."""

from __future__ import annotations

import heapq

from migrator.testing.simulation.sim_thread import SimThread, Timer


class Timers:
    """The timers of one simulation.

    :ivar time: virtual microseconds since the start. It is an integer, so that a deadline that was computed with
        rounded floats is reached at most one microsecond later.
    """

    def __init__(self) -> None:
        self.time = 0
        #: (moment, number, timer): the numbers keep timers of the same moment in the order of their start.
        self._heap: list[tuple[int, int, Timer]] = []
        self._started = 0
        self._armed = {False: 0, True: 0}

    @property
    def armed(self) -> int:
        """The number of pending timers, background ones included."""
        return sum(self._armed.values())

    @property
    def quiet(self) -> bool:
        """Whether all pending timers are background ones."""
        return not self._armed[False]

    def arm(self, thread: SimThread, timeout: float) -> None:
        """Start the timer of a thread that waits for at most ``timeout`` seconds."""
        thread.timer = timer = Timer(thread)
        self._armed[timer.background] += 1
        self._started += 1
        heapq.heappush(self._heap, (self.time + max(1, round(timeout * 1_000_000)), self._started, timer))

    def disarm(self, thread: SimThread) -> None:
        """Stop the timer of a thread that waits no more."""
        timer, thread.timer = thread.timer, None
        assert timer is not None
        timer.thread = None
        self._armed[timer.background] -= 1

    def tick(self, limit: float) -> list[SimThread]:
        """Move the clock to the next timer at or before ``limit``, and return the threads that are due then.

        :return: [] if there is no such timer; the clock has not moved.
        """
        heap = self._heap
        while heap and heap[0][2].thread is None:
            heapq.heappop(heap)
        if not heap or heap[0][0] > limit:
            return []
        self.time = at = heap[0][0]
        due = []
        while heap and heap[0][0] == at:
            thread = heapq.heappop(heap)[2].thread
            if thread is not None:
                due.append(thread)
        return due
