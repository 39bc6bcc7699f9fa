# SPDX-License-Identifier: Apache-2.0

"""The work of one step, and the host's records of guests and migrations."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import zlib
from collections.abc import Callable
from typing import Any

from migrator import context, exception, executors
from migrator.objects import (
    Answer,
    Command,
    Entry,
    Report,
    WorkState,
    base,
    instance,
    protocol,
    steps,
)
from migrator.rpc import expose
from migrator.virt import driver

LIVE_MIGRATION = 'live_migration'


@dataclasses.dataclass(frozen=True, slots=True)
class WorkEnd:
    """The outcome of one step's work.

    :ivar state: done, failed or cancelled; see :class:`~migrator.objects.protocol.WorkState`.
    :ivar result: what the step returned, or the facts of its failure; JSON-safe or an object.
    :ivar reason: why it failed, for operators.
    :ivar returned: whether the driver's live_migration has returned, or can no longer be called (live migration only).
    :ivar verdict: the verdict that the driver returned; '' if it was not called or did not observe the end of the job.
    """

    state: str
    result: Any = None
    reason: str | None = None
    returned: bool = False
    verdict: str = ''


def _request_id() -> str | None:
    request = context.subject().request
    return request.request_id if request is not None else None


def _traceparent() -> str | None:
    return context.subject().traceparent


@dataclasses.dataclass(slots=True, eq=False)
class Work(driver.CancelToken):
    """One step's work for one migration, and the token that cancels it.

    :ivar epoch: the newest epoch in which a conductor requested the work.
    :ivar body: called with the work when it runs; returns the result or a :class:`WorkEnd`.
    :ivar place: the place of the migration's request among all.
    :ivar packed: the arguments of a live migration; see :func:`pack`.
    :ivar traceparent: the span of the conductor's step, if it is traced.
    :ivar begun: whether the work is no longer pending behind other work of the guest.
    :ivar started: whether the hypervisor has the job (live migration only).
    :ivar kept: whether the report has not been acknowledged.
    """

    uuid: str
    instance_uuid: str
    step: str
    epoch: int
    body: Callable[..., Any]
    entry: str
    place: int = 0
    packed: bytes = b''
    request_id: str | None = dataclasses.field(default_factory=_request_id)
    traceparent: str | None = dataclasses.field(default_factory=_traceparent)
    begun: bool = False
    cancelled: bool = False
    started: bool = False
    outcome: WorkEnd | None = None
    kept: bool = True
    waiters: tuple[executors.Event, ...] = ()

    def log_context(self) -> contextlib.AbstractContextManager[None]:
        """Return the log context of the work: its migration, its instance and the request behind them."""
        # Created on demand, because thousands of works may wait.
        request = context.admin_context(self.request_id) if self.request_id is not None else None
        return context.about(request, self.uuid, self.instance_uuid)

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled if the work was cancelled; see :meth:`driver.CancelToken.raise_if_cancelled`."""
        if self.cancelled:
            raise exception.Cancelled(what=f'{self.step} of migration {self.uuid}')

    def acknowledge(self) -> None:
        """Drop the report, and keep only what a late duplicate needs as an answer."""
        if self.outcome is not None:
            self.kept = False
            self.traceparent = None
            if self.step != LIVE_MIGRATION:
                self.outcome = WorkEnd(self.outcome.state, None, self.outcome.reason)


class Steps:
    """The base of the steps of one kind of migration: methods that are decorated with :func:`step`.

    :ivar host: the name of this host.
    """

    host: str
    driver: driver.ComputeDriver
    _runner: Any  # a StepRunner, whose module imports this one


def step(wait: float = 0.0, cancels: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Answer]]:
    """Make the body of a step the RPC method of :class:`Steps` that accepts the step.

    The RPC method has a :class:`Command` in place of the body's :class:`Work`.

    :param wait: seconds for which a call waits for the end of the step, unless the caller names them, as for a check.
    :param cancels: whether the step is a rollback, which ends the earlier work of its migration first.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Answer]:
        @expose
        @functools.wraps(body)
        def accept(
            self: Steps, context: Any, command: Command, instance: Any, wait: float = wait, **more: Any
        ) -> Answer:
            answer: Answer = self._runner.accept(
                command,
                lambda work: body(self, work, instance, **more),
                wait=wait,
                cancels=instance if cancels else None,
            )
            return answer

        return accept

    return decorate


@dataclasses.dataclass(frozen=True)
class Seen:
    """The state of one migration on this host, for a poll.

    :ivar refusal: why the host refuses the poll; None if it does not.
    :ivar epoch: the highest epoch seen.
    :ivar tenure: the highest tenure seen for the guest.
    """

    refusal: str | None
    epoch: int
    tenure: int = 0
    entry: str = Entry.NONE
    verdict: str = ''
    reports: tuple[Report, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class GuestRecord:
    """The state of one guest, kept until the process ends.

    :ivar tenure: the highest tenure seen.
    :ivar holder: the migration of that tenure.
    :ivar pending: the works of every migration that have not ended, in sequence; the first one may be running.
    :ivar calls: the driver calls that run beside the sequence, each with its migration. A set for each of thousands of
        guests would cost as much memory as their works.
    """

    tenure: int = 0
    holder: str = ''
    pending: list[Work] = dataclasses.field(default_factory=list)
    calls: tuple[tuple[str, str], ...] = ()

    def next(self) -> Work | None:
        """Return the first work and mark it as begun, or None if there is no work that can begin now."""
        first = self.pending[0] if self.pending else None
        if first is None or first.begun or any(migration != first.uuid for _, migration in self.calls):
            return None
        first.begun = True
        return first


@dataclasses.dataclass(slots=True, eq=False)
class MigrationRecord:
    """The state of one migration, kept until a later one of its guest has begun or the process ends.

    :ivar works: step -> its newest work.
    """

    guest: GuestRecord
    tenure: int = 0
    epoch: int = 0
    owner: str | None = None
    reply_to: str = ''
    works: dict[str, Work] = dataclasses.field(default_factory=dict)

    def needs_new_work(self, command: Command) -> bool:
        """Return whether a command needs a new work, even if its step already has one."""
        work = self.works.get(command.step)
        if work is None:
            return True
        if work.step == LIVE_MIGRATION:
            return False
        if command.epoch == work.epoch:
            failed = work.outcome is not None and work.outcome.state != WorkState.DONE
            return failed and work.step in steps.ENDING
        if work.outcome is not None:
            return True
        # Running work counts as work of the newest epoch, unless a later step of the same migration is pending.
        same_migration = [other for other in self.guest.pending if other.uuid == work.uuid]
        return work.cancelled or same_migration[-1] is not work

    def store(self, work: Work, undoing: bool) -> list[Work]:
        """Store the new work of a step; a rollback cancels the earlier pending works, which are returned."""
        # An owner that requests a later step has seen how the earlier ones ended.
        for other in self.works.values():
            other.acknowledge()
        self.works[work.step] = work
        cancelled = [other for other in self.guest.pending if undoing and other.uuid == work.uuid and other is not work]
        for other in cancelled:
            other.cancelled = True
        return cancelled


def pack(value: Any) -> bytes:
    """Return a value in compressed wire format, which takes a tenth of the memory. Thousands may wait.

    :param value: a value that can be sent in a message; see :mod:`migrator.objects.base`.
    """
    packer = zlib.compressobj(zdict=_dictionary())
    return packer.compress(_serialize(value)) + packer.flush()


def unpack(packed: bytes) -> Any:
    """Return the value that :func:`pack` has compressed."""
    unpacker = zlib.decompressobj(zdict=_dictionary())
    return base.from_primitive(json.loads(unpacker.decompress(packed) + unpacker.flush()))


def _serialize(value: Any) -> bytes:
    return json.dumps(base.to_primitive(value), separators=(',', ':')).encode()


@functools.cache
def _dictionary() -> bytes:
    """Return the compression dictionary: what most packed values have in common."""
    blank = instance.Instance(
        uuid='', name='', project_id='', user_id='', host='', node='', flavor=instance.Flavor(name='')
    )
    return _serialize([blank, '', protocol.LiveMigrateData()])
