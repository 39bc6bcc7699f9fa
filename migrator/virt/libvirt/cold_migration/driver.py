# SPDX-License-Identifier: Apache-2.0

"""The part of the libvirt driver that moves a guest while it is powered off.

The destination starts the guest from its definition, as after an evacuation. It uses the disks that it can prove to be
the source's. Files of which it has none are copied by the source, through the destination's daemon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
from oslo_log import log as logging

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData, protocol
from migrator.virt.libvirt import checks, evacuation, identity, plans, records, storage
from migrator.virt.libvirt.base import on_disk
from migrator.virt.libvirt.cold_migration import copies, resizes, users
from migrator.virt.libvirt.connection import POLL_INTERVAL, Connection, code_of
from migrator.virt.libvirt.definition import consoles
from migrator.virt.libvirt.definition.bounds import Bounds
from migrator.virt.libvirt.definition.disks import named_files, writable_disks
from migrator.virt.libvirt.definition.needs import check_definition, files_of
from migrator.virt.libvirt.definition.obstacles import obstacle_of, passing_disk, pending_disk, refuse_merging
from migrator.virt.libvirt.guest import remove_domain

LOG = logging.getLogger(__name__)

#: Seconds after which a guest that has not shut down is asked again.
_ASK_AGAIN = 10.0
_MOVABLE = (*protocol.ACTIVE, GuestState.SHUTDOWN)


class ColdMigratingDriver(evacuation.EvacuatingDriver):
    """The driver of the libvirt daemon of this host, with its cold migrations."""

    resizes = True

    # --- checks ------------------------------------------------------------------------------------------------------

    @on_disk
    def check_can_migrate_source(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.check_can_migrate_source`."""
        self.refuse_immovable(instance)
        unencrypted = plans.unencrypted(self.conf, live=False)
        if self.conf.libvirt.require_encryption and unencrypted:
            raise exception.MigrationPreCheckError(reason=unencrypted)

        def ask(connection: Any) -> tuple[dict[str, Any], list[storage.Disk]]:
            domain = connection.lookupByUUIDString(instance.uuid)
            if obstacle := obstacle_of(domain) or pending_disk(domain) or passing_disk(domain):
                raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} of {self.host} {obstacle}')
            facts = evacuation.describe(connection, self.conf, instance.uuid, self._threads.new_uuid) or {}
            disks = [disk for disk in writable_disks(connection, facts['xml']) if not _is_absent(facts, disk)]
            return facts, [measured(domain, disk) for disk in disks]

        try:
            facts, disks = self.connection.call('check_can_migrate_source', ask)
        except OSError as error:
            raise exception.MigrationPreCheckError(
                reason=f'cannot examine a disk of guest {instance.uuid} at {self.host}: {error}'
            ) from error
        if migrate_data.new_flavor is not None:
            facts |= resizes.plan(instance, migrate_data.new_flavor, facts['xml'], disks)
        for disk in disks:
            refuse_merging(instance, disk)
        named = {disk.target: disk for disk in storage.defined_disks(facts['xml'])}
        kept = {disk.target: _why_kept(disk, named.get(disk.target, disk)) for disk in disks}
        movable = [disk.path for disk in disks if not kept[disk.target]]
        used = self._used_by_others('check_can_migrate_source', instance, movable)
        return migrate_data.replace(
            source={
                **facts,
                'host': self.host,
                'unencrypted': unencrypted or '',
                'disks': [vars(disk) | {'kept': kept[disk.target] or used.get(disk.path, '')} for disk in disks],
            }
        )

    @on_disk
    def check_can_migrate_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.check_can_migrate_destination`."""
        self._refuse_present(instance)
        unknown = f'{migrate_data.source.get("host")} does not report whether it encrypts what it sends: upgrade it'
        if self.conf.libvirt.require_encryption and (obstacle := migrate_data.source.get('unencrypted', unknown)):
            raise exception.MigrationPreCheckError(reason=str(obstacle))
        files, copied = self._sort('check_can_migrate_destination', instance, migrate_data)
        resizes.refuse_read_only(self.host, migrate_data)
        for disk in copied:
            # What earlier migrations of the guest have left.
            self._remove_drafts('check_can_migrate_destination', instance, copies.draft_of(disk, instance.uuid, '*'))
        token = self._threads.new_uuid()
        self._incoming.refuse_too_little(instance.uuid, copied, migrate_data)
        there = {
            'host': self.host,
            'hypervisor_uuid': self.connection.identity('check_can_migrate_destination') if copied else '',
            'inbound_addr': self.conf.libvirt.live_migration_inbound_addr or '',
            'files': files,
            'copies': {disk.target: copies.draft_of(disk, instance.uuid, token) for disk in copied},
            'owner': [os.geteuid(), os.getegid()],
            'token': token,
            'require_encryption': self.conf.libvirt.require_encryption,
        }
        try:
            checks.uri_host(there)
        except ValueError as error:
            raise exception.MigrationPreCheckError(reason=str(error)) from None
        # The guest has left since an earlier migration to here. What was made for it may be its disk by now.
        self._records.remove(records.ARRIVED, instance.uuid)
        return migrate_data.replace(block_migration=bool(copied), is_shared_storage=not copied, destination=there)

    # --- the move ----------------------------------------------------------------------------------------------------

    @on_disk
    def migrate_disk_and_power_off(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.migrate_disk_and_power_off`.

        The destination's daemon has to answer before the guest is powered off, if there are disks to copy.
        """
        phase, there = 'migrate_disk_and_power_off', migrate_data.destination
        guest = self.get_guest(instance.uuid)
        if guest.state not in _MOVABLE or guest.job:
            raise self._error(
                phase,
                f'guest {instance.uuid} is {"being migrated" if guest.job else guest.state}: it must be running, '
                'paused or shut off, without a live migration',
            )
        checked = storage.defined_disks(migrate_data.source['xml'])
        power_on, ours = (
            bool(migrate_data.source['power_on']),
            self._records.read(records.OUTGOING, instance.uuid) or {},
        )
        if guest.state == GuestState.SHUTDOWN and power_on and ours.get('token') != _token(migrate_data):
            raise self._error(phase, f'guest {instance.uuid} has been shut off since the check: look where it runs')
        plans.refuse_other_disks(self.connection, phase, instance, checked, libvirt.VIR_DOMAIN_XML_INACTIVE)
        copied = copied_to(migrate_data)
        self._refuse_disks_of_others(phase, instance, [disk for disk, _draft in copied])
        # The configuration may have changed since the checks.
        if copied and plans.must_encrypt(self.conf, there) and (reason := plans.unencrypted(self.conf, live=False)):
            raise self._error(phase, reason)
        with self._reaching(phase, there, bool(copied)) as destination:
            drafts = [draft for _disk, draft in copied]
            if guest.state != GuestState.SHUTDOWN:
                # What an earlier call may have copied is not what the guest has now.
                for draft in drafts:
                    destination.call(phase, functools.partial(copies.delete, draft=draft))
            facts = {
                'power_on': power_on,
                'host': there.get('host'),
                'uri': destination.uri,
                'drafts': drafts,
                'token': _token(migrate_data),
            }
            if guest.state == GuestState.RUNNING:
                facts['asked_until'] = self._threads.clock.monotonic() + self.conf.shutdown_timeout
            self.jobs.leave(instance.uuid, facts)
            # A start here whose last part failed left this record. What it names are the disks of the guest.
            self._records.remove(records.INCOMING, instance.uuid)
            self._power_off(phase, instance.uuid)
            for disk, draft in copied:
                self._send(phase, destination, instance, disk, draft, tuple(there['owner']))

    @on_disk
    def finish_migration(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.finish_migration`."""
        phase, power_on = 'finish_migration', bool(migrate_data.source['power_on'])
        self._wait_for_start(phase, instance.uuid)
        arriving = self._records.read(records.INCOMING, instance.uuid) is not None
        if self.get_guest(instance.uuid).state == GuestState.SHUTDOWN and not arriving:
            # An earlier call has finished. The guest may have ended since, such as by a restart of this host.
            if power_on:
                self._call_start(phase, instance, lambda each: each.lookupByUUIDString(instance.uuid).create())
            return
        if not self._is_active(instance):
            # An earlier migration of the guest away from here left this record. The guest has gone since.
            self._records.remove(records.OUTGOING, instance.uuid)
            copied = copied_to(migrate_data)
            self.connection.call(
                phase, lambda each: Bounds(self.conf, each).refuse_copies(instance, [disk for disk, _draft in copied])
            )
            self._incoming.begin(instance.uuid, _token(migrate_data))
            for disk, draft in copied:
                self._incoming.adopt(instance.uuid, disk, draft)
            # The storage may have gone since the check.
            self._sort(phase, instance, migrate_data, migrate_data.destination['copies'])
            resizes.grow(self.host, migrate_data)
            self._start(phase, instance, migrate_data, power_on)
        self._persist(phase, instance, migrate_data)
        # The source names them, so nothing but the NVRAM of the definition is taken for a file that libvirt has made.
        for disk in self.connection.call(phase, lambda each: writable_disks(each, migrate_data.source['xml'])):
            if disk.target == 'nvram' and _is_absent(migrate_data.source, disk):
                self._incoming.claim(instance.uuid, disk.path)
        self._incoming.note_arrival(instance.uuid)

    # --- the end -----------------------------------------------------------------------------------------------------

    @on_disk
    def confirm_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.confirm_migration_at_source`."""
        copied = [disk for disk, _draft in copied_to(migrate_data)]
        self._remove_moved('confirm_migration_at_source', instance, copied)

    @on_disk
    def revert_migration_at_destination(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.revert_migration_at_destination`."""
        if self._records.read(records.INCOMING, instance.uuid) is not None:
            self._let_start_begin()
        self.connection.call('revert_migration_at_destination', lambda each: remove_domain(each, instance.uuid))
        # A migration that was abandoned before its checks has made nothing.
        for kind in (records.INCOMING, records.ARRIVED) if migrate_data.destination else ():
            self._incoming.remove(instance.uuid, kind, _token(migrate_data))
        for _disk, draft in copied_to(migrate_data):
            self._remove_drafts('revert_migration_at_destination', instance, draft)

    @on_disk
    def revert_migration_at_source(self, instance: Instance, migrate_data: LiveMigrateData) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.revert_migration_at_source`."""
        phase = 'revert_migration_at_source'
        guest = self.get_guest(instance.uuid)
        if guest.state in (GuestState.ABSENT, GuestState.WAITING):
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)
        facts = self._records.read(records.OUTGOING, instance.uuid) or {}
        if 'power_on' not in facts:
            return
        # What an earlier migration has left does not say whether the guest should run now.
        is_ours = facts.get('token', '') == _token(migrate_data)
        if is_ours and facts['power_on']:
            # A guest that was asked to shut down may do so later, and would stay off. The clock is that of the system,
            # also after a restart of this service.
            left = facts.get('asked_until', 0) - self._threads.clock.monotonic()
            self._wait_for_end(instance.uuid, min(left, self.conf.shutdown_timeout))
            if self.get_guest(instance.uuid).state == GuestState.SHUTDOWN:
                self._call_start(phase, instance, lambda each: each.lookupByUUIDString(instance.uuid).create())
        if facts['drafts']:
            self._delete_copies(phase, instance, facts)
        self.jobs.keep(instance.uuid)

    # --- helpers -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reaching(self, phase: str, there: dict[str, Any], now: bool = True) -> Iterator[Connection]:
        """Yield a connection to the daemon of the destination.

        :param there: what the destination's check has returned.
        :param now: whether that daemon has to answer, and to be that of the destination.
        """
        uri = plans.uri_of(self.conf, there)
        destination = Connection(uri, str(there.get('host')), self._threads, self.connection.deadline)
        try:
            found = destination.identity(phase) if now else ''
            if reason := checks.another_host(self.host, uri, there, found):
                raise self._error(phase, reason)
            yield destination
        finally:
            destination.close()

    def _send(
        self,
        phase: str,
        destination: Connection,
        instance: Instance,
        disk: storage.Disk,
        draft: str,
        owner: tuple[int, int],
        made: bool = False,
    ) -> None:
        """Copy a disk to its draft at the destination; see :func:`.copies.upload`."""
        with copies.content_of(self.host, disk, instance.uuid) as path:
            sent = functools.partial(copies.upload, path=path, draft=draft, owner=owner, made=made)
            destination.do(phase, sent, lasts=True)

    def refuse_immovable(self, instance: Instance) -> None:
        """Refuse a guest that is not here, or is in the middle of something.

        :raises migrator.exception.MigrationPreCheckError: the message says what.
        """
        guest = self.get_guest(instance.uuid)
        if guest.state not in _MOVABLE or guest.job:
            held = 'being migrated' if guest.job else guest.state
            raise exception.MigrationPreCheckError(
                reason=f'guest {instance.uuid} is {held} at {self.host}: it must be running, paused or shut off'
            )

    def _sort(
        self, phase: str, instance: Instance, migrate_data: LiveMigrateData, made: dict[str, str] | None = None
    ) -> tuple[list[str], list[storage.Disk]]:
        """Return the files that this host has of the guest's disks, and the disks that have to be copied.

        :param made: the disks that were copied, by target; None before that, while the guest may run at its source.
        :raises migrator.exception.MigrationPreCheckError: this host cannot start the guest.
        """
        remedy = f'remove that part from the definition of the guest, or leave the guest at {instance.host}'
        addresses = consoles.of_host(self.conf)
        other = 'or move the file of that name away'
        identities = migrate_data.source.get('files', {})
        checked = {facts['target']: facts for facts in migrate_data.source.get('disks', [])}

        def sort(connection: Any) -> tuple[list[str], list[storage.Disk]]:
            files: list[str] = []
            copied: list[storage.Disk] = []
            bounds = Bounds(self.conf, connection)
            disks, missing = check_definition(connection, bounds, instance, migrate_data, remedy, addresses)
            bounds.refuse_growth(instance, migrate_data, disks)
            copied += missing
            for disk in disks:
                if made is not None and disk.target in made:
                    continue
                if made is None and disk.kind != 'network' and not os.path.exists(disk.path):
                    facts = checked.get(disk.target, {})
                    if (facts.get('kind'), facts.get('path')) != (disk.kind, disk.path):
                        raise exception.MigrationPreCheckError(
                            reason=f'host {self.host} does not see {disk.path}, disk {disk.target} of guest '
                            f'{instance.uuid}, and {instance.host} has described another disk: request the '
                            'migration again'
                        )
                    if facts['kept']:
                        raise exception.MigrationPreCheckError(
                            reason=f'host {self.host} does not see {disk.path}, disk {disk.target} of guest '
                            f'{instance.uuid}. The disk is not copied, because it {facts["kept"]}: provide the storage '
                            f'of {instance.host} there'
                        )
                    copied.append(storage.Disk.of(facts))
                    continue
                used = made is None or disk.shared
                files += evacuation.files_written(disk, self.host, instance, identities, used, other)
            bounds.refuse_copies(instance, copied)
            return files, copied

        return self.connection.call(phase, sort)

    def _refuse_disks_of_others(self, phase: str, instance: Instance, copied: list[storage.Disk]) -> None:
        """Refuse to send what is no disk of the guest: the destination has returned the names, too."""

        def ask(connection: Any) -> set[str]:
            domain = connection.lookupByUUIDString(instance.uuid)
            definitions = [domain.XMLDesc(flags) for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE)]
            written = [disk for each in definitions for disk in writable_disks(connection, each)]
            return {disk.path for disk in [*written, *named_files(*definitions)]}

        if not copied:
            return
        mine = self.connection.call(phase, ask)
        for disk in copied:
            if disk.path not in mine:
                raise self._error(
                    phase, f'{disk.path} is no disk of guest {instance.uuid}: request the migration again'
                )

    def _remove_moved(self, phase: str, instance: Instance, copied: list[storage.Disk]) -> None:
        """Remove what is left of a guest that has moved to another host.

        A copied disk that other guests of this host use is kept.

        :param copied: its disks that were copied there.
        :raises migrator.exception.GuestStillHere: the guest is here and could run. Nothing was done.
        """
        guest = self.get_guest(instance.uuid)
        if guest.job or guest.state in protocol.IN_USE:
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=phase)
        if guest.state in (GuestState.CUTOVER, GuestState.SHUTDOWN):
            # It is no arriving guest, so what an earlier arrival has recorded is out of date.
            self._records.remove(records.INCOMING, instance.uuid)
            self._remove(phase, instance, (GuestState.CUTOVER, GuestState.SHUTDOWN))
        used = self._used_by_others(phase, instance, [disk.path for disk in copied])
        used |= self.connection.call(phase, lambda each: Bounds(self.conf, each).outside(copied))
        for disk in copied:
            if disk.path in used:
                LOG.warning(
                    'Kept disk %(path)s of guest %(guest)s, which was copied to the destination: it %(reason)s; remove '
                    'the file when no guest needs it',
                    {'path': disk.path, 'guest': instance.uuid, 'reason': used[disk.path]},
                )
            elif disk.read_only and instance.uuid not in pathlib.Path(os.path.realpath(disk.path)).parts:
                # Others may expect it here, such as the image of a CD that many guests have been installed from. A
                # guest's directory may have a symbolic link to it.
                LOG.info(
                    'Kept %(path)s, which guest %(guest)s only read, and which was copied to the destination',
                    {'path': disk.path, 'guest': instance.uuid},
                )
            elif storage.remove_file(disk.path, disk.inode):
                LOG.info(
                    'Removed disk %(path)s of guest %(guest)s, which was copied to the destination',
                    {'path': disk.path, 'guest': instance.uuid},
                )
                storage.remove_directory(disk.path, self.conf.instances_path)
        self._records.remove(records.OUTGOING, instance.uuid)
        self._records.remove(records.ARRIVED, instance.uuid)
        self.connection.forget(instance.uuid)

    def _used_by_others(self, phase: str, instance: Instance, paths: list[str]) -> dict[str, str]:
        """Return why files of a guest are needed here without it, as :func:`.users.used`."""
        if not paths:
            return {}
        return users.used(paths, self.connection.call(phase, lambda each: users.disks_of_others(each, instance.uuid)))

    def _power_off(self, phase: str, instance_uuid: str) -> None:
        """Shut the guest down, or power it off if it does not shut down in time."""
        self._wait_for_end(
            instance_uuid, self.conf.shutdown_timeout, lambda: self._try_to_shut_down(phase, instance_uuid)
        )

        def destroy(connection: Any) -> None:
            domain = connection.lookupByUUIDString(instance_uuid)
            if domain.isActive():
                LOG.info('Powering off guest %s, which is still active', instance_uuid)
                domain.destroy()

        try:
            self.connection.call(phase, destroy)
        except exception.DriverError:
            # It may have ended just before.
            if self.get_guest(instance_uuid).state != GuestState.SHUTDOWN:
                raise

    def _wait_for_end(self, instance_uuid: str, seconds: float, ask: Callable[[], None] = lambda: None) -> None:
        """Wait until the guest runs no longer, but not longer than a number of seconds.

        A daemon that cannot be reached may be restarting, so it is polled again.

        :param ask: called at once if the guest runs, and then every :data:`_ASK_AGAIN` seconds.
        """
        clock = self._threads.clock
        until = clock.monotonic() + seconds
        ask_at = clock.monotonic()
        self.connection.listen()
        with self.connection.waker.listen(instance_uuid) as news:
            while self._may_run(instance_uuid) and clock.monotonic() < until:
                if clock.monotonic() >= ask_at:
                    ask_at = clock.monotonic() + _ASK_AGAIN
                    ask()
                news.wait(min(POLL_INTERVAL, max(0.0, until - clock.monotonic())))
                news.clear()

    def _may_run(self, instance_uuid: str) -> bool:
        try:
            return self.get_guest(instance_uuid).state == GuestState.RUNNING
        except exception.MigratorException as error:
            LOG.info('Cannot query guest %(guest)s: %(error)s', {'guest': instance_uuid, 'error': error})
            return True

    def _try_to_shut_down(self, phase: str, instance_uuid: str) -> None:
        try:
            self.connection.call(phase, lambda connection: connection.lookupByUUIDString(instance_uuid).shutdown())
        except exception.MigratorException as error:
            LOG.info('Cannot ask guest %(guest)s to shut down: %(error)s', {'guest': instance_uuid, 'error': error})

    def _remove_drafts(self, phase: str, instance: Instance, draft: str) -> None:
        """Remove the drafts of a guest with a path, whose last part may have wildcards, and their pools.

        A message that names anything else is ignored.
        """
        if not os.path.basename(draft).startswith(f'{instance.uuid}-') or not draft.endswith('.draft'):
            return
        self.connection.call(phase, lambda each: copies.undefine_pools(each, draft))
        copies.remove(draft)

    def _delete_copies(self, phase: str, instance: Instance, facts: dict[str, Any]) -> None:
        """Delete the copies that no guest was started from, as far as the destination can be reached."""
        destination = Connection(facts['uri'], str(facts['host']), self._threads, self.connection.deadline)
        try:
            for draft in facts['drafts']:
                destination.call(phase, functools.partial(copies.delete, draft=draft))
        except exception.MigratorException as error:
            LOG.warning(
                'Cannot delete the copied disks of guest %(guest)s at %(host)s: %(error)s. The next cold migration of '
                'the guest to that host deletes them. To delete them now: %(drafts)s',
                {
                    'guest': instance.uuid,
                    'host': facts['host'],
                    'drafts': ', '.join(facts['drafts']),
                    'error': error,
                },
            )
        finally:
            destination.close()

    def _error(self, phase: str, reason: str) -> exception.DriverError:
        return exception.DriverError(host=self.host, phase=phase, reason=reason)


def copied_to(migrate_data: LiveMigrateData) -> list[tuple[storage.Disk, str]]:
    """Return the disks that are copied, each with the path of its copy before it has the disk's name."""
    drafts = migrate_data.destination.get('copies', {})
    disks = [*storage.disks_of(migrate_data), *files_of(migrate_data.source)]
    return [(disk, drafts[disk.target]) for disk in disks if disk.target in drafts]


def _token(migrate_data: LiveMigrateData) -> str:
    """Return the token of a migration, or '' before the check of its destination."""
    return str(migrate_data.destination.get('token', ''))


def _is_absent(facts: dict[str, Any], disk: storage.Disk) -> bool:
    return bool(facts['files'].get(disk.path, {}).get('absent'))


def measured(domain: Any, disk: storage.Disk) -> storage.Disk:
    """Return a disk with its size and its inode, if it may have to be copied."""
    if disk.kind != 'file':
        return disk
    found = os.stat(disk.path)
    disk = dataclasses.replace(disk, inode=found.st_ino, size=found.st_size, allocation=found.st_blocks * 512)
    try:
        return disk if disk.target == 'nvram' else storage.with_size(domain, disk)
    except libvirt.libvirtError as error:
        if code_of(error) != libvirt.VIR_ERR_INVALID_ARG:
            raise
        # The guest runs without it, and gets it with its next start.
        return disk


def _why_kept(disk: storage.Disk, named: storage.Disk) -> str:
    """Return why a disk is never copied, or '' if it can be.

    :param named: the disk as the definition names it.
    """
    if disk.kind != 'file':
        return f'is of type {disk.kind}'
    if named.kind == 'volume':
        return 'is a volume of a storage pool'
    if disk.shared:
        return 'is defined as shareable'
    kind = identity.filesystem_of(disk.path)
    return f'is on {kind}' if kind in identity.SHARED_FILESYSTEMS else ''
