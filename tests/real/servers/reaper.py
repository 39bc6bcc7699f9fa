# SPDX-License-Identifier: Apache-2.0

"""Ends what a test session started, should the session itself be killed.

Run as a program of its own, it reads one command a line::

    process PID START SIGNAL   from now on that process and its descendants must end, by a signal to the first;
                               SIGKILL is for all
    forget PID                 it has ended
    directory PATH             it must be deleted last

and does nothing until its standard input ends, which is when the session has ended, however it did.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import time

#: Seconds between the polite signal and SIGKILL.
PATIENCE = 10.0


def started_at(pid: int) -> str | None:
    """Return when a process began, as the kernel counts, or None. It shows whether a pid was reused."""
    found = _stat(pid)
    return None if found is None else found[1]


def descendants(pid: int) -> list[int]:
    """Return the living descendants of a process, and the process itself first."""
    parents: dict[int, list[int]] = {}
    for entry in pathlib.Path('/proc').iterdir():
        if entry.name.isdigit():
            found = _stat(int(entry.name))
            if found is not None:
                parents.setdefault(found[0], []).append(int(entry.name))
    family = [pid] if _stat(pid) is not None else []
    for one in family:
        family += parents.get(one, [])
    return family


def _stat(pid: int) -> tuple[int, str] | None:
    """Return (parent, start) of a living process."""
    try:
        text = pathlib.Path(f'/proc/{pid}/stat').read_text(errors='replace')
    except OSError:
        return None
    # the name, in parentheses, may hold anything
    fields = text.rpartition(')')[2].split()
    return None if fields[0] in 'ZX' else (int(fields[1]), fields[19])


def send(pid: int, number: int) -> None:
    """Send a signal; who is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> None:
    """Take note of what there is, and end it when the session cannot."""
    processes: dict[int, tuple[str, int]] = {}
    directories: list[str] = []
    for line in sys.stdin:
        word, _space, rest = line.rstrip('\n').partition(' ')
        if word == 'process':
            pid, start, number = rest.split()
            processes[int(pid)] = (start, int(number))
        elif word == 'forget':
            processes.pop(int(rest), None)
        elif word == 'directory':
            directories.append(rest)
    families = []
    for pid, (start, number) in processes.items():
        if started_at(pid) == start:
            family = descendants(pid)
            families += [(one, started_at(one)) for one in family]
            for one in family if number == signal.SIGKILL else [pid]:
                send(one, number)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and any(started_at(pid) == start for pid, start in families):
        time.sleep(0.05)
    for pid, start in families:
        if start is not None and started_at(pid) == start:
            send(pid, signal.SIGKILL)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == '__main__':
    # It must outlive its parent: Ctrl-C goes to every process at that terminal.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    main()
