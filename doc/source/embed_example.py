# SPDX-License-Identifier: Apache-2.0

# --- the example
"""A compute host in a service that has its own configuration and driver."""

from oslo_config import cfg

import migrator


def compute_host(arguments, driver):
    """Return the host that files and command line describe. Nothing is started before start()."""
    conf = cfg.ConfigOpts()
    conf(arguments, project='importer')
    return migrator.Host(conf, driver)


def serve(host):
    """Run the host in the main thread until SIGTERM or Ctrl-C; a SIGHUP reloads its configuration."""
    # In this order: a signal ends the process while the host waits for its broker to start, or stops.
    with host, migrator.Signals() as signals:
        while (number := signals.next()) not in signals.STOP:
            if number == signals.RELOAD:
                host.reset()
