# SPDX-License-Identifier: Apache-2.0

"""The bench of the driver contract, on two hosts of the lab.

The drivers are in the test's own process.
"""

from __future__ import annotations

import pathlib
from typing import Any

from oslo_config import cfg

from migrator import executors
from migrator.conf import compute, libvirt
from migrator.objects import Flavor, Instance
from migrator.testing import driver_contract
from migrator.virt.libvirt.driver import LibvirtDriver
from tests.real.libvirt.lab import guests, hosts

#: MiB of a guest that is copied in about a second; and how fast, in MiB/s, it takes some ten seconds.
MEMORY, WORK, SLOW = 128, 100, 8


def configuration(lab: hosts.Lab, host: hosts.Host, folder: pathlib.Path, **options: Any) -> cfg.ConfigOpts:
    """Return what a driver of a host is given.

    :param folder: for what it keeps, and the instances of none but itself.
    :param options: of [libvirt], to be other than usual.
    """
    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    libvirt.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('host', host.name)
    conf.set_override('state_path', str(folder / host.name))
    # The lab's guests do not listen to what would shut them down.
    conf.set_override('shutdown_timeout', 0)
    conf.set_override('connection_uri', host.uri, group='libvirt')
    conf.set_override('live_migration_uri', lab.uri_of_any, group='libvirt')
    conf.set_override('allowed_paths', lab.allowed_paths, group='libvirt')
    for name, value in options.items():
        conf.set_override(name, value, group='libvirt')
    return conf


def instance_of(guest: guests.Guest, host: str) -> Instance:
    """Return the instance of a guest."""
    return Instance(
        uuid=guest.uuid,
        name=guest.name,
        project_id='project',
        user_id='user',
        host=host,
        node=host,
        flavor=Flavor(name='small', vcpus=1, memory_mb=MEMORY, root_gb=0),
    )


class LibvirtBench(driver_contract.Bench):
    """Two hosts of a lab, a guest on the first, and real time."""

    def __init__(self, lab: hosts.Lab, folder: pathlib.Path, **options: Any) -> None:
        self.lab = lab
        self.alpha, self.beta = lab.hosts['alpha'], lab.hosts['beta']
        self.folder = folder
        self.options = options
        self.confs = {host.name: configuration(lab, host, folder, **options) for host in (self.alpha, self.beta)}
        self.source = self.driver('alpha')
        self.destination = self.driver('beta')
        self.guest = lab.start_guest(self.alpha, 'guest-1', memory_mib=MEMORY, work=WORK, audit=0)
        self.instance = instance_of(self.guest, 'alpha')

    def driver(self, host: str) -> LibvirtDriver:
        """Return a driver of a host, as its compute service makes it when it starts."""
        made = LibvirtDriver(self.confs[host], executors.NativeThreads())
        made.init_host(host)
        return made

    def slow(self) -> None:
        self.confs['alpha'].set_override('live_migration_bandwidth', SLOW, group='libvirt')

    def lose_source(self) -> None:
        self.alpha.power_off()

    def return_source(self) -> None:
        self.alpha.power_on()

    def listeners(self) -> int:
        assert isinstance(self.source, LibvirtDriver)
        # one that calls again, and one that attaches
        return int(self.source.jobs.listeners(self.instance.uuid) >= 2)

    def close(self) -> None:
        for each in (self.source, self.destination):
            assert isinstance(each, LibvirtDriver)
            each.connection.close()
