# SPDX-License-Identifier: Apache-2.0

"""The screen of the demo while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

import rich.box
import rich.console
import rich.live
import rich.progress_bar
import rich.table
import rich.text

from migrator.demo.cloud import DemoCloud
from migrator.objects import Migration, MigrationStatus
from migrator.testing import counting

_S = MigrationStatus
_MOVED = frozenset({_S.RUNNING_POST_COPY, _S.POST_MIGRATING, _S.DONE, _S.COMPLETED})
_MIB = 1024 * 1024

_STYLES = {
    _S.ACCEPTED: 'dim',
    _S.PREPARING: 'cyan',
    _S.QUEUED: 'yellow',
    _S.RUNNING: 'bold blue',
    _S.RUNNING_POST_COPY: 'bold magenta',
    _S.POST_MIGRATING: 'magenta',
    _S.DONE: 'magenta',
    _S.COMPLETED: 'green',
}
_BAD = 'bold red'

#: The least width in columns for the column "Copied".
_WIDE = 100
#: The width of the cells besides the bar, and of the column "Copied".
_CELLS, _COPIED = 66, 20
#: The number of lines around the table: its title, its head and what follows it.
_AROUND = 9


@dataclasses.dataclass(frozen=True)
class Look:
    """The state of the cloud at one moment.

    :ivar histories: the uuid of a migration -> each status that it has had.
    :ivar population: host -> how many guests it runs.
    :ivar asked: how many migrations the demo requests in all.
    """

    migrations: Sequence[Migration]
    histories: Mapping[str, Sequence[dict[str, Any]]]
    names: dict[str, str]
    population: dict[str, int]
    asked: int
    now: datetime.datetime

    def position(self, migration: Migration) -> int:
        """Return a migration's position in the queue of its source, from 1."""
        waiting = [one for one in self.migrations if one.status == _S.QUEUED]
        waiting.sort(key=lambda one: (_moment(self.histories[one.uuid], _S.QUEUED) or self.now, one.id))
        return waiting.index(migration) + 1

    def counts(self) -> dict[str, int]:
        """Return how many migrations are in each status."""
        found: dict[str, int] = {}
        for one in self.migrations:
            found[one.status] = found.get(one.status, 0) + 1
        return found


def look(cloud: DemoCloud) -> Look:
    """Return the present state of the cloud. The cost of this counts as an aside."""
    with counting.aside():
        migrations = cloud.migrations()
        histories = cloud.histories()
    names = {guest.uuid: guest.name for guest in cloud.guests}
    return Look(migrations, histories, names, cloud.population(), len(cloud.leaving()), cloud.world.threads.clock.now())


class View(Protocol):
    """The interface of a display for the run."""

    def __enter__(self) -> View:
        """Begin the display."""

    def __exit__(self, *exc_info: Any) -> None:
        """Restore the terminal."""

    def show(self, seen: Look) -> None:
        """Show a new state."""

    def note(self, text: str) -> None:
        """Show what happens to a host."""


class Lines:
    """A display with one line for each change of a status, without escape sequences."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed: dict[str, int] = {}
        self._began: datetime.datetime | None = None

    def __enter__(self) -> Lines:
        """Begin the display."""
        return self

    def __exit__(self, *exc_info: Any) -> None:
        """Do nothing: there is nothing to restore."""

    def show(self, seen: Look) -> None:
        """Print the changes since the last call."""
        news = [
            (entry['at'], migration, entry['status'])
            for migration in seen.migrations
            for entry in seen.histories[migration.uuid][self._printed.get(migration.uuid, 0) :]
        ]
        for at, migration, status in sorted(news, key=lambda one: str(one[0])):
            moment = datetime.datetime.fromisoformat(at)
            self._began = self._began or moment
            # The destination is not known yet in the first status.
            route = migration.source_compute
            if status != _S.ACCEPTED:
                route = f'{route} -> {migration.dest_compute or "?"}'
            name = seen.names.get(migration.instance_uuid, migration.instance_uuid)
            seconds = (moment - self._began).total_seconds()
            print(f'{seconds:8.3f} s  {name}  {route:<16}  {status}', file=self._out, flush=True)
        self._printed = {uuid: len(history) for uuid, history in seen.histories.items()}

    def note(self, text: str) -> None:
        """Print what happens to a host."""
        print(f'            {text}', file=self._out, flush=True)


class Screen:
    """A table on a terminal that is redrawn for each state."""

    def __init__(self, console: rich.console.Console, title: str) -> None:
        self._console = console
        self._title = title
        self._note = ''
        self._unicode = console.encoding.startswith('utf')
        self._live = rich.live.Live(console=console, auto_refresh=False, vertical_overflow='crop')

    def __enter__(self) -> Screen:
        """Hide the cursor, and begin the display."""
        self._live.start()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        """Show the cursor again. The last table stays."""
        self._live.stop()

    def show(self, seen: Look) -> None:
        """Draw the table."""
        self._live.update(self.drawing(seen), refresh=True)

    def note(self, text: str) -> None:
        """Show below the table what happens to a host."""
        self._note = text

    def drawing(self, seen: Look) -> rich.console.Group:
        """Return the table and the line below it."""
        shown = self._that_fit(seen.migrations)
        hidden = len(seen.migrations) - len(shown)
        more = [rich.text.Text(f' and {hidden} more', style='dim')] if hidden else []
        more += [rich.text.Text(f' {self._note}', style='yellow')] if self._note else []
        return rich.console.Group(self._table(shown, seen), *more, self._foot(seen))

    def _table(self, shown: Sequence[Migration], seen: Look) -> rich.table.Table:
        table = rich.table.Table(
            box=rich.box.SIMPLE_HEAD, title=self._title, padding=(0, 1, 0, 0), title_justify='left', title_style='bold'
        )
        table.add_column('Guest', no_wrap=True)
        table.add_column('From, to', no_wrap=True)
        table.add_column('Status', no_wrap=True, min_width=14)
        table.add_column('Memory there', no_wrap=True)
        wide = self._console.width >= _WIDE
        if wide:
            table.add_column('Copied', justify='right', no_wrap=True)
        table.add_column('Queue', justify='right', no_wrap=True, min_width=6)
        table.add_column('Time', justify='right', no_wrap=True, min_width=6)
        for migration in shown:
            cells = self._cells(migration, seen)
            table.add_row(*(cells if wide else [*cells[:4], *cells[5:]]))
        return table

    def _that_fit(self, migrations: Sequence[Migration]) -> Sequence[Migration]:
        """Return the migrations that fit: active ones before queued ones, and those before ended ones."""
        room = max(3, self._console.height - _AROUND - bool(self._note))
        if len(migrations) <= room:
            return migrations
        order = sorted(
            migrations, key=lambda one: (one.ended, one.status == _S.QUEUED, -one.id if one.ended else one.id)
        )
        chosen = {one.uuid for one in order[: room - 1]}
        return [one for one in migrations if one.uuid in chosen]

    def _cells(self, migration: Migration, seen: Look) -> list[rich.console.RenderableType]:
        status = _S(migration.status)
        arrow = '\N{RIGHTWARDS ARROW}' if self._unicode else '->'
        style = _STYLES.get(status, _BAD)
        shown = 'stuck' if migration.stuck_reason else status.value
        history = seen.histories[migration.uuid]
        return [
            seen.names.get(migration.instance_uuid, '?'),
            f'{migration.source_compute} {arrow} {migration.dest_compute or "..."}',
            rich.text.Text(shown, style=_BAD if migration.stuck_reason else style),
            self._bar(migration, style),
            _copied(migration),
            self._queue(migration, seen),
            _seconds(_moment(history, _S.ACCEPTED), _end(migration, history) or seen.now),
        ]

    def _bar(self, migration: Migration, style: str) -> rich.table.Table:
        share = _share(migration)
        taken = _CELLS + (_COPIED if self._console.width >= _WIDE else 0)
        width = min(30, max(6, self._console.width - taken))
        bar = rich.progress_bar.ProgressBar(
            total=1, completed=share, width=width, complete_style=style, finished_style=style
        )
        cell = rich.table.Table.grid(padding=(0, 1, 0, 0))
        cell.add_column(width=width)
        cell.add_column(width=4)
        cell.add_row(bar, rich.text.Text(f'{share:4.0%}' if share else '', style='dim'))
        return cell

    def _queue(self, migration: Migration, seen: Look) -> rich.text.Text:
        history = seen.histories[migration.uuid]
        queued = _moment(history, _S.QUEUED)
        if migration.status == _S.QUEUED:
            return rich.text.Text(f'no. {seen.position(migration)}', style='yellow')
        started = next((_at(one) for one in history if _at(one) > queued), seen.now) if queued else None
        return rich.text.Text(_seconds(queued, started) if queued and started else '', style='dim')

    def _foot(self, seen: Look) -> rich.text.Text:
        done = seen.counts().get(_S.COMPLETED, 0)
        hosts = ''.join(f'   {host} {count}' for host, count in list(seen.population.items())[:12])
        more = len(seen.population) - 12
        hosts += f'   and {more} more' if more > 0 else ''
        return rich.text.Text.assemble(
            (f' {done} of {seen.asked} completed', 'green' if done == seen.asked else ''),
            ('     guests on ', 'dim'),
            (hosts.strip(), ''),
        )


def _share(migration: Migration) -> float:
    """Return the share of the guest's memory that is up to date at the destination, by the last report."""
    if migration.status in _MOVED:
        return 1.0
    if migration.status != _S.RUNNING or not migration.memory_total or migration.memory_remaining is None:
        return 0.0
    return 1 - migration.memory_remaining / migration.memory_total


def _copied(migration: Migration) -> str:
    if not migration.memory_total or migration.memory_processed is None:
        return ''
    if migration.status in _MOVED and migration.memory_processed < migration.memory_total:
        return ''  # the last report came before the end of the copy
    return f'{migration.memory_processed // _MIB} of {migration.memory_total // _MIB} MiB'


def _at(entry: dict[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(str(entry['at']))


def _moment(history: Sequence[dict[str, Any]], status: str) -> datetime.datetime | None:
    return next((_at(one) for one in history if one['status'] == status), None)


def _end(migration: Migration, history: Sequence[dict[str, Any]]) -> datetime.datetime | None:
    return _at(history[-1]) if migration.ended else None


def _seconds(since: datetime.datetime | None, until: datetime.datetime) -> str:
    return f'{max(0.0, (until - since).total_seconds()):.1f} s' if since else ''
