# SPDX-License-Identifier: Apache-2.0

# --- the example
"""Runs migrator's compute manager in a service that has its own configuration, transport and driver.

What the threads of the process are has to be settled before this is imported.
"""

from oslo_config import cfg

from migrator import executors, rpc
from migrator.compute.manager import ComputeManager
from migrator.conductor.rpcapi import ConductorEvents
from migrator.conf import compute


def read_configuration(arguments):
    """Return what this host is told by files and command line, in a ConfigOpts that nobody else has.

    :raises migrator.exception.ConfigurationError: an option is not right.
    """
    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    conf(arguments, project='importer')
    compute.check(conf)
    return conf


class Embedded:
    """One compute host, within a service of yours. Nothing is started before start()."""

    def __init__(self, conf, driver):
        self.conf = conf
        self.transport = rpc.get_transport(conf)
        client = rpc.OsloRPC(self.transport)
        threads = executors.NativeThreads()
        # The broker drops what is sent before the first conductor listens: so long is waited before it is sent again.
        events = ConductorEvents(client, timeout=10)
        self.manager = ComputeManager(conf, conf.host, driver, threads, events, client)

    def start(self):
        """Take up what runs, listen, and have a conductor know this host."""
        self.manager.start()

    def reload(self):
        """Read the files again, as at a SIGHUP, and apply the options that may change."""
        self.conf.mutate_config_files()

    def stop(self):
        """Take no new moves, do with the others as configured, and hang up."""
        self.manager.cleanup_host()
        self.transport.cleanup()
