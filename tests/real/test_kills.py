# SPDX-License-Identifier: Apache-2.0

"""Kill -9, and SIGSTOP past the lease, of every kind of process during a hundred migrations."""

import collections
import contextlib
import random
import signal
import threading
import time

import pytest

from migrator import exception
from migrator.objects import MigrationStatus
from tests.real.cloud import ProcessCloud
from tests.real.site import Shape, Site
from tests.real.users import User

MOVES = 100
GUESTS = 16
#: MiB; and MiB/s of the link: the copy takes some seconds, so that most are killed in its middle.
MEMORY, LINK = 512, 256
LEASE = 4
#: How often each process is killed, and how often paused, at least.
KILLS = {'conductor1': 7, 'conductor2': 7, 'host1': 7, 'host2': 7, 'api1': 4, 'api2': 4, 'placement': 2}
KILLS |= {'rabbitmq': 1, 'postgresql': 1}
PAUSES = {'conductor1': 3, 'conductor2': 3, 'host1': 2, 'host2': 1, 'api1': 1}
#: Seconds within which another conductor must have a killed one's migrations.
ADOPTED_WITHIN = 30

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def cloud(workspace, postgresql, rabbitmq, placement_http):
    """Two computes, two conductors, two APIs."""
    options = (('max_concurrent_live_migrations', 2), ('conductor.lease', LEASE), ('conductor.sweep_interval', 2))
    shape = Shape(hosts=2, conductors=2, apis=2, options=options, world=('--vcpus', '64', '--link', str(LINK)))
    site = Site(workspace, shape, rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site)
    cloud.simulation.run_until(cloud.up)
    yield cloud
    cloud.close()
    site.end()


class Killer:
    """A thread that kills and pauses services in the order of a seed, until it has done all or is stopped.

    At least one process of each kind is left alone at any time, but for what there is only one of.
    """

    def __init__(self, cloud, servers, seed, kills=KILLS, pauses=PAUSES):
        self.cloud = cloud
        self.processes = {**cloud.site.services, **servers}
        self.done = collections.Counter()
        self.owned = []
        self.failures = []
        self._dice = random.Random(seed)  # noqa: S311 -- to be repeated, not secret
        self._todo = [('kill', name) for name, count in kills.items() for _ in range(count)]
        self._todo += [('pause', name) for name, count in pauses.items() for _ in range(count)]
        self._dice.shuffle(self._todo)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._thread.join()
        if self.failures:
            raise self.failures[0]

    @property
    def finished(self):
        """Whether it has done all that it was to do."""
        return not self._thread.is_alive()

    def _run(self):
        try:
            for deed, name in self._todo:
                if deed == 'kill':
                    self._kill(name)
                else:
                    self._pause(name)
                self.done[deed, name] += 1
                time.sleep(self._dice.uniform(0, 0.5))
        except Exception as error:  # noqa: BLE001 -- the test raises it
            self.failures.append(error)

    def _kill(self, name):
        if name.startswith('conductor'):
            self._note_owned(name)
        self.processes[name].kill()
        time.sleep(self._dice.choice((0, 0, 0.5, 2)))
        # The start is not awaited: a service may be killed while it starts.
        service = self.processes[name]
        service.start(wait=name in ('rabbitmq', 'postgresql', 'placement'))

    def _pause(self, name):
        service = self.processes[name]
        service.send(signal.SIGSTOP)
        time.sleep(LEASE + self._dice.uniform(0.5, 2))
        service.send(signal.SIGCONT)

    def _note_owned(self, name):
        with contextlib.suppress(exception.DatabaseUnreachable):
            its = {one.id for one in self.cloud.database.conductors.list() if one.server == name}
            open_ = self.cloud.database.migrations.list(in_progress=True)
            found = {one.uuid: one.owner for one in open_ if one.owner in its}
            self.owned.append((time.monotonic(), name, found))


class Adoptions:
    """The time until each migration of a killed conductor has another owner, or has ended."""

    def __init__(self, killer):
        self._killer = killer
        self._open = {}
        self._known = 0
        self.took = []

    def look(self, cloud):
        """Look now."""
        fresh, self._known = self._killer.owned[self._known :], len(self._killer.owned)
        for at, name, owned in fresh:
            self._open |= dict.fromkeys(owned.items(), (at, name))
        for (uuid, owner), (at, _name) in list(self._open.items()):
            row = cloud.database.migrations.get(uuid)
            if row.ended or row.owner != owner:
                self.took.append(time.monotonic() - at)
                del self._open[uuid, owner]

    @property
    def late(self):
        """Those that have waited for too long."""
        now = time.monotonic()
        return [(uuid, name) for (uuid, _), (at, name) in self._open.items() if now - at > ADOPTED_WITHIN]


def test_hundred_migrations_end_right_when_any_process_is_killed(cloud, rabbitmq, postgresql, placement_http):
    servers = {one.name: one for one in (rabbitmq, postgresql, placement_http)}
    guests = [cloud.boot(f'vm-{n}', f'host{1 + n % 2}', MEMORY, dirty_rate=20) for n in range(GUESTS)]
    user = User(cloud, guests, MOVES)
    began = time.monotonic()
    with Killer(cloud, servers, seed=5) as killer:
        adoptions = Adoptions(killer)

        def all_is_done():
            finished = user.step()
            with contextlib.suppress(exception.DatabaseUnreachable):
                adoptions.look(cloud)
            assert not adoptions.late, f'not adopted within {ADOPTED_WITHIN} s: {adoptions.late}'
            if finished and not killer.finished:
                user.want_more()
            return finished and killer.finished

        cloud.simulation.run_until(all_is_done, timeout=600)
    cloud.come_to_rest()
    cloud.wait()
    kills = sum(count for (deed, _), count in killer.done.items() if deed == 'kill')
    pauses = sum(count for (deed, _), count in killer.done.items() if deed == 'pause')
    print(f'{time.monotonic() - began:.0f} s: {user.done} moves, {kills} killed, {pauses} paused; {dict(user.answers)}')
    print(f'{len(adoptions.took)} adopted, the last within {max(adoptions.took):.1f} s')
    assert (kills, pauses) == (sum(KILLS.values()), sum(PAUSES.values()))
    assert (kills >= 40, pauses >= 10) == (True, True)
    assert {name for _, name in killer.done} == cloud.site.services.keys() | servers.keys()

    # Nothing that was accepted is lost, and everything has ended; what has not moved says why.
    status = MigrationStatus
    migrations = cloud.migrations()
    accepted = [one for one in cloud.history if one.status == 202]
    assert {one.request_id for one in accepted} <= {one.request_id for one in migrations}
    assert {one.status for one in migrations} <= {status.COMPLETED, status.FAILED}
    assert [one.uuid for one in migrations if one.status == status.FAILED and not one.failure] == []
    assert sum(one.status == status.COMPLETED for one in migrations) >= MOVES
    assert adoptions.took
    cloud.simulation.run_until(cloud.up)
    cloud.judge(set())
