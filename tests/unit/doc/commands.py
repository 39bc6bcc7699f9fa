# SPDX-License-Identifier: Apache-2.0

"""The command lines of the documentation: those in blocks, and those within sentences."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).parents[3]
PAGES = [*sorted((ROOT / 'doc/source').glob('*.rst')), ROOT / 'README.rst', ROOT / 'CONTRIBUTING.rst']
_PROGRAMS = (
    *('migrator-manage', 'migrator-drain', 'migrator-status', 'migrator-demo', 'migrator-fake-world'),
    *('migrator-api', 'migrator-conductor', 'migrator-compute', 'openstack', 'nova-manage', 'nova', 'make', 'curl'),
    *('virsh', 'systemctl', 'pip'),
)
_NAME = f'(?:{"|".join(_PROGRAMS)})'
_IN_A_SENTENCE = re.compile(f'``({_NAME} [^`]+)``')
_IN_A_BLOCK = re.compile(f'^ {{3,}}(?:PATH=\\S+ )?({_NAME} .*)$', re.MULTILINE)


def lines(text):
    """Return the command lines of a page, without comments, pipes and redirections."""
    joined = re.sub(r' *\\\n\s*', ' ', text)
    found = _IN_A_BLOCK.findall(joined) + _IN_A_SENTENCE.findall(re.sub(r'\s*\n\s*', ' ', text))
    return [re.split(r'\s+#|\s[|&>]|\s-->', one)[0].rstrip() for one in found]


def of(program):
    """Return the words of each command line of a program, and the page that has it."""
    found = {}
    for page in PAGES:
        for line in lines(page.read_text()):
            if line.split()[0] == program:
                words = shlex.split(line)
                found.setdefault(tuple(words[1:]), page.name)
    return found


def programs():
    """Return the programs that the pages name with arguments."""
    return {line.split()[0] for page in PAGES for line in lines(page.read_text())}
