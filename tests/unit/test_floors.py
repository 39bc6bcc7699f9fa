# SPDX-License-Identifier: Apache-2.0

"""The floors of ARCHITECTURE.rst: import only downwards, and only the RPC API of another service.

The tables come first, then the checks that read them. A check is a function from ``{path: source}`` to a list of
findings, so that each is itself tested, by planting what it must find.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

Sources = dict[str, str]

#: Where each part stands. A new top-level file or folder of migrator/ gets its row here before anything imports it.
FLOORS = {
    'migrator.exception': 0,
    'migrator.objects': 1,
    'migrator.conf': 1,
    'migrator.context': 1,
    'migrator.executors': 1,
    'migrator.saga': 2,
    'migrator.drain': 2,
    'migrator.tracing': 2,
    'migrator.db': 3,
    'migrator.placement_client': 3,
    'migrator.virt': 3,
    'migrator.rpc': 3,
    'migrator.views': 4,
    'migrator.api': 5,
    'migrator.conductor': 5,
    'migrator.compute': 5,
    'migrator.nova': 5,
    'migrator.demo': 6,
    'migrator.nova.foreground': 6,
    'migrator.operator': 6,
    'migrator.runtime': 6,
    'migrator.simulator': 6,
    'migrator.testing': 6,
    'migrator.cmd': 7,
    'migrator.wsgi': 7,
}

#: Parts of these floors may import each other: the demo runs on the cloud of testing/, and wsgi/ wires as cmd/ does.
SHARED = (6, 7)

#: What a service may import of another: (who, the module).
INTERFACES = {
    ('migrator.api', 'migrator.conductor.rpcapi'),
    ('migrator.conductor', 'migrator.compute.rpcapi'),
}

#: (who, what it never imports, why), where the floors alone would allow it.
NEVER = [
    ('migrator.compute', 'migrator.db', 'a compute host holds no database handle: it asks the conductor'),
    ('migrator.compute', 'migrator.views', 'a compute host holds no database handle, and shows nothing'),
    ('migrator.compute', 'migrator.placement_client', "allocations are the conductor's, and a compute knows of none"),
    ('migrator.compute', 'migrator.saga', 'the conductor runs the saga; a compute does one step when asked'),
    (
        'migrator.api',
        'migrator.placement_client',
        "the API writes a row and a request; allocations are the conductor's",
    ),
    ('migrator.api', 'migrator.virt', 'the API never talks to a hypervisor'),
    ('migrator.api', 'migrator.saga', 'the conductor runs the saga; the API only requests it'),
    ('migrator.conductor', 'migrator.virt', 'the conductor never talks to a hypervisor: it asks the host'),
    (
        'migrator.views',
        'migrator.placement_client',
        'what is shown comes from rows, so that the API answers while every other service is down',
    ),
    ('migrator.views', 'migrator.virt', 'what is shown comes from rows: a host has reported it'),
    ('migrator.views', 'migrator.rpc', 'what is shown comes from rows: nothing is called'),
    ('migrator.placement_client', 'migrator.saga', 'a step calls the client, and the client knows of no step'),
    ('migrator.virt', 'migrator.saga', 'a driver obeys its manager, and knows of no step'),
    ('migrator.rpc', 'migrator.saga', 'a message is a message, whatever step sends it'),
    ('migrator.testing', 'migrator.simulator', "an embedder's tests need a cloud, and not the random runs"),
    ('migrator.demo', 'migrator.simulator', 'the demo shows a cloud, and injects no faults'),
]

#: Library -> (where it may be imported, why). A place is a module and all that lies in it; * stands for any names.
LIBRARIES = {
    'oslo_messaging': (
        ('migrator.rpc', 'migrator.*.rpcapi', 'migrator.runtime'),
        'everything else uses the Protocol of rpc.py, so that a test, or another transport, can stand in',
    ),
    'sqlalchemy': (('migrator.db',), 'the schema and its dialects are known in one place'),
    'oslo_db': (('migrator.db',), 'the schema and its dialects are known in one place'),
    'alembic': (('migrator.db',), 'the schema and its dialects are known in one place'),
    'libvirt': (('migrator.virt.libvirt',), 'it is an extra, and a compute with another driver runs without it'),
    'futurist': (('migrator.executors',), 'threads are made in one place, and its executors are mended there'),
    'eventlet': (
        ('migrator.executors', 'migrator.runtime.concurrency'),
        'threads, native or green, are chosen in one place; a process patches itself before it imports anything else',
    ),
    'prometheus_client': (
        ('migrator.conductor.metrics', 'migrator.runtime.monitor'),
        'what is reported is in registries of our own: of a conductor, and of a process',
    ),
    'opentelemetry': (
        ('migrator.runtime.tracing',),
        'it is an extra, and a service that does not trace runs without it and without its cost',
    ),
    'placement': (
        ('migrator.testing', 'migrator.demo'),
        'the Placement service is an extra, for the demo and the tests; a service talks to it over HTTP',
    ),
}

#: No file is longer. Aim for half of it.
WALL = 600


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Import:
    """One import, wherever it stands: at the top, in a function, or under TYPE_CHECKING."""

    path: str
    line: int
    module: str  # who imports
    target: str  # what, as far as the line shows: for `from a.b import c` it is a.b.c

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: {self.module} imports {self.target}'


def tree(*folders: str) -> Sources:
    """Read every Python file under the given folders of the project."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding='utf-8')
        for folder in folders
        for path in sorted((ROOT / folder).rglob('*.py'))
    }


def module_name(path: str) -> str:
    """Give the dotted name of the module at a path."""
    return path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')


def within(module: str, part: str) -> bool:
    """Return whether a module is that part, or lies in it. ``*`` stands for any one name or several."""
    return re.fullmatch(re.escape(part).replace(r'\*', r'.+') + r'(\..+)?', module) is not None


def part_of(module: str) -> str | None:
    """Name the row of FLOORS that a module belongs to: the longest one that it lies in."""
    return max((part for part in FLOORS if within(module, part)), key=len, default=None)


def imports(sources: Sources) -> Iterator[Import]:
    """Read every import of every file, those by a literal name given to an import function included."""
    for path, source in sources.items():
        module = module_name(path)
        package = module if path.endswith('/__init__.py') else module.rpartition('.')[0]
        for node in ast.walk(ast.parse(source, path)):
            for target in _targets(node, package):
                yield Import(path, node.lineno, module, target)


def _targets(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = node.module or ''
            if node.level:
                up = package.split('.')[: len(package.split('.')) - node.level + 1]
                base = '.'.join([*up, base] if base else up)
            return [f'{base}.{alias.name}' for alias in node.names]
        case ast.Call(
            func=ast.Name(id=function) | ast.Attribute(attr=function),
            args=[ast.Constant(value=str(name)), *_],
        ) if function in {'__import__', 'import_module', 'import_class', 'import_object', 'try_import'}:
            return [name]
    return []


def internal(sources: Sources) -> Iterator[tuple[Import, str, str]]:
    """Read the imports between parts, each with the part it is in and the part it reaches."""
    for found in imports(sources):
        here, there = part_of(found.module), part_of(found.target)
        if here and there and here != there:
            yield found, here, there


# --- the checks ------------------------------------------------------------------------------------------------------


def without_floor(sources: Sources) -> list[str]:
    """Find modules that FLOORS does not know."""
    return [
        f'{path}: {module_name(path)} has no floor: give its part a row in FLOORS, and in ARCHITECTURE.rst'
        for path in sources
        if module_name(path) != 'migrator' and part_of(module_name(path)) is None
    ]


def climbs(sources: Sources) -> list[str]:
    """Find imports that do not go down, except those of another service's interface."""
    findings = []
    for found, here, there in internal(sources):
        if FLOORS[there] > FLOORS[here]:
            findings.append(f'{found}, which is {FLOORS[there] - FLOORS[here]} floors up: import only downwards')
        elif FLOORS[there] == FLOORS[here] and FLOORS[here] not in SHARED and not _is_interface(found, here):
            findings.append(
                f'{found}, which is on the same floor: parts of a floor do not import each other, '
                f'except through {" or ".join(sorted(one for _, one in INTERFACES))}, one way'
            )
    return findings


def _is_interface(found: Import, here: str) -> bool:
    return any(here == who and within(found.target, one) for who, one in INTERFACES)


def forbidden(sources: Sources) -> list[str]:
    """Find imports that NEVER names."""
    return [
        f'{found}: {why}'
        for found in imports(sources)
        for who, what, why in NEVER
        if within(found.module, who) and within(found.target, what)
    ]


def strays(sources: Sources) -> list[str]:
    """Find libraries imported outside the place that LIBRARIES gives them."""
    return [
        f'{found}, which only {", ".join(allowed)} may: {why}'
        for found in imports(sources)
        for library, (allowed, why) in LIBRARIES.items()
        if within(found.target, library) and not any(within(found.module, place) for place in allowed)
    ]


def saga_says_migration(sources: Sources) -> list[str]:
    """Find the word in the engine, which must not know what saga it runs: code, comments and prose alike."""
    return [
        f'{path}:{number}: "migration" in migrator/saga/, which is about sagas in general: {line.strip()}'
        for path, source in sources.items()
        if path.startswith('migrator/saga/')
        for number, line in enumerate([path, *source.splitlines()])
        if 'migration' in line.lower()
    ]


def cycles(sources: Sources) -> list[str]:
    """Find modules that import each other in a ring, even lazily or only for types."""
    known = {module_name(path) for path in sources}
    graph: dict[str, set[str]] = {module: set() for module in known}
    for found in imports(sources):
        target = found.target
        while target and target not in known:
            target = target.rpartition('.')[0]
        if target and target != found.module:
            graph[found.module].add(target)
    return [
        'import cycle: ' + ' -> '.join([*ring, ring[0]]) + ': move what both need to a floor below'
        for ring in _rings(graph)
    ]


def _rings(graph: dict[str, set[str]]) -> Iterable[list[str]]:
    """Give one shortest ring for each set of modules that reach each other."""
    seen: set[str] = set()
    for start in sorted(graph):
        if start in seen:
            continue
        came_from: dict[str, str] = {}
        queue = [start]
        for module in queue:
            for target in sorted(graph[module]):
                if target not in came_from:
                    came_from[target] = module
                    queue.append(target)
        if start in came_from:
            ring = [start]
            while came_from[ring[0]] != start:
                ring.insert(0, came_from[ring[0]])
            seen.update(ring)
            yield [start, *ring[:-1]]


def too_long(sources: Sources) -> list[str]:
    """Find files above the wall."""
    return [
        f'{path} has {source.count(chr(10))} lines, and the wall is {WALL}: it holds two things, so make it two files'
        for path, source in sources.items()
        if source.count('\n') > WALL
    ]


# --- the tree --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def migrator() -> Sources:
    return tree('migrator')


@pytest.mark.parametrize(
    'check', [without_floor, climbs, forbidden, strays, saga_says_migration, cycles, too_long], ids=lambda c: c.__name__
)
def test_the_tree_keeps_the_law(check, migrator):
    findings = check(migrator)
    assert not findings, '\n'.join(findings)


def test_no_test_file_is_above_the_wall():
    findings = too_long(tree('tests'))
    assert not findings, '\n'.join(findings)


# --- the checks are checked: each planted text is found, and its lawful neighbour is not -----------------------------


@pytest.mark.parametrize(
    ('path', 'source'),
    [
        ('migrator/objects/x.py', 'from migrator.db import api'),
        ('migrator/objects/x.py', 'from migrator import context'),
        ('migrator/exception.py', 'import migrator.objects.instance'),
        ('migrator/saga/x.py', 'from migrator.db import saga_log'),
        ('migrator/virt/x.py', 'from migrator.compute import manager'),
        ('migrator/virt/x.py', 'def f():\n    from migrator.compute import manager'),
        ('migrator/virt/x.py', 'if TYPE_CHECKING:\n    from migrator.compute import manager'),
        ('migrator/virt/x.py', 'importlib.import_module("migrator.compute.manager")'),
        ('migrator/virt/x.py', 'from ..compute import manager'),
        ('migrator/db/x.py', 'from migrator.placement_client import audit'),
        ('migrator/rpc.py', 'from migrator.virt.driver import ComputeDriver'),
        ('migrator/placement_client/x.py', 'from migrator import rpc'),
        ('migrator/views/x.py', 'from migrator.conductor import tasks'),
        ('migrator/api/x.py', 'from migrator.conductor import manager'),
        ('migrator/api/x.py', 'from migrator.conductor.tasks import live_migrate'),
        ('migrator/api/x.py', 'from migrator.compute import rpcapi'),
        ('migrator/conductor/x.py', 'from migrator.compute.manager import ComputeManager'),
        ('migrator/conductor/x.py', 'from migrator.compute import steps'),
        ('migrator/conductor/x.py', 'from migrator.api import app'),
        ('migrator/compute/x.py', 'from migrator.conductor import rpcapi'),
        ('migrator/conductor/x.py', 'from migrator.testing import cloud'),
        ('migrator/api/x.py', 'import migrator.cmd.api'),
        ('migrator/nova/x.py', 'from migrator.nova.foreground import loop'),
    ],
)
def test_an_import_that_climbs_is_found(path, source):
    assert len(climbs({path: source})) == 1


@pytest.mark.parametrize(
    ('path', 'source'),
    [
        ('migrator/objects/x.py', 'from migrator import exception\nfrom migrator.objects import base'),
        ('migrator/saga/x.py', 'from migrator.executors import Clock'),
        ('migrator/db/x.py', 'from migrator.saga import log\nfrom migrator import conf'),
        ('migrator/api/x.py', 'from migrator.conductor import rpcapi\nfrom migrator import db, rpc'),
        ('migrator/api/x.py', 'from migrator.conductor.rpcapi import ConductorAPI'),
        ('migrator/api/x.py', 'from migrator.views import timeline'),
        ('migrator/views/x.py', 'from migrator.db.api import Database'),
        ('migrator/conductor/x.py', 'import migrator.compute.rpcapi\nfrom migrator import placement_client'),
        ('migrator/compute/x.py', 'from migrator.virt import driver\nfrom migrator.compute.steps import f'),
        ('migrator/cmd/demo.py', 'from migrator.testing import cloud'),
        ('migrator/testing/x.py', 'from migrator.compute.manager import ComputeManager'),
        ('migrator/nova/foreground/x.py', 'from migrator.nova import client'),
    ],
)
def test_an_import_that_goes_down_or_to_an_interface_is_not_found(path, source):
    sources = {path: source}
    assert climbs(sources) + forbidden(sources) + strays(sources) == []


def test_a_module_without_a_floor_is_found():
    assert len(without_floor({'migrator/utils.py': '', 'migrator/__init__.py': '', 'migrator/db/x.py': ''})) == 1


@pytest.mark.parametrize(('who', 'what', 'why'), NEVER)
def test_a_forbidden_import_is_found(who, what, why):
    path = who.replace('.', '/') + '/x.py'
    assert len(forbidden({path: f'from {what} import x'})) == 1
    assert why in forbidden({path: f'def f():\n    import {what}'})[0]
    assert not forbidden({path: 'from migrator.objects import instance'})


@pytest.mark.parametrize('library', LIBRARIES)
def test_a_stray_library_is_found(library):
    assert len(strays({'migrator/conductor/migration/settle.py': f'import {library}'})) == 1
    assert len(strays({'migrator/conductor/migration/settle.py': f'def f():\n    from {library}.a import b'})) == 1
    for place in LIBRARIES[library][0]:
        path = place.replace('*', 'compute').replace('.', '/')
        assert not strays({f'{path}.py': f'import {library}'})


def test_module_with_similar_name_is_not_a_stray_import():
    assert not strays({'migrator/api/x.py': 'import placement_tools\nfrom migrator import placement_client'})


@pytest.mark.parametrize(
    ('path', 'source'),
    [
        ('migrator/saga/x.py', 'def migration_step(): ...'),
        ('migrator/saga/x.py', '# as a Migration does'),
        ('migrator/saga/migrations.py', ''),
    ],
)
def test_the_word_that_sagas_do_not_know_is_found(path, source):
    assert len(saga_says_migration({path: source})) == 1


def test_saga_may_import_package_and_other_folders_may_name_migration():
    assert not saga_says_migration(
        {'migrator/saga/x.py': 'from migrator import exception', 'migrator/db/x.py': 'migration'}
    )


def test_a_cycle_is_found_even_where_an_import_is_lazy():
    sources = {
        'migrator/db/a.py': 'from migrator.db import b',
        'migrator/db/b.py': 'from migrator.db.c import f',
        'migrator/db/c.py': 'def f():\n    from migrator.db import a',
        'migrator/db/d.py': 'from migrator.db import a',
    }
    assert cycles(sources) == [
        'import cycle: migrator.db.a -> migrator.db.b -> migrator.db.c -> migrator.db.a: '
        'move what both need to a floor below'
    ]
    del sources['migrator/db/c.py']
    assert not cycles(sources)


def test_a_file_above_the_wall_is_found():
    assert len(too_long({'migrator/a.py': '\n' * (WALL + 1), 'migrator/b.py': '\n' * WALL})) == 1
