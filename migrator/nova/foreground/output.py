# SPDX-License-Identifier: Apache-2.0

"""The output of a drain that runs: it may be closed, or its disk may be full, and the drain goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from migrator.operator.watch.screen import Picture, View


class Forgiving:
    """A display that cannot fail. If its output is closed, it shows nothing any more.

    What a full disk refuses is left out.

    :param view: the display.
    :param closed: called once when the output is closed.
    """

    def __init__(self, view: View, closed: Callable[[], None]) -> None:
        self._view, self._closed = view, closed
        self._is_closed = False

    def __enter__(self) -> Forgiving:
        """Begin the display."""
        self._try(self._view.__enter__)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        """Restore the terminal."""
        self._try(lambda: self._view.__exit__(*exc_info))

    def show(self, picture: Picture) -> None:
        """Show a new picture."""
        self._try(lambda: self._view.show(picture))

    def note(self, text: str) -> None:
        """Show a problem of the display itself."""
        self._try(lambda: self._view.note(text))

    def _try(self, show: Callable[[], object]) -> None:
        if self._is_closed:
            return
        try:
            show()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return
            self._is_closed = True
            _forget_stdout()
            self._closed()


def say(text: str) -> None:
    """Write to stderr, unless it is closed."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _forget_stdout() -> None:
    """Let what is left in the buffer of stdout go nowhere, so that the end of the process does not fail."""
    with contextlib.suppress(OSError, ValueError):  # it may be no file, as in a test
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
