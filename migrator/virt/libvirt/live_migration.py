# SPDX-License-Identifier: Apache-2.0

"""Moves of guests by libvirt, peer to peer: the source's daemon drives the destination's.

So a job goes on when this service is killed, and a later life of it attaches. A job is one blocking call in a thread of
its own; who called for it shepherds it meanwhile: tells that it has begun, widens its downtime step by step, and makes
it end soon once that is wished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
from oslo_log import log as logging

from migrator import exception, executors
from migrator.objects import GuestState, protocol
from migrator.virt.driver import Verdict
from migrator.virt.libvirt import connection as connections
from migrator.virt.libvirt import guest as guests
from migrator.virt.libvirt import records
from migrator.virt.libvirt.plans import Plan

LOG = logging.getLogger(__name__)


#: Seconds between two looks at a call that has not become a job yet.
_BEGINNING = 0.1
#: A call that libvirt has not begun with after so many seconds never will be.
_SETTLED = 35.0
#: For so long libvirt has to be idle with a guest until such a call is taken to be over, in seconds.
_QUIET = 1.0
#: What libvirt takes for "as fast as can be", in MiB/s.
FASTEST = (2**63 - 1) // 2**20
#: The figures of a job, by libvirt's names and ours.
FIGURES = (
    'memory_total', 'memory_processed', 'memory_remaining', 'disk_total', 'disk_processed', 'disk_remaining',
)  # fmt: skip
_HERE = (GuestState.RUNNING, GuestState.PAUSED)
#: In place of a job's figures: its post-copy has broken off, and libvirt keeps it until somebody ends the guest.
_BROKEN: dict[str, Any] = {}


class _Move:
    """A job as this life knows it."""

    def __init__(self, threads: executors.Threads) -> None:
        self.begun = threads.event()
        self.returned = threads.event()
        self.ended = threads.event()
        self.listeners = 0
        self.failure: exception.MigratorException | None = None
        #: What everybody who waits is told: one of the two.
        self.verdict: Verdict | None = None
        self.error: exception.MigratorException | None = None


class Moves:
    """The jobs that go out from this host.

    :param connection: to its daemon.
    :param kept: where it is written down that libvirt is asked to move a guest.
    :param look: what the driver says of a guest.
    """

    def __init__(
        self,
        connection: connections.Connection,
        kept: records.Records,
        threads: executors.Threads,
        look: Callable[[str], protocol.Guest],
    ) -> None:
        self._connection = connection
        self._kept = kept
        self._threads = threads
        self._look = look
        self._lock = threads.lock()
        self._moves: dict[str, _Move] = {}
        #: What this life has asked of the jobs under way.
        self._aborted: set[str] = set()
        self._hastened: set[str] = set()

    def listeners(self, instance_uuid: str) -> int:
        """Return how many wait for the end of a guest's job beside who called for it."""
        with self._lock:
            move = self._moves.get(instance_uuid)
            return move.listeners if move is not None else 0

    def run(
        self, instance_uuid: str, planned: Callable[[protocol.Guest], Plan], started: Callable[[], None]
    ) -> Verdict:
        """Move a guest, or wait for the job that moves it already; see :meth:`.driver.ComputeDriver.live_migration`.

        :param planned: says how a guest is moved that is as it is now; raises a DriverError if it must not be.
        :raises migrator.exception.DriverError: no job was started.
        :raises migrator.exception.LiveMigrationFailed: the job failed, and the guest is here as before.
        :raises migrator.exception.MoveUnsettled: the guest may have moved.
        """
        with self._own(instance_uuid) as (move, mine):
            if not mine:
                return self._join(move, started)
            self._connection.forget(instance_uuid)
            guest = self._look(instance_uuid)
            if guest.job:
                move.begun.set()
                started()
                return self._told(move, self._outlast(instance_uuid))
            if guest.state not in _HERE:
                # A job that was there a moment ago may have moved it.
                reason = f'guest {instance_uuid} is {guest.state}'
                raise exception.MoveUnsettled(host=self._connection.host, reason=reason)
            plan = planned(guest)
            self._connection.listen()
            widest = max((value for _after, value in plan.downtimes), default=0)
            facts = {'uri': plan.uri, 'widest': widest, 'autostart': self._autostarts(instance_uuid)}
            self._kept.write(records.OUTGOING, instance_uuid, facts)
            if facts['autostart']:
                # A source that loses its power when the guest has just gone must not start it a second time.
                self._set_autostart(instance_uuid, False)
            # What an arrival has left behind: it must not be taken for one that is still to come.
            self._kept.remove(records.INCOMING, instance_uuid)
            with self._connection.waker.listen(instance_uuid) as news:
                self._threads.start(self._perform, instance_uuid, plan, move, name=f'move-{instance_uuid}')
                self._monitor_job(instance_uuid, plan, move, started, news)
            verdict = self._judge(instance_uuid, move)
            if verdict is not None and not move.begun.is_set():
                # It was over before it was first looked at.
                move.begun.set()
                started()
            return self._told(move, verdict)

    def settle(self, instance_uuid: str) -> None:
        """Wait until libvirt has begun, or never will, with a move that it was asked for; see
        :meth:`.driver.ComputeDriver.settle`.

        A call that a daemon has taken in waits for the guest's other jobs, 30 s at most; where the guest has none it is
        begun with at once. So a guest that is idle for :data:`_QUIET` will stay so. The figures of its memory are asked
        for of the same workers, first come first served: once they are told, that call has been begun with.
        """
        if self._kept.read(records.OUTGOING, instance_uuid) is None:
            return
        guest = self._look(instance_uuid)
        clock = self._threads.clock
        until = clock.monotonic() + _SETTLED
        idle_since = clock.monotonic()
        while not guest.job and guest.present:
            now = clock.monotonic()
            if not self._connection.call('settle', lambda connection: _is_idle(connection, instance_uuid)):
                idle_since = now
            if now - idle_since >= _QUIET or now >= until:
                return
            self._threads.sleep(_QUIET / 10)
            guest = self._look(instance_uuid)

    def attach(self, instance_uuid: str) -> Verdict | None:
        """Wait for the end of a guest's job; see :meth:`.driver.ComputeDriver.attach_live_migration`."""
        with self._own(instance_uuid) as (move, mine):
            if not mine:
                return self._join(move, lambda: None)
            move.begun.set()
            self._connection.forget(instance_uuid)
            # A call of this life, too, may have been carried out though its answer was lost: its job may be to come.
            self.settle(instance_uuid)
            if not self._look(instance_uuid).job:
                return None
            move.verdict = self._outlast(instance_uuid)
            return move.verdict

    def keep(self, instance_uuid: str) -> None:
        """The guest has not gone: its host starts it again, if it did so before, and nothing is written of it."""
        facts = self._kept.read(records.OUTGOING, instance_uuid) or {}
        if facts.get('autostart'):
            self._set_autostart(instance_uuid, True)
        self._kept.remove(records.OUTGOING, instance_uuid)

    def abort(self, instance_uuid: str) -> None:
        """Ask libvirt to abort a guest's job; without one, or where it is too late, nothing is asked."""
        # Noted first: its end may be told before the answer comes.
        with self._lock:
            new = instance_uuid in self._moves and instance_uuid not in self._aborted
            if new:
                self._aborted.add(instance_uuid)
        if not self._ask('live_migration_abort', instance_uuid, lambda domain: domain.abortJob()) and new:
            with self._lock:
                self._aborted.discard(instance_uuid)

    def force_complete(self, instance_uuid: str) -> None:
        """Make a guest's job end soon: now, or as soon as it copies memory."""
        with self._lock:
            known = instance_uuid in self._moves
            if known:
                self._hastened.add(instance_uuid)
        if known:
            self._connection.waker.wake(instance_uuid)
        else:
            self._hasten(instance_uuid)

    def progress(self, instance_uuid: str) -> dict[str, int]:
        """Return the figures of a guest's job, in bytes; {} without one."""
        stats = self._stats(instance_uuid)
        return {name: int(stats.get(name, 0)) for name in FIGURES} if stats else {}

    # --- one job, one owner ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _own(self, instance_uuid: str) -> Iterator[tuple[_Move, bool]]:
        with self._lock:
            move = self._moves.get(instance_uuid)
            mine = move is None
            if move is None:
                move = self._moves[instance_uuid] = _Move(self._threads)
            else:
                move.listeners += 1
        if not mine:
            yield move, False
            return
        try:
            yield move, True
        except exception.MigratorException as error:
            move.error = error
            raise
        finally:
            with self._lock:
                del self._moves[instance_uuid]
                self._aborted.discard(instance_uuid)
                self._hastened.discard(instance_uuid)
            move.begun.set()
            move.ended.set()

    def _join(self, move: _Move, started: Callable[[], None]) -> Verdict:
        move.begun.wait()
        if move.error is None:
            started()
        move.ended.wait()
        if move.error is not None:
            raise move.error
        if move.verdict is None:
            raise exception.MoveUnsettled(host=self._connection.host, reason='the end of its job was not seen')
        return move.verdict

    def _told(self, move: _Move, verdict: Verdict | None) -> Verdict:
        move.verdict = verdict
        if verdict is None:
            raise exception.MoveUnsettled(host=self._connection.host, reason='the end of its job was not seen')
        return verdict

    # --- the call ----------------------------------------------------------------------------------------------------

    def _perform(self, instance_uuid: str, plan: Plan, move: _Move) -> None:
        def migrate(connection: Any) -> None:
            connection.lookupByUUIDString(instance_uuid).migrateToURI3(plan.uri, plan.parameters, plan.flags)

        try:
            self._connection.do('live_migration', migrate, lasts=True)
        except exception.DriverError as error:
            # Libvirt's words name no host, and are told by the source's whichever they are about.
            reason = f'{str(error.kwargs["reason"]).rstrip(".")}; that may be about the destination, {plan.uri}'
            move.failure = self._error(reason)
            move.failure.__cause__ = error.__cause__
        except exception.MigratorException as error:
            move.failure = error
        except Exception as error:
            LOG.exception('Libvirt was not asked well to move guest %s', instance_uuid)
            move.failure = self._error(f'{type(error).__name__}: {error}')
        finally:
            move.returned.set()
            self._connection.waker.wake(instance_uuid)

    def _monitor_job(
        self, instance_uuid: str, plan: Plan, move: _Move, started: Callable[[], None], news: executors.Event
    ) -> None:
        clock = self._threads.clock
        began, widened = 0.0, list(plan.downtimes)
        while not move.returned.is_set():
            news.wait(connections.LOOK if move.begun.is_set() else _BEGINNING)
            news.clear()
            if move.returned.is_set():
                return
            try:
                stats = self._stats(instance_uuid)
                if stats is _BROKEN:
                    reason = f'the post-copy of guest {instance_uuid} has broken off'
                    raise exception.MoveUnsettled(host=self._connection.host, reason=reason)
                if not stats:
                    continue
                if not move.begun.is_set():
                    began = clock.monotonic()
                    move.begun.set()
                    started()
                if instance_uuid in self._hastened:
                    self._hasten(instance_uuid)
                due = [value for after, value in widened if clock.monotonic() - began >= after]
                if due:
                    self._widen(instance_uuid, due[-1])
                    widened = widened[len(due) :]
            except exception.MoveUnsettled:
                raise
            except exception.MigratorException as error:
                # The call itself says how it ends; until then this is but a look that failed.
                LOG.warning('The job of guest %s could not be looked at: %s', instance_uuid, error)

    def _judge(self, instance_uuid: str, move: _Move) -> Verdict | None:
        failure = move.failure
        if failure is None:
            return Verdict.COMPLETED
        guest = self._look(instance_uuid)
        if guest.job:
            # The connection has failed, and not the job.
            return self._outlast(instance_uuid)
        if guest.state not in _HERE:
            if self._connection.has_moved(instance_uuid):
                return Verdict.COMPLETED
            raise exception.MoveUnsettled(host=self._connection.host, reason=str(failure))
        if not isinstance(failure, exception.DriverError):
            # Whether the call was carried out is not known, and a job may appear yet.
            raise exception.MoveUnsettled(host=self._connection.host, reason=str(failure))
        self._stays(instance_uuid)
        cause = failure.__cause__
        aborted = isinstance(cause, libvirt.libvirtError) and (
            connections.code_of(cause) == libvirt.VIR_ERR_OPERATION_ABORTED
        )
        if aborted or instance_uuid in self._aborted:
            return Verdict.ABORTED
        if not move.begun.is_set():
            raise failure
        raise exception.LiveMigrationFailed(
            instance_uuid=instance_uuid, host=self._connection.host, reason=str(failure.kwargs.get('reason', failure))
        )

    def _outlast(self, instance_uuid: str) -> Verdict | None:
        self._connection.listen()
        widest = int((self._kept.read(records.OUTGOING, instance_uuid) or {}).get('widest', 0))
        with self._connection.waker.listen(instance_uuid) as news:
            while True:
                guest = self._look(instance_uuid)
                if guest.state == GuestState.POSTCOPY_BROKEN:
                    # Libvirt keeps its job until a person has ended the guest.
                    return None
                if not guest.job:
                    break
                if widest:
                    # How far its steps had come is not known any more, and it has had time for all of them.
                    with contextlib.suppress(exception.DriverError):
                        self._widen(instance_uuid, widest)
                    widest = 0
                if instance_uuid in self._hastened:
                    self._hasten(instance_uuid)
                news.wait(connections.LOOK)
                news.clear()
        if guest.state not in _HERE:
            return Verdict.COMPLETED if self._connection.has_moved(instance_uuid) else None
        self._stays(instance_uuid)
        return Verdict.ABORTED if instance_uuid in self._aborted else Verdict.FAILED

    def _stays(self, instance_uuid: str) -> None:
        try:
            self.keep(instance_uuid)
        except exception.MigratorException as error:
            LOG.warning('That guest %s has stayed is left to its rollback to settle: %s', instance_uuid, error)

    def _autostarts(self, instance_uuid: str) -> bool:
        """Whether its host starts a guest, or did before a move whose end nobody has settled."""
        before = self._kept.read(records.OUTGOING, instance_uuid) or {}

        def ask(connection: Any) -> bool:
            return bool(connection.lookupByUUIDString(instance_uuid).autostart())

        return bool(before.get('autostart')) or self._connection.call('live_migration', ask)

    def _set_autostart(self, instance_uuid: str, wanted: bool) -> None:
        def ask(connection: Any) -> None:
            domain = connection.lookupByUUIDString(instance_uuid)
            if domain.isPersistent():
                domain.setAutostart(int(wanted))

        self._connection.call('live_migration', ask)

    # --- libvirt -----------------------------------------------------------------------------------------------------

    def _stats(self, instance_uuid: str) -> dict[str, Any]:
        """Return the figures of the job that goes out; {} without one, and :data:`_BROKEN` where it never ends."""

        def ask(connection: Any) -> dict[str, Any]:
            domain, seen = guests.find(connection, instance_uuid), guests.see(connection, instance_uuid)
            if domain is None or not seen.job:
                return {}
            if guests.told(instance_uuid, seen, False).state == GuestState.POSTCOPY_BROKEN:
                return _BROKEN
            try:
                return dict(domain.jobStats())
            except libvirt.libvirtError as error:
                if connections.code_of(error) in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
                    return {}
                raise

        return self._connection.call('get_progress', ask)

    def _ask(self, phase: str, instance_uuid: str, function: Callable[[Any], Any]) -> bool:
        """Ask something of a guest's job; return whether there was one, and not too late for it."""

        def ask(connection: Any) -> tuple[bool, str]:
            domain = guests.find(connection, instance_uuid)
            if domain is None or not guests.see(connection, instance_uuid).job:
                return False, ''
            try:
                function(domain)
            except libvirt.libvirtError as error:
                if connections.code_of(error) in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
                    return False, str(error)
                raise
            return True, ''

        done, why = self._connection.call(phase, ask)
        if why:
            LOG.info('%s of guest %s came to nothing: %s', phase, instance_uuid, why)
        return done

    def _widen(self, instance_uuid: str, milliseconds: int) -> None:
        LOG.debug('Guest %s may stand still for %d ms now', instance_uuid, milliseconds)
        self._ask('live_migration', instance_uuid, lambda domain: domain.migrateSetMaxDowntime(milliseconds, 0))

    def _hasten(self, instance_uuid: str) -> None:
        """Switch to post-copy, or else pause the guest; not before memory is copied, for disks take long."""
        stats = self._stats(instance_uuid)
        if not stats or not (stats.get('memory_iteration') or stats.get('memory_processed')):
            return
        phase = 'live_migration_force_complete'
        if not self._ask(phase, instance_uuid, lambda domain: domain.migrateStartPostCopy(0)):
            # At the set speed the pause would last as long as what is left at that speed.
            self._ask(phase, instance_uuid, lambda domain: domain.migrateSetMaxSpeed(FASTEST, 0))
            self._ask(phase, instance_uuid, _pause)
        with self._lock:
            self._hastened.discard(instance_uuid)

    def _error(self, reason: str) -> exception.DriverError:
        return exception.DriverError(host=self._connection.host, phase='live_migration', reason=reason)


def _is_idle(connection: Any, instance_uuid: str) -> bool:
    domain = guests.find(connection, instance_uuid)
    if domain is None:
        return True
    try:
        state, *_rest = domain.controlInfo(0)
    except libvirt.libvirtError as error:
        # It does not run, for its host has lost its power, say: nothing can be under way.
        if connections.code_of(error) in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            return True
        raise
    # It asks QEMU, so that it waits behind whatever else is asked of the guest.
    with contextlib.suppress(libvirt.libvirtError):
        domain.memoryStats()
    return bool(state == libvirt.VIR_DOMAIN_CONTROL_OK)


def _pause(domain: Any) -> None:
    """Pause a guest whose job is under way; one whose job has just ended goes on."""
    ran = domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING
    domain.suspend()
    if ran and tuple(domain.state()) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER):
        # With a job it would be paused for the migration, and resumed at its end. Nobody would resume it now.
        domain.resume()
