# SPDX-License-Identifier: Apache-2.0

"""``make demo-libvirt``: real guests leave a libvirt host while you watch.

A drain of a whole cloud moves them. The cloud has two hosts with four guests on the first, all in namespaces of
their own on this machine. A guest is judged by what it writes to its console. Nothing listens but on loopback, and
nothing is left.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

from migrator.cmd import demo
from tests.real.libvirt.lab import machine

PROG = 'migrator-demo-libvirt'
WRONG, CANNOT, INTERRUPTED = 1, 2, 130


class _Stopped(KeyboardInterrupt):
    """A signal has asked it to stop.

    :ivar status: the exit status that goes with it.
    """

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.exit(CANNOT, f'{self.prog}: {re.sub("^argument ", "", message)} (see {self.prog} --help)\n')


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog=PROG,
        allow_abbrev=False,
        description='A drain moves four real guests of QEMU from one libvirt host to another: one by post-copy, one '
        'after its first move has failed half way. The longest silence of each guest is measured and judged.',
        epilog='Exit status: 0 everything is as it should be; 1 something is not; 2 it cannot be shown here; 130 '
        'interrupted.',
    )
    parser.add_argument('--json', action='store_true', help='one JSON report on stdout instead of the screen')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, and return its exit status."""
    try:
        asked = _parse(argv)
    except SystemExit as stop:  # argparse has said what there is to say
        return int(stop.code or 0)
    if os.geteuid() != 0:
        print(f'{PROG}: not root: its hosts are namespaces, which only root may make', file=sys.stderr)
        return CANNOT
    if (what := machine.missing()) is not None:
        print(f'{PROG}: there is no {what}', file=sys.stderr)
        return CANNOT
    demo.choose_threads()
    # Imported here: what is missing is reported at once, and oslo.messaging has to come after the choice of threads.
    from tests.real.libvirt import demo_run

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Set here and not left to the caller's: a shell starts what is in the background with SIGINT ignored.
        signal.signal(number, _stop)
    try:
        return demo_run.run(asked.json)
    except _Stopped as stop:
        print(f'{PROG}: interrupted; nothing of it is left', file=sys.stderr)
        return stop.status
    except BrokenPipeError:  # the reader of stdout has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG


def _stop(number: int, _frame: Any) -> None:
    raise _Stopped(number)


if __name__ == '__main__':
    sys.exit(main())
