# SPDX-License-Identifier: Apache-2.0

"""How often the guests of a maintenance move, beside the least that is possible.

    python -m benchmarks.maintenance [--check] [--plans-only]

Each line is a fleet of 40 hosts that are all worked on: the moves of a guest in the plan, the bound that it names,
and the moves if each destination were the host with the fewest guests, or any with room. Then comes the CPU time of a
plan of 400 hosts. Then each fleet is maintained on a simulated cloud (:mod:`benchmarks.rounds`), once more with guests
that arrive meanwhile: the moves of a guest, and the time in relation to the shortest. All of them take some minutes.

With --check the exit status is 1 if a guest moves more than 1.02 times as often as the bound, if a plan does not fit or
takes longer than 5 s, or if a maintenance takes more than 1.10 times the shortest time.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks import rounds
from migrator.drain.maintenance.plan import Guest, Host, Limits, plan

#: The goals of --check: moves in relation to the bound, CPU seconds of a plan of 400 hosts, and time in relation to the
#: shortest.
MOVES, SECONDS, MAKESPAN = 1.02, 5.0, 1.10
#: How many guests arrive in the last run.
ARRIVALS = 20
_CAPACITY, _SIZES = 1024, (8, 16, 32, 64, 128)


@dataclasses.dataclass(frozen=True)
class Case:
    """A fleet and how it is worked on."""

    name: str
    hosts: Sequence[Host]
    guests: Sequence[Guest]
    worked_on: Sequence[str]
    limits: Limits
    in_order: bool = False

    def __str__(self) -> str:
        """Return its name."""
        return self.name


def _host(number: int, zone: int = 0) -> Host:
    return Host(f'host{number:03d}', {'MEMORY_MB': _CAPACITY, 'VCPU': 64}, f'zone{zone}' if zone else '')


def equal(hosts: int, parallel: int, spare: int, guests: int = 20) -> Case:
    """Return hosts of one size with equal guests, 85 % full."""
    fleet = [_host(number) for number in range(hosts + spare)]
    needs = {'MEMORY_MB': int(0.85 * _CAPACITY / guests), 'VCPU': 2}
    there = [Guest(f'{one.name}-{n:02d}', one.name, needs) for one in fleet[:hosts] for n in range(guests)]
    name = f'{hosts} x {guests}, {parallel} at a time, {spare} spare'
    return Case(name, fleet, there, [one.name for one in fleet[:hosts]], Limits(parallel))


def mixed(seed: int, parallel: int, zones: int, in_order: bool, hosts: int = 40) -> Case:
    """Return hosts that are 30 to 95 % full of guests of five sizes."""
    dice = random.Random(seed)  # noqa: S311 -- the same fleets each time
    fleet = [_host(number, 1 + number % zones if zones > 1 else 0) for number in range(hosts)]
    there = []
    for one in fleet:
        left = int(dice.uniform(0.3, 0.95) * _CAPACITY)
        while left >= _SIZES[0]:
            size = dice.choice([size for size in _SIZES if size <= left])
            there.append(Guest(f'{one.name}-{len(there):04d}', one.name, {'MEMORY_MB': size}))
            left -= size
    order = [one.name for one in fleet]
    dice.shuffle(order)
    how = 'order given' if in_order else 'order chosen'
    name = f'{hosts} mixed (seed {seed}), {parallel} at a time, {zones} zones, {how}'
    return Case(name, fleet, there, order, Limits(parallel, per_group=1 if zones > 1 else None), in_order)


CASES = (
    *(equal(40, parallel, spare) for parallel in (1, 4) for spare in (0, parallel)),
    *(
        mixed(seed, parallel, zones, in_order)
        for seed in (1, 2, 3)
        for parallel, zones in ((1, 1), (4, 1), (3, 3))
        for in_order in (False, True)
    ),
)


def naive(case: Case, choose: Callable[[Sequence[str], dict[str, list[Guest]]], str]) -> float:
    """Return how often a guest moves if each destination in service with room may be chosen."""
    guests: dict[str, list[Guest]] = {one.name: [] for one in case.hosts}
    for guest in case.guests:
        guests[guest.host].append(guest)
    free = {one.name: dict(one.capacity) for one in case.hosts}
    for guest in case.guests:
        for name, amount in guest.needs.items():
            free[guest.host][name] -= amount
    moves, out = 0, list[str]()
    for host in case.worked_on:
        out = [*out, host][-case.limits.parallel :]
        leaving, guests[host] = guests[host], []
        free[host] = dict(next(one for one in case.hosts if one.name == host).capacity)
        for guest in leaving:
            fitting = [
                one.name
                for one in case.hosts
                if one.name not in out and all(free[one.name][name] >= n for name, n in guest.needs.items())
            ]
            if not fitting:
                continue
            to = choose(fitting, guests)
            guests[to].append(guest)
            moves += 1
            for name, amount in guest.needs.items():
                free[to][name] -= amount
    return moves / len(case.guests)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each fleet; with --check return 1 if a goal is not met."""
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.maintenance', description=(__doc__ or '').split('\n')[0]
    )
    parser.add_argument('--check', action='store_true', help='fail if a goal is not met')
    parser.add_argument('--plans-only', action='store_true', help='run nothing on simulated clouds')
    asked, status = parser.parse_args(arguments), 0
    dice = random.Random(1)  # noqa: S311 -- as above
    for case in CASES:
        found = plan(case.hosts, case.guests, case.worked_on, case.limits, case.in_order)
        each = found.moves / len(case.guests)
        fewest = naive(case, lambda fitting, guests: min(fitting, key=lambda name: (len(guests[name]), name)))
        anyone = naive(case, lambda fitting, _guests: dice.choice(fitting))
        is_good = found.fits and each <= MOVES * found.bound
        status |= not is_good
        others = f'fewest guests {fewest:.3f}, any {anyone:.3f}'
        sys.stdout.write(
            f'{case.name}: {each:.3f} of {found.bound:.3f}; {others}{"" if is_good else "  ABOVE ITS GOAL"}\n'
        )
    large = equal(400, 8, 0)
    began = time.process_time()
    plan(large.hosts, large.guests, large.worked_on, large.limits)
    taken = time.process_time() - began
    status |= taken > SECONDS
    sys.stdout.write(f'{large.name}: {taken:.1f} s of CPU of {SECONDS:g}\n')
    if not asked.plans_only:
        status |= not all([*_runs()])
    return int(asked.check and status)


def _runs() -> Iterator[bool]:
    """Run each maintenance, print a line, and yield whether it meets the goals."""
    from migrator.testing import backends

    with tempfile.TemporaryDirectory(dir=backends.in_memory()) as directory:
        backend = backends.SharedBackend(directory)
        for case, arrivals in [*((case, 0) for case in CASES), (mixed(1, 1, 1, in_order=False), ARRIVALS)]:
            found = rounds.run(case, backend, arrivals)
            ratio = found.seconds / found.shortest
            is_good = found.moves <= MOVES * found.bound and ratio <= MAKESPAN
            more = f', {arrivals} guests arrive' if arrivals else ''
            shown = f'{found.moves:.3f} of {found.bound:.3f}; {found.seconds:.0f} s, {ratio:.3f} of the shortest'
            sys.stdout.write(f'{case.name}{more}, simulated: {shown}{"" if is_good else "  ABOVE ITS GOAL"}\n')
            sys.stdout.flush()
            yield is_good
        backend.close()


if __name__ == '__main__':
    logging.disable(logging.CRITICAL)  # of this process
    sys.exit(main())
