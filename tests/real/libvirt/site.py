# SPDX-License-Identifier: Apache-2.0

"""A site whose computes run on the hosts of a libvirt lab, and what an operator sees of it."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import requests
from keystoneauth1 import adapter, session, token_endpoint

from migrator import executors
from migrator.conductor import registry
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, Flavor, Instance, Migration
from migrator.placement_client import allocations, providers
from migrator.placement_client.client import PlacementClient
from tests.real import cloud
from tests.real.libvirt.lab import guests, hosts
from tests.real.servers import process
from tests.real.site import Service, Shape, Site

#: Seconds in which anything has to come to pass.
PATIENCE = 120.0
#: What a host sees of its own.
STATE = '/var/lib/libvirt/migrator'
#: Of a request of an administrator.
HEADERS = {
    'X-Auth-Token': 'admin:admin',
    'X-Roles': 'admin',
    'OpenStack-API-Version': 'compute 2.80',
    'Accept': 'application/json',
}


class Compute(Service):
    """The compute service of one host of the lab: it ends when the host is switched off."""

    def __init__(self, host: hosts.Host, name: str, file: pathlib.Path) -> None:
        super().__init__(host.workspace, 'compute', name, file)
        self.host = host

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return self.host.namespace_command(super().command())


class LibvirtSite(Site):
    """The services of one cloud, its computes on the hosts of a lab.

    :param lab: its hosts are the site's.
    :param options: of the site, ``{'libvirt.live_migration_bandwidth': 8}``; the others as in :class:`sites.Site`.
    """

    def __init__(self, lab: hosts.Lab, options: dict[str, Any], *servers: Any) -> None:
        self.lab = lab
        shape = Shape(hosts=len(lab.hosts), conductors=1, options=tuple(options.items()))
        super().__init__(lab.workspace, shape, *servers)

    def host_names(self) -> list[str]:
        """Return what its hosts are called."""
        return [*self.lab.hosts]

    def made(self, kind: str, name: str, file: pathlib.Path) -> Service:
        """Return the process of a service."""
        return Compute(self.lab.hosts[name], name, file) if kind == 'compute' else super().made(kind, name, file)

    def configure(self, name: str, **more: Any) -> pathlib.Path:
        """Write the configuration file of a service."""
        ours = {
            'compute.driver': 'libvirt',
            'compute.adopt_guests': True,
            'state_path': STATE,
            'instances_path': hosts.IMAGES,
            # The lab's guests do not listen to what would shut them down.
            'shutdown_timeout': 0,
            'report_interval': 2,
            'libvirt.live_migration_uri': self.lab.uri_of_any,
            'libvirt.allowed_paths': ','.join(self.lab.allowed_paths),
            **dict(self.shape.options),
        }
        return super().configure(name, **{**ours, **more})

    @property
    def processes(self) -> list[process.Process]:
        """Its services."""
        return [*self.services.values()]


class Cloud:
    """A site as its operator sees it.

    :param site: its processes, started.
    """

    def __init__(self, site: LibvirtSite) -> None:
        self.site = site
        self.lab = site.lab
        self.database = Database(site.database_url, executors.NativeThreads())
        auth = session.Session(auth=token_endpoint.Token(site.placement.url, 'admin'))
        self._adapter = adapter.Adapter(auth, service_type='placement')
        self.placement = PlacementClient(self._adapter)
        self._boots: dict[str, str] = {}
        self._changed: set[str] = set()

    # --- what an operator does ---------------------------------------------------------------------------------------

    def request(self, method: str, path: str, **body: Any) -> requests.Response:
        """Send a request to the REST API, and return its answer, which is no refusal."""
        answer = requests.request(
            method, f'{self.site.url()}/v2.1{path}', headers=HEADERS, json=body or None, timeout=PATIENCE
        )
        assert answer.status_code < 400, f'{method} {path}: {answer.status_code} {answer.text}'
        return answer

    def live_migrate(
        self, guest: guests.Guest, host: str | None = None, block_migration: bool | str = 'auto'
    ) -> Migration:
        """Ask for the move of a guest; return its migration."""
        body = {'host': host, 'block_migration': block_migration}
        self.request('POST', f'/servers/{guest.uuid}/action', **{'os-migrateLive': body})
        return self.migrations(guest)[-1]

    def cold_migrate(self, guest: guests.Guest) -> Migration:
        """Ask for a cold migration; return it when it waits for its user, or has ended."""
        self.request('POST', f'/servers/{guest.uuid}/action', migrate=None)
        made = self.migrations(guest)[-1]

        def over() -> bool:
            found = self.migration(made)
            return found.status == 'finished' or not found.in_progress or bool(found.stuck_reason)

        self.wait(over, f'migration {made.uuid} to wait for its user')
        return self.migration(made)

    def decide(self, migration: Migration, action: str) -> str:
        """Confirm or revert a cold migration; return its status at its end, as :meth:`ended`."""
        self.request('POST', f'/servers/{migration.instance_uuid}/action', **{action: None})
        return self.ended(migration)

    def evacuate(self, guest: guests.Guest) -> Migration:
        """Ask for the evacuation of a guest; return its migration."""
        self.request('POST', f'/servers/{guest.uuid}/action', evacuate={})
        return self.migrations(guest)[-1]

    def force_down(self, host: str, forced_down: bool = True) -> None:
        """Declare that a host is fenced, or that it is not."""
        found = self.request('GET', f'/os-services?binary={COMPUTE_BINARY}&host={host}').json()['services']
        self.request('PUT', f'/os-services/{found[0]["id"]}', forced_down=forced_down)

    def disable(self, host: str) -> None:
        """Let no guest be moved to a host, until the end of the test."""
        found = self.request('GET', f'/os-services?binary={COMPUTE_BINARY}&host={host}').json()['services']
        self.request('PUT', f'/os-services/{found[0]["id"]}', status='disabled')

    def abort(self, migration: Migration) -> None:
        """Ask for the abort of a migration."""
        self.request('DELETE', f'/servers/{migration.instance_uuid}/migrations/{migration.id}')

    def force_complete(self, migration: Migration) -> None:
        """Ask for a migration to complete by force."""
        path = f'/servers/{migration.instance_uuid}/migrations/{migration.id}/action'
        self.request('POST', path, force_complete=None)

    # --- what an operator sees ---------------------------------------------------------------------------------------

    def migrations(self, guest: guests.Guest) -> list[Migration]:
        """Return the migrations of a guest, the oldest first."""
        found = self.database.migrations.list({'instance_uuid': guest.uuid})
        return sorted(found, key=lambda migration: migration.id)

    def migration(self, migration: Migration) -> Migration:
        """Return a migration as it now is."""
        return self.database.migrations.get(migration.uuid)

    def progress(self, migration: Migration) -> dict[str, Any]:
        """Return what the API shows of a migration that runs; {} if it runs no more."""
        path = f'/servers/{migration.instance_uuid}/migrations'
        found: list[dict[str, Any]] = self.request('GET', path).json()['migrations']
        return next((one for one in found if one['id'] == migration.id), {})

    def instance(self, guest: guests.Guest) -> Instance:
        """Return the instance of a guest."""
        return self.database.instances.get(guest.uuid)

    def wait(self, what: Callable[[], Any], about: str, timeout: float = PATIENCE) -> None:
        """Wait until a predicate holds."""
        process.wait_until(what, about, timeout)

    def ended(self, migration: Migration, timeout: float = PATIENCE) -> str:
        """Wait for the end of a migration; return its status.

        Its ``stuck_reason`` ends the wait, too, and is part of the answer then.
        """

        def over() -> bool:
            found = self.migration(migration)
            return not found.in_progress or bool(found.stuck_reason)

        self.wait(over, f'migration {migration.uuid} to end', timeout)
        found = self.migration(migration)
        return f'stuck: {found.stuck_reason}' if found.stuck_reason and found.in_progress else str(found.status)

    def runs(self, migration: Migration, copied_mib: int = 1) -> None:
        """Wait until a migration copies memory."""

        def copies() -> bool:
            assert self.migration(migration).in_progress, self.migration(migration).status
            processed = self.progress(migration).get('memory_processed_bytes') or 0
            return processed >= copied_mib * 2**20

        self.wait(copies, f'migration {migration.uuid} to copy')

    def register(self, guest: guests.Guest, host: str, memory_mb: int = 128, root_gb: int = 0) -> guests.Guest:
        """Register a guest, as the service that has made it would."""
        flavor = Flavor(name='small', vcpus=1, memory_mb=memory_mb, root_gb=root_gb)
        made = Instance(
            uuid=guest.uuid, name=guest.name, project_id='p', user_id='u', host=host, node=host, flavor=flavor
        )
        registry.create_instance(self.database, self.placement, made)
        return guest

    def adopted(self, *those: guests.Guest) -> None:
        """Wait until guests are adopted."""
        wanted = {guest.uuid for guest in those}
        self.wait(lambda: wanted <= {one.uuid for one in self.database.instances.list({})}, 'guests to be adopted')

    # --- what has to be so -------------------------------------------------------------------------------------------

    def check(self, guest: guests.Guest, host: str) -> None:
        """Check that a guest runs on a host and no other, with nothing left elsewhere, and is recorded there.

        What runs after a migration's end is soon done: a deferred cleanup runs, a host reports.
        """
        until = time.monotonic() + 30
        while True:
            wrong = self._wrong(guest, host)
            if not wrong:
                return
            assert time.monotonic() < until, '; '.join(wrong)
            time.sleep(0.2)

    def _wrong(self, guest: guests.Guest, host: str) -> list[str]:
        wrong = []
        for name, each in self.lab.hosts.items():
            if not each.running:
                continue
            running = each.virsh('list', '--uuid', '--state-running').split()
            if (guest.uuid in running) != (name == host):
                wrong.append(f'{guest.name} runs on {name}: {guest.uuid in running}')
            if name != host and guest.uuid in each.domains():
                wrong.append(f'{guest.name} is left on {name}')
            if name == host and guest.uuid not in each.virsh('list', '--all', '--persistent', '--uuid').split():
                wrong.append(f'{guest.name} is transient on {name}')
            kept = each.outside(STATE) / 'libvirt' / name
            wrong += [f'{name} keeps {path.name}' for path in kept.glob(f'*going/{guest.uuid}*')]
            wrong += [f'{name} keeps {path.name}' for path in kept.glob(f'incoming/{guest.uuid}*')]
        found = self.instance(guest)
        if (found.host, found.task_state) != (host, None):
            wrong.append(f'the database has {guest.name} on {found.host}, {found.task_state}')
        nodes = {node.host: node.uuid for node in self.database.services.list_nodes()}
        held = allocations.read(self.placement, guest.uuid).allocations
        if set(held) != {nodes[host]}:
            wrong.append(f'{guest.name} holds {held}')
        consumers = set(providers.allocations_on(self.placement, nodes[host]))
        consumers |= {one for name in nodes for one in providers.allocations_on(self.placement, nodes[name])}
        strange = consumers - {one.uuid for one in self.database.instances.list({})}
        if strange and not self.database.migrations.list(in_progress=True):
            wrong.append(f'{strange} hold something')
        return wrong

    # --- start and stop ----------------------------------------------------------------------------------------------

    def up(self, *hosts_: str) -> bool:
        """Whether the present boot of each host's compute service is known, and up; of all if none is named."""
        now, patience = self.database.services.now(), float(dict(self.site.shape.options)['service_down_time'])
        known = {each.host: each for each in self.database.services.list(binary=COMPUTE_BINARY)}
        return all(
            name in known and known[name].boot_id != self._boots.get(name) and known[name].is_up(now, patience)
            for name in hosts_ or self.lab.hosts
        )

    def start_compute(self, host: str) -> None:
        """Start the compute service of a host anew, and return when it is known."""
        known = self.database.services.list(binary=COMPUTE_BINARY)
        self._boots.update({each.host: each.boot_id for each in known if each.host == host})
        self.site.services[host].start()
        self.wait(lambda: self.up(host), f'the compute service of {host} to be known')

    def set_option(self, host: str, **options: Any) -> None:
        """Change options of a compute service; ``__`` for the dot, ``libvirt__live_migration_bandwidth=8``."""
        self._changed.add(host)
        self.site.reconfigure(host, **{name.replace('__', '.'): value for name, value in options.items()})

    def restart_computes(self, **options: Any) -> None:
        """Stop the compute services as planned, and start them with other options; ``__`` for the dot."""
        for host in self.lab.hosts:
            self.site.services[host].stop()
            self.site.configure(host, **{name.replace('__', '.'): value for name, value in options.items()})
            self.start_compute(host)

    def slow(self, mib: int = 8) -> None:
        """Let moves from alpha copy that number of MiB a second, so that a test can act meanwhile."""
        self.set_option('alpha', libvirt__live_migration_bandwidth=mib)

    def begin(self) -> None:
        """Bring everything up, for a test."""
        for name, each in self.site.services.items():
            if each.running:
                each.go_on()
            elif name in self.lab.hosts:
                self.start_compute(name)
            else:
                each.start()
        self.wait(self.up, 'the computes to be up')

    def forget(self) -> None:
        """Take away what the test has made; what has been changed of a service is as it was."""
        for name in sorted(self._changed):
            if self.site.services[name].running:
                self.site.reconfigure(name)
            else:
                self.site.configure(name)
        self._changed.clear()
        self.clear_allocations()
        cloud.forget_rows(self.database)

    def clear_allocations(self) -> None:
        """Remove every allocation from Placement, which is the session's."""
        cloud.clear_allocations(self.placement, self._adapter)

    def close(self) -> None:
        """Close the connections."""
        self.database.close()
