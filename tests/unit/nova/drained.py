# SPDX-License-Identifier: Apache-2.0

"""A drain on a Nova in memory, and the engine that a test advances it with."""

import contextlib

from keystoneauth1.exceptions import ConnectFailure

from migrator import exception
from migrator.drain import run
from migrator.nova import engine
from migrator.objects.drain import Drain
from tests.unit.nova.fake import FakeNova


class Rows:
    """The rows of one drain, in memory."""

    def __init__(self, fake, drain):
        self.fake, self.drain, self.members, self.log = fake, drain, {}, []

    def read_members(self, _uuid):
        return sorted(self.members.values(), key=lambda member: member.position)

    def write(self, drain, fields, members, events):
        self.members |= {member.instance_uuid: member for member in members}
        self.log += events
        self.drain = drain.replace(**fields)
        return self.drain

    def now(self):
        return self.fake.now


class Cloud:
    """A Nova in memory, a drain of its host1, and the engine of a process that may be started again."""

    def __init__(self, placement):
        self.placement = placement
        self.fake = FakeNova(placement=placement)
        self.engine = None
        self.rows = Rows(self.fake, Drain(uuid='d1', host='host1'))
        self.options = {}
        self.restart()

    def restart(self):
        """Let a new process go on."""
        self.engine = engine.NovaEngine(
            self.fake.client(), self.placement or Nothing(), self, self.choose, **self.options
        )

    def monotonic(self):
        return self.fake.now.timestamp()

    def now(self):
        return self.fake.now

    def choose(self, drain, _member, avoided, in_flight):
        hosts = drain.destinations or ['host1', 'host2', 'host3']
        return min((host for host in hosts if host not in avoided), key=lambda host: in_flight[host], default=None)

    def set(self, **fields):
        self.rows.drain = self.rows.drain.replace(**fields)

    def step(self):
        """Advance once, then let a second pass."""
        with contextlib.suppress(exception.ServiceUnreachable):
            run.advance(self.rows, self.engine, self.rows.drain)
        self.fake.tick()

    def go(self, seconds=600, until=lambda: False):
        """Advance until the drain has ended, or something else."""
        for _ in range(seconds):
            if self.rows.drain.ended or until():
                return self.rows.drain
            self.step()
        return self.rows.drain

    def member(self, guest):
        return self.rows.members[guest]

    def status(self, guest):
        return self.member(guest).status

    def asked(self, guest):
        """Return how often Nova has accepted a live migration of a guest."""
        return sum((one['instance_uuid'], one['action']) == (guest, 'live-migration') for one in self.fake.actions)


class Nothing:
    """A Placement without any provider."""

    def read(self, _url):
        return {'resource_providers': []}


def lose(*lost):
    """Return a hook that raises as if there were no answer to any of these (method, end of the path)."""

    def hook(method, path):
        if any(method == each and path.endswith(end) for each, end in lost):
            raise ConnectFailure(f'Unable to establish connection to http://nova{path}')

    return hook
