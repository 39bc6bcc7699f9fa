# SPDX-License-Identifier: Apache-2.0

"""How right the expected ends of guests were."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Prediction:
    """An expected end that was recorded, and the end.

    :ivar made_at: when it was recorded.
    """

    made_at: datetime.datetime
    p50: datetime.datetime
    p80: datetime.datetime
    ended_at: datetime.datetime

    @property
    def error(self) -> float:
        """The distance of p50 from the end, as a share of the time that it really took."""
        took = (self.ended_at - self.made_at).total_seconds()
        return abs((self.p50 - self.ended_at).total_seconds()) / max(took, 1.0)


def errors_of(found: Sequence[Prediction]) -> dict[str, Any]:
    """Return the median error of predictions, and the shares of ends by p50 and by p80, as JSON."""
    number = len(found)
    return {
        'samples': number,
        'median_error': round(statistics.median(one.error for one in found), 3) if found else None,
        'p50_held': round(sum(one.ended_at <= one.p50 for one in found) / number, 3) if found else None,
        'p80_held': round(sum(one.ended_at <= one.p80 for one in found) / number, 3) if found else None,
    }
