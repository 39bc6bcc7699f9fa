# SPDX-License-Identifier: Apache-2.0

"""The table of remedies: none is printed against a reading, and no command stands elsewhere."""

import ast
import pathlib
import re
import string

import pytest

import migrator
from migrator.objects import remedies
from migrator.objects.remedies import TABLE, Kind, Reading

ROOT = pathlib.Path(migrator.__file__).parent
#: A world that contradicts nothing.
NOTHING = dict.fromkeys(Reading, False)
NAMES = {
    name: f'the-{name}'
    for row in TABLE.values()
    for text in (row.text, row.command)
    for _, name, _, _ in string.Formatter().parse(text)
    if name and name != 'command'
}
FORBIDDEN = [(kind, reading) for kind, row in TABLE.items() for reading in sorted(row.forbidden_by)]
#: What deletes, resets or starts a guest, forgets its row or takes its allocation.
HARMFUL = re.compile(r'evacuate|--state|(instance|service) delete|allocation (set|delete)|--down|undefine')


def command_words():
    """Return an expression for the commands that an operator types."""
    groups = (
        '(db|service|instance|migration|cleanup|placement|flavor|drain|watch|upgrade|status|audit|heal|plan|resume)'
    )
    openstack = 'openstack (server|compute|host|resource|--os)'
    return re.compile(rf'\b({openstack}\b|(nova-manage|virsh) [a-z]|migrator-(manage|drain|status) {groups}\b)')


def test_each_kind_has_a_row():
    assert TABLE.keys() == set(Kind)


@pytest.mark.parametrize('kind', Kind)
def test_remedy_is_offered_where_nothing_contradicts_it(kind):
    found = remedies.offer(kind, NOTHING, **NAMES)
    assert found
    assert not re.search(r'[{}]', found)
    assert ('{command}' in TABLE[kind].text) == bool(TABLE[kind].command)


@pytest.mark.parametrize(('kind', 'reading'), FORBIDDEN)
def test_remedy_is_not_offered_against_a_reading(kind, reading):
    assert remedies.offer(kind, NOTHING | {reading: True}, **NAMES) == ''


@pytest.mark.parametrize(('kind', 'reading'), FORBIDDEN)
def test_remedy_is_not_offered_if_the_reading_was_not_made(kind, reading):
    assert remedies.offer(kind, {one: False for one in Reading if one != reading}, **NAMES) == ''
    assert remedies.offer(kind, **NAMES) == ''


@pytest.mark.parametrize('kind', Kind)
def test_what_deletes_resets_or_starts_something_is_forbidden_by_a_reading(kind):
    row = TABLE[kind]
    if HARMFUL.search(f'{row.text} {row.command}'):
        assert row.forbidden_by, f'{kind}: which reading calls alive what it ends?'


def test_each_kind_is_offered_somewhere():
    text = '\n'.join(path.read_text() for path in ROOT.rglob('*.py') if path.name != 'remedies.py')
    assert [kind.name for kind in Kind if not re.search(rf'\bKind\.{kind.name}\b', text)] == []


def test_each_reading_forbids_something():
    assert set().union(*(row.forbidden_by for row in TABLE.values())) == set(Reading)


def test_no_command_stands_outside_of_the_table():
    words = command_words()
    # What prints its own help or usage, the beginning of its own commands, and the text that a demo begins with.
    apart = {ROOT / 'objects' / 'remedies.py', *(ROOT / 'operator' / 'osc').iterdir(), ROOT / 'demo' / 'serve.py'}
    paths = [path for path in ROOT.rglob('*.py') if path not in apart and path.parts[len(ROOT.parts)] != 'simulator']
    found = [
        f'{path.relative_to(ROOT)}:{text.lineno}: {text.value}'
        for path in paths
        for text in shown_texts(ast.parse(path.read_text()))
        if words.search(text.value)
    ]
    assert found == []


def shown_texts(tree):
    """Return the texts of a module that may be shown, without its docstrings and help."""
    apart = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            apart.add(node.body[0].value)
        if isinstance(node, ast.keyword) and node.arg in ('help', 'description', 'epilog', 'usage'):
            apart |= set(ast.walk(node.value))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in apart
    ]


def test_the_search_for_commands_finds_them():
    tree = ast.parse('"""See migrator-manage db sync."""\nx = f"type: openstack server evacuate {uuid}"\n')
    assert [text.value for text in shown_texts(tree) if command_words().search(text.value)] == [
        'type: openstack server evacuate '
    ]
