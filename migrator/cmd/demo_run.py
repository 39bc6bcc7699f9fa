# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The main job of the demo: empty one host through the queue, by the REST API, and report."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import rich.console

from migrator.cmd import demo_cloud, demo_options, demo_report, demo_screen, demo_summary

PROG = demo_options.PROG
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


def run(settings: demo_options.Settings, directory: str) -> int:
    """Run it; return the exit status.

    :raises KeyboardInterrupt: interrupted before there was a cloud.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    console = make_console()
    screen = console.is_terminal and not settings.json
    if screen:
        console.print(f'Starting a cloud of {settings.hosts} hosts and {settings.instances} guests ...', style='dim')
    cloud = demo_cloud.DemoCloud(directory, settings)
    try:
        cloud.populate()
        view: demo_screen.View = demo_screen.Lines(sys.stderr if settings.json else sys.stdout)
        if screen:
            view = demo_screen.Screen(console, demo_summary.title(settings))
        refused = _empty_the_source(cloud, view)
        report = demo_report.make(cloud, refused)
    except KeyboardInterrupt as stop:
        _hear_no_more()
        print(f'{PROG}: interrupted, stopping ...', file=sys.stderr)
        cloud.stop_services()
        print(f'{PROG}: {demo_summary.interrupted(demo_screen.look(cloud))}', file=sys.stderr)
        return getattr(stop, 'status', INTERRUPTED)
    else:
        _hear_no_more()
    finally:
        cloud.stop_services()
        cloud.close()
    if settings.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        demo_summary.show(console, report)
    sys.stdout.flush()
    return 0 if report.right else WRONG


def make_console() -> rich.console.Console:
    """Return what stdout is: a terminal, or a file that gets plain lines."""
    if sys.stdout.isatty() and os.environ.get('TERM') != 'dumb':
        return rich.console.Console(highlight=False)
    # Told so, or else variables of the environment could have it write escapes into a file.
    return rich.console.Console(force_terminal=False, color_system=None, highlight=False, width=500)


def _empty_the_source(cloud: demo_cloud.DemoCloud, view: demo_screen.View) -> list[demo_report.Refusal]:
    """Ask for a live migration of each guest of the source, and wait until all have ended.

    :returns: what the API has refused.
    """
    refused: list[demo_report.Refusal] = []
    asked, enough = cloud.world_threads.event(), cloud.world_threads.event()

    def ask() -> None:
        try:
            for guest in [guest for guest in cloud.guests if guest.host == demo_cloud.SOURCE]:
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
