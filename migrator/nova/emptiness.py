# SPDX-License-Identifier: Apache-2.0

"""Whether anything is left on a host of a stock Nova."""

from __future__ import annotations

from collections.abc import Iterable

from migrator.drain.engine import Check
from migrator.nova.client import Nova
from migrator.nova.guests import ENDED, copied, holders, softly_deleted, to_end, why_left
from migrator.nova.resources import Service
from migrator.objects import remedies
from migrator.placement_client.client import PlacementClient

#: How many of the newest migrations of a host are read, and the greatest number of items that a check names.
_ROWS, _NAMED = 200, 20


def check(nova: Nova, placement: PlacementClient, host: str, service: Service | None) -> list[Check]:
    """Check whether Nova, its nova-compute or Placement still has a guest on a host.

    :param service: its nova-compute.
    """
    guests = [f'{one.name} ({one.uuid}, {one.status})' for one in nova.servers(host)]
    # The host keeps their old copies until a user has decided.
    guests += [f'{one.name} ({one.uuid}, {one.status} at {one.host})' for one in copied(nova, host)]
    hypervisors = [one for one in nova.hypervisors() if one.host == host]
    counted = [f'{one.running_vms} at {one.hostname}' for one in hypervisors if one.running_vms]
    if service is not None and service.state == 'down':
        counted = [f'not known. {why_down(service)}']
    return [
        Check('guests in Nova', few(guests)),
        Check('guests that nova-compute counts', counted),
        Check('migrations in progress', few(_moves(nova, host))),
        Check(
            f'allocations in Placement, which {remedies.TABLE[remedies.Kind.AUDIT_NOVA].command} explains',
            few(_allocations(nova, placement, [one.uuid for one in hypervisors])),
        ),
    ]


def why_down(service: Service) -> str:
    """Return since when a nova-compute does not report, as a sentence."""
    if service.forced_down or service.updated_at is None:
        return f'nova-compute at {service.host} is down.'
    return f'nova-compute at {service.host} has been down since {service.updated_at:%Y-%m-%d %H:%M:%S} UTC.'


def _moves(nova: Nova, host: str) -> list[str]:
    """Return the migrations from and to a host whose guests have a task. Nova has forgotten the others."""
    found = []
    for row in nova.migrations(host=host, limit=_ROWS):
        if row.status not in ENDED:
            server = nova.server(row.instance_uuid)
            if server is not None and server.task_state is not None:
                found.append(f'{row.type} {row.id} of {row.instance_uuid}: {row.status}')
    return found


def _allocations(nova: Nova, placement: PlacementClient, nodes: Iterable[str]) -> list[str]:
    """Return the consumers of the providers of some hypervisors, in words."""
    consumers = holders(placement, nodes)
    deleted = {one.uuid: one for one in softly_deleted(nova, sorted(consumers)[:_NAMED])}
    return [
        f'of {deleted[uuid].name} ({uuid}): {why_left(deleted[uuid].host or "its host")} {to_end(deleted[uuid])}'
        if uuid in deleted
        else f'of consumer {uuid}'
        for uuid in sorted(consumers)
    ]


def few(found: list[str]) -> list[str]:
    """Return the first of many items, and how many there are besides."""
    return found if len(found) <= _NAMED else [*found[:_NAMED], f'and {len(found) - _NAMED} more']
