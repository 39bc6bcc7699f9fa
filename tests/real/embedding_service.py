# SPDX-License-Identifier: Apache-2.0

"""A service that embeds a compute host of migrator, by the code of the page on embedding.

Usage: embedding_service.py native|patched HOST WORLD --config-file FILE
"""

from __future__ import annotations

import sys

if sys.argv[1] == 'patched':
    import eventlet

    eventlet.monkey_patch()

import importlib.util
import logging
import pathlib
import threading
import time

from migrator import exception, executors
from migrator.testing.fake_world import driver

PAGE = pathlib.Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'embed_example.py'


def example():
    """Return the code of the page."""
    spec = importlib.util.spec_from_file_location('embed_example', PAGE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def connected(path, host):
    """Return a driver for a host's fake hypervisor, as soon as there is one."""
    while True:
        try:
            return driver.FakeWorldDriver(path, host, executors.NativeThreads())
        except exception.ServiceUnreachable:
            time.sleep(0.1)


def main() -> int:
    """Serve until SIGTERM; read the configuration again at SIGHUP."""
    logging.basicConfig(level=logging.INFO, format='%(name)s %(levelname)s %(message)s')
    _how, host, world, *arguments = sys.argv[1:]
    page = example()
    embedded = page.compute_host(arguments, connected(world, host))
    start, reset = embedded.start, embedded.reset

    def started() -> None:
        start()
        threads = threading.Thread.start.__globals__['_start_new_thread'].__module__
        print(f'Started service, in threads of {threads}', flush=True)

    def reloaded() -> None:
        reset()
        print('The configuration was reloaded', flush=True)

    embedded.start, embedded.reset = started, reloaded
    page.serve(embedded)
    print('ends', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
