# SPDX-License-Identifier: Apache-2.0

"""The mark in the metadata of a guest that is resized at its host.

It is a part of the guest's definition, so libvirt replaces both in one step. ::

    <metadata>
      <migrator:resize xmlns:migrator="..." migration="UUID" power_on="yes">the old definition</migrator:resize>
    </metadata>

Without a text the guest has its old definition, and was powered off at most.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from xml.dom import minidom
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import libvirt

URI = 'https://docs.openstack.org/migrator/xmlns/resize/1.0'
_PREFIX, _NAME = 'migrator', 'resize'


@dataclasses.dataclass(frozen=True)
class Mark:
    """A mark.

    :ivar power_on: whether the guest is started when it has its new definition, or its old one again.
    :ivar old: the old definition, without a mark; '': the guest has it still, or again.
    """

    migration_uuid: str
    power_on: bool
    old: str = ''


def read(definition: str) -> Mark | None:
    """Return the mark in a definition, or None."""
    found = ElementTree.fromstring(definition).find(f'metadata/{{{URI}}}{_NAME}')  # noqa: S314 -- libvirt wrote it
    if found is None:
        return None
    return Mark(found.get('migration', ''), found.get('power_on') == 'yes', found.text or '')


def put(definition: str, mark: Mark | None) -> str:
    """Return a definition with a mark in place of any other one; None: without a mark."""
    # Unlike ElementTree, this keeps the prefixes of namespaces, which other programs may look for.
    document: Any = minidom.parseString(definition)  # noqa: S318 -- libvirt wrote it
    domain = document.documentElement
    metadata: Any = next((node for node in domain.childNodes if node.nodeName == 'metadata'), None)
    for node in list(metadata.childNodes) if metadata is not None else []:
        if node.namespaceURI == URI:
            metadata.removeChild(node)
    if mark is not None:
        if metadata is None:
            metadata = domain.appendChild(document.createElement('metadata'))
        element = minidom.parseString(_element(mark, f'{_PREFIX}:', f' xmlns:{_PREFIX}="{URI}"')).documentElement  # noqa: S318 -- ours
        metadata.appendChild(document.importNode(element, True))
    return str(domain.toxml())


def write(domain: Any, mark: Mark | None) -> None:
    """Write a mark into a guest's definition, and into that of its running copy; None: remove the mark.

    :param domain: a ``libvirt.virDomain``.
    """
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG | (libvirt.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0)
    element = _element(mark) if mark is not None else None
    domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, element, _PREFIX, URI, flags)


def _element(mark: Mark, prefix: str = '', more: str = '') -> str:
    power_on = 'yes' if mark.power_on else 'no'
    attributes = f'migration="{mark.migration_uuid}" power_on="{power_on}"'
    return f'<{prefix}{_NAME}{more} {attributes}>{escape(mark.old)}</{prefix}{_NAME}>'
