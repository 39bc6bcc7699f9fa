# SPDX-License-Identifier: Apache-2.0

"""The prose of the project is plain, and log messages begin with a phrase that an operator can search for.

The rules are those of "Words" in CONTRIBUTING.rst. A word with a good meaning too, such as *order*, *line* or *turn*,
cannot be checked here.
"""

from __future__ import annotations

import ast
import collections
import functools
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: Files that are not read, with the reason.
SKIPPED = re.compile(
    r'^(LICENSE'  # not ours
    r'|tests/functional/golden/.*'  # output of commands
    r'|tests/seeds/.*'  # numbers
    r'|tests/unit/test_prose\.py'  # it has the words that it forbids
    r'|doc/source/decisions/0021-the-second-house\.rst'  # its table has each old word beside the new one
    r'|etc/.*\.sample'  # generated, mostly from the libraries' own options
    r'|.*\.(svg|png|css|json|mako))$'  # no prose
)
#: Folder -> how many findings it still has. It may only fall; delete the line at 0.
STILL: dict[str, int] = {}

#: A word or a phrase that is not written -> what to write.
WORDS = {
    r'debts?|owes?|owed|owing|pays?|paid|paying': 'defer or run a cleanup',
    r'wish(es|ed)?': 'request',
    r'tells?|told|telling': 'report, reply, state; distinguish',
    r'hears?|(un)?heard|hearing': 'receive',
    r'promises?|promised': 'guarantee',
    r'speaks?|spoken': 'send, write, use',
    r'strikes?|struck|striking': 'inject',
    r'life(?!")': 'boot, run',
    r'somebody|someone|nobody|anybody|everybody|everyone|whoever|whomever': 'operator, user, caller',
    r'person|people': 'operator, user, caller',
    r'mute|silent': 'unresponsive (guest), unreachable (host)',
    r'lets? go|letting go': 'release',
    r'crowd': 'waiters',
    r'story|stories|tale': 'saga, timeline, run',
    r'books': 'allocations',
    r'seams?|baton|museum|specimens?|shepherd|ghosts?|grounds': 'the new word of the glossary',
    r'manieth': 'Nth',
    r'(which|that|it|who) (is|are|was) (?-i:none)': 'what it is',
    r'so many|for so long': 'the number, or its name',
    r'(is|are|was|were) to be': 'must be, or the verb alone',
    r'(more|\d|[Tt]rue|[Ff]alse) would do': 'give ...',
    r'of (whom|whose)': 'a sentence with the actor first',
    r"ha(s|ve) (the last|no|a) word|(your|operator's|driver's|own) word": 'report, reply',
}
#: The same in an identifier, word by word.
NAMES = frozenset(
    {'alarm', 'alarmed', 'alarms', 'baton', 'books', 'crowd', 'debt', 'debts', 'director', 'door', 'doors'}
    | {'ear', 'face', 'ghost', 'grounds', 'heard', 'hears', 'life', 'museum', 'mute', 'nobody', 'owe', 'owed'}
    | {'owes', 'paid', 'pay', 'paying', 'pays', 'person', 'promise', 'promises', 'seam', 'seams', 'shepherd'}
    | {'silent', 'somebody', 'speak', 'speaks', 'specimen', 'stories', 'story', 'strike', 'strikes', 'struck'}
    | {'tale', 'teller', 'tells', 'told', 'unheard', 'watcher', 'whoever', 'wing', 'wings', 'wish', 'wished'}
    | {'wishes'}
)
#: A riddle: the sentence begins with a pronoun and not with a noun.
OPENINGS = re.compile(r'(?:\A|(?<=[.:] )|(?<=\n\n))\s*((?:Who|Whom|Whose|Whoever)\b|Of (?:it|which|whom|these|them)\b)')
#: A log message that begins with a value, or whose first value stands before a verb: "The lease of %s has expired".
_VERBS = (
    'is|are|was|were|has|have|had|can|cannot|could|did|does|do|will|failed|ended|waits|leaves|reports|chooses|answers'
)
SPLIT = re.compile(rf'\s*[%{{]|[^%:;]*%\S+ (\(%\S+\) )?({_VERBS})\b')
#: A string that is a name.
KEY = re.compile(r'[a-z]+(-[a-z0-9]+)+')
#: The docstring of a class that begins with a verb.
DOES = re.compile(r'[A-Z][a-z]+s (an?|the|its|each|every|one|until|when|whether|what|how)\b')
#: No code: a path, a literal, an option, a call.
_WORD = r'(?<![\w`/.$-])(?:{})(?![\w`/(=$]|\.\w|-\w)'
_SPACED = {word.replace(' ', r'\s+'): instead for word, instead in WORDS.items()}
PATTERNS = {re.compile(_WORD.format(word), re.I): instead for word, instead in _SPACED.items()}
#: One search for all of them: few texts have any.
ANY = re.compile(_WORD.format('|'.join(f'(?:{word})' for word in _SPACED)), re.I)


class Text(NamedTuple):
    """A piece of prose, or a name, and the line where it begins."""

    kind: str
    line: int
    text: str


class Finding(NamedTuple):
    """A breach of a rule."""

    path: str
    line: int
    rule: str
    text: str


#: A string, a comment, or a name. The module tokenize finds the same in twenty times the time.
_TOKEN = re.compile(
    r'''[rRbBfFuU]{0,2}(?:"""(?:[^\\]|\\.)*?"""|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')'''
    r'|(?P<comment>#[^\n]*)|(?P<name>[^\W\d]\w*)',
    re.S,
)


def _comments(source: str) -> Iterator[Text]:
    """Yield each block of comments, and each name where it stands first."""
    lines: list[str] = []
    first = last = line = at = 0
    names: set[str] = set()
    for token in _TOKEN.finditer(source):
        line, at = line + source.count('\n', at, token.start()), token.start()
        name, comment = token['name'], token['comment']
        if name is not None and name not in names:
            names.add(name)
            yield Text('name', line + 1, name)
        if comment is None:
            continue
        if lines and line != last + 1:
            yield Text('comment', first + 1, '\n'.join(lines))
            lines = []
        last = line
        first = first if lines else last
        lines.append(comment.lstrip('#:! '))
    if lines:
        yield Text('comment', first + 1, '\n'.join(lines))


def _strings(source: str) -> Iterator[Text]:
    seen: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                text = ast.get_docstring(node)
                if text is not None:
                    value = node.body[0].value  # type: ignore[attr-defined]  # a docstring is the first statement of a body
                    seen.add(value)
                    yield Text('class' if isinstance(node, ast.ClassDef) else 'docstring', value.lineno, text)
            case (
                ast.Call(func=ast.Attribute(value=ast.Name(id='LOG')), args=[ast.Constant(value=str() as text), *_])
                | ast.Call(func=ast.Attribute(attr='log'), args=[_, ast.Constant(value=str() as text), *_])
            ):
                yield Text('log', node.lineno, text)
            case ast.JoinedStr():
                seen.update(node.values)
                parts = [part.value if isinstance(part, ast.Constant) else '{}' for part in node.values]
                yield Text('string', node.lineno, ''.join(str(part) for part in parts))
            case ast.Constant(value=str() as text) if node not in seen:
                yield Text('string', node.lineno, text)


def texts(path: str, source: str) -> Iterator[Text]:
    """Yield the prose of a file, and the names of a Python file.

    A string without a space is no prose. It is a name if it has hyphens, as names of mutants and threads have.
    """
    if not path.endswith('.py'):
        yield Text('page', 1, source)
        return
    yield from _comments(source)
    for kind, line, text in _strings(source):
        if kind != 'string' or ' ' in text:
            yield Text(kind, line, text)
        elif KEY.fullmatch(text):
            yield Text('name', line, text)


@functools.cache
def is_old(name: str) -> bool:
    """Whether an identifier has a word of the old vocabulary."""
    words = re.split('[_-]', re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower())
    return not NAMES.isdisjoint(words)


def findings(path: str, source: str) -> Iterator[Finding]:
    """Yield each breach of a rule in a file, and in its name."""
    if NAMES.intersection(re.split(r'[^a-z0-9]+', path.lower())):
        yield Finding(path, 1, 'a name has a word of the old vocabulary', path)
    for kind, line, text in texts(path, source):
        if kind == 'name':
            if is_old(text):
                yield Finding(path, line, 'a name has a word of the old vocabulary', text)
            continue
        if kind == 'log' and SPLIT.match(text):
            yield Finding(path, line, 'a log message begins with a phrase', text)
        if kind == 'class' and DOES.match(text):
            yield Finding(path, line, 'the docstring of a class begins with a noun', text.partition('\n')[0])
        if kind in ('class', 'docstring') and len(text.partition('\n')[0]) > 100:
            yield Finding(
                path, line, 'the first line of a docstring has at most 100 characters', text.partition('\n')[0]
            )
        for pattern, instead in PATTERNS.items() if ANY.search(text) else ():
            for found in pattern.finditer(text):
                around = ' '.join(text[max(0, found.start() - 40) : found.end() + 40].split())
                yield Finding(path, line + text.count('\n', 0, found.start()), f'write: {instead}', around)
        for found in OPENINGS.finditer(text) if kind in ('class', 'docstring', 'comment') else ():
            around = text[found.start() : found.end() + 60].strip()
            yield Finding(path, line + text.count('\n', 0, found.start(1)), 'begin with a noun', around)


def tree() -> dict[str, str]:
    """Return each file that git knows by its path. Of a file that is not read, only the path counts."""
    listed = subprocess.run(['git', 'ls-files'], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {
        path: '' if SKIPPED.match(path) else (ROOT / path).read_text(encoding='utf-8')
        for path in listed.splitlines()
        if (ROOT / path).is_file()
    }


def folder_of(path: str) -> str:
    """Return the folder of STILL that a file belongs to, or the file."""
    return next((folder for folder in STILL if path.startswith(f'{folder}/')), path)


def test_the_prose_is_plain():
    found = [finding for path, source in tree().items() for finding in findings(path, source)]
    count = collections.Counter(folder_of(finding.path) for finding in found)
    new = {folder for folder, number in count.items() if number > STILL.get(folder, 0)}
    lines = [f'{path}:{line}: {rule}: {text}' for path, line, rule, text in found if folder_of(path) in new]
    assert not lines, f'{len(lines)} findings (the limits are {STILL}):\n' + '\n'.join(lines)


# --- the checks are checked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('path', 'source'),
    [
        ('a.py', '# The host owes\n# a cleanup.\n'),
        ('a.py', '"""The books of Placement."""\n'),
        ('a.py', 'x = f"the conductor told {y}"\n'),
        ('a.py', 'raise ValueError("nobody has it")\n'),
        ('a.py', 'def story(): ...\n'),
        ('a.py', 'class HostDebt: ...\n'),
        ('a.py', 'x = "debt-epoch"\n'),
        ('a.py', 'def test_a_host_that_owes(): ...\n'),
        ('a.py', 'LOG.info("%(host)s is away", x)\n'),
        ('a.py', 'LOG.info("Migration %(migration)s is stuck", x)\n'),
        ('a.py', 'LOG.info("The lease of conductor %s has expired", x)\n'),
        ('a.py', 'LOG.info("Guest %(name)s (%(guest)s) is not there", x)\n'),
        ('a.py', 'LOG.log(level, "%(host)s is away", x)\n'),
        ('a.py', 'LOG.info("Host was silent: %s", x)\n'),
        ('a.py', f'"""{"Return it. " * 10}"""\n'),
        ('a.py', 'class A:\n    """Runs each step again."""\n'),
        ('a.py', '"""Who cannot be asked is not down."""\n'),
        ('a.py', '# It waits. Of these one is free.\n'),
        ('a.rst', 'It lets\ngo of the guest.\n'),
        ('a.rst', 'Give the state, which is none.\n'),
        ('a.rst', 'It waits for so long.\n'),
        ('a.rst', 'What is to be done.\n'),
        ('a.rst', 'A number of 1 or more would do.\n'),
        ('a.rst', 'The host of whom it is.\n'),
        ('a.rst', 'The source has the last word.\n'),
        ('tox.ini', 'description = the story\n'),
        ('tests/test_silent_source.py', ''),
        ('doc/story.rst', ''),
    ],
)
def test_a_breach_of_each_rule_is_found(path, source):
    assert list(findings(path, source))


#: One breach of each entry of WORDS, in their order.
BREACHES = (
    'it pays its debts',
    'a wish',
    'it tells the host',
    'it was heard',
    'it promises',
    'it speaks',
    'a fault strikes',
    'an earlier life',
    'nobody knows',
    'a person',
    'a silent host',
    'it lets go',
    'a crowd',
    'the story',
    'the books',
    'a seam',
    'the manieth',
    'a state which is none',
    'so many hosts',
    'it is to be done',
    '1 would do',
    'of whom it is',
    'it has no word',
)


@pytest.mark.parametrize(('pattern', 'text'), list(zip(PATTERNS, BREACHES, strict=True)))
def test_each_word_is_found(pattern, text):
    assert pattern.search(text)


@pytest.mark.parametrize(
    ('path', 'source'),
    [
        ('a.py', 'x = {"owed": 1}\n'),  # a key of a document
        ('a.py', 'LOG.info("Host is away: %(host)s", x)\n'),
        ('a.py', 'LOG.info("Could not poll host %(host)s: the migration is stuck", x)\n'),
        ('a.py', f'"""{"x" * 100}"""\n'),
        ('a.rst', 'The table ``host_debts`` and ``books``.\n'),
        ('a.rst', 'The path a/story.py and a-story.\n'),
    ],
)
def test_code_and_plain_prose_are_not_found(path, source):
    assert not list(findings(path, source))
