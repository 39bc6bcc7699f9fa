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

"""migrator-compute: one host's half of the story."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception
from migrator.cmd import service

if TYPE_CHECKING:  # imported when it is settled what threads are
    from migrator.virt import driver as virt_driver

LOG = logging.getLogger(__name__)

#: Seconds to wait for the answer to "this host has started". The broker drops what is sent before the first conductor
#: listens, so that this is what a compute loses that was started first.
REGISTER_TIMEOUT = 10.0


def _fake(process: service.Process) -> virt_driver.ComputeDriver:
    from migrator.virt import fake

    conf = process.conf
    if conf.fake.world:
        from migrator.testing import fake_world_driver

        return process.wait_for(
            'The world of fake hypervisors',
            lambda: fake_world_driver.FakeWorldDriver(conf.fake.world, conf.host, process.threads),
        )
    LOG.warning('[fake] world is not set: this hypervisor ends with the service, and no other host can reach it')
    world = fake.FakeWorld(process.threads)
    return fake.FakeDriver(world.add(conf.host), process.threads)


def _libvirt(process: service.Process) -> virt_driver.ComputeDriver:
    lacking = [name for name in ('libvirt', 'migrator.virt.libvirt') if importlib.util.find_spec(name) is None]
    if lacking:
        raise exception.ConfigurationError(
            option='[compute] driver',
            value='libvirt',
            detail=f'{" and ".join(lacking)} cannot be imported: install the extra "libvirt", or set driver to fake.',
        )
    # By its name, for it is an extra.
    module: Any = importlib.import_module('migrator.virt.libvirt.driver')
    made: virt_driver.ComputeDriver = module.LibvirtDriver(process.conf, process.threads)
    return made


#: What ``[compute] driver`` can name. Each returns the driver of the configured host, not yet connected.
DRIVERS: dict[str, Callable[[service.Process], virt_driver.ComputeDriver]] = {'fake': _fake, 'libvirt': _libvirt}


def register(conf: cfg.ConfigOpts) -> None:
    """Register what a compute host needs: it knows neither the database nor Placement."""
    from migrator.conf import compute

    compute.register_opts(conf)


def begin(process: service.Process) -> None:
    """Wire a compute host, and start it."""
    from migrator.compute import manager as compute_manager
    from migrator.conductor import rpcapi

    conf = process.conf
    transport = process.transport()
    driver = DRIVERS[conf.compute.driver](process)
    client: Any = process.rpc(transport)
    events = rpcapi.ConductorEvents(client, timeout=REGISTER_TIMEOUT)
    manager = compute_manager.ComputeManager(conf, conf.host, driver, process.threads, events, client)
    process.wait_for('The hypervisor', manager.start)
    process.on_stop(manager.cleanup_host)


KIND = service.Kind('migrator-compute', register, begin)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service of a compute host, and return its exit status."""
    return service.main(KIND, argv)


if __name__ == '__main__':
    sys.exit(main())
