# SPDX-License-Identifier: Apache-2.0

"""The availability zones: one of the compute hosts, and the internal one of the other services."""

from __future__ import annotations

import collections
from typing import Any

import webob

from migrator.api.handlers import services
from migrator.api.policies.nova import ZONES_DETAIL, ZONES_LIST
from migrator.api.request import Request, answer
from migrator.objects import Service, times


def index(request: Request) -> webob.Response:
    """List the zones of compute hosts."""
    request.authorize(ZONES_LIST)
    found = [_view(zone, bool(enabled), None) for zone, enabled in _zones(request) if zone != services.INTERNAL]
    return answer({'availabilityZoneInfo': found})


def detail(request: Request) -> webob.Response:
    """List all zones, each with the services that are enabled there."""
    request.authorize(ZONES_DETAIL)
    now = request.services.database.services.now()
    found = []
    for zone, enabled in _zones(request):
        hosts: dict[str, dict[str, Any]] = collections.defaultdict(dict)
        for service in enabled:
            hosts[service.host][service.binary] = {
                'active': True,
                'available': services.is_up(request, service, now),
                'updated_at': times.iso(service.last_seen_up),
            }
        found.append(_view(zone, bool(enabled), dict(hosts) or None))
    return answer({'availabilityZoneInfo': found})


def _zones(request: Request) -> list[tuple[str, list[Service]]]:
    """Return each zone with the services that are enabled there, the zones that have one first."""
    zones: dict[str, list[Service]] = collections.defaultdict(list)
    for service in request.services.database.services.list():
        zones[services.zone(service)] += [] if service.disabled else [service]
    return sorted(zones.items(), key=lambda one: (not one[1], one[0]))


def _view(zone: str, available: bool, hosts: dict[str, dict[str, Any]] | None) -> dict[str, Any]:
    return {'zoneName': zone, 'zoneState': {'available': available}, 'hosts': hosts}
