# SPDX-License-Identifier: Apache-2.0

"""The host's replies to polls of a conductor.

The order of a poll matters:

1. The host raises the epoch, so that it refuses every command of an older epoch.
2. It reads the state of the driver call.
3. It polls the driver for the guest.

If the driver call has returned or was never made, then the observation "the guest is here and has no job" is newer than
the return, and no call can follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.compute.step_runner import StepRunner
from migrator.compute.work import Seen
from migrator.objects import Command, Guest, Observation, base
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)


#: Seconds after which a query for a guest counts as hung. The guest gets no other query until the driver replies.
HANGS = 1.0


class Observer:
    """The reader that answers each poll in time, even if the driver hangs.

    :param runner: has the state of the migrations. Its pool runs the driver's queries, each in its own thread.
    """

    def __init__(self, driver: ComputeDriver, host: str, threads: executors.Threads, runner: StepRunner) -> None:
        self._driver = driver
        self._host = host
        self._threads = threads
        self._runner = runner
        self._lock = threads.lock()
        #: Guest -> when its pending driver query began, in monotonic seconds.
        self._queried_at: dict[str, float] = {}

    def poll(self, commands: Sequence[Command], acks: Sequence[dict[str, Any]], wait: float) -> list[Observation]:
        """Return the observations of some migrations.

        :param acks: reports to drop, each ``{'migration_uuid', 'step', 'epoch'}``.
        :param wait: seconds to wait for the driver; guests for which it has not replied by then are left out.
        """
        for ack in acks:
            self._runner.acknowledge(ack['migration_uuid'], ack['step'], ack['epoch'])
        answers: list[Observation] = []
        remaining = len(commands)
        all_done = self._threads.event()

        def observe(command: Command) -> None:
            nonlocal remaining
            with context.about(None, command.migration_uuid, command.instance_uuid):
                observation = self._observe(command)
            with self._lock:
                remaining -= 1
                if observation is not None:
                    answers.append(observation)
                if remaining:
                    return
            all_done.set()

        for command in commands:
            self._runner.pool.submit(observe, command)
        if commands:
            all_done.wait(wait)
        with self._lock:
            return list(answers)

    def _observe(self, command: Command) -> Observation | None:
        """Return the observation of one migration, or None if the driver did not reply."""
        uuid = command.instance_uuid
        seen = self._runner.observe(command)
        if seen.refusal is not None:
            return self._observation(command, seen, Guest(instance_uuid=uuid), {})
        now = self._threads.clock.monotonic()
        with self._lock:
            # While a query hangs, a later poll must not block another thread in the driver.
            if now - self._queried_at.setdefault(uuid, now) > HANGS:
                return None
        try:
            guest = self._driver.get_guest(uuid)
            progress = self._driver.get_progress(uuid) if guest.job else {}
            unserializable = base.cannot_travel(progress)
            if unserializable is not None:
                # The reply about every other guest would fail with it.
                raise exception.DriverError(
                    f'get_progress returned {unserializable}: correct the driver to return serializable data'
                )
        except Exception as error:  # noqa: BLE001 -- the reply to the poll leaves this guest out
            LOG.warning(
                'Could not poll the hypervisor of %(host)s for guest %(guest)s: %(error)s',
                {'host': self._host, 'guest': uuid, 'error': exception.message_of(error)},
            )
            return None
        finally:
            with self._lock:
                self._queried_at.pop(uuid, None)
        return self._observation(command, seen, guest, progress)

    def _observation(self, command: Command, seen: Seen, guest: Guest, progress: dict[str, Any]) -> Observation:
        return Observation(
            migration_uuid=command.migration_uuid,
            host=self._host,
            boot_id=self._runner.boot_id,
            epoch=seen.epoch,
            guest=guest,
            refusal=seen.refusal,
            entry=str(seen.entry),
            verdict=seen.verdict,
            reports=list(seen.reports),
            progress=progress,
            tenure=seen.tenure,
        )
