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
    EVACUATES,
    LIGHTWEIGHT,
    LISTS_GUESTS,
    MIGRATES_COLD,
    REPORTS_DIAGNOSTICS,
    RESIZES_HERE,
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
VERSIONS = {
    '1.0': 'all methods; post and rollback reply when they have ended, or after 5 s as still running',
    '1.1': 'post and rollback reply soon, and may run later',
    '1.2': 'the steps of an evacuation, and the definitions of guests',
    '1.3': 'the list of guests',
    '1.4': 'the diagnostics of guests, and the uptime',
    '1.5': 'the steps of a cold migration',
    '1.6': 'the steps of a resize at one host',
}
VERSION = max(VERSIONS)
_PLAIN, _LIGHTWEIGHT, _EVACUATION, _LIST, _DIAGNOSTICS, _COLD, _HERE = VERSIONS
#: Saga -> the RPC version that has the commands of its steps.
_OF_SAGAS = {
    steps.Saga.LIVE_MIGRATION: _PLAIN,
    steps.Saga.EVACUATION: _EVACUATION,
    steps.Saga.COLD_MIGRATION: _COLD,
    steps.Saga.RESIZE_HERE: _HERE,
}
#: Command -> the RPC version that has it. A host does what the docstring of the method of this name of
#: :class:`~migrator.compute.manager.ComputeManager` says.
COMMANDS = {
    step.name: _LIGHTWEIGHT if step.ends and step.saga == steps.Saga.LIVE_MIGRATION else _OF_SAGAS[step.saga]
    for step in steps.STEPS
}

#: Seconds after which a host replies that a check is still running, so that the caller can act on an abort meanwhile.
CHECK_WAIT = 1.0
#: Seconds after which a host replies that a preparation, a post step or a rollback is still running. A short step needs
#: no event then. Meanwhile the thread of the caller and its call slot for this host are in use, and no abort is seen.
SHORT_WAIT = 0.25
#: Seconds after which a host of an older service version replies that post or rollback is still running. Other
#: migrations need the thread of the caller and its call slot for this host.
PLAIN_WAIT = 5.0

#: RPC version -> the service version from which on a host supports it.
_FROM = {
    _PLAIN: 0,
    _LIGHTWEIGHT: LIGHTWEIGHT,
    _EVACUATION: EVACUATES,
    _LIST: LISTS_GUESTS,
    _DIAGNOSTICS: REPORTS_DIAGNOSTICS,
    _COLD: MIGRATES_COLD,
    _HERE: RESIZES_HERE,
}


def served_by(service_version: int) -> str:
    """Return the newest of :data:`VERSIONS` that a host of a given service version supports."""
    return [version for version, since in _FROM.items() if service_version >= since][-1]


def _target(host: str, version: str = _PLAIN) -> Target:
    return Target(topic=TOPIC, server=host, version=version)


class ComputeAPI:
    """The client that calls compute hosts.

    :param rpc: sends the calls.
    :param timeout: seconds to wait for a host to accept or refuse a command, which it does at once or within
        :data:`SHORT_WAIT`.
    :param long_timeout: seconds to wait for a check. The host replies when the check has ended, and after every
        ``CHECK_WAIT`` that it is still running.
    :param monitor: seconds without a heartbeat of a host that runs a check, after which the call fails; None for no
        heartbeats.
    :param version_of: returns the service version of a host. It is called only for methods that older versions do not
        support, and once for each boot of a host, except for :meth:`get_definitions`.
    :param pin: the newest of :data:`VERSIONS` to send to any host; None for the newest that each host supports.
    :ivar long_timeout: the given value, after which a caller gives up a check.
    """

    def __init__(
        self,
        rpc: RPC,
        timeout: float = 60.0,
        long_timeout: float = 1800.0,
        monitor: float | None = 60.0,
        version_of: Callable[[str], int] = lambda host: CURRENT_VERSION,
        pin: str | None = None,
    ) -> None:
        self._rpc = rpc
        self._version_of = version_of
        self._pin = pin
        #: Host -> its boot_id, and the service version of that boot.
        self._versions: dict[str, tuple[str, int]] = {}
        self._timeout = timeout
        self.long_timeout = long_timeout
        self._monitor = monitor

    def _version(self, host: str, boot_id: str) -> int:
        known = self._versions.get(host)
        if known is None or known[0] != boot_id:
            known = self._versions[host] = boot_id, self._version_of(host)
        return known[1]

    def _since(self, rpc_version: str, host: str, version: int, method: str) -> Target:
        """Return the target of a method that a host supports from an RPC version on.

        :param version: the service version of the host.
        :raises migrator.exception.ServiceTooOld: the host, or the pin, is too old for it.
        """
        needed, known = _FROM[rpc_version], [*VERSIONS]
        why = None
        if version < needed:
            why = f'its compute service has version {version}, and {needed} is needed: upgrade it'
        elif self._pin is not None and known.index(self._pin) < known.index(rpc_version):
            why = f'[upgrade_levels] compute is {self._pin}, and {rpc_version} is needed: remove the setting'
        if why is not None:
            raise exception.ServiceTooOld(f'{host} is not asked for {method}: {why}.')
        return _target(host, rpc_version)

    def send(
        self, context: Context, host: str, command: Command, migration: Migration | None = None, **arguments: Any
    ) -> Answer:
        """Send a command of :data:`COMMANDS`, which is the step that it names.

        :param migration: that of an abort: its status decides which version the host needs; it is not sent.
        :param arguments: those of the host's method, without ``wait``.
        :returns: the reply. If the host refuses the command, ``refusal`` says why.
        :raises migrator.exception.ServiceTooOld: the host, or the pin, is too old for the command, or the host for an
            abort of a migration that does not run yet; nothing was sent.
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
        target = self._target_of(host, command)
        answer: Answer = self._rpc.call(context, target, command.step, timeout, monitor, command=command, **arguments)
        return answer

    def _target_of(self, host: str, command: Command) -> Target:
        rpc_version = COMMANDS[command.step]
        if rpc_version == _PLAIN:
            return _target(host)
        version = self._version(host, command.boot_id)
        if rpc_version == _LIGHTWEIGHT and _PLAIN in (self._pin, served_by(version)):
            # A plain call blocks the thread of its caller until the step has ended, for at most PLAIN_WAIT seconds.
            return _target(host)
        return self._since(rpc_version, host, version, command.step)

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
            self._since(_EVACUATION, host, self._version_of(host), 'get_definitions'),
            'get_definitions',
            timeout,
            instance_uuids=instance_uuids,
            wait=timeout / 2,
        )
        return definitions

    def list_guests(
        self, context: Context, host: str, timeout: float, version: int | None = None
    ) -> list[protocol.Guest]:
        """Return every guest that a host holds in any form.

        :param timeout: seconds to wait for the reply.
        :param version: the service version of the host; None: it is read.
        :raises migrator.exception.ServiceTooOld: the host, or the pin, is too old for it; nothing was sent.
        :raises migrator.exception.RemoteError: the hypervisor did not reply in half of the time.
        """
        version = self._version_of(host) if version is None else version
        target = self._since(_LIST, host, version, 'list_guests')
        found: list[protocol.Guest] = self._rpc.call(context, target, 'list_guests', timeout, wait=timeout / 2)
        return found

    def get_diagnostics(self, context: Context, host: str, instance: Instance, timeout: float) -> dict[str, Any]:
        """Return the state of a guest, and its diagnostics.

        :param timeout: seconds to wait for the reply.
        :returns: the ``state``, and the ``diagnostics`` (:meth:`migrator.virt.driver.ComputeDriver.get_diagnostics`)
            or None: the guest does not run, or the driver has no diagnostics.
        :raises migrator.exception.ServiceTooOld: the host, or the pin, is too old for it; nothing was sent.
        :raises migrator.exception.DriverError: the hypervisor did not reply in half of the time.
        """
        found: dict[str, Any] = self._report(context, host, 'get_diagnostics', timeout, instance=instance)
        return found

    def get_host_uptime(self, context: Context, host: str, timeout: float) -> str | None:
        """Return the uptime of a host as text, or None if its driver does not know it.

        :param timeout: seconds to wait for the reply.
        :raises migrator.exception.ServiceTooOld: the host, or the pin, is too old for it; nothing was sent.
        :raises migrator.exception.DriverError: the driver did not reply in half of the time.
        """
        found: str | None = self._report(context, host, 'get_host_uptime', timeout)
        return found

    def _report(self, context: Context, host: str, method: str, timeout: float, **arguments: Any) -> Any:
        target = self._since(_DIAGNOSTICS, host, self._version_of(host), method)
        return self._rpc.call(context, target, method, timeout, **arguments, wait=timeout / 2)

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
        :param acks: the reports that are in the journal, each ``{'migration_uuid', 'step', 'epoch'}``.
        :param timeout: seconds to wait for the reply. The host replies earlier, and leaves out each guest for which its
            driver has not replied in time.
        :returns: one observation for each migration, in any order, without those that the host has left out.
        """
        observations: list[protocol.Observation] = self._rpc.call(
            context, _target(host), 'poll_live_migrations', timeout, commands=commands, acks=acks, wait=timeout / 2
        )
        return observations
