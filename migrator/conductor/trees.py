# SPDX-License-Identifier: Apache-2.0

"""Has Placement know what hosts have: written when a host has reported it, and again until Placement takes it."""

from __future__ import annotations

from oslo_log import log as logging

from migrator import exception
from migrator.db.api import Database
from migrator.placement_client import providers
from migrator.placement_client.client import PlacementClient

LOG = logging.getLogger(__name__)


def place(database: Database, client: PlacementClient, host: str) -> None:
    """Write to Placement what a host has reported, if Placement has not been seen to have it.

    :raises migrator.exception.PlacementUnreachable: Placement is away.
    :raises migrator.exception.MigratorException: Placement does not take it.
    """
    placed = False
    while not placed:
        nodes = [node for node in database.services.nodes_to_place() if node.host == host]
        placed = not nodes
        for node in nodes:
            providers.ensure_tree(client, node.providers, sleep=database.threads.sleep)
            # What it reports meanwhile is written once more here, lest ours came after it.
            placed = database.services.note_placed(node)


def place_all(database: Database, client: PlacementClient, host: str | None = None) -> None:
    """Write to Placement what hosts have reported, and tell the log of those whose tree it does not take.

    :param host: only this one's; None: everybody's.
    """
    try:
        for name in [host] if host is not None else [node.host for node in database.services.nodes_to_place()]:
            try:
                place(database, client, name)
            except exception.ServiceUnreachable:
                raise
            except (exception.MigratorException, ValueError) as error:
                LOG.error('%s is no destination as it is now: Placement does not take what it has: %s', name, error)
    except exception.ServiceUnreachable as error:
        LOG.warning('What hosts have is not in Placement yet, and is written later: %s', error)
    except Exception:  # a pool's error is seen by nobody else
        LOG.exception('What hosts have is not in Placement yet, and is written later')
