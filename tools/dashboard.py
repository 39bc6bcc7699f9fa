# SPDX-License-Identifier: Apache-2.0

"""Draws etc/migrator/grafana.json as a picture: the picture of the documentation.

    python tools/dashboard.py --out FILE.png --minutes 15                a site of the long run, with its faults
    python tools/dashboard.py --out FILE.png --prometheus URL            what a Prometheus has of the last 15 minutes

Grafana itself is in no package of Debian, PyPI or npm. So this sends the expressions of each panel to Prometheus, lays
the panels out as the file says, and draws the graphs with uPlot, the library that Grafana draws its own with. It needs
Chromium, npm, pngquant, and without ``--prometheus`` Prometheus and what ``make long-run`` needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

UPLOT = 'uplot@1.6.32'
#: Seconds between two scrapes, and between two points of a graph; pixels of a column, of a row, and between panels.
SCRAPE, STEP = 15, 15
COLUMN, ROW, GAP = 48, 30, 8
#: What the site of the picture has set: everything that has a panel.
OPTIONS = (
    ('conductor.audit_interval', 60),
    ('conductor.max_cluster_live_migrations', 6),
    ('max_concurrent_inbound_live_migrations', 3),
    ('oslo_messaging_notifications.driver', 'messagingv2'),
)


def ask(url: str, expr: str, begin: float, end: float, step: int) -> list[dict[str, Any]]:
    """Return the series that an expression has: their labels, and their values at each step."""
    query = {'query': expr, 'start': begin, 'end': end, 'step': step}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f'{url}/api/v1/query_range?{urllib.parse.urlencode(query)}', timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)['data']['result']
    return found


def named(target: dict[str, Any], labels: dict[str, str]) -> str:
    """Return the name of a series in the legend, as Grafana makes it."""
    name = target['legendFormat']
    for label, value in labels.items():
        name = name.replace('{{' + label + '}}', value)
    return str(name)


def panel(url: str, one: dict[str, Any], begin: float, end: float) -> dict[str, Any]:
    """Return what the page draws of a panel."""
    place = one['gridPos']
    drawn: dict[str, Any] = {
        'title': one['title'], 'type': one['type'],
        'left': place['x'] * COLUMN + GAP, 'top': place['y'] * ROW + GAP,
        'width': place['w'] * COLUMN - GAP, 'height': place['h'] * ROW - GAP,
    }  # fmt: skip
    if one['type'] == 'row':
        return drawn
    defaults = one['fieldConfig']['defaults']
    step = 60 if one.get('interval') == '1m' else STEP
    begin, end = begin // step * step, end // step * step
    times = [begin + number * step for number in range(int((end - begin) / step) + 1)]
    series = []
    for target in one['targets']:
        expr = target['expr'].replace('$__rate_interval', f'{4 * SCRAPE}s').replace('$__interval', f'{step}s')
        for found in ask(url, expr, begin, end, step):
            at = {float(when): float(value) for when, value in found['values']}
            values = [None if math.isnan(at.get(when, math.nan)) else at[when] for when in times]
            series.append({'name': named(target, found['metric']), 'values': values})
    drawn |= {'unit': defaults.get('unit'), 'times': times, 'series': series}
    drawn |= {'none': defaults.get('noValue', 'No data'), 'decimals': defaults.get('decimals')}
    drawn['legend'] = one['options'].get('legend', {}).get('placement')
    drawn['bars'] = defaults.get('custom', {}).get('drawStyle') == 'bars'
    if one['type'] == 'stat':
        last = [value for value in (series[0]['values'] if series else []) if value is not None]
        drawn['value'] = last[-1] if last else None
        steps = [step['color'] for step in defaults['thresholds']['steps'] if last and last[-1] >= (step['value'] or 0)]
        drawn['color'] = {'green': '#56a64b', 'red': '#e02f44'}[steps[-1]] if steps else ''
    return drawn


def draw(url: str, out: pathlib.Path, minutes: float) -> None:
    """Write the picture of the last minutes, and print the panels that have no data."""
    dashboard = json.loads((ROOT / 'etc/migrator/grafana.json').read_text())
    end = time.time() // 60 * 60
    panels = [panel(url, one, end - minutes * 60, end) for one in dashboard['panels']]
    for one in panels:
        if one['type'] != 'row' and not one['series']:
            print(f'no data: {one["title"]}')
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        run(['npm', 'pack', '--silent', UPLOT], directory)
        shutil.unpack_archive(next(directory.glob('*.tgz')), directory)
        library = directory / 'package/dist'
        parts = {
            'UPLOTCSS': (library / 'uPlot.min.css').read_text(),
            'PANELS': json.dumps(panels),
            'TIMES': json.dumps([end - minutes * 60, end]),
            'UPLOTJS': (library / 'uPlot.iife.min.js').read_text(),
        }
        text = pathlib.Path(__file__).with_suffix('.html').read_text()
        for word, part in parts.items():
            text = text.replace(word, part)
        page = directory / 'page.html'
        page.write_text(text)
        size = f'{24 * COLUMN + GAP},{max(one["top"] + one["height"] for one in panels) + GAP}'
        options = ['--headless', '--no-sandbox', '--hide-scrollbars', f'--window-size={size}']
        run(['chromium', *options, '--screenshot=page.png', str(page)], directory)
        run(['pngquant', '--force', '--output', str(out.resolve()), '64', 'page.png'], directory)


def run(command: Sequence[str], directory: pathlib.Path) -> None:
    """Run a command, which has to succeed."""
    subprocess.run(command, cwd=directory, check=True, capture_output=True)  # noqa: S603 -- of this file


@contextlib.contextmanager
def site(minutes: float) -> Iterator[str]:
    """Run a piece of the long run, and return the URL of a Prometheus that has scraped its services."""
    from tests.long_run.journal import Journal
    from tests.long_run.piece import Piece, Settings, workspace
    from tests.real.servers.prometheus import Prometheus

    settings = Settings(minutes=minutes, rest=minutes, options=OPTIONS, pace=1)
    with (
        tempfile.TemporaryDirectory() as name,
        workspace() as made,
        Piece(made, settings, Journal(pathlib.Path(name))) as piece,
    ):
        prometheus = Prometheus(made, piece.site.metrics(), SCRAPE)
        prometheus.start()
        piece.run()
        yield prometheus.url


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog='dashboard', description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--minutes', type=float, default=15)
    parser.add_argument('--prometheus', metavar='URL')
    arguments = parser.parse_args(argv)
    with contextlib.nullcontext(arguments.prometheus) if arguments.prometheus else site(arguments.minutes) as url:
        draw(url, arguments.out, arguments.minutes)


if __name__ == '__main__':
    main()
