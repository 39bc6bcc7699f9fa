# SPDX-License-Identifier: Apache-2.0

"""The stage of the demo: two hosts of a lab, guests on the first, and a whole cloud in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import libvirt
from oslo_config import cfg

from migrator import exception, executors
from migrator.testing.cloud import Cloud
from migrator.virt.libvirt.driver import LibvirtDriver
from tests.real.libvirt.lab import guests, hosts
from tests.real.servers import process

#: The host that is emptied, and the one that takes its guests.
SOURCE, DESTINATION = 'alpha', 'beta'

#: MiB of a guest, and how much of that it fills with noise and looks after.
MEMORY, WORK = 128, 96
#: How fast a guest's memory is copied, in MiB/s: slow enough to watch it, and to stop it half way.
BANDWIDTH = 12
#: How many leave at once.
AT_ONCE = 2

#: The guests: what each rewrites, in MiB a second, and how often it looks at all its pages, in ticks.
CAST: dict[str, dict[str, Any]] = {
    # It writes faster than it is copied, so that its copy would never end. In post-copy a look at all its pages would
    # ask for them all at once; so it looks at those that it rewrites.
    'database': {'rate': 48, 'audit': 0},
    'cache': {'rate': 3},
    'web': {'rate': 2},
    'worker': {'rate': 1},
}

OPTIONS = {
    # finer than a product needs: the progress is shown
    'conductor.poll_interval': 0.4,
    'compute.adopt_guests': True,
    'max_concurrent_live_migrations': AT_ONCE,
    'libvirt.live_migration_bandwidth': BANDWIDTH,
    'libvirt.live_migration_permit_post_copy': True,
}

#: The events that libvirt reports of a guest that leaves a host, or comes to one, by post-copy.
_POST_COPY = (
    (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_POSTCOPY),
    (libvirt.VIR_DOMAIN_EVENT_RESUMED, libvirt.VIR_DOMAIN_EVENT_RESUMED_POSTCOPY),
)


class LibvirtCloud(Cloud):
    """A cloud whose hosts are those of a lab; it adopts their guests.

    :param lab: its hosts run, and have their guests.
    """

    def __init__(self, lab: hosts.Lab) -> None:
        self.lab = lab
        self._drivers: list[LibvirtDriver] = []
        self._listening: list[tuple[libvirt.virConnect, int]] = []
        #: Which guests libvirt has reported to be in post-copy, and on which hosts.
        self._post_copied: set[tuple[str, str]] = set()
        super().__init__(lab.workspace.directory('cloud'), hosts=0, options=OPTIONS)

    def driver_for(self, host: str, conf: cfg.ConfigOpts, threads: executors.Threads) -> LibvirtDriver:
        """Return the driver of a host's libvirt."""
        conf.set_override('state_path', str(self.backend.directory / host))
        conf.set_override('connection_uri', self.lab.hosts[host].uri, group='libvirt')
        conf.set_override('live_migration_uri', self.lab.uri_of_any, group='libvirt')
        conf.set_override('allowed_paths', self.lab.allowed_paths, group='libvirt')
        made = LibvirtDriver(conf, threads)
        self._drivers.append(made)
        return made

    def start_computes(self, adopted: int) -> None:
        """Start the compute services, and return when that number of guests is adopted."""
        for host in self.lab.hosts:
            self.start_compute(host)
        process.wait_until(self.up, 'the compute services to be known', 60)
        process.wait_until(lambda: len(self.database.instances.list()) >= adopted, 'the guests to be adopted', 60)
        for name, host in self.lab.hosts.items():
            # the event loop is the drivers', and runs by now
            connection = libvirt.open(host.uri)
            events = libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE
            number = connection.domainEventRegisterAny(None, events, self._on_lifecycle, name)
            self._listening.append((connection, number))

    def _on_lifecycle(self, _connection: Any, domain: Any, event: int, detail: int, host: str) -> None:
        if (event, detail) in _POST_COPY:
            self._post_copied.add((domain.UUIDString(), host))

    def went_by_post_copy(self, guest: guests.Guest) -> bool:
        """Whether libvirt has reported, on both hosts, that a guest was in post-copy."""
        return all((guest.uuid, host) in self._post_copied for host in self.lab.hosts)

    def population(self) -> dict[str, int]:
        """Return how many guests the database has on each host."""
        population = dict.fromkeys(self.lab.hosts, 0)
        for instance in self.database.instances.list():
            population[instance.host] += 1
        return population

    def stop(self) -> None:
        """Stop every service as planned, and close what was opened."""
        super().stop()
        for driver in self._drivers:
            driver.connection.close()
        for connection, number in self._listening:
            connection.domainEventDeregisterAny(number)
            connection.close()

    def drop(self) -> None:
        """Stop the conductors in the middle of their work; the hosts are switched off next."""
        for conductor in self.conductors.values():
            with contextlib.suppress(exception.MigratorException):
                conductor.stop()


def start_guests(lab: hosts.Lab) -> list[guests.Guest]:
    """Start all guests at once, and return them when they count."""
    source = lab.hosts[SOURCE]
    made = [guests.Guest(lab, name, memory_mib=MEMORY, work=WORK, **settings) for name, settings in CAST.items()]
    for guest in made:
        guest.start(source, wait=False)
    process.wait_until(lambda: all(guest.last_tick(source) for guest in made), f'the guests to count on {SOURCE}', 90)
    return made


def running_on(host: hosts.Host, those: Sequence[guests.Guest]) -> list[str]:
    """Return which guests run on a host, as libvirt reports it."""
    uuids = host.virsh('list', '--uuid', '--state-running').split()
    return [guest.name for guest in those if guest.uuid in uuids]
