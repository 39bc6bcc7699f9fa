# SPDX-License-Identifier: Apache-2.0

"""What libvirt's schema of a domain allows: places, attributes, and the types of their values."""

import collections
import pathlib
from xml.etree import ElementTree

#: Where libvirt's packages install it.
DIRECTORY = pathlib.Path('/usr/share/libvirt/schemas')
_NG = '{http://relaxng.org/ns/structure/1.0}'
#: The types of values that name a file, a program, a device or an address.
FILES = {'absFilePath', 'filePath', 'absDirPath', 'dirPath', 'vmwarePath'}
OTHERS = {'deviceName', 'dnsName', 'ipAddr', 'ipv4Addr', 'ipv6Addr', 'addrIPorName', 'dbusAddr', 'anyURI'}


class Schema:
    """The schema of a domain.

    :ivar types: (place, attribute) -> the names of its types; the attribute of a text is ''.
    """

    def __init__(self):
        self._defined = collections.defaultdict(list)
        self._read, self._seen = set(), set()
        self._load('domain.rng')
        self.types = collections.defaultdict(set)
        for one in self._defined['domain']:
            self._walk(one, ())

    def named(self, types):
        """Return the places and attributes with one of the types, sorted."""
        return sorted(key for key, found in self.types.items() if found & types)

    def _load(self, name):
        if name not in self._read:
            self._read.add(name)
            for element in ElementTree.parse(DIRECTORY / name).getroot().iter():  # noqa: S314 -- libvirt's
                if element.tag == f'{_NG}include':
                    self._load(element.get('href'))
                elif element.tag == f'{_NG}define':
                    self._defined[element.get('name')].append(element)

    def _walk(self, pattern, path):
        for child in pattern:
            tag = child.tag.removeprefix(_NG)
            if tag == 'ref':
                name = child.get('name')
                if self._is_data(name, ()):
                    self.types['/'.join(path[1:]), ''].add(name)
                elif (name, path) not in self._seen:
                    self._seen.add((name, path))
                    for one in self._defined[name]:
                        self._walk(one, path)
            elif tag == 'element':
                # The chain of files that back a disk has no end.
                here = (*path, _name(child))
                if here.count(here[-1]) < 3:
                    self._walk(child, here)
            elif tag == 'attribute':
                self.types['/'.join(path[1:]), _name(child)] |= self._values(child, ())
            elif tag == 'data':
                self.types['/'.join(path[1:]), ''].add(child.get('type'))
            else:
                self._walk(child, path)

    def _values(self, pattern, within):
        found = set()
        for child in pattern:
            if child.tag == f'{_NG}ref' and child.get('name') not in within:
                found.add(child.get('name'))
                for one in self._defined[child.get('name')]:
                    found |= self._values(one, (*within, child.get('name')))
            elif child.tag == f'{_NG}data':
                found.add(child.get('type'))
            else:
                found |= self._values(child, within)
        return found

    def _is_data(self, name, within):
        for element in (each for one in self._defined[name] for each in one.iter()):
            if element.tag in (f'{_NG}element', f'{_NG}attribute'):
                return False
            inner = element.get('name')
            if element.tag == f'{_NG}ref' and inner not in within and not self._is_data(inner, (*within, name)):
                return False
        return bool(self._defined[name])


def _name(pattern):
    found = pattern.get('name') or pattern.findtext(f'{_NG}name') or '*'
    space = (pattern.get('ns') or '').split('/')
    return f'{space[-2]}:{found}' if len(space) > 2 else found
