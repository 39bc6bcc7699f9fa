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
