# SPDX-License-Identifier: Apache-2.0

"""The door to the conductor: for the API, and, as events, for the compute hosts."""

from __future__ import annotations

from typing import Any

from migrator import context as migrator_context
from migrator import rpc
from migrator.objects import protocol

TOPIC = 'conductor'
#: version -> what is new in it.
VERSIONS = {'1.0': 'all methods'}
VERSION = max(VERSIONS)

#: Seconds for which a compute waits for a time-out to be heard, before it tells it again.
TIMED_OUT_TIMEOUT = 10.0
#: Seconds in which a compute service that is there answers a conductor that asks for it; it does so at once.
ANSWER_WITHIN = 2.0


class ConductorAPI:
    """What the API asks of a conductor. The row is committed before any of these is sent.

    :param client: this service's RPC.
    :param version: of :data:`VERSIONS`, the newest that is sent.
    """

    def __init__(self, client: rpc.RPC, version: str = VERSION) -> None:
        self._rpc = client
        self._version = version

    def live_migrate(self, context: migrator_context.RequestContext, migration_uuid: str) -> None:
        """Wake any conductor for a migration that was just accepted. A cast: the sweep stands behind it."""
        self._rpc.cast(context, rpc.Target(TOPIC, version=self._version), 'live_migrate', migration_uuid=migration_uuid)

    def wake(self, context: migrator_context.RequestContext, migration_uuid: str, server: str | None) -> None:
        """Wake a migration's owner, for a wish has been committed. A cast: the sweep stands behind it.

        :param server: the owner's server name; None: any conductor.
        """
        target = rpc.Target(TOPIC, server, version=self._version)
        self._rpc.cast(context, target, 'wake', migration_uuid=migration_uuid)


class ConductorEvents:
    """What a compute host tells the conductor; see :class:`migrator.objects.events.EventClient`.

    :param client: the compute service's RPC.
    :param timeout: seconds to wait for the answer to compute_started.
    :param version: of :data:`VERSIONS`, the newest that is sent.
    """

    def __init__(self, client: rpc.RPC, timeout: float = 60, version: str = VERSION) -> None:
        self._rpc = client
        self._version = version
        self._timeout = timeout

    def step_ended(self, reply_to: str, report: protocol.Report) -> None:
        """Tell the owner's server that a step's work has started or ended."""
        target = rpc.Target(TOPIC, reply_to, version=self._version)
        self._rpc.cast(migrator_context.admin_context(), target, 'step_ended', report=report)

    def compute_answers(self, host: str, timeout: float) -> bool:
        """Ask any conductor whether a compute service of this name answers now; for one that is about to start.

        Only a conductor can ask that: between computes there is no call.

        :param timeout: seconds to wait for the conductor, which asks for :data:`ANSWER_WITHIN` seconds itself.
        :raises migrator.exception.ServiceUnreachable: no conductor answered.
        """
        target = rpc.Target(TOPIC, version=self._version)
        context = migrator_context.admin_context()
        return bool(self._rpc.call(context, target, 'compute_answers', timeout=timeout, host=host))

    def compute_started(self, report: protocol.HostReport) -> list[protocol.Assignment]:
        """Tell any conductor that this host has started; return what it is to do, in queued_at order."""
        target = rpc.Target(TOPIC, version=self._version)
        context = migrator_context.admin_context()
        found: list[Any] = self._rpc.call(context, target, 'compute_started', timeout=self._timeout, report=report)
        return found

    def compute_heartbeat(self, report: protocol.HostReport) -> None:
        """Tell any conductor that this host is alive."""
        target = rpc.Target(TOPIC, version=self._version)
        self._rpc.cast(migrator_context.admin_context(), target, 'compute_heartbeat', report=report)

    def compute_stopping(self, host: str, boot_id: str, cancelled: list[str]) -> None:
        """Tell any conductor of a planned stop, and which queued migrations it has cancelled, within 1 s."""
        target = rpc.Target(TOPIC, version=self._version)
        context = migrator_context.admin_context()
        args: dict[str, Any] = {'host': host, 'boot_id': boot_id, 'cancelled': cancelled}
        self._rpc.call(context, target, 'compute_stopping', timeout=1, **args)

    def live_migration_timed_out(
        self, host: str, boot_id: str, migration_uuid: str, action: str, seconds: float
    ) -> None:
        """Tell any conductor that a move has taken longer than it may."""
        target = rpc.Target(TOPIC, version=self._version)
        context = migrator_context.admin_context()
        args: dict[str, Any] = {'host': host, 'boot_id': boot_id, 'migration_uuid': migration_uuid}
        self._rpc.call(
            context,
            target,
            'live_migration_timed_out',
            timeout=TIMED_OUT_TIMEOUT,
            **args,
            action=action,
            seconds=seconds,
        )
