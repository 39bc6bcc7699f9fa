# SPDX-License-Identifier: Apache-2.0

"""migrator-compute: the service of a compute host."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception
from migrator.runtime import service
from migrator.runtime.process import Process, Stopping

if TYPE_CHECKING:  # imported after the choice of threads
    from migrator.conductor import rpcapi
    from migrator.virt import driver

    Driver = driver.ComputeDriver

LOG = logging.getLogger(__name__)

#: Seconds to wait for a conductor's answer whether another service has our name. The conductor needs time to ask that
#: service.
NAMESAKE_TIMEOUT = 4.0
#: The number of attempts. Without an answer the service starts, because it may be the first service of the site.
NAMESAKE_TRIES = 2


def _fake(process: Process) -> Driver:
    from migrator.virt.fake.driver import FakeDriver
    from migrator.virt.fake.hypervisor import FakeWorld

    conf = process.conf
    if conf.fake.world:
        from migrator.testing.fake_world.driver import FakeWorldDriver

        return process.wait_for(
            'The world of fake hypervisors',
            lambda: FakeWorldDriver(conf.fake.world, conf.host, process.threads),
        )
    LOG.warning('[fake] world is not set: this hypervisor ends with the service, and no other host can reach it')
    world = FakeWorld(process.threads)
    return FakeDriver(world.add(conf.host), process.threads)


def _libvirt(process: Process) -> Driver:
    # Import it by its name, because libvirt is an optional dependency.
    module: Any = importlib.import_module(LIBVIRT)
    made: Driver = module.LibvirtDriver(process.conf, process.threads)
    return made


#: Value of ``[compute] driver`` -> a function that returns the driver of the configured host, not yet connected.
DRIVERS: dict[str, Callable[[Process], Driver]] = {'fake': _fake, 'libvirt': _libvirt}

#: The module of the libvirt driver.
LIBVIRT = 'migrator.virt.libvirt.driver'


def check_driver(name: str) -> None:
    """Raise unless the packages of a driver are installed.

    :raises migrator.exception.ConfigurationError: they are not; the message names the remedy.
    """
    if name != 'libvirt' or importlib.util.find_spec('libvirt') is not None:
        return
    detail = (
        'the module libvirt cannot be imported: install the extra "libvirt", or set driver to fake, which simulates '
        'guests.'
    )
    raise exception.ConfigurationError(option='[compute] driver', value=name, detail=detail)


def check_name(process: Process, events: rpcapi.ConductorEvents) -> None:
    """Raise if another compute service answers under our name, before this one can disturb it.

    :raises migrator.exception.ConfigurationError: another service answers.
    :raises migrator.runtime.process.Stopping: the process has to stop meanwhile.
    """
    host = process.conf.host
    for _ in range(NAMESAKE_TRIES):
        if process.stopping.is_set():
            break
        try:
            taken = events.compute_answers(host, NAMESAKE_TIMEOUT)
        except exception.ServiceUnreachable as error:
            LOG.info(
                'No conductor answers yet whether another compute service has the name %(host)s: %(error)s',
                {'host': host, 'error': error},
            )
            continue
        except exception.RemoteError as error:
            LOG.info(
                'The conductor cannot check whether another compute service has the name %(host)s: %(error)s',
                {'host': host, 'error': error},
            )
            return
        if taken:
            raise exception.ConfigurationError(
                option='[DEFAULT] host',
                value=host,
                detail='another compute service has that name, and answers: stop it, or give this one a name of its '
                'own.',
            )
        return
    if process.stopping.is_set():
        raise Stopping(host)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of a compute host, which uses neither the database nor Placement."""
    from migrator.conf import compute, libvirt, upgrade_levels

    compute.register_opts(conf)
    libvirt.register_opts(conf)
    upgrade_levels.register_opts(conf)


def begin(process: Process) -> None:
    """Create the service of a compute host, and start it."""
    from migrator import embed

    conf = process.conf
    check_driver(conf.compute.driver)
    client: Any = process.rpc(process.transport())
    events = embed.conductor_events(conf, client)
    if not process.in_memory:
        check_name(process, events)
    driver = DRIVERS[conf.compute.driver](process)
    host = embed.Host(conf, driver, threads=process.threads, client=client, events=events)
    process.wait_for('The hypervisor', host.start)
    process.on_stop(host.stop)


def patience(conf: cfg.ConfigOpts) -> float:
    """Return how many seconds a stop waits for running live migrations."""
    return float(conf.compute.stop_timeout) if conf.compute.stop_running == 'wait' else 0.0


KIND = service.Kind('migrator-compute', register, begin, patience)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service of a compute host, and return its exit status."""
    return service.main(KIND, argv)


if __name__ == '__main__':
    sys.exit(main())
