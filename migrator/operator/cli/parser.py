# SPDX-License-Identifier: Apache-2.0

"""The parser of a command line.

It imports only argparse, because the help of a whole command needs nothing else.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

PROG = 'migrator-manage'


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the exit status of a wrong usage."""

    def error(self, message: str) -> NoReturn:
        """Print an error, and exit with ``command.USAGE``, which is the status of argparse too."""
        self.exit(2, f'{self.prog}: {message}. See {self.prog} --help\n')
