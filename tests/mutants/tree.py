# SPDX-License-Identifier: Apache-2.0

"""A private copy of the project, in which tests run with a mutant, and the processes that they start."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.stages import PYTEST, Stage

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: A variable of every process of a copy, by which those are found that have left its process group.
MARK = 'MIGRATOR_MUTANTS_TREE'
#: Prints where migrator is imported from, by this process and by a child of it in another folder.
WHERE = """
import os, subprocess, sys
import migrator
print(migrator.__file__)
code = 'import migrator; print(migrator.__file__)'
subprocess.run([sys.executable, '-c', code], cwd='/', check=True)
"""
_SUMMARY = re.compile(r'^(?:FAILED|ERROR) (?P<test>\S+)', re.MULTILINE)
_STACK = re.compile(r'in (?P<test>test_\w+)$', re.MULTILINE)
_NO_TESTS = 5


class Stopped(Exception):
    """The harness is being stopped."""


class Broken(Exception):
    """The harness cannot measure anything."""


class Tree:
    """One copy.

    :param folder: where to make it. It is made, and belongs to the copy.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.root = folder / 'tree'
        self._temporary = folder / 'tmp'
        self._lock = threading.Lock()
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._copy()
        self._verify()

    def _copy(self) -> None:
        listed = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split('\0')):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)

    def _verify(self) -> None:
        """Make sure that tests, and processes which they start, import the copy and not what is installed."""
        self._temporary.mkdir()
        command = [sys.executable, '-c', WHERE]
        found = subprocess.run(
            command, cwd=self.root, env=self.environment(), capture_output=True, text=True, check=True
        )
        expected = str(self.root / 'migrator' / '__init__.py')
        if found.stdout.split() != [expected, expected]:
            raise Broken(f'tests would import {found.stdout.split()} instead of {expected}')

    def environment(self) -> dict[str, str]:
        """Return the environment of the processes of this copy."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(('MIGRATOR_', 'PYTEST_'))}
        here = {
            'PATH': os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ['PATH']]),
            'PYTHONPATH': str(self.root),
            'TMPDIR': str(self._temporary),
            MARK: str(self.folder),
        }
        return kept | here

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant | None) -> Iterator[None]:
        """Have the copy hold a mutant within the block; None: nothing is changed."""
        if mutant is None:
            yield
            return
        path = self.root / mutant.file
        source = path.read_text(encoding='utf-8')
        self._write(path, mutant.apply(source))
        try:
            yield
        finally:
            self._write(path, source)
            # What hypothesis has found out with this mutant is not for the next one.
            shutil.rmtree(self.root / '.hypothesis', ignore_errors=True)

    @staticmethod
    def _write(path: pathlib.Path, source: str) -> None:
        path.write_text(source, encoding='utf-8')
        # Python compares whole seconds and the size, and both may be the same with and without the mutant.
        for compiled in (path.parent / '__pycache__').glob(f'{path.stem}.*.pyc'):
            compiled.unlink()

    def run(self, stage: Stage, paths: Sequence[str]) -> str | None:
        """Run tests; return which test failed, or None if none did.

        :raises Stopped: :meth:`stop` was called.
        :raises Broken: there are no such tests.
        """
        command = [sys.executable, *stage.module, *stage.options, *paths]
        output = self._temporary / 'output'
        with open(output, 'wb') as file:
            with self._lock:
                if self._stopped:
                    raise Stopped
                self._process = subprocess.Popen(
                    command,
                    cwd=self.root,
                    env={**self.environment(), **stage.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            try:
                status = self._process.wait(stage.limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self._kill()
        if self._stopped:
            raise Stopped
        text = output.read_text(encoding='utf-8', errors='replace')
        self._empty()
        if status == _NO_TESTS:
            raise Broken(f'stage {stage.name} has no tests in {" ".join(paths)}')
        if status is None:
            return f'hangs: not ended after {stage.limit:g} s'
        return None if status == 0 else _first_failed(text)

    def fails_again(self, stage: Stage, test: str) -> bool | None:
        """Whether a test that has failed fails by itself too; None: it cannot be run by its name."""
        if stage.module != PYTEST or '::' not in test:
            return None
        try:
            return self.run(stage, [test]) is not None
        except Broken:
            return None

    def stop(self) -> None:
        """End what runs, and let nothing begin."""
        with self._lock:
            self._stopped = True
        self._kill()

    def _kill(self) -> None:
        """Kill the process group of the run, and what its tests have started outside of it."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for _ in range(20):
            left = list(self._marked())
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return
            time.sleep(0.05)

    def _marked(self) -> Iterator[int]:
        mark = f'{MARK}={self.folder}'.encode()
        for entry in pathlib.Path('/proc').glob('[0-9]*'):
            try:
                if mark in (entry / 'environ').read_bytes().split(b'\0'):
                    yield int(entry.name)
            except OSError:
                continue  # It has ended, or belongs to another user.

    def _empty(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(exist_ok=True)


def _first_failed(text: str) -> str:
    found = _SUMMARY.search(text)
    if found is not None:
        return found['test']
    if 'Timeout' in text:
        # The process ends itself then, after it has printed every stack.
        stacks = _STACK.findall(text)
        return f'hangs: {stacks[-1] if stacks else "a test"}'
    lines = [line for line in text.splitlines() if line.strip()]
    return f'ends before its tests: {lines[-1][:120] if lines else "no output"}'
