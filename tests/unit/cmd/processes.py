# SPDX-License-Identifier: Apache-2.0


"""The process of a service under the control of a test."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests import forked, templates

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: Seconds. Nothing here takes as long, unless the machine is busy.
PATIENCE = 60.0


class Service:
    """One command of migrator.cmd, with its output in a file.

    :param fresh: run it in a new interpreter, and not in a fork of one that has imported everything.
    """

    def __init__(
        self, directory: pathlib.Path, module: str, *arguments: str, fresh: bool = False, **environment: str
    ) -> None:
        self.log = directory / f'{module}.log'
        # as an operator's: nothing of the test run's own configuration
        clean = {key: value for key, value in os.environ.items() if not key.startswith('OS_')}
        with self.log.open('wb') as output:
            start = subprocess.Popen if fresh else forked.Process
            self.child = start(
                [sys.executable, '-m', f'migrator.cmd.{module}', *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**clean, 'PYTHONPATH': str(ROOT), **environment},
            )

    def text(self) -> str:
        return self.log.read_text(errors='replace')

    def lines(self) -> list[str]:
        return self.text().splitlines()

    def wait_for(self, word: str, times: int = 1) -> str:
        """Wait until the log has a phrase, and return the first line with it."""
        until = time.monotonic() + PATIENCE
        while self.text().count(word) < times:
            assert self.child.poll() is None, f'it has ended with {self.child.returncode}:\n{self.text()}'
            assert time.monotonic() < until, f'no {word!r} in\n{self.text()}'
            time.sleep(0.02)
        return next(line for line in self.lines() if word in line)

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def status(self) -> int:
        return self.child.wait(timeout=PATIENCE)


@contextlib.contextmanager
def running(
    directory: pathlib.Path, module: str, *arguments: str, fresh: bool = False, **environment: str
) -> Iterator[Service]:
    """Run a service, and end it with the test."""
    service = Service(directory, module, *arguments, fresh=fresh, **environment)
    try:
        yield service
    finally:
        service.child.kill()
        service.child.wait()


def eventually(get: Callable[[], Any], is_right: Callable[[Any], bool]) -> Any:
    """Get something until it is right, and return it."""
    until = time.monotonic() + PATIENCE
    while not is_right(found := get()):
        assert time.monotonic() < until, f'it is still {found!r}'
        time.sleep(0.1)
    return found


def refused(directory: pathlib.Path, module: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run a service that cannot start, and return its status and its one line."""
    with running(directory, module, *arguments, **environment) as service:
        status = service.status()
        assert 'Traceback' not in service.text(), service.text()
        said = [line for line in service.lines() if ' INFO ' not in line]
    assert len(said) == 1, '\n'.join(said)
    return status, said[0]


def configure(directory: pathlib.Path, text: str = '', name: str = 'migrator.conf', schema: bool = True) -> list[str]:
    """Write the configuration of a service that stands alone, and return the arguments that name it.

    :param text: comes first, so that a section in it ends what there is of [DEFAULT].
    """
    database = templates.database(directory) if schema else directory / 'migrator.sqlite'
    file = directory / name
    sections = {
        'DEFAULT': {'transport_url': 'fake://', 'host': 'h1'},
        'database': {'connection': f'sqlite:///{database}'},
        'placement': {'auth_type': 'none', 'endpoint_override': 'http://127.0.0.1:1'},
        'api': {'auth_strategy': 'noauth2', 'listen_port': '0'},
        'compute': {'driver': 'fake'},
    }
    section = 'DEFAULT'
    for line in text.splitlines():
        if line.startswith('['):
            section = line.strip('[]')
        elif line.strip():
            key, _, value = line.partition('=')
            sections.setdefault(section, {})[key.strip()] = value.strip()
    file.write_text(
        ''.join(
            f'[{section}]\n' + ''.join(f'{key} = {value}\n' for key, value in values.items())
            for section, values in sections.items()
        )
    )
    return ['--config-file', str(file)]
