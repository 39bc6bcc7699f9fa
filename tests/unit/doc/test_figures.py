# SPDX-License-Identifier: Apache-2.0

"""The figures beside nova's are those that the benchmark has recorded."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: The name of a figure on the pages -> its name in the benchmark.
NAMES = {
    'RPC messages': 'messages',
    'SQL statements': 'statements',
    'commits': 'commits',
    'requests to Placement': 'requests',
}


@pytest.mark.parametrize(('page', 'count'), [('README.rst', 3), ('doc/source/benchmarks.rst', 4)])
def test_figures_of_a_page_are_those_of_the_benchmark(page, count):
    rows = re.findall(r'^(\S.*?) +(\d+) +\d+$', (ROOT / page).read_text(), re.MULTILINE)
    assert len(rows) == count
    for recorded in json.loads((ROOT / 'benchmarks/reached.json').read_text()).values():
        for name, figure in rows:
            assert int(figure) == recorded[f'one migration alone: {NAMES[name]}']
