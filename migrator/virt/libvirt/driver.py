# SPDX-License-Identifier: Apache-2.0

"""The driver of QEMU/KVM through libvirt.

:mod:`migrator.virt.driver` defines its contract.
"""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Callable, Collection
from typing import Any
from xml.etree import ElementTree

import libvirt

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData, protocol
from migrator.virt import driver
from migrator.virt.driver import Verdict
from migrator.virt.libvirt import checks, identity, plans, records, storage
from migrator.virt.libvirt.base import on_disk
from migrator.virt.libvirt.cold_migration import copies
from migrator.virt.libvirt.cold_migration.driver import copied_to
from migrator.virt.libvirt.cold_migration.here import ResizingDriver
from migrator.virt.libvirt.definition import consoles
from migrator.virt.libvirt.definition.bounds import Bounds, read
from migrator.virt.libvirt.definition.disks import files_read, volumes_of, volumes_read
from migrator.virt.libvirt.definition.needs import missing_files, paths_seen
from migrator.virt.libvirt.definition.obstacles import refuse_merging, why_immovable
from migrator.virt.libvirt.host import host_cpu, host_uuid

#: The prefix of the file that the destination's check leaves in instances_path, and that the source looks for.
CHECK_FILE = '.migrator-check-'
#: What the drafts of a live migration are named after. A guest has one at a time, whose rollback removes them.
_LIVE = 'live'


class LibvirtDriver(ResizingDriver):
    """The driver of the libvirt daemon of this host, with its live migrations."""

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_can_live_migrate_destination(
        self,
        instance: Instance,
        block_migration: bool | None,
        disk_over_commit: bool,
        definition: dict[str, Any] | None = None,
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
        judged = self._judge_stored(instance, definition or {})
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
                **judged,
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
                'volumes_read': volumes_read(connection, domain.XMLDesc(0)),
                'later': domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE),
            }

        facts = self.connection.call('check_can_live_migrate_source', ask)
        facts['native_tls'] = self.conf.libvirt.live_migration_with_native_tls
        checks.refuse_hypervisor(self.host, facts, there)
        if obstacle := plans.another_host(self.conf, there, self._threads):
            raise exception.MigrationPreCheckError(reason=obstacle)
        # What the destination has judged may be an hour old. It counts if the definition is still the same.
        if there.get('refusal') and there.get('judged') == identity.digest_of(facts['later']):
            raise exception.MigrationPreCheckError(reason=str(there['refusal']))
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
        for disk in disks:
            if not disk.shared:
                refuse_merging(instance, disk, live=True)
        # With a CD that is only in its configuration, it starts later.
        definitions = facts['xml'], facts['later']
        read_only = files_read(self.conf.instances_path, *definitions, volumes=facts['volumes_read'])
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
                'xml': facts['xml'],
                'files_read': [vars(disk) for disk in read_only],
                'own_addresses': consoles.own(self.conf, facts['xml'], facts['later']),
                'seen': paths_seen(facts['xml']),
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
        made = self._incoming.received(instance.uuid)
        missing = self._missing('pre_live_migration', instance, migrate_data.source, made)
        copied = [disk for disk in storage.disks_of(migrate_data) if not disk.shared] + missing
        self.connection.call('pre_live_migration', lambda each: Bounds(self.conf, each).refuse_copies(instance, copied))
        # An earlier migration of the guest away from here left this record. The guest has gone since.
        self._records.remove(records.OUTGOING, instance.uuid)
        self._incoming.begin(instance.uuid)
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
        drafts = {}
        for disk in missing:
            token.raise_if_cancelled()
            draft = copies.draft_of(disk, instance.uuid, _LIVE)
            if disk.path not in made:
                # Libvirt would take the copy in the pool of an earlier migration for a whole one.
                self._remove_drafts('pre_live_migration', instance, draft)
            drafts[disk.target] = self._incoming.receive(instance.uuid, disk, draft)
        token.raise_if_cancelled()
        ready = {'ready': True, 'copies': drafts, 'owner': [os.geteuid(), os.getegid()]}
        return migrate_data.replace(destination={**migrate_data.destination, **ready})

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
            found = plans.plan(self.connection, self.conf, guest, instance, destination, migrate_data)
            self._send_files(instance, migrate_data)
            return found

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
        copied += [disk for disk, _draft in copied_to(migrate_data)]
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
        self._remove_received('post_live_migration_at_destination', instance)
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
        self._remove_received(phase, instance)
        self._incoming.remove(instance.uuid)
        self.cleanup_live_migration_destination_check(instance)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _check_file(self, instance: Instance) -> str:
        return os.path.join(os.path.abspath(self.conf.instances_path), f'{CHECK_FILE}{instance.uuid}-{self.host}')

    def _judge_stored(self, instance: Instance, definition: dict[str, Any]) -> dict[str, str]:
        """Return why this host could not run a guest of a stored definition, and which that is."""
        if not definition.get('xml'):
            return {}
        try:
            self._missing('check_can_live_migrate_destination', instance, definition)
        except exception.MigrationPreCheckError as error:
            return {'judged': identity.digest_of(definition['xml']), 'refusal': str(error)}
        return {}

    def _missing(
        self, phase: str, instance: Instance, source: dict[str, Any], made: Collection[str] = ()
    ) -> list[storage.Disk]:
        """Return the files of a guest that this host lacks; see :func:`.needs.missing_files`."""
        read(instance, source)
        here = consoles.moved(source['xml'], source.get('own_addresses', ()), consoles.of_host(self.conf))

        def ask(connection: Any) -> list[storage.Disk]:
            return missing_files(connection, Bounds(self.conf, connection), instance, here, source, made)

        return self.connection.call(phase, ask)

    def _send_files(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """Copy the files that the guest only reads and the destination lacks. QEMU copies none of them."""
        phase, there = 'live_migration', migrate_data.destination
        copied = copied_to(migrate_data)
        if not copied:
            return
        self._refuse_disks_of_others(phase, instance, [disk for disk, _draft in copied])
        with self._reaching(phase, there) as destination:
            for disk, draft in copied:
                if disk.identity and identity.fingerprint(disk.path) != disk.identity:
                    reason = (
                        f'{disk.path} (disk {disk.target}) has changed since the check: request the migration again'
                    )
                    raise exception.DriverError(host=self.host, phase=phase, reason=reason)
                self._send(phase, destination, instance, disk, draft, tuple(there['owner']), made=True)

    def _remove_received(self, phase: str, instance: Instance) -> None:
        for draft in self._incoming.received(instance.uuid).values():
            self._remove_drafts(phase, instance, draft)

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
