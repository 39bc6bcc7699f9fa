# SPDX-License-Identifier: Apache-2.0

"""The picture of guests that move: drawn on a terminal, as plain lines, or as JSON lines.

:func:`draw` is pure: it takes a :class:`Picture` and returns what rich prints.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TextIO

import rich.box
import rich.console
import rich.live
import rich.progress_bar
import rich.table
import rich.text

from migrator.objects import FINAL, MigrationStatus, base
from migrator.objects.drain import MEMBER_ENDS, MemberStatus

_S, _M = MigrationStatus, MemberStatus
#: The statuses in which the guest is at its destination.
_THERE = frozenset({_S.RUNNING_POST_COPY, _S.POST_MIGRATING, _S.DONE, _S.COMPLETED, _M.MOVED})
_THERE |= {_S.FINISHED, _S.CONFIRMING, _S.CONFIRMED}
#: The statuses in which a guest is not on its way yet.
_WAITING = frozenset({_S.ACCEPTED, _S.QUEUED, _M.WAITING, _M.BLOCKED})
_ENDED = FINAL | MEMBER_ENDS
_MIB = 1024 * 1024

_STYLES: dict[str, str] = {
    _S.ACCEPTED: 'dim',
    _S.PREPARING: 'cyan',
    _S.QUEUED: 'yellow',
    _S.RUNNING: 'bold blue',
    _S.RUNNING_POST_COPY: 'bold magenta',
    _S.POST_MIGRATING: 'magenta',
    _S.DONE: 'magenta',
    _S.COMPLETED: 'green',
    _S.PRE_MIGRATING: 'cyan',
    _S.MIGRATING: 'bold blue',
    _S.FINISHED: 'yellow',
    _S.CONFIRMING: 'magenta',
    _S.CONFIRMED: 'green',
    _S.REVERTING: 'magenta',
    _S.REVERTED: 'dim',
    _M.WAITING: 'dim',
    _M.MOVING: 'cyan',
    _M.MOVED: 'green',
    _M.GONE: 'dim',
}
_BAD = 'bold red'

#: The least width in columns for the columns "Rate" and "Ends".
_WIDE = 100
#: The width of the cells besides the bar, and of those two columns.
_CELLS, _MORE = 66, 24
#: The number of lines around the table: its title, its head and the foot.
_AROUND = 8
#: The most lines of a note, and of all notes of the last picture, which stays.
_NOTE_LINES, _NOTES = 5, 100
#: The least rows of the table that are shown.
_ROWS = 3
#: The number of events below the table.
_EVENTS = 4


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that has happened.

    :ivar document: the event as JSON.
    :ivar brief: the text on a screen that shows the reason elsewhere; empty: the whole text.
    """

    at: datetime.datetime
    text: str
    document: dict[str, Any]
    brief: str = ''

    def __str__(self) -> str:
        return f'{self.at:%H:%M:%S}  {base.printable(self.text)}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A guest that moves, or waits for that.

    :ivar key: identifies the row in the next picture.
    :ivar status: the status of its migration in progress; else that of the guest in its drain.
    :ivar is_stuck: whether its migration is stuck, so that an operator should look at it.
    :ivar total: its memory in bytes, and of that what was sent and what is still to be sent; None: not known.
    :ivar place: its place among those that wait, from 1.
    :ivar rate: how fast its memory is sent, in bytes per second.
    :ivar expected: when it is expected to end.
    """

    key: str
    name: str
    source: str
    status: str
    destination: str | None = None
    is_stuck: bool = False
    total: int | None = None
    processed: int | None = None
    remaining: int | None = None
    place: int | None = None
    rate: float | None = None
    began_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    expected: datetime.datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status in _ENDED

    @property
    def share(self) -> float:
        """The share of its memory that is up to date at the destination, by the last report."""
        if self.status in _THERE:
            return 1.0
        if self.status != _S.RUNNING or not self.total or self.remaining is None:
            return 0.0
        return 1 - self.remaining / self.total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A drain, a host or a migration at one moment.

    :ivar notes: what the operator should know now, such as what a drain waits for.
    :ivar on_screen: what a screen shows instead of the notes; None: the notes.
    :ivar command: shows a note that has no room.
    :ivar foot: the line below everything.
    :ivar events: what has happened since the picture before.
    :ivar status: the exit status, once it has ended.
    """

    title: str
    rows: Sequence[Row]
    now: datetime.datetime
    notes: Sequence[str] = ()
    on_screen: Sequence[str] | None = None
    foot: str = ''
    events: Sequence[Event] = ()
    status: int | None = None
    command: str = ''


class View(Protocol):
    """The interface of a display."""

    def __enter__(self) -> View:
        """Begin the display."""

    def __exit__(self, *exc_info: Any) -> None:
        """Restore the terminal."""

    def show(self, picture: Picture) -> None:
        """Show a new picture."""

    def note(self, text: str) -> None:
        """Show a problem of the display itself until the next picture, such as an API that is away."""


class Lines:
    """A display with one line for each event and each new note, without escape sequences.

    :param errors: where it prints what concerns the display itself.
    :param as_json: print each event as JSON, and no notes.
    """

    def __init__(self, out: TextIO, errors: TextIO, as_json: bool = False) -> None:
        self._out = out
        self._errors = errors
        self._as_json = as_json
        self._notes: Sequence[str] = ()
        self._events: Sequence[Event] = ()
        self._error = ''

    def __enter__(self) -> Lines:
        """Begin the display."""
        return self

    def __exit__(self, *exc_info: Any) -> None:
        """Do nothing: there is nothing to restore."""

    def show(self, picture: Picture) -> None:
        """Print the events, and the notes that are new and in none of the last events."""
        self._error = ''
        self._events = picture.events or self._events
        for event in picture.events:
            print(json.dumps(event.document) if self._as_json else event, file=self._out, flush=True)
        if not self._as_json:
            for text in picture.notes:
                if text not in self._notes and not any(text in event.text for event in self._events):
                    print(f'{picture.now:%H:%M:%S}  {base.printable(text)}', file=self._out, flush=True)
            self._notes = picture.notes

    def note(self, text: str) -> None:
        """Print it, unless it was printed since the last picture."""
        if text != self._error:
            print(base.printable(text), file=self._errors, flush=True)
            self._error = text


class Screen:
    """A display on a terminal that is redrawn for each picture."""

    def __init__(self, console: rich.console.Console) -> None:
        self._console = console
        self._events: collections.deque[Event] = collections.deque(maxlen=_EVENTS)
        self._last: Picture | None = None
        self._live = rich.live.Live(console=console, auto_refresh=False, vertical_overflow='crop')

    def __enter__(self) -> Screen:
        """Hide the cursor, and begin the display."""
        self._live.start()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        """Show the cursor again. The last picture stays."""
        self._live.stop()

    def show(self, picture: Picture) -> None:
        """Draw the picture."""
        self._events.extend(picture.events)
        self._last = picture
        self._draw(picture)

    def note(self, text: str) -> None:
        """Draw the last picture again, with the note."""
        if self._last is None:
            self._console.print(text, style='yellow', markup=False)
        else:
            self._draw(dataclasses.replace(self._last, on_screen=[*_said(self._last), text]))

    def _draw(self, picture: Picture) -> None:
        drawn = draw(dataclasses.replace(picture, events=[*self._events]), self._console)
        self._live.update(drawn, refresh=True)


def draw(picture: Picture, console: rich.console.Console) -> rich.console.Group:
    """Return a picture as it looks on a console of this width, height and encoding. Nothing is printed."""
    # The last picture stays, and has room for all that is said.
    is_last = picture.status is not None
    most = _NOTES if is_last else _NOTE_LINES
    notes = [line for text in _said(picture) for line in _note(text, picture.command, most, console)]
    room = _NOTES if is_last else max(_NOTE_LINES, console.height - _AROUND - _ROWS - 1)
    if len(notes) > room:
        rest = _note('', picture.command, 0, console)
        notes = [*notes[: room - len(rest)], *rest]
    foot = _note(picture.foot, picture.command, _NOTE_LINES, console, '') if picture.foot else []
    room = console.height - _AROUND - len(notes) - len(foot) + 1  # around the table is one line of the foot
    events = _events(picture, room - _ROWS, console)
    room = max(_ROWS, room - len(events))
    shown = _that_fit(picture.rows, room)
    hidden = len(picture.rows) - len(shown)
    parts: list[rich.console.RenderableType] = [_table(picture, shown, console)]
    parts += [_line(f'and {hidden} more', 'dim')] if hidden else []
    parts += notes
    parts += events
    parts += foot
    return rich.console.Group(*parts)


def _said(picture: Picture) -> Sequence[str]:
    return picture.notes if picture.on_screen is None else picture.on_screen


def _events(picture: Picture, room: int, console: rich.console.Console) -> list[rich.text.Text]:
    """Return the last event, and those before it that have room."""
    found: list[rich.text.Text] = []
    for event in reversed(picture.events):
        text = str(dataclasses.replace(event, text=event.brief or event.text))
        lines = _note(text, picture.command, _NOTE_LINES, console, 'dim')
        if found and len(found) + len(lines) > room:
            break
        found = [*lines, *found]
    return found


def _note(
    text: str, command: str, most: int, console: rich.console.Console, style: str = 'yellow'
) -> list[rich.text.Text]:
    """Return a note in a few lines, the last of which names a command if it has no room."""
    width = max(20, console.width - 2)
    lines = [*rich.text.Text(base.printable(text)).wrap(console, width)]
    if len(lines) > most:
        # A command that is cut off could not be typed.
        rest = rich.text.Text(f'All of it: {command}' if command else '...').wrap(console, width)
        lines[max(0, most - 1) :] = rest
    return [_line(line.plain, style) for line in lines]


def _line(text: str, style: str) -> rich.text.Text:
    return rich.text.Text(f' {base.printable(text)}', style=style, no_wrap=True, overflow='ellipsis')


def _that_fit(rows: Sequence[Row], room: int) -> Sequence[Row]:
    """Return the rows that fit: first those on their way, then those that wait, then the ended ones."""
    if len(rows) <= room:
        return rows
    order = sorted(range(len(rows)), key=lambda at: _urgency(rows[at], at))
    chosen = {*order[: room - 1]}
    return [row for at, row in enumerate(rows) if at in chosen]


def _urgency(row: Row, at: int) -> tuple[bool, bool, int, int]:
    return row.ended, row.status in _WAITING, row.place or 0, -at if row.ended else at


def _table(picture: Picture, shown: Iterable[Row], console: rich.console.Console) -> rich.table.Table:
    table = rich.table.Table(
        box=rich.box.SIMPLE_HEAD,
        title=rich.text.Text(base.printable(picture.title)),
        padding=(0, 1, 0, 0),
        title_justify='left',
        title_style='bold',
    )
    wide = console.width >= _WIDE
    table.add_column('Guest', no_wrap=True)
    table.add_column('From, to', no_wrap=True)
    table.add_column('Status', no_wrap=True, min_width=14)
    table.add_column('Memory there', no_wrap=True)
    if wide:
        table.add_column('Rate', justify='right', no_wrap=True, min_width=10)
    table.add_column('Place', justify='right', no_wrap=True, min_width=6)
    table.add_column('Time', justify='right', no_wrap=True, min_width=6)
    if wide:
        table.add_column('Ends', justify='right', no_wrap=True, min_width=9)
    bar = min(30, max(6, console.width - _CELLS - (_MORE if wide else 0)))
    arrow = '\N{RIGHTWARDS ARROW}' if console.encoding.startswith('utf') else '->'
    for row in shown:
        style = _BAD if row.is_stuck else _STYLES.get(row.status, _BAD)
        cells: list[rich.console.RenderableType] = [
            base.printable(row.name),
            row.source if row.source == row.destination else f'{row.source} {arrow} {row.destination or "..."}',
            rich.text.Text('stuck' if row.is_stuck else row.status, style=style),
            _bar(row.share, bar, style),
        ]
        cells += [f'{row.rate / _MIB:.0f} MiB/s' if row.rate else ''] if wide else []
        cells += [
            rich.text.Text('' if row.place is None else f'no. {row.place}', style='yellow'),
            _seconds(row.began_at, row.ended_at or picture.now),
        ]
        cells += [f'{row.expected.astimezone(datetime.UTC):%H:%M:%S}' if row.expected else ''] if wide else []
        table.add_row(*cells)
    return table


def _bar(share: float, width: int, style: str) -> rich.table.Table:
    bar = rich.progress_bar.ProgressBar(
        total=1, completed=share, width=width, complete_style=style, finished_style=style
    )
    cell = rich.table.Table.grid(padding=(0, 1, 0, 0))
    cell.add_column(width=width)
    cell.add_column(width=4)
    cell.add_row(bar, rich.text.Text(f'{share:4.0%}' if share else '', style='dim'))
    return cell


def _seconds(since: datetime.datetime | None, until: datetime.datetime) -> str:
    if since is None:
        return ''
    seconds = max(0.0, (until - since).total_seconds())
    return f'{seconds:.1f} s' if seconds < 1000 else f'{seconds / 60:.0f} min'
