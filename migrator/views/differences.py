# SPDX-License-Identifier: Apache-2.0

"""The differences between hypervisors and database, as documents."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY
from migrator.objects.difference import Difference


def unlisted(database: Database) -> Set[str]:
    """Return the hosts that may run guests and do not report them."""
    return {one.host for one in database.services.list(COMPUTE_BINARY) if one.may_run_unlisted}


def documents(database: Database, differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as JSON, with aware times, and the remedies that the state of the hosts permits."""
    hosts = unlisted(database) if differences else frozenset[str]()
    return [one.as_dict(hosts) for one in differences]
