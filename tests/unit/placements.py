# SPDX-License-Identifier: Apache-2.0

"""The Placement of tests that need one and test another thing.

It is the fake, which costs an eighth of the real one and is compared with it; ``make test-real`` sets
MIGRATOR_REAL_PLACEMENT and runs the same tests on the real one.
"""

import contextlib
import os

from migrator.testing.fake_placement.service import FakePlacement
from migrator.testing.placement import InProcessPlacement


class Emptied(FakePlacement):
    """A fake Placement that can be emptied as the real one can."""

    def empty(self):
        FakePlacement.__init__(self)


@contextlib.contextmanager
def running(directory):
    """Run a Placement.

    :param directory: a folder for the database of the real one.
    """
    if 'MIGRATOR_REAL_PLACEMENT' in os.environ:
        with InProcessPlacement(directory) as real:
            yield real
    else:
        yield Emptied()
