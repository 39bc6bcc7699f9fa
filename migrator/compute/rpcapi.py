# SPDX-License-Identifier: Apache-2.0

"""The RPC API of a compute host, with one method for each call.

Only a conductor uses it. Every method returns the host's :class:`~migrator.objects.protocol.Answer`. If the host
refuses the command, ``refusal`` says why. Every method raises what :meth:`migrator.rpc.RPC.call` raises. A call that
timed out may have been executed. The same call in the same epoch re-attaches to the work, which never runs twice at
once. If the version of the host is too old for the command in the current status of the migration, the method raises an
error and sends nothing.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from migrator import exception
from migrator.compute.cold_migration.api import ColdMigrationAPI
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
    LiveMigrateData,
    Migration,
    MigrationStatus,
    protocol,
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


class _Reports(abc.ABC):
    """The calls for what a host reports about itself and its guests."""

    _rpc: RPC
    _version_of: Callable[[str], int]

    @abc.abstractmethod
    def _since(self, rpc_version: str, host: str, version: int, method: str) -> Target:
        """Return the target of a method that a host supports from an RPC version on."""

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


class ComputeAPI(ColdMigrationAPI, _Reports):
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

    def _ending(self, host: str, command: Command) -> Target:
        """Return the target of post and rollback: a lightweight call if the host supports it.

        A plain call blocks the thread of its caller until the step has ended, for at most :data:`PLAIN_WAIT` seconds.
        """
        plain = _PLAIN in (self._pin, served_by(self._version(host, command.boot_id)))
        return _target(host, _PLAIN if plain else _LIGHTWEIGHT)

    def _need(self, host: str, command: Command, needed: int, method: str, migration: Migration) -> None:
        version = self._version(host, command.boot_id)
        if version < needed:
            raise exception.ServiceTooOld(
                host=host, method=method, status=migration.status, version=version, needed=needed
            )

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

    def _command(
        self, rpc_version: str, method: str, context: Context, host: str, command: Command, **arguments: Any
    ) -> Answer:
        """Send a command to a host that replies soon."""
        target = self._since(rpc_version, host, self._version(host, command.boot_id), method)
        answer: Answer = self._rpc.call(context, target, method, self._timeout, command=command, **arguments)
        return answer

    def _check(
        self, rpc_version: str, method: str, context: Context, host: str, command: Command, **arguments: Any
    ) -> Answer:
        """Call a check, which may take long."""
        target = self._since(rpc_version, host, self._version(host, command.boot_id), method)
        arguments |= {'wait': CHECK_WAIT, 'command': command}
        answer: Answer = self._rpc.call(context, target, method, self.long_timeout, self._monitor, **arguments)
        return answer

    # --- the checks: the host replies when the check has ended, or that it is running; then the caller calls again --
    # A call includes the time to wait, so that a hung check does not block a thread of the host for ever.

    def check_can_live_migrate_destination(
        self,
        context: Context,
        host: str,
        command: Command,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
    ) -> Answer:
        """Call the destination's check of whether it can take the guest.

        ``report.result`` is the LiveMigrateData.
        """
        answer: Answer = self._rpc.call(
            context,
            _target(host),
            'check_can_live_migrate_destination',
            self.long_timeout,
            self._monitor,
            wait=CHECK_WAIT,
            command=command,
            instance=instance,
            block_migration=block_migration,
            disk_over_commit=disk_over_commit,
        )
        return answer

    def check_can_live_migrate_source(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Call the source's check of whether the guest can migrate to the destination.

        ``report.result`` is the completed LiveMigrateData.
        """
        answer: Answer = self._rpc.call(
            context,
            _target(host),
            'check_can_live_migrate_source',
            self.long_timeout,
            self._monitor,
            wait=CHECK_WAIT,
            command=command,
            instance=instance,
            migrate_data=migrate_data,
        )
        return answer

    # --- lightweight calls: the host replies within SHORT_WAIT; post and rollback do so from service version 4 on ----

    def pre_live_migration(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the destination prepare for the guest.

        ``result`` of the report, or of the later one if it still runs, is the LiveMigrateData for the source.
        """
        answer: Answer = self._rpc.call(
            context,
            _target(host),
            'pre_live_migration',
            self._timeout,
            command=command,
            instance=instance,
            migrate_data=migrate_data,
        )
        return answer

    def live_migration(
        self,
        context: Context,
        host: str,
        command: Command,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
    ) -> Answer:
        """Have the source queue the live migration.

        :param destination: the host to migrate the guest to.
        """
        answer: Answer = self._rpc.call(
            context,
            _target(host),
            'live_migration',
            self._timeout,
            command=command,
            instance=instance,
            destination=destination,
            migrate_data=migrate_data,
        )
        return answer

    def live_migration_abort(
        self, context: Context, host: str, command: Command, instance: Instance, migration: Migration
    ) -> Answer:
        """Have the source abort the live migration.

        ``report.result['cancelled']`` is true if the driver was not called and never will be. Otherwise the verdict of
        the live migration is the result of the abort.

        :param migration: its status decides which version the host needs; it is not sent.
        :raises migrator.exception.ServiceTooOld: the migration does not run yet, and the host can abort only a running
            one; nothing was sent.
        """
        if migration.status != MigrationStatus.RUNNING:
            self._need(host, command, ABORTS_QUEUED, 'live_migration_abort', migration)
        answer: Answer = self._rpc.call(
            context, _target(host), 'live_migration_abort', self._timeout, command=command, instance=instance
        )
        return answer

    def live_migration_force_complete(
        self, context: Context, host: str, command: Command, instance: Instance
    ) -> Answer:
        """Have the source force the running live migration to complete."""
        answer: Answer = self._rpc.call(
            context, _target(host), 'live_migration_force_complete', self._timeout, command=command, instance=instance
        )
        return answer

    def post_live_migration_at_source(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the source remove what is left of a guest that has moved away."""
        answer: Answer = self._rpc.call(
            context,
            self._ending(host, command),
            'post_live_migration_at_source',
            self._timeout,
            command=command,
            instance=instance,
            migrate_data=migrate_data,
        )
        return answer

    def post_live_migration_at_destination(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the destination make the guest that has arrived persistent."""
        answer: Answer = self._rpc.call(
            context,
            self._ending(host, command),
            'post_live_migration_at_destination',
            self._timeout,
            command=command,
            instance=instance,
            migrate_data=migrate_data,
        )
        return answer

    def rollback_live_migration_at_source(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Have the source end its work for the migration, then restore the guest."""
        answer: Answer = self._rpc.call(
            context,
            self._ending(host, command),
            'rollback_live_migration_at_source',
            self._timeout,
            command=command,
            instance=instance,
            migrate_data=migrate_data,
        )
        return answer

    def rollback_live_migration_at_destination(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Have the destination end its work for the migration, then remove what was created for it."""
        answer: Answer = self._rpc.call(
            context,
            self._ending(host, command),
            'rollback_live_migration_at_destination',
            self._timeout,
            command=command,
            instance=instance,
            migrate_data=migrate_data,
        )
        return answer

    # --- evacuation: every method raises ServiceTooOld if the host is too old, and sends nothing -------------------

    def check_can_evacuate(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Call the destination's check of whether it can start the guest without its source.

        :param migrate_data: ``source`` is the stored definition; {}: none was stored.
        :returns: ``report.result`` is the LiveMigrateData for :meth:`evacuate`.
        """
        arguments = {'instance': instance, 'migrate_data': migrate_data}
        return self._check(_EVACUATION, 'check_can_evacuate', context, host, command, **arguments)

    def evacuate(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the destination start the guest without its source."""
        return self._command(
            _EVACUATION, 'evacuate', context, host, command, instance=instance, migrate_data=migrate_data
        )

    def rollback_evacuation_at_destination(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Have the destination end its work for the migration, then remove what was made for it."""
        method = 'rollback_evacuation_at_destination'
        return self._command(_EVACUATION, method, context, host, command, instance=instance, migrate_data=migrate_data)

    def post_evacuation_at_source(
        self,
        context: Context,
        host: str,
        command: Command,
        instance: Instance,
        migrate_data: LiveMigrateData | None,
        runs_at: str | None = None,
    ) -> Answer:
        """Have the source end its copy of a guest that was evacuated, and remove what is left of it.

        :param runs_at: the other host that has just reported that it runs the guest. Without it the source does not
            touch a copy that is active.
        """
        method, arguments = 'post_evacuation_at_source', {'migrate_data': migrate_data, 'runs_at': runs_at}
        return self._command(_EVACUATION, method, context, host, command, instance=instance, **arguments)

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

    # --- polling ---------------------------------------------------------------------------------------------------

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
