# SPDX-License-Identifier: Apache-2.0

"""What the tests of bad days share: how long is long, faults, and which commits there are."""

from migrator import exception
from tests.functional import state

#: Some of the commits of a migration's conductor, its adoption aside. The crash matrix has all of them.
COMMITS = (1, 4, 7)
#: Of a migration whose driver fails at cut-over.
COMMITS_BACK = (1, 4, 7, 9)

#: Long enough for everything that has to be waited for: a dead host, and ten tries with growing pauses.
LONG = 900


def by_turns(commits):
    """Return each commit with one of the two moments, for what need not be tried twice at each."""
    return [(number, ('begin', 'committed')[number % 2]) for number in commits]


def faults(cloud, host):
    return cloud.world.hypervisors[host].faults


def boot_failing(cloud):
    """Start a server whose next migration fails at its switchover, with the guest paused at its source."""
    cloud.world.hypervisors['host1'].leave_paused = True
    faults(cloud, 'host1').fail('cutover')
    return cloud.boot('one', 'host1')


def migrate(cloud, instance, host=None):
    """Ask for a migration, and return what the cloud was like before."""
    before = state.everything(cloud)
    assert cloud.live_migrate(instance, host).status_int == 202
    return before


def refuse():
    raise exception.DatabaseUnreachable(reason='planned by the test')


class AtCommit:
    """An action at one commit of the conductor: before it begins, or when its answer is on the way."""

    def __init__(self, cloud, number, moment, act):
        self.left = number
        self.injected = False
        self._cloud = cloud
        self._moment = moment
        self._act = act
        cloud.database.engine.boundary = self._at

    def _at(self, what):
        thread = self._cloud.simulation.scheduler.current
        saga = thread.acting.name == 'conductor1' and 'saga' in thread.name
        if what != self._moment or not saga:
            return
        self.left -= 1
        if not self.left:
            self.injected = True
            self._act()
