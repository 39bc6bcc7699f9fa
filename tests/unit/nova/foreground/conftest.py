# SPDX-License-Identifier: Apache-2.0

"""An operator who runs migrator-drain on a Nova in memory, where time passes while the command sleeps."""

import datetime
import json
import shlex

import pytest

from migrator import executors
from migrator.cmd import drain
from migrator.placement_client.client import PlacementClient
from tests import templates
from tests.unit import placements
from tests.unit.nova.fake import FakeNova


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.seconds = 0.0

    def monotonic(self):
        return self.seconds

    def now(self):
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=self.seconds)


class Threads(executors.NativeThreads):
    """Threads that sleep at once, let the seconds pass in Nova, and call ``on_sleep``."""

    def __init__(self, nova):
        super().__init__(Clock())
        self._nova = nova
        self.on_sleep = lambda: None

    def sleep(self, seconds):
        before = int(self.clock.seconds)
        self.clock.seconds += seconds
        self._nova.tick(int(self.clock.seconds) - before)
        assert self.clock.seconds < 400, 'it does not end'
        self.on_sleep()


class Operator:
    """An operator who runs migrator-drain.

    :ivar err: stderr of the last command.
    """

    def __init__(self, path, nova, capsys):
        self.path, self.nova, self._capsys = path, nova, capsys
        self.threads = Threads(nova)
        self.err = ''

    def run(self, *words, threads=None):
        """Run a command; return its exit status and stdout."""
        argv = ['--state', str(self.path), *map(str, words)]
        status = drain.main(argv, threads or self.threads, self.connect)
        out, self.err = self._capsys.readouterr()
        return status, out

    def inside(self, *words):
        """Return the JSON of another command, while one runs."""
        on_sleep, self.threads.on_sleep = self.threads.on_sleep, lambda: None
        self._capsys.readouterr()
        drain.main(['--state', str(self.path), '--json', *words], self.threads, self.connect)
        self.threads.on_sleep = on_sleep
        return json.loads(self._capsys.readouterr().out)

    def connect(self, cloud, region):
        return self.nova.client(), self.nova.placement

    def pastes(self, line):
        """Run a command that was printed."""
        program, *argv = shlex.split(line)
        assert program == 'migrator-drain'
        assert argv[:2] == ['--state', str(self.path)]
        return self.run(*argv[2:])

    def json(self, *words):
        return json.loads(self.run(*words, '--json')[1])


@pytest.fixture(scope='module')
def running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


@pytest.fixture
def nova(running):
    running.empty()
    return FakeNova(placement=PlacementClient(running.adapter()))


@pytest.fixture
def operator(tmp_path, nova, capsys):
    path = tmp_path / 'state' / 'lab.sqlite'
    path.parent.mkdir()
    templates.database(tmp_path).rename(path)
    return Operator(path, nova, capsys)
