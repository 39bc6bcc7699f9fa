# SPDX-License-Identifier: Apache-2.0

"""What takes its time, by a cloud's own clock."""


class Slow:
    """A way to Placement on which each request takes some milliseconds."""

    def __init__(self, adapter, threads):
        self._adapter, self._threads = adapter, threads

    def request(self, *args, **kwargs):
        self._threads.sleep(0.001 + 0.004 * self._threads.random())
        return self._adapter.request(*args, **kwargs)
