# SPDX-License-Identifier: Apache-2.0

"""Importing migrator registers nothing global, starts nothing and patches nothing: it may live in anybody's process.

Each look is taken in a process of its own, for this one has imported much already.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: Imported before the others: a look at the world, to be compared with the one after.
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

#: Records who registers what on the one ConfigOpts that everybody shares. A library that we import may do so on its
#: own account; it is us where the call comes from a line of ours with no import of another module between.
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

#: Extras: where they are missing, what needs them is passed over. (libvirt's binding is on no machine without libvirt.)
EXTRAS = ('libvirt', 'placement', 'eventlet', 'psycopg2')

WALK = """
import migrator

imported, left_out = [], {}

def walk(package):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):
        if os.path.exists(os.path.join(package.__path__[0], 'script.py.mako')):
            continue  # alembic runs these by path, in a context of its own that there is none of here
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


def run(*parts: str) -> dict:
    """Run a script in a fresh interpreter and return what it printed last."""
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


def test_every_module_can_be_imported_for_itself(world):
    files = {
        '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
        for path in (ROOT / 'migrator').rglob('*.py')
        if not any((folder / 'script.py.mako').exists() for folder in (path.parent, path.parent.parent))
    }
    unseen = {
        module
        for module in files - {'migrator'} - set(world['imported'])
        if not module.startswith(tuple(world['left_out']))
    }
    assert not unseen, f'a folder on their way has no __init__.py: {sorted(unseen)}'


def test_importing_registers_no_option_on_the_global_configuration(world):
    assert world['ours'] == []


def test_importing_starts_nothing_and_patches_nothing(world):
    assert world['changed'] == {}


def test_a_compute_manager_brings_neither_database_nor_books():
    brought = run("""
        import json, sys
        from migrator.compute.manager import ComputeManager
        assert ComputeManager.__module__ == 'migrator.compute.manager'
        print(json.dumps([name for name in sys.modules if name.split('.')[0] in ('sqlalchemy', 'alembic', 'placement')
                          or name.startswith(('migrator.db', 'migrator.placement_client', 'migrator.conductor'))]))
        """)
    assert brought == []


# --- the looks are looked at -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('deed', 'name'),
    [
        ('threading.Thread(target=time.sleep, args=(9,), daemon=True, name="planted").start()', 'the threads'),
        ('time.sleep = lambda seconds: None', 'time.sleep'),
        ('socket.socket = type("planted", (socket.socket,), {})', 'socket.socket'),
        ('signal.signal(signal.SIGTERM, signal.SIG_IGN)', 'the signal handlers'),
        ('logging.basicConfig()', 'logging.root.handlers'),
        ('import eventlet; eventlet.monkey_patch(time=True)', 'what eventlet has patched'),
    ],
)
def test_a_deed_at_import_is_seen(deed, name):
    if 'eventlet' in deed:
        pytest.importorskip('eventlet')
    changed = run(
        LOOK,
        'before = look()',
        deed,
        'after = look()',
        'print(json.dumps([name for name in before if before[name] != after[name]]))',
    )
    assert name in changed


@pytest.mark.parametrize(
    'deed',
    [
        'cfg.CONF.register_opts([cfg.StrOpt("planted")])',
        'cfg.CONF.register_opts([cfg.StrOpt("planted")], group="planted")',
        'from keystoneauth1 import loading; loading.register_session_conf_options(cfg.CONF, "planted")',
        'cfg.CONF([], project="planted")',
    ],
)
def test_an_option_registered_globally_at_import_is_seen(deed):
    planted = f"""
        exec(compile({deed!r}, PACKAGE + 'planted.py', 'exec'))
        cfg.ConfigOpts().register_opts([cfg.StrOpt('lawful')])
        import json
        print(json.dumps(ours))
        """
    found = run(WATCH, planted)
    assert found
    assert all('planted.py' in line for line in found)
