# SPDX-License-Identifier: Apache-2.0

"""The differences between hypervisors and database, as they are shown at this moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence, Set
from typing import Any

from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY
from migrator.objects.difference import Difference


@dataclasses.dataclass(frozen=True)
class Look:
    """The state of the hosts, on which the remedies depend.

    :ivar unlisted: the hosts that may run guests and do not report them.
    :ivar fenced: the hosts that run nothing.
    """

    unlisted: Set[str] = frozenset()
    fenced: Set[str] = frozenset()

    @classmethod
    def at(cls, database: Database, differences: Sequence[Difference]) -> Look:
        """Read the state of the hosts, if there is any difference."""
        if not differences:
            return cls()
        services = database.services.list(COMPUTE_BINARY)
        unlisted = frozenset(one.host for one in services if one.may_run_unlisted)
        return cls(unlisted, frozenset(one.host for one in services if one.is_fenced))

    def present(self, differences: Iterable[Difference]) -> list[Difference]:
        """Return the differences without what a host has shown that is fenced since."""
        return [shown for one in differences if (shown := one.without(self.fenced)) is not None]


def present(database: Database) -> list[Difference]:
    """Return the differences that are stored, without what a host has shown that is fenced since."""
    found = database.differences.list()
    return Look.at(database, found).present(found)


def documents(database: Database, differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as JSON, with aware times, and the remedies that the state of the hosts permits."""
    look = Look.at(database, differences)
    return [one.as_dict(look.unlisted) for one in look.present(differences)]
