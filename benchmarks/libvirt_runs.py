# SPDX-License-Identifier: Apache-2.0

"""Measure migrations of real guests, by migrator with services in processes, and by virsh."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import on_services
from migrator.db import saga_log
from tests.real.libvirt.lab import guests, hosts, machine
from tests.real.libvirt.site import Cloud, LibvirtSite
from tests.real.servers import placement, postgresql, process, rabbitmq

#: MiB of the guest, how much of that is noise, how much of it the guest rewrites a second, and how much is copied.
MEMORY, WORK, RATE, BANDWIDTH = 256, 200, 2, 32
#: The first step of the downtime is then 300 ms, which is what virsh leaves it at. With the default, 50 ms, a copy
#: goes on until less is left, and the comparison is of the same copy.
DOWNTIME = {'libvirt.live_migration_downtime': 3000, 'libvirt.live_migration_downtime_steps': 10}
#: Seconds that a run may take.
PATIENCE = 300.0


def missing() -> str | None:
    """Say what is not here; None if nothing."""
    return machine.missing() or on_services.missing()


@contextlib.contextmanager
def servers() -> Iterator[Bench]:
    """Start everything, give what moves guests, and end all of it."""
    workspace = process.Workspace()
    try:
        database = postgresql.PostgreSQL(workspace)
        broker = rabbitmq.RabbitMQ(workspace)
        for each in (database, broker):
            each.start()
        store = placement.Placement(workspace, database.create_database('placement'), workers=2)
        store.start()
        lab = hosts.Lab(workspace)
        for name in ('alpha', 'beta'):
            lab.start_host(name)
        options = {'service_down_time': 60, 'libvirt.live_migration_bandwidth': BANDWIDTH, **DOWNTIME}
        site = LibvirtSite(lab, options, broker, database, store)
        site.start()
        cloud = Cloud(site)
        cloud.wait(cloud.up, 'the computes to be up')
        yield Bench(cloud)
        cloud.close()
    finally:
        workspace.close()


class Bench:
    """A mover of new guests from one host to the other, in one of two ways.

    :param cloud: up.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._alpha, self._beta = (cloud.lab.hosts[name] for name in ('alpha', 'beta'))
        self._number = 0

    def by_virsh(self) -> dict[str, Any]:
        """Move one by hand."""
        guest = self._new_guest()
        # what the driver gives to libvirt, in virsh's words
        command = [
            'virsh', '-q', '-c', self._alpha.uri, 'migrate', '--live', '--p2p', '--persistent', '--undefinesource',
            '--bandwidth', str(BANDWIDTH), guest.uuid, self._cloud.lab.uri_of_any % 'beta', 'tcp://beta',
        ]  # fmt: skip
        with Listener(guest, self._beta) as listener:
            began = time.monotonic()
            subprocess.run(command, check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)  # noqa: S603 -- as above
            total = time.monotonic() - began
            listener.wait()
        return self._over(
            guest, {'total': total, 'arrived': listener.arrived - began, 'downtime': listener.longest_silence}
        )

    def by_migrator(self) -> dict[str, Any]:
        """Move one by the REST API."""
        guest = self._new_guest()
        self._cloud.register(guest, 'alpha', memory_mb=MEMORY)
        path, body = f'/servers/{guest.uuid}/action', {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}
        with Listener(guest, self._beta) as listener:
            asked, began = datetime.datetime.now(datetime.UTC), time.monotonic()
            self._cloud.request('POST', path, **body)
            # no poll meanwhile, as with virsh
            listener.wait()
            migration = self._cloud.migrations(guest)[-1]
            while migration.in_progress:
                time.sleep(0.01)
                migration = self._cloud.migration(migration)
            total = time.monotonic() - began
        if migration.status != 'completed':
            raise process.ServerError(f'a migration ended {migration.status}: {migration.failure}')
        arrived = listener.arrived - began
        history = saga_log.history(self._cloud.database.migrations.read_log(migration.uuid))
        phases = _phases(history, asked, arrived)
        measured = {'total': total, 'arrived': arrived, 'downtime': listener.longest_silence, 'phases': phases}
        return self._over(guest, measured)

    def _new_guest(self) -> guests.Guest:
        self._number += 1
        return self._cloud.lab.start_guest(
            self._alpha, f'guest-{self._number}', memory_mib=MEMORY, work=WORK, rate=RATE
        )

    def _over(self, guest: guests.Guest, measured: dict[str, Any]) -> dict[str, Any]:
        """Check that a guest has come well, and take it away."""
        guest.survived(self._alpha, self._beta)
        for host in (self._alpha, self._beta):
            host.remove_guests()
        self._cloud.forget()
        return measured


def _phases(history: Sequence[dict[str, Any]], asked: datetime.datetime, arrived: float) -> dict[str, float]:
    """Return how long each part of a migration took, in order."""
    moments = [('request', 0.0)]
    for entry in history:
        at = datetime.datetime.fromisoformat(str(entry['at']))
        if entry['status'] == 'post-migrating':
            moments.append(('first output there', arrived))
        moments.append((str(entry['status']), (at - asked).total_seconds()))
    return {f'{name} to {then}': round(end - begin, 4) for (name, begin), (then, end) in itertools.pairwise(moments)}


class Listener(guests.Watch):
    """A reader of a guest's output, which notes the first line at the destination.

    :ivar arrived: when that was, on the monotonic clock; 0: it has not come.
    """

    def __init__(self, guest: guests.Guest, destination: hosts.Host) -> None:
        super().__init__(guest)
        self._there = destination.console(guest.name)
        self._name_of_guest = guest.name
        self.arrived = 0.0

    def _sizes(self) -> list[int]:
        sizes: list[int] = super()._sizes()
        with contextlib.suppress(FileNotFoundError):
            if not self.arrived and self._there.stat().st_size:
                self.arrived = time.monotonic()
        return sizes

    def wait(self) -> None:
        """Return when it has arrived."""
        process.wait_until(lambda: self.arrived, f'{self._name_of_guest} to arrive', PATIENCE)
