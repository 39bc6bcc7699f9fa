# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage``: what an operator does to migrator's own data.

A command is a noun and a verb. Each noun has a row in :data:`NOUNS`, and a module with its verbs. That module is
imported only when the noun is asked for. A verb is a function that is given what was asked for and answers an exit
status:

0. right
1. the thing that was asked about is wrong
2. usage: an argument, or an option of the configuration
3. a service that is needed is not reachable
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from migrator import exception, executors
from migrator.cli import command
from migrator.cli.command import PROG, Asked
from migrator.runtime import pipes

if TYPE_CHECKING:  # whatever only some verbs need is imported where they use it, so that the help comes at once
    from migrator import rpc

WRONG, USAGE, UNREACHABLE = command.WRONG, command.USAGE, command.UNREACHABLE

#: Noun -> its help, and the module whose ``VERBS`` it has.
NOUNS: dict[str, tuple[str, str]] = {
    'db': ('the database schema', 'migrator.cli.db'),
    'service': ('the services that report: computes and conductors', 'migrator.cli.service'),
    'instance': ('the guests that migrator keeps the books of', 'migrator.cli.instance'),
    'migration': ('the migrations', 'migrator.cli.migration'),
    'cleanup': ('the cleanups that hosts could not do for migrations', 'migrator.cli.cleanup'),
    'placement': ('the allocations in Placement', 'migrator.cli.placement'),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.exit(USAGE, f'{self.prog}: {message}. See {self.prog} --help\n')


class _NounParser(_Parser):
    """The parser of one noun. It adds the parsers of the verbs when it parses, so that no other noun is imported."""

    def __init__(self, *, module: str, common: argparse.ArgumentParser, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._module = module
        self._common = common

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as usual, with the verbs."""
        verbs: Sequence[command.Verb] = importlib.import_module(self._module).VERBS
        choices: Any = self.add_subparsers(metavar='VERB', required=True, dest='verb', parser_class=_Parser)
        for verb in verbs:
            one = choices.add_parser(
                verb.name, parents=[self._common], help=verb.help, description=verb.help, allow_abbrev=False
            )
            verb.arguments(one)
            one.set_defaults(run=verb.run)
        return super().parse_known_args(args, namespace)


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
    nouns: Any = parser.add_subparsers(metavar='NOUN', required=True, dest='noun', parser_class=_NounParser)
    for noun, (help_, module) in NOUNS.items():
        nouns.add_parser(
            noun,
            parents=[common],
            help=help_,
            description=help_,
            allow_abbrev=False,
            module=module,
            common=common,
        )
    return parser


def read_conf(files: Sequence[str]) -> cfg.ConfigOpts:
    """Return the configuration of these files, or of the default ones, and of the environment.

    :raises migrator.exception.ConfigurationError: a file is not there or cannot be read, or a value is not right.
    """
    from migrator.conf import opts
    from migrator.db import options
    from migrator.runtime import settings

    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    options.register_opts(conf)
    settings.parse(conf, PROG, [f'--config-file={file}' for file in files])
    for problem in settings.problems(conf):
        raise problem
    return conf


@pipes.quiet
def main(
    argv: Sequence[str] | None = None,
    threads: executors.Threads | None = None,
    client: rpc.RPC | None = None,
) -> int:
    """Run the command, and return its exit status.

    :param threads: whose clock a SQLite database has; the machine's own, unless given.
    :param client: how it talks to conductors and hosts; by the configured broker, unless given.
    """
    try:
        arguments = make_parser().parse_args(argv, argparse.Namespace(config_file=[], json=False, debug=False))
    except SystemExit as stop:  # argparse has said what there is to say
        return int(stop.code or 0)
    # A handler that drops all, or else what the libraries log of an error would come before the one line that tells it.
    handler = logging.StreamHandler() if arguments.debug else logging.NullHandler()
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if arguments.debug else logging.WARNING)
    conf = None
    try:
        conf = read_conf(arguments.config_file)
        run: Callable[[Asked], int] = arguments.run
        return run(Asked(conf, arguments, threads or executors.NativeThreads(), client))
    except BrokenPipeError:  # no mistake of anybody's: see pipes.quiet
        raise
    except exception.ConfigurationError as error:
        return _fail(USAGE, error)
    except exception.DatabaseUnreachable as error:
        from migrator.db import options

        refused = options.refusal(conf, error) if conf is not None else None
        return _fail(UNREACHABLE, _line(error)) if refused is None else _fail(USAGE, _line(refused))
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
    from migrator.db import options

    # Further lines of a database's error quote the statement and its parameters; the first may quote the URL.
    return options.without_password((str(error).strip().splitlines() or ['an error without a text'])[0])


if __name__ == '__main__':
    sys.exit(main())
