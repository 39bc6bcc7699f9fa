# SPDX-License-Identifier: Apache-2.0

"""Runs a command within a host: ``enter.py PID COMMAND...``, PID being the host's first process.

Unlike nsenter it stands for the command towards who started it: what it is sent it sends on, when it is killed the
command is too, and its status is the command's. When the host is switched off, the kernel kills the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

# of setns(2) and prctl(2)
NAMESPACES = {'uts': 0x04000000, 'mnt': 0x00020000, 'pid': 0x20000000}
PR_SET_PDEATHSIG = 1

#: What is sent on.
SENT_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def enter(pid: int) -> None:
    """Be where a process is; only children are in its PID namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    where = os.getcwd()
    # the mount namespace changes what /proc shows, so all are opened before any is entered
    opened = {kind: os.open(f'/proc/{pid}/ns/{kind}', os.O_RDONLY) for kind in NAMESPACES}
    for kind, number in NAMESPACES.items():
        if library.setns(opened[kind], number):
            raise OSError(ctypes.get_errno(), f'setns {kind}')
        os.close(opened[kind])
    with contextlib.suppress(OSError):
        os.chdir(where)


def main() -> None:
    """Enter, run, wait, and end as the command did."""
    enter(int(sys.argv[1]))
    library = ctypes.CDLL(None)
    # no signal may arrive before there is a child to send it on to
    signal.pthread_sigmask(signal.SIG_BLOCK, SENT_ON)
    child = os.fork()
    if child == 0:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_ON)
        try:
            os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 -- who calls says what
        except OSError as error:
            print(f'{sys.argv[2]}: {error}', file=sys.stderr, flush=True)
            os._exit(127)
    for number in SENT_ON:
        signal.signal(number, lambda sent, _frame: os.kill(child, sent))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_ON)
    _pid, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended < 0:
        # ours is to look like its end, but for the core
        with contextlib.suppress(OSError):
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended if ended >= 0 else 128 - ended)


if __name__ == '__main__':
    main()
