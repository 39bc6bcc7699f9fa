# SPDX-License-Identifier: Apache-2.0

"""The driver of QEMU/KVM through libvirt.

:mod:`migrator.virt.driver` defines its contract.
"""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import libvirt

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData, protocol
from migrator.virt import driver
from migrator.virt.driver import Verdict
from migrator.virt.libvirt import checks, identity, plans, records, storage
from migrator.virt.libvirt.base import on_disk
from migrator.virt.libvirt.cold_migration.here import ResizingDriver
from migrator.virt.libvirt.definition import consoles
from migrator.virt.libvirt.definition.disks import volumes_of
from migrator.virt.libvirt.definition.needs import needs_of, refuse_missing
from migrator.virt.libvirt.definition.obstacles import why_immovable
from migrator.virt.libvirt.host import host_cpu, host_uuid

#: The prefix of the file that the destination's check leaves in instances_path, and that the source looks for.
CHECK_FILE = '.migrator-check-'


class LibvirtDriver(ResizingDriver):
    """The driver of the libvirt daemon of this host, with its live migrations."""

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_can_live_migrate_destination(
        self, instance: Instance, block_migration: bool | None, disk_over_commit: bool
    ) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_destination`."""
        guest = self.get_guest(instance.uuid)
        if guest.state not in (GuestState.ABSENT, GuestState.WAITING):
            raise exception.MigrationPreCheckError(
                reason=f'host {self.host} already has guest {instance.uuid}, which is {guest.state}'
            )

        def ask(connection: Any) -> dict[str, Any]:
            return {
                'hypervisor_type': connection.getType(),
                'hypervisor_version': connection.getVersion(),
                'hypervisor_uuid': host_uuid(connection.getCapabilities()),
            }

        libvirt_conf = self.conf.libvirt
        if obstacle := libvirt_conf.require_encryption and plans.unencrypted(self.conf, live=True):
            raise exception.MigrationPreCheckError(reason=obstacle)
        facts = self.connection.call('check_can_live_migrate_destination', ask)
        token = self._threads.new_uuid()
        # An NFS client caches for a minute that a file does not exist. So each check uses a new name.
        path = f'{self._check_file(instance)}-{token}'
        try:
            os.makedirs(self.conf.instances_path, exist_ok=True)
            pathlib.Path(path).write_text(token)
        except OSError as error:
            raise exception.MigrationPreCheckError(
                reason=f'cannot write to instances_path ({self.conf.instances_path}) of host {self.host}: {error}'
            ) from error
        return LiveMigrateData(
            block_migration=block_migration,
            disk_over_commit=disk_over_commit,
            destination={
                **facts,
                'host': self.host,
                'inbound_addr': libvirt_conf.live_migration_inbound_addr or '',
                'check_file': path,
                'check_token': token,
                'disk_available': storage.available(self.conf.instances_path),
                'post_copy': libvirt_conf.live_migration_permit_post_copy,
                'native_tls': libvirt_conf.live_migration_with_native_tls,
                'require_encryption': libvirt_conf.require_encryption,
                'listens': consoles.of_host(self.conf),
            },
        )

    def check_can_live_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.check_can_live_migrate_source`."""
        guest = self.get_guest(instance.uuid)
        if guest.state not in protocol.ACTIVE or guest.job:
            held = 'already being migrated' if guest.job else guest.state
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} is {held} at {self.host}: it must be running or paused'
            )
        there = migrate_data.destination
        try:
            checks.uri_host(there)
        except ValueError as error:
            raise exception.MigrationPreCheckError(reason=str(error)) from None
        if obstacle := plans.must_encrypt(self.conf, there) and plans.unencrypted(self.conf, live=True):
            raise exception.MigrationPreCheckError(reason=obstacle)
        check_file = str(there.get('check_file', ''))
        sees = _holds(check_file, str(there.get('check_token', '')))

        def is_shared(path: str) -> bool:
            if check_file and identity.is_below(path, os.path.dirname(check_file)):
                return sees
            return identity.filesystem_of(path) in identity.SHARED_FILESYSTEMS

        def ask(connection: Any) -> dict[str, Any]:
            domain, capabilities = connection.lookupByUUIDString(instance.uuid), connection.getCapabilities()
            return {
                'hypervisor_type': connection.getType(),
                'hypervisor_version': connection.getVersion(),
                'hypervisor_uuid': host_uuid(capabilities),
                'host_cpu': host_cpu(capabilities),
                'obstacle': why_immovable(domain),
                'autostart': bool(domain.autostart()),
                'persistent': bool(domain.isPersistent()),
                'xml': domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE),
                'disks': [storage.with_size(domain, disk) for disk in storage.defined_disks(domain.XMLDesc(0))],
                'volumes': volumes_of(connection, domain.XMLDesc(0)),
                'later': domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE),
            }

        facts = self.connection.call('check_can_live_migrate_source', ask)
        facts['native_tls'] = self.conf.libvirt.live_migration_with_native_tls
        checks.refuse_hypervisor(self.host, facts, there)
        if obstacle := plans.another_host(self.conf, there, self._threads):
            raise exception.MigrationPreCheckError(reason=obstacle)
        xml = ElementTree.fromstring(facts['xml'])  # noqa: S314 -- libvirt wrote it
        if facts['obstacle'] is not None:
            raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} {facts["obstacle"]}')
        try:
            disks = [storage.with_identity(disk, is_shared) for disk in facts['disks']]
            volumes = [storage.with_identity(disk, is_shared) for disk in facts['volumes']]
            checks.refuse_local_volumes(instance, volumes, is_shared)
            if not sees:
                place = os.path.dirname(check_file)
                checks.refuse_unseen(instance, [disk for disk in facts['disks'] if identity.is_below(disk.path, place)])
        except OSError as error:
            raise exception.MigrationPreCheckError(
                reason=f'cannot examine a disk of guest {instance.uuid}: {error}'
            ) from error
        checks.refuse_encrypted(instance, xml, disks, there.get('host'))
        block = checks.block_migration(instance, migrate_data, disks, sees)
        return migrate_data.replace(
            block_migration=block,
            is_shared_storage=not block,
            source={
                'host': self.host,
                'state': guest.state,
                'autostart': facts['autostart'],
                'persistent': facts['persistent'],
                'cpu': checks.processor_of(xml, facts['host_cpu']),
                'disks': [vars(disk) for disk in disks],
                'copied_gib': [disk.size / 2**30 for disk in disks if not disk.shared],
                'volumes': [vars(disk) for disk in volumes],
                'logs': storage.logs_of(xml),
                'needs': needs_of(xml),
                'own_addresses': consoles.own(self.conf, facts['xml'], facts['later']),
            },
        )

    @on_disk
    def cleanup_live_migration_destination_check(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.cleanup_live_migration_destination_check`."""
        mine = pathlib.Path(self._check_file(instance))
        for path in mine.parent.glob(f'{glob.escape(mine.name)}-*'):
            path.unlink(missing_ok=True)

    # --- migration ---------------------------------------------------------------------------------------------------

    @on_disk
    def pre_live_migration(
        self, instance: Instance, migrate_data: LiveMigrateData, token: driver.CancelToken
    ) -> LiveMigrateData:
        """See :meth:`driver.ComputeDriver.pre_live_migration`."""
        token.raise_if_cancelled()
        guest = self.get_guest(instance.uuid)
        if guest.state not in (GuestState.ABSENT, GuestState.WAITING):
            raise exception.MigrationPreCheckError(
                reason=f'host {self.host} already has guest {instance.uuid}, which is {guest.state}'
            )
        self._refuse_processor(migrate_data)
        needs = migrate_data.source.get('needs') or {}
        self.connection.call('pre_live_migration', lambda each: refuse_missing(each, self.host, instance, needs))
        # An earlier migration of the guest away from here left this record. The guest has gone since.
        self._records.remove(records.OUTGOING, instance.uuid)
        self._incoming.begin(instance.uuid)
        copied = [disk for disk in storage.disks_of(migrate_data) if not disk.shared]
        self._incoming.refuse_too_little(instance.uuid, copied, migrate_data)
        for disk in storage.disks_of(migrate_data):
            token.raise_if_cancelled()
            if disk.shared:
                self._incoming.check(disk, self.conf.instances_path)
            else:
                self._incoming.make(instance.uuid, disk)
        for facts in migrate_data.source.get('volumes', []):
            self._incoming.check(storage.Disk.of(facts), self.conf.instances_path)
        for path in migrate_data.source.get('logs', []):
            if identity.is_below(path, self.conf.instances_path):
                self._incoming.make_log_directory(instance.uuid, path)
        token.raise_if_cancelled()
        return migrate_data.replace(destination={**migrate_data.destination, 'ready': True})

    @on_disk
    def live_migration(
        self,
        instance: Instance,
        destination: str,
        migrate_data: LiveMigrateData,
        started: Callable[[], None],
    ) -> Verdict:
        """See :meth:`driver.ComputeDriver.live_migration`."""

        def planned(guest: protocol.Guest) -> plans.Plan:
            return plans.plan(self.connection, self.conf, guest, instance, destination, migrate_data)

        return self.jobs.run(instance.uuid, planned, started)

    def attach_live_migration(self, instance_uuid: str) -> Verdict | None:
        """See :meth:`driver.ComputeDriver.attach_live_migration`."""
        return self.jobs.attach(instance_uuid)

    def live_migration_abort(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_abort`."""
        self.jobs.abort(instance.uuid)

    def live_migration_force_complete(self, instance: Instance) -> None:
        """See :meth:`driver.ComputeDriver.live_migration_force_complete`."""
        self.jobs.force_complete(instance.uuid)

    def get_progress(self, instance_uuid: str) -> dict[str, int]:
        """See :meth:`driver.ComputeDriver.get_progress`."""
        return self.jobs.progress(instance_uuid)

    # --- after the job -----------------------------------------------------------------------------------------------

    @on_disk
    def post_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_source`."""
        copied = [disk for disk in storage.disks_of(migrate_data) if not disk.shared]
        self._remove_moved('post_live_migration_at_source', instance, copied)

    @on_disk
    def post_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`driver.ComputeDriver.post_live_migration_at_destination`."""
        guest = self.get_guest(instance.uuid)
        if guest.state in (GuestState.ABSENT, GuestState.WAITING, GuestState.CUTOVER):
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)
        facts = migrate_data.source

        def persist(connection: Any) -> None:
            domain = connection.lookupByUUIDString(instance.uuid)
            if not domain.isPersistent() and facts.get('persistent', True):
                connection.defineXML(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE))
            if facts.get('autostart') and domain.isPersistent():
                domain.setAutostart(1)

        self.connection.call('post_live_migration_at_destination', persist)
        self._incoming.keep(instance.uuid)

    @on_disk
    def rollback_live_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_source`."""
        guest = self.get_guest(instance.uuid)
        if guest.state in (GuestState.ABSENT, GuestState.WAITING):
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)
        phase = 'rollback_live_migration_at_source'
        if guest.job:
            reason = f'the job of guest {instance.uuid} has not ended'
            raise exception.DriverError(host=self.host, phase=phase, reason=reason)
        if guest.state == GuestState.CUTOVER:
            self.connection.call(phase, lambda connection: _resume(connection, instance.uuid))
        self.jobs.keep(instance.uuid)

    @on_disk
    def rollback_live_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData | None) -> None:
        """See :meth:`driver.ComputeDriver.rollback_live_migration_at_destination`."""
        phase = 'rollback_live_migration_at_destination'
        guest = self.get_guest(instance.uuid)
        if guest.present and guest.state != GuestState.WAITING:
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=phase)
        if guest.incoming:
            self._remove(phase, instance, (GuestState.WAITING,))
        self._incoming.remove(instance.uuid)
        self.cleanup_live_migration_destination_check(instance)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _check_file(self, instance: Instance) -> str:
        return os.path.join(os.path.abspath(self.conf.instances_path), f'{CHECK_FILE}{instance.uuid}-{self.host}')

    def _refuse_processor(self, migrate_data: LiveMigrateData) -> None:
        """Refuse a guest whose processor this host does not have.

        Every host can emulate a processor, so a guest with an emulated one is never refused.
        """
        facts = migrate_data.source
        cpu = str(facts.get('cpu') or '')
        if not cpu:
            return

        def ask(connection: Any) -> int:
            return int(connection.compareCPU(cpu, 0))

        if self.connection.call('pre_live_migration', ask) == libvirt.VIR_CPU_COMPARE_INCOMPATIBLE:
            raise exception.MigrationPreCheckError(
                reason=f'the processor of host {self.host} lacks features of the processor that the guest was '
                f'started with on host {facts.get("host")}: {cpu}'
            )


def _resume(connection: Any, instance_uuid: str) -> None:
    domain = connection.lookupByUUIDString(instance_uuid)
    state, reason = domain.state()
    # A pause by the user stays. A guest that runs already needs nothing.
    if state == libvirt.VIR_DOMAIN_PAUSED and reason != libvirt.VIR_DOMAIN_PAUSED_USER:
        domain.resume()


def _holds(path: str, token: str) -> bool:
    """Return whether a file is the one that the other host made.

    This host may have another file of the same name, so the content decides.
    """
    try:
        return pathlib.Path(path).read_text() == token
    except OSError:
        return False
