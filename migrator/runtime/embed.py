# SPDX-License-Identifier: Apache-2.0

"""The compute host within a service that embeds migrator.

    with migrator.Host(conf, YourDriver()):
        ...

It uses no global configuration, handles no signals, and starts nothing before :meth:`Host.start`.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any

from oslo_config import cfg

from migrator import executors, rpc, tracing
from migrator.compute.manager import ComputeManager
from migrator.conductor.rpcapi import VERSIONS, ConductorEvents
from migrator.conf import compute, upgrade_levels
from migrator.objects import EventClient
from migrator.virt.driver import ComputeDriver

#: Seconds to wait for the answer to compute_started. The broker drops messages that are sent before the first conductor
#: listens, so a compute service that starts first loses this time.
REGISTER_TIMEOUT = 10.0


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of a :class:`Host`; a second call does nothing.

    :raises oslo_config.cfg.DuplicateOptError: ``conf`` has another option of the same name.
    """
    compute.register_opts(conf)
    upgrade_levels.register_opts(conf)


def host_name(conf: cfg.ConfigOpts) -> str:
    """Return the name that a :class:`Host` has by default, for a driver that needs it earlier.

    :param conf: a ``ConfigOpts`` that has read its files. The options of a :class:`Host` are registered on it.
    :returns: ``[DEFAULT] host``, which by default is the machine's name.
    :raises oslo_config.cfg.DuplicateOptError: ``conf`` has another option of the same name.
    """
    register_opts(conf)
    name: str = conf.host
    return name


def conductor_events(conf: cfg.ConfigOpts, client: rpc.RPC) -> ConductorEvents:
    """Return the client that reports to conductors, in the version of ``[upgrade_levels] conductor``.

    :raises migrator.exception.ConfigurationError: this release does not know that version.
    """
    return ConductorEvents(client, REGISTER_TIMEOUT, upgrade_levels.version(conf, 'conductor', VERSIONS))


class Host:
    """A compute host.

    :param conf: a ``ConfigOpts`` that has read its files, your service's own or another. The options are registered on
        it.
    :param driver: the driver of the host's hypervisor.
    :param host: the name of this host; by default :func:`host_name`.
    :param threads: makes clocks, locks and threads; by default those of a real process, patched by eventlet or not.
    :param client: the RPC to listen on; by default oslo.messaging with ``[DEFAULT] transport_url``.
    :param events: the client that reports to conductors; by default it uses ``client``.
    :param executor: runs the live migrations; by default :func:`migrator.executors.long_calls`.
    :param tracer: records the work as spans of its migrations; None: they are not traced.
    :param identity: what distinguishes the hypervisor from every other one; by default what the driver reports. A
        conductor refuses another one under the same name, and the same one under another name.
    :ivar manager: the compute manager.
    :raises migrator.exception.ConfigurationError: an option has an invalid value.
    :raises oslo_config.cfg.DuplicateOptError: ``conf`` has another option of the same name.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        driver: ComputeDriver,
        *,
        host: str | None = None,
        threads: executors.Threads | None = None,
        client: rpc.RPC | None = None,
        events: EventClient | None = None,
        executor: concurrent.futures.Executor | None = None,
        tracer: tracing.Tracer | None = None,
        identity: str | None = None,
    ) -> None:
        register_opts(conf)
        compute.check(conf)
        self._conf = conf
        threads = threads or executors.NativeThreads()
        #: The transport that is ours to clean up.
        self._transport: Any = None
        if client is None:
            self._transport = rpc.get_transport(conf)
            client = rpc.OsloRPC(self._transport, threads)
        events = events or conductor_events(conf, client)
        self.manager = ComputeManager(
            conf,
            host or conf.host,
            driver,
            threads,
            events,
            client,
            executor=executor,
            tracer=tracer,
            identity=identity,
        )

    def start(self) -> None:
        """Attach to running jobs, listen, and register with a conductor in the background.

        After an error of the driver or of the broker it may be called again.
        """
        self.manager.start()

    def reset(self) -> None:
        """Read the files of the configuration again, and apply the options that may change.

        Migrations that run or wait are not disturbed.
        """
        self._conf.mutate_config_files()

    def stop(self) -> None:
        """Accept no new migrations, treat the others as configured, report the stop, and stop listening."""
        try:
            self.manager.cleanup_host()
        finally:
            if self._transport is not None:
                self._transport.cleanup()

    def __enter__(self) -> Host:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
