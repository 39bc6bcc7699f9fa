# SPDX-License-Identifier: Apache-2.0

"""Commands run as a user runs them: as processes of their own.

They are forks of an interpreter that has imported what they need (:mod:`tests.forked`), unless a test needs fresh ones.
"""

import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

from tests import forked

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: Seconds after which a command that has said nothing is taken for hung.
PATIENCE = 60


def environment(tmp_path, **more):
    """Return an environment in which a command finds this tree, and nothing of this machine's user."""
    left_behind(tmp_path)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith('OS_')}
    return {**kept, 'PYTHONPATH': path, 'TMPDIR': str(tmp_path / 'tmp'), 'HOME': str(tmp_path), **more}


def left_behind(tmp_path):
    """Return what commands have left in their temporary directory."""
    (tmp_path / 'tmp').mkdir(exist_ok=True)
    return os.listdir(tmp_path / 'tmp')


def client(command, env, text=''):
    """Run ``openstack`` or ``nova`` to its end.

    :param text: what it reads from its standard input.
    """
    return forked.run(command, modules=forked.CLIENTS, env=env, input=text, timeout=PATIENCE)


def demo(tmp_path, *words, fresh=False, **more):
    """Run migrator-demo to its end."""
    command = [sys.executable, '-m', 'migrator.cmd.demo', *words]
    options = {'env': environment(tmp_path, **more), 'cwd': tmp_path, 'timeout': PATIENCE}
    if fresh:
        return subprocess.run(command, capture_output=True, text=True, **options)
    return forked.run(command, **options)


class Served:
    """A running ``migrator-demo --serve``; entered when it serves, and stopped when it is left.

    :param fresh: run it in a new interpreter.
    :ivar said: what it has printed.
    """

    def __init__(self, tmp_path, *words, fresh=False):
        self._start = subprocess.Popen if fresh else forked.Process
        self._command = [sys.executable, '-m', 'migrator.cmd.demo', '--serve', '127.0.0.1:0', *words]
        self._tmp_path = tmp_path
        self.said = ''

    def __enter__(self):
        self.process = self._start(
            self._command,
            env=environment(self._tmp_path),
            cwd=self._tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            self._read_until('Ctrl-C stops it.')
        except BaseException:
            self.process.kill()
            raise
        return self

    def _read_until(self, words):
        until = time.monotonic() + PATIENCE
        while words not in self.said:
            left = until - time.monotonic()
            assert left > 0, f'it has not come up: {self.said}'
            if select.select([self.process.stdout], [], [], left)[0]:
                read = os.read(self.process.stdout.fileno(), 65536).decode()
                assert read, f'it has ended: {self.said}'
                self.said += read

    def __exit__(self, *exc_info):
        if self.process.poll() is None:
            self.stop()

    def stop(self, number=signal.SIGTERM):
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        try:
            rest, _ = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.said += rest.decode()
        return self.process.returncode

    def url(self, name):
        """Return an address that it has printed: ``Compute API``, ``Placement`` or ``Page``."""
        return re.search(rf'^ +{name} +(\S+)', self.said, re.MULTILINE)[1]

    def exports(self):
        """Return the environment that its ``export`` lines make."""
        words = [word for line in self.said.splitlines() if line.startswith('export ') for word in line.split()[1:]]
        return dict(word.split('=', 1) for word in words)
