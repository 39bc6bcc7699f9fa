# SPDX-License-Identifier: Apache-2.0

"""tools/venv.sh leaves a virtual environment that the user made."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: A Python that records how it is called, and fails if there is a file ``offline``.
PYTHON = '#!/bin/sh\necho "$@" >>called\n[ ! -e offline ]\n'


@pytest.fixture
def tree(tmp_path):
    """Return a tree with a virtual environment of the user."""
    for name in ('pyproject.toml', 'setup.py'):
        (tmp_path / name).touch()
    (tmp_path / 'tools').mkdir()
    shutil.copy(ROOT / 'tools' / 'venv.sh', tmp_path / 'tools')
    python = tmp_path / '.venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ('pyvenv.cfg', 'mine'):
        (tmp_path / '.venv' / name).touch()
    return tmp_path


def make(tree, *extras):
    done = subprocess.run(
        ['sh', 'tools/venv.sh', *extras],
        cwd=tree,
        env={'PATH': '/usr/bin:/bin', 'PYTHON': sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tree / '.venv' / 'mine').exists(), done.stderr
    return done.returncode


def installed(tree):
    return [line.split()[-1] for line in (tree / 'called').read_text().splitlines()]


def test_environment_of_the_user_is_used_as_it_is(tree):
    assert make(tree, 'demo') == 0
    assert make(tree, 'demo', 'test') == 0
    assert make(tree, 'demo') == 0
    assert installed(tree) == ['.[demo]', '.[test]']


def test_environment_of_the_user_is_kept_after_a_failed_install(tree):
    (tree / 'offline').touch()
    assert make(tree, 'demo') == 2
    (tree / 'offline').unlink()
    assert make(tree, 'demo') == 0
    assert installed(tree) == ['.[demo]'] * 2
