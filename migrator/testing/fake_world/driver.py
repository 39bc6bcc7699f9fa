# SPDX-License-Identifier: Apache-2.0

"""A driver for one host's fake hypervisor in another process.

See :mod:`migrator.testing.fake_world.server` for the world itself and for the protocol on the socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.objects import Instance, LiveMigrateData, compute_node, protocol
from migrator.testing.fake_world import client
from migrator.testing.fake_world.client import Gone, calling, result_of
from migrator.virt import driver
from migrator.virt.driver import Verdict
from migrator.virt.fake.driver import FakeDriver
from migrator.virt.fake.hypervisor import FakeWorld

LOG = logging.getLogger(__name__)

#: Seconds between two checks of the token by a running step.
TOKEN_INTERVAL = 0.1


def from_conf(conf: cfg.ConfigOpts, threads: executors.Threads) -> driver.ComputeDriver:
    """Return the driver of ``[compute] driver = fake``, with ``[fake] world`` or one in this process.

    :raises migrator.exception.ServiceUnreachable: the world is not reachable.
    """
    if conf.fake.world:
        return FakeWorldDriver(conf.fake.world, conf.host, threads)
    LOG.warning('[fake] world is not set: this hypervisor ends with the service, and no other host can reach it')
    return FakeDriver(FakeWorld(threads).add(conf.host), threads)


class _EvacuatingDriver(driver.ComputeDriver):
    """The part of the driver that looks at the host and its guests, and evacuates them.

    :param path: the path of the world's socket.
    :param host: the host of the hypervisor. It is added if the world does not have it.
    :param threads: the threads of the compute process.
    :raises migrator.exception.ServiceUnreachable: the world is not reachable.
    """

    def __init__(self, path: str, host: str, threads: executors.Threads) -> None:
        self.host = host
        self._path = path
        self._threads = threads
        #: The name of this incarnation in the world's log.
        self.incarnation: str = client.FakeWorldClient(path).ask('connect', host)

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            with calling(self._path, method, self.host, self.incarnation, args) as made:
                return result_of(made.receive())
        except Gone as error:
            raise self._unreachable(method, error) from None

    def _unreachable(self, method: str, error: Gone) -> exception.DriverError:
        reason = f'the world of fake hypervisors is not reachable: {error}'
        return exception.DriverError(host=self.host, phase=method, reason=reason)

    # --- observation -------------------------------------------------------------------------------------------------

    def init_host(self, host: str) -> None:
        """See :meth:`driver.ComputeDriver.init_host`."""
        self._ask('init_host', host)

    def get_node(self) -> compute_node.ComputeNode:
        """See :meth:`driver.ComputeDriver.get_node`."""
        found: compute_node.ComputeNode = self._ask('get_node')
        return found

    def list_guests(self) -> list[protocol.Guest]:
        """See :meth:`driver.ComputeDriver.list_guests`."""
        found: list[protocol.Guest] = self._ask('list_guests')
        return found

    def get_guest(self, instance_uuid: str) -> protocol.Guest:
        """See :meth:`driver.ComputeDriver.get_guest`."""
        found: protocol.Guest = self._ask('get_guest', instance_uuid)
        return found

    def get_instance(self, instance_uuid: str) -> Instance | None:
        """See :meth:`driver.ComputeDriver.get_instance`."""
        found: Instance | None = self._ask('get_instance', instance_uuid)
        return found

    def settle(self, instance_uuid: str) -> protocol.Guest:
        """See :meth:`driver.ComputeDriver.settle`."""
        found: protocol.Guest = self._ask('settle', instance_uuid)
        return found

    # --- reports -----------------------------------------------------------------------------------------------------

    def get_diagnostics(self, instance: Instance) -> dict[str, Any] | None:
        """See :meth:`driver.ComputeDriver.get_diagnostics`."""
        found: dict[str, Any] | None = self._ask('get_diagnostics', instance)
        return found

    def get_host_uptime(self) -> str | None:
        """See :meth:`driver.ComputeDriver.get_host_uptime`."""
        found: str | None = self._ask('get_host_uptime')
        return found

    # --- evacuation --------------------------------------------------------------------------------------------------

    def get_definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """See :meth:`driver.ComputeDriver.get_definition`."""
        found: dict[str, Any] | None = self._ask('get_definition', instance_uuid)
        return found

    def check_can_evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_evacuate`."""
        found: LiveMigrateData = self._ask('check_can_evacuate', instance, migrate_data)
        return found

    def evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.evacuate`."""
        self._ask('evacuate', instance, migrate_data)

    def rollback_evacuation_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_evacuation_at_destination`."""
        self._ask('rollback_evacuation_at_destination', instance, migrate_data)

    def post_evacuation_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_evacuation_at_source`."""
        self._ask('post_evacuation_at_source', instance, migrate_data)


class _ColdMigratingDriver(_EvacuatingDriver):
    """The part of the driver that moves a guest while it is powered off.

    See :class:`migrator.virt.cold_migration.ColdMigration` for each method.
    """

    resizes = True
    resizes_here = True

    def check_can_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether the guest can leave."""
        found: LiveMigrateData = self._ask('check_can_migrate_source', instance, migrate_data)
        return found

    def check_can_migrate_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether this host can start the guest."""
        found: LiveMigrateData = self._ask('check_can_migrate_destination', instance, migrate_data)
        return found

    def migrate_disk_and_power_off(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Power the guest off."""
        self._ask('migrate_disk_and_power_off', instance, migrate_data)

    def finish_migration(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Start the guest here."""
        self._ask('finish_migration', instance, migrate_data)

    def confirm_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Remove what is left of the guest."""
        self._ask('confirm_migration_at_source', instance, migrate_data)

    def revert_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """End and remove the guest."""
        self._ask('revert_migration_at_destination', instance, migrate_data)

    def revert_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Restore the guest."""
        self._ask('revert_migration_at_source', instance, migrate_data)

    def check_can_resize(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """Check whether the guest can be resized here."""
        found: LiveMigrateData = self._ask('check_can_resize', instance, migrate_data)
        return found

    def resize(self, instance: Instance, migrate_data: LiveMigrateData, migration_uuid: str) -> None:
        """Resize the guest here."""
        self._ask('resize', instance, migrate_data, migration_uuid)

    def confirm_resize(self, instance: Instance, migration_uuid: str) -> None:
        """Drop the old size of the guest."""
        self._ask('confirm_resize', instance, migration_uuid)

    def revert_resize(self, instance: Instance, migration_uuid: str) -> None:
        """Give the guest its old size."""
        self._ask('revert_resize', instance, migration_uuid)


class FakeWorldDriver(_ColdMigratingDriver):
    """A driver for one host's fake hypervisor in another process; it behaves as FakeDriver does."""

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_can_live_migrate_destination(
        self, instance: Instance, block_migration: bool | None, disk_over_commit: bool
    ) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_destination`."""
        found: LiveMigrateData = self._ask(
            'check_can_live_migrate_destination', instance, block_migration, disk_over_commit
        )
        return found

    def check_can_live_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_source`."""
        found: LiveMigrateData = self._ask('check_can_live_migrate_source', instance, migrate_data)
        return found

    def cleanup_live_migration_destination_check(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.cleanup_live_migration_destination_check`."""
        self._ask('cleanup_live_migration_destination_check', instance)

    # --- the migration -----------------------------------------------------------------------------------------------

    def pre_live_migration(
        self, instance: Instance, migrate_data: LiveMigrateData, token: driver.CancelToken
    ) -> LiveMigrateData:
        """Forward a cancellation to the world; see :meth:`driver.ComputeDriver.pre_live_migration`."""
        token.raise_if_cancelled()
        cancelled: exception.Cancelled | None = None
        try:
            with calling(
                self._path, 'pre_live_migration', self.host, self.incarnation, (instance, migrate_data)
            ) as made:
                while True:
                    try:
                        found: LiveMigrateData = result_of(made.receive(TOKEN_INTERVAL))
                    except TimeoutError:
                        if cancelled is None and (cancelled := _cancelled(token)) is not None:
                            made.send('cancel')
                        continue
                    return found
        except exception.Cancelled:
            raise cancelled or exception.Cancelled(what='The step') from None
        except Gone as error:
            raise self._unreachable('pre_live_migration', error) from None

    def live_migration(
        self,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        started: Callable[[], None],
    ) -> Verdict:
        """See :meth:`driver.ComputeDriver.live_migration`; the job continues even if this process ends."""
        args = (instance, destination, migrate_data)
        try:
            with calling(self._path, 'live_migration', self.host, self.incarnation, args) as made:
                reply = made.receive()
                if 'started' in reply:
                    started()
                    reply = made.receive()
                while 'copied' in reply:
                    self.on_copied(*reply['copied'])
                    reply = made.receive()
                return Verdict(result_of(reply))
        except Gone as error:
            raise self._unreachable('live_migration', error) from None

    def attach_live_migration(self, instance_uuid: str) -> Verdict | None:
        """See :meth:`driver.ComputeDriver.attach_live_migration`."""
        verdict = self._ask('attach_live_migration', instance_uuid)
        return None if verdict is None else Verdict(verdict)

    def live_migration_abort(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_abort`."""
        self._ask('live_migration_abort', instance)

    def live_migration_force_complete(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_force_complete`."""
        self._ask('live_migration_force_complete', instance)

    def get_progress(self, instance_uuid: str) -> dict[str, int]:
        """See :meth:`driver.ComputeDriver.get_progress`."""
        found: dict[str, int] = self._ask('get_progress', instance_uuid)
        return found

    # --- post steps and rollbacks ------------------------------------------------------------------------------------

    def post_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_source`."""
        self._ask('post_live_migration_at_source', instance, migrate_data)

    def post_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_destination`."""
        self._ask('post_live_migration_at_destination', instance, migrate_data)

    def rollback_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_source`."""
        self._ask('rollback_live_migration_at_source', instance, migrate_data)

    def rollback_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_destination`."""
        self._ask('rollback_live_migration_at_destination', instance, migrate_data)


def _cancelled(token: driver.CancelToken) -> exception.Cancelled | None:
    try:
        token.raise_if_cancelled()
    except exception.Cancelled as error:
        return error
    return None
