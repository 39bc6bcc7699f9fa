# SPDX-License-Identifier: Apache-2.0

"""The RPC API of the conductor, for the API service, and its events, for the compute hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from migrator import rpc
from migrator.context import RequestContext, admin_context
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects import Instance, protocol
from migrator.objects.drain import Drain

TOPIC = 'conductor'
#: Version -> its changes.
VERSIONS = {'1.0': 'all methods'}
VERSION = max(VERSIONS)

#: Seconds that a compute host waits for the reply to a time-out report before it repeats the report.
TIMED_OUT_TIMEOUT = 10.0
#: Seconds that the API waits for the plan of a drain, for the deletion of a service, and for an audit.
PLAN_TIMEOUT = 50.0
#: Seconds that the API waits for the allocations of one consumer.
READ_TIMEOUT = 10.0
#: Seconds that the API waits for what a host reports; a conductor waits 10 s for the host.
REPORT_TIMEOUT = 20.0
#: Seconds that a conductor waits for a compute service, which replies at once if it runs.
ANSWER_WITHIN = 2.0


class ConductorAPI:
    """The calls of the API service to a conductor, which it sends after it has committed the row.

    :param client: the RPC client of the API service.
    :param version: the newest version of :data:`VERSIONS` that is sent.
    """

    def __init__(self, client: rpc.RPC, version: str = VERSION) -> None:
        self._rpc = client
        self._version = version
        self._any = rpc.Target(TOPIC, version=version)

    def live_migrate(self, context: RequestContext, migration_uuid: str) -> None:
        """Wake any conductor for a migration that was just accepted; if the cast is lost, the sweep finds it."""
        self._rpc.cast(context, self._any, 'live_migrate', migration_uuid=migration_uuid)

    def wake_drains(self, context: RequestContext) -> None:
        """Have any conductor look for the drain that a request concerns; without it the next sweep does."""
        self._rpc.cast(context, self._any, 'wake_drains')

    def plan_drain(self, context: RequestContext, drain: Drain) -> dict[str, Any]:
        """Return the plan of a drain as JSON, which any conductor makes.

        :raises migrator.exception.ServiceUnreachable: no conductor replied within :data:`PLAN_TIMEOUT`.
        :raises migrator.exception.RemoteError: Placement did not answer, or refused.
        """
        found: dict[str, Any] = self._rpc.call(context, self._any, 'plan_drain', timeout=PLAN_TIMEOUT, drain=drain)
        return found

    def wake_maintenances(self, context: RequestContext) -> None:
        """Have any conductor look for the maintenance that a request concerns; without it the next sweep does."""
        self._rpc.cast(context, self._any, 'wake_maintenances')

    def plan_maintenance(
        self, context: RequestContext, maintenance: Maintenance, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        """Return the plan of a maintenance as JSON, which any conductor makes.

        :raises migrator.exception.ServiceUnreachable: no conductor replied within :data:`PLAN_TIMEOUT`.
        """
        found: dict[str, Any] = self._call(
            context, 'plan_maintenance', PLAN_TIMEOUT, maintenance=maintenance, turns=[*turns]
        )
        return found

    def begin_turn(self, context: RequestContext, maintenance: str, host: str, claim: str | None = None) -> Turn:
        """Claim a host that is ready for its work, which any conductor does.

        :param claim: the uuid that the claim gets; None: a new one.
        :returns: its turn, with the claim.
        :raises migrator.drain.maintenance.errors.InvalidTurn: it may not be worked on now.
        :raises migrator.exception.ServiceUnreachable: no conductor replied within :data:`PLAN_TIMEOUT`. The host may
            be claimed nevertheless.
        """
        given = {'maintenance': maintenance, 'host': host} | ({} if claim is None else {'claim': claim})
        found: Turn = self._call(context, 'begin_turn', PLAN_TIMEOUT, **given)
        return found

    def delete_service(self, context: RequestContext, service_uuid: str) -> None:
        """Delete a service, which any conductor does; see :func:`migrator.conductor.registry.delete_service`.

        :raises migrator.exception.ServiceNotFound: no service has this uuid.
        :raises migrator.exception.ServiceUnreachable: no conductor replied within :data:`PLAN_TIMEOUT`.
        """
        self._call(context, 'delete_service', PLAN_TIMEOUT, service_uuid=service_uuid)

    def get_diagnostics(self, context: RequestContext, instance: Instance) -> dict[str, Any]:
        """Return the state and the diagnostics of a guest, for which any conductor asks its host.

        :returns: as :meth:`migrator.compute.rpcapi.ComputeAPI.get_diagnostics`.
        :raises migrator.exception.ServiceUnreachable: no conductor, or not the hypervisor, replied in time.
        """
        found: dict[str, Any] = self._call(context, 'get_diagnostics', REPORT_TIMEOUT, instance=instance)
        return found

    def get_host_uptime(self, context: RequestContext, host: str) -> str | None:
        """Return the uptime of a host as text, or None if its driver does not know it; raises likewise."""
        found: str | None = self._call(context, 'get_host_uptime', REPORT_TIMEOUT, host=host)
        return found

    def _call(self, context: RequestContext, method: str, timeout: float, **arguments: Any) -> Any:
        return self._rpc.call(context, self._any, method, timeout=timeout, **arguments)

    def audit(self, context: RequestContext) -> list[dict[str, Any]]:
        """Return the wrong allocations in Placement as JSON, which any conductor finds.

        :raises migrator.exception.ServiceUnreachable: no conductor replied within :data:`PLAN_TIMEOUT`.
        :raises migrator.exception.AuditInProgress: the conductor runs an audit already.
        :raises migrator.exception.RemoteError: Placement did not answer, or refused.
        """
        found: list[dict[str, Any]] = self._call(context, 'audit', PLAN_TIMEOUT)
        return found

    def read_allocations(self, context: RequestContext, consumer: str) -> dict[str, Any]:
        """Return what a consumer holds in Placement, which any conductor reads: provider -> class -> amount.

        :raises migrator.exception.ServiceUnreachable: no conductor replied within :data:`READ_TIMEOUT`.
        :raises migrator.exception.RemoteError: Placement did not answer, or refused.
        """
        found: dict[str, Any] = self._call(context, 'read_allocations', READ_TIMEOUT, consumer=consumer)
        return found

    def wake(self, context: RequestContext, migration_uuid: str, server: str | None) -> None:
        """Wake a migration's owner for a committed request; if the cast is lost, the sweep finds it.

        :param server: the owner's server name, or None for any conductor.
        """
        target = rpc.Target(TOPIC, server, version=self._version)
        self._rpc.cast(context, target, 'wake', migration_uuid=migration_uuid)


class ConductorEvents:
    """The reports of a compute host to a conductor; see :class:`migrator.objects.protocol.EventClient`.

    :param client: the RPC client of the compute service.
    :param timeout: seconds to wait for the reply to compute_started.
    :param version: the newest version of :data:`VERSIONS` that is sent.
    """

    def __init__(self, client: rpc.RPC, timeout: float = 60, version: str = VERSION) -> None:
        self._rpc = client
        self._version = version
        self._any = rpc.Target(TOPIC, version=version)
        self._timeout = timeout

    def step_ended(self, reply_to: str, report: protocol.Report) -> None:
        """Report to the owner's server that the work of a step has started or ended."""
        target = rpc.Target(TOPIC, reply_to, version=self._version)
        self._rpc.cast(admin_context(), target, 'step_ended', report=report)

    def compute_answers(self, host: str, timeout: float) -> bool:
        """Return whether a compute service of this name answers now, before another one starts.

        The call goes to a conductor, because compute hosts do not call each other.

        :param timeout: seconds to wait for the conductor, which itself waits :data:`ANSWER_WITHIN` seconds.
        :raises migrator.exception.ServiceUnreachable: no conductor replied.
        """
        return bool(self._rpc.call(admin_context(), self._any, 'compute_answers', timeout=timeout, host=host))

    def compute_started(self, report: protocol.HostReport) -> list[protocol.Assignment]:
        """Report to any conductor that this host has started; return its assignments in the order of requests."""
        context, timeout = admin_context(), self._timeout
        found: list[Any] = self._rpc.call(context, self._any, 'compute_started', timeout=timeout, report=report)
        return found

    def compute_heartbeat(self, report: protocol.HostReport) -> None:
        """Report to any conductor that this host is up."""
        self._rpc.cast(admin_context(), self._any, 'compute_heartbeat', report=report)

    def compute_stopping(self, host: str, boot_id: str, cancelled: list[str]) -> None:
        """Report a planned stop and the queued migrations that it cancelled to any conductor, within 1 s."""
        args: dict[str, Any] = {'host': host, 'boot_id': boot_id, 'cancelled': cancelled}
        self._rpc.call(admin_context(), self._any, 'compute_stopping', timeout=1, **args)

    def live_migration_timed_out(
        self, host: str, boot_id: str, migration_uuid: str, action: str, seconds: float
    ) -> None:
        """Report to any conductor that a migration takes longer than allowed."""
        args: dict[str, Any] = {'host': host, 'boot_id': boot_id, 'migration_uuid': migration_uuid}
        args |= {'action': action, 'seconds': seconds}
        self._rpc.call(admin_context(), self._any, 'live_migration_timed_out', timeout=TIMED_OUT_TIMEOUT, **args)
