# SPDX-License-Identifier: Apache-2.0

"""``migrator-demo``: a cloud in one process, which empties a host, or serves the REST API."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence

from migrator import exception
from migrator.demo import options
from migrator.demo.options import PROG

WRONG, UNREACHABLE, INTERRUPTED = 1, 3, 130


class _LogHandler(logging.Handler):
    """A log handler that prints to the present stderr: above the table, while the screen is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f'{PROG}: {record.levelname.lower()}: {record.getMessage()}', file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, and return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in options.VERBS:
        from migrator.demo import rehearsal

        return rehearsal.main(words)
    try:
        settings = options.parse(argv)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    if importlib.util.find_spec('placement') is None:
        print(f"{PROG}: the Placement service is not installed: install the extra 'demo'", file=sys.stderr)
        return UNREACHABLE
    logging.basicConfig(handlers=[_LogHandler()], level=logging.WARNING)
    try:
        choose_threads()
        # Import here, so that a wrong option is reported at once, and oslo.messaging comes after the choice of threads.
        from migrator.demo import run, serve

        with tempfile.TemporaryDirectory(prefix=options.PREFIX) as directory:
            if settings.serve:
                return serve.serve(settings, settings.serve, directory)
            return run.run(settings, directory)
    except KeyboardInterrupt as stop:  # before there was anything to report
        print(f'{PROG}: interrupted', file=sys.stderr)
        return getattr(stop, 'status', INTERRUPTED)
    except BrokenPipeError:  # the reader of stdout has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG
    except (exception.MigratorException, OSError) as error:
        print(f'{PROG}: {error}', file=sys.stderr)
        return UNREACHABLE


def choose_threads() -> None:
    """Choose native threads, whatever other packages are installed."""
    # oslo.service imports eventlet if it is installed, which then warns that it is deprecated.
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    # Without oslo.service there is no choice to make, and an earlier choice must not be changed.
    with contextlib.suppress(ImportError, ValueError):
        from oslo_service import backend

        if backend.get_backend_type() is None:
            backend.init_backend(backend.BackendType.THREADING)


if __name__ == '__main__':
    sys.exit(main())
