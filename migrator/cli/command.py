# SPDX-License-Identifier: Apache-2.0

"""What every command of migrator-manage stands on: what was asked for, how it answers, and its exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from oslo_config import cfg
from oslo_utils import uuidutils

from migrator import executors
from migrator.objects import base, times

if TYPE_CHECKING:  # whatever only some verbs need is imported where they use it, so that the help comes at once
    from migrator.context import RequestContext
    from migrator.db import conductors
    from migrator.db.api import Database
    from migrator.db.engine import Engine
    from migrator.placement_client import client as placement_client
    from migrator.rpc import RPC

RIGHT, WRONG, USAGE, UNREACHABLE = range(4)

PROG = 'migrator-manage'

#: Columns of a terminal that is none: in a pipe each row is one line, however long.
_WITHOUT_END = 10_000
#: The greatest number that an argument may be: it fits into every column and every limit of every database.
MOST = 999_999_999
#: What a list shows at most, unless it is told otherwise.
LIMIT = 1000


@dataclasses.dataclass(frozen=True)
class Asked:
    """What was asked for.

    :ivar conf: the configuration, read.
    :ivar threads: whose clock a SQLite database has.
    :ivar client: how it talks to conductors and hosts; None: by the configured broker.
    """

    conf: cfg.ConfigOpts
    arguments: argparse.Namespace
    threads: executors.Threads
    client: RPC | None = None

    def engine(self) -> Engine:
        """Return the engine of the configured database; it gives up at once, for somebody waits for the answer."""
        from migrator.db import options

        return options.engine_from_conf(self.conf, self.threads, max_retries=0)

    @functools.cached_property
    def database(self) -> Database:
        """The database, of a schema that this release knows.

        :raises migrator.exception.SchemaTooOld: or SchemaTooNew, or DatabaseUnreachable.
        """
        from migrator.db import sync
        from migrator.db.api import Database

        engine = self.engine()
        sync.check(engine)
        return Database('', self.threads, engine=engine)

    @property
    def command(self) -> str:
        """What a command that is printed begins with, so that it can be pasted: it reads the same configuration."""
        given = vars(self.arguments)
        words = [PROG]
        for option, name_ in (('--config-file', 'config_file'), ('--config-dir', 'config_dir')):
            for path in given.get(name_) or ():  # not every parser has both
                words += [option, path]
        return shlex.join(words)

    def placement(self) -> placement_client.PlacementClient:
        """Return the way to Placement.

        :raises migrator.exception.ConfigurationError: ``[placement]`` is not right.
        """
        from migrator.placement_client import client as placement_client

        return placement_client.client_from_conf(self.conf)

    def wake(self, context: RequestContext, migration_uuid: str, server: str | None) -> None:
        """Wake a migration's owner, for a wish has been committed.

        :param server: the owner's server name; None: any conductor.
        :raises Exception: whatever the broker, or what is configured of it, is wrong with.
        """
        from migrator.conductor import rpcapi
        from migrator.conf import upgrade_levels

        level = upgrade_levels.pin(self.conf, 'conductor', [*rpcapi.VERSIONS])
        with self.talking() as client:
            rpcapi.ConductorAPI(client, level or rpcapi.VERSION).wake(context, migration_uuid, server)

    @contextlib.contextmanager
    def talking(self) -> Iterator[RPC]:
        """Talk to conductors and hosts within the block.

        :raises migrator.exception.ConfigurationError: ``transport_url`` cannot be.
        """
        if self.client is not None:
            yield self.client
            return
        from migrator import rpc

        transport = rpc.get_transport(self.conf)
        try:
            yield rpc.OsloRPC(transport, self.threads)
        finally:
            transport.cleanup()

    def answer(self, document: Any, text: str) -> None:
        """Print an answer, as JSON where that was asked for."""
        print(json.dumps(document, default=_plain) if self.arguments.json else text)


@dataclasses.dataclass(frozen=True)
class Verb:
    """What can be done to a noun.

    :ivar arguments: adds the verb's own arguments to its parser.
    """

    name: str
    help: str
    run: Callable[[Asked], int]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def _plain(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(f'{type(value).__name__} has no JSON')


# --- arguments -------------------------------------------------------------------------------------------------------


def uuid(text: str) -> str:
    """Return a uuid of the command line, in its usual spelling.

    :raises argparse.ArgumentTypeError: it is none.
    """
    if not uuidutils.is_uuid_like(text):
        raise argparse.ArgumentTypeError(f'{text!r} is no uuid: 8-4-4-4-12 hexadecimal digits would do')
    return str(UUID(text))


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of argument: whole numbers from this one to :data:`MOST`."""

    def whole(text: str) -> int:
        if not re.fullmatch('[0-9]{1,9}', text) or int(text) < least:
            raise argparse.ArgumentTypeError(f'{text[:40]!r} is no whole number from {least} to {MOST}')
        return int(text)

    return whole


def name(text: str) -> str:
    """Return a name of the command line, which fits into its column.

    :raises argparse.ArgumentTypeError: it does not.
    """
    if not 1 <= len(text) <= 255 or not text.isprintable():
        raise argparse.ArgumentTypeError(f'{text[:40]!r} is no name: 1 to 255 printable characters would do')
    return text


def past(text: str) -> datetime.datetime | datetime.timedelta:
    """Return a time of the command line, in UTC unless it names its zone, or how long ago one is.

    :raises argparse.ArgumentTypeError: it is none.
    """
    age = re.fullmatch('([0-9]{1,6})([dhm])', text)
    if age:
        return datetime.timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        at = datetime.datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        would_do = '2026-01-31, 2026-01-31T12:00:00Z, or an age such as 30d, 12h or 90m would do'
        raise argparse.ArgumentTypeError(f'{text[:40]!r} is no time: {would_do}') from None


_UNITS = {'d': 'days', 'h': 'hours', 'm': 'minutes'}


def limit(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``--limit``."""
    help_ = f'show so many at most, the newest; default {LIMIT}'
    parser.add_argument('--limit', type=at_least(1), default=LIMIT, metavar='N', help=help_)


# --- long work -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(asked: Asked, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far a long work is, on stderr, where that is a terminal and nobody wants JSON.

    :param total: how many steps it has.
    :returns: what is to be called with each number of steps done.
    """
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    shown = console.is_terminal and not asked.arguments.json and total > 0
    with rich.progress.Progress(console=console, disable=not shown, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


# --- answers ---------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows in columns below their names; None is a dash.

    On a terminal that is too narrow, cells are folded; in a pipe, each row is one line.
    """
    import rich.console
    import rich.table
    import rich.text

    drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style='')
    for column in columns:
        drawn.add_column(rich.text.Text(column), overflow='fold')
    for row in rows:
        drawn.add_row(*(rich.text.Text(printable(cell)) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WITHOUT_END
    console = rich.console.Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(drawn)
    return '\n'.join(line.rstrip() for line in captured.get().splitlines())


def printable(cell: object) -> str:
    """Return a cell's text in one line: names are their givers', and a terminal obeys what it is sent."""
    if cell is None or cell == '':
        return '-'
    return base.printable(moment(cell) if isinstance(cell, datetime.datetime) else str(cell))


def moment(at: datetime.datetime) -> str:
    """Return a time, in UTC and whole seconds."""
    return at.astimezone(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S')


span, ago = times.span, times.ago


def why_unheard(lives: Iterable[conductors.Life], now: datetime.datetime) -> str | None:
    """Return why nothing can be heard of any compute host, so that each is shown as it was then; None: it can.

    :param lives: of all conductors.
    :param now: the database's time.
    """
    known = sorted(lives, key=lambda life: life.lease_until)
    living = [life for life in known if life.lease_until > now]
    away = [life.broker_away_since for life in living if life.broker_away_since is not None]
    if not living:
        return f'no conductor has listened {f"since {moment(known[-1].lease_until)} UTC" if known else "yet"}'
    if len(away) < len(living):
        return None
    servers = ' and '.join(sorted({life.server for life in living}))
    return f'{servers} cannot reach the message broker since {moment(min(away))} UTC'
