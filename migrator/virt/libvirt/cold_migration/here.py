# SPDX-License-Identifier: Apache-2.0

"""The part of the libvirt driver that resizes a guest at its host.

The guest has one definition. The new one replaces the old one, and keeps it in its metadata
(:mod:`migrator.virt.libvirt.cold_migration.marks`). So libvirt itself shows how far an interrupted call has come.
"""

from __future__ import annotations

from typing import Any

import libvirt
from oslo_log import log as logging

from migrator import exception
from migrator.objects import GuestState, Instance, LiveMigrateData
from migrator.virt.libvirt import plans, storage
from migrator.virt.libvirt.base import on_disk
from migrator.virt.libvirt.cold_migration import marks, resizes
from migrator.virt.libvirt.cold_migration.driver import ColdMigratingDriver, measured
from migrator.virt.libvirt.definition.disks import writable_disks
from migrator.virt.libvirt.definition.needs import refuse_unknown
from migrator.virt.libvirt.definition.obstacles import obstacle_of
from migrator.virt.libvirt.guest import find_domain

LOG = logging.getLogger(__name__)


class ResizingDriver(ColdMigratingDriver):
    """The driver of the libvirt daemon of this host, with its resizes."""

    resizes_here = True

    def get_definition(self, instance_uuid: str) -> dict[str, Any] | None:
        """Return what another host needs to start a guest; see :meth:`driver.ComputeDriver.get_definition`.

        Only this host keeps the old definition of a resized guest.
        """
        found = super().get_definition(instance_uuid)
        if found is None or marks.read(found['xml']) is None:
            return found
        return found | {'xml': marks.put(found['xml'], None)}

    @on_disk
    def check_can_resize(self, instance: Instance, migrate_data: LiveMigrateData) -> LiveMigrateData:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.check_can_resize`."""
        self.refuse_immovable(instance)
        assert migrate_data.new_flavor is not None

        def ask(connection: Any) -> tuple[str, bool, list[storage.Disk], str]:
            domain = connection.lookupByUUIDString(instance.uuid)
            definition = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
            complete = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
            disks = [measured(domain, disk) for disk in writable_disks(connection, definition)]
            return definition, complete != definition, disks, obstacle_of(domain)

        definition, has_password, disks, obstacle = self.connection.call('check_can_resize', ask)
        if has_password:
            obstacle = 'has a password, such as that of its console, which would be lost: remove the password first'
        if obstacle:
            raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} of {self.host} {obstacle}')
        planned = resizes.plan(instance, migrate_data.new_flavor, definition, disks)
        self.connection.call('check_can_resize', lambda each: refuse_unknown(each, self.host, instance, planned['xml']))
        data = migrate_data.replace(source={'host': self.host, **planned})
        resizes.refuse_read_only(self.host, data)
        return data

    @on_disk
    def resize(self, instance: Instance, migrate_data: LiveMigrateData, migration_uuid: str) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.resize`."""
        phase = 'resize'
        self._wait_for_start(phase, instance.uuid)
        definition, mark = self._read(phase, instance.uuid)
        if mark is None or mark.migration_uuid != migration_uuid:
            self.refuse_immovable(instance)
            # The guest may have been saved since the check.
            obstacle = self.connection.call(phase, lambda each: obstacle_of(each.lookupByUUIDString(instance.uuid)))
            if obstacle:
                raise self._error(phase, f'guest {instance.uuid} {obstacle}')
            if migrate_data.source['power_on'] and self.get_guest(instance.uuid).state == GuestState.SHUTDOWN:
                raise self._error(phase, f'guest {instance.uuid} has been shut off since the check: look where it runs')
            checked = storage.defined_disks(migrate_data.source['xml'])
            plans.refuse_other_disks(self.connection, phase, instance, checked, libvirt.VIR_DOMAIN_XML_INACTIVE)
            mark = marks.Mark(migration_uuid, bool(migrate_data.source['power_on']))
            self._mark(phase, instance, mark)
        if not mark.old:
            self._power_off(phase, instance.uuid)
            resizes.grow(self.host, migrate_data, phase)
            kept = marks.Mark(migration_uuid, mark.power_on, marks.put(definition, None))
            self._define(phase, marks.put(migrate_data.source['xml'], kept))
        self._start_again(phase, instance, mark)

    @on_disk
    def confirm_resize(self, instance: Instance, migration_uuid: str) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.confirm_resize`."""
        _definition, mark = self._read('confirm_resize', instance.uuid)
        if mark is not None and mark.migration_uuid == migration_uuid:
            self._mark('confirm_resize', instance, None)

    @on_disk
    def revert_resize(self, instance: Instance, migration_uuid: str) -> None:
        """See :meth:`migrator.virt.cold_migration.ColdMigration.revert_resize`.

        A root disk that has grown keeps its size. A saved state has the new definition, and is discarded.
        """
        phase = 'revert_resize'
        self._wait_for_start(phase, instance.uuid)
        definition, mark = self._read(phase, instance.uuid)
        if not definition:
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)
        if mark is None or mark.migration_uuid != migration_uuid:
            return
        if mark.old:
            self._power_off(phase, instance.uuid)
            self._discard_saved_state(phase, instance)
            self._define(phase, marks.put(mark.old, marks.Mark(migration_uuid, mark.power_on)))
        self._start_again(phase, instance, mark)
        self._mark(phase, instance, None)

    def _read(self, phase: str, instance_uuid: str) -> tuple[str, marks.Mark | None]:
        """Return the definition of a guest and its mark; '' and None without the guest."""

        def ask(connection: Any) -> str:
            domain = find_domain(connection, instance_uuid)
            return str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)) if domain is not None else ''

        definition = self.connection.call(phase, ask)
        return definition, marks.read(definition) if definition else None

    def _mark(self, phase: str, instance: Instance, mark: marks.Mark | None) -> None:
        self.connection.call(phase, lambda each: marks.write(each.lookupByUUIDString(instance.uuid), mark))

    def _define(self, phase: str, definition: str) -> None:
        self.connection.call(phase, lambda each: each.defineXML(definition))

    def _discard_saved_state(self, phase: str, instance: Instance) -> None:
        def discard(connection: Any) -> None:
            domain = connection.lookupByUUIDString(instance.uuid)
            if domain.hasManagedSaveImage(0):
                LOG.info('Discarding the saved state of guest %s, which has the size before its revert', instance.uuid)
                domain.managedSaveRemove(0)

        self.connection.call(phase, discard)

    def _start_again(self, phase: str, instance: Instance, mark: marks.Mark) -> None:
        if mark.power_on and self.get_guest(instance.uuid).state == GuestState.SHUTDOWN:
            self._call_start(phase, instance, lambda each: each.lookupByUUIDString(instance.uuid).create())
