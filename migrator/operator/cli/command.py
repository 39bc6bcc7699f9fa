# SPDX-License-Identifier: Apache-2.0

"""The base of every command of migrator-manage: the invocation, arguments, output and exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import getpass
import io
import json
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from oslo_utils import uuidutils

from migrator import exception
from migrator.objects import base, times
from migrator.operator.cli.parser import PROG

if TYPE_CHECKING:  # a module that only some verbs need is imported there, so that --help is fast
    from oslo_config import cfg

    from migrator import executors
    from migrator.context import RequestContext
    from migrator.db.api import Database
    from migrator.db.slots import Bounds
    from migrator.db.sql.engine import Engine
    from migrator.drain.forecast import Band, Expected
    from migrator.placement_client.client import PlacementClient
    from migrator.rpc import RPC

RIGHT, WRONG, USAGE, UNREACHABLE = range(4)

#: The width of a table in a pipe, so that each row is one line, whatever its length.
_UNLIMITED_WIDTH = 10_000
#: The greatest number that an argument accepts. It fits into every column and every limit of every database.
MOST = 999_999_999
#: The greatest age that an argument accepts. The year that it leads to has four digits.
OLDEST = datetime.timedelta(days=365_000)
#: The default maximum of rows that a list shows.
LIMIT = 1000


@dataclasses.dataclass(frozen=True)
class Asked:
    """One invocation of a command.

    :ivar conf: the configuration, after its files were read.
    :ivar threads: the threads whose clock a SQLite database uses.
    :ivar client: the RPC client for conductors and hosts; None uses the configured broker.
    """

    conf: cfg.ConfigOpts
    arguments: argparse.Namespace
    threads: executors.Threads
    client: RPC | None = None

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine of the configured database, without retries, because an operator waits."""
        from migrator.db.sql.engine import engine_from_conf

        return engine_from_conf(self.conf, self.threads, max_retries=0)

    @functools.cached_property
    def database(self) -> Database:
        """The database, after a check of its schema.

        :raises migrator.exception.NoSchema: the database is empty.
        :raises migrator.exception.OtherSchema: another commit or another program has written it.
        :raises migrator.exception.DatabaseUnreachable: the database is away.
        """
        from migrator.db.api import Database
        from migrator.db.schema import sync

        sync.check(self.engine)
        return Database('', self.threads, engine=self.engine)

    @property
    def bounds(self) -> Bounds:
        """The bounds of the site on migrations at a time."""
        from migrator.db.slots import Bounds

        return Bounds.of(self.conf)

    def close(self) -> None:
        """Close the connections to the database, if there are any."""
        if 'engine' in vars(self):
            self.engine.dispose()

    def shown(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of a drain as this command shows it. Conductors run each drain."""
        return document

    @property
    def drain_command(self) -> str:
        """The beginning of each command about drains that is printed."""
        return f'{self.command} drain'

    @property
    def command(self) -> str:
        """The beginning of each command that is printed, with the same configuration files."""
        given = vars(self.arguments)
        words = [PROG]
        for option, name_ in (('--config-file', 'config_file'), ('--config-dir', 'config_dir')):
            for path in given.get(name_) or ():  # not every parser has both
                words += [option, path]
        return shlex.join(words)

    def typed(self, line: str) -> str:
        """Return a command as it can be typed here: ours with the same configuration files."""
        return base.printable(line.replace(PROG, self.command, 1) if line.startswith(f'{PROG} ') else line)

    def placement(self) -> PlacementClient:
        """Return the client of Placement.

        :raises migrator.exception.ConfigurationError: an option of ``[placement]`` is missing or invalid.
        """
        from migrator.placement_client.client import client_from_conf

        return client_from_conf(self.conf)

    def wake(self, context: RequestContext, migration_uuid: str, server: str | None) -> None:
        """Wake the owner of a migration, because a request has been committed.

        :param server: the owner's server name; None: any conductor.
        :raises Exception: any error of the broker or its configuration.
        """
        from migrator.conductor import rpcapi
        from migrator.conf import upgrade_levels

        version = upgrade_levels.version(self.conf, 'conductor', rpcapi.VERSIONS)
        with self.talking() as client:
            rpcapi.ConductorAPI(client, version).wake(context, migration_uuid, server)

    @contextlib.contextmanager
    def talking(self) -> Iterator[RPC]:
        """Yield an RPC client for conductors and hosts, and close it after the block.

        :raises migrator.exception.ConfigurationError: ``transport_url`` is invalid.
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
        """Print an answer, as JSON if the operator gave ``--json``."""
        print(json.dumps(document, default=times.as_json) if self.arguments.json else text)


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of a noun.

    :ivar arguments: adds the arguments of the verb to its parser.
    """

    name: str
    help: str
    run: Callable[[Asked], int]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def add_verbs(choices: Any, verbs: Iterable[Verb], common: argparse.ArgumentParser) -> None:
    """Add the parser of each verb.

    :param choices: the result of ``add_subparsers``.
    :param common: the options that each verb has.
    """
    for verb in verbs:
        one = choices.add_parser(verb.name, parents=[common], help=verb.help, description=verb.help, allow_abbrev=False)
        verb.arguments(one)
        one.set_defaults(run=verb.run, parser=one)


# --- errors ----------------------------------------------------------------------------------------------------------


def log_to_stderr(debug: bool) -> None:
    """Log to stderr with ``--debug``. Otherwise the log of an error would appear before its one line."""
    handler = logging.StreamHandler() if debug else logging.NullHandler()
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if debug else logging.WARNING)


def report(prog: str, error: Exception, conf: cfg.ConfigOpts | None = None) -> int:
    """Print any error of a command in one line, and return the exit status.

    :param conf: the configuration, if it was read.
    """
    from oslo_config import cfg

    from migrator.db.sql import options
    from migrator.operator.watch.errors import ApiInvalid
    from migrator.views.names import AmbiguousError

    if isinstance(error, BrokenPipeError):  # this is not an error: see pipes.quiet
        raise error
    if isinstance(error, (exception.ConfigurationError, AmbiguousError, ApiInvalid)):
        return fail(prog, USAGE, error)
    refused = None
    if isinstance(error, exception.DatabaseUnreachable) and conf is not None:
        refused = options.refusal(conf, error)
    # Later lines of a database's error quote the statement and its parameters. The first may quote the URL.
    line = options.without_password((str(refused or error).strip().splitlines() or ['an error without a text'])[0])
    if refused is not None or isinstance(error, cfg.Error):
        return fail(prog, USAGE, line)
    if isinstance(error, exception.MigratorException):
        return fail(prog, UNREACHABLE if isinstance(error, exception.ServiceUnreachable) else WRONG, line)
    return fail(prog, WRONG, f'{type(error).__name__}: {line}')


def fail(prog: str, status: int, error: object) -> int:
    """Print an error to stderr, and return the exit status."""
    print(f'{prog}: {error}', file=sys.stderr)
    return status


def user() -> str:
    """Return the name of the user who runs the command, for what is recorded of it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return 'an operator'


# --- arguments -------------------------------------------------------------------------------------------------------


def uuid(text: str) -> str:
    """Return a uuid of the command line, in its usual spelling.

    :raises argparse.ArgumentTypeError: the text is not a uuid.
    """
    if not uuidutils.is_uuid_like(text):
        raise argparse.ArgumentTypeError(f'{text!r} is not a uuid: give 8-4-4-4-12 hexadecimal digits')
    return str(UUID(text))


def guest(asked: Asked, text: str) -> str:
    """Return the uuid of a guest by any of its names; a whole uuid may be that of a deleted one.

    :raises migrator.exception.InstanceNotFound: no guest has this name.
    :raises migrator.views.names.AmbiguousError: two have it.
    """
    from migrator.views import names

    return str(UUID(text)) if uuidutils.is_uuid_like(text) else names.guest(asked.database, text).uuid


def check_host(asked: Asked) -> None:
    """Raise if ``--host`` names a host that no row of the database names.

    :raises migrator.exception.ComputeHostNotFound: no service has it, and no other row.
    """
    from migrator.views import names

    host = getattr(asked.arguments, 'host', None)
    if host is not None:
        names.check_host(asked.database, host)


def say_what(given: str, found: str, always: bool = False) -> None:
    """Print what a verb acts on to stderr, unless the user has given its whole uuid.

    :param found: the uuid and the name, in words.
    :param always: print it in any case, since the uuid shows too little of what is changed.
    """
    if always or not uuidutils.is_uuid_like(given):
        before = '' if uuidutils.is_uuid_like(given) else f'{printable(given)}: '
        print(f'{before}{printable(found)}', file=sys.stderr)


def at_least(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return an argument type for whole numbers from ``least`` to ``most``."""

    def whole(text: str) -> int:
        if not re.fullmatch('[0-9]{1,9}', text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f'{text[:40]!r} is not a whole number from {least} to {most}')
        return int(text)

    return whole


def name(text: str) -> str:
    """Return a name of the command line, after a check that it fits into its column.

    :raises argparse.ArgumentTypeError: the name is empty, too long or not printable.
    """
    if not 1 <= len(text) <= 255 or not text.isprintable():
        raise argparse.ArgumentTypeError(f'{text[:40]!r} is not a name: give 1 to 255 printable characters')
    return text


def flavor_name(text: str) -> str:
    """Return the name of a new flavor, which is its id in URLs.

    Nova accepts the same characters in the ids of flavors. A dot or a hyphen at the beginning would make a URL or a
    command line ambiguous.

    :raises argparse.ArgumentTypeError: the name is too long, or has other characters.
    """
    if len(text) > 255 or not re.fullmatch('[A-Za-z0-9_]([A-Za-z0-9 ._-]*[A-Za-z0-9._-])?', text):
        raise argparse.ArgumentTypeError(
            f'{text[:40]!r} is not a name of a flavor: give 1 to 255 of the characters A-Z a-z 0-9 . _ - and space; '
            'the first is a letter, a digit or _, and the last is not a space'
        )
    return text


def past(text: str) -> datetime.datetime | datetime.timedelta:
    """Return a time or an age of the command line.

    A time without a zone is in UTC.

    :raises argparse.ArgumentTypeError: the text is neither, or the age is above :data:`OLDEST`.
    """
    return _time_or_span(text, 'an age')


def future(text: str) -> datetime.datetime | datetime.timedelta:
    """Return a time, or a span from now, of the command line.

    A time without a zone is in UTC.

    :raises argparse.ArgumentTypeError: the text is neither, or the span is above :data:`OLDEST`.
    """
    return _time_or_span(text, 'a span from now')


def seconds(text: str) -> float:
    """Return a span of the command line in seconds.

    :raises argparse.ArgumentTypeError: the text is not a span, or is one of 0 or above 100 days.
    """
    found = re.fullmatch('([0-9]{1,7})([smhd]?)', text)
    length = datetime.timedelta(**{_UNITS[found[2] or 's']: int(found[1])}) if found else datetime.timedelta()
    if not datetime.timedelta() < length <= datetime.timedelta(days=100):
        raise argparse.ArgumentTypeError(f'{text[:40]!r} is not a span of at most 100 days, such as 90s, 30m, 4h or 2d')
    return length.total_seconds()


def _time_or_span(text: str, span: str) -> datetime.datetime | datetime.timedelta:
    found = re.fullmatch('([0-9]{1,6})([dhm])', text)
    length = datetime.timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None
    if length is not None and length <= OLDEST:
        return length
    try:
        at = datetime.datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        spans = f'{span} of at most {OLDEST.days}d, such as 30d, 12h or 90m'
        examples = f'give one such as 2026-01-31 or 2026-01-31T12:00:00Z, or {spans}'
        raise argparse.ArgumentTypeError(f'{text[:40]!r} is not a time: {examples}') from None


_UNITS = {'d': 'days', 'h': 'hours', 'm': 'minutes', 's': 'seconds'}


def limit(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``--limit``."""
    help_ = f'show at most N, the newest; default {LIMIT}'
    parser.add_argument('--limit', type=at_least(1), default=LIMIT, metavar='N', help=help_)


# --- long work -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(asked: Asked, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of long work on stderr, if that is a terminal and the output is not JSON.

    :param total: the number of steps.
    :returns: a function that the caller calls with each number of finished steps.
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
    """Return rows as a table below the names of the columns.

    None is shown as a dash. A narrow terminal folds long cells. In a pipe each row is one line.
    """
    import rich.console
    import rich.table
    import rich.text

    drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style='')
    for column in columns:
        drawn.add_column(rich.text.Text(column), overflow='fold')
    for row in rows:
        drawn.add_row(*(rich.text.Text(printable(cell)) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED_WIDTH
    console = rich.console.Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(drawn)
    return '\n'.join(line.rstrip() for line in captured.get().splitlines())


def printable(cell: object) -> str:
    """Return the text of a cell in one line, without control characters.

    Users choose names, and a terminal executes the control sequences in them.
    """
    if cell is None or cell == '':
        return '-'
    return base.printable(moment(cell) if isinstance(cell, datetime.datetime) else str(cell))


def printable_lines(lines: Iterable[str]) -> str:
    """Return lines as one text, without control characters."""
    return '\n'.join(printable(line) if line else '' for line in lines)


span, ago, moment = times.span, times.ago, times.moment


def expected_end(expected: Expected, now: datetime.datetime) -> str | None:
    """Return the time of an expected end, or None if it is not known."""
    end = expected.end
    return None if end is None else moment(now + datetime.timedelta(seconds=end.p50))


def at(band: Band | None, now: datetime.datetime) -> str | None:
    """Return the times at which something happens in half of the cases, and in four of five."""
    if band is None:
        return None
    half, most = (moment(now + datetime.timedelta(seconds=seconds)) for seconds in (band.p50, band.p80))
    return f'{half}, and in four of five cases before {most}'


def expected(found: Mapping[str, Any]) -> str:
    """Return when something is expected to end, or why that is not known, in a sentence.

    :param found: the document of a :class:`migrator.drain.forecast.Expected`, with aware times.
    """
    if found['end'] is None:
        return f'When it ends is not known. {found["reason"] or ""}'.strip()
    half, most = (moment(found['end'][name]) for name in ('p50', 'p80'))
    return f'It is expected to end at {half}, and in four of five cases before {most} (UTC).'
