# SPDX-License-Identifier: Apache-2.0

"""What keeps a guest from being moved, and what to do about it: asked by plans and checks alike."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import libvirt

from migrator import exception
from migrator.objects import Instance, base, remedies
from migrator.virt.libvirt import identity, storage
from migrator.virt.libvirt.definition.disks import kept_inside

#: Types of network interfaces that are a device of the host, or a part of one.
_OF_THE_HOST = ('hostdev', 'vdpa')

#: The formats of images that QEMU cannot hand over to another process, by libvirt's names.
_NOT_LIVE = ('qcow', 'vdi', 'vmdk', 'vpc')

#: What libvirt or QEMU refuses to migrate, as a path in the definition -> what it is, and what to do.
_REFUSED = {
    'devices/disk[transient]': 'has a transient disk ({target}): define it without <transient/>, and start it anew',
    "devices/filesystem/driver[@type='virtiofs']": 'has a virtiofs share: unmount it in the guest, and detach it',
    "devices/channel[@type='qemu-vdagent']": 'has a channel of type qemu-vdagent: detach it, or move the guest cold',
    "devices/tpm/backend[@type='passthrough']": 'has the TPM of its host: define it without',
    'launchSecurity': 'has encrypted memory: shut it off, and move it cold',
    "devices/video/model/acceleration[@accel3d='yes']": 'has 3D graphics: define it without accel3d, and start it anew',
}


def why_immovable(domain: Any) -> str | None:
    """Return in words what keeps a guest from a live migration, and what to do, or None.

    Plans and checks ask this. It follows libvirt's own rules, which it otherwise applies only when the job begins.

    :param domain: the guest, a ``libvirt.virDomain``.
    """
    definition = domain.XMLDesc(0)
    xml = ElementTree.fromstring(definition)  # noqa: S314 -- libvirt wrote it
    known = passthrough(xml) or unsupported(xml) or _unknown_device(definition)
    return known or _busy(domain, xml) or pending_disk(domain)


def _unknown_device(definition: str) -> str | None:
    """Return in words which block device no other host could recognize, or None."""
    for disk in storage.defined_disks(definition):
        if disk.kind == 'block' and os.path.exists(disk.path) and not identity.device_of(disk.path):
            return (
                f'has disk {disk.target} ({disk.path}), a device without an identity by which another host could '
                'recognize it: use a device with a World Wide Name, a logical volume, or a file'
            )
    return None


def _busy(domain: Any, xml: ElementTree.Element) -> str | None:
    """Return in words what libvirt keeps of a guest or does to it, and so refuses to migrate; or None."""
    count = _supported(lambda: domain.snapshotNum(0), 0)
    if count:
        remedy = remedies.offer(remedies.Kind.DELETE_SNAPSHOTS)
        return f'has {base.count(count, "snapshot")} in libvirt, which no migration takes along: {remedy}'
    if _has_checkpoints(domain):
        remedy = remedies.offer(remedies.Kind.DELETE_CHECKPOINTS)
        return f'has checkpoints in libvirt, which no migration takes along: {remedy}'
    for target in xml.findall('devices/disk/target'):
        name = target.get('dev', '')
        if _supported(functools.partial(domain.blockJobInfo, name, 0), {}):
            return f'has a running block job of disk {name}: wait for its end, or abort it'
    return None


def _has_checkpoints(domain: Any) -> bool:
    return bool(_supported(lambda: domain.listAllCheckpoints(0), []))


def pending_disk(domain: Any) -> str | None:
    """Return in words which disk a guest would not find elsewhere at its next start, or None.

    :param domain: the guest, a ``libvirt.virDomain``.
    """
    now, later = domain.XMLDesc(0), domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    here = {disk.source for disk in storage.defined_disks(now)}
    for disk in storage.defined_disks(later):
        if disk.source not in here:
            return (
                f'has disk {disk.target} ({disk.path}) in its configuration and not in use, so that it would not move '
                'along: attach it now, or detach it from the configuration'
            )
    return None


def passing_disk(domain: Any) -> str | None:
    """Return in words which disk a guest would not have any more when it has been off, or None.

    :param domain: the guest, a ``libvirt.virDomain``.
    """
    later = {disk.source for disk in storage.defined_disks(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))}
    for disk in storage.defined_disks(domain.XMLDesc(0)):
        if disk.source not in later:
            return (
                f'has disk {disk.target} ({disk.path}) in use and not in its configuration, so that it would be '
                'without it after its next start: attach it to the configuration too, or detach it'
            )
    return None


def _supported(ask: Callable[[], Any], otherwise: Any) -> Any:
    """Return the answer of libvirt, or ``otherwise`` if its driver does not know such things."""
    try:
        return ask()
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_INVALID):
            return otherwise
        raise


def unsupported(xml: ElementTree.Element) -> str | None:
    """Return in words what of a definition libvirt refuses to migrate, and what to do; or None."""
    for path, what in _REFUSED.items():
        found = xml.find(path)
        if found is not None:
            return what.format(target=getattr(found.find('target'), 'attrib', {}).get('dev', ''))
    # Without a role, QEMU takes it for a peer.
    if any(memory.get('role') != 'master' for memory in xml.findall('devices/shmem')):
        return "has a shared memory device (shmem): detach it first, or define it with role='master'"
    for element in [*xml.findall('devices/disk/driver'), *xml.findall('devices/disk//backingStore/format')]:
        if element.get('type') in _NOT_LIVE:
            return (
                f'has an image of format {element.get("type")}, with which QEMU migrates no running guest: move it '
                'cold, or convert the image (qemu-img convert)'
            )
    frequency = xml.find("clock/timer[@name='tsc'][@frequency]")
    if xml.find("cpu/feature[@name='invtsc'][@policy='require']") is not None and frequency is None:
        return 'has a processor with invtsc and no frequency of its TSC: set <timer name="tsc" frequency="..."/>'
    return None


def passthrough(xml: ElementTree.Element) -> str | None:
    """Return in words which device of its host keeps a guest from being migrated, or None.

    A device that is teamed with a virtual one is no obstacle, because the virtual one replaces it during the migration.

    :param xml: the definition of the guest.
    """
    interfaces = [each for each in xml.findall('devices/interface') if each.get('type') in _OF_THE_HOST]
    for device in [*xml.findall('devices/hostdev'), *interfaces]:
        if device.find('teaming') is None:
            kind = device.get('type', 'host') if device.tag == 'hostdev' else 'network'
            return f'has a {kind} device of its host, which cannot migrate: detach it first'
    return None


def obstacle_of(domain: Any) -> str:
    """Return why a guest cannot be moved while it is off, or ''."""
    if not domain.isPersistent():
        return f'is transient, and would be gone when it is off: {remedies.offer(remedies.Kind.DEFINE)}'
    if domain.hasManagedSaveImage(0):
        remedy = remedies.offer(remedies.Kind.DISCARD_SAVED_STATE)
        return f'has a saved state, which only its host has: {remedy}'
    if domain.snapshotNum(0):
        return f'has snapshots, which only its host knows: {remedies.offer(remedies.Kind.DELETE_SNAPSHOTS)}'
    if _has_checkpoints(domain):
        return f'has checkpoints, which only its host knows: {remedies.offer(remedies.Kind.DELETE_CHECKPOINTS)}'
    return ''


def refuse_merging(instance: Instance, disk: storage.Disk, live: bool = False) -> None:
    """Refuse to copy a disk whose image has snapshots or bitmaps that its copy would lack.

    :param live: whether QEMU copies the content. Otherwise the file is copied as it is, unless other files back it.
    :raises migrator.exception.MigrationPreCheckError: the image has any.
    :raises migrator.exception.DriverError: it cannot be read.
    """
    kept, is_backed = kept_inside(disk)
    if not kept or not (live or is_backed):
        return
    or_else = '' if is_backed else ', or move the guest cold, which takes them along'
    raise exception.MigrationPreCheckError(
        reason=f'the image of disk {disk.target} of guest {instance.uuid} ({disk.path}) has {", ".join(kept)}, which a '
        f'copy lacks: {remedies.offer(remedies.Kind.DELETE_FROM_IMAGE)}{or_else}'
    )
