# SPDX-License-Identifier: Apache-2.0

"""Two compute hosts on fake hypervisors, called as a conductor calls them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from oslo_config import cfg

from migrator import context, exception, executors
from migrator.compute import manager
from migrator.conf import compute
from migrator.objects import Answer, Command, Flavor, Instance, LiveMigrateData, Observation, Report, protocol
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from migrator.testing.simulation.threads import Simulation
from migrator.virt import driver

CONTEXT = context.admin_context('req-test')
#: Steps whose end is in the reply if it comes soon, and otherwise in an event.
REPLIED = ('pre_live_migration', 'post_live_migration', 'rollback_live_migration')


def uuid(kind: int, number: int) -> str:
    return f'00000000-0000-4000-800{kind}-{number:012d}'


def instance(number: int = 1, memory_mb: int = 1024) -> Instance:
    return Instance(
        uuid=uuid(1, number),
        name=f'guest-{number}',
        project_id='project',
        user_id='user',
        host='alpha',
        node='alpha',
        flavor=Flavor(name='small', vcpus=1, memory_mb=memory_mb, root_gb=1),
    )


def configuration(**options: Any) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    conf([], default_config_files=[])
    for name, value in options.items():
        conf.set_override(name, value, group=group_of(name))
    return conf


def group_of(option: str) -> str | None:
    if option.startswith('live_migration_'):
        return 'libvirt'
    return 'compute' if option.startswith(('adopt_', 'stop_', 'service_')) else None


class Events:
    """A client that records a host's messages, and replies to compute_started with ``assignments``."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, Report]] = []
        self.started: list[protocol.HostReport] = []
        self.beats: list[protocol.HostReport] = []
        self.stopping: list[tuple[str, str, list[str]]] = []
        self.timed_out: list[tuple[str, str, str, str, float]] = []
        self.assignments: list[protocol.Assignment] = []
        self.unreachable = False
        self.hang: Callable[[], Any] | None = None

    def _reach(self) -> None:
        if self.hang is not None:
            self.hang()
        if self.unreachable:
            raise exception.ServiceUnreachable(service='The message broker', reason='planted')

    def step_ended(self, reply_to: str, report: Report) -> None:
        self._reach()
        self.ended.append((reply_to, report))

    def compute_started(self, report: protocol.HostReport) -> list[protocol.Assignment]:
        self._reach()
        self.started.append(report)
        return self.assignments

    def compute_heartbeat(self, report: protocol.HostReport) -> None:
        self._reach()
        self.beats.append(report)

    def compute_stopping(self, host: str, boot_id: str, cancelled: list[str]) -> None:
        self._reach()
        self.stopping.append((host, boot_id, cancelled))

    def live_migration_timed_out(
        self, host: str, boot_id: str, migration_uuid: str, action: str, seconds: float
    ) -> None:
        self._reach()
        self.timed_out.append((host, boot_id, migration_uuid, action, seconds))

    def states(self, step: str) -> list[str]:
        return [report.state for _, report in self.ended if report.step == step]


class Wire:
    """An RPC that records what is served, and delivers nothing."""

    def __init__(self) -> None:
        self.serving: list[Any] = []
        self.stop: Callable[[], None] = lambda: None

    def serve(self, target: Any, endpoint: object) -> Wire:
        self.serving.append((target, endpoint))
        return self

    def call(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError('a compute host sends no RPC of its own')

    cast = call


class Host:
    """One start of a compute host, until it is killed."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        start: bool = True,
        executor: Callable[[executors.Threads], Executor] | None = None,
        **options: Any,
    ) -> None:
        self.scene = scene
        self.name = name
        self.process = scene.simulation.process(name)
        self.events = Events()
        self.wire = Wire()
        self.conf = configuration(**options)
        self.driver = FakeDriver(scene.world.hypervisors[name], self.process)
        self.manager = manager.ComputeManager(
            self.conf,
            name,
            self.driver,
            self.process,
            self.events,
            self.wire,
            executor=executor and executor(self.process),
        )
        if start:
            self.start()

    def start(self) -> None:
        self.manager.start()
        self.scene.simulation.run_ready()

    def kill(self) -> None:
        self.scene.simulation.kill(self.process)

    def command(self, step: str, number: int = 1, epoch: int = 1, owner: str = 'one', **changes: Any) -> Command:
        return Command(
            migration_uuid=uuid(2, number),
            instance_uuid=uuid(1, number),
            step=step,
            epoch=epoch,
            owner=owner,
            reply_to=f'conductor-{owner}',
            boot_id=self.manager.boot_id,
        ).replace(**changes)

    def call(
        self,
        step: str,
        number: int = 1,
        epoch: int = 1,
        owner: str = 'one',
        arguments: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Answer:
        """Call a step as the conductor does, and return the answer; a check that hangs blocks the test.

        :param arguments: other arguments than the usual ones.
        """
        args: dict[str, Any] = {'migrate_data': self.scene.data}
        if step == 'check_can_live_migrate_destination':
            args = {'block_migration': None, 'disk_over_commit': False, 'definition': {}, 'wait': 60.0}
        elif step == 'check_can_live_migrate_source':
            args['wait'] = 60.0
        elif step == 'live_migration':
            args['destination'] = 'beta'
        elif step == 'check_can_evacuate':
            args['wait'] = 60.0
        elif step == 'post_evacuation_at_source':
            args['runs_at'] = None
        elif step in ('live_migration_abort', 'live_migration_force_complete'):
            args = {}
        answer: Answer = getattr(self.manager, step)(
            CONTEXT,
            command=self.command(step, number, epoch, owner, **changes),
            **{'instance': instance(number), **args, **(arguments or {})},
        )
        report = answer.report
        noted = (f'conductor-{owner}', report)
        if step.startswith(REPLIED) and report and report.state != 'running' and noted not in self.events.ended:
            self.events.ended.append(noted)
        return answer

    def report(self, step: str, number: int = 1, epoch: int = 1, owner: str = 'one', **changes: Any) -> Report:
        report = self.call(step, number, epoch, owner, **changes).report
        assert report is not None
        return report

    def poll(self, number: int = 1, epoch: int = 1, owner: str = 'one', acks: Any = (), **changes: Any) -> Observation:
        found = self.polls([self.command('poll', number, epoch, owner, **changes)], acks)
        assert len(found) == 1
        return found[0]

    def polls(self, commands: list[Command], acks: Any = (), wait: float = 1.0) -> list[Observation]:
        return self.manager.poll_live_migrations(CONTEXT, commands, list(acks), wait)

    def kept(self, step: str, number: int = 1) -> Report | None:
        """Return the report of a step that a poll returns, or None."""
        return next((report for report in self.poll(number).reports if report.step == step), None)

    @property
    def waiting(self) -> list[str]:
        return list(self.manager._waiting_live_migrations)

    @property
    def running(self) -> int:
        return self.manager._live_migration_executor.running


class Scene:
    """Source alpha, destination beta and simulated time; the link is slow, so that a copy takes time."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = FakeWorld(simulation.world)
        self.alpha = self.world.add('alpha', link=100.0)
        self.beta = self.world.add('beta', link=100.0)
        self.data = LiveMigrateData(destination={'host': 'beta'})

    def host(self, name: str = 'alpha', **options: Any) -> Host:
        return Host(self, name, **options)

    def guests(self, *numbers: int) -> None:
        """Start guests at alpha, and prepare beta to receive them."""
        receiver = FakeDriver(self.beta, self.simulation.world)
        for number in numbers:
            self.alpha.spawn(instance(number))
            receiver.pre_live_migration(instance(number), self.data, driver.NeverCancelled())

    def until(self, predicate: Callable[[], Any], timeout: float = 3600) -> None:
        self.simulation.run_until(predicate, timeout)

    def thread(self, host: Host, function: Callable[[], Any]) -> list[Any]:
        """Run a function in a thread of a host; its result appears in the returned list."""
        results: list[Any] = []
        host.process.start(lambda: results.append(function()), name='handler')
        return results


def threads_of(host: Host) -> executors.Threads:
    return host.process
