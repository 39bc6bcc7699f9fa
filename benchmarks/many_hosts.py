# SPDX-License-Identifier: Apache-2.0

"""The compute services of many hosts in one process, each with a listener and a hypervisor of its own.

    python -m benchmarks.many_hosts --config-file FILE

``[benchmark] hosts`` has their names. The other options are those of migrator-compute.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oslo_config import cfg

from migrator.cmd import compute
from migrator.runtime import service
from migrator.runtime.process import Process


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of a compute host, and the names."""
    compute.register(conf)
    conf.register_opt(cfg.ListOpt('hosts', default=[], help='The names of the hosts.'), 'benchmark')


def begin(process: Process) -> None:
    """Start the hosts, one after the other."""
    from migrator.runtime import embed
    from migrator.testing.fake_world.driver import FakeWorldDriver

    conf = process.conf
    client = process.rpc(process.transport())
    events = embed.conductor_events(conf, client)
    for name in conf.benchmark.hosts:
        driver = FakeWorldDriver(conf.fake.world, name, process.threads)
        host = embed.Host(conf, driver, host=name, threads=process.threads, client=client, events=events)
        process.wait_for('The hypervisor', host.start)
        process.on_stop(host.stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the hosts until a signal, and return the exit status."""
    return service.main(service.Kind('many-hosts', register, begin), argv)


if __name__ == '__main__':
    sys.exit(main())
