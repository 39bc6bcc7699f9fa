# SPDX-License-Identifier: Apache-2.0

"""The services, the leases of conductors, and whether reports of compute hosts arrive."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

from migrator.db.api import Database
from migrator.db.cleanups import Cleanup
from migrator.db.conductors import ConductorBoot
from migrator.objects import COMPUTE_BINARY, CONDUCTOR_BINARY
from migrator.objects.times import moment
from migrator.views import differences

_SHOWN = (
    *('uuid', 'host', 'binary', 'version', 'disabled_reason', 'forced_down', 'last_seen_up', 'down_since', 'boot_id'),
    'identity',
)


def document(database: Database, lease: float, binary: str | None = None, host: str | None = None) -> dict[str, Any]:
    """Return the services by binary and host, each conductor with its lease, as JSON with aware times.

    :param lease: ``[conductor] lease``, in seconds.
    :param binary: only services with this binary; None: all.
    :param host: only services of this host; None: all.
    """
    now = database.services.now()
    boots: dict[str, list[ConductorBoot]] = collections.defaultdict(list)
    for conductor in database.conductors.list():
        boots[conductor.server].append(conductor)
    deferred: dict[str, list[Cleanup]] = collections.defaultdict(list)
    for cleanup in database.cleanups.list():
        deferred[cleanup.host].append(cleanup)
    differing = differences.present(database)
    replacements = database.machines.replacements()
    sources = database.takeovers.sources()
    documents: list[dict[str, Any]] = []
    for service in sorted(database.services.list(binary=binary, host=host), key=lambda one: (one.binary, one.host)):
        is_compute = service.binary == COMPUTE_BINARY
        cleanups = deferred[service.host] if is_compute else []
        leases = boots[service.host] if service.binary == CONDUCTOR_BINARY else []
        living = [one for one in leases if one.lease_until > now]
        newest = next(iter(living or leases), None)
        shown = None
        if newest is not None:
            shown = dataclasses.asdict(newest) | {'boots': len(living), 'sources': sources.get(newest.id, 0)}
        found = {name: getattr(service, name) for name in _SHOWN}
        replaced = replacements.get(service.host, []) if is_compute else []
        refused = {name: getattr(service, f'refused_{name}') for name in ('host', 'identity', 'at')}
        blocked = sum(cleanup.blocked_because is not None for cleanup in cleanups)
        found |= {
            'replaced': [
                {name: getattr(one, name) for name in ('identity', 'declared_off_at', 'declared_off_by', 'guests')}
                for one in replaced
            ],
            'refused': refused if refused['at'] is not None else None,
            'status': 'disabled' if service.disabled else 'enabled',
            'state': 'up' if service.is_up(now, lease) else 'down',
            'lease': shown,
            'cleanups': {'pending': len(cleanups), 'blocked': blocked},
            'differences': sum(is_compute and service.host in one.hosts for one in differing),
        }
        documents.append(found)
    no_reports_because = why_no_reports([one for known in boots.values() for one in known], now)
    return {'services': documents, 'now': now, 'no_reports_because': no_reports_because}


def why_no_reports(boots: Iterable[ConductorBoot], now: datetime.datetime) -> str | None:
    """Return why no conductor receives reports of compute hosts, or None if one does.

    If none does, each host is shown as it was at the last report.

    :param boots: the boots of all conductors.
    :param now: the database's time.
    """
    known = sorted(boots, key=lambda one: one.lease_until)
    living = [one for one in known if one.lease_until > now]
    away = [one.broker_away_since for one in living if one.broker_away_since is not None]
    if not living:
        return f'no conductor has listened {f"since {moment(known[-1].lease_until)} UTC" if known else "yet"}'
    if len(away) < len(living):
        return None
    servers = ' and '.join(sorted({one.server for one in living}))
    return f'{servers} cannot reach the message broker since {moment(min(away))} UTC'
