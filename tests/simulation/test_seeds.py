# SPDX-License-Identifier: Apache-2.0

"""Random runs: users, faults and the schedule come from a seed, and every run ends in order.

MIGRATOR_SEEDS=N runs N seeds, from MIGRATOR_FIRST_SEED on. Seeds that were red once are in ``tests/seeds``, and are run
for ever.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from migrator.simulator import runs
from migrator.simulator.invariants import check
from migrator.simulator.workloads import plans

#: On a slow and busy machine, too; what hangs is found by the clouds' own clocks.
pytestmark = pytest.mark.timeout(1200)

SEEDS = int(os.environ.get('MIGRATOR_SEEDS', '120'))
FIRST = int(os.environ.get('MIGRATOR_FIRST_SEED', '1'))
#: Seeds in each test, so that several processes share the work.
CHUNK = 60
#: Kind of plan -> its seeds that were red, with one line a seed: its number, then what it had broken.
RED = {
    'days': 'red.txt',
    'bad-nights': 'red-bad-nights.txt',
    'evacuations': 'red-evacuations.txt',
    'bounds': 'red-bounds.txt',
    'by-hand': 'red-by-hand.txt',
    'cold-migrations': 'red-cold-migrations.txt',
    'resizes': 'red-resizes.txt',
}


def green(judged, kind, seeds, record_property):
    injected = sum(len(judged(runs.KINDS[kind](seed)).injected) for seed in seeds)
    record_property('seeds', len(seeds))
    record_property('faults', injected)


@pytest.mark.parametrize('first', range(FIRST, FIRST + SEEDS, CHUNK))
def test_every_seed_ends_in_order(first, judged, record_property):
    green(judged, 'days', range(first, min(first + CHUNK, FIRST + SEEDS)), record_property)


@pytest.mark.slow
@pytest.mark.parametrize('kind', RED)
def test_seeds_that_were_red_stay_green(kind, judged, record_property):
    text = (pathlib.Path(__file__).parent.parent / 'seeds' / RED[kind]).read_text()
    seeds = [int(line.split(maxsplit=1)[0]) for line in text.splitlines() if line and not line.startswith('#')]
    green(judged, kind, seeds, record_property)


def digests(seeds, hash_seed):
    """Return the digests of runs, one after the other in a new process."""
    code = (
        'from migrator.simulator import matrix, runs\n'
        'from migrator.simulator.workloads import plans\n'
        'runs.hurry()\n'
        'with matrix.backend() as backend:\n'
        f'    print(*[runs.run(backend, plans.of(seed)).digest for seed in {seeds}])\n'
    )
    environment = {**os.environ, 'PYTHONHASHSEED': hash_seed, 'PYTHONWARNINGS': 'ignore'}
    done = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.slow
def test_a_seed_gives_the_same_run_whatever_the_hash_seed_and_whatever_ran_before(backend):
    for seed in (5, 10):
        runs.run(backend, plans.of(seed))
    here = [runs.run(backend, plans.of(seed)).digest for seed in (4, 9)]
    assert digests([4, 9], '1') == here
    assert digests([9, 4], '2') == here[::-1]


@pytest.mark.slow
def test_a_failure_is_made_short(backend, monkeypatch):
    """A run that breaks something is reported by the shortest plan that breaks it."""
    operator = runs.Operator

    class Strict(operator):
        def judge(self, monitor, all_move=False):
            wrong = super().judge(monitor, all_move)
            aborted = [row for row in self.cloud.migrations() if row.abort_requested_at]
            return [*wrong, *(check.Violation('I0', f'{row.uuid} was aborted') for row in aborted)]

    monkeypatch.setattr(runs, 'Operator', Strict)
    for seed in range(1, 60):
        plan = plans.of(seed)
        if len(plan.deeds) < 5 or not any(deed.name == 'abort' for deed in plan.deeds):
            continue
        found = runs.run(backend, plan)
        if found.violations:
            break
    shorter, still = runs.shorten(backend, plan, found)
    assert still.violations
    assert [deed.name for deed in shorter.deeds] == ['migrate', 'abort']
    assert shorter.injected == ()
    assert 'was aborted' in runs.described(shorter, still)


@pytest.mark.parametrize('argument', [['--seeds', '0'], ['--jobs', '0'], ['--seeds', 'many']])
def test_invalid_plan_is_refused(argument, capsys):
    with pytest.raises(SystemExit) as stopped:
        runs.main(argument)
    assert stopped.value.code == 2
    assert argument[0] in capsys.readouterr().err
