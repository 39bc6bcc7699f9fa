# SPDX-License-Identifier: Apache-2.0

"""The jobs that an earlier boot of this service has started, and that the hypervisor still runs.

1. :meth:`InheritedJobs.find` gives each of them a slot, before any other live migration can get one.
2. The slot is held until the job has ended, whether or not its migration is known.
3. The reply to compute_started names the migration. Its live migration takes the job, and waits for the end of the job
   instead of calling the driver.
4. A job that has ended before that reply keeps its verdict until the reply. A later one that no migration has taken is
   forgotten, so that it is not mistaken for the next job of its guest.
"""

from __future__ import annotations

import contextlib

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.compute import live_migration_queue, steps
from migrator.compute.work import Work, WorkEnd
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)


class InheritedJob:
    """A job that the service found running when it started.

    :ivar work: the live migration that has taken the job.
    :ivar outcome: the outcome of the job, once it has ended.
    :ivar running_for: seconds for which the job had run, as the conductor reported.
    """

    def __init__(self, instance_uuid: str, ended: executors.Event) -> None:
        self.instance_uuid = instance_uuid
        self.work: Work | None = None
        self.outcome: WorkEnd | None = None
        self.running_for = 0.0
        self._ended = ended

    def end(self, outcome: WorkEnd) -> None:
        """Store the outcome of the job, and wake the live migration that waits for it."""
        self.outcome = outcome
        self._ended.set()

    def wait(self) -> WorkEnd | None:
        """Wait until the job has ended, and return its outcome."""
        self._ended.wait()
        return self.outcome

    def log_context(self) -> contextlib.AbstractContextManager[None]:
        """Return the log context of the live migration, or of the guest alone until the migration is known."""
        if self.work is not None:
            return self.work.log_context()
        return context.about(instance_uuid=self.instance_uuid)


class InheritedJobs:
    """The jobs of an earlier boot that no live migration has taken yet, by guest.

    No lock protects them, because each operation of the dict is atomic.

    :param queue: has the slots.
    """

    def __init__(
        self, driver: ComputeDriver, threads: executors.Threads, queue: live_migration_queue.LiveMigrationQueue
    ) -> None:
        self._driver = driver
        self._threads = threads
        self._queue = queue
        self.jobs: dict[str, InheritedJob] = {}
        self._assigned = False

    def find(self) -> None:
        """Give every running job a slot; a repeated call adds no second slot for a job."""
        for listed in self._driver.list_guests():
            # After settle() no driver call of an earlier boot can start a job any more.
            try:
                guest = self._driver.settle(listed.instance_uuid)
            except exception.MigratorException as error:
                LOG.warning(
                    'Could not determine whether a guest has a job; assuming that %(guest)s has one: %(error)s',
                    {'guest': listed.instance_uuid, 'error': error},
                )
                guest = listed.replace(job=True)
            if guest.job and guest.instance_uuid not in self.jobs:
                job = self.jobs[guest.instance_uuid] = InheritedJob(guest.instance_uuid, self._threads.event())
                self._queue.attach(self._outlast, job)

    def get(self, instance_uuid: str) -> InheritedJob | None:
        """Return the job of a guest, if no live migration has taken it."""
        return self.jobs.get(instance_uuid)

    def take(self, work: Work) -> InheritedJob | None:
        """Make the job of a guest the job of a live migration, and return it; None if the guest has no job."""
        job = self.jobs.pop(work.instance_uuid, None)
        if job is not None:
            job.work = work
        return job

    def forget_ended(self) -> None:
        """Forget each job that no migration has taken, as soon as it has ended."""
        self._assigned = True
        for job in list(self.jobs.values()):
            if job.outcome is not None:
                self.jobs.pop(job.instance_uuid, None)

    def _outlast(self, job: InheritedJob) -> None:
        """Hold the slot of a job until the job has ended."""
        outcome = steps.outcome(None)
        try:
            outcome = steps.outcome(steps.outlast(self._driver, self._threads, job.instance_uuid, job.log_context))
        finally:  # the live migration that has taken the job waits for this
            job.end(outcome)
        if self._assigned:
            self.forget_ended()
