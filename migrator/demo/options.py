# SPDX-License-Identifier: Apache-2.0

"""The options of ``migrator-demo``, and the check whether they fit together."""

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

#: The beginning of the name of a demo's directory.
PREFIX = 'migrator-demo-'

#: What breaks a demo that is being served (:mod:`migrator.demo.rehearsal`): verb -> its help.
VERBS = {
    'kill': 'end the compute service of a host; its guests go on, unless --power cuts the power too',
    'revive': 'restore the power of a host, and start its compute service; --other-machine: on another machine',
    'move': 'move a guest to a host by hand, so that migrator does not know of it',
    'slow': 'divide the bandwidth of a host; 1 restores it',
    'fail': 'let the next live migrations from a host fail when they have copied the memory',
}

#: The host with half of the guests, which the demo empties or kills.
FIRST = 'host1'

#: The resources of each host of the demo: enough for thousands of guests, each with one processor and 1 GiB of disk.
HOST_VCPUS = 8192
HOST_MEMORY_MB = 16 * 1024 * 1024
HOST_DISK_GB = 16000

#: The dirty rate of a fully throttled guest, as a fraction of its own rate.
_THROTTLED = 0.01
#: The greatest dirty rate of a guest, as a multiple of the --dirty-rate option.
BUSIEST = 1.5


@dataclasses.dataclass(frozen=True)
class Address:
    """An address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f'{self.host}:{self.port}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a run. Memory is in MiB, rates are in MiB/s, times in seconds."""

    hosts: int = 4
    instances: int = 12
    max_concurrent: int = 2
    guest_memory: int = 2048
    dirty_rate: float = 256.0
    bandwidth: float = 2048.0
    prepare: float = 0.0
    seed: int = 1
    kill: str | None = None
    json: bool = False
    serve: Address | None = None
    placement: Address | None = None

    @property
    def leaving(self) -> int:
        """The number of guests on the first host: half of all guests."""
        return -(-self.instances // 2)

    @property
    def source(self) -> str:
        """The host that the guests leave."""
        return self.kill or FIRST


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        reason = re.sub(r'^argument (\S+): ', r'\1 ', message)
        self.exit(USAGE, f'{self.prog}: {reason} (see {self.prog} --help)\n')


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Return the settings of a command line.

    :raises SystemExit: it requests help, or an option is not possible; the reason is printed in one line.
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
        description='A whole cloud in one process: a drain empties one of its hosts while you watch, and every '
        'allocation is audited. The first migration of one guest fails, and the drain tries it elsewhere. With --kill '
        'the host dies, and its guests are evacuated. With --serve the cloud stays up, for the openstack client and '
        'migrator-manage, and migrator-demo kill, revive, move, slow and fail break it.',
        epilog='Exit status: 0 the drain, or every evacuation, completed and no finding; 1 otherwise; 2 an option is '
        'not possible; 3 a part of it is not installed; 130 interrupted.',
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
        help='how fast a guest writes to its memory, MiB/s; each guest has its own rate between 0.5 and 1.5 times '
        'this (%(default)g)',
    )
    add(
        '--bandwidth',
        type=_rate(above_zero=True),
        default=default.bandwidth,
        metavar='MIB/S',
        help="the rate of a host's link, shared by its migrations, MiB/s (%(default)g)",
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
        help='seed of the hosts and dirty rates of the guests (%(default)s)',
    )
    add(
        '--kill',
        metavar='HOST',
        help='cut the power of this host, such as host1, evacuate its guests, and let it come back to clean up',
    )
    add('--json', action='store_true', help='one JSON report on stdout instead of the screen')
    add(
        '--serve',
        type=_address,
        metavar='HOST:PORT',
        help='migrate nothing, and serve the REST API until SIGINT or SIGTERM; loopback only, port 0 is any free one',
    )
    add(
        '--placement',
        type=_address,
        metavar='HOST:PORT',
        help='with --serve: where to serve Placement; default any free port',
    )
    return parser


def misfit(settings: Settings) -> str | None:
    """Return why the settings are not possible, or None."""
    if settings.placement and not settings.serve:
        return f'--placement is {settings.placement}: it needs --serve, so give that too'
    if settings.kill and settings.serve:
        return f'--kill is {settings.kill} with --serve, which kills nothing: leave one of them out'
    if settings.kill and settings.kill not in (names := [f'host{one}' for one in range(1, settings.hosts + 1)]):
        return f'--kill is {settings.kill!r}: the hosts are {names[0]} to {names[-1]}'
    if settings.serve and settings.json:
        return '--json is given with --serve, which reports nothing: leave one of them out'
    if settings.guest_memory > HOST_MEMORY_MB:
        return (
            f'--guest-memory is {settings.guest_memory}: a host of the demo has {HOST_MEMORY_MB} MiB, so give that '
            'or less'
        )
    rooms = {
        'processors': HOST_VCPUS, f'memory for --guest-memory {settings.guest_memory}':
        HOST_MEMORY_MB // settings.guest_memory, 'disk space': HOST_DISK_GB,
    }  # fmt: skip
    what = min(rooms, key=lambda one: rooms[one])
    room = rooms[what]
    # Half of the guests start on one host, and all of them end on the others.
    most = min(2 * room, (settings.hosts - 1) * room)
    if settings.instances > most:
        return (
            f'--instances is {settings.instances}: with --hosts {settings.hosts} there is room for {most} and the '
            f'migration of half of them, since each host has {what} for {room}: give that or less'
        )
    share = settings.bandwidth / min(settings.max_concurrent, settings.leaving)
    fastest = share / (BUSIEST * _THROTTLED)
    if settings.dirty_rate >= fastest:
        return (
            f'--dirty-rate is {settings.dirty_rate:g}: with --bandwidth {settings.bandwidth:g} and --max-concurrent '
            f'{settings.max_concurrent} the copy of such a guest never ends, even if it is fully throttled: give less '
            f'than {fastest:g}'
        )
    return None


def _whole(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f'is {text!r}: give a whole number of {least} or more')
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
                f'is {text!r}: give a number {"above 0" if above_zero else "of 0 or more"}'
            )
        return value

    return rate


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(':')
    example = 'give HOST:PORT, such as 127.0.0.1:8774'
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f'is {text!r}: {example}')
    if not api.is_loopback(host):
        raise argparse.ArgumentTypeError(
            f'is {text!r}: it checks no credentials, so it listens on loopback only: {example}'
        )
    return Address(host, int(port))
