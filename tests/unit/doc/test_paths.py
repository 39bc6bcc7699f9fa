# SPDX-License-Identifier: Apache-2.0

"""The pages name only modules and pages that are in the tree."""

from __future__ import annotations

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAMED = re.compile(r'``([\w/.-]+\.(?:py|rst))``')
#: What a decision says of a module that it has removed.
GONE = {('doc/source/decisions/0021-the-second-house.rst', 'orders.py')}


def named(text: str) -> set[str]:
    """Return the modules and pages that a page names, by their whole path or its end."""
    return set(NAMED.findall(text))


def test_every_named_module_or_page_is_in_the_tree() -> None:
    command = ['git', 'ls-files', '--cached', '--others', '--exclude-standard']
    paths = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    there = {path[at:] for path in paths for at in (0, *(slash.end() for slash in re.finditer('/', path)))}
    lost = {
        (path, name)
        for path in paths
        if path.endswith('.rst')
        for name in named((ROOT / path).read_text(encoding='utf-8')) - there
    }
    assert lost == GONE


def test_names_of_modules_and_pages_are_found() -> None:
    assert named('``a/b.py``, ``c.rst``, ``d.json`` and e.py') == {'a/b.py', 'c.rst'}
