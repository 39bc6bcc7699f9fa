# SPDX-License-Identifier: Apache-2.0

"""The help of every command is printed without slow imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from migrator.cmd import manage
from tests.unit.cmd.processes import ROOT

#: Packages that cost more time than the rest of a help text together.
HEAVY = {
    'alembic', 'eventlet', 'greenlet', 'jsonschema', 'keystoneauth1', 'kombu', 'oslo_db', 'oslo_messaging',
    'oslo_policy', 'placement', 'requests', 'rich', 'sqlalchemy', 'waitress', 'webob',
}  # fmt: skip

#: Imports a module, has its command print one help after another, and prints what they were and all packages it has.
SCRIPT = """
import contextlib, importlib, io, json, sys
main = importlib.import_module(sys.argv[1]).main
printed = []
for words in sys.argv[2:]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        sys.argv[:] = ['command', *words.split()]
        try:
            status = main()
        except SystemExit as stop:
            status = stop.code
    printed.append([status or 0, said.getvalue()])
print(json.dumps([printed, sorted({name.partition('.')[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize(
    ('module', 'commands'),
    [
        ('migrator.cmd.manage', ['', *manage.NOUNS, 'db sync', 'migration abandon', 'placement heal']),
        ('migrator.cmd.drain', ['', 'start', 'heal']),
        ('migrator.cmd.status', ['', 'upgrade']),
        ('migrator.cmd.api', ['']),
        ('migrator.cmd.compute', ['']),
        ('migrator.cmd.conductor', ['']),
        ('migrator.cmd.demo', ['']),
        ('migrator.testing.fake_world.server', ['']),
    ],
)
def test_help_imports_nothing_heavy(module, commands):
    words = [f'{command} --help' for command in commands]
    done = subprocess.run(
        [sys.executable, '-c', SCRIPT, module, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed, packages = json.loads(done.stdout)
    assert [(status, said[:6].lower()) for status, said in printed] == [(0, 'usage:')] * len(commands)
    assert HEAVY.intersection(packages) == set()


@pytest.mark.parametrize('noun', manage.NOUNS)
def test_a_noun_has_the_module_that_its_row_names(noun, capsys):
    assert manage.main([noun, '--help']) == 0
    said = ' '.join(capsys.readouterr().out.split())
    help_, _ = manage.NOUNS[noun]
    assert said.startswith(f'usage: migrator-manage {noun} ')
    assert help_ in said
