# SPDX-License-Identifier: Apache-2.0

"""The evacuation of a guest: the part of the driver that starts it without its source.

The source reports the definition of each guest while it lives, with what identifies the files of its disks. The
destination starts the guest from the definition, if it has the same files, and no other process uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData, protocol
from migrator.virt.libvirt import identity, records, storage
from migrator.virt.libvirt.base import HostDriver, on_disk
from migrator.virt.libvirt.definition import consoles
from migrator.virt.libvirt.definition.bounds import Bounds, read
from migrator.virt.libvirt.definition.disks import (
    alone,
    chain_of,
    files_read,
    is_still_to_come,
    volumes_read,
    writable_disks,
)
from migrator.virt.libvirt.definition.needs import check_definition, paths_seen, why_unstartable
from migrator.virt.libvirt.definition.obstacles import why_immovable
from migrator.virt.libvirt.guest import find_domain, remove_domain

LOG = logging.getLogger(__name__)

#: The power state of a guest that its user has paused, by nova's number.
_PAUSED = 3
#: Seconds that libvirt may take to start a guest.
_START = 60.0
#: Seconds within which libvirt begins a call that it has accepted from an earlier boot of this process.
_QUIET = 1.0


class EvacuatingDriver(HostDriver):
    """The driver of the libvirt daemon of this host, with its evacuations."""

    def get_definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """Return what another host needs to start a guest; see :meth:`driver.ComputeDriver.get_definition`."""
        new_uuid = self._threads.new_uuid
        return self.connection.call('get_definition', lambda each: describe(each, self.conf, instance_uuid, new_uuid))

    def check_can_evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_evacuate`."""
        self._refuse_present(instance)
        files = self._check('check_can_evacuate', instance, migrate_data)
        return migrate_data.replace(
            block_migration=False, is_shared_storage=True, destination={'host': self.host, 'files': files}
        )

    @on_disk
    def evacuate(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.evacuate`."""
        self._wait_for_start('evacuate', instance.uuid)
        if not self._is_active(instance):
            # An earlier migration of the guest away from here left this record. The guest has gone since.
            self._records.remove(records.OUTGOING, instance.uuid)
            # The storage may have gone since the check.
            self._check('evacuate', instance, migrate_data)
            self._incoming.begin(instance.uuid)
            flags = libvirt.VIR_DOMAIN_START_PAUSED if instance.power_state == _PAUSED else 0
            self._start('evacuate', instance, migrate_data, instance.vm_state != 'stopped', flags)
            if migrate_data.source.get('saved'):
                LOG.warning(
                    'Lost the saved memory of guest %(guest)s, which only %(host)s had',
                    {'guest': instance.uuid, 'host': instance.host},
                )
        self._persist('evacuate', instance, migrate_data)
        self._incoming.keep(instance.uuid)

    @on_disk
    def rollback_evacuation_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_evacuation_at_destination`."""
        phase = 'rollback_evacuation_at_destination'
        if self._records.read(records.INCOMING, instance.uuid) is not None:
            self._let_start_begin()
        self._remove(phase, instance, (GuestState.WAITING, GuestState.SHUTDOWN))
        self._incoming.remove(instance.uuid)

    @on_disk
    def post_evacuation_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_evacuation_at_source`.

        No disk is removed. The guest was started elsewhere because its disks are shared.
        """
        # The state does not matter here, and a QEMU that hangs does not report it.
        if self.connection.call('post_evacuation_at_source', lambda each: remove_domain(each, instance.uuid)):
            LOG.info(
                'Removed guest %(guest)s, which was evacuated to host %(host)s; its disks are kept: %(disks)s',
                {
                    'guest': instance.uuid,
                    'host': migrate_data.destination.get('host'),
                    'disks': ', '.join(migrate_data.destination.get('files', [])) or 'none known',
                },
            )
        self._records.remove(records.OUTGOING, instance.uuid)
        # The files that an earlier migration to this host has made are the guest's disks.
        self._incoming.keep(instance.uuid)
        self.connection.forget(instance.uuid)

    def _check(self, phase: str, instance: Instance, migrate_data: LiveMigrateData) -> list[str]:
        if not migrate_data.source.get('xml'):
            raise exception.MigrationPreCheckError(
                reason=f'host {instance.host} has not reported the definition of guest {instance.uuid}, so that no '
                f'other host can start it: repair {instance.host}, or define the guest by hand'
            )
        return self.connection.call(phase, lambda each: check(each, self.conf, instance, migrate_data))

    def _is_active(self, instance: Instance) -> bool:
        return self.get_guest(instance.uuid).state in protocol.ACTIVE

    def _refuse_present(self, instance: Instance) -> None:
        guest = self.get_guest(instance.uuid)
        if guest.state not in (GuestState.ABSENT, GuestState.WAITING) or guest.incoming:
            raise exception.MigrationPreCheckError(
                reason=f'host {self.host} already has guest {instance.uuid}, which is {guest.state}'
            )

    def _start(
        self, phase: str, instance: Instance, migrate_data: LiveMigrateData, power_on: bool, flags: int = 0
    ) -> None:
        """Start the guest, or define it if it stays shut off.

        A guest is defined after its start, so that a start that fails leaves nothing.

        :param flags: ``VIR_DOMAIN_START_*`` flags.
        """
        definition = self._definition(migrate_data)
        for path in storage.logs_of(ElementTree.fromstring(definition)):  # noqa: S314 -- libvirt wrote it
            if identity.is_below(path, self.conf.instances_path):
                self._incoming.make_log_directory(instance.uuid, path)

        def start(connection: Any) -> None:
            if power_on:
                connection.createXML(definition, flags)
            else:
                connection.defineXML(definition)

        self._call_start(phase, instance, start)

    def _definition(self, migrate_data: LiveMigrateData) -> str:
        """Return the definition of a guest for this host: its addresses, and no backing of copies."""
        source, made = migrate_data.source, migrate_data.destination.get('copies', {})
        copied = [disk.target for disk in storage.disks_of(migrate_data) if disk.target in made]
        definition = alone(source['xml'], copied)
        return consoles.moved(definition, source.get('own_addresses', ()), consoles.of_host(self.conf))

    def _call_start(self, phase: str, instance: Instance, start: Callable[[Any], None]) -> None:
        try:
            self.connection.call(phase, start, _START)
        except exception.DriverError:
            # A call of an earlier boot of this process may have been first.
            self._wait_for_start(phase, instance.uuid)
            if not self._is_active(instance):
                raise

    def _persist(self, phase: str, instance: Instance, migrate_data: LiveMigrateData) -> None:
        def persist(connection: Any) -> None:
            domain = connection.lookupByUUIDString(instance.uuid)
            if not domain.isPersistent() and migrate_data.source['persistent']:
                # An earlier call may have started the guest from another definition.
                root = read(instance, migrate_data.source)
                Bounds(self.conf, connection).refuse_definition(instance, migrate_data, root)
                connection.defineXML(self._definition(migrate_data))
            if migrate_data.source['autostart'] and domain.isPersistent():
                domain.setAutostart(1)
            if migrate_data.source['persistent'] and not domain.isPersistent():
                reason = f'guest {instance.uuid} is started at {self.host}, and not defined there'
                raise exception.DriverError(host=self.host, phase=phase, reason=reason)

        self.connection.call(phase, persist)

    def _let_start_begin(self) -> None:
        """Wait for a start that did not return: after this time it has begun, and nothing is started later."""
        self._threads.sleep(_QUIET)

    def _wait_for_start(self, phase: str, instance_uuid: str) -> None:
        """Wait until libvirt has started a guest, or has failed to, if an earlier call asked for that."""
        clock = self._threads.clock
        until = clock.monotonic() + _START
        while self.connection.call(phase, lambda each: _is_starting(each, instance_uuid)):
            if clock.monotonic() >= until:
                reason = f'libvirt has been starting guest {instance_uuid} for {_START:g} s'
                raise exception.DriverError(host=self.host, phase=phase, reason=reason)
            self._threads.sleep(_QUIET / 2)


def _is_starting(connection: Any, instance_uuid: str) -> bool:
    domain = find_domain(connection, instance_uuid)
    starting = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP]
    return domain is not None and domain.state() == starting


# --- at the source ---------------------------------------------------------------------------------------------------


def describe(
    connection: Any, conf: cfg.ConfigOpts, instance_uuid: str, new_uuid: Callable[[], str]
) -> dict[str, Any] | None:
    """Return what another host needs to start a guest, or None if there is no such guest.

    :param connection: a ``libvirt.virConnect``.
    :param conf: with the options of :mod:`migrator.conf.libvirt` registered.
    :param new_uuid: returns a name for a new marker.
    """
    instances_path = os.path.abspath(conf.instances_path)
    domain = find_domain(connection, instance_uuid)
    if domain is None:
        return None
    # What this host itself would start after a loss of power. Passwords stay here: no message contains one.
    definition = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    complete = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
    files: dict[str, dict[str, Any]] = {}
    for disk in writable_disks(connection, definition):
        if is_still_to_come(disk, definition):
            files[disk.path] = {'absent': True}
            continue
        try:
            for path in chain_of(disk, in_use=True):
                files[path] = identity.identify(path, instances_path, new_uuid)
        except (OSError, exception.DriverError) as error:
            files[disk.path] = {'error': str(error)}
    obstacle = why_immovable(domain)
    read_only = files_read(instances_path, definition, volumes=volumes_read(connection, definition))
    found = {
        'xml': definition,
        'password': complete != definition,
        'persistent': bool(domain.isPersistent()),
        'autostart': bool(domain.autostart()),
        'saved': bool(domain.hasManagedSaveImage(0)),
        'files': files,
        'files_read': [vars(disk) for disk in read_only],
        'own_addresses': consoles.own(conf, definition),
        'seen': paths_seen(definition),
        'immovable': f'it {obstacle}' if obstacle is not None else None,
    }
    return found | {'unstartable': why_unstartable(Bounds(conf, connection), found)}


# --- at the destination ----------------------------------------------------------------------------------------------


def check(connection: Any, conf: cfg.ConfigOpts, instance: Instance, migrate_data: LiveMigrateData) -> list[str]:
    """Check that this host can start a guest, and return the files and devices of its disks.

    :param connection: a ``libvirt.virConnect``.
    :param conf: with the options of :mod:`migrator.conf.libvirt` registered.
    :raises migrator.exception.MigrationPreCheckError: the host cannot start the guest.
    """
    remedy = f'repair host {instance.host}, or define the guest by hand'
    other = f'or repair {instance.host} if the disk is its own'
    bounds = Bounds(conf, connection)
    disks, missing = check_definition(connection, bounds, instance, migrate_data, remedy, consoles.of_host(conf))
    for disk in (disk for disk in missing if not disk.optional):
        raise exception.MigrationPreCheckError(
            reason=f'host {bounds.host} does not have {disk.path} of guest {instance.uuid}: provide it there, {other}'
        )
    identities = migrate_data.source.get('files', {})
    return [path for disk in disks for path in files_written(disk, conf.host, instance, identities, disk.shared, other)]


def files_written(
    disk: storage.Disk,
    host: str,
    instance: Instance,
    identities: dict[str, dict[str, Any]],
    in_use: bool,
    remedy: str,
) -> list[str]:
    """Return the files or devices of a disk.

    :param host: the name of this host, for errors.
    :param identities: what the source has reported of each file.
    :param in_use: whether a QEMU may use the disk.
    :param remedy: what else to do than to mount the storage of the source.
    :raises migrator.exception.MigrationPreCheckError: the disk is missing here, may be another one, or is in use.
    """
    if disk.kind == 'network':
        return []
    if not os.path.exists(disk.path):
        raise exception.MigrationPreCheckError(
            reason=f'host {host} does not see {disk.path} (disk {disk.target}) of guest {instance.uuid}: mount the '
            f'storage of {instance.host} there, {remedy}'
        )
    try:
        # The identity comes first: a disk of this host under the same path may well be in use.
        _refuse_other(disk.path, disk, host, instance, identities, remedy)
        chain = chain_of(disk, in_use)
        for path in chain:
            _refuse_other(path, disk, host, instance, identities, remedy)
    except (OSError, exception.DriverError) as error:
        raise exception.MigrationPreCheckError(
            reason=f'host {host} cannot use {disk.path} (disk {disk.target}) of guest {instance.uuid}: {error}'
        ) from error
    return chain


def _refuse_other(
    path: str, disk: storage.Disk, host: str, instance: Instance, identities: dict[str, dict[str, Any]], remedy: str
) -> None:
    facts = identities.get(path, {'error': 'it was no disk of the guest when it reported the definition'})
    if 'error' in facts:
        problem = f'{instance.host} could not identify it: {facts["error"]}'
    else:
        problem = identity.difference(path, facts)
    if problem:
        raise exception.MigrationPreCheckError(
            reason=f'{path} (disk {disk.target} of guest {instance.uuid}) cannot be shown to be the same at '
            f'{instance.host} and {host}: {problem}. Mount the storage of {instance.host} there, {remedy}'
        )
