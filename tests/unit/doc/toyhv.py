# SPDX-License-Identifier: Apache-2.0

"""The binding of a toy hypervisor, for the driver of the page on embedding and for tests.

Like a binding to a C library it knows nothing of eventlet: each call may block the system's thread that makes it, and
any such thread may make one.
"""

from __future__ import annotations

import importlib
import sys
import uuid as uuids

RUNNING, PAUSED, STOPPED, RECEIVING = 'running', 'paused', 'stopped', 'receiving'
COMPLETED, FAILED, ABORTED = 'completed', 'failed', 'aborted'
_NAMESPACE = uuids.UUID('7f5a6f5e-0f5b-4c4e-8f53-0c1d7c7f7f11')


class Error(Exception):
    """The toy cannot do that."""


def _threading():
    """Return the system's own threads, whatever is patched."""
    patcher = sys.modules.get('eventlet.patcher')
    if patcher is not None and patcher.is_monkey_patched('thread'):
        return patcher.original('threading')
    return importlib.import_module('threading')


class _Job:
    def __init__(self, destination):
        self.destination = destination
        self.outcome = None


class Cluster:
    """Hosts that can reach each other, and share their disks.

    :ivar slow: jobs end only when they are made to; otherwise at once.
    :ivar refuses: why no job can begin; empty: jobs can.
    """

    def __init__(self):
        self.lock = _threading().RLock()
        self.hosts = {}
        self.slow = False
        self.refuses = ''

    def add(self, name):
        """Add a host, and return its binding."""
        self.hosts[name] = Host(self, name)
        return self.hosts[name]


class Host:
    """One host's binding."""

    def __init__(self, cluster, name):
        self.name = name
        self.address = f'toy://{name}'
        self._cluster = cluster
        self._lock = cluster.lock
        self._domains = {}
        self._jobs = {}

    # --- what a test does --------------------------------------------------------------------------------------------

    def boot(self, uuid, state=RUNNING):
        with self._lock:
            self._domains[uuid] = state

    # --- what a driver does ------------------------------------------------------------------------------------------

    def facts(self):
        return {
            'uuid': str(uuids.uuid5(_NAMESPACE, self.name)),
            'cpus': 16,
            'memory_mb': 16384,
            'disk_gb': 100,
            'address': self.address,
        }

    def domains(self):
        """Return every domain's state."""
        with self._lock:
            return dict(self._domains)

    def moving(self):
        """Return the domains that a job moves away from here."""
        with self._lock:
            return {uuid for uuid in self._jobs if self._moving(uuid)}

    def _moving(self, uuid):
        return uuid in self._jobs and self._jobs[uuid].outcome is None

    def receive(self, uuid):
        """Make what waits for a domain."""
        with self._lock:
            if self._domains.setdefault(uuid, RECEIVING) != RECEIVING:
                raise Error(f'domain {uuid} is {self._domains[uuid]} here')

    def start_migration(self, uuid, name, address):
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

    def _end(self, uuid, outcome):
        if not self._moving(uuid):
            return
        job = self._jobs[uuid]
        job.outcome = outcome
        if outcome == COMPLETED:
            job.destination._domains[uuid], self._domains[uuid] = self._domains[uuid], STOPPED

    def outcome(self, uuid):
        """Return how the last job of a domain has ended; None: it has not ended, or there was none."""
        with self._lock:
            return self._jobs[uuid].outcome if uuid in self._jobs else None

    def abort_migration(self, uuid):
        with self._lock:
            self._end(uuid, ABORTED)

    def finish_migration(self, uuid):
        """End a job by moving the domain now."""
        with self._lock:
            self._end(uuid, COMPLETED)

    def progress(self, uuid):
        """Return the bytes of memory in all and those still to move, or None without a job."""
        with self._lock:
            return (512 << 20, 256 << 20) if self._moving(uuid) else None

    def definition(self, uuid):
        """Return what :meth:`create` at another host needs, or None without such a domain."""
        with self._lock:
            return {'disk': f'/shared/{uuid}'} if uuid in self._domains else None

    def create(self, uuid, definition, state):
        """Make a domain in a state."""
        with self._lock:
            if definition.get('disk') != f'/shared/{uuid}':
                raise Error(f'domain {uuid} has no disk here')
            if self._domains.get(uuid, RECEIVING) != RECEIVING:
                raise Error(f'domain {uuid} is {self._domains[uuid]} here')
            self._domains[uuid] = state

    def kill(self, uuid):
        """End a domain and its job at once."""
        with self._lock:
            self._end(uuid, FAILED)
            if uuid in self._domains:
                self._domains[uuid] = STOPPED

    def remove(self, uuid):
        """Remove a domain that does not run, or what waits for one; nothing to remove is right too."""
        with self._lock:
            if self._domains.get(uuid) in (RUNNING, PAUSED):
                raise Error(f'domain {uuid} is active')
            self._domains.pop(uuid, None)
