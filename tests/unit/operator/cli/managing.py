# SPDX-License-Identifier: Apache-2.0

"""A simulated cloud and migrator-manage: the real command on the database and Placement of the cloud."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
from typing import Any

from migrator.cmd import manage
from migrator.runtime import http_server
from migrator.testing import backends
from migrator.testing.cloud import SimulatedCloud

ACTS_ON = re.compile(r'^(\S+: )?(migration \S+ of guest|instance) .*\n', re.MULTILINE)


class Operator:
    """An operator who runs migrator-manage.

    :param directory: the directory of the configuration file.
    :param backend: the database and the Placement of the cloud.
    :param capsys: the fixture of pytest.
    :ivar err: stderr of the last command.
    """

    def __init__(self, directory: pathlib.Path, backend: backends.Backend, capsys: Any, **options: Any) -> None:
        self.cloud = SimulatedCloud(backend.directory, backend=backend, **options)
        self._capsys = capsys
        self._placement = http_server.listen(self.cloud.placement.app, '127.0.0.1', 0)
        self.err = ''
        self.file = directory / 'migrator.conf'
        self.configure()

    def configure(self, placement_url: str | None = None) -> None:
        self.file.write_text(
            f'[database]\nconnection = sqlite:///{self.cloud.backend.directory}/migrator.sqlite\n'
            f'[placement]\nauth_type = none\nendpoint_override = {placement_url or self._placement.url}\n'
        )

    def status(self, *words: object) -> tuple[int, str]:
        """Run a command; return its exit status and stdout."""
        return self._run(['--config-file', str(self.file), *map(str, words)])

    def pastes(self, line: str) -> tuple[int, str]:
        """Run a command that an answer contains; return the same as :meth:`status`."""
        program, *argv = shlex.split(line)
        assert program == 'migrator-manage'
        return self._run(argv)

    def _run(self, argv: list[str]) -> tuple[int, str]:
        client = self.cloud.rpc_for('api', 'manage:manage')
        status = manage.main(argv, threads=self.cloud.world.threads, client=client)
        out, self.err = self._capsys.readouterr()
        return status, out

    def observed(self, *words: object) -> str:
        """Return stdout of a command that exits with 0. On stderr it may only name what it acts on."""
        status, out = self.status(*words)
        assert (status, ACTS_ON.sub('', self.err)) == (0, '')
        return out

    def rows(self, *words: object) -> list[dict[str, str]]:
        """Return the rows of the table that a command prints, by column."""
        return table(self.observed(*words).splitlines())

    def json(self, *words: object) -> Any:
        """Return the JSON document of a command that exits with 0."""
        return json.loads(self.observed(*words, '--json'))

    def close(self) -> None:
        self._placement.stop()
        self.cloud.stop()


def table(lines: list[str]) -> list[dict[str, str]]:
    """Return the rows of a table by column; two or more spaces separate the names of the columns."""
    found = list(re.finditer(r'\S+( \S+)*', lines[0]))
    names, starts = [match[0] for match in found], [match.start() for match in found]
    ends = [*starts[1:], None]
    return [
        {name: line[start:end].strip() for name, start, end in zip(names, starts, ends, strict=True)}
        for line in lines[1:]
    ]
