# SPDX-License-Identifier: Apache-2.0

"""The RPC API of a compute host: the commands of conductors, and the calls for what a host reports.

Only a conductor sends commands. Every method raises what :meth:`migrator.rpc.RPC.call` raises. A call that timed out
may have been executed. The same command in the same epoch re-attaches to the work, which never runs twice at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrator import exception
from migrator.context import RequestContext
from migrator.objects import (
    ABORTS_QUEUED,
    CURRENT_VERSION,
    Answer,
    Command,
    Instance,
    Migration,
    MigrationStatus,
    protocol,
    steps,
)
from migrator.rpc import RPC, Target

Context = RequestContext

TOPIC = 'compute'
#: RPC version -> what it adds.
VERSIONS = {'1.0': 'all methods'}
VERSION = max(VERSIONS)

#: Seconds after which a host replies that a check is still running, so that the caller can act on an abort meanwhile.
CHECK_WAIT = 1.0
#: Seconds after which a host replies that a preparation, a post step or a rollback is still running. A short step needs
#: no event then. Meanwhile the thread of the caller and its call slot for this host are in use, and no abort is seen.
SHORT_WAIT = 0.25


class ComputeAPI:
    """The client that calls compute hosts.

    :param rpc: sends the calls.
    :param timeout: seconds to wait for a host to accept or refuse a command, which it does at once or within
        :data:`SHORT_WAIT`.
    :param long_timeout: seconds to wait for a check. The host replies when the check has ended, and after every
        ``CHECK_WAIT`` that it is still running.
    :param monitor: seconds without a heartbeat of a host that runs a check, after which the call fails; None for no
        heartbeats.
    :param version_of: returns the service version of a host. It is called for an abort of a migration that waits, once
        for each boot of a host.
    :param version: the newest of :data:`VERSIONS` to send to any host.
    :ivar long_timeout: the given value, after which a caller gives up a check.
    """

    def __init__(
        self,
        rpc: RPC,
        timeout: float = 60.0,
        long_timeout: float = 1800.0,
        monitor: float | None = 60.0,
        version_of: Callable[[str], int] = lambda host: CURRENT_VERSION,
        version: str = VERSION,
    ) -> None:
        self._rpc = rpc
        self._version_of = version_of
        self._rpc_version = version
        #: Host -> its boot_id, and the service version of that boot.
        self._versions: dict[str, tuple[str, int]] = {}
        self._timeout = timeout
        self.long_timeout = long_timeout
        self._monitor = monitor

    def _target(self, host: str) -> Target:
        return Target(topic=TOPIC, server=host, version=self._rpc_version)

    def _version(self, host: str, boot_id: str) -> int:
        known = self._versions.get(host)
        if known is None or known[0] != boot_id:
            known = self._versions[host] = boot_id, self._version_of(host)
        return known[1]

    def send(
        self, context: Context, host: str, command: Command, migration: Migration | None = None, **arguments: Any
    ) -> Answer:
        """Send a command, which is the step that it names.

        A host does what the docstring of the method of this name of
        :class:`~migrator.compute.manager.ComputeManager` says.

        :param migration: that of an abort: its status decides which version the host needs; it is not sent.
        :param arguments: those of the host's method, without ``wait``.
        :returns: the reply. If the host refuses the command, ``refusal`` says why.
        :raises migrator.exception.ServiceTooOld: the host is too old to abort a migration that waits in its queue;
            nothing was sent.
        """
        if migration is not None and migration.status != MigrationStatus.RUNNING:
            version = self._version(host, command.boot_id)
            if version < ABORTS_QUEUED:
                raise exception.ServiceTooOld(
                    host=host, method=command.step, status=migration.status, version=version, needed=ABORTS_QUEUED
                )
        timeout, monitor = self._timeout, None
        if command.step in steps.ENDS_COPIES:
            # Without the host that has just reported that it runs the guest, no active copy is ended.
            arguments.setdefault('runs_at', None)
        if command.step.startswith('check'):
            # The host replies when the check has ended, or that it is running; then the caller calls again. The time to
            # wait is sent, so that a hung check does not block a thread of the host for ever.
            arguments['wait'], timeout, monitor = CHECK_WAIT, self.long_timeout, self._monitor
        answer: Answer = self._rpc.call(
            context, self._target(host), command.step, timeout, monitor, command=command, **arguments
        )
        return answer

    def get_definitions(
        self, context: Context, host: str, instance_uuids: list[str], timeout: float
    ) -> dict[str, dict[str, Any]]:
        """Return what another host needs to start each of some guests without this host.

        :param timeout: seconds to wait for the reply. The host replies earlier, and leaves out each guest for which its
            driver has not replied in time.
        :returns: instance uuid -> the definition. A guest is left out if it is not there, or if the driver cannot
            start guests elsewhere.
        """
        definitions: dict[str, dict[str, Any]] = self._rpc.call(
            context,
            self._target(host),
            'get_definitions',
            timeout,
            instance_uuids=instance_uuids,
            wait=timeout / 2,
        )
        return definitions

    def list_guests(self, context: Context, host: str, timeout: float) -> list[protocol.Guest]:
        """Return every guest that a host holds in any form.

        :param timeout: seconds to wait for the reply.
        :raises migrator.exception.RemoteError: the hypervisor did not reply in half of the time.
        """
        found: list[protocol.Guest] = self._rpc.call(
            context, self._target(host), 'list_guests', timeout, wait=timeout / 2
        )
        return found

    def get_diagnostics(self, context: Context, host: str, instance: Instance, timeout: float) -> dict[str, Any]:
        """Return the state of a guest, and its diagnostics.

        :param timeout: seconds to wait for the reply.
        :returns: the ``state``, and the ``diagnostics`` (:meth:`migrator.virt.driver.ComputeDriver.get_diagnostics`)
            or None: the guest does not run, or the driver has no diagnostics.
        :raises migrator.exception.DriverError: the hypervisor did not reply in half of the time.
        """
        found: dict[str, Any] = self._report(context, host, 'get_diagnostics', timeout, instance=instance)
        return found

    def get_host_uptime(self, context: Context, host: str, timeout: float) -> str | None:
        """Return the uptime of a host as text, or None if its driver does not know it.

        :param timeout: seconds to wait for the reply.
        :raises migrator.exception.DriverError: the driver did not reply in half of the time.
        """
        found: str | None = self._report(context, host, 'get_host_uptime', timeout)
        return found

    def _report(self, context: Context, host: str, method: str, timeout: float, **arguments: Any) -> Any:
        return self._rpc.call(context, self._target(host), method, timeout, **arguments, wait=timeout / 2)

    def poll_live_migrations(
        self,
        context: Context,
        host: str,
        commands: list[Command],
        acks: list[dict[str, Any]],
        timeout: float,
    ) -> list[protocol.Observation]:
        """Poll one host for many migrations at once.

        :param commands: name the migrations and their epochs; the step of a command does not matter.
        :param acks: the reports that are in the log, each ``{'migration_uuid', 'step', 'epoch'}``.
        :param timeout: seconds to wait for the reply. The host replies earlier, and leaves out each guest for which its
            driver has not replied in time.
        :returns: one observation for each migration, in any order, without those that the host has left out.
        """
        observations: list[protocol.Observation] = self._rpc.call(
            context, self._target(host), 'poll_live_migrations', timeout, commands=commands, acks=acks, wait=timeout / 2
        )
        return observations
