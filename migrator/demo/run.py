# SPDX-License-Identifier: Apache-2.0

"""The main job of the demo: empty one host through the queue, by the REST API, and report."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import rich.console

from migrator.demo import options, summary
from migrator.demo import report as demo_report
from migrator.demo import screen as demo_screen
from migrator.demo.cloud import SOURCE, DemoCloud
from migrator.demo.options import PROG

WRONG, INTERRUPTED = 1, 130

#: Seconds between two looks at the cloud.
_TICK = 0.1


class _Stopped(KeyboardInterrupt):
    """A signal other than SIGINT has asked it to stop.

    :ivar status: the exit status that goes with it.
    """

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__()


def _stop(number: int, _frame: Any) -> None:
    raise _Stopped(number)


def run(settings: options.Settings, directory: str) -> int:
    """Run it; return the exit status.

    :raises KeyboardInterrupt: interrupted before there was a cloud.
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
        view: demo_screen.View = demo_screen.Lines(sys.stderr if settings.json else sys.stdout)
        if screen:
            view = demo_screen.Screen(console, summary.title(settings))
        refused = _empty_the_source(cloud, view)
        report = demo_report.make(cloud, refused)
    except KeyboardInterrupt as stop:
        _hear_no_more()
        print(f'{PROG}: interrupted, stopping ...', file=sys.stderr)
        cloud.stop_services()
        print(f'{PROG}: {summary.interrupted(demo_screen.look(cloud))}', file=sys.stderr)
        return getattr(stop, 'status', INTERRUPTED)
    else:
        _hear_no_more()
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
    """Return what stdout is: a terminal, or a file that gets plain lines."""
    if sys.stdout.isatty() and os.environ.get('TERM') != 'dumb':
        return rich.console.Console(highlight=False)
    # Told so, or else variables of the environment could have it write escapes into a file.
    return rich.console.Console(force_terminal=False, color_system=None, highlight=False, width=500)


def _empty_the_source(cloud: DemoCloud, view: demo_screen.View) -> list[demo_report.Refusal]:
    """Ask for a live migration of each guest of the source, and wait until all have ended.

    :returns: what the API has refused.
    """
    refused: list[demo_report.Refusal] = []
    asked, enough = cloud.world_threads.event(), cloud.world_threads.event()

    def ask() -> None:
        try:
            for guest in [guest for guest in cloud.guests if guest.host == SOURCE]:
                if enough.is_set():
                    return
                answer = cloud.live_migrate(guest)
                if answer.status_int != 202:
                    refused.append(demo_report.Refusal(guest.name, f'{answer.status}: {answer.text}'))
        finally:
            asked.set()

    cloud.begin_counting()
    with view:
        cloud.world_threads.start(ask, name='demo-client')
        try:
            while True:
                # The look comes after the question whether there is more to come, or the last ones could be missed.
                complete = asked.is_set()
                seen = demo_screen.look(cloud)
                view.show(seen)
                # What is stuck waits for a person, and the demo has none.
                if complete and all(one.ended or one.stuck_reason for one in seen.migrations):
                    return refused
                cloud.world_threads.sleep(_TICK)
        finally:
            # Whoever still asks would write to a database that is being removed.
            enough.set()
            asked.wait()


def _hear_no_more() -> None:
    """Let no second signal get between here and the end, which is near."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
