# SPDX-License-Identifier: Apache-2.0

"""The computed copy of one fake job: what it has sent and what is left, at any moment."""

from __future__ import annotations

from migrator import executors
from migrator.objects import GuestState
from migrator.testing.hypervisor.hypervisor import FakeGuest

MIB = 1024 * 1024
#: Throttling as in QEMU: first 20 % of the guest's processors, then 10 % more each iteration, at most 99 %.
_THROTTLE_FIRST, _THROTTLE_MORE, _THROTTLE_MOST = 0.2, 0.1, 0.99


class Transfer:
    """The figures of one copy, in MiB.

    They are those of one moment. From then on they change with the rate, until :meth:`account` updates them.

    :param disk: the amount of disk to copy before the memory.
    :ivar in_disk: whether the disk is being copied, and not the memory.
    :ivar rate: the present speed in MiB/s.
    """

    def __init__(self, guest: FakeGuest, disk: float, clock: executors.Clock) -> None:
        self._guest = guest
        self._clock = clock
        self.disk = disk
        self.in_disk = False
        self.rate = 0.0
        self._disk_left = disk
        self._memory_left = float(guest.memory_mb)
        self._memory_sent = 0.0
        self._stopped_at = 0.0
        self._stood_still: float | None = None
        self._dirtied = 0.0
        #: The share of the guest's processors that is taken from it, so that it dirties less memory.
        self._throttled = 0.0
        self._updated_at = clock.monotonic()

    def restart(self) -> None:
        """Continue from the present, without any progress since the last update."""
        self._updated_at = self._clock.monotonic()

    def account(self) -> None:
        """Update the figures to the present."""
        now = self._clock.monotonic()
        lasted, self._updated_at = now - self._updated_at, now
        gone = self.rate * lasted
        if self.in_disk:
            self._disk_left = max(0.0, self._disk_left - gone)
            return
        gone = min(gone, self._memory_left)
        self._memory_left -= gone
        self._memory_sent += gone
        if self._guest.state == GuestState.RUNNING:
            self._dirtied += self._guest.dirty_rate * (1 - self._throttled) * lasted

    @property
    def seconds_left(self) -> float:
        """The time that the rest of the disk or of this iteration takes at the present rate."""
        return (self._disk_left if self.in_disk else self._memory_left) / self.rate

    def begin_iteration(self) -> float:
        """Begin to send the memory that the guest has dirtied during the last iteration; return its amount."""
        self._memory_left = min(self._dirtied, float(self._guest.memory_mb))
        self._dirtied = 0.0
        return self._memory_left

    def stop_dirtying(self) -> None:
        """Add the dirtied memory to this iteration, the last one, since the guest has left the source."""
        self._memory_left = min(self._memory_left + self._dirtied, float(self._guest.memory_mb))

    def throttle(self, dirtied: float, lasted: float) -> None:
        """Slow the guest down if more than half of what an iteration sent has to be sent again, as in QEMU.

        :param dirtied: the amount of memory that has to be sent again.
        :param lasted: the length of the iteration in seconds.
        """
        if dirtied > 0.5 * self.rate * lasted:
            more = self._throttled + _THROTTLE_MORE if self._throttled else _THROTTLE_FIRST
            self._throttled = min(more, _THROTTLE_MOST)

    def stop_guest(self) -> None:
        """Record that the guest stands still now."""
        self._stopped_at = self._clock.monotonic()

    def resume_guest(self) -> None:
        """Record that the guest runs at the destination now."""
        self._stood_still = self._clock.monotonic() - self._stopped_at

    def copied(self) -> tuple[float | None, float]:
        """Return for how many seconds the guest stood still (None: not arrived), and the bytes sent."""
        return self._stood_still, (self._memory_sent + self.disk - self._disk_left) * MIB

    def progress(self) -> dict[str, int]:
        """Return the present figures in bytes."""
        gone = self.rate * (self._clock.monotonic() - self._updated_at)
        disk_left, left, sent = self._disk_left, self._memory_left, self._memory_sent
        if self.in_disk:
            disk_left = max(0.0, disk_left - gone)
        else:
            gone = min(gone, left)
            left, sent = left - gone, sent + gone
        return {
            'memory_total': self._guest.memory_mb * MIB,
            'memory_processed': int(sent * MIB),
            'memory_remaining': int(left * MIB),
            'disk_total': int(self.disk * MIB),
            'disk_processed': int((self.disk - disk_left) * MIB),
            'disk_remaining': int(disk_left * MIB),
        }
