# SPDX-License-Identifier: Apache-2.0

"""The addresses at which consoles listen: those of a source become those of a destination.

A console at an address of its host, as many deployments configure it, would keep the guest from starting anywhere else.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from xml.dom import minidom
from xml.etree import ElementTree

from oslo_config import cfg

#: Devices that listen to a socket, besides graphics.
_SERIAL = ('serial', 'console', 'parallel', 'channel')


def of_host(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return the addresses at which consoles listen at this host: kind of console -> address."""
    return {
        'vnc': conf.vnc.server_listen,
        'spice': conf.spice.server_listen,
        'serial': conf.serial_console.proxyclient_address,
    }


def own(conf: cfg.ConfigOpts, *definitions: str) -> list[str]:
    """Return the addresses in the definitions of a guest at which only this host can listen, sorted."""
    documents = [minidom.parseString(one) for one in definitions]  # noqa: S318 -- libvirt wrote them
    found = {(kind, address) for each in documents for kind, address, _write in _listens(each)}
    mine = of_host(conf)
    return sorted({one for kind, one in found if _is_one(one) and (one == mine[kind] or _is_here(one))})


def moved(definition: str, addresses: Collection[str], there: Mapping[str, str]) -> str:
    """Return a definition whose consoles listen at another host.

    :param addresses: those that :func:`own` has found at the source.
    :param there: the addresses of the other host, as :func:`of_host` returns them.
    """
    document: Any = minidom.parseString(definition)  # noqa: S318 -- libvirt wrote it
    changed = False
    for kind, address, (element, name) in _listens(document):
        if address in addresses and there.get(kind):
            element.setAttribute(name, there[kind])
            changed = True
    return str(document.documentElement.toxml()) if changed else definition


def _listens(document: Any) -> Iterator[tuple[str, str, tuple[Any, str]]]:
    """Yield each address at which a console listens: its kind, the address, and the attribute that has it."""
    for element in document.getElementsByTagName('graphics'):
        kind = 'spice' if element.getAttribute('type') == 'spice' else 'vnc'
        of_address = [
            one for one in element.getElementsByTagName('listen') if one.getAttribute('type') in ('', 'address')
        ]
        for holder, name in ((element, 'listen'), *((one, 'address') for one in of_address)):
            if holder.getAttribute(name):
                yield kind, holder.getAttribute(name), (holder, name)
    for tag in _SERIAL:
        for element in document.getElementsByTagName(tag):
            for source in element.getElementsByTagName('source'):
                if source.getAttribute('mode') == 'bind' and source.getAttribute('host'):
                    yield 'serial', source.getAttribute('host'), (source, 'host')


def sockets_of(xml: ElementTree.Element) -> list[tuple[str, int]]:
    """Return each address and port at which the consoles of a guest listen; port 0: any.

    :param xml: the definition of the guest, with the addresses of the host that is to run it.
    """
    found = []
    for graphics in xml.findall('devices/graphics'):
        listens = graphics.findall('listen')
        addresses = [one.get('address') for one in listens if one.get('type') == 'address'] or [graphics.get('listen')]
        if listens and not any(one.get('type') == 'address' for one in listens):
            continue  # libvirt finds the address of a network itself, and a socket has none
        names = ('websocket',) if graphics.get('autoport') == 'yes' else ('port', 'tlsPort', 'websocket')
        numbers = [int(graphics.get(name, '-1')) for name in names]
        for address in addresses:
            found += [(address or '127.0.0.1', number) for number in numbers if number > 0] or [(address or '', 0)]
    for tag in _SERIAL:
        for source in xml.findall(f"devices/{tag}[@type='tcp']/source[@mode='bind']"):
            service = source.get('service', '')
            found.append((source.get('host', ''), int(service) if service.isdecimal() else 0))
    return found


def why_not_free(address: str, port: int) -> str:
    """Return why no process can listen at an address and port of this host, or '' if one can.

    :param address: of any form; '' and a name are not tried.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        return ''
    with socket.socket(family, socket.SOCK_STREAM) as one:
        # As QEMU does: a connection of an earlier process, which is closing, is no obstacle.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((address, port))
        except PermissionError:
            return ''  # this service may use no port below 1024, and QEMU's user may
        except OSError as error:
            return error.strerror or str(error)
    return ''


def _is_one(address: str) -> bool:
    """Return whether an address belongs to one host: it is neither of loopback nor stands for any."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not found.is_loopback and not found.is_unspecified


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        try:
            one.bind((address, 0))
        except OSError:
            return False
    return True
