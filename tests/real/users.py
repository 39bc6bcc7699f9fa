# SPDX-License-Identifier: Apache-2.0

"""A user of a cloud of processes, who migrates guests all the time."""

import collections
import contextlib
import itertools
import time

import requests

from migrator import exception
from migrator.objects import MigrationStatus

#: Seconds between two looks of the user.
LOOK = 0.2


class User:
    """A user who moves guests, each again as soon as it has arrived, until a number of moves is reached.

    It asks one API after the other; and again, where one does not answer, the answer is that the database is away, or
    the migration has failed.

    :ivar answers: (API, status) -> how often; the status is None where none came.
    :ivar ended: migration uuid -> the migration, when it had ended.
    """

    def __init__(self, cloud, guests, moves, apis=('api1', 'api2')):
        self.cloud = cloud
        self.answers = collections.Counter()
        self.ended = {}
        self._moves = moves
        self._idle = list(guests)
        self._busy = []
        self._apis = itertools.cycle(apis)

    @property
    def done(self):
        """How many moves are done."""
        return sum(one.status == MigrationStatus.COMPLETED for one in self.ended.values())

    def want_more(self):
        """Go on for one move of each guest."""
        self._moves += len(self._idle) + len(self._busy)

    def step(self):
        """Ask for what can be asked for, then look what has ended; return whether all is done."""
        while self._idle and self.done + len(self._busy) < self._moves:
            guest = self._idle.pop(0)
            self.cloud.simulation.run_until(lambda guest=guest: self._is_accepted(guest))
            self._busy.append(guest)
        # It is the database that is away.
        with contextlib.suppress(exception.DatabaseUnreachable):
            self._look()
        time.sleep(LOOK)
        return self.done >= self._moves

    def _is_accepted(self, guest):
        self.cloud.api = next(self._apis)
        try:
            status = self.cloud.live_migrate(guest).status_int
        except requests.ConnectionError:
            status = None
        self.answers[self.cloud.api, status] += 1
        # 409: it was accepted by a commit whose reply was lost.
        assert status in (202, 409, 503, None)
        return status in (202, 409)

    def _look(self):
        moving = {one.instance_uuid for one in self.cloud.database.migrations.list(in_progress=True)}
        for guest in [one for one in self._busy if one.uuid not in moving]:
            newest = self.cloud.migrations(guest)[-1]
            self.ended[newest.uuid] = newest
            self._busy.remove(guest)
            self._idle.append(guest)
