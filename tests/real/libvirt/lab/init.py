# SPDX-License-Identifier: Apache-2.0

"""The first process of a host: makes the host's places, keeps its libvirtd running, reaps its orphans.

Run as a program of its own, in mount, UTS and PID namespaces of its own, with the path of a file that says what to do
(see ``hosts.Host._orders``). When it ends the kernel ends everything else in that PID namespace: that is what makes
switching a host off exact. It has to reap orphans, for libvirt takes a QEMU that is a zombie for one that it cannot
kill.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import sys
import time
import typing

# of mount(2)
READ_ONLY = 1
REMOUNT = 32
BIND = 4096
MOVE = 8192
RECURSIVE = 16384

#: How often it looks, in seconds, while it has nothing whose end it could wait for.
INTERVAL = 0.02


def mount(source: str, target: str, flags: int, kind: str | None = None, data: str | None = None) -> None:
    """As mount(2) does."""
    library = ctypes.CDLL(None, use_errno=True)
    arguments = [None if each is None else each.encode() for each in (source, target, kind, data)]
    if library.mount(arguments[0], arguments[1], arguments[2], ctypes.c_ulong(flags), arguments[3]):
        error = ctypes.get_errno()
        raise OSError(error, f'mount {source}: {os.strerror(error)}', target)


def bind(source: str, target: str, writable: bool = True) -> None:
    """Let one path show what is at another."""
    mount(source, target, BIND | RECURSIVE)
    if not writable:
        mount('none', target, BIND | REMOUNT | READ_ONLY)


def make_room(target: pathlib.Path, staging: pathlib.Path) -> None:
    """Let there be a directory where the machine has none, without making one on the machine.

    A memory file system takes the place of its parent, with all that the parent has, and this directory besides.
    """
    if target.is_dir():
        return
    parent = target.parent
    make_room(parent, staging)
    staging.mkdir(exist_ok=True)
    mount('tmpfs', str(staging), 0, 'tmpfs', 'mode=755')
    for entry in os.scandir(parent):
        copy = staging / entry.name
        if entry.is_symlink():
            copy.symlink_to(os.readlink(entry.path))
            continue
        if entry.is_dir():
            copy.mkdir()
        else:
            copy.touch()
        bind(entry.path, str(copy))
    (staging / target.name).mkdir()
    mount(str(staging), str(parent), MOVE)


def furnish(orders: dict[str, typing.Any]) -> None:
    """Make what this host sees differ from what the machine has."""
    socket.sethostname(orders['name'])
    # the machine's message bus and udev are none of a host's business, and a libvirtd that finds them talks to them
    mount('tmpfs', '/run', 0, 'tmpfs', 'mode=755')
    pathlib.Path('/run/lock').mkdir()
    pathlib.Path('/run/lock').chmod(0o1777)
    staging = pathlib.Path(orders['directory']) / 'staging'
    for target, source in orders['directories'].items():
        make_room(pathlib.Path(target), staging)
        bind(source, target)
    for target, source in orders['files'].items():
        bind(source, target)
    for target in orders['taken_away']:
        if os.path.exists(target):
            # a read-only file is not writable to root either, which is what QEMU and libvirt ask for
            bind(orders['nothing'], target, writable=False)


def keep(orders: dict[str, typing.Any]) -> None:
    """Run libvirtd, and run it again when it has ended, for ever."""
    directory = pathlib.Path(orders['directory'])
    while True:
        daemon = os.posix_spawn(orders['daemon'][0], orders['daemon'], os.environ | orders['environment'])
        reported = directory / 'daemon.new'
        reported.write_text(f'{daemon}\n')
        reported.rename(directory / 'daemon')
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == daemon:
                break
        print(f'libvirtd ended: {os.waitstatus_to_exitcode(status)}', flush=True)
        (directory / 'daemon').unlink()
        until = time.monotonic() + orders['delay']
        while time.monotonic() < until or (directory / 'held').exists():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(INTERVAL)


def end_with(file: pathlib.Path) -> None:
    """End when a file is no more: who would have ended us was ended before he could know of us."""

    def look(_number: int, _frame: object) -> None:
        if not file.exists():
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)


def main() -> None:
    """Do as the file says that is named on the command line."""
    file = pathlib.Path(sys.argv[1])
    orders = json.loads(file.read_text())
    end_with(file)
    furnish(orders)
    keep(orders)


if __name__ == '__main__':
    main()
