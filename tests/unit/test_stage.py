# SPDX-License-Identifier: Apache-2.0

"""What a stage of the tests costs, as CI prints it."""

import json
import pathlib
import subprocess
import sys

STAGE = pathlib.Path(__file__).parents[2] / 'tools' / 'stage.py'
OBSERVED = 'print("3 failed, 12 passed, 1 skipped in 2s"); print("=== 5 passed in 1s ==="); raise SystemExit(4)'


def test_a_stage_passes_on_output_and_status_and_says_what_it_cost(tmp_path):
    log = tmp_path / 'costs'
    command = [
        sys.executable,
        STAGE,
        'run',
        '--log',
        log,
        '--wall',
        '0.001',
        'unit',
        '--',
        sys.executable,
        '-c',
        OBSERVED,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stdout.startswith('3 failed, 12 passed, 1 skipped in 2s\n')
    (cost,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (cost['name'], cost['status'], cost['cases']) == ('unit', 4, 17)
    assert cost['wall'] > 0
    assert cost['cpu'] > 0
    last = done.stdout.splitlines()[-1]
    assert last.startswith('stage: unit ')
    assert 'OVER ITS BUDGET of 0.001 s' in last
    assert last.endswith('FAILED (4)')
    table = subprocess.run([sys.executable, STAGE, 'table', log], capture_output=True, text=True, check=True).stdout
    assert [line.split()[:3] for line in table.splitlines()] == [['unit', '17', 'cases'], ['all', '17', 'cases']]
