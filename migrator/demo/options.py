# SPDX-License-Identifier: Apache-2.0

"""The options of ``migrator-demo``, and whether what they ask for can be."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from migrator.conf import api

PROG = 'migrator-demo'
USAGE = 2

#: What a host of the demo has: enough for a hundred guests of the default size.
HOST_VCPUS = 128
HOST_MEMORY_MB = 262144
HOST_DISK_GB = 4000

#: How slowly a guest that is throttled most still dirties its memory, compared with an unhindered one.
_THROTTLED = 0.01
#: A guest's own dirty rate is at most so many times the one that was asked for.
BUSIEST = 1.5


@dataclasses.dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f'{self.host}:{self.port}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for. Memory is in MiB, rates are in MiB/s, times in seconds."""

    hosts: int = 4
    instances: int = 12
    max_concurrent: int = 2
    guest_memory: int = 2048
    dirty_rate: float = 256.0
    bandwidth: float = 2048.0
    prepare: float = 0.0
    seed: int = 1
    json: bool = False
    serve: Address | None = None
    placement: Address | None = None

    @property
    def leaving(self) -> int:
        """How many guests are on the host that is to be emptied: half of them."""
        return -(-self.instances // 2)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        said = re.sub(r'^argument (\S+): ', r'\1 ', message)
        self.exit(USAGE, f'{self.prog}: {said} (see {self.prog} --help)\n')


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Return what a command line asks for.

    :raises SystemExit: it asks for help, or for what cannot be; one line has said so.
    """
    parser = _make_parser()
    settings = Settings(**vars(parser.parse_args(argv)))
    problem = misfit(settings)
    if problem:
        parser.error(problem)
    return settings


def _make_parser() -> argparse.ArgumentParser:
    default = Settings()
    parser = _Parser(
        prog=PROG,
        allow_abbrev=False,
        description='A whole cloud in one process: it empties one of its hosts while you watch, and audits every '
        'allocation. With --serve it stays up, for the openstack client.',
        epilog='Exit status: 0 every migration completed and no finding; 1 otherwise; 2 an option cannot be; 3 a '
        'part of it is not installed; 130 interrupted.',
    )
    add = parser.add_argument
    add('--hosts', type=_whole(2), default=default.hosts, metavar='N', help='compute hosts (%(default)s)')
    add('--instances', type=_whole(1), default=default.instances, metavar='N', help='guests (%(default)s)')
    add(
        '--max-concurrent',
        type=_whole(1),
        default=default.max_concurrent,
        metavar='N',
        help='live migrations that leave a host at once; the others queue (%(default)s)',
    )
    add(
        '--guest-memory',
        type=_whole(1),
        default=default.guest_memory,
        metavar='MIB',
        help='memory of each guest, MiB (%(default)s)',
    )
    add(
        '--dirty-rate',
        type=_rate(above_zero=False),
        default=default.dirty_rate,
        metavar='MIB/S',
        help='how fast a guest writes to its memory, MiB/s; each has its own, between half and one and a half of this '
        '(%(default)g)',
    )
    add(
        '--bandwidth',
        type=_rate(above_zero=True),
        default=default.bandwidth,
        metavar='MIB/S',
        help="what a host's link carries, shared by its migrations, MiB/s (%(default)g)",
    )
    add(
        '--prepare',
        type=_rate(above_zero=False),
        default=default.prepare,
        metavar='S',
        help='how long a host takes to prepare for a guest, seconds (%(default)g)',
    )
    add(
        '--seed',
        type=_whole(0),
        default=default.seed,
        metavar='N',
        help='which guest starts where, and how busy it is (%(default)s)',
    )
    add('--json', action='store_true', help='one JSON report on stdout instead of the screen')
    add(
        '--serve',
        type=_address,
        metavar='HOST:PORT',
        help='migrate nothing, and serve the REST API until SIGINT or SIGTERM; loopback only, port 0 is any free one',
    )
    add('--placement', type=_address, metavar='HOST:PORT', help='serve the Placement too, beside --serve')
    return parser


def misfit(settings: Settings) -> str | None:
    """Say why what is asked for cannot be, or None: it can."""
    if settings.placement and not settings.serve:
        return f'--placement is {settings.placement}: it goes with --serve, so give that too'
    if settings.serve and settings.json:
        return '--json is given with --serve, which reports nothing: leave one of them out'
    if settings.guest_memory > HOST_MEMORY_MB:
        return (
            f'--guest-memory is {settings.guest_memory}: a host of the demo has {HOST_MEMORY_MB} MiB, so that or less '
            'would do'
        )
    room = min(HOST_VCPUS, HOST_MEMORY_MB // settings.guest_memory, HOST_DISK_GB)
    # Half of them begin on one host, and all of them end on the others.
    most = min(2 * room, (settings.hosts - 1) * room)
    if settings.instances > most:
        return (
            f'--instances is {settings.instances}: with --hosts {settings.hosts} and --guest-memory '
            f'{settings.guest_memory} there is room for {most} and the move of half of them, so that or less would do'
        )
    share = settings.bandwidth / min(settings.max_concurrent, settings.leaving)
    fastest = share / (BUSIEST * _THROTTLED)
    if settings.dirty_rate >= fastest:
        return (
            f'--dirty-rate is {settings.dirty_rate:g}: with --bandwidth {settings.bandwidth:g} and --max-concurrent '
            f'{settings.max_concurrent} such a guest would never be copied, however much it is throttled; less than '
            f'{fastest:g} would do'
        )
    return None


def _whole(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f'is {text!r}: a whole number of {least} or more would do')
        return value

    return whole


def _rate(*, above_zero: bool) -> Callable[[str], float]:
    def rate(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            raise argparse.ArgumentTypeError(
                f'is {text!r}: a number {"above 0" if above_zero else "of 0 or more"} would do'
            )
        return value

    return rate


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(':')
    example = 'HOST:PORT would do, such as 127.0.0.1:8774'
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f'is {text!r}: {example}')
    if not api.is_loopback(host):
        raise argparse.ArgumentTypeError(
            f'is {text!r}: it lets in anybody who reaches it, so it listens on loopback only: {example}'
        )
    return Address(host, int(port))
