# SPDX-License-Identifier: Apache-2.0

"""The real Keystone over HTTP, under gunicorn, on SQLite."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from keystoneauth1 import identity

from tests.real.servers import process

#: The password of each user. Only the tests' own servers take it.
PASSWORD = 'a-password-of-the-tests'
#: Keystone takes the arguments of gunicorn for its own.
HOOKS = """
def post_fork(server, worker):
    import sys
    del sys.argv[1:]
"""
CONF = """
[database]
connection = sqlite:///{directory}/keystone.sqlite
[identity]
# This one need not resist a search for passwords.
password_hash_rounds = 4
[token]
expiration = {expiration}
allow_expired_window = 3600
[fernet_tokens]
key_repository = {directory}/fernet-keys
[credential]
key_repository = {directory}/credential-keys
"""


def missing() -> str | None:
    """Say what is not installed; None if nothing."""
    lacking = [name for name in ('keystone', 'gunicorn') if importlib.util.find_spec(name) is None]
    return f'{" and ".join(lacking)} (pip install .[real])' if lacking else None


class Keystone(process.Process):
    """One Keystone. Its administrator is ``admin`` in the project ``admin``, with :data:`PASSWORD`.

    :param expiration: how many seconds a token lasts.
    """

    def __init__(self, workspace: process.Workspace, expiration: int = 3600) -> None:
        super().__init__(workspace, 'keystone')
        self.port = process.free_port()
        self._is_set_up = False
        self._file = self.directory / 'keystone.conf'
        self._file.write_text(CONF.format(directory=self.directory, expiration=expiration))
        self._hooks = self.directory / 'hooks.py'
        self._hooks.write_text(HOOKS)

    @property
    def url(self) -> str:
        """Where it is."""
        return f'http://{process.HOST}:{self.port}/v3'

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [
            sys.executable, '-m', 'gunicorn', '--config', str(self._hooks), '--bind', f'{process.HOST}:{self.port}',
            '--threads', '4', '--graceful-timeout', '5', '--no-control-socket', '--worker-tmp-dir', str(self.directory),
            'keystone.wsgi.api:application',
        ]  # fmt: skip

    def environment(self) -> Mapping[str, str]:
        """Return where its configuration is."""
        return {'OS_KEYSTONE_CONFIG_DIR': str(self.directory)}

    def password(self, user: str, project: str | None, **more: Any) -> identity.V3Password:
        """Return how a user gets tokens for a project, or else for what ``more`` says."""
        if project is not None:
            more |= {'project_name': project, 'project_domain_id': 'default'}
        return identity.V3Password(
            auth_url=self.url, username=user, password=PASSWORD, user_domain_id='default', **more
        )

    def options(self) -> dict[str, str]:
        """Return the options of a service that has tokens validated here."""
        return {
            'www_authenticate_uri': self.url, 'auth_url': self.url, 'auth_type': 'password', 'username': 'admin',
            'password': PASSWORD, 'project_name': 'admin', 'user_domain_id': 'default', 'project_domain_id': 'default',
            'service_token_roles_required': 'true',
        }  # fmt: skip

    def middleware(self) -> str:
        """Return these options as a section of a configuration file."""
        return '\n'.join(['[keystone_authtoken]', *(f'{name} = {value}' for name, value in self.options().items()), ''])

    def start(self, wait: bool = True) -> None:
        """Start it. The first time, make its keys, its schema and its administrator."""
        if not self._is_set_up:
            (self.directory / 'fernet-keys').mkdir(mode=0o700)
            (self.directory / 'credential-keys').mkdir(mode=0o700)
            self._manage('db_sync')
            ours = ['--keystone-user', str(os.getuid()), '--keystone-group', str(os.getgid())]
            self._manage('fernet_setup', *ours)
            self._manage('credential_setup', *ours)
            self._manage(
                'bootstrap', '--bootstrap-password', PASSWORD, '--bootstrap-public-url', self.url,
                '--bootstrap-internal-url', self.url, '--bootstrap-region-id', 'RegionOne',
            )  # fmt: skip
            self._is_set_up = True
        super().start(wait)

    def _manage(self, *words: str) -> None:
        manage = pathlib.Path(sys.executable).with_name('keystone-manage')
        process.run([str(manage), '--config-file', str(self._file), *words], self.directory)

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return 'version' in requests.get(self.url, timeout=5).json()
        except (requests.RequestException, ValueError):
            return False
