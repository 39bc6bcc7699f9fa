# SPDX-License-Identifier: Apache-2.0

"""The resource providers of hosts, which are written to Placement until Placement accepts them."""

from __future__ import annotations

from oslo_log import log as logging

from migrator import exception
from migrator.db.api import Database
from migrator.placement_client import providers
from migrator.placement_client.client import PlacementClient

LOG = logging.getLogger(__name__)


def place(database: Database, client: PlacementClient, host: str) -> None:
    """Write the resource providers that a host has reported to Placement, unless they are written already.

    :raises migrator.exception.PlacementUnreachable: Placement is unreachable.
    :raises migrator.exception.MigratorException: Placement does not accept them.
    """
    placed = False
    while not placed:
        nodes = [node for node in database.services.nodes_to_place() if node.host == host]
        placed = not nodes
        for node in nodes:
            providers.ensure_tree(client, node.providers, sleep=database.threads.sleep)
            # If the host reported others meanwhile, write again: this write may have come after theirs.
            placed = database.services.note_placed(node)


def place_all(database: Database, client: PlacementClient, host: str | None = None) -> None:
    """Write the resource providers of hosts to Placement, and log the hosts whose providers it does not accept.

    :param host: the only host to write, or None for all.
    """
    try:
        for name in [host] if host is not None else [node.host for node in database.services.nodes_to_place()]:
            try:
                place(database, client, name)
            except exception.ServiceUnreachable:
                raise
            except (exception.MigratorException, ValueError) as error:
                LOG.error(
                    'Placement does not accept the resource providers of host %(host)s, which cannot be a destination'
                    ' now: %(error)s',
                    {'host': name, 'error': error},
                )
    except exception.ServiceUnreachable as error:
        LOG.warning(
            'Could not write the resource providers of hosts to Placement yet; the next sweep tries again: %s', error
        )
    except Exception:  # the pool would drop the error
        LOG.exception('Could not write the resource providers of hosts to Placement yet; the next sweep tries again')
