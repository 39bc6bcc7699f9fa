# SPDX-License-Identifier: Apache-2.0

"""Compute hosts: their documents, with their slots, and the migrations of one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrator import exception
from migrator.db.api import Database
from migrator.db.slots import Bounds, Load
from migrator.objects import COMPUTE_BINARY
from migrator.views import cleanups, differences, migrations, names


def place(host: str) -> list[tuple[bool, int, str]]:
    """Return the place of a host in natural order, in which host2 comes before host10."""
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _PARTS.findall(host)]


#: A name may have more digits than Python converts.
_PARTS = re.compile(r'[0-9]{1,18}|[^0-9]+')


def documents(database: Database, bounds: Bounds, lease: float) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the hosts in natural order, each with whether anything is in progress there, or in its way.

    :param lease: ``[conductor] lease``, in seconds.
    """
    now, loads, counts = database.services.now(), database.slots.loads(), database.cleanups.counts()
    drains = {drain.host: drain.uuid for drain in database.drains.list(in_progress=True)}
    for service in sorted(database.services.list(COMPUTE_BINARY), key=lambda service: place(service.host)):
        load, (pending, blocked) = loads.get(service.host, Load()), counts.get(service.host, (0, 0))
        shown: dict[str, Any] = {
            'name': service.host,
            'up': service.is_up(now, lease),
            'forced_down': service.forced_down,
            'disabled': service.disabled,
            'disabled_reason': service.disabled_reason,
            'drain': drains.get(service.host),
            'out': {name: getattr(load, name) for name in ('running', 'limit', 'prepared', 'waiting')},
            'in': {
                'taken': load.inbound,
                'bound': bounds.inbound or None,
                'bound_of_drains': bounds.of_drains().inbound,
            },
            'cleanups': {'pending': pending, 'blocked': blocked},
        }
        is_busy = load.is_busy or pending > 0 or shown['drain'] is not None or service.disabled or not shown['up']
        yield shown, is_busy


def document(database: Database, bounds: Bounds, lease: float, name: str) -> dict[str, Any]:
    """Return a host, the migrations that leave it, in their order, and those that come in.

    :raises migrator.exception.ComputeHostNotFound: no compute host has this name.
    """
    try:
        service = database.services.get_compute(name)
    except exception.ComputeHostNotFound:
        names.check_host(database, name)
        raise
    here = database.migrations.list({'host': name}, in_progress=True)
    return {
        'name': name,
        'up': service.is_up(database.services.now(), lease),
        'disabled': service.disabled,
        'disabled_reason': service.disabled_reason,
        'boot_id': service.boot_id,
        'limit': database.slots.limit_of(name),
        'migrations': migrations.in_order(database, bounds, [one for one in here if one.source_compute == name]),
        'inbound': [one.uuid for one in here if one.source_compute != name],
        'cleanups': [cleanups.document(one) for one in database.cleanups.list(host=name)],
        'differences': differences.documents(database, database.differences.list(name)),
    }
