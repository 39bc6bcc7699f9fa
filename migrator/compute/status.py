# SPDX-License-Identifier: Apache-2.0

"""What this host says of its migrations when it is polled.

The order matters. First the epoch is raised, so that nothing of an older one can still be taken; then it is looked at
where the driver call stands; and only then is the driver asked. So "here, no job" of a guest whose call has returned,
or was never made, cannot be older than the return, and no call can come after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.compute.work import Orders, Seen
from migrator.objects import Command, Guest, Observation, base
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)


#: Seconds after which a driver that has not told of a guest is not asked for it again until it has.
HANGS = 1.0


class Observer:
    """Answers polls in time, whatever the driver does.

    :param pool: where the driver is asked, one guest at a time each.
    """

    def __init__(
        self,
        driver: ComputeDriver,
        host: str,
        boot_id: str,
        threads: executors.Threads,
        orders: Orders,
        pool: executors.BoundedExecutor,
    ) -> None:
        self._driver = driver
        self._host = host
        self._boot_id = boot_id
        self._threads = threads
        self._orders = orders
        self._pool = pool
        self._lock = threads.lock()
        #: Guest -> since when the driver owes an answer about it, in monotonic seconds.
        self._asked: dict[str, float] = {}

    def poll(self, commands: Sequence[Command], acks: Sequence[dict[str, Any]], wait: float) -> list[Observation]:
        """Return what is known of some migrations.

        :param acks: reports to forget, each ``{'migration_uuid', 'step', 'epoch'}``.
        :param wait: seconds in which the driver has to answer; guests of which it does not are left out.
        """
        for ack in acks:
            self._orders.acknowledge(ack['migration_uuid'], ack['step'], ack['epoch'])
        answers: list[Observation] = []
        left = len(commands)
        all_there = self._threads.event()

        def ask(command: Command) -> None:
            nonlocal left
            with context.about(None, command.migration_uuid, command.instance_uuid):
                observation = self._observe(command)
            with self._lock:
                left -= 1
                if observation is not None:
                    answers.append(observation)
                if left:
                    return
            all_there.set()

        for command in commands:
            self._pool.submit(ask, command)
        if commands:
            all_there.wait(wait)
        with self._lock:
            return list(answers)

    def _observe(self, command: Command) -> Observation | None:
        """Return what is known of one migration; None if the driver does not say."""
        uuid = command.instance_uuid
        seen = self._orders.observe(command)
        if seen.refusal is not None:
            return self._observation(command, seen, Guest(instance_uuid=uuid), {})
        now = self._threads.clock.monotonic()
        with self._lock:
            # One question that hangs is enough: the next poll must not leave another thread in the driver.
            if now - self._asked.setdefault(uuid, now) > HANGS:
                return None
        try:
            guest = self._driver.get_guest(uuid)
            progress = self._driver.get_progress(uuid) if guest.job else {}
            odd = base.cannot_travel(progress)
            if odd is not None:
                # It would be in the way of the answer about every other guest.
                raise exception.DriverError(f'get_progress returned {odd}: what JSON can carry would do')
        except Exception as error:  # noqa: BLE001 -- the host is silent about this guest, then
            LOG.warning('The hypervisor of %s does not tell of guest %s: %s', self._host, uuid, exception.told(error))
            return None
        finally:
            with self._lock:
                self._asked.pop(uuid, None)
        return self._observation(command, seen, guest, progress)

    def _observation(self, command: Command, seen: Seen, guest: Guest, progress: dict[str, Any]) -> Observation:
        return Observation(
            migration_uuid=command.migration_uuid,
            host=self._host,
            boot_id=self._boot_id,
            epoch=seen.epoch,
            guest=guest,
            refusal=seen.refusal,
            entry=str(seen.entry),
            verdict=seen.verdict,
            reports=list(seen.reports),
            progress=progress,
            tenure=seen.tenure,
        )
