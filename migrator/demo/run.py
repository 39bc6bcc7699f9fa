# SPDX-License-Identifier: Apache-2.0

"""The main part of the demo: it empties or kills one host, by requests to the REST API, and reports."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import rich.console
import webob

from migrator.demo import options, summary
from migrator.demo.cloud import DemoCloud
from migrator.demo.options import PROG
from migrator.demo.report import Refusal, make_report
from migrator.demo.screen import Lines, Screen, View, look
from migrator.objects import FINAL, Instance, Migration

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
        refused = _kill_the_source(cloud, view) if settings.kill else _empty_the_source(cloud, view)
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
    cloud.begin_counting()
    with view:
        return _request_all(cloud, view, lambda guest: cloud.live_migrate(guest), 202)


def _kill_the_source(cloud: DemoCloud, view: View) -> list[Refusal]:
    """Kill the source, evacuate its guests, and let it come back to clean up.

    :returns: the requests that the API refused.
    """
    host = cloud.settings.source
    cloud.wait_for_definitions(cloud.leaving())
    cloud.begin_counting()
    with view:
        cloud.kill(host)
        view.note(f'{host} has lost its power, and is declared forced down')

        def evacuate(guest: Instance) -> webob.Response:
            return cloud.request('POST', f'/servers/{guest.uuid}/action', {'evacuate': {}})

        refused = _request_all(cloud, view, evacuate, 200)
        cloud.revive(host)
        view.note(f'{host} has power again, and removes what was evacuated from it')
        while not _watch(cloud, view, _is_final):
            cloud.world.threads.sleep(_TICK)
        cloud.take_back(host)
    return refused


def _request_all(
    cloud: DemoCloud, view: View, request: Callable[[Instance], webob.Response], right: int
) -> list[Refusal]:
    refused: list[Refusal] = []
    asked, enough = cloud.world.threads.event(), cloud.world.threads.event()

    def ask() -> None:
        try:
            for guest in cloud.leaving():
                if enough.is_set():
                    return
                answer = request(guest)
                if answer.status_int != right:
                    refused.append(Refusal(guest.name, f'{answer.status}: {answer.text}'))
        finally:
            asked.set()

    cloud.world.threads.start(ask, name='demo-client')
    try:
        while True:
            # Read the flag before the look. Otherwise the look could miss the last migrations.
            complete = asked.is_set()
            if _watch(cloud, view, lambda one: one.ended) and complete:
                return refused
            cloud.world.threads.sleep(_TICK)
    finally:
        # The client thread must not write to a database that is being removed.
        enough.set()
        asked.wait()


def _watch(cloud: DemoCloud, view: View, is_right: Callable[[Migration], bool]) -> bool:
    """Show the cloud, and return whether each migration is in the right status or stuck."""
    seen = look(cloud)
    view.show(seen)
    # A stuck migration waits for an operator, and the demo has none.
    return all(is_right(one) or one.stuck_reason for one in seen.migrations)


def _is_final(migration: Migration) -> bool:
    return migration.status in FINAL


def _ignore_signals() -> None:
    """Ignore further signals, because the demo ends soon anyway."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
