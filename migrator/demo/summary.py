# SPDX-License-Identifier: Apache-2.0

"""The summary of the demo: the results, the cost of a migration, and the findings of the audit."""

from __future__ import annotations

import collections
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
import rich.console
import rich.table

from migrator.demo import cloud, options
from migrator.demo.report import BUDGET, Report
from migrator.objects import Migration, base

_NAMES = {
    'placement_requests': 'Placement requests',
    'rpc_messages': 'RPC messages',
    'sql_statements': 'SQL statements',
    'commits': 'commits',
}
_GOOD, _BAD = 'bold green', 'bold red'


def show_plan(console: rich.console.Console, plan: Mapping[str, Any]) -> None:
    """Print the plan of a drain: where each guest would go, or what is in the way."""
    table = rich.table.Table(
        box=_box(console), title=f'Plan: empty {plan["host"]}', title_justify='left', title_style='bold'
    )
    for head in ('Guest', 'MiB', 'To', 'In the way'):
        table.add_column(head, justify='right' if head == 'MiB' else 'left')
    for guest in plan['guests']:
        obstacle = guest['obstacle']
        in_the_way = f'{obstacle["reason"]} {obstacle["remedy"]}' if obstacle else ''
        table.add_row(guest['name'], str(guest['size_mb']), guest['destination'] or '', in_the_way)
    console.print(table)
    console.print(
        f'{base.count(plan["can_move"], "guest")} can move, {plan["cannot_move"]} cannot. Nothing was changed yet.'
    )
    console.print()


def interrupted(migrations: Sequence[Migration]) -> str:
    """Return the message for an interruption, with the state of the migrations."""
    counts = collections.Counter(str(one.status) for one in migrations)
    statuses = ', '.join(f'{count} {status}' for status, count in counts.items()) or 'none'
    return f'interrupted; migrations: {statuses}. The simulated cloud is gone, and leaves nothing behind.'


def show(console: rich.console.Console, report: Report) -> None:
    """Print the summary."""
    console.print()
    console.print(_result(report), style=_GOOD if report.right else _BAD)
    if report.drain is not None:
        for check in report.drain['checks']:
            found = ', '.join(check['left']) or 'none'
            console.print(f'  {check["what"]}: {found}', style=_BAD if check['left'] else '', markup=False)
    for refusal in report.refused:
        console.print(f'  {refusal.instance} was refused: {refusal.answer}', style=_BAD, markup=False)
    for migration in report.migrations:
        if migration['status'] != 'completed':
            line = f'  {migration["name"]} ended {migration["status"]}: {migration["failure"] or "no reason is known"}'
            console.print(line, style='' if migration['name'] in report.retried else _BAD, markup=False)
    for violation in report.violations:
        console.print(f'  the hypervisors report: {violation}', style=_BAD, markup=False)
    console.print()
    console.print(_costs(report, _box(console)))
    noticed = [one['noticed_after'] for one in report.migrations if one['noticed_after'] is not None]
    if noticed:
        console.print(
            f'Each migration went on within {max(noticed) * 1000:.0f} ms of the end of its copy: by its event, because '
            f'a poll comes only after {cloud.POLL_INTERVAL * 1000:.0f} ms without a report.'
            if max(noticed) < cloud.POLL_INTERVAL
            else f'Each migration went on within {max(noticed) * 1000:.0f} ms of the end of its copy.'
        )
    console.print()
    _audit(console, report)


def show_next(console: rich.console.Console, *, killed: bool) -> None:
    """Print the commands to try next.

    :param killed: whether this run has killed a host.
    """
    serve = '--serve 127.0.0.1:8774'
    following = [] if killed else [(f'--kill {options.FIRST}', 'kills a host')]
    following.append((serve, 'serves a cloud to the openstack client'))
    console.print()
    for head, (words, effect) in zip(('Next:', '     '), following, strict=False):
        console.print(f'{head} {command()} {words:{len(serve)}}  {effect}', markup=False, soft_wrap=True)


def command() -> str:
    """Return the command that has started this demo, as a user types it."""
    typed = sys.argv[0]
    if pathlib.PurePath(typed).name != options.PROG or shutil.which(options.PROG) == typed:
        return options.PROG
    return typed


def _box(console: rich.console.Console) -> rich.box.Box | None:
    return rich.box.SIMPLE_HEAD if console.is_terminal else None


def _result(report: Report) -> str:
    left = (
        f'{report.source} still has {base.count(report.left, "guest")}.'
        if report.left
        else f'{report.source} is empty.'
    )
    if report.drain is None:
        total = len(report.migrations) + len(report.refused)
        return f'{report.completed} of {base.count(total, "evacuation")} completed in {report.seconds:.1f} s; {left}'
    guests, again = report.drain['guests'], report.retried
    moved = f'Drain {report.drain["status"]}: {guests["moved"]} of {base.count(sum(guests.values()), "guest")} moved'
    retried = f', {" and ".join(again)} at a second attempt' if again else ''
    return f'{moved} in {report.seconds:.1f} s{retried}; {left}'


def _costs(report: Report, box: rich.box.Box | None) -> rich.table.Table:
    table = rich.table.Table(
        box=box,
        title='What a migration cost',
        title_justify='left',
        title_style='bold',
        caption=('' if report.killed else 'at most: one migration of an idle cloud; ')
        + (
            'besides: polls, heartbeats and this screen, in all'
            if report.killed
            else 'besides: polls, heartbeats, the drain and this screen, in all'
        ),
        caption_justify='left',
    )
    table.add_column('')
    for head in ('on average', *(() if report.killed else ('at most',)), 'in all', 'besides'):
        table.add_column(head, justify='right')
    for name, average in report.per_migration().items():
        besides = str(report.asides.get(name, 0))
        most = [] if report.killed else [str(BUDGET[name])]
        table.add_row(_NAMES[name], f'{average:.1f}', *most, str(report.costs[name]), besides)
    return table


def _count(findings: int) -> str:
    return f'{findings or "no"} finding{"" if findings == 1 else "s"}.'


def _audit(console: rich.console.Console, report: Report) -> None:
    looked = report.looked_at
    console.print(
        f'Audit: {looked["allocations"]} allocations of {looked["consumers"]} consumers in Placement, compared with '
        f'{looked["instances"]} instances and {looked["migrations"]} migrations: ' + _count(len(report.findings)),
        style=_BAD if report.findings else _GOOD,
    )
    for finding in report.findings:
        console.print(
            f'  {finding["consumer_type"]} {finding["consumer"]} on {finding["provider"]}: {finding["verdict"]}: '
            f'{finding["reason"]}. Remedy: {finding["remedy"]}',
            markup=False,
        )
