# SPDX-License-Identifier: Apache-2.0

# --- the example
"""The same in a service that eventlet has patched."""

import eventlet

eventlet.monkey_patch()  # first of all, and everything

from embed_driver import ToyDriver
from embed_example import compute_host
from eventlet import tpool


def embed(arguments, toy):
    """Return a compute host whose calls into the binding are made in threads of the system's own."""
    return compute_host(arguments, ToyDriver(tpool.Proxy(toy)))
