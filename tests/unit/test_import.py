# SPDX-License-Identifier: Apache-2.0

"""An import of migrator registers, starts and patches nothing, so that any process may embed it.

Each check runs in a process of its own, because this one has imported many modules already.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import migrator

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: Runs before the imports: records the state of the process, to compare it with the state after them.
LOOK = """
import _thread, gc, json, logging, os, select, signal, socket, subprocess, sys, threading, time

def look():
    world = {
        name: repr(value)
        for name, value in {
            'threading.Thread': threading.Thread,
            'threading.Thread.start': threading.Thread.start,
            'threading.Lock': threading.Lock,
            'threading.local': threading.local,
            'threading.excepthook': threading.excepthook,
            '_thread.start_new_thread': _thread.start_new_thread,
            'socket.socket': socket.socket,
            'socket.create_connection': socket.create_connection,
            'select.select': select.select,
            'time.sleep': time.sleep,
            'time.monotonic': time.monotonic,
            'os.fork': os.fork,
            'subprocess.Popen': subprocess.Popen,
            'sys.excepthook': sys.excepthook,
            'sys.path': sys.path,
            'logging.root.handlers': logging.root.handlers,
            'logging.root.level': logging.root.level,
            'logging.getLoggerClass()': logging.getLoggerClass(),
            'os.environ': sorted(os.environ.items()),
            'the working directory': os.getcwd(),
            'the threads': sorted(thread.name for thread in threading.enumerate()),
            'the signal handlers': [
                signal.getsignal(number) for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
            ],
            'gc.isenabled()': gc.isenabled(),
        }.items()
    }
    eventlet = sys.modules.get('eventlet.patcher')
    world['what eventlet has patched'] = repr(sorted(
        module for module in ('os', 'select', 'socket', 'subprocess', 'thread', 'time')
        if eventlet and eventlet.is_monkey_patched(module)
    ))
    return world
"""

#: Records the registrations on the global ConfigOpts. Libraries may register options at their import. A registration is
#: migrator's if its call comes from a line of migrator without an import of another module in between.
WATCH = """
import importlib, pkgutil, traceback
from oslo_config import cfg

ours = []

def watch(method):
    def watching(self, *args, **kwargs):
        if self is cfg.CONF:
            for frame in reversed(traceback.extract_stack()[:-1]):
                if 'importlib' in frame.filename:
                    break
                if PACKAGE in frame.filename:
                    ours.append(f'{frame.filename}:{frame.lineno}: {frame.line}')
                    break
        return method(self, *args, **kwargs)
    return watching

for name in ('register_opt', 'register_cli_opt', 'register_group', 'set_override', 'set_default', '__call__'):
    setattr(cfg.ConfigOpts, name, watch(getattr(cfg.ConfigOpts, name)))
"""

#: Extras. A module that needs a missing one is skipped. (The binding of libvirt needs libvirt.)
EXTRAS = ('libvirt', 'placement', 'eventlet', 'psycopg2', 'pymysql')

WALK = """
import migrator

imported, left_out = [], {}

def walk(package):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):
        if os.path.exists(os.path.join(package.__path__[0], 'env.py')):
            continue  # alembic runs these by path, in a context that does not exist here
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as missing:
            if (missing.name or '').partition('.')[0] not in EXTRAS:
                raise
            left_out[found.name] = missing.name
            continue
        imported.append(found.name)
        if found.ispkg:
            walk(module)

before = look()
walk(migrator)
after = look()
print(json.dumps({
    'ours': ours, 'imported': imported, 'left_out': left_out,
    'changed': {name: [before[name], after[name]] for name in before if before[name] != after[name]},
}))
"""


def run(*parts: str) -> Any:
    """Run a script in a new interpreter, and return the JSON of its last line."""
    constants = f'PACKAGE = {str(ROOT / "migrator") + "/"!r}\nEXTRAS = {EXTRAS!r}\n'
    script = '\n'.join(textwrap.dedent(part) for part in (constants, *parts))
    done = subprocess.run(
        [sys.executable, '-c', script], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def world() -> dict:
    return run(LOOK, WATCH, WALK)


def test_every_module_can_be_imported(world):
    files = {
        '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
        for path in (ROOT / 'migrator').rglob('*.py')
        if not any((folder / 'env.py').exists() for folder in (path.parent, path.parent.parent))
    }
    unseen = {
        module
        for module in files - {'migrator'} - set(world['imported'])
        if not module.startswith(tuple(world['left_out']))
    }
    assert not unseen, f'a folder above these modules has no __init__.py: {sorted(unseen)}'


def test_import_registers_no_option_on_the_global_configuration(world):
    assert world['ours'] == []


def test_import_starts_nothing_and_patches_nothing(world):
    assert world['changed'] == {}


def test_import_migrator_loads_no_other_module():
    loaded = run("""
        import json, sys
        before = set(sys.modules)
        import migrator
        print(json.dumps(sorted(set(sys.modules) - before)))
        """)
    assert [name for name in loaded if name.partition('.')[0] not in sys.stdlib_module_names] == ['migrator']


@pytest.mark.parametrize(
    ('name', 'module'),
    [
        ('ComputeDriver', 'migrator.virt.driver'),
        ('ComputeManager', 'migrator.compute.manager'),
        ('Flavor', 'migrator.objects'),
        ('Host', 'migrator.runtime.embed'),
        ('Instance', 'migrator.objects'),
        ('LiveMigrateData', 'migrator.objects'),
        ('Signals', 'migrator.runtime.signals'),
        ('SimpleDriver', 'migrator.virt.simple'),
        ('host_name', 'migrator.runtime.embed'),
        ('exception', None),
        ('__version__', None),
    ],
)
def test_public_name_is_imported_at_its_first_use(name, module):
    assert name in migrator.__all__
    assert name in dir(migrator)
    value = run(f"""
        import json, sys
        import migrator
        assert {name!r} not in vars(migrator)
        assert {module!r} not in sys.modules
        from migrator import {name}
        assert vars(migrator)[{name!r}] is {name}
        print(json.dumps(getattr({name}, "__qualname__", repr({name}))))
        """)
    found = getattr(importlib.import_module(module or 'migrator'), name)
    assert value == getattr(found, '__qualname__', repr(found))


def test_every_public_name_has_a_test_here():
    (mark,) = test_public_name_is_imported_at_its_first_use.pytestmark
    assert sorted(name for name, _module in mark.args[1]) == sorted(migrator.__all__)


def test_version_is_that_of_the_distribution():
    assert migrator.__version__ == importlib.metadata.version('openstack-migrator')


def test_version_of_a_source_tree_that_is_not_installed_is_an_attribute_error(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delitem(vars(migrator), '__version__', raising=False)
    monkeypatch.setattr(importlib.metadata, 'version', missing)
    with pytest.raises(AttributeError, match='not installed'):
        migrator.__version__  # noqa: B018 -- the access is the test


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'migrator' has no attribute 'Conductor'"):
        migrator.Conductor  # noqa: B018 -- the access is the test


def test_compute_manager_imports_neither_database_nor_placement():
    brought = run("""
        import json, sys
        from migrator.compute.manager import ComputeManager
        assert ComputeManager.__module__ == 'migrator.compute.manager'
        print(json.dumps([name for name in sys.modules if name.split('.')[0] in ('sqlalchemy', 'alembic', 'placement')
                          or name.startswith(('migrator.db', 'migrator.placement_client', 'migrator.conductor'))]))
        """)
    assert brought == []


# --- tests of the checks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('change', 'name'),
    [
        ('threading.Thread(target=time.sleep, args=(9,), daemon=True, name="planted").start()', 'the threads'),
        ('time.sleep = lambda seconds: None', 'time.sleep'),
        ('socket.socket = type("planted", (socket.socket,), {})', 'socket.socket'),
        ('signal.signal(signal.SIGTERM, signal.SIG_IGN)', 'the signal handlers'),
        ('logging.basicConfig()', 'logging.root.handlers'),
        ('import eventlet; eventlet.monkey_patch(time=True)', 'what eventlet has patched'),
    ],
)
def test_change_at_import_is_found(change, name):
    if 'eventlet' in change:
        pytest.importorskip('eventlet')
    changed = run(
        LOOK,
        'before = look()',
        change,
        'after = look()',
        'print(json.dumps([name for name in before if before[name] != after[name]]))',
    )
    assert name in changed


@pytest.mark.parametrize(
    'change',
    [
        'cfg.CONF.register_opts([cfg.StrOpt("planted")])',
        'cfg.CONF.register_opts([cfg.StrOpt("planted")], group="planted")',
        'from keystoneauth1 import loading; loading.register_session_conf_options(cfg.CONF, "planted")',
        'cfg.CONF([], project="planted")',
    ],
)
def test_option_registered_globally_at_import_is_found(change):
    planted = f"""
        exec(compile({change!r}, PACKAGE + 'planted.py', 'exec'))
        cfg.ConfigOpts().register_opts([cfg.StrOpt('lawful')])
        import json
        print(json.dumps(ours))
        """
    found = run(WATCH, planted)
    assert found
    assert all('planted.py' in line for line in found)
