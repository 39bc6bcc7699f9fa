# SPDX-License-Identifier: Apache-2.0

"""The parser of a command line.

It imports only what the standard library has, because the help of a whole command needs nothing else.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

PROG = 'migrator-manage'


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest word and the help of the verb that was meant."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as usual; a word that is left is an error of the verb, whose help has its options."""
        found, left = self.parse_known_args(args, namespace)
        if left:
            verb = getattr(found, 'parser', self)
            near = ''.join(verb.nearest(word, [*verb._option_string_actions]) for word in left if word.startswith('-'))
            verb.error(f'unrecognized arguments: {" ".join(left)}{near}')
        return found

    # argparse suggests nothing before Python 3.14; both names are the same in each version.
    def _check_value(self, action: Any, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            words = [word for word in action.choices or () if isinstance(word, str)]
            raise argparse.ArgumentError(action, f'{error.message}{self.nearest(str(value), words)}') from None

    @staticmethod
    def nearest(word: str, known: list[str]) -> str:
        """Return the known word that is most like another, as the end of an error; empty if none is like it."""
        from migrator.objects import base  # an error may take its time

        return base.nearest(word.partition('=')[0], known)

    def error(self, message: str) -> NoReturn:
        """Print an error, and exit with ``command.USAGE``, which is the status of argparse too."""
        end = '' if message.endswith('?') else '.'
        self.exit(2, f'{self.prog}: {message}{end} See {self.prog} --help\n')
