# SPDX-License-Identifier: Apache-2.0

"""The judge of a definition that another host has reported, by the table of :mod:`.allowed`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from migrator.virt.libvirt import identity
from migrator.virt.libvirt.definition import allowed
from migrator.virt.libvirt.definition.allowed import Kind
from migrator.virt.libvirt.definition.places import Places, is_regular, mode_of

#: The namespaces of libvirt's extensions.
_NAMESPACE = re.compile(r'\{http://libvirt\.org/schemas/domain/([a-z]+)/1\.0\}(.*)', re.DOTALL)
#: What an attribute that is in no table may have: it names nothing.
_SWITCH = re.compile('yes|no|on|off|auto|default|[0-9]{1,20}|0x[0-9a-fA-F]{1,16}')
#: The target of a disk.
_TARGET = re.compile('(fd|hd|sd|vd|xvd|ubd)[A-Za-z0-9_]{1,30}')
_PTY = re.compile('/dev/pts/[0-9]+')
#: Kind -> what its values look like, and what others are not.
_PATTERNS: dict[Kind, tuple[re.Pattern[str], str]] = {
    Kind.NAME: (_TARGET, 'the name of a disk'),
    Kind.TEXT: (re.compile('.*', re.DOTALL), 'a text'),
    Kind.ENTROPY: (re.compile('/dev/(u?random|hwrng)'), '/dev/random, /dev/urandom or /dev/hwrng'),
    Kind.RENDERER: (re.compile('/dev/dri/renderD[0-9]+'), 'a render node, such as /dev/dri/renderD128'),
    Kind.TUN: (re.compile('/dev/net/tun|/dev/vhost-net'), '/dev/net/tun or /dev/vhost-net'),
    Kind.PARTITION: (re.compile(r'/machine(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*'), 'a control group below /machine'),
    Kind.DEVICE: (re.compile(r'/dev(/[A-Za-z0-9_:+-][A-Za-z0-9_:+.-]*)+'), 'a device below /dev'),
    Kind.REFUSED: (re.compile('(?!)'), 'what a guest of another host may have'),
}
#: Where libvirt keeps the sockets of guests, and nova those of its agents.
_SOCKETS = ('/var/lib/libvirt/qemu/channel', '/run/libvirt/qemu/channel')
_SOCKETS_OF_NOVA = '/var/lib/libvirt/qemu'
_CEPH = '/etc/ceph'
#: What to do about a block device: no option proves that it is the same one.
_USE_ANOTHER = 'use a device with a World Wide Name, a logical volume, or a file'


class Judge:
    """The judge of one definition.

    :param places: those of this host.
    :param root: the definition.
    :param source: what the source has reported of the guest.
    """

    def __init__(self, places: Places, root: ElementTree.Element, source: Mapping[str, Any]) -> None:
        self._places = places
        self._root = root
        addresses, files = source.get('own_addresses'), source.get('files')
        self._own_addresses = addresses if isinstance(addresses, (list, tuple)) else ()
        # A device that the guest only reads has to be the same here, too. A file is bounded by its place.
        read = [facts for facts in source.get('files_read') or () if facts.get('identity')]
        self._files = {str(facts.get('path')): {'device': facts['identity']} for facts in read}
        self._files |= files if isinstance(files, dict) else {}

    def problems(self) -> Iterator[str]:
        """Yield what is refused, each with what to do."""
        left: list[tuple[list[ElementTree.Element], str, str]] = [([self._root], '', '')]
        while left:
            line, place, rules = left.pop()
            element = line[-1]
            yield from self._values(line, place, rules)
            if place == 'devices/disk' and len(element.findall('source')) > 1:
                yield 'one of its disks has two sources'
            for child in element:
                tag = _tag(child)
                there = f'{place}/{tag}'.lstrip('/')
                if self._places.has_part(there):
                    continue
                below = _rules(f'{rules}/{tag}'.lstrip('/'))
                if below in allowed.FREE:
                    continue
                if below in allowed.PLAIN:
                    yield from self._plain(child, there)
                elif below in allowed.WORDS or below in allowed.NAMES:
                    left.append(([*line, child], there, below))
                else:
                    yield f'it has {there[:200]}, which is not known to be harmless: {self._remedy(there)}'

    def _values(self, line: Sequence[ElementTree.Element], place: str, rules: str) -> Iterator[str]:
        element = line[-1]
        words, names = allowed.WORDS.get(rules, '').split(), allowed.NAMES.get(rules, {})
        text = ''.join([element.text or '', *(child.tail or '' for child in element)])
        for name, value in [('', text if text.strip() else ''), *element.attrib.items()]:
            there = f'{place}@{name}' if name else place
            if not value or self._places.has_part(f'{there}={value}'):
                continue
            rule = names.get(name)
            if isinstance(rule, tuple):
                if value not in rule:
                    key = f'{there}={value[:60]}'
                    yield f'it has {key}, and only {", ".join(rule)} are allowed: {self._remedy(key)}'
            elif rule is not None:
                if problem := self._problem(rule, value, line):
                    remedy = f': {self._remedy(there)}' if rule in _BY_PART else ''
                    yield f'{there} is {value[:200]!r}, which {problem}{remedy}'
            elif (name or '.') in words:
                if '/' in value:
                    yield f'{there} is {value[:200]!r}, which could name a file: {self._remedy(there)}'
            elif not _SWITCH.fullmatch(value):
                yield f'it has {there[:200]}, which is not known to be harmless: {self._remedy(there)}'

    def _problem(self, kind: Kind, value: str, line: Sequence[ElementTree.Element]) -> str:
        if kind in _PATTERNS:
            pattern, what = _PATTERNS[kind]
            return '' if pattern.fullmatch(value) else f'is not {what}'
        return _JUDGES[kind](self, value, line)

    def _plain(self, top: ElementTree.Element, place: str) -> Iterator[str]:
        for element in top.iter():
            for value in (element.text or '', element.tail or '', *element.attrib.values()):
                if '/' in value:
                    yield f'{place} has {value[:200]!r}, which could name a file: {self._remedy(place)}'

    def _remedy(self, part: str) -> str:
        return (
            f'define the guest without it, or, if guests may have it, add {part[:200]} to [libvirt] allowed_parts of '
            f'{self._places.host}'
        )

    # --- one for each kind that is more than a pattern: why a value is refused, and what to do -----------------------

    def _disk(self, value: str, _line: Sequence[ElementTree.Element]) -> str:
        return self._places.refusal(value)

    def _block(self, value: str, _line: Sequence[ElementTree.Element]) -> str:
        mode = mode_of(value)
        if mode is None and os.path.isabs(value):
            return ''
        if mode is None or not stat.S_ISBLK(mode) or not os.path.realpath(value).startswith('/dev/'):
            return f'is no block device below /dev: {_USE_ANOTHER}'
        problem = _differs(value, self._files.get(value))
        return f'cannot be shown to be the same device: {problem}: {_USE_ANOTHER}' if problem else ''

    def _nvram(self, value: str, _line: Sequence[ElementTree.Element]) -> str:
        return self._places.refusal(value, is_nvram=True)

    def _firmware(self, value: str, line: Sequence[ElementTree.Element]) -> str:
        element, real = line[-1], os.path.realpath(value)
        is_read = element.tag == 'nvram' or element.get('type') == 'rom' or element.get('readonly') == 'yes'
        if not is_read:
            return "is a loader to which the guest would write: define it with readonly='yes'"
        loaders = self._places.loaders(self._root) if os.path.isabs(value) else set()
        # Libvirt lists no templates of NVRAM. Those of a firmware are beside it.
        beside = element.tag == 'nvram' and os.path.dirname(real) in {os.path.dirname(each) for each in loaders}
        if (beside or real in loaders) and is_regular(value):
            return ''
        refusal = self._places.refusal(value)
        return refusal and f'is no firmware that libvirt of {self._places.host} lists, and {refusal}'

    def _log(self, value: str, _line: Sequence[ElementTree.Element]) -> str:
        if refusal := self._places.refusal(value):
            return refusal
        # Otherwise it could be a disk.
        return '' if value.endswith('.log') else 'is not named as a log: use a name that ends in .log'

    def _socket(self, value: str, line: Sequence[ElementTree.Element]) -> str:
        element = line[-1]
        if not os.path.isabs(value):
            return 'is no absolute path: use one'
        # Libvirt removes what is in the place of a socket.
        mode = mode_of(value)
        if mode is not None and not stat.S_ISSOCK(mode):
            return 'is no socket: use another path'
        if self._places.is_listed(value):
            return ''
        if element.get('mode') not in ('bind', 'server') and element.tag not in ('graphics', 'listen'):
            return f'is a socket to which QEMU would connect, and is not allowed: {self._places.remedy()}'
        if os.path.dirname(os.path.realpath(value)) == _SOCKETS_OF_NOVA and value.endswith('.sock'):
            return ''
        if any(identity.is_below(value, each) for each in _SOCKETS) or self._places.is_within(value):
            return ''
        where = ', '.join(_SOCKETS)
        return f'is neither in a directory for sockets of libvirt ({where}), nor allowed: {self._places.remedy()}'

    def _character(self, value: str, line: Sequence[ElementTree.Element]) -> str:
        device = line[-2] if line[-1].tag == 'source' else line[-1]
        kind = device.get('type')
        if kind == 'file':
            return self._log(value, line)
        if kind == 'unix':
            return self._socket(value, line)
        if kind == 'pty' and _PTY.fullmatch(value):
            return ''
        return f'is no path for a device of type {kind}: define the device without it'

    def _address(self, value: str, line: Sequence[ElementTree.Element]) -> str:
        # An address of the source becomes that of this host.
        listens = line[-1].get('mode') == 'bind' and (value in self._own_addresses or self._places.is_address(value))
        return '' if listens else f'is no address of {self._places.host} at which consoles listen'

    def _program(self, value: str, _line: Sequence[ElementTree.Element]) -> str:
        real = os.path.realpath(value)
        if os.path.isabs(value) and (real in self._places.emulators or self._places.is_listed(value, itself=True)):
            return ''
        remedy = self._places.remedy(itself=True)
        return f'is no emulator that libvirt of {self._places.host} lists, and not allowed itself: {remedy}'

    def _ceph(self, value: str, _line: Sequence[ElementTree.Element]) -> str:
        if os.path.isabs(value) and (identity.is_below(value, _CEPH) or self._places.is_listed(value)):
            return ''
        return f'is neither below {_CEPH}, nor allowed: {self._places.remedy()}'


_JUDGES: dict[Kind, Callable[[Judge, str, Sequence[ElementTree.Element]], str]] = {
    Kind.DISK: Judge._disk,
    Kind.BLOCK: Judge._block,
    Kind.NVRAM: Judge._nvram,
    Kind.FIRMWARE: Judge._firmware,
    Kind.LOG: Judge._log,
    Kind.SOCKET: Judge._socket,
    Kind.CHARACTER: Judge._character,
    Kind.ADDRESS: Judge._address,
    Kind.PROGRAM: Judge._program,
    Kind.CEPH: Judge._ceph,
}
#: The kinds that [libvirt] allowed_parts adds to. The judges of the others return what to do.
_BY_PART = (*_PATTERNS, Kind.ADDRESS)


def _tag(element: ElementTree.Element) -> str:
    """Return the tag of an element, with the prefix that libvirt's own namespaces usually have."""
    found = _NAMESPACE.fullmatch(element.tag)
    return f'{found[1]}:{found[2]}' if found else element.tag


def _rules(place: str) -> str:
    """Return the place whose rules an element has."""
    place = allowed.SAME.get(place, place)
    if place not in allowed.WORDS and place not in allowed.NAMES and place not in allowed.PLAIN:
        parts = place.split('/')
        if len(parts) == 3 and parts[0] == 'devices' and f'{allowed.ANY}/{parts[2]}' in allowed.WORDS:
            return f'{allowed.ANY}/{parts[2]}'
    return place


def _differs(path: str, facts: Any) -> str:
    if not isinstance(facts, dict) or 'error' in facts or not facts:
        return 'its host could not identify it'
    return identity.difference(path, facts)
