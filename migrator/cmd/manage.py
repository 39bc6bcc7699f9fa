# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage``: the operator's commands for migrator's own data.

A command is a noun and a verb; ``status`` is a noun without verbs. Each noun has a row in :data:`NOUNS`, and a module
with its verbs. That module is imported only if the command line names the noun. A verb is a function that receives the
parsed command line and returns an exit status:

0. success
1. the command found something wrong, or could not do it
2. usage: an argument, or an option of the configuration
3. a needed service is not reachable
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from migrator.operator.cli.parser import PROG, Parser
from migrator.runtime import pipes

if TYPE_CHECKING:  # what --help does not need is imported where it is used, so that --help is fast
    from oslo_config import cfg

    from migrator import executors, rpc
    from migrator.operator.cli import command
    from migrator.operator.cli.command import Asked

#: Noun -> its help, and the module whose ``VERBS`` it has.
NOUNS: dict[str, tuple[str, str]] = {
    'status': ('what needs an operator; exits with 1 if anything does', 'migrator.operator.cli.status'),
    'db': ('the database schema', 'migrator.operator.cli.db'),
    'service': ('the services that report: computes and conductors', 'migrator.operator.cli.service'),
    'instance': ('the guests in the database of migrator', 'migrator.operator.cli.instance'),
    'flavor': ('the flavors that guests can be resized to', 'migrator.operator.cli.flavor'),
    'migration': ('the migrations', 'migrator.operator.cli.migration'),
    'drain': ('the drains, which empty hosts', 'migrator.operator.cli.drain'),
    'maintenance': ('maintenances, which take hosts out of service for work', 'migrator.operator.maintenance.verbs'),
    'watch': ('a drain, a host or a migration while it happens, read over REST', 'migrator.operator.watch.commands'),
    'cleanup': ('the deferred cleanups of hosts', 'migrator.operator.cli.cleanup'),
    'placement': ('the allocations in Placement', 'migrator.operator.cli.placement'),
}


class _NounParser(Parser):
    """The parser of one noun.

    It adds the parsers of its verbs only when it parses, so that no other noun is imported.
    """

    def __init__(self, *, module: str, common: argparse.ArgumentParser, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._module = module
        self._common = common

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the verbs, and parse as usual."""
        from migrator.operator.cli import command

        module = importlib.import_module(self._module)
        if not hasattr(module, 'VERBS'):
            self.set_defaults(run=module.run, parser=self)
            return super().parse_known_args(args, namespace)
        verbs: Sequence[command.Verb] = module.VERBS
        choices: Any = self.add_subparsers(metavar='VERB', required=True, dest='verb', parser_class=Parser)
        command.add_verbs(choices, verbs, self._common)
        return super().parse_known_args(args, namespace)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    # Suppress defaults, because the default after the noun would replace a value given before it.
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        '--config-file',
        action='append',
        metavar='FILE',
        help='a configuration file, may be repeated; default: migrator.conf in the directories of OpenStack services',
    )
    common.add_argument('--json', action='store_true', help='print JSON')
    common.add_argument('--debug', action='store_true', help='log to stderr, with tracebacks')
    parser = Parser(
        prog=PROG,
        parents=[common],
        allow_abbrev=False,
        description="The operator's commands for migrator's own data.",
        epilog='Exit status: 0 success; 1 it found something wrong or could not do it; 2 usage; 3 a needed service is '
        'not reachable.',
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
    """Return the configuration from files, or from the default ones, and from the environment.

    :raises migrator.exception.ConfigurationError: a file is missing or cannot be read, or a value is not valid.
    """
    from oslo_config import cfg

    from migrator.conf import opts
    from migrator.db.sql import options
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

    :param threads: the source of the clock of a SQLite database; None: the machine's.
    :param client: the RPC to conductors and hosts; None: one over the configured broker.
    """
    try:
        return _main(argv, threads, client)
    except KeyboardInterrupt:
        from migrator.operator.cli import command

        return command.fail(PROG, 130, 'interrupted')


def _main(argv: Sequence[str] | None, threads: executors.Threads | None, client: rpc.RPC | None) -> int:
    try:
        arguments = make_parser().parse_args(argv, argparse.Namespace(config_file=[], json=False, debug=False))
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    from migrator import executors
    from migrator.operator.cli import command
    from migrator.operator.cli.command import Asked
    from migrator.runtime import concurrency

    concurrency.native()  # before a verb imports the modules of a conductor
    command.log_to_stderr(arguments.debug)
    conf = None
    try:
        conf = read_conf(arguments.config_file)
        run: Callable[[Asked], int] = arguments.run
        with contextlib.closing(Asked(conf, arguments, threads or executors.NativeThreads(), client)) as asked:
            return run(asked)
    except Exception as error:  # noqa: BLE001 -- an operator gets one line for any error, and never a traceback
        return command.report(PROG, error, conf)


if __name__ == '__main__':
    sys.exit(main())
