# SPDX-License-Identifier: Apache-2.0

"""Calls that may hang forever, on native threads in native and green processes."""

import itertools
import sys
import threading

import pytest

from migrator import executors
from tests.unit.test_executors import Native


def native_event():
    """Return an event for a native thread."""
    patcher = sys.modules.get('eventlet.patcher')
    return (patcher.original('threading') if executors.is_green() else threading).Event()


def ask(probe, seconds):
    """Ask a probe without blocking other green threads."""
    return executors.outside_of_the_hub(lambda: probe.ask(seconds))


def test_hanging_probe_keeps_one_thread_and_calls_again_after_its_return():
    begun, released, calls = native_event(), native_event(), []

    def hang():
        calls.append('begun')
        begun.set()
        released.wait(60)
        return len(calls)

    probe = executors.Probe(hang)
    for _ in range(5):
        with pytest.raises(executors.ProbeTimeout):
            ask(probe, 0.1)
    assert begun.wait(10)
    assert calls == ['begun']
    released.set()
    answers = []
    # A call at the moment of the return may still share the first answer.
    Native().settle(lambda: _ask_once(probe, answers) and answers[-1] == 2)


def _ask_once(probe, answers):
    try:
        answers.append(ask(probe, 10))
    except executors.ProbeTimeout:
        return False
    return True


def test_probe_calls_each_time_and_raises_the_functions_errors():
    numbers = itertools.count()

    def answer():
        number = next(numbers)
        if number == 1:
            raise OSError('stale')
        return number

    probe = executors.Probe(answer)
    assert ask(probe, 10) == 0
    with pytest.raises(OSError, match='stale'):
        ask(probe, 10)
    assert ask(probe, 10) == 2
