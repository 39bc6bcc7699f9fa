# SPDX-License-Identifier: Apache-2.0

"""One URL of the API, with the schemas of its requests and answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from migrator.api.request import Handler
from migrator.api.schemas import Table


@dataclasses.dataclass(frozen=True)
class Route:
    """One URL.

    :ivar since: the first minor version that has it.
    :ivar until: the last minor version that has it.
    :ivar query: the schemas of its query by version, which are applied before the handler is called; None: the query is
        not looked at.
    :ivar bodies: the schemas by version of each body that it accepts, as the handler applies them; empty: none.
    :ivar answers: HTTP status -> the schema of that answer at the newest version, or None if it has no body; empty: it
        always fails, or an older version was the last to have it.
    :ivar media: the media type of its answer.
    """

    method: str
    path: str
    handler: Handler
    since: int = 1
    until: int = 1000
    query: Table | None = None
    bodies: tuple[Table, ...] = ()
    answers: Mapping[int, Mapping[str, Any] | None] = dataclasses.field(default_factory=dict)
    media: str = 'application/json'
