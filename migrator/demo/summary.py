# SPDX-License-Identifier: Apache-2.0

"""The summary of the demo: the results, the cost of a migration, and the findings of the audit."""

from __future__ import annotations

import rich.box
import rich.console
import rich.table

from migrator.demo import cloud, options, screen
from migrator.demo.report import BUDGET, Report

_NAMES = {
    'placement_requests': 'Placement requests',
    'rpc_messages': 'RPC messages',
    'sql_statements': 'SQL statements',
    'commits': 'commits',
}
_GOOD, _BAD = 'bold green', 'bold red'


def title(settings: options.Settings) -> str:
    """Return the title of the run."""
    if settings.kill:
        return f'Killing {settings.kill} and evacuating its guests'
    return (
        f'Emptying {settings.source}: {settings.leaving} guests of {settings.guest_memory} MiB, '
        f'{settings.max_concurrent} at a time over {settings.bandwidth:g} MiB/s'
    )


def interrupted(seen: screen.Look) -> str:
    """Return the message for an interruption, with the state of the migrations."""
    counts = dict(seen.counts())
    never = seen.asked - len(seen.migrations)
    parts = [f'{count} {status}' for status, count in counts.items()]
    parts += [f'{never} never requested'] if never > 0 else []
    statuses = ', '.join(parts) or 'none'
    return f'interrupted; migrations: {statuses}. The simulated cloud is gone, and leaves nothing behind.'


def show(console: rich.console.Console, report: Report) -> None:
    """Print the summary."""
    total = len(report.migrations) + len(report.refused)
    console.print()
    what = 'evacuations' if report.killed else 'migrations'
    console.print(
        f'{report.completed} of {total} {what} completed in {report.seconds:.1f} s; '
        + (f'{report.source} still has {report.left} guests.' if report.left else f'{report.source} is empty.'),
        style=_GOOD if report.completed == total and not report.left else _BAD,
    )
    for refusal in report.refused:
        console.print(f'  {refusal.instance} was refused: {refusal.answer}', style=_BAD, markup=False)
    for migration in report.migrations:
        if migration['status'] != 'completed':
            line = f'  {migration["name"]} ended {migration["status"]}: {migration["failure"] or "no reason is known"}'
            console.print(line, style=_BAD, markup=False)
    for violation in report.violations:
        console.print(f'  the hypervisors report: {violation}', style=_BAD, markup=False)
    console.print()
    console.print(_costs(report, rich.box.SIMPLE_HEAD if console.is_terminal else None))
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


def _costs(report: Report, box: rich.box.Box | None) -> rich.table.Table:
    table = rich.table.Table(
        box=box,
        title='What a migration cost',
        title_justify='left',
        title_style='bold',
        caption=('' if report.killed else 'at most: one migration of an idle cloud; ')
        + 'besides: polls, heartbeats and this screen, in all',
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
