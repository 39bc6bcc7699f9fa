# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What the simulations print when all is over: how much they have tried, and how fast."""

import collections
import gc

import pytest

from migrator.testing import matrix, simulate

#: What tests count with ``record_property``, summed up over all of them, and over the processes that ran them.
COUNTED = ('cells', 'pairs', 'planted', 'caught', 'seeds', 'faults', 'audited')


@pytest.fixture(scope='module')
def ground():
    """What the clouds of a module stand on, one after the other."""
    simulate.hurry()
    try:
        with matrix.ground() as found:
            yield found
    finally:
        gc.enable()


def pytest_terminal_summary(terminalreporter):
    sums = collections.Counter()
    seconds = collections.Counter()
    for report in terminalreporter.getreports('passed') + terminalreporter.getreports('failed'):
        for name, value in getattr(report, 'user_properties', ()):
            if name in COUNTED and report.when == 'call':
                sums[name] += value
                seconds[name] += report.duration
    for name in COUNTED:
        if sums[name]:
            rate = f' ({sums[name] / seconds[name]:.1f} a second in each process)' if seconds[name] else ''
            terminalreporter.write_line(f'simulated: {sums[name]} {name}{rate}')
