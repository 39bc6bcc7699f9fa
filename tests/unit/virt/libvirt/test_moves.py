# SPDX-License-Identifier: Apache-2.0

"""The parts of plans and hosts that need no libvirt daemon."""

import pytest

pytest.importorskip('libvirt')

from migrator.virt.libvirt import host, plans

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


def test_downtime_grows_in_equal_steps_that_last_longer_for_more_data():
    steps = plans.downtimes(400, 10, 30, 2.0)
    assert [value for _, value in steps] == [40, 76, 112, 148, 184, 220, 256, 292, 328, 364, 400]
    assert [after for after, _ in steps] == [60 * number for number in range(11)]


@pytest.mark.parametrize('most', [100, 101, 999])
def test_last_downtime_step_is_the_maximum(most):
    steps = plans.downtimes(most, 7, 3, 1)
    assert steps[-1][1] == most
    assert [value for _, value in steps] == sorted({value for _, value in steps})


def test_processor_of_a_host_is_reported_in_the_format_of_the_api():
    assert host.cpu_info(CAPABILITIES) == {
        'arch': 'x86_64',
        'model': 'EPYC',
        'vendor': 'AMD',
        'topology': {'sockets': 2, 'cores': 8, 'threads': 2},
        'features': ['aes', 'svm'],
    }
    assert host.cpu_info('<capabilities/>') == {}
    assert host.host_uuid(CAPABILITIES) == '11111111-2222-4333-8444-555555555555'
