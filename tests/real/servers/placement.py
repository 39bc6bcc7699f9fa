# SPDX-License-Identifier: Apache-2.0

"""The real Placement over HTTP, under gunicorn, on PostgreSQL or on SQLite."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from keystoneauth1 import adapter, session, token_endpoint

from tests.real.servers import keystone, process

#: What gunicorn is to do besides serving: each worker notes that it has booted.
HOOKS = """
def post_worker_init(worker):
    with open({booted!r}, 'a') as file:
        print(worker.pid, file=file)
"""


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    packages = {'placement': 'openstack-placement', 'gunicorn': 'gunicorn'}
    lacking = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    return f'{" and ".join(lacking)} (pip install .[demo,real])' if lacking else None


class Placement(process.Process):
    """One Placement. Behind a Keystone, or with noauth2, where the administrator's token is 'admin'.

    :param keystone_: the Keystone that its tokens come from; None: noauth2.
    :param database: an SQLAlchemy URL; None: an SQLite file, which takes one writer at a time and answers the others
        500 "database is locked".
    :param workers: how many processes serve it, of eight threads each.
    """

    def __init__(
        self,
        workspace: process.Workspace,
        database: str | None = None,
        workers: int = 1,
        keystone_: keystone.Keystone | None = None,
    ) -> None:
        super().__init__(workspace, 'placement')
        self._keystone = keystone_
        self.port = process.free_port()
        self._workers = workers
        self._synchronized = False
        self._booted = self.directory / 'booted'
        self._hooks = self.directory / 'hooks.py'
        self._hooks.write_text(HOOKS.format(booted=str(self._booted)))
        connection = database or f'sqlite:///{self.directory}/placement.sqlite'
        (self.directory / 'placement.conf').write_text(
            f'[api]\nauth_strategy = {"noauth2" if keystone_ is None else "keystone"}\n'
            f'{"" if keystone_ is None else keystone_.middleware()}'
            f'[placement_database]\nconnection = {connection}\nmax_retries = 0\nmax_overflow = 20\n'
        )

    @property
    def url(self) -> str:
        """Where it is."""
        return f'http://{process.HOST}:{self.port}'

    def adapter(self) -> adapter.Adapter:
        """Return an adapter of its administrator."""
        if self._keystone is None:
            auth: Any = token_endpoint.Token(self.url, 'admin')
        else:
            auth = self._keystone.password('admin', 'admin')
        return adapter.Adapter(session.Session(auth=auth), service_type='placement', endpoint_override=self.url)

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [
            sys.executable, '-m', 'gunicorn', '--config', str(self._hooks), '--bind', f'{process.HOST}:{self.port}',
            '--workers', str(self._workers), '--threads', '8', '--graceful-timeout', '5', '--no-control-socket',
            # On a busy machine a connection that is idle for 2 s, the default, ends just when a request is sent.
            '--keep-alive', '30', '--worker-tmp-dir', str(self.directory), 'placement.wsgi.api:application',
        ]  # fmt: skip

    def environment(self) -> Mapping[str, str]:
        """Return where its configuration is."""
        return {'OS_PLACEMENT_CONFIG_DIR': str(self.directory)}

    def start(self, wait: bool = True) -> None:
        """Start it, its database being brought up the first time."""
        if not self._synchronized:
            manage = pathlib.Path(sys.executable).with_name('placement-manage')
            process.run([str(manage), '--config-dir', str(self.directory), 'db', 'sync'], self.directory)
            self._synchronized = True
        self._booted.unlink(missing_ok=True)
        super().start(wait)

    def ready(self) -> bool:
        """Whether it answers at its root, and every worker has got so far.

        A worker that still boots when its database goes away takes all the others with it.
        """
        booted = self._booted.read_text().split() if self._booted.exists() else []
        try:
            if len(booted) < self._workers:
                return False
            return 'versions' in requests.get(f'{self.url}/', timeout=5).json()
        except (requests.RequestException, ValueError):
            return False
