# SPDX-License-Identifier: Apache-2.0

"""ARCHITECTURE.rst lists every package of migrator/; every module has a licence line and a docstring."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

Sources = dict[str, str]

#: A line of the list: a package or a top-level module, two spaces or more, and what it is for.
LISTED = re.compile(r'^ +(?P<path>migrator/\S*?(?:/|\.py))(?: {2,}(?P<purpose>\S.*))?$', re.MULTILINE)

#: Words that no line of the list ends with: it was cut off there.
OPEN_ENDS = frozenset(['a', 'an', 'and', 'or', 'the'])

#: The line that says under which licence a file is.
HEADER = 'SPDX-License-Identifier: Apache-2.0'

#: Where Python files are that are ours. (What tools leave in the tree, such as .venv, is not.)
FOLDERS = ('migrator', 'tests', 'tools', 'benchmarks', 'doc/source', '.ci')


def tree(*folders: str) -> Sources:
    """Read every Python file under the given folders of the project."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding='utf-8')
        for folder in folders
        for path in sorted((ROOT / folder).rglob('*.py'))
    }


def breaks_off(purpose: str) -> bool:
    """Return whether a line of the list cannot be whole, by its last word."""
    return purpose.endswith((',', ':', ';')) or purpose.rpartition(' ')[2] in OPEN_ENDS


def part_of(path: str) -> str:
    """Return the package of a module, or the module itself where it is at the top."""
    folder = path.rpartition('/')[0]
    return path if folder == 'migrator' else f'{folder}/'


def differences(architecture: str, sources: Sources) -> list[str]:
    """Say which lines of ARCHITECTURE.rst to add, to remove or to finish."""
    rows = LISTED.findall(architecture)
    listed = [path for path, _ in rows]
    wanted = {part_of(path) for path in sources} - {'migrator/__init__.py'}
    return [
        *(f'add:     {path}  <what it is for>' for path in sorted(wanted - set(listed))),
        *(f'remove:  {path}  (there is no such part)' for path in sorted(set(listed) - wanted)),
        *(f'remove:  {path}  (it is listed twice)' for path in sorted({p for p in listed if listed.count(p) > 1})),
        *(f'finish:  {path}  (it does not say what it is for)' for path, purpose in rows if not purpose),
        *(f'finish:  {path}  (it breaks off: {purpose})' for path, purpose in rows if breaks_off(purpose)),
    ]


def without_header(sources: Sources) -> list[str]:
    """Find files that do not begin with the licence. An empty file has nothing to license."""
    return [path for path, source in sources.items() if source.strip() and HEADER not in source[:400]]


def without_docstring(sources: Sources) -> list[str]:
    """Find public modules, classes, functions and methods without one.

    Public is what has no leading underscore, and lies in nothing that has. What is nested in a function is private to
    it; the setter of a property is explained by its getter, and the variants of an overload by what they are of.
    """
    findings = []
    for path, source in sources.items():
        name = path.rpartition('/')[2]
        if name.startswith('_') and name != '__init__.py':
            continue
        module = ast.parse(source, path)
        if module.body and ast.get_docstring(module) is None:
            findings.append(f'{path}:1: the module has no docstring')
        findings += [
            f'{path}:{node.lineno}: {kind} {dotted} has no docstring'
            for node, kind, dotted in _public(module)
            if ast.get_docstring(node) is None
        ]
    return findings


def _public(parent, prefix=''):
    for node in parent.body:
        # The name of a test is its sentence.
        private = ('_', 'test_')
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
            private
        ):
            decorators = {ast.unparse(decorator).rpartition('.')[2] for decorator in node.decorator_list}
            if decorators & {'overload', 'setter', 'deleter'}:
                continue
            dotted = prefix + node.name
            yield node, 'class' if isinstance(node, ast.ClassDef) else 'function', dotted
            if isinstance(node, ast.ClassDef):
                yield from _public(node, f'{dotted}.')


# --- the tree --------------------------------------------------------------------------------------------------------


def test_the_file_list_and_the_tree_agree():
    found = differences((ROOT / 'ARCHITECTURE.rst').read_text(encoding='utf-8'), tree('migrator'))
    assert not found, 'ARCHITECTURE.rst and the tree disagree; in its file list\n' + '\n'.join(found)


def test_what_stands_before_the_file_list_has_at_most_8_kib():
    before, packages, _ = (ROOT / 'ARCHITECTURE.rst').read_text(encoding='utf-8').partition('\nPackages\n')
    assert packages, 'the section is not found'
    assert len(before) <= 8192, f'{len(before)} characters: move details to doc/source'


def test_every_file_has_the_licence_header():
    found = without_header(tree(*FOLDERS))
    assert not found, 'these lack the line # SPDX-License-Identifier: Apache-2.0:\n' + '\n'.join(found)


def test_everything_public_has_a_docstring():
    found = without_docstring(tree('migrator'))
    assert not found, '\n'.join(found)


# --- the checks are checked ------------------------------------------------------------------------------------------


def test_a_package_that_is_not_listed_is_found():
    found = differences('   migrator/a.py   does one thing\n', {'migrator/a.py': '', 'migrator/b/c.py': ''})
    assert found == ['add:     migrator/b/  <what it is for>']


def test_a_listed_part_that_is_not_there_is_found():
    found = differences('   migrator/a.py   does one thing\n   migrator/b/   does b\n', {'migrator/a.py': ''})
    assert found == ['remove:  migrator/b/  (there is no such part)']


def test_a_part_listed_twice_or_without_a_purpose_is_found():
    found = differences('   migrator/a/   does one thing\n   migrator/a/\n', {'migrator/a/b.py': ''})
    assert found == [
        'remove:  migrator/a/  (it is listed twice)',
        'finish:  migrator/a/  (it does not say what it is for)',
    ]


@pytest.mark.parametrize('purpose', ['for clients that need a', 'each as what users and', 'the fence,', 'made of:'])
def test_a_line_that_breaks_off_is_found(purpose):
    found = differences(f'   migrator/a.py   {purpose}\n', {'migrator/a.py': ''})
    assert found == [f'finish:  migrator/a.py  (it breaks off: {purpose})']


def test_path_in_prose_is_not_listed():
    assert not differences('See migrator/a.py  and\nmigrator/b.py  too.\n', {})


def test_a_missing_header_is_found():
    found = without_header({'a.py': '"""A."""', 'c.py': '', 'd.py': f'# {HEADER}\n'})
    assert found == ['a.py']


@pytest.mark.parametrize(
    ('source', 'what'),
    [
        ('x = 1', 'the module'),
        ('"""M."""\nclass A: ...', 'class A'),
        ('"""M."""\ndef f(): ...', 'function f'),
        ('"""M."""\nasync def f(): ...', 'function f'),
        ('"""M."""\nclass A:\n    """A."""\n    def f(self): ...', 'function A.f'),
        ('"""M."""\nclass A:\n    """A."""\n    class B: ...', 'class A.B'),
    ],
)
def test_a_missing_docstring_is_found(source, what):
    (finding,) = without_docstring({'migrator/a.py': source})
    assert finding.endswith(f'{what} has no docstring')


@pytest.mark.parametrize(
    'source',
    [
        '',
        '"""M."""\ndef _f(): ...',
        '"""M."""\nclass _A:\n    def f(self): ...',
        '"""M."""\ndef f():\n    """F."""\n    def g(): ...',
        '"""M."""\nclass A:\n    """A."""\n    def __init__(self): ...',
        '"""M."""\nclass A:\n    """A."""\n    @f.setter\n    def f(self, x): ...',
        '"""M."""\n@typing.overload\ndef f(): ...',
    ],
)
def test_code_that_needs_no_docstring_is_not_reported(source):
    assert not without_docstring({'migrator/a.py': source})
