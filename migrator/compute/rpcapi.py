# SPDX-License-Identifier: Apache-2.0

"""The door to a compute host: one method for each call. Only a conductor knocks here, never another compute host.

Every method returns the host's :class:`~migrator.objects.protocol.Answer`; a host that did not take the command says
so in ``refusal``. All of them raise what :meth:`migrator.rpc.RPC.call` raises, and a call that timed out may have been
executed: the same call again, in the same epoch, re-attaches to the work and never does it twice at once. What the
host's version cannot do for a migration that stands where it does is refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrator import exception
from migrator.context import RequestContext
from migrator.objects import (
    ABORTS_QUEUED,
    CURRENT_VERSION,
    LIGHTWEIGHT,
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
#: version -> what is new in it.
VERSIONS = {
    '1.0': 'all methods; post and rollback are answered when they are done, or after 5 s as still running',
    '1.1': 'post and rollback are answered at once, and done later',
}
VERSION = max(VERSIONS)
_PLAIN, _LIGHTWEIGHT = '1.0', '1.1'

#: Seconds after which a host that still checks says so: its caller may have to change its mind meanwhile.
CHECK_WAIT = 1.0
#: Seconds after which a host of an older service version that still does post or rollback says so: its caller's thread
#: and place among the calls to this host are wanted by others too.
PLAIN_WAIT = 5.0


def served_by(service_version: int) -> str:
    """Return the newest of :data:`VERSIONS` that a host of a service version knows."""
    return _LIGHTWEIGHT if service_version >= LIGHTWEIGHT else _PLAIN


class ComputeAPI:
    """Calls compute hosts.

    :param rpc: how this service talks.
    :param timeout: seconds to wait for a host to say that it has taken a command, which it does at once.
    :param long_timeout: seconds to wait for a check, which is answered when it is done, and every
        :data:`CHECK_WAIT` as still running.
    :param monitor: seconds without a heartbeat of a checking host after which it counts as gone; None: no heartbeats.
    :param version_of: returns the service version of a host; asked only for what not every version can do, and once in
        each life of a host.
    :param pin: the newest of :data:`VERSIONS` that is sent to any host; None: what each host can take.
    :ivar long_timeout: as given; its caller gives a check up after that.
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
        #: Host -> its boot_id, and the version of that life.
        self._versions: dict[str, tuple[str, int]] = {}
        self._timeout = timeout
        self.long_timeout = long_timeout
        self._monitor = monitor

    def _version(self, host: str, boot_id: str) -> int:
        known = self._versions.get(host)
        if known is None or known[0] != boot_id:
            known = self._versions[host] = boot_id, self._version_of(host)
        return known[1]

    def _call(self, context: Context, host: str, method: str, **args: Any) -> Any:
        target = Target(topic=TOPIC, server=host, version=_PLAIN)
        return self._rpc.call(context, target, method, self._timeout, **args)

    def _end_of_move(self, context: Context, host: str, method: str, command: Command, **args: Any) -> Answer:
        """Have a host do post or rollback, by a lightweight call where it knows that.

        A plain call holds its caller's thread until the host has done it, or for :data:`PLAIN_WAIT` seconds.
        """
        plain = _PLAIN in (self._pin, served_by(self._version(host, command.boot_id)))
        target = Target(topic=TOPIC, server=host, version=_PLAIN if plain else _LIGHTWEIGHT)
        answer: Answer = self._rpc.call(context, target, method, self._timeout, command=command, **args)
        return answer

    def _need(self, host: str, command: Command, needed: int, method: str, migration: Migration) -> None:
        version = self._version(host, command.boot_id)
        if version < needed:
            raise exception.ServiceTooOld(
                host=host, method=method, status=migration.status, version=version, needed=needed
            )

    def _long_call(self, context: Context, host: str, method: str, **args: Any) -> Any:
        target = Target(topic=TOPIC, server=host, version=_PLAIN)
        # The host is told how long somebody waits, so that a hung check does not hold its thread for ever.
        return self._rpc.call(context, target, method, self.long_timeout, self._monitor, wait=CHECK_WAIT, **args)

    # --- the checks: answered when they are done, or as running, to be asked for again ------------------------------

    def check_can_live_migrate_destination(
        self,
        context: Context,
        host: str,
        command: Command,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
    ) -> Answer:
        """Ask the destination whether it can take the guest; ``report.result`` is the LiveMigrateData."""
        answer: Answer = self._long_call(
            context,
            host,
            'check_can_live_migrate_destination',
            command=command,
            instance=instance,
            block_migration=block_migration,
            disk_over_commit=disk_over_commit,
        )
        return answer

    def check_can_live_migrate_source(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Ask the source whether the guest can go there; ``report.result`` is the completed LiveMigrateData."""
        answer: Answer = self._long_call(
            context,
            host,
            'check_can_live_migrate_source',
            command=command,
            instance=instance,
            migrate_data=migrate_data,
        )
        return answer

    # --- lightweight calls: answered at once, done later; post and rollback only from service version 4 on ------------

    def pre_live_migration(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the destination made ready; the later report's ``result`` is the LiveMigrateData for the source."""
        answer: Answer = self._call(
            context, host, 'pre_live_migration', command=command, instance=instance, migrate_data=migrate_data
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
        """Have the source queue the move.

        :param destination: the host to move to.
        """
        answer: Answer = self._call(
            context,
            host,
            'live_migration',
            command=command,
            instance=instance,
            destination=destination,
            migrate_data=migrate_data,
        )
        return answer

    def live_migration_abort(
        self, context: Context, host: str, command: Command, instance: Instance, migration: Migration
    ) -> Answer:
        """Have the source abort the move; ``report.result['cancelled']`` tells whether the driver call was never made
        and never will be. If not, the verdict of the move tells what came of the abort.

        :param migration: with its status, which decides what the host must be able to do; it is not sent.
        :raises migrator.exception.ServiceTooOld: it does not run yet, and the host lets go only of what runs; nothing
            was sent.
        """
        if migration.status != MigrationStatus.RUNNING:
            self._need(host, command, ABORTS_QUEUED, 'live_migration_abort', migration)
        answer: Answer = self._call(context, host, 'live_migration_abort', command=command, instance=instance)
        return answer

    def live_migration_force_complete(
        self, context: Context, host: str, command: Command, instance: Instance
    ) -> Answer:
        """Have the source make the running move end soon."""
        answer: Answer = self._call(context, host, 'live_migration_force_complete', command=command, instance=instance)
        return answer

    def post_live_migration_at_source(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the source remove what is left of a guest that has gone."""
        return self._end_of_move(
            context, host, 'post_live_migration_at_source', command, instance=instance, migrate_data=migrate_data
        )

    def post_live_migration_at_destination(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData
    ) -> Answer:
        """Have the destination make the arrived guest its own."""
        return self._end_of_move(
            context, host, 'post_live_migration_at_destination', command, instance=instance, migrate_data=migrate_data
        )

    def rollback_live_migration_at_source(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Have the source end what it still does for the migration, then restore the guest."""
        return self._end_of_move(
            context, host, 'rollback_live_migration_at_source', command, instance=instance, migrate_data=migrate_data
        )

    def rollback_live_migration_at_destination(
        self, context: Context, host: str, command: Command, instance: Instance, migrate_data: LiveMigrateData | None
    ) -> Answer:
        """Have the destination end what it still does for the migration, then remove what was made for it."""
        return self._end_of_move(
            context,
            host,
            'rollback_live_migration_at_destination',
            command,
            instance=instance,
            migrate_data=migrate_data,
        )

    # --- asking ----------------------------------------------------------------------------------------------------

    def poll_live_migrations(
        self,
        context: Context,
        host: str,
        commands: list[Command],
        acks: list[dict[str, Any]],
        timeout: float,
    ) -> list[protocol.Observation]:
        """Ask one host about many migrations at once.

        :param commands: whom it is about and in which epoch; their step does not matter.
        :param acks: the reports that are safely in the journal, each ``{'migration_uuid', 'step', 'epoch'}``.
        :param timeout: seconds to wait for the answer. The host answers earlier, without those guests of which its
            driver says nothing in time.
        :returns: one observation a migration, in any order; those of which the host knows nothing certain are missing.
        """
        target = Target(topic=TOPIC, server=host, version=_PLAIN)
        observations: list[protocol.Observation] = self._rpc.call(
            context, target, 'poll_live_migrations', timeout, commands=commands, acks=acks, wait=timeout / 2
        )
        return observations
