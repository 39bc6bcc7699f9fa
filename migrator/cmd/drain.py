# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain``: empties hosts of a stock OpenStack Nova, here or in a process of its own.

The exit statuses are those of ``migrator-manage``. A drain that ends completed or restored is a success.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from migrator.nova.foreground import session, verbs
from migrator.operator.cli import command
from migrator.operator.cli.parser import Parser
from migrator.runtime import pipes

if TYPE_CHECKING:
    from migrator import executors

PROG = session.PROG


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    # Suppress defaults, because the default after the verb would replace a value given before it.
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument('--os-cloud', metavar='NAME', help='a cloud of clouds.yaml; default: OS_CLOUD, OS_AUTH_URL ...')
    common.add_argument('--os-region-name', metavar='NAME', help='its region; default: OS_REGION_NAME, or the only one')
    where = '$XDG_STATE_HOME/migrator or ~/.local/state/migrator'
    help_ = f'the file with the state; default: one for each cloud and region below {where}'
    common.add_argument('--state', metavar='FILE', help=help_)
    common.add_argument('--json', action='store_true', help='print JSON: one document, or a line for each event')
    common.add_argument('--debug', action='store_true', help='log to stderr, with tracebacks')
    parser = Parser(
        prog=PROG,
        parents=[common],
        allow_abbrev=False,
        description='Empties hosts of an OpenStack cloud, through the public APIs of its Nova and Placement.',
        epilog='Exit status: 0 success; 1 it found something wrong or could not do it; 2 usage; 3 a needed service is '
        'not reachable; 130 interrupted.',
    )
    choices: Any = parser.add_subparsers(metavar='VERB', required=True, dest='verb', parser_class=Parser)
    command.add_verbs(choices, verbs.VERBS, common)
    return parser


@pipes.quiet
def main(
    argv: Sequence[str] | None = None,
    threads: executors.Threads | None = None,
    connect: session.Connect | None = None,
) -> int:
    """Run the command, and return its exit status.

    :param threads: the source of uuids, of the clock and of sleep; None: the machine's.
    :param connect: returns the clients of a cloud; None: those that its configuration names.
    """
    try:
        return _main(argv, threads, connect)
    except KeyboardInterrupt as stop:
        return command.fail(PROG, getattr(stop, 'status', 130), 'interrupted')


def _main(argv: Sequence[str] | None, threads: executors.Threads | None, connect: session.Connect | None) -> int:
    given = argparse.Namespace(os_cloud=None, os_region_name=None, state=None, json=False, debug=False)
    try:
        arguments = make_parser().parse_args(argv, given)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    from migrator import executors

    command.log_to_stderr(arguments.debug)
    conf = None
    try:
        path, found = session.find(arguments)
        conf = session.make_conf(path)
        of_machine = threads or executors.NativeThreads()
        asked = session.Session(conf, arguments, of_machine, path=path, found=found, connect=connect)
        with contextlib.closing(asked):
            status: int = arguments.run(asked)
            return status
    except Exception as error:  # noqa: BLE001 -- an operator gets one line for any error, and never a traceback
        return command.report(PROG, error, conf)


if __name__ == '__main__':
    sys.exit(main())
