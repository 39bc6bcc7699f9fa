# SPDX-License-Identifier: Apache-2.0

"""One live migration job of the fake hypervisors: the copy, the switchover, and their failures.

The job only computes the copy. A guest has its memory (MiB) and its dirty rate (MiB/s). A host has its link (MiB/s).
The first iteration sends all memory. Each later one sends what the guest dirtied meanwhile, until the rest fits in the
allowed downtime. Jobs share a link evenly. A job sleeps through an iteration, and is woken only when its share changes.

The states that can be observed, in this order:

1. source RUNNING with a job
2. source CUTOVER with a job
3. destination RUNNING
4. source CUTOVER without a job

A failure or an abort before the destination runs resumes the source.
"""

from __future__ import annotations

from migrator import exception
from migrator.objects import GuestState
from migrator.virt.driver import Verdict
from migrator.virt.fake.hypervisor import OWNING, FakeGuest, FakeHypervisor

MIB = 1024 * 1024
#: A rest that takes the link fewer seconds than this counts as sent, because clocks are rounded to microseconds.
_LEAST = 2e-6
#: Throttling as in QEMU: first 20 % of the guest's processors, then 10 % more each iteration, at most 99 %.
_THROTTLE_FIRST, _THROTTLE_MORE, _THROTTLE_MOST = 0.2, 0.1, 0.99


class _Ended(Exception):
    """The end of the job, failed or aborted."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        self.verdict = verdict
        self.reason = reason
        super().__init__(reason)


class _Switch(Exception):
    """The switch of the job to post-copy."""


class Job:
    """One live migration of one guest.

    The caller adds the job to the source's ``pending``, and runs it in a thread of the world.

    :param disk_mib: the amount of disk to copy before the memory, in MiB.
    :param who: the name of the driver that requested the job.

    :ivar begun: set when the hypervisor has the job, or has refused it (``error``).
    :ivar ended: set when the job has ended. Then ``verdict`` and ``reason`` are valid.
    :ivar arrived: whether the destination runs the guest.
    :ivar iteration: the current pass over memory, from 1.
    :ivar listeners: the number of callers that have attached to the job since it began.
    """

    def __init__(
        self,
        source: FakeHypervisor,
        guest: FakeGuest,
        destination: FakeHypervisor,
        disk_mib: float,
        who: str,
    ) -> None:
        self.source = source
        self.guest = guest
        self.destination = destination
        self.who = who
        self._world = source.world
        threads = self._world.threads
        self._clock = threads.clock
        self.begun = threads.event()
        self.ended = threads.event()
        self._wake = threads.event()
        self.error: exception.MigratorException | None = None
        self.verdict: Verdict | None = None
        self.reason = ''
        self.arrived = False
        self.cancelled = False
        self.iteration = 0
        self.listeners = 0
        self._abort = False
        self._broken: str | None = None
        self._post_copy_wanted = False
        self._post_copy = False
        # Figures in MiB at the moment _mark. From then on they change with _rate.
        self._disk = disk_mib
        self._disk_left = disk_mib
        self._memory_sent = 0.0
        self._left = float(guest.memory_mb)
        self._dirtied = 0.0
        self._in_disk = False
        self._rate = 0.0
        self._mark = self._clock.monotonic()
        self._throttle = 0.0

    @property
    def in_post_copy(self) -> bool:
        """Whether the destination runs the guest while the rest of its memory follows."""
        return self._post_copy

    # --- requests: the caller holds the world's lock -----------------------------------------------------------------

    def abort(self) -> None:
        """Request that the job ends ABORTED.

        The request is too late once the destination runs the guest.
        """
        self._abort = True
        self.wake()

    def call_off(self) -> None:
        """Prevent the job from beginning."""
        self.cancelled = True
        self.wake()

    def fail(self, reason: str) -> None:
        """Make the job fail.

        Once the destination runs the guest, only a post-copy can still break off.
        """
        self._broken = reason
        self.wake()

    def force_complete(self) -> None:
        """Make the job end soon: by post-copy if both hosts support it, otherwise by a pause of the guest."""
        if self.arrived:
            return
        if self.source.post_copy and self.destination.post_copy:
            self._post_copy_wanted = True
        else:
            self.pause_guest()
        self.wake()

    def pause_guest(self) -> None:
        """Stop the guest's processors at the source.

        They resume on the host that ends up with the guest.
        """
        self._account()
        if self.guest.state in OWNING:
            self.guest.resume_to = self.guest.state
            self.source.set_state(self.guest, GuestState.CUTOVER, 'hypervisor')

    def wake(self) -> None:
        """Wake the job: its share of the link has changed, or a request has arrived."""
        self._wake.set()

    def progress(self) -> dict[str, int]:
        """Return the current figures in bytes, or {} at the very end, as real hypervisors do."""
        if self.ended.is_set() or (self.arrived and not self._post_copy):
            return {}
        gone = self._rate * (self._clock.monotonic() - self._mark)
        disk_left, left, sent = self._disk_left, self._left, self._memory_sent
        if self._in_disk:
            disk_left = max(0.0, disk_left - gone)
        else:
            gone = min(gone, left)
            left, sent = left - gone, sent + gone
        return {
            'memory_total': self.guest.memory_mb * MIB,
            'memory_processed': int(sent * MIB),
            'memory_remaining': int(left * MIB),
            'disk_total': int(self._disk * MIB),
            'disk_processed': int((self._disk - disk_left) * MIB),
            'disk_remaining': int(disk_left * MIB),
        }

    # --- the thread of the job ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the job from the request to the verdict.

        The caller starts this in a thread of the world.
        """
        try:
            self._begin()
        except exception.MigratorException as error:
            with self._world.lock:
                self.source.pending.pop(self.guest.instance_uuid, None)
                self.error = error
            self.begun.set()
            self.ended.set()
            return
        self.begun.set()
        try:
            try:
                self._copy()
                self._cut_over()
            except _Switch:
                self._run_in_post_copy()
        except _Ended as end:
            self._end(end.verdict, end.reason)
        else:
            self._phase('arrived')
            self._end(Verdict.COMPLETED, '')

    def _begin(self) -> None:
        host, uuid = self.source.host, self.guest.instance_uuid
        try:
            self._phase('starting')
        except _Ended as end:
            raise exception.DriverError(host=host, phase='starting', reason=end.reason) from end
        with self._world.lock:
            if self.cancelled:
                raise exception.DriverError(host=host, phase='starting', reason='the job was cancelled before it began')
            if self.guest.state not in OWNING or self.source.guests.get(uuid) is not self.guest:
                raise exception.DriverError(host=host, phase='starting', reason=f'guest {uuid} is {self.guest.state}')
            del self.source.pending[uuid]
            self.source.jobs[uuid] = self
            self._mark = self._clock.monotonic()
            self._world.record(host, 'job started', uuid, self.who)
            self._world.shares_changed()

    def _copy(self) -> None:
        if self._disk:
            self._in_disk = True
            self._phase('copying')
            self._transfer()
            self._in_disk = False
        while True:
            self.iteration += 1
            self._phase('copying')
            began = self._clock.monotonic()
            self._transfer()
            lasted = self._clock.monotonic() - began
            with self._world.lock:
                dirtied = self._left = min(self._dirtied, float(self.guest.memory_mb))
                self._dirtied = 0.0
                fits = dirtied <= self._share() * self.source.max_downtime
            if fits or self.guest.state != GuestState.RUNNING:
                return
            late = self.source.auto_converge_after and self.iteration >= self.source.auto_converge_after
            # As in QEMU: throttle while more than half of what was sent has to be sent again.
            if late and dirtied > 0.5 * self._rate * lasted:
                more = self._throttle + _THROTTLE_MORE if self._throttle else _THROTTLE_FIRST
                self._throttle = min(more, _THROTTLE_MOST)

    def _cut_over(self) -> None:
        with self._world.lock:
            self._look()
            self.pause_guest()
        self._phase('cutover')
        self._transfer()
        with self._world.lock:
            self._look()
            self._arrive(post_copy=False)

    def _run_in_post_copy(self) -> None:
        with self._world.lock:
            self._look()
            self.pause_guest()
            self._left = min(self._left + self._dirtied, float(self.guest.memory_mb))
            self._post_copy = True
            self._arrive(post_copy=True)
        self._phase('postcopy')
        self._transfer()
        with self._world.lock:
            self._look()
            self._post_copy = False
            self.destination.guests[self.guest.instance_uuid].post_copy = False
            self._world.record(self.destination.host, 'last page arrived', self.guest.instance_uuid, 'hypervisor')

    def _arrive(self, post_copy: bool) -> None:
        arrived = self.destination.guests[self.guest.instance_uuid]
        self.destination.end_receiving(arrived)
        arrived.post_copy = post_copy
        arrived.dirty_rate = self.guest.dirty_rate
        self.arrived = True
        self.destination.set_state(arrived, self.guest.resume_to, 'hypervisor')

    def _end(self, verdict: Verdict, reason: str) -> None:
        uuid = self.guest.instance_uuid
        with self._world.lock:
            self._account()
            other = self.destination.guests.get(uuid)
            if verdict is not Verdict.COMPLETED:
                if self.arrived:
                    self.source.set_state(self.guest, GuestState.POSTCOPY_BROKEN, 'hypervisor')
                    if other is not None:
                        self.destination.set_state(other, GuestState.POSTCOPY_BROKEN, 'hypervisor')
                elif self.guest.state == GuestState.CUTOVER and (
                    verdict is Verdict.ABORTED or not self.source.leave_paused
                ):
                    self.source.set_state(self.guest, self.guest.resume_to, 'hypervisor')
                if other is not None and other.state == GuestState.WAITING:
                    # The receiving process ends with the stream. What was prepared for the guest stays.
                    self.destination.end_receiving(other)
            self.source.jobs.pop(uuid, None)
            self.verdict, self.reason = verdict, reason
            self._world.record(self.source.host, f'job {verdict.value}', uuid, 'hypervisor')
            self._world.shares_changed()
        self.ended.set()

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _phase(self, phase: str) -> None:
        """Let a fault that is planted for this phase strike."""
        fault = self.source.faults.take(phase, self.guest.instance_uuid, after=False)
        if fault is None:
            return
        if fault.stall is None:
            raise _Ended(Verdict.FAILED, fault.reason)
        with self._world.lock:
            self._account()
            self._rate = 0.0
        fault.stall.call_on_release(self.wake)
        while not fault.stall.released and not (phase == 'starting' and self.cancelled):
            with self._world.lock:
                self._wake.clear()
                # A job that hangs can still be aborted. After the arrival it can only break off in post-copy.
                if phase != 'starting' and (not self.arrived or self._post_copy):
                    self._look()
            if not fault.stall.released:
                self._wake.wait()
        with self._world.lock:
            self._mark = self._clock.monotonic()

    def _transfer(self) -> None:
        """Wait until the link has carried everything that is left."""
        while True:
            with self._world.lock:
                self._account()
                self._wake.clear()
                self._look()
                self._rate = self._share()
                left = (self._disk_left if self._in_disk else self._left) / self._rate
            if left <= _LEAST:
                return
            self._wake.wait(left)

    def _account(self) -> None:
        """Update the figures to the present."""
        now = self._clock.monotonic()
        lasted, self._mark = now - self._mark, now
        gone = self._rate * lasted
        if self._in_disk:
            self._disk_left = max(0.0, self._disk_left - gone)
            return
        gone = min(gone, self._left)
        self._left -= gone
        self._memory_sent += gone
        if self.guest.state == GuestState.RUNNING:
            self._dirtied += self.guest.dirty_rate * (1 - self._throttle) * lasted

    def _look(self) -> None:
        """Raise if the job must end or must switch to post-copy."""
        if self._broken is not None:
            raise _Ended(Verdict.FAILED, self._broken)
        if self.arrived:
            return
        if self._abort:
            raise _Ended(Verdict.ABORTED, 'aborted')
        other = self.destination.guests.get(self.guest.instance_uuid)
        if other is None or other.state != GuestState.WAITING or not other.incoming:
            raise _Ended(Verdict.FAILED, f'host {self.destination.host} has no receiving process for the guest')
        if self._post_copy_wanted and not self._in_disk:
            self._post_copy_wanted = False
            raise _Switch

    def _share(self) -> float:
        """Return the share of the links that this job has, in MiB/s."""
        jobs = [job for hypervisor in self._world.hypervisors.values() for job in hypervisor.jobs.values()]
        outgoing = sum(job.source is self.source for job in jobs) or 1
        inbound = sum(job.destination is self.destination for job in jobs) or 1
        return min(self.source.link / outgoing, self.destination.link / inbound)
