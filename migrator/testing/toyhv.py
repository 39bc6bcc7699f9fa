# SPDX-License-Identifier: Apache-2.0

"""The binding of a toy hypervisor, for the driver of the page on embedding and for tests.

Like a binding to a C library it knows nothing of eventlet: each call may block the system's thread that makes it, and
any such thread may make one.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

from migrator import executors

RUNNING, PAUSED, STOPPED, RECEIVING = 'running', 'paused', 'stopped', 'receiving'
COMPLETED, FAILED, ABORTED = 'completed', 'failed', 'aborted'
_NAMESPACE = UUID('7f5a6f5e-0f5b-4c4e-8f53-0c1d7c7f7f11')


class Error(Exception):
    """The toy cannot do that."""


class _Job:
    def __init__(self, destination: Host) -> None:
        self.destination = destination
        self.outcome: str | None = None


class Cluster:
    """Hosts that can reach each other, and share their disks.

    :ivar slow: jobs end only when they are made to; otherwise at once.
    :ivar refuses: why no job can begin; empty: jobs can.
    """

    def __init__(self) -> None:
        self.lock = executors.native_lock()
        self.hosts: dict[str, Host] = {}
        self.slow = False
        self.refuses = ''

    def add(self, name: str) -> Host:
        """Add a host, and return its binding."""
        self.hosts[name] = Host(self, name)
        return self.hosts[name]


class Host:
    """One host's binding."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.address = f'toy://{name}'
        self._cluster = cluster
        self._lock = cluster.lock
        self._domains: dict[str, str] = {}
        self._jobs: dict[str, _Job] = {}

    # --- what a test does --------------------------------------------------------------------------------------------

    def boot(self, uuid: str, state: str = RUNNING) -> None:
        """Start a domain."""
        with self._lock:
            self._domains[uuid] = state

    # --- what a driver does ------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return what the host has."""
        return {
            'uuid': str(uuid5(_NAMESPACE, self.name)),
            'cpus': 16,
            'memory_mb': 16384,
            'disk_gb': 100,
            'address': self.address,
        }

    def domains(self) -> dict[str, str]:
        """Return every domain's state."""
        with self._lock:
            return dict(self._domains)

    def moving(self) -> set[str]:
        """Return the domains that a job moves away from here."""
        with self._lock:
            return {uuid for uuid in self._jobs if self._moving(uuid)}

    def _moving(self, uuid: str) -> bool:
        return uuid in self._jobs and self._jobs[uuid].outcome is None

    def receive(self, uuid: str) -> None:
        """Make what waits for a domain."""
        with self._lock:
            if self._domains.setdefault(uuid, RECEIVING) != RECEIVING:
                raise Error(f'domain {uuid} is {self._domains[uuid]} here')

    def start_migration(self, uuid: str, name: str, address: str) -> None:
        """Begin a job; when this returns it is there, and goes on by itself."""
        with self._lock:
            if self._cluster.refuses:
                raise Error(self._cluster.refuses)
            destination = self._cluster.hosts.get(name)
            if destination is None or destination.address != address:
                raise Error(f'{name} is not at {address}')
            if destination._domains.get(uuid) != RECEIVING:
                raise Error(f'nothing waits for domain {uuid} at {name}')
            if self._domains.get(uuid) not in (RUNNING, PAUSED) or self._moving(uuid):
                raise Error(f'domain {uuid} cannot be moved')
            self._jobs[uuid] = _Job(destination)
            if not self._cluster.slow:
                self._end(uuid, COMPLETED)

    def _end(self, uuid: str, outcome: str) -> None:
        if not self._moving(uuid):
            return
        job = self._jobs[uuid]
        job.outcome = outcome
        if outcome == COMPLETED:
            job.destination._domains[uuid], self._domains[uuid] = self._domains[uuid], STOPPED

    def outcome(self, uuid: str) -> str | None:
        """Return how the last job of a domain has ended; None: it has not ended, or there was none."""
        with self._lock:
            return self._jobs[uuid].outcome if uuid in self._jobs else None

    def abort_migration(self, uuid: str) -> None:
        """End a job, and leave the domain here."""
        with self._lock:
            self._end(uuid, ABORTED)

    def finish_migration(self, uuid: str) -> None:
        """End a job by moving the domain now."""
        with self._lock:
            self._end(uuid, COMPLETED)

    def progress(self, uuid: str) -> tuple[int, int] | None:
        """Return the bytes of memory in all and those still to move, or None without a job."""
        with self._lock:
            return (512 << 20, 256 << 20) if self._moving(uuid) else None

    def definition(self, uuid: str) -> dict[str, str] | None:
        """Return what :meth:`create` at another host needs, or None without such a domain."""
        with self._lock:
            return {'disk': f'/shared/{uuid}'} if uuid in self._domains else None

    def create(self, uuid: str, definition: dict[str, str], state: str) -> None:
        """Make a domain in a state."""
        with self._lock:
            if definition.get('disk') != f'/shared/{uuid}':
                raise Error(f'domain {uuid} has no disk here')
            if self._domains.get(uuid, RECEIVING) != RECEIVING:
                raise Error(f'domain {uuid} is {self._domains[uuid]} here')
            self._domains[uuid] = state

    def kill(self, uuid: str) -> None:
        """End a domain and its job at once."""
        with self._lock:
            self._end(uuid, FAILED)
            if uuid in self._domains:
                self._domains[uuid] = STOPPED

    def remove(self, uuid: str) -> None:
        """Remove a domain that does not run, or what waits for one; nothing to remove is right too."""
        with self._lock:
            if self._domains.get(uuid) in (RUNNING, PAUSED):
                raise Error(f'domain {uuid} is active')
            self._domains.pop(uuid, None)
