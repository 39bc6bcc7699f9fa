# SPDX-License-Identifier: Apache-2.0

"""migrator-conductor: the storyteller."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception
from migrator.runtime import service
from migrator.runtime.process import Process

if TYPE_CHECKING:  # imported when it is settled what threads are
    from migrator.objects import protocol
    from migrator.placement_client import client
    from migrator.runtime import http_server

LOG = logging.getLogger(__name__)

#: Who fetches the metrics sends no body, in bytes.
_MAX_BODY = 1024
#: Threads. There are few who fetch them, and an answer takes no time.
_METRICS_THREADS = 2


def register(conf: cfg.ConfigOpts) -> None:
    """Register what a conductor needs."""
    from migrator.conf import opts
    from migrator.db import options

    opts.register_opts(conf)
    options.register_opts(conf)


def begin(process: Process) -> None:
    """Wire a conductor, and start it."""
    from migrator.conductor.manager import ConductorManager
    from migrator.placement_client import client

    conf = process.conf
    placement, engine, transport = process.placement(), process.engine(), process.transport()
    database = process.database(engine)
    rpc: Any = _Watched(process.rpc(transport))
    manager = ConductorManager(conf, conf.host, database, placement, rpc, process.threads)
    # First: a port that is taken is said before anybody is told of this conductor.
    if conf.conductor.metrics_port is not None:
        _serve_metrics(process, manager.metrics.make_app())
    try:
        process.wait_for('The database', manager.start)
    finally:
        # Of a start that did not come to its end, too: its lease is given back.
        process.on_stop(manager.stop)
    # It can begin without: what needs Placement waits for it, and what does not goes on.
    # By a client of its own, since the conductor's tells of outages that somebody waits for.
    probe = client.PlacementClient(placement.adapter)
    process.watch('Placement', lambda: look_at(probe))


def _serve_metrics(process: Process, app: http_server.App) -> None:
    from migrator.runtime import http_server

    url = http_server.serve(
        process,
        app,
        'conductor',
        'metrics_host',
        'metrics_port',
        name='migrator-conductor',
        max_body=_MAX_BODY,
        count=_METRICS_THREADS,
    )
    LOG.info('The metrics are at %s/metrics', url)


def look_at(placement: client.PlacementClient) -> None:
    """Ask Placement for something that only those may read who are let in.

    :raises migrator.exception.PlacementUnreachable: it is away, does not let us in, or is none.
    """
    try:
        placement.read('/resource_classes')
    except exception.PlacementRefused as error:
        reason = f'{error}: look at endpoint_override in [placement], or at the service catalog'
        raise exception.PlacementUnreachable(reason=reason) from None


class Boots:
    """Notices two compute services of one host name.

    Each believes that the other is an earlier life of its own, and registers again as soon as a command for the other
    reaches it; so one host begins to change to and fro between two boots. That never happens by itself: at most a
    last call of a dead boot is committed late, once.
    """

    def __init__(self) -> None:
        self._last: dict[str, list[str]] = {}
        self._said: set[str] = set()

    def began(self, host: str, boot_id: str) -> bool:
        """Note that a host has registered; return whether it is to be said that there are two."""
        last = self._last.setdefault(host, [])
        if not last or last[-1] != boot_id:
            last.append(boot_id)
        del last[:-4]
        two = len(last) == 4 and last[0] == last[2] and last[1] == last[3]
        if not two or host in self._said:
            return False
        self._said.add(host)
        return True


class _Watched:
    """An RPC on whose one server the boots are watched."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def serve(self, target: Any, endpoint: Any) -> Any:
        return self._inner.serve(target, _WatchedEndpoint(endpoint))


class _WatchedEndpoint:
    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint
        self._boots = Boots()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._endpoint, name)
        if name != 'compute_started':
            return method

        def compute_started(context: Any, report: protocol.HostReport) -> Any:
            if self._boots.began(report.host, report.boot_id):
                LOG.error(
                    'Two compute services call themselves %s, and neither can be relied on: stop one of them, or '
                    'give it a name of its own ([DEFAULT] host)',
                    report.host,
                )
            return method(context, report=report)

        compute_started.__dict__.update(getattr(method, '__dict__', {}))
        return compute_started


KIND = service.Kind('migrator-conductor', register, begin)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a conductor, and return its exit status."""
    return service.main(KIND, argv)


if __name__ == '__main__':
    sys.exit(main())
