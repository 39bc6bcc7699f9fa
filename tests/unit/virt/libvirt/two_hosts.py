# SPDX-License-Identifier: Apache-2.0

"""Two hosts with a replacement of their daemons and of qemu-img, for tests of cold migrations."""

import contextlib
import datetime
import json
import os
import pathlib
from uuid import uuid4

import libvirt

from migrator.objects import LiveMigrateData
from migrator.virt.libvirt.cold_migration import driver
from migrator.virt.libvirt.connection import Connection
from tests.unit.virt.libvirt import daemon
from tests.unit.virt.libvirt.daemon import INSTANCE, Domain, a_disk, definition

RUNNING = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]
#: More than one buffer of a stream.
CONTENT = os.urandom(400_000)


class Clock:
    """A clock that gains a second each time that it is read, and calls a function at one of these."""

    def __init__(self, after=0, call=lambda: None):
        self.seconds, self.after, self.call = 0, after, call

    def monotonic(self):
        self.seconds += 1
        if self.seconds == self.after:
            self.call()
        return self.seconds

    def now(self):
        return datetime.datetime.fromtimestamp(10**9 + self.seconds, datetime.UTC)


class Hosts:
    """Hosts alpha and beta, whose instances_path is their own or the same."""

    def __init__(self, folder, monkeypatch):
        daemon.install_qemu_img(folder, monkeypatch)
        self.folder, self.images = folder, folder / 'images'
        for name in ('alpha', 'beta'):
            (folder / f'of-{name}').mkdir()
        self.look_from('alpha')
        self.source, self.alpha = daemon.driver_of('alpha', folder, self.images, monkeypatch)
        self.destination, self.beta = daemon.driver_of('beta', folder, self.images, monkeypatch)
        # Alpha's service makes drafts at beta.
        self.beta.where = lambda path: pathlib.Path(str(path).replace(str(self.images), str(folder / 'of-beta')))
        self.reachable = True
        monkeypatch.setattr(driver, 'POLL_INTERVAL', 0.01)
        monkeypatch.setattr(Connection, '_opened', lambda connection: self.opened(connection.uri))

    def look_from(self, host):
        """Let the drivers see the files of a host."""
        self.images.unlink(missing_ok=True)
        self.images.symlink_to(f'of-{host}')

    def opened(self, uri):
        """Return the daemon of another host."""
        assert uri == 'qemu+tcp://beta/system'
        if not self.reachable:
            raise daemon.error(libvirt.VIR_ERR_RPC, 'beta is away')
        return self.beta

    @contextlib.contextmanager
    def at_beta(self):
        """Let the drivers see the files of beta."""
        self.look_from('beta')
        try:
            yield self.destination
        finally:
            self.look_from('alpha')

    def have(self, *devices, system=''):
        """Let alpha run the guest, which it starts when it boots."""
        domain = Domain(self.alpha, definition(''.join(devices), system), True)
        domain.starts, domain.reported = 1, list(RUNNING)
        self.alpha.domains.append(domain)

    def another_guest(self, path):
        """Let alpha have a guest that reads a file, and return its uuid."""
        uuid = str(uuid4())
        xml = definition(a_disk(path, more='<readonly/>'), name='other').replace(
            f'<uuid>{INSTANCE.uuid}', f'<uuid>{uuid}'
        )
        self.alpha.domains.append(Domain(self.alpha, xml, True))
        return uuid

    def checked(self, shared=False, power_on=True, new_flavor=None):
        """Return the data of both checks, as it comes out of the database."""
        data = self.source.check_can_migrate_source(INSTANCE, LiveMigrateData(new_flavor=new_flavor))
        data = data.replace(source=json.loads(json.dumps({**data.source, 'power_on': power_on})))
        with self.at_beta() if not shared else contextlib.nullcontext(self.destination) as destination:
            return destination.check_can_migrate_destination(INSTANCE, data)

    def states(self):
        """Return the state of the guest on both hosts."""
        return [each.get_guest(INSTANCE.uuid).state for each in (self.source, self.destination)]

    def files(self, host):
        """Return the names of the files of a host, without markers."""
        return sorted(path.name for path in (self.folder / f'of-{host}').glob('[!.]*'))
