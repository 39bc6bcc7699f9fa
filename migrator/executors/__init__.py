# SPDX-License-Identifier: Apache-2.0

"""Threads, locks, clocks and pools: the only package that makes them.

Code that waits, sleeps, locks or starts a thread receives a :class:`Threads` and uses it. A real process has
:class:`NativeThreads`. It also works in a process that eventlet has patched, because it looks ``threading`` and
``time`` up at each use. In such a process its locks and events are green. A native thread, such as one of
``eventlet.tpool``, must not take them. A call that blocks without yielding to the hub blocks the whole process.

The test harness has an implementation that runs one thread at a time under a virtual clock. So it can run code that
uses only this interface step by step.
"""

from migrator.executors.blocking import Probe, ProbeTimeout, native_lock, outside_of_the_hub
from migrator.executors.bounded import BoundedExecutor, ThreadExecutor, long_calls
from migrator.executors.periodic import Periodic
from migrator.executors.threads import Clock, Event, Lock, NativeThreads, SystemClock, Threads, is_green

__all__ = [
    'BoundedExecutor', 'Clock', 'Event', 'Lock', 'NativeThreads', 'Periodic', 'Probe', 'ProbeTimeout', 'SystemClock',
    'ThreadExecutor', 'Threads', 'is_green', 'long_calls', 'native_lock', 'outside_of_the_hub',
]  # fmt: skip
