# SPDX-License-Identifier: Apache-2.0

"""How right the recorded expected ends of guests were."""

from __future__ import annotations

from typing import Any

from migrator.db.api import Database
from migrator.drain import forecast


def document(database: Database, drains: int) -> dict[str, Any]:
    """Return the calibration of all predictions, and of each drain, as JSON.

    :param drains: how many of the newest drains count.
    """
    predictions = database.drains.predictions(drains)
    whole = forecast.calibration([one for each in predictions.values() for one in each])
    found = [
        {'drain': uuid, 'host': database.drains.get(uuid).host} | forecast.calibration(each)
        for uuid, each in predictions.items()
    ]
    return whole | {'drains': found}
