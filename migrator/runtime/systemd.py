# SPDX-License-Identifier: Apache-2.0

"""The messages of a service to systemd: that it has started, what it waits for, and that it runs.

systemd gives the address in the environment of a unit with ``Type=notify`` or ``notify-reload``. Elsewhere nothing is
sent. See sd_notify(3) and sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import time

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def notify(*assignments: str) -> None:
    """Send assignments such as ``READY=1`` to systemd. A failure is logged, and changes nothing.

    :param assignments: each in one line, without a line break.
    """
    address = os.environ.get('NOTIFY_SOCKET', '')
    if not address.startswith(('/', '@')):
        return
    if address.startswith('@'):  # an abstract socket
        address = '\0' + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.connect(address)
            sending.sendall('\n'.join(assignments).encode())
    except OSError as error:
        LOG.warning('Could not notify systemd: %s', error)


def notify_status(text: str) -> None:
    """Set the text that ``systemctl status`` shows."""
    notify('STATUS=' + ' '.join(text.split()))


def notify_reload() -> None:
    """Report that a reload begins. ``READY=1`` ends it."""
    notify('RELOADING=1', f'MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}')


def watchdog_interval() -> float | None:
    """Return in how many seconds the service has to report that it runs; None: systemd does not watch it."""
    text, pid = os.environ.get('WATCHDOG_USEC', ''), os.environ.get('WATCHDOG_PID', '')
    if not text.isdigit() or int(text) == 0 or pid not in ('', str(os.getpid())):
        return None
    return int(text) / 1_000_000
