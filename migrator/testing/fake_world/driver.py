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
from migrator.objects import Instance, LiveMigrateData
from migrator.testing.fake_world import client
from migrator.testing.fake_world.client import Gone, calling, result_of
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from migrator.virt import driver
from migrator.virt.driver import Verdict

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


def _forwarded(method: str) -> Any:
    """Return a method of the driver that the world's driver of the host carries out."""
    return lambda self, *args: self._ask(method, *args)


class FakeWorldDriver(driver.ComputeDriver):
    """A driver for one host's fake hypervisor in another process; it behaves as FakeDriver does.

    :param path: the path of the world's socket.
    :param host: the host of the hypervisor. It is added if the world does not have it.
    :param threads: the threads of the compute process.
    :raises migrator.exception.ServiceUnreachable: the world is not reachable.
    """

    resizes = True
    resizes_here = True

    def __init__(self, path: str, host: str, threads: executors.Threads) -> None:
        self.host = host
        self._path = path
        self._threads = threads
        #: The name of this boot in the world's log.
        self.boot: str = client.FakeWorldClient(path).ask('connect', host)

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            with calling(self._path, method, self.host, self.boot, args) as made:
                return result_of(made.receive())
        except Gone as error:
            raise self._unreachable(method, error) from None

    def _unreachable(self, method: str, error: Gone) -> exception.DriverError:
        reason = f'the world of fake hypervisors is not reachable: {error}'
        return exception.DriverError(host=self.host, phase=method, reason=reason)

    init_host = _forwarded('init_host')
    get_node = _forwarded('get_node')
    get_identity = _forwarded('get_identity')
    get_kernel = _forwarded('get_kernel')
    list_guests = _forwarded('list_guests')
    get_guest = _forwarded('get_guest')
    get_instance = _forwarded('get_instance')
    settle = _forwarded('settle')
    get_diagnostics = _forwarded('get_diagnostics')
    get_host_uptime = _forwarded('get_host_uptime')
    get_definition = _forwarded('get_definition')
    check_can_evacuate = _forwarded('check_can_evacuate')
    evacuate = _forwarded('evacuate')
    rollback_evacuation_at_destination = _forwarded('rollback_evacuation_at_destination')
    post_evacuation_at_source = _forwarded('post_evacuation_at_source')
    check_can_migrate_source = _forwarded('check_can_migrate_source')
    check_can_migrate_destination = _forwarded('check_can_migrate_destination')
    migrate_disk_and_power_off = _forwarded('migrate_disk_and_power_off')
    finish_migration = _forwarded('finish_migration')
    confirm_migration_at_source = _forwarded('confirm_migration_at_source')
    revert_migration_at_destination = _forwarded('revert_migration_at_destination')
    revert_migration_at_source = _forwarded('revert_migration_at_source')
    check_can_resize = _forwarded('check_can_resize')
    resize = _forwarded('resize')
    confirm_resize = _forwarded('confirm_resize')
    revert_resize = _forwarded('revert_resize')
    check_can_live_migrate_destination = _forwarded('check_can_live_migrate_destination')
    check_can_live_migrate_source = _forwarded('check_can_live_migrate_source')
    cleanup_live_migration_destination_check = _forwarded('cleanup_live_migration_destination_check')
    live_migration_abort = _forwarded('live_migration_abort')
    live_migration_force_complete = _forwarded('live_migration_force_complete')
    get_progress = _forwarded('get_progress')
    post_live_migration_at_source = _forwarded('post_live_migration_at_source')
    post_live_migration_at_destination = _forwarded('post_live_migration_at_destination')
    rollback_live_migration_at_source = _forwarded('rollback_live_migration_at_source')
    rollback_live_migration_at_destination = _forwarded('rollback_live_migration_at_destination')

    def pre_live_migration(
        self, instance: Instance, migrate_data: LiveMigrateData, token: driver.CancelToken
    ) -> LiveMigrateData:
        """Forward a cancellation to the world; see :meth:`driver.ComputeDriver.pre_live_migration`."""
        token.raise_if_cancelled()
        cancelled: exception.Cancelled | None = None
        try:
            with calling(self._path, 'pre_live_migration', self.host, self.boot, (instance, migrate_data)) as made:
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
            with calling(self._path, 'live_migration', self.host, self.boot, args) as made:
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


def _cancelled(token: driver.CancelToken) -> exception.Cancelled | None:
    try:
        token.raise_if_cancelled()
    except exception.Cancelled as error:
        return error
    return None
