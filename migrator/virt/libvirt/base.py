# SPDX-License-Identifier: Apache-2.0

"""The base of the driver: the daemon of this host and its guests, for migrations and evacuations."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.objects import ComputeNode, GuestState, Instance, protocol
from migrator.virt import driver
from migrator.virt.libvirt import checks, live_migration, records, storage
from migrator.virt.libvirt.connection import DEADLINE, Connection
from migrator.virt.libvirt.guest import diagnostics_of, facts_of, read_state, remove_domain, to_guest, to_instance
from migrator.virt.libvirt.host import host_uuid, node_of

LOG = logging.getLogger(__name__)

#: A random uuid that Linux makes at its start.
_KERNEL = pathlib.Path('/proc/sys/kernel/random/boot_id')

P = ParamSpec('P')
S = TypeVar('S', bound='HostDriver')
T = TypeVar('T')


def on_disk(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a driver method so that an OSError becomes a DriverError."""

    @functools.wraps(method)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise exception.DriverError(host=self.host, phase=method.__name__, reason=str(error)) from error

    return wrapper


class HostDriver(driver.ComputeDriver):
    """The driver of the libvirt daemon of this host, as far as it looks at the host and its guests.

    :param conf: with the options of :mod:`migrator.conf.compute` and :mod:`migrator.conf.libvirt` registered.
    :param threads: the threads of the compute process.
    :param deadline: seconds within which libvirt must answer a query.
    """

    def __init__(self, conf: cfg.ConfigOpts, threads: executors.Threads, deadline: float = DEADLINE) -> None:
        self.conf = conf
        self.host = conf.host
        self._threads = threads
        self.connection = Connection(conf.libvirt.connection_uri, self.host, threads, deadline)
        self.connection.on_copied = lambda *copied: self.on_copied(*copied)
        self._records = records.Records(pathlib.Path(conf.state_path) / 'libvirt' / self.host)
        self._incoming = storage.IncomingDisks(self.host, self._records)
        self.jobs = live_migration.Jobs(self.connection, self._records, threads, self.get_guest)

    # --- host and guests ---------------------------------------------------------------------------------------------

    def init_host(self, host: str) -> None:
        """Connect; see :meth:`driver.ComputeDriver.init_host`."""
        if host != self.host:
            reason = f'[DEFAULT] host is {self.host}, not {host}'
            raise exception.DriverError(host=self.host, phase='init_host', reason=reason)
        checks.refuse_uri(self.conf)
        try:
            self._records.prepare()
        except OSError as error:
            raise exception.ConfigurationError(
                option='[DEFAULT] state_path',
                value=self.conf.state_path,
                detail=f'{error}: name a directory that the compute service can write to',
            ) from error
        self.connection.listen()
        self.connection.call('init_host', lambda connection: connection.getLibVersion())

    def get_node(self) -> ComputeNode:
        """Return the facts about the host; see :meth:`driver.ComputeDriver.get_node`."""
        return self.connection.call('get_node', lambda connection: node_of(connection, self.host, self.conf))

    def get_identity(self) -> str | None:
        """Return the uuid by which libvirt distinguishes hosts; see :meth:`driver.ComputeDriver.get_identity`.

        libvirt refuses a migration between two hosts that have the same.
        """
        return self.connection.call('get_identity', lambda connection: host_uuid(connection.getCapabilities())) or None

    def get_kernel(self) -> str | None:
        """Return Linux's identifier of its start; see :meth:`driver.ComputeDriver.get_kernel`."""
        try:
            return _KERNEL.read_text(encoding='ascii').strip() or None
        except OSError:
            return None

    def list_guests(self) -> list[protocol.Guest]:
        """Return every guest; see :meth:`driver.ComputeDriver.list_guests`."""

        def ask(connection: Any) -> list[str]:
            return [domain.UUIDString() for domain in connection.listAllDomains()]

        uuids = self.connection.call('list_guests', ask)
        found = [self._guest_or_running(uuid) for uuid in sorted({*uuids, *self._records.list(records.INCOMING)})]
        return [guest for guest in found if guest.present]

    def get_guest(self, instance_uuid: str) -> protocol.Guest:
        """Return one guest; see :meth:`driver.ComputeDriver.get_guest`."""
        return self.connection.call('get_guest', lambda connection: self._guest(connection, instance_uuid))

    def get_instance(self, instance_uuid: str) -> Instance | None:
        """Return a guest as an instance; see :meth:`driver.ComputeDriver.get_instance`."""
        if self.get_guest(instance_uuid).state == GuestState.WAITING:
            return None
        facts = self.connection.call('get_instance', lambda connection: facts_of(connection, instance_uuid))
        if facts is None:
            return None
        owner = self.conf.compute.adopt_project_id, self.conf.compute.adopt_user_id
        space = [size for path, size in facts.disks if storage.is_beside(path, self.conf.instances_path)]
        return to_instance(facts, self.host, *owner, space)

    def get_diagnostics(self, instance: Instance) -> dict[str, Any] | None:
        """Return what libvirt has counted for a guest; see :meth:`driver.ComputeDriver.get_diagnostics`."""
        return self.connection.call('get_diagnostics', lambda connection: diagnostics_of(connection, instance.uuid))

    @on_disk
    def get_host_uptime(self) -> str | None:
        """Return the uptime of the host; see :meth:`driver.ComputeDriver.get_host_uptime`."""
        options: dict[str, Any] = {'env': os.environ | {'LC_ALL': 'C'}, 'timeout': DEADLINE}
        try:
            done = subprocess.run(['uptime'], capture_output=True, text=True, check=True, **options)  # noqa: S607 -- a host has one
        except FileNotFoundError:
            return None
        except subprocess.SubprocessError as error:
            raise exception.DriverError(host=self.host, phase='get_host_uptime', reason=str(error)) from error
        return str(done.stdout)

    def settle(self, instance_uuid: str) -> protocol.Guest:
        """Wait until libvirt has begun a requested job or never will; see :meth:`driver.ComputeDriver.settle`."""
        if self._records.read(records.OUTGOING, instance_uuid) is None:
            return self._guest_or_running(instance_uuid)
        self.jobs.settle(instance_uuid)
        return self.get_guest(instance_uuid)

    def _guest_or_running(self, instance_uuid: str) -> protocol.Guest:
        """Return one guest, or report it as running if libvirt does not answer for it.

        The QEMU of one guest may hang. This must not stop the service from handling the host's other guests.
        """
        try:
            return self.get_guest(instance_uuid)
        except exception.ServiceUnreachable as error:
            LOG.warning(
                'Cannot query guest %(guest)s on host %(host)s; reporting it as running: %(error)s',
                {'guest': instance_uuid, 'host': self.host, 'error': error},
            )
            return protocol.Guest(instance_uuid=instance_uuid, state=GuestState.RUNNING.value)

    def _guest(self, connection: Any, instance_uuid: str) -> protocol.Guest:
        moved = self._records.read(records.OUTGOING, instance_uuid) is not None
        seen = read_state(connection, instance_uuid, moved)
        return to_guest(instance_uuid, seen, self._records.read(records.INCOMING, instance_uuid) is not None)

    def _remove(self, phase: str, instance: Instance, states: tuple[GuestState, ...]) -> None:
        """Destroy and undefine a domain that this host does not own.

        The state is checked again just before, because the host may own the guest by now.

        :param states: the states in which the domain may be destroyed.
        :raises migrator.exception.GuestStillHere: the guest is in another state, or has a job.
        """

        def remove(connection: Any) -> None:
            guest = self._guest(connection, instance.uuid)
            if guest.present and (guest.job or guest.state not in states):
                raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=phase)
            remove_domain(connection, instance.uuid)

        self.connection.call(phase, remove)
