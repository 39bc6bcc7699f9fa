# SPDX-License-Identifier: Apache-2.0

"""migrator-compute: the service of a compute host."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import stevedore
from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.runtime import service
from migrator.runtime.process import Process, Stopping

if TYPE_CHECKING:  # imported after the choice of threads
    from migrator.conductor import rpcapi
    from migrator.virt import driver

    MakeDriver = Callable[[cfg.ConfigOpts, executors.Threads], driver.ComputeDriver]

LOG = logging.getLogger(__name__)

#: Seconds to wait for a conductor's answer whether another service has our name. The conductor needs time to ask that
#: service.
NAMESAKE_TIMEOUT = 4.0
#: The number of attempts. Without an answer the service starts, because it may be the first service of the site.
NAMESAKE_TRIES = 2


#: The namespace of the drivers' entry points.
NAMESPACE = 'migrator.compute.drivers'


def find_driver(name: str) -> MakeDriver:
    """Return the function or class that makes the driver of a name, not yet connected.

    :raises migrator.exception.ConfigurationError: no such driver is installed, or it cannot be imported.
    """
    try:
        found: Any = stevedore.DriverManager(
            NAMESPACE, name, on_load_failure_callback=_cannot_load, warn_on_missing_entrypoint=False
        ).driver
    except stevedore.exception.NoMatches:
        names = ' or '.join(sorted(importlib.metadata.entry_points(group=NAMESPACE).names))
        detail = f'no such driver is installed: give {names}, or install its package.'
        raise exception.ConfigurationError(option='[compute] driver', value=name, detail=detail) from None
    except stevedore.exception.MultipleMatches as error:
        detail = f'several packages have this driver ({error}): uninstall all but one.'
        raise exception.ConfigurationError(option='[compute] driver', value=name, detail=detail) from None
    made: MakeDriver = found
    return made


def _cannot_load(_manager: Any, entry: importlib.metadata.EntryPoint, error: BaseException) -> NoReturn:
    what = f'the module {error.name}' if isinstance(error, ModuleNotFoundError) else entry.value
    reason = '' if isinstance(error, ModuleNotFoundError) else f' ({exception.message_of(error)})'
    remedy = 'install the extra "libvirt"' if entry.name == 'libvirt' else 'install what the driver needs'
    detail = f'{what} cannot be imported{reason}: {remedy}, or set driver to fake, which simulates guests.'
    raise exception.ConfigurationError(option='[compute] driver', value=entry.name, detail=detail) from error


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
    from migrator.runtime import embed, http_server

    conf = process.conf
    http_server.serve_monitor(process, 'compute')
    hosts: list[embed.Host] = []
    process.monitor.watch(
        'hypervisor', lambda: any(not one.manager.registration.inventory.unresponsive for one in hosts)
    )
    process.monitor.watch('registration', lambda: any(one.manager.registration.registered for one in hosts))
    make_driver = find_driver(conf.compute.driver)
    client: Any = process.rpc(process.transport())
    events = embed.conductor_events(conf, client)
    if not process.in_memory:
        check_name(process, events)
    driver = process.wait_for('The hypervisor driver', lambda: make_driver(conf, process.threads))
    host = embed.Host(conf, driver, threads=process.threads, client=client, events=events, tracer=process.tracer())
    process.wait_for('The hypervisor', host.start)
    hosts.append(host)
    process.on_stop(host.stop)
    _add_metrics(process, host.manager.live_migrations, driver)


def _add_metrics(process: Process, queue: executors.BoundedExecutor, hypervisor: driver.ComputeDriver) -> None:
    hypervisor.on_copied = process.monitor.measure_copies(hypervisor.on_copied)
    for name, text, read in (
        ('limit', 'Live migrations that may leave this host at once.', lambda: queue.max_workers),
        ('running', 'Live migrations that leave this host now.', lambda: queue.running),
        ('waiting', 'Live migrations that wait in the queue of this host.', lambda: queue.waiting),
        ('oldest_wait_seconds', 'How long the first one of the queue has waited; 0 if none waits.', queue.oldest_wait),
    ):
        process.monitor.gauge(f'migrator_live_migrations_{name}', text, read)


def patience(conf: cfg.ConfigOpts) -> float:
    """Return how many seconds a stop waits for running live migrations."""
    return float(conf.compute.stop_timeout) if conf.compute.stop_running == 'wait' else 0.0


KIND = service.Kind('migrator-compute', register, begin, patience)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service of a compute host, and return its exit status."""
    return service.main(KIND, argv)


if __name__ == '__main__':
    sys.exit(main())
