# SPDX-License-Identifier: Apache-2.0

"""Whole maintenances on simulated clouds: how often their guests move, and how long they take.

A user claims each host as soon as it is ready, and starts it anew, which takes three minutes. The time is compared with
the shortest that the same hosts could take, in the order in which they were begun and with the guests that they had
then: only copies at the speed of the link, and the work.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

from migrator.drain.maintenance.plan import Guest, Limits

#: MiB of memory for one unit of a case, and MiB/s of a link.
UNIT, LINK = 64, 512.0
#: Seconds from the kill of a host until its compute service starts again.
WORK = 180.0
#: Seconds without a host that is ready, after which something is wrong.
_PATIENCE = 3600.0
_MAINTENANCES = '/migrator/v1/maintenances'
#: Reports are rare, so that a cloud takes few seconds. A host that starts reports at once.
_OPTIONS = {'report_interval': 60, 'service_down_time': 240, 'conductor.guests_interval': 0}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a maintenance did.

    :ivar moves: how often a guest moved, on average.
    :ivar bound: how often it had to, as the plan has printed.
    :ivar seconds: how long the maintenance took.
    :ivar shortest: how long it had to take.
    """

    moves: float
    bound: float
    seconds: float
    shortest: float


def run(case: Any, backend: Any, arrivals: int = 0) -> Outcome:
    """Run the maintenance of a case, see :class:`benchmarks.maintenance.Case`, on a cloud of its own.

    :param backend: the database and the Placement, which the clouds share one after the other.
    :param arrivals: how many guests are started while it runs.
    """
    from migrator.testing.cloud import SimulatedCloud

    memory = max(one.capacity['MEMORY_MB'] for one in case.hosts) * UNIT
    knobs = {'memory_mb': memory, 'vcpus': 1024, 'disk_gb': 100_000, 'link': LINK}
    cloud = SimulatedCloud(backend.directory, hosts=0, options=_OPTIONS, backend=backend, start=False, **knobs)
    try:
        return _Rounds(cloud, case, arrivals).run()
    finally:
        cloud.stop()


class _Rounds:
    """A cloud with one maintenance."""

    def __init__(self, cloud: Any, case: Any, arrivals: int) -> None:
        self._cloud, self._case, self._arrivals = cloud, case, arrivals
        #: The times at which hosts start again.
        self._starts: list[tuple[float, str]] = []

    def run(self) -> Outcome:
        """Run it, and return what it did."""
        cloud, case = self._cloud, self._case
        for host in case.hosts:
            cloud.world.add(host.name)
        cloud.start_conductor('conductor1')
        for host in case.hosts:
            cloud.start_compute(host.name)
        cloud.simulation.run_until(cloud.after_writes(cloud.up, 'services', 'compute_nodes'))
        for guest in case.guests:
            self._boot(guest)
        groups: dict[str, list[str]] = {}
        for host in case.hosts:
            if host.group:
                groups.setdefault(host.group, []).append(host.name)
        body = {
            'hosts': [*case.worked_on],
            'in_order': case.in_order,
            'parallel': case.limits.parallel,
            'returned_by': 'restart',
            'groups': groups or None,
            'per_group': case.limits.per_group,
        }
        planned = cloud.request('POST', _MAINTENANCES, body | {'dry_run': True}).json['plan']
        assert planned['fits'], planned
        began = cloud.simulation.time
        response = cloud.request('POST', _MAINTENANCES, body)
        assert response.status_int == 202, response.text
        uuid = response.json['maintenance']['uuid']
        self._work(uuid)
        seconds = cloud.simulation.time - began
        row = cloud.database.maintenances.get(uuid)
        assert row.status == 'completed', (row.status, row.message)
        moved = [one for one in cloud.migrations() if one.status == 'completed']
        return Outcome(
            len(moved) / len(self._cloud.database.instances.list()),
            planned['least_moves_per_guest'],
            seconds,
            self._shortest(uuid, moved),
        )

    def _boot(self, guest: Guest) -> None:
        needs = guest.needs
        self._cloud.boot(guest.uuid, guest.host, memory_mb=needs['MEMORY_MB'] * UNIT, vcpus=needs.get('VCPU', 1))

    def _work(self, uuid: str) -> None:
        """Do the work at each host until the maintenance has ended."""
        cloud = self._cloud
        store, path = cloud.database.maintenances, f'{_MAINTENANCES}/{uuid}/action'
        some = cloud.after_writes(
            lambda: store.get(uuid).ended or any(one.status == 'ready' for one in store.read_turns(uuid)),
            'maintenances',
            'maintenance_turns',
        )
        while not store.get(uuid).ended:
            for host in [one.host for one in store.read_turns(uuid) if one.status == 'ready']:
                claimed = cloud.request('POST', path, {'begin': {'host': host}})
                assert claimed.status_int == 200, claimed.text
                claim = claimed.json['host']['claim']
                assert cloud.request('POST', path, {'done': {'host': host, 'claim': claim}}).status_int == 200
                cloud.kill(host)
                heapq.heappush(self._starts, (cloud.simulation.time + WORK, host))
            self._arrive()
            until = self._starts[0][0] if self._starts else math.inf
            # Time jumps from one timer to the next, and so beyond the time of a start.
            cloud.simulation.run_until(lambda until=until: some() or cloud.simulation.time >= until, timeout=_PATIENCE)
            while self._starts and self._starts[0][0] <= cloud.simulation.time:
                cloud.start_compute(heapq.heappop(self._starts)[1])

    def _arrive(self) -> None:
        """Start a further guest on the host in service that has the fewest."""
        if not self._arrivals:
            return
        self._arrivals -= 1
        count = collections.Counter(one.host for one in self._cloud.database.instances.list())
        services = self._cloud.database.services.list('nova-compute')
        host = min((one.host for one in services if not one.disabled), key=lambda name: (count[name], name))
        self._boot(Guest(f'late-{self._arrivals}', host, {'MEMORY_MB': 8}))

    def _shortest(self, uuid: str, moved: Sequence[Any]) -> float:
        """Return the shortest time for the hosts in the order in which they were begun."""
        memory = {one.uuid: one.flavor.memory_mb for one in self._cloud.database.instances.list()}
        copies: dict[str, float] = {}
        for one in moved:
            copies[one.source_compute] = copies.get(one.source_compute, 0.0) + memory[one.instance_uuid] / LINK
        turns = sorted(self._cloud.database.maintenances.read_turns(uuid), key=lambda one: one.began_at)
        groups = {host.name: host.group for host in self._case.hosts}
        return shortest([(turn.host, copies.get(turn.host, 0.0) + WORK) for turn in turns], groups, self._case.limits)


def shortest(hosts: Sequence[tuple[str, float]], groups: Mapping[str, str], limits: Limits) -> float:
    """Return when the last host is back if each is begun in its turn as soon as the limits allow it.

    :param hosts: each with the seconds for which it is out of service.
    """
    out: list[tuple[float, str]] = []
    now = end = 0.0
    for host, seconds in hosts:
        while len(out) == limits.parallel or _is_full(host, groups, limits, out):
            now = max(now, heapq.heappop(out)[0])
        heapq.heappush(out, (now + seconds, host))
        end = max(end, now + seconds)
    return end


def _is_full(host: str, groups: Mapping[str, str], limits: Limits, out: Sequence[tuple[float, str]]) -> bool:
    group = groups[host]
    if limits.per_group is None or not group:
        return False
    return sum(groups[other] == group for _at, other in out) >= limits.per_group
