# SPDX-License-Identifier: Apache-2.0

"""How right the expected ends of drained guests are, on simulated clouds and in demos with seeds.

    python benchmarks/forecast.py [--seeds N] [--demos N] [--first SEED] [--check]

In each cloud a first host is emptied, whose migrations are what is recorded. Then one to three hosts are drained at
once. At random moments each guest that moves or waits has an expected end, which is compared with its end. The clouds
have guests of 512 to 4096 MiB, which dirty their memory at different rates, one, two or four slots for each source, and
two to four destinations. The migrations that leave or enter a host share its link.

A demo is what ``make demo`` runs, in real time: about a minute each. It records the expected end of each guest when it
requests the migration, as every drain does, and ``migrator-manage drain calibration`` would show the same figures.
Its twelve guests take some seconds each.

The error is the distance of ``p50`` from the end, as a share of the time that was left. With ``--check``, the exit
status is 1 if the median error is above 15 %, or if fewer than 75 % or more than 85 % of the ends come before
``p80``. Seeds below 5000 had a part in the choice of the model.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import math
import pathlib
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

#: The highest median error that is good, and the lowest and highest share of ends before p80.
ERROR, LOWEST, HIGHEST = 0.15, 0.75, 0.85
#: MiB/s of each link.
_LINK = 64.0
#: Reports and sweeps are rare, so that a cloud takes few seconds.
_OPTIONS = {'conductor.poll_interval': 20, 'conductor.sweep_interval': 300, 'conductor.lease': 600}
_OPTIONS |= {'service_down_time': 900, 'report_interval': 300, 'conductor.guests_interval': 0}

#: The slots of the sources; the share by which p50 was early or late; whether the end came before p50, and before p80.
Result = tuple[int, float, bool, bool]


def run(seed: int, backend: Any) -> Iterator[Result]:
    """Yield how right each expected end in the cloud of a seed was.

    :param backend: the database and the Placement, which the clouds share one after the other.
    """
    from migrator.testing.cloud import SimulatedCloud

    dice = random.Random(seed)  # noqa: S311 -- it only makes the cloud
    sources, destinations, slots = dice.randint(1, 3), dice.randint(2, 4), dice.choice((1, 1, 2, 4))
    options = {**_OPTIONS, 'max_concurrent_live_migrations': slots}
    hosts = 1 + sources + destinations
    cloud = SimulatedCloud(backend.directory, hosts=hosts, options=options, backend=backend, link=_LINK)
    try:
        made, ends = _drain(cloud, dice, [f'host{number}' for number in range(1, 2 + sources)])
    finally:
        cloud.stop()
    for now, guest, p50, p80 in made:
        left = (ends[guest] - now).total_seconds()
        if left > 0:
            yield slots, (p50 - ends[guest]).total_seconds() / left, ends[guest] <= p50, ends[guest] <= p80


def demo(seed: int) -> Iterator[Result]:
    """Run a demo, and yield how right each expected end was that its drain has recorded."""
    from migrator.demo import cloud as demo_cloud
    from migrator.demo import options

    dice = random.Random(seed)  # noqa: S311 -- it only makes the cloud
    slots, writes = dice.choice((1, 2, 4)), dice.uniform(0, 32)
    settings = options.Settings(
        instances=24, guest_memory=1024, bandwidth=256.0, dirty_rate=writes, max_concurrent=slots, seed=seed
    )
    with tempfile.TemporaryDirectory() as directory:
        cloud = demo_cloud.DemoCloud(directory, settings)
        try:
            cloud.populate()
            cloud.break_a_migration()
            assert cloud.request('POST', '/migrator/v1/drains', {'host': settings.source}).status_int == 202
            while cloud.database.drains.list(in_progress=True):
                cloud.world.threads.sleep(1)
            (found,) = cloud.database.drains.predictions(1).values()
        finally:
            cloud.stop_services()
            cloud.close()
    for one in found:
        late = (one.p50 - one.ended_at).total_seconds()
        yield slots, math.copysign(one.error, late), one.ended_at <= one.p50, one.ended_at <= one.p80


def _drain(cloud: Any, dice: random.Random, names: Sequence[str]) -> tuple[list[Any], dict[str, datetime.datetime]]:
    """Drain the first host, then the others at once; return what was expected, and guest -> its end."""
    drains = cloud.database.drains
    for host in names:
        for number in range(dice.randint(4, 6)):
            dirties = _LINK * min(0.5, dice.expovariate(16))
            memory = dice.choice((512, 1024, 1024, 2048, 4096))
            cloud.boot(f'{host}-{number}', host, memory_mb=memory, dirty_rate=dirties)
    for host in names[1:]:
        cloud.database.services.update(cloud.database.services.get_compute(host).id, disabled=True)
    made = []
    for together in (names[:1], names[1:]):
        for host in together:
            assert cloud.request('POST', '/migrator/v1/drains', {'host': host}).status_int == 202
        cloud.simulation.advance(dice.uniform(5, 60))
        while running := drains.list(in_progress=True):
            if together != names[:1]:
                for drain in running:
                    made += _expected(cloud, drain.uuid)
            cloud.simulation.advance(dice.uniform(5, 60))
    ends = {one.instance_uuid: one.updated_at for one in cloud.migrations() if one.status == 'completed'}
    return made, ends


def _expected(cloud: Any, uuid: str) -> Iterator[tuple[datetime.datetime, str, datetime.datetime, datetime.datetime]]:
    now = cloud.database.drains.now()
    for member in cloud.request('GET', f'/migrator/v1/drains/{uuid}').json['drain']['members']:
        end = member['expected']['end']
        if end is not None:
            p50, p80 = (datetime.datetime.fromisoformat(end[name]).replace(tzinfo=datetime.UTC) for name in end)
            yield now, member['instance_uuid'], p50, p80


def show(name: str, results: Sequence[Result]) -> bool:
    """Print a line on some results, and return whether they are as good as they should be."""
    if not results:
        return False
    error = statistics.median(abs(share) for _, share, _, _ in results)
    before_p50, before_p80 = (statistics.mean(one[place] for one in results) for place in (2, 3))
    good = error <= ERROR and LOWEST <= before_p80 <= HIGHEST
    sys.stdout.write(
        f'{name}: {len(results)} expected ends: median error {error:.1%} (goal {ERROR:.0%}); before p50 '
        f'{before_p50:.0%}; before p80 {before_p80:.0%} (goal {LOWEST:.0%} to {HIGHEST:.0%})'
        f'{"" if good else "  MISSES ITS GOAL"}\n'
    )
    sys.stdout.flush()
    return good


def main(argv: Sequence[str] | None = None) -> int:
    """Run the clouds of the seeds, print how right the forecasts were, and return the exit status."""
    parser = argparse.ArgumentParser(prog='forecast.py', description=__doc__.partition('\n')[0])
    parser.add_argument('--seeds', type=int, default=200, metavar='N', help='how many clouds; default 200')
    parser.add_argument('--demos', type=int, default=0, metavar='N', help='how many demos; default none')
    parser.add_argument('--first', type=int, default=5000, metavar='SEED', help='the first seed; default 5000')
    parser.add_argument('--check', action='store_true', help='exit with 1 if a goal is missed')
    asked = parser.parse_args(argv)
    from migrator.testing import backends

    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=backends.in_memory()) as directory:
        backend = backends.SharedBackend(directory)
        for number in range(asked.seeds):
            results += run(asked.first + number, backend)
            if number % 10 == 9:
                show(f'{number + 1} seeds so far', results)
        backend.close()
    for slots in sorted({one[0] for one in results}):
        show(f'{slots} slots', [one for one in results if one[0] == slots])
    good = not asked.seeds or show(f'{asked.seeds} seeds from {asked.first}', results)
    if asked.demos:
        in_demos = [one for number in range(asked.demos) for one in demo(asked.first + number)]
        good = show(f'{asked.demos} demos with seeds from {asked.first}', in_demos) and good
    return 0 if good or not asked.check else 1


if __name__ == '__main__':
    # started by its path, a script has its own directory there and not the tree
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    logging.disable(logging.CRITICAL)  # of this process; a test that calls main() still wants its logs
    sys.exit(main())
