# SPDX-License-Identifier: Apache-2.0

"""The help of every command comes without importing what is slow to import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from migrator.cmd import manage
from tests.unit.cmd.processes import ROOT

#: Packages that cost more time than the rest of a help text together.
HEAVY = {
    'alembic', 'cheroot', 'eventlet', 'greenlet', 'jsonschema', 'keystoneauth1', 'kombu', 'oslo_db', 'oslo_messaging',
    'oslo_policy', 'placement', 'requests', 'rich', 'sqlalchemy', 'webob',
}  # fmt: skip

#: Imports modules, calls a function of theirs with arguments, and prints the names of all packages it has by then.
SCRIPT = """
import contextlib, importlib, io, json, sys
said = io.StringIO()
with contextlib.redirect_stdout(said):
    main = importlib.import_module(sys.argv[1]).main
    sys.argv[:] = ['command', *sys.argv[2:]]
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code
print(json.dumps([status or 0, said.getvalue(), sorted({name.partition('.')[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize(
    'words',
    [
        'migrator.cmd.manage',
        *(f'migrator.cmd.manage {noun}' for noun in manage.NOUNS),
        'migrator.cmd.manage migration abandon',
        'migrator.cmd.status',
        'migrator.cmd.status upgrade',
        'migrator.cmd.api',
        'migrator.cmd.compute',
        'migrator.cmd.conductor',
        'migrator.cmd.demo',
        'migrator.testing.fake_world_server',
    ],
)
def test_help_imports_nothing_heavy(words):
    done = subprocess.run(
        [sys.executable, '-c', SCRIPT, *words.split(), '--help'], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    status, said, packages = json.loads(done.stdout)
    assert (status, said[:6].lower()) == (0, 'usage:')
    assert HEAVY.intersection(packages) == set()


@pytest.mark.parametrize('noun', manage.NOUNS)
def test_a_noun_has_the_module_that_its_row_names(noun, capsys):
    assert manage.main([noun, '--help']) == 0
    said = ' '.join(capsys.readouterr().out.split())
    help_, _ = manage.NOUNS[noun]
    assert said.startswith(f'usage: migrator-manage {noun} ')
    assert help_ in said
