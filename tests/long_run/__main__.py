# SPDX-License-Identifier: Apache-2.0

"""Run one piece of the long run, or record the figures of all pieces so far.

    python -m tests.long_run --state DIR [--minutes 30] [--seed N] [--pace 1]
    python -m tests.long_run --state DIR --record

Each piece adds what it does to ``DIR/figures.jsonl``. ``--record`` adds a line for each piece to the file of the same
name beside this one, and writes the table of the page. A piece that found something keeps its logs and its database
beside it. Exit status: 0; 1 something was found.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys
from collections.abc import Sequence

from tests.long_run import table
from tests.long_run.journal import Journal, read
from tests.long_run.piece import Piece, Settings, workspace
from tests.real import plugin


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(prog='long_run', description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--state', type=pathlib.Path, required=True, metavar='DIR', help='where the pieces are')
    parser.add_argument('--minutes', type=float, default=Settings.minutes, help='how long this piece is')
    parser.add_argument('--seed', type=int, help='which faults there are; default: the number of the piece')
    parser.add_argument('--pace', type=float, default=Settings.pace, help='multiplies the rates of all faults')
    parser.add_argument('--rest', type=float, default=Settings.rest, help='minutes between two audits at rest')
    parser.add_argument('--guests', type=int, default=Settings.guests)
    parser.add_argument('--record', action='store_true', help='run nothing, and record the figures of the pieces')
    arguments = parser.parse_args(argv)
    if arguments.record:
        table.record(read(arguments.state))
        return 0
    missing = plugin.missing()
    for name in ('postgresql', 'rabbitmq', 'placement_http'):
        if name in missing:
            print(f'There is no {missing[name]}; {plugin.HOW}', file=sys.stderr)
            return 3
    # as at Ctrl-C, so that every process is ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    journal = Journal(arguments.state, max(table.total(table.recorded()).pieces))
    settings = Settings(
        minutes=arguments.minutes,
        seed=journal.piece if arguments.seed is None else arguments.seed,
        pace=arguments.pace,
        rest=arguments.rest,
        guests=arguments.guests,
    )
    print(f'piece {journal.piece}, seed {settings.seed}', flush=True)
    with workspace() as made, Piece(made, settings, journal) as piece:
        try:
            piece.run()
        finally:
            if piece.findings:
                piece.keep()
    return 1 if piece.findings else 0


if __name__ == '__main__':
    sys.exit(main())
