# SPDX-License-Identifier: Apache-2.0

"""A quiet end for a command whose reader has closed the pipe, as ``head`` does."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec('P')

#: The exit status that a shell reports for a command that SIGPIPE ended.
UNREAD = 141


def quiet(main: Callable[P, int]) -> Callable[P, int]:
    """Make a command return :data:`UNREAD` without a message when the reader of stdout is gone.

    :param main: the command; it returns its exit status.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            status = main(*args, **kwargs)
            # Flush here, where the error can be caught, and not at the end of the interpreter.
            sys.stdout.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            return UNREAD
        return status

    return run
