# SPDX-License-Identifier: Apache-2.0

"""A command whose reader has gone, as ``head`` does when it has what it wants, ends without a word."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec('P')

#: As a shell has it for a command that SIGPIPE has ended.
UNREAD = 141


def quiet(main: Callable[P, int]) -> Callable[P, int]:
    """Have a command answer :data:`UNREAD` where nobody reads stdout any more, and say nothing of it.

    :param main: runs it, and returns its exit status.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            status = main(*args, **kwargs)
            # Here, where it can be caught, and not when the interpreter ends.
            sys.stdout.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            return UNREAD
        return status

    return run
