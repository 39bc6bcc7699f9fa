# SPDX-License-Identifier: Apache-2.0

"""The demo from its first line to its last: start the lab and the cloud, play, and leave nothing."""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any, TextIO

import rich.box
import rich.console
import rich.table
import rich.text

from migrator import exception
from migrator.demo import run as plain_demo
from migrator.demo import summary
from migrator.operator.watch.screen import Lines, Screen, View
from tests.real.libvirt import demo_cloud, demo_scenario
from tests.real.libvirt.lab import hosts
from tests.real.servers import process

PROG = 'migrator-demo-libvirt'
WRONG = 1

_GOOD, _BAD = 'bold green', 'bold red'


class _Output:
    """The output of what happens: above the table on a terminal, line by line elsewhere.

    :param out: where lines go without a terminal.
    """

    def __init__(self, console: rich.console.Console, screen: bool, out: TextIO) -> None:
        self.console = console
        self.screen = screen
        self._out = out

    def show(self, text: str) -> None:
        """Say it."""
        if self.screen:
            self.console.print(f'{text} ...', style='dim', markup=False)
        else:
            print(text, file=self._out, flush=True)

    def view(self) -> View:
        """Return what shows the drain."""
        return Screen(self.console) if self.screen else Lines(self._out, sys.stderr)

    def show_plan(self, plan: dict[str, Any]) -> None:
        """Show the plan of the drain."""
        console = self.console if self.screen else plain_demo.plain(self._out)
        summary.show_plan(console, plan)


class _LogHandler(logging.Handler):
    """A handler that prints to the present stderr: while the screen is up, that is above the table."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f'{PROG}: {record.levelname.lower()}: {record.getMessage()}', file=sys.stderr)


def run(as_json: bool) -> int:
    """Run it; return the exit status.

    :raises KeyboardInterrupt: interrupted; nothing is left.
    """
    logging.basicConfig(handlers=[_LogHandler()], level=logging.WARNING)
    console = plain_demo.make_console()
    output = _Output(console, console.is_terminal and not as_json, sys.stderr if as_json else sys.stdout)
    try:
        report = _play(output)
    except (process.ServerError, exception.MigratorException, OSError) as error:
        print(f'{PROG}: {error}', file=sys.stderr)
        return WRONG
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _show(console, report)
    sys.stdout.flush()
    return 0 if report.right else WRONG


def _play(output: _Output) -> demo_scenario.Report:
    """Build the stage, run the scenario, and take everything away again, whatever has happened."""
    output.show(f'Starting two libvirt hosts, {demo_cloud.SOURCE} and {demo_cloud.DESTINATION}')
    lab = hosts.Lab()
    cloud: demo_cloud.LibvirtCloud | None = None
    try:
        lab.start_host(demo_cloud.SOURCE, wait=False)
        lab.start_host(demo_cloud.DESTINATION, wait=False)
        for host in lab.hosts.values():
            host.wait()
        output.show(f'Starting {len(demo_cloud.CAST)} guests on {demo_cloud.SOURCE}')
        those = demo_cloud.start_guests(lab)
        output.show('Starting migrator around them: it adopts the guests')
        cloud = demo_cloud.LibvirtCloud(lab)
        cloud.start_computes(adopted=len(those))
        scenario = demo_scenario.Scenario(cloud, those, output.show)
        output.show_plan(scenario.plan())
        with output.view() as view:
            report = scenario.run(view)
        cloud.stop()
        return report
    except KeyboardInterrupt:
        _hear_no_more()
        print(f'{PROG}: interrupted, stopping ...', file=sys.stderr)
        # What is now taken away under the services' hands they would complain of.
        logging.disable(logging.CRITICAL)
        if cloud is not None:
            cloud.drop()
        raise
    finally:
        _hear_no_more()
        lab.close()


def _hear_no_more() -> None:
    """Let no second signal get between here and the end, which is near."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


# --- the summary -----------------------------------------------------------------------------------------------------


def _show(console: rich.console.Console, report: demo_scenario.Report) -> None:
    console.print()
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD if console.is_terminal else None)
    table.add_column('Guest', no_wrap=True)
    table.add_column('What happened')
    table.add_column('Seconds', justify='right', no_wrap=True)
    table.add_column('Silence', justify='right', no_wrap=True)
    table.add_column('Verdict')
    for move in report.moves:
        verdict = rich.text.Text('; '.join(move.wrong), style=_BAD)
        if not move.wrong:
            verdict = rich.text.Text(_praise(move, report), style=_GOOD)
        table.add_row(
            move.guest.name,
            rich.text.Text(move.what),
            _number(move.seconds, 1),
            '' if move.downtime is None else f'{move.downtime * 1000:.0f} ms',
            verdict,
        )
    console.print(table)
    console.print(
        'Silence: the longest time without output of a guest, which writes a line every 20 ms, while it was moved.',
        style='dim',
    )
    console.print()
    for text in report.wrong:
        console.print(text, style=_BAD, markup=False)
    for finding in report.findings:
        console.print(
            f'{finding["consumer_type"]} {finding["consumer"]} on {finding["provider"]}: {finding["verdict"]}: '
            f'{finding["reason"]}',
            style=_BAD,
            markup=False,
        )
    looked, count = report.looked_at, len(report.findings)
    console.print(
        f'Audit: {looked["allocations"]} allocations of {looked["consumers"]} consumers in Placement, held against '
        f'{looked["instances"]} instances and {looked["migrations"]} migrations: '
        f'{count or "no"} finding{"" if count == 1 else "s"}.',
        style=_BAD if count else _GOOD,
    )
    if report.right:
        longest = max(report.moves, key=lambda move: move.downtime or 0)
        console.print(
            f'{demo_cloud.SOURCE} is empty after {report.seconds:.0f} s. The longest silence of a guest was '
            f'{(longest.downtime or 0) * 1000:.0f} ms ({longest.guest.name}); at most {demo_scenario.SILENCE:g} s are '
            'right.',
            style=_GOOD,
        )
    else:
        console.print('Something is not as it should be.', style=_BAD)


def _praise(move: demo_scenario.Move, report: demo_scenario.Report) -> str:
    counted = report.counted[move.guest.name]
    if move.plan == 'failed':
        return f'went on at {demo_cloud.SOURCE}, and was tried again'
    return f'counted on to {counted["last"]}, no page wrong'


def _number(seconds: float | None, digits: int) -> str:
    return '' if seconds is None else f'{seconds:.{digits}f}'
