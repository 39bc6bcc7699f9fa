# SPDX-License-Identifier: Apache-2.0

"""The bounds of what another host can make this one start, read and write.

A definition that arrives in a message is judged by the table of :mod:`.allowed`: each element and attribute is
harmless, or names something that guests may have here, or is refused. So are the disks that a source has this host
make.
"""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from migrator import exception
from migrator.objects import Instance, LiveMigrateData
from migrator.virt.libvirt import storage
from migrator.virt.libvirt.definition.disks import chain_of, images_of
from migrator.virt.libvirt.definition.judge import Judge
from migrator.virt.libvirt.definition.places import Places

#: The greatest length of a definition, and how deep its elements may be nested.
_LENGTH, _DEPTH = 2**20, 64
#: What a disk or another file is in the guest. It becomes a part of the names of files.
_NAME = re.compile('[A-Za-z0-9_]{1,32}')
#: Characters that no path has, or none that XML can contain.
_NO_PATH = re.compile('[\0\ud800-\udfff]')
#: The formats of images that qemu-img may make, read or resize here.
_FORMATS = ('raw', 'qcow', 'qcow2', 'qed', 'vdi', 'vhdx', 'vmdk', 'vpc')


def parse(text: Any) -> ElementTree.Element:
    """Return the root of a definition that another host has sent.

    :raises ValueError: the message says what is wrong with it.
    """
    if not isinstance(text, str) or len(text) > _LENGTH:
        raise ValueError(f'it is no text of at most {_LENGTH} characters')
    if '<!DOCTYPE' in text:
        raise ValueError('it declares a document type, which libvirt never writes')
    parser: Any = ElementTree.XMLPullParser(['start', 'end'])
    root, depth = None, 0
    try:
        parser.feed(text)
        parser.close()
        for event, element in parser.read_events():
            root = element if root is None else root
            depth += 1 if event == 'start' else -1
            if depth > _DEPTH:
                raise ValueError(f'its elements are nested more than {_DEPTH} deep')
    except (ElementTree.ParseError, UnicodeError) as error:
        raise ValueError(f'it is no XML: {error}') from None
    if not isinstance(root, ElementTree.Element) or root.tag != 'domain':
        raise ValueError('it does not define a domain')
    return root


def read(instance: Instance, source: Mapping[str, Any]) -> ElementTree.Element:
    """Return the definition of a guest that its source has reported, unjudged.

    :param source: what the source has reported.
    :raises migrator.exception.MigrationPreCheckError: it is malformed.
    """
    try:
        return parse(source.get('xml'))
    except ValueError as error:
        raise exception.MigrationPreCheckError(
            reason=f'the definition of guest {instance.uuid} that {instance.host} has reported cannot be read: {error}'
        ) from None


class Bounds(Places):
    """What the messages of other hosts can make one host start, read and write."""

    def refuse_definition(self, instance: Instance, migrate_data: LiveMigrateData, root: ElementTree.Element) -> None:
        """Refuse a definition that has, or names, what a guest of another host may not have here.

        :param root: the definition, as :func:`read` returns it.
        :raises migrator.exception.MigrationPreCheckError: the message says what, and what an operator can do.
        """
        problem = self.problem(migrate_data.source, root)
        if (uuid := root.findtext('uuid')) != instance.uuid:
            problem = f'it has the uuid {str(uuid)[:60]!r} there: request the migration again'
        if problem is not None:
            raise exception.MigrationPreCheckError(
                reason=f'host {self.host} does not start guest {instance.uuid} as {instance.host} has defined it: '
                f'{problem}'
            )

    def problem(self, source: Mapping[str, Any], root: ElementTree.Element) -> str | None:
        """Return what of a definition a guest of another host may not have here, with what to do, or None.

        :param source: what the source has reported of the guest.
        :param root: the definition.
        """
        return next(Judge(self, root, source).problems(), None)

    def refuse_images(self, instance: Instance, definition: str) -> None:
        """Refuse images that are backed by files that a guest of another host may not have.

        QEMU opens what the header of an image names. An image that is missing here is not judged.

        :param definition: that of the guest.
        :raises migrator.exception.MigrationPreCheckError: an image names such a file, or cannot be read.
        """
        for disk in images_of(self._connection, definition):
            if not os.path.exists(disk.path):
                continue
            try:
                paths = [path for path in chain_of(disk, in_use=True) if path != disk.path]
                found = {path: why for path in paths if (why := self.not_a_backing(path))}
                problem = next((f'{path[:200]}, which backs it, {why}' for path, why in found.items()), '')
            except exception.DriverError as error:
                problem = f'{error}: provide there what it needs, or move it away there'
            if problem:
                raise exception.MigrationPreCheckError(
                    reason=f'host {self.host} cannot use {disk.path} (disk {disk.target}) of guest {instance.uuid}: '
                    f'{problem}'
                )

    def refuse_copies(self, instance: Instance, disks: Iterable[storage.Disk]) -> None:
        """Refuse disks that this host would make or write anew, unless they are files in a place for disks.

        :param disks: as the source has reported them.
        :raises migrator.exception.MigrationPreCheckError: a disk is none that this host makes.
        """
        for disk in disks:
            # The types of these are whatever the source has sent.
            target, path = typing.cast(Any, disk.target), typing.cast(Any, disk.path)
            numbers = (disk.size, disk.allocation, disk.inode)
            if not isinstance(target, str) or not _NAME.fullmatch(target):
                problem = 'has no name of a disk'
            elif disk.kind != 'file' or disk.format not in _FORMATS:
                problem = f'is of type {disk.kind!r} and format {disk.format!r}, and only images in files are copied'
            elif not all(type(number) is int and number >= 0 for number in numbers):
                problem = f'has no sizes: {numbers!r}'
            elif not isinstance(path, str) or _NO_PATH.search(path):
                problem = 'is no plain path'
            elif '..' in path.split('/') or path.endswith('/'):
                problem = 'is no plain path: define the disk with its path without ..'
            else:
                problem = self.refusal(path, target == 'nvram')
            if problem:
                raise exception.MigrationPreCheckError(
                    reason=f'host {self.host} makes no copy of disk {str(target)[:64]!r} of guest {instance.uuid}, '
                    f'since {str(path)[:200]!r} {problem[:600]}'
                )

    def refuse_growth(self, instance: Instance, migrate_data: LiveMigrateData, disks: Iterable[storage.Disk]) -> None:
        """Refuse to let a file grow that is no disk of the guest.

        :param disks: those of its definition.
        :raises migrator.exception.MigrationPreCheckError: the source has asked for it.
        """
        wanted = migrate_data.source.get('grow')
        if wanted is None:
            return
        facts = wanted if isinstance(wanted, dict) else {}
        is_mine = any(disk.kind == 'file' and disk.path == facts.get('path') for disk in disks)
        if not is_mine or facts.get('format') not in _FORMATS or type(facts.get('size')) is not int:
            raise exception.MigrationPreCheckError(
                reason=f'host {self.host} does not let {str(facts.get("path"))[:200]!r} grow, as {instance.host} '
                f'wants: it is no disk of guest {instance.uuid}'
            )
