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

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.compute.step_runner import StepRunner
from migrator.compute.work import Seen
from migrator.context import RequestContext
from migrator.objects import Command, Guest, GuestState, Instance, Observation, base
from migrator.rpc import expose
from migrator.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

Asked = TypeVar('Asked')
Found = TypeVar('Found')

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
        #: Guest, or its definition -> when its pending driver query began, in monotonic seconds.
        self._queried_at: dict[str, float] = {}

    def poll(self, commands: Sequence[Command], acks: Sequence[dict[str, Any]], wait: float) -> list[Observation]:
        """Return the observations of some migrations.

        :param acks: reports to drop, each ``{'migration_uuid', 'step', 'epoch'}``.
        :param wait: seconds to wait for the driver; guests for which it has not replied by then are left out.
        """
        for ack in acks:
            self._runner.acknowledge(ack['migration_uuid'], ack['step'], ack['epoch'])
        return self._ask(self._observe, commands, wait)

    def definitions(self, instance_uuids: Sequence[str], wait: float) -> dict[str, dict[str, Any]]:
        """Return the definitions of some guests, without those that the driver does not have.

        :param wait: seconds to wait for the driver; guests for which it has not replied by then are left out.
        :raises migrator.exception.ServiceUnreachable: the machine is not registered yet.
        """
        self._check_registered()
        return dict(self._ask(self._define, instance_uuids, wait))

    def guests(self, wait: float) -> list[Guest]:
        """Return every guest that the host holds in any form.

        :param wait: seconds to wait for the driver.
        :raises migrator.exception.DriverError: the driver has not replied by then.
        """
        self._check_registered()
        found = self._ask(self._list, [''], wait)
        if not found:
            raise exception.DriverError(f'The hypervisor of {self._host} did not list its guests within {wait:g} s.')
        return found[0]

    def diagnostics(self, instance: Instance, wait: float) -> dict[str, Any]:
        """Return the state of a guest, and its diagnostics if it runs.

        :param wait: seconds to wait for the driver.
        :returns: the ``state``, and the ``diagnostics`` or None.
        :raises migrator.exception.DriverError: the driver has not replied by then, or has failed.
        """

        def read() -> dict[str, Any]:
            state = self._driver.get_guest(instance.uuid).state
            found = self._driver.get_diagnostics(instance) if state == GuestState.RUNNING else None
            return {'state': state, 'diagnostics': _sendable('get_diagnostics', found)}

        return self._read(instance.uuid, f'diagnostics of {instance.uuid}', read, wait)

    def uptime(self, wait: float) -> str | None:
        """Return the uptime of the host as text, or None if the driver does not know it.

        :param wait: seconds to wait for the driver.
        :raises migrator.exception.DriverError: the driver has not replied by then, or has failed.
        """
        found: str | None = self._read('', 'uptime', lambda: {'uptime': self._driver.get_host_uptime()}, wait)['uptime']
        return found

    def _read(self, instance_uuid: str, what: str, read: Callable[[], dict[str, Any]], wait: float) -> dict[str, Any]:
        self._check_registered()
        found = self._ask(lambda _: self._query(instance_uuid, what, read), [''], wait)
        if not found:
            raise exception.DriverError(
                f'The hypervisor of {self._host} did not report the {what} within {wait:g} s, or failed: look at the '
                'log of its compute service.'
            )
        return found[0]

    def _check_registered(self) -> None:
        """Raise before a conductor has registered this machine: its guests may not be those of the host.

        :raises migrator.exception.ServiceUnreachable: none has yet.
        """
        if self._runner.starting:
            raise exception.ServiceUnreachable(
                service=f'The compute service of {self._host}', reason='no conductor has registered it yet'
            )

    def _list(self, _asked: str) -> list[Guest] | None:
        return self._query('all guests', 'all guests', self._driver.list_guests)

    def _ask(self, query: Callable[[Asked], Found | None], asked: Sequence[Asked], wait: float) -> list[Found]:
        """Return the results of some queries, each in its own thread, without None and without late ones."""
        answers: list[Found] = []
        remaining = len(asked)
        all_done = self._threads.event()

        def ask(one: Asked) -> None:
            nonlocal remaining
            found = query(one)
            with self._lock:
                remaining -= 1
                if found is not None:
                    answers.append(found)
                if remaining:
                    return
            all_done.set()

        for one in asked:
            self._runner.pool.submit(ask, one)
        if asked:
            all_done.wait(wait)
        with self._lock:
            return list(answers)

    def _observe(self, command: Command) -> Observation | None:
        """Return the observation of one migration, or None if the driver did not reply."""
        uuid = command.instance_uuid
        with context.about(None, command.migration_uuid, uuid):
            seen = self._runner.observe(command)
            if seen.refusal is not None:
                return self._observation(command, seen, Guest(instance_uuid=uuid), {})

            def read() -> tuple[Guest, dict[str, Any]]:
                guest = self._driver.get_guest(uuid)
                return guest, _sendable('get_progress', self._driver.get_progress(uuid) if guest.job else {})

            found = self._query(uuid, uuid, read)
            return self._observation(command, seen, *found) if found is not None else None

    def _define(self, instance_uuid: str) -> tuple[str, dict[str, Any]] | None:
        """Return a guest with its definition, or None if the driver has none or did not reply."""
        with context.about(None, None, instance_uuid):
            definition = self._query(
                instance_uuid,
                f'definition of {instance_uuid}',
                lambda: _sendable('get_definition', self._driver.get_definition(instance_uuid)),
            )
        return (instance_uuid, definition) if definition is not None else None

    def _query(self, instance_uuid: str, key: str, read: Callable[[], Found]) -> Found | None:
        """Return what the driver replies about a guest, or None if it did not reply.

        :param key: names the query. While one hangs, a later one of the same name must not block another thread in the
            driver.
        """
        now = self._threads.clock.monotonic()
        with self._lock:
            if now - self._queried_at.setdefault(key, now) > HANGS:
                return None
        try:
            return read()
        except BaseException as error:  # the reply leaves this guest out
            if self._threads.is_final(error):
                raise
            LOG.warning(
                'Could not poll the hypervisor of %(host)s for guest %(guest)s: %(error)s',
                {'host': self._host, 'guest': instance_uuid, 'error': exception.message_of(error)},
            )
            return None
        finally:
            with self._lock:
                self._queried_at.pop(key, None)

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


class HostQueries:
    """The calls for what a host and its guests are like at the moment."""

    _observer: Observer

    @expose
    def list_guests(self, context: RequestContext, wait: float) -> list[Guest]:
        """Return every guest that this host holds in any form, as the hypervisor reports them now."""
        return self._observer.guests(wait)

    @expose
    def get_diagnostics(self, context: RequestContext, instance: Instance, wait: float) -> dict[str, Any]:
        """Return the state of a guest, and its diagnostics if it runs."""
        return self._observer.diagnostics(instance, wait)

    @expose
    def get_host_uptime(self, context: RequestContext, wait: float) -> str | None:
        """Return the uptime of this host as text, or None if the driver does not know it."""
        return self._observer.uptime(wait)


def _sendable(method: str, found: Found) -> Found:
    """Return the result of a driver's method if it can be sent.

    :raises migrator.exception.DriverError: it cannot. The reply about every other guest would fail with it.
    """
    unserializable = base.cannot_travel(found)
    if unserializable is not None:
        raise exception.DriverError(
            f'{method} returned {unserializable}: correct the driver to return serializable data'
        )
    return found
