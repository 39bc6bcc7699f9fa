# SPDX-License-Identifier: Apache-2.0

"""A service of somebody's that has migrator's compute manager in it, by the code of the page on embedding.

Usage: embedding_service.py native|patched --config-file FILE
"""

from __future__ import annotations

import sys

if sys.argv[1] == 'patched':
    import eventlet

    eventlet.monkey_patch()

import importlib.util
import logging
import pathlib
import signal
import threading
import time

from oslo_config import cfg

from migrator import exception, executors
from migrator.runtime import signals
from migrator.testing.fake_world import driver

PAGE = pathlib.Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'embed_example.py'


def example():
    """Return the page's code."""
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
    page = example()
    with signals.Signals() as told:
        conf = page.read_configuration(sys.argv[2:])
        conf.register_opts([cfg.StrOpt('world')], group='fake')
        embedded = page.Embedded(conf, connected(conf.fake.world, conf.host))
        embedded.start()
        threads = threading.Thread.start.__globals__['_start_new_thread'].__module__
        print(f'Started service, in threads of {threads}', flush=True)
        while (word := told.next()) not in signals.STOP:
            if word == signal.SIGHUP:
                embedded.reload()
                print('The configuration was reloaded', flush=True)
        embedded.stop()
    print('ends', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
