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

import itertools

from migrator import exception
from migrator.objects import GuestState
from migrator.testing.hypervisor.hypervisor import OWNING, FakeGuest, FakeHypervisor, FakeWorld
from migrator.testing.hypervisor.transfer import Transfer
from migrator.virt.driver import Verdict

#: A rest that takes the link fewer seconds than this counts as sent, because clocks are rounded to microseconds.
_LEAST = 2e-6


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
    :ivar ended: set when the job has ended. Then ``verdict`` is valid.
    :ivar arrived: whether the destination runs the guest.
    :ivar in_post_copy: whether the destination runs the guest while the rest of its memory follows.
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
        threads = source.world.threads
        self.begun = threads.event()
        self.ended = threads.event()
        self._wake = threads.event()
        self.error: exception.MigratorException | None = None
        self.verdict: Verdict | None = None
        self.arrived = False
        self.in_post_copy = False
        self.listeners = 0
        self._requested_end: _Ended | None = None
        self._post_copy_requested = False
        self._transfer = Transfer(guest, disk_mib, threads.clock)

    @property
    def _world(self) -> FakeWorld:
        return self.source.world

    # --- requests: the caller holds the world's lock -----------------------------------------------------------------

    def abort(self) -> None:
        """Request that the job ends ABORTED.

        The request is too late once the destination runs the guest.
        """
        if self._requested_end is None:
            self._requested_end = _Ended(Verdict.ABORTED, 'aborted')
        self.wake()

    def call_off(self) -> None:
        """Prevent the job from beginning."""
        reason = 'the job was cancelled before it began'
        self.error = exception.DriverError(host=self.source.host, phase='starting', reason=reason)
        self.wake()

    def fail(self, reason: str) -> None:
        """Make the job fail.

        Once the destination runs the guest, only a post-copy can still break off.
        """
        self._requested_end = _Ended(Verdict.FAILED, reason)
        self.wake()

    def force_complete(self) -> None:
        """Make the job end soon: by post-copy if both hosts support it, otherwise by a pause of the guest."""
        if self.arrived:
            return
        if self.source.post_copy and self.destination.post_copy:
            self._post_copy_requested = True
        else:
            self.pause_guest()
        self.wake()

    def pause_guest(self) -> None:
        """Stop the guest's processors at the source.

        They resume on the host that ends up with the guest.
        """
        self._transfer.account()
        if self.guest.state in OWNING:
            self.guest.resume_to = self.guest.state
            self._transfer.stop_guest()
            self.source.set_state(self.guest, GuestState.CUTOVER, 'hypervisor')

    def wake(self) -> None:
        """Wake the job: its share of the link has changed, or a request has arrived."""
        self._wake.set()

    def progress(self) -> dict[str, int]:
        """Return the current figures in bytes, or {} at the very end, as real hypervisors do."""
        if self.ended.is_set() or (self.arrived and not self.in_post_copy):
            return {}
        return self._transfer.progress()

    def copied(self) -> tuple[float | None, float]:
        """Return for how many seconds the guest stood still (None: not arrived), and the bytes sent."""
        return self._transfer.copied()

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
            self._end(end.verdict)
        else:
            self._phase('arrived')
            self._end(Verdict.COMPLETED)

    def _begin(self) -> None:
        host, uuid = self.source.host, self.guest.instance_uuid
        try:
            self._phase('starting')
        except _Ended as end:
            raise exception.DriverError(host=host, phase='starting', reason=end.reason) from end
        with self._world.lock:
            if self.error is not None:
                raise self.error
            if self.guest.state not in OWNING or self.source.guests.get(uuid) is not self.guest:
                raise exception.DriverError(host=host, phase='starting', reason=f'guest {uuid} is {self.guest.state}')
            del self.source.pending[uuid]
            self.source.jobs[uuid] = self
            self._transfer.restart()
            self._world.record(host, 'job started', uuid, self.who)
            self._world.shares_changed()

    def _copy(self) -> None:
        if self._transfer.disk:
            self._transfer.in_disk = True
            self._phase('copying')
            self._carry()
            self._transfer.in_disk = False
        for iteration in itertools.count(1):
            self._phase('copying')
            began = self._world.threads.clock.monotonic()
            self._carry()
            lasted = self._world.threads.clock.monotonic() - began
            with self._world.lock:
                dirtied = self._transfer.begin_iteration()
                fits = dirtied <= self._share() * self.source.max_downtime
            if fits or self.guest.state != GuestState.RUNNING:
                return
            if self.source.auto_converge_after and iteration >= self.source.auto_converge_after:
                self._transfer.throttle(dirtied, lasted)

    def _cut_over(self) -> None:
        with self._world.lock:
            self._look()
            self.pause_guest()
        self._phase('cutover')
        self._carry()
        with self._world.lock:
            self._look()
            self._arrive(post_copy=False)

    def _run_in_post_copy(self) -> None:
        with self._world.lock:
            self._look()
            self.pause_guest()
            self._transfer.stop_dirtying()
            self.in_post_copy = True
            self._arrive(post_copy=True)
        self._phase('postcopy')
        self._carry()
        with self._world.lock:
            self._look()
            self.in_post_copy = False
            self.destination.guests[self.guest.instance_uuid].post_copy = False
            self._world.record(self.destination.host, 'last page arrived', self.guest.instance_uuid, 'hypervisor')

    def _arrive(self, post_copy: bool) -> None:
        arrived = self.destination.guests[self.guest.instance_uuid]
        self.destination.end_receiving(arrived)
        arrived.post_copy = post_copy
        arrived.dirty_rate = self.guest.dirty_rate
        self.arrived = True
        self._transfer.resume_guest()
        self.destination.set_state(arrived, self.guest.resume_to, 'hypervisor')

    def _end(self, verdict: Verdict) -> None:
        uuid = self.guest.instance_uuid
        with self._world.lock:
            self._transfer.account()
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
            self.verdict = verdict
            self._world.record(self.source.host, f'job {verdict.value}', uuid, 'hypervisor')
            self._world.shares_changed()
        self.ended.set()

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _phase(self, phase: str) -> None:
        """Inject a fault that is planted for this phase."""
        fault = self.source.faults.take(phase, self.guest.instance_uuid, after=False)
        if fault is None:
            return
        if fault.stall is None:
            raise _Ended(Verdict.FAILED, fault.reason)
        with self._world.lock:
            self._transfer.account()
            self._transfer.rate = 0.0
        fault.stall.call_on_release(self.wake)
        while not fault.stall.released and not (phase == 'starting' and self.error is not None):
            with self._world.lock:
                self._wake.clear()
                # A job that hangs can still be aborted. After the arrival it can only break off in post-copy.
                if phase != 'starting' and (not self.arrived or self.in_post_copy):
                    self._look()
            if not fault.stall.released:
                self._wake.wait()
        with self._world.lock:
            self._transfer.restart()

    def _carry(self) -> None:
        """Wait until the link has carried everything that is left."""
        while True:
            with self._world.lock:
                self._transfer.account()
                self._wake.clear()
                self._look()
                self._transfer.rate = self._share()
                left = self._transfer.seconds_left
            if left <= _LEAST:
                return
            self._wake.wait(left)

    def _look(self) -> None:
        """Raise if the job must end or must switch to post-copy."""
        end = self._requested_end
        if end is not None and (end.verdict is Verdict.FAILED or not self.arrived):
            raise end
        if self.arrived:
            return
        other = self.destination.guests.get(self.guest.instance_uuid)
        if other is None or other.state != GuestState.WAITING or not other.incoming:
            raise _Ended(Verdict.FAILED, f'host {self.destination.host} has no receiving process for the guest')
        if self._post_copy_requested and not self._transfer.in_disk:
            self._post_copy_requested = False
            raise _Switch

    def _share(self) -> float:
        """Return the share of the links that this job has, in MiB/s."""
        jobs = [job for hypervisor in self._world.hypervisors.values() for job in hypervisor.jobs.values()]
        outgoing = sum(job.source is self.source for job in jobs) or 1
        inbound = sum(job.destination is self.destination for job in jobs) or 1
        return min(self.source.link / outgoing, self.destination.link / inbound)
