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

#: Imports a module, has its command print one help after another, and prints what they were and all modules it has.
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
print(json.dumps([printed, sorted(sys.modules)]))
"""

#: The same of the parser alone.
PARSER = """
import argparse, json, sys
print(json.dumps([[[0, argparse.ArgumentParser().format_help()]], sorted(sys.modules)]))
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
    modules = modules_after_help(module, commands)
    assert HEAVY.intersection(name.partition('.')[0] for name in modules) == set()


def test_help_of_migrator_manage_imports_only_the_parser_and_the_standard_library():
    modules = modules_after_help('migrator.cmd.manage', [''])
    ours = [name for name in modules if name.partition('.')[0] == 'migrator']
    assert ours == [
        'migrator',
        'migrator.cmd',
        'migrator.cmd.manage',
        'migrator.operator',
        'migrator.operator.cli',
        'migrator.operator.cli.parser',
        'migrator.runtime',
        'migrator.runtime.pipes',
    ]
    # Each of these takes longer than to parse the command line. The parser of a newer Python imports some itself.
    slow = {'dataclasses', 'inspect', 'logging', 'oslo_config', 'oslo_utils', 'uuid'}
    assert slow.intersection(modules) <= set(modules_of(PARSER, ['--help']))


def modules_after_help(module: str, commands: list[str]) -> list[str]:
    """Return the modules that a process has imported when its command has printed some helps."""
    return modules_of(SCRIPT, [module, *(f'{command} --help' for command in commands)], len(commands))


def modules_of(script: str, arguments: list[str], helps: int = 1) -> list[str]:
    done = subprocess.run(
        [sys.executable, '-c', script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed, modules = json.loads(done.stdout)
    assert [(status, said[:6].lower()) for status, said in printed] == [(0, 'usage:')] * helps
    found: list[str] = modules
    return found


@pytest.mark.parametrize('noun', manage.NOUNS)
def test_a_noun_has_the_module_that_its_row_names(noun, capsys):
    assert manage.main([noun, '--help']) == 0
    said = ' '.join(capsys.readouterr().out.split())
    help_, _ = manage.NOUNS[noun]
    assert said.startswith(f'usage: migrator-manage {noun} ')
    assert help_ in said
