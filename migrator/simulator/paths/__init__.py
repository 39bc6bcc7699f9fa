# SPDX-License-Identifier: Apache-2.0

"""A path, and those of drains and of cold migrations.

:mod:`migrator.simulator.scenarios` has the list of all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from migrator.objects import MigrationStatus
from migrator.simulator.actors.operator import Operator

_S = MigrationStatus


@dataclasses.dataclass(frozen=True)
class Path:
    """One path.

    :ivar act: runs the path. It calls ``begin`` after its preparations, and the matrix covers only what follows. It
        reaches its end whatever fails.
    :ivar ends: the final statuses, without faults, of the migrations that are requested after ``begin``.
    :ivar knobs: the knobs of the hypervisors.
    """

    name: str
    act: Callable[[Operator, Callable[[], None]], None]
    ends: tuple[_S, ...]
    hosts: int = 2
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    knobs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
