# SPDX-License-Identifier: Apache-2.0
"""The fixture of every functional test: ``cloud``, a simulated cloud that is checked at the end.

    def test_a_server_moves(cloud):
        instance = cloud.boot('one', 'host1')
        assert cloud.live_migrate(instance).status_int == 202
        cloud.wait()
        ...

It has three hosts, one conductor, the fake Placement and a database (``tests/conftest.py``); nothing runs but while the
test lets time pass (``cloud.wait``, ``cloud.simulation``). After the test the faults that it has planted are taken
away, what is in progress may end (or say that it is stuck), everything comes to rest, and then all of INVARIANTS must
hold. Some of them were looked at after every event, too; ``watcher.violations`` is what that has found.

What a test may say of its cloud:

- ``@pytest.mark.cloud(hosts=5, options={'conductor.lease': 5}, post_copy=True)``: what
  :class:`migrator.testing.cloud.SimulatedCloud` takes, the hypervisors' knobs included;
- ``@pytest.mark.seeds(1, 2, 3)``: run it once with each of these seeds (``tests/conftest.py``);
- ``@pytest.mark.not_quiet(reason='...')``: at its end the cloud is not at rest and cannot come to rest (every
  conductor is dead, say). What must be true always, and of the answers, is asked all the same;
- ``@pytest.mark.simulated(reason='...')``: it has something in its hand -- the clock, the schedule, one message -- that
  it has not when the services are processes (see :mod:`tests.real.on_processes`);
- ``@pytest.mark.breaks('I3', reason='...')``: the test itself breaks this invariant (it writes an allocation by
  hand, say). All the others are asked.

Guests that the test pauses or shuts off on the hypervisor are taken for what they are. A process that was killed stays
dead, and a host without power stays so: what must then be deferred, or stuck, has to be.
"""

import contextlib

import pytest

from migrator.simulator.invariants import check
from migrator.simulator.monitor import Monitor
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.simulation.threads import TimedOut
from tests.functional.managing import Operator
from tests.real.cloud import ProcessCloud, RealTime

HOSTS = 3
#: Seconds of its clock that a cloud is given to end what is in progress when a test is over.
PATIENCE = 900
#: And to run the deferred cleanups when the hosts can run them again.
CLEANUP_TIMEOUT = 60

#: The plug-in by which the services are processes.
ON_PROCESSES = 'tests.real.on_processes'

#: What a test that runs on processes too may ask its cloud for, and the time of it.
IN_COMMON = {*dir(ProcessCloud), *ProcessCloud.__init__.__code__.co_names}
IN_COMMON_TIME = {*dir(RealTime)}

MARKERS = (
    'cloud(**what): what the simulated cloud of this test is made of',
    'not_quiet(reason): the cloud is not at rest when this test ends',
    'breaks(*invariants, reason): this test itself breaks these invariants',
    'simulated(reason): what this test has in its hand is only there in a cloud that is simulated',
)


def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line('markers', marker)


@pytest.fixture
def cloud(request, seed):
    """A simulated cloud; when the test is over, everything must be in order."""
    quiet, allowed = judged_by(request.node)
    if request.config.pluginmanager.hasplugin(ON_PROCESSES):
        with request.getfixturevalue('process_clouds').one(request.node, quiet, allowed) as cloud:
            yield cloud
        return
    backend = request.getfixturevalue('backend')
    marker = request.node.get_closest_marker('cloud')
    cloud = SimulatedCloud(
        backend.directory, backend=backend, **{'hosts': HOSTS, 'seed': seed, **(marker.kwargs if marker else {})}
    )
    try:
        cloud.monitor = Monitor(cloud)
        try:
            alone = marked(request.node, 'simulated', 'not_quiet')
            yield cloud if alone else InCommon(cloud)
            if quiet:
                come_to_rest(cloud)
            monitor = cloud.monitor
            check.assert_holds(monitor.snapshot(), quiet, seen=monitor.violations, allowed=allowed)
        finally:
            cloud.monitor.close()
    finally:
        cloud.stop()


@pytest.fixture
def operator(cloud, capsys, tmp_path, monkeypatch):
    """The operator on duty: ada, who runs migrator-manage."""
    monkeypatch.setenv('LOGNAME', 'ada')
    return Operator(cloud, capsys, tmp_path)


@pytest.fixture
def monitor(cloud):
    """What looks at the cloud after every event."""
    return cloud.monitor


class InCommon:
    """A simulated cloud that shows a test only what a cloud of processes has too.

    So a test that would fail on processes fails here in every run. Only some of them run on processes each time.
    """

    def __init__(self, cloud, names=IN_COMMON):
        vars(self).update(_cloud=cloud, _names=names)

    def __getattr__(self, name):
        found = getattr(self._cloud, name)
        if name not in self._names:
            raise NotInCommon(f'{name} is not there on processes: mark the test simulated, with its reason')
        return InCommon(found, IN_COMMON_TIME) if name == 'simulation' else found

    def __setattr__(self, name, value):
        raise NotInCommon(f'setting {name} does nothing on processes: mark the test simulated, with its reason')


class NotInCommon(AssertionError):
    """A test that is not marked ``simulated`` asks for something that processes have not."""


def marked(node, *names):
    """Return the markers of these names that a test has."""
    return [each for name in names for each in node.iter_markers(name)]


def judged_by(node):
    """Return whether a test's cloud comes to rest, and the invariants that the test breaks by itself."""
    markers = marked(node, 'not_quiet', 'breaks', 'simulated')
    for marker in markers:
        if not marker.kwargs.get('reason'):
            raise pytest.UsageError(f'{node.nodeid}: the marker {marker.name} needs a reason')
    allowed = {name for marker in markers if marker.name == 'breaks' for name in marker.args}
    unknown = allowed - {invariant.id for invariant in check.INVARIANTS}
    if unknown:
        raise pytest.UsageError(f'{node.nodeid}: there is no invariant {", ".join(sorted(unknown))}')
    return not any(marker.name == 'not_quiet' for marker in markers), allowed


def come_to_rest(cloud):
    """End all faults, and let the cloud run until nothing but background timers is left.

    What does not end in time is not waited for: the invariants say what it is.
    """
    for hypervisor in cloud.world.hypervisors.values():
        hypervisor.faults.clear()
    cloud.adapter._plans.clear()
    cloud.bus.faults = lambda message: None
    cloud.database.engine.boundary = lambda what: None
    cloud.simulation.on_checkpoint = None
    for process in cloud.processes.values():
        cloud.simulation.resume(process)
    with contextlib.suppress(TimedOut):
        cloud.simulation.run_until(lambda: nothing_to_wait_for(cloud), timeout=PATIENCE)
    with contextlib.suppress(TimedOut):
        cloud.simulation.run_until(lambda: not cloud.can_clean_up(), timeout=CLEANUP_TIMEOUT)
    with contextlib.suppress(TimedOut):
        cloud.simulation.run()


def nothing_to_wait_for(cloud):
    """Return whether every migration has ended, or is stuck."""
    return all(migration.stuck_reason for migration in cloud.database.migrations.list(in_progress=True))
