# SPDX-License-Identifier: Apache-2.0

"""Random runs of whole clouds, in which a seed fixes the actions, the faults and the schedule.

    python -m migrator.simulator --seeds 1000 --first-seed 1 --jobs 2
    python -m migrator.simulator --seeds 1000 --plans bad-nights

The same seed gives the same run. At the end of each run all invariants are checked. If one does not hold, the command
prints the shortest plan that breaks it and exits with 1.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
import logging
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from migrator.objects import Flavor, Instance
from migrator.simulator import faults, matrix
from migrator.simulator.actors import deeds
from migrator.simulator.actors.operator import Operator
from migrator.simulator.failpoints import Boundary, Failpoints
from migrator.simulator.monitor import Monitor
from migrator.simulator.workloads import by_hand, cold_migrations, drains, evacuations, maintenances, plans
from migrator.testing import backends
from migrator.testing.cloud import SimulatedCloud
from migrator.virt.driver import node_uuid

#: Name of a kind of plan, on the command line -> the function that returns a seed's plan.
_KINDS: Mapping[str, Callable[[int], plans.Plan]] = {
    'days': plans.of,
    'upgrades': plans.of_an_upgrade,
    'bad-nights': plans.of_a_bad_night,
    'second-migrations': plans.of_second_migrations,
    'outages': plans.of_outages,
    'evacuations': evacuations.of_evacuations,
    'bounds': plans.of_bounds,
    'emptied-hosts': plans.of_an_emptied_host,
    'drains': drains.of_drains,
    'hosts-away': drains.of_a_host_away,
    'cold-migrations': cold_migrations.of_cold_migrations,
    'resizes': cold_migrations.of_resizes,
    'by-hand': by_hand.of_changes_by_hand,
    'maintenances': maintenances.of_maintenances,
}


def _golden(make: Callable[[int], plans.Plan]) -> Callable[[int], plans.Plan]:
    return lambda seed: plans.with_traits(make(seed))


#: The kinds whose guests are moved by hand, compete for slots, or are moved for a maintenance.
_PLAIN = ('by-hand', 'bounds', 'maintenances')
#: The same kinds of plan, all others with guests that not each host may have.
KINDS = {name: make if name in _PLAIN else _golden(make) for name, make in _KINDS.items()}
#: The highest number of runs to shorten the plan of a failure.
_SHORTENING = 80
#: Nova's numbers of power states.
_PAUSED, _SHUT_OFF = 3, 4
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
_NUMBER = re.compile(r'\d+(\.\d+)?')


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a plan.

    :ivar injected: the injected faults with their boundaries.
    :ivar states: the log lines of the services without uuids and numbers. Rare ones show what the seeds reach.
    :ivar digest: a digest of all events in their order.
    :ivar seconds: the length of the run on the cloud's clock.
    """

    seed: int
    violations: tuple[str, ...]
    injected: tuple[tuple[Boundary, str], ...]
    statuses: tuple[str, ...]
    strategies: tuple[str, ...]
    states: frozenset[str]
    digest: str
    seconds: float


def run(
    backend: backends.Backend,
    plan: plans.Plan,
    beside: Callable[[SimulatedCloud, Callable[[], bool]], None] = lambda cloud, over: None,
) -> Run:
    """Run a plan to its end and check all invariants.

    :param beside: called before the first action, to start something that runs in parallel. Its arguments are the
        cloud and a function that returns True when the parallel work must end.
    """
    injected: list[tuple[Boundary, str]] = []
    choose = plan.chooser()
    over = [False]

    def hook(boundary: Boundary) -> faults.Fault | None:
        if over[0] or operator.cloud.simulation is None or operator.simulation.time > plan.horizon + begun:
            return None
        fault = choose(boundary)
        if fault is None or not operator.supervisor.may(fault.name, faults.victim(boundary)):
            return None
        injected.append((boundary, fault.name))
        return fault

    cloud = SimulatedCloud(
        backend.directory,
        plan.hosts,
        seed=plan.seed,
        in_order=plan.in_order,
        backend=backend,
        options=plan.options,
        versions=plan.versions,
        **plan.knobs,
    )
    cloud.start_conductor('conductor2')
    operator = Operator(cloud)
    begun = operator.simulation.time
    monitor = Monitor(cloud)
    try:
        for host in sorted(plan.golden):
            gild(cloud, host)
        guests = [_boot(cloud, f'guest{number}', guest) for number, guest in enumerate(plan.guests)]
        for flavor in plan.flavors:
            cloud.database.flavors.create(flavor)
        if plan.placement_seconds:
            cloud.placement.before_request = lambda *_: _take_time(cloud, plan.placement_seconds)
        beside(cloud, lambda: over[0])
        failpoints = Failpoints(cloud, operator.supervisor, hook)
        for deed in plan.deeds:
            operator.user.until_time(begun + deed.at)
            deeds.do(operator, deed, guests)
        operator.settle()
        over[0] = True
        failpoints.remove()
        operator.finish()
        violations = tuple(str(violation) for violation in operator.judge(monitor, plan.all_move))
        return Run(
            seed=plan.seed,
            violations=violations,
            injected=tuple(injected),
            statuses=tuple(row.status for row in cloud.migrations()),
            strategies=tuple(row.strategy for row in cloud.migrations()),
            states=frozenset(_states(monitor)),
            digest=hashlib.sha256(repr(operator.simulation.trace).encode()).hexdigest()[:16],
            seconds=operator.simulation.time,
        )
    finally:
        monitor.close()
        cloud.stop()


def _take_time(cloud: SimulatedCloud, seconds: float) -> None:
    """Let a request of a service to Placement take its time. Users and operators do not wait."""
    assert cloud.simulation is not None
    acting: Any = cloud.simulation.scheduler.me().acting
    if not acting.is_world:
        acting.sleep(seconds)


def gild(cloud: SimulatedCloud, host: str) -> None:
    """Give a host the trait, as its driver reports it from now on."""
    cloud.world.hypervisors[host].capacity.traits = (plans.TRAIT,)
    client, provider = cloud.placement_client, node_uuid(host)
    client.put(f'/traits/{plans.TRAIT}')
    generation = client.read(f'/resource_providers/{provider}')['generation']
    body = {'resource_provider_generation': generation, 'traits': [plans.TRAIT]}
    client.put(f'/resource_providers/{provider}/traits', body)


def _boot(cloud: SimulatedCloud, name: str, guest: plans.Guest) -> Instance:
    vm_state = 'stopped' if guest.power_state == _SHUT_OFF else 'active'
    specs = {f'trait:{plans.TRAIT}': guest.trait} if guest.trait else {}
    flavor = Flavor(name=f'm{guest.memory_mb}{guest.trait}', memory_mb=guest.memory_mb, extra_specs=specs)
    instance = cloud.boot(
        name,
        guest.host,
        flavor=flavor,
        dirty_rate=guest.dirty_rate,
        vm_state=vm_state,
        power_state=guest.power_state,
    )
    hypervisor = cloud.world.hypervisors[guest.host]
    act = {_PAUSED: hypervisor.pause, _SHUT_OFF: hypervisor.shut_off}.get(guest.power_state)
    if act is not None:
        act(instance.uuid)
    return instance


def _states(monitor: Monitor) -> Iterator[str]:
    for line in monitor.logs:
        yield _NUMBER.sub('N', _UUID.sub('UUID', line.splitlines()[0]))[:160]


# --- shortening the plan of a failure --------------------------------------------------------------------------------


def shorten(backend: backends.Backend, plan: plans.Plan, failed: Run) -> tuple[plans.Plan, Run]:
    """Return the shortest found plan that breaks the same invariant, and its result."""
    wanted = {_id(violation) for violation in failed.violations}
    best, found = dataclasses.replace(plan, injected=failed.injected), failed
    left = _SHORTENING

    def still(candidate: plans.Plan) -> bool:
        nonlocal best, found, left
        left -= 1
        result = run(backend, candidate)
        if not wanted & {_id(violation) for violation in result.violations}:
            return False
        best, found = candidate, result
        return True

    if not still(best):
        return plan, failed
    still(dataclasses.replace(best, in_order=True))
    shorter = True
    while shorter and left > 0:
        shorter = False
        for name in ('injected', 'deeds', 'guests'):
            items = getattr(best, name)
            for index in reversed(range(len(items))):
                if left <= 0 or (name == 'guests' and index != len(getattr(best, name)) - 1):
                    continue
                less: Any = {name: (*items[:index], *items[index + 1 :])}
                candidate = dataclasses.replace(best, **less)
                if name == 'guests':
                    if not index or any(deed.whom == index for deed in best.deeds):
                        continue
                if still(candidate):
                    items = getattr(best, name)
                    shorter = True
    return best, found


def _id(violation: str) -> str:
    return violation.split(' ', 1)[0]


def described(plan: plans.Plan, result: Run) -> str:
    """Return a description of a plan and its result, for a developer."""
    lines = [
        f'seed {plan.seed}, {plan.hosts} hosts, {dict(plan.knobs)}, {dict(plan.options)}, in order: {plan.in_order}'
    ]
    lines += [f'  guest {number}: {guest}' for number, guest in enumerate(plan.guests)]
    lines += [f'  {deed}' for deed in plan.deeds]
    lines += [f'  {fault} at {boundary}' for boundary, fault in result.injected]
    lines += [f'  ended {", ".join(result.statuses) or "nothing"} after {result.seconds:.1f} s']
    lines += [f'  BROKEN {violation}' for violation in result.violations]
    return '\n'.join(lines)


# --- many runs -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tally:
    """The sums of many runs.

    :ivar red: the seed and the description of each failure, with the shortest plan.
    """

    runs: int = 0
    seconds: float = 0.0
    faults: int = 0
    migrations: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    states: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    red: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, result: Run, failure: str | None) -> None:
        """Count one run."""
        self.runs += 1
        self.faults += len(result.injected)
        self.migrations.update(result.statuses)
        self.states.update(result.states)
        if failure is not None:
            self.red.append((result.seed, failure))

    def described(self, rarest: int = 12) -> str:
        """Return the sums as text."""
        ended = ', '.join(f'{count} {status}' for status, count in sorted(self.migrations.items()))
        lines = [
            f'{self.runs} seeds in {self.seconds:.0f} s: {self.runs / max(self.seconds, 1e-9):.1f} seeds per second',
            f'{self.faults} faults; migrations: {ended or "none"}',
            f'{len(self.states)} different states; the rarest:',
        ]
        rare = sorted(self.states.items(), key=lambda item: (item[1], item[0]))[:rarest]
        lines += [f'  {count:6d} {state}' for state, count in rare]
        lines += [f'RED {text}' for _seed, text in self.red]
        lines.append(f'{len(self.red)} red' if self.red else 'all green')
        return '\n'.join(lines)


def many(seeds: Iterable[int], jobs: int = 1, most_red: int = 5, kind: str = 'days') -> Tally:
    """Run many seeds.

    :param jobs: the number of processes. One job runs in this process, since a new one would import everything again.
    :param most_red: stop after this number of failures.
    :param kind: the kind of the plans, a key of :data:`KINDS`.
    """
    tally, began = Tally(), time.monotonic()
    one = functools.partial(_one, kind)
    with contextlib.ExitStack() as stack:
        results: Iterable[tuple[Run, str | None]]
        if jobs == 1:
            _begin()
            stack.callback(_Process.exits.close)
            results = map(one, seeds)
        else:
            pool = stack.enter_context(multiprocessing.get_context('spawn').Pool(jobs, _begin))
            results = pool.imap_unordered(one, seeds, chunksize=4)
        for result, failure in results:
            tally.add(result, failure)
            if tally.runs % 500 == 0:
                print(f'{tally.runs} seeds, {len(tally.red)} red', file=sys.stderr, flush=True)
            if len(tally.red) >= most_red:
                break
    tally.seconds = time.monotonic() - began
    return tally


class _Process:
    """The state that a process keeps between seeds."""

    backend: backends.Backend
    exits = contextlib.ExitStack()


def _begin() -> None:
    hurry()
    _Process.backend = _Process.exits.enter_context(matrix.backend())


def hurry() -> None:
    """Turn off garbage collection and the services' log output in this process, to simulate faster.

    Garbage is collected between runs (see :class:`migrator.testing.backends.SharedBackend`).
    """
    logging.getLogger('migrator').propagate = False
    gc.disable()
    # Imported modules stay in memory, so a garbage collection can skip them.
    gc.freeze()


def _one(kind: str, seed: int) -> tuple[Run, str | None]:
    plan = KINDS[kind](seed)
    try:
        result = run(_Process.backend, plan)
    except Exception:  # noqa: BLE001 -- an error of the simulator, or an uncaught error of the cloud
        failure = f'{kind}, seed {seed}: {traceback.format_exc()}'
        return Run(seed, (failure,), (), (), (), frozenset(), '', 0.0), failure
    if not result.violations:
        return result, None
    return result, f'{kind}, {described(*shorten(_Process.backend, plan, result))}'


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds of the command line; return 1 if any failed."""
    parser = argparse.ArgumentParser(prog='python -m migrator.simulator', description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--seeds', type=int, default=100, metavar='N', help='number of seeds (default: %(default)s)')
    parser.add_argument('--first-seed', type=int, default=1, metavar='N', help='first seed (default: %(default)s)')
    parser.add_argument(
        '--jobs', type=int, default=os.cpu_count() or 1, metavar='N', help='number of processes (default: %(default)s)'
    )
    parser.add_argument('--plans', choices=list(KINDS), default='days', help='kind of plans (default: %(default)s)')
    parser.add_argument('--json', action='store_true', help='print a report as JSON on stdout')
    given = parser.parse_args(arguments)
    for name in ('seeds', 'jobs'):
        if getattr(given, name) < 1:
            parser.error(f'argument --{name}: {getattr(given, name)} is too few; use 1 or more')
    tally = many(range(given.first_seed, given.first_seed + given.seeds), given.jobs, kind=given.plans)
    if given.json:
        print(json.dumps({'seeds': tally.runs, 'seconds': tally.seconds, 'red': dict(tally.red)}))
    else:
        print(tally.described())
    return 1 if tally.red else 0
