# SPDX-License-Identifier: Apache-2.0

"""A service in a process for the tests of RPC, which serves a few methods and logs its calls.

Usage: echo_service.py CONFIG_FILE SERVER
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time

from oslo_service import backend

# as a process of ours does: before the first import of oslo.messaging, which would choose eventlet
backend.init_backend(backend.BackendType.THREADING)

from oslo_config import cfg  # noqa: E402 - after the backend is chosen

from migrator import exception, rpc  # noqa: E402 - after the backend is chosen
from migrator.runtime import logs  # noqa: E402 - after the backend is chosen

TOPIC = 'echo'


class Endpoint:
    """What is served."""

    def __init__(self, name: str) -> None:
        self.name = name

    @rpc.expose
    def who(self, context):
        return self.name

    @rpc.expose
    def note(self, context, text):
        print(f'noted {text}', flush=True)

    @rpc.expose
    def slow(self, context, seconds):
        print('slow begins', flush=True)
        time.sleep(seconds)
        print('slow ends', flush=True)
        return self.name

    @rpc.expose
    def refuse(self, context):
        raise exception.InstanceInvalidState(
            method='os-migrateLive', instance_uuid='i', attr='task_state', state='x', facts='y'
        )

    @rpc.expose
    def break_down(self, context):
        raise ValueError('too old')


def conf_of(file):
    """Return a ConfigOpts of its own, of one file."""
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], default_config_files=[], default_config_dirs=[])
    return conf


def main() -> None:
    """Serve until SIGTERM."""
    file, name = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format='%(name)s %(levelname)s %(message)s')
    # As each service of migrator has it: an outage is one line.
    for handler in logging.getLogger().handlers:
        handler.addFilter(logs.OncePerOutage())
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_args: ended.set())
    print('begins', flush=True)
    transport = rpc.get_transport(conf_of(file))
    served = rpc.OsloRPC(transport).serve(rpc.Target(TOPIC, name), Endpoint(name))
    print('serves', flush=True)
    while not ended.wait(0.1):
        pass
    served.stop()
    transport.cleanup()
    print('ends', flush=True)


if __name__ == '__main__':
    main()
