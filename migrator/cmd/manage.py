# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""``migrator-manage``: what an operator does to migrator's own data.

A command is a noun and a verb. Each noun has a row in :data:`NOUNS`, with its verbs; a verb is a function that is given
what was asked for and answers an exit status:

0. right
1. the thing that was asked about is wrong
2. usage: an argument, or an option of the configuration
3. a service that is needed is not reachable
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from oslo_config import cfg

from migrator import exception, executors
from migrator.conf import opts
from migrator.db import engine as engines
from migrator.db import options as db_options
from migrator.db import sync

RIGHT, WRONG, USAGE, UNREACHABLE = range(4)

PROG = 'migrator-manage'


@dataclasses.dataclass(frozen=True)
class Asked:
    """What was asked for.

    :ivar conf: the configuration, read.
    """

    conf: cfg.ConfigOpts
    arguments: argparse.Namespace

    def engine(self) -> engines.Engine:
        """Return the engine of the configured database; it gives up at once, for somebody waits for the answer."""
        return db_options.engine_from_conf(self.conf, executors.NativeThreads(), max_retries=0)

    def answer(self, document: dict[str, Any], text: str) -> None:
        """Print an answer, as JSON where that was asked for."""
        print(json.dumps(document) if self.arguments.json else text)


@dataclasses.dataclass(frozen=True)
class Verb:
    """What can be done to a noun.

    :ivar arguments: adds the verb's own arguments to its parser.
    """

    name: str
    help: str
    run: Callable[[Asked], int]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


# --- db --------------------------------------------------------------------------------------------------------------


def db_sync(asked: Asked) -> int:
    """Bring the schema up to this release."""
    engine = asked.engine()
    before = sync.version(engine)
    after = sync.sync(engine)
    changed = before != after
    text = f'The database schema is at {after}' + (f', and was at {before or "nothing"}.' if changed else ' already.')
    asked.answer({'version': after, 'before': before, 'changed': changed}, text)
    return RIGHT


def db_version(asked: Asked) -> int:
    """Say which version the schema has; exit 1 if it is not that of this release."""
    engine = asked.engine()
    found, wanted = sync.version(engine), sync.head()
    document = {'version': found, 'wanted': wanted, 'current': found == wanted}
    asked.answer(document, f'The database schema is at {found or "nothing"}; this release needs {wanted}.')
    sync.check(engine)
    return RIGHT


# --- all of it -------------------------------------------------------------------------------------------------------

#: Noun -> its help, and its verbs.
NOUNS: dict[str, tuple[str, Sequence[Verb]]] = {
    'db': (
        'the database schema',
        (
            Verb('sync', 'bring the schema up to this release', db_sync),
            Verb('version', 'say which version the schema has; 1 if it is not the one that is needed', db_version),
        ),
    ),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.exit(USAGE, f'{self.prog}: {message}. See {self.prog} --help\n')


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    # Suppressed: the same option before the noun must not be undone by its default after it.
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        '--config-file',
        action='append',
        metavar='FILE',
        help='a configuration file, may be given again; default: migrator.conf where OpenStack services have theirs',
    )
    common.add_argument('--json', action='store_true', help='answer in JSON')
    common.add_argument('--debug', action='store_true', help='log to stderr what is done, with tracebacks')
    parser = _Parser(
        prog=PROG,
        parents=[common],
        allow_abbrev=False,
        description="What an operator does to migrator's own data.",
        epilog='Exit status: 0 right; 1 what was asked about is wrong; 2 usage; 3 a service it needs is not reachable.',
    )
    nouns = parser.add_subparsers(metavar='NOUN', required=True, dest='noun')
    for noun, (help_, verbs) in NOUNS.items():
        of_noun = nouns.add_parser(noun, parents=[common], help=help_, description=help_, allow_abbrev=False)
        choices = of_noun.add_subparsers(metavar='VERB', required=True, dest='verb')
        for verb in verbs:
            one = choices.add_parser(
                verb.name, parents=[common], help=verb.help, description=verb.help, allow_abbrev=False
            )
            verb.arguments(one)
            one.set_defaults(run=verb.run)
    return parser


def read_conf(files: Sequence[str]) -> cfg.ConfigOpts:
    """Return the configuration of these files, or of the default ones, and of the environment.

    :raises migrator.exception.ConfigurationError: a file is not there, or cannot be read.
    """
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    db_options.register_opts(conf)
    try:
        conf([f'--config-file={file}' for file in files], project='migrator', prog=PROG)
    except cfg.Error as error:
        shown = ', '.join(files) or 'the default one'
        raise exception.ConfigurationError(option='--config-file', value=shown, detail=_line(error)) from None
    return conf


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    try:
        arguments = make_parser().parse_args(argv, argparse.Namespace(config_file=[], json=False, debug=False))
    except SystemExit as stop:  # argparse has said what there is to say
        return int(stop.code or 0)
    # A handler that drops all, or else what the libraries log of an error would come before the one line that tells it.
    handler = logging.StreamHandler() if arguments.debug else logging.NullHandler()
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if arguments.debug else logging.WARNING)
    try:
        run: Callable[[Asked], int] = arguments.run
        return run(Asked(read_conf(arguments.config_file), arguments))
    except exception.ConfigurationError as error:
        return _fail(USAGE, error)
    except cfg.Error as error:
        return _fail(USAGE, _line(error))
    except exception.ServiceUnreachable as error:
        return _fail(UNREACHABLE, _line(error))
    except exception.MigratorException as error:
        return _fail(WRONG, _line(error))
    except KeyboardInterrupt:
        print(f'{PROG}: interrupted', file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 -- an operator is told in one line what it was, and never a traceback
        return _fail(WRONG, f'{type(error).__name__}: {_line(error)}')


def _fail(status: int, error: object) -> int:
    print(f'{PROG}: {error}', file=sys.stderr)
    return status


def _line(error: object) -> str:
    # Further lines of a database's error quote the statement and its parameters; the first may quote the URL.
    return db_options.without_password((str(error).strip().splitlines() or ['an error without a text'])[0])


if __name__ == '__main__':
    sys.exit(main())
