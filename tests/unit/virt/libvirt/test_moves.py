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

"""The parts of libvirt's moves and hosts that need no libvirt to be looked at."""

from __future__ import annotations

import pytest

pytest.importorskip('libvirt')

from migrator.virt.libvirt import host as hosts
from migrator.virt.libvirt import plans

CAPABILITIES = """
<capabilities>
  <host>
    <uuid>11111111-2222-4333-8444-555555555555</uuid>
    <cpu>
      <arch>x86_64</arch><model>EPYC</model><vendor>AMD</vendor>
      <topology sockets='2' dies='1' cores='8' threads='2'/>
      <feature name='svm'/><feature name='aes'/>
    </cpu>
  </host>
</capabilities>
"""


def test_a_guest_may_stand_still_longer_step_by_step_and_the_later_the_more_there_is():
    steps = plans.downtimes(400, 10, 30, 2.0)
    assert [value for _, value in steps] == [40, 76, 112, 148, 184, 220, 256, 292, 328, 364, 400]
    assert [after for after, _ in steps] == [60 * number for number in range(11)]


@pytest.mark.parametrize('most', [100, 101, 999])
def test_the_last_step_is_all_of_it(most):
    steps = plans.downtimes(most, 7, 3, 1)
    assert steps[-1][1] == most
    assert [value for _, value in steps] == sorted({value for _, value in steps})


def test_a_hosts_processor_in_the_words_of_the_api():
    assert hosts.cpu_info(CAPABILITIES) == {
        'arch': 'x86_64',
        'model': 'EPYC',
        'vendor': 'AMD',
        'topology': {'sockets': 2, 'cores': 8, 'threads': 2},
        'features': ['aes', 'svm'],
    }
    assert hosts.cpu_info('<capabilities/>') == {}
    assert hosts.host_uuid(CAPABILITIES) == '11111111-2222-4333-8444-555555555555'
