# SPDX-License-Identifier: Apache-2.0

"""The sizes that keep the house easy to enter, and how far each part still is from them.

Other tests hold the other numbers: the complexity of a function (C901, ``max-complexity`` in ``pyproject.toml``), the
words that are not used (``test_prose.py``), import cycles (``test_floors.py``), and the files and frames of one
migration (``conductor/test_happy_path.py``).

The sizes are those of ``migrator``; a folder of alembic revisions grows with the schema. A limit holds everywhere.
Where a part is still above it, ``STILL`` has the part with its present number, which may only fall: lower it when the
test says so, and delete it when the part is below the limit.
"""

from __future__ import annotations

import ast
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: What is counted -> the limit for each part.
LIMITS = {
    'modules in a folder': 12,
    'methods of a class': 25,
    'attributes of a class': 15,
    'lines of a saga': 260,
    'lines of the sagas of a cold migration': 400,
    'imports under another name': 0,
}
#: (what is counted, part) -> how many there still are.
STILL: dict[tuple[str, str], int] = {}

#: Where the sagas are: each file can be read in one go. Besides the migration that of a cold migration has the revert,
#: and what both do while a user decides.
SAGAS = {
    'migrator/conductor/tasks/live_migrate.py': 'lines of a saga',
    'migrator/conductor/tasks/evacuate.py': 'lines of a saga',
    'migrator/conductor/tasks/resize_here.py': 'lines of a saga',
    'migrator/conductor/tasks/cold_migrate.py': 'lines of the sagas of a cold migration',
}
#: The functions that write a status of a migration besides the steps, whose rows name theirs.
STATUS_WRITERS = {
    'migrator/conductor/migration/context.py:enter': 'the status of a step, for the executor',
    'migrator/conductor/migration/context.py:undone': 'the ends of an undo',
    'migrator/conductor/migration/settle.py:_note_running': 'the source reports the job, and no step begins then',
    'migrator/conductor/migration/abandon.py:_end': 'an operator ends the migration without its steps',
    'migrator/db/cleanups.py:complete_evacuation': 'an evacuation is completed after its owner has ended',
}
#: What a library's own documentation imports under another name.
CONVENTIONS = re.compile(r'import sqlalchemy as sa|from oslo_log import log as logging')


def modules() -> dict[str, str]:
    """Return the source of each module of migrator/ by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding='utf-8')
        for path in sorted((ROOT / 'migrator').rglob('*.py'))
    }


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that a class declares, or sets on self."""
    found = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    for one in ast.walk(node):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        for target in (inner for outer in targets for inner in ast.walk(outer)):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == 'self':
                found.add(target.attr)
    return found


def is_plain_data(node: ast.ClassDef) -> bool:
    """Return whether a class is a row or a message: its attributes are columns, and it does nothing."""
    decorators = {ast.unparse(one).partition('(')[0].rpartition('.')[2] for one in node.decorator_list}
    bases = {ast.unparse(one).rpartition('.')[2] for one in node.bases}
    return bool({'dataclass'} & decorators or {'Base', 'NamedTuple', 'StrEnum', 'Enum', 'Protocol'} & bases)


def counts(sources: dict[str, str]) -> collections.Counter[tuple[str, str]]:
    """Return how many there are of each, by what is counted and the part."""
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for path, source in sources.items():
        folder = path.rpartition('/')[0]
        if not path.endswith('/__init__.py') and '/versions/' not in path and folder != 'migrator':
            found['modules in a folder', folder] += 1
        if path in SAGAS:
            found[SAGAS[path], path] = source.count('\n')
        for line in source.splitlines():
            if re.match(r'\s*(from \S+ )?import \S+ as \w', line) and not CONVENTIONS.search(line):
                found['imports under another name', folder] += 1
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                part = f'{path}:{node.name}'
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                found['methods of a class', part] = len(methods)
                if not is_plain_data(node):
                    found['attributes of a class', part] = len(attributes(node))
    return found


def test_no_part_grows_above_its_limit():
    found = {key: count for key, count in counts(modules()).items() if count > LIMITS[key[0]]}
    grown = {key: (count, STILL.get(key, LIMITS[key[0]])) for key, count in found.items() if count > STILL.get(key, 0)}
    assert not grown, '(is, may be): ' + ', '.join(f'{part}: {what} {both}' for (what, part), both in grown.items())


def status_writers(path: str, source: str) -> set[str]:
    """Return the functions that pass a status to ``set`` or ``values``."""
    return {
        f'{path}:{function.name}'
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ('set', 'values')
        if any(keyword.arg == 'status' for keyword in call.keywords)
    }


def test_only_listed_functions_write_status_of_migration():
    written = re.compile(r'migrator/(conductor|db|saga)/(?!drains)')  # a drain and its members have statuses too
    found = {one for path, source in modules().items() if written.match(path) for one in status_writers(path, source)}
    assert found == set(STATUS_WRITERS)


def test_entry_of_still_above_its_count_is_reported():
    found = counts(modules())
    fallen = {key: found[key] for key, count in STILL.items() if found[key] < count}
    assert not fallen, f'lower these in STILL, or delete them below the limit: {fallen}'


def test_saga_of_each_task_has_limit():
    tasks = ROOT / 'migrator/conductor/tasks'
    assert set(SAGAS) == {path.relative_to(ROOT).as_posix() for path in tasks.glob('*.py')} - {
        'migrator/conductor/tasks/__init__.py'
    }


def test_counts_find_aliases_methods_and_attributes():
    source = 'import a.b as c\nclass A:\n    x: int\n    def f(self):\n        self.y, self.z = 1, 2\n'
    found = counts({'migrator/x/y.py': source})
    assert found['imports under another name', 'migrator/x'] == 1
    assert found['methods of a class', 'migrator/x/y.py:A'] == 1
    assert found['attributes of a class', 'migrator/x/y.py:A'] == 3
