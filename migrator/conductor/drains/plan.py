# SPDX-License-Identifier: Apache-2.0

"""The plan of a drain: which guests can move, where they would go, and what is in the way.

The room in Placement is given out by :mod:`migrator.drain.plan`. The conductor chooses each destination
again when it moves the guest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.conductor.drains.engine import guests_of
from migrator.conductor.migration import destinations
from migrator.db.api import Database
from migrator.db.guests.definitions import Reported
from migrator.db.services import Place
from migrator.db.slots import Bounds
from migrator.drain import forecast
from migrator.drain.engine import Guest, Obstacle, ObstacleKind, to_decide, why_copied
from migrator.drain.plan import Choice, Copy, Need, Rooms, documents, in_order
from migrator.objects import COMPUTE_BINARY, Flavor, MigrationStatus
from migrator.objects.drain import Drain
from migrator.placement_client import candidates
from migrator.placement_client.client import PlacementClient


def plan(database: Database, client: PlacementClient, drain: Drain, bounds: Bounds) -> dict[str, Any]:
    """Return the plan of a drain as JSON; see :func:`migrator.drain.plan.documents`.

    :param bounds: those of the site.
    :raises migrator.exception.PlacementUnreachable: Placement did not answer.
    """
    return plan_together(database, client, [drain], bounds)[0]


def plan_together(
    database: Database, client: PlacementClient, drains: Sequence[Drain], bounds: Bounds
) -> list[dict[str, Any]]:
    """Return the plans of drains that would run at the same time, in their order; see :func:`plan`.

    None sends a guest to the host of another one, and the guests of all of them use the same room.
    """
    places = {one.host: one for one in database.services.places('')}
    room = Rooms(
        candidates.Room(client), {one.uuid: one.host for one in places.values()}, {drain.host for drain in drains}
    )
    chosen = [list(_choose(database, places, room, drain)) for drain in drains]
    now, limits, past, running = database.slots.recorded([drain.host for drain in drains])
    inbound = bounds.of_drains().inbound
    return documents(
        room,
        drains,
        chosen,
        _copies(database, [drain.host for drain in drains]),
        lambda drain: forecast.Outlook(now, bounds.at_once(limits.get(drain.host, 1)), past, running, inbound),
    )


def _copies(database: Database, hosts: Sequence[str]) -> dict[str, list[Copy]]:
    """Return the old copies of cold-migrated guests at some hosts, which stay until a user decides."""
    rows = database.migrations.list({'source_compute': hosts, 'status': MigrationStatus.FINISHED.value}, True)
    rows = [row for row in rows if not row.stays]
    names = {one.uuid: one.name for one in database.instances.list({'uuid': [row.instance_uuid for row in rows]})}
    reports = {one.host for one in database.services.list(COMPUTE_BINARY, [*hosts]) if one.reports}
    found: dict[str, list[Copy]] = {}
    for row in reversed(rows):
        remedy = to_decide(row.instance_uuid, row.source_compute, row.source_compute in reports)
        guest_on = row.dest_compute or ''
        reason = why_copied(guest_on, row.source_compute)
        copy = Copy(row.instance_uuid, names.get(row.instance_uuid, ''), guest_on, reason, remedy)
        found.setdefault(row.source_compute, []).append(copy)
    return found


def immovable(database: Database, drain: Drain) -> list[tuple[Guest, Obstacle]]:
    """Return the guests of a drain that have something in the way, as far as it does not depend on room."""
    found = {one.uuid: one for one in database.instances.list({'host': drain.host})}
    reported = database.definitions.reported(found)
    guests = in_order(drain, guests_of(database, drain, found.values()))
    seen = [(guest, _in_the_way(guest, reported.get(guest.uuid, Reported()))) for guest in guests]
    return [(guest, obstacle) for guest, obstacle in seen if obstacle is not None]


def _in_the_way(guest: Guest, known: Reported) -> Obstacle | None:
    if guest.obstacle is not None and guest.obstacle.kind != ObstacleKind.BUSY:
        return guest.obstacle
    why = known.unstartable if guest.is_cold else known.immovable
    if why is None:
        return guest.obstacle
    remedy = 'The host reports this once an hour. A drain asks it again.'
    how = 'cold' if guest.is_cold else 'live'
    return Obstacle(ObstacleKind.IMMOVABLE, f'It cannot be moved {how}: {why}.', remedy)


def _choose(database: Database, places: Mapping[str, Place], room: Rooms, drain: Drain) -> Iterator[Choice]:
    """Yield the guests of a drain in their order, each with what is in the way and its destination."""
    found = {one.uuid: one for one in database.instances.list({'host': drain.host})}
    reported = database.definitions.reported(found)
    for guest in in_order(drain, guests_of(database, drain, found.values())):
        need = _need(places, drain, found[guest.uuid].flavor, guest.is_cold)
        in_the_way = _in_the_way(guest, reported.get(guest.uuid, Reported()))
        moves = in_the_way is None or in_the_way.kind == ObstacleKind.BUSY
        yield Choice(guest, need, in_the_way, room.take(need) if moves else None)


def _need(places: Mapping[str, Place], drain: Drain, flavor: Flavor, is_cold: bool) -> Need:
    source = places.get(drain.host)

    def why_not(host: str) -> str | None:
        one = places[host]
        service = one.service
        if service.forced_down or service.last_seen_up is None or service.down_since is not None:
            return 'it is down'
        if source is not None:
            seen = dataclasses.replace(one, source_hypervisor=source.hypervisor)
            refusal = destinations.refusal_of_hypervisor(seen, drain.host)
            if refusal is not None:
                return refusal.message
        if one.maintenance is not None:
            return f'maintenance {one.maintenance} has it out of service'
        if service.disabled:
            return 'it is disabled' + (f' ({service.disabled_reason})' if service.disabled_reason else '')
        return destinations.refusal_of_cold_migration(one) if is_cold else None

    return Need(flavor.request, drain.destinations, (source and source.hypervisor, is_cold), why_not)
