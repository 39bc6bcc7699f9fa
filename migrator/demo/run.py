# SPDX-License-Identifier: Apache-2.0

"""The main part of the demo: it drains or kills one host, by requests to the REST API, and reports."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TextIO
from urllib import parse

import rich.console

from migrator.demo import options, summary
from migrator.demo.cloud import DemoCloud
from migrator.demo.options import PROG
from migrator.demo.report import Refusal, make_report
from migrator.objects import ENDS, FINAL
from migrator.operator.watch import commands, errors, screen, subjects
from migrator.testing import counting
from migrator.testing.client import Client

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
    shows = console.is_terminal and not settings.json
    if shows:
        console.print(f'Starting a cloud of {settings.hosts} hosts and {settings.instances} guests ...', style='dim')
    cloud = DemoCloud(directory, settings)
    try:
        cloud.populate()
        out = sys.stderr if settings.json else sys.stdout
        view: screen.View = screen.Screen(console) if shows else screen.Lines(out, sys.stderr)
        if settings.kill:
            report = make_report(cloud, refused=_kill_the_source(cloud, view))
        else:
            report = make_report(cloud, drain=_drain_the_source(cloud, view, console if shows else plain(out)))
    except KeyboardInterrupt as stop:
        _ignore_signals()
        print(f'{PROG}: interrupted, stopping ...', file=sys.stderr)
        cloud.stop_services()
        print(f'{PROG}: {summary.interrupted(cloud.migrations())}', file=sys.stderr)
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
        if report.right:
            summary.show_next(console, killed=report.killed)
    sys.stdout.flush()
    return 0 if report.right else WRONG


def make_console() -> rich.console.Console:
    """Return a console for stdout: for a terminal, or for plain lines in a file."""
    if sys.stdout.isatty() and os.environ.get('TERM') != 'dumb':
        return rich.console.Console(highlight=False)
    return plain(sys.stdout)


def plain(out: TextIO) -> rich.console.Console:
    """Return a console that writes plain lines into a file."""
    # Without these arguments, environment variables could make it write escape sequences into a file.
    return rich.console.Console(file=out, force_terminal=False, color_system=None, highlight=False, width=500)


def ask(cloud: Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Send a request to the REST API of a cloud, and return the answer.

    The cost of this counts as an aside.

    :param path: below ``/migrator/v1``.
    :raises migrator.operator.watch.errors.ApiRefused: the API refuses the request.
    """
    with counting.aside():
        answer = cloud.request(method, f'/migrator/v1{path}', body)
    if answer.status_int >= 400:
        raise errors.ApiRefused(url=path, reason=answer.text)
    found: dict[str, Any] = answer.json
    return found


class Shown:
    """A drain or a host of a cloud in this process. Its picture counts the guests on each host.

    :param kind: the class in :mod:`migrator.operator.watch.subjects`.
    :param population: returns host -> the number of its guests.
    :ivar note: what happens to a host.
    """

    def __init__(
        self,
        cloud: Client,
        kind: Callable[..., subjects.Subject],
        name: str,
        population: Callable[[], Mapping[str, int]],
    ) -> None:
        self._cloud = cloud
        self._subject = kind(self.get, cloud.world.threads.clock.now, name)
        self._population = population
        self.note = ''

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the answer to a GET; see :func:`ask`."""
        return ask(self._cloud, 'GET', f'{path}?{parse.urlencode(query)}' if query else path)

    def look(self) -> screen.Picture:
        """Return the present picture."""
        picture = self._subject.look()
        hosts = [f'{host} {count}' for host, count in self._population().items()]
        more = [f'and {len(hosts) - 12} more'] if len(hosts) > 12 else []
        return dataclasses.replace(
            picture,
            notes=[*picture.notes, *filter(None, [self.note])],
            foot=f'{picture.foot}     guests on   {"   ".join([*hosts[:12], *more])}',
        )


def _drain_the_source(cloud: DemoCloud, view: screen.View, console: rich.console.Console) -> dict[str, Any]:
    """Show the plan of a drain, request the drain, and show it until it ends.

    The first migration of one guest fails, so that the drain tries it elsewhere.

    :returns: the drain at its end, as the API shows it.
    """
    wanted = {'host': cloud.settings.source, 'reason': 'a demo'}
    summary.show_plan(console, ask(cloud, 'POST', '/drains', wanted | {'dry_run': True})['plan'])
    cloud.break_a_migration()
    cloud.begin_counting()
    uuid = ask(cloud, 'POST', '/drains', wanted)['drain']['uuid']
    shown = Shown(cloud, subjects.Drain, uuid, cloud.population)
    commands.follow(shown, view, cloud.world.threads.sleep, _TICK)
    ended: dict[str, Any] = shown.get(f'/drains/{uuid}')['drain']
    return ended


def _kill_the_source(cloud: DemoCloud, view: screen.View) -> list[Refusal]:
    """Kill the source, evacuate its guests, and let it come back to clean up.

    :returns: the requests that the API refused.
    """
    host = cloud.settings.source
    cloud.wait_for_definitions(cloud.leaving())
    cloud.begin_counting()
    shown = Shown(cloud, subjects.Host, host, cloud.population)
    with view:
        cloud.kill(host)
        shown.note = f'{host} has lost its power, and is declared forced down'
        refused = []
        for guest in cloud.leaving():
            answer = cloud.request('POST', f'/servers/{guest.uuid}/action', {'evacuate': {}})
            if answer.status_int != 200:
                refused.append(Refusal(guest.name, f'{answer.status}: {answer.text}'))
        _show_until(cloud, shown, view, ENDS)
        cloud.revive(host)
        shown.note = f'{host} has power again, and removes what was evacuated from it'
        _show_until(cloud, shown, view, FINAL)
        cloud.take_back(host)
    return refused


def _show_until(cloud: DemoCloud, shown: Shown, view: screen.View, statuses: Collection[str]) -> None:
    """Show the cloud until each migration has one of these statuses, or is stuck."""
    while True:
        picture = shown.look()
        view.show(picture)
        # A stuck migration waits for an operator, and the demo has none.
        if all(row.status in statuses or row.is_stuck for row in picture.rows):
            return
        cloud.world.threads.sleep(_TICK)


def _ignore_signals() -> None:
    """Ignore further signals, because the demo ends soon anyway."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
