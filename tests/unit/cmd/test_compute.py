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


from __future__ import annotations

import signal

from migrator import executors
from migrator.cmd import compute
from migrator.conf import service as service_conf
from migrator.testing import fake_world_server
from tests.unit.cmd.processes import configure, refused, running


def test_every_driver_that_can_be_chosen_is_known():
    choices = next(option for option in service_conf.COMPUTE_OPTS if option.name == 'driver').type.choices
    assert set(compute.DRIVERS) == set(choices)


def test_it_serves_changes_its_limit_on_sighup_and_ends_with_0_on_sigterm(tmp_path):
    with running(tmp_path, 'compute', *configure(tmp_path, schema=False)) as service:
        service.wait_for('serves')
        service.wait_for('this hypervisor ends with the service')
        configure(tmp_path, 'max_concurrent_live_migrations = 3', schema=False)
        service.signal(signal.SIGHUP)
        assert '[DEFAULT] max_concurrent_live_migrations = 3' in service.wait_for('was reloaded')
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert 'Traceback' not in service.text()


def test_it_waits_for_the_world_and_says_so_once(tmp_path):
    world = str(tmp_path / 'world')
    with running(tmp_path, 'compute', *configure(tmp_path, f'[fake]\nworld = {world}', schema=False)) as service:
        service.wait_for('The world of fake hypervisors is not reachable')
        server = fake_world_server.WorldServer(world, executors.NativeThreads())
        server.start()
        service.wait_for('serves')
        assert server.look()['hosts']['h1']['lives'] == 1
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert service.text().count('The world of fake hypervisors is not reachable') == 1
        server.stop()


def test_a_hypervisor_that_this_installation_cannot_drive_is_status_2(tmp_path):
    import importlib.util

    if importlib.util.find_spec('libvirt') and importlib.util.find_spec('migrator.virt.libvirt'):
        return
    status, line = refused(tmp_path, 'compute', *configure(tmp_path, '[compute]\ndriver = libvirt', schema=False))
    assert status == 2
    assert "Option [compute] driver is 'libvirt'" in line
