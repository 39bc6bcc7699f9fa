# SPDX-License-Identifier: Apache-2.0

"""One service, started with a configuration that a test changes."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys

from tests.real import site
from tests.unit.cmd import processes

TREE = pathlib.Path(__file__).resolve().parents[2]
#: What stands for every password that must not be shown.
HUSH = 'hush-hush'


class Start:
    """One service, configured on this session's servers, with what a test changes of it."""

    def __init__(self, directory: pathlib.Path, **options: str) -> None:
        self.directory = directory
        self.options: dict[str, object] = {
            'host': 'h1',
            'transport_url': 'fake://',
            'database.connection': f'sqlite:///{directory}/migrator.sqlite',
            'placement.auth_type': 'none',
            'placement.endpoint_override': 'http://127.0.0.1:1',
            'api.auth_strategy': 'noauth2',
            'api.listen_port': 0,
            'compute.driver': 'fake',
            **options,
        }

    def file(self, **changes: object) -> list[str]:
        """Write the configuration, and return the arguments that name it.

        :param changes: options, such as ``database__connection``.
        """
        changed = {name.replace('__', '.'): value for name, value in changes.items()}
        file = self.directory / 'migrator.conf'
        file.write_text(site.render({**self.options, **changed}))
        return ['--config-file', str(file)]

    def manage(self, *words: str, **changes: object) -> subprocess.CompletedProcess[str]:
        """Run migrator-manage."""
        return subprocess.run(
            [sys.executable, '-m', 'migrator.cmd.manage', *self.file(**changes), *words],
            cwd=self.directory, env={'PYTHONPATH': str(TREE)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def sync(self) -> None:
        """Make the schema."""
        done = self.manage('db', 'sync')
        assert done.returncode == 0, done.stderr

    def refused(self, kind: str, **changes: object) -> str:
        """Start a service that cannot; return the one line that it says, and see that its status says so too."""
        status, line = processes.refused(self.directory, kind, *self.file(**changes))
        assert status == 2, line
        assert line.startswith(f'migrator-{kind}: Option ') or 'schema' in line
        assert HUSH not in line
        return line

    def running(self, kind: str, **changes: object) -> contextlib.AbstractContextManager[processes.Service]:
        """Start a service that runs, and kill it in the end."""
        return processes.running(self.directory, kind, *self.file(**changes))


def said(service: processes.Service, *levels: str) -> list[str]:
    """Return what a service has said that was not as it should be."""
    levels = levels or ('WARNING', 'ERROR', 'CRITICAL')
    return [line for line in service.lines() if any(f' {level} ' in line for level in levels)]
