# SPDX-License-Identifier: Apache-2.0

"""migrator-conductor: the service that runs the migrations."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, tracing
from migrator.runtime import service
from migrator.runtime.process import Process

if TYPE_CHECKING:  # imported after the choice of threads
    from migrator.conductor.drains.periodic import Mover
    from migrator.conductor.manager import ConductorManager
    from migrator.conductor.notifications.periodic import Send
    from migrator.db.api import Database
    from migrator.executors import Threads
    from migrator.nova.client import Nova
    from migrator.objects import protocol
    from migrator.placement_client import client

LOG = logging.getLogger(__name__)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of a conductor."""
    from migrator.conf import opts
    from migrator.db.sql import options

    opts.register_opts(conf)
    options.register_opts(conf)


def begin(process: Process) -> None:
    """Create a conductor, and start it."""
    from migrator.conductor.manager import ConductorManager
    from migrator.conf.conductor import uses_nova
    from migrator.nova.client import client_from_conf
    from migrator.placement_client import client
    from migrator.runtime import http_server

    conf = process.conf
    # Listen first: if the port is in use, the start ends before this conductor registers.
    http_server.serve_monitor(process, 'conductor')
    placement, engine, transport = process.placement(), process.engine(), process.transport()
    # The conductor starts without Placement. Migrations that need it wait, and the others go on.
    # Use a separate client, because the conductor's client logs outages that migrations wait for, and is measured.
    probe = client.client_from_conf(conf)
    process.monitor.watch('Placement', lambda: check_placement(probe), needed=False)
    database = process.database(engine)
    rpc = process.rpc(transport)
    mover = None
    if uses_nova(conf):
        mover = make_mover(client_from_conf(conf), placement, database, process.threads, conf.drain.spread)
    send = make_sender(process)
    tracer = process.tracer()
    if tracer is not None:
        placement.adapter = tracing.traced_adapter(placement.adapter, tracer)
    manager = ConductorManager(conf, conf.host, database, placement, rpc, process.threads, mover, send, tracer)
    watch_boots(manager)
    process.monitor.registry.register(manager.metrics.registry)
    try:
        process.wait_for('The database', manager.start)
    finally:
        # Also after a start that failed, so that the conductor gives up its lease.
        process.on_stop(manager.stop)
    process.monitor.watch('lease', manager.has_lease)
    process.watch('Placement', lambda: check_placement(probe))


def make_mover(
    nova: Nova, placement: client.PlacementClient, database: Database, threads: Threads, spread: bool = False
) -> Mover:
    """Return what moves the guests of drains by the live migrations of a stock Nova.

    :param spread: whether to name every destination.
    """
    from migrator.conductor.drains.periodic import Mover
    from migrator.nova import plan
    from migrator.nova.engine import NovaEngine

    def drained() -> set[str]:
        return {drain.host for drain in database.drains.list(in_progress=True)}

    choose = plan.Spread(nova, placement, threads).choose
    engine = NovaEngine(nova, placement, threads.clock, choose, drained, spread)

    return Mover(engine, lambda drain: plan.of_one(nova, placement, drain, threads.clock))


def make_sender(process: Process) -> Send | None:
    """Return what puts notifications on the bus, or None if they are off.

    With a driver that is configured, it logs which of both.

    :raises migrator.exception.ConfigurationError: the URL of the bus is not valid, or there is no such driver.
    """
    from migrator.runtime import notifier

    drivers, options = ', '.join(notifier.drivers(process.conf)), process.conf.notifications
    if not notifier.is_on(process.conf):
        if drivers:
            why = {'drivers': drivers, 'format': options.notification_format}
            LOG.info('Sending no notifications by %(drivers)s: notification_format is %(format)s', why)
        return None
    made = notifier.Notifier(process.conf, process.threads)
    process.on_stop(made.close)
    topics = ', '.join(options.versioned_notifications_topics)
    LOG.info('Sending notifications by %(drivers)s to %(topics)s', {'drivers': drivers, 'topics': topics})
    return made.send


def check_placement(placement: client.PlacementClient) -> None:
    """Read something from Placement that needs valid credentials.

    :raises migrator.exception.PlacementUnreachable: the server cannot be reached, refuses our credentials, or is not a
        Placement service.
    """
    try:
        placement.read('/resource_classes')
    except exception.PlacementRefused as error:
        reason = f'{error}: look at endpoint_override in [placement], or at the service catalog'
        raise exception.PlacementUnreachable(reason=reason) from None


class Boots:
    """A detector of two compute services with one host name.

    Each takes the other for an earlier boot of its own, and registers again as soon as a command for the other reaches
    it. So the host alternates between two boots. A single service never causes that: at most, the last call of a dead
    boot comes late, once.
    """

    def __init__(self) -> None:
        self._last: dict[str, list[str]] = {}
        self._reported: set[str] = set()

    def began(self, host: str, boot_id: str) -> bool:
        """Record that a host has registered. Return whether to report that it exists twice."""
        last = self._last.setdefault(host, [])
        if not last or last[-1] != boot_id:
            last.append(boot_id)
        del last[:-4]
        two = len(last) == 4 and last[0] == last[2] and last[1] == last[3]
        if not two or host in self._reported:
            return False
        self._reported.add(host)
        return True


def watch_boots(manager: ConductorManager) -> None:
    """Have a conductor log that two compute services have one name; see :class:`Boots`."""
    boots, register = Boots(), manager.compute_started

    @functools.wraps(register)
    def compute_started(context: Any, report: protocol.HostReport) -> Any:
        if boots.began(report.host, report.boot_id):
            LOG.error(
                'Two compute services have the name %s, and neither is reliable: stop one of them, or give it a '
                'name of its own ([DEFAULT] host)',
                report.host,
            )
        return register(context, report=report)

    manager.compute_started = compute_started  # type: ignore[method-assign]  # only a service of its own watches


KIND = service.Kind('migrator-conductor', register, begin)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a conductor, and return its exit status."""
    return service.main(KIND, argv)


if __name__ == '__main__':
    sys.exit(main())
