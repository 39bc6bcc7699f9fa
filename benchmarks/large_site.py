# SPDX-License-Identifier: Apache-2.0

"""Empty hosts of a large site, and print what is wrong, the memory of each process, and the CPU time.

    python benchmarks/large_site.py [--hosts 250] [--guests 20] [--emptied 12]

Four conductors and one API are processes of their own, on a private RabbitMQ, PostgreSQL and Placement. The hosts are
simulated: their compute services share some processes, and their hypervisors are fakes in another one. First some
guests leave one host, one after the other. Then drains empty other hosts at once. The CPU time that all processes but
the hypervisors spend for a guest is compared. What they spend while nothing migrates is subtracted.

Afterwards an audit that shares no code with the product reads everything. Exit status: 0; 1 something is wrong, or a
guest costs more than 1.5 times as much as one alone; 3 a server is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

if __name__ == '__main__':
    # started by its path, a script has its own directory there and not the tree
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import on_services, runs
from migrator.conductor import registry
from migrator.objects import COMPUTE_BINARY, Flavor, Instance, MigrationStatus
from migrator.placement_client import allocations
from migrator.testing.client import PROJECT, USER
from tests.long_run import audit
from tests.real.cloud import ProcessCloud
from tests.real.servers import placement, postgresql, process, rabbitmq, reaper
from tests.real.site import Service, Shape, Site

#: The most CPU time for each guest, as a ratio to one alone.
GOAL = 1.5
CONDUCTORS, PROCESSES = 4, 3
#: Guests that leave one after the other, and seconds in which nothing migrates.
ALONE, IDLE = 20, 30.0
#: Seconds that anything may take.
PATIENCE = 1800.0
#: The process with the hypervisors, which is not part of the control plane.
WORLD = 'fake-world'
_FLAVOR = Flavor(name='small', vcpus=1, memory_mb=runs.MEMORY, root_gb=1)


class _ManyHosts(Service):
    """A process with the compute services of many hosts."""

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [sys.executable, '-m', 'benchmarks.many_hosts', '--config-file', str(self.file)]


class _LargeSite(Site):
    """A site whose hosts share some processes.

    :param names: the hosts.
    """

    def __init__(self, names: Sequence[str], *parts: Any) -> None:
        self._names = {f'hosts{number + 1}': names[number::PROCESSES] for number in range(PROCESSES)}
        super().__init__(*parts)
        self.hosts = list(names)

    def host_names(self) -> list[str]:
        """Return the names of the processes."""
        return list(self._names)

    def made(self, kind: str, name: str, file: pathlib.Path) -> Service:
        """Return the process of a service."""
        made = (_ManyHosts if kind == 'compute' else Service)(self.workspace, kind, name, file)
        made.start_timeout = PATIENCE
        return made

    def configure(self, name: str, **more: Any) -> pathlib.Path:
        """Write the configuration file of a process."""
        hosts = {'benchmark.hosts': self._names[name]} if name in self._names else {}
        return super().configure(name, **hosts, **more)


class LargeSite:
    """A site with guests, and what its processes use.

    :param hosts: how many there are.
    :param guests: on each of them.
    """

    def __init__(self, workspace: process.Workspace, hosts: int, guests: int) -> None:
        self._workspace = workspace
        names = [f'host{number:04d}' for number in range(1, hosts + 1)]
        database, broker = postgresql.PostgreSQL(workspace), rabbitmq.RabbitMQ(workspace)
        database.start()
        broker.start()
        store = placement.Placement(workspace, database.create_database('placement'), workers=2)
        store.start()
        room = [word for value, option in runs.room_for(2 * guests).values() for word in (option, str(value))]
        shape = Shape(PROCESSES, CONDUCTORS, world=(*room, '--link', str(runs.LINK)))
        site = _LargeSite(names, workspace, shape, broker, database, store)
        site.start()
        self.cloud = ProcessCloud(site)
        self.known = audit.Known()
        self.processes = {**site.services, 'postgresql': database, 'placement': store, 'rabbitmq': broker}
        self.processes[WORLD] = site.world_process
        self._where = audit.Where(
            database=site.database_url.replace('+psycopg2', ''),
            placement=store.url,
            broker=broker.ask('GET', 'overview').url.partition('/api/')[0].replace('://', '://guest:guest@'),
            amqp=f'{process.HOST}:{broker.port}',
            vhost=site.vhost,
            world=site.world_path,
        )
        self.wait(lambda: self._up() == hosts and not self.cloud.database.services.nodes_to_place())
        for node in self.cloud.database.services.list_nodes():
            self._boot(node.host, node.uuid, guests)

    def _up(self) -> int:
        return len(self.cloud.database.services.list(binary=COMPUTE_BINARY))

    def _boot(self, host: str, root: str, number: int) -> None:
        """Start guests on a host, with one request to Placement."""
        writes = []
        for _ in range(number):
            uuid = self.cloud.new_uuid()
            guest = Instance(
                uuid=uuid, name=uuid, project_id=PROJECT, user_id=USER, host=host, node=host, flavor=_FLAVOR
            )
            self.cloud.database.instances.create(guest)
            self.cloud.world.hypervisors[host].spawn(guest)
            held = {root: _FLAVOR.resources()}
            writes.append(allocations.Write(consumer=registry.consumer_of(guest), allocations=held, generation=None))
            self.known.guests.add(uuid)
        allocations.write_all(self.cloud.placement_client, writes)

    def wait(self, predicate: Callable[[], object]) -> None:
        """Wait until a predicate holds."""
        self.cloud.simulation.run_until(predicate, PATIENCE)

    def migrate_alone(self, host: str, number: int) -> None:
        """Have some guests of a host leave, one after the other."""
        guests = self.cloud.database.instances.list({'host': host})[:number]
        for guest in guests:
            answer = self.cloud.live_migrate(guest)
            assert answer.status_int == 202, answer.text
            self.wait(self.cloud.idle)

    def empty(self, hosts: Sequence[str]) -> int:
        """Drain hosts at once, and return how many guests have left."""
        before = len(self.cloud.database.migrations.list(limit=None))
        for host in hosts:
            answer = self.cloud.request('POST', '/migrator/v1/drains', {'host': host})
            assert answer.status_int == 202, answer.text
            self.known.drains.add(answer.json['drain']['uuid'])
        self.wait(lambda: not self.cloud.database.drains.list(in_progress=True))
        return len(self.cloud.database.migrations.list(limit=None)) - before

    def wrong(self, emptied: Sequence[str]) -> list[str]:
        """Return everything that is wrong. The hosts that were emptied stay disabled."""
        self.known.migrations = {one.uuid for one in self.cloud.migrations()}
        right = {f'{host} is disabled' for host in emptied}
        seen = audit.read(self._where)
        found = [f'{one.sort}: {one.what}' for one in audit.judge(seen, self.known) if one.what not in right]
        left = [one['uuid'] for one in seen.instances if one['host'] in emptied]
        others = [one['uuid'] for one in seen.migrations if one['status'] != MigrationStatus.COMPLETED]
        return [*found, *(f'guest {one} is left' for one in left), *(f'migration {one} failed' for one in others)]

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each process so far."""
        return {name: on_services.cpu_of(each.pid) for name, each in self.processes.items()}

    def peak(self, name: str) -> float:
        """Return the greatest resident memory of a process and its children, in MiB."""
        pids = reaper.descendants(self.processes[name].pid)
        return sum(_peak_kib(pid) for pid in pids) / 1024

    def measured(self, function: Callable[[], Any], idle: dict[str, float] | None = None) -> dict[str, float]:
        """Return the CPU seconds of each process until a function returns.

        :param idle: those of one second without migrations, which are subtracted.
        """
        began, before = time.monotonic(), self.cpu()
        function()
        after, took = self.cpu(), time.monotonic() - began
        return {name: after[name] - before[name] - took * (idle or {}).get(name, 0.0) for name in before}


def _peak_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines():
            if line.startswith('VmHWM:'):
                return int(line.split()[1])
    return 0


def run(workspace: process.Workspace, hosts: int, guests: int, emptied: int) -> bool:
    """Run the benchmark, print what it has found, and return whether the goals are met."""
    _report(f'starting {hosts} hosts with {hosts * guests} guests')
    began = time.monotonic()
    site = LargeSite(workspace, hosts, guests)
    names = site.cloud.site.hosts
    _report(f'{time.monotonic() - began:.0f} s; idle for {IDLE:g} s')
    idle = {name: used / IDLE for name, used in site.measured(lambda: time.sleep(IDLE)).items()}
    number = min(ALONE, guests)
    _report(f'{number} guests, one after the other')
    alone = {
        name: used / number for name, used in site.measured(lambda: site.migrate_alone(names[-1], number), idle).items()
    }
    leaving = names[:emptied]
    _report(f'{emptied} hosts are emptied')
    began, left = time.monotonic(), 0

    def empty() -> None:
        nonlocal left
        left = site.empty(leaving)

    used = site.measured(empty, idle)
    took = time.monotonic() - began
    each = {name: value / left for name, value in used.items()}
    _report('audit')
    until = time.monotonic() + 120
    while (wrong := site.wrong(leaving)) and time.monotonic() < until:
        time.sleep(2)
    site.cloud.close()
    lines = [f'WRONG: {text}' for text in wrong]
    lines.append(f'{"process":12} {"peak MiB":>9} {"idle, ms/s":>11} {"alone, ms":>10} {"emptied, ms":>12}')
    for name in idle:
        figures = [1000 * cpu[name] for cpu in (idle, alone, each)]
        lines.append(f'{name:12} {site.peak(name):9.0f} {figures[0]:11.1f} {figures[1]:10.1f} {figures[2]:12.1f}')
    one, many = (sum(cpu[name] for name in cpu if name != WORLD) for cpu in (alone, each))
    lines.append(f'{hosts} hosts, {hosts * guests} guests; {left} guests left {emptied} hosts in {took:.0f} s')
    lines.append(f'wrong: 0 / {len(wrong)}')
    lines.append(f'CPU time of each guest, of one alone: {GOAL} / {many / one:.2f} ({many:.3f} s of {one:.3f} s)')
    sys.stdout.write('\n'.join(lines) + '\n')
    return not wrong and many / one <= GOAL


def _report(text: str) -> None:
    sys.stderr.write(f'{text}\n')
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit status."""
    parser = argparse.ArgumentParser(prog='large_site.py', description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--hosts', type=int, default=250, help='how many hosts (%(default)s)')
    parser.add_argument('--guests', type=int, default=20, help='guests on each host (%(default)s)')
    parser.add_argument('--emptied', type=int, default=12, help='how many hosts are emptied (%(default)s)')
    asked = parser.parse_args(argv)
    lacking = on_services.missing()
    if lacking:
        sys.stderr.write(f'there is no {lacking}\n')
        return 3
    workspace = process.Workspace()
    try:
        return 0 if run(workspace, asked.hosts, asked.guests, asked.emptied) else 1
    finally:
        workspace.close()


if __name__ == '__main__':
    sys.exit(main())
