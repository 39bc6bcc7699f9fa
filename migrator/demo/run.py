# SPDX-License-Identifier: Apache-2.0

"""The main part of the demo: it empties one host by requests to the REST API, and reports."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import rich.console

from migrator.demo import options, summary
from migrator.demo.cloud import SOURCE, DemoCloud
from migrator.demo.options import PROG
from migrator.demo.report import Refusal, make_report
from migrator.demo.screen import Lines, Screen, View, look

WRONG, INTERRUPTED = 1, 130

#: Seconds between two looks at the cloud.
_TICK = 0.1


class _Stopped(KeyboardInterrupt):
    """A signal other than SIGINT has stopped the demo.

    :ivar status: the exit status for the signal.
    """

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__()


def _stop(number: int, _frame: Any) -> None:
    raise _Stopped(number)


def run(settings: options.Settings, directory: str) -> int:
    """Run the demo, and return the exit status.

    :raises KeyboardInterrupt: interrupted before the cloud exists.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    console = make_console()
    screen = console.is_terminal and not settings.json
    if screen:
        console.print(f'Starting a cloud of {settings.hosts} hosts and {settings.instances} guests ...', style='dim')
    cloud = DemoCloud(directory, settings)
    try:
        cloud.populate()
        view: View = Lines(sys.stderr if settings.json else sys.stdout)
        if screen:
            view = Screen(console, summary.title(settings))
        refused = _empty_the_source(cloud, view)
        report = make_report(cloud, refused)
    except KeyboardInterrupt as stop:
        _ignore_signals()
        print(f'{PROG}: interrupted, stopping ...', file=sys.stderr)
        cloud.stop_services()
        print(f'{PROG}: {summary.interrupted(look(cloud))}', file=sys.stderr)
        return getattr(stop, 'status', INTERRUPTED)
    else:
        _ignore_signals()
    finally:
        cloud.stop_services()
        cloud.close()
    if settings.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        summary.show(console, report)
    sys.stdout.flush()
    return 0 if report.right else WRONG


def make_console() -> rich.console.Console:
    """Return a console for stdout: for a terminal, or for plain lines in a file."""
    if sys.stdout.isatty() and os.environ.get('TERM') != 'dumb':
        return rich.console.Console(highlight=False)
    # Without these arguments, environment variables could make it write escape sequences into a file.
    return rich.console.Console(force_terminal=False, color_system=None, highlight=False, width=500)


def _empty_the_source(cloud: DemoCloud, view: View) -> list[Refusal]:
    """Request a live migration of each guest of the source, and wait until all have ended.

    :returns: the requests that the API refused.
    """
    refused: list[Refusal] = []
    asked, enough = cloud.world.threads.event(), cloud.world.threads.event()

    def ask() -> None:
        try:
            for guest in [guest for guest in cloud.guests if guest.host == SOURCE]:
                if enough.is_set():
                    return
                answer = cloud.live_migrate(guest)
                if answer.status_int != 202:
                    refused.append(Refusal(guest.name, f'{answer.status}: {answer.text}'))
        finally:
            asked.set()

    cloud.begin_counting()
    with view:
        cloud.world.threads.start(ask, name='demo-client')
        try:
            while True:
                # Read the flag before the look. Otherwise the look could miss the last migrations.
                complete = asked.is_set()
                seen = look(cloud)
                view.show(seen)
                # A stuck migration waits for an operator, and the demo has none.
                if complete and all(one.ended or one.stuck_reason for one in seen.migrations):
                    return refused
                cloud.world.threads.sleep(_TICK)
        finally:
            # The client thread must not write to a database that is being removed.
            enough.set()
            asked.wait()


def _ignore_signals() -> None:
    """Ignore further signals, because the demo ends soon anyway."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
